"""Queries on PostgreSQL, staged on a real cluster: whole and exact, or stopped at once with nothing left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources import dbapi
from airflow_provider_dpone.sources.base import driver as package_of
from airflow_provider_dpone.values import MiB
from tests.cluster import LocalCluster, wait_until
from tests.integration.source_site import busy, choose, source
from tests.integration.staging_site import Site, in_thread
from tests.postgres import LocalPostgres

pytestmark = pytest.mark.cluster

BOTH_DRIVERS = pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
BOTH_WAYS = pytest.mark.parametrize("way", ["copy", "rows"])

BY_COPY = "COPY stream"
BY_ROWS = "rows are read through the driver"


@pytest.fixture
def site(cluster: LocalCluster, database: str) -> Site:
    return Site(cluster, database, (cluster.endpoints[0],))


def stopped_by(work: Callable[[], object]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


@BOTH_WAYS
@BOTH_DRIVERS
def test_every_row_arrives_whichever_way(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str, way: str
) -> None:
    choose(monkeypatch, driver, way)
    site.create(
        "name Nullable(String), id UInt64, at DateTime64(6, 'UTC'), amount Decimal(12, 2), tags Array(String)",
        "ORDER BY id",
    )
    attempt, loaded = site.staged(
        site.staging(
            source(
                "SELECT i AS id, timestamptz '2013-01-01 00:00:00+02' + i * interval '1.5 s' AS at, "
                "CASE WHEN i % 3 > 0 THEN E'n\\t' || i END AS name, (i / 4.0)::numeric(12, 2) AS amount, "
                "ARRAY[i::text, 'x'] AS tags FROM generate_series(1, 50000) i -- all of it\n;",
                batch_rows=7_000,
            )
        )
    )
    assert loaded.rows == loaded.source_rows == 50_000
    assert loaded.bytes > 1 * MiB
    assert site.rows(
        "SELECT count(), sum(id), countIf(name IS NULL), countIf(name = concat('n\\t', toString(id))), "
        "sum(amount), countIf(tags = [toString(id), 'x']), "
        "countIf(at = toDateTime64('2012-12-31 22:00:00', 6, 'UTC') + INTERVAL id * 1500 MILLISECOND) "
        f"FROM {site.database}.{attempt.name}"
    ) == [[50_000, 1_250_025_000, 16_666, 33_334, 312_506_250, 50_000, 50_000]]
    assert any((BY_COPY if way == "copy" else BY_ROWS) in line for line in site.lines)
    assert site.count("t") == 0


@BOTH_DRIVERS
def test_parameters_are_bound_by_the_driver_and_a_percent_sign_is_itself(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    choose(monkeypatch, driver)
    site.create("x String, `50 %s` Nullable(Int8)")
    evil = "a'; DROP TABLE t; -- %s \\ \" é"
    for sql, parameters, expected in (
        ('SELECT %s::text AS x, 1 AS "50 %%s"', [evil], evil),
        ('SELECT %(a)s::text AS x, 1 AS "50 %%s" WHERE 7 = ANY(%(n)s)', {"a": evil, "n": [6, 7]}, evil),
        ("SELECT '100 %s' AS x, 1 AS \"50 %s\"", None, "100 %s"),
    ):
        attempt, _ = site.staged(site.staging(source(sql, parameters=parameters)))
        assert site.rows(f"SELECT x, `50 %s` FROM {site.database}.{attempt.name}") == [[expected, 1]]


def test_a_column_that_copy_can_not_carry_exactly_makes_the_whole_query_go_through_the_driver(
    site: Site, pg: LocalPostgres
) -> None:
    site.create("x Array(String), y Int8")
    attempt, _ = site.staged(site.staging(source("SELECT ARRAY['\\x00ff'::bytea] AS x, 1 AS y")))
    assert site.rows(f"SELECT hex(x[1]), y FROM {site.database}.{attempt.name}") == [["00FF", 1]]
    assert any(BY_ROWS in line and "'x' has no exact way from bytea[]" in line for line in site.lines)


@BOTH_DRIVERS
def test_a_real_is_the_same_number_whichever_way(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """A driver makes a double of a real's shortest text, and 0.1 is not the real that is written so."""
    choose(monkeypatch, driver)
    site.create("x Float64, y Float32")
    attempt, _ = site.staged(site.staging(source("SELECT 0.1::float4 AS x, 0.1::float4 AS y")))
    assert site.rows(f"SELECT x, y FROM {site.database}.{attempt.name}") == [[0.10000000149011612, 0.1]]
    assert any(BY_COPY in line for line in site.lines)
    site.create("x Float64, y Float32, z Array(Float64)", table="u")
    # COPY has no exact way for the array, so all of it goes through the driver.
    sql = "SELECT x, x AS y, ARRAY[x] AS z FROM (SELECT 0.1::float4 AS x) q WHERE 'a%%' <> %s"
    attempt, _ = site.staged(site.staging(source(sql, parameters=["b"]), table="u"), "u")
    assert site.rows(f"SELECT * FROM {site.database}.{attempt.name}") == [
        [0.10000000149011612, 0.1, [0.10000000149011612]]
    ]
    assert any(BY_ROWS in line for line in site.lines)


@BOTH_DRIVERS
def test_a_connection_that_asks_for_rows_as_dicts_makes_no_difference(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    for way in ("copy", "rows"):
        choose(monkeypatch, driver, way)
        monkeypatch.setenv("AIRFLOW_CONN_PG", f"{pg.uri}?cursor=dictcursor")
        site.create("a Int8, b Int8", table=f"t_{way}")
        attempt, _ = site.staged(site.staging(source("SELECT 2 AS b, 1 AS a"), table=f"t_{way}"), f"t_{way}")
        assert site.rows(f"SELECT a, b FROM {site.database}.{attempt.name}") == [[1, 2]]


def test_a_table_that_is_not_there_gets_postgresqls_types_suggested(site: Site, pg: LocalPostgres) -> None:
    query = "SELECT 1::bigint AS id, now() AS at, 1.5::numeric(10,2) AS d, '{}'::text[] AS t"
    staging = site.staging(source(query))
    stop = stopped_by(lambda: site.planned(staging))
    assert stop.code is Code.STRUCTURE_MISSING
    for said in (
        "'id': 'Int64'",
        "'at': \"DateTime64(6, 'UTC')\"",
        "Decimal(10, 2)",
        "Array(Nullable(String))",
    ):
        assert said in stop.message


def test_a_type_that_has_no_exact_way_is_refused_before_a_row_is_read(site: Site, pg: LocalPostgres) -> None:
    site.create("x Map(String, Int8)")
    stop = stopped_by(lambda: site.planned(site.staging(source("SELECT pg_sleep(60)::text AS x"))))
    assert stop.code is Code.TYPE_NOT_EXACT
    assert stop.facts == {"columns": ["x"]}


@BOTH_WAYS
def test_a_source_changes_nothing_where_it_reads(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    choose(monkeypatch, "psycopg", way)
    pg.execute(
        "CREATE TABLE log (x int); CREATE FUNCTION noted() RETURNS int LANGUAGE sql VOLATILE "
        "AS 'INSERT INTO log VALUES (1) RETURNING x'"
    )
    site.create("x Int8")
    staging = site.staging(source("SELECT noted() AS x"))
    plan, attempt = site.built(staging)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.SOURCE_FAILED
    assert stop.facts == {"error": "ReadOnlySqlTransaction"}
    assert pg.query("SELECT count(*) FROM log") == [(0,)]


# ---- Stopped half way


@BOTH_WAYS
@BOTH_DRIVERS
def test_a_query_that_fails_half_way_leaves_no_short_table(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str, way: str
) -> None:
    choose(monkeypatch, driver, way)
    site.create("x String, y Int32")
    broken = "SELECT repeat('secret', 10) AS x, 1000 / (200000 - i) AS y FROM generate_series(1, 300000) i"
    staging = site.staging(source(broken))
    plan, attempt = site.built(staging)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.SOURCE_FAILED
    assert stop.facts == {"error": "DivisionByZero"}
    assert "secret" not in f"{stop} {site.lines}"
    for sent in site.cluster.statements(match=f"INSERT INTO.*{attempt.name}"):
        assert (sent.outcome, sent.code) != ("ok", 0)
    assert site.running(attempt) == 0
    assert site.count("t") == 0


@BOTH_WAYS
def test_a_database_that_goes_away_half_way_leaves_no_short_table(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    choose(monkeypatch, "psycopg", way)
    site.create("x Int64, y Bool")
    slow = "SELECT i AS x, pg_sleep(0.0001) IS NULL AS y FROM (SELECT generate_series(1, 10000000) i) g"
    staging = site.staging(source(slow, batch_rows=100))
    plan, attempt = site.built(staging)
    with in_thread(lambda: staging.load(plan, attempt)) as finished:
        wait_until(lambda: busy(pg) > 0)
        time.sleep(0.5)
        pg.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        error = finished()
    assert isinstance(error, Stopped)
    assert error.stop.code is Code.SOURCE_FAILED
    assert site.running(attempt) == 0


@BOTH_WAYS
@BOTH_DRIVERS
def test_the_bound_cuts_the_stream_and_ends_the_query(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str, way: str
) -> None:
    choose(monkeypatch, driver, way)
    site.create("x String")
    staging = site.staging(
        source("SELECT repeat('y', 100) AS x FROM (SELECT generate_series(1, 100000000)) g"),
        max_source_bytes=4 * MiB,
    )
    plan, attempt = site.built(staging)
    started = time.monotonic()
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert time.monotonic() - started < 20
    assert stop.code is Code.SOURCE_TOO_LARGE
    assert stop.facts == {"max_source_bytes": 4 * MiB}
    wait_until(lambda: busy(pg) == 0)
    assert site.running(attempt) == 0


def test_the_bound_of_copy_is_exact_to_the_byte(site: Site, pg: LocalPostgres) -> None:
    site.create("x String")
    query = source("SELECT repeat('y', 99) AS x FROM generate_series(1, 10000)")
    attempt, loaded = site.staged(site.staging(query, max_source_bytes=1_000_000))
    assert (loaded.bytes, loaded.rows) == (1_000_000, 10_000)
    staging = site.staging(query, max_source_bytes=999_999)
    plan, attempt = site.built(staging)
    assert stopped_by(lambda: staging.load(plan, attempt)).code is Code.SOURCE_TOO_LARGE


@BOTH_WAYS
@BOTH_DRIVERS
def test_a_cancelled_load_stops_within_a_second_in_the_source_too(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str, way: str
) -> None:
    choose(monkeypatch, driver, way)
    site.create("x String")
    staging = site.staging(source("SELECT pg_sleep(300)::text AS x"))
    plan, attempt = site.built(staging)
    with in_thread(lambda: staging.load(plan, attempt)) as finished:
        wait_until(lambda: busy(pg) > 0)
        time.sleep(0.3)
        started = time.monotonic()
        staging.cancel()
        wait_until(lambda: busy(pg) == 0)
        assert time.monotonic() - started < 2
        error = finished()
    assert isinstance(error, Stopped)
    assert "cancelled" in error.stop.message
    assert not site.cluster.statements(match=f"INSERT INTO.*{attempt.name}")


@BOTH_DRIVERS
def test_a_signal_reaches_a_task_whose_database_is_silent(
    site: Site, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """Airflow calls on_kill in a signal handler, which runs in the task's main thread or not at all."""
    choose(monkeypatch, driver)
    site.create("x String")
    staging = site.staging(source("SELECT pg_sleep(300)::text AS x"))
    plan, attempt = site.built(staging)
    asked: list[float] = []

    def on_kill(number: int, frame: FrameType | None) -> None:
        asked.append(time.monotonic())
        staging.cancel()

    before = signal.signal(signal.SIGUSR1, on_kill)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        stop = stopped_by(lambda: staging.load(plan, attempt))
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert "cancelled" in stop.message
    assert time.monotonic() - asked[0] < 2
    wait_until(lambda: busy(pg) == 0)


def test_columns_that_change_after_the_plan_are_refused(site: Site, pg: LocalPostgres) -> None:
    pg.execute("CREATE TABLE s (a int, b int)")
    site.create("a Int32, b Int32")
    for change in ("ALTER TABLE s RENAME a TO c", "ALTER TABLE s ALTER b TYPE text"):
        pg.execute("DROP TABLE s; CREATE TABLE s (a int, b int); INSERT INTO s VALUES (1, 2)")
        staging = site.staging(source("SELECT * FROM s"))
        plan, attempt = site.built(staging)
        pg.execute(change)
        stop = stopped_by(lambda: staging.load(plan, attempt))  # noqa: B023 - called at once
        assert stop.code is Code.SOURCE_FAILED
        assert "changed after" in stop.message


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT FROM WHERE", Code.SOURCE_FAILED),
        ("SELECT 1 AS x; SELECT 2 AS x", Code.BAD_INPUT),
        ("SELECT * FROM missing_table", Code.SOURCE_FAILED),
    ],
)
def test_a_query_that_postgresql_refuses_stops_the_plan_without_its_text(
    site: Site, pg: LocalPostgres, sql: str, code: Code
) -> None:
    site.create("x Int32")
    stop = stopped_by(lambda: site.planned(site.staging(source(sql))))
    assert stop.code is code
    assert "missing_table" not in str(stop)


@BOTH_DRIVERS
def test_the_connection_is_that_of_airflows_own_hook(
    pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    choose(monkeypatch, driver)
    connection = dbapi.hook_of("pg").get_conn()
    assert package_of(connection) == driver
    connection.close()
