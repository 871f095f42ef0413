"""The page says what was run, and nothing else."""

from __future__ import annotations

import json

from tests.proof.report import FILES, NOT_RUN, PAGE, RESULTS, _newest, page

MADE = {"date": "2026-01-01 00:00 UTC", "commit": "0" * 40, "changed": False, "python": "3.11", "cores": 2}
NOTHING = dict.fromkeys(FILES)


def test_what_was_not_run_is_said_to_be_not_run() -> None:
    assert page(NOTHING).count(NOT_RUN) == 8


def test_a_bug_that_no_layer_caught_is_not_counted() -> None:
    mutants = {"seen": {"exploration": "why", "simulation": "", "unit": ""}}
    mutants["unseen"] = dict.fromkeys(mutants["seen"], "")
    shown = page({**NOTHING, "mutants": {"made": MADE, "results": mutants}})
    assert "| seen | caught |  |  |" in shown
    assert "1 of 2 caught" in shown


def test_a_part_that_was_not_run_again_stays_with_its_own_commit() -> None:
    before = {"made": MADE, "results": {"passed": 1}}
    later = {"made": {**MADE, "date": "2026-01-02 00:00 UTC", "commit": "1" * 40}, "results": {"passed": 2}}
    assert _newest(before, None) is before
    assert _newest(None, later) is later
    assert _newest(before, later) is later
    assert _newest(later, before) is later
    shown = page({**NOTHING, "soak": before})
    assert "Run at 2026-01-01 00:00 UTC, commit `000000000000`, Python 3.11, 2 cores." in shown


def test_the_page_is_made_from_the_results() -> None:
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))
