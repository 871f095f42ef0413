"""The demo: a table of flights is replaced twice, and the second time the reply gets lost.

It boots a cluster of real ClickHouse servers and a real Airflow, and runs the example DAG
``cluster_refresh_flights`` on two extracts of the same table. While the second extract goes live, the connection
is cut after the servers took the statement: the moment at which tools that retry publish twice. Meanwhile a
reader counts the rows on every replica.

Everything printed is read from the servers and from Airflow; the demo fails if one number is not as it should be.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from scripts.lib.flights import Extract, first_extract, later_extract
from tests.airflow.harness import LocalAirflow
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster

CHECKOUT: Final = Path(__file__).resolve().parents[2]
DAG_ID: Final = "cluster_refresh_flights"
CONN_ID: Final = "clickhouse_default"
DATABASE: Final = "mart"
TABLE: Final = "flights"
RUN_SECONDS: Final = 120.0
EXCHANGE: Final = r"^\s*EXCHANGE TABLES\b.*\bON CLUSTER\b"
LIVE_UUID: Final = (
    f"SELECT toString(uuid) FROM system.tables WHERE database = '{DATABASE}' AND name = '{TABLE}'"
)
COUNT: Final = f"SELECT count() AS rows, sum(cityHash64(*)) AS content FROM {DATABASE}.{TABLE}"


class DemoError(RuntimeError):
    """What was observed is not what the product promises."""


class Reader:
    """Counts the table's rows on every replica, again and again, as a dashboard would.

    Attributes:
        seen: every count that was ever read, in order of appearance.
        errors: what went wrong, in short.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.seen: list[int] = []
        self.errors: list[str] = []
        self.reads = 0
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while not self._stop.wait(0.1):
            for node in self._cluster.nodes:
                try:
                    rows = self._cluster.scalar(f"SELECT count() FROM {DATABASE}.{TABLE}", node=node)
                except (RuntimeError, OSError) as error:
                    self.errors.append(f"{type(error).__name__}: {error}"[:200])
                    continue
                self.reads += 1
                if rows not in self.seen:
                    self.seen.append(rows)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


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


def demand(holds: bool, what: str) -> None:
    """Print a fact that was checked.

    Raises:
        DemoError: it does not hold.
    """
    if not holds:
        raise DemoError(f"not as promised: {what}")
    say(f"  ✓ {what}")


def start_airflow(cluster: LocalCluster, folder: Path) -> LocalAirflow:
    """An Airflow, not started yet, with the example DAGs and a connection to the cluster."""
    host, port = cluster.endpoints[0]
    connection = {
        "conn_type": "dpone_clickhouse",
        "host": host,
        "port": port,
        "login": APP_USER,
        "password": APP_PASSWORD,
    }
    return LocalAirflow(folder, connections={CONN_ID: connection}, triggerer=True)


def prepare(cluster: LocalCluster, airflow: LocalAirflow) -> None:
    """What an administrator does once: the database, and the control table.

    Raises:
        DemoError: the command failed; the text has its output.
    """
    cluster.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE} ON CLUSTER {CLUSTER_NAME}")
    done = airflow.cli("dpone", "init", "--conn-id", CONN_ID, "--cluster", CLUSTER_NAME)
    if done.returncode != 0:
        raise DemoError(f"airflow dpone init failed:\n{done.stdout}{done.stderr}")


def publish(airflow: LocalAirflow, extract: Extract, run_id: str) -> Mapping[str, Any]:
    """Run the DAG on a file; returns the publication receipt.

    Raises:
        DemoError: the run did not succeed; the text has the log of the task that failed.
    """
    conf = {"file": str(extract.path), "cluster": CLUSTER_NAME, "database": DATABASE, "table": TABLE}
    airflow.trigger(DAG_ID, run_id, conf)
    if airflow.wait_run(DAG_ID, run_id, RUN_SECONDS) != "success":
        failed = [task for task in airflow.task_instances(DAG_ID, run_id) if task.state == "failed"]
        logs = "\n".join(airflow.task_log(DAG_ID, run_id, task.task_id, task.try_number) for task in failed)
        raise DemoError(f"run {run_id} failed:\n{logs}")
    receipt: Mapping[str, Any] = airflow.xcom(DAG_ID, run_id, "flights.publish")
    return receipt


def show_replicas(cluster: LocalCluster, extract: Extract) -> None:
    """Check that every replica holds exactly the rows of the file, and the same ones."""
    found = [cluster.query(COUNT, node=node)[0] for node in cluster.nodes]
    for node, replica in zip(cluster.nodes, found, strict=True):
        demand(replica["rows"] == extract.rows, f"replica {node} holds {extract.rows:,} rows")
    demand(len({replica["content"] for replica in found}) == 1, "their content is the same")


def show_receipt(cluster: LocalCluster, receipt: Mapping[str, Any]) -> None:
    """Print what the receipt says about every replica, and check it against the replicas themselves."""
    for node, replica in zip(cluster.nodes, receipt["replicas"], strict=True):
        before, after = replica["before"]["target"], replica["after"]["target"]
        say(
            f"  receipt {replica['alias']}: {before or 'no table'} -> {after}, "
            f"queue {replica['queue']}, {replica['rows']:,} rows"
        )
        live = cluster.scalar(LIVE_UUID, node=node)
        demand(live == after, f"replica {node} has this table under the name {TABLE}")


def run(keep: bool) -> None:
    """Play the whole demo.

    Raises:
        DemoError: something was not as promised.
    """
    with step("Preparing two extracts of the flights of 2013"):
        first, later = first_extract(), later_extract()
    with step("Starting ZooKeeper and two ClickHouse replicas"):
        cluster = LocalCluster(replicas=2)
    with cluster:
        airflow = start_airflow(cluster, CHECKOUT / "example_dags")
        with step("Starting Airflow"):
            airflow.start_all()
        try:
            with step("Creating the control table"):
                prepare(cluster, airflow)
            play(cluster, airflow, first, later)
            if keep:
                say(f"\nAirflow: {airflow.url}/dags/{DAG_ID}  (Ctrl-C ends everything)")
                with suppress(KeyboardInterrupt):
                    signal.pause()
        finally:
            airflow.stop()


def play(cluster: LocalCluster, airflow: LocalAirflow, first: Extract, later: Extract) -> None:
    """Publish both extracts and check what every replica holds.

    Raises:
        DemoError: something was not as promised.
    """
    say("\n1. The first extract, into a table that does not exist yet")
    with step("  running the DAG"):
        receipt = publish(airflow, first, "demo-1")
    show_receipt(cluster, receipt)
    show_replicas(cluster, first)

    say("\n2. The later extract; the reply to the statement that makes it live gets lost")
    since = cluster.last_statement()
    lost = cluster.drop_response(None, EXCHANGE, after="enqueue")
    with Reader(cluster) as reader, step("  running the DAG"):
        receipt = publish(airflow, later, "demo-2")
    demand(lost.hits == 1, "the reply was lost")
    sent = len(cluster.statements(EXCHANGE, since))
    demand(sent == 1, "the statement was sent once")
    show_receipt(cluster, receipt)
    show_replicas(cluster, later)
    demand(not reader.errors, f"no reader failed in {reader.reads} reads {reader.errors[:3] or ''}".rstrip())
    demand(
        set(reader.seen) <= {first.rows, later.rows},
        f"readers saw the old table or the new one, nothing in between: {reader.seen}",
    )


def main(arguments: list[str]) -> int:
    """Parse the command line and play the demo. Returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Two refreshes, one of them with a lost reply."
    )
    parser.add_argument("--keep", action="store_true", help="leave Airflow's web interface up until Ctrl-C")
    start = time.monotonic()
    try:
        run(parser.parse_args(arguments).keep)
    except DemoError as error:
        say(f"\nFAILED: {error}")
        return 1
    say(f"\nDone in {time.monotonic() - start:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
