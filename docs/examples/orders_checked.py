"""The three tasks written out, with a check between stage and publish."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator

REFRESH = ClusterRefresh(
    clickhouse_conn_id="clickhouse_default",
    cluster="analytics",
    database="mart",
    table="orders",
    max_source_bytes=2 * GiB,
    retain_predecessor=timedelta(days=2),
)


# [START check]
@task
def no_negative_amount(staged: dict[str, Any]) -> None:
    """Look at the rows before they are live."""
    from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook

    hook = DponeClickHouseHook("clickhouse_default")
    [found] = hook.read(f"SELECT countIf(amount < 0) AS wrong FROM {staged['candidate_sql']}")
    if found["wrong"]:
        raise ValueError(f"{found['wrong']} orders have a negative amount")


# [END check]


with DAG("orders_checked", schedule="@daily", catchup=False, default_args={"retries": 3}):
    # [START tasks]
    stage = StageOperator(
        task_id="stage",
        refresh=REFRESH,
        source=SqlSource("SELECT id, customer, amount FROM mart_raw.orders"),
        on_busy="wait",
    )
    publish = PublishOperator(task_id="publish", refresh=REFRESH, min_rows=1000, max_shrink=0.2)
    cleanup = CleanupOperator(task_id="cleanup", refresh=REFRESH, wait=False)

    stage >> no_negative_amount(stage.output) >> publish >> cleanup
    # [END tasks]
