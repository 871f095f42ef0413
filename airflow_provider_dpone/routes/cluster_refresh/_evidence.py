"""What the protocol writes down: before a move what it rests on, and after it what became of it.

What a move rests on is *written*: an error stops the protocol where it is, and a retry goes on from there. What has
happened already is *noted*: it stays true, so an error is logged and hides nothing.
"""

from __future__ import annotations

from typing import Literal, assert_never

from airflow_provider_dpone.publication.decide import Hold, Step, Wait
from airflow_provider_dpone.publication.decide_resolve import ResolveStep
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.queue import QueueState
from airflow_provider_dpone.publication.receipt import publication_receipt
from airflow_provider_dpone.publication.record import AuthorityRecord, Dispatch, StoredRecord
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.publication.trail import (
    Body,
    Classification,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    StoredReceipt,
)
from airflow_provider_dpone.publication.witness import witness
from airflow_provider_dpone.routes.ports import (
    Claimed,
    Conflict,
    OutcomeUnknown,
    Ports,
    Reply,
    Stored,
    WriteResult,
)


def write_intent(ports: Ports, record: AuthorityRecord, write_id: str, before: StoredRecord | None) -> None:
    """Write down which compare-and-swap is about to be sent.

    :raises Stopped: ``EVIDENCE_UNAVAILABLE``: it must not be sent.
    """
    entry = CompareAndSwap(
        write_id=write_id,
        phase=record.phase,
        epoch=record.dispatch_epoch,
        from_version=before.version if before else None,
        fence_token=record.fence_token,
    )
    ports.evidence.write(record.operation_id, entry)


def note_outcome(ports: Ports, record: AuthorityRecord, write_id: str, result: WriteResult | Claimed) -> None:
    """Note what was learned about a compare-and-swap."""
    outcome: Literal["stored", "conflict", "unknown"]
    version: int | None = None
    match result:
        case Stored(stored) | Claimed(stored):
            outcome, version = "stored", stored.version
        case Conflict():
            outcome = "conflict"
        case OutcomeUnknown():
            outcome = "unknown"
        case _:
            assert_never(result)
    entry = CompareAndSwapOutcome(write_id, record.phase, record.dispatch_epoch, outcome, version)
    note(ports, record.operation_id, entry)


def note_dispatch(
    ports: Ports,
    record: AuthorityRecord,
    dispatch: Dispatch,
    statement: Statement,
    write_id: str,
    reply: Reply,
) -> None:
    """Note what came back from a send. It stands behind the send, never between it and its permit."""
    entry = DispatchOutcome(
        statement=_word(statement),
        token=dispatch.token,
        epoch=dispatch.epoch,
        write_id=write_id,
        reply="refused" if reply.refused else "answered" if reply.answered else "lost",
        exception_code=reply.exception_code,
        exception_name=reply.name,
    )
    note(ports, record.operation_id, entry)


def _word(statement: Statement) -> Literal["EXCHANGE", "RENAME", "DROP"]:
    match statement:
        case Exchange():
            return "EXCHANGE"
        case Rename():
            return "RENAME"
        case Drop():
            return "DROP"
        case _:
            assert_never(statement)


def write_down(
    ports: Ports,
    stored: StoredRecord,
    decided: Step | ResolveStep,
    observation: Observation | None,
    queue: QueueState | None,
    written: Classification | None,
) -> Classification | None:
    """Write down a classification that is new, before anything that rests on it is done.

    :param written: the one that this caller wrote down last.
    :returns: the one that it has written down now.
    :raises Stopped: ``EVIDENCE_UNAVAILABLE``, where the record would move on.
    """
    found = witness(stored, decided, observation, queue)
    if found is None or found.says_the_same(written):
        return written
    operation_id = stored.record.operation_id
    if isinstance(decided, Wait | Hold):
        # Nothing moves: that it could not be written down must not hide what is waited for.
        return found if note(ports, operation_id, found) else written
    ports.evidence.write(operation_id, found)
    return found


def write_receipt(ports: Ports, stored: StoredRecord) -> None:
    """Write down the proof of a committed publication, before its record moves on.

    :raises Stopped: ``EVIDENCE_UNAVAILABLE``: the record must stay as it is.
    """
    receipt = publication_receipt(stored.record, replayed=False)
    ports.evidence.write(stored.record.operation_id, StoredReceipt(stored.version, receipt))


def note(ports: Ports, operation_id: str, body: Body) -> bool:
    """Write down what has happened already; ``False`` if that failed.

    What happened stays true: an error here must not hide it, nor what follows from it.
    """
    try:
        ports.evidence.write(operation_id, body)
    except Stopped as stopped:
        ports.log(f"A note of what happened ({body.kind}) is missing in the evidence: {stopped.stop.message}")
        return False
    return True
