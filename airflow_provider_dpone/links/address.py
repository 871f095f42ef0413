"""Where the page is found. Nothing of Airflow is imported here."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

PREFIX: Final = "/dpone"
"""Under what path the page is mounted in the api-server."""

TAB: Final = "dpone"
"""The tab of a task instance, in Airflow's own addresses."""

NAVIGATION: Final = "dpone-publications"
"""The list of publications, in Airflow's own addresses."""


def tab_address(dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str:
    """Return the address of a task instance's receipt within Airflow, without a leading slash.

    Airflow's pages have a base address, so it works under a URL prefix, too.
    """
    mapped = "" if map_index is None or map_index < 0 else f"/mapped/{map_index}"
    return f"dags/{_quoted(dag_id)}/runs/{_quoted(run_id)}/tasks/{_quoted(task_id)}{mapped}/plugin/{TAB}"


def _quoted(text: str) -> str:
    return quote(text, safe="")
