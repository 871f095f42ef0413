"""Deleting old trails: judged by what the cluster holds now, and written down before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_dpone.evidence import objects
from airflow_provider_dpone.evidence.reader import EvidenceReader
from airflow_provider_dpone.evidence.store import EvidenceStore
from airflow_provider_dpone.publication.prune import ClusterNow, TrailFacts, needed
from airflow_provider_dpone.publication.record import AuthorityRecord
from airflow_provider_dpone.publication.trail import Admission, CandidateIntent, Pruned

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

SHORTEST_AGE: Final = timedelta(days=1)
"""A trail that is younger is never deleted: a stage task may be between two of its entries for hours."""

_BATCH: Final = 100
_LAST: Final = (CandidateIntent.kind, Admission.kind)

Existing = Callable[[str, Collection[str]], frozenset[str] | None]
"""Tells which of the named tables of a database exist on any replica; ``None`` if that is not proven."""


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune did, or would do.

    :ivar deleted: operations whose trails were (or would be) deleted.
    :ivar kept: how many were kept, by the reason.
    """

    deleted: tuple[str, ...]
    kept: Mapping[str, int]


def prune(
    reader: EvidenceReader,
    store: EvidenceStore,
    records: tuple[AuthorityRecord, ...],
    existing: Existing,
    *,
    older_than: timedelta,
    dry_run: bool,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> PruneResult:
    """Delete the trails of operations that ended long ago and that nothing on the cluster needs.

    Interrupted anywhere, it goes on when it is run again.

    :param records: the record of every target on the cluster; all of them are needed.
    :raises ValueError: ``older_than`` is less than a day.
    :raises Stopped: ``EVIDENCE_UNAVAILABLE``, and what ``existing`` raises.
    """
    if older_than < SHORTEST_AGE:
        raise ValueError(f"--older-than must be at least {SHORTEST_AGE.days} day")
    before = (now() - older_than).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    young = _young(reader, before)
    kept: Counter[str] = Counter()
    trails: dict[str, tuple[TrailFacts, list[str]]] = {}
    for operation_id in reader.operation_ids():
        if operation_id in young:
            kept["it is too young"] += 1
            continue
        # Only what was there when the trail was judged is deleted: an entry that comes now stays.
        names = objects.names(reader.folder / operation_id)
        trail = reader.trail(operation_id)
        facts = TrailFacts.of(operation_id, trail.entries, newer=trail.newer)
        trails[operation_id] = (facts, names)
    cluster = ClusterNow(records, _tables([facts for facts, _ in trails.values()], existing))
    doomed: list[str] = []
    for operation_id, (facts, _) in trails.items():
        if (why := needed(facts, cluster, before=before)) is not None:
            kept[why] += 1
        else:
            doomed.append(operation_id)
    if not dry_run:
        places = _places(reader, set(doomed))
        for start in range(0, len(doomed), _BATCH):
            batch = doomed[start : start + _BATCH]
            store.write("", Pruned(tuple(batch), int(older_than.total_seconds())))
            for operation_id in batch:
                _delete(reader, operation_id, places[operation_id], trails[operation_id][1])
    return PruneResult(tuple(doomed), dict(kept))


def _young(reader: EvidenceReader, before: str) -> set[str]:
    """The operations that the list alone shows to be too young, so that their trails need not be read."""
    plain = before.replace("-", "").replace(":", "")
    found: set[str] = set()
    for _, name in reader.listed():
        if name.at < plain:
            break
        found.add(name.operation_id)
    return found


def _tables(trails: Collection[TrailFacts], existing: Existing) -> dict[str, frozenset[str]]:
    names: defaultdict[str, set[str]] = defaultdict(set)
    for trail in trails:
        for database, name in trail.names:
            names[database].add(name)
    found: dict[str, frozenset[str]] = {}
    for database, wanted in names.items():
        ordered, seen = sorted(wanted), set[str]()
        for start in range(0, len(ordered), _BATCH):
            there = existing(database, ordered[start : start + _BATCH])
            if there is None:
                break
            seen |= there
        else:
            found[database] = frozenset(seen)
    return found


def _places(reader: EvidenceReader, operations: set[str]) -> dict[str, list[ObjectStoragePath]]:
    found: dict[str, list[ObjectStoragePath]] = {operation_id: [] for operation_id in operations}
    for path, name in reader.listed():
        if name.operation_id in found:
            found[name.operation_id].append(path)
    return found


def _delete(
    reader: EvidenceReader,
    operation_id: str,
    places: Collection[ObjectStoragePath],
    names: Collection[str],
) -> None:
    """Delete a trail so that what is left of it, should this be cut short, is judged as before."""
    for path in places:
        objects.delete(path)
    folder = reader.folder / operation_id
    # What tells the target and the tables goes last.
    for name in sorted(
        names, key=lambda name: _LAST.index(k) if (k := name.partition(".")[0]) in _LAST else -1
    ):
        objects.delete(folder / name)
    objects.remove_folder(folder)
