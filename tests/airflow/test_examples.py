"""Every example DAG runs: on a real scheduler, a real cluster and a real PostgreSQL, with connections of the test.

The files run as they are, but for their schedules: a run begins when the test says so. What they call ``mart`` and
``mart_raw`` is made for this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from tests.airflow.bench import RUN_SECONDS, SWAP, Bench
from tests.airflow.harness import LocalAirflow
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster
from tests.cluster.client import wait_until
from tests.postgres import LocalPostgres

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "example_dags"
LIVE: Final = "mart"
RAW: Final = "mart_raw"
RAW_TABLES: Final = {
    "orders": (
        "id UInt64, customer String, amount Decimal(18, 2)",
        "SELECT number, toString(number % 7), number / 4 FROM numbers(700)",
    ),
    "prices": ("product UInt64, price Decimal(12, 2)", "SELECT number, number / 8 FROM numbers(80)"),
    "visits": ("day Date, visits UInt64", "SELECT toDate('2026-01-01') + number, number FROM numbers(31)"),
    "exchange_rates": (
        "day Date, currency String, rate Decimal(18, 6)",
        "SELECT toDate('2026-01-01') + number, 'eur', number / 8 FROM numbers(12)",
    ),
    "country": (
        "code String, name String, people UInt64",
        "VALUES ('de', 'Germany', 84), ('fr', 'France', 68)",
    ),
    "city": (
        "id String, name String, people UInt64",
        "VALUES ('b', 'Berlin', 4), ('p', 'Paris', 2), ('l', 'Lyon', 1)",
    ),
}


@pytest.fixture(scope="module")
def examples(
    connected_airflow: LocalAirflow, cluster: LocalCluster, postgres: LocalPostgres
) -> Iterator[Bench]:
    """The one Airflow with the connections that the examples name, and what their queries read."""
    host, port = cluster.endpoints[0]
    connected_airflow.add_connection(
        "clickhouse_default",
        {
            "conn_type": "dpone_clickhouse",
            "host": host,
            "port": port,
            "login": APP_USER,
            "password": APP_PASSWORD,
        },
    )
    connected_airflow.add_connection(
        "clickhouse_independent",
        {
            "conn_type": "dpone_clickhouse",
            "host": host,
            "port": port,
            "login": APP_USER,
            "password": APP_PASSWORD,
            "extra": {
                "replicas": {
                    f"s1/r{node}": f"{endpoint.host}:{endpoint.port}"
                    for node, endpoint in enumerate(cluster.endpoints, start=1)
                }
            },
        },
    )
    connected_airflow.add_connection(
        "shop_postgres",
        {
            "conn_type": "postgres",
            "host": "127.0.0.1",
            "port": postgres.port,
            "login": "postgres",
            "schema": "postgres",
        },
    )
    for database in (LIVE, RAW):
        cluster.execute(f"CREATE DATABASE {database} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
    for table, (columns, rows) in RAW_TABLES.items():
        cluster.execute(
            f"CREATE TABLE {RAW}.{table} ON CLUSTER {CLUSTER_NAME} ({columns}) "
            "ENGINE = ReplicatedMergeTree ORDER BY tuple()"
        )
        cluster.execute(f"INSERT INTO {RAW}.{table} {rows}")
    postgres.execute("CREATE SCHEMA shop")
    postgres.execute(
        "CREATE TABLE shop.orders AS SELECT i AS id, 'customer ' || i % 5 AS customer, "
        "(i / 4.0)::numeric(12, 2) AS amount, CASE WHEN i % 3 = 0 THEN NULL ELSE 'note ' || i END AS note, "
        "timestamptz '2026-01-02 03:04:05.678901Z' AS ordered_at, "
        "CASE WHEN i % 10 = 0 THEN 'cancelled' ELSE 'paid' END AS status FROM generate_series(1, 100) i"
    )
    yield Bench(connected_airflow, cluster, LIVE)
    cluster.heal()
    for database in (LIVE, RAW):
        cluster.execute(f"DROP DATABASE {database} ON CLUSTER {CLUSTER_NAME} SYNC")
    postgres.execute("DROP SCHEMA shop CASCADE")


def add_example(bench: Bench, dag_id: str) -> None:
    """Bring an example into the running Airflow, without its schedule."""
    source = (EXAMPLES / f"{dag_id}.py").read_text()
    bench.airflow.add_dag(dag_id, source.replace('schedule="@daily"', "schedule=None"))


def refreshed(bench: Bench, dag_id: str, group: str, **conf: Any) -> Mapping[str, Any]:
    """Run an example once, check its receipt, and return it."""
    add_example(bench, dag_id)
    run_id = bench.run(dag_id, **conf)
    staged = bench.receipt(dag_id, run_id, f"{group}.stage")
    published = bench.receipt(dag_id, run_id, f"{group}.publish")
    assert_receipt(published, staged["rows"])
    assert bench.receipt(dag_id, run_id, f"{group}.cleanup")["state"] == "COMPLETED"
    return published


def assert_receipt(published: Mapping[str, Any], rows: int) -> None:
    """A first publication, proven on both replicas."""
    assert (published["statement"], published["state"], published["replayed"]) == (
        "RENAME",
        "COMMITTED",
        False,
    )
    assert published["rows"] == rows
    assert [(one["alias"], one["rows"], one["content_match"]) for one in published["replicas"]] == [
        ("s1/r1", rows, True),
        ("s1/r2", rows, True),
    ]


def test_every_example_is_run_here() -> None:
    """A new example needs a test of its own."""
    text = Path(__file__).read_text()
    assert [file.stem for file in EXAMPLES.glob("*.py") if f'"{file.stem}"' not in text] == []


def test_the_first_refresh(examples: Bench) -> None:
    assert refreshed(examples, "first_refresh", "orders")["rows"] == 700
    assert examples.rows("orders") == [700, 700]


def test_from_postgresql(examples: Bench) -> None:
    assert refreshed(examples, "refresh_shop_orders", "shop_orders")["rows"] == 90
    (row,) = examples.cluster.query(
        "SELECT count() AS rows, countIf(note IS NULL) AS silent, toString(sum(amount)) AS amount, "
        "toString(any(ordered_at)) AS at, countIf(id % 10 = 0) AS cancelled FROM mart.shop_orders",
        node=2,
    )
    assert row == {
        "rows": 90,
        "silent": 30,
        "amount": "1125",
        "at": "2026-01-02 03:04:05.678901",
        "cancelled": 0,
    }


def test_from_all_files_of_a_pattern(examples: Bench, tmp_path: Path) -> None:
    for day in (1, 2):
        file = tmp_path / f"day=2026-01-0{day}" / "part.parquet"
        file.parent.mkdir()
        parquet.write_table(
            pyarrow.table(
                {
                    "at": pyarrow.array(
                        [datetime(2026, 1, day, tzinfo=UTC)] * 3, pyarrow.timestamp("us", "UTC")
                    ),
                    "user_id": pyarrow.array([1, 2, 3], pyarrow.uint64()),
                    "kind": pyarrow.array(["view", "view", "buy"]),
                    "price": pyarrow.array([None, None, Decimal("1.25")], pyarrow.decimal128(12, 2)),
                }
            ),
            file,
        )
    refreshed(examples, "refresh_from_files", "events", files=f"{tmp_path}/day=*/*.parquet")
    sold = examples.cluster.query(
        "SELECT toDate(at) AS day, price FROM mart.events WHERE kind = 'buy' ORDER BY day", node=2
    )
    assert [row["day"] for row in sold] == ["2026-01-01", "2026-01-02"]
    assert [Decimal(str(row["price"])) for row in sold] == [Decimal("1.25")] * 2


def test_from_one_csv_file(examples: Bench, tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text(
        "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
        "origin,dest,air_time,distance,hour,minute,time_hour\n"
        "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z\n"
        "2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z\n"
    )
    refreshed(examples, "cluster_refresh_flights", "flights", file=str(file))
    (gone,) = examples.cluster.query(
        "SELECT flight, arr_delay FROM mart.flights WHERE dep_time IS NULL", node=2
    )
    assert gone == {"flight": 4308, "arr_delay": None}


def test_many_tables(examples: Bench) -> None:
    dag_id = "refresh_many_tables"
    add_example(examples, dag_id)
    run_id = examples.run(dag_id)
    for index, rows in enumerate((2, 3)):
        published = examples.receipt(dag_id, run_id, "one_table.cluster_refresh.publish", index)
        assert_receipt(published, rows)
    assert (examples.rows("country_summary"), examples.rows("city_summary")) == ([2, 2], [3, 3])


def test_an_asset_downstream(examples: Bench) -> None:
    dag_id, consumer = "refresh_with_asset", "refresh_with_asset_consumer"
    published = refreshed(examples, dag_id, "prices")
    path = f"/dags/{consumer}/dagRuns"
    wait_until(lambda: bool(examples.airflow.api("GET", path)["dag_runs"]), timeout=60)
    [run] = examples.airflow.api("GET", path)["dag_runs"]
    assert examples.airflow.wait_run(consumer, run["dag_run_id"], RUN_SECONDS) == "success"
    told = examples.airflow.xcom(consumer, run["dag_run_id"], "what_is_new")
    assert told == [f"80 prices of operation {published['operation_id']}"]


def test_on_replicas_that_do_not_replicate(examples: Bench) -> None:
    """The cluster `independent` is the same servers, told to replicate nothing."""
    published = refreshed(examples, "refresh_independent_replicas", "exchange_rates")
    assert published["rows"] == 12
    assert examples.rows("exchange_rates") == [12, 12]
    assert len({one["after"]["target"] for one in published["replicas"]}) == 2
    assert published["artifact"]["rows"] == 12


def test_on_kubernetes_but_for_kubernetes(examples: Bench) -> None:
    """The executor here takes no notice of the pod's template."""
    assert refreshed(examples, "refresh_on_kubernetes", "visits")["rows"] == 31


def test_the_example_of_an_audit_keeps_wrong_rows_from_going_live(
    examples: Bench, bench: Bench, tmp_path: Path
) -> None:
    dag_id = "write_audit_publish_orders"
    add_example(examples, dag_id)

    def orders(*ids: int) -> str:
        file = tmp_path / f"{'-'.join(map(str, ids))}.parquet"
        parquet.write_table(
            pyarrow.table(
                {
                    "id": pyarrow.array(ids, pyarrow.uint64()),
                    "customer_id": pyarrow.array([1] * len(ids), pyarrow.uint64()),
                    "ordered_at": pyarrow.array(
                        [datetime(2026, 1, 2, tzinfo=UTC)] * len(ids), pyarrow.timestamp("s", "UTC")
                    ),
                    "amount": pyarrow.array([Decimal("9.99")] * len(ids), pyarrow.decimal128(12, 2)),
                }
            ),
            file,
        )
        return str(file)

    bench.run(dag_id, file=orders(1, 2, 3))
    assert bench.rows("orders") == [3, 3]

    since = bench.cluster.last_statement()
    run_id = bench.run(dag_id, expect="failed", file=orders(4, 4, 5, 6))
    assert bench.tries(dag_id, run_id, "audit") == 1
    assert "nobody has seen them" in bench.log(dag_id, run_id, "audit")
    assert bench.airflow.task_instance(dag_id, run_id, "publish").state == "upstream_failed"
    assert (bench.sent(SWAP, since), bench.rows("orders")) == (0, [3, 3])

    # The rows that were refused are in nobody's way.
    run_id = bench.run(dag_id, file=orders(4, 5, 6))
    assert bench.receipt(dag_id, run_id, "cleanup")["state"] == "COMPLETED_RETAINING"
    assert bench.rows("orders") == [3, 3]
    assert len(bench.tables()) == 2


def test_the_example_of_a_query_on_the_server(examples: Bench, bench: Bench) -> None:
    dag_id = "cluster_refresh_daily_summary"
    add_example(examples, dag_id)
    bench.cluster.execute(
        f"CREATE TABLE {bench.database}.flights ON CLUSTER {CLUSTER_NAME} "
        "(carrier LowCardinality(String), arr_delay Nullable(Int16)) "
        "ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}') ORDER BY carrier"
    )
    bench.cluster.execute(
        f"INSERT INTO {bench.database}.flights SELECT if(number % 2, 'AA', 'UA'), number FROM numbers(40)"
    )
    bench.run(dag_id)
    live = bench.cluster.query(
        f"SELECT carrier, flights, late, longest_delay FROM {bench.database}.carriers ORDER BY carrier",
        node=2,
    )
    assert live == [
        {"carrier": "AA", "flights": 20, "late": 12, "longest_delay": 39},
        {"carrier": "UA", "flights": 20, "late": 12, "longest_delay": 38},
    ]
