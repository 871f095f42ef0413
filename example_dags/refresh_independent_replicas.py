"""Refresh a table on a cluster whose replicas hold independent tables: nothing copies rows from one to another.

The source is read once and sealed. Every replica is loaded from that by itself, and one statement makes the new rows
live on all of them.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, TableStructure, cluster_refresh

with DAG(
    dag_id="refresh_independent_replicas",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    # A retry reads nothing again and loads nothing twice: it goes on with the replicas that are not ready.
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_independent_replicas]
    cluster_refresh(
        group_id="exchange_rates",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_independent",
            cluster="independent",
            database="mart",
            table="exchange_rates",
            replication_mode="external",
            # Of the source, and of the sealed rows.
            max_source_bytes=2 * GiB,
            structure=TableStructure(
                columns={"day": "Date", "currency": "LowCardinality(String)", "rate": "Decimal(18, 6)"},
                order_by=["currency", "day"],
            ),
        ),
        source=SqlSource("SELECT day, currency, rate FROM mart_raw.exchange_rates"),
    )
    # [END howto_independent_replicas]
