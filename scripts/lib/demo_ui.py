"""The demo for the eyes: an Airflow with three publications, each in a state that an operator meets.

One is done. One waits: replica 2 has not begun its part of the swap, and does when somebody says so. One is on hold:
the swap failed on replica 2. All of it is real, but for the faults, and stays until it is interrupted.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import termios
import time
from pathlib import Path
from typing import Final

from airflow_provider_dpone.links.address import NAVIGATION, tab_address
from scripts.lib.demo_site import DATABASE, DemoError, demo_site, say, step
from tests.airflow.harness import FINISHED_RUN, LocalAirflow, Setting
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.cluster.client import Fault

DAG_ID: Final = "refresh_orders"
DAG_FILE: Final = Path(__file__).with_name("demo_dag.py")
PUBLISH: Final = "orders.publish"
PUBLISHED: Final = "published"
WAITING: Final = "waiting"
HELD: Final = "held"
"""The ids of the three runs. The table of a run is ``orders_`` and its id."""
LATE_REPLICA: Final = 2
RUN_SECONDS: Final = 600.0
POLL_SECONDS: Final = 1.0
CONFIG: Final[dict[str, dict[str, Setting]]] = {
    # A publication that waits defers soon, and waits as long as somebody may be looking at it.
    "dpone": {"min_defer_seconds": 5, "publish_timeout": 24 * 60 * 60},
}
RAW_ROWS: Final = 100_000
OLD_ROWS: Final = 90_000

TEXT: Final = """
Airflow runs at {airflow}
Log in as {user}, password {password}. There, under Browse, are all publications:

  Publications   {publications}

Three receipts, each a tab of the task that publishes:

  Published      {published}
  In progress    {waiting}
  On hold        {held}

To try:

* Look at the one in progress, and press Enter here. Replica s1/r2 goes on, and within a minute the page turns green
  by itself. The same without a keyboard:
    {go_on}
  Until then s1/r2 executes nothing else of the cluster either: a further run of the DAG would wait, too.
* Ask both replicas what their readers see. They differ for orders_waiting and for orders_held:
    curl -sS {first} -d 'SELECT count() FROM {database}.orders_held'
    curl -sS {second} -d 'SELECT count() FROM {database}.orders_held'
* The commands that the pages show work in another terminal, after
    source {environment}
  Explain the one on hold. It shows the statement that repairs s1/r2, which is sent there by
    curl -sS {second} -d 'THE STATEMENT'
  and then the command that resolves it. The page turns green.

Ctrl-C ends everything and leaves nothing behind.
"""


def main() -> int:
    """Bring the three publications about, say where they are seen, and wait to be interrupted."""
    start = time.monotonic()
    with demo_site(DAG_ID, DAG_FILE, CONFIG) as (cluster, airflow):
        with step("Creating three tables of orders, and newer orders to refresh them from"):
            create_tables(cluster)
        with step("Publishing one refresh, and one whose swap fails on replica 2"):
            publish_and_hold(cluster, airflow)
        with step("Publishing one whose swap replica 2 does not begin, until its task is deferred"):
            late = wait_for_replica(cluster, airflow)
        environment = write_environment(airflow)
        if sys.stdin.isatty():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed while nobody was asked
        say(f"Ready after {time.monotonic() - start:.0f} s.")
        say(what_to_see(cluster, airflow, late, environment))
        offer_to_go_on(airflow, late)
        while True:
            signal.pause()


def create_tables(cluster: LocalCluster) -> None:
    """Create what is refreshed, with the orders of yesterday, and what it is refreshed from."""
    cluster.execute(f"CREATE DATABASE {DATABASE}_raw ON CLUSTER {CLUSTER_NAME}")
    tables = {f"{DATABASE}_raw.orders": RAW_ROWS}
    tables |= {f"{DATABASE}.orders_{run_id}": OLD_ROWS for run_id in (PUBLISHED, WAITING, HELD)}
    for table, rows in tables.items():
        cluster.execute(
            f"CREATE TABLE {table} ON CLUSTER {CLUSTER_NAME} "
            "(id UInt64, customer String, amount Decimal(18, 2)) ENGINE = ReplicatedMergeTree ORDER BY id"
        )
        cluster.execute(
            f"INSERT INTO {table} SELECT number, 'customer ' || toString(number % 100), number / 4 "
            f"FROM numbers({rows})"
        )


def trigger(airflow: LocalAirflow, run_id: str) -> None:
    """Begin a run that refreshes the table of its name."""
    airflow.trigger(DAG_ID, run_id, {"table": f"orders_{run_id}"})


def publish_and_hold(cluster: LocalCluster, airflow: LocalAirflow) -> None:
    """Let one publication succeed, and let the swap of another one fail on one replica.

    Raises:
        DemoError: a run has not ended as it should; the text has the logs of its tasks.
    """
    cluster.fail_execution(LATE_REPLICA, rf"^\s*EXCHANGE\b.*\borders_{HELD}\b")
    expected = {PUBLISHED: "success", HELD: "failed"}
    for run_id in expected:
        trigger(airflow, run_id)
    for run_id, state in expected.items():
        if airflow.wait_run(DAG_ID, run_id, RUN_SECONDS) != state:
            raise DemoError(f"run {run_id} did not end as {state}:\n{logs(airflow, run_id)}")


def wait_for_replica(cluster: LocalCluster, airflow: LocalAirflow) -> Fault:
    """Let a publication wait for one replica. Returns what keeps that replica from beginning.

    Raises:
        DemoError: its task is not deferred; the text has the logs.
    """
    late = cluster.hold_execution(LATE_REPLICA, rf"^\s*EXCHANGE\b.*\borders_{WAITING}\b")
    trigger(airflow, WAITING)
    states = ("deferred", "success", "failed", "upstream_failed", "up_for_retry")
    if airflow.wait_task(DAG_ID, WAITING, PUBLISH, states, RUN_SECONDS).state != "deferred":
        raise DemoError(f"run {WAITING} does not wait:\n{logs(airflow, WAITING)}")
    return late


def logs(airflow: LocalAirflow, run_id: str) -> str:
    """What the tasks of a run logged."""
    tasks = airflow.task_instances(DAG_ID, run_id)
    return "\n".join(airflow.task_log(DAG_ID, run_id, task.task_id, task.try_number) for task in tasks)


def write_environment(airflow: LocalAirflow) -> Path:
    """Write a file by which a shell finds this Airflow; it goes with the rest. Returns its path."""
    settings = {name: value for name, value in airflow.env.items() if name.startswith("AIRFLOW_")}
    settings["PYTHONPATH"] = airflow.env["PYTHONPATH"]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    file = airflow.home / "environment.sh"
    file.write_text("\n".join(lines) + "\n")
    return file


def what_to_see(cluster: LocalCluster, airflow: LocalAirflow, late: Fault, environment: Path) -> str:
    """All addresses, and what can be done with them."""
    receipts = {
        run_id: f"{airflow.url}/{tab_address(DAG_ID, run_id, PUBLISH, None)}"
        for run_id in (PUBLISHED, WAITING, HELD)
    }
    first, second = (f"http://{endpoint}/" for endpoint in cluster.endpoints)
    return TEXT.format(
        airflow=airflow.url,
        user="admin",
        password="admin",
        publications=f"{airflow.url}/plugin/{NAVIGATION}",
        **receipts,
        go_on=f"curl -sS http://{cluster.control}/release_fault -d '{{\"number\": {late.number}}}'",
        first=first,
        second=second,
        database=DATABASE,
        environment=environment,
    )


def offer_to_go_on(airflow: LocalAirflow, late: Fault) -> None:
    """Let the late replica go on when Enter is pressed, and tell when its publication has ended."""
    # In the background nobody presses a key; reading is refused then, instead of stopping this process.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    keyboard = [0]
    while (state := airflow.run_state(DAG_ID, WAITING)) not in FINISHED_RUN:
        readable, _, _ = select.select(keyboard, [], [], POLL_SECONDS)
        if not readable:
            continue
        if pressed():
            late.release()
            say("Replica s1/r2 goes on.")
        keyboard = []
    say(f"The run {WAITING} has ended: {state}.")


def pressed() -> bool:
    """Whether a line was entered, rather than the input having ended."""
    try:
        return bool(os.read(0, 1000))
    except OSError:
        return False
