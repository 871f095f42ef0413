"""Refresh a table of orders from a query on the same cluster.

The DAG of ``scripts/demo --ui``. Which table is a parameter of the run, so that each can be seen in a state of
its own.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, cluster_refresh

with DAG(
    dag_id="refresh_orders",
    schedule=None,
    catchup=False,
    params={
        "table": Param(
            "orders_published", type="string", enum=["orders_published", "orders_waiting", "orders_held"]
        )
    },
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["dpone", "demo"],
    doc_md=__doc__,
):
    cluster_refresh(
        group_id="orders",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="analytics",
            database="mart",
            table="{{ params.table }}",
            max_source_bytes=1 * GiB,
        ),
        source=SqlSource("SELECT id, customer, amount FROM mart_raw.orders"),
        # While a replica is late, the task waits in the triggerer.
        publish_kwargs={"deferrable": True},
    )
