"""The link from a task to its receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_provider_dpone.links.address import tab_address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class ReceiptLink(BaseOperatorLink):
    """Leads to the publication's receipt, beside the task's log."""

    @property
    def name(self) -> str:
        """What the button says."""
        return "Publication receipt"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the task instance's receipt within Airflow.

        :param ti_key: the task instance.
        """
        return tab_address(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)
