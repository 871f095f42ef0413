"""Asset events of a publish task: one for a proven commit, none for an answer that was given before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_provider_dpone.publication.canonical import Json
    from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt


def announce(
    context: Mapping[str, Any], operator: BaseOperator, receipt: PublicationReceipt | SettledReceipt
) -> None:
    """Say in the events of the task's outlets what was published, or see to it that there are none.

    Airflow makes the events when the task has succeeded, which is after the proof. It makes one for every outlet
    that the task has then, so a replayed answer takes them away: nothing new went live.
    """
    if not operator.outlets:
        return
    if receipt.replayed:
        # This is the copy of the operator that this one execution has.
        operator.outlets = []
        return
    from airflow.sdk import Asset
    from airflow.sdk.definitions.asset import AssetRef

    extra = event_extra(receipt)
    events = context["outlet_events"]
    for outlet in operator.outlets:
        # An alias stands for what the DAG's author adds to it.
        if isinstance(outlet, Asset | AssetRef):
            try:
                events[outlet].extra.update(extra)
            except Exception as error:  # noqa: BLE001 - to look an outlet up, Airflow asks its API
                # The commit is proven: the event goes without its facts, and the task does not fail.
                operator.log.warning(
                    "The event of %r has no facts of the publication: %s.", outlet, type(error).__name__
                )


def event_extra(receipt: PublicationReceipt | SettledReceipt) -> dict[str, Json]:
    """Return what an event says: operation, rows, and where it is still known, epoch and replicas."""
    from airflow_provider_dpone.publication.receipt import PublicationReceipt

    extra: dict[str, Json] = {"operation_id": receipt.operation_id, "rows": receipt.rows}
    if isinstance(receipt, PublicationReceipt):
        extra["epoch"] = receipt.epoch
        extra["replicas"] = [replica.alias for replica in receipt.replicas]
    return extra
