"""The three tasks of a refresh as one task group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dpone.operators.base import RefreshArgument
    from airflow_provider_dpone.sources import Source


def cluster_refresh(
    *,
    refresh: RefreshArgument,
    source: Source | Mapping[str, Any] | XComArg,
    group_id: str = "cluster_refresh",
    stage_kwargs: Mapping[str, Any] | None = None,
    publish_kwargs: Mapping[str, Any] | None = None,
    cleanup_kwargs: Mapping[str, Any] | None = None,
    **group_kwargs: Any,
) -> TaskGroup:
    """Stage, publish and clean up: ``stage >> publish >> cleanup``.

    :param refresh: which table; a value, or a dict with the same names.
    :param source: where the rows come from; a value, or a dict with the same names.
    :param group_id: the group's id; the tasks in it are ``stage``, ``publish`` and ``cleanup``.
    :param stage_kwargs: further arguments of ``StageOperator``, such as ``on_busy``.
    :param publish_kwargs: further arguments of ``PublishOperator``, such as ``min_rows``.
    :param cleanup_kwargs: further arguments of ``CleanupOperator``, such as ``wait``.
    :param group_kwargs: further arguments of the task group, such as ``tooltip`` or ``default_args``.
    """
    with TaskGroup(group_id=group_id, **group_kwargs) as group:
        stage = StageOperator(
            **{"task_id": "stage", "refresh": refresh, "source": source, **(stage_kwargs or {})}
        )
        staged = stage.output
        publish = PublishOperator(
            **{"task_id": "publish", "refresh": refresh, "staged": staged, **(publish_kwargs or {})}
        )
        cleanup = CleanupOperator(
            **{"task_id": "cleanup", "refresh": refresh, "staged": staged, **(cleanup_kwargs or {})}
        )
        stage >> publish >> cleanup
    return group
