"""Reading the evidence: the list of operations, newest first, and the whole trail of one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from airflow_provider_dpone.evidence import layout, objects
from airflow_provider_dpone.evidence.layout import AUDIT, INDEX, EntryName, IndexName
from airflow_provider_dpone.evidence.store import index_entry, write_index
from airflow_provider_dpone.publication.history import ADMITTED, STAGED
from airflow_provider_dpone.publication.record import UNSENT_PHASES, Owner, Phase
from airflow_provider_dpone.publication.trail import (
    Admission,
    CompareAndSwap,
    CompareAndSwapOutcome,
    Entry,
    PermitUnused,
    Staged,
    StoredReceipt,
    Unknown,
    in_order,
    load_entry,
)

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

SHORTEST_PREFIX: Final = 8
"""Fewest characters of an operation's id by which it is found."""

_STORED: Final = "stored-"
_TELLING: Final = tuple(f"{kind}." for kind in (CompareAndSwapOutcome.kind, StoredReceipt.kind, Staged.kind))


@dataclass(frozen=True, slots=True)
class Listed:
    """An operation in the list.

    :ivar at: when its last attempt was admitted: UTC, as text.
    :ivar state: the last phase that its own trail tells. A later operation may have taken its place since.
    :ivar owner: whose it is; ``None`` where neither the list nor the trail tells it to this release.
    """

    operation_id: str
    at: str
    database: str
    table: str
    state: str
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class Indexed:
    """What an entry of the list says. It never changes while the operation has a trail.

    :ivar owner: ``None`` in an entry of a release that did not write it.
    """

    operation_id: str
    at: str
    database: str
    table: str
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class Trail:
    """One operation's whole trail.

    :ivar entries: in the order in which they were written.
    :ivar unknown: the entries that this release can't use, by name.
    """

    operation_id: str
    entries: tuple[Entry, ...]
    unknown: tuple[tuple[str, Unknown], ...]

    @property
    def newer(self) -> bool:
        """Tell whether a later release wrote a part of it."""
        return any(entry.newer for _, entry in self.unknown)


@dataclass(frozen=True, slots=True)
class Reindexed:
    """What a rebuilt list has.

    :ivar operations: operations that are on the list.
    :ivar added: list entries that were missing.
    :ivar repaired: list entries that had been cut off while they were written, or lacked what this release writes.
    :ivar removed: list entries of operations without a trail.
    :ivar unlisted: operations without an admission, which have no place on the list.
    """

    operations: int
    added: int
    repaired: int
    removed: int
    unlisted: int


class EvidenceReader:
    """The evidence of one cluster, for people and pages.

    Each method raises :class:`Stopped` with ``EVIDENCE_UNAVAILABLE`` where the store can't be read.

    :param root: the folder that all workers share.
    """

    def __init__(self, root: ObjectStoragePath, cluster: str) -> None:
        self.folder = layout.cluster_folder(root, cluster)

    def operations(self, *, limit: int, target: tuple[str, str] | None = None) -> tuple[Listed, ...]:
        """Return operations, newest first.

        It lists the days from the newest on, and reads no more than it returns.

        :param limit: how many at most.
        :param target: database and table; ``None``: all.
        """
        wanted = layout.target_digest(*target) if target is not None else None
        found: dict[str, Listed] = {}
        for path, name in self.listed():
            if len(found) == limit:
                break
            if name.operation_id in found or wanted not in (None, name.target):
                continue
            trail = objects.names(self.folder / name.operation_id)
            data = objects.read(path) if trail else b""
            if (listed := _listed(data, trail)) is not None:
                found[name.operation_id] = listed
        return tuple(found.values())

    def recent(self, database: str, table: str, *, limit: int, days: int | None) -> tuple[str, ...]:
        """Return the newest operations on a table; see :meth:`routes.ports.Trails.recent`."""
        wanted = layout.target_digest(database, table)
        found: dict[str, None] = {}
        for name in self.index_names(days):
            if name.target == wanted:
                found.setdefault(name.operation_id)
                if len(found) == limit:
                    break
        return tuple(found)

    def entries(self, operation_id: str) -> tuple[Entry, ...]:
        """Return the entries of one operation; see :meth:`routes.ports.Trails.entries`."""
        return self.trail(operation_id).entries

    def listed(self) -> Iterator[tuple[ObjectStoragePath, IndexName]]:
        """Yield the entries of the list, newest first. An operation has one for each attempt."""
        for name in self.index_names():
            yield self.folder / INDEX / name.day / str(name), name

    def index_names(self, days: int | None = None) -> Iterator[IndexName]:
        """Yield the names of the entries of the list, newest first. No entry is read.

        :param days: of the newest days alone; ``None``: of all.
        """
        for day in objects.names(self.folder, INDEX)[::-1][:days]:
            for name in reversed(objects.names(self.folder, f"{INDEX}/{day}")):
                if (parsed := IndexName.parse(name)) is not None:
                    yield parsed

    def indexed(self, name: IndexName) -> Indexed | None:
        """Return what an entry of the list says; its owner from the trail's admission, where the entry lacks it.

        :param name: as :meth:`index_names` yields it.
        """
        found = load_indexed(objects.read(self.folder, f"{INDEX}/{name.day}/{name}"))
        if found is None or found.owner is not None:
            return found
        admissions = self._admissions(self.folder / found.operation_id)
        return replace(found, owner=next((body.owner for _, body in admissions), None))

    def names(self, operation_id: str) -> list[str]:
        """Return the names of one operation's trail, which tell its state; none if there is no trail."""
        return objects.names(self.folder, operation_id)

    def operation_ids(self) -> list[str]:
        """Return every operation that has a trail. It lists all of them."""
        return [name for name in objects.names(self.folder) if name not in (INDEX, AUDIT)]

    def find(self, prefix: str) -> str:
        """Return the one operation whose id begins with ``prefix``.

        :raises ValueError: there is none, or more than one; or the prefix is too short.
        """
        if len(prefix) < SHORTEST_PREFIX or not prefix.isalnum():
            raise ValueError(f"--operation takes at least {SHORTEST_PREFIX} characters of an operation's id")
        found = [name for name in self.operation_ids() if name.startswith(prefix)]
        if len(found) != 1:
            number = "no operation" if not found else f"{len(found)} operations"
            raise ValueError(f"the evidence has {number} whose id begins with {prefix!r}")
        return found[0]

    def trail(self, operation_id: str) -> Trail:
        """Return one operation's whole trail, in order; an empty one if there is none."""
        entries: list[Entry] = []
        unknown: list[tuple[str, Unknown]] = []
        folder = self.folder / operation_id
        for name in objects.names(folder):
            match load_entry(objects.read(folder / name)):
                case Entry() as entry:
                    entries.append(entry)
                case Unknown() as other:
                    unknown.append((name, other))
        return Trail(operation_id, in_order(entries), tuple(unknown))

    def reindex(self) -> Reindexed:
        """Rebuild the list from the trails. What is right stays as it is."""
        # The list is read first: whatever is on it by now had a trail before.
        before = {str(name): path for path, name in self.listed()}
        names: set[str] = set()
        operations = unlisted = repaired = 0
        known = self.operation_ids()
        for operation_id in known:
            folder = self.folder / operation_id
            places = list(self._admissions(folder))
            operations += bool(places)
            unlisted += not places
            for entry, body in places:
                name, data = index_entry(operation_id, entry.at, body)
                names.add(str(name))
                if (path := before.get(str(name))) is not None and objects.read(path) != data:
                    objects.delete(path)
                    repaired += 1
                write_index(self.folder, operation_id, entry.at, body)
        gone = {name: path for name, path in before.items() if _operation_of(name) not in known}
        for path in gone.values():
            objects.delete(path)
        return Reindexed(operations, len(names - before.keys()), repaired, len(gone), unlisted)

    def _admissions(self, folder: ObjectStoragePath) -> Iterator[tuple[Entry, Admission]]:
        for name in objects.names(folder):
            if name.startswith(f"{Admission.kind}."):
                entry = load_entry(objects.read(folder / name))
                if isinstance(entry, Entry) and isinstance(entry.body, Admission):
                    yield entry, entry.body


def clusters(root: ObjectStoragePath) -> list[str]:
    """Return the clusters that have evidence. What a volume has of its own, such as ``lost+found``, is none.

    :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
    """
    return [cluster for name in objects.names(root) if quote(cluster := unquote(name), safe="") == name]


def state_of(names: Iterable[str]) -> str:
    """Return how far an operation came, from the names of its trail alone.

    A permit whose outcome nobody wrote down may have been used, so it counts as given.
    """
    names = list(names)
    telling = [name for name in names if name.startswith(_TELLING)]
    parsed = [name for name in map(EntryName.parse, telling) if name is not None]
    stored = [
        (name.version, name.word.removeprefix(_STORED))
        for name in parsed
        if name.kind == CompareAndSwapOutcome.kind and name.word.startswith(_STORED)
        if name.version is not None
    ]
    receipts = [
        (name.version, name.word)
        for name in parsed
        if name.kind == StoredReceipt.kind and name.version is not None
    ]
    version, state = max(stored + receipts, key=lambda one: one[0], default=(None, ""))
    if (not state or state in UNSENT_PHASES) and _may_have_sent(names, version):
        return Phase.DISPATCHING.value
    if state:
        return state
    return STAGED if any(name.kind == Staged.kind for name in parsed) else ADMITTED


def _may_have_sent(names: Iterable[str], version: int | None) -> bool:
    """Tell whether a permit was asked for, and neither its end nor a later write of the record is noted.

    :param version: of the newest write that is known to be stored; ``None`` if there is none.
    """
    parsed = [name for name in map(EntryName.parse, filter(_about_permit, names)) if name is not None]
    void = {
        name.fence
        for name in parsed
        if name.kind == PermitUnused.kind
        or (name.kind == CompareAndSwapOutcome.kind and not name.word.startswith("unknown-"))
    }
    return any(
        name.kind == CompareAndSwap.kind
        and name.word == f"to-{Phase.DISPATCHING}"
        and name.fence not in void
        and (version is None or (name.version is not None and name.version >= version))
        for name in parsed
    )


def _about_permit(name: str) -> bool:
    return name.startswith(
        (f"{CompareAndSwap.kind}.", f"{CompareAndSwapOutcome.kind}.", f"{PermitUnused.kind}.")
    )


def load_indexed(data: bytes) -> Indexed | None:
    """Return what an entry of the list says; ``None`` if it was cut off, or is none that this release knows."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    match found:
        case {
            "schema": "dpone.clickhouse.evidence-index.v1",
            "operation_id": str() as operation_id,
            "at": str() as at,
            "database": str() as database,
            "table": str() as table,
        }:
            return Indexed(operation_id, at, database, table, _owner_in(found.get("owner")))
    return None


def _owner_in(found: object) -> Owner | None:
    match found:
        case {
            "dag_id": str() as dag_id,
            "run_id": str() as run_id,
            "task_id": str() as task_id,
            "map_index": int() as map_index,
        }:
            return Owner(dag_id, run_id, task_id, map_index)
    return None


def _listed(data: bytes, trail: list[str]) -> Listed | None:
    # Cut off while it was written, or its operation is gone: reindex puts it right.
    found = load_indexed(data)
    if found is None:
        return None
    return Listed(found.operation_id, found.at, found.database, found.table, state_of(trail), found.owner)


def _operation_of(name: str) -> str:
    parsed = IndexName.parse(name)
    return parsed.operation_id if parsed else ""
