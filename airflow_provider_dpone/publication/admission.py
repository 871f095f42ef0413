"""Admission: what must be true before anything is changed. Each check names what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_dpone.publication.facts import Observation, ReplicaFacts
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Generation,
    Owner,
    Phase,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Code, Stop

OLDEST_SERVER = (24, 8)
"""The oldest ClickHouse release (year, month) whose behaviour was verified."""


def admit_cluster(
    observation: Observation, *, database: str, control_structure: str, user: str
) -> Stop | None:
    """Return why the cluster can't be used now, or ``None``.

    :param control_structure: digest of the control table's expected structure.
    :param user: the connection's user, as whom every replica must have answered.
    """
    if stop := _admit_members(observation, user=user):
        return stop
    if stop := _admit_database(observation, database):
        return stop
    return _admit_control(observation, control_structure)


def _admit_members(observation: Observation, *, user: str) -> Stop | None:
    facts = observation.replicas
    if unread := observation.unread:
        return Stop(
            Code.REPLICA_UNAVAILABLE,
            f"{', '.join(unread)} can't be read. Nothing was started and nothing was changed.",
            replicas={a: {"read": a in facts} for a in observation.inventory.aliases},
        )
    answers = Counter(f.server for f in facts.values())
    if same := [alias for alias, f in facts.items() if answers[f.server] > 1]:
        return Stop(
            Code.REPLICAS_NOT_DISTINCT, f"{', '.join(same)} answer as the same server.", facts={"same": same}
        )
    expected = observation.inventory.digest
    if other := _where(observation, lambda f: f.inventory_digest != expected):
        return Stop(
            Code.INVENTORY_DRIFT,
            f"{', '.join(other)} list other replicas for cluster {observation.inventory.cluster!r} "
            "than the contacted server does.",
            facts={"disagreeing": other},
        )
    if other := _where(observation, lambda f: f.user != user):
        return Stop(
            Code.INTERSERVER_SECRET_MISSING,
            f"On {', '.join(other)} the query ran as another user than the connection's.",
            facts={"replicas": other},
        )
    if old := _where(observation, lambda f: _release(f.version) < OLDEST_SERVER):
        return Stop(
            Code.CAPABILITY_MISSING,
            f"ClickHouse on {', '.join(old)} is older than {'.'.join(map(str, OLDEST_SERVER))}.",
            replicas={alias: {"version": facts[alias].version} for alias in old},
        )
    return None


def _admit_database(observation: Observation, database: str) -> Stop | None:
    if missing := _where(observation, lambda f: f.database_engine is None):
        return Stop(
            Code.UNSUPPORTED_DATABASE,
            f"Database {database!r} doesn't exist on {', '.join(missing)}, or our user may not see it.",
            facts={"replicas": missing},
        )
    if other := _where(observation, lambda f: f.database_engine != "Atomic"):
        return Stop(
            Code.UNSUPPORTED_DATABASE,
            f"Database {database!r} has the engine {observation.replicas[other[0]].database_engine} on "
            f"{', '.join(other)}; the protocol needs Atomic.",
            facts={"replicas": other},
        )
    return None


def _admit_control(observation: Observation, structure: str) -> Stop | None:
    facts = observation.replicas
    if missing := _where(observation, lambda f: f.control.structure is None):
        return Stop(
            Code.CONTROL_TABLE_MISSING,
            f"The control table doesn't exist on {', '.join(missing)}.",
            next_action=f"Run `airflow dpone init --conn-id ... --cluster {observation.inventory.cluster}` once.",
            facts={"replicas": missing},
        )
    if other := _where(observation, lambda f: f.control.structure != structure):
        return Stop(
            Code.CONTROL_TABLE_INVALID,
            f"The control table has another structure or Keeper path on {', '.join(other)}.",
            facts={"replicas": other},
        )
    if without := _where(observation, lambda f: f.control.sentinel is None):
        return Stop(
            Code.CONTROL_TABLE_INVALID,
            f"The control table has no authority row on {', '.join(without)}: it was never initialised, "
            "or it was dropped and created again.",
            next_action="If it is new, run `airflow dpone init`. If it was lost, stop and restore it.",
            facts={"replicas": without},
        )
    return control_shared(observation) or (
        None
        if len({f.control.sentinel for f in facts.values()}) == 1
        else Stop(
            Code.CONTROL_TABLE_INVALID,
            "The replicas' control tables have different authority ids: they are not one table.",
        )
    )


def control_shared(observation: Observation) -> Stop | None:
    """Return a stop if the replicas don't read the same record: same write id, same version."""
    seen = {(f.control.write_id, f.control.version) for f in observation.replicas.values()}
    if len(seen) <= 1:
        return None
    return Stop(
        Code.CONTROL_TABLE_NOT_SHARED,
        "The replicas don't read the same control record (yet).",
        replicas={alias: {"version": f.control.version} for alias, f in observation.replicas.items()},
    )


def admit_target(observation: Observation, table: str, *, authority_id: str) -> Stop | None:
    """Return why the live table can't be replaced, or ``None``. An absent table is admitted here."""
    present = {alias: t for alias, f in observation.replicas.items() if (t := f.tables.get(table))}
    if not present:
        return None
    if absent := [alias for alias in observation.replicas if alias not in present]:
        return Stop(
            Code.TARGET_NOT_UNIFORM,
            f"Table {table!r} exists on {', '.join(present)} but not on {', '.join(absent)}.",
            replicas={alias: {"exists": alias in present} for alias in observation.replicas},
        )
    for alias, facts in present.items():
        if facts.engine_refusal is not None:
            return Stop(
                Code.UNSUPPORTED_TARGET,
                f"Table {table!r} can't be replaced safely: {facts.engine_refusal}",
                facts={"engine": facts.engine, "replica": alias},
            )
    generations = {t.generation for t in present.values()}
    if len(generations) > 1:
        return Stop(
            Code.TARGET_NOT_UNIFORM,
            f"Table {table!r} is not the same generation on every replica.",
            replicas={
                alias: {"uuid": t.uuid, "schema_digest": t.schema_digest[:16]} for alias, t in present.items()
            },
        )
    foreign = {t.comment_authority for t in present.values()} - {None, authority_id}
    if foreign:
        return Stop(
            Code.FOREIGN_AUTHORITY,
            f"Table {table!r} was published under another control table than this cluster's.",
            facts={"authority_in_comment": sorted(a for a in foreign if a), "authority": authority_id},
        )
    if observation.record is None and any(t.comment_authority for t in present.values()):
        return Stop(
            Code.CONTROL_TABLE_LOST,
            f"Table {table!r} was published by this control table, which has no record of it.",
        )
    return None


@dataclass(frozen=True, slots=True)
class Slot:
    """The target's slot as staging found it; ``PREPARED`` is written against exactly this."""

    stored: StoredRecord | None
    live: Generation | None
    live_rows: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """This very operation is already prepared with the same plan: its candidate is taken over."""

    stored: StoredRecord


@dataclass(frozen=True, slots=True)
class FinishFirst:
    """An earlier publication is committed: its completion comes before the next operation."""

    stored: StoredRecord


@dataclass(frozen=True, slots=True)
class Request:
    """What a stage task asks for."""

    operation_id: str
    publication_key: str
    owner: Owner
    plan_digest: str
    order_key: str | None
    allow_older: bool


def admit_request(
    observation: Observation, table: str, request: Request
) -> Slot | Resume | FinishFirst | Stop:
    """Decide what a stage task may do with the slot that it found."""
    stored = observation.record
    live = observation.table(table)
    slot = Slot(stored, live.generation if live else None, observation.rows(table))
    if stored is None:
        return slot
    record = stored.record
    if record.operation_id == request.operation_id:
        if record.phase is Phase.PREPARED:
            return Resume(stored) if record.plan_digest == request.plan_digest else slot
        return _identity_reused(record.phase.value, record.changed_at)
    if (settled := record.find_settled(request.operation_id)) is not None:
        return _identity_reused(settled.outcome.value, settled.at)
    if record.phase is Phase.COMMITTED:
        return FinishFirst(stored)
    if not record.ended:
        same_publication = record.publication_key == request.publication_key
        if record.phase is not Phase.PREPARED or not same_publication:
            return busy(record)
        if _older(request.order_key, record.order_key):
            return Stop(
                Code.OLDER_THAN_PUBLISHED,
                f"A later run of this publication ({record.owner.run_id}) has already staged newer data.",
                next_action="Nothing to repair: the later data goes live.",
                facts={"order_key": request.order_key, "prepared_order_key": record.order_key},
            )
    if not request.allow_older and _older(request.order_key, record.published_order_key):
        return Stop(
            Code.OLDER_THAN_PUBLISHED,
            "This run's data is older than what is published.",
            facts={"order_key": request.order_key, "published_order_key": record.published_order_key},
        )
    return slot


def busy(record: AuthorityRecord) -> Stop:
    """Return the stop that tells which operation holds the target, its phase and since when."""
    owner = record.owner
    return Stop(
        Code.TARGET_BUSY,
        f"{record.database}.{record.table} is held by another operation: DAG {owner.dag_id}, run "
        f"{owner.run_id}, task {owner.task_id}, phase {record.phase}.",
        facts={
            "operation": record.operation_id[:16],
            "phase": record.phase.value,
            "since": record.changed_at,
            "dag_id": owner.dag_id,
            "run_id": owner.run_id,
            "task_id": owner.task_id,
            "map_index": owner.map_index,
        },
    )


def moved_since(observation: Observation, table: str, slot: Slot) -> Stop | None:
    """Return ``TARGET_MOVED`` if the slot or the live table is not what staging started from."""
    found = observation.record
    before = (slot.stored.write_id, slot.stored.version) if slot.stored else None
    now = (found.write_id, found.version) if found else None
    if before != now:
        return Stop(
            Code.TARGET_MOVED,
            "Another operation wrote the target's record while this one was staging.",
            facts={"phase": found.record.phase.value if found else None},
        )
    for alias, facts in observation.replicas.items():
        live = facts.tables.get(table)
        if (live.generation if live else None) != slot.live:
            return Stop(
                Code.TARGET_MOVED,
                f"The target was replaced or altered on {alias} while this operation was staging.",
                facts={"replica": alias},
            )
    return None


def _identity_reused(phase: str, at: int) -> Stop:
    return Stop(
        Code.IDENTITY_REUSED,
        f"This operation is already {phase.lower()}; staging it again would not publish new data.",
        facts={"phase": phase, "since": at},
    )


def _older(mine: str | None, other: str | None) -> bool:
    return mine is not None and other is not None and mine < other


def _where(observation: Observation, wrong: Callable[[ReplicaFacts], bool]) -> list[str]:
    return [alias for alias, facts in observation.replicas.items() if wrong(facts)]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
