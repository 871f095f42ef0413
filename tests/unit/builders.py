"""Small honest values for tests of the pure core: one target, two or more replicas, two generations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_dpone.publication import replica_stages, transitions
from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.facts import (
    ControlFacts,
    Observation,
    ReplicaFacts,
    Replication,
    TableFacts,
)
from airflow_provider_dpone.publication.identity import TaskIdentity, target_key
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.record import (
    NOT_SEALED,
    STAGE_PHASES,
    AuthorityRecord,
    ContentDigest,
    Generation,
    HostReceipt,
    IndependentGeneration,
    IndependentRecord,
    Owner,
    Phase,
    ReplicaStage,
    ReplicatedRecord,
    StageState,
    StoredRecord,
    independent_generation,
)
from airflow_provider_dpone.publication.statement import Exchange, Statement

AUTHORITY = "a" * 32
CONTROL = "control-structure"
USER = "dpone_app"
OLD_UUID = "00000000-0000-4000-8000-00000000000a"
NEW_UUID = "00000000-0000-4000-8000-00000000000b"
FOREIGN_UUID = "00000000-0000-4000-8000-00000000000f"
CONTENT = ContentDigest(rows=10, city="1", xxh3="2")
ENTRY = "query-0000000007"
IDENTITY = TaskIdentity("airflow", "dag", "run", "stage", -1, "0")
KEY = target_key(AUTHORITY, "mart", "orders")


def inventory(replicas: int = 2) -> Inventory:
    """One shard, ``replicas`` replicas."""
    return Inventory("analytics", tuple(Member(1, n, f"host{n}", 9000, True) for n in range(1, replicas + 1)))


def replication(replicas: int = 2, uuid: str = OLD_UUID, **changes: Any) -> Replication:
    """A healthy replica of the table ``uuid``."""
    healthy = Replication(
        zookeeper_name="default",
        zookeeper_path=f"/clickhouse/tables/{uuid}/01",
        replica_name="r1",
        is_readonly=False,
        is_session_expired=False,
        queue_size=0,
        log_max_index=3,
        log_pointer=4,
        total_replicas=replicas,
        active_replicas=replicas,
        lost_parts=0,
        keeper_error=False,
    )
    return replace(healthy, **changes)


def table(uuid: str, replicas: int = 2, **changes: Any) -> TableFacts:
    """A plain replicated table with ten rows."""
    plain = TableFacts(
        uuid=uuid,
        engine="ReplicatedMergeTree",
        engine_full="ReplicatedMergeTree ORDER BY id",
        schema_digest="s" * 64,
        engine_refusal=None,
        create_query="CREATE TABLE ...",
        comment_authority=None,
        rows=10,
        bytes=100,
        replication=replication(replicas, uuid),
    )
    return replace(plain, **changes)


OLD = table(OLD_UUID)
NEW = table(NEW_UUID)
FOREIGN = table(FOREIGN_UUID)


def generation(uuid: str) -> Generation:
    """The generation of ``table(uuid)``."""
    return table(uuid).generation


def record(replicas: int = 2, **changes: Any) -> AuthorityRecord:
    """A prepared operation over an existing target."""
    members = inventory(replicas)
    prepared = ReplicatedRecord(
        authority_id=AUTHORITY,
        target_key=KEY,
        cluster="analytics",
        database="mart",
        table="orders",
        operation_id=IDENTITY.operation_id(KEY),
        publication_key=IDENTITY.publication_key(KEY),
        owner=Owner("dag", "run", "stage", -1),
        order_key="2026-01-02",
        plan_digest="p" * 64,
        fence_token="f" * 32,
        phase=Phase.PREPARED,
        dispatch_epoch=4,
        inventory_digest=members.digest,
        replicas=members.aliases,
        servers=tuple(f"server-{alias}" for alias in members.aliases),
        predecessor=generation(OLD_UUID),
        desired=generation(NEW_UUID),
        candidate="orders__dpone_1",
        attempt_id="1",
        content=CONTENT,
        staged_bytes=100,
        live_rows=10,
        dependents=(),
        retention=0,
        prepared_at=1_000,
        changed_at=1_000,
    )
    return replace(prepared, **changes)


def in_phase(phase: Phase, replicas: int = 2, **changes: Any) -> AuthorityRecord:
    """The record moved along the protocol to ``phase``."""
    return along(record(replicas, **changes), phase)


def along(moved: AuthorityRecord, phase: Phase) -> AuthorityRecord:
    """A prepared record moved along the protocol to ``phase``.

    :raises ValueError: the phase comes before PREPARED.
    """
    if phase in STAGE_PHASES:
        raise ValueError(f"{phase} comes before a record is prepared")
    if phase is Phase.PREPARED:
        return moved
    if phase is Phase.ABORTED:
        return transitions.aborted(moved, now=1_001)
    moved = transitions.dispatching(moved, nonce="0" * 32, now=1_001)
    if phase is Phase.DISPATCHING:
        return moved
    if phase is Phase.BOUND:
        return transitions.bound(moved, entry=ENTRY, query_digest=query_digest(moved), now=1_002)
    receipt = receipt_of(moved)
    at: dict[str, Any] = {
        "entry": ENTRY,
        "query_digest": query_digest(moved),
        "receipt": receipt,
        "now": 1_003,
    }
    if phase is Phase.TERMINAL:
        return transitions.terminal(moved, **at)
    moved = transitions.committed(moved, **at)
    if phase is Phase.COMMITTED:
        return moved
    moved = transitions.retaining(moved, drop_after=1_003, now=1_004)
    if phase is Phase.COMPLETED_RETAINING:
        return moved
    return transitions.dropped(moved, moved.candidate, now=1_005)


# Independent tables.

REPLICATED_PHASES = tuple(phase for phase in Phase if phase not in STAGE_PHASES)
"""The phases that a record of tables that replicate themselves can have."""

ARTIFACT = Artifact("c" * 64, 80, 10)
CANONICAL = CanonicalDigest(10, "d" * 64)
BASELINE = CanonicalDigest(9, "e" * 64)
ENGINE = "MergeTree ORDER BY id"


def independent_inventory(replicas: int = 2) -> Inventory:
    """As :func:`inventory`, where nothing copies rows between the replicas."""
    members = inventory(replicas).members
    return Inventory("analytics", tuple(replace(member, internal_replication=False) for member in members))


def own_uuid(replica: int, kind: str = "b") -> str:
    """The UUID of replica ``n``'s own table: ``a`` for the old generation, ``b`` for the new one."""
    return f"00000000-0000-4000-8000-{replica:011d}{kind}"


def own_table(uuid: str, **changes: Any) -> TableFacts:
    """A plain table of one replica with ten rows."""
    return replace(table(uuid, engine="MergeTree", engine_full=ENGINE, replication=None), **changes)


def own_tables(kind: str, replicas: int = 2) -> IndependentGeneration:
    """A generation of independent tables."""
    aliases = independent_inventory(replicas).aliases
    return independent_generation(
        ENGINE, "s" * 64, {alias: own_uuid(n, kind) for n, alias in enumerate(aliases, start=1)}
    )


def attempt(replica: int, state: StageState = StageState.CLAIMED, number: int = 0) -> ReplicaStage:
    """The staging attempt on a replica; another ``number`` is another attempt."""
    uuid = own_uuid(replica) if not number else own_uuid(10 * number + replica, "c")
    return ReplicaStage(
        f"s1/r{replica}", f"{number}{replica}", f"orders__dpone_{number}{replica}", uuid, state
    )


EXTRACT = ReplicaStage("s1/r1", "90", "orders__dpone_90", own_uuid(1, "e"), StageState.CLAIMED)


def locked(replicas: int = 2, **changes: Any) -> IndependentRecord:
    """An operation that has locked the slot of an existing target."""
    prepared = record(replicas)
    fields = {name: getattr(prepared, name) for name in AuthorityRecord.__dataclass_fields__}
    fields |= {
        "phase": Phase.LOCKED,
        "inventory_digest": independent_inventory(replicas).digest,
        "predecessor": own_tables("a", replicas),
        "desired": independent_generation("", "", {}),
        "content": NOT_SEALED,
        "staged_bytes": 0,
    }
    return IndependentRecord(**{**fields, **changes})


def staging(*stages: ReplicaStage, replicas: int = 2, **changes: Any) -> IndependentRecord:
    """The same, when the artifact is bound, with the attempts that are given."""
    bound = replica_stages.sealed(
        replica_stages.extracting(locked(replicas), EXTRACT, now=1_000),
        artifact=ARTIFACT,
        content=CANONICAL,
        baseline=BASELINE,
        engine_full=ENGINE,
        schema_digest="s" * 64,
        source_bytes=100,
        now=1_000,
    )
    return replace(bound, stages=stages, **changes)


def independent_in_phase(phase: Phase, replicas: int = 2) -> IndependentRecord:
    """A record of independent tables, moved along the protocol to ``phase``."""
    if phase is Phase.LOCKED:
        return replica_stages.extracting(locked(replicas), EXTRACT, now=1_000)
    if phase is Phase.STAGING:
        return staging(attempt(1, StageState.VERIFIED), attempt(2), replicas=replicas)
    ready = (attempt(n, StageState.READY) for n in range(1, replicas + 1))
    moved = along(replica_stages.prepared(staging(*ready, replicas=replicas), live_rows=9, now=1_000), phase)
    assert isinstance(moved, IndependentRecord)
    return moved


def query_digest(of: AuthorityRecord) -> str:
    """The digest of the text that :func:`queue_rows` uses."""
    return sha256_hex(query_text(of))


def query_text(of: AuthorityRecord) -> str:
    """The statement as the queue shows it."""
    return (
        f"EXCHANGE TABLES {of.database}.{of.table} AND {of.database}.{of.candidate} ON CLUSTER {of.cluster}"
    )


def swap(of: AuthorityRecord) -> Statement:
    """The statement of a record with a predecessor."""
    return Exchange(of.cluster, of.database, of.table, of.candidate)


def receipt_of(of: AuthorityRecord, **codes: int) -> tuple[HostReceipt, ...]:
    """A terminal receipt; ``r2=60`` gives replica 2 the exception code 60."""
    return tuple(HostReceipt(alias, codes.get(alias.removeprefix("s1/"), 0)) for alias in of.replicas)


def queue_row(of: AuthorityRecord, replica: int, **changes: Any) -> QueueRow:
    """A replica's row, finished with success unless changed."""
    assert of.publication is not None
    row = QueueRow(
        entry=ENTRY,
        query=query_text(of),
        statement=swap(of),
        token=of.publication.token,
        host=f"host{replica}",
        port=9000,
        status="Finished",
        exception_code=0,
        exception_text="",
    )
    return replace(row, **changes)


ACTIVE: Mapping[str, Any] = {"status": "Active", "exception_code": None, "exception_text": None}
INACTIVE: Mapping[str, Any] = {"status": "Inactive", "exception_code": None, "exception_text": None}
FAILED: Mapping[str, Any] = {"exception_code": 60, "exception_text": "Code: 60"}


def stored(of: AuthorityRecord, version: int = 5, write_id: str = "w5") -> StoredRecord:
    """The record as the control table holds it."""
    return StoredRecord(of, write_id, version)


def replica_facts(
    alias: str,
    tables: Mapping[str, TableFacts | None],
    *,
    of: StoredRecord | None,
    members: Inventory,
    **changes: Any,
) -> ReplicaFacts:
    """What one replica shows."""
    facts = ReplicaFacts(
        alias=alias,
        server=f"server-{alias}",
        version="26.9.2.1",
        user=USER,
        inventory_digest=members.digest,
        database_engine="Atomic",
        sees_database=True,
        known_settings=frozenset(),
        tables={name: t for name, t in tables.items() if t is not None},
        control=ControlFacts(CONTROL, AUTHORITY, of.write_id if of else None, of.version if of else None),
    )
    return replace(facts, **changes)


def observation(
    of: StoredRecord | None,
    *shown: Mapping[str, TableFacts | None] | None,
    sequence: int = 10,
    **changes: Any,
) -> Observation:
    """One look: ``shown`` are the tables of replica 1, 2, ...; ``None`` for one that can't be read."""
    members = inventory(len(shown))
    seen = Observation(
        sequence=sequence,
        server_time=1_100,
        inventory=members,
        replicas={
            alias: replica_facts(alias, tables, of=of, members=members)
            for alias, tables in zip(members.aliases, shown, strict=True)
            if tables is not None
        },
        record=of,
        dependents=(),
    )
    return replace(seen, **changes)


def independently(seen: Observation) -> Observation:
    """The same look at a cluster where nothing copies rows between the replicas."""
    members = independent_inventory(len(seen.inventory.members))
    facts = {alias: replace(found, inventory_digest=members.digest) for alias, found in seen.replicas.items()}
    return replace(seen, inventory=members, replicas=facts)


PENDING: Mapping[str, TableFacts | None] = {"orders": OLD, "orders__dpone_1": NEW}
COMMITTED: Mapping[str, TableFacts | None] = {"orders": NEW, "orders__dpone_1": OLD}
CLEANED: Mapping[str, TableFacts | None] = {"orders": NEW, "orders__dpone_1": None}
ABSENT: Mapping[str, TableFacts | None] = {"orders": None, "orders__dpone_1": None}
TARGET_GONE: Mapping[str, TableFacts | None] = {"orders": None, "orders__dpone_1": OLD}
FOREIGN_TARGET: Mapping[str, TableFacts | None] = {"orders": FOREIGN, "orders__dpone_1": NEW}
