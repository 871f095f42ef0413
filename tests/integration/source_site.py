"""What tests of sources share: an empty PostgreSQL that Airflow knows, and one column on its way to a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from airflow.providers.postgres.hooks import postgres as airflow_postgres

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
from airflow_provider_dpone.sources import RowsLoad, Source, SqlSource, StreamLoad
from tests.cluster import LocalCluster, wait_until
from tests.cluster.spec import ADMIN_USER, DATABASE_PREFIX
from tests.integration.type_map import TYPE, VALUE, Exact, Refused
from tests.postgres import LocalPostgres

DATABASE = f"{DATABASE_PREFIX}_type_map"


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


@pytest.fixture
def pg(postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPostgres]:
    """A PostgreSQL that Airflow knows as ``pg``, with an empty schema."""
    monkeypatch.setenv("AIRFLOW_CONN_PG", postgres.uri)
    postgres.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
    yield postgres
    wait_until(lambda: busy(postgres) == 0)


def busy(postgres: LocalPostgres) -> int:
    """How many other sessions PostgreSQL has."""
    ((count,),) = postgres.query(
        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    return int(count)


def choose(monkeypatch: pytest.MonkeyPatch, driver: str, way: str = "copy") -> None:
    """Let Airflow's hook take this driver, and let COPY be impossible if rows are wanted."""
    monkeypatch.setattr(airflow_postgres, "USE_PSYCOPG3", driver == "psycopg")
    if way == "rows":
        monkeypatch.setattr("airflow_provider_dpone.sources.postgres.COPY_DRIVERS", ())


def source(sql: str, **values: Any) -> SqlSource:
    return SqlSource(sql, conn_id="pg", **values)


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


class Rows:
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


def stored_with(store: Store, load: StreamLoad, targets: list[str], profile: dict[str, str]) -> list[Any]:
    """Load as staging does, for a user with these settings, and return the first row."""
    named = list(zip(load.columns, targets, strict=True))
    declared = ", ".join(f"`{column.name}` {target}" for column, target in named)
    store.cluster.execute(
        f"CREATE OR REPLACE TABLE {DATABASE}.t ({declared}) ENGINE = MergeTree ORDER BY tuple()", node=1
    )
    plan = [
        LoadColumn(column.name, column.type or text_carrier(target, load.format), target, column.encoding)
        for column, target in named
    ]
    statement = insert_from_input(DATABASE, "t", plan, load.format)
    settings = {**profile, **statement.settings, **load.settings}
    store.server.once(statement.sql, settings=settings, body=load.chunks())
    shown = ", ".join(f"toString(`{column.name}`)" for column in load.columns)
    ((row),) = store.cluster.query(f"SELECT [{shown}] AS row FROM {DATABASE}.t", node=1)
    found: list[Any] = row["row"]
    return found
