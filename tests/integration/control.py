"""What the tests of the adapters share: connections to the local cluster, and its control table."""

from __future__ import annotations

from typing import Any

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.identity import target_key
from airflow_provider_dpone.publication.record import AuthorityRecord
from tests.cluster.client import ClusterClient
from tests.cluster.spec import ADMIN_USER, APP_PASSWORD, APP_USER, CLUSTER_NAME, Endpoint
from tests.unit import builders

CONTROL = ControlTable()
REPLICATED = "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')"


def server(*endpoints: Endpoint, **more: Any) -> Server:
    """A connection as the restricted user."""
    return Server(ConnectionSettings(tuple(endpoints), user=APP_USER, password=APP_PASSWORD, **more))


def admin(*endpoints: Endpoint, **more: Any) -> Server:
    """A connection as the user who may do everything."""
    return Server(ConnectionSettings(tuple(endpoints), user=ADMIN_USER, **more))


def authority_id(cluster: ClusterClient, control: ControlTable = CONTROL) -> str:
    """The cluster's authority id; its control table is created where that is needed."""
    done = initialise(admin(cluster.endpoints[0]), CLUSTER_NAME, control=control)
    assert done.authority_id is not None
    return done.authority_id


def record(authority: str, database: str, table: str = "orders", **changes: Any) -> AuthorityRecord:
    """A prepared operation on a table of the local cluster."""
    fields = {
        "authority_id": authority,
        "target_key": target_key(authority, database, table),
        "cluster": CLUSTER_NAME,
        "database": database,
        "table": table,
    }
    return builders.record(**{**fields, **changes})


def create_table(cluster: ClusterClient, database: str, name: str, rows: int = 0, clauses: str = "") -> None:
    """Create a replicated table with some rows on every replica, and wait until they are everywhere."""
    quoted = name.replace("\\", "\\\\").replace("`", "\\`")
    cluster.execute(
        f"CREATE TABLE {database}.`{quoted}` ON CLUSTER {CLUSTER_NAME} (id UInt64, name String) "
        f"ENGINE = {REPLICATED} ORDER BY id {clauses}"
    )
    if rows:
        cluster.execute(
            f"INSERT INTO {database}.`{quoted}` SELECT number, toString(number) FROM numbers({rows})"
        )
        for node in cluster.nodes:
            cluster.execute(f"SYSTEM SYNC REPLICA {database}.`{quoted}`", node=node)


def uuids(cluster: ClusterClient, database: str, name: str) -> list[str]:
    """The UUID of a table on each node; empty where it is absent."""
    sql = (
        f"SELECT toString(uuid) AS uuid FROM system.tables WHERE database = '{database}' AND name = '{name}'"
    )
    return [next((row["uuid"] for row in cluster.query(sql, node=node)), "") for node in cluster.nodes]
