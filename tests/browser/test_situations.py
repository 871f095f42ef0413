"""The tab in six situations, within Airflow's own page and by itself; each of them for everybody's eyes.

What is photographed here is what the docs show.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Frame, Page, expect

from tests.airflow.bench import RUN_SECONDS, Bench
from tests.browser import situations
from tests.browser.chromium import Visitor
from tests.browser.conftest import Judge
from tests.browser.judging import overflow
from tests.browser.looks import (
    becomes_committed_while_open,
    open_live,
    sees_committed,
    sees_partial,
    sees_waiting,
)
from tests.browser.reading import Place, ReceiptPage, words
from tests.browser.record import PICTURES_VARIABLE
from tests.browser.situations import Situation

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]


def photograph(visitor: Visitor, name: str, *, dark: bool = False) -> None:
    """Keep what the window shows, at the size that fits a page of the docs."""
    folder = os.environ.get(PICTURES_VARIABLE)
    if folder is None:
        return
    page = visitor.page
    before = page.viewport_size
    page.set_viewport_size({"width": 1280, "height": 860})
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.screenshot(path=Path(folder) / f"page-{name}.png", animations="disabled")
    page.emulate_media(color_scheme="light")
    if before is not None:
        page.set_viewport_size(before)


def the_tab(visitor: Visitor, situation: Situation) -> Frame:
    """Go to the task instance in Airflow and open its tab; returns the page inside of it."""
    page = visitor.page
    page.goto(visitor.url + situation.task_page)
    page.get_by_role("link", name="Publication receipt").first.click()
    expect(page).to_have_url(f"{visitor.url}{situation.task_page}/plugin/dpone")
    return frame_of(page)


def frame_of(page: Page) -> Frame:
    """The page that Airflow's page embeds, once it is there."""
    expect(page.frame_locator("iframe").locator("main")).to_be_visible()
    (frame,) = page.frames[1:]
    return frame


def sees_unknown(place: Place) -> None:
    """Nobody knows what the replica that is down has done; nothing is lost, and it is waited for."""
    receipt = ReceiptPage(place)
    assert receipt.verdict == "Not observed"
    assert "the new data is live on s1/r1" in receipt.what
    assert "it follows by itself when it returns" in receipt.what
    assert receipt.safe.startswith("Not known")
    assert receipt.next.startswith("Wait")
    rows = receipt.replicas
    assert rows["s1/r2"]["Readers see"] == "can't be read"
    assert rows["s1/r2"]["Target"] == "unknown"
    assert len(receipt.never) == 4


def sees_cleanup_pending(place: Place) -> None:
    """Published, and what is left, how large it is, and why."""
    receipt = ReceiptPage(place)
    assert receipt.verdict == "Published"
    assert "The table that it replaced is still there" in receipt.what
    assert "its drop failed on s1/r2" in receipt.what
    assert receipt.safe.startswith("Not affected")
    assert "clear the cleanup task" in receipt.next
    assert any(one.startswith("airflow dpone orphans ") for one in receipt.commands)
    assert "(predecessor, " in receipt.text


def sees_that_it_is_not_ours(place: Place) -> None:
    text = words(place.locator("main"))
    assert text.startswith("No publication belongs to this task")
    assert "all is well" in text


SEES: Final[dict[str, Callable[[Place], None]]] = {
    "committed": sees_committed,
    "waiting": sees_waiting,
    "partial": sees_partial,
    "unknown": sees_unknown,
    "cleanup-pending": sees_cleanup_pending,
    "not-ours": sees_that_it_is_not_ours,
}


@pytest.mark.parametrize("name", SEES)
def test_situation(name: str, visitor: Visitor, judge: Judge, bench: Bench) -> None:
    situation = situations.SITUATIONS[name](bench)
    if name in ("committed", "not-ours"):
        visitor.open(situation.receipt)
    else:
        open_live(visitor, situation)
    SEES[name](visitor.page)
    photograph(visitor, name)
    if name == "partial":
        photograph(visitor, "partial-dark", dark=True)
    judge()

    # The same in the tab of Airflow's own page.
    frame = the_tab(visitor, situation)
    assert overflow(frame) <= 0
    if name in ("committed", "partial", "not-ours"):
        SEES[name](frame)
    if name == "committed":
        photograph(visitor, "tab")
        the_extra_link_leads_there(visitor, situation)
    if name == "waiting":
        becomes_committed_while_open(visitor, situation)
        bench.wait(situation.dag_id, situation.run_id)
    if name == "unknown":
        bench.cluster.start_node(2)
        situation.go_on()
        bench.wait(situation.dag_id, situation.run_id)
        visitor.open(situation.receipt)
        sees_committed(visitor.page)
    if name == "cleanup-pending":
        bench.cluster.clear_faults()
        bench.airflow.clear(situation.dag_id, situation.run_id, [situation.task_id])
        bench.airflow.wait_run(situation.dag_id, situation.run_id, RUN_SECONDS)


def the_extra_link_leads_there(visitor: Visitor, situation: Situation) -> None:
    """Among a task's extra links, on the page of its details."""
    page = visitor.page
    page.goto(f"{visitor.url}{situation.task_page}/details")
    # Airflow shows the tab's link and the extra link under one name; only the tab's address is absolute.
    link = page.locator('a[href$="/plugin/dpone"]:not([href^="/"])')
    expect(link).to_have_text("Publication receipt")
    opened = page
    if link.get_attribute("target") == "_blank":
        with page.expect_popup() as popup:
            link.click()
        opened = popup.value
    else:
        link.click()
    opened.wait_for_url(f"**{situation.task_page}/plugin/dpone")
    sees_committed(frame_of(opened))
    if opened is not page:
        opened.close()
