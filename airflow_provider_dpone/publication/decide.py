"""The one next step of a publication and of its cleanup.

Both functions are pure. A step that needs a fact asks for the fact; a step that changes something is
returned only when everything it rests on is in the situation. Whatever is not proven waits or holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from airflow_provider_dpone.publication.admission import control_shared
from airflow_provider_dpone.publication.classify import (
    Judgement,
    ReplicaState,
    StoredReceipt,
    Verdict,
    inventory_drift,
    judge,
    replica_state,
)
from airflow_provider_dpone.publication.facts import Observation, TableFacts
from airflow_provider_dpone.publication.queue import (
    Contradictory,
    NotSeen,
    QueueState,
    Running,
    Terminal,
    Unreadable,
)
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Content,
    HostReceipt,
    IndependentRecord,
    Phase,
    StoredRecord,
    is_rollback,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop


@dataclass(frozen=True, slots=True)
class Guards:
    """What the candidate must be before it may go live.

    :ivar min_rows: fewest rows.
    :ivar max_shrink: largest share (0 to 1) of the live rows that may be missing.
    """

    allow_empty: bool = False
    min_rows: int | None = None
    max_shrink: float | None = None


@dataclass(frozen=True, slots=True)
class ContentCheck:
    """The content digests of the candidate, per replica, and the order of the read."""

    sequence: int
    digests: Mapping[str, Content]


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a publication's next step is decided from.

    :ivar stored: the record, as read.
    :ivar read_at: order of the read that showed the record.
    :ivar permit_unused: evidence proves that this very write's permit was never used.
    """

    operation_id: str
    stored: StoredRecord
    read_at: int
    guards: Guards = field(default_factory=Guards)
    content: ContentCheck | None = None
    observation: Observation | None = None
    queue: QueueState | None = None
    permit_unused: bool = False


# Steps that read.


@dataclass(frozen=True, slots=True)
class VerifyContent:
    """Compute the candidate's content digest on every replica."""


@dataclass(frozen=True, slots=True)
class ReadCatalogs:
    """Look at every replica, now."""


@dataclass(frozen=True, slots=True)
class ReadQueue:
    """Read the rows of the dispatched statement's token."""


# Steps that change something. Each is one compare-and-swap; two of them also send a statement.


@dataclass(frozen=True, slots=True)
class DispatchSwap:
    """Claim the permit and send the one EXCHANGE or RENAME."""


@dataclass(frozen=True, slots=True)
class Rearm:
    """Go back to PREPARED: the claimed permit was provably never used."""


@dataclass(frozen=True, slots=True)
class Bind:
    """Store the queue entry's name."""

    entry: str
    query_digest: str


@dataclass(frozen=True, slots=True)
class StoreReceipt:
    """Store the complete terminal receipt."""

    entry: str
    query_digest: str
    receipt: tuple[HostReceipt, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Store that every replica was seen with the new generation.

    All is ``None`` where the queue's word is not known and the swap was disarmed.
    """

    entry: str | None
    query_digest: str | None
    receipt: tuple[HostReceipt, ...] | None


# Steps that end or pause.


@dataclass(frozen=True, slots=True)
class Wait:
    """Read again later; until the deadline this is no failure."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop with everything retained."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class Abort:
    """Give the prepared operation up: it can't be dispatched any more, and its candidate is droppable."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class Done:
    """The publication is proven."""


Step: TypeAlias = (
    VerifyContent
    | ReadCatalogs
    | ReadQueue
    | DispatchSwap
    | Rearm
    | Bind
    | StoreReceipt
    | Commit
    | Abort
    | Wait
    | Hold
    | Done
)


def decide_publication(s: Situation) -> Step:
    """Return the one next step of the publication ``s.operation_id``."""
    record = s.stored.record
    if record.operation_id != s.operation_id:
        return Hold(_not_ours(record))
    if record.disarming and not (record.published or record.ended):
        return Wait(resolving(record))
    match record.phase:
        case Phase.LOCKED | Phase.STAGING:
            return Hold(not_staged(record))
        case Phase.PREPARED:
            return _before_dispatch(s, record)
        case Phase.DISPATCHING | Phase.BOUND:
            return _after_dispatch(s, record)
        case Phase.TERMINAL:
            return _after_receipt(s, record)
        case Phase.COMMITTED | Phase.COMPLETED | Phase.COMPLETED_RETAINING:
            return Done()
        case Phase.ABORTED:
            return Hold(
                Stop(
                    Code.SUPERSEDED,
                    f"The operation on {record.database}.{record.table} was given up before it was published.",
                )
            )
        case _:
            assert_never(record.phase)


def _before_dispatch(s: Situation, record: AuthorityRecord) -> Step:
    if stop := check_guards(record, s.guards):
        return Hold(stop)
    if s.content is None:
        return VerifyContent()
    # The catalogs are read after the content, so that nothing slow stands between them and the swap.
    if s.observation is None or s.observation.sequence <= s.content.sequence:
        return ReadCatalogs()
    stop = not_dispatchable(s.stored, s.observation)
    if stop is not None and stop.code is Code.CAS_CONFLICT:
        # Another worker went on: what has the candidate's name now says nothing about the candidate.
        return Wait(stop)
    if differs := _content_differs(record, s.content):
        return Hold(differs)
    if stop is None:
        return DispatchSwap()
    if stop.code is Code.TARGET_MOVED:
        return Abort(stop)
    return Wait(stop) if stop.passing else Hold(stop)


def not_dispatchable(stored: StoredRecord, observation: Observation) -> Stop | None:
    """Return what forbids the swap in this observation, or ``None``."""
    record = stored.record
    name = f"{record.database}.{record.table}"
    if unread := observation.unread:
        return Stop(
            Code.REPLICA_UNAVAILABLE,
            f"{name}: {', '.join(unread)} can't be read, so the swap was not sent. Readers see the old data.",
            replicas={a: {"read": a in observation.replicas} for a in record.replicas},
        )
    if stop := inventory_drift(record, observation):
        return stop
    if stop := control_shared(observation):
        return stop
    found = observation.record
    if found is None or (found.write_id, found.version) != (stored.write_id, stored.version):
        return Stop(Code.CAS_CONFLICT, f"{name}: another worker changed the record first.")
    states = {a: replica_state(record, observation, a) for a in record.replicas}
    if unread_states := [a for a, state in states.items() if state is ReplicaState.NOT_OBSERVED]:
        return Stop(
            Code.REPLICA_NOT_OBSERVED,
            f"{name}: our user doesn't see the database's tables on {', '.join(unread_states)}.",
        )
    for alias, state in states.items():
        if state is ReplicaState.PENDING:
            continue
        if state in (ReplicaState.COMMITTED, ReplicaState.CLEANED):
            # One statement, but not one moment: another worker dispatched while the replicas were read.
            return Stop(Code.CAS_CONFLICT, f"{name}: another worker goes on with this operation.")
        candidate = observation.replicas[alias].tables.get(record.candidate)
        if candidate is None or candidate.generation != record.desired.on(alias):
            return Stop(
                Code.CANDIDATE_DIFFERS,
                f"{name}: the candidate on {alias} is missing or is not the one that was staged.",
                next_action="Nothing was published. Clear the stage task to stage again.",
                facts={"replica": alias},
            )
        return Stop(
            Code.TARGET_MOVED,
            f"{name}: the live table on {alias} was replaced or altered after staging. The swap was not sent.",
            next_action="Clear the stage task to stage again from the present state.",
            facts={"replica": alias},
        )
    if record.candidate == record.table:
        return Stop(Code.TARGET_EQUALS_CANDIDATE, f"{name}: target and candidate have one name.")
    if (live := observation.table(record.table)) is not None and live.replication is not None:
        total = live.replication.total_replicas
        if not live.replication.keeper_error and total != len(record.replicas):
            return Stop(
                Code.TARGET_NOT_UNIFORM,
                f"{name}: the live table has {total} replicas, {len(record.replicas)} were admitted. "
                "The swap was not sent.",
            )
    return unready(record, observation)


def unready(record: AuthorityRecord, observation: Observation) -> Stop | None:
    """Return which replicas don't hold the whole candidate in good health, or ``None``."""
    problems = {
        alias: problem
        for alias in record.replicas
        if (problem := incomplete(record, _table(observation, alias, record.candidate)))
    }
    if not problems:
        return None
    return Stop(
        Code.CANDIDATE_NOT_READY,
        f"The candidate is not complete on {', '.join(problems)}.",
        replicas={alias: {"problem": problem} for alias, problem in problems.items()},
    )


def incomplete(record: AuthorityRecord, table: TableFacts | None) -> str | None:
    """Return in words why a replica doesn't hold its candidate completely and healthily, or ``None``."""
    if not isinstance(record, IndependentRecord):
        return replication_problem(table, len(record.replicas))
    if table is None:
        return "the table is not seen"
    if table.replication is not None:
        return "the table is replicated"
    # The server also counts rows that a DELETE has only masked: what was live before may have some. A table that was
    # staged has none, and what it holds is compared in any case.
    if table.rows != record.content.rows and not is_rollback(record.owner):
        return f"{table.rows} of {record.content.rows} rows are there"
    return None


def replication_problem(table: TableFacts | None, replicas: int) -> str | None:
    """Return in words why a replica doesn't hold its table completely and healthily, or ``None``.

    :param replicas: how many replicas the table must have, all of them active.
    """
    if table is None:
        return "the table is not seen"
    replication = table.replication
    if replication is None:
        return "the table is not replicated"
    if replication.keeper_error:
        return "Keeper can't be read there"
    if replication.is_session_expired:
        return "its Keeper session has expired"
    if replication.is_readonly:
        return "it is read-only"
    if replication.queue_size:
        return f"{replication.queue_size} replication tasks are left"
    # An empty log reads as index 0 and pointer 0, as one with a single entry does that was not taken over.
    # Nothing was ever inserted then, or the row count tells.
    unread_log = replication.log_pointer <= replication.log_max_index
    if unread_log and (replication.log_pointer, replication.log_max_index) != (0, 0):
        return f"{replication.log_max_index - replication.log_pointer + 1} log entries are not taken over"
    if replication.lost_parts:
        return f"{replication.lost_parts} parts are lost"
    if (replication.total_replicas, replication.active_replicas) != (replicas, replicas):
        return (
            f"{replication.active_replicas} of {replication.total_replicas} replicas are active, "
            f"{replicas} are needed"
        )
    return None


def check_guards(record: AuthorityRecord, guards: Guards) -> Stop | None:
    """Return which guard the candidate doesn't meet, with the numbers."""
    rows, live = record.content.rows, record.live_rows
    name = f"{record.database}.{record.table}"
    numbers = {"rows": rows, "live_rows": live}
    if rows == 0 and not guards.allow_empty:
        return Stop(
            Code.GUARD_EMPTY, f"{name}: the candidate is empty. Nothing was published.", facts=numbers
        )
    if guards.min_rows is not None and rows < guards.min_rows:
        return Stop(
            Code.GUARD_MIN_ROWS,
            f"{name}: the candidate has {rows:,} rows, min_rows is {guards.min_rows:,}. Nothing was published.",
            facts={**numbers, "min_rows": guards.min_rows},
        )
    if guards.max_shrink is not None and live and rows < live * (1 - guards.max_shrink):
        return Stop(
            Code.GUARD_MAX_SHRINK,
            f"{name}: the candidate has {rows:,} rows, the live table {live:,}: it would shrink by "
            f"{(live - rows) / live:.1%}, max_shrink is {guards.max_shrink:.1%}. Nothing was published.",
            facts={**numbers, "max_shrink_per_mille": round(guards.max_shrink * 1000)},
        )
    return None


def _content_differs(record: AuthorityRecord, content: ContentCheck) -> Stop | None:
    wrong = [a for a in record.replicas if content.digests.get(a) != record.content]
    if not wrong:
        return None
    return Stop(
        Code.CONTENT_DIFFERS,
        f"{record.database}.{record.table}: the candidate's content on {', '.join(wrong)} is not what was "
        "staged. Nothing was published.",
        facts={"staged_rows": record.content.rows},
        replicas={
            alias: {"rows": digest.rows, "content_match": digest == record.content}
            for alias, digest in content.digests.items()
        },
    )


def _after_dispatch(s: Situation, record: AuthorityRecord) -> Step:
    queue = s.queue
    match queue:
        case None:
            return ReadQueue()
        case Contradictory(stop):
            return Hold(stop)
        case NotSeen():
            # Without an entry there is proof only if the permit was never used. A killed worker leaves
            # no such word: its statement may still arrive, so it is never sent again.
            if s.permit_unused and record.phase is Phase.DISPATCHING:
                return Rearm()
            return Wait(_not_seen(record))
        case Unreadable(entry, query_digest, hosts):
            if record.phase is Phase.DISPATCHING:
                return Bind(entry, query_digest)
            return Wait(
                Stop(
                    Code.ENTRY_UNREADABLE,
                    f"{record.database}.{record.table}: queue entry {entry} is seen, but its outcome can't "
                    "be read on every replica.",
                    facts={"entry": entry},
                    replicas={a: {"queue": row.status.value} for a, row in hosts.items()},
                )
            )
        case Running(entry, query_digest):
            if record.phase is Phase.DISPATCHING:
                return Bind(entry, query_digest)
            # Catalogs read while the work runs decide nothing, but they tell people where it stands.
            if s.observation is None:
                return ReadCatalogs()
            return _step_of(judge(record, s.observation, queue))
        case Terminal(sequence, entry, query_digest, receipt):
            # Facts read before the terminal receipt are thrown away: read the catalogs afresh.
            if s.observation is None or s.observation.sequence <= sequence:
                return ReadCatalogs()
            judgement = judge(record, s.observation, queue)
            if judgement.verdict is Verdict.COMMITTED:
                return Commit(entry, query_digest, receipt)
            return StoreReceipt(entry, query_digest, receipt)
        case _:
            assert_never(queue)


def _after_receipt(s: Situation, record: AuthorityRecord) -> Step:
    publication = record.publication
    if publication is None or (publication.receipt is None and not record.disarmed):
        return Hold(Stop(Code.RECORD_INVALID, "The record is TERMINAL without a stored receipt.", facts={}))
    # The record itself may have been read in the same statement as catalogs: those are not later.
    if s.observation is None or s.observation.sequence <= s.read_at:
        return ReadCatalogs()
    judgement = judge(record, s.observation, StoredReceipt(s.read_at, publication.receipt or ()))
    if judgement.verdict is Verdict.COMMITTED:
        return Commit(publication.entry, publication.query_digest, publication.receipt)
    if record.disarmed and judgement.verdict in (Verdict.FAILED_EVERYWHERE, Verdict.SWAPPED_BACK):
        # Only a person who resolves may close an operation whose statement was sent.
        return Wait(resolving(record))
    return _step_of(judgement)


def _step_of(judgement: Judgement) -> Step:
    stop = judgement.stop
    if stop is None:
        raise ValueError("a committed judgement is not a stop")
    if stop.category in (Category.IN_PROGRESS, Category.NOT_OBSERVED):
        return Wait(stop)
    return Hold(stop)


def resolving(record: AuthorityRecord) -> Stop:
    """Return the stop of everybody else while an operator resolves the operation."""
    return Stop(
        Code.RESOLVING,
        f"{record.database}.{record.table}: an operator began to resolve this operation.",
        facts={"operation": record.operation_id[:16], "epoch": record.dispatch_epoch},
    )


def not_staged(record: AuthorityRecord) -> Stop:
    """Return the stop of who finds an operation whose replicas are still being staged."""
    return Stop(
        Code.NOT_STAGED,
        f"{record.database}.{record.table}: the stage task of this operation has not ended ({record.phase}).",
        next_action="Let the stage task run; a retry of it goes on from here.",
        facts={"operation": record.operation_id[:16], "phase": record.phase.value},
    )


def _not_seen(record: AuthorityRecord) -> Stop:
    publication = record.publication
    entry = publication.entry if publication else None
    name = f"{record.database}.{record.table}"
    if entry is None:
        return Stop(
            Code.ENTRY_NOT_SEEN,
            f"{name}: the swap may have been sent, but no queue entry carries its token (yet).",
            facts={"epoch": record.dispatch_epoch},
        )
    return Stop(
        Code.ENTRY_NOT_SEEN,
        f"{name}: queue entry {entry} was seen before, but is not in the queue now. If the queue forgot it, "
        "its outcome can't be read any more.",
        facts={"entry": entry, "epoch": record.dispatch_epoch},
    )


def _not_ours(record: AuthorityRecord) -> Stop:
    return Stop(
        Code.SUPERSEDED,
        f"{record.database}.{record.table} belongs to another operation (DAG {record.owner.dag_id}, run "
        f"{record.owner.run_id}).",
        facts={"operation": record.operation_id[:16], "phase": record.phase.value},
    )


def _table(observation: Observation, alias: str, name: str) -> TableFacts | None:
    facts = observation.replicas.get(alias)
    return facts.tables.get(name) if facts else None
