"""Refreshes from a query on PostgreSQL, from any other database, and from many files."""

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_dpone import ClusterRefresh, FileSource, GiB, SqlSource, TableStructure, cluster_refresh


def orders(table: str) -> ClusterRefresh:
    """The value that all three differ from only by the table's name."""
    return ClusterRefresh(
        clickhouse_conn_id="clickhouse_default",
        cluster="analytics",
        database="mart",
        table=table,
        max_source_bytes=20 * GiB,
        structure=TableStructure(
            columns={
                "id": "UInt64",
                "customer": "LowCardinality(String)",
                "amount": "Decimal(12, 2)",
                "ordered_at": "DateTime64(6, 'UTC')",
            },
            order_by=["customer", "ordered_at"],
        ),
    )


with DAG("orders_from_postgres", start_date=datetime(2026, 1, 1), schedule="@daily"):
    # [START postgres]
    cluster_refresh(
        group_id="refresh",
        refresh=orders("orders"),
        source=SqlSource(
            "SELECT id, customer, amount, ordered_at FROM shop.orders WHERE ordered_at < %(until)s::date",
            conn_id="shop_postgres",
            parameters={"until": "{{ ds }}"},
        ),
    )
    # [END postgres]

with DAG("orders_from_sql_server", start_date=datetime(2026, 1, 1), schedule="@daily"):
    # [START driver]
    cluster_refresh(
        group_id="refresh",
        refresh=orders("orders_legacy"),
        source=SqlSource(
            "SELECT id, customer, amount, ordered_at FROM dbo.orders WHERE region = %s",
            conn_id="legacy_mssql",
            parameters=["north"],
            batch_rows=20_000,
        ),
    )
    # [END driver]

with DAG("orders_from_files", start_date=datetime(2026, 1, 1), schedule="@daily"):
    # [START files]
    cluster_refresh(
        group_id="refresh",
        refresh=orders("orders_archive"),
        source=FileSource("s3://archive/orders/day=*/*.parquet", conn_id="archive_s3"),
    )
    # [END files]
