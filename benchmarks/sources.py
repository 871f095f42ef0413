"""How fast rows of PostgreSQL and of files reach the candidate, beside what else could carry them.

Absolute times say little on a shared machine: every ratio is between things that were measured in turns in
this run, and each line is the median of its rounds. Run it with ``scripts/bench sources``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import clickhouse_connect
import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.providers.common.sql.operators.generic_transfer import GenericTransfer
from clickhouse_connect import dbapi as clickhouse_dbapi
from pyarrow import parquet

from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.sources import FileSource, RowsLoad, Source, SqlSource, dbapi
from airflow_provider_dpone.values import GiB
from benchmarks.report import Result, show, write
from scripts.lib.flights import NULL, first_extract
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster, User
from tests.integration.staging_site import Site, new_attempt
from tests.postgres import LocalPostgres

COPY_SHARE: Final = 0.6
DLT_FACTOR: Final = 3.0
DRIVER_FACTOR: Final = 1.3
PARQUET_SHARE: Final = 0.7
FLAT_MB: Final = 25
COPY_MB: Final = 50

PEER: Final = User("bench_peer", ("GRANT ALL ON *.*",), password="peer")
"""As whom other tools load; they want rights that the provider doesn't need."""

PIECE: Final = 256 * 1024
DATABASE: Final = "mart_bench_sources"
QUERY: Final = "SELECT * FROM flights"
CHECKOUT: Final = Path(__file__).resolve().parents[1]
PEERS: Final = CHECKOUT / ".cache" / "bench" / "bin" / "python"

POSTGRES_COLUMNS: Final = (
    "year integer, month integer, day integer, dep_time integer, sched_dep_time integer, dep_delay float8, "
    "arr_time integer, sched_arr_time integer, arr_delay float8, carrier text, flight integer, tailnum text, "
    "origin text, dest text, air_time float8, distance float8, hour integer, minute integer, time_hour timestamptz"
)
CLICKHOUSE_COLUMNS: Final = (
    "year Int32, month Int32, day Int32, dep_time Nullable(Int32), sched_dep_time Int32, "
    "dep_delay Nullable(Float64), arr_time Nullable(Int32), sched_arr_time Int32, arr_delay Nullable(Float64), "
    "carrier LowCardinality(String), flight Int32, tailnum Nullable(String), origin LowCardinality(String), "
    "dest LowCardinality(String), air_time Nullable(Float64), distance Float64, hour Int32, minute Int32, "
    "time_hour DateTime64(6, 'UTC')"
)
ORDER: Final = "ORDER BY (year, month, day)"
DRIVER_SETTINGS: Final[Mapping[str, str | int | bool]] = {"async_insert": 0, "deduplicate_insert": "disable"}


class Bench:
    """The servers, the rows, and ways to move them. Every way is checked for the number of rows that arrive."""

    def __init__(self, postgres: LocalPostgres, cluster: LocalCluster, rows: int) -> None:
        self.postgres = postgres
        self.rows = rows
        self.site = Site(cluster, DATABASE, (cluster.endpoints[0],))
        self.direct = Site(cluster, DATABASE, (cluster.direct_http[0],))
        self.cluster = cluster
        self.encoded = b""

    def prepare(self) -> None:
        """Fill PostgreSQL, create the live table, and keep the encoded rows for the limits."""
        connection = self.postgres.connect()
        with closing(connection), first_extract().path.open() as file, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE one ({POSTGRES_COLUMNS})")
            cursor.copy_expert(f"COPY one FROM STDIN (FORMAT csv, HEADER, NULL '{NULL}')", file)
            cursor.execute(
                "CREATE TABLE flights AS SELECT one.* FROM generate_series(1, 100), one LIMIT %s",
                [self.rows],
            )
            cursor.execute("VACUUM ANALYZE flights")
        self.cluster.execute(f"CREATE DATABASE {DATABASE} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
        self.site.create(CLICKHOUSE_COLUMNS, ORDER)
        buffer = io.BytesIO()
        self._copy_out(buffer)
        self.encoded = buffer.getvalue()

    def server(self) -> Server:
        """A connection past the test cluster's gateway, which is needed for ON CLUSTER alone."""
        (host, port), *_ = self.cluster.direct_http
        return Server(ConnectionSettings(hosts=((host, port),), user=APP_USER, password=APP_PASSWORD))

    def _copy_out(self, sink: Any) -> None:
        connection = self.postgres.connect()
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("SET TimeZone TO 'UTC'")
            cursor.copy_expert(f"COPY ({QUERY}) TO STDOUT", sink)

    # --- Ways to move the rows; each returns seconds ---------------------------------------------

    def copy_to_nothing(self) -> float:
        """What PostgreSQL and its driver can give at most."""

        class Nothing(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                return len(data)

        return timed(lambda: self._copy_out(io.BufferedWriter(Nothing(), PIECE)))

    def encoded_insert(self) -> float:
        """What ClickHouse can take at most: the same text, ready in memory, without any check."""
        name = self._empty_table()
        pieces = [self.encoded[at : at + PIECE] for at in range(0, len(self.encoded), PIECE)]
        server = self.server()
        return self._checked(
            name,
            lambda: server.once(
                f"INSERT INTO {DATABASE}.{name} FORMAT TabSeparated",
                body=pieces,
                settings={**DRIVER_SETTINGS, "date_time_input_format": "best_effort"},
            ),
        )

    def staged(self, source: Source) -> float:
        """The load of the stage task: everything between the created candidate and its acknowledged rows."""
        staging = self.site.staging(source, max_source_bytes=64 * GiB)
        plan, attempt = self.site.built(staging)
        loading = self.direct.staging(source, max_source_bytes=64 * GiB)
        seconds = self._checked(attempt.name, lambda: loading.load(plan, attempt))
        staging.drop(attempt)
        return seconds

    def client_insert(self) -> float:
        """clickhouse-connect's insert of the rows of the same cursor, in the same batches."""
        name = self._empty_table()
        (host, port), *_ = self.cluster.direct_http
        client = clickhouse_connect.get_client(
            host=host,
            port=port,
            username=APP_USER,
            password=APP_PASSWORD,
            database=DATABASE,
            settings=dict(DRIVER_SETTINGS),
            autogenerate_session_id=False,
        )
        names = [column.split()[0] for column in POSTGRES_COLUMNS.split(", ")]

        def work() -> None:
            connection = psycopg.connect(host="127.0.0.1", port=self.postgres.port, user="postgres")
            with connection, psycopg.ServerCursor(connection, "rows") as cursor:
                cursor.execute(QUERY)
                while batch := cursor.fetchmany(10_000):
                    client.insert(name, batch, column_names=names)

        return self._checked(name, work)

    def parquet_by_clickhouse(self, path: Path) -> float:
        """ClickHouse reads the very file."""
        name = self._empty_table()
        server = self.server()

        def pieces() -> Iterator[bytes]:
            with path.open("rb") as file:
                while piece := file.read(PIECE):
                    yield piece

        return self._checked(
            name,
            lambda: server.once(
                f"INSERT INTO {DATABASE}.{name} FORMAT Parquet", body=pieces(), settings=DRIVER_SETTINGS
            ),
        )

    def dlt(self, backend: str) -> float:
        """dlt in its own environment: extract, normalize, load; without the start of its interpreter."""
        (_, http), *_ = self.cluster.direct_http
        (_, tcp), *_ = self.cluster.direct_tcp
        command = [PEERS, "-m", "benchmarks.peers.dlt_postgres", backend, self.postgres.port, http, tcp]
        done = subprocess.run(
            [*map(str, command), DATABASE, PEER.name, str(PEER.password)],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"dlt failed: {done.stderr[-2000:]}")
        said = json.loads(done.stdout.splitlines()[-1])
        if said["rows"] != self.rows:
            raise RuntimeError(f"dlt moved {said['rows']} rows of {self.rows}")
        return float(said["seconds"])

    def generic_transfer(self, seconds: float) -> float:
        """Rows per second of Airflow's own transfer operator, on about as many rows as take it ``seconds``."""
        name = self._empty_table()
        (host, port), *_ = self.cluster.direct_http
        os.environ["AIRFLOW_CONN_CH"] = f"generic://{APP_USER}:{APP_PASSWORD}@{host}:{port}/{DATABASE}"

        def sent(rows: int) -> float:
            transfer = Transfer(
                task_id="transfer",
                sql=f"{QUERY} LIMIT {rows}",
                destination_table=name,
                source_conn_id="pg",
                destination_conn_id="ch",
            )
            return rows / timed(lambda: transfer.execute({}))

        first = 200
        return sent(max(first, int(sent(first) * seconds)))

    def _empty_table(self) -> str:
        name = new_attempt("t").name
        self.site.create(CLICKHOUSE_COLUMNS, ORDER, table=name)
        return name

    def _checked(self, table: str, work: Callable[[], object]) -> float:
        seconds = timed(work)
        found = self.cluster.scalar(f"SELECT count() FROM {DATABASE}.{table}", node=1)
        if found != self.rows:
            raise RuntimeError(f"{found} rows arrived of {self.rows}")
        self.cluster.execute(f"TRUNCATE TABLE {DATABASE}.{table} SETTINGS alter_sync = 0", node=1)
        return seconds


class ClickHouseDbApi(DbApiHook):
    """ClickHouse as a hook that GenericTransfer takes: clickhouse-connect's DB-API, with Airflow's insert_rows."""

    conn_name_attr = "clickhouse_conn_id"

    def get_conn(self) -> Any:
        found = self.connection
        return clickhouse_dbapi.connect(
            host=found.host,
            port=found.port,
            username=str(found.login),
            password=found.password,
            database=found.schema,
        )


class Transfer(GenericTransfer):
    """Airflow's transfer operator, as it is, between PostgreSQL and ClickHouse."""

    @classmethod
    def get_hook(cls, conn_id: str, hook_params: dict[str, Any] | None = None) -> DbApiHook:
        return ClickHouseDbApi(conn_id) if conn_id == "ch" else super().get_hook(conn_id, hook_params)


@dataclass(frozen=True, slots=True)
class ByDriver:
    """A query of which COPY is not used although it could be."""

    sql: str
    conn_id: str

    def identity(self) -> Any:
        return {"kind": "benchmark"}

    def columns(self, describe: Any) -> Any:
        return self.load().columns

    def load(self) -> RowsLoad:
        query = dbapi.Query(dbapi.hook_of(self.conn_id), self.sql, None)
        names = dbapi.column_names(query)
        return RowsLoad(
            dbapi.described(names),
            lambda types: dbapi.rows_stream(query, names, types, batch_rows=10_000, why="a benchmark"),
        )

    def rendered(self, render: Any) -> ByDriver:
        return self

    def serialize(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def deserialize(cls, data: Any, version: int) -> ByDriver:
        return cls(**data)


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def faster(name: str, rows: int, ours: Sequence[float], theirs: Sequence[float], wanted: float) -> Result:
    """A ratio of speeds: ours over theirs, by the medians."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    ratio = other / mine
    return Result(
        name, rows / mine / 1e3, rows / other / 1e3, "k rows/s", ratio, f">= {wanted}", ratio >= wanted
    )


def speeds(bench: Bench, rounds: int, folder: Path) -> list[Result]:
    """All ratios of speed."""
    path = folder / "flights.parquet"
    write_parquet(bench, path)
    names = ("copy", "nothing", "encoded", "driver", "client", "parquet", "parquet_server", "dlt")
    times: dict[str, list[float]] = {name: [] for name in names}
    copy, driver = SqlSource(QUERY, conn_id="pg"), ByDriver(QUERY, "pg")
    for _ in range(rounds):
        times["copy"].append(bench.staged(copy))
        times["nothing"].append(bench.copy_to_nothing())
        times["encoded"].append(bench.encoded_insert())
        times["driver"].append(bench.staged(driver))
        times["client"].append(bench.client_insert())
        times["parquet"].append(bench.staged(FileSource(str(path))))
        times["parquet_server"].append(bench.parquet_by_clickhouse(path))
        times["dlt"].append(bench.dlt("connectorx"))
    slower = max(times["nothing"], times["encoded"], key=statistics.median)
    limit = "COPY to nothing" if slower is times["nothing"] else "encoded rows inserted"
    rows = bench.rows
    return [
        faster(f"PostgreSQL by COPY / {limit}", rows, times["copy"], slower, COPY_SHARE),
        faster("PostgreSQL by COPY / dlt, connectorx", rows, times["copy"], times["dlt"], DLT_FACTOR),
        faster("through the driver / client.insert", rows, times["driver"], times["client"], DRIVER_FACTOR),
        faster("Parquet / ClickHouse itself", rows, times["parquet"], times["parquet_server"], PARQUET_SHARE),
    ]


def write_parquet(bench: Bench, path: Path) -> None:
    """Write the rows as a Parquet file with row groups of 100,000 rows."""
    rows = bench.postgres.query(QUERY)
    names = [column.split()[0] for column in POSTGRES_COLUMNS.split(", ")]
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    parquet.write_table(table, path, row_group_size=100_000)


def generic_transfer(bench: Bench, seconds: float, ours: float) -> Result:
    """What Airflow itself offers, measured for a while."""
    theirs = bench.generic_transfer(seconds) / 1e3
    return Result(
        "PostgreSQL by COPY / GenericTransfer",
        ours,
        theirs,
        "k rows/s",
        ours / theirs,
        ">= 100",
        ours / theirs >= 100,
    )


def memory(bench: Bench, way: str) -> tuple[float, float]:
    """Peak of a worker in MB on top of all imports: with all rows, and with five times as many."""
    peaks = [worker_peak(bench, way, query) for query in (QUERY, f"{QUERY}, generate_series(1, 5) n")]
    return peaks[0], peaks[1]


def worker_peak(bench: Bench, way: str, sql: str) -> float:
    """Drain a source in a process of its own, as slowly as a consumer that only counts, and return its peak."""
    columns = (
        "year, month, day, dep_time, sched_dep_time, dep_delay, carrier, tailnum, origin, dest, time_hour"
    )
    command = [sys.executable, "-m", "benchmarks.worker_memory", way, sql.replace("*", columns)]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, "AIRFLOW_CONN_PG": bench.postgres.uri},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["mb"])


def memories(bench: Bench) -> list[Result]:
    """Whether a worker's memory grows with the rows."""
    found: list[Result] = []
    for way, title in (("copy", "COPY"), ("driver", "driver")):
        small, large = memory(bench, way)
        most = COPY_MB if way == "copy" else None
        passed = large - small <= FLAT_MB and (most is None or large <= most)
        wanted = f"+{FLAT_MB} MB at most" + (f", {most} MB in all" if most else "")
        found.append(
            Result(
                f"worker memory by {title}, 1x / 5x rows",
                small,
                large,
                "MB",
                large / max(small, 1.0),
                wanted,
                passed,
            )
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the ratios where they are wanted."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench sources", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=Path, help="write the named ratios into this file, as a section")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: to see that it works")
    options = parser.parse_args(arguments)
    rows, rounds, patience = (100_000, 1, 3.0) if options.quick else (1_000_000, 3, 60.0)
    with (
        LocalPostgres() as postgres,
        LocalCluster(replicas=2, users=[PEER]) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.environ["AIRFLOW_CONN_PG"] = postgres.uri
        bench = Bench(postgres, cluster, rows)
        bench.prepare()
        results = speeds(bench, rounds, Path(folder))
        results.append(generic_transfer(bench, patience, results[0].ours))
        results += memories(bench)
        versions = (cluster.scalar("SELECT version()"), postgres.query("SHOW server_version")[0][0])
    if options.json:
        conditions = (
            f"ClickHouse {versions[0]}, PostgreSQL {versions[1]}, all on one machine ({os.cpu_count()} cores, "
            f"{platform.machine()}), {rows:,} rows, {rounds} rounds, medians"
        )
        write(options.json, results, conditions, section="sources")
    return show(results)


if __name__ == "__main__":
    sys.exit(main())
