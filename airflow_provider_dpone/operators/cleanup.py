"""Clean up: free the target for the next operation, and drop the table that was replaced."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.compat import AirflowRescheduleException
from airflow_provider_dpone.operators.outcome import airflow_outcome
from airflow_provider_dpone.operators.upstream import StagedOperator
from airflow_provider_dpone.operators.xcom import for_xcom

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dpone.operators.base import RefreshArgument

LONGEST_SLEEP: Final = timedelta(hours=1)
"""A waiting cleanup looks again at least this often: a later refresh may have taken the wait over."""


class CleanupOperator(StagedOperator):
    """Drop the replaced table where it is proven to be that very table, and free the target.

    With ``retain_predecessor`` in the refresh, the target is freed at once, and the task waits by being
    rescheduled, without a worker slot, until the replaced table is due or a later refresh of the table has
    taken it over. A DAG without a cleanup task works as well: the next refresh does what is due. Its output
    is the publication receipt, with the tables that still exist.

    :param refresh: which table; a value, or a dict with the same names.
    :param staged: the stage task's output; the one stage task of the same table upstream by default.
    :param wait: wait until a kept table is due. ``False`` leaves it to the next refresh, so that the DAG run
        ends.
    """

    ui_color = "#f4f0e6"
    # The scheduler asks this of a task before it heeds the time for which the task was rescheduled.
    reschedule = True

    def __init__(
        self,
        *,
        refresh: RefreshArgument,
        staged: Mapping[str, Any] | XComArg | None = None,
        wait: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(refresh=refresh, staged=staged, **kwargs)
        self.wait = wait

    def execute(self, context: Context) -> dict[str, Any]:
        """Clean up, and return the publication receipt.

        :raises AirflowRescheduleException: a kept table is not due yet.
        :raises AirflowException: what stopped it. The publication itself is successful.
        """
        from airflow_provider_dpone import composition
        from airflow_provider_dpone.operators import notes
        from airflow_provider_dpone.operators.pointer import point_at
        from airflow_provider_dpone.routes.cluster_refresh import CleanupRequest, cleanup

        with airflow_outcome():
            refresh = self.rendered_refresh()
            staged = self.staged_receipt(context, refresh)
            with bad_input():
                waits = composition.waits()
            self._say(notes.begins("Cleaning up after the refresh of", refresh))
            with self.connected(context, refresh) as connected:
                done = cleanup(
                    connected.ports,
                    connected.site,
                    CleanupRequest(staged.operation_id, staged.candidate),
                    waits,
                )
            self._say(notes.cleaned(done.receipt))
            point_at(context, done.receipt)
            if done.next_due is None or not self.wait:
                return for_xcom(done.receipt)
            # A second more, because the server's time is in whole seconds.
            sleep = min(timedelta(seconds=done.next_due + 1), LONGEST_SLEEP)
            self._say(
                f"The next table is due in {done.next_due} s. This task looks again in {sleep.total_seconds():.0f} s, "
                "and needs no worker slot until then."
            )
            raise AirflowRescheduleException(datetime.now(UTC) + sleep)  # type: ignore[no-untyped-call]

    def on_kill(self) -> None:
        """Say what is true: the publication stands, and a drop can't be called back."""
        self._say(
            "Asked to end. The publication stands. A drop of the replaced table that was sent can't be recalled; one "
            "that was not is left to a retry or to the next run."
        )
