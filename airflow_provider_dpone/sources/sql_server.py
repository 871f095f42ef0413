"""Types of SQL Server that its driver changes in silence, found before a row is read.

pymssql is the driver of Airflow's provider. As its source and FreeTDS's say, it cuts moments to microseconds, where
``datetime2(7)`` counts tenths of one, and may give ``money`` with two of its four digits; of a ``sql_variant`` only the
server knows the type. By the time a value is Python's, nothing shows that it was another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.dbapi import Query

DRIVERS: Final = ("pymssql",)
"""Packages whose connections lead to SQL Server and nowhere else."""

_DESCRIBE: Final = (
    "SELECT name, system_type_name, error_number FROM sys.dm_exec_describe_first_result_set(%s, NULL, 0) "
    "ORDER BY column_ordinal"
)
_PLACEHOLDER: Final = re.compile(r"%%|%(?:\(\w+\))?[sd]")

_TEXT: Final = "CONVERT(varchar(33), x, 126) into a text column"
_WAYS: Final[Mapping[str, str]] = {
    "datetime2(7)": f"CAST(x AS datetime2(6)), or {_TEXT}",
    "time(7)": f"CAST(x AS time(6)), or {_TEXT}",
    "datetimeoffset": f"CAST(x AT TIME ZONE 'UTC' AS datetime2(6)), or {_TEXT}",
    "money": "CAST(x AS decimal(19, 4))",
    "smallmoney": "CAST(x AS decimal(10, 4))",
    "sql_variant": "CAST(x AS the type that it holds)",
}


def require_exact(query: Query, connection: Any) -> None:
    """Refuse a query with a column that the driver would change. The server plans it and runs nothing of it.

    :raises Stopped: ``TYPE_NOT_EXACT``, with every such column; ``BAD_INPUT``: the server can't describe the query.
    """
    # The connection's extras may ask for rows as dicts.
    with closing(connection.cursor(as_dict=False)) as cursor:
        cursor.execute(_DESCRIBE, (_without_values(query),))
        found = [tuple(row)[:3] for row in cursor.fetchall()]
    if error := next((number for _, _, number in found if number is not None), None):
        raise Stopped(
            Stop(
                Code.BAD_INPUT,
                f"SQL Server can't describe the source's query (error {error}), so it isn't known whether its types "
                "arrive exactly.",
                next_action="Write a SELECT without temporary tables, and parameters only where a NULL is allowed.",
            )
        )
    lossy = [(str(name), str(kind), way) for name, kind, _ in found if (way := _way(kind)) is not None]
    if lossy:
        raise Stopped(
            Stop(
                Code.TYPE_NOT_EXACT,
                "SQL Server's driver does not give these columns exactly: "
                + "; ".join(f"{name!r} is {kind}" for name, kind, _ in lossy)
                + ".",
                next_action="Cast them in the query's SELECT: "
                + "; ".join(dict.fromkeys(f"{kind} by {way}" for _, kind, way in lossy))
                + ".",
                facts={"columns": [name for name, _, _ in lossy]},
            )
        )


def _way(kind: str | None) -> str | None:
    """Return the way out for a type that does not arrive exactly."""
    if kind is None:
        return "CAST(x AS varbinary(max)) or a method of the type"
    return _WAYS.get(kind) or _WAYS.get(kind.partition("(")[0])


def _without_values(query: Query) -> str:
    """Return the query with NULL for each parameter: values have no part in what the types are."""
    if query.parameters is None:
        return query.text
    return _PLACEHOLDER.sub(lambda found: "%" if found[0] == "%%" else "NULL", query.text)
