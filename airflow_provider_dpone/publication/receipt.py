"""Receipts: what a task hands on and what people read. Each is a pure function of a proven record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.facts import Dependent
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Content,
    Generation,
    IndependentRecord,
    Owner,
    Phase,
    Settled,
)
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped

STAGE_SCHEMA: Literal["dpone.clickhouse.stage-receipt.v1"] = "dpone.clickhouse.stage-receipt.v1"
_STAGE_SCHEMAS = "dpone.clickhouse.stage-receipt."
PUBLICATION_SCHEMA: Literal["dpone.clickhouse.cluster-full-refresh-receipt.v1"] = (
    "dpone.clickhouse.cluster-full-refresh-receipt.v1"
)

INDEPENDENT_SCHEMA: Literal["dpone.clickhouse.cluster-external-full-refresh-receipt.v1"] = (
    "dpone.clickhouse.cluster-external-full-refresh-receipt.v1"
)
INDEPENDENT_STAGE_SCHEMA: Literal["dpone.clickhouse.stage-receipt.external.v1"] = (
    "dpone.clickhouse.stage-receipt.external.v1"
)

MAX_DEPENDENTS = 50
"""How many dependents a receipt lists; it must stay small enough for XCom (16 KB)."""

_STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class StageReceipt:
    """What a stage task hands to publish and cleanup, and to checks in between.

    :ivar candidate: the candidate's table name, unquoted.
    :ivar candidate_sql: database and candidate, quoted for SQL.
    :ivar bytes: streamed: encoded body bytes; server-side: bytes written to the candidate.
    :ivar live_rows: rows of the live table when staging began; ``None`` if it was absent.
    :ivar resumed: an earlier try of this operation had staged it; nothing was read again.
    """

    __pydantic_config__ = _STRICT

    schema: Literal["dpone.clickhouse.stage-receipt.v1", "dpone.clickhouse.stage-receipt.external.v1"]
    operation_id: str
    cluster: str
    database: str
    table: str
    candidate: str
    candidate_sql: str
    candidate_uuid: str
    rows: int
    bytes: int
    content: Content
    live_rows: int | None
    replicas: tuple[str, ...]
    schema_difference: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """The UUIDs under the two names on one replica; ``None`` where the name is free."""

    __pydantic_config__ = _STRICT

    target: str | None
    candidate: str | None


@dataclass(frozen=True, slots=True)
class ReplicaReceipt:
    """What is proven about one replica.

    :ivar queue: the replica's terminal status of the one queue entry.
    :ivar content_match: its candidate had the staged content, checked directly before the swap.
    """

    __pydantic_config__ = _STRICT

    alias: str
    before: Names
    after: Names
    queue: str
    exception_code: int | None
    rows: int
    content_match: bool


@dataclass(frozen=True, slots=True)
class RetainedReceipt:
    """A predecessor that still exists: its name, UUID, and the server time from which it may go."""

    __pydantic_config__ = _STRICT

    table: str
    uuid: str
    drop_after: int


@dataclass(frozen=True, slots=True)
class PublicationReceipt:
    """The proof of a publication. It exists only where every admitted replica was proven.

    Times are seconds since the epoch on the server's clock.

    :ivar state: COMMITTED, COMPLETED_RETAINING or COMPLETED.
    :ivar statement: ``EXCHANGE``, or ``RENAME`` where the target was absent before.
    :ivar replayed: the publication was proven before this task asked for the first time, retries and deferrals
        included; clearing the task begins anew.
    :ivar retired: replicas that were admitted, by their aliases then, and that an operator retired before the proof.
    """

    __pydantic_config__ = _STRICT

    schema: Literal[
        "dpone.clickhouse.cluster-full-refresh-receipt.v1",
        "dpone.clickhouse.cluster-external-full-refresh-receipt.v1",
    ]
    state: Phase
    operation_id: str
    authority_id: str
    owner: Owner
    cluster: str
    database: str
    table: str
    statement: Literal["EXCHANGE", "RENAME"]
    epoch: int
    entry: str | None
    rows: int
    bytes: int
    content: Content
    plan_digest: str
    order_key: str | None
    prepared_at: int
    committed_at: int
    replicas: tuple[ReplicaReceipt, ...]
    retained: tuple[RetainedReceipt, ...] = ()
    dependents: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    replayed: bool = False
    retired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IndependentReceipt(PublicationReceipt):
    """The same for tables that are independent on every replica: each has a UUID of its own.

    :ivar artifact: what every replica was loaded from.
    :ivar baseline: the content that the replaced tables had on every replica; ``None`` where there was none.
    """

    __pydantic_config__ = _STRICT

    artifact: Artifact | None = None
    baseline: CanonicalDigest | None = None


@dataclass(frozen=True, slots=True)
class SettledReceipt:
    """The answer for an operation that later ones have followed: its outcome as the record remembers it."""

    __pydantic_config__ = _STRICT

    schema: Literal["dpone.clickhouse.settled-receipt.v1"]
    state: Phase
    operation_id: str
    cluster: str
    database: str
    table: str
    rows: int
    uuid: str
    settled_at: int
    replayed: bool = True


def publication_receipt(
    record: AuthorityRecord, *, replayed: bool, warnings: tuple[str, ...] = ()
) -> PublicationReceipt:
    """Return the receipt of a record that is committed or later.

    :raises ValueError: the record proves no publication.
    """
    publication = record.publication
    if not record.published or record.committed_at is None or publication is None:
        raise ValueError(f"a record in {record.phase} proves no publication")
    if publication.receipt is None and not record.disarmed:
        raise ValueError("a committed record holds its terminal receipt")
    codes = {host.alias: host.exception_code for host in publication.receipt or ()}
    gone = record.phase is not Phase.COMMITTED and all(r.name != record.candidate for r in record.retained)
    kind: Callable[..., PublicationReceipt] = partial(PublicationReceipt, schema=PUBLICATION_SCHEMA)
    if isinstance(record, IndependentRecord):
        kind = partial(
            IndependentReceipt,
            schema=INDEPENDENT_SCHEMA,
            artifact=record.artifact,
            baseline=record.baseline,
        )
    return kind(
        state=record.phase,
        operation_id=record.operation_id,
        authority_id=record.authority_id,
        owner=record.owner,
        cluster=record.cluster,
        database=record.database,
        table=record.table,
        statement="RENAME" if record.predecessor is None else "EXCHANGE",
        epoch=publication.epoch,
        entry=publication.entry,
        rows=record.content.rows,
        bytes=record.staged_bytes,
        content=record.content,
        plan_digest=record.plan_digest,
        order_key=record.order_key,
        prepared_at=record.prepared_at,
        committed_at=record.committed_at,
        replicas=tuple(
            ReplicaReceipt(
                alias=alias,
                before=Names(target=_uuid(record.predecessor, alias), candidate=_uuid(record.desired, alias)),
                after=Names(
                    target=_uuid(record.desired, alias),
                    candidate=None if gone else _uuid(record.predecessor, alias),
                ),
                queue=_queue_word(codes.get(alias)),
                exception_code=codes.get(alias),
                rows=record.content.rows,
                content_match=True,
            )
            for alias in record.replicas
        ),
        retained=tuple(RetainedReceipt(r.name, r.generation.uuid, r.drop_after) for r in record.retained),
        dependents=record.dependents,
        warnings=(*_moved_rows(record), *warnings),
        replayed=replayed,
        retired=tuple(replica.alias for replica in record.retired),
    )


def _uuid(generation: Generation | None, alias: str) -> str | None:
    table = generation.on(alias) if generation else None
    return table.uuid if table else None


def _queue_word(exception_code: int | None) -> str:
    if exception_code is None:
        return "not known"
    return "finished" if exception_code == 0 else "failed"


def _moved_rows(record: AuthorityRecord) -> tuple[str, ...]:
    """Rows that others wrote to the live table after staging left with the predecessor: people must know."""
    before, then = record.live_rows, record.live_rows_at_dispatch
    if before is None or then is None or before == then:
        return ()
    return (
        f"the live table had {before:,} rows when the candidate was staged and {then:,} when it was replaced: "
        "what others wrote in between left with the predecessor",
    )


def stale_dictionaries(
    record: AuthorityRecord, dictionaries: Iterable[Dependent], loads: Mapping[str, Mapping[Dependent, int]]
) -> tuple[str, ...]:
    """Name the dictionaries over the target that are not known to have been loaded since the commit, and where.

    A swap doesn't load a dictionary: each replica does so by itself, when the LIFETIME is over. A load that began in
    the second of the commit may have read the old table.

    :param loads: alias -> dictionary -> when its last good load began.
    """
    committed_at = record.committed_at or record.changed_at
    behind = {
        one: [alias for alias in record.replicas if loads.get(alias, {}).get(one, 0) <= committed_at]
        for one in dictionaries
    }
    return tuple(
        f"dictionary {one.database}.{one.table} was not seen to load since the swap on {', '.join(aliases)}: there it "
        "may answer with the old rows until it does"
        for one, aliases in behind.items()
        if aliases
    )


def settled_receipt(record: AuthorityRecord, settled: Settled, *, replayed: bool) -> SettledReceipt:
    """Return the answer for an operation that ended before the record's present one."""
    return SettledReceipt(
        schema="dpone.clickhouse.settled-receipt.v1",
        state=settled.outcome,
        operation_id=settled.operation_id,
        cluster=record.cluster,
        database=record.database,
        table=record.table,
        rows=settled.rows,
        uuid=settled.uuid,
        settled_at=settled.at,
        replayed=replayed,
    )


def dump(receipt: StageReceipt | PublicationReceipt | SettledReceipt) -> dict[str, Any]:
    """Return a receipt as a JSON object."""
    body: dict[str, Any] = TypeAdapter(type(receipt)).dump_python(receipt, mode="json")
    return body


def load_stage_receipt(value: object) -> StageReceipt:
    """Return the stage receipt that another task handed on.

    :raises Stopped: ``BAD_INPUT`` if ``value`` is no stage receipt.
    """
    try:
        return _stage_adapter().validate_json(_stage_adapter_json(value))
    except (ValidationError, TypeError, ValueError):
        if _is_newer(value):
            raise Stopped(
                Stop(
                    Code.BAD_INPUT,
                    "`staged` was written by another release of the provider, and this one can't read it.",
                    next_action="Upgrade the provider on this worker.",
                )
            ) from None
        raise Stopped(
            Stop(
                Code.BAD_INPUT,
                "`staged` is not the output of a dpone stage task.",
                next_action="Pass staged=stage.output, or leave it out where one stage task is upstream.",
            )
        ) from None


def _is_newer(value: object) -> bool:
    """Tell whether it is a stage receipt with a schema or with fields that this release doesn't know."""
    match value:
        case {"schema": str() as schema, **rest} if schema.startswith(_STAGE_SCHEMAS):
            known = {field.name for field in fields(StageReceipt)}
            return schema not in (STAGE_SCHEMA, INDEPENDENT_STAGE_SCHEMA) or not rest.keys() <= known
        case _:
            return False


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of the receipts by their schema names."""
    return {
        STAGE_SCHEMA: TypeAdapter(StageReceipt).json_schema(mode="serialization"),
        PUBLICATION_SCHEMA: TypeAdapter(PublicationReceipt).json_schema(mode="serialization"),
        INDEPENDENT_SCHEMA: TypeAdapter(IndependentReceipt).json_schema(mode="serialization"),
        "dpone.clickhouse.settled-receipt.v1": TypeAdapter(SettledReceipt).json_schema(mode="serialization"),
    }


@cache
def _stage_adapter() -> TypeAdapter[StageReceipt]:
    return TypeAdapter(StageReceipt)


def _stage_adapter_json(value: object) -> bytes:
    # Through JSON, since XCom hands lists where the receipt has tuples and strict mode tells them apart.
    return TypeAdapter(dict[str, Any]).dump_json(TypeAdapter(dict[str, Any]).validate_python(value))
