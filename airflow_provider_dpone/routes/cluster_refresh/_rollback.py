"""Rollback: the table that an operation replaced is published again, as a new operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt
from airflow_provider_dpone.publication.record import Content, Phase, StoredRecord
from airflow_provider_dpone.publication.rollback import (
    FreeFirst,
    GoOn,
    Prepare,
    RollbackStep,
    decide_rollback,
    prepared,
)
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.transitions import require_room
from airflow_provider_dpone.publication.witness import admitted_again
from airflow_provider_dpone.routes.cluster_refresh._cleanup import CleanupRequest, cleanup, free_slot
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Site,
    Waits,
    dependents,
    observe_admitted,
    require_record,
    require_target,
    write,
)
from airflow_provider_dpone.routes.cluster_refresh._publish import PublishRequest, publish
from airflow_provider_dpone.routes.cluster_refresh._resolve import OperatorRequest, audit_action
from airflow_provider_dpone.routes.ports import Ports


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A rollback that every replica proves.

    :ivar operation_id: the rollback's own operation; it is undone by a rollback that names it.
    :ivar uuid: of the table that is live again; ``None``: every replica has one of its own.
    :ivar uuids: by replica; empty where a later operation has followed.
    :ivar replayed: it had been proven before; nothing was sent now.
    :ivar retained: tables that are kept.
    """

    operation_id: str
    phase: Phase
    uuid: str | None
    rows: int
    replayed: bool
    retained: tuple[str, ...]
    uuids: Mapping[str, str] = field(default_factory=dict)


def rollback(ports: Ports, site: Site, request: OperatorRequest, waits: Waits) -> RolledBack:
    """Publish the table again that ``request.operation`` replaced, once, and prove it on every replica.

    Interrupted anywhere, the same command goes on with the same operation. Run again after its end, it answers
    from the proof. The table that was live is kept for as long as the undone operation's retention says.

    :raises Stopped: refused, and nothing was changed; or sent and not proven yet, as in ``publish``.
    """
    if not request.operation:
        raise Stopped(Stop(Code.BAD_INPUT, "A rollback names the operation that it undoes."))
    while True:
        stored, observation, step = _look(ports, site, request.operation, waits)
        match step:
            case Stop():
                raise Stopped(step)
            case FreeFirst(committed):
                free_slot(ports, site, committed)
            case Prepare():
                operation_id = _prepare(ports, site, request, stored, observation, step, waits)
                break
            case GoOn(operation_id):
                break
            case _:
                assert_never(step)
    # What it was admitted by is checked again: the content on every replica, the live table, the record.
    receipt = publish(ports, site, PublishRequest(operation_id, Guards(allow_empty=True)), waits)
    replayed = receipt.replayed
    candidate = require_record(ports.catalog.observe([site.target.table]), site).record.candidate
    try:
        receipt = cleanup(ports, site, CleanupRequest(operation_id, candidate), waits).receipt
    except Stopped as stopped:
        ports.log(f"{site.target}: rolled back; an older table is kept for now. {stopped.stop.message}")
    return _answer(receipt, replayed)


def _look(
    ports: Ports, site: Site, operation: str, waits: Waits
) -> tuple[StoredRecord, Observation, RollbackStep]:
    first = ports.catalog.observe([site.target.table])
    stored = require_record(first, site)
    tables = [site.target.table, *(item.name for item in stored.record.retained)]
    if stored.record.ended:
        observation, _ = observe_admitted(ports, site, tables, waits)
        require_target(site, observation)
    else:
        # What holds the target explains more than what it looks like meanwhile.
        observation = ports.catalog.observe(tables)
    found = require_record(observation, site)
    return found, observation, decide_rollback(found, observation, operation, observation.server_time)


def _prepare(
    ports: Ports,
    site: Site,
    request: OperatorRequest,
    stored: StoredRecord,
    observation: Observation,
    step: Prepare,
    waits: Waits,
) -> str:
    """Write PREPARED against exactly the record and the tables that were looked at.

    :raises Stopped: the replicas don't hold one content; ``CAS_CONFLICT``: something moved meanwhile.
    """
    target = site.target
    ports.log(f"{target}: checking the content of {step.item.name} on every replica.")
    digests = ports.catalog.content(step.item.name).digests
    contents = set(digests.values())
    if len(contents) != 1 or set(digests) != set(observation.inventory.aliases):
        raise Stopped(
            Stop(
                Code.CONTENT_DIFFERS,
                f"{target}: {step.item.name} doesn't hold the same rows on every replica. Nothing was rolled back.",
                next_action="Bring the replicas of that table together (SYSTEM SYNC REPLICA), then run it again.",
                replicas={alias: {"rows": digest.rows} for alias, digest in digests.items()},
            )
        )
    content: Content = contents.pop()
    found, observation, again = _look(ports, site, request.operation or "", waits)
    if again != step or (found.write_id, found.version) != (stored.write_id, stored.version):
        raise Stopped(Stop(Code.CAS_CONFLICT, f"{target}: something moved while the table was checked."))
    nonce = ports.random.hex(128)
    record = prepared(stored, step, observation, content, dependents(observation), nonce)
    require_room(record)
    for body in admitted_again(stored, record):
        ports.evidence.write(record.operation_id, body)
    audit_action(
        ports.evidence,
        record.operation_id,
        request,
        "rollback",
        f"prepare the rollback of {step.undone[:16]}",
        stored,
    )
    if write(ports, stored, record) is None:
        raise Stopped(Stop(Code.CAS_CONFLICT, f"{target}: another worker changed the record first."))
    ports.log(f"{target}: {content.rows:,} rows in {step.item.name} are prepared to go live again.")
    return record.operation_id


def _answer(receipt: PublicationReceipt | SettledReceipt, replayed: bool) -> RolledBack:
    if isinstance(receipt, SettledReceipt):
        return RolledBack(
            receipt.operation_id, receipt.state, receipt.uuid, receipt.rows, replayed, retained=()
        )
    uuids = {one.alias: one.after.target for one in receipt.replicas if one.after.target is not None}
    return RolledBack(
        receipt.operation_id,
        receipt.state,
        next(iter(one)) if len(one := {*uuids.values()}) == 1 else None,
        receipt.rows,
        replayed,
        tuple(item.table for item in receipt.retained),
        uuids,
    )
