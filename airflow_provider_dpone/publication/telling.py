"""Entries of the evidence in one line each, as the commands, the page and an explanation tell them. Pure."""

from __future__ import annotations

from typing import assert_never

from airflow_provider_dpone.publication.trail import (
    Admission,
    Body,
    CandidateIntent,
    Classification,
    CleanupStep,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    Entry,
    OperatorAction,
    PermitUnused,
    Pruned,
    PublishAsked,
    Staged,
    StoredReceipt,
    TurnedAway,
)


def told(body: Body) -> str:
    """Return an entry in one line."""
    match body:
        case Admission():
            warnings = "".join(f"; {warning}" for warning in body.warnings)
            return f"admitted on {', '.join(body.replicas)}{warnings}"
        case CandidateIntent():
            return f"about to create {body.table}"
        case Staged():
            return f"{body.rows:,} rows in {body.table}, equal on {', '.join(body.replicas)}"
        case CompareAndSwap():
            before = "nothing" if body.from_version is None else f"version {body.from_version}"
            return f"about to write {body.phase} over {before} (epoch {body.epoch})"
        case CompareAndSwapOutcome():
            version = "" if body.version is None else f" as version {body.version}"
            return f"{body.phase}: {body.outcome}{version}"
        case PublishAsked():
            return "a publish task found it unproven"
        case PermitUnused():
            return f"the permit of epoch {body.epoch} was never used"
        case DispatchOutcome():
            code = "" if body.exception_code is None else f" (code {body.exception_code})"
            return f"{body.statement} sent, reply {body.reply}{code}"
        case Classification():
            states = ", ".join(f"{r.alias} {r.state}" for r in body.replicas if r.state is not None)
            return f"{body.aggregate}: {states}" if states else body.aggregate
        case StoredReceipt():
            return f"{body.receipt.state} on {', '.join(r.alias for r in body.receipt.replicas)}"
        case CleanupStep():
            why = "" if body.why is None else f": {body.why}"
            return f"{body.step} {body.table}{why}"
        case TurnedAway():
            owner = body.owner
            return (
                f"{body.code}: run {owner.run_id} of DAG {owner.dag_id} was refused, its source was not read"
            )
        case OperatorAction():
            return f"{body.action}, {body.step}: {body.reason}"
        case Pruned():
            return f"{len(body.operations)} trails deleted"
        case _:
            assert_never(body)


def told_writer(entry: Entry) -> str:
    """Return who wrote an entry: an operator, or a task and its try."""
    about = entry.about
    if "operator" in about:
        return str(about["operator"])
    return f"{about['task_id']}, try {about['try_number']}" if "task_id" in about else entry.writer
