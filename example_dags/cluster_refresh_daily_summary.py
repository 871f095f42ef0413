"""Rebuild a summary table every day from tables of the same ClickHouse.

The query runs on the server as ``INSERT ... SELECT``; no row passes through Airflow. Runs are ordered by the
end of their data interval: a backfill of an old day never goes live over a newer summary.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, TableStructure, cluster_refresh

with DAG(
    dag_id="cluster_refresh_daily_summary",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    params={
        "cluster": Param("analytics", type="string"),
        "database": Param("mart", type="string"),
    },
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_sql_source]
    cluster_refresh(
        group_id="carriers",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="{{ params.cluster }}",
            database="{{ params.database }}",
            table="carriers",
            max_source_bytes=1 * GiB,
            structure=TableStructure(
                columns={
                    "carrier": "LowCardinality(String)",
                    "flights": "UInt64",
                    "late": "UInt64",
                    "longest_delay": "Nullable(Int16)",
                },
                order_by="carrier",
            ),
        ),
        source=SqlSource(
            """
            SELECT carrier,
                   count()                   AS flights,
                   countIf(arr_delay > 15)   AS late,
                   max(arr_delay)            AS longest_delay
            FROM {{ params.database }}.flights
            GROUP BY carrier
            """
        ),
        stage_kwargs={"on_busy": "wait", "busy_timeout": timedelta(minutes=30)},
        publish_kwargs={"max_shrink": 0.5},
    )
    # [END howto_sql_source]
