"""Which tables of ours no record needs, and which of them an operator may have dropped. Pure.

A staging attempt that died leaves a table that nobody will ever publish. It may be dropped only when nobody
*can* publish it any more: a compare-and-swap on its target's record comes first, and what is not surely ours,
or not surely unneeded, is only listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, unique

from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import (
    candidate_parts,
    only_target,
    parked_name,
    target_key,
)
from airflow_provider_dpone.publication.record import (
    MAX_RETAINED,
    AuthorityRecord,
    Generation,
    IndependentRecord,
    Retained,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Code, Stop


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table with our mark, or with a name like ours, on one replica.

    :ivar authority_id: of the mark in its COMMENT; ``None`` without a mark.
    :ivar operation_id: of the mark.
    :ivar in_use: a query that names it is running there, a load for example.
    :ivar changed_at: when its definition was written, server time in seconds.
    """

    alias: str
    database: str
    name: str
    uuid: str
    authority_id: str | None
    operation_id: str | None
    bytes: int
    in_use: bool
    changed_at: int


@unique
class Why(StrEnum):
    """Why a table is listed."""

    LEFT = "no record needs it: its staging attempt died, or is still running"
    DUE = "it was kept longer than asked for; cleanup or the next run drops it"
    UNEVEN = "the replicas have different tables under this name"
    RENAMED = "it has our mark under a name that we never gave it: somebody renamed or copied it"
    UNMARKED = "its name is like ours, but it has no mark of ours"
    FOREIGN = "it was made under another control table"
    NO_TARGET = "which table it was made for is not known"
    UNREADABLE = "the record of the table that it was made for can't be read by this release"
    IN_USE = "a query that names it is running"
    UNDER_WAY = "an operation on the table that it was made for is under way"
    REPLACED = "a kept table is listed under this name, but another one has it now"
    BESIDE = (
        "a kept table has this name, and on other replicas another one has it: nothing is dropped by the name"
    )


_DROPPABLE = frozenset({Why.LEFT, Why.DUE})


@dataclass(frozen=True, slots=True)
class Orphan:
    """One name that no record needs.

    :ivar uuids: by replica.
    :ivar bytes: over all replicas.
    :ivar table: the target's name, where it is known.
    """

    database: str
    name: str
    uuids: Mapping[str, str]
    bytes: int
    operation_id: str | None
    table: str | None
    why: Why
    changed_at: int

    @property
    def droppable(self) -> bool:
        """Tell whether ``--drop`` would try: everything is checked again before anything is sent."""
        return self.why in _DROPPABLE

    @property
    def uuid(self) -> str | None:
        """The UUID, if it is the same on every replica that has the table; independent ones have each their own."""
        found = {*self.uuids.values()}
        return found.pop() if len(found) == 1 else None


def find_orphans(
    tables: Sequence[FoundTable],
    records: Sequence[AuthorityRecord],
    *,
    authority_ids: Collection[str],
    unreadable_keys: Collection[str],
    now: int,
    independent: bool = False,
) -> tuple[Orphan, ...]:
    """Return what no record needs, by name.

    :param authority_ids: the control table's own id first, then those that it adopted.
    :param unreadable_keys: keys of records that this release can't read.
    :param now: server time in seconds.
    :param independent: nothing copies rows between the replicas, so that each has tables of its own under a name.
    """
    by_name: dict[tuple[str, str], list[FoundTable]] = {}
    for table in tables:
        by_name.setdefault((table.database, table.name), []).append(table)
    found = []
    for (database, name), copies in sorted(by_name.items()):
        target = target_of(copies[0], records)
        own = [r for r in records if r.database == database]
        # One operation's tables have other UUIDs on independent replicas, and the same mark on each.
        uneven = len({copy.operation_id if independent else copy.uuid for copy in copies}) > 1
        why = _why(name, copies, target, own, authority_ids, unreadable_keys, now, uneven=uneven)
        if why is not None:
            found.append(
                Orphan(
                    database=database,
                    name=name,
                    uuids={copy.alias: copy.uuid for copy in copies},
                    bytes=sum(copy.bytes for copy in copies),
                    operation_id=copies[0].operation_id,
                    table=target,
                    why=why,
                    changed_at=min(copy.changed_at for copy in copies),
                )
            )
    return tuple(found)


def target_of(table: FoundTable, records: Iterable[AuthorityRecord]) -> str | None:
    """Return the name of the table that a candidate was made for, or ``None`` where that is not sure."""
    if candidate_parts(table.name) is None:
        return None
    for record in records:
        if record.database != table.database:
            continue
        operations = {record.operation_id, *(s.operation_id for s in record.settled)}
        operations |= {item.operation_id for item in record.retained}
        names = {record.candidate, parked_name(record.candidate), *(item.name for item in record.retained)}
        if table.name in names or table.operation_id in operations:
            return record.table
    return only_target(table.name)


def _why(
    name: str,
    copies: Sequence[FoundTable],
    target: str | None,
    records: Sequence[AuthorityRecord],
    authority_ids: Collection[str],
    unreadable_keys: Collection[str],
    now: int,
    *,
    uneven: bool,
) -> Why | None:
    uuids = {copy.uuid for copy in copies}
    for record in records:
        if name == record.table:
            return None
        if not record.ended and name in (
            record.candidate,
            parked_name(record.candidate),
            *(left for left, _ in record.left()),
        ):
            return None
        for item in record.retained:
            if item.name == name:
                if not uuids <= item.generation.uuids:
                    return Why.BESIDE if uuids & item.generation.uuids else Why.REPLACED
                return Why.DUE if item.drop_after <= now else None
    if candidate_parts(name) is None:
        return Why.RENAMED
    if uneven:
        return Why.UNEVEN
    marks = {copy.authority_id for copy in copies}
    if None in marks:
        return Why.UNMARKED
    if not marks <= {*authority_ids}:
        return Why.FOREIGN
    if target is None:
        return Why.NO_TARGET
    if any(target_key(one, copies[0].database, target) in unreadable_keys for one in authority_ids):
        return Why.UNREADABLE
    if any(record.table == target and not record.ended for record in records):
        return Why.UNDER_WAY
    if any(copy.in_use for copy in copies):
        return Why.IN_USE
    return Why.LEFT


def not_droppable(orphan: Orphan) -> Stop | None:
    """Return why a listed table is not dropped, or ``None``."""
    if orphan.droppable:
        return None
    held = orphan.why in (Why.UNDER_WAY, Why.IN_USE)
    return Stop(
        Code.TARGET_BUSY if held else Code.NOT_RESOLVABLE,
        f"{orphan.database}.{orphan.name} is not dropped: {orphan.why}.",
        next_action=_NEXT.get(orphan.why, "Find out what it is. If it is not needed, its owner drops it."),
        facts={"uuids": dict(orphan.uuids)},
    )


RENAME_AWAY = (
    "Find out what the other table is, and rename it away on the replicas where it is. Then cleanup or the next run "
    "drops the kept one."
)

_NEXT: Mapping[Why, str] = {
    Why.UNDER_WAY: "Let the operation end; `airflow dpone explain` says where it stands.",
    Why.IN_USE: "Let the query end.",
    Why.REPLACED: "Nothing is dropped. `airflow dpone orphans --forget` strikes the kept table off the record.",
    Why.BESIDE: RENAME_AWAY,
    Why.UNREADABLE: "Upgrade the provider on this machine.",
}


def orphan_to_drop(
    stored: StoredRecord | None,
    observation: Observation,
    name: str,
    uuids: Collection[str],
    table: str,
) -> Generation | Stop:
    """Return the exact table that may be listed for a drop, as this look shows it, or say why not.

    :param observation: an admitted look with the target and ``name``, taken now.
    :param uuids: which table is meant: one UUID, or that of each independent table under the name.
    :param table: the target's name.
    """
    if stored is not None and not stored.record.ended:
        return Stop(
            Code.TARGET_BUSY,
            f"{stored.record.database}.{table}: an operation is {stored.record.phase}, so nothing is dropped.",
            next_action="Let it end; `airflow dpone explain` says where it stands.",
            facts={"operation": stored.record.operation_id[:16], "phase": stored.record.phase.value},
        )
    if stored is not None and isinstance(stored.record, IndependentRecord) != observation.independent:
        return _not_it(
            name, "the cluster's tables replicate themselves otherwise than its target's record says"
        )
    seen = {alias: t for alias, f in observation.replicas.items() if (t := f.tables.get(name)) is not None}
    if not seen or {t.uuid for t in seen.values()} != {*uuids}:
        return _not_it(name, "it is not the table that was listed")
    blind = [a for a, f in observation.replicas.items() if name not in f.tables and not f.sees_database]
    if blind:
        return _not_it(name, f"our user doesn't see the database's tables on {', '.join(blind)}")
    if any(
        live is not None and live.uuid in uuids
        for facts in observation.replicas.values()
        for live in [facts.tables.get(table)]
    ):
        return _not_it(name, "it is the live table on a replica")
    if stored is not None and len(stored.record.retained) > MAX_RETAINED - 2:
        return Stop(
            Code.TOO_MANY_RETAINED,
            f"{len(stored.record.retained)} replaced tables are still kept, so no other one can be listed.",
        )
    found = observation.generation(name)
    return found if found is not None else _not_it(name, "it is not there any more")


def kept_but_replaced(record: AuthorityRecord, observation: Observation, name: str) -> Retained | Stop:
    """Return the kept table that may be struck off without a drop: another one has its name, everywhere or nobody.

    :param observation: an admitted look with ``name``, taken now.
    """
    item = next((item for item in record.retained if item.name == name), None)
    if item is None:
        return _not_it(name, "no kept table is listed under this name")
    seen = {alias: facts.tables.get(name) for alias, facts in observation.replicas.items()}
    present = {alias: table.uuid for alias, table in seen.items() if table is not None}
    others = {*present.values()} - item.generation.uuids
    if still := [alias for alias, uuid in present.items() if uuid in item.generation.uuids]:
        stop = _not_it(name, f"the kept table is still there on {', '.join(still)}")
        return replace(stop, next_action=RENAME_AWAY) if others else stop
    if not any(seen.values()):
        return _not_it(name, "nothing has this name; cleanup strikes it off by itself")
    if blind := [a for a, t in seen.items() if t is None and not observation.replicas[a].sees_database]:
        return _not_it(name, f"our user doesn't see the database's tables on {', '.join(blind)}")
    return item


def is_kept(record: AuthorityRecord | None, name: str, uuids: Collection[str]) -> bool:
    """Tell whether the record lists exactly this table, so that it need not be listed again."""
    items = record.retained if record else ()
    return any(item.name == name and {*uuids} <= item.generation.uuids for item in items)


def _not_it(name: str, why: str) -> Stop:
    return Stop(
        Code.NOT_RESOLVABLE,
        f"{name} is left alone: {why}.",
        next_action="List the orphans again and look at what has the name now.",
    )
