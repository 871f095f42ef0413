"""The one next step of a cleanup: end the operation, then drop what is proven to be the predecessor.

Pure, like ``decide``. The publication is proven before anything here runs; what can't be dropped now is
kept and listed, and never blocks the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from airflow_provider_dpone.publication.decide import Hold, ReadCatalogs
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.queue import (
    Contradictory,
    NotSeen,
    QueueState,
    Running,
    Terminal,
    Unreadable,
)
from airflow_provider_dpone.publication.record import (
    DROP_PHASES,
    AuthorityRecord,
    Generation,
    IndependentRecord,
    Phase,
    Retained,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop

MOST_DROPS = 3
"""How often one invocation sends the drop of one table, while the exact table is still there."""


@dataclass(frozen=True, slots=True)
class CleanupSituation:
    """All that the next cleanup step is decided from.

    :ivar now: server time in seconds.
    :ivar queue: the state of the drop that ``queue_of`` names.
    :ivar sent: how many drops this invocation has sent, by table.
    """

    stored: StoredRecord
    now: int
    observation: Observation | None = None
    queue: QueueState | None = None
    queue_of: str | None = None
    sent: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retain:
    """End the operation: the slot is free, the predecessor is listed. ``drop_now`` claims its drop too."""

    drop_after: int
    drop_now: bool


@dataclass(frozen=True, slots=True)
class DispatchDrop:
    """Claim the drop of a listed predecessor and send it."""

    item: Retained


@dataclass(frozen=True, slots=True)
class ReadDropQueue:
    """Read the queue rows of the drop that was sent for ``item``."""

    item: Retained


@dataclass(frozen=True, slots=True)
class FinishDrop:
    """Strike a predecessor off the list: it is proven absent everywhere."""

    item: Retained


@dataclass(frozen=True, slots=True)
class Keep:
    """All that is left is due and can't be dropped now, or is not what it should be. Each says why."""

    items: tuple[tuple[Retained, Stop], ...]


@dataclass(frozen=True, slots=True)
class WaitForDrop:
    """One table's drop is still running, or a replica can't be read: look again, for a while."""

    item: Retained
    stop: Stop


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is due. ``next_due`` is the server time of the next drop, if one is still kept."""

    next_due: int | None


CleanupStep: TypeAlias = (
    ReadCatalogs | ReadDropQueue | Retain | DispatchDrop | FinishDrop | Keep | WaitForDrop | Hold | Idle
)


def decide_cleanup(s: CleanupSituation) -> CleanupStep:
    """Return the one next step of the cleanup on this target."""
    record = s.stored.record
    if record.phase is Phase.COMMITTED:
        return _end(s, record)
    if record.phase not in DROP_PHASES:
        return Hold(
            Stop(
                Code.NOT_COMMITTED,
                f"{record.database}.{record.table}: the publication is {record.phase}, not proven committed.",
                facts={"phase": record.phase.value},
            )
        )
    # A drop that was sent comes first: its outcome must be known before another one is decided.
    due = [r for r in record.retained if r.drop is not None]
    due += [r for r in record.retained if r.drop is None and r.drop_after <= s.now]
    kept: list[tuple[Retained, Stop]] = []
    for item in due:
        decided = _drop(s, record, item)
        if not isinstance(decided, Keep):
            return decided
        # One table that can't be dropped does not hold up the others.
        kept += decided.items
    if kept:
        return Keep(tuple(kept))
    return Idle(min((r.drop_after for r in record.retained), default=None))


def _end(s: CleanupSituation, record: AuthorityRecord) -> CleanupStep:
    if s.observation is None:
        return ReadCatalogs()
    drop_after = (record.committed_at or s.now) + record.retention
    if record.predecessor is None or drop_after > s.now:
        return Retain(drop_after, drop_now=False)
    stop = _unsafe_to_drop(record, s.observation, record.candidate, record.predecessor)
    if stop is None:
        stop = _live_unhealthy(record, s.observation)
    if stop is not None:
        # The slot must not stay blocked by a predecessor: it is listed, and dropped when that is safe.
        return Retain(drop_after, drop_now=False)
    return Retain(drop_after, drop_now=True)


def _drop(s: CleanupSituation, record: AuthorityRecord, item: Retained) -> CleanupStep:
    queue = s.queue if s.queue_of == item.name else None
    if item.drop is not None:
        match queue:
            case None:
                return ReadDropQueue(item)
            case Running():
                return WaitForDrop(item, _cleanup_pending(record, item, "its drop is still running"))
            case Terminal() | NotSeen() | Unreadable() | Contradictory():
                # A drop of this exact table is monotonic: whatever became of this one, the tables tell.
                pass
            case _:
                assert_never(queue)
    if s.observation is None:
        return ReadCatalogs()
    if stop := _unsafe_to_drop(record, s.observation, item.name, item.generation):
        return _later(item, stop)
    present = [a for a, f in s.observation.replicas.items() if item.name in f.tables]
    if not present:
        # A drop that is still on its way finds nothing: the name belonged to one attempt and is never
        # used again.
        return FinishDrop(item)
    if stop := _live_unhealthy(record, s.observation):
        return _later(item, stop)
    if s.sent.get(item.name, 0) and isinstance(queue, NotSeen):
        return WaitForDrop(item, _cleanup_pending(record, item, "its drop is not seen in the queue yet"))
    if s.sent.get(item.name, 0) >= MOST_DROPS:
        pending = _cleanup_pending(record, item, f"it is still there on {', '.join(present)}", queue)
        return Keep(((item, pending),))
    return DispatchDrop(item)


def _later(item: Retained, stop: Stop) -> Keep | WaitForDrop:
    return WaitForDrop(item, stop) if stop.category is Category.NOT_OBSERVED else Keep(((item, stop),))


def _unsafe_to_drop(
    record: AuthorityRecord, observation: Observation, name: str, generation: Generation
) -> Stop | None:
    """Return why ``name`` may not be dropped (or called absent) now, or ``None``."""
    if unread := observation.unread:
        return Stop(
            Code.REPLICA_NOT_OBSERVED,
            f"{_well(record)}; {', '.join(unread)} can't be read, so nothing is dropped now.",
        )
    if name == record.table:
        return Stop(Code.CLEANUP_UNSAFE, "The predecessor's name is the live table's name.")
    for alias, facts in observation.replicas.items():
        table = facts.tables.get(name)
        if table is None and not facts.sees_database:
            return Stop(
                Code.REPLICA_NOT_OBSERVED,
                f"Our user doesn't see the database's tables on {alias}, so the predecessor is not proven absent.",
            )
        if table is not None and table.uuid not in generation.uuids:
            return Stop(
                Code.CLEANUP_UNSAFE,
                f"The table under the predecessor's name on {alias} is another table. It was not dropped.",
                facts={"replica": alias},
            )
        live = facts.tables.get(record.table)
        if live is None and record.published:
            return Stop(
                Code.GENERATION_UNKNOWN,
                f"The live table is missing on {alias}. The predecessor is kept.",
                facts={"replica": alias},
            )
        if live is not None and live.uuid in generation.uuids:
            return Stop(
                Code.CLEANUP_UNSAFE,
                f"The predecessor is the live table on {alias}. Nothing was dropped.",
                facts={"replica": alias},
            )
    return None


def _live_unhealthy(record: AuthorityRecord, observation: Observation) -> Stop | None:
    """The predecessor is kept as long as a replica doesn't hold the live data completely.

    A live table that somebody replaced since is not ours to judge.
    """
    for alias, facts in observation.replicas.items():
        live = facts.tables.get(record.table)
        if live is None or live.uuid not in record.desired.uuids:
            continue
        if isinstance(record, IndependentRecord):
            # Nothing copies rows to it: there is no replication that could be ill.
            continue
        replication = live.replication
        if replication is None or (
            replication.keeper_error
            or replication.is_readonly
            or replication.is_session_expired
            or replication.lost_parts
        ):
            return Stop(
                Code.REPLICA_NOT_OBSERVED,
                f"{_well(record)}; replication on {alias} is not healthy, so the predecessor is kept.",
                facts={"replica": alias},
            )
    return None


def _well(record: AuthorityRecord) -> str:
    return "The publication is successful" if record.published else "Nothing of this operation is live"


_TOO_LARGE_TO_DROP = (
    "Nothing is at risk. The server guards large tables: set max_table_size_to_drop in the connection's "
    "session_settings, or have an administrator drop the table."
)


def _is_size_limit(facts: Mapping[str, int]) -> bool:
    return facts["exception_code"] == 359


def _cleanup_pending(
    record: AuthorityRecord, item: Retained, why: str, queue: QueueState | None = None
) -> Stop:
    codes = (
        {h.alias: {"exception_code": h.exception_code} for h in queue.receipt}
        if isinstance(queue, Terminal)
        else {}
    )
    return Stop(
        Code.CLEANUP_PENDING,
        f"The publication of {record.database}.{record.table} is successful. The predecessor {item.name} "
        f"is not dropped yet: {why}."
        if record.published
        else f"{record.database}.{record.table}: nothing of this operation is live. {item.name} is not dropped yet: "
        f"{why}.",
        facts={"table": item.name, "uuid": item.generation.uuid},
        replicas=codes,
        next_action=_TOO_LARGE_TO_DROP if any(_is_size_limit(facts) for facts in codes.values()) else "",
    )
