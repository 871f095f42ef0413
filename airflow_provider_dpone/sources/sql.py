"""A query as source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from airflow_provider_dpone.clickhouse.sql import SqlSyntaxError, TokenKind, tokens
from airflow_provider_dpone.publication.canonical import Json, digest, sha256_hex
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.base import (
    Describe,
    Render,
    RowsLoad,
    SelectLoad,
    SourceColumn,
    StreamLoad,
    driver,
)
from airflow_provider_dpone.values import FrozenMapping


@dataclass(frozen=True, slots=True)
class SqlSource:
    """The rows of a query.

    :param sql: One SELECT. Its columns are matched to the table's by their names.
    :param conn_id: The Airflow connection on which it runs. Without one it runs in the very ClickHouse that
        is refreshed, as ``INSERT ... SELECT``, and no row leaves the server. A connection is never guessed to
        be the same cluster.
    :param parameters: Values for the query's placeholders, in a list or by name as the driver of ``conn_id``
        has it; bound by the driver. Texts, numbers, booleans, ``None``, and lists of these.
    :param batch_rows: How many rows are fetched at a time where they are read through the driver. All of them
        are in the worker's memory at once.
    :raises ValueError: An argument is wrong; the message names it.
    """

    sql: str
    conn_id: str | None = None
    parameters: Sequence[Any] | Mapping[str, Any] | None = None
    batch_rows: int = 10_000

    __version__: ClassVar[int] = 1
    templated_fields: ClassVar[tuple[str, ...]] = ("sql", "conn_id", "parameters")

    def __post_init__(self) -> None:
        """Check what needs no server."""
        sql: object = self.sql
        if not isinstance(sql, str) or not sql.strip():
            raise ValueError("sql must not be empty: write a SELECT")
        if self.conn_id is not None and not self.conn_id.strip():
            raise ValueError("conn_id must not be empty: leave it out for a query in the same ClickHouse")
        if self.parameters is not None:
            if self.conn_id is None:
                raise ValueError("parameters need a conn_id: a query in the same ClickHouse has none")
            object.__setattr__(self, "parameters", _frozen_parameters(self.parameters))
        rows: object = self.batch_rows
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise ValueError("batch_rows must be a whole number of at least 1")

    def identity(self) -> Json:
        """The query and its parameters as digests, because they may hold values."""
        identity: dict[str, Json] = {"kind": "sql", "sql": sha256_hex(self.sql), "conn_id": self.conn_id}
        if self.parameters is not None:
            identity["parameters"] = digest("dpone/sql-parameters.v1", _canonical(self.parameters))
        return identity

    def columns(self, describe: Describe) -> tuple[SourceColumn, ...]:
        """The query's columns, as its database describes them without running it."""
        match self.load():
            case SelectLoad(sql):
                return tuple(describe(sql))
            case RowsLoad(columns, _):
                return columns

    def load(self) -> SelectLoad | RowsLoad:
        """A load that runs on the server, or one that reads from another database."""
        if self.conn_id is None:
            return SelectLoad(_one_statement(self.sql))
        # Imported late: a DAG file that names a source needs no driver.
        from airflow_provider_dpone.sources import dbapi, postgres, sql_server

        query = dbapi.query_on(dbapi.hook_of(self.conn_id), self.sql, _for_driver(self.parameters))
        with closing(query.connect()) as connection:
            package = driver(connection)
            if package not in postgres.COPY_DRIVERS:
                why = f"there is no faster way for the driver {package}"
                if package in sql_server.DRIVERS:
                    sql_server.require_exact(query, connection)
            else:
                try:
                    found = postgres.describe(query, connection)
                except postgres.NoCopy as no:
                    why = str(no)
                else:
                    columns = tuple(SourceColumn(one.name, one.suggested) for one in found)
                    return RowsLoad(columns, partial(self._copied, query, found))
        names = dbapi.column_names(query)
        return RowsLoad(dbapi.described(names), partial(self._fetched, query, names, why))

    def _copied(self, query: Any, found: Any, types: Sequence[str]) -> StreamLoad:
        from airflow_provider_dpone.sources import postgres

        try:
            return postgres.copy_stream(query, found, types)
        except postgres.NoCopy as no:
            names = [column.name for column in found]
            return self._fetched(postgres.as_doubles(query, found), names, str(no), types)

    def _fetched(self, query: Any, names: Sequence[str], why: str, types: Sequence[str]) -> StreamLoad:
        from airflow_provider_dpone.sources import dbapi

        return dbapi.rows_stream(query, names, types, batch_rows=self.batch_rows, why=why)

    def rendered(self, render: Render) -> Self:
        """A copy with the query, the connection's id and the texts among the parameters rendered."""
        return type(self)(
            render(self.sql),
            None if self.conn_id is None else render(self.conn_id),
            _rendered(self.parameters, render),
            self.batch_rows,
        )

    def serialize(self) -> dict[str, Any]:
        """Plain data for XCom and for expanded tasks."""
        return {
            "sql": self.sql,
            "conn_id": self.conn_id,
            "parameters": _plain(self.parameters),
            "batch_rows": self.batch_rows,
        }

    @classmethod
    def deserialize(cls, data: Mapping[str, Any], version: int) -> Self:
        """The value that :meth:`serialize` wrote. Raises ``ValueError`` for a version newer than this one."""
        if version > cls.__version__:
            raise ValueError("this SqlSource was written by a newer release: upgrade the provider")
        return cls(**data)


def _frozen_parameters(given: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...] | FrozenMapping:
    match given:
        case Mapping():
            if not all(isinstance(name, str) for name in given):
                raise ValueError("parameters by name must have texts as names")
            return FrozenMapping((name, _frozen(value)) for name, value in given.items())
        case list() | tuple():
            return tuple(_frozen(value) for value in given)
        case _:
            raise ValueError("parameters must be a list, or a mapping of names to values")


def _frozen(value: Any) -> Any:
    match value:
        case None | str() | bool() | int() | float():
            return value
        case list() | tuple():
            return tuple(_frozen(one) for one in value)
        case _:
            kind = type(value).__name__
            raise ValueError(
                f"parameters may hold texts, numbers, booleans, None and lists of them, not {kind}: "
                "give another value as a text and cast it in the SQL"
            )


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case _:
            return value


def _canonical(value: Any) -> Json:
    """Return parameters as what has one text in JSON, which floats do not have."""
    match value:
        case Mapping():
            return {name: _canonical(one) for name, one in value.items()}
        case list() | tuple():
            return [_canonical(one) for one in value]
        case float():
            return {"float": value.hex()}
        case _:
            found: Json = value
            return found


def _rendered(value: Any, render: Render) -> Any:
    match value:
        case str():
            return render(value)
        case Mapping():
            return {name: _rendered(one, render) for name, one in value.items()}
        case list() | tuple():
            return [_rendered(one, render) for one in value]
        case _:
            return value


def _for_driver(parameters: Any) -> Any:
    """Drivers want a tuple or a dict around the values, and a list for an array."""
    plain = _plain(parameters)
    return tuple(plain) if isinstance(plain, list) else plain


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
