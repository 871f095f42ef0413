"""What is refused before the source is read and before anything is changed, on real servers, case by case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.publication.stop import MEANINGS, Category, Code, Stop, Stopped
from airflow_provider_dpone.values import TableStructure
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.integration.refresh_site import RefreshSite, rows_query

pytestmark = pytest.mark.cluster

REPLICATED = "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')"


@pytest.fixture
def site(cluster: LocalCluster, database: str, tmp_path: Path) -> RefreshSite:
    return RefreshSite(cluster, database, tmp_path, (cluster.endpoints[0],))


def refused(site: RefreshSite, code: Code, source: str = rows_query(3), **arguments: Any) -> Stop:
    """Stage, and expect to be refused with nothing changed and the source not read."""
    before = site.tables()
    site.since = site.cluster.last_statement()
    with pytest.raises(Stopped) as caught:
        site.stage(source, **arguments)
    stop = caught.value.stop
    assert stop.code is code
    assert stop.message
    assert stop.next_action
    assert site.tables() == before
    assert not site.sent(r"^\s*(INSERT|CREATE|DROP|ALTER|EXCHANGE|RENAME)\b")
    return stop


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no_such_cluster", Code.UNKNOWN_CLUSTER),
        ("two_shards", Code.UNSUPPORTED_TOPOLOGY),
        ("one_replica", Code.UNSUPPORTED_TOPOLOGY),
        ("twice", Code.UNSUPPORTED_TOPOLOGY),
    ],
)
def test_a_cluster_that_can_not_be_refreshed(site: RefreshSite, name: str, code: Code) -> None:
    site.cluster_name = name
    stop = refused(site, code)
    assert name in stop.message
    assert stop.category is Category.REFUSED


def test_a_database_that_does_not_exist(site: RefreshSite) -> None:
    site.database = "mart_absent"
    assert "mart_absent" in refused(site, Code.UNSUPPORTED_DATABASE).message


def test_a_database_that_is_not_atomic(site: RefreshSite) -> None:
    name = f"{site.database}_memory"
    site.cluster.execute(f"CREATE DATABASE {name} ON CLUSTER {CLUSTER_NAME} ENGINE = Memory")
    try:
        site.database = name
        assert "Memory" in refused(site, Code.UNSUPPORTED_DATABASE).message
    finally:
        site.cluster.execute(f"DROP DATABASE {name} ON CLUSTER {CLUSTER_NAME}")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE {t} ON CLUSTER analytics (id UInt64, name String) ENGINE = MergeTree ORDER BY id",
        "CREATE TABLE {t} ON CLUSTER analytics (id UInt64, name String) ENGINE = Memory",
        f"CREATE TABLE {{t}} ON CLUSTER analytics (id UInt64, name String) ENGINE = "
        f"{REPLICATED.replace('ReplicatedMergeTree', 'ReplicatedReplacingMergeTree')} ORDER BY id",
        f"CREATE TABLE {{t}} ON CLUSTER analytics (id UInt64, name String, at DateTime) ENGINE = {REPLICATED} "
        "ORDER BY id TTL at + INTERVAL 1 DAY",
        "CREATE TABLE {t} ON CLUSTER analytics (id UInt64, name String) ENGINE = "
        "Distributed(analytics, system, one, rand())",
        "CREATE VIEW {t} ON CLUSTER analytics AS SELECT 1 AS id, 'x' AS name",
        "CREATE DICTIONARY {t} ON CLUSTER analytics (id UInt64, name String) PRIMARY KEY id "
        "SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)",
    ],
    ids=["MergeTree", "Memory", "Replacing", "row TTL", "Distributed", "view", "dictionary"],
)
def test_a_target_of_a_kind_that_can_not_be_replaced_safely(site: RefreshSite, statement: str) -> None:
    site.cluster.execute(statement.replace("{t}", f"{site.database}.orders"))
    stop = refused(site, Code.UNSUPPORTED_TARGET)
    assert stop.facts["engine"]


def test_a_target_that_one_replica_lacks_is_named(site: RefreshSite) -> None:
    site.cluster.execute(
        f"CREATE TABLE {site.database}.orders UUID '00000000-0000-4000-8000-0000000000aa' "
        f"(id UInt64, name String) ENGINE = {REPLICATED} ORDER BY id"
    )
    assert "s1/r2" in refused(site, Code.TARGET_NOT_UNIFORM).message


def test_an_absent_target_without_a_structure_gets_a_suggestion(site: RefreshSite) -> None:
    stop = refused(site, Code.STRUCTURE_MISSING, structure=None)
    assert "TableStructure" in stop.message
    assert "`id`" in stop.message or "'id'" in stop.message or '"id"' in stop.message


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("SELECT 1 AS id", "name"),
        ("SELECT 1 AS id, 'x' AS name, 2 AS more", "more"),
        ("SELECT 1 AS identifier, 'x' AS name", "identifier"),
    ],
    ids=["a column is missing", "a column is too much", "another name"],
)
def test_columns_that_do_not_match_by_name(site: RefreshSite, source: str, missing: str) -> None:
    stop = refused(site, Code.SCHEMA_MISMATCH, source)
    assert missing in str(stop.facts)


def test_swapped_columns_are_mapped_by_name_and_not_by_place(site: RefreshSite) -> None:
    site.publish(site.stage("SELECT 'seven' AS name, 7 AS id"))
    assert site.cluster.query(f"SELECT id, name FROM {site.database}.orders") == [{"id": 7, "name": "seven"}]


def test_a_missing_control_table_names_the_command(site: RefreshSite) -> None:
    site.control = ControlTable("dpone", "never_initialised")
    stop = refused(site, Code.CONTROL_TABLE_MISSING)
    assert "airflow dpone init" in stop.next_action


def test_a_control_table_with_another_structure(site: RefreshSite) -> None:
    control = ControlTable("dpone", "other_structure")
    site.cluster.execute(
        f"CREATE TABLE {control.qualified} ON CLUSTER {CLUSTER_NAME} (target_key String, payload String) "
        f"ENGINE = KeeperMap('{control.keeper_path}') PRIMARY KEY target_key"
    )
    try:
        site.control = control
        assert refused(site, Code.CONTROL_TABLE_INVALID).category is Category.CONTRADICTION
    finally:
        site.cluster.execute(f"DROP TABLE {control.qualified} ON CLUSTER {CLUSTER_NAME} SYNC")


def test_a_replica_that_is_away_is_named_and_nothing_was_changed(site: RefreshSite) -> None:
    site.cluster.kill_node(2)
    try:
        stop = refused_without_tables(site, Code.REPLICA_UNAVAILABLE)
        assert "s1/r2" in stop.message
        assert "nothing was changed" in stop.message
    finally:
        site.cluster.start_node(2)


def refused_without_tables(site: RefreshSite, code: Code) -> Stop:
    site.since = site.cluster.last_statement()
    with pytest.raises(Stopped) as caught:
        site.stage(rows_query(3))
    assert caught.value.stop.code is code
    assert not site.sent(r"^\s*(INSERT|CREATE|DROP|ALTER|EXCHANGE|RENAME)\b")
    return caught.value.stop


def test_another_operation_that_holds_the_target_is_named(site: RefreshSite) -> None:
    site.refresh(1, run="first")
    staged = site.stage(rows_query(2), run="second")
    site.cluster.pause_worker(2)
    with pytest.raises(Stopped):
        site.publish(staged, waits=site.waits.__class__(publish=1, poll_first=0.1, poll_last=0.2))
    stop = refused(site, Code.TARGET_BUSY, run="third")
    assert stop.category is Category.CONFLICT
    assert stop.facts["run_id"] == "second"
    assert stop.facts["phase"] in ("BOUND", "DISPATCHING")
    assert stop.facts["since"]


def test_dependents_are_reported_or_refused(site: RefreshSite) -> None:
    site.refresh(1, run="first")
    site.cluster.execute(
        f"CREATE MATERIALIZED VIEW {site.database}.sums ON CLUSTER {CLUSTER_NAME} "
        f"ENGINE = MergeTree ORDER BY s AS SELECT sum(id) AS s FROM {site.database}.orders"
    )
    stop = refused(site, Code.DEPENDENTS_REFUSED, run="second", on_dependents="refuse")
    assert "sums" in str(stop.facts["dependents"])
    staged = site.stage(rows_query(2), run="second")
    assert any("sums" in name for name in staged.dependents)


@pytest.mark.parametrize("table", ["or ders", "naïve", "select", "quo`te", "back\\slash", "per.iod"])
def test_names_that_need_quotes_are_supported_from_end_to_end(site: RefreshSite, table: str) -> None:
    site.table = table
    structure = TableStructure(columns={"a column": "UInt64", "sel`ect": "String"}, order_by="a column")
    for rows in (2, 3):
        staged = site.stage(
            f"SELECT number AS `a column`, 'x' AS `sel\\`ect` FROM numbers({rows})",
            run=f"run{rows}",
            structure=structure,
        )
        site.publish(staged)
        site.cleanup(staged)
    assert site.tables() == {table}


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_source_bytes": 0},
        {"max_source_bytes": -1},
        {"replication_mode": "both"},
        {"on_schema_change": "x"},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_arguments_that_make_no_sense_are_refused_where_they_are_written(
    site: RefreshSite, arguments: dict[str, Any]
) -> None:
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=name):
        site.stage(rows_query(1), **arguments)


def test_a_name_with_nul_is_refused(site: RefreshSite) -> None:
    site.table = "nul\0"
    with pytest.raises(ValueError, match="NUL"):
        site.stage(rows_query(1))


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda site: site.stage("SELECT throwIf(number = 5) AS id, 'x' AS name FROM numbers(10)"), None),
        (lambda site: site.stage(rows_query(100_000), max_source_bytes=1_000), Code.SOURCE_TOO_LARGE),
        (
            lambda site: site.stage(
                "SELECT 300 AS id, 'x' AS name",
                structure=TableStructure(columns={"id": "UInt8", "name": "String"}, order_by="id"),
            ),
            Code.VALUE_REFUSED,
        ),
    ],
    ids=["fails half way", "too large", "a value that doesn't fit"],
)
def test_a_source_that_ends_badly_leaves_no_candidate_and_an_untouched_target(
    site: RefreshSite, fault: Callable[[RefreshSite], Any], code: Code | None
) -> None:
    with pytest.raises(Stopped) as caught:
        fault(site)
    if code is not None:
        assert caught.value.stop.code is code
    wait_for_no_tables(site)
    assert site.swaps() == 0


def wait_for_no_tables(site: RefreshSite) -> None:
    from tests.cluster.client import wait_until

    wait_until(lambda: site.tables() == set())


def test_every_code_that_is_refused_says_what_to_do() -> None:
    for code, meaning in MEANINGS.items():
        if meaning.category is Category.REFUSED:
            assert len(meaning.next_action) > 15, code
