"""Every cell of the type map, from a real source into a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from airflow_provider_dpone.sources import (
    FileSource,
    SqlSource,
    StreamLoad,
    dbapi,
)
from tests.integration.source_site import PostgresHook, Rows, Store, stream
from tests.integration.type_map import (
    ARROW,
    DRIVER,
    POSTGRES,
    ArrowCell,
    DriverCell,
    PostgresCell,
)
from tests.postgres import LocalPostgres

pytestmark = pytest.mark.cluster

DRIVERS = ("psycopg2", "psycopg")


@pytest.fixture(scope="module")
def pg(postgres: LocalPostgres) -> LocalPostgres:
    postgres.execute("DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('happy', 'sad', 'so so')")
    return postgres


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


@pytest.mark.parametrize("cell", DRIVER, ids=names)
def test_any_driver(store: Store, cell: DriverCell) -> None:
    query = dbapi.Query(Rows(cell.value), "SELECT x", None)
    store.outcome(
        lambda: dbapi.rows_stream(query, ["x"], [cell.target], batch_rows=10, why="a test"),
        cell.target,
        cell.expected,
    )
