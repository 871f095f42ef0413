"""Fixtures for all tests live in plugin modules, each next to what it is about."""

from __future__ import annotations

pytest_plugins = ["tests.cluster.fixtures", "tests.airflow.fixtures"]
