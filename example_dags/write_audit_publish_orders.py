"""Write, audit, publish: check the new rows before anybody can read them.

``stage`` loads the file into a candidate beside the live table and hands its quoted name to the audit. Only
if the audit finds nothing wrong, ``publish`` makes the candidate live. A failed audit leaves the live table as
it is; the next run's stage takes the candidate's place.

The audit is a plain task with the provider's hook. If the official ClickHouse provider is installed and the
connection is of its type, ``SQLColumnCheckOperator`` and ``SQLTableCheckOperator`` can stand there as well.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_dpone import ClusterRefresh, FileSource, GiB, TableStructure
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator

CONN_ID = "clickhouse_default"

ORDERS = ClusterRefresh(
    clickhouse_conn_id=CONN_ID,
    cluster="{{ params.cluster }}",
    database="{{ params.database }}",
    table="orders",
    max_source_bytes=1 * GiB,
    structure=TableStructure(
        columns={
            "id": "UInt64",
            "customer_id": "UInt64",
            "ordered_at": "DateTime('UTC')",
            "amount": "Decimal(12, 2)",
        },
        order_by=["customer_id", "ordered_at"],
    ),
    # The table that was live before can be looked at, or published again, for another day.
    retain_predecessor=timedelta(days=1),
)

with DAG(
    dag_id="write_audit_publish_orders",
    schedule=None,
    catchup=False,
    params={
        "file": Param("/data/orders.parquet", type="string"),
        "cluster": Param("analytics", type="string"),
        "database": Param("mart", type="string"),
    },
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_write_audit_publish]
    stage = StageOperator(
        task_id="stage", refresh=ORDERS, source=FileSource(path="{{ params.file }}"), on_busy="wait"
    )

    # Rows that are wrong are as wrong in a second try.
    @task(retries=0)
    def audit(staged: dict[str, Any]) -> None:
        """Look at the candidate with whatever SQL it takes."""
        (found,) = DponeClickHouseHook(CONN_ID).read(
            "SELECT count() AS rows, uniqExact(id) AS ids, countIf(amount < 0) AS negative, "
            f"countIf(ordered_at > now()) AS future FROM {staged['candidate_sql']}"
        )
        if found["ids"] != found["rows"] or found["negative"] or found["future"]:
            raise ValueError(f"The new orders are wrong, and nobody has seen them: {found}")

    # `staged` needs no word: the stage task of the same table upstream is meant.
    publish = PublishOperator(task_id="publish", refresh=ORDERS, max_shrink=0.2)
    # The DAG run ends at once; the next refresh drops the kept table when its day is over.
    cleanup = CleanupOperator(task_id="cleanup", refresh=ORDERS, wait=False)

    audit(stage.output) >> publish >> cleanup
    # [END howto_write_audit_publish]
