"""Refresh a table every day from a query on the same cluster.

The query runs on the server as ``INSERT ... SELECT``; no row passes through Airflow.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, TableStructure, cluster_refresh

with DAG(
    dag_id="first_refresh",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    # A retry never sends the swap again: it goes on from what it finds.
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    cluster_refresh(
        group_id="orders",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="analytics",
            database="mart",
            table="orders",
            max_source_bytes=2 * GiB,
            # Needed as long as the table doesn't exist.
            structure=TableStructure(
                columns={"id": "UInt64", "customer": "String", "amount": "Decimal(18, 2)"},
                order_by=["id"],
            ),
        ),
        source=SqlSource("SELECT id, customer, amount FROM mart_raw.orders"),
    )
