"""What one target's state means for people: what happened, what is proven, what is safe next, and what never.

Pure: from the same facts that decide, and with the same words. It permits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import assert_never

from airflow_provider_dpone.publication import decide as step
from airflow_provider_dpone.publication.classify import (
    ReplicaState,
    StoredReceipt,
    judge,
    replica_state,
)
from airflow_provider_dpone.publication.decide import Situation, decide_publication, not_dispatchable
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.queue import QueueState, Running, Terminal, Unreadable
from airflow_provider_dpone.publication.queue_report import FORGOTTEN_AFTER, MANY_NEWER, Blocker
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    HostReceipt,
    Phase,
    StoredRecord,
    is_rollback,
)
from airflow_provider_dpone.publication.retire import missing_replicas
from airflow_provider_dpone.publication.statement import Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stop


@unique
class Way(StrEnum):
    """The command or action that is safe next."""

    NOTHING = "nothing"
    WAIT = "wait"
    RETRY = "retry"
    REPAIR = "repair"
    RESOLVE = "resolve"
    RETIRE = "retire"
    ROLL_ON = "roll on"
    ABANDON = "abandon"
    LOOK = "look"


_WAYS: Mapping[Way, str] = {
    Way.NOTHING: "Nothing to do.",
    Way.WAIT: "Wait, and let the publish task (or a later run) observe again.",
    Way.RETRY: "Clear the publish task: it goes on from the recorded state.",
    Way.REPAIR: (
        "Run the statement that stands at each pending replica, on that replica alone and without ON CLUSTER. "
        "Explain again; when every replica is committed, resolve."
    ),
    Way.RESOLVE: "Resolve: it makes the swap harmless where its outcome is not known, and ends the operation.",
    Way.RETIRE: (
        "If the missing replica is gone for ever: remove it from both tables in Keeper (SYSTEM DROP REPLICA), and "
        "resolve with --retire. If it is not, restore the cluster's definition."
    ),
    Way.ROLL_ON: "Run the rollback again: it goes on where it stopped, with the same operation.",
    Way.ABANDON: "Abandon it if its data must not go live: nothing was sent.",
    Way.LOOK: "Find out who changed the tables or the cluster, and restore what was admitted. Then explain again.",
}

NEVER_SWAP = (
    "Never run EXCHANGE or RENAME of these tables ON CLUSTER: it would undo the replicas that are done."
)
NEVER_DROP = "Never drop either table: until the operation ends, each may hold the only copy of a generation."
NEVER_EDIT = "Never edit, truncate or drop the control table."


@dataclass(frozen=True, slots=True)
class Shown:
    """What one replica shows under one of the operation's two names.

    :ivar generation: ``new``, ``old``, ``absent``, ``another table`` or ``unknown``.
    :ivar uuid: of the table; ``None`` if there is none or it is not known.
    :ivar rows: the replica's own count.
    :ivar problem: in words, why it does not hold the table completely and healthily; ``None`` if it does.
    """

    generation: str
    uuid: str | None = None
    rows: int | None = None
    problem: str | None = None


UNKNOWN = Shown("unknown")


@dataclass(frozen=True, slots=True)
class ReplicaExplained:
    """One replica: what it holds, and how the queue's entry ended there.

    :ivar live: ``new``, ``old``, ``absent`` or ``unknown``: which generation its readers see.
    :ivar repair: the statement that brings this replica, alone, to the new generation.
    :ivar target: what stands under the target's name.
    :ivar candidate: what stands under the candidate's name, or under the one it was parked as.
    """

    state: ReplicaState
    live: str
    queue: str | None = None
    exception_code: int | None = None
    repair: Statement | None = None
    target: Shown = UNKNOWN
    candidate: Shown = UNKNOWN


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that ``airflow dpone explain`` shows about one target.

    :ivar stop: why it does not go on by itself; ``None`` where nothing is in the way.
    :ivar ways: what is safe next, the best first.
    :ivar held: the target is held by an operation that has not ended.
    :ivar gone: admitted replicas that the cluster doesn't list any more.
    :ivar blocked: entries of the queue that replicas have to finish before the operation's.
    :ivar newer_entries: how many entries came after the operation's; ``None`` if it is not seen.
    :ivar observed_at: the server's clock at the look at the replicas, seconds since the epoch.
    """

    summary: str
    happened: tuple[str, ...]
    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    readers: str
    ways: tuple[Way, ...]
    never: tuple[str, ...]
    replicas: Mapping[str, ReplicaExplained]
    stop: Stop | None
    held: bool
    record: AuthorityRecord | None
    gone: tuple[str, ...] = ()
    blocked: tuple[Blocker, ...] = ()
    newer_entries: int | None = None
    observed_at: int | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What will soon be wrong."""
        if self.newer_entries is None or self.newer_entries < MANY_NEWER:
            return ()
        return (
            f"{self.newer_entries:,} entries came after this one. The queue forgets it after {FORGOTTEN_AFTER:,}; "
            "then its outcome can't be read any more, and an operator has to resolve the operation.",
        )

    @property
    def next(self) -> tuple[str, ...]:
        """The ways in words."""
        return tuple(_WAYS[way] for way in self.ways)


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
) -> Explanation:
    """Explain one target.

    :param observation: a look at all replicas, later than the read of the queue.
    :param queue: what the queue says of the swap, where it was read.
    :param read_at: order of the read that showed the record.
    """
    if stored is None:
        return Explanation(
            "No operation was ever prepared for this table.",
            (),
            (),
            (),
            "Readers see the table as it is.",
            (Way.NOTHING,),
            (),
            {},
            None,
            held=False,
            record=None,
            observed_at=observation.server_time,
        )
    record = stored.record
    stop, ways = _hold(stored, observation, queue, read_at, permit_unused)
    if is_rollback(record.owner):
        ways = tuple(Way.ROLL_ON if way in (Way.RETRY, Way.WAIT) else way for way in ways)
    replicas = _replicas(record, observation, queue, stop)
    held = not (record.ended or record.published)
    dispatched = held and record.phase is not Phase.PREPARED
    gone = missing_replicas(record, observation) if dispatched else ()
    if gone:
        ways = (Way.RETIRE, Way.LOOK)
    return Explanation(
        summary=_summary(record),
        happened=tuple(_happened(record)),
        proven=tuple(
            f"{alias}: {_STATES[seen.state]}"
            for alias, seen in replicas.items()
            if seen.state in _PROVEN and not record.ended
        ),
        unproven=tuple(_unproven(record, replicas, queue)),
        readers=readers({alias: seen.live for alias, seen in replicas.items()}),
        ways=ways,
        never=(NEVER_SWAP, NEVER_DROP, NEVER_EDIT) if dispatched else (NEVER_EDIT,),
        replicas=replicas,
        stop=stop,
        held=held,
        record=record,
        gone=gone,
        observed_at=observation.server_time,
    )


_PROVEN = (ReplicaState.PENDING, ReplicaState.COMMITTED, ReplicaState.CLEANED)

_STATES: Mapping[ReplicaState, str] = {
    ReplicaState.PENDING: "holds the old generation; the new one is kept next to it",
    ReplicaState.COMMITTED: "holds the new generation; the old one is kept next to it",
    ReplicaState.CLEANED: "holds the new generation; the old one is gone",
    ReplicaState.NOT_OBSERVED: "can't be read",
    ReplicaState.REPLACED: "another server answers in its place",
    ReplicaState.UNKNOWN: "a table is missing or is neither generation",
}


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
        return None, (Way.RETRY,)
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
            live=shown(record, observation, alias, record.table).generation,
            queue=words.get(alias),
            exception_code=codes.get(alias),
            repair=_swap(record) if repair else None,
            target=shown(record, observation, alias, record.table),
            candidate=_candidate(record, observation, alias),
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


def generation_of(uuid: str | None, *, new: str | None, old: str | None) -> str:
    """Return which generation a UUID is, in a word; ``absent`` if there is none.

    :param new: the UUID of the operation's own table.
    :param old: the UUID of the table that it replaces; ``None`` if there was none.
    """
    if uuid is None:
        return "absent"
    if uuid == new:
        return "new"
    return "old" if uuid == old else "another table"


def shown(record: AuthorityRecord, observation: Observation, alias: str, name: str) -> Shown:
    """Return what a replica shows under a name."""
    facts = observation.replicas.get(alias)
    if facts is None:
        return UNKNOWN
    table = facts.tables.get(name)
    if table is None:
        return Shown("absent") if facts.sees_database else UNKNOWN
    old = record.predecessor.uuid if record.predecessor else None
    return Shown(
        generation_of(table.uuid, new=record.desired.uuid, old=old),
        table.uuid,
        table.rows,
        step.replication_problem(table, len(record.replicas)),
    )


def _candidate(record: AuthorityRecord, observation: Observation, alias: str) -> Shown:
    found = shown(record, observation, alias, record.candidate)
    if record.disarming and found.uuid is None:
        return shown(record, observation, alias, parked_name(record.candidate))
    return found


def _summary(record: AuthorityRecord) -> str:
    owner = record.owner
    if is_rollback(owner):
        return f"{record.phase}: an operator's rollback of operation {owner.run_id[:16]}"
    return f"{record.phase}: DAG {owner.dag_id}, run {owner.run_id}, task {owner.task_id}"


def _happened(record: AuthorityRecord) -> list[str]:
    said = [
        f"{record.content.rows:,} rows were staged into {record.candidate} and compared on every replica."
    ]
    publication = record.publication
    if publication is None:
        said.append("No statement was sent for it.")
        return said
    kind = "RENAME" if record.predecessor is None else "EXCHANGE"
    said.append(f"A permit for one {kind} was given (epoch {publication.epoch}).")
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
        return []
    said = [f"{a}: {_STATES[seen.state]}" for a, seen in replicas.items() if seen.state not in _PROVEN]
    sent = record.publication is not None and not record.published
    if sent and not record.disarmed and not _receipt(record, queue):
        said.append("Whether the statement has ended on every replica: it may still arrive or run.")
    return said


def readers(live: Mapping[str, str]) -> str:
    """Return in a sentence whether readers are affected.

    :param live: alias -> which generation its readers see, as :attr:`ReplicaExplained.live` has it.
    """
    kinds: dict[str, list[str]] = {}
    for alias, word in live.items():
        kinds.setdefault(word, []).append(alias)
    if kinds.keys() <= {"unknown"}:
        return "It is not known what readers see: no replica shows the table."
    if len(kinds) == 1 and "another table" not in kinds:
        return f"Readers are not affected: {_LIVE[next(iter(kinds))]} on every replica."
    return (
        "Readers are affected: " + "; ".join(f"{_LIVE[k]} on {', '.join(a)}" for k, a in kinds.items()) + "."
    )


_LIVE: Mapping[str, str] = {
    "new": "they see the new data",
    "old": "they see the old data",
    "absent": "there is no table yet",
    "another table": "they see a table that is neither generation",
    "unknown": "it is not known what they see",
}
