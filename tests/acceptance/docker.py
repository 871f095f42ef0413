"""The Docker profile as a cluster under test: stand-alone servers of the oldest supported ClickHouse, one Keeper."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.client import ClusterClient, wait_until
from tests.cluster.ddl_queue import QueueRow

if TYPE_CHECKING:
    from testcontainers.compose import DockerCompose

FOLDER: Final = Path(__file__).resolve().parents[2] / "docker"
SERVICES: Final = ("clickhouse1", "clickhouse2")
_READY_SECONDS: Final = 90.0
_ASK_SECONDS: Final = 30.0


def why_not() -> str:
    """Why the profile can't run on this machine; empty if it can."""
    if shutil.which("docker") is None:
        return "there is no docker command on this machine"
    asked = subprocess.run(
        ["docker", "compose", "version"], check=False, capture_output=True, timeout=_ASK_SECONDS
    )
    if asked.returncode:
        return "docker has no compose command here"
    engine = subprocess.run(["docker", "info"], check=False, capture_output=True, timeout=_ASK_SECONDS)
    return "the Docker engine does not answer" if engine.returncode else ""


class DockerCluster(ClusterClient):
    """The running profile. What only the local cluster's gateway can do (faults, paused workers) raises here."""

    def __init__(self, compose: DockerCompose) -> None:
        self.compose = compose
        endpoints = [compose.get_service_host_and_port(service, 8123) for service in SERVICES]
        nowhere = ("127.0.0.1", 0)
        super().__init__(
            {
                "endpoints": endpoints,
                "load_balancer": endpoints[0],
                "direct_http": endpoints,
                "direct_tcp": [nowhere] * len(endpoints),
                "control": nowhere,
                "zookeeper": nowhere,
            }
        )

    def stop_node(self, node: int) -> None:
        """Shut a server down."""
        self._compose("stop", SERVICES[node - 1])

    def start_node(self, node: int) -> None:
        """Start it again, and wait until it answers."""
        self._compose("start", SERVICES[node - 1])
        wait_until(lambda: self._answers(node), timeout=_READY_SECONDS)

    def stop_zookeeper(self) -> None:
        """Shut Keeper down."""
        self._compose("stop", "keeper")

    def start_zookeeper(self) -> None:
        """Start it again."""
        self._compose("start", "keeper")

    def heal(self) -> None:
        """Start what was stopped, and wait until every replicated table can be written."""
        self._compose("start", "keeper", *SERVICES)
        wait_until(lambda: all(self._answers(node) for node in self.nodes), timeout=_READY_SECONDS)
        wait_until(self._writable, timeout=_READY_SECONDS)

    def queue_rows(self, match: str = "") -> list[QueueRow]:
        """What system.distributed_ddl_queue shows, for entries whose query contains `match`."""
        rows: list[Any] = self.query("SELECT * FROM system.distributed_ddl_queue WHERE cluster = 'analytics'")
        return [row for row in rows if match in row["query"]]

    def last_statement(self) -> int:
        """There is no log of a gateway."""
        return 0

    def _answers(self, node: int) -> bool:
        try:
            self.execute("SELECT 1 FROM system.zookeeper WHERE path = '/' LIMIT 1", node=node)
        except (OSError, RuntimeError):
            return False
        return True

    def _writable(self) -> bool:
        readonly = "SELECT count() FROM system.replicas WHERE is_readonly OR is_session_expired"
        return not any(int(self.scalar(readonly, node=node)) for node in self.nodes)

    def _compose(self, *words: str) -> None:
        subprocess.run(
            [*self.compose.compose_command_property, *words],
            cwd=FOLDER,
            check=True,
            capture_output=True,
            timeout=_READY_SECONDS,
        )

    def _call(self, method: str, **arguments: Any) -> Any:
        raise NotImplementedError(f"the Docker profile has no gateway: {method}")


@contextmanager
def docker_cluster() -> Iterator[DockerCluster]:
    """Start the profile on free ports, and take it down with its volumes."""
    from testcontainers.compose import DockerCompose

    names = ("DPONE_HTTP1", "DPONE_HTTP2", "DPONE_POSTGRES")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(_free_port()) for name in names})
    try:
        with DockerCompose(str(FOLDER), compose_file_name="compose.yaml", wait=True) as compose:
            yield DockerCluster(compose)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
