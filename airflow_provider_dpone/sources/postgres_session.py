"""A transaction of PostgreSQL in which a source changes nothing, and in which each value has one text."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

from airflow_provider_dpone.sources.base import driver

DRIVERS: Final = ("psycopg2", "psycopg")
"""Packages whose connections lead to PostgreSQL, or to what speaks its protocol."""

_SESSION: Final = (
    "SET TRANSACTION READ ONLY",
    "SET LOCAL TimeZone TO 'UTC'",
    "SET LOCAL DateStyle TO 'ISO'",
    "SET LOCAL IntervalStyle TO 'postgres'",
    "SET LOCAL bytea_output TO 'hex'",
    "SET LOCAL extra_float_digits TO 1",
)
"""What the texts of values depend on, whatever the role's defaults say.

It ends with the transaction: behind a pooler the session is somebody else's next."""


def begin(connection: Any) -> None:
    """Begin the transaction on a new connection."""
    is_psycopg2 = driver(connection) == "psycopg2"
    if is_psycopg2:
        # By its own method, since it goes on encoding SQL as it did before a SET.
        connection.set_client_encoding("UTF8")
    connection.autocommit = False
    with closing(connection.cursor()) as cursor:
        for statement in _SESSION:
            cursor.execute(statement)
        if not is_psycopg2:
            cursor.execute("SET LOCAL client_encoding TO 'UTF8'")
