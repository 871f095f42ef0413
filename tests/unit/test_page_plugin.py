"""The plugin, the link, and what they cost the processes of Airflow that show no pages."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dpone.links.address import NAVIGATION, PREFIX, TAB, tab_address
from airflow_provider_dpone.links.receipt import ReceiptLink
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator
from airflow_provider_dpone.plugins.page import DponePlugin

MOST_IMPORT_MILLISECONDS = 50
PACKAGE = Path(__file__).parents[2] / "airflow_provider_dpone"


def test_the_entry_point_is_the_plugin() -> None:
    found = [point for point in entry_points(group="airflow.plugins") if "dpone" in point.value]
    assert [point.load() for point in found] == [DponePlugin]


def test_importing_the_plugin_is_cheap() -> None:
    """Every process of Airflow may load it. The best of three runs counts, since the machine has other work."""
    code = (
        "import json, sys, time, airflow.plugins_manager\n"
        "known = set(sys.modules)\n"
        "before = time.process_time()\n"
        "import airflow_provider_dpone.plugins.page\n"
        "spent = (time.process_time() - before) * 1000\n"
        "heavy = [name for name in set(sys.modules) - known if name.split('.')[0] in ('fastapi', 'starlette', 'jinja2',"
        " 'pydantic', 'sqlalchemy') or name.startswith(('airflow.', 'airflow_provider_dpone.publication'))]\n"
        "print(json.dumps([spent, heavy]))"
    )
    spent = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        milliseconds, heavy = json.loads(done.stdout.splitlines()[-1])
        assert heavy == []
        spent.append(milliseconds)
        if milliseconds < MOST_IMPORT_MILLISECONDS:
            return
    pytest.fail(f"importing the plugin took {spent} ms, and may take {MOST_IMPORT_MILLISECONDS}")


def test_a_tab_and_a_page_whose_addresses_work_under_a_prefix() -> None:
    (app,) = DponePlugin.fastapi_apps
    assert app["url_prefix"] == PREFIX
    tab, page = DponePlugin.external_views
    assert (tab["destination"], tab["url_route"]) == ("task_instance", TAB)
    assert (page["destination"], page["url_route"]) == ("nav", NAVIGATION)
    for view in (tab, page):
        assert view["href"].startswith("dpone/")


@pytest.mark.parametrize("operator", [StageOperator, PublishOperator, CleanupOperator])
def test_every_operator_has_the_link(operator: Any) -> None:
    assert [type(link) for link in operator.operator_extra_links] == [ReceiptLink]


@pytest.mark.parametrize(
    ("map_index", "expected"),
    [
        (-1, "dags/d/runs/scheduled__2026-01-02T03%3A00%3A00%2B00%3A00/tasks/g.stage/plugin/dpone"),
        (3, "dags/d/runs/scheduled__2026-01-02T03%3A00%3A00%2B00%3A00/tasks/g.stage/mapped/3/plugin/dpone"),
    ],
)
def test_the_link_leads_to_the_tab_of_the_task_instance(map_index: int, expected: str) -> None:
    key: Any = SimpleNamespace(
        dag_id="d", run_id="scheduled__2026-01-02T03:00:00+00:00", task_id="g.stage", map_index=map_index
    )
    operator: Any = None
    assert ReceiptLink().get_link(operator, ti_key=key) == expected
    assert tab_address("d", "r", "t", None) == "dags/d/runs/r/tasks/t/plugin/dpone"


def test_what_airflow_does_not_promise_is_imported_in_one_module() -> None:
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith(("airflow.api_fastapi", "airflow.models")) for name in names):
                found.add(file.relative_to(PACKAGE).as_posix())
    assert found == {"web/access.py"}
