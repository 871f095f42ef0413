"""The distributed-DDL worker of one replica, emulated after ClickHouse's ``DDLWorker``.

It takes the entries in order, one at a time, announces each (``active``), executes it on its own server with full
rights, and records the outcome (``finished``). Between the last two steps lies the gap that no queue can close: a
worker that dies there executes the entry again when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from tests.cluster.ddl_entry import DDLEntry, ExecutionStatus
from tests.cluster.ddl_queue import QUEUE_PATH, DDLQueue
from tests.cluster.ddl_statement import OnClusterStatement, needs_leader, parse, text_for_host
from tests.cluster.faults import ArmedFault, FaultKind, FaultRegistry
from tests.cluster.keeper import ExistingNodeError, KeeperError, MissingNodeError
from tests.cluster.node_client import NodeClient, NodeDownError, ServerError
from tests.cluster.spec import Endpoint
from tests.cluster.sql import quote_string

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 2.0  # only in case a watch got lost
_KEEPER_RETRY_SECONDS = 0.3

_READONLY = 164
# Errors after which a worker does not record an outcome but tries again: Keeper errors, unfinished, not a leader,
# table read-only, alter not assigned, too many queries, and the two memory errors.
_RETRIED_CODES = frozenset({999, 341, 529, 242, 517, 202, 241, 173})


class WorkerCrashedError(RuntimeError):
    """The worker dies by this fault."""

    def __init__(self, fault: ArmedFault) -> None:
        super().__init__(fault.number)
        self.fault = fault


class _RetryLaterError(RuntimeError):
    """The entry must be executed again from the beginning."""


@dataclass(slots=True)
class DDLWorker:
    """One replica's worker.

    Attributes:
        node: its node number.
        host: the replica as remote_servers names it.
        shard: number of its shard.
        client: its own server.
        retry_seconds: pause after an error that is retried.
        paused: while true it begins no further entry.
    """

    node: int
    host: Endpoint
    shard: int
    client: NodeClient
    queue: DDLQueue
    faults: FaultRegistry
    retry_seconds: float
    paused: bool = False
    _task: asyncio.Task[None] | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _done: set[str] = field(default_factory=set)

    @property
    def alive(self) -> bool:
        """Whether it runs, paused or not."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start it with an empty memory, as at the start of its server; nothing happens if it runs already."""
        if not self.alive:
            self._done.clear()
            self._task = asyncio.create_task(self._run(), name=f"ddl-worker-{self.node}")

    async def stop(self) -> None:
        """Stop it at once, wherever it is, as the death of its server does."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def pause(self) -> None:
        """Begin no further entry."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._step()
            except WorkerCrashedError as crash:
                _LOG.info("worker of node %s crashed", self.node)
                if crash.fault.seconds < 0:
                    return  # until somebody starts it
                await crash.fault.wait()
                self._done.clear()
            else:
                await wait_for_event(self._wake, pause)

    async def _step(self) -> float:
        """Do what there is to do; returns the number of seconds after which to look again without being woken."""
        try:
            names = await self.queue.names(self._wake.set)
            await self.queue.settled()
            for name in names:
                if self.paused or not await self._settle(name):
                    break
        except KeeperError as error:
            _LOG.info("worker of node %s: %s", self.node, error)
            return _KEEPER_RETRY_SECONDS
        except NodeDownError:
            return _KEEPER_RETRY_SECONDS
        except _RetryLaterError as error:
            _LOG.info("worker of node %s retries: %s", self.node, error)
            return self.retry_seconds
        return _POLL_SECONDS

    async def _settle(self, name: str) -> bool:
        """Bring one entry to its end; false if it can't be begun now."""
        if name in self._done:
            return True
        try:
            entry = await self.queue.entry(name)
            if self.host in entry.hosts and not await self.queue.is_finished(name, self.host):
                if not await self.client.answers():
                    return False
                await self._process(name, entry)
        except MissingNodeError:
            _LOG.info("worker of node %s: %s has been removed", self.node, name)
        self._done.add(name)
        return True

    async def _process(self, name: str, entry: DDLEntry) -> None:
        await self.queue.mark_active(name, self.host)
        try:
            await self._fault(entry, FaultKind.DELAY_EXECUTION, FaultKind.HOLD_EXECUTION)
            status = await self._execute(name, entry)
            await self._fault(entry, FaultKind.HOLD_MARK)
            self._crash_if_told(entry)
            await self._record(name, status)
        except BaseException:
            # The end of a worker's session takes its announcement away.
            await asyncio.shield(self._withdraw(name))
            raise

    async def _withdraw(self, name: str) -> None:
        try:
            await self.queue.unmark_active(name, self.host)
        except KeeperError as error:
            _LOG.info("worker of node %s could not withdraw %s: %s", self.node, name, error)

    async def _record(self, name: str, status: ExecutionStatus) -> None:
        """Write the outcome; a lost connection delays that, but doesn't make the worker forget what it has done."""
        while True:
            try:
                await self.queue.mark_active(name, self.host)
                await self.queue.mark_finished(name, self.host, status)
            except MissingNodeError:
                if await self.queue.keeper.exists(f"{QUEUE_PATH}/{name}/finished"):
                    continue  # the announcement went with a session that expired just now
                raise
            except ExistingNodeError:
                return  # an attempt whose answer was lost
            except KeeperError as error:
                _LOG.info("worker of node %s: outcome of %s not written yet: %s", self.node, name, error)
                await asyncio.sleep(_KEEPER_RETRY_SECONDS)
            else:
                return

    async def _fault(self, entry: DDLEntry, *kinds: FaultKind) -> None:
        fault = self.faults.take(self.node, entry.query, *kinds)
        if fault is not None:
            await fault.wait()

    def _crash_if_told(self, entry: DDLEntry) -> None:
        crash = self.faults.take(self.node, entry.query, FaultKind.CRASH_BEFORE_MARK)
        if crash is not None:
            raise WorkerCrashedError(crash)

    async def _execute(self, name: str, entry: DDLEntry) -> ExecutionStatus:
        statement = parse(entry.query)
        if statement is None:
            return ExecutionStatus(62, "Code: 62. DB::Exception: not an ON CLUSTER statement. (SYNTAX_ERROR)")
        if needs_leader(statement) and await self._is_replicated(statement):
            return await self._execute_as_leader(name, entry, statement)
        return await self._execute_here(name, entry, statement)

    async def _execute_here(
        self, name: str, entry: DDLEntry, statement: OnClusterStatement
    ) -> ExecutionStatus:
        sql = f"/* ddl_entry={name} */ {text_for_host(statement)}"
        parameters = {
            key: value for key, value in entry.settings.items() if not key.startswith("distributed_ddl")
        }
        parameters["query_id"] = str(uuid4())
        fault = self.faults.take(self.node, entry.query, FaultKind.FAIL_EXECUTION)
        if fault is not None:
            # Both ways the error is the server's own, with the text and name that it gives it.
            if fault.code == _READONLY:
                parameters["readonly"] = "1"
            else:
                parameters["allow_custom_error_code_in_throwif"] = "1"
                sql = (
                    f"SELECT throwIf(1, {quote_string(f'injected failure of {name}')}, toInt16({fault.code}))"
                )
        try:
            await self.client.text(sql, parameters)
        except ServerError as error:
            if error.code in _RETRIED_CODES:
                raise _RetryLaterError(error.text[:200]) from error
            return ExecutionStatus(error.code, error.text)
        return ExecutionStatus(0, "")

    async def _execute_as_leader(
        self, name: str, entry: DDLEntry, statement: OnClusterStatement
    ) -> ExecutionStatus:
        """One replica of the shard executes it; the others wait for that and report success."""
        folder = f"{QUEUE_PATH}/{name}/shards/s{self.shard}"
        keeper = self.queue.keeper
        await keeper.ensure_path(folder)
        while not await keeper.exists(f"{folder}/executed"):
            try:
                await keeper.create(f"{folder}/lock", str(self.host), ephemeral=True)
            except ExistingNodeError:
                changed = asyncio.Event()
                if "lock" in await keeper.children(folder, changed.set):
                    await wait_for_event(changed, _POLL_SECONDS)
                continue
            try:
                if await keeper.exists(f"{folder}/executed"):
                    break
                status = await self._execute_here(name, entry, statement)
                if status.code == 0:
                    await keeper.create(f"{folder}/executed", str(self.host))
                return status
            finally:
                await keeper.delete(f"{folder}/lock")
        return ExecutionStatus(0, "")

    async def _is_replicated(self, statement: OnClusterStatement) -> bool:
        table = statement.names[0]
        rows = await self.client.rows(
            "SELECT engine FROM system.tables WHERE database = {database:String} AND name = {table:String}",
            {"param_database": table.database, "param_table": table.name, "log_queries": "0"},
        )
        return any(str(row["engine"]).startswith("Replicated") for row in rows)


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but not longer."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


NodeIsActive = Callable[[Endpoint], bool]
"""Whether the replica with this address has a server and a running worker."""
