"""Promises of the sources that were once broken: by types, settings, encodings and cut files, on real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import psycopg2  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from airflow_provider_dpone.clickhouse.errors import ServerError
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.sources import FileSource, RowsLoad, SqlSource, StreamLoad, dbapi
from tests.cluster import LocalCluster
from tests.integration.source_site import PostgresHook, Rows, Store, choose, source, stored_with, stream
from tests.integration.staging_site import Site, Streamed
from tests.postgres import LocalPostgres
from tests.streams import streamed

pytestmark = pytest.mark.cluster


@pytest.fixture
def site(cluster: LocalCluster, database: str) -> Site:
    return Site(cluster, database, (cluster.endpoints[0],))


REFUSALS = (Stopped, ServerError, ValueError, psycopg.Error, psycopg2.Error)

Query = Callable[..., StreamLoad]


@pytest.fixture
def query(pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> Query:
    """The load of a query on PostgreSQL for one column of this type."""

    def start(
        sql: str, target: str, *, driver: str = "psycopg", rows: bool = False, parameters: Any = None
    ) -> StreamLoad:
        monkeypatch.setattr(dbapi, "hook_of", lambda _: PostgresHook(pg.port, driver))
        with monkeypatch.context() as context:
            if rows:
                context.setattr("airflow_provider_dpone.sources.postgres.COPY_DRIVERS", ())
            return stream(SqlSource(sql, conn_id="pg", parameters=parameters), target)

    return start


def nothing_and(do: Callable[[], object]) -> Iterator[bytes]:
    """A source that ends at once, after something happened."""
    do()
    yield from ()


def exact_or_refused(store: Store, start: Callable[[], StreamLoad], target: str, exact: str) -> None:
    """The value is stored as it is, or nothing is."""
    try:
        store.load(start(), target)
    except REFUSALS:
        return
    assert store.stored() == [exact]


@contextmanager
def role(pg: LocalPostgres, setting: str, value: str) -> Iterator[None]:
    """Let the role of the tests have a setting of its own."""
    pg.execute(f"ALTER ROLE postgres SET {setting} = {value}")
    try:
        yield
    finally:
        pg.execute(f"ALTER ROLE postgres RESET {setting}")


# ---- PostgreSQL by COPY: silent corruption


def test_a_column_whose_type_depends_on_how_a_parameter_is_bound_does_not_wrap_around(
    store: Store,
    pg: LocalPostgres,
    query: Query,
) -> None:
    """psycopg describes with 5 as int2 and copies with 5 as int4: 150000 is read as an Int16."""
    pg.execute("CREATE TABLE s (q smallint); INSERT INTO s VALUES (30000)")
    start = lambda: query("SELECT q * %s AS x FROM s", "Int64", parameters=[5])  # noqa: E731
    exact_or_refused(store, start, "Int64", "150000")


@pytest.mark.parametrize("target", ["Int64", "Float64", "Decimal(12, 2)", "String", "LowCardinality(String)"])
@pytest.mark.parametrize(
    "kind", ["smallint", "integer", "bigint", "oid", "real", "double precision", "numeric(10, 2)"]
)
def test_null_is_no_number(store: Store, query: Query, kind: str, target: str) -> None:
    """Where the table has no NULL, ClickHouse isn't told of it, and reads two letters of a text."""
    for rows in ("(NULL)", "(7), (NULL)", "(NULL), (7)"):
        load = query(f"SELECT v::{kind} AS x FROM (VALUES {rows}) AS rows (v)", target)
        carrier = str(load.columns[0].type)
        # A float travels as text, or through the driver.
        assert kind in {"real", "double precision"} or not carrier.startswith("Nullable")
        with pytest.raises((ServerError, Stopped)):
            store.load(load, target)
        assert store.stored() == []


@pytest.mark.parametrize("before", ["", "'x' AS t, "])
@pytest.mark.parametrize("after", ["", ", 1.5::float8 AS f", ", NULL::integer AS f", ", 't' AS f"])
def test_null_is_no_number_wherever_it_stands(
    store: Store, pg: LocalPostgres, query: Query, before: str, after: str
) -> None:
    names = ["t"] * bool(before) + ["x"] + ["f"] * bool(after)
    targets = {"t": "String", "x": "Int32", "f": "Nullable(Float64)" if "t'" not in after else "String"}
    for value in ("NULL", "7"):
        source = SqlSource(f"SELECT {before}{value}::integer AS x{after}", conn_id="pg")
        query("SELECT 1 AS x", "Int32")  # the hook
        rows = source.load()
        assert isinstance(rows, RowsLoad)
        load = rows.stream([targets[name] for name in names])
        found = None
        with suppress(ServerError):
            found = stored_with(store, load, [targets[name] for name in names], {})
        assert (found is None) == (value == "NULL")


@pytest.mark.parametrize(
    ("number", "target", "exact"),
    [
        ("9007199254740993::numeric", "Float64", "9007199254740993"),
        ("'1e-400'::numeric", "Float64", "0.0…1"),
        ("0.123456789::numeric", "Float32", "0.123456789"),
    ],
)
def test_a_numeric_without_precision_is_not_rounded_to_a_float(
    store: Store,
    query: Query,
    number: str,
    target: str,
    exact: str,
) -> None:
    exact_or_refused(store, lambda: query(f"SELECT {number} AS x", target), target, exact)


@pytest.mark.parametrize(
    ("array", "target", "exact"),
    [
        ("ARRAY[9007199254740993]::bigint[]", "Array(Float64)", "[9007199254740993]"),
        # The scalars are refused, and stored as 0.10000000149011612.
        ("ARRAY[0.1]::float8[]", "Array(Float32)", "[0.10000000000000001]"),
        ("ARRAY[0.1]::float4[]", "Array(Float64)", "[0.10000000149011612]"),
    ],
)
def test_a_number_in_an_array_follows_the_rule_of_the_number_alone(
    store: Store,
    query: Query,
    array: str,
    target: str,
    exact: str,
) -> None:
    exact_or_refused(store, lambda: query(f"SELECT {array} AS x", target), target, exact)


def test_a_timestamp_without_a_zone_is_in_utc_in_an_array_of_a_domain_too(
    store: Store,
    pg: LocalPostgres,
    query: Query,
) -> None:
    pg.execute("CREATE DOMAIN moment AS timestamp")
    target = "Array(DateTime('Europe/Berlin'))"
    sql = "SELECT ARRAY['2013-01-01 05:00:00'::moment]::moment[] AS x"
    exact_or_refused(store, lambda: query(sql, target), target, "['2013-01-01 06:00:00']")


def test_bytes_are_bytes_in_an_array_of_a_domain_too(
    store: Store,
    pg: LocalPostgres,
    query: Query,
) -> None:
    pg.execute("CREATE DOMAIN blob AS bytea")
    target = "Array(String)"
    sql = "SELECT ARRAY['\\x6162'::blob]::blob[] AS x"
    exact_or_refused(store, lambda: query(sql, target), target, "['ab']")


@pytest.mark.parametrize(
    ("array", "exact"),
    [
        ("ARRAY['x'::char(4)]", "['x   ']"),
        ("ARRAY['10.0.0.1'::inet]", "['10.0.0.1']"),
        ("ARRAY[timestamp '2013-01-01 05:00:00']", "['2013-01-01 05:00:00']"),
    ],
)
def test_a_value_has_the_same_text_in_an_array_as_alone(
    store: Store,
    query: Query,
    array: str,
    exact: str,
) -> None:
    """A cast to text is not the type's own output: that of char drops the blanks, that of inet adds /32."""
    target = "Array(String)"
    exact_or_refused(store, lambda: query(f"SELECT {array} AS x", target), target, exact)


def test_a_function_of_the_databases_users_does_not_stand_in_for_postgresqls_own(
    store: Store,
    pg: LocalPostgres,
    query: Query,
) -> None:
    pg.execute(
        "CREATE FUNCTION public.to_json(text[]) RETURNS json LANGUAGE sql AS $$SELECT '[\"evil\"]'::json$$"
    )
    target = "Array(String)"
    exact_or_refused(store, lambda: query("SELECT ARRAY['a', 'b'] AS x", target), target, "['a','b']")


def test_the_query_is_the_one_that_was_written_whatever_the_clients_encoding(
    store: Store,
    pg: LocalPostgres,
    query: Query,
) -> None:
    """psycopg2 keeps encoding in LATIN1 after SET LOCAL client_encoding TO 'UTF8'."""
    with role(pg, "client_encoding", "'latin1'"):
        store.load(query("SELECT 'Ã©' AS x", "String", driver="psycopg2"), "String")
        assert store.stored() == ["Ã©"]
        store.load(query("SELECT 'é' AS x", "String", driver="psycopg2"), "String")
        assert store.stored() == ["é"]


@pytest.mark.parametrize(
    ("value", "target", "exact"),
    [("B'101'", "Int32", "5"), ("'\\x35'::bytea", "Int32", "no number")],
)
def test_bits_and_bytes_are_no_digits(
    store: Store,
    query: Query,
    value: str,
    target: str,
    exact: str,
) -> None:
    exact_or_refused(store, lambda: query(f"SELECT {value} AS x", target), target, exact)


def test_a_timestamp_in_a_string_is_postgresqls_own_text_of_it(store: Store, query: Query) -> None:
    sql = "SELECT timestamp '2013-01-01 05:00:00' AS x"
    exact_or_refused(store, lambda: query(sql, "String"), "String", "2013-01-01 05:00:00")


# ---- PostgreSQL through the driver


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_floats_keep_all_digits_through_the_driver_whatever_the_roles_extra_float_digits(
    store: Store,
    pg: LocalPostgres,
    query: Query,
    driver: str,
) -> None:
    """0 is also the default of PostgreSQL before 12."""
    sql = "SELECT 0.1::float8 + 0.2::float8 AS x"
    with role(pg, "extra_float_digits", "0"):
        start = lambda: query(sql, "Float64", driver=driver, rows=True)  # noqa: E731
        exact_or_refused(store, start, "Float64", "0.30000000000000004")


# ---- Stopping, and what a source may do


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_a_load_that_waits_for_a_lock_on_its_source_is_cancelled_at_once(
    site: Site,
    pg: LocalPostgres,
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
) -> None:
    """The query is described in the task's own thread, where nothing looks whether it was cancelled."""
    choose(monkeypatch, driver)
    pg.execute("CREATE TABLE s (x int)")
    site.create("x Int32")
    staging = site.staging(source("SELECT x FROM s"))
    plan, attempt = site.built(staging)
    ended: list[object] = []

    def work() -> None:
        try:
            ended.append(staging.load(plan, attempt))
        except Stopped as stopped:
            ended.append(stopped)

    other = pg.connect()
    thread = threading.Thread(target=work)
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN; LOCK TABLE s IN ACCESS EXCLUSIVE MODE")
        thread.start()
        time.sleep(1.0)
        staging.cancel()
        thread.join(4.0)
        in_time = not thread.is_alive()
    finally:
        other.close()
        thread.join(30.0)
    assert in_time
    assert isinstance(ended[0], Stopped), "a cancelled load has even ended well"


def test_a_cancelled_load_of_a_source_without_rows_is_no_success(site: Site) -> None:
    """Whether the task was cancelled is looked at when a chunk comes, and there is none."""
    site.create("x Int32")
    staging = site.staging(Streamed(lambda: nothing_and(staging.cancel), ("x",), row_count=0))
    plan, attempt = site.built(staging)
    with pytest.raises(Stopped) as caught:
        staging.load(plan, attempt)
    assert "cancelled" in caught.value.stop.message


def test_a_text_that_leaves_the_brackets_changes_nothing_where_it_reads(
    site: Site,
    pg: LocalPostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several statements are no SELECT; a COMMIT among them ends the READ ONLY transaction."""
    choose(monkeypatch, "psycopg")
    site.create("x Int32")
    sql = "SELECT 1 AS x) d; COMMIT; CREATE TABLE made (); SELECT * FROM (SELECT 1 AS x"
    with pytest.raises(Stopped):
        site.planned(site.staging(source(sql)))
    assert pg.query("SELECT to_regclass('made')::text") == [(None,)]


def test_a_comment_behind_the_semicolon_is_no_error(store: Store, query: Query) -> None:
    assert store.load(query("SELECT 1 AS x; -- done", "Int8"), "Int8") == 1


# ---- Settings of the user's profile on ClickHouse, which no statement overrides


def test_columns_that_differ_in_case_only_are_not_mixed_up(store: Store, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": ["x"], "A": ["y"]}), tmp_path / "x.parquet")
    profile = {"input_format_arrow_case_insensitive_column_matching": "1"}
    load = streamed(FileSource(str(tmp_path / "x.parquet")))
    assert stored_with(store, load, ["String", "String"], profile) == ["x", "y"]


def test_true_is_true_whatever_the_profile_calls_it(store: Store, query: Query) -> None:
    profile = {"bool_true_representation": "f", "bool_false_representation": "t"}
    load = query("SELECT true AS x", "Bool")
    assert stored_with(store, load, ["Bool"], profile) == ["true"]


def test_a_local_time_is_in_the_columns_zone_whatever_the_profiles_session_timezone(
    store: Store,
    tmp_path: Path,
) -> None:
    """A column without a zone has the server's, which is UTC here."""
    (tmp_path / "x.csv").write_bytes(b"x\n2013-01-01 05:00:00\n")
    load = streamed(FileSource(str(tmp_path / "x.csv")))
    found = stored_with(store, load, ["DateTime"], {"session_timezone": "America/New_York"})
    assert found == ["2013-01-01 05:00:00"]


# ---- Files


def test_the_first_record_of_a_file_without_a_header_is_not_shown(
    site: Site,
    tmp_path: Path,
) -> None:
    (tmp_path / "x.csv").write_bytes(b"alice@example.com,4111111111111111\nbob@example.com,2\n")
    with pytest.raises(Stopped) as caught:
        site.planned(site.staging(FileSource(str(tmp_path / "x.csv"))))
    assert "4111111111111111" not in f"{caught.value.stop}"


def test_a_timestamp_that_nanoseconds_can_not_hold_is_not_another_one(
    store: Store,
    tmp_path: Path,
) -> None:
    """Spark and Hive write INT96; pyarrow reads it as nanoseconds, which wrap around: 2500 becomes 1915."""
    table = pa.table({"x": pa.array([datetime(2500, 1, 1)], pa.timestamp("us"))})
    parquet.write_table(table, tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    target = "DateTime64(9, 'UTC')"
    start = lambda: stream(FileSource(str(tmp_path / "x.parquet")), target)  # noqa: E731
    exact_or_refused(store, start, target, "2500-01-01 00:00:00.000000000")


def test_a_zone_that_is_an_offset_is_an_instant_like_any_other(
    store: Store,
    tmp_path: Path,
) -> None:
    table = pa.table({"x": pa.array([datetime(2013, 1, 1)], pa.timestamp("us", "+00:00"))})
    parquet.write_table(table, tmp_path / "x.parquet")
    target = "DateTime64(6, 'UTC')"
    store.load(stream(FileSource(str(tmp_path / "x.parquet")), target), target)
    assert store.stored() == ["2013-01-01 00:00:00.000000"]


def test_a_csv_file_that_is_cut_inside_quotes_is_refused_though_another_field_has_a_stray_quote(
    store: Store,
    tmp_path: Path,
) -> None:
    (tmp_path / "x.csv").write_bytes(b'x\na"b\n"cut sho')
    with pytest.raises(REFUSALS):
        store.load(stream(FileSource(str(tmp_path / "x.csv")), "String"), "String")


# ---- Exact, and refused all the same


def test_bytes_that_fill_a_fixed_string_are_taken_though_the_last_one_is_zero(
    store: Store,
    cluster: LocalCluster,
) -> None:
    """One of 256 hashes ends so."""
    load = dbapi.rows_stream(
        dbapi.Query(Rows(b"ab\0"), "SELECT x", None), ["x"], ["FixedString(3)"], batch_rows=1, why="a test"
    )
    assert store.load(load, "FixedString(3)") == 1
    assert store.stored(as_hex=True) == ["616200"]
