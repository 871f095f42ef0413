"""A small cluster of independent tables in memory, on which the route runs; nothing fails unless a test says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.decide import ContentCheck
from airflow_provider_dpone.publication.facts import Dependent, Observation, TableFacts
from airflow_provider_dpone.publication.identity import TaskIdentity
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.receipt import StageReceipt
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    IndependentRecord,
    Owner,
    ReplicaStage,
    StoredRecord,
    decode,
    encode,
)
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Body
from airflow_provider_dpone.routes.cluster_refresh import (
    OperatorRequest,
    Site,
    StageRequest,
    Waits,
    abandon,
    stage_replicas,
)
from airflow_provider_dpone.routes.cluster_refresh._resolve import Ended
from airflow_provider_dpone.routes.ports import (
    Claimed,
    Conflict,
    Intent,
    Loaded,
    OutcomeUnknown,
    Ports,
    Reply,
    StagePlan,
    Stored,
    Target,
)
from tests.unit.builders import CONTROL, USER, observation, table

TARGET = Target("analytics", "mart", "orders")
WAITS = Waits(ready=5, publish=20, cleanup=5, busy=0, visible=1, poll_first=0.5, poll_last=4)


def stop(code: Code, what: str = "as the test says") -> Stopped:
    """A stop with this code."""
    return Stopped(Stop(code, what))


def own_table(uuid: str, **changes: Any) -> TableFacts:
    """A plain table of one replica with ten rows."""
    return replace(
        table(uuid, engine="MergeTree", engine_full="MergeTree ORDER BY id", replication=None), **changes
    )


@dataclass(slots=True)
class ReplicaSite:
    """Two replicas or more, the target's slot, the artifacts, and all the ports onto them.

    :ivar at: called with the name of each call before it happens; what it raises is what the call raises.
    :ivar guarded: the servers refuse drops for the whole cluster, since the tables are too large.
    :ivar engine: ``engine_full`` of what a CREATE makes, by replica; ``MergeTree ORDER BY id`` by default.
    """

    at: Callable[[str], object] = lambda name: None
    tables: dict[str, dict[str, TableFacts]] = field(default_factory=lambda: {"s1/r1": {}, "s1/r2": {}})
    contents: dict[str, str] = field(default_factory=dict)
    row: StoredRecord | None = None
    artifacts: set[str] = field(default_factory=set)
    engine: Mapping[str, str] = field(default_factory=dict)
    rows: int = 10
    guarded: bool = False
    now: float = 1_000.0
    count: int = 0
    sent: list[Statement] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    # What a test does.

    def stage(self, run: str = "run", plan: str = "p", series: str = "0", **request: Any) -> StageReceipt:
        """One try of a stage task."""
        self._plan = plan
        asked = StageRequest(
            TaskIdentity("airflow", "dag", run, "stage", -1, series),
            Owner("dag", run, "stage", -1),
            **request,
        )
        return stage_replicas(self.ports, self, Site(TARGET, USER, CONTROL), asked, WAITS)

    def abandon(self) -> Ended:
        """What an operator's abandon does."""
        return abandon(self.ports, Site(TARGET, USER, CONTROL), OperatorRequest("a test"), WAITS)

    @property
    def record(self) -> IndependentRecord:
        """The target's record."""
        assert self.row is not None
        assert isinstance(self.row.record, IndependentRecord)
        return self.row.record

    @property
    def members(self) -> Inventory:
        """The cluster: all replicas that have tables."""
        return Inventory(
            "analytics",
            tuple(
                Member(1, number, f"host{number}", 9000, internal_replication=False)
                for number in range(1, len(self.tables) + 1)
            ),
        )

    @property
    def names(self) -> set[str]:
        """All tables but the target."""
        return {name for held in self.tables.values() for name in held} - {"orders"}

    @property
    def ports(self) -> Ports:
        """All ports; this object is each of them."""
        return Ports(self, self, self, self, self, self, self)

    # Catalog.

    @property
    def inventory(self) -> Inventory:
        return self._look([]).inventory

    def observe(self, tables: Collection[str]) -> Observation:
        self.at("observe")
        return self._look(tables)

    def _look(self, tables: Collection[str]) -> Observation:
        shown = [{name: held.get(name) for name in tables} for held in self.tables.values()]
        seen = observation(self.row, *shown, sequence=self._next(), server_time=int(self.now))
        members = self.members
        facts = {a: replace(f, inventory_digest=members.digest) for a, f in seen.replicas.items()}
        return replace(seen, inventory=members, replicas=facts)

    def content(self, name: str, alias: str | None = None) -> Any:
        """The port's method of the catalog, and that of the staging."""
        self.at("content" if alias is None else f"content {alias}")
        digests = {one: self._digest(name, one) for one in ([alias] if alias else self.tables)}
        return digests[alias] if alias else ContentCheck(self._next(), digests)

    def _digest(self, name: str, alias: str) -> CanonicalDigest:
        if (table := self.tables[alias].get(name)) is None:
            raise stop(Code.CANDIDATE_DIFFERS)
        return CanonicalDigest(table.rows or 0, sha256_hex(self.contents.get(table.uuid, "")))

    def dictionary_loads(self, dictionaries: Collection[Dependent]) -> Mapping[str, Mapping[Dependent, int]]:
        return {}

    # Authority and queue.

    def write(self, *given: Any) -> Any:
        """The port's method of the authority, and that of the evidence."""
        if isinstance(given[0], str):
            return self._write_evidence(*given)
        expected, record, write_id = given
        return self._cas(expected, record, write_id)

    def _write_evidence(self, operation_id: str, body: Body) -> None:
        self.at(f"evidence {body.kind}")

    def _cas(
        self, expected: StoredRecord | None, record: AuthorityRecord, write_id: str
    ) -> Stored | Conflict | OutcomeUnknown:
        self.at(f"cas {record.phase}")
        row = encode(record, write_id)
        before = (expected.write_id, expected.version) if expected else None
        if before != ((self.row.write_id, self.row.version) if self.row else None):
            return Conflict()
        self.row = StoredRecord(decode(row), write_id, self.row.version + 1 if self.row else 0)
        return Stored(self.row)

    def claim(
        self, expected: StoredRecord, record: AuthorityRecord, token: str, write_id: str
    ) -> Claimed | Conflict | OutcomeUnknown:
        written = self._cas(expected, record, write_id)
        if not isinstance(written, Stored):
            return written
        permit = Permit(token=token, epoch=record.dispatch_epoch, write_id=write_id)
        return Claimed(written.stored, permit, self.inventory.digest)

    def send(self, permit: Permit, statement: Statement, token: str) -> Reply:
        permit.use(token)
        self.sent.append(statement)
        for held in self.tables.values():
            match statement:
                case Drop(_, _, name):
                    if not self.guarded:
                        held.pop(name, None)
                case Rename(_, _, source, target):
                    held[target] = held.pop(source)
                case Exchange(_, _, one, other):
                    held[one], held[other] = held[other], held[one]
        return Reply(answered=True, exception_code=0)

    def read(self, token: str) -> tuple[int, Sequence[QueueRow]]:
        return self._next(), ()

    # Evidence, clock, random, log.

    def intents(self, operation_id: str) -> Sequence[Intent]:
        return ()

    def permit_unused(self, operation_id: str, epoch: int, write_id: str) -> bool:
        return False

    def asked(self, operation_id: str, asker: str) -> bool:
        return False

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at("sleep")

    def hex(self, bits: int) -> str:
        return sha256_hex(f"hex {self._next()}")[: bits // 4]

    def uuid(self) -> str:
        text = sha256_hex(f"uuid {self._next()}")
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:32]}"

    def __call__(self, message: str) -> None:
        self.lines.append(message)

    def _next(self) -> int:
        self.count += 1
        return self.count

    # Staging.

    _plan: str = "p"

    def quoted(self, name: str) -> str:
        return f"`mart`.`{name}`"

    def plan(self, seen: Observation) -> StagePlan:
        self.at("plan")
        return StagePlan(self._plan * 64, (), None)

    def create(self, plan: StagePlan, stage: ReplicaStage, *, authority_id: str, operation_id: str) -> None:
        self.at(f"create {stage.alias}")
        engine = self.engine.get(stage.alias, "MergeTree ORDER BY id")
        self.tables[stage.alias][stage.name] = own_table(stage.uuid, rows=0, engine_full=engine)

    def check_created(self, plan: StagePlan, stage: ReplicaStage, name: str, seen: Observation) -> None:
        table = seen.replicas[stage.alias].tables.get(name)
        if table is None or table.uuid != stage.uuid:
            raise stop(Code.CANDIDATE_DIFFERS)

    def extract(self, plan: StagePlan, stage: ReplicaStage) -> Loaded:
        self.at("extract")
        self._fill(stage, "source")
        return Loaded(self.rows, 100, self.rows)

    def seal(self, plan: StagePlan, stage: ReplicaStage, rows: int, *, target_key: str) -> Artifact:
        self.at("seal")
        artifact = Artifact(sha256_hex(f"artifact {self.rows}"), 100, rows)
        self.artifacts.add(artifact.sha256)
        return artifact

    def sealed(self, artifact: Artifact, *, target_key: str) -> bool:
        return artifact.sha256 in self.artifacts

    def load(self, plan: StagePlan, stage: ReplicaStage, artifact: Artifact, *, target_key: str) -> None:
        self.at(f"load {stage.alias}")
        if artifact.sha256 not in self.artifacts:
            raise stop(Code.ARTIFACT_MISSING)
        self._fill(stage, "source")

    def settle(self, stage: ReplicaStage) -> None:
        self.at("settle")

    def promote(self, stage: ReplicaStage, candidate: str) -> None:
        self.at(f"promote {stage.alias}")
        held = self.tables[stage.alias]
        if stage.name in held and candidate not in held:
            held[candidate] = held.pop(stage.name)

    def drop(self, stage: ReplicaStage) -> None:
        self.at(f"drop {stage.alias}")
        self.tables[stage.alias].pop(stage.name, None)

    def sweep(self, keep: Artifact | None, *, target_key: str) -> None:
        self.artifacts &= {keep.sha256} if keep else set()

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> Sequence[Stopped | None]:
        found: list[Stopped | None] = []
        for task in tasks:
            try:
                task()
            except Stopped as stopped:
                found.append(stopped)
            else:
                found.append(None)
        return found

    def _fill(self, stage: ReplicaStage, content: str) -> None:
        held = self.tables[stage.alias]
        if stage.name not in held:
            raise stop(Code.STAGING_FAILED)
        held[stage.name] = replace(held[stage.name], rows=self.rows)
        self.contents[stage.uuid] = content
