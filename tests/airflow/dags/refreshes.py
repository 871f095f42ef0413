"""Refreshes that the tests run on a real scheduler and a real cluster. Each run says which database it is about."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Context, Param, get_current_context, task, task_group

from airflow_provider_dpone import ClusterRefresh, MiB, SqlSource, TableStructure, cluster_refresh
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator

CONN_ID = "refreshes"
STRUCTURE = TableStructure(columns={"id": "UInt64", "name": "String"}, order_by="id")
ROWS = SqlSource("SELECT number AS id, toString(number) AS name FROM numbers({{ params.rows }})")
RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=1)}
PARAMS: Any = {"database": Param("mart", type="string"), "rows": 1000, "file": "/nowhere.csv"}


def refresh(table: str, **more: Any) -> ClusterRefresh:
    return ClusterRefresh(
        CONN_ID,
        "analytics",
        "{{ params.database }}",
        table,
        max_source_bytes=64 * MiB,
        structure=STRUCTURE,
        **more,
    )


def dag(dag_id: str) -> DAG:
    return DAG(dag_id, schedule=None, params=PARAMS, default_args=RETRIES)


# Dicts in place of values, templates in both.
with dag("refresh_from_file"):
    cluster_refresh(
        group_id="orders",
        refresh={**refresh("{{ 'or' ~ 'ders' }}").serialize(), "structure": STRUCTURE.serialize()},
        source={"path": "{{ params.file }}", "format": "CSV"},
    )

# Rows of another database, with a bound parameter that is a template.
with dag("refresh_from_postgres"):
    cluster_refresh(
        group_id="orders",
        refresh=refresh("orders"),
        source=SqlSource(
            "SELECT i AS id, 'name ' || i AS name FROM generate_series(1, %(rows)s::int) i",
            conn_id="shop",
            parameters={"rows": "{{ params.rows }}"},
        ),
    )

# Nobody says `staged`, and a check on the candidate stands in between.
with dag("refresh_checked"):

    @task
    def check(staged: dict[str, Any]) -> int:
        (row,) = DponeClickHouseHook(CONN_ID).read(f"SELECT count() AS rows FROM {staged['candidate_sql']}")
        return int(row["rows"])

    stage = StageOperator(task_id="stage", refresh=refresh("checked"), source=ROWS)
    publish = PublishOperator(task_id="publish", refresh=refresh("checked"), max_shrink=0.5)
    checked: Any = check(stage.output)  # type: ignore[arg-type]
    checked >> publish >> CleanupOperator(task_id="cleanup", refresh=refresh("checked"))

with dag("refresh_mapped"):
    tables: Any = [refresh("first"), refresh("second")]
    mapped = StageOperator.partial(task_id="stage", source=ROWS).expand(refresh=tables)
    mapped >> PublishOperator.partial(task_id="publish").expand(refresh=tables)

with dag("refresh_too_small"):
    cluster_refresh(
        group_id="small", refresh=refresh("small"), source=ROWS, publish_kwargs={"min_rows": 1_000_000}
    )

with dag("refresh_kept"):
    cluster_refresh(
        group_id="kept", refresh=refresh("kept", retain_predecessor=timedelta(seconds=12)), source=ROWS
    )

with dag("refresh_deferred"):
    cluster_refresh(
        group_id="late",
        refresh=refresh("late"),
        source=ROWS,
        publish_kwargs={"deferrable": True, "outlets": [Asset("dpone_late")]},
    )

with dag("refresh_first_try_lost"):

    class Forgetful(StageOperator):
        """Loses its own worker's word after the work was done, in its first try."""

        def execute(self, context: Context) -> dict[str, Any]:
            receipt = super().execute(context)
            if get_current_context()["ti"].try_number == 1:
                raise RuntimeError("the worker was lost after it had staged")
            return receipt

    forgetful = Forgetful(task_id="stage", refresh=refresh("lost"), source=ROWS)
    forgetful >> PublishOperator(task_id="publish", refresh=refresh("lost"))

# As many tables as a run asks for, each with tasks of its own, eight tasks at a time; the source of one may fail.
with DAG("refresh_many", schedule=None, params={**PARAMS, "tables": 50, "bad": -1}, max_active_tasks=8):

    @task
    def tables_of_the_run() -> list[str]:
        wanted: int = get_current_context()["params"]["tables"]
        return [f"many_{number:02}" for number in range(wanted)]

    @task_group
    def one(table: str) -> None:
        cluster_refresh(
            group_id="refresh",
            refresh={**refresh("each").serialize(), "structure": STRUCTURE.serialize(), "table": table},
            source=SqlSource(
                "SELECT number AS id, toString(throwIf({{ ti.map_index }} = {{ params.bad }})) AS name "
                "FROM numbers({{ params.rows }})"
            ),
        )

    one.expand(table=tables_of_the_run())
