"""Refresh a table every day from a query on the same cluster."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, TableStructure, cluster_refresh

with DAG("orders", schedule="@daily", catchup=False, default_args={"retries": 3}):
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
