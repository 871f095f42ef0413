"""What every demo needs: a cluster of real servers, a real Airflow, and a way to tell what is being done."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.airflow.harness import LocalAirflow, Setting
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster

CONN_ID: Final = "clickhouse_default"
DATABASE: Final = "mart"


class DemoError(RuntimeError):
    """What was observed is not what the product promises."""


def say(text: str = "") -> None:
    """Print one line at once."""
    print(text, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what is being done, and how long it took."""
    start = time.monotonic()
    print(f"{what} ... ", end="", flush=True)
    yield
    say(f"{time.monotonic() - start:.1f} s")


@contextmanager
def demo_site(
    dag_id: str, dag_file: Path, config: Mapping[str, Mapping[str, Setting]] | None = None
) -> Iterator[tuple[LocalCluster, LocalAirflow]]:
    """Start a cluster, and an Airflow with this one DAG, a connection to the cluster and the control table.

    However the block is left, nothing of it stays: no process, and no file, the temporary ones of tasks included.

    Raises:
        DemoError: the control table could not be created; the text has what the command printed.
    """
    with tempfile.TemporaryDirectory(prefix="dpone-demo-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        dags = Path(folder, "dags")
        dags.mkdir()
        shutil.copyfile(dag_file, dags / f"{dag_id}.py")
        with step("Starting ZooKeeper and two ClickHouse replicas"):
            cluster = LocalCluster(replicas=2)
        with cluster:
            airflow = _airflow(cluster, dags, config or {})
            try:
                with step("Starting Airflow"):
                    airflow.start_all()
                with step("Creating the control table"):
                    _prepare(cluster, airflow)
                yield cluster, airflow
            finally:
                airflow.stop()


def _airflow(cluster: LocalCluster, dags: Path, config: Mapping[str, Mapping[str, Setting]]) -> LocalAirflow:
    host, port = cluster.endpoints[0]
    connection = {
        "conn_type": "dpone_clickhouse",
        "host": host,
        "port": port,
        "login": APP_USER,
        "password": APP_PASSWORD,
    }
    return LocalAirflow(dags, connections={CONN_ID: connection}, config=config, triggerer=True)


def _prepare(cluster: LocalCluster, airflow: LocalAirflow) -> None:
    """What an administrator does once: the database, and the control table."""
    cluster.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE} ON CLUSTER {CLUSTER_NAME}")
    done = airflow.dpone("init", "--conn-id", CONN_ID, "--cluster", CLUSTER_NAME)
    if done.returncode != 0:
        raise DemoError(f"airflow dpone init failed:\n{done.stdout}{done.stderr}")
