"""What the matrix makes of its results: counts, reasons, and the table on the page."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import cells, report
from tests.matrix.cells import AIRFLOWS, PYTHONS, WHY_NO_REFRESH, Cell, Result, counts, interpreter
from tests.unit.test_docs import generate


@pytest.mark.parametrize(
    ("xml", "found"),
    [
        ('<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>', (5, 2, 2)),
        ('<testsuites><testsuite tests="0" failures="0" errors="0" skipped="0"/></testsuites>', (0, 1, 0)),
        (None, (0, 1, 0)),
    ],
)
def test_no_test_is_a_failure(tmp_path: Path, xml: str | None, found: tuple[int, int, int]) -> None:
    file = tmp_path / "report.xml"
    if xml is not None:
        file.write_text(xml)
    assert counts(file) == found


def test_what_is_not_run_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cell("3.3.2", PYTHONS[-1]).why_not("refresh") in (
        WHY_NO_REFRESH,
        f"no Python {PYTHONS[-1]} was found",
    )
    monkeypatch.setattr(cells, "interpreter", lambda _: None)
    assert Cell("3.3.2", "3.12").why_not("units") == "no Python 3.12 was found"


def test_a_python_that_does_not_start_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert interpreter("3.99") is None
    mine = "{}.{}".format(*sys.version_info)
    assert interpreter(mine) is not None


def test_the_last_line_is_the_sum() -> None:
    results = [Result("3.1.8", "3.11", "units", 5, 1, 2), Result("3.1.8", "3.11", "refresh", not_run="why")]
    assert report.last_line(results) == "5 passed, 1 failed, 2 skipped"


@pytest.mark.parametrize(
    ("units", "refresh", "word"),
    [
        ({"passed": 5}, {"passed": 2}, "tested"),
        ({"passed": 5}, {"not_run": "why"}, "tested in part"),
        ({"not_run": "why"}, {"not_run": "why"}, "untested"),
        ({"passed": 5, "failed": 1}, {"passed": 2}, "**fails**"),
    ],
)
def test_the_page_says_what_is_tested(units: dict[str, Any], refresh: dict[str, Any], word: str) -> None:
    steps = [
        asdict(Result("3.1.8", "3.11", "units", **units)),
        asdict(Result("3.1.8", "3.11", "refresh", **refresh)),
    ]
    assert generate()._tested(steps) == word


def test_the_recorded_run_is_about_what_is_run_now() -> None:
    """Whatever its results are: they are of these releases."""
    if not report.RESULTS.exists():
        pytest.skip("no run is recorded")
    recorded = json.loads(report.RESULTS.read_text())["results"]
    assert {one["airflow"] for one in recorded} == set(AIRFLOWS)
    assert {one["python"] for one in recorded} == set(PYTHONS)
