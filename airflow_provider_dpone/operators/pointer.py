"""A pointer to the operation in Airflow's task state store (3.3 and newer), where people see it beside the task.

It is a hint and never the truth: users may edit and clear it, and the last writer wins. No decision reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt
    from airflow_provider_dpone.publication.record import Phase

KEY: Final = "dpone"
"""The pointer's key in the store of each task."""

_log = logging.getLogger(__name__)


def point_at(context: Mapping[str, Any], receipt: PublicationReceipt | SettledReceipt) -> None:
    """Leave the pointer to what a receipt proves, with epoch and queue entry where the receipt still has them."""
    leave_pointer(
        context,
        receipt.operation_id,
        receipt.state,
        epoch=getattr(receipt, "epoch", None),
        entry=getattr(receipt, "entry", None),
    )


def leave_pointer(
    context: Mapping[str, Any],
    operation_id: str,
    phase: Phase,
    *,
    epoch: int | None = None,
    entry: str | None = None,
) -> None:
    """Write where the operation stands, if this Airflow has a store. A store that fails ends no task.

    :param epoch: of the dispatch; ``None`` before it.
    :param entry: of the distributed-DDL queue; ``None`` before it is known.
    """
    from airflow_provider_dpone import compat

    store = compat.task_state_store(context)
    if store is None:
        return
    try:
        store.set(KEY, {"operation_id": operation_id, "epoch": epoch, "entry": entry, "phase": phase.value})
    except Exception as error:  # noqa: BLE001 - it is a hint; the text is not ours to tell
        _log.info(
            "The task state store did not take the pointer (%s); nothing depends on it.", type(error).__name__
        )
