"""``airflow dpone init`` on a real cluster: what it creates, completes, and refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest

from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.control_table import (
    AUTHORITY_SCHEMA,
    ControlTable,
    authority_id_of,
    sentinel_row,
    structure_digest,
)
from airflow_provider_dpone.clickhouse.initialise import TOKEN_PREFIX, Initialised, initialise
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.record import SENTINEL_KEY
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import Target
from tests.cluster import LocalCluster
from tests.cluster.client import ClickHouseError
from tests.cluster.spec import CLUSTER_NAME
from tests.integration import control

pytestmark = pytest.mark.cluster

ID = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def fresh() -> Iterator[LocalCluster]:
    """A cluster on which nothing was ever published: its queue has no token of a publication."""
    with LocalCluster() as running:
        yield running


@pytest.fixture
def table(fresh: LocalCluster) -> Iterator[ControlTable]:
    """Names of a control table that doesn't exist."""
    yield ControlTable(f"control_{uuid4().hex[:8]}", "authority_v1")
    fresh.heal()


def init(cluster: LocalCluster, table: ControlTable, node: int = 1, **more: bool | float) -> Initialised:
    return initialise(
        control.admin(cluster.endpoints[node - 1]),
        CLUSTER_NAME,
        control=table,
        **more,  # type: ignore[arg-type]
    )


def sent(cluster: LocalCluster, table: ControlTable, since: int) -> list[str]:
    """First words of all mutations that named the control table's database."""
    found = cluster.statements(table.database, since=since)
    return [s.text.split("`")[0].strip() for s in found if not s.text.startswith("SELECT")]


def sentinel(cluster: LocalCluster, table: ControlTable, node: int = 1) -> list[str]:
    rows = cluster.query(
        f"SELECT operation_id FROM {table.qualified} WHERE target_key = '{SENTINEL_KEY}'", node=node
    )
    return [str(row["operation_id"]) for row in rows]


def create_facade(cluster: LocalCluster, table: ControlTable, node: int, sql: str | None = None) -> None:
    """Create the database everywhere and the table on one node."""
    cluster.execute(table.create_database(CLUSTER_NAME))
    statement = sql or table.create(CLUSTER_NAME).replace(f"ON CLUSTER `{CLUSTER_NAME}` ", "")
    cluster.execute(statement, node=node)


def test_from_nothing(fresh: LocalCluster, table: ControlTable) -> None:
    mark = fresh.last_statement()
    done = init(fresh, table)
    both = ("s1/r1", "s1/r2")
    assert (done.executed, done.created_database_on, done.created_table_on) == (True, both, both)
    assert done.created_authority
    assert done.authority_id is not None
    assert len(done.statements) == 3
    assert sent(fresh, table, mark) == [
        "CREATE DATABASE IF NOT EXISTS",
        "CREATE TABLE IF NOT EXISTS",
        "INSERT INTO",
    ]
    for node in fresh.nodes:
        assert sentinel(fresh, table, node) == [done.authority_id]


def test_the_log_comments_are_no_traces_of_publications(fresh: LocalCluster, table: ControlTable) -> None:
    mark = fresh.last_statement()
    init(fresh, table)
    comments = [s.log_comment for s in fresh.statements(f"{table.database}.*ON CLUSTER", since=mark)]
    assert len(comments) == 2
    assert all(comment.startswith(TOKEN_PREFIX) for comment in comments)
    assert not any(comment.startswith("dpone1:") for comment in comments)


def test_again_changes_nothing(fresh: LocalCluster, table: ControlTable) -> None:
    first = init(fresh, table)
    mark = fresh.last_statement()
    second = init(fresh, table, node=2)
    assert second.statements == ()
    assert second.authority_id == first.authority_id
    assert not second.created_authority
    assert sent(fresh, table, mark) == []
    assert "Nothing to do" in str(second)


def test_the_structure_is_the_expected_one_on_every_replica(fresh: LocalCluster, table: ControlTable) -> None:
    init(fresh, table)
    catalog = Catalog(
        control.admin(fresh.endpoints[0]), Target(CLUSTER_NAME, table.database, "orders"), table
    )
    structures = {facts.control.structure for facts in catalog.observe([]).replicas.values()}
    assert structures == {table.structure}
    assert len(set(control.uuids(fresh, table.database, table.name))) == 2


def test_printing_changes_nothing(fresh: LocalCluster, table: ControlTable) -> None:
    mark = fresh.last_statement()
    done = init(fresh, table, print_sql=True)
    assert (done.executed, done.authority_id) == (False, None)
    assert sent(fresh, table, mark) == []
    assert str(done).count(";") == 3


def test_what_is_printed_can_be_run_by_hand(fresh: LocalCluster, table: ControlTable) -> None:
    for statement in init(fresh, table, print_sql=True).statements:
        fresh.execute(statement)
    done = init(fresh, table)
    assert done.statements == ()
    with pytest.raises(ClickHouseError, match="KEEPER_EXCEPTION"):
        fresh.execute(table.insert(sentinel_row("f" * 32, "w"), strict=True))


# ---- partial


@pytest.mark.parametrize("node", [1, 2])
def test_a_missing_facade_is_completed(fresh: LocalCluster, table: ControlTable, node: int) -> None:
    create_facade(fresh, table, node)
    done = init(fresh, table)
    assert done.created_table_on == (f"s1/r{3 - node}",)
    assert done.created_authority
    assert sentinel(fresh, table, 1) == sentinel(fresh, table, 2) == [done.authority_id]


def test_a_new_replica_gets_its_facade_and_the_authority_stays(
    fresh: LocalCluster, table: ControlTable
) -> None:
    authority = init(fresh, table).authority_id
    fresh.execute(f"DROP TABLE {table.qualified} SYNC", node=2)
    # Traces of publications are no reason to refuse: the authority is there.
    done = init(fresh, table, evidence_of_publications=True)
    assert done.created_table_on == ("s1/r2",)
    assert (done.created_authority, done.authority_id) == (False, authority)
    assert sentinel(fresh, table, 2) == [authority]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("`phase` String", "`phase` LowCardinality(String)"),
        ("`write_id` String, ", ""),
        ("`write_id` String", "`write_id` String DEFAULT 'x'"),
        ("/authority_v1", "/authority_v0"),
        ("`operation_id` String, `fence_token` String", "`fence_token` String, `operation_id` String"),
        ("PRIMARY KEY target_key", "PRIMARY KEY operation_id"),
        ("/authority_v1')", "/authority_v1', 1000)"),
    ],
)
def test_a_table_of_another_structure_is_refused(
    fresh: LocalCluster, table: ControlTable, old: str, new: str
) -> None:
    right = table.create(CLUSTER_NAME).replace(f"ON CLUSTER `{CLUSTER_NAME}` ", "")
    assert old in right
    create_facade(fresh, table, 2, right.replace(old, new))
    mark = fresh.last_statement()
    with pytest.raises(Stopped) as caught:
        init(fresh, table)
    assert caught.value.stop.code is Code.CONTROL_TABLE_INVALID
    assert sent(fresh, table, mark) == []


def test_a_database_of_another_engine_is_refused(fresh: LocalCluster, table: ControlTable) -> None:
    fresh.execute(f"CREATE DATABASE {table.database} ENGINE = Memory", node=2)
    with pytest.raises(Stopped) as caught:
        init(fresh, table)
    assert caught.value.stop.code is Code.UNSUPPORTED_DATABASE


# ---- lost


def test_evidence_without_an_authority_is_a_lost_table(fresh: LocalCluster, table: ControlTable) -> None:
    mark = fresh.last_statement()
    with pytest.raises(Stopped) as caught:
        init(fresh, table, evidence_of_publications=True)
    assert caught.value.stop.code is Code.CONTROL_TABLE_LOST
    assert sent(fresh, table, mark) == []


@pytest.mark.parametrize("facade", [False, True])
@pytest.mark.parametrize("node", [1, 2])
def test_a_published_table_without_an_authority_is_a_lost_table(
    fresh: LocalCluster, table: ControlTable, node: int, facade: bool
) -> None:
    if facade:
        init_everything_but_the_authority(fresh, table)
    mark = fresh.last_statement()
    fresh.execute(
        "CREATE TABLE default.published (a UInt8) ENGINE = MergeTree ORDER BY a "
        f"COMMENT 'Orders. [dpone:v1 authority={ID} operation=o attempt=a]'",
        node=node,
    )
    try:
        with pytest.raises(Stopped) as caught:
            init(fresh, table)
    finally:
        fresh.execute("DROP TABLE default.published SYNC", node=node)
    assert caught.value.stop.code is Code.CONTROL_TABLE_LOST
    assert "default.published" in caught.value.stop.message
    assert sent(fresh, table, mark) == []


@pytest.mark.parametrize("facade", [False, True])
def test_a_queue_entry_of_a_publication_without_an_authority_is_a_lost_table(
    fresh: LocalCluster, table: ControlTable, facade: bool
) -> None:
    if facade:
        init_everything_but_the_authority(fresh, table)
    fresh.execute(
        f"DROP TABLE IF EXISTS default.nothing ON CLUSTER {CLUSTER_NAME}",
        settings={"log_comment": "dpone1:0:publish:1:0"},
    )
    mark = fresh.last_statement()
    try:
        with pytest.raises(Stopped) as caught:
            init(fresh, table)
    finally:
        for row in fresh.queue_rows("default.nothing"):
            fresh.remove_queue_entry(row["entry"])
    assert caught.value.stop.code is Code.CONTROL_TABLE_LOST
    assert sent(fresh, table, mark) == []
    assert init(fresh, table).created_authority


def init_everything_but_the_authority(cluster: LocalCluster, table: ControlTable) -> None:
    cluster.execute(table.create_database(CLUSTER_NAME))
    cluster.execute(table.create(CLUSTER_NAME))


def test_a_comment_that_only_looks_like_ours_is_no_trace(fresh: LocalCluster, table: ControlTable) -> None:
    fresh.execute(
        "CREATE TABLE default.looks (a UInt8) ENGINE = MergeTree ORDER BY a COMMENT 'see [dpone:v1 in the wiki'"
    )
    try:
        assert init(fresh, table).created_authority
    finally:
        fresh.execute("DROP TABLE default.looks SYNC")


# ---- faults


@pytest.mark.parametrize("statement", ["^CREATE DATABASE", "^CREATE TABLE", "^INSERT"])
def test_a_lost_reply_is_reconciled_and_nothing_is_sent_again(
    fresh: LocalCluster, table: ControlTable, statement: str
) -> None:
    mark = fresh.last_statement()
    fault = fresh.drop_response(None, f"{statement}.*{table.database}")
    done = init(fresh, table)
    assert fault.hits == 1
    assert done.authority_id is not None
    assert len(sent(fresh, table, mark)) == 3
    assert sentinel(fresh, table) == [done.authority_id]


def test_a_statement_that_never_arrived_is_reported_and_a_second_run_completes(
    fresh: LocalCluster, table: ControlTable
) -> None:
    fresh.refuse(None, f"^CREATE TABLE.*{table.database}")
    with pytest.raises(Stopped) as caught:
        init(fresh, table, wait=1.0)
    assert caught.value.stop.code is Code.SERVER_ERROR
    done = init(fresh, table)
    assert done.created_database_on == ()
    assert done.created_table_on == ("s1/r1", "s1/r2")


def test_a_replica_that_fails_is_reported_and_a_second_run_completes(
    fresh: LocalCluster, table: ControlTable
) -> None:
    fresh.fail_execution(2, f"CREATE TABLE.*{table.database}", code=36)
    with pytest.raises(Stopped) as caught:
        init(fresh, table)
    assert "keeper_map_path_prefix" in caught.value.stop.message
    done = init(fresh, table)
    assert done.created_table_on == ("s1/r2",)
    assert done.created_authority


def test_a_replica_that_is_down_is_refused_before_anything_is_changed(
    fresh: LocalCluster, table: ControlTable
) -> None:
    fresh.kill_node(2)
    mark = fresh.last_statement()
    with pytest.raises(Stopped) as caught:
        init(fresh, table)
    assert caught.value.stop.code is Code.REPLICA_UNAVAILABLE
    assert sent(fresh, table, mark) == []


def test_two_at_the_same_time_agree_on_one_authority(fresh: LocalCluster, table: ControlTable) -> None:
    gate = threading.Barrier(2)

    def work(node: int) -> Initialised:
        gate.wait(10)
        return init(fresh, table, node=node)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, fresh.nodes, timeout=100))
    assert {done.authority_id for done in results} == {sentinel(fresh, table)[0]}
    assert sentinel(fresh, table, 2) == sentinel(fresh, table, 1)


# ---- the row and the names


def test_the_authority_row_comes_back() -> None:
    assert authority_id_of(sentinel_row(ID, "w")) == ID


@pytest.mark.parametrize("bad", ["", "x" * 32, "ABCDEF0123456789" * 2, ID[:-1], ID + "0"])
def test_an_authority_id_is_32_hex_digits(bad: str) -> None:
    with pytest.raises(ValueError, match="32 hex digits"):
        sentinel_row(bad, "w")


def test_a_row_that_init_did_not_write_is_refused() -> None:
    row = sentinel_row(ID, "w")
    for changed in (
        replace(row, phase="PREPARED"),
        replace(row, operation_id="f" * 32),
        replace(row, payload="{}", payload_sha256=sha256_hex("{}")),
        replace(row, payload="no json", payload_sha256=sha256_hex("no json")),
    ):
        with pytest.raises(Stopped) as caught:
            authority_id_of(changed)
        assert caught.value.stop.code is Code.CONTROL_TABLE_INVALID


def test_a_row_of_a_newer_release_says_upgrade() -> None:
    row = sentinel_row(ID, "w")
    payload = row.payload.replace(AUTHORITY_SCHEMA, "dpone.authority.v2")
    newer = replace(row, payload=payload, payload_sha256=sha256_hex(payload))
    with pytest.raises(Stopped) as caught:
        authority_id_of(newer)
    assert caught.value.stop.code is Code.RECORD_NEWER


@pytest.mark.parametrize("bad", ["", "a b", "a'b", "a/b", "1a", "a.b", "ä"])
def test_the_names_are_plain(bad: str) -> None:
    with pytest.raises(ValueError, match="letters, digits and underscores"):
        ControlTable(bad, "t")
    with pytest.raises(ValueError, match="letters, digits and underscores"):
        ControlTable("d", bad)


def test_spacing_and_quoting_of_the_engine_do_not_matter() -> None:
    columns = [
        {"position": "1", "name": "a", "type": "String", "default_kind": ""},
        {"position": "2", "name": "b", "type": "String", "default_kind": ""},
    ]
    one = structure_digest({"engine_full": "KeeperMap('/a') PRIMARY KEY target_key"}, columns)
    two = structure_digest({"engine_full": "KeeperMap( '/a' )  PRIMARY KEY `target_key`"}, columns[::-1])
    three = structure_digest({"engine_full": "KeeperMap('/b') PRIMARY KEY target_key"}, columns)
    assert one == two != three
    assert structure_digest(None, columns) is None
