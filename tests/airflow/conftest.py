"""Pytest fixtures with a real Airflow; nothing starts before a test asks for it, and all ends with the folder's last.

An idle scheduler takes a good part of a core, so the tests of other folders do without.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.bench import CONN_ID, Bench
from tests.airflow.harness import LocalAirflow, Setting
from tests.airflow.metrics import MetricsReceived
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster

DAGS = Path(__file__).parent / "dags"
LINEAGE = "lineage.jsonl"
"""Beside the DAGs: what OpenLineage was told, one event a line."""


@pytest.fixture(scope="package")
def airflow_env(
    tmp_path_factory: pytest.TempPathFactory, metrics_received: MetricsReceived
) -> Iterator[LocalAirflow]:
    """One Airflow with a triggerer for all tests of this folder.

    It starts with the DAGs of ``tests/airflow/dags``. A test brings what else it needs with
    `LocalAirflow.add_dag` and `LocalAirflow.add_connection`, under names of its own.
    """
    home = tmp_path_factory.mktemp("airflow")
    folder = home / "dags"
    shutil.copytree(DAGS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    transport = {"type": "file", "log_file_path": str(home / LINEAGE), "append": True}
    config: dict[str, dict[str, Setting]] = {
        # A publication that is held up by a test defers after a moment.
        "dpone": {"min_defer_seconds": 3},
        # Of the DAGs that ask for it.
        "openlineage": {"selective_enable": True, "transport": json.dumps(transport)},
        "metrics": {
            "statsd_on": True,
            "statsd_host": "127.0.0.1",
            "statsd_port": metrics_received.port,
            "statsd_influxdb_enabled": True,
            "metrics_allow_list": "dpone",
        },
    }
    with LocalAirflow(folder, config=config, triggerer=True, preload=True) as airflow:
        yield airflow


@pytest.fixture(scope="package")
def metrics_received() -> Iterator[MetricsReceived]:
    """What the one Airflow sends as metrics, its own left out."""
    with MetricsReceived() as received:
        yield received


@pytest.fixture(scope="package")
def connected_airflow(airflow_env: LocalAirflow, cluster: LocalCluster) -> LocalAirflow:
    """The one Airflow, connected to the session's cluster, whose control table exists."""
    host, port = cluster.endpoints[0]
    airflow_env.add_connection(
        CONN_ID,
        {"conn_type": "clickhouse", "host": host, "port": port, "login": APP_USER, "password": APP_PASSWORD},
    )
    done = airflow_env.dpone("init", "--conn-id", CONN_ID, "--cluster", CLUSTER_NAME)
    assert done.returncode == 0, done.stdout + done.stderr
    return airflow_env


@pytest.fixture
def bench(connected_airflow: LocalAirflow, cluster: LocalCluster, database: str) -> Bench:
    return Bench(connected_airflow, cluster, database)
