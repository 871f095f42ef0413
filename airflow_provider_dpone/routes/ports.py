"""What a cluster refresh needs from the outside, one method per effect.

Adapters implement these; the simulator replaces them. Every method that changes something makes exactly
one call to the outside and never repeats it. Errors arrive as :class:`Stopped`, mapped once at the edge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from airflow_provider_dpone.publication.artifact import Artifact, Sealed
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.decide import ContentCheck
from airflow_provider_dpone.publication.facts import Dependent, Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.queue_report import QueueReport
from airflow_provider_dpone.publication.record import AuthorityRecord, ReplicaStage, StoredRecord
from airflow_provider_dpone.publication.statement import Statement
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.publication.trail import Body, Entry


@dataclass(frozen=True, slots=True)
class Target:
    """What is refreshed."""

    cluster: str
    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class Catalog(Protocol):
    """Reads from every replica."""

    @property
    def inventory(self) -> Inventory:
        """The replicas as the last :meth:`observe` found them."""

    def observe(self, tables: Collection[str]) -> Observation:
        """Look at all replicas in one statement: inventory, the named tables, control table, record.

        A replica that can't be reached is missing in the answer; that is no error here.

        :raises Stopped: ``SERVER_UNAVAILABLE``, ``UNKNOWN_CLUSTER`` and what ``admit`` refuses,
            ``AUTHORITY_UNAVAILABLE``, ``RECORD_INVALID``, ``RECORD_NEWER``.
        """

    def content(self, table: str) -> ContentCheck:
        """Compute the content digest of ``table`` on every replica, in one statement.

        :raises Stopped: as :meth:`observe`; also when a replica can't be read.
        """

    def dictionary_loads(self, dictionaries: Collection[Dependent]) -> Mapping[str, Mapping[Dependent, int]]:
        """Tell for every replica that was read when the last good load of each dictionary began there.

        :returns: alias -> dictionary -> seconds since the epoch on that server's clock; a dictionary that holds no
            rows, not yet or by its layout, is never behind. One that is not shown or failed to load is missing.
        :raises Stopped: as :meth:`observe`.
        """


@dataclass(frozen=True, slots=True)
class Stored:
    """The write was acknowledged, and the read-back shows it under its own write id, one version on."""

    stored: StoredRecord


@dataclass(frozen=True, slots=True)
class Claimed:
    """As :class:`Stored`, with the permit that only this invocation holds.

    :ivar inventory_digest: of ``system.clusters``, read in the same statement as the read-back.
    """

    stored: StoredRecord
    permit: Permit
    inventory_digest: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """The write is proven not to have happened: the record had moved."""


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The write may have happened, may still happen, or may not. It gives no permission."""

    why: str


class Authority(Protocol):
    """Writes the target's one record. Every write has its own write id and is sent exactly once."""

    def write(
        self, expected: StoredRecord | None, record: AuthorityRecord, write_id: str
    ) -> Stored | Conflict | OutcomeUnknown:
        """Store ``record`` if the slot is exactly ``expected`` (``None``: absent)."""

    def claim(
        self, expected: StoredRecord, record: AuthorityRecord, token: str, write_id: str
    ) -> Claimed | Conflict | OutcomeUnknown:
        """As :meth:`write`, and issue the permit to send the statement that carries ``token``."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from sending a statement. None of it is proof of what the replicas did.

    :ivar answered: the server answered; ``False`` means that the reply was lost.
    :ivar exception_code: ClickHouse's code, 0 for success, ``None`` if unknown.
    :ivar refused: the server answered with an error that it raises before it queues a statement: the one
        answer that does prove something, namely that no replica will ever see the statement.
    """

    answered: bool
    exception_code: int | None
    name: str = ""
    refused: bool = False


class DdlQueue(Protocol):
    """Sends a statement to the cluster's queue, and reads what became of it."""

    def send(self, permit: Permit, statement: Statement, token: str) -> Reply:
        """Send ``statement`` once, under ``token``. A lost reply is a :class:`Reply`, not an error."""

    def read(self, token: str) -> tuple[int, Sequence[QueueRow]]:
        """Return the sequence number of this read and all rows that carry ``token``.

        :raises Stopped: the queue can't be read (``SERVER_UNAVAILABLE``, ``SERVER_ERROR``).
        """


class QueueReports(Protocol):
    """Looks at the whole queue: dear, and only for people."""

    def report(self, token: str) -> QueueReport:
        """Return the rows of ``token``, and what stands before and behind them.

        :raises Stopped: the queue can't be read.
        """


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load brought into the candidate.

    :ivar rows: rows that the server says it wrote.
    :ivar bytes: streamed: encoded body bytes; server-side: bytes written to the candidate.
    :ivar source_rows: rows that the source says it gave, if it can tell.
    """

    rows: int
    bytes: int
    source_rows: int | None


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What will be staged, fixed before the source is read.

    :ivar digest: plan digest: source, target, structure and mode; no timeouts, no bounds.
    :ivar schema_difference: what on_schema_change will change, in words, for log and receipt.
    :ivar payload: the adapter's own part.
    """

    digest: str
    schema_difference: tuple[str, ...]
    payload: object


@dataclass(frozen=True, slots=True)
class Attempt:
    """One staging attempt: its candidate's name and UUID are its own for ever."""

    attempt_id: str
    name: str
    uuid: str


class Staging(Protocol):
    """Builds, loads and drops candidates."""

    def quoted(self, name: str) -> str:
        """Return the target's database and ``name``, quoted for SQL."""

    def plan(self, observation: Observation) -> StagePlan:
        """Fix structure, column mapping and grants. Reads no row of the source, changes nothing.

        :raises Stopped: everything that can be refused before the source is read.
        """

    def create(self, plan: StagePlan, attempt: Attempt, *, authority_id: str, operation_id: str) -> None:
        """Create the candidate on every replica, under the attempt's UUID.

        :raises Stopped: ``STAGING_FAILED`` (refused or failed somewhere), ``STAGING_UNKNOWN``.
        """

    def check_created(self, plan: StagePlan, attempt: Attempt, observation: Observation) -> None:
        """Compare the candidate on every replica with the plan, clause by clause.

        :raises Stopped: ``CANDIDATE_DIFFERS``.
        """

    def load(self, plan: StagePlan, attempt: Attempt) -> Loaded:
        """Read the source into the candidate, in one request.

        :raises Stopped: ``SOURCE_FAILED``, ``SOURCE_TOO_LARGE``, ``VALUE_REFUSED``, ``STAGING_FAILED``:
            the load has ended; ``STAGING_UNKNOWN``: it may still be running.
        """

    def drop(self, attempt: Attempt) -> None:
        """Drop a candidate that the rule for drops allows to be dropped. Sent once, not waited for."""


class ArtifactStore(Protocol):
    """The artifacts of one target. Bytes go in once, under the name that follows from them."""

    def seal(self, chunks: Iterable[bytes], *, max_bytes: int) -> Sealed:
        """Store bytes. When this returns, any worker can open them.

        :raises ArtifactTooLarge: there are more than ``max_bytes``.
        :raises Stopped: they are not stored, or not known to be.
        """

    def open(self, artifact: Artifact) -> Iterator[bytes]:
        """Read an artifact. The last chunk is given only when all of them are proven to be what was sealed.

        :raises Stopped: it is missing, differs, or can't be read.
        """

    def has(self, artifact: Artifact) -> bool:
        """Tell whether an artifact is there with its size."""

    def sweep(self, keep: Artifact | None) -> bool:
        """Remove everything else; tell whether nothing else is left."""


class ReplicaStaging(Protocol):
    """Stages independent tables: the source is sealed once, and every replica is loaded from that by itself.

    Every method that changes something is one call to one replica, sent once and never repeated.
    """

    def quoted(self, name: str) -> str:
        """Return the target's database and ``name``, quoted for SQL."""

    def plan(self, observation: Observation) -> StagePlan:
        """Fix structure, column mapping and grants, and prove that each direct connection leads to its replica.

        Reads no row of the source, changes nothing.

        :raises Stopped: everything that can be refused before the source is read.
        """

    def create(self, plan: StagePlan, stage: ReplicaStage, *, authority_id: str, operation_id: str) -> None:
        """Create the attempt's table on its replica, under the attempt's name and UUID.

        :raises Stopped: ``STAGING_FAILED``; ``STAGING_UNKNOWN``: it may still be created.
        """

    def check_created(
        self, plan: StagePlan, stage: ReplicaStage, name: str, observation: Observation
    ) -> None:
        """Compare the attempt's table, which has ``name`` now, with the plan, clause by clause.

        :raises Stopped: ``CANDIDATE_DIFFERS``.
        """

    def extract(self, plan: StagePlan, stage: ReplicaStage) -> Loaded:
        """Read the source into the attempt's table, in one request.

        :raises Stopped: as :meth:`Staging.load`.
        """

    def seal(self, plan: StagePlan, stage: ReplicaStage, rows: int, *, target_key: str) -> Artifact:
        """Store what the attempt's table holds as an immutable artifact.

        :raises Stopped: ``SOURCE_TOO_LARGE``, ``ROWS_DISAGREE``; the artifact store or the replica failed.
        """

    def sealed(self, artifact: Artifact, *, target_key: str) -> bool:
        """Tell whether the store still holds the artifact."""

    def load(self, plan: StagePlan, stage: ReplicaStage, artifact: Artifact, *, target_key: str) -> None:
        """Load the artifact into the attempt's table, in one request.

        :raises Stopped: ``ROWS_DISAGREE``, ``STAGING_FAILED``, and what a damaged artifact raises: the load has
            ended; ``STAGING_UNKNOWN``: it may still be running.
        """

    def settle(self, stage: ReplicaStage) -> None:
        """End what an earlier try may have left running on the attempt's table, and wait for its end.

        :raises Stopped: ``STAGING_UNKNOWN``: it is not proven to have ended.
        """

    def content(self, name: str, alias: str) -> CanonicalDigest:
        """Compute the canonical content of a table on one replica.

        :raises Stopped: it can't be read there.
        """

    def promote(self, stage: ReplicaStage, candidate: str) -> None:
        """Give the attempt's table the candidate's name. A lost reply is no error: a look tells.

        :raises Stopped: it was surely not done.
        """

    def drop(self, stage: ReplicaStage) -> None:
        """Drop the attempt's private table, as the rule for drops allows. Sent once, not waited for."""

    def sweep(self, keep: Artifact | None, *, target_key: str) -> None:
        """Remove the target's artifacts that nothing needs any more. Never raises."""

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> Sequence[Stopped | None]:
        """Run tasks, one for each replica, as many at once as are allowed, each to its end.

        :returns: what each stopped with, in their order.
        """


@dataclass(frozen=True, slots=True)
class Intent:
    """A recorded intent to create a candidate."""

    operation_id: str
    attempt: Attempt


class Evidence(Protocol):
    """The durable trail. An entry is written before the state that depends on it moves on."""

    def write(self, operation_id: str, body: Body) -> None:
        """Append one immutable entry. When this returns, it is stored.

        :param operation_id: empty for what is about the whole cluster.
        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """

    def intents(self, operation_id: str) -> Sequence[Intent]:
        """Return the candidates that attempts of this operation meant to create."""

    def permit_unused(self, operation_id: str, epoch: int, write_id: str) -> bool:
        """Tell whether an entry proves that this write's permit was never used."""

    def asked(self, operation_id: str, asker: str) -> bool:
        """Tell whether this asker has found the operation unproven before.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """


class Trails(Protocol):
    """Reads what was written down, for people. Nothing is decided by it."""

    def recent(self, database: str, table: str, *, limit: int, days: int | None) -> Sequence[str]:
        """Return the operations on a table whose attempts were admitted last, the newest first.

        :param limit: how many at most.
        :param days: look through so many days on which anything was admitted; ``None``: all.
        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """

    def entries(self, operation_id: str) -> Sequence[Entry]:
        """Return one operation's entries, in the order in which they were written.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """


class Tables(Protocol):
    """Looks at tables without the control table, which can't be read where Keeper can't."""

    def observe_tables(self, tables: Collection[str]) -> Observation:
        """Look at all replicas as :meth:`Catalog.observe` does; what it says of control table and record is nothing.

        :raises Stopped: as :meth:`Catalog.observe`.
        """


class Clock(Protocol):
    """Time of this process; virtual in simulations."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Random(Protocol):
    """Where names, tokens and UUIDs come from."""

    def hex(self, bits: int) -> str:
        """Return ``bits`` random bits as hex digits."""

    def uuid(self) -> str:
        """Return a random UUID."""


class Log(Protocol):
    """What a human follows while it runs: one line per event."""

    def __call__(self, message: str, /) -> None:
        """Show ``message``."""


WriteResult: TypeAlias = Stored | Conflict | OutcomeUnknown


@dataclass(frozen=True, slots=True)
class Ports:
    """All that the protocol of a cluster refresh touches."""

    catalog: Catalog
    authority: Authority
    queue: DdlQueue
    evidence: Evidence
    clock: Clock
    random: Random
    log: Log
