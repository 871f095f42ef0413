"""Refresh many tables with one DAG: a task group of each table's own, by dynamic task mapping.

The list is made when the run begins. A table that fails does not disturb the others, and is cleared by itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task, task_group

from airflow_provider_dpone import GiB, cluster_refresh

with DAG(
    dag_id="refresh_many_tables",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    # So many tasks at a time: the cluster has other things to do, too.
    max_active_tasks=8,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_many_tables]
    @task
    def tables() -> list[dict[str, Any]]:
        """What there is to do; this could as well be read from a file or a catalog."""
        columns = {"name": "String", "people": "UInt64"}
        wanted = {"country": "code", "city": "id"}
        return [
            {
                "refresh": {
                    "clickhouse_conn_id": "clickhouse_default",
                    "cluster": "analytics",
                    "database": "mart",
                    "table": f"{table}_summary",
                    "max_source_bytes": 1 * GiB,
                    "structure": {"columns": {key: "String", **columns}, "order_by": [key]},
                },
                "source": {"sql": f"SELECT {key}, name, people FROM mart_raw.{table}"},
            }
            for table, key in wanted.items()
        ]

    @task_group
    def one_table(refresh: Any, source: Any) -> None:
        cluster_refresh(refresh=refresh, source=source)

    one_table.expand_kwargs(tables())
    # [END howto_many_tables]
