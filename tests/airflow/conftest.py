"""Fixtures for the tests in this folder."""

from __future__ import annotations

from tests.airflow.fixtures import airflow_env

__all__ = ["airflow_env"]
