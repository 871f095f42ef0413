"""Stage: load the table's new contents into a candidate beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.operators.base import RefreshOperator
from airflow_provider_dpone.operators.outcome import airflow_outcome
from airflow_provider_dpone.operators.xcom import for_xcom
from airflow_provider_dpone.publication.stop import Stopped

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dpone.clickhouse.replica_staging import ClusterReplicaStaging
    from airflow_provider_dpone.clickhouse.staging import ClusterStaging
    from airflow_provider_dpone.composition import Connected
    from airflow_provider_dpone.operators.base import RefreshArgument
    from airflow_provider_dpone.publication.receipt import StageReceipt
    from airflow_provider_dpone.routes.cluster_refresh import StageRequest, Waits
    from airflow_provider_dpone.sources import Source
    from airflow_provider_dpone.values import ClusterRefresh

OnBusy = Literal["fail", "wait"]
"""What to do when another operation holds the target."""


class StageOperator(RefreshOperator):
    """Load a source into a candidate table that is complete and equal on every replica.

    Nothing is published by it, and the live table is only read. Its output is the stage receipt: the
    candidate's quoted name, rows, bytes and digest, for checks in between and for ``PublishOperator``.

    A retry is the same operation and goes on from a candidate that is already prepared. Clearing the task
    stages anew. What ends in ``.sql`` among the strings of ``refresh`` and ``source`` is a template file.

    :param refresh: which table, and what it looks like; a value, or a dict with the same names.
    :param source: where the rows come from; a value, or a dict with the same names.
    :param order_key: text by which runs of this publication are ordered; older than what is published is
        refused. By default the end of the run's data interval, where it has one.
    :param allow_older: publish older data over newer.
    :param on_busy: ``"fail"`` or ``"wait"`` when another operation holds the target.
    :param busy_timeout: how long to wait then; option ``busy_timeout`` by default.
    :param load_timeout: how long a server may be silent during the load, which a query on the server is until
        it ends; option ``load_timeout`` by default.
    :raises ValueError: an argument is wrong, seen without a server.
    """

    template_fields = (*RefreshOperator.template_fields, "source", "order_key")
    template_ext = (".sql",)
    ui_color = "#e8f0fb"

    _staging: ClusterStaging | ClusterReplicaStaging | None = None
    _receipt: StageReceipt | None = None

    def __init__(
        self,
        *,
        refresh: RefreshArgument,
        source: Source | Mapping[str, Any] | XComArg,
        order_key: str | None = None,
        allow_older: bool = False,
        on_busy: OnBusy = "fail",
        busy_timeout: timedelta | None = None,
        load_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(refresh=refresh, **kwargs)
        if on_busy not in get_args(OnBusy):
            raise ValueError(f"on_busy must be one of {', '.join(map(repr, get_args(OnBusy)))}")
        positive(busy_timeout, "busy_timeout")
        positive(load_timeout, "load_timeout")
        self.source = source
        self.order_key = order_key
        self.allow_older = allow_older
        self.on_busy = on_busy
        self.busy_timeout = busy_timeout
        self.load_timeout = load_timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage, and return the stage receipt.

        :raises AirflowException: what stopped it, what is known, and what is safe next.
        """
        from airflow_provider_dpone import composition, options
        from airflow_provider_dpone.operators import context as task
        from airflow_provider_dpone.operators import metrics, notes
        from airflow_provider_dpone.operators.pointer import leave_pointer
        from airflow_provider_dpone.publication.record import Phase
        from airflow_provider_dpone.routes.cluster_refresh import StageRequest

        started = time.monotonic()
        with airflow_outcome():
            refresh = self.rendered_refresh()
            meter = metrics.Meter(refresh)
            source = self._rendered_source()
            with bad_input():
                deployment_id = options.text(options.DEPLOYMENT_ID)
                waits = composition.waits(busy=self.busy_timeout if self.on_busy == "wait" else timedelta(0))
                load_seconds = composition.load_seconds(self.load_timeout)
            self._say(notes.begins("Staging", refresh))
            kept = refresh.retain_predecessor or timedelta(0)
            request = StageRequest(
                identity=task.task_identity(context, deployment_id),
                owner=task.owner(context),
                order_key=self.order_key or task.order_key(context),
                allow_older=self.allow_older,
                retention=int(kept.total_seconds()),
                refuse_dependents=refresh.on_dependents == "refuse",
            )
            with meter.outcomes(metrics.STAGES), self.connected(context, refresh) as connected:
                receipt = self._staged(connected, refresh, source, load_seconds, request, waits)
            self._receipt = receipt
            meter.staged(receipt, time.monotonic() - started)
            self._say(notes.staged(receipt, time.monotonic() - started))
            leave_pointer(context, receipt.operation_id, Phase.PREPARED)
            return for_xcom(receipt)

    def _staged(
        self,
        connected: Connected,
        refresh: ClusterRefresh,
        source: Source,
        load_seconds: float,
        request: StageRequest,
        waits: Waits,
    ) -> StageReceipt:
        """Run the route of the refresh's mode. What can be killed stands in ``_staging`` meanwhile."""
        from airflow_provider_dpone.routes.cluster_refresh import stage, stage_replicas

        if refresh.replication_mode == "internal":
            self._staging = staging = connected.staging(refresh, source, load_seconds)
            return stage(connected.ports, staging, connected.site, request, waits)
        with connected.replica_staging(refresh, source, load_seconds) as replicas:
            self._staging = replicas
            return stage_replicas(connected.ports, replicas, connected.site, request, waits)

    def _rendered_source(self) -> Source:
        from airflow_provider_dpone.sources import Source, source_from

        with bad_input():
            match self.source:
                case Source() | Mapping() as source:
                    return source_from(source)
                case _:
                    raise ValueError(
                        "source must be a SqlSource, a FileSource, or a dict with the same names"
                    )

    def on_kill(self) -> None:
        """Kill what runs on the servers, by its own query ids, and say what became of it."""
        if self._staging is None:
            self._say("Asked to end before anything was sent. Nothing was changed.")
            return
        match self._staging.cancel():
            case None:
                what = "No load or comparison is running, and none begins any more."
            case True:
                what = "A server has taken up the kill of what was running; it may take a moment to end."
            case False:
                what = "What was running was told to end, and no server has answered that."
        self._say(
            f"Asked to end. {what} A stage task publishes nothing: the live table is as it was. A retry goes on with "
            "what is proven; what is not is dropped by it or by the next run, where that is proven safe."
        )

    # --- OpenLineage: its provider asks, if it is installed ---

    def get_openlineage_facets_on_start(self) -> Any | None:
        """Return what the task is going to read and write."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any | None:
        """Return what the task has read and written, with the numbers."""
        return self._lineage(self._receipt)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any | None:
        """Return what the task would have read and written."""
        return self._lineage(None)

    def _lineage(self, receipt: StageReceipt | None) -> Any | None:
        from airflow_provider_dpone.operators import lineage

        try:
            refresh, source = self.rendered_refresh(), self._rendered_source()
        except Stopped:
            return None
        query_id = self._staging.query_id if self._staging is not None else None
        return lineage.of_stage(refresh, source, receipt, query_id)


def positive(value: timedelta | None, argument: str) -> None:
    """Refuse a length of time that is none.

    :raises ValueError: it is not a positive timedelta.
    """
    match value:
        case None:
            return
        case timedelta() if value > timedelta(0):
            return
        case _:
            raise ValueError(f"{argument} must be a positive timedelta")
