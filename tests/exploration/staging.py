"""The staging of independent replicas: the real ``stage_replicas`` in every interleaving up to a budget.

What a call does to the replicas, to the store and to the source, and what no worker may ask for, is the simulation's:
:class:`SimReplicaStaging` is asked once for each thing that may become of the call. The replicas of one execution are
staged one after the other, in every order where the scope says so, or in threads of which any may go on at each call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final
from unittest import mock

from airflow_provider_dpone.publication import replica_stages, transitions
from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import TaskIdentity, candidate_parts
from airflow_provider_dpone.publication.orphans import FoundTable, Why, find_orphans
from airflow_provider_dpone.publication.receipt import PublicationReceipt, StageReceipt
from airflow_provider_dpone.publication.record import (
    UNSENT_PHASES,
    AuthorityRecord,
    IndependentRecord,
    Owner,
    Phase,
    ReplicaStage,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanupRequest,
    OperatorRequest,
    StageRequest,
    _stage_replicas,
    abandon,
    cleanup,
    stage_replicas,
)
from airflow_provider_dpone.routes.ports import Loaded, Ports, StagePlan
from tests.exploration.automaton import Answer, Call, End, Outside, Puppet, Turns, run_once
from tests.exploration.explore import (
    MOST,
    WAITS,
    Exploration,
    Result,
    Role,
    Scope,
    publishing,
    spend,
    unnoticed,
)
from tests.exploration.model import (
    NO_ROW,
    Budget,
    Cluster,
    LateEffect,
    Model,
    Names,
    Request,
)
from tests.proof import oracle
from tests.proof.oracle import Broken, Truth
from tests.simulation import world as simulated
from tests.simulation.ports import KEY, TARGET, Fault
from tests.simulation.replica_staging import SimReplicaStaging, one_by_one
from tests.simulation.run import OWN_OLD, SITE
from tests.simulation.world import AUTHORITY, Entry, Recorded, Table, World

# ---- the tasks


@dataclass(frozen=True, slots=True)
class Source(Outside):
    """What a source gives: how many rows, and what their contents are called."""

    rows: int
    content: str


@dataclass(slots=True)
class Port(Outside):
    """The staging port of one task: each call to the outside stops the task."""

    puppet: Puppet
    source: Source
    threads: bool = False

    def quoted(self, name: str) -> str:
        return f"`mart`.`{name}`"

    def plan(self, observation: Observation) -> StagePlan:
        return StagePlan("p" * 64, (), None)

    def create(self, plan: StagePlan, stage: ReplicaStage, *, authority_id: str, operation_id: str) -> None:
        self.puppet.ask("create", stage, operation_id)

    def check_created(
        self, plan: StagePlan, stage: ReplicaStage, name: str, observation: Observation
    ) -> None:
        SimReplicaStaging.check_created(self, plan, stage, name, observation)  # type: ignore[arg-type]

    def extract(self, plan: StagePlan, stage: ReplicaStage) -> Loaded:
        loaded: Loaded = self.puppet.ask("extract", stage, self.puppet.locked, self.source)
        return loaded

    def seal(self, plan: StagePlan, stage: ReplicaStage, rows: int, *, target_key: str) -> Artifact:
        artifact: Artifact = self.puppet.ask("seal", stage, rows)
        return artifact

    def sealed(self, artifact: Artifact, *, target_key: str) -> bool:
        return bool(self.puppet.ask("sealed", artifact))

    def load(self, plan: StagePlan, stage: ReplicaStage, artifact: Artifact, *, target_key: str) -> None:
        self.puppet.ask("load", stage, artifact)

    def settle(self, stage: ReplicaStage) -> None:
        self.puppet.ask("settle", stage)

    def content(self, name: str, alias: str) -> CanonicalDigest:
        digest: CanonicalDigest = self.puppet.ask("content of", name, alias)
        return digest

    def promote(self, stage: ReplicaStage, candidate: str) -> None:
        self.puppet.ask("promote", stage, candidate)

    def drop(self, stage: ReplicaStage) -> None:
        self.puppet.ask("drop", stage)

    def sweep(self, keep: Artifact | None, *, target_key: str) -> None:
        self.puppet.ask("sweep", keep)

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> Sequence[Stopped | None]:
        if self.threads:
            return self.puppet.side_by_side(tasks)
        return one_by_one(tasks, lambda left: self.puppet.ask("pick", left) if left > 1 else 0)


def staging(run: int, *, threads: bool = False) -> Role:
    """The stage task of a run.

    :param threads: its replicas are staged in threads; else one after the other.
    """

    def role(_: str, ports: Ports) -> Any:
        assert isinstance(ports.catalog, Puppet)
        port = Port(ports.catalog, Source(10 + run, f"new{run}"), threads)
        return stage_replicas(ports, port, SITE, request, WAITS)

    owner = Owner("dag", f"run{run}", "stage", -1)
    request = StageRequest(identity(run), owner, order_key=f"{run:04d}")
    return role


def identity(run: int) -> TaskIdentity:
    """The identity of a run's stage task."""
    return TaskIdentity("airflow", "dag", f"run{run}", "stage", -1, "0")


def operating(operation_id: str, ports: Ports) -> Any:
    """An operator's ``abandon`` of whatever holds the target."""
    return abandon(ports, SITE, OperatorRequest("explored"), WAITS)


@dataclass(frozen=True, slots=True)
class StageScope(Scope):
    """What is explored of staging. It begins with a target that has no record.

    :ivar any_order: an execution may stage its replicas in any order.
    :ivar stray: the live tables are not alike.
    :ivar most: so many states are visited, the nearest ones.
    """

    any_order: bool = False
    stray: bool = False
    most: int = MOST

    def explore(self, most: int = MOST) -> Result:
        """Visit every state that can be reached; see :meth:`Exploration.run`."""
        with (
            mock.patch.object(_stage_replicas, "_Slot", partial(_new_slot, _stage_replicas._Slot)),
            mock.patch.object(_stage_replicas, "_Stage", partial(_new_stage, _stage_replicas._Stage)),
        ):
            return StageExploration(self).run(min(most, self.most))


def _new_slot(kind: Any, ports: Ports, stored: StoredRecord) -> Any:
    return kind(ports, stored, Turns())


def _new_stage(kind: Any, *arguments: Any) -> Any:
    stage = kind(*arguments)
    stage.looking = Turns()
    return stage


# ---- the cluster


@dataclass(slots=True)
class Asked:
    """One call of a worker: what becomes of it, and what the worker saw last."""

    world: World
    fault: Fault = Fault.NONE
    saw: StoredRecord | None = None

    def call(self, name: str) -> Fault:
        """Pass a point."""
        return self.fault

    def after(self, fault: Fault) -> None:
        """End a call. Killed after it is killed before the next one."""


@dataclass(slots=True)
class StageModel(Model):
    """The cluster of independent replicas. What they do is the simulated world's."""

    stray: bool = False
    world: World = field(init=False)
    recorded: list[Recorded] = field(default_factory=lambda: [Recorded()])
    known: dict[Any, int] = field(default_factory=dict)
    generations: dict[str, frozenset[str]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.world = World(self.size, independent=True)
        self.inventory = self.other = self.world.inventory

    def start(self, budget: Budget) -> Cluster:
        """A target without a record, whose live tables were there before."""
        world = self.world
        if not self.first:
            world.seed(TARGET.table, OWN_OLD)
            self.before = tuple(replica.tables[TARGET.table].uuid for replica in world.replicas.values())
        if self.stray:
            last = world.replicas[self.inventory.aliases[-1]]
            last.tables[TARGET.table] = replace(last.tables[TARGET.table], rows=8, content="stray")
        return Cluster(_names(world), NO_ROW, budget=budget)

    def stored(self, c: Cluster) -> StoredRecord | None:  # type: ignore[override]
        """Return the record as Keeper holds it."""
        return None if c.row == NO_ROW else Model.stored(self, c)

    def swapped(self, c: Cluster, expected: tuple[str, int] | None, row: int) -> Cluster | None:
        """Return the cluster after a compare-and-swap; ``None`` if the row is not as expected."""
        after = Model.swapped(self, c, expected, row)
        if after is None:
            return None
        key = ("stored", c.staging.recorded, row)
        found = self.known.get(key)
        if found is None:
            now = _copied(self.recorded[c.staging.recorded])
            now.add(self.rows[row][1])
            self.generations.update(now.generations)
            named = tuple(frozenset(getattr(now, each.name)) for each in fields(now))
            found = self.known.setdefault(named, len(self.recorded))
            if found == len(self.recorded):
                self.recorded.append(now)
            self.known[key] = found
        return after._replace(staging=c.staging._replace(recorded=found))

    # The replicas, as the simulated world.

    def thawed(self, c: Cluster) -> World:
        """Return the world of a cluster. There is only one at a time."""
        world, s = self.world, c.staging
        for number, (replica, names) in enumerate(zip(world.replicas.values(), c.replicas, strict=True)):
            replica.tables = dict(names)
            replica.up = number not in s.away
        world.artifacts = {
            sha256: simulated.Artifact(rows, content, damaged)
            for sha256, (rows, content, damaged) in s.artifacts
        }
        world.loads, world.read = list(s.loads), dict(s.read)
        world.created, world.filled = set(s.created), set(s.filled)
        world.applied, world.broken, world.late = [], [], []
        world.recorded = self.recorded[s.recorded]
        world.rows = {} if c.row == NO_ROW else {KEY: (self.rows[c.row[0]][0], c.row[1])}
        return world

    def frozen(self, c: Cluster) -> Cluster:
        """Return the cluster with what the world is now."""
        world, s = self.world, c.staging
        now = s._replace(
            loads=tuple(world.loads),
            artifacts=tuple(
                (sha256, (a.rows, a.content, a.damaged)) for sha256, a in sorted(world.artifacts.items())
            ),
            read=tuple(world.read.items()),
            created=s.created if len(s.created) == len(world.created) else frozenset(world.created),
            filled=s.filled if len(s.filled) == len(world.filled) else frozenset(world.filled),
        )
        replicas = _names(world)
        return c if (replicas, now) == (c.replicas, s) else c._replace(replicas=replicas, staging=now)

    def taken(self, c: Cluster, effect: LateEffect) -> Cluster:
        """Return the cluster after a late request took effect. One that finds its server away is lost."""
        world = self.thawed(c)
        match effect:
            case LateEffect("seal", (sha256, rows, content)):
                world.artifacts[sha256] = simulated.Artifact(rows, content)
            case LateEffect("sweep", ()):
                world.artifacts.clear()
            case LateEffect(method, (alias, *more)):
                if world.replicas[alias].up:
                    getattr(world, method)(alias, *more)
        return self.frozen(c)

    def executed(self, c: Cluster, replica: int) -> tuple[Cluster, Any] | None:
        """Return the cluster after a replica executed its next entry and marked it, and the table that it dropped."""
        at = next((n for n, e in enumerate(c.queue) if e.hosts[replica][0] < 2), None)
        if at is None or replica in c.staging.away:
            return None
        alias = self.inventory.aliases[replica]
        world = self.thawed(c)
        world.queue = [
            Entry(
                "query-0", self.statements[c.queue[at].statement], "", {world.replicas[alias].host: "waiting"}
            )
        ]
        world.work(alias)
        (entry,), world.queue = world.queue, []
        dropped = next((applied.removed for applied in world.applied if applied.removed is not None), None)
        mark = (2, entry.codes[world.replicas[alias].host])
        return self._marked(self.frozen(c), at, replica, mark), dropped

    def again(self, c: Cluster, replica: int) -> Cluster | None:
        """A replica that runs its entry again is explored with what is prepared."""
        return None

    def healed(self, c: Cluster) -> tuple[Cluster, list[tuple[int, Any]]]:
        """Return the cluster when all faults are over and the replicas are idle, and what was dropped where."""
        c = c._replace(staging=c.staging._replace(away=()))
        drops = []
        while c.late:
            late = c.late[0]
            if isinstance(late, LateEffect) and late.method == "drop":
                alias, name = late.args
                replica = self.inventory.aliases.index(alias)
                table = dict(c.replicas[replica]).get(name)
                drops += [(replica, table.uuid)] if table is not None else []
            c = self.arrived(c, 0)
        while c.staging.loads:
            c = self.load_ended(c, c.staging.loads[0])
        c, more = Model.healed(self, c)
        return c, [*drops, *more]

    def load_ended(self, c: Cluster, load: simulated.RunningLoad) -> Cluster:
        """Return the cluster after a load that was running came to its end."""
        self.thawed(c).end_load(load, killed=False)
        return self.frozen(c)

    # Looking.

    def look(
        self,
        replicas: tuple[Names | None, ...],
        row: tuple[int, int],
        tables: tuple[str, ...],
        other: bool,
    ) -> Observation:
        """Return a look at the replicas; one that is ``None`` could not be read."""
        world = self.world
        for replica, names in zip(world.replicas.values(), replicas, strict=True):
            replica.up = names is not None
            replica.tables = dict(names or ())
        world.rows = {} if row == NO_ROW else {KEY: (self.rows[row[0]][0], row[1])}
        return replace(world.observe(KEY, list(tables)), sequence=0)

    def content(self, c: Cluster, table: str) -> dict[str, Any]:
        """Return the content digest of a table on every replica that has it."""
        return self.thawed(c).content(table)

    def truth(self, c: Cluster) -> Truth:
        """Return the world as it is, for the oracle."""
        s = c.staging
        unfinished = tuple(e.token for e in c.queue if any(done < 2 for done, _ in e.hosts))
        unfinished += tuple(r.token for r in c.late if isinstance(r, Request))
        key = (c.replicas, c.row, c.sent, c.permits, unfinished, s.recorded, s.read, s.lost)
        found = self.truths.get(key)
        if found is None:
            record, recorded = self.record(c), self.recorded[s.recorded]
            held = dict(zip(self.inventory.aliases, map(dict, c.replicas), strict=True))
            found = self.truths[key] = Truth(
                live={alias: names.get(TARGET.table) for alias, names in held.items()},
                record=record,
                sent=c.sent,
                permits=c.permits,
                unfinished=unfinished,
                known=recorded.prepared | {*self.before},
                before=self.before,
                first=self.first,
                candidates={}
                if record is None
                else {alias: names.get(record.candidate) for alias, names in held.items()},
                generations=self.generations,
                listed=recorded.listed,
                whole={(OWN_OLD.rows, OWN_OLD.content)} | {(rows, content) for content, rows in s.read},
                touched=self.before if self.stray else (),
                lost=s.lost,
                ready=recorded.ready,
            )
        return found


def _copied(recorded: Recorded) -> Recorded:
    return Recorded(*(getattr(recorded, each.name).copy() for each in fields(recorded)))


def _names(world: World) -> tuple[Names, ...]:
    return tuple(tuple(sorted(replica.tables.items(), key=_first)) for replica in world.replicas.values())


def _first(item: tuple[str, Table]) -> str:
    return item[0]


# ---- exploring

_NAMES: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}")
"""What is unlike in every attempt: UUIDs, tokens and digests."""

FAULTS: dict[str, tuple[Fault, ...]] = {
    "create": (Fault.REFUSED, Fault.LOST, Fault.UNSENT, Fault.LATE),
    "extract": (Fault.REFUSED, Fault.LOST, Fault.UNSENT, Fault.LATE, Fault.TWICE),
    "seal": (Fault.REFUSED, Fault.LOST, Fault.LATE),
    "sealed": (Fault.REFUSED,),
    "load": (Fault.REFUSED, Fault.LOST, Fault.UNSENT, Fault.LATE, Fault.TWICE),
    "settle": (Fault.REFUSED,),
    "content of": (Fault.REFUSED,),
    "promote": (Fault.REFUSED, Fault.UNSENT, Fault.LATE),
    "drop": (Fault.REFUSED, Fault.UNSENT, Fault.LATE),
    "sweep": (Fault.REFUSED, Fault.LATE),
}
"""What may become of a call. Where a lost reply is no error, it is like none."""


@dataclass(slots=True)
class StageExploration(Exploration):
    """Explores a scope of staging."""

    scope: StageScope
    model: StageModel = field(init=False)
    met: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = StageModel(self.scope.replicas, self.scope.first, stray=self.scope.stray)
        self.operation_id = identity(0).operation_id(KEY)

    # What the cluster may do by itself.

    def _events(self, c: Cluster) -> Iterator[tuple[str, Cluster]]:
        yield from Exploration._events(self, c)
        s, budget = c.staging, c.budget
        for load in s.loads:
            if self.model.inventory.aliases.index(load.alias) not in s.away:
                yield f"a load on {load.alias} comes to its end", self.model.load_ended(c, load)
        for replica, alias in enumerate(self.model.inventory.aliases):
            if replica in s.away:
                back = tuple(n for n in s.away if n != replica)
                yield f"{alias} is back", c._replace(staging=s._replace(away=back))
            elif budget.away:
                gone = s._replace(away=tuple(sorted((*s.away, replica))))
                yield (
                    f"{alias} is away",
                    c._replace(staging=gone, budget=budget._replace(away=budget.away - 1)),
                )
            if budget.losses:
                for name, table in c.replicas[replica]:
                    if name != TARGET.table:
                        left = tuple(item for item in c.replicas[replica] if item[0] != name)
                        replicas = (*c.replicas[:replica], left, *c.replicas[replica + 1 :])
                        yield (
                            f"somebody drops {name} on {alias}",
                            c._replace(
                                replicas=replicas,
                                staging=s._replace(lost=s.lost | {table.uuid}),
                                budget=budget._replace(losses=budget.losses - 1),
                            ),
                        )
        if budget.spoils:
            spent = budget._replace(spoils=budget.spoils - 1)
            for sha256, (rows, content, _) in s.artifacts:
                others = tuple(item for item in s.artifacts if item[0] != sha256)
                yield "the artifact is lost", c._replace(staging=s._replace(artifacts=others), budget=spent)
                spoiled = tuple(sorted((*others, (sha256, (rows, content, True)))))
                yield (
                    "the artifact is damaged",
                    c._replace(staging=s._replace(artifacts=spoiled), budget=spent),
                )

    # What may become of a call.

    def _threads(
        self, c: Cluster, call: Call, half: tuple[Any, ...] | None
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        """Let any of a task's threads go on. What each of them has half done stays so meanwhile."""
        halves: dict[int, Any] = dict(half or ())
        calls = [(n, one) for n, one in enumerate(call.args) if one is not None]
        silent = [(n, one) for n, one in calls if unnoticed(one)]
        for n, one in silent[:1] or calls:
            others = {other: kept for other, kept in halves.items() if other != n}
            for said, after, answer, own in self._outcomes(c, one, halves.get(n)):
                left = tuple(sorted({**others, **({n: own} if own is not None else {})}.items())) or None
                if answer is not None:
                    answer = self._answer(("of", n, id(answer)), (n, answer.value))
                yield f"thread {n}: {one.kind}, {said}", after, answer, left

    def _effects(
        self, c: Cluster, call: Call, half: tuple[Any, ...] | None
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        if call.kind == "any":
            yield from self._threads(c, call, half)
            return
        if call.kind == "pick":
            for number in range(call.args[0] if self.scope.any_order else 1):
                yield f"number {number}", c, self._answer(("pick", number), number), None
            return
        faults = (Fault.NONE, *(FAULTS[call.kind] if c.budget.faults else ()))
        for fault in faults:
            for pick in range(2 if call.kind == "settle" and fault is Fault.NONE and c.staging.loads else 1):
                # The first of what may become of it is what becomes of it when all is calm: a load is not killed.
                yield self._effect(c, call, fault, 1 - pick)

    def _effect(
        self, c: Cluster, call: Call, fault: Fault, pick: int
    ) -> tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]:
        # A request that is late is one that was not done, and that is done later.
        done = Fault.UNSENT if fault is Fault.LATE else fault
        world = self.model.thawed(c)
        answer = self._asked(world, call, done, pick)
        for broken in world.broken:
            raise Broken(f"{call.kind}, {fault}: {broken}")
        after = self.model.frozen(c)
        if fault is not Fault.NONE:
            after = spend(after)
        for applied in world.applied:
            if applied.removed is not None:
                replica = self.model.inventory.aliases.index(applied.alias)
                self._judge_drop(after, replica, applied.removed)
        if fault is Fault.LATE and (late := self._late(c, after, call)) is not None:
            after = after._replace(late=(*after.late, late))
        return fault.value, after, answer, None

    def _asked(self, world: World, call: Call, fault: Fault, pick: int) -> Answer:
        asked = Asked(world, fault)
        source: Source = call.args[2] if call.kind == "extract" else Source(0, "")
        port = SimReplicaStaging(asked, source.rows, source.content, lambda _: pick)  # type: ignore[arg-type]
        plan = StagePlan("p" * 64, (), None)
        value: Any = None
        try:
            match call.kind, call.args:
                case "create", (stage, operation_id):
                    self.model.owners[stage.uuid] = operation_id
                    port.create(plan, stage, authority_id=AUTHORITY, operation_id=operation_id)
                case "extract", (stage, locked, _):
                    if locked != stage.uuid:
                        raise Broken("the source was read, and its operation had not locked the target")
                    port.judge_look = False
                    value = port.extract(plan, stage)
                case "seal", (stage, rows):
                    value = port.seal(plan, stage, rows, target_key=KEY)
                case "sealed", (artifact,):
                    value = port.sealed(artifact, target_key=KEY)
                case "load", (stage, artifact):
                    port.load(plan, stage, artifact, target_key=KEY)
                case "settle", (stage,):
                    port.settle(stage)
                case "content of", (name, alias):
                    value = port.content(name, alias)
                case "promote", (stage, candidate):
                    port.promote(stage, candidate)
                case "drop", (stage,):
                    port.drop(stage)
                case "sweep", (keep,):
                    port.sweep(keep, target_key=KEY)
                case _:
                    raise AssertionError(call.kind)
        except Stopped as stopped:
            return self._failed(stopped.stop.code)
        return self._answer((call.kind, value), value)

    def _late(self, c: Cluster, after: Cluster, call: Call) -> LateEffect | None:
        """Return what is on its way now."""
        match call.kind, call.args:
            case "create", (stage, _):
                return LateEffect("create", (stage.alias, stage.name, stage.uuid))
            case "extract", (stage, _, _):
                content, rows = after.staging.read[-1]
                return LateEffect("load", (stage.alias, stage.name, rows, content))
            case "load", (stage, artifact):
                rows, content, damaged = dict(c.staging.artifacts).get(artifact.sha256, (0, "", True))
                return None if damaged else LateEffect("load", (stage.alias, stage.name, rows, content))
            case "promote", (stage, candidate):
                return LateEffect("rename", (stage.alias, stage.name, candidate))
            case "drop", (stage,):
                return LateEffect("drop", (stage.alias, stage.name))
            case "seal", (stage, rows):
                replica = self.model.inventory.aliases.index(stage.alias)
                table = dict(c.replicas[replica]).get(stage.name)
                if table is None or table.rows != rows:
                    return None
                return LateEffect("seal", (sha256_hex(table.content), table.rows, table.content))
            case _:
                return LateEffect("sweep", ())

    def _seen(self, c: Cluster, replicas: tuple[Names | None, ...], tables: tuple[str, ...]) -> Answer:
        asked = {*tables}
        shown = tuple(
            None
            if names is None or number in c.staging.away
            else tuple(item for item in names if item[0] in asked)
            for number, names in enumerate(replicas)
        )
        return Exploration._seen(self, c, shown, tables)

    # Judging.

    def _judge_write(self, c: Cluster, after: Cluster) -> None:
        record, before = self.model.record(after), self.model.record(c)
        bound = isinstance(record, IndependentRecord) and record.phase is Phase.STAGING
        if bound and (before is None or before.phase is Phase.LOCKED):
            oracle.judge_baseline(self.model.truth(after))

    def _judge_drop(self, c: Cluster, replica: int, dropped: Any) -> None:
        oracle.judge_drop(self.model.truth(c), self.model.inventory.aliases[replica], dropped)

    def _judge_end(self, c: Cluster, end: End) -> None:
        if end.surprise is not None:
            raise Broken(f"a task raised {end.surprise}")
        recorded = self.model.recorded[c.staging.recorded]
        match end.result:
            case StageReceipt(candidate_uuid=uuid):
                if not self.model.generations.get(uuid, {""}) <= recorded.prepared:
                    raise Broken("what was said to be staged was never prepared")
            case PublicationReceipt():
                record = self.model.record(c)
                assert isinstance(record, IndependentRecord)
                oracle.judge_success(
                    self.model.truth(c),
                    end.result,
                    uuid=record.desired.uuid,
                    rows=record.content.rows,
                    content=record.content.sha256,
                )

    # When all faults are over.

    def _judge_calm(self, cluster: int) -> None:
        c, drops = self.model.healed(self.clusters.values[cluster])
        key = self._alike(c)
        end = self.healed.get(key)
        if end is None:
            for replica, dropped in drops:
                self._judge_drop(c, replica, dropped)
            self._judge(c, "the replicas finish")
            # How large a record may become takes half of the time, and no interleaving changes it.
            with (
                mock.patch.object(replica_stages, "require_way_out", _roomy),
                mock.patch.object(transitions, "require_room", _roomy),
            ):
                end = self.healed[key] = self._calm(c)
        self.ends[cluster] = end

    def _alike(self, c: Cluster) -> str:
        """Return what a calm run depends on. Clusters that differ only in what their tables are called are alike."""
        s, recorded = c.staging, self.model.recorded[c.staging.recorded]
        kinds = (recorded.ready, recorded.prepared, recorded.listed, s.filled)
        tables = [
            [(name, table, [table.uuid in kind for kind in kinds]) for name, table in names]
            for names in c.replicas
        ]
        row, _ = self.model.found(c)
        said = f"{row.phase} {row.payload}" if row is not None else ""
        text = f"{said} {tables} {c.queue} {sorted(c.unused)} {s.artifacts}"
        names: dict[str, str] = {}
        return _NAMES.sub(lambda found: names.setdefault(found[0], f"#{len(names)}"), text)

    def _run_calm(
        self, c: Cluster, label: str, role: Role, operation_id: str | None = None
    ) -> tuple[Cluster, End]:
        # Hardly any two of these runs meet, so what their frames hold is not looked at.
        asks, go_on = run_once(f"calm {label}", partial(role, operation_id or self.operation_id))
        half: tuple[Any, ...] | None = None
        while isinstance(asks, Call):
            before = c
            _, c, answer, half = next(self._outcomes(c, asks, half))
            if c is not before:
                c, drops = self.model.idle(c)
                for replica, dropped in drops:
                    self._judge_drop(c, replica, dropped)
                self._judge(c, label)
            if answer is not None:
                self.written.pop(id(asks), None)
                asks = go_on(answer)
        self._judge_end(c, asks)
        return c, asks

    def _met(self, when: str, c: Cluster) -> bool:
        """Tell whether a calm run went on from a cluster like this before."""
        key = (when, self._alike(c))
        before = len(self.met)
        self.met.add(key)
        return len(self.met) == before

    def _calm(self, c: Cluster) -> str:
        """Return how it ends when the task is run again, or else an operator gives the operation up."""
        after, told = self._run_calm(c, "go on", staging(0))
        if isinstance(told.result, StageReceipt):
            self._published(after)
            end = "staged"
        else:
            assert told.stop is not None
            end = f"{told.stop.code.rpartition('CLUSTER_')[2]}, {self._given_up(after)}"
        # Or an operator gives it up at once.
        return f"{end}; {self._given_up(c)}"

    def _given_up(self, c: Cluster) -> str:
        """Let an operator give up what holds the target, and the next run stage and publish."""
        record = self.model.record(c)
        said = "free"
        if record is not None and record.phase in UNSENT_PHASES:
            c, told = self._run_calm(c, "give up", operating)
            record = self.model.record(c)
            if record is None or record.phase is not Phase.ABORTED:
                raise Broken(f"an operator could not give up: {told.stop}")
            self._judge_left(c)
            said = "given up"
        if not (self.scope.stray or self._met("free", c)):
            c, told = self._run_calm(c, "next run", staging(9))
            if not isinstance(told.result, StageReceipt):
                raise Broken(f"the next run could not stage: {told.stop or told.result}")
            self._published(c)
        return said

    def _published(self, c: Cluster) -> None:
        """Judge that what is prepared can be published, and that nothing is left but what is kept on purpose."""
        record = self.model.record(c)
        if record is None or record.phase is not Phase.PREPARED:
            raise Broken("nothing is prepared")
        if self._met("prepared", c):
            return
        operation = record.operation_id
        c, told = self._run_calm(c, f"publish {operation}", publishing, operation)
        if not isinstance(told.result, PublicationReceipt):
            raise Broken(f"what was prepared could not be published: {told.stop}")
        candidate = record.candidate
        c, told = self._run_calm(
            c, f"cleanup {operation} {candidate}", partial(cleaned, candidate), operation
        )
        record = self.model.record(c)
        if record is None or not record.ended:
            raise Broken(f"no way out of {record.phase if record else None}: {told.stop}")
        self._judge_left(c)

    def _judge_left(self, c: Cluster) -> None:
        """Judge that nothing of ours is left that only a person could tell apart from what is needed."""
        tables = [
            FoundTable(
                alias,
                TARGET.database,
                name,
                table.uuid,
                AUTHORITY,
                self.model.owners.get(table.uuid),
                table.rows,
                False,
                0,
            )
            for alias, names in zip(self.model.inventory.aliases, c.replicas, strict=True)
            for name, table in names
            if candidate_parts(name)
        ]
        record = self.model.record(c)
        found = find_orphans(
            tables,
            [record] if record else [],
            authority_ids=(AUTHORITY,),
            unreadable_keys=(),
            now=int(self.model.world.now),
            independent=True,
        )
        for one in found:
            if one.why not in (Why.LEFT, Why.DUE):
                raise Broken(f"{one.name} is left on {', '.join(one.uuids)}: {one.why}")


def cleaned(candidate: str, operation_id: str, ports: Ports) -> Any:
    """The cleanup task of an operation."""
    return cleanup(ports, SITE, CleanupRequest(operation_id, candidate), WAITS)


def _roomy(record: AuthorityRecord) -> None:
    """Every record has room enough."""
