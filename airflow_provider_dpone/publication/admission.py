"""Admission: what must be true before anything is changed. Each check names what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from airflow_provider_dpone.publication.facts import Observation, ReplicaFacts
from airflow_provider_dpone.publication.record import (
    MAX_RETAINED,
    UNSENT_PHASES,
    AuthorityRecord,
    Generation,
    IndependentRecord,
    Phase,
    StoredRecord,
    is_rollback,
)
from airflow_provider_dpone.publication.stop import Code, Stop

OLDEST_SERVER = (24, 8)
"""The oldest ClickHouse release (year, month) whose behaviour was verified."""


@dataclass(frozen=True, slots=True)
class Check:
    """One admission check by name; ``stop`` says why it failed."""

    name: str
    stop: Stop | None


def admit_cluster(
    observation: Observation, *, database: str, control_structure: str, user: str
) -> Stop | None:
    """Return why the cluster can't be used now, or ``None``."""
    checks = cluster_checks(observation, database=database, control_structure=control_structure, user=user)
    return next((check.stop for check in checks if check.stop is not None), None)


def cluster_checks(
    observation: Observation, *, database: str, control_structure: str, user: str
) -> Iterator[Check]:
    """Run the checks of replicas, database and control table, in order of how much rests on them.

    :param control_structure: digest of the control table's expected structure.
    :param user: the connection's user, as whom every replica must have answered.
    """
    facts = observation.replicas
    cluster = observation.inventory.cluster

    def check(name: str, code: Code, wrong: list[str], message: str, next_action: str = "") -> Check:
        if not wrong:
            return Check(name, None)
        stop = Stop(code, message, facts={"replicas": wrong}, next_action=next_action)
        return Check(name, stop)

    unread = list(observation.unread)
    yield check(
        "every replica answers",
        Code.REPLICA_UNAVAILABLE,
        unread,
        f"{', '.join(unread)} can't be read. Nothing was started and nothing was changed.",
    )
    answers = Counter(f.server for f in facts.values())
    same = [alias for alias, f in facts.items() if answers[f.server] > 1]
    yield check(
        "the replicas are distinct servers",
        Code.REPLICAS_NOT_DISTINCT,
        same,
        f"{', '.join(same)} answer as the same server.",
    )
    expected = observation.inventory.digest
    other = _where(observation, lambda f: f.inventory_digest != expected)
    yield check(
        "all replicas list the same cluster",
        Code.INVENTORY_DRIFT,
        other,
        f"{', '.join(other)} list other replicas for cluster {cluster!r} than the contacted server does.",
    )
    other = _where(observation, lambda f: f.user != user)
    yield check(
        "every replica answers as the connection's user",
        Code.INTERSERVER_SECRET_MISSING,
        other,
        f"On {', '.join(other)} the query ran as another user than the connection's.",
    )
    old = _where(observation, lambda f: _release(f.version) < OLDEST_SERVER)
    yield check(
        "every server is new enough",
        Code.CAPABILITY_MISSING,
        old,
        f"ClickHouse on {', '.join(old)} is older than {'.'.join(map(str, OLDEST_SERVER))}.",
    )
    missing = _where(observation, lambda f: f.database_engine is None)
    yield check(
        "the database exists",
        Code.UNSUPPORTED_DATABASE,
        missing,
        f"Database {database!r} doesn't exist on {', '.join(missing)}, or our user may not see it.",
    )
    other = _where(observation, lambda f: f.database_engine not in (None, "Atomic"))
    engines = sorted({str(facts[alias].database_engine) for alias in other})
    yield check(
        "the database engine is Atomic",
        Code.UNSUPPORTED_DATABASE,
        other,
        f"Database {database!r} has the engine {', '.join(engines)} on {', '.join(other)}; it must be Atomic.",
    )
    missing = _where(observation, lambda f: f.control.structure is None)
    yield check(
        "the control table exists",
        Code.CONTROL_TABLE_MISSING,
        missing,
        f"The control table doesn't exist on {', '.join(missing)}.",
        f"Run `airflow dpone init --conn-id ... --cluster {cluster}` once.",
    )
    other = _where(observation, lambda f: f.control.structure not in (None, control_structure))
    yield check(
        "the control table has its structure",
        Code.CONTROL_TABLE_INVALID,
        other,
        f"The control table has another structure or Keeper path on {', '.join(other)}.",
    )
    if missing:
        # What the rows say can't be told from one replica without the table.
        return
    without = _where(observation, lambda f: f.control.structure is not None and f.control.sentinel is None)
    yield check(
        "the control table is initialised",
        Code.CONTROL_TABLE_INVALID,
        without,
        f"The control table has no authority row on {', '.join(without)}: it was never initialised, or it "
        "was dropped and created again.",
        "If it is new, run `airflow dpone init`. If it was lost, stop and restore it.",
    )
    # A replica without the row was named above; while the row is being written, some see it before others.
    ids = {f.control.sentinel for f in facts.values()} - {None}
    yield check(
        "the control table is one table",
        Code.CONTROL_TABLE_INVALID,
        list(facts) if len(ids) > 1 else [],
        "The replicas' control tables have different authority ids: they are not one table.",
    )
    yield Check("every replica reads the same record", control_shared(observation))


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
    members = len(observation.inventory.members)
    counted = {a: t.replication for a, t in present.items() if t.replication is not None}
    if unknown := [alias for alias, replication in counted.items() if replication.keeper_error]:
        return Stop(
            Code.REPLICA_NOT_OBSERVED,
            f"How many replicas table {table!r} has can't be read on {', '.join(unknown)} (Keeper).",
        )
    if more := {a: r.total_replicas for a, r in counted.items() if r.total_replicas != members}:
        return Stop(
            Code.TARGET_NOT_UNIFORM,
            f"Table {table!r} has {max(more.values())} replicas, but cluster "
            f"{observation.inventory.cluster!r} lists {members}: the others would keep the old data.",
            next_action="Add the missing replicas to the cluster's remote_servers, or drop those that are gone.",
            replicas={alias: {"total_replicas": total} for alias, total in more.items()},
        )
    # Independent tables are other objects on every replica; what they hold is compared when they are staged.
    generations = {
        replace(t.generation, uuid="") if observation.independent else t.generation for t in present.values()
    }
    if len(generations) > 1:
        return Stop(
            Code.TARGET_NOT_UNIFORM,
            f"Table {table!r} is not the same generation on every replica.",
            replicas={
                alias: {"uuid": t.uuid, "schema_digest": t.schema_digest[:16]} for alias, t in present.items()
            },
        )
    foreign = {t.comment_authority for t in present.values()} - {None, authority_id} - observation.adopted
    if foreign:
        return Stop(
            Code.FOREIGN_AUTHORITY,
            f"Table {table!r} was published under another control table than this cluster's.",
            facts={"authority_in_comment": sorted(a for a in foreign if a), "authority": authority_id},
        )
    if observation.record is None and any(t.comment_authority == authority_id for t in present.values()):
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
    """This very operation is already prepared, or being staged. With the same plan it is taken over."""

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
    order_key: str | None
    allow_older: bool


def admit_request(
    observation: Observation, table: str, request: Request
) -> Slot | Resume | FinishFirst | Stop:
    """Decide what a stage task may do with the slot that it found."""
    stored = observation.record
    slot = Slot(stored, observation.generation(table), observation.rows(table))
    if stored is None:
        return slot
    record = stored.record
    if (stop := _mode_changed(record, observation)) is not None:
        return stop
    if record.operation_id == request.operation_id:
        if record.phase in UNSENT_PHASES:
            return Resume(stored)
        return _identity_reused(record.phase.value, record.changed_at)
    if (settled := record.find_settled(request.operation_id)) is not None:
        return _identity_reused(settled.outcome.value, settled.at)
    if record.phase is Phase.COMMITTED:
        return FinishFirst(stored)
    if not record.ended:
        same_publication = record.publication_key == request.publication_key
        if record.phase not in UNSENT_PHASES or not same_publication:
            return busy(record)
        if not request.allow_older and _older(request.order_key, record.order_key):
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


def _mode_changed(record: AuthorityRecord, observation: Observation) -> Stop | None:
    """Return a stop if the record is of the other replication mode and not over, with nothing kept."""
    if isinstance(record, IndependentRecord) == observation.independent:
        return None
    if record.ended and not record.retained:
        return None
    was, now = ("external", "internal") if isinstance(record, IndependentRecord) else ("internal", "external")
    return Stop(
        Code.REPLICATION_MODE_MISMATCH,
        f"{record.database}.{record.table} was last published with replication_mode={was!r} ({record.phase}, "
        f"{len(record.retained)} tables kept); with {now!r} it starts when that is over and nothing of it is kept.",
        next_action="End the operation and let its kept tables be dropped (cleanup, `airflow dpone abandon`) while "
        "the cluster is still configured as it was; then change the mode.",
        facts={"phase": record.phase.value, "retained": [item.name for item in record.retained]},
    )


def no_room(stored: StoredRecord | None) -> Stop | None:
    """Return a stop if so many tables are kept that one more could not be listed: none is ever forgotten.

    One place is for the predecessor, and one for a candidate that may be given up.
    """
    if stored is None or len(stored.record.retained) <= MAX_RETAINED - 2:
        return None
    record = stored.record
    return Stop(
        Code.TOO_MANY_RETAINED,
        f"{len(record.retained)} replaced tables of {record.database}.{record.table} are still kept.",
        facts={"retained": [item.name for item in record.retained]},
    )


def busy(record: AuthorityRecord) -> Stop:
    """Return the stop that tells which operation holds the target, its phase and since when."""
    owner = record.owner
    return Stop(
        Code.TARGET_BUSY,
        f"{record.database}.{record.table} is held by another operation: {owner}, phase {record.phase}."
        if not is_rollback(owner)
        else f"{record.database}.{record.table} is held by an operator's rollback of operation "
        f"{owner.run_id[:16]}, phase {record.phase}.",
        next_action="Run `airflow dpone rollback` again with the same --operation: it goes on where it stopped."
        if is_rollback(owner)
        else "",
        facts={
            "operation": record.operation_id[:16],
            "phase": record.phase.value,
            "since": record.changed_at,
            **asdict(owner),
        },
    )


def moved_since(observation: Observation, table: str, slot: Slot) -> Stop | None:
    """Return ``TARGET_MOVED`` if the slot or the live table is not what staging started from."""
    found = observation.record
    before = (slot.stored.write_id, slot.stored.version) if slot.stored else None
    now = (found.write_id, found.version) if found else None
    if before != now and not _only_cleaned(slot.stored, found):
        return Stop(
            Code.TARGET_MOVED,
            "Another operation wrote the target's record while this one was staging.",
            facts={"phase": found.record.phase.value if found else None},
        )
    return live_moved(observation, table, slot.live)


def live_moved(observation: Observation, table: str, before: Generation | None) -> Stop | None:
    """Return ``TARGET_MOVED`` if a replica's live table is not the one that staging started from."""
    for alias, facts in observation.replicas.items():
        live = facts.tables.get(table)
        if (live.generation if live else None) != (before.on(alias) if before else None):
            return Stop(
                Code.TARGET_MOVED,
                f"The target was replaced or altered on {alias} while this operation was staging.",
                facts={"replica": alias},
            )
    return None


def _only_cleaned(before: StoredRecord | None, found: StoredRecord | None) -> bool:
    """Tell whether the same operation was only cleaned up meanwhile: the slot is as free as it was."""
    if before is None or found is None:
        return False
    then, now = before.record, found.record
    same = (then.operation_id, then.fence_token) == (now.operation_id, now.fence_token)
    return same and (then.phase is now.phase or (then.ended and now.ended))


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
