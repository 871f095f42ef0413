"""The operating-system processes of a cluster: ZooKeeper and the servers, each started, killed and started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tests.cluster.node_client import NodeClient
from tests.cluster.node_process import READY_FILE
from tests.cluster.spec import LOCALHOST, Endpoint
from tests.cluster.zookeeper import find_zookeeper, write_config

_REPOSITORY = Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0
_START_SECONDS = 120.0
_FIRST_EPHEMERAL_PORT = 32_768


def child_environment() -> dict[str, str]:
    """The environment of a child that runs a module of this package: as ours, with this checkout importable."""
    path = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


class ProcessFailedError(RuntimeError):
    """A process did not come up; the message has the end of its log."""


def free_ports(count: int) -> list[int]:
    """Ports on the loopback address that nobody uses.

    They lie below the range from which the kernel takes the ports of outgoing connections: a server that is killed
    and started again must find its port free.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(10_000, _FIRST_EPHEMERAL_PORT)
        with socket.socket() as probe:
            try:
                probe.bind((LOCALHOST, port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


class ManagedProcess:
    """One process with its log file. It dies with the process that started it."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str],
        is_ready: Callable[[], Awaitable[bool]],
    ) -> None:
        self.name = name
        self.log_file = folder / "process.log"
        self._command = command
        self._folder = folder
        self._environment = {**child_environment(), **environment}
        self._is_ready = is_ready
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            ProcessFailedError: it ended, or was not ready in time.
        """
        (self._folder / READY_FILE).unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not (await self._is_ready() and self.running):
            if not self.running:
                raise ProcessFailedError(
                    f"{self.name} ended with status {self._process.returncode}: {self._tail()}"
                )
            if time.monotonic() > deadline:
                raise ProcessFailedError(
                    f"{self.name} is not ready after {_START_SECONDS:g} s: {self._tail()}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    def _tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-2000:].strip()

    async def died(self) -> None:
        """Return when the process has ended."""
        if self._process is not None:
            await self._process.wait()

    async def kill(self) -> None:
        """End it without warning (SIGKILL)."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask it to end (SIGTERM); kill it if it doesn't within ten seconds."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def zookeeper_process(folder: Path, endpoint: Endpoint) -> ManagedProcess:
    """A ZooKeeper server that keeps its data in `folder`."""
    command = find_zookeeper().command(write_config(folder, endpoint.port))
    tie = [sys.executable, "-m", "tests.cluster.die_with_parent", str(os.getpid())]
    return ManagedProcess("ZooKeeper", [*tie, *command], folder, {}, lambda: _says_imok(endpoint))


async def _says_imok(endpoint: Endpoint) -> bool:
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.write(b"ruok")
            answer = await reader.read(4)
            writer.close()
    except (OSError, TimeoutError):
        return False
    return answer == b"imok"


def node_process(
    node: int,
    folder: Path,
    chdb_folder: Path,
    environment: Mapping[str, str],
    interserver: Endpoint,
    client: NodeClient,
) -> ManagedProcess:
    """A server whose configuration is in `folder`."""
    command = [
        *(sys.executable, "-m", "tests.cluster.node_process", str(os.getpid())),
        *(str(chdb_folder), interserver.host, str(interserver.port)),
    ]

    async def is_ready() -> bool:
        return (folder / READY_FILE).exists() and await client.answers()

    return ManagedProcess(f"node {node}", command, folder, environment, is_ready)
