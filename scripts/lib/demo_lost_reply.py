"""The demo: a table of flights is replaced twice, and the second time the reply gets lost.

It boots a cluster of real ClickHouse servers and a real Airflow, and runs the example DAG
``cluster_refresh_flights`` on two extracts of the same table. While the second extract goes live, the connection
is cut after the servers took the statement: the moment at which tools that retry publish twice. Meanwhile a
reader counts the rows on every replica.

Everything printed is read from the servers and from Airflow; the demo fails if one number is not as it should be.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.lib.demo_site import DATABASE, DemoError, demo_site, say, step
from scripts.lib.flights import Extract, first_extract, later_extract
from tests.airflow.harness import LocalAirflow
from tests.cluster import CLUSTER_NAME, LocalCluster

CHECKOUT: Final = Path(__file__).resolve().parents[2]
DAG_ID: Final = "cluster_refresh_flights"
TABLE: Final = "flights"
RUN_SECONDS: Final = 120.0
EXCHANGE: Final = r"^\s*EXCHANGE TABLES\b.*\bON CLUSTER\b"
LIVE_UUID: Final = (
    f"SELECT toString(uuid) FROM system.tables WHERE database = '{DATABASE}' AND name = '{TABLE}'"
)
KEPT: Final = f"SELECT count() FROM system.tables WHERE database = '{DATABASE}' AND name = '{{}}'"
COUNT: Final = f"SELECT count() AS rows, sum(cityHash64(*)) AS content FROM {DATABASE}.{TABLE}"


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


def demand(holds: bool, what: str) -> None:
    """Print a fact that was checked.

    Raises:
        DemoError: it does not hold.
    """
    if not holds:
        raise DemoError(f"not as promised: {what}")
    say(f"  ✓ {what}")


@dataclass(frozen=True)
class Receipts:
    """What the tasks of one run handed on."""

    staged: Mapping[str, Any]
    published: Mapping[str, Any]
    cleaned: Mapping[str, Any]


def refresh(airflow: LocalAirflow, extract: Extract, run_id: str) -> Receipts:
    """Run the DAG on a file; returns the receipts of its three tasks.

    Raises:
        DemoError: the run did not succeed; the text has the log of the task that failed.
    """
    conf = {"file": str(extract.path), "cluster": CLUSTER_NAME, "database": DATABASE, "table": TABLE}
    airflow.trigger(DAG_ID, run_id, conf)
    if airflow.wait_run(DAG_ID, run_id, RUN_SECONDS) != "success":
        failed = [task for task in airflow.task_instances(DAG_ID, run_id) if task.state == "failed"]
        logs = "\n".join(airflow.task_log(DAG_ID, run_id, task.task_id, task.try_number) for task in failed)
        raise DemoError(f"run {run_id} failed:\n{logs}")
    return Receipts(
        *(airflow.xcom(DAG_ID, run_id, f"flights.{task}") for task in ("stage", "publish", "cleanup"))
    )


def show_replicas(cluster: LocalCluster, extract: Extract) -> None:
    """Check that every replica holds exactly the rows of the file, and the same ones."""
    found = [cluster.query(COUNT, node=node)[0] for node in cluster.nodes]
    for node, replica in zip(cluster.nodes, found, strict=True):
        port = cluster.endpoints[node - 1].port
        demand(
            replica["rows"] == extract.rows,
            f"read through port {port}, replica {node} has {extract.rows:,} rows",
        )
    demand(len({replica["content"] for replica in found}) == 1, "their content is the same")


def show_receipts(cluster: LocalCluster, receipts: Receipts) -> None:
    """Print what the receipts say about every replica, and check it against the replicas themselves."""
    published = receipts.published
    content = published["content"]
    say(
        f"  {published['statement']} as queue entry {published['entry']}, candidate {receipts.staged['candidate']}"
    )
    for node, replica in zip(cluster.nodes, published["replicas"], strict=True):
        before, after = replica["before"], replica["after"]
        say(f"  replica {replica['alias']}   target                                candidate")
        say(f"    before        {before['target'] or 'absent':36}  {before['candidate'] or 'absent'}")
        say(f"    after         {after['target'] or 'absent':36}  {after['candidate'] or 'absent'}")
        say(
            f"    queue {replica['queue']} (code {replica['exception_code']}), {replica['rows']:,} rows, "
            f"content {int(content['city']):032x}:{int(content['xxh3']):032x}"
        )
        live = cluster.scalar(LIVE_UUID, node=node)
        demand(live == after["target"], f"replica {node} has this table under the name {TABLE}")
        kept = cluster.scalar(KEPT.format(receipts.staged["candidate"]), node=node)
        demand(kept == 0, "nothing is left under the candidate's name")
    demand(receipts.cleaned["state"] == "COMPLETED", "the operation is completed")


def play(cluster: LocalCluster, airflow: LocalAirflow, first: Extract, later: Extract) -> Mapping[str, Any]:
    """Publish both extracts and check what every replica holds. Returns the last publication receipt.

    Raises:
        DemoError: something was not as promised.
    """
    say("\n1. The first extract, into a table that does not exist yet")
    with step("  running the DAG"):
        receipts = refresh(airflow, first, "demo-1")
    show_receipts(cluster, receipts)
    show_replicas(cluster, first)

    say("\n2. The later extract; the reply to the statement that makes it live gets lost")
    since = cluster.last_statement()
    lost = cluster.drop_response(None, EXCHANGE, after="enqueue")
    with Reader(cluster) as reader, step("  running the DAG"):
        receipts = refresh(airflow, later, "demo-2")
    demand(lost.hits == 1, "the reply was lost")
    sent = len(cluster.statements(EXCHANGE, since))
    demand(sent == 1, "the statement was sent once")
    show_receipts(cluster, receipts)
    show_replicas(cluster, later)
    demand(not reader.errors, f"no reader failed in {reader.reads} reads {reader.errors[:3] or ''}".rstrip())
    demand(
        set(reader.seen) <= {first.rows, later.rows},
        f"readers saw the old table or the new one, nothing in between: {reader.seen}",
    )
    return receipts.cleaned


def main() -> int:
    """Play the whole demo, and print the last receipt. Returns the process's exit status.

    Raises:
        DemoError: something was not as promised.
    """
    start = time.monotonic()
    with step("Preparing two extracts of the flights of 2013"):
        first, later = first_extract(), later_extract()
    # The other examples have schedules, and would run by themselves.
    with demo_site(DAG_ID, CHECKOUT / "example_dags" / f"{DAG_ID}.py") as (cluster, airflow):
        receipt = play(cluster, airflow, first, later)
    say(f"\nDone in {time.monotonic() - start:.0f} s. The receipt:")
    say(json.dumps(receipt))
    return 0
