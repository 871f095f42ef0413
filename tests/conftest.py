"""Fixtures for all tests live in plugin modules, each next to what it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["tests.cluster.fixtures", "tests.airflow.fixtures"]

_ORDER = ("unit", "simulation", "cluster", "integration", "airflow")
_TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is quick first, and what keeps an Airflow running last: it costs the others time."""
    items.sort(key=lambda item: _ORDER.index(item.path.relative_to(_TESTS).parts[0]))
