"""Fifty refreshes of one DAG, by dynamic task mapping, eight tasks at a time, on a real Airflow and a real cluster.

Run it with ``scripts/bench many``. What is asked: every table is published, none waits for another's, and what
all of Airflow's processes hold together does not grow from the first tables to the last.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.report import Result, show, write
from scripts.lib.processes import all_processes, resident_bytes
from tests.airflow.bench import CONN_ID, SWAP
from tests.airflow.harness import LocalAirflow
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster

DAGS: Final = Path(__file__).resolve().parents[1] / "tests" / "airflow" / "dags"
DAG_ID: Final = "refresh_many"
DATABASE: Final = "mart_many"
ROWS: Final = 10_000
RUN_SECONDS: Final = 1500.0
SAMPLE_SECONDS: Final = 2.0
MOST_GROWTH: Final = 1.25


@contextmanager
def sampled(airflow: LocalAirflow) -> Iterator[list[float]]:
    """Note what all processes of this Airflow hold together, in megabytes, while the block runs."""
    samples: list[float] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(sum(resident_bytes(pid) for pid in _processes(airflow)) / 1e6)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _processes(airflow: LocalAirflow) -> Iterator[int]:
    return (process.pid for process in all_processes() if process.session in airflow.sessions)


def measure(airflow: LocalAirflow, cluster: LocalCluster, tables: int) -> list[Result]:
    """Run the DAG once and judge it."""
    since = cluster.last_statement()
    conf = {"database": DATABASE, "tables": tables, "rows": ROWS}
    with sampled(airflow) as samples:
        started = time.monotonic()
        run_id = airflow.trigger(DAG_ID, conf=conf)
        state = airflow.wait_run(DAG_ID, run_id, RUN_SECONDS)
        seconds = time.monotonic() - started
    print(f"{tables} tables of {ROWS:,} rows: {state} after {seconds:.0f} s", flush=True)
    published = sum(
        all(
            cluster.scalar(f"SELECT count() FROM {DATABASE}.{row['name']}", node=node) == ROWS
            for node in cluster.nodes
        )
        for row in cluster.query(f"SELECT name FROM system.tables WHERE database = '{DATABASE}'")
    )
    tasks = airflow.task_instances(DAG_ID, run_id)
    again = sum(task.try_number > 1 for task in tasks)
    swaps = len(cluster.statements(SWAP, since))
    third = len(samples) // 3
    early, late = max(samples[:third]), max(samples[-third:])
    return [
        Result(
            "tables published on every replica",
            published,
            tables,
            "",
            published / tables,
            "all",
            published == tables,
        ),
        Result("swaps sent", swaps, tables, "", swaps / tables, "one each", swaps == tables),
        Result(
            "tasks that needed a second try", again, len(tasks), "", again / len(tasks), "none", again == 0
        ),
        Result("seconds per table", seconds / tables, seconds, "s", 1 / tables, "told", True),
        Result(
            "memory of all of Airflow, last third / first",
            late,
            early,
            "MB",
            late / early,
            f"at most {MOST_GROWTH}",
            late <= early * MOST_GROWTH,
        ),
    ]


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the results, in a section of their own")
    parser.add_argument("--quick", action="store_true", help="twelve tables")
    options = parser.parse_args(arguments)
    tables = 12 if options.quick else 50
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "dags"
        shutil.copytree(DAGS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        with (
            LocalCluster(replicas=2) as cluster,
            LocalAirflow(folder, config={"core": {"parallelism": 8}}) as airflow,
        ):
            host, port = cluster.endpoints[0]
            connection = {"conn_type": "clickhouse", "host": host, "port": port}
            airflow.add_connection(CONN_ID, {**connection, "login": APP_USER, "password": APP_PASSWORD})
            done = airflow.cli("dpone", "init", "--conn-id", CONN_ID, "--cluster", CLUSTER_NAME)
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
            cluster.execute(f"CREATE DATABASE {DATABASE} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
            results = measure(airflow, cluster, tables)
    status = show(results)
    if options.json:
        conditions = f"{tables} tables, {os.cpu_count()} cores, Python {platform.python_version()}"
        write(options.json, results, conditions, section="many")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
