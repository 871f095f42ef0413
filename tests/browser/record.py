"""Keeps what was seen in the browser, and writes ``docs/browser.json`` from it when all of it was seen."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

import pytest

from scripts.lib.browser import AXE, CHECKOUT, noted
from tests.integration.incident_site import INCIDENTS

PROGRESS: Final = CHECKOUT / "build" / "browser.json"
RESULTS: Final = CHECKOUT / "docs" / "browser.json"
PICTURES: Final = CHECKOUT / "docs" / "images"
PICTURES_VARIABLE: Final = "DPONE_PAGE_PICTURES"
"""The folder for pictures of the page; none are made without it."""

JUDGED: Final = "judged by axe"
"""The property of a test: how often."""

_CODE: Final = (
    "airflow_provider_dpone",
    "requirements/dev.txt",
    "scripts/lib",
    "tests/airflow",
    "tests/browser",
    "tests/cluster",
    "tests/integration",
)


class Keeper:
    """A plugin of pytest.

    :ivar left: how many tests were not begun, because the time was up.
    """

    def __init__(self, *, fresh: bool, deadline: float) -> None:
        self.left = 0
        self._deadline = deadline
        self._code = fingerprint()
        self._rows: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()
        if PROGRESS.exists() and not fresh:
            kept = json.loads(PROGRESS.read_text())
            if kept["code"] == self._code:
                self._rows = kept["rows"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What has passed, in the order in which it is read."""
        return [row for _, row in sorted(self._rows.items(), key=lambda item: (item[1]["order"], item[0]))]

    def counts(self) -> tuple[int, int]:
        """How many have passed, and how many have failed now."""
        return len(self._rows), len(self._failed)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what has passed."""
        done = [item for item in items if item.nodeid in self._rows]
        items[:] = [item for item in items if item.nodeid not in self._rows]
        config.hook.pytest_deselected(items=done)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Begin nothing when the time is up."""
        if time.monotonic() < self._deadline:
            return None
        self.left += 1
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what has passed."""
        if report.failed:
            self._failed.add(report.nodeid)
            self._rows.pop(report.nodeid, None)
        elif report.when == "call" and report.passed:
            order, what = told(report.nodeid)
            judged = sum(int(str(value)) for name, value in report.user_properties if name == JUDGED)
            self._rows[report.nodeid] = {
                "order": order,
                "what": what,
                "seconds": round(report.duration, 1),
                "judged": judged,
            }
        PROGRESS.parent.mkdir(exist_ok=True)
        PROGRESS.write_text(json.dumps({"code": self._code, "rows": self._rows}, indent=1))


def told(nodeid: str) -> tuple[int, str]:
    """Where a test stands in the table, and what it is about, in words."""
    file, _, test = nodeid.rpartition("/")[2].partition("::")
    if (found := re.search(r"incident[_\[]+(\d+)", test)) is not None:
        number = int(found[1])
        lines = (INCIDENTS[number].__doc__ or "").splitlines()
        return number, f"Incident {lines[0].split('. The site')[0].rstrip('.')}"
    name, _, parameter = test.removeprefix("test_").rstrip("]").partition("[")
    words = " ".join(filter(None, (name.replace("_", " "), parameter)))
    order = {"test_situations.py": 20, "test_list.py": 30, "test_prefix.py": 40}.get(file, 50)
    return order, words[0].upper() + words[1:]


def fingerprint() -> str:
    """Return a digest of the code that what is seen depends on, as it lies in the working copy."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "--", *_CODE).splitlines()
    found = hashlib.sha256()
    for name in sorted(listed):
        path = CHECKOUT / name
        if path.exists():
            found.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def write(keeper: Keeper) -> None:
    """Write the results."""
    rows = [{name: value for name, value in row.items() if name != "order"} for row in keeper.rows]
    results = {"made": _made(), "seen": rows}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def _made() -> Mapping[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", *_CODE)),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "airflow": version("apache-airflow"),
        "servers": f"chdb-core=={version('chdb-core')}",
        "browser": _browser(),
        "playwright": version("playwright"),
        "axe": AXE,
    }


def _browser() -> str:
    found = noted(CHECKOUT)
    assert found is not None
    said = subprocess.run(
        [found.program, "--version"],
        env={**os.environ, **found.environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    name = re.search(r"(Chromium|Google Chrome) [\d.]+", said)
    return name[0] if name else said.strip()


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
