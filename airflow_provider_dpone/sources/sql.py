"""A query as source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from airflow_provider_dpone.clickhouse.sql import SqlSyntaxError, TokenKind, tokens
from airflow_provider_dpone.publication.canonical import Json, sha256_hex
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.base import Describe, Render, SelectLoad, SourceColumn


@dataclass(frozen=True, slots=True)
class SqlSource:
    """The rows of a query.

    :param sql: One SELECT. Its columns are matched to the table's by their names.
    :param conn_id: The Airflow connection on which it runs. Without one it runs in the very ClickHouse that
        is refreshed, as ``INSERT ... SELECT``, and no row leaves the server. A connection is never guessed to
        be the same cluster.
    :raises ValueError: The query is empty.
    """

    sql: str
    conn_id: str | None = None

    __version__: ClassVar[int] = 1
    templated_fields: ClassVar[tuple[str, ...]] = ("sql", "conn_id")

    def __post_init__(self) -> None:
        """Check what needs no server."""
        sql: object = self.sql
        if not isinstance(sql, str) or not sql.strip():
            raise ValueError("sql must not be empty: write a SELECT")
        if self.conn_id is not None and not self.conn_id.strip():
            raise ValueError("conn_id must not be empty: leave it out for a query in the same ClickHouse")

    def identity(self) -> Json:
        """The query as a digest, because its text may hold values."""
        return {"kind": "sql", "sql": sha256_hex(self.sql), "conn_id": self.conn_id}

    def columns(self, describe: Describe) -> tuple[SourceColumn, ...]:
        """The query's columns, as the server describes them without running it."""
        return tuple(describe(self._local_sql()))

    def load(self) -> SelectLoad:
        """A load that runs on the server."""
        return SelectLoad(self._local_sql())

    def _local_sql(self) -> str:
        if self.conn_id is not None:
            raise Stopped(
                Stop(
                    Code.BAD_INPUT,
                    "SqlSource with conn_id (a query on another connection) is not available in this release.",
                    next_action="Leave conn_id out to run the query in the ClickHouse that is refreshed, or "
                    "export the rows to a file and use FileSource.",
                )
            )
        return _one_statement(self.sql)

    def rendered(self, render: Render) -> Self:
        """A copy with the query and the connection's id rendered."""
        return type(self)(render(self.sql), None if self.conn_id is None else render(self.conn_id))

    def serialize(self) -> dict[str, Any]:
        """Plain data for XCom and for expanded tasks."""
        return {"sql": self.sql, "conn_id": self.conn_id}

    @classmethod
    def deserialize(cls, data: Mapping[str, Any], version: int) -> Self:
        """The value that :meth:`serialize` wrote. Raises ``ValueError`` for a version newer than this one."""
        if version > cls.__version__:
            raise ValueError("this SqlSource was written by a newer release: upgrade the provider")
        return cls(**data)


def _one_statement(sql: str) -> str:
    """Return the statement without its semicolon. It will stand in brackets, so it must be whole and alone."""
    try:
        found = [token for token in tokens(sql) if token.kind is not TokenKind.COMMENT]
    except SqlSyntaxError as error:
        raise Stopped(Stop(Code.BAD_INPUT, f"The source's SQL can't be read: {error}.")) from None
    if found and found[-1].is_symbol(";"):
        sql = sql[: found.pop().start]
    if not found or any(token.is_symbol(";") for token in found):
        raise Stopped(Stop(Code.BAD_INPUT, "The source's SQL must be exactly one statement."))
    return sql
