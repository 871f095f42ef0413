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
from airflow_provider_dpone.publication.record import PUBLISHED_PHASES, Owner, Phase, decode, is_rollback
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import CandidateIntent
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanupRequest,
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
)
from airflow_provider_dpone.routes.ports import Ports
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
from tests.simulation.trail import TrailOracle
from tests.simulation.world import AUTHORITY, CONTROL, USER, Table, World

SITE = Site(TARGET, USER, CONTROL)
WAITS = Waits(ready=5, publish=20, cleanup=5, busy=0, visible=1, poll_first=0.5, poll_last=4)
OLD = Table("00000000-0000-4000-8000-00000000000a", 7, "old", "/clickhouse/tables/old/01")
TRIES = 3


class Broken(AssertionError):
    """An invariant does not hold."""


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

    def way(self) -> bool:
        """Whether that is a command that operators begin themselves: a rollback, or the drop of an orphan."""


@dataclass(slots=True)
class Calm:
    """No fault, except at the calls that ``faults`` names by their number."""

    faults: Mapping[int, Fault] = field(default_factory=dict)
    points: list[str] = field(default_factory=list)
    disturbances: Mapping[int, Callable[[World], None]] = field(default_factory=dict)
    twins: bool = False
    operators: frozenset[int] = frozenset()

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

    def way(self) -> bool:
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
    ways: float = 0.0
    focus: int | None = None
    """The one kind of cluster event that most of this history's events are."""

    def strange(self) -> bool:
        return self.random.random() < self.strangers

    def twin(self) -> bool:
        return self.random.random() < self.twins

    def operator(self) -> bool:
        return self.operators > 0 and self.random.random() < self.operators

    def way(self) -> bool:
        return self.ways > 0 and self.random.random() < self.ways

    def fault(self, point: str) -> Fault:
        if self.random.random() >= self.rate:
            return Fault.NONE
        return self.random.choice([f for f in Fault if f is not Fault.NONE])

    def order(self, ready: int) -> int:
        return self.random.randrange(ready)

    def disturb(self, world: World) -> None:
        alias = self.random.choice(list(world.replicas))
        replica = world.replicas[alias]
        if self.random.random() < self.noise:
            focused = self.focus is not None and self.random.random() < 0.7
            match self.focus if focused else self.random.randrange(8):
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
                case _:
                    for back in world.replicas.values():
                        back.up, back.paused = True, False
        if self.random.random() < 0.5:
            world.work(alias)


@dataclass(slots=True)
class Operation:
    """One DAG run: stage, publish, cleanup, each with retries."""

    index: int
    staged: StageReceipt | None = None
    published: PublicationReceipt | None = None
    stops: list[Stop] = field(default_factory=list)
    task: int = 0
    tries: int = 0

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


@dataclass(slots=True)
class History:
    """Runs the operations under a chooser and judges what happened."""

    chooser: Chooser
    replicas: int = 2
    operations: int = 2
    overlap: bool = False
    first: bool = False
    retention: int = 0
    world: World = field(init=False)
    trail: SimEvidence = field(init=False)
    ops: list[Operation] = field(init=False)
    running: list[Attempt] = field(init=False)
    nonces: int = 0
    judged: int = 0
    healing: bool = False
    strangers: set[str] = field(default_factory=set)
    operator_stops: list[Stop] = field(default_factory=list)
    judge_trail: bool = True
    oracle: TrailOracle = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(self.replicas)
        if not self.first:
            self.world.seed(TARGET.table, OLD)
        self.trail = SimEvidence()
        self.oracle = TrailOracle(self.world, self.trail)
        self.ops = [Operation(n) for n in range(self.operations)]
        self.running = []

    # Running.

    def run(self) -> None:
        """Run to the end, heal, finish what can be finished, and judge."""
        for op in self.ops:
            self._start(op)
            while self.running and not self.overlap:
                self._step()
            if not self.overlap and self.chooser.way():
                # Between two runs, while what the last one replaced is kept; two people may have the same idea.
                self._start_operator()
                if self.chooser.twin():
                    self._start_operator(twin=True)
        while self.running:
            self._step()
        if self.chooser.way():
            self._start_operator()
            while self.running:
                self._step()
        self._heal()

    def _heal(self) -> None:
        self.healing = True
        self.world.heal()
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
        command = abandon if record.phase is Phase.PREPARED else resolve
        return lambda: command(ports, SITE, request, WAITS)

    def _roll_back(self, ports: Ports, undone: str) -> Any:
        done = rollback(ports, SITE, OperatorRequest("simulated", undone), WAITS)
        stored = self.world.stored(KEY)
        if stored is not None and stored.record.operation_id == done.operation_id:
            for alias, replica in self.world.replicas.items():
                if replica.tables[TARGET.table].uuid != done.uuid:
                    raise Broken(f"a rollback was called done, but {alias} does not have the table")
        return done

    def _start(self, op: Operation) -> None:
        self._start_attempt(op, twin=False)
        if not self.healing and self.chooser.twin():
            self._start_attempt(op, twin=True)

    def _start_attempt(self, op: Operation, *, twin: bool) -> None:
        worker = Worker(self.world, self.trail, self._choose, self._nonce)
        ports = self._ports(worker)
        if op.task > 0 and not self.healing and not twin and self.chooser.strange():
            self._touch(op)
        body = (self._stage, self._publish, self._cleanup)[op.task]
        glet = greenlet(partial(self._body, op, body, ports, worker))
        self.running.append(Attempt(op, worker, glet, twin))

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
        if op.task == 1 and table.uuid == op.staged.candidate_uuid:
            replica.tables[op.staged.candidate] = replace(table, rows=table.rows - 1)
        if op.task == 2:
            foreign = f"ffffffff-0000-4000-8000-{self._nonce():012x}"
            self.strangers.add(foreign)
            replica.tables[op.staged.candidate] = replace(table, uuid=foreign)

    def _nonce(self) -> int:
        self.nonces += 1
        return self.nonces

    def _choose(self, point: str) -> Fault:
        current = next(a for a in self.running if a.glet is greenlet.getcurrent())
        current.point = point
        fault: Fault = current.glet.parent.switch(point)
        return fault

    def _step(self) -> None:
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
            elif not attempt.twin:
                self._ended(attempt.operation, result)

    def _body(
        self, op: Operation, body: Callable[[Operation, Ports, Worker], Any], ports: Ports, worker: Worker
    ) -> Any:
        try:
            return body(op, ports, worker)
        except Stopped as stopped:
            return stopped.stop
        except Killed:
            return None

    def _stage(self, op: Operation, ports: Ports, worker: Worker) -> StageReceipt:
        identity = TaskIdentity("airflow", "dag", f"run{op.index}", "stage", -1, "0")
        request = StageRequest(
            identity,
            Owner("dag", f"run{op.index}", "stage", -1),
            order_key=f"{op.index:04d}",
            retention=self.retention,
        )
        content = f"new{op.index}"
        return stage(ports, SimStaging(worker, 10 + op.index, content), SITE, request, WAITS)

    def _publish(self, op: Operation, ports: Ports, worker: Worker) -> Any:
        assert op.staged is not None
        request = PublishRequest(op.staged.operation_id, Guards())
        receipt = publish(ports, SITE, request, WAITS)
        self._judge_success(op, receipt)
        return receipt

    def _cleanup(self, op: Operation, ports: Ports, worker: Worker) -> Any:
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
        if isinstance(result, Stop):
            return
        if isinstance(result, StageReceipt):
            op.staged = result
        if isinstance(result, PublicationReceipt):
            op.published = result
        op.task, op.tries = op.task + 1, 0
        if not op.over:
            self._start(op)

    # Judging.

    def _judge_applied(self) -> None:
        """Judge each statement that a replica executed since the last look."""
        world = self.world
        while self.judged < len(world.applied):
            applied = world.applied[self.judged]
            self.judged += 1
            if isinstance(applied.statement, Drop) and applied.removed is not None:
                self._judge_drop(applied.alias, applied.removed)
        live = {a: r.tables.get(TARGET.table) for a, r in world.replicas.items()}
        known = self.trail.meant | {OLD.uuid}
        for alias, table in live.items():
            if table is None:
                if not self.first:
                    raise Broken(f"the live table is missing on {alias}")
            elif table.uuid not in known:
                raise Broken(f"a foreign table is live on {alias}")
            elif table.rows == 0:
                raise Broken(f"an unfinished candidate is live on {alias}")
        swaps: dict[str, int] = {}
        for token, _ in world.sent:
            _, operation, action, *_ = token.split(":")
            if action == "publish":
                swaps[operation] = swaps.get(operation, 0) + 1
        if any(count > 1 for count in swaps.values()):
            raise Broken("a swap was sent twice for one operation")
        if len(set(world.permits)) != len(world.permits):
            raise Broken("two permits for one epoch")
        if self.judge_trail:
            for problem in self.oracle.problems():
                raise Broken(problem)
        if (stored := world.stored(KEY)) is not None:
            record = stored.record
            # Not the record's own word for it, which a planted bug may have changed.
            if record.phase in PUBLISHED_PHASES and any(
                t is None or t.uuid != record.desired.uuid for t in live.values()
            ):
                raise Broken("recorded as published, but a replica does not have the new data")
            if record.phase is Phase.ABORTED and swaps.get(record.operation_id[:16]) and not record.disarmed:
                raise Broken("recorded as given up, but its swap was sent and can still run")
            closed = {s.uuid for s in record.settled if s.outcome is Phase.ABORTED}
            if record.phase is Phase.ABORTED:
                closed.add(record.desired.uuid)
            # What was published before a rollback to it was given up may go live by the next one.
            closed -= {s.uuid for s in record.settled if s.outcome in PUBLISHED_PHASES} | {OLD.uuid}
            if any(table is not None and table.uuid in closed for table in live.values()):
                raise Broken("recorded as not published, but its data went live")

    def _judge_drop(self, alias: str, uuid: str) -> None:
        if uuid in self.strangers:
            raise Broken(f"{alias} dropped a stranger's table")
        for other, replica in self.world.replicas.items():
            live = replica.tables.get(TARGET.table)
            if live is not None and live.uuid == uuid:
                raise Broken(f"{alias} dropped what is live on {other}")
        stored = self.world.stored(KEY)
        if stored is None:
            return
        record = stored.record
        if record.phase in (Phase.PREPARED, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL):
            if record.desired.uuid == uuid:
                raise Broken("an unresolved operation's new generation was dropped")
            if record.predecessor is not None and record.predecessor.uuid == uuid:
                raise Broken("an unresolved operation's predecessor was dropped")

    def _judge_success(self, op: Operation, receipt: Any) -> None:
        """Success is said only when every replica has the new data (unless a later run replaced it)."""
        if not isinstance(receipt, PublicationReceipt):
            return
        assert op.staged is not None
        stored = self.world.stored(KEY)
        assert stored is not None
        if stored.record.operation_id != op.staged.operation_id:
            return
        for alias, replica in self.world.replicas.items():
            live = replica.tables.get(TARGET.table)
            if live is None or live.uuid != op.staged.candidate_uuid:
                raise Broken(f"success was said, but {alias} does not have the new data")
            if (live.rows, live.content) != (op.staged.rows, op.staged.content.city):
                raise Broken(f"success was said, but {alias} has other content")

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
            # Its stage task was lost after PREPARED: a later run supersedes it, a retry resumes it.
            if record.phase is not Phase.PREPARED:
                raise Broken("an operation was dispatched that no task knows")
            return
        if not holder.stops:
            raise Broken(f"the target is held in {record.phase} and nobody was told why")
        held = holder.stops[-1].code
        if held not in HOLDS[record.phase]:
            raise Broken(f"the target is held in {record.phase} by {held}")


HOLDS: Mapping[Phase, frozenset[Code]] = {
    # Refused before the dispatch; the next run supersedes it.
    Phase.PREPARED: frozenset({Code.CONTENT_DIFFERS, Code.CANDIDATE_DIFFERS}),
    # The permit was claimed and its holder is gone without a word, or the queue forgot the entry.
    # Or an operator's command was interrupted.
    Phase.DISPATCHING: frozenset({Code.ENTRY_NOT_SEEN, Code.RESOLVING}),
    Phase.BOUND: frozenset({Code.ENTRY_NOT_SEEN, Code.RESOLVING}),
    # Ended on every replica, not live on every replica.
    Phase.TERMINAL: frozenset(
        {Code.PARTIAL_TERMINAL, Code.FAILED_EVERYWHERE, Code.SWAPPED_BACK, Code.RESOLVING}
    ),
}


def seeded(seed: int) -> History:
    """The history of one seed."""
    rnd = random.Random(seed)
    return History(
        Seeded(
            rnd,
            twins=rnd.choice([0.0, 0.0, 0.5]),
            focus=rnd.choice([None, 0, 1, 2, 2, 3, 4]),
            rate=rnd.choice([0.0, 0.02, 0.06, 0.12]),
            noise=rnd.choice([0.05, 0.12, 0.3, 0.5]),
            strangers=rnd.choice([0.0, 0.0, 0.2]),
            operators=(operators := rnd.choice([0.0, 0.0, 0.02, 0.1])),
            ways=rnd.choice([0.0, 0.8]) if operators else 0.0,
        ),
        replicas=rnd.choice([2, 2, 3]),
        operations=rnd.choice([1, 2, 3]),
        overlap=rnd.random() < 0.5,
        first=rnd.random() < 0.3,
        retention=rnd.choice([0, 1_000]) if operators else 0,
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
