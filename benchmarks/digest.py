"""How fast a member computes the canonical digest, and in how much memory.

Beside it stand the two hash sums with which route 1 compares replicas, and a bare scan of the same columns: all
of them in turns, over the flights of 2013 repeated. Run it with ``scripts/bench digest``.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import uuid4

from airflow_provider_dpone.clickhouse.canonical_digest import DIGEST_SETTINGS, canonical_digest_select
from airflow_provider_dpone.clickhouse.exact import content_digest_select
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.clickhouse.sql import identifier
from airflow_provider_dpone.clickhouse.table_definition import parse
from benchmarks.report import Result, show, write
from benchmarks.sources import CLICKHOUSE_COLUMNS, ORDER
from scripts.lib.flights import NULL, ROWS, first_extract
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster, wait_until

MILLION_ROWS: Final = 3.0
OF_TWO_SUMS: Final = 0.3
AT_ONCE: Final = 0.8
MEMORY_MB: Final = 100
MEMORY_FACTOR: Final = 1.5

DATABASE: Final = "mart_bench_digest"
COLUMNS: Final = parse(f"CREATE TABLE t ({CLICKHOUSE_COLUMNS}) ENGINE = MergeTree {ORDER}").stored_columns
NAMES: Final = tuple(column.name for column in COLUMNS)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a query took: seconds of the clock, seconds of all processors, and MB at its peak."""

    seconds: float
    processor: float
    memory: float


class Bench:
    """Two members with the same flights, each in a table of its own."""

    def __init__(self, cluster: LocalCluster, times: int) -> None:
        self.cluster = cluster
        self.rows = times * ROWS
        cluster.execute(f"CREATE DATABASE {DATABASE} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
        for node in cluster.nodes:
            self._fill(node, times)

    def _fill(self, node: int, times: int) -> None:
        for table in ("one", "flights"):
            self.cluster.execute(
                f"CREATE TABLE {DATABASE}.{table} ({CLICKHOUSE_COLUMNS}) ENGINE = MergeTree {ORDER}",
                node=node,
            )
        host, port = self.cluster.direct_http[node - 1]
        server = Server(ConnectionSettings(hosts=((host, port),), user=APP_USER, password=APP_PASSWORD))
        server.once(
            f"INSERT INTO {DATABASE}.one FORMAT CSVWithNames",
            body=[first_extract().path.read_bytes()],
            settings={"format_csv_null_representation": NULL, "date_time_input_format": "best_effort"},
        )
        self.cluster.execute(
            f"INSERT INTO {DATABASE}.flights SELECT one.* FROM numbers({times}) AS n, {DATABASE}.one AS one",
            node=node,
        )
        self.cluster.execute(f"OPTIMIZE TABLE {DATABASE}.flights FINAL", node=node)

    def canonical(self, table: str = "flights") -> Cost:
        """The canonical digest of one member."""
        return self._cost(canonical_digest_select(DATABASE, table, COLUMNS), DIGEST_SETTINGS)

    def two_sums(self) -> Cost:
        """The digest of route 1, of one member."""
        return self._cost(content_digest_select(DATABASE, "flights", NAMES))

    def scan(self) -> Cost:
        """All columns read, and nothing done with them."""
        names = ", ".join(map(identifier, NAMES))
        return self._cost(f"SELECT count(), sum(ignore({names})) FROM {DATABASE}.flights")

    def at_once(self) -> Cost:
        """The canonical digest of all members in one statement."""
        inner = canonical_digest_select(DATABASE, "flights", COLUMNS)
        sql = f"SELECT rows, sha256 FROM clusterAllReplicas({CLUSTER_NAME}, view({inner}))"
        answers = self.cluster.query(sql, settings=DIGEST_SETTINGS)
        if len(answers) != len(self.cluster.nodes) or answers[0] != answers[1]:
            raise RuntimeError("the members don't agree")
        return self._cost(sql, DIGEST_SETTINGS)

    def _cost(self, sql: str, settings: Mapping[str, str] = MappingProxyType({})) -> Cost:
        """Run it on the first member, and read what that member has recorded of it."""
        query_id = str(uuid4())
        started = time.perf_counter()
        self.cluster.query(sql, settings={**settings, "query_id": query_id})
        seconds = time.perf_counter() - started
        found: list[dict[str, int]] = []

        def recorded() -> bool:
            # An answer may be there before its line in the log is.
            self.cluster.execute("SYSTEM FLUSH LOGS")
            found[:] = self.cluster.query(
                "SELECT memory_usage AS memory, ProfileEvents['OSCPUVirtualTimeMicroseconds'] AS processor "
                f"FROM system.query_log WHERE query_id = '{query_id}' AND type = 'QueryFinish'"
            )
            return bool(found)

        wait_until(recorded, timeout=20)
        return Cost(seconds, found[0]["processor"] / 1e6, found[0]["memory"] / 1e6)


def measure(bench: Bench, rounds: int) -> list[Result]:
    """All lines of the table."""
    ways = {
        "canonical": bench.canonical,
        "sums": bench.two_sums,
        "scan": bench.scan,
        "at once": bench.at_once,
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for at in range(rounds + 1):
        for name, way in ways.items():
            cost = way()
            if at:  # the first round warms up
                costs[name].append(cost)
    speed = {
        name: bench.rows / statistics.median(cost.seconds for cost in found) / 1e6
        for name, found in costs.items()
    }
    per_core = {
        name: bench.rows / statistics.median(cost.processor for cost in found) / 1e6
        for name, found in costs.items()
    }
    speed["at once"] *= len(bench.cluster.nodes)
    large = max(cost.memory for cost in costs["canonical"])
    small = max(bench.canonical("one").memory for _ in range(rounds))
    return [
        _line("canonical digest / scan", speed["canonical"], speed["scan"], f">= {MILLION_ROWS} M rows/s",
              speed["canonical"] >= MILLION_ROWS),
        _line("canonical digest / two hash sums", speed["canonical"], speed["sums"], f">= {OF_TWO_SUMS}",
              speed["canonical"] >= OF_TWO_SUMS * speed["sums"]),
        _line("the same, per second of a processor", per_core["canonical"], per_core["sums"],
              f">= {MILLION_ROWS / 2} M rows/s", per_core["canonical"] >= MILLION_ROWS / 2),
        _line("two members at once / one", speed["at once"], speed["canonical"], f">= {AT_ONCE}",
              speed["at once"] >= AT_ONCE * speed["canonical"]),
        Result("memory, all rows / one copy of them", large, small, "MB", large / small,
               f"<= {MEMORY_FACTOR}, <= {MEMORY_MB} MB",
               large <= min(MEMORY_FACTOR * small, MEMORY_MB)),
    ]  # fmt: skip


def _line(name: str, ours: float, theirs: float, wanted: str, passed: bool) -> Result:
    return Result(name, ours, theirs, "M rows/s", ours / theirs, wanted, passed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write it where it is wanted."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench digest", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--json", type=Path, help="write the results into this file, beside what is there")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: to see that it works")
    options = parser.parse_args(arguments)
    times, rounds = (2, 3) if options.quick else (18, 7)
    with LocalCluster(replicas=2, internal_replication=False) as cluster:
        bench = Bench(cluster, times)
        results = measure(bench, rounds)
        version = cluster.scalar("SELECT version()")
    if options.json:
        conditions = (
            f"ClickHouse {version}, {platform.machine()}, {bench.rows:,} rows, {rounds} rounds, medians"
        )
        write(options.json, results, conditions, section="digest")
    return show(results)


if __name__ == "__main__":
    sys.exit(main())
