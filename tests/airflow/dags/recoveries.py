"""Refreshes whose workers, triggerer or time come to an end. A DAG's name is the name of its table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_dpone import ClusterRefresh, MiB, SqlSource, TableStructure
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator

ROWS = SqlSource("SELECT number AS id FROM numbers({{ params.rows }})")
PARAMS: Any = {"database": Param("mart", type="string"), "rows": 10}


def recovery(
    dag_id: str,
    table: str,
    *,
    retries: int = 2,
    stage: dict[str, Any] | None = None,
    publish: dict[str, Any] | None = None,
) -> None:
    """Define one DAG: stage, publish and clean up."""
    refresh = ClusterRefresh(
        "refreshes",
        "analytics",
        "{{ params.database }}",
        table,
        max_source_bytes=MiB,
        structure=TableStructure(columns={"id": "UInt64"}, order_by="id"),
    )
    defaults = {"retries": retries, "retry_delay": timedelta(seconds=1)}
    with DAG(dag_id, schedule=None, params=PARAMS, default_args=defaults):
        staged = StageOperator(task_id="stage", refresh=refresh, source=ROWS, **(stage or {}))
        published = PublishOperator(task_id="publish", refresh=refresh, **(publish or {}))
        staged >> published >> CleanupOperator(task_id="cleanup", refresh=refresh)


def seconds(number: int) -> timedelta:
    """Return so many seconds."""
    return timedelta(seconds=number)


recovery("worker_killed", "killed")
recovery("worker_cleared", "cleared")
recovery("worker_terminated", "terminated")
recovery("worker_out_of_time", "out_of_time", retries=9, publish={"execution_timeout": seconds(20)})
recovery("worker_lost_before", "lost_before", retries=0)

recovery("out_of_patience", "busy", retries=0, publish={"deferrable": True, "publish_timeout": seconds(20)})
recovery("busy_fails", "busy")
recovery("busy_waits", "busy", stage={"on_busy": "wait", "busy_timeout": seconds(120)})

recovery("triggerer_killed", "triggerer_killed", publish={"deferrable": True})
recovery("triggerer_absent", "triggerer_absent", publish={"deferrable": True})
