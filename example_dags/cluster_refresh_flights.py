"""Refresh a table of a ClickHouse cluster from a file.

The first run publishes to a table that doesn't exist yet, which is why the structure is given. Every later
run loads the file into a candidate, compares it on all replicas, swaps it in with one ``EXCHANGE`` and drops
the table that it replaced. Readers see the old rows or the new ones, and nothing in between.

Run parameters choose the file, the cluster and the table.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG, Param

from airflow_provider_dpone import ClusterRefresh, FileSource, GiB, TableStructure, cluster_refresh

FLIGHTS = TableStructure(
    columns={
        "year": "UInt16",
        "month": "UInt8",
        "day": "UInt8",
        "dep_time": "Nullable(UInt16)",
        "sched_dep_time": "UInt16",
        "dep_delay": "Nullable(Int16)",
        "arr_time": "Nullable(UInt16)",
        "sched_arr_time": "UInt16",
        "arr_delay": "Nullable(Int16)",
        "carrier": "LowCardinality(String)",
        "flight": "UInt16",
        "tailnum": "Nullable(String)",
        "origin": "LowCardinality(String)",
        "dest": "LowCardinality(String)",
        "air_time": "Nullable(UInt16)",
        "distance": "UInt16",
        "hour": "UInt8",
        "minute": "UInt8",
        "time_hour": "DateTime('UTC')",
    },
    order_by=["origin", "time_hour", "carrier", "flight"],
    partition_by="month",
)

with DAG(
    dag_id="cluster_refresh_flights",
    schedule=None,
    catchup=False,
    params={
        "file": Param(os.environ.get("DPONE_EXAMPLE_FLIGHTS", "/data/flights.csv"), type="string"),
        "cluster": Param("analytics", type="string"),
        "database": Param("mart", type="string"),
        "table": Param("flights", type="string"),
    },
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_cluster_refresh]
    cluster_refresh(
        group_id="flights",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="{{ params.cluster }}",
            database="{{ params.database }}",
            table="{{ params.table }}",
            max_source_bytes=1 * GiB,
            structure=FLIGHTS,
        ),
        source=FileSource(path="{{ params.file }}", format="CSV", options={"null": "NA"}),
    )
    # [END howto_cluster_refresh]
