"""What is written down about a decision, made from the facts that it was decided from."""

from __future__ import annotations

from airflow_provider_dpone.publication import decide, decide_resolve
from airflow_provider_dpone.publication.admission import Slot
from airflow_provider_dpone.publication.classify import replica_state
from airflow_provider_dpone.publication.decide_resolve import ResolveStep
from airflow_provider_dpone.publication.facts import Observation, ReplicaFacts
from airflow_provider_dpone.publication.queue import QueueState, Running, Terminal, Unreadable
from airflow_provider_dpone.publication.receipt import Names
from airflow_provider_dpone.publication.record import AuthorityRecord, Generation, Phase, StoredRecord
from airflow_provider_dpone.publication.stop import Stop
from airflow_provider_dpone.publication.trail import Classification, LiveTable, Proven, ReplicaSeen, SlotFound


def witness(
    stored: StoredRecord,
    decided: decide.Step | ResolveStep,
    observation: Observation | None,
    queue: QueueState | None,
) -> Classification | None:
    """Return the classification that a step rests on; ``None`` for a step that only reads, or ends."""
    stop: Stop | None = None
    match decided:
        case decide.Wait(stop) | decide.Hold(stop) | decide.Abort(stop):
            aggregate = stop.code.name
        case decide.DispatchSwap():
            aggregate = Proven.DISPATCHABLE.value
        case decide.Rearm():
            aggregate = Proven.PERMIT_UNUSED.value
        case decide.Bind():
            aggregate = Proven.BOUND.value
        case decide.StoreReceipt():
            aggregate = Proven.TERMINAL.value
        case decide.Commit():
            aggregate = Proven.COMMITTED.value
        case decide_resolve.Disarm():
            aggregate = Proven.DISARMABLE.value
        case decide_resolve.StoreDisarmed():
            aggregate = Proven.DISARMED.value
        case decide_resolve.CloseUnpublished():
            aggregate = Proven.NOT_PUBLISHED.value
        case _:
            return None
    record = stored.record
    return Classification(
        aggregate=aggregate,
        category=stop.category if stop else None,
        phase=record.phase,
        epoch=record.dispatch_epoch,
        version=stored.version,
        entry=_entry(record, queue),
        observed_at=observation.server_time if observation else None,
        replicas=tuple(_seen(record, observation, queue, alias) for alias in record.replicas),
    )


def _entry(record: AuthorityRecord, queue: QueueState | None) -> str | None:
    if isinstance(queue, Running | Unreadable | Terminal):
        return queue.entry
    return record.publication.entry if record.publication else None


def _seen(
    record: AuthorityRecord, observation: Observation | None, queue: QueueState | None, alias: str
) -> ReplicaSeen:
    # While replicas work on the swap, the reads that make up a generation may come from both sides of it.
    exact = not isinstance(queue, Running)
    status, code = _queue(record, queue, alias)
    facts = observation.replicas.get(alias) if observation else None
    return ReplicaSeen(
        alias=alias,
        state=replica_state(record, observation, alias, exact=exact) if observation else None,
        names=_names(record, facts) if facts else None,
        queue=status,
        exception_code=code,
    )


def _names(record: AuthorityRecord, facts: ReplicaFacts) -> Names:
    target, candidate = facts.tables.get(record.table), facts.tables.get(record.candidate)
    return Names(target.uuid if target else None, candidate.uuid if candidate else None)


def _queue(record: AuthorityRecord, queue: QueueState | None, alias: str) -> tuple[str | None, int | None]:
    if isinstance(queue, Running | Unreadable):
        row = queue.hosts.get(alias)
        return (row.status.value, row.exception_code) if row else (None, None)
    receipt = queue.receipt if isinstance(queue, Terminal) else None
    if receipt is None and record.publication is not None:
        receipt = record.publication.receipt
    for host in receipt or ():
        if host.alias == alias:
            return ("finished" if host.exception_code == 0 else "failed"), host.exception_code
    return None, None


def live_table(live: Generation | None) -> LiveTable | None:
    """Return what identifies the live table."""
    return None if live is None else LiveTable(live.uuid, live.schema_digest)


def slot_found(stored: StoredRecord | None) -> SlotFound | None:
    """Return what admission found in the target's slot."""
    if stored is None:
        return None
    return SlotFound(stored.version, stored.write_id, stored.record.operation_id, stored.record.phase)


def admission_warnings(slot: Slot, dependents: int, *, order_key: str | None) -> tuple[str, ...]:
    """Return what was admitted and is worth a look later.

    :param dependents: how many objects hang on the target's name.
    """
    found: list[str] = []
    if dependents:
        found.append(f"{dependents} objects depend on the target's name")
    record = slot.stored.record if slot.stored else None
    if record is None:
        return tuple(found)
    if record.phase is Phase.PREPARED:
        found.append(f"operation {record.operation_id[:16]}, prepared and never sent, is superseded")
    published = record.published_order_key
    if order_key is not None and published is not None and order_key < published:
        found.append("the data is older than what is published")
    if record.retained:
        found.append(f"{len(record.retained)} replaced tables are still kept")
    return tuple(found)
