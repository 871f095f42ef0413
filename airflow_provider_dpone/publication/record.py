"""The authority record: one row per target in the control table, and its codec.

The columns that a compare-and-swap is conditioned on are columns; the rest is one canonical JSON
payload with its SHA-256. A record that another release wrote is read if its schema is known, and left
alone otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.canonical import canonical_json, digest, sha256_hex
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.identity import OPERATOR, ROLLBACK
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped

SCHEMA: Literal["dpone.clickhouse.cluster-full-refresh.v1"] = "dpone.clickhouse.cluster-full-refresh.v1"
"""The record of tables that replicate themselves."""

INDEPENDENT_SCHEMA: Literal["dpone.clickhouse.cluster-external-full-refresh.v1"] = (
    "dpone.clickhouse.cluster-external-full-refresh.v1"
)
"""The record of tables that are independent of each other on every replica."""

MAX_PAYLOAD_BYTES = 64 * 1024
"""Bound of the payload. Keeper takes about 1 MB; a record is a few KB."""

MAX_SETTLED = 20
"""How many settled operations a record remembers; older ones are answered from evidence."""

MAX_RETAINED = 40
"""How many predecessors may be kept at once for one target."""

SENTINEL_KEY = "dpone:authority"
"""Key of the row that names the control table's authority id."""

_STRICT = ConfigDict(strict=True, extra="forbid")


@unique
class Phase(StrEnum):
    """Where an operation stands. ``END_PHASES`` admit the next operation.

    LOCKED: the target's slot is fenced before the source is read. Independent tables only, as STAGING is.
    STAGING: the artifact is sealed and bound; the replicas are loaded from it, each by itself.
    PREPARED: the candidate is proven; no statement was dispatched under this epoch.
    DISPATCHING: a permit for the one statement was claimed; its queue entry is not bound yet.
    BOUND: the one queue entry is known by name.
    TERMINAL: the complete terminal receipt of that entry is stored, or that the statement is harmless now.
    COMMITTED: every admitted replica was seen with the new generation, after the receipt.
    COMPLETED_RETAINING: published; a predecessor is still kept under its own name.
    COMPLETED: published and cleaned up.
    ABORTED: given up before anything was dispatched, or resolved as not published.
    """

    LOCKED = "LOCKED"
    STAGING = "STAGING"
    PREPARED = "PREPARED"
    DISPATCHING = "DISPATCHING"
    BOUND = "BOUND"
    TERMINAL = "TERMINAL"
    COMMITTED = "COMMITTED"
    COMPLETED_RETAINING = "COMPLETED_RETAINING"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


END_PHASES = frozenset({Phase.COMPLETED, Phase.COMPLETED_RETAINING, Phase.ABORTED})
STAGE_PHASES = frozenset({Phase.LOCKED, Phase.STAGING})
"""Phases in which independent replicas are being staged; nothing can be dispatched."""

UNSENT_PHASES = STAGE_PHASES | {Phase.PREPARED}
"""Phases before the one statement: a later run of the same publication may supersede the operation."""

DROP_PHASES = END_PHASES | {Phase.PREPARED}
"""Phases in which listed tables may be dropped: no statement that names one of them can be on its way."""

PUBLISHED_PHASES = frozenset({Phase.COMMITTED, Phase.COMPLETED, Phase.COMPLETED_RETAINING})


@dataclass(frozen=True, slots=True)
class Generation:
    """The exact identity of a table object. It travels with the object through EXCHANGE and RENAME.

    :ivar engine_full: normalised: without the Keeper path and replica arguments.
    :ivar zookeeper_path: the table's Keeper path, equal on all replicas of the shard.
    """

    __pydantic_config__ = _STRICT

    uuid: str
    engine_full: str
    schema_digest: str
    zookeeper_name: str
    zookeeper_path: str

    def on(self, alias: str) -> Generation | None:
        """Return the table object that a replica holds; ``None`` where it has none."""
        return self

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all its tables."""
        return frozenset({self.uuid})

    @property
    def identity(self) -> str:
        """What it is known by to whoever looks at its tables now."""
        return self.uuid

    def renamed(self, aliases: Mapping[str, str]) -> Generation:
        """Return it with the aliases that its replicas have now.

        :param aliases: alias then -> alias now; a replica that is not there is gone.
        """
        return self


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """The table that one replica holds of a generation."""

    __pydantic_config__ = _STRICT

    alias: str
    uuid: str


@dataclass(frozen=True, slots=True)
class IndependentGeneration(Generation):
    """One generation of independent tables: the same definition and content, another table on every replica.

    ``uuid`` names the generation itself and is no table's: it follows from theirs. ``zookeeper_name`` and
    ``zookeeper_path`` are empty.

    :ivar tables: of those replicas that hold it.
    """

    __pydantic_config__ = _STRICT

    tables: tuple[ReplicaTable, ...] = ()

    def on(self, alias: str) -> Generation | None:
        """Return the table object that a replica holds; ``None`` where it has none."""
        for table in self.tables:
            if table.alias == alias:
                return Generation(table.uuid, self.engine_full, self.schema_digest, "", "")
        return None

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all its tables."""
        return frozenset(table.uuid for table in self.tables)

    @property
    def identity(self) -> str:
        """What it is known by to whoever looks at its tables now: replicas that are gone don't count."""
        return _identity(self.uuids)

    def renamed(self, aliases: Mapping[str, str]) -> IndependentGeneration:
        """Return it with the aliases that its replicas have now. It is the same generation: ``uuid`` stays."""
        tables = tuple(ReplicaTable(aliases[t.alias], t.uuid) for t in self.tables if t.alias in aliases)
        return replace(self, tables=tables)


def independent_generation(
    engine_full: str, schema_digest: str, tables: Mapping[str, str]
) -> IndependentGeneration:
    """Return the generation of independent tables. Its own identity follows from theirs.

    :param tables: alias -> UUID.
    """
    held = tuple(ReplicaTable(alias, uuid) for alias, uuid in tables.items())
    return IndependentGeneration(_identity(tables.values()), engine_full, schema_digest, "", "", held)


def _identity(uuids: Iterable[str]) -> str:
    return str(UUID(hex=digest("dpone/generation.v1", sorted(uuids))[:32], version=5))


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """The content of a table, whatever its parts: row count and two 128-bit sums of row hashes.

    The sums are decimal text, since JSON numbers don't carry 128 bits everywhere.
    """

    __pydantic_config__ = _STRICT

    rows: int
    city: str
    xxh3: str


Content: TypeAlias = ContentDigest | CanonicalDigest
"""What a table holds, as the publication compares it between replicas."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The scheduler's names of the operation, for people. Bounded; the identity is the operation id."""

    __pydantic_config__ = _STRICT

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    def __str__(self) -> str:
        return f"DAG {self.dag_id}, run {self.run_id}, task {self.task_id}"


@dataclass(frozen=True, slots=True)
class HostReceipt:
    """One replica's terminal row of the queue entry. Foreign error text is left out."""

    __pydantic_config__ = _STRICT

    alias: str
    exception_code: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One statement sent to the distributed-DDL queue.

    :ivar token: its ``log_comment``; unique to this dispatch.
    :ivar entry: the bound queue entry, once seen.
    :ivar query_digest: SHA-256 of the entry's query text, bound with the entry.
    :ivar receipt: the complete terminal receipt of the exact host set, once seen.
    """

    __pydantic_config__ = _STRICT

    token: str
    epoch: int
    entry: str | None = None
    query_digest: str | None = None
    receipt: tuple[HostReceipt, ...] | None = None


@dataclass(frozen=True, slots=True)
class Retained:
    """A predecessor that is still there, under a name that is its own for ever.

    :ivar drop_after: server time in seconds from which cleanup may drop it.
    :ivar operation_id: the operation whose publication made it a predecessor.
    :ivar drop: the drop that was dispatched last, if any.
    """

    __pydantic_config__ = _STRICT

    name: str
    generation: Generation
    drop_after: int
    operation_id: str
    drop: Dispatch | None = None


@dataclass(frozen=True, slots=True)
class IndependentRetained(Retained):
    """As :class:`Retained`, where every replica has a table of its own under the name, or none."""

    __pydantic_config__ = _STRICT

    generation: IndependentGeneration


@dataclass(frozen=True, slots=True)
class Settled:
    """How an earlier operation on this target ended."""

    __pydantic_config__ = _STRICT

    operation_id: str
    outcome: Phase
    epoch: int
    at: int
    rows: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Retired:
    """A replica that was admitted and is gone for ever, as an operator said and the others proved.

    :ivar alias: its alias when it was admitted; another replica may have that alias now.
    :ivar server: which server it was, as ``AuthorityRecord.servers`` names it.
    :ivar epoch: statements up to this epoch may name it in the queue.
    :ivar at: server time in seconds.
    """

    __pydantic_config__ = _STRICT

    alias: str
    server: str
    epoch: int
    at: int


@unique
class StageState(StrEnum):
    """How far one independent replica is staged.

    CLAIMED: its attempt is claimed: the table may exist, and may hold anything.
    VERIFIED: the attempt's table was proven to hold exactly the desired content; its rename may be on its way.
    READY: it was seen under the candidate's name.
    """

    CLAIMED = "CLAIMED"
    VERIFIED = "VERIFIED"
    READY = "READY"


@dataclass(frozen=True, slots=True)
class ReplicaStage:
    """The staging attempt on one independent replica. Its name and UUID are its own for ever."""

    __pydantic_config__ = _STRICT

    alias: str
    attempt_id: str
    name: str
    uuid: str
    state: StageState


@dataclass(frozen=True, slots=True)
class AuthorityRecord:
    """Everything that decides about one target, in one row. Stored as one of its two kinds.

    Times are seconds since the epoch on the server's clock. ``predecessor`` is ``None`` where the
    target was absent. ``plan_digest`` covers source, target, structure and mode, and is kept apart
    from the operation's identity. ``live_rows`` are the live table's rows when the candidate was prepared
    and when the swap was sent; ``None`` where it was absent. ``retention`` is how many seconds the
    predecessor is kept after the commit. ``dispatch_epoch`` only grows over the target's whole life.
    ``disarm`` is the RENAME by which an operator took the candidate's name away; once its receipt is stored,
    ``candidate`` is the new name, and a swap that comes late finds nothing to swap. ``retired`` are replicas
    that this operation was admitted with and that are gone for ever; ``replicas`` are the others then.
    ``keep_until`` is the time until which the candidate is kept where it does not go live: set by a rollback,
    whose candidate was a kept table before.
    """

    __pydantic_config__ = _STRICT

    authority_id: str
    target_key: str
    cluster: str
    database: str
    table: str
    operation_id: str
    publication_key: str
    owner: Owner
    order_key: str | None
    plan_digest: str
    fence_token: str
    phase: Phase
    dispatch_epoch: int
    inventory_digest: str
    replicas: tuple[str, ...]
    servers: tuple[str, ...]
    predecessor: Generation | None
    desired: Generation
    candidate: str
    attempt_id: str
    content: Content
    staged_bytes: int
    live_rows: int | None
    dependents: tuple[str, ...]
    retention: int
    prepared_at: int
    changed_at: int
    live_rows_at_dispatch: int | None = None
    publication: Dispatch | None = None
    disarm: Dispatch | None = None
    committed_at: int | None = None
    published_order_key: str | None = None
    retained: tuple[Retained, ...] = ()
    settled: tuple[Settled, ...] = ()
    retired: tuple[Retired, ...] = ()
    keep_until: int | None = None

    @property
    def ended(self) -> bool:
        """Tell whether the next operation may take the slot."""
        return self.phase in END_PHASES

    @property
    def disarming(self) -> bool:
        """Tell whether the candidate's name is being taken away: nobody else goes on meanwhile."""
        return self.disarm is not None and self.disarm.receipt is None

    @property
    def disarmed(self) -> bool:
        """Tell whether the swap is proven harmless: the name that it uses exists on no replica."""
        return self.disarm is not None and self.disarm.receipt is not None

    @property
    def published(self) -> bool:
        """Tell whether this operation's data is proven live."""
        return self.phase in PUBLISHED_PHASES

    @property
    def sent(self) -> bool:
        """Tell whether the one statement may have left: a permit for it was claimed."""
        return self.phase not in UNSENT_PHASES and not self.ended

    def predecessor_on(self, alias: str) -> Generation | None:
        """Return the table that a replica had live before; ``None`` where the target was absent."""
        return self.predecessor.on(alias) if self.predecessor else None

    def own_uuid(self, alias: str) -> str | None:
        """Return the UUID of the operation's own table on a replica; ``None`` where it has none (yet)."""
        own = self.desired.on(alias)
        return own.uuid if own else None

    def keep(self, name: str, generation: Generation, *, drop_after: int) -> Retained:
        """Return the entry that lists a table of this operation."""
        return Retained(name, generation, drop_after, self.operation_id)

    def left(self) -> tuple[tuple[str, Generation], ...]:
        """Return the tables that the operation leaves where it is given up before it is dispatched."""
        return ((self.candidate, self.desired),)

    def find_settled(self, operation_id: str) -> Settled | None:
        """Return how an earlier operation ended, if the record still remembers it."""
        return next((s for s in self.settled if s.operation_id == operation_id), None)

    def remembered(self, successor: str) -> tuple[Settled, ...]:
        """Return the settled operations for the record of ``successor``, this one's outcome included.

        A prepared operation that is followed by another one was given up. Beyond the bound the oldest
        are forgotten.
        """
        if self.operation_id == successor:
            return self.settled
        own = Settled(
            operation_id=self.operation_id,
            outcome=Phase.ABORTED if self.phase in UNSENT_PHASES else self.phase,
            epoch=self.dispatch_epoch,
            at=self.changed_at,
            rows=self.content.rows,
            uuid=self.desired.identity,
        )
        return (*self.settled, own)[-MAX_SETTLED:]

    def moved(self, **changes: Any) -> Self:
        """Return a copy with ``changes``."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ReplicatedRecord(AuthorityRecord):
    """The record of tables that replicate themselves: one table, which all replicas share."""

    __pydantic_config__ = _STRICT

    content: ContentDigest


NOT_SEALED = CanonicalDigest(0, "0" * 64)
"""The content of an operation whose artifact is not sealed yet."""


@dataclass(frozen=True, slots=True)
class IndependentRecord(AuthorityRecord):
    """The record of independent tables. Until it is PREPARED, it also says how far each replica is staged.

    :ivar artifact: what every replica is loaded from; from STAGING on.
    :ivar extract: the private table into which the source is read once, on one replica.
    :ivar stages: the attempts of the replicas; the others have none yet.
    :ivar baseline: the content that every replica's live table had when the artifact was bound.
    """

    __pydantic_config__ = _STRICT

    predecessor: IndependentGeneration | None
    desired: IndependentGeneration
    content: CanonicalDigest
    retained: tuple[IndependentRetained, ...] = ()
    artifact: Artifact | None = None
    extract: ReplicaStage | None = None
    stages: tuple[ReplicaStage, ...] = ()
    baseline: CanonicalDigest | None = None

    def stage_of(self, alias: str) -> ReplicaStage | None:
        """Return a replica's attempt, if it has one."""
        return next((stage for stage in self.stages if stage.alias == alias), None)

    def own_uuid(self, alias: str) -> str | None:
        """Return the UUID of the operation's own table on a replica; while it is staged, of its attempt's."""
        if self.phase in STAGE_PHASES:
            stage = self.stage_of(alias)
            return stage.uuid if stage else None
        own = self.desired.on(alias)
        return own.uuid if own else None

    @property
    def staged_everywhere(self) -> bool:
        """Tell whether it ever had its table on every replica: it was prepared."""
        return all(self.desired.on(alias) is not None for alias in self.replicas)

    def keep(self, name: str, generation: Generation, *, drop_after: int) -> IndependentRetained:
        """Return the entry that lists tables of this operation.

        :raises TypeError: the generation is not one of independent tables.
        """
        if not isinstance(generation, IndependentGeneration):
            raise TypeError("a record of independent tables keeps independent tables")
        return IndependentRetained(name, generation, drop_after, self.operation_id)

    def attempt_table(self, stage: ReplicaStage) -> IndependentGeneration:
        """Return the one table of an attempt."""
        return independent_generation(
            self.desired.engine_full, self.desired.schema_digest, {stage.alias: stage.uuid}
        )

    def left(self) -> tuple[tuple[str, IndependentGeneration], ...]:
        """Return the tables that the operation leaves where it is given up before it is dispatched.

        A verified table has its private name or the candidate's: its rename may be on its way.
        """
        if self.phase not in STAGE_PHASES:
            return ((self.candidate, self.desired),)
        attempts = [*self.stages, *([self.extract] if self.extract else [])]
        private = [
            (stage.name, self.attempt_table(stage))
            for stage in attempts
            if stage.state is not StageState.READY
        ]
        proven = {stage.alias: stage.uuid for stage in self.stages if stage.state is not StageState.CLAIMED}
        if not proven:
            return tuple(private)
        held = independent_generation(self.desired.engine_full, self.desired.schema_digest, proven)
        return (*private, (self.candidate, held))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the control table as it is stored."""

    target_key: str
    operation_id: str
    fence_token: str
    phase: str
    dispatch_epoch: int
    write_id: str
    payload: str
    payload_sha256: str


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with the two values that a compare-and-swap is made against.

    :ivar version: KeeperMap's ``_version``: 0 after the create, one more with each write.
    :ivar write_id: unique to the write that stored it.
    """

    record: AuthorityRecord
    write_id: str
    version: int


@dataclass(frozen=True, slots=True)
class _Payload:
    __pydantic_config__ = _STRICT

    schema: Literal["dpone.clickhouse.cluster-full-refresh.v1"]
    record: ReplicatedRecord


@dataclass(frozen=True, slots=True)
class _IndependentPayload:
    __pydantic_config__ = _STRICT

    schema: Literal["dpone.clickhouse.cluster-external-full-refresh.v1"]
    record: IndependentRecord


_AnyPayload: TypeAlias = Annotated[_Payload | _IndependentPayload, Field(discriminator="schema")]


def _wrapped(record: AuthorityRecord) -> _Payload | _IndependentPayload:
    match record:
        case ReplicatedRecord():
            return _Payload(SCHEMA, record)
        case IndependentRecord():
            return _IndependentPayload(INDEPENDENT_SCHEMA, record)
        case _:
            raise TypeError("a record is stored as one of its two kinds")


def encode(record: AuthorityRecord, write_id: str) -> Row:
    """Return the row that stores ``record``.

    :raises Stopped: ``RECORD_TOO_LARGE``.
    :raises ValueError: it could not be read back: nothing would end an operation whose record nobody can read.
    """
    body = _payload_adapter().dump_python(_wrapped(record), mode="json")
    payload = canonical_json(body)
    if len(payload.encode()) > MAX_PAYLOAD_BYTES:
        raise Stopped(
            Stop(
                Code.RECORD_TOO_LARGE,
                f"The record of {record.database}.{record.table} would have {len(payload.encode())} bytes; "
                f"the bound is {MAX_PAYLOAD_BYTES}.",
            )
        )
    if _payload_adapter().validate_json(payload).record != record:
        raise ValueError("a record that would be read back as another one is not stored")
    return Row(
        target_key=record.target_key,
        operation_id=record.operation_id,
        fence_token=record.fence_token,
        phase=record.phase.value,
        dispatch_epoch=record.dispatch_epoch,
        write_id=write_id,
        payload=payload,
        payload_sha256=sha256_hex(payload),
    )


def decode(row: Row) -> AuthorityRecord:
    """Return the record in ``row``.

    :raises Stopped: ``RECORD_NEWER`` for a schema that this release doesn't know, ``RECORD_INVALID``
        for anything that isn't exactly what a release wrote: a wrong digest, a missing or additional
        field, columns and payload that disagree. The row is left alone in each case.
    """
    if sha256_hex(row.payload) != row.payload_sha256:
        raise _invalid(row, "its payload doesn't have the stored SHA-256")
    try:
        payload = _payload_adapter().validate_json(row.payload)
    except ValidationError as error:
        schema = _schema_of(row.payload)
        if schema is not None and schema not in (SCHEMA, INDEPENDENT_SCHEMA):
            raise Stopped(
                Stop(
                    Code.RECORD_NEWER,
                    f"The target's record has the schema {schema!r}, which this release doesn't know.",
                )
            ) from None
        # The first part is the schema, by which the kind of record was chosen.
        where = ".".join(str(part) for part in error.errors()[0]["loc"][1:])
        raise _invalid(row, f"the field {where!r} is not as expected") from None
    record = payload.record
    columns = (row.target_key, row.operation_id, row.fence_token, row.phase, row.dispatch_epoch)
    inside = (
        record.target_key,
        record.operation_id,
        record.fence_token,
        record.phase.value,
        record.dispatch_epoch,
    )
    if columns != inside:
        raise _invalid(row, "its columns and its payload disagree")
    if record.phase in STAGE_PHASES and not isinstance(record, IndependentRecord):
        raise _invalid(row, "only independent tables are staged in the record")
    return record


def is_rollback(owner: Owner) -> bool:
    """Tell whether an operator's rollback owns the operation: no task will go on with it."""
    return (owner.dag_id, owner.task_id) == (OPERATOR, ROLLBACK)


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of the payloads by their schema names, as docs/schemas publishes them."""
    return {
        SCHEMA: TypeAdapter(_Payload).json_schema(mode="serialization"),
        INDEPENDENT_SCHEMA: TypeAdapter(_IndependentPayload).json_schema(mode="serialization"),
    }


def new_fence_token(operation_id: str, nonce: str) -> str:
    """Return the token that fences one preparation of an operation against every other."""
    return digest("dpone/fence.v1", operation_id, nonce)[:32]


@cache
def _payload_adapter() -> TypeAdapter[_Payload | _IndependentPayload]:
    return TypeAdapter(_AnyPayload)


def _schema_of(payload: str) -> str | None:
    @dataclass
    class Envelope:
        schema: str

    try:
        return TypeAdapter(Envelope).validate_json(payload).schema
    except ValidationError:
        return None


def _invalid(row: Row, why: str) -> Stopped:
    return Stopped(
        Stop(
            Code.RECORD_INVALID,
            f"The target's record can't be used: {why}.",
            facts={"operation": row.operation_id[:16], "phase": row.phase},
        )
    )
