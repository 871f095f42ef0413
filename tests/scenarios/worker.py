"""A worker: a real process that runs one task through the operators, and dies or sleeps at a named moment.

The processes are forked from a server that has imported everything, so that each is up in milliseconds. The
connection and the options come by the environment, as in Airflow. Nothing of the operators' way is replaced;
only the ports are wrapped, so that the process can be killed between two calls.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, Literal, Self
from unittest import mock

from airflow_provider_dpone import composition
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase, StoredRecord
from airflow_provider_dpone.publication.statement import Drop, Statement
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.routes import ports as port
from airflow_provider_dpone.routes.cluster_refresh import Site
from airflow_provider_dpone.sources import SqlSource
from airflow_provider_dpone.values import ClusterRefresh, MiB, TableStructure
from tests.scenarios.outcome import Outcome, Result

CONN_ID = "scenario"
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class Moment(StrEnum):
    """A place between two calls of a worker to the outside."""

    LOCKED = "the target is locked, and the source is not read"
    SEALED = "the artifact is sealed, and the record does not name it"
    BEFORE_CREATE = "a table is claimed, and not created"
    CREATED = "the candidate is created"
    LOADED = "the candidate is loaded"
    RENAMED = "a replica's table has the candidate's name, and is not READY"
    BEFORE_PREPARED = "before PREPARED is written"
    PREPARED = "PREPARED is written"
    BEFORE_CLAIM = "before the permit is claimed"
    CLAIMED = "the permit is verified, and nothing is sent"
    SENT = "the statement is sent, and its entry is not bound"
    BOUND = "the entry is bound"
    BEFORE_COMMITTED = "everything is proven, and COMMITTED is not written"
    COMMITTED = "COMMITTED is written"
    DROP_CLAIMED = "the drop is claimed, and nothing is sent"
    DROP_SENT = "the drop is sent"


class Fate(StrEnum):
    """What happens at the moment."""

    DIE = "SIGKILL"
    SLEEP = "SIGSTOP"


@dataclass(frozen=True, slots=True)
class Job:
    """One task for one worker.

    :ivar environment: connection and options, as Airflow reads them.
    :ivar mode: the target's ``replication_mode``.
    :ivar arguments: of the operator.
    :ivar waits: changes of what the options give, such as shorter pauses between reads.
    """

    task: Literal["stage", "publish", "cleanup"]
    environment: Mapping[str, str]
    cluster: str
    database: str
    table: str
    run: str
    mode: Literal["internal", "external"] = "internal"
    sql: str = ""
    staged: Mapping[str, Any] | None = None
    max_tries: int = 0
    try_number: int = 1
    moment: Moment | None = None
    fate: Fate = Fate.DIE
    arguments: Mapping[str, Any] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _End:
    """Kills or stops this process when its moment comes, once."""

    moment: Moment | None
    fate: Fate
    told: Connection
    once: threading.Lock = field(default_factory=threading.Lock)
    """Replicas are staged side by side, and more than one of them may come to the moment."""

    def at(self, moment: Moment) -> None:
        if moment is self.moment and self.once.acquire(blocking=False):
            self.told.send(moment)
            os.kill(os.getpid(), signal.SIGKILL if self.fate is Fate.DIE else signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class _Authority:
    real: port.Authority
    end: _End

    def write(
        self, expected: StoredRecord | None, record: AuthorityRecord, write_id: str
    ) -> port.Stored | port.Conflict | port.OutcomeUnknown:
        before, after = _AROUND_WRITE.get(record.phase, (None, None))
        if before is not None:
            self.end.at(before)
        result = self.real.write(expected, record, write_id)
        if after is not None:
            self.end.at(after)
        return result

    def claim(
        self, expected: StoredRecord, record: AuthorityRecord, token: str, write_id: str
    ) -> port.Claimed | port.Conflict | port.OutcomeUnknown:
        if record.phase is Phase.DISPATCHING:
            self.end.at(Moment.BEFORE_CLAIM)
        return self.real.claim(expected, record, token, write_id)


_AROUND_WRITE: Mapping[Phase, tuple[Moment | None, Moment | None]] = {
    Phase.LOCKED: (None, Moment.LOCKED),
    Phase.PREPARED: (Moment.BEFORE_PREPARED, Moment.PREPARED),
    Phase.BOUND: (None, Moment.BOUND),
    Phase.COMMITTED: (Moment.BEFORE_COMMITTED, Moment.COMMITTED),
}


@dataclass(frozen=True, slots=True)
class _Queue:
    real: port.DdlQueue
    end: _End

    def send(self, permit: Permit, statement: Statement, token: str) -> port.Reply:
        drop = isinstance(statement, Drop)
        self.end.at(Moment.DROP_CLAIMED if drop else Moment.CLAIMED)
        reply = self.real.send(permit, statement, token)
        self.end.at(Moment.DROP_SENT if drop else Moment.SENT)
        return reply

    def read(self, token: str) -> tuple[int, Sequence[QueueRow]]:
        return self.real.read(token)


_AROUND_CALL: Mapping[str, tuple[Moment | None, Moment]] = {
    "create": (Moment.BEFORE_CREATE, Moment.CREATED),
    "seal": (None, Moment.SEALED),
    "load": (None, Moment.LOADED),
    "promote": (None, Moment.RENAMED),
}
"""The moments around calls of a staging adapter; not every adapter has all of these calls."""


def _with_moments(staging: Any, end: _End) -> Any:
    """The staging adapter itself, with moments around some of its calls: the stage task asks which one it is."""

    def with_moments(call: Callable[..., Any], before: Moment | None, after: Moment) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                end.at(before)
            result = call(*args, **kwargs)
            end.at(after)
            return result

        return called

    for name, moments in _AROUND_CALL.items():
        if hasattr(staging, name):
            setattr(staging, name, with_moments(getattr(staging, name), *moments))
    return staging


@dataclass(frozen=True, slots=True)
class _Connected:
    """The ports of a task, with the moments around their calls."""

    real: composition.Connected
    end: _End

    @property
    def ports(self) -> port.Ports:
        ports = self.real.ports
        return replace(
            ports, authority=_Authority(ports.authority, self.end), queue=_Queue(ports.queue, self.end)
        )

    @property
    def site(self) -> Site:
        return self.real.site

    def staging(self, *args: Any) -> Any:
        return _with_moments(self.real.staging(*args), self.end)

    @contextmanager
    def replica_staging(self, *args: Any) -> Iterator[Any]:
        with self.real.replica_staging(*args) as staging:
            yield _with_moments(staging, self.end)


def _run(job: Job, told: Connection) -> None:
    """The process's whole life."""
    # Airflow's log would go between the lines of those who started it; what breaks is still on stderr.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ.update(job.environment)
    end = _End(job.moment, job.fate, told)
    connect, waits = composition.connect, composition.waits

    @contextmanager
    def mortal(*args: Any, **kwargs: Any) -> Iterator[_Connected]:
        with connect(*args, **kwargs) as real:
            yield _Connected(real, end)

    with (
        mock.patch.object(composition, "connect", mortal),
        mock.patch.object(composition, "waits", lambda **asked: replace(waits(**asked), **job.waits)),
    ):
        told.send(_execute(job))


def _execute(job: Job) -> Result:
    from airflow.sdk.exceptions import AirflowException, TaskDeferred

    try:
        receipt = _operator(job).execute(_context(job))
    except TaskDeferred as deferred:
        trigger: Any = deferred.trigger
        return Result(job.task, Outcome.DEFERRED, receipt=trigger.serialize()[1])
    except AirflowException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Stopped):
            cause = cause.__context__
        if cause is None:
            raise
        return Result.stopped(job.task, cause.stop, error=type(error).__name__)
    match job.task:
        case "stage":
            outcome = Outcome.STAGED
        case "publish":
            outcome = Outcome.REPLAYED if receipt.get("replayed", True) else Outcome.COMMITTED
        case "cleanup":
            outcome = Outcome.CLEANED
    return Result(job.task, outcome, receipt=receipt)


def _operator(job: Job) -> Any:
    refresh = ClusterRefresh(
        CONN_ID,
        job.cluster,
        job.database,
        job.table,
        max_source_bytes=64 * MiB,
        structure=TableStructure(columns={"id": "UInt64", "name": "String"}, order_by="id"),
        replication_mode=job.mode,
    )
    common: dict[str, Any] = {"task_id": job.task, "refresh": refresh, **job.arguments}
    match job.task:
        case "stage":
            return StageOperator(source=SqlSource(sql=job.sql), **common)
        case "publish":
            if "publish_timeout" in common:
                common["publish_timeout"] = timedelta(seconds=common["publish_timeout"])
            return PublishOperator(staged=job.staged, **common)
        case "cleanup":
            return CleanupOperator(staged=job.staged, **common)


def _context(job: Job) -> Any:
    ti = SimpleNamespace(
        dag_id="scenarios",
        run_id=job.run,
        task_id=job.task,
        map_index=-1,
        max_tries=job.max_tries,
        try_number=job.try_number,
        id=f"{job.run}-{job.task}-{job.try_number}",
    )
    return {"ti": ti, "dag_run": SimpleNamespace(conf={}), "params": {}}


class Worker:
    """A running worker."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._told, told = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_run, args=(job, told), daemon=True)
        self._process.start()
        told.close()

    def result(self, seconds: float = 240.0) -> Result:
        """Wait for the end of the process.

        :raises TimeoutError: it goes on for longer.
        """
        ended = Result(self.job.task, Outcome.KILLED)
        while self._told.poll(seconds):
            try:
                said = self._told.recv()
            except EOFError:
                self._process.join(10)
                return ended
            if isinstance(said, Result):
                ended = said
        raise TimeoutError(f"the worker of {self.job.task} has not ended within {seconds:g} s")

    def reached(self, seconds: float = 180.0) -> None:
        """Wait until the worker sleeps at its moment.

        :raises AssertionError: it did not come there.
        """
        assert self._told.poll(seconds), f"the worker did not reach its moment within {seconds:g} s"
        said = self._told.recv()
        assert isinstance(said, Moment), f"the worker ended before its moment: {said}"

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join(10)

    def wake(self) -> None:
        """Let a sleeping worker go on."""
        pid = self._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(10)
        self._told.close()
