"""Queries on other databases, staged on a real cluster: PostgreSQL by COPY and by cursor, SQLite by its driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_dpone.sources import SqlSource
from tests.cluster import LocalCluster
from tests.integration.staging_site import Site
from tests.postgres import LocalPostgres

pytestmark = pytest.mark.cluster


@pytest.fixture
def site(cluster: LocalCluster, database: str) -> Site:
    return Site(cluster, database, (cluster.endpoints[0],))


@pytest.fixture
def pg(postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPostgres]:
    monkeypatch.setenv("AIRFLOW_CONN_PG", postgres.uri)
    yield postgres


def test_copy(site: Site, pg: LocalPostgres) -> None:
    site.create(
        "id UInt64, name Nullable(String), at DateTime64(6, 'UTC'), tags Array(String), raw String, d Decimal(10, 2)",
        "ORDER BY id",
    )
    source = SqlSource(
        "SELECT i AS id, CASE WHEN i > 1 THEN E'x\\t\\n\\\\N' END AS name, timestamptz '2013-01-01 05:00:00.5+02' AS at, "
        "ARRAY['a','b''c\"'] AS tags, '\\x00ff'::bytea AS raw, 5.25::numeric(10,2) AS d FROM generate_series(1, 3) i -- all\n;",
        conn_id="pg",
    )
    attempt, loaded = site.staged(site.staging(source))
    print(site.lines)
    print(
        site.rows(
            f"SELECT id, name, toString(at), tags, hex(raw), toString(d) FROM {site.database}.{attempt.name} ORDER BY id"
        )
    )
    assert loaded.rows == loaded.source_rows == 3
