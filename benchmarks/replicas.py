"""What independent replicas cost: loading all of them from one artifact, against the slowest of them alone.

Each replica is loaded by itself, side by side with the others. Here all of them, and the worker, share the cores of
one machine, so that the ratio also says how much of them one load leaves free. Run it with ``scripts/bench replicas``.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from airflow_provider_dpone.clickhouse.load import Limits
from airflow_provider_dpone.clickhouse.replica_connections import ReplicaConnections
from airflow_provider_dpone.clickhouse.replica_staging import ClusterReplicaStaging
from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.record import ReplicaStage, StageState
from airflow_provider_dpone.routes.ports import StagePlan
from airflow_provider_dpone.sources import SqlSource
from airflow_provider_dpone.values import ClusterRefresh, GiB
from benchmarks.protocol import WIDE, shape, timed
from benchmarks.report import Result, show, write
from tests.cluster import INDEPENDENT_CLUSTER_NAME, LocalCluster
from tests.integration.external_site import init
from tests.integration.independent_site import IndependentSite

MOST_OF_THE_SLOWEST = 1.3
KEY = "benchmark"


@dataclass(slots=True)
class Loads:
    """One sealed artifact, and private tables that it is loaded into."""

    site: IndependentSite
    staging: ClusterReplicaStaging
    plan: StagePlan
    artifact: Artifact
    attempts: int = 0

    def table(self, alias: str) -> ReplicaStage:
        """An empty private table on one replica."""
        self.attempts += 1
        attempt_id = f"{self.attempts:016x}"
        uuid = f"00000000-0000-4000-8000-{self.attempts:012x}"
        stage = ReplicaStage(alias, attempt_id, f"orders__dpone_{attempt_id}", uuid, StageState.CLAIMED)
        self.staging.create(self.plan, stage, authority_id="0" * 32, operation_id="0" * 64)
        return stage

    def load(self, stage: ReplicaStage) -> None:
        """Load one replica."""
        self.staging.load(self.plan, stage, self.artifact, target_key=KEY)

    def seconds(self, aliases: Sequence[str]) -> float:
        """How long these replicas take, side by side."""
        stages = [self.table(alias) for alias in aliases]
        tasks: list[Callable[[], None]] = [partial(self.load, stage) for stage in stages]

        def work() -> None:
            for stopped in self.staging.side_by_side(tasks):
                if stopped is not None:
                    raise stopped

        took = timed(work)
        for stage in stages:
            self.staging.drop(stage)
        return took


@contextmanager
def loads(cluster: LocalCluster, rows: int) -> Iterator[Loads]:
    """Everything that the loads need, made once."""
    init(cluster)
    database = "mart_bench_replicas"
    cluster.execute(f"CREATE DATABASE {database} ON CLUSTER {INDEPENDENT_CLUSTER_NAME} ENGINE = Atomic")
    with tempfile.TemporaryDirectory() as folder:
        site = IndependentSite(cluster, database, Path(folder), (cluster.endpoints[0],))
        with site.worker() as (ports, server):
            staging = ClusterReplicaStaging(
                server,
                site.target,
                ClusterRefresh(
                    clickhouse_conn_id="unused",
                    cluster=INDEPENDENT_CLUSTER_NAME,
                    database=database,
                    table=site.table,
                    max_source_bytes=64 * GiB,
                    structure=shape(cluster),
                    replication_mode="external",
                ),
                SqlSource(sql=f"SELECT {WIDE} FROM numbers({rows})"),
                lambda _: None,
                lambda inventory: ReplicaConnections(server.settings, inventory),
                site.store,
                limits=Limits(),
            )
            with closing(staging):
                plan = staging.plan(ports.catalog.observe([site.table]))
                found = Loads(site, staging, plan, Artifact("0" * 64, 0, 0))
                extract = found.table("s1/r1")
                loaded = staging.extract(plan, extract)
                found.artifact = staging.seal(plan, extract, loaded.rows, target_key=KEY)
                yield found
    cluster.execute(f"DROP DATABASE {database} ON CLUSTER {INDEPENDENT_CLUSTER_NAME} SYNC")


def side_by_side(cluster: LocalCluster, rows: int, rounds: int) -> Result:
    """All replicas at once, against the slowest alone; in turns."""
    with loads(cluster, rows) as found:
        aliases = [*found.site.replicas]
        together: list[float] = []
        alone: dict[str, list[float]] = {alias: [] for alias in aliases}
        for _ in range(rounds):
            for alias in aliases:
                alone[alias].append(found.seconds([alias]))
            together.append(found.seconds(aliases))
    ours = statistics.median(together)
    slowest = max(statistics.median(seconds) for seconds in alone.values())
    return Result(
        f"{len(aliases)} replicas side by side / the slowest alone",
        ours,
        slowest,
        "s",
        ours / slowest,
        f"<= {MOST_OF_THE_SLOWEST}",
        ours <= MOST_OF_THE_SLOWEST * slowest,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the ratios where they are wanted."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench replicas", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--json", type=Path, help="write the named ratios to this file")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: to see that it works")
    options = parser.parse_args(arguments)
    rows, rounds = (200_000, 3) if options.quick else (3_000_000, 7)
    with LocalCluster(replicas=2) as two:
        results = [side_by_side(two, rows, rounds)]
        version = two.scalar("SELECT version()")
    if options.json:
        write(
            options.json,
            results,
            f"ClickHouse {version}, local cluster, all on {os.cpu_count()} cores, {platform.machine()}, {rows:,} rows, "
            f"{rounds} rounds, medians",
            section="replicas",
        )
    return show(results)


if __name__ == "__main__":
    sys.exit(main())
