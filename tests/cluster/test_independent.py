"""The same servers as a cluster whose tables don't replicate themselves."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.cluster import (
    APP_PASSWORD,
    APP_USER,
    CLUSTER_NAME,
    INDEPENDENT_CLUSTER_NAME,
    ClickHouseError,
    LocalCluster,
)

pytestmark = pytest.mark.cluster

ON = f"ON CLUSTER {INDEPENDENT_CLUSTER_NAME}"


def members(cluster: LocalCluster, name: str, node: int) -> list[dict[str, object]]:
    return cluster.query(
        "SELECT shard_num, replica_num, host_name, port, internal_replication, is_local FROM system.clusters "
        f"WHERE cluster = '{name}' ORDER BY replica_num",
        node=node,
    )


def uuids(cluster: LocalCluster, database: str, table: str) -> list[str]:
    """The table's UUID on each node."""
    query = f"SELECT toString(uuid) FROM system.tables WHERE database = '{database}' AND name = '{table}'"
    return [cluster.scalar(query, node=node) for node in cluster.nodes]


def create(cluster: LocalCluster, database: str, table: str, rows: int) -> list[str]:
    """Create a table on each node by itself, with a UUID of its own."""
    given = [str(uuid4()) for _ in cluster.nodes]
    for node, uuid in zip(cluster.nodes, given, strict=True):
        cluster.execute(
            f"CREATE TABLE {database}.{table} UUID '{uuid}' (a UInt64) ENGINE = MergeTree ORDER BY a",
            node=node,
        )
        cluster.execute(f"INSERT INTO {database}.{table} SELECT * FROM numbers({rows})", node=node)
    return given


def test_it_has_the_same_servers_without_internal_replication(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        same = members(cluster, CLUSTER_NAME, node)
        assert members(cluster, INDEPENDENT_CLUSTER_NAME, node) == [
            {**member, "internal_replication": 0} for member in same
        ]
        assert [member["internal_replication"] for member in same] == [1, 1]


def test_a_query_reaches_every_server_as_the_user_who_asked(cluster: LocalCluster, database: str) -> None:
    cluster.query(
        f"SELECT * FROM clusterAllReplicas('{INDEPENDENT_CLUSTER_NAME}', system.one)",
        settings={"query_id": database},
        user=APP_USER,
        password=APP_PASSWORD,
    )
    for node in cluster.nodes:
        cluster.execute("SYSTEM FLUSH LOGS", node=node)
        users = cluster.query(
            f"SELECT DISTINCT user FROM system.query_log WHERE initial_query_id = '{database}'", node=node
        )
        assert users == [{"user": APP_USER}]


def test_a_table_that_is_loaded_on_one_server_stays_empty_on_the_other(
    cluster: LocalCluster, database: str
) -> None:
    cluster.execute(
        f"CREATE TABLE {database}.t {ON} (a UInt64) ENGINE = MergeTree ORDER BY a",
        user=APP_USER,
        password=APP_PASSWORD,
    )
    cluster.execute(f"INSERT INTO {database}.t SELECT * FROM numbers(3)", node=2)
    assert [cluster.scalar(f"SELECT count() FROM {database}.t", node=node) for node in cluster.nodes] == [
        0,
        3,
    ]


def test_exchange_swaps_tables_whose_uuids_differ_from_server_to_server(
    cluster: LocalCluster, database: str
) -> None:
    old = create(cluster, database, "live", rows=1)
    new = create(cluster, database, "candidate", rows=2)
    assert len({*old, *new}) == 4
    answer = cluster.query(
        f"EXCHANGE TABLES {database}.live AND {database}.candidate {ON}", user=APP_USER, password=APP_PASSWORD
    )
    assert {(row["host"], row["port"]): row["status"] for row in answer} == dict.fromkeys(
        cluster.direct_tcp, 0
    )
    assert uuids(cluster, database, "live") == new
    assert uuids(cluster, database, "candidate") == old
    for node in cluster.nodes:
        assert cluster.scalar(f"SELECT count() FROM {database}.live", node=node) == 2


def test_the_queue_has_a_row_for_each_server(cluster: LocalCluster, database: str) -> None:
    create(cluster, database, "live", rows=0)
    create(cluster, database, "candidate", rows=0)
    statement = f"EXCHANGE TABLES {database}.live AND {database}.candidate {ON}"
    cluster.execute(statement, settings={"log_comment": database}, user=APP_USER, password=APP_PASSWORD)
    rows = cluster.query(
        "SELECT entry, cluster, query, host, port, status, exception_code FROM system.distributed_ddl_queue "
        f"WHERE settings['log_comment'] = '{database}' ORDER BY port",
        user=APP_USER,
        password=APP_PASSWORD,
    )
    assert len({row.pop("entry") for row in rows}) == 1
    assert rows == [
        {
            "cluster": INDEPENDENT_CLUSTER_NAME,
            "query": statement,
            "host": host,
            "port": port,
            "status": "Finished",
            "exception_code": 0,
        }
        for host, port in sorted(cluster.direct_tcp)
    ]


def test_a_swap_may_end_on_one_server_only(cluster: LocalCluster, database: str) -> None:
    old = create(cluster, database, "live", rows=0)
    new = create(cluster, database, "candidate", rows=0)
    cluster.fail_execution(2, "EXCHANGE")
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(f"EXCHANGE TABLES {database}.live AND {database}.candidate {ON}")
    assert raised.value.code == 164
    assert uuids(cluster, database, "live") == [new[0], old[1]]


def test_truncate_and_alter_run_on_every_server(cluster: LocalCluster, database: str) -> None:
    """Of a replicated table, one server would do them for all."""
    create(cluster, database, "t", rows=3)
    cluster.execute(f"ALTER TABLE {database}.t {ON} ADD COLUMN b UInt8 DEFAULT 7")
    for node in cluster.nodes:
        assert cluster.scalar(f"SELECT sum(b) FROM {database}.t", node=node) == 21
    cluster.execute(f"TRUNCATE TABLE {database}.t {ON}")
    for node in cluster.nodes:
        assert cluster.scalar(f"SELECT count() FROM {database}.t", node=node) == 0


def test_keeper_map_is_shared_under_this_name_too(cluster: LocalCluster, database: str) -> None:
    cluster.execute(
        f"CREATE TABLE {database}.control {ON} (key String, value UInt64) "
        f"ENGINE = KeeperMap('/{database}') PRIMARY KEY key"
    )
    strict = {"keeper_map_strict_mode": 1}
    cluster.execute(f"INSERT INTO {database}.control VALUES ('a', 1)", settings=strict)
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(f"INSERT INTO {database}.control VALUES ('a', 2)", node=2, settings=strict)
    assert raised.value.code == 999
    cluster.execute(
        f"ALTER TABLE {database}.control UPDATE value = 7 WHERE key = 'a'", node=2, settings=strict
    )
    for name in (INDEPENDENT_CLUSTER_NAME, CLUSTER_NAME):
        rows = cluster.query(
            f"SELECT _shard_num AS replica, * FROM clusterAllReplicas('{name}', "
            f"view(SELECT key, value, _version AS version FROM {database}.control)) ORDER BY replica"
        )
        assert rows == [{"replica": number, "key": "a", "value": 7, "version": 1} for number in (1, 2)]


def test_without_secret_it_has_none_either() -> None:
    with LocalCluster(replicas=3, internal_replication=False, secret=False) as own:
        assert [row["internal_replication"] for row in members(own, INDEPENDENT_CLUSTER_NAME, 3)] == [0] * 3
        own.query(
            f"SELECT * FROM clusterAllReplicas('{INDEPENDENT_CLUSTER_NAME}', system.one)",
            settings={"query_id": "no-secret"},
            user=APP_USER,
            password=APP_PASSWORD,
        )
        own.execute("SYSTEM FLUSH LOGS", node=3)
        users = own.query(
            "SELECT DISTINCT user FROM system.query_log WHERE initial_query_id = 'no-secret'", node=3
        )
        assert users == [{"user": "default"}]
