"""Refresh a table every night from a query on PostgreSQL.

The rows go as PostgreSQL's own ``COPY`` stream straight into ClickHouse, where every column is exact that way.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, TableStructure, cluster_refresh

with DAG(
    dag_id="refresh_shop_orders",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_postgres]
    cluster_refresh(
        group_id="shop_orders",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="analytics",
            database="mart",
            table="shop_orders",
            max_source_bytes=20 * GiB,
            structure=TableStructure(
                columns={
                    "id": "UInt64",
                    "customer": "LowCardinality(String)",
                    "amount": "Decimal(12, 2)",
                    "note": "Nullable(String)",
                    "ordered_at": "DateTime64(6, 'UTC')",
                },
                order_by=["customer", "ordered_at"],
            ),
        ),
        source=SqlSource(
            """
            SELECT id, customer, amount, note, ordered_at
            FROM shop.orders
            WHERE status <> %(without)s
            """,
            conn_id="shop_postgres",
            parameters={"without": "cancelled"},
        ),
        # Half of the orders gone? Then something is wrong with the source, and nothing goes live.
        publish_kwargs={"max_shrink": 0.5},
    )
    # [END howto_postgres]
