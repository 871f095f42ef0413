"""Which publications there are, and which of them a task works on: read from the evidence's list.

What is on the list never changes, and neither does an operation that has ended: both are read once by a process.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from airflow_provider_dpone.evidence.layout import AUDIT, INDEX, IndexName, name_time
from airflow_provider_dpone.evidence.reader import EvidenceReader, Indexed, Trail, state_of
from airflow_provider_dpone.publication.record import Owner, is_rollback
from airflow_provider_dpone.web.recorded import Recorded, recorded
from airflow_provider_dpone.web.status import CLOSED, SENT, UNPREPARED, Status, Tone, status_of

MOST_SEARCHED: Final = 5_000
"""How many operations are searched, the newest first."""

PER_PAGE: Final = 50
"""How many operations a page of the list shows."""

_MOST_KEPT: Final = 50_000
_LONGEST_CHAIN: Final = 20

ValueT = TypeVar("ValueT")

Readers = Callable[[], Mapping[str, EvidenceReader]]
MayRead = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Publication:
    """An operation in the list.

    :ivar at: when its last attempt was admitted: UTC, as text that sorts.
    :ivar dag_id: whose it is; for an operator's rollback, whose publication it undoes. ``None``: not known.
    :ivar later: a later operation was prepared for the same table.
    :ivar reason: the code of what stops it, without its prefix.
    """

    cluster: str
    operation_id: str
    at: str
    database: str
    table: str
    owner: Owner | None
    dag_id: str | None
    state: str
    status: Status
    later: bool = False
    reason: str = ""

    @property
    def target(self) -> str:
        """Database and table."""
        return f"{self.database}.{self.table}"

    @property
    def rollback(self) -> bool:
        """Tell whether an operator's rollback began it."""
        return self.owner is not None and is_rollback(self.owner)


@dataclass(frozen=True, slots=True)
class Filter:
    """What the list is narrowed to. Empty: everything.

    :ivar target: a part of ``database.table``.
    :ivar word: a status's word, such as ``Published``.
    :ivar before: only operations admitted before: the last one of the page before.
    """

    cluster: str = ""
    target: str = ""
    word: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """One page of the list.

    :ivar attention: operations that may have sent their statement and are not proven, whatever their age.
    :ivar rows: the others, newest first.
    :ivar more: where the next page goes on; empty if there is none.
    :ivar searched_all: nothing older was left out of the search.
    """

    attention: tuple[Publication, ...]
    rows: tuple[Publication, ...]
    clusters: tuple[str, ...]
    more: str
    searched_all: bool


@dataclass(frozen=True, slots=True)
class OfTask:
    """What the evidence knows of a task instance.

    :ivar own: the operations that it staged or wrote evidence of, newest first.
    :ivar others: the other operations of its run.
    :ivar searched_all: nothing older was left out of the search.
    """

    own: tuple[Publication, ...] = ()
    others: tuple[Publication, ...] = ()
    searched_all: bool = True


@dataclass(frozen=True, slots=True)
class _Place:
    cluster: str
    reader: EvidenceReader
    name: IndexName

    @property
    def target(self) -> tuple[str, str]:
        return self.cluster, self.name.target


@dataclass(slots=True)
class Publications:
    """The evidence of all clusters, for the page.

    Each method raises :class:`Stopped` with ``EVIDENCE_UNAVAILABLE`` where the store can't be read.

    :param readers: what reads the evidence of each cluster.
    """

    readers: Readers
    _indexed: dict[tuple[str, str], Indexed] = field(default_factory=dict)
    _ended: dict[tuple[str, str], str] = field(default_factory=dict)

    def overview(self, wanted: Filter, may_read: MayRead) -> Overview:
        """Return one page of the list.

        :param may_read: tells whether a DAG's data may be shown.
        """
        readers = self.readers()
        rows: list[Publication] = []
        attention: list[Publication] = []
        decided: set[tuple[str, str]] = set()
        seen: set[tuple[str, str]] = set()
        more = ""
        searched_all = True
        for place in self._places(readers, wanted.cluster):
            if len(seen) == MOST_SEARCHED:
                searched_all = False
                break
            key = (place.cluster, place.name.operation_id)
            if key in seen:
                continue
            seen.add(key)
            first = place.target not in decided
            full = len(rows) == PER_PAGE
            on_page = not full and (not wanted.before or place.name.at < wanted.before)
            if not (first or on_page or (full and not more)):
                continue
            state = self._state(place)
            if first and state not in UNPREPARED:
                # The slot has been this operation's since: an older one can't be in it any more.
                decided.add(place.target)
            later = not first
            open_ = state in SENT and not later
            if not (open_ or on_page or (full and not more)):
                continue
            found = self._publication(place, readers, state, later=later)
            if (
                found is None
                or not _fits(found, wanted)
                or found.dag_id is None
                or not may_read(found.dag_id)
            ):
                continue
            if open_:
                attention.append(found)
            elif on_page:
                rows.append(found)
            elif not more:
                more = name_time(rows[-1].at)
        attention.sort(key=lambda one: (one.status.tone is not Tone.HOLD, one.at))
        return Overview(tuple(attention), tuple(rows), tuple(readers), more, searched_all)

    def of_task(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> OfTask:
        """Return the operations that a task instance has to do with.

        A stage task owns its operations. Any other task is known by the evidence that it wrote, so nothing is guessed
        from names: a task that has not written any has no operation yet.
        """
        readers = self.readers()
        own: list[Publication] = []
        others: list[Publication] = []
        decided: set[tuple[str, str]] = set()
        seen: set[tuple[str, str]] = set()
        for place in self._places(readers, ""):
            if len(seen) == MOST_SEARCHED:
                return OfTask(tuple(own), tuple(others), searched_all=False)
            key = (place.cluster, place.name.operation_id)
            if key in seen:
                continue
            seen.add(key)
            indexed = self._index(place)
            if indexed is None or indexed.owner is None:
                continue
            owner = indexed.owner
            # A rollback is no task of a DAG, whatever names it has: it is found through the list.
            if is_rollback(owner) or (owner.dag_id, owner.run_id) != (dag_id, run_id):
                continue
            state = self._state(place)
            found = self._publication(place, readers, state, later=place.target in decided)
            if found is None:
                continue
            if state not in UNPREPARED:
                decided.add(place.target)
            mine = (owner.task_id, owner.map_index) == (task_id, map_index)
            (own if mine else others).append(found)
        if not own:
            for one in others:
                trail = readers[one.cluster].trail(one.operation_id)
                if _wrote(trail, dag_id, run_id, task_id, map_index):
                    own.append(one)
            others = [one for one in others if one not in own]
        return OfTask(tuple(own), tuple(others))

    def operation(self, cluster: str, operation_id: str) -> tuple[Publication, Trail] | None:
        """Return one operation with its whole trail; ``None`` if there is none of that id."""
        readers = self.readers()
        reader = readers.get(cluster)
        # An id is part of a path, beside which the evidence has folders of its own.
        if (
            reader is None
            or not operation_id.isalnum()
            or not operation_id.isascii()
            or operation_id in (INDEX, AUDIT)
        ):
            return None
        trail = reader.trail(operation_id)
        if not (trail.entries or trail.unknown):
            return None
        newer: list[_Place] = []
        for place in self._places(readers, cluster):
            if place.name.operation_id == operation_id:
                break
            newer.append(place)
        else:
            return None
        later = any(one.target == place.target and self._state(one) not in UNPREPARED for one in newer)
        found = self._publication(place, readers, self._state(place), later=later)
        return (found, trail) if found is not None else None

    # ---- what is read

    def _places(self, readers: Mapping[str, EvidenceReader], cluster: str) -> Iterator[_Place]:
        """The entries of the list, newest first, over all clusters."""

        def of(name: str, reader: EvidenceReader) -> Iterator[_Place]:
            return (_Place(name, reader, entry) for entry in reader.index_names())

        lists = [of(name, reader) for name, reader in readers.items() if cluster in ("", name)]
        return heapq.merge(*lists, key=lambda place: place.name.at, reverse=True)

    def _index(self, place: _Place) -> Indexed | None:
        key = (place.cluster, str(place.name))
        if (known := self._indexed.get(key)) is not None:
            return known
        found = place.reader.indexed(place.name)
        if found is not None and found.owner is not None:
            _keep(self._indexed, key, found)
        return found

    def _state(self, place: _Place) -> str:
        key = (place.cluster, place.name.operation_id)
        if (known := self._ended.get(key)) is not None:
            return known
        state = state_of(place.reader.names(place.name.operation_id))
        if state in CLOSED:
            _keep(self._ended, key, state)
        return state

    def _publication(
        self, place: _Place, readers: Mapping[str, EvidenceReader], state: str, *, later: bool
    ) -> Publication | None:
        indexed = self._index(place)
        if indexed is None:
            return None
        status, reason = status_of(state, later=later), ""
        if state in SENT and not later:
            status, reason = _open_status(recorded(place.reader.trail(place.name.operation_id)), state)
        return Publication(
            cluster=place.cluster,
            operation_id=place.name.operation_id,
            at=indexed.at,
            database=indexed.database,
            table=indexed.table,
            owner=indexed.owner,
            dag_id=self._dag_of(indexed.owner, place, readers),
            state=state,
            status=status,
            later=later,
            reason=reason,
        )

    def _dag_of(
        self, owner: Owner | None, place: _Place, readers: Mapping[str, EvidenceReader]
    ) -> str | None:
        """The DAG whose readers may see an operation: a rollback belongs to whose publication it undoes."""
        for _ in range(_LONGEST_CHAIN):
            if owner is None or not is_rollback(owner):
                return owner.dag_id if owner else None
            undone = owner.run_id
            owner = None
            for other in self._places(readers, place.cluster):
                if other.name.operation_id == undone:
                    indexed = self._index(other)
                    owner = indexed.owner if indexed else None
                    break
        return None


def _open_status(found: Recorded, state: str) -> tuple[Status, str]:
    stop = found.stop
    return status_of(state, stop.category if stop else None), (stop.aggregate if stop else "")


def _fits(one: Publication, wanted: Filter) -> bool:
    return wanted.target.lower() in one.target.lower() and wanted.word in ("", one.status.word)


def _wrote(trail: Trail, dag_id: str, run_id: str, task_id: str, map_index: int) -> bool:
    wanted = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
    return any(
        all(entry.about.get(name) == value for name, value in wanted.items()) for entry in trail.entries
    )


def _keep(kept: dict[tuple[str, str], ValueT], key: tuple[str, str], value: ValueT) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.pop(next(iter(kept)))
    kept[key] = value
