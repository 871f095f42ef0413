"""What publications cost that wait in a triggerer: reads of the queue, processor time, memory.

A thousand triggers run in one event loop of a process of their own, as they do in a triggerer, against real queue
entries that the replicas are kept from executing. Run it with ``scripts/bench waiting``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_dpone.publication.watch import dump_watch, load_watch
from airflow_provider_dpone.triggers.poller import POLL_SECONDS
from benchmarks.report import Result, show, write
from scripts.lib.processes import resident_bytes
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster
from tests.integration.waiting_site import QUEUE_READ, RECORD_READ, reads, wait_all, waiting

CONN_ID = "waiting"
MOST_CPU = 0.05
MOST_MEGABYTES = 100.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What the process of the triggers used.

    :ivar cpu: seconds of processor time while they waited.
    :ivar elapsed: seconds for which they waited.
    :ivar before: megabytes that it held with everything imported and one trigger that had looked once.
    :ivar after: megabytes at the end, with all of them.
    """

    cpu: float
    elapsed: float
    before: float
    after: float


def measure(cluster: LocalCluster, count: int, intervals: int) -> list[Result]:
    """Let ``count`` publications wait for some intervals."""
    database = "mart_waiting"
    cluster.execute(f"CREATE DATABASE {database} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
    with waiting(cluster, count, conn_id=CONN_ID, database=database) as watches:
        since = cluster.last_statement()
        host, port = cluster.endpoints[0]
        connection = {"conn_type": "dpone_clickhouse", "host": host, "port": port}
        with tempfile.TemporaryDirectory() as home:
            environment = {
                **os.environ,
                "AIRFLOW_HOME": home,
                f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(
                    {**connection, "login": APP_USER, "password": APP_PASSWORD}
                ),
            }
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.waiting", "--triggers", str(intervals)],
                input=json.dumps([dump_watch(watch) for watch in watches]),
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                check=True,
                timeout=60 + (intervals + 2) * POLL_SECONDS,
            )
        cost = Cost(**json.loads(done.stdout.splitlines()[-1]))
        # The first look is the warming up's.
        queue = len(reads(cluster, QUEUE_READ, since)) - 1
        records = len(reads(cluster, RECORD_READ, since)) - 1
    on_top = cost.after - cost.before
    return [
        _per_interval(f"queue reads / interval, {count:,} waiting", queue, intervals),
        _per_interval(f"record reads / interval, {count:,} waiting", records, intervals),
        Result(
            f"processor time / time, {count:,} waiting",
            cost.cpu,
            cost.elapsed,
            "s",
            cost.cpu / cost.elapsed,
            f"<= {MOST_CPU}",
            cost.cpu <= MOST_CPU * cost.elapsed,
        ),
        Result(
            f"memory on top / process, {count:,} waiting",
            on_top,
            cost.before,
            "MB",
            on_top / cost.before,
            f"<= {MOST_MEGABYTES:.0f} MB",
            on_top <= MOST_MEGABYTES,
        ),
    ]


def _per_interval(name: str, found: int, intervals: int) -> Result:
    # The pause begins when a look has ended, so that slow looks are fewer.
    return Result(name, found, intervals, "reads", found / intervals, "<= 1", 0 < found <= intervals)


def triggers(intervals: int) -> None:
    """Be the triggerer: read the watches, let them wait, print what it cost."""
    watches = [watch for watch in map(load_watch, json.load(sys.stdin)) if watch is not None]

    async def both() -> Cost:
        # Imports, the connection and the first look are paid for before anything is measured.
        await wait_all(watches[:1], 1.5 * POLL_SECONDS)
        before, cpu, started = _megabytes(), time.process_time(), time.monotonic()
        ended = await wait_all(watches, (intervals + 0.5) * POLL_SECONDS)
        if ended:
            raise RuntimeError(f"{ended} triggers ended by themselves")
        return Cost(time.process_time() - cpu, time.monotonic() - started, before, _megabytes())

    print(json.dumps(_as_dict(asyncio.run(both()))))


def _as_dict(cost: Cost) -> dict[str, float]:
    return {"cpu": cost.cpu, "elapsed": cost.elapsed, "before": cost.before, "after": cost.after}


def _megabytes() -> float:
    """Memory that this process holds now."""
    return resident_bytes(os.getpid()) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the ratios where they are wanted."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench waiting", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, help="write the named ratios into this file, as a section")
    parser.add_argument("--quick", action="store_true", help="fewer intervals: to see that it works")
    parser.add_argument("--triggers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.triggers is not None:
        triggers(options.triggers)
        return 0
    count, intervals = 1_000, 3 if options.quick else 12
    with LocalCluster(replicas=2) as cluster:
        results = measure(cluster, count, intervals)
        version = cluster.scalar("SELECT version()")
    if options.json:
        pauses = f"{intervals} intervals of {POLL_SECONDS:g} s"
        conditions = f"ClickHouse {version}, local cluster, {platform.machine()}, {pauses}"
        write(options.json, results, conditions, section="waiting")
    return show(results)


if __name__ == "__main__":
    sys.exit(main())
