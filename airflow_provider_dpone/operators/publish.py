"""Publish: make the staged candidate live, once, and prove it on every replica."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.operators.outcome import airflow_outcome
from airflow_provider_dpone.operators.stage import positive
from airflow_provider_dpone.operators.upstream import StagedOperator
from airflow_provider_dpone.operators.xcom import for_xcom
from airflow_provider_dpone.publication.stop import Stopped

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dpone.composition import Connected
    from airflow_provider_dpone.operators.base import RefreshArgument
    from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt
    from airflow_provider_dpone.publication.watch import Watch

GRACE: Final = timedelta(minutes=2)
"""How long after the deadline Airflow gives up a deferral that no triggerer has ended."""


class PublishOperator(StagedOperator):
    """Swap the staged candidate in on every replica with one statement, and prove what each replica holds.

    The statement is sent at most once, over all tries. A retry observes first. Clearing the task alone
    resumes the operation, or answers with its old receipt (``replayed``). Its output is the publication
    receipt: what is proven about each replica.

    Airflow's own argument ``outlets`` names the assets that the table stands for. Each gets one event after the
    proof, with ``operation_id``, ``rows``, ``epoch`` and ``replicas`` in its extra; a replayed answer makes none.

    :param refresh: which table; a value, or a dict with the same names.
    :param staged: the stage task's output; the one stage task of the same table upstream by default.
    :param allow_empty: let an empty candidate go live.
    :param min_rows: fewest rows that may go live.
    :param max_shrink: largest share (0 to 1) of the live table's rows that may be missing.
    :param publish_timeout: how long to wait for the proof from every replica; option ``publish_timeout`` by
        default. After it the task fails as still running or not observable, with everything kept. A deferral
        doesn't prolong it.
    :param deferrable: wait in the triggerer when the replicas take longer than option ``min_defer_seconds``;
        ``None``: as Airflow's option ``[operators] default_deferrable`` says.
    :raises ValueError: an argument is wrong, seen without a server.
    """

    ui_color = "#e4f5e4"

    _connected: Connected | None = None
    _receipt: PublicationReceipt | SettledReceipt | None = None

    def __init__(
        self,
        *,
        refresh: RefreshArgument,
        staged: Mapping[str, Any] | XComArg | None = None,
        allow_empty: bool = False,
        min_rows: int | None = None,
        max_shrink: float | None = None,
        publish_timeout: timedelta | None = None,
        deferrable: bool | None = None,
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
        self.deferrable = deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, and return the publication receipt.

        :raises AirflowException: what stopped it, what is known per replica, and what is safe next.
        :raises TaskDeferred: the replicas are still working, and the task is deferrable.
        """
        return self._publish(context, None)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Go on after a deferral: observe anew, as a retry would, and finish.

        :param event: what the trigger ended with. It is no proof of anything.
        :raises AirflowException: as :meth:`execute`.
        :raises TaskDeferred: as :meth:`execute`; the deadline stays what it was.
        """
        from airflow_provider_dpone.publication.watch import load_woken

        woken = load_woken(event)
        if woken is not None:
            self.log.info("Woken: %s.", woken.why.value)
        return self._publish(context, woken.watch if woken is not None else None)

    def _publish(self, context: Context, watched: Watch | None) -> dict[str, Any]:
        """Run the protocol from what is observed now.

        :param watched: what the deferral that just ended waited for.
        """
        from airflow_provider_dpone import composition, options
        from airflow_provider_dpone.operators import metrics, notes
        from airflow_provider_dpone.operators.assets import announce
        from airflow_provider_dpone.operators.context import task_identity
        from airflow_provider_dpone.operators.pointer import leave_pointer, point_at
        from airflow_provider_dpone.publication.decide import Guards
        from airflow_provider_dpone.publication.watch import Watch
        from airflow_provider_dpone.routes.cluster_refresh import HandedOver, PublishRequest, publish

        with airflow_outcome():
            refresh = self.rendered_refresh()
            meter = metrics.Meter(refresh)
            staged = self.staged_receipt(context, refresh)
            with bad_input():
                asker = task_identity(context, options.text(options.DEPLOYMENT_ID)).digest()
                waits = composition.waits(publish=self.publish_timeout)
                in_worker = composition.patience_in_worker() if self._may_defer() else None
            if watched is not None and watched.operation_id != staged.operation_id:
                # Somebody staged anew meanwhile; what was waited for is another matter.
                watched = None
            self._say(notes.begins("Publishing" if watched is None else "Going on with publishing", refresh))
            deadline = time.time() + waits.publish if watched is None else watched.deadline
            try:
                with self.connected(context, refresh) as connected:
                    self._connected = connected
                    receipt = publish(
                        connected.ports,
                        connected.site,
                        PublishRequest(
                            staged.operation_id,
                            Guards(self.allow_empty, self.min_rows, self.max_shrink),
                            patience=max(0.0, deadline - time.time()),
                            candidate_uuid=staged.candidate_uuid,
                            hand_over_after=in_worker,
                            outcome=watched.outcome if watched is not None else None,
                            asker=asker,
                        ),
                        waits,
                    )
            except HandedOver as handed:
                # Counted from the dispatch at first, and from then on the same.
                deadline = watched.deadline if watched is not None else math.ceil(time.time() + handed.left)
                watch = Watch.of(handed.record, conn_id=refresh.clickhouse_conn_id, deadline=deadline)
                if watched is not None and (watched.phase, watched.entry) == (watch.phase, watch.entry):
                    # It is not in the record yet, and nobody may be able to read it again.
                    watch = replace(watch, outcome=watched.outcome)
                self._say(notes.handed_over(handed.record, deadline))
                publication = handed.record.publication
                leave_pointer(
                    context,
                    handed.record.operation_id,
                    handed.record.phase,
                    epoch=publication.epoch if publication is not None else None,
                    entry=publication.entry if publication is not None else None,
                )
                meter.count(metrics.PUBLISH_DEFERRALS)
                self._defer_until_woken(watch)
            except Stopped as stopped:
                again = stopped.stop.passing
                if watched is None or in_worker is None or not again or deadline <= time.time():
                    meter.count(metrics.PUBLICATIONS, outcome=stopped.stop.category.value)
                    raise
                # A retry would not know what the trigger saw, which nobody may be able to read again.
                self._say(f"{stopped.stop.message} The triggerer goes on waiting; nothing is sent again.")
                meter.count(metrics.PUBLISH_DEFERRALS)
                self._defer_until_woken(watched)
            except Exception:
                meter.count(metrics.PUBLICATIONS, outcome=metrics.UNEXPECTED)
                raise
            self._receipt = receipt
            # A deferral keeps the deadline, which says when the wait began.
            seconds = max(0.0, time.time() - (deadline - waits.publish))
            meter.published(receipt, seconds)
            self._say(notes.published(receipt, seconds))
            for warning in notes.warnings(receipt):
                self.log.warning("%s", warning)
            point_at(context, receipt)
            announce(context, self, receipt)
            return for_xcom(receipt)

    def _may_defer(self) -> bool:
        if self.deferrable is not None:
            return self.deferrable
        from airflow.configuration import conf

        return bool(conf.getboolean("operators", "default_deferrable", fallback=False))

    def on_kill(self) -> None:
        """End a comparison that runs, and say what is true of the statement: nothing can call it back."""
        sent = self._connected.statements_sent if self._connected is not None else 0
        self._say(
            "Asked to end. "
            + (
                "The statement was sent and can't be recalled: the replicas carry it out, with or without this task."
                if sent
                else "This process has sent no statement; one of an earlier try can't be recalled."
            )
            + " Everything is kept. A retry, or clearing this task, looks first and never sends twice."
        )
        # Last: a server that hangs answers no kill, and the supervisor waits a few seconds only.
        if self._connected is not None:
            self._connected.running.cancel()

    # --- OpenLineage: its provider asks, if it is installed ---

    def get_openlineage_facets_on_start(self) -> Any | None:
        """Return what the task is going to change."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any | None:
        """Return what the task has proven, with the numbers."""
        return self._lineage(self._receipt)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any | None:
        """Return what the task would have changed."""
        return self._lineage(None)

    def _lineage(self, receipt: PublicationReceipt | SettledReceipt | None) -> Any | None:
        from airflow_provider_dpone.operators import lineage

        try:
            return lineage.of_publish(self.rendered_refresh(), receipt)
        except Stopped:
            return None

    def _defer_until_woken(self, watch: Watch) -> NoReturn:
        from airflow_provider_dpone.triggers.publication import PublicationTrigger

        left = max(0.0, watch.deadline - time.time())
        self.defer(
            trigger=PublicationTrigger.of(watch),
            method_name="execute_complete",
            # The trigger ends by itself at the deadline; this is for a time without any triggerer.
            timeout=timedelta(seconds=left) + GRACE,
        )
