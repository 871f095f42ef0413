"""One simulated history: a few runs of a DAG on one target, with faults, and the oracle that judges it.

Each task attempt is a greenlet that runs the real route code. At every port call it hands control to the
hub, which chooses who goes on, what happens to the call, and what the cluster does meanwhile. A history is
a pure function of its plan, so a failing seed is a regression test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from greenlet import greenlet  # type: ignore[import-untyped]

from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.explain import explain as explain_facts
from airflow_provider_dpone.publication.identity import TaskIdentity, candidate_parts
from airflow_provider_dpone.publication.orphans import FoundTable, Orphan, Why, find_orphans
from airflow_provider_dpone.publication.receipt import PublicationReceipt, StageReceipt
from airflow_provider_dpone.publication.record import (
    STAGE_PHASES,
    UNSENT_PHASES,
    ContentDigest,
    IndependentRecord,
    Owner,
    Phase,
    decode,
    is_rollback,
)
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import CandidateIntent
from airflow_provider_dpone.publication.watch import Look, Slot, Watch, Woken, judge_look
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanupRequest,
    HandedOver,
    OperatorRequest,
    PublishRequest,
    Site,
    StageRequest,
    Waits,
    abandon,
    cleanup,
    drop_orphan,
    publish,
    resolve,
    rollback,
    stage,
    stage_replicas,
)
from airflow_provider_dpone.routes.ports import Ports
from tests.proof import oracle
from tests.proof.oracle import Broken, Truth
from tests.simulation.ports import (
    KEY,
    TARGET,
    EvidencePort,
    Fault,
    Killed,
    SimEvidence,
    SimStaging,
    Worker,
)
from tests.simulation.replica_staging import SimReplicaStaging
from tests.simulation.trail import TrailOracle
from tests.simulation.world import AUTHORITY, CONTROL, USER, Table, World, content_digest

SITE = Site(TARGET, USER, CONTROL)
WAITS = Waits(ready=5, publish=20, cleanup=5, busy=0, visible=1, poll_first=0.5, poll_last=4)
OLD = Table("00000000-0000-4000-8000-00000000000a", 7, "old", "/clickhouse/tables/old/01")
OWN_OLD = replace(OLD, content=content_digest(OLD.content))
"""The same where tables are independent."""
TRIES = 3
FAULTS = tuple(fault for fault in Fault if fault is not Fault.NONE)
MOST_CLEARS = 2
MOST_LOOKS = 6
"""After this many looks of its trigger a deferred task is woken anyhow, as at its deadline."""


class Chooser(Protocol):
    """Chooses what happens. Everything random of a history comes from here."""

    def fault(self, point: str) -> Fault:
        """What happens to the call at ``point``."""

    def order(self, ready: int) -> int:
        """Which of ``ready`` workers goes on."""

    def disturb(self, world: World) -> None:
        """What the cluster does meanwhile."""

    def strange(self) -> bool:
        """Whether a stranger touches our table now."""

    def twin(self) -> bool:
        """Whether a second worker runs the same try: a zombie, or a message delivered twice."""

    def operator(self) -> bool:
        """Whether an operator runs a command on the target now."""

    def hand_over(self) -> float | None:
        """After how many seconds this publish call may hand its waiting over."""

    def wakes(self) -> bool:
        """Whether the trigger of a deferred publication looks now."""

    def forgets(self) -> bool:
        """Whether what the trigger saw is lost: the task is cleared, or the triggerer restarts."""

    def way(self) -> bool:
        """Whether that is a command that operators begin themselves: a rollback, or the drop of an orphan."""

    def clears(self) -> bool:
        """Whether somebody clears a stage task that has ended: its next try is another operation."""


@dataclass(slots=True)
class Calm:
    """No fault, except at the calls that ``faults`` names by their number."""

    faults: Mapping[int, Fault] = field(default_factory=dict)
    points: list[str] = field(default_factory=list)
    disturbances: Mapping[int, Callable[[World], None]] = field(default_factory=dict)
    twins: bool = False
    operators: frozenset[int] = frozenset()
    hands_over: float | None = None

    def fault(self, point: str) -> Fault:
        self.points.append(point)
        return self.faults.get(len(self.points) - 1, Fault.NONE)

    def order(self, ready: int) -> int:
        # In turn: with one worker it is always that one.
        return len(self.points) % ready

    def disturb(self, world: World) -> None:
        if (act := self.disturbances.get(len(self.points))) is not None:
            act(world)
        for alias in world.replicas:
            world.work(alias)

    def strange(self) -> bool:
        return False

    def twin(self) -> bool:
        return self.twins

    def operator(self) -> bool:
        return len(self.points) in self.operators

    def hand_over(self) -> float | None:
        return self.hands_over

    def wakes(self) -> bool:
        return True

    def forgets(self) -> bool:
        return False

    def way(self) -> bool:
        return False

    def clears(self) -> bool:
        return False


@dataclass(slots=True)
class Seeded:
    """Random faults, order and cluster events from one seed."""

    random: random.Random
    rate: float = 0.06
    noise: float = 0.12
    strangers: float = 0.0
    twins: float = 0.0
    operators: float = 0.0
    deferrals: float = 0.0
    ways: float = 0.0
    clearing: float = 0.0
    focus: int | None = None
    """The one kind of cluster event that most of this history's events are."""

    def strange(self) -> bool:
        return self.random.random() < self.strangers

    def twin(self) -> bool:
        return self.random.random() < self.twins

    def operator(self) -> bool:
        return self.operators > 0 and self.random.random() < self.operators

    def hand_over(self) -> float | None:
        if self.deferrals > 0 and self.random.random() < self.deferrals:
            return self.random.choice([0.0, 1.0, 4.0])
        return None

    def wakes(self) -> bool:
        return self.random.random() < 0.1

    def forgets(self) -> bool:
        return self.random.random() < 0.15

    def way(self) -> bool:
        return self.ways > 0 and self.random.random() < self.ways

    def clears(self) -> bool:
        return self.clearing > 0 and self.random.random() < self.clearing

    def fault(self, point: str) -> Fault:
        if self.random.random() >= self.rate:
            return Fault.NONE
        return self.random.choice(FAULTS)

    def order(self, ready: int) -> int:
        return self.random.randrange(ready)

    def disturb(self, world: World) -> None:
        alias = self.random.choice(list(world.replicas))
        replica = world.replicas[alias]
        if self.random.random() < self.noise:
            focused = self.focus is not None and self.random.random() < 0.7
            match self.focus if focused else self.random.randrange(9 if world.independent else 8):
                case 0:
                    replica.paused = True
                case 1:
                    replica.up = False
                case 2:
                    world.crash_before_mark[alias] = 1
                case 3:
                    world.fail_next[alias] = 1
                case 4:
                    world.prune()
                case 5 | 6:
                    world.arrive()
                case 8:
                    self._spoil(world)
                case _:
                    for back in world.replicas.values():
                        back.up, back.paused = True, False
        if self.random.random() < 0.5:
            world.work(alias)

    def _spoil(self, world: World) -> None:
        """Let the store lose an artifact, or give it back damaged."""
        if not world.artifacts:
            return
        sha256 = self.random.choice(sorted(world.artifacts))
        if self.random.random() < 0.5:
            del world.artifacts[sha256]
        else:
            world.artifacts[sha256].damaged = True


@dataclass(slots=True)
class Operation:
    """One DAG run: stage, publish, cleanup, each with retries.

    :ivar dag: another DAG's run is of another publication.
    :ivar series: how often its stage task was cleared.
    :ivar watch: what its trigger waits for, while its publish task is deferred.
    :ivar looks: how often the trigger has looked.
    """

    index: int
    dag: str = "dag"
    series: int = 0
    staged: StageReceipt | None = None
    published: PublicationReceipt | None = None
    stops: list[Stop] = field(default_factory=list)
    task: int = 0
    tries: int = 0
    watch: Watch | None = None
    looks: int = 0

    @property
    def over(self) -> bool:
        return self.task > 2


@dataclass(slots=True)
class Attempt:
    """One running task attempt."""

    operation: Operation | None
    worker: Worker
    glet: greenlet
    twin: bool = False
    point: str = ""
    watched: Watch | None = None


@dataclass(slots=True)
class History:
    """Runs the operations under a chooser and judges what happened."""

    chooser: Chooser
    replicas: int = 2
    operations: int = 2
    overlap: bool = False
    first: bool = False
    retention: int = 0
    independent: bool = False
    others: bool = False
    """Every second run is of another publication on the same target."""
    world: World = field(init=False)
    trail: SimEvidence = field(init=False)
    ops: list[Operation] = field(init=False)
    running: list[Attempt] = field(init=False)
    nonces: int = 0
    judged: int = 0
    seen: tuple[Any, ...] = ()
    healing: bool = False
    strangers: set[str] = field(default_factory=set)
    operator_stops: list[Stop] = field(default_factory=list)
    judge_trail: bool = True
    oracle: TrailOracle = field(init=False)
    before: frozenset[str] = frozenset()
    """The UUIDs of what was live at the beginning."""
    strayed: dict[str, tuple[int, str]] = field(default_factory=dict)
    """What a stranger's rows made of live tables that we don't know to differ, by UUID."""
    touched: set[str] = field(default_factory=set)
    """UUIDs of candidates that a stranger changed."""
    bound: tuple[str, Any] | None = None
    """The operation and the artifact that were bound last."""

    def __post_init__(self) -> None:
        self.world = World(self.replicas, self.independent)
        if not self.first:
            self.world.seed(TARGET.table, OWN_OLD if self.independent else OLD)
            self.before = frozenset(r.tables[TARGET.table].uuid for r in self.world.replicas.values())
        self.trail = SimEvidence()
        self.oracle = TrailOracle(self.world, self.trail)
        self.ops = [
            Operation(n, "another" if self.others and n % 2 else "dag") for n in range(self.operations)
        ]
        self.running = []

    # Running.

    def run(self) -> None:
        """Run to the end, heal, finish what can be finished, and judge."""
        for op in self.ops:
            self._start(op)
            while self._busy and not self.overlap:
                self._step()
            if not self.overlap and self.chooser.way():
                # Between two runs, while what the last one replaced is kept; two people may have the same idea.
                self._start_operator()
                if self.chooser.twin():
                    self._start_operator(twin=True)
        while self._busy:
            self._step()
        if self.chooser.way():
            self._start_operator()
            while self.running:
                self._step()
        self._heal()

    @property
    def _busy(self) -> bool:
        return bool(self.running) or any(op.watch for op in self.ops)

    def _heal(self) -> None:
        self.healing = True
        self.world.heal()
        self._bring_together()
        self._go_on_staging()
        for op in reversed(self.ops):
            if op.staged is None:
                continue
            op.task = min(op.task, 2)
            # An operator clears the publish task, which goes on to cleanup; where it can't, the operator
            # clears cleanup all the same, and then publish again.
            for task in (1, 2, 1):
                if op.over:
                    break
                self._run_task(op, task)
        self.world.work_all()
        self._judge_end()
        self._end_hold()

    def _go_on_staging(self) -> None:
        """A target that is locked has a way out: a retry, the next run of the same publication, or an operator."""
        stored = self.world.stored(KEY)
        if stored is None or stored.record.phase not in STAGE_PHASES:
            return
        record = stored.record
        op = next(
            op for op in self.ops if (op.dag, f"run{op.index}") == (record.owner.dag_id, record.owner.run_id)
        )
        match self.nonces % 3:
            case 0:
                # A damaged artifact is not mended by a retry; whoever clears the task has it sealed anew.
                spoiled = any(artifact.damaged for artifact in self.world.artifacts.values())
                op.series += spoiled or self._operation_id(op) != record.operation_id
            case 1:
                op = Operation(len(self.ops), op.dag)
                self.ops.append(op)
            case _:
                # The operator comes at the end.
                return
        self._run_task(op, 0)
        stored = self.world.stored(KEY)
        if stored is not None and stored.record.phase in STAGE_PHASES:
            raise Broken(f"no way out of {stored.record.phase} by running it again: {op.stops[-1:]}")

    def _operation_id(self, op: Operation) -> str:
        return self._identity(op).operation_id(KEY)

    def _bring_together(self) -> None:
        """An operator brings live tables together that differ, as the stop of the stage task says."""
        if not self.strayed:
            return
        rows, content = next(iter(self.strayed.values()))
        for replica in self.world.replicas.values():
            for name, table in replica.tables.items():
                if table.uuid in self.before:
                    self.strayed[table.uuid] = (rows, content)
                    replica.tables[name] = replace(table, rows=rows, content=content)

    def _run_task(self, op: Operation, task: int) -> None:
        op.task, op.tries = task, 0
        self._start(op)
        while self.running:
            self._step()

    def _end_hold(self) -> None:
        """An operator finds the way out that exists for every hold, repairing by hand what ``explain`` says."""
        for _ in range(3):
            stored = self.world.stored(KEY)
            if stored is None or stored.record.ended:
                break
            self._start_operator()
            while self.running:
                self._step()
            self._repair_by_hand()
            stored = self.world.stored(KEY)
            if (
                stored is not None
                and stored.record.phase is Phase.COMMITTED
                and is_rollback(stored.record.owner)
            ):
                self._start_operator()
                while self.running:
                    self._step()
        stored = self.world.stored(KEY)
        if stored is None:
            return
        if stored.record.phase is Phase.COMMITTED:
            op = next(o for o in self.ops if o.staged and o.staged.operation_id == stored.record.operation_id)
            self._run_task(op, 2)
            stored = self.world.stored(KEY)
            assert stored is not None
        if not stored.record.ended:
            raise Broken(f"no way out of {stored.record.phase}: {[s.code for s in self.operator_stops]}")
        self.world.work_all()
        self._judge_applied()
        self._judge_leftovers()

    def _judge_leftovers(self) -> None:
        """Nothing of ours is left that only a person could tell apart from what is needed."""
        if not self.independent or self.strangers:
            return
        for one in leftovers(self.world, self.trail):
            if one.why not in (Why.LEFT, Why.DUE):
                raise Broken(f"{one.name} is left on {', '.join(one.uuids)}: {one.why}")

    def _repair_by_hand(self) -> None:
        stored = self.world.stored(KEY)
        if stored is None or stored.record.phase is not Phase.TERMINAL:
            return
        record = stored.record
        seen = self.world.observe(KEY, [record.table, record.candidate])
        found = explain_facts(stored, seen, read_at=0)
        if found.stop is None or found.stop.code is not Code.PARTIAL_TERMINAL:
            return
        for alias, explained in found.replicas.items():
            tables = self.world.replicas[alias].tables
            match explained.repair:
                case Exchange(_, _, target, candidate):
                    tables[target], tables[candidate] = tables[candidate], tables[target]
                case Rename(_, _, source, target):
                    tables[target] = tables.pop(source)

    def _start_operator(self, *, twin: bool = False) -> None:
        """An operator looks at the record and runs the command that it calls for."""
        if not twin and any(a.operation is None for a in self.running):
            return
        worker = Worker(self.world, self.trail, self._choose, self._nonce)
        command = self._way_on(worker)
        if command is None:
            return

        def body() -> Any:
            try:
                return command()
            except Stopped as stopped:
                return stopped.stop
            except Killed:
                return None

        self.running.append(Attempt(None, worker, greenlet(body)))

    def _way_on(self, worker: Worker) -> Callable[[], Any] | None:
        """Return the command that an operator runs now, if there is anything to do."""
        stored = self.world.stored(KEY)
        ports = self._ports(worker)
        if not self.healing and self.chooser.way():
            left = [one for one in leftovers(self.world, self.trail) if one.why is Why.LEFT]
            if left and self.chooser.order(2):
                return lambda: drop_orphan(ports, SITE, left[0], OperatorRequest("simulated"), WAITS)
            if stored is None:
                return None
            record = stored.record
            undone = record.owner.run_id if is_rollback(record.owner) else record.operation_id
            if record.ended or record.published or is_rollback(record.owner):
                return partial(self._roll_back, ports, undone)
        if stored is None:
            return None
        record = stored.record
        if record.phase is Phase.COMMITTED and is_rollback(record.owner):
            return partial(self._roll_back, ports, record.owner.run_id)
        request = OperatorRequest("simulated", record.operation_id)
        command = abandon if record.phase in UNSENT_PHASES else resolve
        return lambda: command(ports, SITE, request, WAITS)

    def _roll_back(self, ports: Ports, undone: str) -> Any:
        done = rollback(ports, SITE, OperatorRequest("simulated", undone), WAITS)
        stored = self.world.stored(KEY)
        if stored is not None and stored.record.operation_id == done.operation_id:
            for alias, replica in self.world.replicas.items():
                new = stored.record.desired.on(alias)
                if new is None or replica.tables[TARGET.table].uuid != new.uuid:
                    raise Broken(f"a rollback was called done, but {alias} does not have the table")
        return done

    def _start(self, op: Operation, watched: Watch | None = None) -> None:
        self._start_attempt(op, twin=False, watched=watched)
        if not self.healing and self.chooser.twin():
            self._start_attempt(op, twin=True, watched=watched)

    def _look(self) -> None:
        """A trigger looks, and may wake its task: with what it saw, or without if that is lost."""
        op = next((op for op in self.ops if op.watch), None)
        if op is None or op.watch is None or (self.running and not self.chooser.wakes()):
            return
        op.looks += 1
        stored = self.world.stored(KEY)
        slot = Slot(stored.record.operation_id, stored.record.phase.value) if stored else None
        rows = self.world.queue_rows(op.watch.token)
        judged = judge_look(op.watch, Look(rows, self.world.inventory, slot, int(self.world.now)))
        woken = judged.watch if isinstance(judged, Woken) else op.watch
        if not isinstance(judged, Woken) and op.looks % MOST_LOOKS:
            return
        op.watch = None
        self._start(op, None if self.chooser.forgets() else woken)

    def _start_attempt(self, op: Operation, *, twin: bool, watched: Watch | None = None) -> None:
        worker = Worker(self.world, self.trail, self._choose, self._nonce)
        ports = self._ports(worker)
        if op.task > 0 and not self.healing and not twin and self.chooser.strange():
            self._touch(op)
        if op.task == 0 and self.independent and not (self.healing or twin) and self.chooser.strange():
            self._stray()
        body = (self._stage, self._publish, self._cleanup)[op.task]
        glet = greenlet(partial(self._body, op, body, ports, worker, watched))
        self.running.append(Attempt(op, worker, glet, twin, watched=watched))

    def _ports(self, worker: Worker) -> Ports:
        return Ports(
            catalog=worker,
            authority=worker,
            queue=worker,
            evidence=EvidencePort(worker),
            clock=worker,
            random=worker,
            log=worker,
        )

    def _touch(self, op: Operation) -> None:
        """A stranger changes a candidate before the dispatch, or puts a table in its place before the drop.

        Later than that no protocol can help: rows that change after they were checked, or a table that
        takes another's unique name while its drop is on the way.
        """
        assert op.staged is not None
        stored = self.world.stored(KEY)
        if stored is None or stored.record.phase is not (Phase.PREPARED, Phase.COMMITTED)[op.task - 1]:
            return
        replica = self.world.replicas[self.world.inventory.aliases[-1]]
        table = replica.tables.get(op.staged.candidate)
        if table is None or any(a.operation is op for a in self.running):
            return
        own = stored.record.desired.on(self.world.inventory.aliases[-1])
        staged = stored.record.desired.uuid == op.staged.candidate_uuid
        if op.task == 1 and staged and own is not None and table.uuid == own.uuid:
            self.touched.add(table.uuid)
            replica.tables[op.staged.candidate] = replace(table, rows=table.rows - 1)
        if op.task == 2:
            foreign = f"ffffffff-0000-4000-8000-{self._nonce():012x}"
            self.strangers.add(foreign)
            replica.tables[op.staged.candidate] = replace(table, uuid=foreign)

    def _stray(self) -> None:
        """A stranger writes a row to the live table of one replica, while nothing of ours runs or is on its way."""
        if self.running or self.world.late:
            return
        replica = self.world.replicas[self.world.inventory.aliases[0]]
        table = replica.tables.get(TARGET.table)
        if table is not None and table.uuid in self.before:
            stray = replace(table, rows=table.rows + 1, content=f"{table.content}+stray")
            replica.tables[TARGET.table] = stray
            self.strayed[table.uuid] = (stray.rows, stray.content)

    def _nonce(self) -> int:
        self.nonces += 1
        return self.nonces

    def _choose(self, point: str) -> Fault:
        current = next(a for a in self.running if a.glet is greenlet.getcurrent())
        current.point = point
        fault: Fault = current.glet.parent.switch(point)
        return fault

    def _step(self) -> None:
        self._look()
        if not self.running:
            self.world.now += 1
            self.chooser.disturb(self.world)
            self._judge_applied()
            return
        attempt = self.running[0 if self.healing else self.chooser.order(len(self.running))]
        if self.healing:
            self.world.work_all()
            fault = Fault.NONE
        else:
            self.chooser.disturb(self.world)
            if self.chooser.operator():
                self._start_operator()
            fault = self.chooser.fault(attempt.point) if attempt.point else Fault.NONE
        result = attempt.glet.switch(fault) if attempt.point else attempt.glet.switch()
        self._judge_applied()
        if attempt.glet.dead:
            self.running.remove(attempt)
            if attempt.operation is None:
                if isinstance(result, Stop):
                    self.operator_stops.append(result)
            elif not attempt.twin and not self._deferred(attempt, attempt.operation, result):
                self._ended(attempt.operation, result)

    def _deferred(self, attempt: Attempt, op: Operation, result: Any) -> bool:
        """Tell whether a publish task waits in the triggerer now, as the operator decides it."""
        watched = attempt.watched
        if isinstance(result, HandedOver):
            op.watch = Watch.of(result.record, conn_id="ch", deadline=int(self.world.now) + 100)
            if watched is not None and (watched.phase, watched.entry) == (op.watch.phase, op.watch.entry):
                op.watch = replace(op.watch, outcome=watched.outcome)
        elif watched is not None and isinstance(result, Stop) and not self.healing:
            again = result.category in (Category.RETRYABLE, Category.NOT_OBSERVED)
            op.watch = watched if again and self._may_defer(op) else None
        return op.watch is not None

    def _may_defer(self, op: Operation) -> bool:
        """A task is deferred a bounded number of times: at its deadline it ends."""
        return not self.healing and op.looks < 3 * MOST_LOOKS

    def _body(
        self,
        op: Operation,
        body: Callable[[Operation, Ports, Worker, Watch | None], Any],
        ports: Ports,
        worker: Worker,
        watched: Watch | None,
    ) -> Any:
        try:
            return body(op, ports, worker, watched)
        except HandedOver as handed:
            return handed
        except Stopped as stopped:
            return stopped.stop
        except Killed:
            return None

    def _stage(self, op: Operation, ports: Ports, worker: Worker, watched: Watch | None) -> StageReceipt:
        request = StageRequest(
            self._identity(op),
            Owner(op.dag, f"run{op.index}", "stage", -1),
            order_key=f"{op.index:04d}",
            retention=self.retention,
        )
        rows, content = 10 + op.index, f"new{op.index}"
        if self.independent:
            staging = SimReplicaStaging(worker, rows, content, self._pick)
            return stage_replicas(ports, staging, SITE, request, WAITS)
        return stage(ports, SimStaging(worker, rows, content), SITE, request, WAITS)

    def _identity(self, op: Operation) -> TaskIdentity:
        return TaskIdentity("airflow", op.dag, f"run{op.index}", "stage", -1, str(op.series))

    def _pick(self, count: int) -> int:
        return 0 if self.healing else self.chooser.order(count)

    def _publish(self, op: Operation, ports: Ports, worker: Worker, watched: Watch | None) -> Any:
        assert op.staged is not None
        # What a task got from XCom stays what it is, whatever another try of the stage task gives meanwhile.
        staged = op.staged
        request = PublishRequest(
            staged.operation_id,
            Guards(),
            candidate_uuid=staged.candidate_uuid,
            hand_over_after=self.chooser.hand_over() if self._may_defer(op) else None,
            outcome=watched.outcome if watched is not None else None,
            asker=f"publish{op.index}",
        )
        receipt = publish(ports, SITE, request, WAITS)
        self._judge_success(staged, receipt)
        return receipt

    def _cleanup(self, op: Operation, ports: Ports, worker: Worker, watched: Watch | None) -> Any:
        assert op.staged is not None
        request = CleanupRequest(op.staged.operation_id, op.staged.candidate)
        return cleanup(ports, SITE, request, WAITS)

    def _ended(self, op: Operation, result: Any) -> None:
        """What the scheduler does with an ended attempt."""
        retry = result is None or (
            isinstance(result, Stop)
            and result.category in (Category.RETRYABLE, Category.NOT_OBSERVED, Category.IN_PROGRESS)
        )
        if isinstance(result, Stop):
            op.stops.append(result)
        if retry:
            op.tries += 1
            if op.tries < TRIES:
                self._start(op)
                return
        if op.task == 0 and not self.healing and op.series < MOST_CLEARS and self.chooser.clears():
            op.series, op.tries = op.series + 1, 0
            self._start(op)
            return
        if retry or isinstance(result, Stop):
            return
        if isinstance(result, StageReceipt):
            op.staged = result
        if isinstance(result, PublicationReceipt):
            op.published = result
        op.task, op.tries = op.task + 1, 0
        if not op.over:
            self._start(op)

    # Judging.

    def _truth(self) -> Truth:
        world = self.world
        stored = world.stored(KEY)
        truth = Truth(
            live={alias: replica.tables.get(TARGET.table) for alias, replica in world.replicas.items()},
            record=stored.record if stored else None,
            sent=[token for token, _ in world.sent],
            permits=world.permits,
            unfinished=[e.token for e in world.queue if any(s != "finished" for s in e.hosts.values())],
            known=self.trail.meant | self.before,
            first=self.first,
            before=self.before,
        )
        if not self.independent or stored is None:
            return truth
        recorded = world.recorded
        return replace(
            truth,
            known=recorded.prepared | self.before,
            candidates={alias: r.tables.get(stored.record.candidate) for alias, r in world.replicas.items()},
            generations=recorded.generations,
            listed=recorded.listed,
            ready=recorded.ready,
            whole={(OWN_OLD.rows, OWN_OLD.content)}
            | {(rows, content) for content, rows in world.read.items()},
            touched=self.touched | set(self.strayed),
        )

    def _judge_applied(self) -> None:
        """Judge the world where it changed, and each drop that a replica executed since the last look."""
        world = self.world
        if self.judge_trail:
            for problem in self.oracle.problems():
                raise Broken(problem)
        for problem in world.broken:
            raise Broken(problem)
        moved = (
            len(world.applied),
            len(world.sent),
            len(world.permits),
            world.changes,
            world.rows.get(KEY),
        )
        if moved == self.seen:
            return
        self.seen = moved
        truth = self._truth()
        while self.judged < len(world.applied):
            applied = world.applied[self.judged]
            self.judged += 1
            if isinstance(applied.statement, Drop) and applied.removed is not None:
                oracle.judge_drop(truth, applied.alias, applied.removed, self.strangers)
        oracle.judge(truth)
        if self.independent:
            self._judge_baseline(truth)

    def _judge_baseline(self, truth: Truth) -> None:
        """Live tables of which nobody knows which is right are never replaced."""
        record = truth.record
        if not isinstance(record, IndependentRecord) or record.phase is not Phase.STAGING:
            return
        # Rows that come later leave with the predecessor, and are warned of.
        bound = (record.operation_id, record.artifact)
        if bound == self.bound or record.predecessor is None or not all(truth.live.values()):
            return
        self.bound = bound
        if not self.healing:
            oracle.judge_baseline(truth)

    def _judge_success(self, staged: StageReceipt, receipt: Any) -> None:
        oracle.judge_success(
            self._truth(),
            receipt,
            uuid=staged.candidate_uuid,
            rows=staged.rows,
            content=staged.content.city
            if isinstance(staged.content, ContentDigest)
            else staged.content.sha256,
        )

    def _judge_end(self) -> None:
        """After the faults are gone, every operation has an end, or a hold that is named and safe."""
        if self.judge_trail:
            for problem in self.oracle.problems_at_the_end():
                raise Broken(problem)
        stored = self.world.stored(KEY)
        if stored is None:
            if any(op.staged for op in self.ops):
                raise Broken("a staged operation left no record")
            return
        record = stored.record
        if record.ended:
            return
        if record.phase is Phase.COMMITTED:
            if is_rollback(record.owner):
                return
            raise Broken("a committed publication did not end though nothing is in its way")
        holder = next(
            (op for op in self.ops if op.staged and op.staged.operation_id == record.operation_id), None
        )
        if holder is None and is_rollback(record.owner):
            # Its command was interrupted: the same command, or another one of the operator's, goes on.
            return
        if holder is None:
            # Its stage task was lost after PREPARED: a later run supersedes it, a retry resumes it. Or before: then
            # an operator gives it up.
            if record.phase not in UNSENT_PHASES:
                raise Broken("an operation was dispatched that no task knows")
            return
        oracle.judge_hold(record.phase, holder.stops[-1].code if holder.stops else None)


def seeded(seed: int) -> History:
    """The history of one seed: an even one is of independent tables."""
    rnd = random.Random(seed)
    independent = seed % 2 == 0
    return History(
        Seeded(
            rnd,
            twins=rnd.choice([0.0, 0.0, 0.5]),
            focus=rnd.choice([None, 0, 1, 2, 2, 3, 4]),
            # Staging each replica by itself takes more calls, at each of which something may happen.
            rate=rnd.choice([0.0, 0.005, 0.02, 0.06] if independent else [0.0, 0.02, 0.06, 0.12]),
            noise=rnd.choice([0.01, 0.03, 0.1, 0.3] if independent else [0.05, 0.12, 0.3, 0.5]),
            strangers=rnd.choice([0.0, 0.0, 0.2]),
            operators=(operators := rnd.choice([0.0, 0.0, 0.02, 0.1])),
            ways=rnd.choice([0.0, 0.8]) if operators else 0.0,
            deferrals=rnd.choice([0.0, 0.5, 1.0]),
            clearing=rnd.choice([0.0, 0.3]) if independent else 0.0,
        ),
        replicas=rnd.choice([2, 2, 3]),
        operations=rnd.choice([1, 2, 3]),
        overlap=rnd.random() < 0.5,
        first=rnd.random() < 0.3,
        retention=rnd.choice([0, 1_000]) if operators else 0,
        independent=independent,
        others=independent and rnd.random() < 0.2,
    )


def leftovers(world: World, trail: SimEvidence) -> tuple[Orphan, ...]:
    """What no record needs, as a look at the simulated replicas shows it."""
    operations = {
        body.uuid: operation for operation, body in trail.entries if isinstance(body, CandidateIntent)
    }
    tables = [
        FoundTable(
            alias,
            TARGET.database,
            name,
            table.uuid,
            AUTHORITY,
            operations.get(table.uuid),
            table.rows,
            False,
            0,
        )
        for alias, replica in world.replicas.items()
        for name, table in replica.tables.items()
        if candidate_parts(name)
    ]
    records = [decode(row) for row, _ in world.rows.values()]
    return find_orphans(tables, records, authority_ids=(AUTHORITY,), unreadable_keys=(), now=int(world.now))
