"""Facts with their names, and what became of the replaced table.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_dpone.clickhouse.errors import told_code
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.record import (
    PUBLISHED_PHASES,
    STAGE_PHASES,
    AuthorityRecord,
    ContentDigest,
    IndependentRecord,
    Phase,
    ReplicaTable,
    StageState,
    is_rollback,
)
from airflow_provider_dpone.publication.stop import MEANINGS, Code
from airflow_provider_dpone.publication.telling import told
from airflow_provider_dpone.publication.trail import (
    Classification,
    CleanupStep,
    DispatchOutcome,
    IndependentLive,
    IndependentStaged,
    LiveTable,
    OperatorAction,
    Staged,
)
from airflow_provider_dpone.publication.words import when
from airflow_provider_dpone.web.headline import code_named
from airflow_provider_dpone.web.model import Detail, Group
from airflow_provider_dpone.web.recorded import Recorded
from airflow_provider_dpone.web.timeline import duration


def groups(
    found: Recorded, record: AuthorityRecord | None, told_live: Explanation | None
) -> tuple[Group, ...]:
    """Return the facts that stand below the matrix; groups without any are left out."""
    groups = (
        Group("Operation", tuple(_operation(found))),
        Group("Queue entry", tuple(_entry(found, record, told_live))),
        Group("Staging", tuple(_staging(found, record, told_live))),
        Group("Tables", tuple(_tables(found, record))),
        Group("Content", tuple(_data(found))),
        Group("Plan and authority", tuple(_plan(found, record))),
    )
    return tuple(group for group in groups if group.details)


def _operation(found: Recorded) -> Iterator[Detail]:
    yield Detail("Operation", found.operation_id, code=True)
    if (admission := found.admission) is None:
        return
    owner = admission.owner
    if is_rollback(owner):
        yield Detail("Began by", "an operator's rollback")
        yield Detail("Undoes operation", owner.run_id, code=True)
    else:
        yield Detail("DAG", owner.dag_id, code=True)
        yield Detail("Run", owner.run_id, code=True)
        index = "" if owner.map_index < 0 else f", map index {owner.map_index}"
        yield Detail("Stage task", f"{owner.task_id}{index}", code=True)
    yield Detail(
        "Order key", admission.order_key or "none: runs are not ordered", code=bool(admission.order_key)
    )
    if found.conn_id is not None:
        yield Detail("Connection", found.conn_id, code=True)


def _entry(
    found: Recorded, record: AuthorityRecord | None, told_live: Explanation | None
) -> Iterator[Detail]:
    publication = record.publication if record else None
    entries = [one.entry for one in found.bodies(Classification) if one.entry is not None]
    proof = found.receipt.receipt if found.receipt else None
    entry = (publication.entry if publication else None) or (proof.entry if proof else None)
    entry = entry or (entries[-1] if entries else None)
    if entry is not None:
        yield Detail("Bound entry", entry, code=True)
    sends = [one for one in found.bodies(DispatchOutcome) if one.statement != "DROP"]
    if sends:
        last = sends[-1]
        yield Detail("Statement", f"{last.statement}, sent once in epoch {last.epoch}")
        code = f": {told_code(last.exception_code)}" if last.exception_code else ""
        yield Detail("Reply", f"{last.reply}{code}")
        yield Detail("Token", last.token, code=True)
    elif publication is not None:
        yield Detail("Epoch", str(publication.epoch))
        yield Detail("Token", publication.token, code=True)
    if told_live is not None and told_live.newer_entries is not None:
        yield Detail("Newer entries", f"{told_live.newer_entries:,}; the queue forgets it after 1,000")


def _tables(found: Recorded, record: AuthorityRecord | None) -> Iterator[Detail]:
    admission, staged = found.admission, found.staged
    if admission is not None:
        yield Detail("Target", f"{admission.database}.{admission.table}", code=True)
        match admission.live:
            case None:
                yield Detail("Old table", "there was none")
            case IndependentLive(tables=tables):
                yield from _each("Old table's UUID", tables)
            case LiveTable(uuid=uuid):
                yield Detail("Old table's UUID", uuid, code=True)
    match staged:
        case None:
            pass
        case IndependentStaged(tables=tables):
            yield from _each("New table's UUID", tables)
        case Staged(uuid=uuid):
            yield Detail("New table's UUID", uuid, code=True)
    if staged is not None:
        yield Detail("Candidate", record.candidate if record else staged.table, code=True)
    if admission is not None:
        kept = duration(admission.retention) if admission.retention else "not kept"
        yield Detail("Old table is kept for", kept)
        for line in admission.schema_difference:
            yield Detail("Structure changed", line)


def _each(name: str, tables: Iterable[ReplicaTable]) -> Iterator[Detail]:
    for table in tables:
        yield Detail(f"{name} on {table.alias}", table.uuid, code=True)


def _staging(
    found: Recorded, record: AuthorityRecord | None, told_live: Explanation | None
) -> Iterator[Detail]:
    """Return what is only there where every replica is staged by itself."""
    independent = record if isinstance(record, IndependentRecord) else None
    staged = found.staged if isinstance(found.staged, IndependentStaged) else None
    artifact = (independent.artifact if independent else None) or (staged.artifact if staged else None)
    if artifact is not None:
        yield Detail("Sealed artifact (SHA-256)", artifact.sha256, code=True)
        yield Detail("Its rows", f"{artifact.rows:,}")
        yield Detail("Its bytes", f"{artifact.bytes:,}")
    if independent is not None and independent.phase in STAGE_PHASES:
        if independent.extract is not None:
            yield Detail(
                f"Source is read into, on {independent.extract.alias}", independent.extract.name, code=True
            )
        for alias, one in told_live.replicas.items() if told_live is not None else ():
            if one.stage is not None:
                yield Detail(alias, str(one.stage))
            stage = independent.stage_of(alias)
            if stage is not None and stage.state is not StageState.READY:
                yield Detail(f"Private table on {alias}", stage.name, code=True)
    if independent is not None and independent.baseline is not None:
        yield Detail("Old rows, equal on every replica", f"{independent.baseline.rows:,}")
        yield Detail("Digest of the old rows", independent.baseline.sha256, code=True)


def _data(found: Recorded) -> Iterator[Detail]:
    if found.staged is not None:
        yield Detail("Rows", f"{found.staged.rows:,}")
        if found.staged.source_rows is not None:
            yield Detail("Rows the source gave", f"{found.staged.source_rows:,}")
        yield Detail("Bytes", f"{found.staged.bytes:,}")
        match found.staged.content:
            case ContentDigest(city=city, xxh3=xxh3):
                yield Detail("Digest (city)", city, code=True)
                yield Detail("Digest (xxh3)", xxh3, code=True)
            case CanonicalDigest(sha256=digest):
                yield Detail("Digest (sum of SHA-256)", digest, code=True)
    if found.admission is not None and found.admission.live_rows is not None:
        yield Detail("Live rows at admission", f"{found.admission.live_rows:,}")


def _plan(found: Recorded, record: AuthorityRecord | None) -> Iterator[Detail]:
    if found.admission is not None:
        yield Detail("Plan digest", found.admission.plan_digest, code=True)
        yield Detail("Inventory digest", found.admission.inventory_digest, code=True)
        yield Detail("Authority", found.admission.authority_id, code=True)
        yield Detail("Record", found.admission.target_key, code=True)
    if found.version is not None:
        yield Detail("Record's version", str(found.version))
    if record is not None:
        yield Detail("Fence token", record.fence_token, code=True)


def cleanup(found: Recorded, record: AuthorityRecord | None, state: str) -> Iterator[str]:
    """Return what became of the replaced table, in sentences."""
    if state not in PUBLISHED_PHASES:
        if actions := found.bodies(OperatorAction):
            yield f"An operator's last step: {told(actions[-1])}."
        return
    steps = found.bodies(CleanupStep)
    if found.admission is not None and found.admission.live is None:
        yield "There was no table before, so there is nothing to drop."
    elif state == Phase.COMPLETED:
        yield "The replaced table is gone on every replica."
    elif state == Phase.COMMITTED:
        yield "The replaced table is still there. Cleanup has not begun."
    kept = record.retained if record else ()
    for item in kept:
        yield f"{item.name} is kept until {when(item.drop_after)}."
    if not kept and state == Phase.COMPLETED_RETAINING:
        proof = found.receipt.receipt if found.receipt else None
        for one in proof.retained if proof else ():
            yield f"{one.table} is kept until {when(one.drop_after)}."
        yield "The replaced table is listed, to be dropped when it is due."
    if steps and steps[-1].step == "keep" and state != Phase.COMPLETED:
        code = code_named(steps[-1].why or "")
        code = code or next((one for one in Code if one.value == steps[-1].why), None)
        why = MEANINGS[code].meaning if code else (steps[-1].why or "")
        yield f"{steps[-1].table} can't be dropped now. {why}"


def warnings(found: Recorded, told_live: Explanation | None) -> Iterator[str]:
    """Return what is worth a look, each once."""
    if told_live is not None:
        yield from told_live.warnings
    proof = found.receipt.receipt if found.receipt else None
    yield from dict.fromkeys(
        (*(found.admission.warnings if found.admission else ()), *(proof.warnings if proof else ()))
    )
