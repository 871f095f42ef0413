"""A query on another database: its value, and what is read through a driver."""

from __future__ import annotations

import gc
import json
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources import RowsLoad, SqlSource, StreamLoad, dbapi, postgres, sql_server
from airflow_provider_dpone.sources.postgres import NoCopy, PostgresColumn, copy_stream
from tests.streams import streamed


class SqliteHook:
    """What Airflow's hook of SQLite does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.conn_type = "sqlite"
        self.cursor = sqlite3.Cursor
        self.connections = 0

    def get_conn(self) -> Any:
        self.connections += 1
        chosen = self.cursor
        if chosen is sqlite3.Cursor:
            return sqlite3.connect(self.path)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = chosen) -> Any:
                return super().cursor(factory)

        return sqlite3.connect(self.path, factory=Connection)


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteHook:
    found = SqliteHook(tmp_path / "x.db")
    monkeypatch.setattr(dbapi, "hook_of", lambda conn_id: found)
    connection = found.get_conn()
    connection.execute("CREATE TABLE t (id INTEGER, name TEXT)")
    connection.executemany(
        "INSERT INTO t VALUES (?, ?)", [(n, f"n{n}" if n % 3 else None) for n in range(25)]
    )
    connection.commit()
    connection.close()
    return found


def rows_of(load: StreamLoad) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.ipc.open_stream(b"".join(load.chunks())).read_all().to_pylist()
    return found


def stop_of(work: Callable[[], object]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


# ---- the value


def test_parameters_enter_the_identity_as_a_digest_and_batches_do_not() -> None:
    def identity(**values: Any) -> str:
        return json.dumps(SqlSource("SELECT 1", conn_id="c", **values).identity())

    assert "secret" not in identity(parameters=["secret"])
    assert identity() == identity(batch_rows=5)
    different = [None, [], ["a"], ["b"], [1], [1.0], [True], [["a"]], {"a": 1}, {"b": 1}]
    assert len({identity(parameters=parameters) for parameters in different}) == len(different)
    assert identity(parameters=["a"]) == identity(parameters=("a",))


def test_parameters_survive_serialisation_and_are_rendered() -> None:
    for parameters in (["{{ ds }}", 1, None, [1.5, "x"]], {"day": "{{ ds }}", "n": True}):
        source = SqlSource("SELECT 1", conn_id="c", parameters=parameters, batch_rows=7)
        data = json.loads(json.dumps(source.serialize()))
        assert SqlSource.deserialize(data, 1) == source
        assert hash(SqlSource.deserialize(data, 1)) == hash(source)
        rendered = source.rendered(lambda text: text.replace("{{ ds }}", "2013-01-01"))
        assert "2013-01-01" in json.dumps(rendered.serialize())
        assert rendered.batch_rows == 7


def test_a_source_that_was_written_without_parameters_is_still_read() -> None:
    assert SqlSource.deserialize({"sql": "SELECT 1", "conn_id": None}, 1) == SqlSource("SELECT 1")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"parameters": [1]}, "conn_id"),
        ({"conn_id": "c", "parameters": "x"}, "parameters"),
        ({"conn_id": "c", "parameters": [object()]}, "object"),
        ({"conn_id": "c", "parameters": {1: "x"}}, "names"),
        ({"conn_id": "c", "batch_rows": 0}, "batch_rows"),
        ({"conn_id": "c", "batch_rows": True}, "batch_rows"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SqlSource("SELECT 1", **arguments)


# ---- the connection


def test_a_connection_that_is_not_there_or_not_sql_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FILES", "fs://")
    monkeypatch.setenv("AIRFLOW_CONN_STRANGE", "nosuchtype://user:hidden@host")
    for conn_id in ("files", "strange"):
        stop = stop_of(SqlSource("SELECT 1", conn_id=conn_id).load)
        assert stop.code is Code.BAD_INPUT
        assert conn_id in stop.message
        assert "hidden" not in stop.message


def test_the_hook_is_that_of_the_connections_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PG", "postgres://u:p@nowhere.invalid/db")
    assert type(dbapi.hook_of("pg")).__name__ == "PostgresHook"


# ---- through a driver


def test_rows_are_read_in_batches_with_the_tables_types(hook: SqliteHook) -> None:
    source = SqlSource("SELECT name, id FROM t -- all;\n;", conn_id="c", batch_rows=10)
    load = streamed(source, ["Nullable(String)", "UInt8"])
    assert [(column.name, column.type) for column in load.columns] == [
        ("name", "Nullable(String)"),
        ("id", "Nullable(UInt8)"),
    ]
    assert load.format == "ArrowStream"
    assert load.rows() is None
    rows = rows_of(load)
    assert load.rows() == 25
    assert rows == [{"name": None if n % 3 == 0 else f"n{n}".encode(), "id": n} for n in range(25)]
    assert "sqlite3" in load.note
    assert rows_of(load) == rows


def test_parameters_are_bound_and_a_percent_sign_is_itself(hook: SqliteHook) -> None:
    source = SqlSource("SELECT id FROM t WHERE name = ?", conn_id="c", parameters=["n4' OR 1=1 --"])
    assert rows_of(streamed(source, ["Int8"])) == []
    source = SqlSource("SELECT id FROM t WHERE name = :name", conn_id="c", parameters={"name": "n4"})
    assert rows_of(streamed(source, ["Int8"])) == [{"id": 4}]
    assert rows_of(streamed(SqlSource("SELECT id % 2 AS x FROM t WHERE id = 5", conn_id="c"), ["Int8"])) == [
        {"x": 1}
    ]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_afterwards(hook: SqliteHook, enabled: bool) -> None:
    before = gc.isenabled()
    good = streamed(SqlSource("SELECT id FROM t", conn_id="c"), ["Int8"])
    bad = streamed(SqlSource("SELECT id FROM t", conn_id="c"), ["Array(Int8)"])
    try:
        gc.enable() if enabled else gc.disable()
        list(good.chunks())
        assert gc.isenabled() is enabled
        with pytest.raises(Stopped):
            list(bad.chunks())
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if before else gc.disable()


def test_an_empty_result_is_an_empty_stream(hook: SqliteHook) -> None:
    load = streamed(SqlSource("SELECT id FROM t WHERE 0", conn_id="c"), ["Int8"])
    assert rows_of(load) == []
    assert load.rows() == 0


def test_describing_fetches_no_row(hook: SqliteHook) -> None:
    fetched: list[str] = []

    class Cursor(sqlite3.Cursor):
        def fetchmany(self, size: int | None = 1) -> list[Any]:
            fetched.append("rows")
            return super().fetchmany(size or 1)

    hook.cursor = Cursor
    load = SqlSource("SELECT id, name FROM t", conn_id="c").load()
    assert isinstance(load, RowsLoad)
    assert [column.name for column in load.columns] == ["id", "name"]
    stream = load.stream(["Int8", "String"])
    assert fetched == []
    list(stream.chunks())
    assert fetched


def test_a_query_that_stands_in_no_brackets_is_started_to_be_described(hook: SqliteHook) -> None:
    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, *parameters: Any) -> Any:
            if sql.startswith("SELECT * FROM (\nWITH"):
                raise sqlite3.OperationalError("no WITH in brackets, as on SQL Server")
            return super().execute(sql, *parameters)

    hook.cursor = Cursor
    load = streamed(SqlSource("WITH x AS (SELECT id FROM t) SELECT id FROM x", conn_id="c"), ["Int8"])
    assert len(rows_of(load)) == 25


def test_a_query_with_a_column_without_a_name_is_refused(hook: SqliteHook) -> None:
    assert stop_of(SqlSource('SELECT id AS "" FROM t', conn_id="c").load).code is Code.BAD_INPUT


@pytest.mark.parametrize(
    "sql", ["DELETE FROM t", "-- SELECT\nDELETE FROM t", "/* SELECT */ DROP TABLE t", "EXEC p", "-- nothing"]
)
def test_a_statement_that_is_no_query_never_reaches_the_driver(hook: SqliteHook, sql: str) -> None:
    before = hook.connections
    assert stop_of(SqlSource(sql, conn_id="c").load).code is Code.BAD_INPUT
    assert hook.connections == before


def test_a_value_that_does_not_fit_stops_the_stream_and_names_the_column(hook: SqliteHook) -> None:
    load = streamed(SqlSource("SELECT id * 1000 AS big FROM t", conn_id="c", batch_rows=1), ["Int8"])
    stop = stop_of(lambda: list(load.chunks()))
    assert (stop.code, stop.facts["column"]) == (Code.VALUE_REFUSED, "big")
    assert load.rows() is None


def test_a_driver_that_counts_other_rows_than_it_gives_is_not_believed(hook: SqliteHook) -> None:
    class Cursor(sqlite3.Cursor):
        rowcount = 26

    load = streamed(SqlSource("SELECT id FROM t", conn_id="c"), ["Int8"])
    hook.cursor = Cursor
    stop = stop_of(lambda: list(load.chunks()))
    assert stop.code is Code.ROWS_DISAGREE
    assert stop.facts == {"reported": 26, "read": 25}


def test_columns_that_changed_after_the_plan_are_refused(hook: SqliteHook) -> None:
    load = streamed(SqlSource("SELECT * FROM t", conn_id="c"), ["Int8", "String"])
    connection = hook.get_conn()
    connection.execute("ALTER TABLE t RENAME COLUMN name TO title")
    connection.close()
    assert stop_of(lambda: list(load.chunks())).code is Code.SOURCE_FAILED


def test_an_error_of_the_driver_goes_through(hook: SqliteHook) -> None:
    load = streamed(
        SqlSource(
            "SELECT abs(id - 9223372036854775807 - 1 + (id > 20)) AS x FROM t", conn_id="c", batch_rows=2
        ),
        ["Int64"],
    )
    with pytest.raises(sqlite3.Error):
        list(load.chunks())
    assert load.rows() is None


def test_without_pyarrow_the_way_out_is_said(hook: SqliteHook, monkeypatch: pytest.MonkeyPatch) -> None:
    load = SqlSource("SELECT id FROM t", conn_id="c").load()
    assert isinstance(load, RowsLoad)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    stop = stop_of(lambda: load.stream(["Int8"]))
    assert stop.code is Code.BAD_INPUT
    assert "pip install" in stop.next_action


# ---- PostgreSQL: what goes by COPY


QUERY = dbapi.Query(SqliteHook(Path("unused")), "SELECT 1", None)


def carrier(column: PostgresColumn, target: str) -> tuple[str | None, str]:
    (found,) = copy_stream(QUERY, [column], [target]).columns
    return found.type, found.encoding.value


@pytest.mark.parametrize(
    ("column", "target", "expected"),
    [
        (PostgresColumn("c", "int4"), "Int64", ("Int32", "plain")),
        (PostgresColumn("c", "int8"), "Nullable(UInt8)", ("Nullable(Int64)", "plain")),
        # As text: releases before 26.7 read a float of a body as a neighbour of it, one in six.
        (PostgresColumn("c", "float4"), "Float32", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "float8"), "Nullable(Float64)", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "float8"), "String", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "bool"), "Bool", ("Nullable(Bool)", "plain")),
        (
            PostgresColumn("c", "numeric", precision=10, scale=2),
            "Decimal(12, 2)",
            ("Decimal(10, 2)", "plain"),
        ),
        (PostgresColumn("c", "numeric"), "Decimal(12, 2)", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "numeric", precision=5, scale=-2), "Int64", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "numeric", precision=100, scale=2), "String", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "text"), "String", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "bytea"), "String", ("Nullable(String)", "hex")),
        (PostgresColumn("c", "uuid"), "UUID", ("Nullable(UUID)", "plain")),
        (PostgresColumn("c", "timestamptz"), "DateTime", ("Nullable(DateTime64(6, 'UTC'))", "plain")),
        (PostgresColumn("c", "int4", array=True), "Array(Int64)", ("Array(Nullable(String))", "JSON array")),
        (PostgresColumn("c", "int4", array=True), "String", ("Nullable(String)", "plain")),
        (PostgresColumn("c", "mood"), "Enum8('sad' = 1)", ("Nullable(String)", "plain")),
    ],
    ids=lambda part: str(part)[:60],
)
def test_each_type_of_postgresql_has_its_carrier(
    column: PostgresColumn, target: str, expected: tuple[str, str]
) -> None:
    assert carrier(column, target) == expected


@pytest.mark.parametrize(
    ("column", "target", "why"),
    [
        (PostgresColumn("c", "bytea", array=True), "Array(String)", "bytea\\[\\] into Array"),
        (
            PostgresColumn("c", "int4", array=True),
            "Array(Array(Int32))",
            "'c' has no exact way from int4\\[\\]",
        ),
        (PostgresColumn("c", "jsonb"), "JSON", "jsonb into JSON"),
        (PostgresColumn("c", "float8"), "Float32", "float8 into Float32"),
        (PostgresColumn("c", "float8"), "Decimal(10, 2)", "float8 into Decimal"),
        (PostgresColumn("c", "uuid"), "Int8", "uuid into Int8"),
    ],
    ids=lambda part: str(part)[:60],
)
def test_what_copy_can_not_carry_says_why(column: PostgresColumn, target: str, why: str) -> None:
    with pytest.raises(NoCopy, match=why):
        copy_stream(QUERY, [column], [target])


@pytest.mark.parametrize(
    ("column", "suggested"),
    [
        (PostgresColumn("c", "int2"), "Int16"),
        (PostgresColumn("c", "numeric", precision=10, scale=2), "Decimal(10, 2)"),
        (PostgresColumn("c", "timestamptz"), "DateTime64(6, 'UTC')"),
        (PostgresColumn("c", "text", array=True), "Array(Nullable(String))"),
        (PostgresColumn("c", "interval"), "String"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_type_is_suggested_for_a_table_that_is_not_there(column: PostgresColumn, suggested: str) -> None:
    assert column.suggested == suggested


def test_identifiers_are_quoted() -> None:
    assert postgres.quoted('a"b c') == '"a""b c"'


# ---- SQL Server: the description is its own, so only what is made of it can be seen without one


class SqlServerCursor:
    """Answers the description as SQL Server documents it; anything else is an error."""

    def __init__(self, described: list[tuple[Any, ...]]) -> None:
        self.described = described
        self.asked: list[Any] = []

    def execute(self, sql: str, parameters: Any = None) -> None:
        assert "sys.dm_exec_describe_first_result_set" in sql
        self.asked.append(parameters)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.described

    def close(self) -> None:
        pass


def described_by_sql_server(
    described: list[tuple[Any, ...]], sql: str = "SELECT 1 AS x", parameters: Any = None
) -> SqlServerCursor:
    cursor = SqlServerCursor(described)
    connection = type("Connection", (), {"cursor": lambda self, as_dict: cursor})()
    hook = SqliteHook(Path("none"))
    hook.conn_type = "mssql"
    query = dbapi.query_on(hook, sql, parameters)
    sql_server.require_exact(query, connection)
    return cursor


@pytest.mark.parametrize(
    "kind",
    [
        "datetime2(7)",
        "time(7)",
        "datetimeoffset(3)",
        "datetimeoffset(7)",
        "money",
        "smallmoney",
        "sql_variant",
        None,
    ],
)
def test_a_type_that_sql_servers_driver_changes_is_refused_with_the_way_out(kind: str | None) -> None:
    stop = stop_of(lambda: described_by_sql_server([("id", "int", None), ("x", kind, None)]))
    assert stop.code is Code.TYPE_NOT_EXACT
    assert "'x'" in stop.message
    assert "'id'" not in stop.message
    assert "CAST" in str(stop.next_action)
    assert stop.facts["columns"] == ["x"]


def test_a_type_that_sql_servers_driver_keeps_is_taken() -> None:
    kinds = [
        "datetime2(6)",
        "datetime",
        "time(3)",
        "decimal(38,10)",
        "nvarchar(max)",
        "real",
        "uniqueidentifier",
    ]
    described_by_sql_server([(f"c{n}", kind, None) for n, kind in enumerate(kinds)])


def test_sql_server_describes_the_query_without_its_values() -> None:
    cursor = described_by_sql_server(
        [], "SELECT x FROM t WHERE a = %s AND b LIKE '5%%' AND c = %(c)s AND d = %d;", ["secret", 1]
    )
    assert cursor.asked == [("SELECT x FROM t WHERE a = NULL AND b LIKE '5%' AND c = NULL AND d = NULL",)]
    assert described_by_sql_server([], "SELECT '5%%' AS x").asked == [("SELECT '5%%' AS x",)]


def test_a_query_that_sql_server_can_not_describe_is_refused() -> None:
    stop = stop_of(lambda: described_by_sql_server([(None, None, 11526)]))
    assert stop.code is Code.BAD_INPUT
    assert "11526" in stop.message


def test_a_driver_that_says_how_fine_its_moments_are_is_believed(hook: SqliteHook) -> None:
    class Cursor(sqlite3.Cursor):
        @property
        def description(self) -> Any:
            return [("at", datetime, None, 27, 27, 7, True), ("n", int, None, 10, 10, 9, True)]

    hook.cursor = Cursor
    stop = stop_of(SqlSource("SELECT 1 AS at, 2 AS n", conn_id="c").load)
    assert stop.code is Code.TYPE_NOT_EXACT
    assert "'at'" in stop.message
    assert "'n'" not in stop.message
