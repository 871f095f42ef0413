"""An Airflow whose address has a path: behind a proxy that serves more than one."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import Browser, expect

from tests.airflow.bench import Bench
from tests.browser import situations
from tests.browser.chromium import Visitor
from tests.browser.conftest import api_server_with
from tests.browser.looks import sees_committed
from tests.browser.reading import ReceiptPage
from tests.browser.test_situations import frame_of, the_extra_link_leads_there, the_tab

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

PREFIX: Final = "/team/airflow"


def test_all_links_stay_below_the_prefix(browser: Browser, bench: Bench) -> None:
    situation = situations.committed(bench)
    url = f"{bench.airflow.url}{PREFIX}"
    with (
        api_server_with(bench.airflow, AIRFLOW__API__BASE_URL=url),
        Visitor(browser, url) as visitor,
    ):
        visitor.log_in("viewer")
        page = visitor.page
        visitor.open(situation.receipt)
        sees_committed(page)
        sees_committed(the_tab(visitor, situation))
        the_extra_link_leads_there(visitor, situation)

        page.goto(f"{url}/")
        page.get_by_role("button", name="Browse").click()
        page.get_by_role("menuitem", name="Publications").click()
        frame = frame_of(page)
        frame.get_by_role("link", name=f"{bench.database}.late").first.click()
        expect(frame.locator(".verdict")).to_have_text("Published")
        frame.get_by_role("link", name="All publications").click()
        expect(frame.get_by_role("heading", name="Publications", exact=True)).to_be_visible()
        frame.get_by_role("button", name="Show").click()
        expect(frame.get_by_role("heading", name="Publications", exact=True)).to_be_visible()

        visitor.open(f"/dpone/?target={bench.database}")
        page.get_by_role("link", name=f"{bench.database}.late").first.click()
        assert ReceiptPage(page).verdict == "Published"
        outside = [one for one in visitor.asked if one.startswith("http") and not one.startswith(f"{url}/")]
        assert outside == []
        visitor.assert_quiet()
