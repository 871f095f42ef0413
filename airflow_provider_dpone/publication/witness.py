"""What is written down about a decision, made from the facts that it was decided from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from airflow_provider_dpone.publication import decide, decide_resolve
from airflow_provider_dpone.publication.admission import Slot
from airflow_provider_dpone.publication.classify import replica_state
from airflow_provider_dpone.publication.decide_resolve import ResolveStep
from airflow_provider_dpone.publication.facts import Observation, ReplicaFacts
from airflow_provider_dpone.publication.queue import QueueState, Running, Terminal, Unreadable
from airflow_provider_dpone.publication.receipt import Names
from airflow_provider_dpone.publication.record import (
    UNSENT_PHASES,
    AuthorityRecord,
    Generation,
    IndependentGeneration,
    IndependentRecord,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Stop
from airflow_provider_dpone.publication.trail import (
    Admission,
    Classification,
    IndependentLive,
    IndependentStaged,
    LiveTable,
    Proven,
    ReplicaSeen,
    SlotFound,
    Staged,
)


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
    if isinstance(live, IndependentGeneration):
        return IndependentLive(live.uuid, live.schema_digest, live.tables)
    return None if live is None else LiveTable(live.uuid, live.schema_digest)


def staged(record: AuthorityRecord) -> Staged:
    """Return what is written down before ``record`` is prepared: its candidate is complete on every replica."""
    make: Callable[..., Staged] = Staged
    if isinstance(record, IndependentRecord):
        make = partial(IndependentStaged, tables=record.desired.tables, artifact=record.artifact)
    return make(
        attempt=record.attempt_id,
        table=record.candidate,
        uuid=record.desired.uuid,
        rows=record.content.rows,
        bytes=record.staged_bytes,
        source_rows=None,
        content=record.content,
        replicas=record.replicas,
    )


def slot_found(stored: StoredRecord | None) -> SlotFound | None:
    """Return what admission found in the target's slot."""
    if stored is None:
        return None
    return SlotFound(stored.version, stored.write_id, stored.record.operation_id, stored.record.phase)


def admitted_again(stored: StoredRecord, record: AuthorityRecord) -> tuple[Admission, Staged]:
    """Return what a rollback writes down before it is prepared: as a staging attempt does, which it has none of.

    :param stored: the record that the slot holds.
    :param record: the rollback's own, which is to replace it.
    """
    admission = Admission(
        database=record.database,
        table=record.table,
        target_key=record.target_key,
        publication_key=record.publication_key,
        authority_id=record.authority_id,
        owner=record.owner,
        order_key=record.order_key,
        plan_digest=record.plan_digest,
        inventory_digest=record.inventory_digest,
        replicas=record.replicas,
        live=live_table(record.predecessor),
        live_rows=record.live_rows,
        slot=slot_found(stored),
        retention=record.retention,
        schema_difference=(),
        dependents=record.dependents,
        warnings=(),
    )
    return admission, staged(record)


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
    if record.phase in UNSENT_PHASES:
        found.append(
            f"operation {record.operation_id[:16]}, {record.phase.lower()} and never sent, is superseded"
        )
    published = record.published_order_key
    if order_key is not None and published is not None and order_key < published:
        found.append("the data is older than what is published")
    if record.retained:
        found.append(f"{len(record.retained)} replaced tables are still kept")
    return tuple(found)
