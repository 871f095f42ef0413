"""Where the rows of a refresh come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dpone.sources.base import (
    RowsLoad,
    SelectLoad,
    Source,
    SourceColumn,
    StreamLoad,
)
from airflow_provider_dpone.sources.file import FileSource
from airflow_provider_dpone.sources.sql import SqlSource

__all__ = [
    "FileSource",
    "RowsLoad",
    "SelectLoad",
    "Source",
    "SourceColumn",
    "SqlSource",
    "StreamLoad",
    "source_from",
]


def source_from(value: Source | Mapping[str, Any]) -> Source:
    """Return a source, built from a dict with the same names if it is one.

    :raises ValueError: the dict is no source (it has neither ``sql`` nor ``path``), or its values are wrong.
    """
    if not isinstance(value, Mapping):
        return value
    for required, kind in (("sql", SqlSource), ("path", FileSource)):
        if required in value:
            try:
                return kind(**value)
            except TypeError:
                names = ", ".join(kind.__dataclass_fields__)
                raise ValueError(f"{kind.__name__} has the arguments {names} and no others") from None
    raise ValueError("a source has sql=... (a query) or path=... (a file)")
