"""The parts of the cluster that are real, as a client sees them through the gateway."""

from __future__ import annotations

import http.client
from urllib.parse import quote

import pytest

from tests.cluster import (
    APP_PASSWORD,
    APP_USER,
    CLUSTER_NAME,
    ClickHouseError,
    LocalCluster,
    Outcome,
    wait_until,
)

pytestmark = pytest.mark.cluster

REPLICATED = "ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')"


def test_every_node_sees_one_shard_of_two_replicas(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        rows = cluster.query(
            "SELECT shard_num, replica_num, host_name, port, internal_replication, is_local "
            f"FROM system.clusters WHERE cluster = '{CLUSTER_NAME}' ORDER BY replica_num",
            node=node,
        )
        assert [(row["shard_num"], row["replica_num"]) for row in rows] == [(1, 1), (1, 2)]
        assert [(row["host_name"], row["port"]) for row in rows] == cluster.direct_tcp
        assert [row["internal_replication"] for row in rows] == [1, 1]
        assert [row["is_local"] for row in rows] == [int(number == node) for number in cluster.nodes]


def test_nodes_are_told_apart_by_macro_and_by_reply_header(cluster: LocalCluster) -> None:
    for node, endpoint in zip(cluster.nodes, cluster.endpoints, strict=True):
        assert cluster.scalar("SELECT getMacro('replica')", node=node) == f"r{node}"
        assert cluster.scalar("SELECT getMacro('shard')", node=node) == "01"
        connection = http.client.HTTPConnection(*endpoint, timeout=10)
        connection.request("GET", "/?query=SELECT%201")
        response = connection.getresponse()
        assert response.read() == b"1\n"
        assert response.headers["X-ClickHouse-Server-Display-Name"] == f"n{node}"
        connection.close()


def test_load_balancer_takes_another_node_each_time(cluster: LocalCluster) -> None:
    seen = [
        cluster.query("SELECT getMacro('replica') AS replica", node="load_balancer")[0]["replica"]
        for _ in range(4)
    ]
    assert seen in (["r1", "r2", "r1", "r2"], ["r2", "r1", "r2", "r1"])


def test_parts_are_fetched_by_the_other_replica(cluster: LocalCluster, database: str) -> None:
    cluster.execute(
        f"CREATE TABLE {database}.t ON CLUSTER {CLUSTER_NAME} (a UInt64, b UInt64 CODEC(ZSTD), "
        "PROJECTION p (SELECT b, count() GROUP BY b), INDEX i b TYPE minmax) "
        f"{REPLICATED} PARTITION BY a % 2 ORDER BY a SETTINGS min_bytes_for_wide_part = 100000"
    )
    cluster.execute(f"INSERT INTO {database}.t SELECT number, number % 7 FROM numbers(300000)")
    cluster.execute(f"INSERT INTO {database}.t VALUES (300000, 1)", node=2)
    for node in cluster.nodes:
        cluster.execute(f"SYSTEM SYNC REPLICA {database}.t", node=node)
        assert cluster.scalar(f"SELECT count() FROM {database}.t", node=node) == 300_001
        assert cluster.scalar(
            f"CHECK TABLE {database}.t SETTINGS check_query_single_value_result = 1", node=node
        )
    types = cluster.query(
        f"SELECT DISTINCT part_type FROM system.parts WHERE database = '{database}' AND active"
    )
    assert {row["part_type"] for row in types} == {"Wide", "Compact"}
    replicas = cluster.query(
        f"SELECT is_readonly, active_replicas, queue_size FROM clusterAllReplicas('{CLUSTER_NAME}', system.replicas) "
        f"WHERE database = '{database}'"
    )
    assert replicas == [{"is_readonly": 0, "active_replicas": 2, "queue_size": 0}] * 2


def test_merges_and_mutations_reach_both_replicas(cluster: LocalCluster, database: str) -> None:
    cluster.execute(
        f"CREATE TABLE {database}.t ON CLUSTER {CLUSTER_NAME} (a UInt64, s String) {REPLICATED} ORDER BY a"
    )
    for start in (0, 100):
        cluster.execute(f"INSERT INTO {database}.t SELECT number + {start}, 'x' FROM numbers(100)")
    cluster.execute(f"OPTIMIZE TABLE {database}.t ON CLUSTER {CLUSTER_NAME} FINAL")
    # Only one replica of the shard runs these; a second run of ADD COLUMN would fail.
    cluster.execute(
        f"ALTER TABLE {database}.t ON CLUSTER {CLUSTER_NAME} ADD COLUMN extra UInt8 DEFAULT 3",
        settings={"alter_sync": 2},
    )
    cluster.execute(
        f"ALTER TABLE {database}.t ON CLUSTER {CLUSTER_NAME} UPDATE s = 'y' WHERE a < 10",
        settings={"mutations_sync": 2},
    )
    for node in cluster.nodes:
        cluster.execute(f"SYSTEM SYNC REPLICA {database}.t", node=node)
        row = cluster.query(
            f"SELECT count() AS rows, sum(extra) AS extra, countIf(s = 'y') AS changed FROM {database}.t",
            node=node,
        )[0]
        assert row == {"rows": 200, "extra": 600, "changed": 10}


def test_keeper_map_is_shared_and_versioned(cluster: LocalCluster, database: str) -> None:
    cluster.execute(
        f"CREATE TABLE {database}.control ON CLUSTER {CLUSTER_NAME} (key String, value UInt64) "
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
    rows = cluster.query(
        f"SELECT _shard_num AS replica, * FROM clusterAllReplicas('{CLUSTER_NAME}', "
        f"view(SELECT key, value, _version AS version FROM {database}.control)) ORDER BY replica"
    )
    assert rows == [{"replica": number, "key": "a", "value": 7, "version": 1} for number in (1, 2)]


def test_created_table_has_one_uuid_everywhere(cluster: LocalCluster, database: str) -> None:
    given = "0b8a6e4e-1d9a-4a3a-8a37-0123456789ab"
    cluster.execute(
        f"CREATE TABLE {database}.made ON CLUSTER {CLUSTER_NAME} (a UInt8) {REPLICATED} ORDER BY a"
    )
    cluster.execute(
        f"CREATE TABLE {database}.given UUID '{given}' ON CLUSTER {CLUSTER_NAME} (a UInt8) {REPLICATED} ORDER BY a"
    )
    uuids = {
        name: [
            cluster.scalar(
                f"SELECT uuid FROM system.tables WHERE database = '{database}' AND name = '{name}'", node=node
            )
            for node in cluster.nodes
        ]
        for name in ("made", "given")
    }
    assert len(set(uuids["made"])) == 1
    assert uuids["given"] == [given, given]


def test_exchange_moves_the_uuids_on_every_replica(cluster: LocalCluster, database: str) -> None:
    for name in ("live", "candidate"):
        cluster.execute(
            f"CREATE TABLE {database}.{name} ON CLUSTER {CLUSTER_NAME} (a UInt8) {REPLICATED} ORDER BY a"
        )
    query = f"SELECT name, uuid FROM system.tables WHERE database = '{database}'"
    before = {row["name"]: row["uuid"] for row in cluster.query(query)}
    cluster.execute(
        f"exchange tables {database}.live and `{database}`.candidate on cluster '{CLUSTER_NAME}' -- swap"
    )
    for node in cluster.nodes:
        after = {row["name"]: row["uuid"] for row in cluster.query(query, node=node)}
        assert after == {"live": before["candidate"], "candidate": before["live"]}
    entry = cluster.queue_rows("EXCHANGE")[-1]
    assert (
        entry["query"]
        == f"EXCHANGE TABLES {database}.live AND {database}.candidate ON CLUSTER {CLUSTER_NAME}"
    )


def test_distributed_queries_run_as_the_user_who_asked(cluster: LocalCluster, database: str) -> None:
    cluster.query(
        f"SELECT * FROM clusterAllReplicas('{CLUSTER_NAME}', system.one)",
        user=APP_USER,
        password=APP_PASSWORD,
        settings={"query_id": database},
    )
    cluster.execute("SYSTEM FLUSH LOGS", node=2)
    users = cluster.query(
        f"SELECT DISTINCT user FROM system.query_log WHERE initial_query_id = '{database}'", node=2
    )
    assert users == [{"user": APP_USER}]


def test_query_log_has_the_statement_of_each_host(cluster: LocalCluster, database: str) -> None:
    comment = f"log-{database}"
    cluster.execute(
        f"CREATE TABLE {database}.t ON CLUSTER {CLUSTER_NAME} (a UInt8) ENGINE = Memory",
        settings={"log_comment": comment},
    )
    for node in cluster.nodes:
        cluster.execute("SYSTEM FLUSH LOGS", node=node)
        texts = cluster.query(
            f"SELECT query FROM system.query_log WHERE log_comment = '{comment}' AND type = 'QueryFinish' "
            "AND query LIKE '%ddl_entry=%'",
            node=node,
        )
        assert len(texts) == 1
        assert f"CREATE TABLE {database}.t" in texts[0]["query"]
        assert "ON CLUSTER" not in texts[0]["query"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4"])
def test_compressed_statements_are_understood(cluster: LocalCluster, database: str, encoding: str) -> None:
    statement = (
        f"CREATE TABLE {database}.{encoding} ON CLUSTER {CLUSTER_NAME} (a UInt8) ENGINE = Memory".encode()
    )
    connection = http.client.HTTPConnection(*cluster.endpoints[0], timeout=30)
    connection.request("POST", "/", _compress(statement, encoding), {"Content-Encoding": encoding})
    response = connection.getresponse()
    response.read()
    assert response.status == 200
    assert cluster.scalar(f"EXISTS {database}.{encoding}", node=2) == 1
    connection.close()


def _compress(data: bytes, encoding: str) -> bytes:
    import gzip
    import zlib

    import lz4.frame  # type: ignore[import-untyped]
    import zstandard

    match encoding:
        case "gzip":
            return gzip.compress(data)
        case "deflate":
            return zlib.compress(data)
        case "zstd":
            return zstandard.compress(data)
        case _:
            return bytes(lz4.frame.compress(data))


def test_upload_that_is_cut_stores_nothing(cluster: LocalCluster, database: str) -> None:
    cluster.execute(f"CREATE TABLE {database}.t (a UInt64) ENGINE = MergeTree ORDER BY a")
    statement = f"INSERT INTO {database}.t FORMAT TSV"
    connection = http.client.HTTPConnection(*cluster.endpoints[0], timeout=30)
    connection.putrequest("POST", f"/?query={quote(statement)}")
    connection.putheader("Content-Length", "1000000")
    connection.endheaders()
    connection.send(b"1\n" * 1000)
    connection.close()
    match = f"INSERT INTO {database}"
    wait_until(lambda: [each.outcome for each in cluster.statements(match)] == [Outcome.CLIENT_GONE])
    assert cluster.scalar(f"SELECT count() FROM {database}.t") == 0


def test_parameters_reach_plain_and_cluster_statements(cluster: LocalCluster, database: str) -> None:
    rows = cluster.query("SELECT {x:UInt8} AS x, {s:String} AS s", parameters={"x": "7", "s": "it's"})
    assert rows == [{"x": 7, "s": "it's"}]
    cluster.execute(
        f"CREATE TABLE {database}.{{table:Identifier}} ON CLUSTER {CLUSTER_NAME} (a UInt8) ENGINE = Memory",
        parameters={"table": "odd name"},
    )
    assert cluster.scalar(f"EXISTS {database}.`odd name`", node=2) == 1
