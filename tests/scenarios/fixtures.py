"""Pytest's side of the scenarios: the option, the clusters, and the table of what was seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.cluster.spec import DATABASE_PREFIX

ALL = "--all-scenarios"
PROPERTY = "scenario"
RESULTS = Path(__file__).resolve().parents[2] / "build" / "scenarios.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        ALL, action="store_true", help="run every scenario, and write what was seen to build/scenarios.json"
    )


class Results:
    """Gathers what each scenario has reported."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.rows += [
                {**json.loads(str(value)), "passed": report.passed}
                for name, value in report.user_properties
                if name == PROPERTY
            ]

    def pytest_sessionfinish(self) -> None:
        if self.rows:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(self.rows, indent=1) + "\n")


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
