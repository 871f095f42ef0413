"""Whether, and as which operation, a replaced table may be published again. Pure.

A rollback is a publication like any other: it is prepared by compare-and-swap, its content is checked on every
replica, one EXCHANGE is sent under a permit, and every replica is proven. It has an operation id of its own that
follows from the operation it undoes, so that the same command run again goes on with it and never swaps back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from airflow_provider_dpone.publication.admission import admit_target, busy
from airflow_provider_dpone.publication.canonical import digest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import OPERATOR, PROTOCOL, ROLLBACK, candidate_parts
from airflow_provider_dpone.publication.record import (
    MAX_SETTLED,
    PUBLISHED_PHASES,
    AuthorityRecord,
    Content,
    Generation,
    Owner,
    Phase,
    Retained,
    StoredRecord,
    is_rollback,
    new_fence_token,
)
from airflow_provider_dpone.publication.stop import Code, Stop


@dataclass(frozen=True, slots=True)
class GoOn:
    """The rollback is prepared or further: publish it, or answer from its proof."""

    operation_id: str


@dataclass(frozen=True, slots=True)
class FreeFirst:
    """The operation to be undone is committed, and the table that it replaced is not listed yet."""

    stored: StoredRecord


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare the rollback: ``item`` goes live again, ``live`` is kept."""

    operation_id: str
    undone: str
    item: Retained
    live: Generation


RollbackStep: TypeAlias = GoOn | FreeFirst | Prepare | Stop


def rollback_id(target_key: str, undone: str, attempt: int) -> str:
    """Return the operation id of the rollback of ``undone``; a further attempt only follows one that was given up."""
    return digest(f"{PROTOCOL}/rollback", target_key, undone, attempt)


def decide_rollback(stored: StoredRecord, observation: Observation, operation: str, now: int) -> RollbackStep:
    """Return what a rollback does first, or why it is refused.

    :param observation: a look with the target and all tables that are kept.
    :param operation: the beginning of the id of the operation to be undone.
    :param now: server time in seconds.
    """
    record = stored.record
    undone = _undone(record, operation)
    if isinstance(undone, Stop):
        return undone
    if is_rollback_of(record, undone):
        if record.phase is not Phase.ABORTED:
            return GoOn(record.operation_id)
    elif record.operation_id == undone and record.phase is Phase.COMMITTED:
        return FreeFirst(stored)
    if not record.ended:
        return busy(record)
    live = _live(record, observation, undone)
    if isinstance(live, Stop):
        return live
    known = {record.operation_id, *(settled.operation_id for settled in record.settled)}
    ids = [rollback_id(record.target_key, undone, attempt) for attempt in range(MAX_SETTLED + 2)]
    # What was listed last under an operation's name is what it replaced; before that come candidates of its
    # earlier tries, which nobody ever read.
    listed = (r for r in reversed(record.retained) if r.operation_id in (undone, *ids))
    kept = [r for r in listed if r.generation.uuids != live.uuids]
    if record.operation_id == undone:
        before = record.predecessor.uuids if record.predecessor else None
        kept = [r for r in kept if r.generation.uuids == before]
    item = kept[0] if kept else None
    if item is None:
        return _refused(record, "nothing that it replaced is kept any more", _NO_WAY_BACK)
    if item.drop is not None:
        return _refused(record, f"{item.name}, which it replaced, is being dropped", _NO_WAY_BACK)
    if item.drop_after <= now:
        return _refused(record, f"{item.name}, which it replaced, is due to be dropped", _NO_WAY_BACK)
    if stop := _not_admitted(record, observation, item):
        return stop
    return Prepare(next(one for one in ids if one not in known), undone, item, live)


_NO_WAY_BACK: Final = (
    "Run the DAG of the data that must be live; a longer retain_predecessor keeps the way back open."
)


def is_rollback_of(record: AuthorityRecord, undone: str) -> bool:
    """Tell whether the record's operation is a rollback of ``undone``."""
    return is_rollback(record.owner) and record.owner.run_id == undone


def prepared(
    stored: StoredRecord,
    step: Prepare,
    observation: Observation,
    content: Content,
    dependents: tuple[str, ...],
    nonce: str,
) -> AuthorityRecord:
    """Return the PREPARED record of a rollback. What is live now is kept as long as the undone operation asked for."""
    record = stored.record
    aliases = observation.inventory.aliases
    candidate = observation.table(step.item.name)
    parts = candidate_parts(step.item.name)
    now = observation.server_time
    make: Callable[..., AuthorityRecord] = type(record)
    return make(
        authority_id=record.authority_id,
        target_key=record.target_key,
        cluster=record.cluster,
        database=record.database,
        table=record.table,
        operation_id=step.operation_id,
        publication_key=digest(f"{PROTOCOL}/publication", OPERATOR, ROLLBACK, record.target_key),
        owner=Owner(OPERATOR, step.undone, ROLLBACK, -1),
        order_key=None,
        plan_digest=digest(f"{PROTOCOL}/rollback-plan", step.undone, step.item.generation.uuid),
        fence_token=new_fence_token(step.operation_id, nonce),
        phase=Phase.PREPARED,
        dispatch_epoch=record.dispatch_epoch,
        inventory_digest=observation.inventory.digest,
        replicas=aliases,
        servers=tuple(observation.replicas[alias].server for alias in aliases),
        predecessor=step.live,
        desired=step.item.generation,
        candidate=step.item.name,
        attempt_id=parts[1] if parts else "",
        content=content,
        staged_bytes=(candidate.bytes or 0) if candidate else 0,
        live_rows=observation.rows(record.table),
        dependents=dependents,
        retention=max(record.retention, step.item.drop_after - now),
        prepared_at=now,
        changed_at=now,
        published_order_key=record.published_order_key,
        retained=tuple(item for item in record.retained if item != step.item),
        settled=record.remembered(step.operation_id),
        keep_until=step.item.drop_after,
    )


def _undone(record: AuthorityRecord, operation: str) -> str | Stop:
    """Return the id of the operation that is meant, among those that the record knows."""
    if is_rollback_of(record, record.owner.run_id) and record.owner.run_id.startswith(operation):
        return record.owner.run_id
    known = {record.operation_id, *(settled.operation_id for settled in record.settled)}
    meant = [one for one in known if one.startswith(operation)]
    if len(meant) == 1:
        return meant[0]
    return _refused(
        record,
        "the record knows no such operation" if not meant else "several operations begin like this",
        "`airflow dpone explain` shows the operation whose data is live.",
    )


def _live(record: AuthorityRecord, observation: Observation, undone: str) -> Generation | Stop:
    """Return the live generation, where it is the one that ``undone`` published, on every replica."""
    if record.operation_id == undone:
        published, uuid = record.phase in PUBLISHED_PHASES, record.desired.identity
    elif (settled := record.find_settled(undone)) is not None:
        published, uuid = settled.outcome in PUBLISHED_PHASES, settled.uuid
    else:
        # It was forgotten among the settled ones; its rollback that was given up remembers what was live.
        published, uuid = (
            record.predecessor is not None,
            record.predecessor.identity if record.predecessor else "",
        )
    if not published:
        return _refused(record, "it was not published, so there is nothing to undo", "Nothing to do.")
    tables = [facts.tables.get(record.table) for facts in observation.replicas.values()]
    live = observation.generation(record.table)
    alike = live is not None and all(
        table is not None and table.generation == live.on(alias)
        for alias, table in zip(observation.replicas, tables, strict=True)
    )
    if (
        live is None
        or not alike
        or live.identity != uuid
        or (record.operation_id == undone and live != replace(record.desired, uuid=uuid))
    ):
        return Stop(
            Code.GENERATION_UNKNOWN,
            f"{record.database}.{record.table}: what is live is not what operation {undone[:16]} published, on "
            "every replica. Nothing was rolled back.",
            next_action="`airflow dpone explain` shows what is live. Roll back only what is live.",
            replicas={
                alias: {"live": table.uuid if table else None}
                for alias, table in zip(observation.replicas, tables, strict=True)
            },
        )
    return live


def _not_admitted(record: AuthorityRecord, observation: Observation, item: Retained) -> Stop | None:
    if stop := admit_target(observation, item.name, authority_id=record.authority_id):
        return stop
    tables = {alias: facts.tables.get(item.name) for alias, facts in observation.replicas.items()}
    wrong = [a for a, table in tables.items() if table is None or table.generation != item.generation.on(a)]
    if not wrong:
        return None
    return Stop(
        Code.GENERATION_UNKNOWN,
        f"{record.database}.{record.table}: {item.name} on {', '.join(wrong)} is not the table that was replaced, or "
        "it was altered since. Nothing was rolled back.",
        next_action="Find out who changed it.",
    )


def _refused(record: AuthorityRecord, why: str, next_action: str) -> Stop:
    return Stop(
        Code.NOT_RESOLVABLE,
        f"{record.database}.{record.table} is not rolled back: {why}.",
        next_action=next_action,
        facts={"operation": record.operation_id[:16], "phase": record.phase.value},
    )
