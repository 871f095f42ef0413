"""Airflow provider that replaces a ClickHouse table's contents: published at most once, proven per replica.

The names below are what a DAG file needs besides :mod:`airflow_provider_dpone.operators`. They are imported
when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_dpone.sources import FileSource, SqlSource
    from airflow_provider_dpone.task_groups import cluster_refresh
    from airflow_provider_dpone.values import ClusterRefresh, GiB, KiB, MiB, TableStructure

__version__ = "0.1.0"

__all__ = [
    "ClusterRefresh",
    "FileSource",
    "GiB",
    "KiB",
    "MiB",
    "SqlSource",
    "TableStructure",
    "__version__",
    "cluster_refresh",
]

_HOMES = {
    "ClusterRefresh": "values",
    "FileSource": "sources",
    "GiB": "values",
    "KiB": "values",
    "MiB": "values",
    "SqlSource": "sources",
    "TableStructure": "values",
    "cluster_refresh": "task_groups",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
