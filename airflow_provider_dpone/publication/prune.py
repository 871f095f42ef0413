"""Which trails may be deleted: those of operations that have ended and that nothing on the cluster needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.record import AuthorityRecord
from airflow_provider_dpone.publication.trail import (
    Admission,
    CandidateIntent,
    CompareAndSwap,
    Entry,
    Staged,
)


@dataclass(frozen=True, slots=True)
class TrailFacts:
    """One operation as its trail tells.

    :ivar newest: when its newest entry was written, as entries have it.
    :ivar target: database and table; ``None`` if no entry names them.
    :ivar authority_id: the control table that admitted it.
    :ivar prepared: it meant to write a record.
    :ivar candidates: database and name of every table that it meant to create, or staged.
    :ivar newer: it has entries of a later release.
    """

    operation_id: str
    newest: str
    target: tuple[str, str] | None
    authority_id: str | None
    prepared: bool
    candidates: tuple[tuple[str, str], ...]
    newer: bool

    @classmethod
    def of(cls, operation_id: str, entries: Iterable[Entry], *, newer: bool) -> TrailFacts:
        """Return the facts of a trail.

        :param newer: there are entries that a later release wrote.
        """
        found = list(entries)
        admissions = [e.body for e in found if isinstance(e.body, Admission)]
        intents = [(e.body.database, e.body.table) for e in found if isinstance(e.body, CandidateIntent)]
        last = admissions[-1] if admissions else None
        # The candidate of independent replicas gets its name by a rename: it was created under others.
        staged = [(last.database, e.body.table) for e in found if isinstance(e.body, Staged)] if last else []
        return cls(
            operation_id=operation_id,
            newest=max((entry.at for entry in found), default=""),
            target=(last.database, last.table) if last else None,
            authority_id=last.authority_id if last else None,
            prepared=any(isinstance(e.body, CompareAndSwap) for e in found),
            candidates=tuple(dict.fromkeys((*intents, *staged))),
            newer=newer,
        )

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Database and name of every table that may be its own, those that were parked included."""
        parked = tuple((database, parked_name(table)) for database, table in self.candidates)
        return self.candidates + parked


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """What the cluster holds now.

    :ivar records: the record of every target.
    :ivar tables: which of the asked names exist on any replica, by database. A database is missing here if it is not
        proven on every replica which of its tables exist.
    """

    records: tuple[AuthorityRecord, ...]
    tables: Mapping[str, frozenset[str]]


def needed(trail: TrailFacts, now: ClusterNow, *, before: str) -> str | None:
    """Return in words why a trail must be kept; ``None`` if it may be deleted.

    :param before: what was written since then is too young, as entries have their time.
    """
    if trail.newer:
        return "it has entries of a later release: upgrade the provider"
    if trail.newest >= before:
        return "it is too young"
    for record in now.records:
        if record.operation_id == trail.operation_id:
            return "it is the last operation of its target"
        if any(item.operation_id == trail.operation_id for item in record.retained):
            return "a table of it is still kept"
    for database, name in trail.names:
        if database not in now.tables:
            return "it can't be seen whether its tables still exist"
        if name in now.tables[database]:
            return "a table of it still exists"
    if trail.target is None:
        return "its target is not known"
    if not trail.prepared:
        authorities = {record.authority_id for record in now.records}
        if authorities and trail.authority_id not in authorities:
            return "it is another control table's"
        return None
    # A target has one record, and an operation that is not in it any more has ended, however long ago.
    holder = next((r for r in now.records if (r.database, r.table) == trail.target), None)
    if holder is None or holder.authority_id != trail.authority_id:
        return "no record of its target tells that it has ended"
    return None
