"""The one next step of an operator's ``resolve`` and ``abandon``: ways out of a hold, by fresh evidence.

Pure, like ``decide``. A statement that was sent may still arrive, from a worker that sleeps or from an entry
that a replica runs late. So an operation whose outcome the queue doesn't tell is first *disarmed*: one
RENAME takes the candidate's name away on every replica. From then on the swap fails wherever it comes, since
it names a table that doesn't exist, and no other statement ever gives that name back. What the replicas hold
after that is final. A DROP would destroy the predecessor where the swap slipped in before; waiting proves
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from airflow_provider_dpone.publication.decide import (
    Commit,
    Hold,
    ReadCatalogs,
    ReadQueue,
    StoreReceipt,
    Wait,
)
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.queue import (
    Contradictory,
    NotSeen,
    QueueState,
    Running,
    Terminal,
    Unreadable,
)
from airflow_provider_dpone.publication.record import (
    UNSENT_PHASES,
    AuthorityRecord,
    HostReceipt,
    Phase,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop


@dataclass(frozen=True, slots=True)
class Resolution:
    """All that the next step of ``resolve`` is decided from.

    :ivar read_at: order of the read that showed the record.
    :ivar queue: state of the swap; of the disarming RENAME, once that was sent.
    :ivar sent: how many RENAMEs this invocation has sent.
    """

    stored: StoredRecord
    read_at: int
    observation: Observation | None = None
    queue: QueueState | None = None
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Disarm:
    """Claim the RENAME that takes the candidate's name away, and send it."""


@dataclass(frozen=True, slots=True)
class StoreDisarmed:
    """Store that the candidate's name is gone on every replica, after the RENAME ended on every replica."""

    entry: str
    query_digest: str
    receipt: tuple[HostReceipt, ...]


@dataclass(frozen=True, slots=True)
class CloseUnpublished:
    """End the operation as not published: disarmed, and every replica holds the old generation since."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The operation is committed, or has ended."""


ResolveStep: TypeAlias = (
    ReadCatalogs
    | ReadQueue
    | StoreReceipt
    | Commit
    | Disarm
    | StoreDisarmed
    | CloseUnpublished
    | Wait
    | Hold
    | Resolved
)


def decide_resolution(s: Resolution) -> ResolveStep:
    """Return the one next step of ``resolve``."""
    record = s.stored.record
    match record.phase:
        case Phase.LOCKED | Phase.STAGING | Phase.PREPARED:
            return Hold(
                Stop(
                    Code.NOT_RESOLVABLE,
                    f"{_name(record)}: nothing was sent for this operation, so there is nothing to resolve.",
                    next_action="Clear its publish task, or give it up with `airflow dpone abandon`.",
                    facts={"phase": record.phase.value},
                )
            )
        case Phase.DISPATCHING | Phase.BOUND | Phase.TERMINAL if record.disarming:
            return _disarming(s, record)
        case Phase.DISPATCHING | Phase.BOUND:
            return _sent(s, record)
        case Phase.TERMINAL:
            return _ended_in_queue(s, record)
        case Phase.COMMITTED | Phase.COMPLETED | Phase.COMPLETED_RETAINING | Phase.ABORTED:
            return Resolved()
        case _:
            assert_never(record.phase)


def not_abandonable(record: AuthorityRecord) -> Stop | None:
    """Return why ``abandon`` may not end this operation, or ``None``.

    Only PREPARED and what comes before it say that no statement under a valid epoch was ever sent. The
    compare-and-swap against exactly that record makes a permit for it impossible for ever.
    """
    if record.phase in UNSENT_PHASES:
        return None
    sent = not (record.ended or record.published)
    return Stop(
        Code.NOT_RESOLVABLE,
        f"{_name(record)}: the operation is {record.phase}; only what was never dispatched can be abandoned.",
        next_action=(
            "Run `airflow dpone explain`, then `airflow dpone resolve`: its statement may have been sent."
            if sent
            else "Nothing to do: the target is free for the next run."
        ),
        facts={"phase": record.phase.value},
    )


def _sent(s: Resolution, record: AuthorityRecord) -> ResolveStep:
    queue = s.queue
    match queue:
        case None:
            return ReadQueue()
        case Running():
            if s.observation is None:
                return ReadCatalogs()
            return _stopped(judge(record, s.observation, queue))
        case Terminal(sequence, entry, query_digest, receipt):
            if s.observation is None or s.observation.sequence <= sequence:
                return ReadCatalogs()
            if _live_everywhere(record, s.observation):
                return Commit(entry, query_digest, receipt)
            return StoreReceipt(entry, query_digest, receipt)
        case NotSeen() | Unreadable() | Contradictory():
            # The queue will not tell. Whatever it hides is made harmless, and then the tables tell.
            return _disarm_if_safe(s, record)
        case _:
            assert_never(queue)


def _ended_in_queue(s: Resolution, record: AuthorityRecord) -> ResolveStep:
    if s.observation is None or s.observation.sequence <= s.read_at:
        return ReadCatalogs()
    publication = record.publication
    if publication is None or (publication.receipt is None and not record.disarmed):
        return Hold(Stop(Code.RECORD_INVALID, "The record is TERMINAL without a stored receipt."))
    if stop := _not_this_record(s.stored, s.observation):
        return Wait(stop)
    if _live_everywhere(record, s.observation):
        return Commit(publication.entry, publication.query_digest, publication.receipt)
    judgement = judge(record, s.observation, StoredReceipt(s.read_at, publication.receipt or ()))
    match judgement.verdict:
        case Verdict.FAILED_EVERYWHERE | Verdict.SWAPPED_BACK:
            return CloseUnpublished() if record.disarmed else _disarm_if_safe(s, record)
        case _:
            return _stopped(judgement)


def _disarming(s: Resolution, record: AuthorityRecord) -> ResolveStep:
    queue = s.queue
    match queue:
        case None:
            return ReadQueue()
        case Contradictory(stop):
            # Such as one RENAME that something on the way repeated. A new one has a token of its own, and
            # what the old ones still do is harmless.
            return Hold(stop) if s.sent else _disarm_if_safe(s, record)
        case Running() | Unreadable():
            return Wait(
                Stop(
                    Code.RESOLVING,
                    f"{_name(record)}: the replicas are working on the RENAME that makes the swap harmless.",
                    replicas={a: {"queue": row.status.value} for a, row in queue.hosts.items()},
                )
            )
        case NotSeen():
            # Unlike the swap, it may be sent again: where it ran, it finds nothing to rename.
            if s.sent:
                return Wait(
                    Stop(Code.RESOLVING, f"{_name(record)}: the RENAME is not seen in the queue (yet).")
                )
            return _disarm_if_safe(s, record)
        case Terminal(sequence, entry, query_digest, receipt):
            if s.observation is None or s.observation.sequence <= sequence:
                return ReadCatalogs()
            armed = _still_armed(record, s.observation, receipt)
            if armed is None:
                return StoreDisarmed(entry, query_digest, receipt)
            if armed.category is Category.NOT_OBSERVED:
                return Wait(armed)
            return Hold(armed) if s.sent else _disarm_if_safe(s, record)
        case _:
            assert_never(queue)


def _disarm_if_safe(s: Resolution, record: AuthorityRecord) -> ResolveStep:
    """Disarm where every replica was read and shows one of the two generations under the known names."""
    if s.observation is None:
        return ReadCatalogs()
    observation = s.observation
    if unread := observation.unread:
        return Wait(
            Stop(
                Code.REPLICA_NOT_OBSERVED,
                f"{_name(record)}: {', '.join(unread)} can't be read, so nothing is resolved now.",
                next_action="Bring the replica back, then resolve again.",
            )
        )
    if stop := inventory_drift(record, observation) or control_shared(observation):
        return Hold(stop)
    if stop := _not_this_record(s.stored, observation):
        return Wait(stop)
    states = {alias: held_state(record, observation, alias) for alias in record.replicas}
    return Disarm() if (stop := _strange(record, states)) is None else _wait_or_hold(stop)


def _still_armed(
    record: AuthorityRecord, observation: Observation, receipt: tuple[HostReceipt, ...]
) -> Stop | None:
    """Return where the swap could still run, or ``None``.

    The tables decide, not the codes: a replica that died between the RENAME and its mark ran it again,
    and reports 60 though the table is parked.
    """
    if stop := inventory_drift(record, observation):
        return stop
    codes = {host.alias: host.exception_code for host in receipt}
    armed = [alias for alias, facts in observation.replicas.items() if record.candidate in facts.tables]
    if armed:
        return Stop(
            Code.NOT_RESOLVABLE,
            f"{_name(record)}: the RENAME failed on {', '.join(armed)}, so a late swap could still run there. "
            "Nothing was closed.",
            next_action="Look at the exception code per replica, remove the cause, and resolve again.",
            replicas={alias: {"exception_code": codes.get(alias)} for alias in record.replicas},
        )
    parked = record.moved(candidate=parked_name(record.candidate))
    return _strange(record, {a: replica_state(parked, observation, a) for a in record.replicas})


def held_state(record: AuthorityRecord, observation: Observation, alias: str) -> ReplicaState:
    """Return what a replica holds, whether the candidate's name was already taken away there or not."""
    state = replica_state(record, observation, alias)
    if state in (ReplicaState.PENDING, ReplicaState.COMMITTED):
        return state
    # A missing candidate may be a parked one.
    return replica_state(record.moved(candidate=parked_name(record.candidate)), observation, alias)


def _strange(record: AuthorityRecord, states: dict[str, ReplicaState]) -> Stop | None:
    replicas = {alias: {"state": state.value} for alias, state in states.items()}
    if unseen := [a for a, state in states.items() if state is ReplicaState.NOT_OBSERVED]:
        return Stop(
            Code.REPLICA_NOT_OBSERVED,
            f"{_name(record)}: {', '.join(unseen)} can't be read, so nothing is resolved now.",
            replicas=replicas,
        )
    known = (ReplicaState.PENDING, ReplicaState.COMMITTED, ReplicaState.CLEANED)
    if wrong := [a for a, state in states.items() if state not in known]:
        return Stop(
            Code.GENERATION_UNKNOWN,
            f"{_name(record)}: a table is missing, or is neither the old nor the new generation, on "
            f"{', '.join(wrong)}. Nothing was resolved.",
            replicas=replicas,
        )
    return None


def _live_everywhere(record: AuthorityRecord, observation: Observation) -> bool:
    """Tell whether every admitted replica holds the new generation, even if its predecessor is gone for good."""
    if inventory_drift(record, observation) is not None:
        return False
    states = {replica_state(record, observation, alias) for alias in record.replicas}
    return states <= {ReplicaState.COMMITTED, ReplicaState.CLEANED}


def _not_this_record(stored: StoredRecord, observation: Observation) -> Stop | None:
    found = observation.record
    if found is not None and (found.write_id, found.version) == (stored.write_id, stored.version):
        return None
    return Stop(Code.CAS_CONFLICT, f"{_name(stored.record)}: another worker changed the record first.")


def _stopped(judgement: Judgement) -> Wait | Hold:
    if judgement.stop is None:
        raise ValueError("a committed judgement is not a stop")
    return _wait_or_hold(judgement.stop)


def _wait_or_hold(stop: Stop) -> Wait | Hold:
    waits = stop.category in (Category.IN_PROGRESS, Category.NOT_OBSERVED)
    return Wait(stop) if waits else Hold(stop)


def _name(record: AuthorityRecord) -> str:
    return f"{record.database}.{record.table}"
