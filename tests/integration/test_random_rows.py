"""Random rows through each way from each source: what is stored is the same multiset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from airflow_provider_dpone.clickhouse.exact import LoadColumn, insert_from_input
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.sources import FileSource, StreamLoad, dbapi, postgres
from tests.cluster import LocalCluster
from tests.cluster.spec import ADMIN_USER, DATABASE_PREFIX
from tests.integration.source_site import PostgresHook
from tests.postgres import LocalPostgres
from tests.streams import streamed

pytestmark = pytest.mark.cluster

DATABASE = f"{DATABASE_PREFIX}_random_rows"

COLUMNS = {
    "whole": ("bigint", "Nullable(Int64)"),
    "small": ("smallint", "Nullable(Int32)"),
    "ratio": ("double precision", "Nullable(Float64)"),
    "price": ("numeric(20, 4)", "Nullable(Decimal(20, 4))"),
    "words": ("text", "Nullable(String)"),
    "raw": ("bytea", "Nullable(String)"),
    "flag": ("boolean", "Nullable(Bool)"),
    "id": ("uuid", "Nullable(UUID)"),
    "day": ("date", "Nullable(Date32)"),
    "at": ("timestamptz", "Nullable(DateTime64(6, 'UTC'))"),
    "tags": ("text[]", "Array(Nullable(String))"),
    "numbers": ("int[]", "Array(Nullable(Int32))"),
}
NAMES = tuple(COLUMNS)
TARGETS = tuple(target for _, target in COLUMNS.values())

# PostgreSQL's texts hold no NUL, and no half of a surrogate pair is text anywhere.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | st.text(
    "\\N\t\n\r'\"{},ab", max_size=8
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(-(2**15), 2**15 - 1),
        st.none() | st.floats(allow_nan=True, allow_infinity=True),
        st.none() | st.decimals(Decimal("-1e15"), Decimal("1e15"), places=4, allow_nan=False),
        st.none() | TEXTS,
        st.none() | st.binary(max_size=12),
        st.none() | st.booleans(),
        st.none() | st.uuids(),
        st.none() | st.dates(date(1900, 1, 1), date(2299, 12, 31)),
        st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2299, 12, 31), timezones=st.just(UTC)),
        st.lists(st.none() | TEXTS, max_size=3),
        st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
    ),
    max_size=8,
)
STORED = (
    "toString(whole), toString(small), toString(ratio), toString(price), hex(words), hex(raw), toString(flag), "
    "toString(id), toString(day), toString(at), toString(arrayMap(x -> if(isNull(x), '-', hex(x)), tags)), "
    "toString(numbers)"
)


@pytest.fixture(scope="module")
def server(cluster: LocalCluster) -> Iterator[Server]:
    cluster.execute(f"CREATE DATABASE {DATABASE} ENGINE = Atomic", node=1)
    endpoint = cluster.direct_http[0]
    yield Server(ConnectionSettings(hosts=((endpoint.host, endpoint.port),), user=ADMIN_USER))
    cluster.execute(f"DROP DATABASE {DATABASE} SYNC", node=1)


def expected(rows: Sequence[Sequence[Any]]) -> Counter[tuple[str | None, ...]]:
    """The multiset as ClickHouse writes it, computed from the Python values alone."""
    return Counter(tuple(map(_text, NAMES, row)) for row in rows)


def _text(name: str, value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float():
            # A float's text is compared as the number it is read as: 1e22 has several.
            return value.hex()
        case Decimal():
            text = format(value, "f")
            return text.rstrip("0").rstrip(".") if value else "0"
        case str():
            return value.encode().hex().upper()
        case bytes():
            return value.hex().upper()
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")
        case list() if name == "tags":
            return (
                "[" + ",".join("'-'" if x is None else f"'{x.encode().hex().upper()}'" for x in value) + "]"
            )
        case list():
            return "[" + ",".join("NULL" if x is None else str(x) for x in value) + "]"
        case UUID() | date() | int():
            return str(value)
        case _:
            raise TypeError(name)


def stored(
    cluster: LocalCluster, server: Server, load: StreamLoad, count: int
) -> Counter[tuple[str | None, ...]]:
    """Load a stream as staging does, and return the multiset that is there then."""
    columns = ", ".join(f"{name} {target}" for name, target in zip(NAMES, TARGETS, strict=True))
    cluster.execute(
        f"CREATE OR REPLACE TABLE {DATABASE}.t ({columns}) ENGINE = MergeTree ORDER BY tuple()", node=1
    )
    plan = [
        LoadColumn(given.name, str(given.type), target, given.encoding)
        for given, target in zip(load.columns, TARGETS, strict=True)
    ]
    statement = insert_from_input(DATABASE, "t", plan, load.format)
    reply = server.once(statement.sql, settings=statement.settings, body=load.chunks())
    assert load.rows() == int(reply.summary["written_rows"]) == count
    rows = cluster.query(f"SELECT [{STORED}] AS row FROM {DATABASE}.t", node=1)
    at = NAMES.index("ratio")
    found: list[tuple[str | None, ...]] = []
    for row in rows:
        values = list(row["row"])
        values[at] = None if values[at] is None else float(values[at]).hex()
        found.append(tuple(values))
    return Counter(found)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_each_way_stores_the_same_multiset(
    cluster: LocalCluster,
    server: Server,
    postgres: LocalPostgres,
    tmp_path: Path,
    rows: list[tuple[Any, ...]],
) -> None:
    rows = rows + rows[:2]  # equal rows are as many as they are
    with psycopg.connect(host="127.0.0.1", port=postgres.port, user="postgres") as connection:
        declared = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        connection.execute(f"DROP TABLE IF EXISTS random_rows; CREATE TABLE random_rows ({declared})")
        with connection.cursor() as cursor:
            places = ", ".join(["%s"] * len(COLUMNS))
            cursor.executemany(f"INSERT INTO random_rows VALUES ({places})", rows)
    wanted = expected(rows)
    ways: dict[str, Callable[[], StreamLoad]] = {"parquet": lambda: as_parquet(rows, tmp_path / "x.parquet")}
    for driver in ("psycopg2", "psycopg"):
        query = dbapi.Query(PostgresHook(postgres.port, driver), "SELECT * FROM random_rows", None)
        ways[f"copy {driver}"] = lambda query=query: by_copy(query)  # type: ignore[misc]
        ways[f"rows {driver}"] = lambda query=query: dbapi.rows_stream(  # type: ignore[misc]
            query, NAMES, TARGETS, batch_rows=3, why="a test"
        )
    for way, start in ways.items():
        assert stored(cluster, server, start(), len(rows)) == wanted, way


def by_copy(query: dbapi.Query) -> StreamLoad:
    connection = query.connect()
    try:
        return postgres.copy_stream(query, postgres.describe(query, connection), TARGETS)
    finally:
        connection.close()


def as_parquet(rows: Sequence[Sequence[Any]], path: Path) -> StreamLoad:
    types = (
        pa.int64(), pa.int16(), pa.float64(), pa.decimal128(20, 4), pa.string(), pa.binary(), pa.bool_(),
        pa.string(), pa.date32(), pa.timestamp("us", "UTC"), pa.list_(pa.string()), pa.list_(pa.int32()),
    )  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    columns[NAMES.index("id")] = tuple(None if x is None else str(x) for x in columns[NAMES.index("id")])
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    parquet.write_table(pa.table(arrays, names=list(NAMES)), path, row_group_size=3)
    return streamed(FileSource(str(path)))
