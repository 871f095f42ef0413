"""The three most telling pages in a real browser; the others are looked at by ``scripts/test-ui`` (tests/browser)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.airflow.bench import Bench
from tests.airflow.harness import LocalAirflow
from tests.browser import situations
from tests.browser.chromium import Visitor, chromium
from tests.browser.judging import judge_once
from tests.browser.looks import becomes_committed_while_open, open_live, sees_committed, sees_partial

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]


@pytest.fixture(scope="module")
def visitor(connected_airflow: LocalAirflow) -> Iterator[Visitor]:
    with chromium() as browser, Visitor(browser, connected_airflow.url) as visitor:
        visitor.log_in("viewer")
        yield visitor


def test_it_waits_and_becomes_committed_while_it_is_open(visitor: Visitor, bench: Bench) -> None:
    situation = situations.waiting(bench)
    becomes_committed_while_open(visitor, situation)
    bench.wait(situation.dag_id, situation.run_id)
    visitor.open(situation.receipt)
    sees_committed(visitor.page)
    judge_once(visitor.page)
    visitor.assert_quiet()


def test_a_terminal_partial_swap_is_held(visitor: Visitor, bench: Bench) -> None:
    situation = situations.partial(bench)
    open_live(visitor, situation)
    sees_partial(visitor.page)
    judge_once(visitor.page)
    visitor.assert_quiet()
