"""Pytest's side of the scenarios: the option, the clusters, and the table of what was seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.cluster.spec import DATABASE_PREFIX
from tests.proof.made import made

ALL = "--all-scenarios"
PROPERTY = "scenario"
ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
RESULTS = {False: BUILD / "scenarios.json", True: BUILD / "scenarios-independent.json"}
"""By whether the tables were independent: the two kinds may be run one after the other."""
KEPT = BUILD / "lost-load-reply.json"
"""What the one scenario measured that measures something."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        ALL, action="store_true", help="run every scenario, and write what was seen below build/"
    )


class Results:
    """Gathers what each scenario has reported."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.rows += [
                {**json.loads(str(value)), "passed": report.passed}
                for name, value in report.user_properties
                if name == PROPERTY
            ]

    def pytest_sessionfinish(self) -> None:
        BUILD.mkdir(exist_ok=True)
        for row in self.rows:
            kept = row.pop("kept")
            if isinstance(kept, dict) and row["passed"]:
                _write(KEPT, {"fixture_digest": _equipment(), **kept})
        for independent, file in RESULTS.items():
            if rows := [row for row in self.rows if row["independent"] is independent]:
                _write(file, rows)


def _write(file: Path, results: object) -> None:
    file.write_text(json.dumps({"made": made(), "results": results}, indent=1) + "\n")


def _equipment() -> str:
    """A digest of what a receipt was made with, beside the product."""
    equipment = hashlib.sha256()
    for folder in ("cluster", "scenarios", "integration"):
        for path in sorted((ROOT / "tests" / folder).rglob("*.py")):
            equipment.update(path.relative_to(ROOT).as_posix().encode())
            equipment.update(path.read_bytes())
    return equipment.hexdigest()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(ALL) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results())


@pytest.fixture(scope="session")
def cluster_of_three() -> Iterator[LocalCluster]:
    """Three replicas, started at the first use."""
    with LocalCluster(replicas=3) as running:
        yield running


@contextmanager
def a_database(cluster: LocalCluster) -> Iterator[str]:
    """A new database on every replica; it is dropped afterwards."""
    name = f"{DATABASE_PREFIX}_{uuid4().hex[:8]}"
    cluster.execute(f"CREATE DATABASE {name} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
    yield name
    cluster.execute(f"DROP DATABASE {name} ON CLUSTER {CLUSTER_NAME} SYNC")
