"""Refresh a table from all Parquet files of a folder, wherever Airflow's object storage reaches.

All files of the pattern are one source: they go live together, or none of them does.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_dpone import ClusterRefresh, FileSource, GiB, TableStructure, cluster_refresh

with DAG(
    dag_id="refresh_from_files",
    schedule=None,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    # For a bucket: "s3://archive/events/day=*/*.parquet", and the storage's connection as `conn_id`.
    params={"files": Param("/data/events/day=*/*.parquet", type="string")},
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_files]
    cluster_refresh(
        group_id="events",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="analytics",
            database="mart",
            table="events",
            max_source_bytes=50 * GiB,
            structure=TableStructure(
                columns={
                    "at": "DateTime64(6, 'UTC')",
                    "user_id": "UInt64",
                    "kind": "LowCardinality(String)",
                    "price": "Nullable(Decimal(12, 2))",
                },
                order_by=["kind", "at"],
                partition_by="toYYYYMM(at)",
            ),
        ),
        source=FileSource("{{ params.files }}"),
    )
    # [END howto_files]
