"""What somebody sees in the situations that are looked at in more than one place."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.chromium import SECONDS, Visitor
from tests.browser.reading import Place, ReceiptPage
from tests.browser.situations import Situation
from tests.cluster import wait_until

NEW = "new data is live"
OLD = "old data is live"


def sees_committed(place: Place) -> None:
    """Published, proven on both replicas; nothing to do, and nothing goes on."""
    receipt = ReceiptPage(place)
    assert receipt.verdict == "Published"
    assert receipt.what.startswith("The new data went live, and that was proven on every replica.")
    assert receipt.safe.startswith("Not affected")
    assert receipt.next == "Nothing to do."
    assert {alias: row["Readers see"] for alias, row in receipt.replicas.items()} == {
        "s1/r1": NEW,
        "s1/r2": NEW,
    }
    assert set(receipt.steps.values()) == {"done"}
    assert receipt.never == set()
    assert "looks again" not in receipt.text


def sees_waiting(place: Place) -> None:
    """One replica has it, the other one will follow; who waits, and that nothing is to be done."""
    receipt = ReceiptPage(place)
    assert receipt.verdict == "In progress"
    assert "the new data is live on s1/r1; s1/r2 will follow" in receipt.what
    assert receipt.safe.startswith("Affected")
    assert receipt.next.startswith("Wait")
    rows = receipt.replicas
    assert [rows[alias]["Readers see"] for alias in ("s1/r1", "s1/r2")] == [NEW, OLD]
    assert rows["s1/r2"]["Queue entry"] == "in progress"
    assert any(one.startswith("Never swap by hand") for one in receipt.never)
    assert "waits for s1/r2 to end query-" in receipt.text
    assert "here now" in receipt.steps.values()


def sees_partial(place: Place) -> None:
    """It is held: which replica has which data, why, and what to do."""
    receipt = ReceiptPage(place)
    assert receipt.verdict == "On hold"
    assert "the new data is live on s1/r1 and the old data on s1/r2" in receipt.what
    assert "DPONE_CLICKHOUSE_CLUSTER_PARTIAL_TERMINAL" in receipt.what
    assert receipt.safe.startswith("Affected")
    rows = receipt.replicas
    assert [rows[alias]["Readers see"] for alias in ("s1/r1", "s1/r2")] == [NEW, OLD]
    assert "164 READONLY" in rows["s1/r2"]["Queue entry"]
    assert receipt.next.endswith("airflow dpone explain shows the statement for s1/r2.")
    assert len(receipt.never) == 3
    assert any(one.startswith("airflow dpone resolve ") for one in receipt.commands)
    assert "stopped here" in receipt.steps.values()


def becomes_committed_while_open(visitor: Visitor, situation: Situation) -> None:
    """The page that shows how it waits shows the end, too, without a hand on it."""
    page = visitor.page
    open_live(visitor, situation)
    sees_waiting(page)
    visitor.open(situation.receipt)
    page.evaluate("window.first_load = true")
    page.locator("#entries summary").click()
    page.evaluate("scrollTo(0, 120)")
    situation.go_on()
    expect(page.locator(".verdict")).to_have_text("Published", timeout=1000 * 2 * SECONDS)
    assert page.evaluate("window.first_load === undefined")
    # It keeps its place, and what was unfolded: its script does that at the end of a load.
    wait_until(lambda: page.evaluate("scrollY === 120 && document.getElementById('entries').open") is True)


def open_live(visitor: Visitor, situation: Situation) -> None:
    """Open a receipt, paused, that has read the cluster: on a busy machine that takes longer than a page waits."""

    def live() -> bool:
        assert visitor.open(f"{situation.receipt}?still=true").status == 200
        return visitor.page.locator(".facts.live").count() == 1

    wait_until(live, timeout=SECONDS)
