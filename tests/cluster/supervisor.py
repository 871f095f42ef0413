"""The process that owns a cluster: it starts ZooKeeper and the servers and is the gateway in front of them.

Run by `tests.cluster.local`:

    python -m tests.cluster.supervisor FOLDER SPEC

It prints one line of JSON with the endpoints as soon as everything is up, and takes everything down again when its
standard input ends, that is also when whoever started it has died.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from tests.cluster.ddl_queue import QUEUE_COLUMNS, DDLQueue, RowOverride
from tests.cluster.ddl_worker import DDLWorker
from tests.cluster.faults import FaultKind, FaultRegistry
from tests.cluster.front import Front, Upstream
from tests.cluster.keeper import Keeper, KeeperError
from tests.cluster.node_client import NodeClient, NodeDownError, ServerError, new_session
from tests.cluster.node_config import NodePorts, fragment_environment, write_node_folder
from tests.cluster.on_cluster import Initiator
from tests.cluster.part_exchange import PartExchange
from tests.cluster.processes import ManagedProcess, free_ports, node_process, zookeeper_process
from tests.cluster.spec import LOCALHOST, QUEUE_STAND_IN, ClusterSpec, Endpoint
from tests.cluster.statement_log import StatementLog

_HEAL_SECONDS = 60.0
_SHUTDOWN_GRACE = 0.1
_LARGEST_BODY = 1 << 40

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])

_OFFERED: dict[str, Callable[..., Awaitable[Any]]] = {}


def _offered(method: Method) -> Method:
    """Offer this method of `Supervisor` on the control port, under its own name."""
    _OFFERED[method.__name__] = method
    return method


class Supervisor:
    """One cluster."""

    def __init__(self, folder: Path, spec: ClusterSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._runners: list[web.AppRunner] = []
        self._session = new_session()
        self._faults = FaultRegistry()
        self._log = StatementLog()
        first, *rest = free_ports(1 + 2 * spec.replicas)
        self._keeper_endpoint = Endpoint(LOCALHOST, first)
        self._http = {node: Endpoint(LOCALHOST, rest[2 * node - 2]) for node in spec.nodes}
        self._tcp = {node: Endpoint(LOCALHOST, rest[2 * node - 1]) for node in spec.nodes}
        self._clients = {node: NodeClient(self._session, self._http[node]) for node in spec.nodes}
        self._keeper = Keeper(self._keeper_endpoint)
        self._queue = DDLQueue(self._keeper)
        self._workers = {
            node: DDLWorker(
                node=node,
                host=self._tcp[node],
                shard=1,
                client=self._clients[node],
                queue=self._queue,
                faults=self._faults,
                retry_seconds=spec.worker_retry_seconds,
            )
            for node in spec.nodes
        }
        self._zookeeper = zookeeper_process(folder / "zookeeper", self._keeper_endpoint)
        self._nodes: dict[int, ManagedProcess] = {}
        self._fronts: dict[int, Front] = {}
        self._rotation = cycle(spec.nodes)

    # --- Up and down -------------------------------------------------------------------

    async def start(self) -> dict[str, Any]:
        """Bring everything up; returns what clients must know."""
        control = await self._serve(self._control, queue=self._serve_queue)
        interserver = {
            node: await self._serve(PartExchange(self._clients[node]).handle) for node in self._spec.nodes
        }
        ports = {
            node: NodePorts(self._http[node].port, self._tcp[node].port, interserver[node].port)
            for node in self._spec.nodes
        }
        for node in self._spec.nodes:
            folder = self._folder / f"n{node}"
            write_node_folder(folder, self._spec, node, ports)
            self._nodes[node] = node_process(
                node,
                folder,
                self._spec.chdb_folder(node),
                fragment_environment(self._spec, node, ports, self._keeper_endpoint),
                interserver[node],
                self._clients[node],
            )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._zookeeper.start())
            for process in self._nodes.values():
                group.create_task(process.start())
        await self._keeper.open()
        fronts = {node: await self._open_front(node, control) for node in self._spec.nodes}
        for worker in self._workers.values():
            worker.start()
        return {
            "endpoints": [list(fronts[node]) for node in self._spec.nodes],
            "load_balancer": list(await self._serve(self._balance, self._spec.load_balancer_port)),
            "control": list(control),
            "folder": str(self._folder),
            "direct_http": [list(self._http[node]) for node in self._spec.nodes],
            "direct_tcp": [list(self._tcp[node]) for node in self._spec.nodes],
            "zookeeper": list(self._keeper_endpoint),
        }

    async def _open_front(self, node: int, control: Endpoint) -> Endpoint:
        client = self._clients[node]
        identity = (await client.rows("SELECT FQDN() AS fqdn"))[0]
        baseline = await client.rows("SELECT name, value FROM system.settings WHERE changed")
        database = QUEUE_STAND_IN.partition(".")[0]
        await client.text(f"CREATE DATABASE {database} ENGINE = Atomic")
        await client.text(
            f"CREATE TABLE {QUEUE_STAND_IN} ({QUEUE_COLUMNS}) "
            f"ENGINE = URL('http://{control}/queue?node={node}', 'JSONEachRow')"
        )
        initiator = Initiator(
            client=client,
            queue=self._queue,
            name=Endpoint(identity["fqdn"], self._tcp[node].port),
            node_is_active=self._is_active,
            baseline={row["name"]: row["value"] for row in baseline},
        )
        upstream = Upstream(node, client, initiator, self._nodes[node].died)
        self._fronts[node] = Front(upstream, self._session, self._faults, self._log)
        return await self._serve(self._fronts[node].handle)

    def _is_active(self, host: Endpoint) -> bool:
        return any(
            self._nodes[node].running and worker.alive
            for node, worker in self._workers.items()
            if worker.host == host
        )

    async def _serve(self, handler: Handler, port: int = 0, **others: Handler) -> Endpoint:
        """Serve on a port, by default a free one: `others` by name, `handler` for every other path."""
        application = web.Application(client_max_size=_LARGEST_BODY)
        for name, other in others.items():
            application.router.add_route("*", f"/{name}", other)
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application, access_log=None, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, LOCALHOST, port, backlog=512, shutdown_timeout=_SHUTDOWN_GRACE).start()
        self._runners.append(runner)
        host, bound = runner.addresses[0][:2]
        return Endpoint(host, bound)

    async def close(self) -> None:
        """Take everything down, servers first, and remove the folder."""
        for worker in self._workers.values():
            await worker.stop()
        await self._keeper.close()
        # Nothing of them is kept, so there is nothing to shut down in order.
        await asyncio.gather(*(process.kill() for process in (*self._nodes.values(), self._zookeeper)))
        self._faults.clear()
        for runner in self._runners:
            await runner.cleanup()
        await self._session.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _balance(self, request: web.Request) -> web.StreamResponse:
        """Send each request to another server in turn, leaving out those that are down."""
        for _ in self._spec.nodes:
            node = next(self._rotation)
            if self._nodes[node].running:
                break
        return await self._fronts[node].handle(request)

    # --- The control port ----------------------------------------------------------------

    async def _serve_queue(self, request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":  # ClickHouse asks for the size first; it does without
            return web.StreamResponse()
        return web.Response(text=await self._queue.lines())

    async def _control(self, request: web.Request) -> web.Response:
        """``POST /method``, arguments as a JSON object; answers ``{"result": ...}`` or ``{"error": ...}``."""
        method = _OFFERED.get(request.path.removeprefix("/"))
        if method is None:
            return web.json_response({"error": f"no such method: {request.path}"}, status=404)
        try:
            result = await method(self, **await request.json())
        except (LookupError, ValueError, TypeError, RuntimeError, OSError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
        return web.json_response({"result": result})

    @_offered
    async def arm_fault(
        self,
        kind: str,
        node: int | None,
        match: str,
        count: int = 1,
        seconds: float = 0.0,
        code: int = 0,
    ) -> int:
        """Arm a fault; returns its number."""
        fault = self._faults.arm(
            FaultKind(kind), node=node, match=match, count=count, seconds=seconds, code=code
        )
        return fault.number

    @_offered
    async def fault_hits(self, number: int) -> int:
        """How many statements the fault has hit."""
        return self._faults.get(number).hits

    @_offered
    async def release_fault(self, number: int) -> None:
        """Let go what this fault holds."""
        self._faults.get(number).released.set()

    @_offered
    async def clear_faults(self) -> None:
        """Disarm all faults and stop all lies about the queue."""
        self._faults.clear()
        self._queue.overrides.clear()

    @_offered
    async def pause_worker(self, node: int) -> None:
        """Let this replica's worker begin no further entry."""
        self._workers[node].pause()

    @_offered
    async def resume_worker(self, node: int) -> None:
        """Let it go on."""
        self._workers[node].resume()

    @_offered
    async def restart_worker(self, node: int) -> None:
        """Start it with an empty memory, dead or not."""
        await self._workers[node].stop()
        self._workers[node].start()

    @_offered
    async def worker_alive(self, node: int) -> bool:
        """Whether it runs, paused or not."""
        return self._workers[node].alive

    @_offered
    async def kill_node(self, node: int) -> None:
        """Kill a server (SIGKILL), and with it its worker."""
        await self._nodes[node].kill()
        await self._workers[node].stop()

    @_offered
    async def stop_node(self, node: int) -> None:
        """Shut a server down in order (SIGTERM), and with it its worker."""
        await self._nodes[node].stop()
        await self._workers[node].stop()

    @_offered
    async def start_node(self, node: int) -> None:
        """Start a server again; nothing happens if it runs."""
        if not self._nodes[node].running:
            await self._nodes[node].start()
            self._workers[node].start()

    @_offered
    async def stop_zookeeper(self) -> None:
        """Shut ZooKeeper down (SIGTERM)."""
        await self._zookeeper.stop()

    @_offered
    async def start_zookeeper(self) -> None:
        """Start it again with its data; nothing happens if it runs."""
        if not self._zookeeper.running:
            await self._zookeeper.start()

    @_offered
    async def running(self) -> dict[str, bool]:
        """Which processes run."""
        nodes = {f"n{node}": process.running for node, process in self._nodes.items()}
        return {"zookeeper": self._zookeeper.running, **nodes}

    @_offered
    async def heal(self) -> None:
        """Undo every fault: disarm, resume, restart, and wait until every replicated table can be written."""
        await self.clear_faults()
        await self.start_zookeeper()
        for node, worker in self._workers.items():
            await self.start_node(node)
            worker.start()
            worker.resume()
        deadline = time.monotonic() + _HEAL_SECONDS
        while not await self._writable():
            if time.monotonic() > deadline:
                raise TimeoutError(f"tables are still read-only after {_HEAL_SECONDS:g} s")
            await asyncio.sleep(0.1)

    async def _writable(self) -> bool:
        try:
            await self._queue.names()
            for client in self._clients.values():
                rows = await client.rows("SELECT count() AS tables FROM system.replicas WHERE is_readonly")
                if rows[0]["tables"]:
                    return False
        except (KeeperError, NodeDownError, ServerError):
            return False
        return True

    @_offered
    async def statements(self, match: str, since: int) -> list[dict[str, Any]]:
        """The log of statements."""
        return [statement.to_dict() for statement in self._log.select(match=match, since=since)]

    @_offered
    async def last_statement(self) -> int:
        """Sequence number of the newest statement in the log."""
        return self._log.last_sequence

    @_offered
    async def requests(self) -> dict[int, int]:
        """Number of HTTP requests per node."""
        return self._log.requests

    @_offered
    async def queue_rows(self, match: str) -> list[Any]:
        """Rows of system.distributed_ddl_queue whose query contains ``match``, lies included."""
        return [row for row in await self._queue.rows() if match in row["query"]]

    @_offered
    async def remove_queue_entry(self, entry: str) -> None:
        """Delete an entry, as the queue's cleaner does."""
        await self._queue.remove(entry)

    @_offered
    async def duplicate_queue_entry(self, entry: str, execute: bool) -> str:
        """Append a copy of an entry, to be executed or marked as finished already; returns its name."""
        original = await self._queue.entry(entry)
        return await (self._queue.enqueue(original) if execute else self._queue.append_finished(original))

    @_offered
    async def override_queue(
        self,
        match: str,
        node: int | None,
        status: str | None,
        exception_code: int | None,
        exception_text: str | None,
        hidden: bool,
    ) -> None:
        """Let the queue's table lie about entries whose query matches."""
        host = self._tcp[node] if node is not None else None
        override = RowOverride(match, host, status, exception_code, exception_text, hidden)
        self._queue.overrides.insert(0, override)  # the newest lie wins


async def _end_of_input() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def _main(folder: Path, spec: ClusterSpec) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    supervisor = Supervisor(folder, spec)
    parent = asyncio.create_task(_end_of_input())
    parent.add_done_callback(lambda _task: ended.set())
    start = asyncio.create_task(supervisor.start())
    end = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({start, end}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            print(json.dumps(start.result()), flush=True)
            await end
    finally:
        for task in (start, parent, end):
            task.cancel()
        await supervisor.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(_main(Path(sys.argv[1]), ClusterSpec.from_json(sys.argv[2])))
