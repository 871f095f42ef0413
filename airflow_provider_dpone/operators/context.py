"""What an operation takes from the task that runs it: identity, owner, order, and its name as a writer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dpone.publication.identity import TaskIdentity

if TYPE_CHECKING:
    from airflow_provider_dpone.publication.canonical import Json
    from airflow_provider_dpone.publication.record import Owner

NEW_OPERATION: Final = "new_operation"
"""The run's parameter that makes stage begin a new operation, whatever Airflow says about retries."""


def task_identity(context: Mapping[str, Any], deployment_id: str) -> TaskIdentity:
    """Return the identity of the task that runs.

    The series is ``ti.max_tries``, which no automatic retry changes and a clear does. The run's parameter
    ``new_operation`` is added to it where it is given.

    :param deployment_id: names this Airflow installation.
    """
    ti = context["ti"]
    series = str(ti.max_tries)
    if asked := new_operation(context):
        series = f"{series}/{asked}"
    return TaskIdentity(
        deployment_id=deployment_id,
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=map_index(context),
        series=series,
    )


def new_operation(context: Mapping[str, Any]) -> str:
    """Return the run's parameter ``new_operation`` as text; empty if it is absent, false or empty."""
    conf = getattr(context.get("dag_run"), "conf", None) or {}
    for parameters in (conf, context.get("params") or {}):
        if NEW_OPERATION in parameters and (value := parameters[NEW_OPERATION]):
            return str(value)
    return ""


def map_index(context: Mapping[str, Any]) -> int:
    """Return the mapped task's index, -1 for a task that is not mapped."""
    found: int | None = context["ti"].map_index
    return -1 if found is None else found


def owner(context: Mapping[str, Any]) -> Owner:
    """Return whom people should ask about the operation."""
    from airflow_provider_dpone.publication.record import Owner

    ti = context["ti"]
    return Owner(ti.dag_id, ti.run_id, ti.task_id, map_index(context))


def order_key(context: Mapping[str, Any]) -> str | None:
    """Return the end of the run's data interval as UTC text of one length; ``None`` if it has none."""
    end = context.get("data_interval_end")
    if not isinstance(end, datetime):
        return None
    return end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def about(context: Mapping[str, Any], conn_id: str) -> dict[str, Json]:
    """Return what an entry of evidence says about its writer, for people.

    :param conn_id: the connection that the task uses, so that others can look through it, too. It is no secret.
    """
    ti = context["ti"]
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": map_index(context),
        "try_number": ti.try_number,
        "conn_id": conn_id,
    }


def writer(context: Mapping[str, Any]) -> str:
    """Return the id of this try of the task instance: new for every try, the same over a deferral."""
    return str(context["ti"].id)
