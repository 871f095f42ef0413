"""The evidence trail: what each entry says, and its codec.

One frozen model for each kind of entry. Entries are written before the state that rests on them moves on, and
never changed. Each kind has its own schema version: an entry that another release wrote is read if its schema
is known, and left alone otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from functools import cache
from typing import Any, ClassVar, Final, Literal, TypeAlias

from pydantic import ConfigDict, TypeAdapter, ValidationError

from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.canonical import Json, canonical_json
from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.receipt import IndependentReceipt, Names, PublicationReceipt
from airflow_provider_dpone.publication.record import Content, Owner, Phase, ReplicaTable
from airflow_provider_dpone.publication.stop import Category

_STRICT: Final = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Mark:
    """What an entry's name says about it, so that a list of names tells the story.

    :ivar fence: the attempt, write or token that the entry is about.
    :ivar version: of the record that it is about, where there is one.
    :ivar word: what happened, in a word.
    """

    fence: str = ""
    version: int | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class SlotFound:
    """The record that admission found in the target's slot.

    :ivar version: the record's version.
    :ivar write_id: of the write that stored it.
    :ivar operation_id: whose record it is.
    :ivar phase: how far that operation had come.
    """

    __pydantic_config__ = _STRICT

    version: int
    write_id: str
    operation_id: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class LiveTable:
    """The live table that admission found, without a word of its definition.

    :ivar uuid: its UUID.
    :ivar schema_digest: digest of its whole structure.
    """

    __pydantic_config__ = _STRICT

    uuid: str
    schema_digest: str

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all its tables."""
        return frozenset({self.uuid})


@dataclass(frozen=True, slots=True)
class IndependentLive(LiveTable):
    """The same where every replica has a table of its own.

    :ivar tables: the table of each replica; `uuid` names all of them together, and is no table's.
    """

    __pydantic_config__ = _STRICT

    tables: tuple[ReplicaTable, ...]

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all its tables."""
        return frozenset(table.uuid for table in self.tables)


@dataclass(frozen=True, slots=True)
class Admission:
    """What a staging attempt was admitted to. Written before anything is created.

    :ivar database: the target's database.
    :ivar table: the target's name.
    :ivar target_key: key of the target's record.
    :ivar publication_key: all runs of one stage task for one target.
    :ivar authority_id: names the control table.
    :ivar owner: DAG, run, task and map index.
    :ivar order_key: text by which runs of the publication are ordered.
    :ivar plan_digest: digest of source, target, structure and mode.
    :ivar inventory_digest: digest of the cluster's definition.
    :ivar replicas: the admitted replicas.
    :ivar live: the live table's UUID and the digest of its structure; null if there is no table yet.
    :ivar live_rows: its rows.
    :ivar slot: the record that the slot held; null if it was free for ever before.
    :ivar retention: for how many seconds the replaced table will be kept.
    :ivar schema_difference: what `on_schema_change` changes, in words.
    :ivar dependents: objects that hang on the target's name.
    :ivar warnings: what was admitted and is worth a look.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "admission"

    database: str
    table: str
    target_key: str
    publication_key: str
    authority_id: str
    owner: Owner
    order_key: str | None
    plan_digest: str
    inventory_digest: str
    replicas: tuple[str, ...]
    live: LiveTable | IndependentLive | None
    live_rows: int | None
    slot: SlotFound | None
    retention: int
    schema_difference: tuple[str, ...]
    dependents: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def mark(self) -> Mark:
        """The slot's version, against which the operation will be prepared."""
        return Mark(version=self.slot.version if self.slot else None, word="admitted")


@dataclass(frozen=True, slots=True)
class CandidateIntent:
    """The candidate that an attempt is about to create. Written before the CREATE is sent.

    :ivar attempt: the staging attempt; its name and UUID are its own for ever.
    :ivar table: the candidate's name.
    :ivar uuid: the candidate's UUID.
    :ivar database: where it is created.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "intent"

    attempt: str
    table: str
    uuid: str
    database: str

    @property
    def mark(self) -> Mark:
        """The attempt."""
        return Mark(self.attempt, word="create")

    @property
    def uuids(self) -> frozenset[str]:
        """The UUID of its one table, which all replicas share where they replicate themselves."""
        return frozenset({self.uuid})


@dataclass(frozen=True, slots=True)
class Staged:
    """A candidate that is complete and equal on every replica. Written before PREPARED is.

    :ivar attempt: the staging attempt.
    :ivar table: the candidate's name.
    :ivar uuid: its UUID.
    :ivar rows: rows that were loaded.
    :ivar bytes: encoded bytes of a streamed source, or bytes that a query wrote.
    :ivar source_rows: rows that the source says it gave, if it can tell.
    :ivar content: row count and two hash sums, equal on all replicas.
    :ivar replicas: where the content was computed.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "staged"

    attempt: str
    table: str
    uuid: str
    rows: int
    bytes: int
    source_rows: int | None
    content: Content
    replicas: tuple[str, ...]

    @property
    def mark(self) -> Mark:
        """The attempt."""
        return Mark(self.attempt, word="ready")

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all its tables."""
        return frozenset({self.uuid})


@dataclass(frozen=True, slots=True)
class IndependentStaged(Staged):
    """The same where every replica was staged by itself.

    :ivar tables: the table of each replica; `uuid` names all of them together, and is no table's.
    :ivar artifact: what every replica was loaded from; null where a table that was kept goes live again.
    """

    __pydantic_config__ = _STRICT

    tables: tuple[ReplicaTable, ...]
    artifact: Artifact | None

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all its tables."""
        return frozenset(table.uuid for table in self.tables)


@dataclass(frozen=True, slots=True)
class PublishAsked:
    """A publish task found its operation unproven. What its later tries answer is then no replay.

    :ivar asker: names the task over its retries and deferrals.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "publish-asked"

    asker: str

    @property
    def mark(self) -> Mark:
        """The task."""
        return Mark(self.asker[:16], word="unproven")


@dataclass(frozen=True, slots=True)
class CompareAndSwap:
    """A write of the record that is about to be sent. Without its outcome it proves nothing.

    :ivar write_id: unique to the write.
    :ivar phase: the phase that it would store.
    :ivar epoch: the dispatch epoch that it would store.
    :ivar from_version: the version that it is conditioned on; null: that there is no record.
    :ivar fence_token: of the preparation that it belongs to.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "compare-and-swap"

    write_id: str
    phase: Phase
    epoch: int
    from_version: int | None
    fence_token: str

    @property
    def mark(self) -> Mark:
        """The write, and the version it is conditioned on."""
        return Mark(self.write_id, self.from_version, f"to-{self.phase}")


@dataclass(frozen=True, slots=True)
class CompareAndSwapOutcome:
    """What its writer learned about a compare-and-swap. Written afterwards; it may be missing.

    :ivar write_id: of the write.
    :ivar phase: the phase that it would store.
    :ivar epoch: the dispatch epoch that it would store.
    :ivar outcome: `stored` (acknowledged and read back), `conflict` (proven not done) or `unknown`.
    :ivar version: the record's version, where it was stored.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "compare-and-swap-outcome"

    write_id: str
    phase: Phase
    epoch: int
    outcome: Literal["stored", "conflict", "unknown"]
    version: int | None

    @property
    def mark(self) -> Mark:
        """The write, and the version that it stored."""
        return Mark(self.write_id, self.version, f"{self.outcome}-{self.phase}")


@dataclass(frozen=True, slots=True)
class PermitUnused:
    """The word of the only holder of a permit that nothing was sent, or will ever be.

    :ivar epoch: the permit's epoch.
    :ivar write_id: the write that issued the permit.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "permit-unused"

    epoch: int
    write_id: str

    @property
    def mark(self) -> Mark:
        """The write."""
        return Mark(self.write_id, word=f"epoch-{self.epoch}")


@dataclass(frozen=True, slots=True)
class DispatchOutcome:
    """What came back from the one send of a statement. No proof of what the replicas did. Written afterwards.

    :ivar statement: which statement.
    :ivar token: its `log_comment` in the queue.
    :ivar epoch: the epoch of the permit.
    :ivar write_id: the write that issued the permit.
    :ivar reply: `answered`, `lost`, or `refused` before the statement could enter the queue.
    :ivar exception_code: ClickHouse's code, 0 for success; null if nothing came back.
    :ivar exception_name: its name.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "dispatch"

    statement: Literal["EXCHANGE", "RENAME", "DROP"]
    token: str
    epoch: int
    write_id: str
    reply: Literal["answered", "lost", "refused"]
    exception_code: int | None
    exception_name: str

    @property
    def mark(self) -> Mark:
        """The write that issued the permit."""
        return Mark(self.write_id, word=f"{self.statement}-{self.reply}")


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """One replica in a classification.

    :ivar alias: the replica.
    :ivar state: which generations it shows; null if it was not looked at.
    :ivar names: the UUIDs under the target's and the candidate's name; null if it was not looked at.
    :ivar queue: the status of its row in the queue; null if that was not read.
    :ivar exception_code: of that row, once it has ended.
    """

    __pydantic_config__ = _STRICT

    alias: str
    state: ReplicaState | None
    names: Names | None
    queue: str | None
    exception_code: int | None


@unique
class Proven(StrEnum):
    """What a classification proves, where it doesn't say what stops the operation."""

    DISPATCHABLE = "DISPATCHABLE"
    """Every replica holds the old table and the whole candidate: the swap may be sent."""
    PERMIT_UNUSED = "PERMIT_UNUSED"
    """Nothing was sent under the epoch."""
    BOUND = "BOUND"
    """The one queue entry is known."""
    TERMINAL = "TERMINAL"
    """The queue entry has ended on every replica."""
    COMMITTED = "COMMITTED"
    """Every replica was seen with the new table, after the entry had ended."""
    DISARMABLE = "DISARMABLE"
    """No replica shows the new table: the swap may be made harmless."""
    DISARMED = "DISARMED"
    """The swap finds nothing to swap any more."""
    NOT_PUBLISHED = "NOT_PUBLISHED"
    """The swap is harmless, and every replica was seen with the old table since."""


@dataclass(frozen=True, slots=True)
class Classification:
    """What was concluded from replicas and queue, when that changed. A move that rests on it comes later.

    :ivar aggregate: the conclusion: what is proven (one of :class:`Proven`), or the code of what stops it.
    :ivar category: of the code; null where something is proven.
    :ivar phase: the record's phase.
    :ivar epoch: the record's dispatch epoch.
    :ivar version: the record's version.
    :ivar entry: the queue entry, where it is known.
    :ivar observed_at: the server's clock at the look at the replicas; null if there was none.
    :ivar replicas: each admitted replica.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "classification"

    aggregate: str
    category: Category | None
    phase: Phase
    epoch: int
    version: int
    entry: str | None
    observed_at: int | None
    replicas: tuple[ReplicaSeen, ...]

    @property
    def mark(self) -> Mark:
        """The epoch, and the conclusion."""
        return Mark(str(self.epoch), self.version, self.aggregate)

    def says_the_same(self, other: Classification | None) -> bool:
        """Tell whether nothing but the time of the look differs."""
        return other is not None and replace(self, observed_at=other.observed_at) == other


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """The publication's proof with the facts per replica. Written before a record leaves COMMITTED.

    :ivar version: the record's version.
    :ivar receipt: the publication receipt.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "receipt"

    version: int
    receipt: PublicationReceipt | IndependentReceipt

    @property
    def mark(self) -> Mark:
        """The epoch of the swap."""
        return Mark(str(self.receipt.epoch), self.version, self.receipt.state.value)


@dataclass(frozen=True, slots=True)
class CleanupStep:
    """One step of a cleanup. `free`, `drop` and `gone` are written before they are done.

    :ivar step: `free` (the target is given to the next operation), `drop` (the drop of a table is claimed),
        `gone` (a table is proven absent on every replica) or `keep` (it can't be dropped now).
    :ivar table: the table; its name is its own for ever.
    :ivar uuid: its UUID.
    :ivar version: the record's version.
    :ivar seen_on: the replicas that show the table; null if they were not looked at.
    :ivar why: the code of what forbids a drop.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "cleanup"

    step: Literal["free", "drop", "gone", "keep"]
    table: str
    uuid: str
    version: int
    seen_on: tuple[str, ...] | None
    why: str | None

    @property
    def mark(self) -> Mark:
        """The table."""
        return Mark(self.table, self.version, self.step)


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """What an operator's command is about to change, and why.

    :ivar action: the command.
    :ivar step: what it does next.
    :ivar reason: the operator's reason.
    :ivar phase: the record's phase before; null if there was no record, as all that follows.
    :ivar epoch: the record's epoch before.
    :ivar version: the record's version before.
    :ivar write_id: of the write that stored it.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "operator-action"

    action: str
    step: str
    reason: str
    phase: Phase | None
    epoch: int | None
    version: int | None
    write_id: str | None

    @property
    def mark(self) -> Mark:
        """The record that is changed."""
        return Mark(self.write_id or "", self.version, self.action)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Operations whose trails are about to be deleted. It stays for ever.

    :ivar operations: their ids.
    :ivar older_than: the age in seconds that was asked for.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "pruned"

    operations: tuple[str, ...]
    older_than: int

    @property
    def mark(self) -> Mark:
        """How many."""
        return Mark(word=f"{len(self.operations)}-operations")


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A stage task found the target held and was refused, before its source was read. Written afterwards.

    It stands in the trail of the operation that holds the target: that one has to end first.

    :ivar operation_id: the operation that was refused.
    :ivar owner: its DAG, run, task and map index.
    :ivar code: of the refusal.
    :ivar phase: how far the operation that holds the target had come.
    :ivar version: the record's version.
    """

    __pydantic_config__ = _STRICT
    kind: ClassVar[str] = "turned-away"

    operation_id: str
    owner: Owner
    code: str
    phase: Phase
    version: int

    @property
    def mark(self) -> Mark:
        """The operation that was refused."""
        return Mark(self.operation_id[:16], self.version, self.code)


Body: TypeAlias = (
    Admission
    | CandidateIntent
    | Staged
    | PublishAsked
    | CompareAndSwap
    | CompareAndSwapOutcome
    | PermitUnused
    | DispatchOutcome
    | Classification
    | StoredReceipt
    | CleanupStep
    | OperatorAction
    | Pruned
    | TurnedAway
)

KINDS: Final[Mapping[str, type[Body]]] = {
    body.kind: body
    for body in (
        Admission,
        CandidateIntent,
        Staged,
        PublishAsked,
        CompareAndSwap,
        CompareAndSwapOutcome,
        PermitUnused,
        DispatchOutcome,
        Classification,
        StoredReceipt,
        CleanupStep,
        OperatorAction,
        Pruned,
        TurnedAway,
    )
}
"""The body of each kind of entry, in the order in which an operation usually writes them; newer kinds last."""

_WITH_TWO_SHAPES: Final[Mapping[str, Any]] = {Staged.kind: Staged | IndependentStaged}
"""Kinds that say more about independent tables. What is said of replicated ones stays as it is."""

NOTED: Final = frozenset({CompareAndSwapOutcome.kind, DispatchOutcome.kind, TurnedAway.kind})
"""Kinds that only tell what has happened already: nothing rests on them, and one may be missing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the trail.

    :ivar cluster: the cluster's name.
    :ivar operation_id: the operation; empty for what is about the whole cluster.
    :ivar at: UTC on the writer's clock, as text that sorts by time.
    :ivar writer: names the process that wrote it, and no other.
    :ivar sequence: counts that process's entries.
    :ivar about: the writer, for people: DAG, run, task, try; or the operator; and the id of the connection it used.
    """

    cluster: str
    operation_id: str
    at: str
    writer: str
    sequence: int
    about: Mapping[str, Json]
    body: Body


@dataclass(frozen=True, slots=True)
class Unknown:
    """An entry that this release can't use. It is left alone.

    :ivar newer: its schema is not known here: a later release wrote it. Otherwise it was cut off, or changed.
    """

    schema: str
    newer: bool

    def __str__(self) -> str:
        if self.newer:
            return f"has the schema {self.schema!r}, which this release doesn't know: upgrade the provider"
        return "was cut off while it was written, or changed since; it proves nothing"


@dataclass(frozen=True, slots=True)
class _Envelope:
    __pydantic_config__ = _STRICT

    schema: str
    kind: str
    cluster: str
    operation_id: str
    at: str
    writer: str
    sequence: int
    about: dict[str, Any]
    body: dict[str, Any]


def schema_of(kind: str) -> str:
    """Return the name of the schema in which this release writes a kind."""
    return f"dpone.clickhouse.evidence-{kind}.v1"


def dump_entry(entry: Entry) -> str:
    """Return the canonical JSON of an entry."""
    kind = entry.body.kind
    body: Mapping[str, Json] = _body_adapter(kind).dump_python(entry.body, mode="json")
    return canonical_json(
        {
            "schema": schema_of(kind),
            "kind": kind,
            "cluster": entry.cluster,
            "operation_id": entry.operation_id,
            "at": entry.at,
            "writer": entry.writer,
            "sequence": entry.sequence,
            "about": entry.about,
            "body": body,
        }
    )


def load_entry(data: bytes) -> Entry | Unknown:
    """Return the entry in ``data``, or why it is left alone."""
    try:
        found = _envelope_adapter().validate_json(data)
    except ValidationError:
        schema = _schema_in(data)
        known = schema in {"", *map(schema_of, KINDS)}
        return Unknown(schema, newer=not known)
    if found.kind not in KINDS or found.schema != schema_of(found.kind):
        return Unknown(found.schema, newer=True)
    try:
        body = _body_adapter(found.kind).validate_json(json.dumps(found.body))
    except ValidationError:
        return Unknown(found.schema, newer=False)
    return Entry(found.cluster, found.operation_id, found.at, found.writer, found.sequence, found.about, body)


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return entries in the order in which they were written.

    Entries of one writer are in its own order. Between writers their clocks decide.
    """
    keyed: list[tuple[str, str, int, Entry]] = []
    latest: dict[str, str] = {}
    for entry in sorted(entries, key=lambda e: (e.writer, e.sequence)):
        # A clock that was set back doesn't turn a writer's own order round.
        at = latest[entry.writer] = max(entry.at, latest.get(entry.writer, ""))
        keyed.append((at, entry.writer, entry.sequence, entry))
    return tuple(entry for *_, entry in sorted(keyed, key=lambda key: key[:3]))


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of a whole entry of each kind, by the schema's name."""
    found = {}
    for kind in KINDS:
        envelope = _envelope_adapter().json_schema(mode="serialization")
        body = _body_adapter(kind).json_schema(mode="serialization")
        definitions = body.pop("$defs", {})
        properties = envelope["properties"]
        properties["schema"]["const"] = schema_of(kind)
        properties["kind"]["const"] = kind
        properties["body"] = body
        found[schema_of(kind)] = {**envelope, "title": f"Evidence: {kind}", "$defs": definitions}
    return found


@cache
def _envelope_adapter() -> TypeAdapter[_Envelope]:
    return TypeAdapter(_Envelope)


@cache
def _body_adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_WITH_TWO_SHAPES.get(kind, KINDS[kind]))


def _schema_in(data: bytes) -> str:
    """The schema that an object names; empty if it names none or is no object."""
    try:
        found = json.loads(data)
    except ValueError:
        return ""
    schema = found.get("schema", "") if isinstance(found, dict) else ""
    return schema if isinstance(schema, str) else ""
