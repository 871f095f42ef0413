"""Configuration of one embedded server.

The cluster itself is described by the XML fragments in ``docker/clickhouse``, the same files that a Docker profile
mounts into a stand-alone server. They take host names, ports and macros from the environment (`fragment_environment`).
Generated here is only what an embedded server needs beside them (`write_node_folder`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tests.cluster.spec import (
    ADMIN_USER,
    APP_PASSWORD,
    APP_USER,
    INDEPENDENT_CLUSTER_NAME,
    LOCALHOST,
    QUEUE_STAND_IN,
    ClusterSpec,
    Endpoint,
    User,
)

FRAGMENTS = Path(__file__).resolve().parents[2] / "docker" / "clickhouse"
_REPLICAS_IN_FRAGMENTS = 2
_SECRET = "between-the-replicas"


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of one server, all on the loopback address. `interserver` is served by the gateway."""

    http: int
    tcp: int
    interserver: int


def fragment_environment(
    spec: ClusterSpec, node: int, ports: dict[int, NodePorts], keeper: Endpoint
) -> dict[str, str]:
    """The environment variables that the fragments read, for one node."""
    environment = {
        "DPONE_HTTP_PORT": str(ports[node].http),
        "DPONE_TCP_PORT": str(ports[node].tcp),
        "DPONE_DISPLAY_NAME": f"n{node}",
        "DPONE_REPLICA": f"r{node}",
        "DPONE_CLUSTER_SECRET": _SECRET if spec.secret else "",
        "DPONE_INTERNAL_REPLICATION": str(spec.internal_replication).lower(),
        "DPONE_KEEPER_HOST": keeper.host,
        "DPONE_KEEPER_PORT": str(keeper.port),
        "DPONE_APP_PASSWORD": APP_PASSWORD,
    }
    for number in range(1, _REPLICAS_IN_FRAGMENTS + 1):
        environment[f"DPONE_REPLICA{number}_HOST"] = LOCALHOST
        environment[f"DPONE_REPLICA{number}_PORT"] = str(ports[number].tcp)
    return environment


def write_node_folder(folder: Path, spec: ClusterSpec, node: int, ports: dict[int, NodePorts]) -> None:
    """Write everything that the server reads at its start into `folder`, which must not exist yet."""
    folder.mkdir(parents=True)
    shutil.copytree(FRAGMENTS / "config.d", folder / "config.d")
    shutil.copytree(FRAGMENTS / "users.d", folder / "users.d")
    (folder / "config.xml").write_text(_embedded_config(folder, node, ports[node].interserver))
    (folder / "users.xml").write_text(_USERS)
    (folder / "config.d" / "zz-further-replicas.xml").write_text(_further_clusters(spec, ports))
    (folder / "users.d" / "zz-further-users.xml").write_text(_further_users(spec.users))


def _embedded_config(folder: Path, node: int, interserver_port: int) -> str:
    # Embedded servers all have the same (empty) server UUID and would kill each other's Keeper session, were the
    # session paths not apart. The merge_tree settings only shorten waits: for the next attempt after a failed fetch,
    # and for tables to find their way back after Keeper was gone.
    return f"""<clickhouse>
    <logger>
        <level>information</level>
        <log>{escape(str(folder))}/server.log</log>
        <errorlog>{escape(str(folder))}/server.error.log</errorlog>
    </logger>
    <listen_host>{LOCALHOST}</listen_host>
    <asynchronous_metrics_update_period_s>60</asynchronous_metrics_update_period_s>
    <interserver_http_host>{LOCALHOST}</interserver_http_host>
    <interserver_http_port>{interserver_port}</interserver_http_port>
    <users_config>{escape(str(folder))}/users.xml</users_config>
    <zookeeper>
        <sessions_path>/clickhouse/sessions/n{node}</sessions_path>
    </zookeeper>
    <merge_tree>
        <zookeeper_session_expiration_check_period>1</zookeeper_session_expiration_check_period>
        <max_postpone_time_for_failed_replicated_fetches_ms>500</max_postpone_time_for_failed_replicated_fetches_ms>
        <max_postpone_time_for_failed_replicated_tasks_ms>500</max_postpone_time_for_failed_replicated_tasks_ms>
    </merge_tree>
</clickhouse>
"""


_USERS = f"""<clickhouse>
    <profiles>
        <default/>
    </profiles>
    <quotas>
        <default/>
    </quotas>
    <users>
        <{ADMIN_USER}>
            <password></password>
            <networks><ip>::/0</ip></networks>
            <profile>default</profile>
            <quota>default</quota>
            <access_management>1</access_management>
            <named_collection_control>1</named_collection_control>
        </{ADMIN_USER}>
    </users>
</clickhouse>
"""


def _further_clusters(spec: ClusterSpec, ports: dict[int, NodePorts]) -> str:
    replicas = {
        number: f'<replica number="{number}"><host>{LOCALHOST}</host><port>{node.tcp}</port></replica>'
        for number, node in ports.items()
    }
    further = "".join(text for number, text in replicas.items() if number > _REPLICAS_IN_FRAGMENTS)
    shard = f"<shard>{further}</shard>" if further else ""
    return (
        f"<clickhouse><remote_servers><analytics>{shard}</analytics>"
        f"{_independent_cluster(spec, ''.join(replicas.values()))}{_unsupported_clusters(ports)}"
        "</remote_servers></clickhouse>\n"
    )


def _independent_cluster(spec: ClusterSpec, replicas: str) -> str:
    """All servers again, as a cluster whose tables don't replicate themselves."""
    secret = f"<secret>{_SECRET}</secret>" if spec.secret else ""
    return (
        f"<{INDEPENDENT_CLUSTER_NAME}>{secret}<shard><internal_replication>false</internal_replication>"
        f"{replicas}</shard></{INDEPENDENT_CLUSTER_NAME}>"
    )


def _unsupported_clusters(ports: dict[int, NodePorts]) -> str:
    """Clusters of the same servers, in the shapes that a refresh must refuse: `two_shards`, `one_replica`, `twice`."""
    first, second = (
        f"<replica><host>{LOCALHOST}</host><port>{ports[number].tcp}</port></replica>" for number in (1, 2)
    )

    def shard(*replicas: str) -> str:
        return f"<shard><internal_replication>true</internal_replication>{''.join(replicas)}</shard>"

    return (
        f"<two_shards>{shard(first)}{shard(second)}</two_shards>"
        f"<one_replica>{shard(first)}</one_replica>"
        f"<twice>{shard(first, first)}</twice>"
    )


def _further_users(users: tuple[User, ...]) -> str:
    # The number keeps these grants from being merged into those of the fragment.
    stand_in = f'<query number="stand-in">GRANT SELECT ON {QUEUE_STAND_IN}</query>'
    profiles = "".join(
        f"<{user.name}>"
        + "".join(f"<{name}>{escape(value)}</{name}>" for name, value in user.settings.items())
        + f"</{user.name}>"
        for user in users
    )
    accounts = "".join(
        f"<{user.name}><password>{escape(user.password)}</password><networks><ip>::/0</ip></networks>"
        f"<profile>{user.name}</profile><quota>default</quota>"
        + f"<grants>{stand_in}"
        + "".join(f"<query>{escape(grant)}</query>" for grant in user.grants)
        + f"</grants></{user.name}>"
        for user in users
    )
    app = f"<{APP_USER}><grants>{stand_in}</grants></{APP_USER}>"
    return f"<clickhouse><profiles>{profiles}</profiles><users>{app}{accounts}</users></clickhouse>\n"
