"""A mode that this release doesn't have is refused by name, before anything is asked of a server."""

from __future__ import annotations

import pytest

from airflow_provider_dpone.composition import connect
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.values import ClusterRefresh, GiB


def test_external_replication_is_refused_by_name() -> None:
    refresh = ClusterRefresh(
        clickhouse_conn_id="none",
        cluster="analytics",
        database="mart",
        table="orders",
        max_source_bytes=GiB,
        replication_mode="external",
    )
    with pytest.raises(Stopped) as stopped, connect(refresh, writer="w", about={}, log=print):
        pass
    assert stopped.value.stop.code is Code.BAD_INPUT
    assert "not available in this release" in stopped.value.stop.message
