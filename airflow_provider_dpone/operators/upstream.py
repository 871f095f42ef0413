"""Which stage task a publish or cleanup task belongs to, where the DAG's author doesn't say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.compat import AirflowException
from airflow_provider_dpone.operators.base import RefreshOperator
from airflow_provider_dpone.operators.stage import StageOperator
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.values import ClusterRefresh

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dpone.operators.base import RefreshArgument
    from airflow_provider_dpone.publication.receipt import StageReceipt


class StagedOperator(RefreshOperator):
    """An operator that goes on from what a stage task has staged.

    :param staged: the stage task's output. Without it, the one stage task upstream that has the same
        target is taken; the DAG doesn't parse if there is none or more than one.
    """

    template_fields = (*RefreshOperator.template_fields, "staged")

    def __init__(
        self,
        *,
        refresh: RefreshArgument,
        staged: Mapping[str, Any] | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(refresh=refresh, **kwargs)
        self.staged = staged

    def resolve_template_files(self) -> None:
        """Find the stage task, too: Airflow calls this when the whole DAG is known.

        :raises AirflowException: there is not exactly one.
        """
        if self.staged is None:
            stage = self._stage_upstream(compare=True)
            if stage.is_mapped:
                raise AirflowException(
                    f"{self._title} needs staged=...: its stage task {stage.task_id!r} is mapped, so it has "
                    f"one output per index. Expand both over the same list, or map over the output: "
                    f"{type(self).__name__}.partial(...).expand(staged=...)."
                )
            self.staged = stage.output
        super().resolve_template_files()

    def staged_receipt(self, context: Context, refresh: ClusterRefresh) -> StageReceipt:
        """Return what was staged, after Airflow has rendered the fields.

        :raises Stopped: ``BAD_INPUT``: it is no stage task's output, or was staged for another table.
        """
        from airflow_provider_dpone.publication.receipt import load_stage_receipt

        value = self.staged if self.staged is not None else self._pull(context)
        receipt = load_stage_receipt(value)
        staged = (receipt.cluster, receipt.database, receipt.table)
        if staged != (refresh.cluster, refresh.database, refresh.table):
            raise Stopped(
                Stop(
                    Code.BAD_INPUT,
                    f"staged is for {receipt.database}.{receipt.table} on cluster {receipt.cluster!r}, but "
                    f"refresh is for {refresh.database}.{refresh.table} on cluster {refresh.cluster!r}.",
                )
            )
        return receipt

    def _pull(self, context: Context) -> Any:
        """Fetch the output of the stage task upstream: this task is mapped, or its DAG was never loaded."""
        with bad_input():
            try:
                stage = self._stage_upstream(compare=False)
            except AirflowException as error:
                raise ValueError(str(error)) from None
        ti = context["ti"]
        if stage.is_mapped or stage.get_closest_mapped_task_group() is not None:
            return ti.xcom_pull(task_ids=stage.task_id, map_indexes=ti.map_index)
        return ti.xcom_pull(task_ids=stage.task_id)

    def _stage_upstream(self, *, compare: bool) -> Any:
        """Return the one stage task upstream, an operator or a mapped one.

        :param compare: take only those with the same target. Once fields are rendered, there is nothing
            to compare with.
        """
        dag = self.get_dag()
        if dag is None:
            raise AirflowException(f"{self._title} needs staged=..., because it is in no DAG.")
        stages = [
            task
            for task in dag.get_task(self.task_id).get_flat_relatives(upstream=True)
            if issubclass(getattr(task, "operator_class", type(task)), StageOperator)
        ]
        if compare:
            stages = [stage for stage in stages if _target(_refresh_of(stage)) == _target(self.refresh)]
        match stages:
            case [stage]:
                return stage
            case []:
                raise AirflowException(
                    f"{self._title} has no stage task of the same table upstream. Write stage >> "
                    f"{self.task_id.rpartition('.')[2]}, or give it staged=stage.output."
                )
            case _:
                names = ", ".join(sorted(repr(stage.task_id) for stage in stages))
                raise AirflowException(
                    f"{self._title} has more than one stage task upstream: {names}. Say which one: "
                    "staged=stage.output."
                )

    @property
    def _title(self) -> str:
        dag = self.get_dag()
        where = f" of DAG {dag.dag_id!r}" if dag is not None else ""
        return f"{type(self).__name__} {self.task_id!r}{where}"


def _refresh_of(stage: Any) -> Any:
    if not stage.is_mapped:
        return stage.refresh
    return stage.partial_kwargs.get("refresh")


def _target(refresh: Any) -> Any:
    """What two tasks must have in common, as it is written: templates are compared as templates."""
    match refresh:
        case ClusterRefresh():
            return refresh.cluster, refresh.database, refresh.table
        case Mapping():
            return refresh.get("cluster"), refresh.get("database"), refresh.get("table")
        case _:
            return refresh
