"""The page says what was run, and nothing else."""

from __future__ import annotations

import json

from tests.proof.report import NOT_RUN, PAGE, RESULTS, page

NOTHING = {
    "made": {
        "date": "2026-01-01 00:00 UTC",
        "commit": "0" * 12,
        "changed": False,
        "python": "3.11",
        "cores": 2,
    },
    **dict.fromkeys(
        (
            "exploration",
            "faults",
            "histories",
            "mutants",
            "scenarios",
            "independent",
            "lost_load_reply",
            "soak",
        )
    ),
}


def test_what_was_not_run_is_said_to_be_not_run() -> None:
    assert page(NOTHING).count(NOT_RUN) == 8


def test_a_bug_that_no_layer_caught_is_not_counted() -> None:
    mutants = {"seen": {"exploration": "why", "simulation": "", "unit": ""}}
    mutants["unseen"] = dict.fromkeys(mutants["seen"], "")
    shown = page({**NOTHING, "mutants": mutants})
    assert "| seen | caught |  |  |" in shown
    assert "1 of 2 caught" in shown


def test_the_page_is_made_from_the_results() -> None:
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))
