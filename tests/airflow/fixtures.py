"""Pytest fixtures with a real Airflow; nothing starts before a test asks for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.harness import LocalAirflow

DAGS = Path(__file__).parent / "dags"


@pytest.fixture(scope="session")
def airflow_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    """One Airflow with a triggerer for the whole session.

    It starts with the DAGs of ``tests/airflow/dags``. A test brings what else it needs with
    `LocalAirflow.add_dag` and `LocalAirflow.add_connection`, under names of its own.
    """
    folder = tmp_path_factory.mktemp("airflow") / "dags"
    shutil.copytree(DAGS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with LocalAirflow(folder, triggerer=True) as airflow:
        yield airflow
