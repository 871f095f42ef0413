"""Fixtures for all tests live in plugin modules, each next to what it is about; those of Airflow in its own folder."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

pytest_plugins = [
    "tests.cluster.fixtures",
    "tests.postgres.fixtures",
    "tests.integration.source_site",
    "tests.scenarios.fixtures",
]

_ORDER = (
    "unit",
    "simulation",
    "exploration",
    "proof",
    "package",
    "cluster",
    "acceptance",
    "integration",
    "scenarios",
    "soak",
    "airflow",
    "browser",
)
_TESTS = Path(__file__).parent
_LONG_RUN_SECONDS = 300
_SHOWN_FILES = 15


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is quick first, and what keeps an Airflow running last: it costs the others time.

    Beside other workers it is the other way round: what takes longest begins first, and quick files fill
    the rest.
    """
    workers = "PYTEST_XDIST_WORKER" in os.environ
    items.sort(key=lambda item: _ORDER.index(_folder(item)), reverse=workers)


def pytest_collection_finish() -> None:
    """Leave what is imported and collected by now to no garbage collection: it stays, and each would walk through it.

    And collect seldom: simulated histories make little but short-lived objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A file stays with one worker, and so do all files that share the one Airflow."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "tests/airflow" if file.startswith("tests/airflow/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Hand the tests out by file."""
    return _ByFile(config, log)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_TESTS).parts[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how much was explored, since a search that shrank unseen would still pass, and where the time went."""
    _show_slowest_files(terminalreporter)
    told = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "explored"
    ]
    if told:
        terminalreporter.section("explored")
        for line in sorted(told):
            terminalreporter.write_line(line)


def _show_slowest_files(terminalreporter: pytest.TerminalReporter) -> None:
    """A file whose every test is quick may still take minutes."""
    seconds: Counter[str] = Counter()
    for outcome in ("passed", "failed", "skipped", ""):
        for report in terminalreporter.getreports(outcome):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if sum(seconds.values()) > _LONG_RUN_SECONDS:
        terminalreporter.section("slowest files")
        for file, total in seconds.most_common(_SHOWN_FILES):
            terminalreporter.write_line(f"{total:7.1f} s  {file}")
