"""All interleavings of two workers, the replicas and what may go wrong, up to a budget.

Two reductions keep it small, and both lose nothing. A call that nobody else can notice, such as the intent of a
write in the evidence, is taken at once when a worker comes to it. And what a worker does is remembered by the
state it is in, whatever way led there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from airflow_provider_dpone.clickhouse import authority
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.record import Phase, StoredRecord, encode
from airflow_provider_dpone.publication.statement import Exchange, Rename
from airflow_provider_dpone.publication.stop import Code
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanupRequest,
    OperatorRequest,
    PublishRequest,
    Waits,
    abandon,
    cleanup,
    publish,
    resolve,
)
from airflow_provider_dpone.routes.ports import OutcomeUnknown, Ports, Reply, Stored
from tests.exploration.automaton import Answer, Automaton, Call, End, Failed
from tests.exploration.model import (
    CANDIDATE,
    NEW,
    TABLES,
    Budget,
    Cluster,
    LateWrite,
    Model,
    Names,
    execute,
)
from tests.proof import oracle
from tests.proof.oracle import Broken
from tests.simulation import authority as replies
from tests.simulation.run import SITE

WAITS = Waits(ready=1, publish=1, cleanup=1, busy=0, visible=0, poll_first=1, poll_last=1)
"""One pause in each wait: waiting longer repeats the same reads."""


def publishing(operation_id: str, ports: Ports) -> Any:
    """The publish task."""
    return publish(ports, SITE, PublishRequest(operation_id), WAITS)


def cleaning(operation_id: str, ports: Ports) -> Any:
    """The cleanup task."""
    return cleanup(ports, SITE, CleanupRequest(operation_id, CANDIDATE), WAITS)


def resolving(operation_id: str, ports: Ports) -> Any:
    """An operator's ``resolve``."""
    return resolve(ports, SITE, OperatorRequest("explored", operation_id), WAITS)


def abandoning(operation_id: str, ports: Ports) -> Any:
    """An operator's ``abandon``."""
    return abandon(ports, SITE, OperatorRequest("explored", operation_id), WAITS)


Role = Callable[[str, Ports], Any]

MOST = 10_000_000
"""So many states are visited at most, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is explored.

    :ivar workers: for each worker its tasks, one after the other.
    :ivar tries: how often a task is tried.
    :ivar torn: a look reads one replica after the other, and the record last.
    """

    name: str
    workers: tuple[tuple[Role, ...], ...]
    budget: Budget
    replicas: int = 2
    tries: int = 2
    first: bool = False
    torn: bool = False

    def explore(self, most: int = MOST) -> Result:
        """Visit every state that can be reached; see :meth:`Exploration.run`."""
        return Exploration(self).run(most)


class Slot(NamedTuple):
    """A worker: its task (-1: it has none), the task's state, and a call that is half done."""

    task: int
    node: int
    half: tuple[Any, ...] | None = None


IDLE = Slot(-1, 0)


_State: TypeAlias = tuple[int, ...]
"""The number of a cluster, and of each worker."""

_T = TypeVar("_T")


class _Step(NamedTuple):
    """A transition: what is said of it, the cluster after it, and the worker after it, if it is a worker's."""

    said: str
    cluster: int
    slot: int


@dataclass(slots=True)
class _Numbers(Generic[_T]):
    """Values by small numbers."""

    values: list[_T] = field(default_factory=list)
    index: dict[_T, int] = field(default_factory=dict)

    def number(self, value: _T) -> int:
        """Return the number of a value."""
        found = self.index.get(value)
        if found is None:
            found = self.index[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass(slots=True)
class Result:
    """What an exploration saw."""

    scope: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    clusters: int = 0
    task_states: int = 0
    healed: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    complete: bool = True


@dataclass(slots=True)
class _Task:
    automaton: Automaton
    success: int = -1
    failure: int = -1


@dataclass(slots=True)
class Exploration:
    """Explores a scope."""

    scope: Scope
    model: Model = field(init=False)
    tasks: list[_Task] = field(default_factory=list)
    answers: dict[Any, Answer] = field(default_factory=dict)
    calm: dict[str, Automaton] = field(default_factory=dict)
    healed: dict[Any, str] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    judged: set[int] = field(default_factory=set)
    clusters: _Numbers[Cluster] = field(default_factory=lambda: _Numbers())
    slots: _Numbers[Slot] = field(default_factory=lambda: _Numbers())
    by_cluster: dict[int, tuple[_Step, ...]] = field(default_factory=dict)
    by_worker: dict[tuple[int, int], tuple[_Step, ...]] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    operation_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.model = Model(self.scope.replicas, self.scope.first)
        self.operation_id = self.model.rows[self.model.start(self.scope.budget).row[0]][1].operation_id

    # Exploring.

    def run(self, most: int = MOST) -> Result:
        """Visit every state that can be reached, nearest first.

        :param most: how many states at most.
        :raises Broken: an invariant does not hold; the text tells the way there.
        """
        result = Result(self.scope.name)
        workers = (self.slots.number(self._worker(n)) for n in range(len(self.scope.workers)))
        start: _State = (self.clusters.number(self.model.start(self.scope.budget)), *workers)
        parents: dict[_State, _State | None] = {start: None}
        ends: Counter[int] = Counter()
        frontier, following = [start], list[_State]()
        while frontier and len(parents) <= most:
            for state in frontier:
                try:
                    ends[state[0]] += 1
                    if ends[state[0]] == 1:
                        self._judge_calm(state[0])
                    for _, found in self._moves(state):
                        result.transitions += 1
                        if found not in parents:
                            parents[found] = state
                            following.append(found)
                except Broken as broken:
                    way = "\n  ".join(self._way(parents, state))
                    raise Broken(f"{broken}\n{self.scope.name}:\n  {way}") from None
            frontier, following = following, []
            result.depth += 1
        result.complete = not frontier
        result.states = len(parents)
        result.clusters = len(self.clusters.values)
        result.task_states = sum(len(t.automaton.nodes) for t in self.tasks)
        result.healed = len(self.healed)
        for cluster, states in ends.items():
            result.ends[self.ends[cluster]] += states
        return result

    def _way(self, parents: dict[_State, _State | None], state: _State) -> list[str]:
        way: list[str] = []
        while (before := parents[state]) is not None:
            way.append(next(said for said, found in self._moves(before) if found == state))
            state = before
        return way[::-1]

    def _worker(self, number: int) -> Slot:
        """Set a worker's tasks up: each is tried again when it fails, and followed by the next when it doesn't."""
        roles = self.scope.workers[number]
        first = len(self.tasks)
        for index, role in enumerate(roles):
            for attempt in range(self.scope.tries):
                label = f"{number}.{index}.{attempt}"
                task = _Task(Automaton(label, partial(role, self.operation_id)))
                here = first + index * self.scope.tries
                task.success = here + self.scope.tries if index + 1 < len(roles) else -1
                task.failure = here + attempt + 1 if attempt + 1 < self.scope.tries else -1
                self.tasks.append(task)
        return self._slot(first)

    def _slot(self, task: int) -> Slot:
        return IDLE if task < 0 else Slot(task, self.tasks[task].automaton.start())

    # Moves.

    def _moves(self, state: _State) -> Iterator[tuple[str, _State]]:
        cluster, *workers = state
        for n, slot in enumerate(workers):
            call = self._call(slot)
            if call is not None and unnoticed(call):
                # Nobody ever reads it, so when it is written makes no difference to anybody else.
                yield from self._worker_moves(state, n)
                return
        for n in range(len(workers)):
            yield from self._worker_moves(state, n)
        for said, after, _ in self._cluster_steps(cluster):
            yield said, (after, *workers)

    def _worker_moves(self, state: _State, n: int) -> Iterator[tuple[str, _State]]:
        cluster, *workers = state
        for said, after, slot in self._worker_steps(cluster, workers[n]):
            yield f"worker {n}: {said}", (after, *workers[:n], slot, *workers[n + 1 :])

    def _call(self, slot: int) -> Call | None:
        task, node, _ = self.slots.values[slot]
        if task < 0:
            return None
        asks = self.tasks[task].automaton.nodes[node].asks
        assert isinstance(asks, Call)
        return asks

    def _cluster_steps(self, cluster: int) -> tuple[_Step, ...]:
        found = self.by_cluster.get(cluster)
        if found is None:
            steps = []
            for said, after in self._events(self.clusters.values[cluster]):
                self._judge(after, said)
                steps.append(_Step(said, self.clusters.number(after), -1))
            found = self.by_cluster[cluster] = tuple(steps)
        return found

    def _events(self, c: Cluster) -> Iterator[tuple[str, Cluster]]:
        """What the cluster may do by itself."""
        model, budget = self.model, c.budget
        for replica, alias in enumerate(model.inventory.aliases):
            if (step := model.executed(c, replica)) is not None:
                after, dropped = step
                if dropped:
                    self._judge_drop(after, replica, dropped)
                yield f"{alias} works", after
            if budget.again and (died := model.again(c, replica)) is not None:
                yield (
                    f"{alias} dies before the mark",
                    died._replace(budget=budget._replace(again=budget.again - 1)),
                )
            if budget.failures and (refused := model.failed(c, replica)) is not None:
                spent = budget._replace(failures=budget.failures - 1)
                yield f"{alias} refuses", refused._replace(budget=spent)
        for at in range(len(c.late)):
            after = model.arrived(c, at)
            if after.row != c.row:
                self._judge_write(c, after)
            yield "a late request arrives", after
        if budget.prunes and (after := model.pruned(c)) != c:
            yield "the queue forgets", after._replace(budget=budget._replace(prunes=budget.prunes - 1))
        if c.other_members:
            yield "the replicas are as before", c._replace(other_members=False)
        elif budget.members:
            spent = budget._replace(members=budget.members - 1)
            yield "the list of replicas changes", c._replace(other_members=True, budget=spent)

    def _worker_steps(self, cluster: int, number: int) -> tuple[_Step, ...]:
        found = self.by_worker.get((cluster, number))
        if found is None:
            call = self._call(number)
            steps = () if call is None else self._calls(self.clusters.values[cluster], number, call)
            found = self.by_worker[cluster, number] = tuple(steps)
        return found

    def _calls(self, c: Cluster, number: int, call: Call) -> Iterator[_Step]:
        slot = self.slots.values[number]
        for said, after, answer, half in self._outcomes(c, call, slot.half):
            self._judge(after, f"{call.kind}, {said}")
            following = slot if answer is None else self._answered(after, slot, answer)
            if half is not None and following.task >= 0:
                following = following._replace(half=half)
            yield _Step(f"{call.kind}, {said}", self.clusters.number(after), self.slots.number(following))
        if c.budget.faults and not unnoticed(call):
            again = self.slots.number(self._slot(self.tasks[slot.task].failure))
            yield _Step(f"killed before {call.kind}", self.clusters.number(spend(c)), again)

    def _answered(self, c: Cluster, slot: Slot, answer: Answer) -> Slot:
        task = self.tasks[slot.task]
        node = task.automaton.step(slot.node, answer)
        asks = task.automaton.nodes[node].asks
        while isinstance(asks, Call) and unnoticed(asks) and not c.budget.faults:
            # Nobody can notice it, and nothing can go wrong with it any more.
            node = task.automaton.step(node, self._answer("noted", None))
            asks = task.automaton.nodes[node].asks
        if isinstance(asks, Call):
            return Slot(slot.task, node)
        self._judge_end(c, asks)
        return self._slot(task.failure if asks.stop else task.success)

    # What may become of a call: words, the cluster after it, and the answer, or what is half done.

    def _outcomes(
        self, c: Cluster, call: Call, half: tuple[Any, ...] | None
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        match call.kind:
            case "observe":
                yield from self._looks(c, call.args[0], half)
            case "content":
                digests = self.model.content(c, call.args[0])
                yield "done", c, self._answer(("content", *sorted(digests.items())), digests), None
            case "write" | "claim":
                yield from self._writes(c, call, half)
                return
            case "send":
                yield from self._sends(c, call)
                return
            case "read":
                yield from self._reads(c, call.args[0])
            case "note":
                _, unused = call.args
                noted = c if unused is None else c._replace(unused=c.unused | {unused})
                yield "done", noted, self._answer("noted", None), None
                if c.budget.faults:
                    lost = self._failed(Code.EVIDENCE_UNAVAILABLE)
                    yield "not written", spend(c), lost, None
                    if noted != c:
                        yield "written, reply lost", spend(noted), lost, None
                return
            case "unused":
                known = call.args in c.unused
                yield "done", c, self._answer(("unused", known), known), None
            case _:
                yield from self._effects(c, call, half)
                return
        if c.budget.faults and half is None:
            yield "no answer", spend(c), self._failed(Code.SERVER_UNAVAILABLE), None

    def _effects(
        self, c: Cluster, call: Call, half: tuple[Any, ...] | None
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        """What may become of a call that only staging makes."""
        raise AssertionError(call.kind)

    def _looks(
        self, c: Cluster, tables: tuple[str, ...], half: tuple[Any, ...] | None
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        if self.scope.torn:
            read = half or ()
            if len(read) + 1 < self.scope.replicas:
                yield "one replica is read", c, None, (*read, c.replicas[len(read)])
                return
            replicas: tuple[Names | None, ...] = (*read, c.replicas[len(read)])
        else:
            replicas = c.replicas
        yield "done", c, self._seen(c, replicas, tables), None
        if c.budget.faults and not half:
            for n in range(self.scope.replicas):
                some = (*replicas[:n], None, *replicas[n + 1 :])
                yield f"replica {n + 1} can't be read", spend(c), self._seen(c, some, tables), None

    def _seen(self, c: Cluster, replicas: tuple[Names | None, ...], tables: tuple[str, ...]) -> Answer:
        key = ("seen", replicas, c.row, tables, c.other_members)
        found = self.answers.get(key)
        if found is None:
            look = self.model.look(replicas, c.row, tables, c.other_members)
            found = self.answers[key] = Answer(look)
        return found

    def _writes(
        self, c: Cluster, call: Call, half: tuple[Any, ...] | None
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        expected, record, write_id = call.args
        row = self.written.get(id(call))
        if row is None:
            row = self.written[id(call)] = self.model.number(encode(record, write_id), record)
        before = (expected.write_id, expected.version) if expected is not None else None
        _, lost = self._lost(c, call, row)
        if half is None:
            after = self.model.swapped(c, before, row) or c
            if after != c:
                self._judge_write(c, after)
            yield "done", after, None, ("written",)
            if c.budget.faults:
                yield "not sent", spend(c), self._failed(Code.SERVER_UNAVAILABLE), None
                yield "reply lost, not done", spend(c), lost, None
                if after != c:
                    yield "done, reply lost", *self._lost(spend(after), call, row), None
                    late = spend(c)._replace(late=(*c.late, LateWrite(before, row)))
                    yield "late", late, lost, None
            return
        yield "read back", *self._read_back(c, call, row, authority.judge), None
        if c.budget.faults:
            yield "no read-back", *self._lost(spend(c), call, row), None

    def _lost(self, c: Cluster, call: Call, row: int) -> tuple[Cluster, Answer]:
        return self._read_back(c, call, row, replies.lost)

    def _read_back(
        self, c: Cluster, call: Call, row: int, judge: Callable[..., Any]
    ) -> tuple[Cluster, Answer]:
        """Return what the worker makes of the row that Keeper holds now, and the permit that it may have."""
        expected, record, write_id = call.args
        verdict = judge(expected, self.model.rows[row][0], *self.model.found(c))
        if not isinstance(verdict, int):
            verdict = verdict if verdict is not None else OutcomeUnknown("not visible")
            return c, self._answer(("write", repr(verdict)), verdict)
        stored = Stored(StoredRecord(record, write_id, verdict))
        key: Any = ("stored", row, verdict, c.other_members)
        if call.kind == "write":
            return c, self._answer((*key, "write"), (stored,))
        permits = (*c.permits, (record.target_key, record.dispatch_epoch))
        digest = (self.model.other if c.other_members else self.model.inventory).digest
        return c._replace(permits=permits), self._answer((*key, "claim"), (stored, digest))

    def _sends(
        self, c: Cluster, call: Call
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        statement, token = call.args
        request = self.model.request(statement, token)
        sent = c._replace(sent=(*c.sent, token))
        lost = self._answer("reply lost", Reply(answered=False, exception_code=None))
        yield "done", self.model.queued(sent, request), self._answer("replied", Reply(True, 0)), None
        if c.budget.faults:
            yield "done, reply lost", spend(self.model.queued(sent, request)), lost, None
            twice = self.model.queued(self.model.queued(sent, request), request)
            yield "done twice", spend(twice), self._answer("replied", Reply(True, 0)), None
            yield "reply lost, not done", spend(sent), lost, None
            yield "late", spend(sent)._replace(late=(*c.late, request)), lost, None
            refused = Reply(answered=True, exception_code=497, name="ACCESS_DENIED", refused=True)
            yield "refused", spend(c), self._answer("refused", refused), None

    def _reads(
        self, c: Cluster, token: str
    ) -> Iterator[tuple[str, Cluster, Answer | None, tuple[Any, ...] | None]]:
        states = tuple((e.number, e.statement, e.hosts) for e in c.queue if e.token == token)
        key = ("rows", token, states)
        found = self.answers.get(key)
        if found is None:
            found = self.answers[key] = Answer(self.model.queue_rows(c, token))
        yield "done", c, found, None
        if c.budget.faults and found.value:
            last = found.value[-1]
            for said, changed in (
                (
                    "a status can't be read",
                    replace(last, status="Removing", exception_code=None, exception_text=None),
                ),
                (
                    "a code is NULL",
                    replace(last, status="Finished", exception_code=None, exception_text=None),
                ),
            ):
                yield said, spend(c), self._answer((said, *key), (*found.value[:-1], changed)), None

    def _answer(self, key: Any, value: Any) -> Answer:
        found = self.answers.get(key)
        if found is None:
            found = self.answers[key] = Answer(value)
        return found

    def _failed(self, code: Code) -> Answer:
        return self._answer(("failed", code), Failed(code))

    # Judging.

    def _judge(self, c: Cluster, said: str) -> None:
        truth = self.model.truth(c)
        if id(truth) in self.judged:
            return
        try:
            oracle.judge(truth)
        except Broken as broken:
            raise Broken(f"{said}: {broken}") from None
        self.judged.add(id(truth))

    def _judge_write(self, c: Cluster, after: Cluster) -> None:
        """Judge that the record moved."""

    def _judge_drop(self, c: Cluster, replica: int, dropped: Any) -> None:
        table = TABLES[dropped]
        assert table is not None
        oracle.judge_drop(self.model.truth(c), self.model.inventory.aliases[replica], table.uuid)

    def _judge_end(self, c: Cluster, end: End) -> None:
        if end.surprise is not None:
            raise Broken(f"a task raised {end.surprise}")
        oracle.judge_success(
            self.model.truth(c), end.result, uuid=NEW.uuid, rows=NEW.rows, content=NEW.content
        )

    # When all faults are over.

    def _judge_calm(self, cluster: int) -> None:
        """Judge that from here a calm run of the tasks and an operator comes to an end."""
        c, drops = self.model.healed(self.clusters.values[cluster])
        key = (c.replicas, c.row, c.queue, c.unused, c.permits, c.sent)
        end = self.healed.get(key)
        if end is None:
            for replica, dropped in drops:
                self._judge_drop(c, replica, dropped)
            self._judge(c, "the replicas finish")
            end = self.healed[key] = self._calm(c)
        self.ends[cluster] = end

    def _calm(self, c: Cluster) -> str:
        """Return how the operation ends when publish and cleanup run, and else an operator, with nothing in the way."""
        c, told = self._run_calm(c, "publish", publishing)
        phase = self._phase(c)
        held = ""
        if phase not in (Phase.COMMITTED, Phase.ABORTED, Phase.COMPLETED, Phase.COMPLETED_RETAINING):
            oracle.judge_hold(phase, told.stop.code if told.stop else None)
            assert told.stop is not None
            held = f"{told.stop.code.rpartition('CLUSTER_')[2]}, then "
        for turn in range(3):
            record = self.model.rows[c.row[0]][1]
            if record.ended or record.published:
                break
            role = abandoning if record.phase is Phase.PREPARED else resolving
            c, told = self._run_calm(c, f"{role.__name__} {turn}", role)
            c = self._repaired(c)
        for turn in range(2):
            if self._phase(c) in (Phase.COMMITTED, Phase.COMPLETED_RETAINING):
                c, told = self._run_calm(c, f"cleanup {turn}", cleaning)
        record = self.model.rows[c.row[0]][1]
        if not record.ended:
            raise Broken(f"no way out of {record.phase}: {told.stop.code if told.stop else told.result}")
        if len({names[0] for names in c.replicas}) > 1:
            raise Broken(f"the operation ended in {record.phase}, and replicas have different live tables")
        return f"{held}{record.phase.value}"

    def _phase(self, c: Cluster) -> Phase:
        return self.model.rows[c.row[0]][1].phase

    def _run_calm(
        self, c: Cluster, label: str, role: Role, operation_id: str | None = None
    ) -> tuple[Cluster, End]:
        if label not in self.calm:
            self.calm[label] = Automaton(f"calm {label}", partial(role, operation_id or self.operation_id))
        automaton = self.calm[label]
        node = automaton.start()
        half: tuple[Any, ...] | None = None
        while True:
            asks = automaton.nodes[node].asks
            if isinstance(asks, End):
                self._judge_end(c, asks)
                return c, asks
            _, c, answer, half = next(self._outcomes(c, asks, half))
            c, drops = self.model.idle(c)
            for replica, dropped in drops:
                self._judge_drop(c, replica, dropped)
            self._judge(c, label)
            if answer is not None:
                node = automaton.step(node, answer)

    def _repaired(self, c: Cluster) -> Cluster:
        """Return the cluster after somebody did by hand what ``explain`` spells out for a partial swap."""
        record = self.model.rows[c.row[0]][1]
        if record.phase is not Phase.TERMINAL:
            return c
        look = self.model.look(c.replicas, c.row, (record.table, record.candidate), False)
        explained = explain(self.model.stored(c), replace(look, sequence=1), read_at=0)
        if explained.stop is None or explained.stop.code is not Code.PARTIAL_TERMINAL:
            return c
        replicas = list(c.replicas)
        for n, alias in enumerate(self.model.inventory.aliases):
            repair = explained.replicas[alias].repair
            if isinstance(repair, Exchange | Rename):
                replicas[n], _, _ = execute(replicas[n], repair)
        return c._replace(replicas=tuple(replicas))


def spend(c: Cluster) -> Cluster:
    """Return the cluster with one fault less to come."""
    return c._replace(budget=c.budget._replace(faults=c.budget.faults - 1))


def unnoticed(call: Call) -> bool:
    """Tell whether nobody ever reads what this call leaves behind."""
    return call.kind == "note" and call.args[1] is None
