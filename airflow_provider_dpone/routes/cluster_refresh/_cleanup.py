"""Cleanup: free the slot, then drop what is proven to be the predecessor."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, assert_never

from airflow_provider_dpone.publication import decide_cleanup as step
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.decide import Hold, ReadCatalogs
from airflow_provider_dpone.publication.decide_cleanup import CleanupSituation, decide_cleanup
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.queue import QueueState, read_queue
from airflow_provider_dpone.publication.receipt import (
    PublicationReceipt,
    SettledReceipt,
    publication_receipt,
)
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Phase,
    Retained,
    StoredRecord,
)
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import CleanupStep
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Pause,
    Site,
    Waits,
    answer_settled,
    require_kept_record,
    require_record,
    send_once,
    write,
)
from airflow_provider_dpone.routes.cluster_refresh._evidence import note, write_receipt
from airflow_provider_dpone.routes.ports import (
    Ports,
)


@dataclass(frozen=True, slots=True)
class CleanupRequest:
    """What a cleanup task asks for.

    :ivar candidate: the operation's candidate, under whose name the predecessor is after the swap.
    """

    operation_id: str
    candidate: str


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """The end of a cleanup call.

    :ivar next_due: seconds from now until a kept predecessor may go; ``None`` if nothing is kept.
    """

    receipt: PublicationReceipt | SettledReceipt
    next_due: int | None


def cleanup(ports: Ports, site: Site, request: CleanupRequest, waits: Waits) -> CleanedUp:
    """Free the target's slot and drop the predecessor when it is due and proven to be itself.

    :raises Stopped: ``NOT_COMMITTED``; ``CLEANUP_PENDING`` and others, with the publication successful.
    """
    observation = ports.catalog.observe([site.target.table, request.candidate])
    stored = require_record(observation, site)
    record = stored.record
    if record.operation_id != request.operation_id:
        # A later operation has the slot; it took over what was left to drop.
        return CleanedUp(answer_settled(record, request.operation_id), None)
    if not record.published:
        raise Stopped(_not_committed(record))
    complete = not record.retained and record.candidate == request.candidate
    stored, now, next_due = clean(
        ports, site, stored, waits, observation.server_time, observation if complete else None
    )
    if stored.record.operation_id != request.operation_id:
        return CleanedUp(answer_settled(stored.record, request.operation_id), None)
    receipt = publication_receipt(stored.record, replayed=False)
    return CleanedUp(receipt, None if next_due is None else max(0, next_due - now))


def _not_committed(record: AuthorityRecord) -> Stop:
    name = f"{record.database}.{record.table}"
    if record.phase is Phase.ABORTED:
        return Stop(
            Code.NOT_COMMITTED,
            f"{name}: this operation was given up before it was published; there is nothing to clean up.",
            next_action="Nothing to repair. Run the DAG again if this data must go live.",
            facts={"phase": record.phase.value},
        )
    return Stop(
        Code.NOT_COMMITTED,
        f"{name}: the publication is {record.phase}, not proven committed.",
        facts={"phase": record.phase.value},
    )


def free_slot(ports: Ports, site: Site, stored: StoredRecord) -> None:
    """End a committed operation, so that the next one may begin. Its predecessor is dropped later."""
    record = stored.record
    committed_at = record.committed_at or record.changed_at
    moved = transitions.retaining(record, drop_after=committed_at + record.retention, now=committed_at)
    _write_freed(ports, stored, None)
    if write(ports, stored, moved) is None:
        ports.log(f"{site.target}: another worker freed the slot first.")


def finish_drops(ports: Ports, site: Site, stored: StoredRecord, now: int, waits: Waits) -> None:
    """Drop what is due at the server's time ``now``. What can't be dropped never blocks the target."""
    try:
        clean(ports, site, stored, waits, now)
    except Stopped as stopped:
        ports.log(f"{site.target}: an older table is kept for now. {stopped.stop.message}")


def clean(
    ports: Ports,
    site: Site,
    stored: StoredRecord,
    waits: Waits,
    now: int,
    observation: Observation | None = None,
) -> tuple[StoredRecord, int, int | None]:
    """Run the cleanup loop; return the record, the server's time and when the next drop is due.

    It ends early when another operation has taken the slot: what is left to drop is then that one's.

    :param observation: a look that shows the live table and every table that may be dropped.
    """
    operation_id = stored.record.operation_id
    pause = Pause(ports, waits.cleanup, waits)
    queue: QueueState | None = None
    queue_of: str | None = None
    sent: Counter[str] = Counter()
    while True:
        record = stored.record
        if record.operation_id != operation_id:
            return stored, now, None
        if observation is not None:
            now = observation.server_time
        decided = decide_cleanup(CleanupSituation(stored, now, observation, queue, queue_of, sent))
        written: StoredRecord | None = stored
        match decided:
            case ReadCatalogs():
                names = [record.table, record.candidate, *(item.name for item in record.retained)]
                observation = ports.catalog.observe(names)
                found = observation.record
                if found is not None and found.version > stored.version:
                    stored, queue = found, None
                continue
            case step.ReadDropQueue(item):
                if item.drop is None:
                    raise ValueError("only a dispatched drop has queue rows")
                sequence, rows = ports.queue.read(item.drop.token)
                queue_of = item.name
                queue = read_queue(
                    rows,
                    sequence=sequence,
                    dispatch=item.drop,
                    statement=Drop(record.cluster, record.database, item.name),
                    inventory=ports.catalog.inventory,
                )
                observation = None
                continue
            case step.Retain(drop_after, drop_now):
                moved = transitions.retaining(record, drop_after=drop_after, now=now)
                _write_freed(ports, stored, observation)
                if drop_now:
                    written = _send_drop(ports, stored, moved, record.candidate, now, observation)
                    sent[record.candidate] += 1
                else:
                    written = write(ports, stored, moved)
            case step.DispatchDrop(item):
                written = _send_drop(ports, stored, record, item.name, now, observation)
                sent[item.name] += 1
            case step.FinishDrop(item):
                _write_step(ports, stored, "gone", item, observation)
                ports.log(f"{site.target}: predecessor {item.name} is gone on every replica.")
                written = write(ports, stored, transitions.dropped(record, item.name, now=now))
            case step.WaitForDrop(_, stop):
                if pause.over():
                    raise Stopped(stop)
            case step.Keep(items):
                for item, stop in items:
                    note(ports, record.operation_id, _step("keep", stored, item, observation, stop))
                    if item.operation_id == operation_id:
                        raise Stopped(stop)
                    ports.log(f"{site.target}: {item.name} is kept for now. {stop.message}")
                later = [item.drop_after for item in record.retained if item.drop_after > now]
                return stored, now, min(later, default=None)
            case Hold(stop):
                raise Stopped(stop)
            case step.Idle(next_due):
                return stored, now, next_due
            case _:
                assert_never(decided)
        if not isinstance(decided, step.WaitForDrop):
            # Something moved: the wait begins anew. Each table is dropped a bounded number of times.
            pause = Pause(ports, waits.cleanup, waits)
        observation, queue, queue_of = None, None, None
        if written is None:
            ports.clock.sleep(waits.poll_first)
            written = require_kept_record(ports.catalog.observe([record.table]), site)
        stored = written


def _write_freed(ports: Ports, stored: StoredRecord, observation: Observation | None) -> None:
    """Write down the proof of the publication, and that its target is given to the next operation.

    :raises Stopped: ``EVIDENCE_UNAVAILABLE``: the record must stay committed.
    """
    record = stored.record
    write_receipt(ports, stored)
    if (predecessor := record.predecessor) is not None:
        item = record.keep(record.candidate, predecessor, drop_after=record.changed_at)
        _write_step(ports, stored, "free", item, observation)


def _write_step(
    ports: Ports,
    stored: StoredRecord,
    step: Literal["free", "drop", "gone"],
    item: Retained,
    observation: Observation | None,
) -> None:
    ports.evidence.write(stored.record.operation_id, _step(step, stored, item, observation))


def _step(
    step: Literal["free", "drop", "gone", "keep"],
    stored: StoredRecord,
    item: Retained,
    observation: Observation | None,
    stop: Stop | None = None,
) -> CleanupStep:
    seen = observation.replicas.items() if observation is not None else ()
    return CleanupStep(
        step=step,
        table=item.name,
        uuid=item.generation.uuid,
        version=stored.version,
        seen_on=None if observation is None else tuple(a for a, facts in seen if item.name in facts.tables),
        why=stop.code.name if stop else None,
    )


def _send_drop(
    ports: Ports,
    stored: StoredRecord,
    record: AuthorityRecord,
    name: str,
    now: int,
    observation: Observation | None,
) -> StoredRecord | None:
    claimed = transitions.dropping(record, name, nonce=ports.random.hex(128), now=now)
    item = next(item for item in claimed.retained if item.name == name)
    _write_step(ports, stored, "drop", item, observation)
    ports.log(f"Dropping the predecessor {name}.")
    return send_once(ports, stored, claimed, item.drop, Drop(record.cluster, record.database, name))
