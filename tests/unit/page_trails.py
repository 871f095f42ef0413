"""Trails as the protocol writes them, up to any phase, for tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import ObjectStoragePath

from airflow_provider_dpone.evidence.reader import Trail
from airflow_provider_dpone.evidence.store import EvidenceStore
from airflow_provider_dpone.publication import decide
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.facts import TableFacts
from airflow_provider_dpone.publication.queue import QueueState
from airflow_provider_dpone.publication.receipt import publication_receipt
from airflow_provider_dpone.publication.record import AuthorityRecord, Owner, Phase
from airflow_provider_dpone.publication.stop import Code, Stop
from airflow_provider_dpone.publication.trail import (
    Admission,
    Body,
    CandidateIntent,
    CleanupStep,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    Entry,
    LiveTable,
    PublishAsked,
    Staged,
    StoredReceipt,
)
from airflow_provider_dpone.publication.witness import slot_found, witness
from tests.unit.builders import COMMITTED, OLD_UUID, PENDING, in_phase, observation, stored

PHASES: tuple[Phase, ...] = (
    Phase.PREPARED,
    Phase.DISPATCHING,
    Phase.BOUND,
    Phase.TERMINAL,
    Phase.COMMITTED,
    Phase.COMPLETED,
)
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Tables = Mapping[str, TableFacts | None] | None


def admission(record: AuthorityRecord, **changes: Any) -> Admission:
    """What the operation of a record was admitted to."""
    found = Admission(
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
        live=LiveTable(OLD_UUID, "5" * 64) if record.predecessor else None,
        live_rows=record.live_rows,
        slot=slot_found(None),
        retention=record.retention,
        schema_difference=(),
        dependents=record.dependents,
        warnings=(),
    )
    return replace(found, **changes)


def history(state: str, replicas: int = 2, **changes: Any) -> list[Body]:
    """The trail of an operation that has come to ``state``: a phase, ``ADMITTED`` or ``STAGED``."""
    record = in_phase(Phase.PREPARED, replicas, **changes)
    bodies: list[Body] = [
        admission(record),
        CandidateIntent(record.attempt_id, record.candidate, record.desired.uuid, record.database),
    ]
    if state == "ADMITTED":
        return bodies
    bodies.append(
        Staged(
            record.attempt_id,
            record.candidate,
            record.desired.uuid,
            record.content.rows,
            record.staged_bytes,
            record.content.rows,
            record.content,
            record.replicas,
        )
    )
    if state == "STAGED":
        return bodies
    phases = [Phase.PREPARED, Phase.ABORTED] if state == Phase.ABORTED else list(PHASES)
    if state == Phase.COMPLETED_RETAINING:
        phases[-1] = Phase.COMPLETED_RETAINING
    for version, phase in enumerate(phases):
        record = in_phase(phase, replicas, **changes)
        if phase is Phase.DISPATCHING:
            bodies.append(PublishAsked("ab" * 32))
            bodies += classified(
                decide.DispatchSwap(), in_phase(Phase.PREPARED, replicas, **changes), version
            )
        if phase is Phase.COMMITTED:
            before = in_phase(Phase.TERMINAL, replicas, **changes)
            assert before.publication is not None
            done = decide.Commit(
                before.publication.entry, before.publication.query_digest, before.publication.receipt
            )
            bodies += classified(done, before, version, shown=COMMITTED)
        if phase in (Phase.COMPLETED, Phase.COMPLETED_RETAINING):
            proof = publication_receipt(in_phase(Phase.COMMITTED, replicas, **changes), replayed=False)
            bodies.append(StoredReceipt(version - 1, proof))
            bodies.append(CleanupStep("free", record.candidate, OLD_UUID, version - 1, None, None))
        bodies += written(record, phase, version)
        if phase is Phase.DISPATCHING:
            assert record.publication is not None
            token = record.publication.token
            bodies.append(
                DispatchOutcome("EXCHANGE", token, record.dispatch_epoch, write(version), "lost", None, "")
            )
        if phase == state:
            return bodies
    raise AssertionError(state)


def written(record: AuthorityRecord, phase: Phase, version: int) -> tuple[Body, Body]:
    """A write of the record, and that it was stored."""
    epoch = record.dispatch_epoch
    return (
        CompareAndSwap(write(version), phase, epoch, version - 1 if version else None, record.fence_token),
        CompareAndSwapOutcome(write(version), phase, epoch, "stored", version),
    )


def write(version: int) -> str:
    """The id of a write."""
    return f"{version:02x}" * 16


def classified(
    decided: Any,
    record: AuthorityRecord,
    version: int,
    *each: Tables,
    shown: Tables = PENDING,
    queue: QueueState | None = None,
) -> list[Body]:
    """What is written down about a decision, from what each replica shows."""
    seen = each or tuple(shown for _ in record.replicas)
    found = witness(stored(record, version), decided, observation(stored(record, version), *seen), queue)
    assert found is not None
    return [found]


def held(code: Code, record: AuthorityRecord, *each: Tables) -> list[Body]:
    """The classification of an operation that stops by a code."""
    version = PHASES.index(record.phase)
    return classified(decide.Hold(Stop(code, code.value)), record, version, *each)


def explained(record: AuthorityRecord, *each: Tables, queue: QueueState | None = None) -> Explanation:
    """What ``explain`` says of a record, from what each replica shows."""
    seen = observation(stored(record), *each, sequence=10)
    return explain(stored(record), seen, queue, read_at=1)


def about(
    owner: Owner, task_id: str | None = None, conn_id: str | None = "clickhouse_default"
) -> dict[str, Any]:
    """What an entry says about its writer."""
    said: dict[str, Any] = {
        "dag_id": owner.dag_id,
        "run_id": owner.run_id,
        "task_id": task_id or owner.task_id,
        "map_index": owner.map_index,
        "try_number": 1,
    }
    return said | ({"conn_id": conn_id} if conn_id is not None else {})


def trail(operation_id: str, bodies: list[Body], owner: Owner | None = None, **more: Any) -> Trail:
    """The whole trail in memory, an entry each second."""
    said = about(owner or Owner("dag", "run", "stage", -1), **more)
    return Trail(
        operation_id,
        tuple(
            Entry(
                "analytics",
                operation_id,
                (START + timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "ti-1.0",
                n + 1,
                said,
                body,
            )
            for n, body in enumerate(bodies)
        ),
        (),
    )


class Evidence:
    """A store on a folder, whose entries are a second apart."""

    def __init__(self, root: ObjectStoragePath, cluster: str = "analytics", start: datetime = START) -> None:
        self.root = root
        self.cluster = cluster
        self.now = start

    def write(self, operation_id: str, bodies: list[Body], said: Mapping[str, Any]) -> None:
        """Append entries."""
        store = EvidenceStore(
            self.root, cluster=self.cluster, writer="ti-1", about=dict(said), now=self._tick()
        )
        for body in bodies:
            store.write(operation_id, body)

    def _tick(self) -> Callable[[], datetime]:
        def times() -> Iterator[datetime]:
            while True:
                self.now += timedelta(seconds=1)
                yield self.now

        ticking = times()
        return lambda: next(ticking)
