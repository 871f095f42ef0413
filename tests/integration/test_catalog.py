"""One look at all replicas of a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_dpone.clickhouse.catalog import NOTHING_LOADED, Catalog, names_table
from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.publication.facts import Dependent
from airflow_provider_dpone.publication.identity import target_key
from airflow_provider_dpone.publication.record import StoredRecord, encode
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import Target
from tests.cluster import LocalCluster
from tests.cluster.spec import ADMIN_USER, APP_USER, CLUSTER_NAME, Endpoint
from tests.integration import control

pytestmark = pytest.mark.cluster


@pytest.fixture
def catalog(cluster: LocalCluster, database: str) -> Catalog:
    """A catalog for the table ``orders``, which is there with three rows."""
    control.authority_id(cluster)
    control.create_table(cluster, database, "orders", rows=3)
    return look(control.server(cluster.endpoints[0]), database)


def look(server: Server, database: str, table: str = "orders") -> Catalog:
    return Catalog(server, Target(CLUSTER_NAME, database, table))


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def test_one_look_is_one_request(cluster: LocalCluster, catalog: Catalog) -> None:
    before = cluster.request_count()
    catalog.observe(["orders", "candidate"])
    assert cluster.request_count() == before + 1


def test_a_later_look_has_the_larger_number(catalog: Catalog) -> None:
    first, second = catalog.observe([]), catalog.observe([])
    assert first.sequence < second.sequence


def test_what_every_replica_shows(cluster: LocalCluster, database: str, catalog: Catalog) -> None:
    seen = catalog.observe(["orders", "nothing"])
    assert list(seen.replicas) == list(seen.inventory.aliases) == ["s1/r1", "s1/r2"]
    assert [(m.host_name, m.port) for m in seen.inventory.members] == [tuple(e) for e in cluster.direct_tcp]
    assert catalog.inventory == seen.inventory
    assert abs(seen.server_time - int(cluster.scalar("SELECT toUnixTimestamp(now())"))) <= 5
    uuid = control.uuids(cluster, database, "orders")[0]
    for number, facts in enumerate(seen.replicas.values(), start=1):
        assert facts.user == APP_USER
        assert facts.version == cluster.scalar("SELECT version()")
        assert facts.inventory_digest == seen.inventory.digest
        assert facts.database_engine == "Atomic"
        assert facts.sees_database
        assert set(facts.tables) == {"orders"}
        table = facts.tables["orders"]
        assert table.uuid == uuid
        assert table.engine == "ReplicatedMergeTree"
        assert table.engine_full == "ReplicatedMergeTree ORDER BY id SETTINGS index_granularity = 8192"
        assert table.engine_refusal is None
        assert table.create_query.startswith(f"CREATE TABLE {database}.orders ")
        assert table.rows == 3
        assert table.bytes is not None
        assert table.replication is not None
        assert table.replication.replica_name == f"r{number}"
        assert table.replication.zookeeper_path == f"/clickhouse/tables/{uuid}/01"
        assert (table.replication.total_replicas, table.replication.active_replicas) == (2, 2)
        assert not table.replication.keeper_error
    assert len({facts.server for facts in seen.replicas.values()}) == 2
    assert seen.authority_id == control.authority_id(cluster)


def test_both_replicas_show_one_generation_and_another_table_another_one(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    control.create_table(cluster, database, "candidate")
    seen = catalog.observe(["orders", "candidate"])
    by_name = {
        name: {facts.tables[name].generation for facts in seen.replicas.values()}
        for name in ("orders", "candidate")
    }
    assert [len(generations) for generations in by_name.values()] == [1, 1]
    [orders], [candidate] = by_name.values()
    assert orders.uuid != candidate.uuid
    assert orders.schema_digest == candidate.schema_digest


def test_replicas_are_mapped_by_order_whichever_one_is_asked(cluster: LocalCluster, database: str) -> None:
    control.authority_id(cluster)
    # Only the second node has this table, so a swapped mapping would show.
    cluster.execute(f"CREATE TABLE {database}.only_two (a UInt8) ENGINE = Memory", node=2)
    for endpoint in (*cluster.endpoints, cluster.load_balancer, cluster.load_balancer):
        seen = look(control.server(endpoint), database).observe(["only_two"])
        assert [bool(facts.tables) for facts in seen.replicas.values()] == [False, True]


def test_the_server_that_is_not_contacted_is_known_by_the_same_name(
    cluster: LocalCluster, database: str
) -> None:
    control.authority_id(cluster)
    answers = [
        {
            alias: facts.server
            for alias, facts in look(control.server(e), database).observe([]).replicas.items()
        }
        for e in cluster.endpoints
    ]
    assert answers[0] == answers[1]


# ---- names


ODD_NAMES = ["or ders", "o'r", 'o"r', "o`r", "o\\r", "заказы", "🦆", "a/b", "\\u0000", "%s {x}", "a\tb"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_the_key_computed_by_the_server_is_the_key_of_the_core(
    cluster: LocalCluster, database: str, name: str
) -> None:
    """A record that is stored under the core's key is found by the statement, for any name."""
    authority = control.authority_id(cluster)
    record = control.record(authority, database, name)
    row = encode(record, "w")
    cluster.execute(ControlTable().insert(row), settings={"keeper_map_strict_mode": 1})
    assert row.target_key == target_key(authority, database, name)
    catalog = look(control.server(cluster.endpoints[0]), database, name)
    seen = catalog.observe([name])
    assert seen.record == StoredRecord(record, "w", 0)
    assert {(f.control.write_id, f.control.version) for f in seen.replicas.values()} == {("w", 0)}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_table_of_any_name_is_seen(cluster: LocalCluster, database: str, name: str) -> None:
    control.authority_id(cluster)
    control.create_table(cluster, database, name, rows=1)
    catalog = look(control.server(cluster.endpoints[0]), database, name)
    seen = catalog.observe([name])
    assert [list(facts.tables) for facts in seen.replicas.values()] == [[name], [name]]
    assert {digest.rows for digest in catalog.content(name).digests.values()} == {1}


# ---- the record


def test_the_newest_record_that_any_replica_shows_is_the_record(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    assert catalog.observe([]).record is None
    record = control.record(control.authority_id(cluster), database)
    for version in range(3):
        row = encode(record.moved(changed_at=version), f"w{version}")
        cluster.execute(ControlTable().insert(row))
        seen = catalog.observe([])
        assert seen.record == StoredRecord(record.moved(changed_at=version), f"w{version}", version)


def test_a_record_that_was_tampered_with_is_a_stop(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    row = encode(control.record(control.authority_id(cluster), database), "w")
    cluster.execute(ControlTable().insert(row))
    cluster.execute(
        f"ALTER TABLE dpone.authority_v1 UPDATE phase = 'COMMITTED' WHERE target_key = '{row.target_key}'"
    )
    with pytest.raises(Stopped) as caught:
        catalog.observe([])
    assert caught.value.stop.code is Code.RECORD_INVALID
    # The control table is everybody's, and some commands read all of it.
    cluster.execute(f"ALTER TABLE dpone.authority_v1 DELETE WHERE target_key = '{row.target_key}'")


# ---- content


def test_the_content_digest_of_every_replica_in_one_request(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    seen = catalog.observe(["orders"])
    before = cluster.request_count()
    check = catalog.content("orders")
    assert cluster.request_count() == before + 1
    assert check.sequence > seen.sequence
    assert list(check.digests) == ["s1/r1", "s1/r2"]
    assert len(set(check.digests.values())) == 1
    assert check.digests["s1/r1"].rows == 3
    cluster.execute(f"INSERT INTO {database}.orders VALUES (99, 'x')")
    cluster.execute(f"SYSTEM SYNC REPLICA {database}.orders", node=2)
    changed = catalog.content("orders").digests
    assert changed["s1/r1"] == changed["s1/r2"] != check.digests["s1/r1"]


def test_computed_columns_are_part_of_the_content(cluster: LocalCluster, database: str) -> None:
    control.authority_id(cluster)
    digests = []
    for computed in ("a + 1", "a + 1", "a + 2"):
        cluster.execute(
            f"CREATE OR REPLACE TABLE {database}.m ON CLUSTER {CLUSTER_NAME} "
            f"(a UInt8, b UInt8 MATERIALIZED {computed}, c UInt8 ALIAS a, d UInt8 DEFAULT 3, e UInt8 EPHEMERAL) "
            f"ENGINE = {control.REPLICATED} ORDER BY a"
        )
        cluster.execute(f"INSERT INTO {database}.m (a) VALUES (1)")
        cluster.execute(f"SYSTEM SYNC REPLICA {database}.m", node=2)
        check = look(control.server(cluster.endpoints[0]), database, "m").content("m")
        digests.append(check.digests["s1/r1"])
    assert digests[0] == digests[1] != digests[2]


def test_the_content_of_a_table_that_is_missing_somewhere_is_a_stop(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    with pytest.raises(Stopped) as caught:
        catalog.content("nothing")
    assert caught.value.stop.code is Code.CANDIDATE_DIFFERS
    catalog.observe(["orders"])
    cluster.execute(f"RENAME TABLE {database}.orders TO {database}.away", node=2)
    with pytest.raises(Stopped) as caught:
        catalog.content("orders")
    assert caught.value.stop.code is Code.CANDIDATE_DIFFERS
    cluster.execute(f"RENAME TABLE {database}.away TO {database}.orders", node=2)


# ---- replicas and Keeper away


def test_a_replica_that_is_down_is_missing_and_the_others_are_seen(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    cluster.kill_node(2)
    seen = catalog.observe(["orders"])
    assert list(seen.replicas) == ["s1/r1"]
    assert seen.unread == ("s1/r2",)
    assert seen.inventory.aliases == ("s1/r1", "s1/r2")
    with pytest.raises(Stopped) as caught:
        catalog.content("orders")
    assert caught.value.stop.code is Code.REPLICA_NOT_OBSERVED


def test_the_first_replica_down_and_the_second_one_asked(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    server = control.server(*cluster.endpoints)
    cluster.kill_node(1)
    seen = look(server, database).observe(["orders"])
    assert list(seen.replicas) == ["s1/r2"]


def test_without_keeper_nothing_is_said(cluster: LocalCluster, catalog: Catalog) -> None:
    cluster.stop_zookeeper()

    with pytest.raises(Stopped) as caught:
        catalog.observe(["orders"])
    assert caught.value.stop.code is Code.AUTHORITY_UNAVAILABLE


def test_no_server_at_all(database: str) -> None:
    with pytest.raises(Stopped) as caught:
        look(control.server(Endpoint("127.0.0.1", 1)), database).observe([])
    assert caught.value.stop.code is Code.SERVER_UNAVAILABLE


# ---- what may be missing


def test_an_unknown_cluster_is_a_stop(cluster: LocalCluster, database: str) -> None:
    server = control.server(cluster.endpoints[0])
    with pytest.raises(Stopped) as caught:
        Catalog(server, Target("nowhere", database, "orders")).observe([])
    assert caught.value.stop.code is Code.UNKNOWN_CLUSTER


def test_the_wrong_replication_mode_is_a_stop(cluster: LocalCluster, database: str) -> None:
    control.authority_id(cluster)
    server = control.server(cluster.endpoints[0])
    target = Target(CLUSTER_NAME, database, "orders")
    with pytest.raises(Stopped) as caught:
        Catalog(server, target, internal_replication=False).observe([])
    assert caught.value.stop.code is Code.REPLICATION_MODE_MISMATCH
    assert Catalog(server, target, internal_replication=None).observe([]).replicas


def test_a_control_table_that_does_not_exist_is_a_fact(cluster: LocalCluster, database: str) -> None:
    server = control.admin(cluster.endpoints[0])
    missing = ControlTable("no_such_database", "authority_v1")
    catalog = Catalog(server, Target(CLUSTER_NAME, database, "orders"), missing)
    before = cluster.request_count()
    seen = catalog.observe([])
    assert cluster.request_count() == before + 2
    assert {facts.control.structure for facts in seen.replicas.values()} == {None}
    assert seen.authority_id is None


def test_a_database_that_does_not_exist_is_a_fact(cluster: LocalCluster) -> None:
    control.authority_id(cluster)
    seen = look(control.admin(cluster.endpoints[0]), "no_such_database").observe(["orders"])
    assert {(f.database_engine, f.sees_database) for f in seen.replicas.values()} == {(None, False)}


def test_an_empty_database_proves_nothing_about_its_tables(cluster: LocalCluster, database: str) -> None:
    control.authority_id(cluster)
    seen = look(control.server(cluster.endpoints[0]), database).observe(["orders"])
    assert {(f.database_engine, f.sees_database) for f in seen.replicas.values()} == {("Atomic", False)}


def test_tables_that_can_not_be_published_to_say_why(cluster: LocalCluster, database: str) -> None:
    control.authority_id(cluster)
    create = f"CREATE TABLE {database}.{{}} ON CLUSTER {CLUSTER_NAME} (a UInt8, d Date) ENGINE = "
    cluster.execute(f"{create.format('plain')} MergeTree ORDER BY a")
    cluster.execute(f"{create.format('ttl')} {control.REPLICATED} ORDER BY a TTL d + INTERVAL 1 DAY")
    cluster.execute(f"CREATE VIEW {database}.view ON CLUSTER {CLUSTER_NAME} AS SELECT 1 AS a")
    seen = look(control.server(cluster.endpoints[0]), database).observe(["plain", "ttl", "view"])
    refusals = {name: table.engine_refusal for name, table in seen.replicas["s1/r1"].tables.items()}
    assert refusals["plain"] == "the engine is MergeTree, not ReplicatedMergeTree"
    assert refusals["ttl"] == "the table's TTL deletes or rolls up rows later"
    assert refusals["view"] == "its engine is View, not ReplicatedMergeTree"


def test_the_authority_in_a_comment_is_read(cluster: LocalCluster, database: str, catalog: Catalog) -> None:
    mark = f"[dpone:v1 authority={'c' * 32} operation=o1 attempt=a1]"
    cluster.execute(f"ALTER TABLE {database}.orders MODIFY COMMENT {quoted('Mine. ' + mark)}")
    cluster.execute(f"SYSTEM SYNC REPLICA {database}.orders", node=2)
    seen = catalog.observe(["orders"])
    assert seen.replicas["s1/r1"].tables["orders"].comment_authority == "c" * 32


# ---- dependents


def test_what_hangs_on_the_target_is_listed(cluster: LocalCluster, database: str, catalog: Catalog) -> None:
    assert catalog.observe([]).dependents == ()
    for statement in (
        "CREATE VIEW {d}.a_view AS SELECT * FROM {d}.orders",
        "CREATE TABLE {d}.sums (id UInt64) ENGINE = MergeTree ORDER BY id",
        "CREATE MATERIALIZED VIEW {d}.b_reads TO {d}.sums AS SELECT id FROM {d}.orders",
        "CREATE MATERIALIZED VIEW {d}.c_writes TO {d}.orders AS SELECT id FROM {d}.sums",
        "CREATE MATERIALIZED VIEW {d}.d_refreshed REFRESH EVERY 1 YEAR TO {d}.sums AS SELECT id FROM {d}.orders",
        "CREATE TABLE {d}.e_distributed AS {d}.orders ENGINE = Distributed("
        + CLUSTER_NAME
        + ", {d}, orders)",
        "CREATE DICTIONARY {d}.f_dict (id UInt64, name String) PRIMARY KEY id "
        "SOURCE(CLICKHOUSE(TABLE 'orders' DB '{d}')) LAYOUT(FLAT()) LIFETIME(0)",
        "CREATE VIEW {d}.not_this AS SELECT 1 AS orders, '{d}.orders' AS text",
        "CREATE TABLE {d}.orders2 (id UInt64) ENGINE = MergeTree ORDER BY id",
        "CREATE VIEW {d}.nor_this AS SELECT * FROM {d}.orders2",
    ):
        cluster.execute(statement.format(d=database))
    assert catalog.observe([]).dependents == (
        Dependent(database, "a_view", "View"),
        Dependent(database, "b_reads", "MaterializedView"),
        Dependent(database, "c_writes", "MaterializedView"),
        Dependent(database, "d_refreshed", "MaterializedView"),
        Dependent(database, "e_distributed", "Distributed"),
        Dependent(database, "f_dict", "Dictionary"),
    )
    cluster.execute(f"DROP DICTIONARY {database}.f_dict")


def test_each_replica_tells_when_it_loaded_a_dictionary(
    cluster: LocalCluster, database: str, catalog: Catalog
) -> None:
    names = Dependent(database, "names", "Dictionary")
    other = Dependent(database, "other", "Dictionary")
    catalog.observe([])
    assert catalog.dictionary_loads([names]) == {"s1/r1": {}, "s1/r2": {}}
    for node in cluster.nodes:
        cluster.execute(
            f"CREATE DICTIONARY {database}.names (id UInt64, name String) PRIMARY KEY id "
            f"SOURCE(CLICKHOUSE(TABLE 'orders' DB '{database}')) LAYOUT(FLAT()) LIFETIME(0)",
            node=node,
        )
    # Created, and loaded by nobody yet.
    unloaded = {names: NOTHING_LOADED}
    assert catalog.dictionary_loads([names, other]) == {"s1/r1": unloaded, "s1/r2": unloaded}
    cluster.execute(f"SYSTEM RELOAD DICTIONARY {database}.names", node=2)
    loads = catalog.dictionary_loads([names, other])
    assert (loads["s1/r1"], set(loads["s1/r2"])) == (unloaded, {names})
    assert abs(loads["s1/r2"][names] - int(cluster.scalar("SELECT toUnixTimestamp(now())"))) < 30
    for node in cluster.nodes:
        cluster.execute(f"DROP DICTIONARY {database}.names", node=node)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("CREATE VIEW d.v (`a` UInt8) AS SELECT a FROM mart.orders", True),
        ("CREATE VIEW d.v AS SELECT a FROM mart.`orders` AS o", True),
        ("CREATE TABLE d.v (`a` UInt8) ENGINE = Distributed('c', 'mart', 'orders')", True),
        ("CREATE DICTIONARY d.v SOURCE(CLICKHOUSE(DB 'mart' TABLE 'orders'))", True),
        ("CREATE VIEW d.v AS SELECT a FROM mart.orders2", False),
        ("CREATE VIEW d.v AS SELECT a FROM mart2.orders", False),
        ("CREATE VIEW d.v AS SELECT 'mart.orders'", False),
        ("CREATE VIEW d.v AS SELECT 1 /* mart.orders */", False),
        ("CREATE DICTIONARY d.v SOURCE(CLICKHOUSE(DB 'mart' TABLE 'other'))", False),
        ("CREATE VIEW d.v AS SELECT 'open", False),
    ],
)
def test_a_create_text_names_a_table_or_not(text: str, named: bool) -> None:
    assert names_table(text, "mart", "orders") is named


# ---- other users and other clusters


@pytest.fixture(scope="module")
def external() -> Iterator[LocalCluster]:
    """A cluster without <secret> and without internal replication."""
    with LocalCluster(internal_replication=False, secret=False) as running:
        yield running


def test_without_secret_the_other_replica_answers_as_another_user(external: LocalCluster) -> None:
    control_table = ControlTable()
    for statement in (control_table.create_database(CLUSTER_NAME), control_table.create(CLUSTER_NAME)):
        external.execute(statement)
    catalog = Catalog(
        control.server(external.endpoints[0]),
        Target(CLUSTER_NAME, "mart", "orders"),
        internal_replication=False,
    )
    users = [facts.user for facts in catalog.observe([]).replicas.values()]
    assert users == [APP_USER, ADMIN_USER]


def test_a_plain_engine_is_admitted_where_replication_is_external(external: LocalCluster) -> None:
    external.execute(f"CREATE DATABASE IF NOT EXISTS mart ON CLUSTER {CLUSTER_NAME}")
    external.execute(
        f"CREATE TABLE mart.plain ON CLUSTER {CLUSTER_NAME} (a UInt8) ENGINE = MergeTree ORDER BY a"
    )
    catalog = Catalog(
        control.admin(external.endpoints[0]),
        Target(CLUSTER_NAME, "mart", "plain"),
        internal_replication=False,
    )
    assert catalog.observe(["plain"]).replicas["s1/r1"].tables["plain"].engine_refusal is None


def test_a_user_without_grants_is_told_so(external: LocalCluster) -> None:
    secret = ControlTable("secret", "control")
    for statement in (secret.create_database(CLUSTER_NAME), secret.create(CLUSTER_NAME)):
        external.execute(statement)
    server = control.server(external.endpoints[0])
    catalog = Catalog(server, Target(CLUSTER_NAME, "mart", "orders"), secret, internal_replication=False)
    with pytest.raises(Stopped) as caught:
        catalog.observe([])
    assert caught.value.stop.code is Code.MISSING_GRANT
