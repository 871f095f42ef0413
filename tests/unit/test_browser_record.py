"""What ``scripts/test-ui`` keeps: the words for a test, and what has passed with the present code."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.browser import record
from tests.browser.record import Keeper, told

INCIDENT = "tests/browser/test_incidents.py::test_incident[06_one_replica_failed]"


def report(nodeid: str, outcome: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=nodeid,
        location=("", None, ""),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        user_properties=[(record.JUDGED, 6), ("another", "x")],
        duration=1.25,
    )


def test_a_test_is_told_in_words() -> None:
    assert told(INCIDENT) == (6, "Incident 6. Terminal partial: one replica failed")
    assert told("tests/browser/test_incidents.py::test_incident_12_control_table_dropped")[1] == (
        "Incident 12. The control table was dropped or replaced"
    )
    assert told("tests/browser/test_situations.py::test_situation[not-ours]") == (20, "Situation not-ours")
    assert told("tests/browser/test_access.py::test_who_may_not_read_sees_nothing")[1] == (
        "Who may not read sees nothing"
    )


def test_what_has_passed_is_kept_for_the_same_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "PROGRESS", tmp_path / "browser.json")
    monkeypatch.setattr(record, "fingerprint", lambda: "one")
    first = Keeper(fresh=False, deadline=time.monotonic() + 60)
    first.pytest_runtest_logreport(report(INCIDENT, "passed"))
    first.pytest_runtest_logreport(report("tests/browser/test_list.py::test_list", "failed"))
    assert first.counts() == (1, 1)
    kept = Keeper(fresh=False, deadline=0)
    assert kept.rows == [
        {"order": 6, "what": "Incident 6. Terminal partial: one replica failed", "seconds": 1.2, "judged": 6}
    ]
    assert Keeper(fresh=True, deadline=0).rows == []
    # A teardown that fails takes it back.
    kept.pytest_runtest_logreport(report(INCIDENT, "failed", "teardown"))
    assert json.loads(record.PROGRESS.read_text())["rows"] == {}
    first.pytest_runtest_logreport(report(INCIDENT, "passed"))
    monkeypatch.setattr(record, "fingerprint", lambda: "another")
    assert Keeper(fresh=False, deadline=0).rows == []
