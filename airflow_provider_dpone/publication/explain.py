"""What one target's state means for people: what happened, what is proven, what is safe next, and what never.

Pure: from the same facts that decide, and with the same words. It permits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from airflow_provider_dpone.publication import decide as step
from airflow_provider_dpone.publication.classify import (
    ReplicaState,
    StoredReceipt,
    judge,
    replica_state,
)
from airflow_provider_dpone.publication.decide import (
    Situation,
    decide_publication,
    not_dispatchable,
)
from airflow_provider_dpone.publication.explain_stages import (
    stage_shown,
    stages_proven,
    stages_unproven,
    staging_happened,
)
from airflow_provider_dpone.publication.explain_words import (
    NOTHING_UNDER_WAY,
    STATES,
    affected_by,
    changed_since,
    never_do,
    plain_words,
    readers_of,
    who_waits,
)
from airflow_provider_dpone.publication.explanation import (
    NEVER_EDIT,
    NEVER_UNQUEUE,
    Explanation,
    ReplicaExplained,
    Shown,
    Way,
)
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.queue import (
    NotSeen,
    QueueState,
    Running,
    Terminal,
    Unreadable,
)
from airflow_provider_dpone.publication.queue_report import Blocker
from airflow_provider_dpone.publication.record import (
    STAGE_PHASES,
    AuthorityRecord,
    HostReceipt,
    IndependentRecord,
    Phase,
    StoredRecord,
    is_rollback,
)
from airflow_provider_dpone.publication.retire import missing_replicas
from airflow_provider_dpone.publication.statement import Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stop


def live_state(record: AuthorityRecord, observation: Observation, alias: str) -> ReplicaState:
    """Return what a replica holds, wherever the operation stands.

    A disarming RENAME may have moved the candidate already. After the end, only the live table counts.
    """
    state = replica_state(record, observation, alias, exact=False)
    if record.disarming and state in (ReplicaState.UNKNOWN, ReplicaState.CLEANED):
        parked = record.moved(candidate=parked_name(record.candidate))
        return replica_state(parked, observation, alias, exact=False)
    return state


def explain(
    stored: StoredRecord | None,
    observation: Observation,
    queue: QueueState | None = None,
    *,
    read_at: int = 0,
    permit_unused: bool = False,
    refusal: Stop | None = None,
) -> Explanation:
    """Explain one target.

    :param observation: a look at all replicas, later than the read of the queue.
    :param queue: what the queue says of the swap, where it was read.
    :param read_at: order of the read that showed the record.
    :param refusal: why a run that began now would be refused; it counts where no operation is under way.
    """
    if stored is None:
        return Explanation(
            "No operation was ever prepared for this table.",
            (),
            (),
            tuple(f"{alias}: {STATES[ReplicaState.NOT_OBSERVED]}" for alias in observation.unread),
            "Readers are not affected: they see the table as it is.",
            (Way.NOTHING,) if refusal is None else (Way.START,),
            (NEVER_EDIT,),
            {},
            refusal,
            held=False,
            record=None,
            observed_at=observation.server_time,
            authority_id=observation.authority_id,
            plain="No operation is under way on this table."
            if refusal is None
            else f"{NOTHING_UNDER_WAY} {refusal.message}",
        )
    record = stored.record
    stop, ways = _hold(stored, observation, queue, read_at, permit_unused)
    if record.ended and refusal is not None:
        stop, ways = refusal, (Way.START,)
    if is_rollback(record.owner):
        ways = tuple(Way.ROLL_ON if way in (Way.RETRY, Way.WAIT, Way.FREE) else way for way in ways)
    replicas = _replicas(record, observation, queue, stop)
    changed = changed_since(record, replicas)
    if changed and stop is None:
        ways = (Way.LOOK,)
    held = not (record.ended or record.published)
    dispatched = record.sent and held
    gone = missing_replicas(record, observation) if dispatched else ()
    if gone:
        ways = (Way.RETIRE, Way.LOOK)
    return Explanation(
        summary=_summary(record),
        happened=tuple(_happened(record)),
        proven=tuple(
            f"{alias}: {STATES[seen.state]}"
            for alias, seen in replicas.items()
            if seen.state in _PROVEN and not record.ended
        )
        + tuple(
            f"{alias}: shows the table that was published last"
            for alias, seen in replicas.items()
            if record.ended and record.published and seen.live == "new"
        )
        + tuple(stages_proven(replicas)),
        unproven=tuple(_unproven(record, replicas, queue)),
        readers=readers_of(record, replicas),
        ways=ways,
        never=tuple(never_do(stop, dispatched=dispatched or (bool(changed) and not record.ended))),
        replicas=replicas,
        stop=stop,
        held=held,
        record=record,
        gone=gone,
        observed_at=observation.server_time,
        authority_id=observation.authority_id,
        plain=plain_words(record, replicas, stop),
        affected=affected_by(record, replicas),
        waiting=tuple(who_waits(record, replicas, stop)),
    )


def with_queue(told: Explanation, blocked: tuple[Blocker, ...], newer_entries: int | None) -> Explanation:
    """Add what stands before and behind the operation's entry in the queue."""
    told = replace(told, blocked=blocked, newer_entries=newer_entries)
    if not blocked:
        return told
    first = ", ".join(dict.fromkeys(f"{one.entry} on {one.replica}" for one in blocked))
    return replace(
        told,
        plain=f"{told.plain} Its entry in the queue waits behind {first}.",
        ways=(*(way for way in told.ways if way is not Way.UNBLOCK), Way.UNBLOCK),
        never=(*told.never, NEVER_UNQUEUE),
    )


_PROVEN = (ReplicaState.STAGING, ReplicaState.PENDING, ReplicaState.COMMITTED, ReplicaState.CLEANED)


def _hold(
    stored: StoredRecord,
    observation: Observation,
    queue: QueueState | None,
    read_at: int,
    permit_unused: bool,
) -> tuple[Stop | None, tuple[Way, ...]]:
    """Return what is in the way of the operation, and the ways on."""
    record = stored.record
    if record.ended:
        return None, (Way.NOTHING,)
    if record.published:
        # The proof is in the record: whether its publish task has heard of it is that task's matter.
        return None, (Way.FREE,)
    if record.phase in STAGE_PHASES:
        # Whether its stage task still runs, no look at the cluster tells: nothing is known to be in its way.
        return None, (Way.STAGE_ON, Way.ABANDON)
    if record.phase is Phase.PREPARED:
        stop = not_dispatchable(stored, observation)
        return stop, (Way.RETRY, Way.ABANDON)
    if record.disarming or record.disarmed:
        stop = step.resolving(record)
        if record.disarmed:
            publication = record.publication
            receipt = (publication.receipt if publication else None) or ()
            judged = judge(record, observation, StoredReceipt(read_at, receipt)).stop
            stop = judged if judged is not None and judged.code in _NOT_BY_RESOLVE else stop
        return stop, _WAYS_OUT.get(stop.code, (Way.RESOLVE,))
    decided = decide_publication(
        Situation(
            operation_id=record.operation_id,
            stored=stored,
            read_at=read_at,
            observation=observation,
            queue=queue,
            permit_unused=permit_unused,
        )
    )
    match decided:
        case step.Commit():
            return None, (Way.RETRY, Way.RESOLVE)
        case step.Rearm():
            return None, (Way.RETRY,)
        case step.Wait(stop) | step.Hold(stop):
            return stop, _WAYS_OUT.get(stop.code, (Way.WAIT,))
        case step.StoreReceipt() | step.Bind():
            # The task has not written down yet what can be seen; what it means is known all the same.
            if not isinstance(queue, Running | Terminal):
                return None, (Way.RETRY,)
            judged = judge(record, observation, queue).stop
            return judged, _WAYS_OUT.get(judged.code, (Way.WAIT,)) if judged else (Way.RETRY,)
        case (
            step.ReadCatalogs()
            | step.ReadQueue()
            | step.VerifyContent()
            | step.DispatchSwap()
            | step.Abort()
            | step.Done()
        ):
            return None, (Way.RETRY,)
        case _:
            assert_never(decided)


_NOT_BY_RESOLVE = frozenset(
    {Code.PARTIAL_TERMINAL, Code.GENERATION_UNKNOWN, Code.INVENTORY_DRIFT, Code.REPLICA_NOT_OBSERVED}
)

_WAYS_OUT: Mapping[Code, tuple[Way, ...]] = {
    Code.ENTRY_NOT_SEEN: (Way.WAIT, Way.RESOLVE),
    Code.ENTRY_UNREADABLE: (Way.WAIT, Way.RESOLVE),
    Code.ENTRY_AMBIGUOUS: (Way.RESOLVE,),
    Code.ENTRY_CHANGED: (Way.RESOLVE,),
    Code.ENTRY_MALFORMED: (Way.RESOLVE,),
    Code.FAILED_EVERYWHERE: (Way.RESOLVE,),
    Code.SWAPPED_BACK: (Way.RESOLVE,),
    Code.PARTIAL_TERMINAL: (Way.REPAIR,),
    Code.GENERATION_UNKNOWN: (Way.LOOK,),
    Code.INVENTORY_DRIFT: (Way.LOOK,),
    Code.REPLICA_NOT_OBSERVED: (Way.WAIT,),
}


def _replicas(
    record: AuthorityRecord, observation: Observation, queue: QueueState | None, stop: Stop | None
) -> dict[str, ReplicaExplained]:
    words: dict[str, str] = {}
    codes = {host.alias: host.exception_code for host in _receipt(record, queue)}
    if isinstance(queue, Running | Unreadable):
        words = {alias: row.status.value for alias, row in queue.hosts.items()}
    words |= {alias: "finished" if code == 0 else "failed" for alias, code in codes.items()}
    found: dict[str, ReplicaExplained] = {}
    for alias in record.replicas:
        state = live_state(record, observation, alias)
        repair = stop is not None and stop.code is Code.PARTIAL_TERMINAL and state is ReplicaState.PENDING
        found[alias] = ReplicaExplained(
            state=state,
            target=_shown(record, observation, alias, record.table),
            candidate=_candidate(record, observation, alias),
            queue=words.get(alias),
            exception_code=codes.get(alias),
            repair=_swap(record) if repair else None,
            stage=stage_shown(record, observation, alias),
        )
    return found


def _receipt(record: AuthorityRecord, queue: QueueState | None) -> tuple[HostReceipt, ...]:
    if isinstance(queue, Terminal):
        return queue.receipt
    return (record.publication.receipt if record.publication else None) or ()


def _swap(record: AuthorityRecord) -> Statement:
    if record.predecessor is None:
        return Rename(record.cluster, record.database, record.candidate, record.table)
    return Exchange(record.cluster, record.database, record.table, record.candidate)


def _shown(record: AuthorityRecord, observation: Observation, alias: str, name: str) -> Shown:
    old = record.predecessor_on(alias)
    return Shown.of(
        observation.replicas.get(alias),
        name,
        new={own} if (own := record.own_uuid(alias)) else (),
        old=old.uuids if old else (),
        replicas=None if isinstance(record, IndependentRecord) else len(record.replicas),
    )


def _candidate(record: AuthorityRecord, observation: Observation, alias: str) -> Shown:
    found = _shown(record, observation, alias, record.candidate)
    if record.disarming and found.uuid is None:
        return _shown(record, observation, alias, parked_name(record.candidate))
    return found


def _summary(record: AuthorityRecord) -> str:
    owner = record.owner
    if is_rollback(owner):
        return f"{record.phase}: an operator's rollback of operation {owner.run_id[:16]}"
    return f"{record.phase}: {owner}"


def _happened(record: AuthorityRecord) -> list[str]:
    if isinstance(record, IndependentRecord) and not record.staged_everywhere:
        said = list(staging_happened(record))
    else:
        said = [
            f"{record.content.rows:,} rows were staged into {record.candidate} and compared on every replica."
        ]
    publication = record.publication
    if publication is None:
        said.append("No statement was sent for it.")
        return said
    kind = "RENAME" if record.predecessor is None else "EXCHANGE"
    said.append(
        f"A permit for one {kind} was given (epoch {publication.epoch}). It is never sent a second time."
    )
    if publication.entry is not None:
        said.append(f"It was seen in the queue as {publication.entry}.")
    if publication.receipt is not None:
        failed = [host.alias for host in publication.receipt if host.exception_code]
        said.append(
            "It has ended on every replica" + (f"; failed on {', '.join(failed)}." if failed else ".")
        )
    if record.disarming:
        said.append("An operator began to resolve it: the candidate's name is being taken away.")
    if record.disarmed:
        said.append(
            "An operator made the swap harmless: the candidate's name was taken away on every replica."
        )
    if record.published:
        said.append("It was proven on every replica.")
    if record.phase is Phase.ABORTED:
        said.append("It was closed as not published.")
    return said


def _unproven(
    record: AuthorityRecord, replicas: Mapping[str, ReplicaExplained], queue: QueueState | None
) -> list[str]:
    if record.ended:
        return [f"{a}: {STATES[seen.state]}" for a, seen in replicas.items() if seen.live == "unknown"]
    said = [f"{a}: {STATES[seen.state]}" for a, seen in replicas.items() if seen.state not in _PROVEN]
    said += stages_unproven(replicas)
    sent = record.publication is not None and not record.published
    if sent and not record.disarmed and not _receipt(record, queue):
        said.append("Whether the statement has ended on every replica: it may still arrive or run.")
    entry = record.publication.entry if record.publication else None
    if sent and entry is not None and isinstance(queue, NotSeen) and not record.disarming:
        said.append(f"How {entry} ended: it was seen in the queue before, and is not there any more.")
    return said
