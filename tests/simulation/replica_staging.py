"""The route's port onto independent replicas of the simulated world, with a fault at every call.

Beside what happens to a call it knows what the protocol must never ask for: a source that is read without a lock, a
table that is made or loaded before its attempt is claimed, a second load of one attempt, another artifact than the
record binds, a rename of what was not proven, a drop of what no record lists. Such a call is noted as broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.record import IndependentRecord, Phase, ReplicaStage
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import Loaded, StagePlan
from tests.simulation import world as simulated
from tests.simulation.ports import Fault, Worker, void
from tests.simulation.world import World, content_digest


def one_by_one(tasks: Sequence[Callable[[], None]], pick: Callable[[int], int]) -> Sequence[Stopped | None]:
    """Run tasks in the order in which ``pick`` takes one of so many that are left."""
    ends: dict[int, Stopped | None] = {}
    left = list(range(len(tasks)))
    while left:
        number = left.pop(pick(len(left)))
        try:
            tasks[number]()
        except Stopped as stopped:
            ends[number] = stopped
        else:
            ends[number] = None
    return [ends[number] for number in range(len(tasks))]


@dataclass(slots=True)
class SimReplicaStaging:
    """Creates, loads, renames and drops tables of single replicas, and seals what a source gave.

    :ivar pick: chooses one of several, as the history does.
    """

    worker: Worker
    rows: int
    content_name: str
    pick: Callable[[int], int]
    plan_digest: str = "p" * 64
    judge_look: bool = True
    """Whether what the worker saw last is judged when it reads the source."""

    @property
    def world(self) -> World:
        """The simulated world."""
        return self.worker.world

    def quoted(self, name: str) -> str:
        return f"`mart`.`{name}`"

    def plan(self, observation: Observation) -> StagePlan:
        if self.worker.call("plan") is not Fault.NONE:
            raise _stopped(Code.SERVER_UNAVAILABLE, "plan")
        for alias in observation.inventory.aliases:
            self._require_up(alias)
        return StagePlan(self.plan_digest, (), None)

    def create(self, plan: StagePlan, stage: ReplicaStage, *, authority_id: str, operation_id: str) -> None:
        if (operation_id, stage.uuid) not in self.world.recorded.claimed:
            self._broken("a table was created before its attempt was claimed")
        if stage.name in self.world.created or stage.uuid in self.world.created:
            self._broken("a private name or UUID was used again")
        self.world.created |= {stage.name, stage.uuid}

        def act() -> bool:
            return self.world.create(stage.alias, stage.name, stage.uuid)

        self._effect("create replica", stage, act)

    def check_created(
        self, plan: StagePlan, stage: ReplicaStage, name: str, observation: Observation
    ) -> None:
        table = observation.replicas[stage.alias].tables.get(name)
        if table is None or table.uuid != stage.uuid:
            raise _stopped(Code.CANDIDATE_DIFFERS, "the attempt's table")

    def extract(self, plan: StagePlan, stage: ReplicaStage) -> Loaded:
        # Nothing can be newer than the last look: whoever waits long before the call has to be forgiven.
        saw = self.worker.saw.record if self.worker.saw is not None else None
        extract = saw.extract if isinstance(saw, IndependentRecord) and saw.phase is Phase.LOCKED else None
        if self.judge_look and (extract is None or extract.uuid != stage.uuid):
            self._broken("the source was read, and its operation had not locked the target")
        number = len(self.world.read)
        rows, content = self.rows + number, sha256_hex(f"{self.content_name}.{number}")
        self.world.read[content] = rows
        self._load("extract", stage, rows, content)
        return Loaded(rows, rows, rows)

    def seal(self, plan: StagePlan, stage: ReplicaStage, rows: int, *, target_key: str) -> Artifact:
        fault = self.worker.call("seal")
        if fault in (Fault.REFUSED, Fault.UNSENT):
            raise _stopped(Code.SERVER_UNAVAILABLE, "seal")
        self._require_up(stage.alias)
        table = self.world.replicas[stage.alias].tables.get(stage.name)
        if table is None or table.rows != rows:
            raise _stopped(Code.ROWS_DISAGREE, "seal")
        artifact = Artifact(sha256_hex(table.content), table.rows, table.rows)

        def act() -> None:
            self.world.artifacts[artifact.sha256] = simulated.Artifact(table.rows, table.content)

        if fault is Fault.LATE:
            self.world.late.append(act)
        else:
            act()
        if fault in (Fault.LOST, Fault.LATE):
            raise _stopped(Code.SERVER_UNAVAILABLE, "seal")
        self.worker.after(fault)
        return artifact

    def sealed(self, artifact: Artifact, *, target_key: str) -> bool:
        if self.worker.call("sealed") not in (Fault.NONE, Fault.TWICE):
            raise _stopped(Code.SERVER_UNAVAILABLE, "the store")
        return artifact.sha256 in self.world.artifacts

    def load(self, plan: StagePlan, stage: ReplicaStage, artifact: Artifact, *, target_key: str) -> None:
        recorded = self.world.recorded
        if not any(stage.uuid == claimed for _, claimed in recorded.claimed):
            self._broken("a table was loaded before its attempt was claimed")
        elif (stage.uuid, artifact) not in recorded.bound:
            self._broken("a replica was loaded with what the record does not bind")
        found = self.world.artifacts.get(artifact.sha256)
        if found is None:
            self.worker.call("load replica")
            raise _stopped(Code.STAGING_FAILED, "the artifact is gone")
        if found.damaged:
            # What was read of it before the damage showed is there.
            self.worker.call("load replica")
            self.world.load(stage.alias, stage.name, found.rows // 2, f"damaged {found.content}")
            raise _stopped(Code.STAGING_FAILED, "the artifact is damaged")
        self._load("load replica", stage, found.rows, found.content)

    def settle(self, stage: ReplicaStage) -> None:
        if self.worker.call("settle") is not Fault.NONE or not self.world.replicas[stage.alias].up:
            raise _stopped(Code.STAGING_UNKNOWN, "settle")
        for load in [load for load in self.world.loads if load.uuid == stage.uuid]:
            self.world.end_load(load, killed=self.pick(2) == 0)

    def content(self, name: str, alias: str) -> CanonicalDigest:
        fault = self.worker.call("content replica")
        if fault not in (Fault.NONE, Fault.TWICE, Fault.KILL_AFTER):
            raise _stopped(Code.SERVER_UNAVAILABLE, "content")
        self._require_up(alias)
        table = self.world.replicas[alias].tables.get(name)
        if table is None:
            raise _stopped(Code.STAGING_FAILED, "the table is gone")
        digest = CanonicalDigest(table.rows, content_digest(table.content))
        self.worker.after(fault)
        return digest

    def promote(self, stage: ReplicaStage, candidate: str) -> None:
        if (candidate, stage.uuid) not in self.world.recorded.proven:
            self._broken("a table got the candidate's name, and that it is proven was not recorded")
        fault = self.worker.call("promote")
        if fault is Fault.REFUSED or not self.world.replicas[stage.alias].up:
            raise _stopped(Code.STAGING_FAILED, "promote")
        self._sent(fault, stage, lambda: self.world.rename(stage.alias, stage.name, candidate))
        self.worker.after(fault)

    def drop(self, stage: ReplicaStage) -> None:
        if stage.uuid not in self.world.recorded.listed:
            self._broken("a private table was dropped that no record lists: its load may still run")
        fault = self.worker.call("drop replica")
        if fault is Fault.REFUSED or not self.world.replicas[stage.alias].up:
            raise _stopped(Code.STAGING_FAILED, "drop")
        self._sent(fault, stage, lambda: self.world.drop(stage.alias, stage.name))
        self.worker.after(fault)

    def sweep(self, keep: Artifact | None, *, target_key: str) -> None:
        fault = self.worker.call("sweep")
        if fault in (Fault.REFUSED, Fault.UNSENT):
            return
        kept = keep.sha256 if keep is not None else None

        def act() -> None:
            for sha256 in set(self.world.artifacts) - {kept}:
                del self.world.artifacts[sha256]

        if fault is Fault.LATE:
            self.world.late.append(act)
        else:
            act()
        self.worker.after(fault)

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> Sequence[Stopped | None]:
        """Run one after the other, in an order that the history chooses."""
        return one_by_one(tasks, self.pick)

    # What becomes of a request.

    def _load(self, name: str, stage: ReplicaStage, rows: int, content: str) -> None:
        if stage.uuid in self.world.filled:
            self._broken("an attempt was loaded a second time")
        self.world.filled.add(stage.uuid)

        def act(*, running: bool = False) -> bool:
            return self.world.load(stage.alias, stage.name, rows, content, running=running)

        self._effect(name, stage, act, lost=lambda: act(running=True))

    def _effect(
        self,
        name: str,
        stage: ReplicaStage,
        act: Callable[[], bool],
        lost: Callable[[], bool] | None = None,
    ) -> None:
        fault = self.worker.call(name)
        if fault is Fault.REFUSED or not self.world.replicas[stage.alias].up:
            raise _stopped(Code.STAGING_FAILED, name)
        done = self._sent(fault, stage, act, lost)
        if fault in (Fault.UNSENT, Fault.LATE, Fault.LOST):
            raise _stopped(Code.STAGING_UNKNOWN, name)
        self.worker.after(fault)
        if not done:
            raise _stopped(Code.STAGING_FAILED, name)

    def _sent(
        self,
        fault: Fault,
        stage: ReplicaStage,
        act: Callable[[], object],
        lost: Callable[[], object] | None = None,
    ) -> object:
        """Let a request take its way. One that comes when its server is away is lost."""
        replica = self.world.replicas[stage.alias]
        match fault:
            case Fault.UNSENT:
                return None
            case Fault.LATE:
                self.world.late.append(lambda: void(act() if replica.up else None))
                return None
            case Fault.LOST:
                return (lost or act)()
            case Fault.TWICE:
                done = act()
                act()
                return done
        return act()

    def _require_up(self, alias: str) -> None:
        if not self.world.replicas[alias].up:
            raise _stopped(Code.REPLICA_UNAVAILABLE, alias)

    def _broken(self, what: str) -> None:
        self.world.broken.append(what)


def _stopped(code: Code, what: str) -> Stopped:
    return Stopped(Stop(code, f"{what}: no answer, or a refusal"))
