"""The list of publications: from the navigation, with filters, and what needs attention on top."""

from __future__ import annotations

import pytest
from playwright.sync_api import Frame, expect

from tests.airflow.bench import Bench
from tests.browser import situations
from tests.browser.chromium import Visitor
from tests.browser.conftest import Judge
from tests.browser.reading import Place, ReceiptPage, words
from tests.browser.test_situations import frame_of, photograph

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]


def tables(place: Place, region: str) -> list[tuple[str, str]]:
    """Status and table of each row."""
    rows = place.get_by_role("region", name=region).locator("tbody").get_by_role("row")
    return [(words(one.get_by_role("cell").first), words(one.get_by_role("rowheader"))) for one in rows.all()]


def only(place: Place, **wanted: str) -> None:
    """Use the form."""
    for label, value in wanted.items():
        if label == "Table":
            place.get_by_label(label, exact=True).fill(value)
        else:
            place.get_by_role("combobox", name=label).select_option(value)
    with place.expect_navigation():
        place.get_by_role("button", name="Show").click()
    expect(place.get_by_role("link", name="everything")).to_be_visible()


def test_the_navigation_opens_it_and_holds_stand_on_top(visitor: Visitor, judge: Judge, bench: Bench) -> None:
    bench.run("refresh_checked")
    held = situations.partial(bench)
    bench.run("refresh_mapped", rows=5)
    late, checked = f"{bench.database}.late", f"{bench.database}.checked"
    first, second = f"{bench.database}.first", f"{bench.database}.second"

    page = visitor.page
    page.goto(f"{visitor.url}/")
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Publications").click()
    frame = frame_of(page)
    expect(frame.get_by_role("heading", name="Publications", exact=True)).to_be_visible()
    # A hold stands above what is newer. Those of other tests may be there, too.
    attention = tables(frame, "Need attention")
    assert ("On hold", late) in attention
    holds = [status for status, _ in attention].count("On hold")
    assert f"{holds} on hold" in words(frame.locator("header"))
    assert [status for status, _ in attention[:holds]] == ["On hold"] * holds
    others = [table for _, table in tables(frame, "The others, newest first")]
    assert set(others[:2]) == {first, second}
    assert checked in others

    visitor.open("/dpone/")
    judge()
    only(page, Table=bench.database)
    photograph(visitor, "list")
    assert tables(page, "Need attention") == [("On hold", late)]
    found = tables(page, "The others, newest first")
    assert sorted(found) == sorted(("Published", table) for table in (first, second, late, checked))
    only(page, Status="Published")
    assert page.get_by_role("region", name="Need attention").count() == 0
    assert len(tables(page, "All, newest first")) == 4
    only(page, Table=f"{bench.database}.nothing")
    assert "fits the filter" in visitor.shown()
    judge()
    page.get_by_role("link", name="everything").click()
    expect(page.get_by_role("region", name="Need attention")).to_be_visible()
    page.get_by_role("link", name=late).first.click()
    assert ReceiptPage(page).verdict == "On hold"
    page.get_by_role("link", name="All publications").click()
    expect(page.get_by_role("heading", name="Publications", exact=True)).to_be_visible()
    assert isinstance(frame, Frame)
    assert held.dag_id == situations.DAG_ID
