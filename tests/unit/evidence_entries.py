"""One entry of each kind, with the values of the small record in ``builders``."""

from __future__ import annotations

from airflow_provider_dpone.publication.receipt import publication_receipt
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.trail import (
    KINDS,
    Admission,
    Body,
    CandidateIntent,
    CleanupStep,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    Entry,
    LiveTable,
    OperatorAction,
    PermitUnused,
    Pruned,
    PublishAsked,
    SlotFound,
    Staged,
    StoredReceipt,
    TurnedAway,
)
from airflow_provider_dpone.publication.witness import witness
from tests.unit.builders import (
    AUTHORITY,
    COMMITTED,
    CONTENT,
    KEY,
    NEW_UUID,
    OLD_UUID,
    in_phase,
    observation,
    receipt_of,
    stored,
)

WRITE = "cd" * 16


def classification() -> Body:
    """The proof that a commit rests on."""
    from airflow_provider_dpone.publication.decide import Commit

    record = in_phase(Phase.TERMINAL)
    decided = Commit("query-0000000007", "q" * 64, receipt_of(record))
    found = witness(stored(record), decided, observation(stored(record), COMMITTED, COMMITTED), None)
    assert found is not None
    return found


def bodies() -> tuple[Body, ...]:
    """One body of each kind."""
    record = in_phase(Phase.COMMITTED)
    return (
        Admission(
            database="mart",
            table="orders",
            target_key=KEY,
            publication_key=record.publication_key,
            authority_id=AUTHORITY,
            owner=record.owner,
            order_key="2026-01-02",
            plan_digest="p" * 64,
            inventory_digest=record.inventory_digest,
            replicas=("s1/r1", "s1/r2"),
            live=LiveTable(OLD_UUID, "5" * 64),
            live_rows=10,
            slot=SlotFound(4, "ab" * 16, "e" * 64, Phase.COMPLETED),
            retention=3600,
            schema_difference=("column added: note String",),
            dependents=("mart.v (View)",),
            warnings=("1 objects depend on the target's name",),
        ),
        CandidateIntent("1", "orders__dpone_1", NEW_UUID, "mart"),
        Staged("1", "orders__dpone_1", NEW_UUID, 10, 100, 10, CONTENT, ("s1/r1", "s1/r2")),
        PublishAsked("ab" * 32),
        CompareAndSwap(WRITE, Phase.PREPARED, 4, None, "f" * 32),
        CompareAndSwapOutcome(WRITE, Phase.PREPARED, 4, "stored", 0),
        PermitUnused(5, WRITE),
        DispatchOutcome("EXCHANGE", "dpone1:66c8:publish:5:00", 5, WRITE, "lost", None, ""),
        classification(),
        StoredReceipt(9, publication_receipt(record, replayed=False)),
        CleanupStep("keep", "orders__dpone_1", OLD_UUID, 10, ("s1/r2",), "CLEANUP_PENDING"),
        OperatorAction("resolve", "disarm", "the worker is gone", Phase.BOUND, 5, 7, WRITE),
        Pruned(("e" * 64,), 7_776_000),
        TurnedAway("d" * 64, record.owner, "TARGET_BUSY", Phase.BOUND, 7),
    )


def entry(body: Body, sequence: int = 1) -> Entry:
    """The entry of a body."""
    return Entry(
        cluster="analytics",
        operation_id="" if isinstance(body, Pruned) else "66c8" * 16,
        at=f"2026-01-02T03:04:05.{sequence:06d}Z",
        writer="ti-1.00000000",
        sequence=sequence,
        about={"dag_id": "dag", "run_id": "run", "task_id": "stage", "map_index": -1, "try_number": 1},
        body=body,
    )


ENTRIES = {body.kind: entry(body, number) for number, body in enumerate(bodies(), 1)}
assert list(ENTRIES) == list(KINDS)
