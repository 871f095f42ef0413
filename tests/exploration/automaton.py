"""A task as an automaton: the real route code, stopped at each call to the outside.

A task's run is a function of the answers to its calls. So a state of a worker is what its suspended frames
hold, and it can be reached again by feeding the same answers. Each answer in each state is tried once and
remembered; the exploration of the whole cluster then costs a look into a table per step.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from types import FrameType, FunctionType
from typing import Any

from greenlet import GreenletExit, greenlet  # type: ignore[import-untyped]

from airflow_provider_dpone.publication.canonical import digest
from airflow_provider_dpone.publication.decide import ContentCheck
from airflow_provider_dpone.publication.facts import Dependent, Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.record import AuthorityRecord, IndependentRecord, Phase, StoredRecord
from airflow_provider_dpone.publication.statement import Statement
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Body, PermitUnused
from airflow_provider_dpone.routes.cluster_refresh._common import Pause
from airflow_provider_dpone.routes.ports import (
    Claimed,
    Conflict,
    Intent,
    OutcomeUnknown,
    Ports,
    Reply,
    Stored,
    WriteResult,
)
from tests.exploration.liveness import live_variables


class Seq(int):
    """A place in the order of one worker's reads. Only its order among the others matters."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a worker asks of the outside."""

    kind: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """How a task ended: with a result, or a reason to stop.

    :ivar surprise: an exception that no route should raise.
    """

    result: Any = None
    stop: Stop | None = None
    surprise: str | None = None


@dataclass(eq=False, slots=True)
class Answer:
    """An answer to a call. Equal answers are one object, so that states can remember what they led to."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The call raises: it was surely not done."""

    code: Code = Code.SERVER_UNAVAILABLE


class Outside:
    """What stands for the outside: a task's state holds nothing of it."""

    __slots__ = ()


BLOCKED = "blocked"
"""What a thread asks that waits for a lock."""


@dataclass(frozen=True, slots=True)
class ThreadEnd:
    """How a thread ended."""

    stopped: Stopped | None


@dataclass(slots=True)
class Turns:
    """A lock between the threads of a task."""

    held: bool = False

    def __enter__(self) -> None:
        while self.held:
            greenlet.getcurrent().parent.switch(BLOCKED)
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


@dataclass(slots=True)
class Puppet(Outside):
    """The ports of one task. Each call that others can notice stops the task until it is answered.

    :ivar locked: the UUID of the table for the source, if the last look showed that the target is locked for it.
    :ivar crew: who lets the threads of the task go on in turn, while there are any.
    """

    label: str
    hub: greenlet
    nonce: int = 0
    reads: int = 0
    now: float = 0.0
    members: Inventory | None = None
    locked: str | None = None
    crew: greenlet | None = None
    gone: bool = False

    def ask(self, kind: str, *args: Any) -> Any:
        """Stop until there is an answer."""
        if self.gone:
            raise GreenletExit
        # An exception that is on its way through a ``finally`` is in no variable of the route: it is put in one here.
        _passing = _shape_of_exception(sys.exc_info()[1])
        try:
            answer = (self.crew or self.hub).switch(Call(kind, args))
        except GreenletExit:
            # Nobody needs this run any more, and its ``finally`` blocks must not call anybody.
            self.gone = True
            raise
        if isinstance(answer, Failed):
            raise Stopped(Stop(answer.code, f"{kind}: no answer"))
        return answer

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> Sequence[Stopped | None]:
        """Run tasks as threads do: at each call of one of them any other one may go on."""
        crew = [greenlet(_run_thread) for _ in tasks]
        self.crew = greenlet.getcurrent()
        asks = [thread.switch(task) for thread, task in zip(crew, tasks, strict=True)]
        while any(isinstance(one, Call) for one in asks):
            number, value = self._ask_for(asks)
            asks[number] = crew[number].switch(value)
            for n in range(len(crew)):
                if asks[n] is BLOCKED:
                    asks[n] = crew[n].switch(None)
        self.crew = None
        if any(one is BLOCKED for one in asks):
            raise RuntimeError("threads wait for each other")
        return [one.stopped for one in asks]

    def _ask_for(self, asks: Sequence[Any]) -> tuple[int, Any]:
        calls = tuple(one if isinstance(one, Call) else None for one in asks)
        try:
            answer: tuple[int, Any] = self.hub.switch(Call("any", calls))
        except GreenletExit:
            self.gone = True
            raise
        return answer

    def tick(self) -> Seq:
        """Return the next place in the order of reads."""
        self.reads += 1
        return Seq(self.reads)

    # Catalog.

    @property
    def inventory(self) -> Inventory:
        if self.members is None:
            raise ValueError("the replicas are known after the first look")
        return self.members

    def observe(self, tables: Collection[str]) -> Observation:
        seen: Observation = self.ask("observe", tuple(tables))
        self.members = seen.inventory
        record = seen.record.record if seen.record is not None else None
        extract = (
            record.extract if isinstance(record, IndependentRecord) and record.phase is Phase.LOCKED else None
        )
        self.locked = extract.uuid if extract is not None else None
        return replace(seen, sequence=self.tick())

    def content(self, table: str) -> ContentCheck:
        return ContentCheck(self.tick(), self.ask("content", table))

    def dictionary_loads(self, dictionaries: Collection[Dependent]) -> Mapping[str, Mapping[Dependent, int]]:
        raise NotImplementedError

    # Authority.

    def write(self, expected: StoredRecord | None, record: AuthorityRecord, write_id: str) -> WriteResult:
        answer = self.ask("write", expected, record, write_id)
        return answer if isinstance(answer, Conflict | OutcomeUnknown) else answer[0]

    def claim(
        self, expected: StoredRecord, record: AuthorityRecord, token: str, write_id: str
    ) -> Claimed | Conflict | OutcomeUnknown:
        answer = self.ask("claim", expected, record, write_id)
        if isinstance(answer, Conflict | OutcomeUnknown):
            return answer
        stored, inventory_digest = answer
        assert isinstance(stored, Stored)
        permit = Permit(token=token, epoch=record.dispatch_epoch, write_id=write_id)
        return Claimed(stored.stored, permit, inventory_digest)

    # DDL queue.

    def send(self, permit: Permit, statement: Statement, token: str) -> Reply:
        permit.use(token)
        reply: Reply = self.ask("send", statement, token)
        return reply

    def read(self, token: str) -> tuple[int, Sequence[QueueRow]]:
        rows: Sequence[QueueRow] = self.ask("read", token)
        return self.tick(), rows

    # Clock, random, log. Nobody notices them, so they are no stops.

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def hex(self, bits: int) -> str:
        self.nonce += 1
        return digest("exploration", self.label, self.nonce)[: bits // 4]

    def uuid(self) -> str:
        text = digest("exploration", self.label, "uuid", self.hex(128))
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:32]}"

    def __call__(self, message: str) -> None:
        """Nobody reads it."""


@dataclass(slots=True)
class Trail(Outside):
    """The evidence port of a task."""

    puppet: Puppet

    def write(self, operation_id: str, body: Body) -> None:
        unused = (body.epoch, body.write_id) if isinstance(body, PermitUnused) else None
        self.puppet.ask("note", body.kind, unused)

    def intents(self, operation_id: str) -> Sequence[Intent]:
        return ()

    def permit_unused(self, operation_id: str, epoch: int, write_id: str) -> bool:
        return bool(self.puppet.ask("unused", epoch, write_id))

    def asked(self, operation_id: str, asker: str) -> bool:
        raise AssertionError("no explored task gives a name to ask by: it changes nothing that is decided")


Task = Callable[[Ports], Any]


@dataclass(slots=True)
class Node:
    """A state of a task: what it asks, or how it ended, and what each answer led to."""

    asks: Call | End
    history: tuple[Answer, ...]
    next: dict[Answer, int] = field(default_factory=dict)
    live: greenlet | None = None


@dataclass(slots=True)
class Automaton:
    """The states of one task that answers have led to so far.

    :ivar label: unique; it makes the task's write ids and tokens unique.
    """

    label: str
    task: Task
    nodes: list[Node] = field(default_factory=list)
    index: dict[Any, int] = field(default_factory=dict)
    interned: dict[Any, int] = field(default_factory=dict)
    runs: int = 0

    def start(self) -> int:
        """Return the first state."""
        if not self.nodes:
            glet, puppet = self.new()
            self._add(self.begin(glet, puppet), glet, puppet, ())
        return 0

    def step(self, state: int, answer: Answer) -> int:
        """Return the state that ``answer`` leads to."""
        node = self.nodes[state]
        if (known := node.next.get(answer)) is not None:
            return known
        glet, node.live = node.live, None
        puppet: Puppet
        if glet is None:
            glet, puppet = self.new()
            self.begin(glet, puppet)
            for earlier in node.history:
                glet.switch(earlier.value)
        else:
            puppet = glet.dpone_puppet
        asks = glet.switch(answer.value)
        found = self._add(asks, glet, puppet, (*node.history, answer))
        node.next[answer] = found
        return found

    def begin(self, glet: greenlet, puppet: Puppet) -> Call | End:
        """Let a run of the task go to its first call."""
        ports = Ports(puppet, puppet, puppet, Trail(puppet), puppet, puppet, puppet)
        return glet.switch(self.task, ports)  # type: ignore[no-any-return]

    def new(self) -> tuple[greenlet, Puppet]:
        """Return a new run of the task, and its ports."""
        self.runs += 1
        puppet = Puppet(self.label, greenlet.getcurrent())
        glet = greenlet(_run)
        glet.dpone_puppet = puppet
        return glet, puppet

    def _add(self, asks: Call | End, glet: greenlet, puppet: Puppet, history: tuple[Answer, ...]) -> int:
        ended = isinstance(asks, End)
        key: Any = ("end", _end_key(asks)) if isinstance(asks, End) else self._shape(glet.gr_frame, puppet)
        found = self.index.get(key)
        if found is None:
            found = self.index[key] = len(self.nodes)
            self.nodes.append(Node(asks, history, live=None if ended else glet))
        return found

    def _shape(self, frame: FrameType | None, puppet: Puppet) -> tuple[Any, ...]:
        """What the suspended frames hold: two runs of equal shape go on in the same way."""
        shape = _Shape(self.interned, puppet)
        shape.out += (puppet.nonce, puppet.members.digest if puppet.members else None, puppet.locked)
        shape.add_frames(frame)
        return shape.ranked()


def _run_thread(task: Callable[[], None]) -> ThreadEnd:
    try:
        task()
    except Stopped as stopped:
        return ThreadEnd(stopped)
    return ThreadEnd(None)


def run_once(label: str, task: Task) -> tuple[Call | End, Callable[[Answer], Call | End]]:
    """Begin a task without remembering its states; return what it asks, and what gives it an answer."""
    automaton = Automaton(label, task)
    glet, puppet = automaton.new()
    return automaton.begin(glet, puppet), lambda answer: glet.switch(answer.value)


def _run(task: Task, ports: Ports) -> End:
    try:
        return End(result=task(ports))
    except Stopped as stopped:
        return End(stop=stopped.stop)
    except (ValueError, RuntimeError, AssertionError, NotImplementedError, AttributeError) as error:
        return End(surprise=f"{type(error).__name__}: {error}")


LOCK = type(threading.Lock())
_OUTERMOST = frozenset({_run.__code__, _run_thread.__code__})
_ASK = Puppet.ask.__code__

_SILENT = frozenset({"said", "site", "waits", "request"})
"""Variables that never decide anything: what is only logged, and what is the same for the whole task."""


def _end_key(end: End) -> Any:
    stop = None if end.stop is None else end.stop.code
    return repr(end.result), stop, end.surprise


def _shape_of_exception(error: BaseException | None) -> Any:
    return (type(error).__name__, error.stop.code) if isinstance(error, Stopped) else type(error).__name__


@dataclass(slots=True)
class _Shape:
    """Flattens values into tokens. Places in the order of reads count by rank, times by what is left."""

    interned: dict[Any, int]
    puppet: Puppet
    out: list[Any] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)

    def add_frames(self, frame: FrameType | None) -> None:
        """Add what suspended frames hold."""
        # The frame below that of the task is whoever let it go on.
        while frame is not None and frame.f_code not in _OUTERMOST:
            self.out += (id(frame.f_code), frame.f_lasti)
            live = live_variables(frame.f_code, frame.f_lasti)
            for name, value in frame.f_locals.items():
                if (name in live and name not in _SILENT) or frame.f_code is _ASK:
                    self.out.append(name)
                    self.add(value)
            frame = frame.f_back

    def add(self, value: Any) -> None:
        out = self.out
        match value:
            case Seq():
                out.append(value)
            case greenlet():
                self.add_frames(value.gr_frame)
            case None | bool() | int() | str() | float() | Enum():
                out.append(value)
            case Stop():
                out.append(value.code)
            case StoredRecord() | AuthorityRecord():
                out.append(self.intern(value))
            case Observation():
                out += ("seen", value.sequence, id(value.replicas), self.intern(value.record))
            case Pause():
                out += ("pause", value.left, value.pause)
            case Outside() | Ports():
                out.append("ports")
            case FunctionType() if value.__closure__:
                # Such as a lambda: each run makes its own, from the same code.
                out.append(id(value.__code__))
                for cell in value.__closure__:
                    self.add(cell.cell_contents)
            case _ if type(value) is LOCK:
                out.append(value.locked())
            case Permit():
                out += (value.token, value.used)
            case BaseException():
                out.append(_shape_of_exception(value))
            case Mapping():
                out += ("map", len(value))
                for key in sorted(value, key=str):
                    self.add(key)
                    self.add(value[key])
            case tuple() | list():
                out += ("list", len(value))
                for item in value:
                    self.add(item)
            case set() | frozenset():
                out += ("set", *sorted(map(str, value)))
            case _ if is_dataclass(value) and not isinstance(value, type):
                out.append(type(value).__name__)
                if not value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
                    # The parts of a task share what changes: once in the state is enough.
                    if id(value) in self.held:
                        out.append(self.held[id(value)])
                        return
                    self.held[id(value)] = len(self.held)
                for each in fields(value):
                    if each.name not in _SILENT and hasattr(value, each.name):
                        self.add(getattr(value, each.name))
            case _:
                out.append(id(value) if callable(value) else repr(value))

    def intern(self, value: Any) -> int:
        return self.interned.setdefault(value, len(self.interned))

    def ranked(self) -> tuple[Any, ...]:
        ranks = {seq: n for n, seq in enumerate(sorted({s for s in self.out if isinstance(s, Seq)}))}
        return tuple(("#", ranks[item]) if isinstance(item, Seq) else item for item in self.out)
