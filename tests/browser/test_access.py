"""Who is refused, and what hostile text can do, in a real browser."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser

from tests.airflow.auth import SECRET
from tests.airflow.harness import LocalAirflow
from tests.browser.chromium import EXECUTED, Visitor
from tests.browser.conftest import Judge
from tests.browser.reading import ReceiptPage
from tests.cluster import CLUSTER_NAME
from tests.integration.refresh_site import RefreshSite, rows_query

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

SCRIPT: Final = f"<script>window.{EXECUTED}=1</script>"
ON_ERROR: Final = f"\"><img src=x onerror='window.{EXECUTED}=1'>"
OUT_OF_STYLE: Final = f"</style></script><svg onload=window.{EXECUTED}=1>"


def receipt_of(dag_id: str, operation_id: str) -> str:
    return f"/dpone/dags/{quote(dag_id, safe='')}/operations/{operation_id}/{CLUSTER_NAME}"


def test_who_may_not_read_sees_nothing(
    browser: Browser, visitor: Visitor, site: RefreshSite, connected_airflow: LocalAirflow
) -> None:
    dag_id = f"{SECRET}orders"
    operation = site.refresh(5, run="first", dag=dag_id).operation_id
    own, anothers = receipt_of(dag_id, operation), receipt_of("dag", operation)
    tab = f"/dpone/dags/{dag_id}/runs/first/tasks/stage/-1"

    with Visitor(browser, connected_airflow.url) as anonymous:
        for path in (own, tab, "/dpone/"):
            assert anonymous.open(path).status == 401
            assert "You are not logged in" in anonymous.shown()
            assert site.database not in anonymous.shown()
    with Visitor(browser, connected_airflow.url) as forger:
        forger.carry("no.token.this")
        for path in (own, tab, "/dpone/"):
            assert forger.open(path).status in (401, 403)
            assert site.database not in forger.shown()
    with Visitor(browser, connected_airflow.url) as viewer:
        viewer.log_in("viewer")
        for path in (own, tab):
            assert viewer.open(path).status == 403
            assert "You may not read this DAG's data" in viewer.shown()
        assert viewer.open(anothers).status == 404
        assert viewer.open("/dpone/").status == 200
        assert site.database not in viewer.shown()
    with Visitor(browser, connected_airflow.url) as administrator:
        administrator.log_in("admin")
        administrator.open(own)
        assert ReceiptPage(administrator.page).verdict == "Published"
        administrator.open("/dpone/")
        assert f"{site.database}.{site.table}" in administrator.shown()
        administrator.assert_quiet()


def test_hostile_text_is_shown_and_not_executed(visitor: Visitor, judge: Judge, site: RefreshSite) -> None:
    site.table = f"orders{SCRIPT}"
    dag_id, run_id = f"dag{ON_ERROR}", f"run{OUT_OF_STYLE}"
    staged = site.stage(rows_query(5), run=run_id, dag=dag_id)
    site.publish(staged, run=run_id)
    visitor.open(receipt_of(dag_id, staged.operation_id))
    receipt = ReceiptPage(visitor.page)
    receipt.open_evidence()
    assert SCRIPT in receipt.headline
    for shown in (ON_ERROR, OUT_OF_STYLE):
        assert shown in receipt.text
    judge()
    visitor.open("/dpone/?" + urlencode({"target": f"{site.database}.orders{SCRIPT}"}))
    for shown in (SCRIPT, ON_ERROR, OUT_OF_STYLE):
        assert shown in visitor.shown()
    judge()


@pytest.mark.parametrize("hostile", [SCRIPT, ON_ERROR, OUT_OF_STYLE], ids=["script", "onerror", "style"])
def test_hostile_addresses_are_not_executed(hostile: str, visitor: Visitor) -> None:
    asked = dict.fromkeys(("target", "status", "cluster", "before"), hostile)
    assert visitor.open(f"/dpone/?{urlencode(asked)}").status == 200
    assert visitor.page.get_by_label("Table").input_value() == hostile
    # A slash ends a part of an address, however it is written.
    hostile = hostile.replace("/", "")
    text = quote(hostile, safe="")
    assert visitor.open(f"/dpone/dags/{text}/runs/{text}/tasks/{text}/{text}").status == 200
    assert hostile in visitor.shown()
