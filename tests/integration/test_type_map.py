"""Every cell of the type map, from a real source into a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from airflow_provider_dpone.clickhouse.errors import ServerError
from airflow_provider_dpone.clickhouse.exact import (
    InexactTypeError,
    LoadColumn,
    insert_from_input,
    misfit_column,
    text_carrier,
)
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.sources import (
    FileSource,
    RowsLoad,
    Source,
    SqlSource,
    StreamLoad,
    dbapi,
)
from tests.cluster import LocalCluster
from tests.cluster.spec import ADMIN_USER, DATABASE_PREFIX
from tests.integration.type_map import (
    ARROW,
    DRIVER,
    POSTGRES,
    TYPE,
    VALUE,
    ArrowCell,
    DriverCell,
    Exact,
    PostgresCell,
    Refused,
)
from tests.postgres import LocalPostgres

pytestmark = pytest.mark.cluster

DATABASE = f"{DATABASE_PREFIX}_type_map"
DRIVERS = ("psycopg2", "psycopg")


class Store:
    """One server, and what becomes of one column of a load on it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        endpoint = cluster.direct_http[0]
        self.server = Server(ConnectionSettings(hosts=((endpoint.host, endpoint.port),), user=ADMIN_USER))

    def load(self, load: StreamLoad, target: str) -> int:
        """Load a stream's only column ``x`` as staging does, into a new table."""
        self.cluster.execute(
            f"CREATE OR REPLACE TABLE {DATABASE}.t (x {target}) ENGINE = MergeTree ORDER BY tuple() "
            "SETTINGS allow_nullable_key = 1",
            node=1,
        )
        (given,) = load.columns
        carrier = given.type or text_carrier(target, load.format)
        column = LoadColumn(given.name, carrier, target, given.encoding)
        statement = insert_from_input(DATABASE, "t", [column], load.format)
        reply = self.server.once(
            statement.sql, settings={**statement.settings, **load.settings}, body=load.chunks()
        )
        return int(reply.summary["written_rows"])

    def stored(self, as_hex: bool = False) -> list[str | None]:
        """The column as text."""
        shown = "hex(x)" if as_hex else "toString(x)"
        # Bytes that are no UTF-8 come through JSON as they are.
        return [row["x"] for row in self.cluster.query(f"SELECT {shown} AS x FROM {DATABASE}.t", node=1)]

    def outcome(self, start: Any, target: str, expected: Exact | Refused) -> None:
        """Load, and compare with what the map says."""
        match expected:
            case Exact(stored, as_hex):
                assert self.load(start(), target) == 1
                (found,) = self.stored(as_hex and stored is not None)
                assert found == stored
            case Refused(how, way_out):
                assert way_out
                assert self._refusal(start, target) == how

    def _refusal(self, start: Any, target: str) -> str:
        """How a load is refused. Whatever the way, the column is named and nothing is stored."""
        with pytest.raises(Exception) as caught:
            self.load(start(), target)
        match caught.value:
            case Stopped() as stopped if stopped.stop.code is Code.TYPE_NOT_EXACT:
                assert (
                    stopped.stop.facts["columns"] == ["x"]
                    if stopped.stop.facts
                    else "'x'" in stopped.stop.message
                )
                return TYPE
            case InexactTypeError() as error:
                assert [column.name for column in error.columns] == ["x"]
                return TYPE
            case Stopped() as stopped:
                assert stopped.stop.code is Code.VALUE_REFUSED
                assert stopped.stop.facts["column"] == "x"
            case ServerError() as error:
                said = error.own_message
                assert (said is not None and misfit_column(f"dpone: {said}") == "x") or error.mentions(
                    "name: x, type: "
                )
            case error:
                # A driver's own refusal, as of infinity; the stage task says that the source failed.
                assert isinstance(error, ValueError) or type(error).__module__.startswith("psycopg")
        assert self.stored() == []
        return VALUE


@pytest.fixture(scope="module")
def store(cluster: LocalCluster) -> Iterator[Store]:
    cluster.execute(f"CREATE DATABASE {DATABASE} ENGINE = Atomic", node=1)
    yield Store(cluster)
    cluster.execute(f"DROP DATABASE {DATABASE} SYNC", node=1)


@pytest.fixture(scope="module")
def pg(postgres: LocalPostgres) -> LocalPostgres:
    postgres.execute("DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('happy', 'sad', 'so so')")
    return postgres


class PostgresHook:
    """A hook that gives connections of one driver; Airflow's own chooses by what is installed."""

    def __init__(self, port: int, driver: str) -> None:
        self.port = port
        self.driver = driver

    def get_conn(self) -> Any:
        module = __import__(self.driver)
        return module.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres")


def stream(source: Source, target: str) -> StreamLoad:
    load = source.load()
    if isinstance(load, RowsLoad):
        return load.stream([target])
    assert isinstance(load, StreamLoad)
    return load


def names(cell: Any) -> str:
    return f"{getattr(cell, 'type', '')}-{getattr(cell, 'sql', getattr(cell, 'value', ''))!r}-{cell.target}"[
        :80
    ]


@pytest.mark.parametrize("cell", POSTGRES, ids=names)
def test_postgresql_by_copy(
    store: Store, pg: LocalPostgres, monkeypatch: pytest.MonkeyPatch, cell: PostgresCell
) -> None:
    monkeypatch.setattr(dbapi, "hook_of", lambda _: PostgresHook(pg.port, "psycopg"))
    source = SqlSource(f"SELECT {cell.sql} AS x", conn_id="pg")

    def start() -> StreamLoad:
        load = stream(source, cell.target)
        assert (load.format == "ArrowStream") == cell.by_driver_only, load.note
        return load

    store.outcome(start, cell.target, cell.copy)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("cell", POSTGRES, ids=names)
def test_postgresql_through_the_driver(
    store: Store, pg: LocalPostgres, cell: PostgresCell, driver: str
) -> None:
    query = dbapi.Query(PostgresHook(pg.port, driver), f"SELECT {cell.sql} AS x", None)
    store.outcome(
        lambda: dbapi.rows_stream(query, ["x"], [cell.target], batch_rows=10, why="a test"),
        cell.target,
        cell.driver or cell.copy,
    )


@pytest.mark.parametrize("cell", ARROW, ids=names)
def test_parquet(store: Store, tmp_path: Path, cell: ArrowCell) -> None:
    parquet.write_table(pa.table({"x": cell.array(pa)}), tmp_path / "x.parquet")
    store.outcome(
        lambda: stream(FileSource(str(tmp_path / "x.parquet")), cell.target), cell.target, cell.expected
    )


class _Rows:
    """A driver that gives one value."""

    def __init__(self, value: Any) -> None:
        self.rows: Sequence[Any] = [(value,)]
        self.description = [("x",)]

    def get_conn(self) -> Any:
        return self

    def cursor(self) -> Any:
        return self

    def execute(self, sql: str) -> None:
        pass

    def fetchmany(self, size: int) -> Sequence[Any]:
        batch, self.rows = self.rows, []
        return batch

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("cell", DRIVER, ids=names)
def test_any_driver(store: Store, cell: DriverCell) -> None:
    query = dbapi.Query(_Rows(cell.value), "SELECT x", None)
    store.outcome(
        lambda: dbapi.rows_stream(query, ["x"], [cell.target], batch_rows=10, why="a test"),
        cell.target,
        cell.expected,
    )
