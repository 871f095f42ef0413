"""One row for each replica: as it was read just now, or as it was written down.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from airflow_provider_dpone.clickhouse.errors import told_code
from airflow_provider_dpone.publication import trail as evidence
from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.explanation import Explanation, Shown, StageShown, generation_of
from airflow_provider_dpone.publication.receipt import ReplicaReceipt
from airflow_provider_dpone.publication.record import PUBLISHED_PHASES, STAGE_PHASES
from airflow_provider_dpone.publication.stop import Category
from airflow_provider_dpone.publication.trail import Classification, Staged
from airflow_provider_dpone.publication.words import when
from airflow_provider_dpone.web.model import Cell, ReplicaRow
from airflow_provider_dpone.web.recorded import Recorded
from airflow_provider_dpone.web.status import OVER, SENT, Status, Tone
from airflow_provider_dpone.web.timeline import clock


def replica_rows(found: Recorded, told_live: Explanation | None, state: str) -> Iterator[ReplicaRow]:
    """Return the rows of the matrix, from the explanation if it looked at the replicas."""
    if told_live is None or not told_live.replicas or told_live.observed_at is None:
        return recorded_rows(found, state)
    stop = told_live.stop.category if told_live.stop is not None else None
    return _live_rows(found, told_live, state, stop)


def _live_rows(
    found: Recorded, told_live: Explanation, state: str, stop: Category | None
) -> Iterator[ReplicaRow]:
    seen = f"{when(told_live.observed_at)}" if told_live.observed_at is not None else ""
    unsent = told_live.record is not None and told_live.record.phase in STAGE_PHASES
    for alias, one in told_live.replicas.items():
        problem = one.target.problem if one.target.uuid else None
        known = one.state is not ReplicaState.NOT_OBSERVED and one.target.uuid is not None
        rows = one.target.rows
        health, healthy = "not known", None
        if known and (problem is not None or one.target.replicated):
            health, healthy = problem or "healthy", problem is None
        elif known:
            health = "not replicated"
        yield ReplicaRow(
            alias=alias,
            role=_role(alias),
            status=_status_after(one.target.generation, state)
            if state in OVER
            else _replica_status(one.state, state, stop),
            target=_cell(one.target),
            candidate=_cell(one.candidate),
            ddl=Status(Tone.REST, "nothing was sent")
            if unsent
            else _ddl(one.queue, one.exception_code, recorded=not told_live.read),
            rows="" if rows is None else f"{rows:,}",
            content=_content_of(one.stage) if one.stage is not None else _content(found, alias),
            health=health,
            healthy=healthy,
            seen=seen if one.state is not ReplicaState.NOT_OBSERVED else "can't be read now",
        )


def recorded_rows(found: Recorded, state: str) -> Iterator[ReplicaRow]:
    """Return the rows of the matrix as they were written down."""
    new = found.staged.uuids if found.staged else ()
    old = found.admission.live.uuids if found.admission and found.admission.live else ()
    rows = f"{found.staged.rows:,}" if found.staged else ""

    def cell(uuid: str | None) -> Cell:
        return Cell(generation_of(uuid, new=new, old=old), uuid or "")

    proof = found.receipt.receipt if found.receipt else None
    if proof is not None and found.receipt_at >= found.classified_at:
        for one in proof.replicas:
            yield ReplicaRow(
                alias=one.alias,
                role=_role(one.alias),
                status=Status(Tone.GOOD, "new data is live"),
                target=cell(one.after.target),
                candidate=cell(one.after.candidate),
                ddl=_ddl(one.queue, one.exception_code),
                rows=f"{one.rows:,}",
                content=_content(found, one.alias, one),
                health="not recorded",
                healthy=None,
                seen=clock(found.receipt_at),
            )
        return
    last = found.classification
    seen = {} if last is None else {one.alias: one for one in last.replicas}
    at = "" if last is None else clock(found.classified_at)
    aliases = list(seen) or list(found.admission.replicas if found.admission else ())
    for alias in aliases:
        replica = seen.get(alias)
        names = replica.names if replica else None
        looked_at = replica is not None and replica.state is not None
        yield ReplicaRow(
            alias=alias,
            role=_role(alias),
            status=_replica_status(
                replica.state if replica else None, state, last.category if last else None
            ),
            target=cell(names.target) if names else Cell("unknown"),
            candidate=cell(names.candidate) if names else Cell("unknown"),
            ddl=_ddl(replica.queue, replica.exception_code) if replica else _ddl(None, None),
            rows=rows if alias in (found.staged.replicas if found.staged else ()) else "",
            content=_content(found, alias),
            health="not recorded",
            healthy=None,
            seen=at if looked_at else "not looked at",
        )


def _replica_status(seen: ReplicaState | None, state: str, stop: Category | None) -> Status:
    match seen:
        case None:
            return Status(Tone.REST, "not looked at")
        case ReplicaState.COMMITTED | ReplicaState.CLEANED:
            return Status(Tone.GOOD, "new data is live")
        case ReplicaState.STAGING:
            return Status(Tone.REST, "as it was when locked")
        case ReplicaState.PENDING:
            if state not in SENT:
                return Status(Tone.REST, "old data is live")
            held = stop in (Category.PARTIAL_TERMINAL, Category.CONTRADICTION)
            return Status(Tone.HOLD if held else Tone.CARE, "old data is live")
        case ReplicaState.NOT_OBSERVED:
            return Status(Tone.CARE, "can't be read")
        case ReplicaState.REPLACED:
            return Status(Tone.HOLD, "another server")
        case ReplicaState.UNKNOWN:
            # After the end the table goes on to live without this operation.
            return (
                Status(Tone.REST, "changed since")
                if state in OVER
                else Status(Tone.HOLD, "neither generation")
            )
        case _:
            assert_never(seen)


def _status_after(generation: str, state: str) -> Status:
    """Return what readers see on a replica after the end: only the live table counts then."""
    live = f"{generation} data is live"
    match generation:
        case "new":
            return Status(Tone.GOOD if state in PUBLISHED_PHASES else Tone.CARE, live)
        case "old":
            return Status(Tone.CARE if state in PUBLISHED_PHASES else Tone.REST, live)
        case "unknown":
            return Status(Tone.CARE, "can't be read")
        case _:
            return Status(Tone.CARE, "changed since")


def _ddl(queue: str | None, code: int | None, *, recorded: bool = False) -> Status:
    """Return how the queue's entry ended on a replica.

    :param recorded: beside facts of now, it was written down before.
    """
    before = ", as recorded" if recorded else ""
    if code:
        return Status(Tone.HOLD, f"failed: {told_code(code)}{before}")
    match queue:
        case None:
            return Status(Tone.REST, "not known")
        case "finished":
            return Status(Tone.GOOD, f"finished{before}")
        case "in progress":
            return Status(Tone.CARE, f"in progress{before}")
        case _:
            return Status(Tone.CARE, f"{queue}{before}")


def _cell(one: Shown) -> Cell:
    return Cell(one.generation, one.uuid or "")


def _content(found: Recorded, alias: str, proof: ReplicaReceipt | None = None) -> str:
    if proof is not None:
        return "equal" if proof.content_match else "differs"
    # Staged anew, it is another candidate.
    since = max((n for n, e in enumerate(found.entries) if isinstance(e.body, Staged)), default=0)
    dispatchable = any(
        isinstance(e.body, Classification)
        and e.body.aggregate == evidence.Proven.DISPATCHABLE
        and any(one.alias == alias for one in e.body.replicas)
        for e in found.entries[since:]
    )
    if dispatchable:
        return "equal before the swap"
    return "equal when staged" if found.staged and alias in found.staged.replicas else "not compared"


def _content_of(stage: StageShown) -> str:
    """Return how far a replica is staged, and whether what it holds was compared with what was sealed."""
    return f"{stage}: {'equal to what was sealed' if stage.proven else 'not compared'}"


def _role(alias: str) -> str:
    shard, _, replica = alias.partition("/")
    if shard[:1] == "s" and replica[:1] == "r" and shard[1:].isdecimal() and replica[1:].isdecimal():
        return f"shard {shard[1:]}, replica {replica[1:]}"
    return ""


def as_before(row: ReplicaRow) -> ReplicaRow:
    """A row of an operation that others have followed: it says what was, and nothing about now."""
    return replace(row, status=Status(Tone.REST, row.status.word.replace(" is live", " was live")))
