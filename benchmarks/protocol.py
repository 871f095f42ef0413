"""What the protocol costs over the bare statements: time, round trips, staging, content check.

Absolute times say little on a shared machine, so everything is a ratio of two things that were measured in
turns in this run. Run it with ``scripts/bench``.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from airflow_provider_dpone.clickhouse.load import Limits
from airflow_provider_dpone.clickhouse.staging import ClusterStaging
from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.routes.cluster_refresh import PublishRequest, publish
from airflow_provider_dpone.routes.ports import Attempt
from airflow_provider_dpone.sources import SqlSource
from airflow_provider_dpone.values import ClusterRefresh, GiB, TableStructure
from benchmarks.report import Result, show, write
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster
from tests.cluster.statement_log import LoggedStatement
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query

PUBLISH_FACTOR = 1.5
PUBLISH_SECONDS = 1.0
MOST_ROUND_TRIPS = 30
STAGING_RATIO = 0.97
CONTENT_RATIO = 0.25
ENGINE = "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')"

WIDE = ", ".join(
    [
        "number AS id",
        "toDate('2013-01-01') + number % 365 AS day",
        "toDateTime('2013-01-01 00:00:00', 'UTC') + number % 31536000 AS moment",
        *(f"toInt32(cityHash64(number, {n}) % 3000) - 60 AS delay_{n}" for n in range(6)),
        *(
            f"if(number % {n + 7} = 0, NULL, toFloat64(number % 1000) / {n + 1}) AS ratio_{n}"
            for n in range(4)
        ),
        *(f"['AA', 'B6', 'DL', 'EV', 'UA'][1 + cityHash64(number, {n}) % 5] AS code_{n}" for n in range(4)),
        "concat('N', toString(cityHash64(number) % 4000)) AS tail",
        "toUInt16(number % 9000) AS flight",
    ]
)


def timed(work: Callable[[], Any]) -> float:
    """Return how many seconds ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def send(cluster: LocalCluster, sql: str, **settings: object) -> None:
    """Send one statement the way a plain script does: one request, no more."""
    endpoint = cluster.endpoints[0]
    query = urlencode({"wait_end_of_query": 1, **settings})
    request = urllib.request.Request(
        f"http://{endpoint.host}:{endpoint.port}/?{query}",
        data=sql.encode(),
        headers={"X-ClickHouse-User": APP_USER, "X-ClickHouse-Key": APP_PASSWORD},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


@contextmanager
def a_site(cluster: LocalCluster, name: str) -> Iterator[RefreshSite]:
    """A database and an evidence folder of a benchmark's own."""
    database = f"mart_bench_{name}"
    cluster.execute(f"CREATE DATABASE {database} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
    with tempfile.TemporaryDirectory() as folder:
        yield RefreshSite(cluster, database, Path(folder), (cluster.endpoints[0],))
    cluster.execute(f"DROP DATABASE {database} ON CLUSTER {CLUSTER_NAME} SYNC")


def publishing(cluster: LocalCluster, rounds: int) -> Result:
    """Admission to commit, without the content check, against a bare EXCHANGE on the cluster."""
    with a_site(cluster, "publish") as site:
        site.refresh(1_000, run="first")
        bare = [f"{site.database}.bare_{name}" for name in ("a", "b")]
        for table in bare:
            cluster.execute(
                f"CREATE TABLE {table} ON CLUSTER {CLUSTER_NAME} (id UInt64) ENGINE = {ENGINE} ORDER BY id"
            )
        ours: list[float] = []
        theirs: list[float] = []
        for n in range(rounds):
            theirs.append(
                timed(
                    lambda: send(
                        cluster, f"EXCHANGE TABLES {bare[0]} AND {bare[1]} ON CLUSTER {CLUSTER_NAME}"
                    )
                )
            )
            staged = site.stage(rows_query(1_000 + n), run=f"run{n}")
            with site.worker() as (ports, _):
                checking: list[float] = []
                catalog = ports.catalog
                content = catalog.content

                def measured(table: str, content: Any = content, checking: list[float] = checking) -> Any:
                    started = time.perf_counter()
                    try:
                        return content(table)
                    finally:
                        checking.append(time.perf_counter() - started)

                with replaced(catalog, "content", measured):
                    request = PublishRequest(staged.operation_id, Guards())
                    whole = timed(partial(publish, ports, site.site, request, QUICK))
            ours.append(whole - sum(checking))
            site.cleanup(staged)
    mine, bare_seconds = statistics.median(ours), statistics.median(theirs)
    return Result(
        "publishing / bare EXCHANGE",
        mine,
        bare_seconds,
        "s",
        mine / bare_seconds,
        f"<= {PUBLISH_FACTOR} x + {PUBLISH_SECONDS} s",
        mine <= PUBLISH_FACTOR * bare_seconds + PUBLISH_SECONDS,
    )


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a method of one object's class for the block; adapters have slots."""
    cls = type(target)
    real = getattr(cls, name)
    setattr(cls, name, lambda _, *args: value(*args))
    try:
        yield
    finally:
        setattr(cls, name, real)


def round_trips(cluster: LocalCluster, name: str) -> tuple[int, Sequence[LoggedStatement]]:
    """HTTP requests of one whole refresh over an existing target; polls count once."""
    with a_site(cluster, name) as site:
        site.refresh(100, run="first")
        since = cluster.last_statement()
        site.refresh(200, run="second")
        sent = cluster.statements(since=since)
    once = [
        s for before, s in zip([None, *sent], sent, strict=False) if before is None or before.text != s.text
    ]
    return len(once), once


def lean(two: LocalCluster, four: LocalCluster, show: bool) -> Result:
    """Round trips of a whole refresh with two and with four replicas."""
    small, statements = round_trips(two, "trips2")
    large, _ = round_trips(four, "trips4")
    if show:
        for statement in statements:
            print(f"    {statement.kind:8} {statement.text[:100]!r}", file=sys.stderr)
    return Result(
        "round trips, 2 / 4 replicas",
        small,
        large,
        "requests",
        small / large,
        f"equal, <= {MOST_ROUND_TRIPS}",
        small == large and small <= MOST_ROUND_TRIPS,
    )


def staging(cluster: LocalCluster, rows: int, rounds: int) -> Result:
    """Server-side staging against the raw INSERT ... SELECT of the same query."""
    with a_site(cluster, "staging") as site:
        query = f"SELECT {WIDE} FROM numbers({rows})"
        site.stage(f"SELECT {WIDE} FROM numbers(1)", run="shape", structure=shape(cluster))
        columns = shape(cluster)
        declared = ", ".join(f"{name} {kind}" for name, kind in columns.columns.items())
        ours: list[float] = []
        theirs: list[float] = []
        for n in range(rounds):
            raw = f"{site.database}.raw_{n}"
            cluster.execute(
                f"CREATE TABLE {raw} ON CLUSTER {CLUSTER_NAME} ({declared}) ENGINE = {ENGINE} ORDER BY id"
            )
            theirs.append(timed(lambda raw=raw: send(cluster, f"INSERT INTO {raw} {query}")))  # type: ignore[misc]
            cluster.execute(f"DROP TABLE {raw} ON CLUSTER {CLUSTER_NAME} SYNC")
            ours.append(load_seconds(site, query, columns, n))
    mine, raw_seconds = statistics.median(ours), statistics.median(theirs)
    ratio = raw_seconds / mine
    return Result(
        "staging / raw INSERT SELECT, speed",
        rows / mine / 1e6,
        rows / raw_seconds / 1e6,
        "M rows/s",
        ratio,
        f">= {STAGING_RATIO}",
        ratio >= STAGING_RATIO,
    )


def shape(cluster: LocalCluster) -> TableStructure:
    """The structure that the wide query gives."""
    rows = cluster.query(f"DESCRIBE TABLE (SELECT {WIDE} FROM numbers(1))")
    return TableStructure(columns={row["name"]: row["type"] for row in rows}, order_by="id")


def load_seconds(site: RefreshSite, query: str, structure: TableStructure, n: int) -> float:
    """Seconds of the load alone, as the stage task does it."""
    with site.worker() as (ports, server):
        adapter = ClusterStaging(
            server,
            site.target,
            ClusterRefresh(
                clickhouse_conn_id="unused",
                cluster=CLUSTER_NAME,
                database=site.database,
                table=site.table,
                max_source_bytes=64 * GiB,
                structure=structure,
            ),
            SqlSource(sql=query),
            lambda _: None,
            limits=Limits(),
        )
        observation = ports.catalog.observe([site.table])
        plan = adapter.plan(observation)
        attempt_id = ports.random.hex(64)
        attempt = Attempt(attempt_id, f"orders__dpone_{attempt_id}", ports.random.uuid())
        adapter.create(plan, attempt, authority_id="0" * 32, operation_id=f"{n:064x}")
        seconds = timed(lambda: adapter.load(plan, attempt))
        adapter.drop(attempt)
    return seconds


def content_check(cluster: LocalCluster, rows: int, rounds: int) -> Result:
    """The content check on all replicas against one scan of all columns on one replica."""
    with a_site(cluster, "content") as site:
        columns = shape(cluster)
        declared = ", ".join(f"{name} {kind}" for name, kind in columns.columns.items())
        table = f"{site.database}.orders"
        cluster.execute(
            f"CREATE TABLE {table} ON CLUSTER {CLUSTER_NAME} ({declared}) ENGINE = {ENGINE} ORDER BY id"
        )
        cluster.execute(f"INSERT INTO {table} SELECT {WIDE} FROM numbers({rows})")
        for node in cluster.nodes:
            cluster.execute(f"SYSTEM SYNC REPLICA {table}", node=node)
        ours: list[float] = []
        theirs: list[float] = []
        with site.worker() as (ports, _):
            ports.catalog.observe(["orders"])
            for _ in range(rounds):
                theirs.append(timed(lambda: send(cluster, f"SELECT count(), sum(ignore(*)) FROM {table}")))
                ours.append(timed(lambda: ports.catalog.content("orders")))
    replicas = len(cluster.nodes)
    mine, scan = statistics.median(ours[1:]), statistics.median(theirs[1:])
    ratio = replicas * scan / mine
    return Result(
        f"content check on {replicas} replicas / one scan, speed",
        replicas * rows / mine / 1e6,
        rows / scan / 1e6,
        "M rows/s",
        ratio,
        f">= {CONTENT_RATIO}",
        ratio >= CONTENT_RATIO,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the ratios where they are wanted."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--json", type=Path, help="write the named ratios to this file")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: to see that it works")
    parser.add_argument("--statements", action="store_true", help="list the statements of a refresh")
    options = parser.parse_args(arguments)
    rows, rounds = (200_000, 3) if options.quick else (3_000_000, 7)
    with LocalCluster(replicas=2) as two:
        results = [publishing(two, rounds), staging(two, rows, rounds), content_check(two, rows, rounds)]
        with LocalCluster(replicas=4) as four:
            results.insert(1, lean(two, four, options.statements))
        version = two.scalar("SELECT version()")
    if options.json:
        write(
            options.json,
            results,
            f"ClickHouse {version}, local cluster, {platform.machine()}, {rows:,} rows, {rounds} rounds, medians",
        )
    return show(results)


if __name__ == "__main__":
    sys.exit(main())
