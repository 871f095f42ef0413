"""Publish: make the staged candidate live, once, and prove it on every replica."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.operators.outcome import airflow_outcome
from airflow_provider_dpone.operators.stage import positive
from airflow_provider_dpone.operators.upstream import StagedOperator
from airflow_provider_dpone.operators.xcom import for_xcom

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dpone.operators.base import RefreshArgument


class PublishOperator(StagedOperator):
    """Swap the staged candidate in on every replica with one statement, and prove what each replica holds.

    The statement is sent at most once, over all tries. A retry observes first. Clearing the task alone
    resumes the operation, or answers with its old receipt (``replayed``). Its output is the publication
    receipt: what is proven about each replica.

    :param refresh: which table; a value, or a dict with the same names.
    :param staged: the stage task's output; the one stage task of the same table upstream by default.
    :param allow_empty: let an empty candidate go live.
    :param min_rows: fewest rows that may go live.
    :param max_shrink: largest share (0 to 1) of the live table's rows that may be missing.
    :param publish_timeout: how long to wait for the proof from every replica; option ``publish_timeout`` by
        default. After it the task fails as still running or not observable, with everything kept.
    :raises ValueError: an argument is wrong, seen without a server.
    """

    ui_color = "#e4f5e4"

    def __init__(
        self,
        *,
        refresh: RefreshArgument,
        staged: Mapping[str, Any] | XComArg | None = None,
        allow_empty: bool = False,
        min_rows: int | None = None,
        max_shrink: float | None = None,
        publish_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(refresh=refresh, staged=staged, **kwargs)
        if min_rows is not None and (isinstance(min_rows, bool) or min_rows < 0):
            raise ValueError("min_rows must be a number of rows")
        if max_shrink is not None and not 0 <= max_shrink <= 1:
            raise ValueError("max_shrink must be a share between 0 and 1")
        positive(publish_timeout, "publish_timeout")
        self.allow_empty = allow_empty
        self.min_rows = min_rows
        self.max_shrink = max_shrink
        self.publish_timeout = publish_timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, and return the publication receipt.

        :raises AirflowException: what stopped it, what is known per replica, and what is safe next.
        """
        from airflow_provider_dpone import composition
        from airflow_provider_dpone.publication.decide import Guards
        from airflow_provider_dpone.routes.cluster_refresh import PublishRequest, publish

        with airflow_outcome():
            refresh = self.rendered_refresh()
            staged = self.staged_receipt(context, refresh)
            with bad_input():
                waits = composition.waits(publish=self.publish_timeout)
            with self.connected(context, refresh) as connected:
                receipt = publish(
                    connected.ports,
                    connected.site,
                    PublishRequest(
                        staged.operation_id,
                        Guards(self.allow_empty, self.min_rows, self.max_shrink),
                        candidate_uuid=staged.candidate_uuid,
                    ),
                    waits,
                )
            return for_xcom(receipt)
