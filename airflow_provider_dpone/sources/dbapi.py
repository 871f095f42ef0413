"""A query on any SQL connection of Airflow, read through its driver in batches.

The driver's rows become Arrow, a batch at a time, in one stream. Where the driver has a cursor on the server
(both drivers of PostgreSQL), that is used; other drivers read as their own cursors do, and some of those
hold the whole result.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, time
from itertools import count
from typing import Any, Final, Protocol

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources import postgres_session
from airflow_provider_dpone.sources.arrow_rows import ArrowRows, source_columns
from airflow_provider_dpone.sources.arrow_stream import require_pyarrow
from airflow_provider_dpone.sources.base import SourceColumn, StreamLoad, driver
from airflow_provider_dpone.sources.one_select import one_select
from airflow_provider_dpone.sources.pump import Work, Write, pumped

Parameters = Sequence[Any] | Mapping[str, Any] | None

_CURSOR_NAME: Final = "dpone_source"
_BATCHES_PER_COLLECTION: Final = 100
_DIGITS_OF_A_SECOND: Final = 6
_MOST_ROWS: Final = 2**62
"""Some drivers say -1 as an unsigned number where they have no count."""


class Hook(Protocol):
    """What is used of Airflow's ``DbApiHook``."""

    def get_conn(self) -> Any:
        """Open a connection of the driver."""


def hook_of(conn_id: str) -> Hook:
    """Return the SQL hook of an Airflow connection. Nothing is connected yet.

    :raises Stopped: ``BAD_INPUT``: there is no such connection, its provider is not installed, or it is
        not one of SQL.
    """
    # Airflow is imported late: reading a DAG file must stay cheap.
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.sdk import BaseHook

    from airflow_provider_dpone.compat import AirflowException

    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowException:
        raise _refused(f"Airflow has no connection {conn_id!r}.") from None
    try:
        hook = connection.get_hook()  # type: ignore[no-untyped-call]
    except (AirflowException, ImportError):
        raise _refused(
            f"Airflow has no hook for connection {conn_id!r}: install the provider of its type."
        ) from None
    if not isinstance(hook, DbApiHook):
        raise _refused(f"Connection {conn_id!r} is not one to a SQL database.")
    return hook


@dataclass(frozen=True, slots=True)
class Query:
    """A query on a connection.

    :ivar text: one SELECT, without a semicolon behind it.
    :ivar parameters: bound by the driver, never put into the text.
    """

    hook: Hook
    text: str
    parameters: Parameters

    def connect(self) -> Any:
        """Open a connection; the caller closes it."""
        return self.hook.get_conn()

    def execute(self, cursor: Any, sql: str) -> None:
        """Run ``sql`` with the query's parameters; without any, a percent sign is nothing but itself."""
        if self.parameters is None:
            cursor.execute(sql)
        else:
            cursor.execute(sql, self.parameters)

    def wrapped(self, columns: str = "*", rest: str = "") -> str:
        """Return a SELECT over the query. It stands on lines of its own, so that a comment may end it."""
        return f"SELECT {columns} FROM (\n{self.text}\n) dpone_source{rest}"


def query_on(hook: Hook, sql: str, parameters: Parameters) -> Query:
    """Return the query, if it is one that only reads.

    :raises Stopped: ``BAD_INPUT``: it is not exactly one SELECT.
    """
    return Query(hook, one_select(sql, str(getattr(hook, "conn_type", ""))), parameters)


def column_names(query: Query) -> tuple[str, ...]:
    """Ask the database for the names of the query's columns.

    A condition that no row meets is put around the query. Where the database does not take that (a query
    that begins with WITH on SQL Server), the query itself is started and no row is fetched.
    """
    with closing(query.connect()) as connection:
        for sql in (query.wrapped(rest=" WHERE 1 = 0"), query.text):
            if driver(connection) in postgres_session.DRIVERS:
                postgres_session.begin(connection)
            cursor = connection.cursor()
            try:
                query.execute(cursor, sql)
                described = [tuple(column) for column in cursor.description or ()]
            except Exception:
                if sql == query.text:
                    raise
                with suppress(Exception):
                    connection.rollback()
                continue
            finally:
                with suppress(Exception):
                    cursor.close()
            break
    _require_microseconds(described)
    return checked_names([str(column[0]) for column in described])


def _require_microseconds(columns: Sequence[tuple[Any, ...]]) -> None:
    """Refuse a moment of which Python holds six digits of a second and the database more.

    :raises Stopped: ``TYPE_NOT_EXACT``. Drivers that do not say the digits are not found here.
    """
    finer = [
        str(name)
        for name, kind, _, _, _, scale, *_ in columns
        if kind in (datetime, time) and isinstance(scale, int) and scale > _DIGITS_OF_A_SECOND
    ]
    if finer:
        raise Stopped(
            Stop(
                Code.TYPE_NOT_EXACT,
                f"The driver cuts these columns to microseconds: {', '.join(map(repr, finer))}.",
                next_action="Cast them in the query's SELECT to six digits, or to text.",
                facts={"columns": list(finer)},
            )
        )


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Refuse a query without columns, or with one that has no name.

    :raises Stopped: ``BAD_INPUT``.
    """
    if not names:
        raise _refused("The source's SQL gives no columns: it must be one SELECT.")
    if not all(names):
        raise _refused("The source's SQL has a column without a name: give it one with AS.")
    return tuple(names)


def rows_stream(
    query: Query, names: Sequence[str], types: Sequence[str], *, batch_rows: int, why: str
) -> StreamLoad:
    """Return the load that reads through the driver.

    :param types: those of the table's columns.
    :param why: why no faster way was taken, for the log.
    :raises Stopped: ``TYPE_NOT_EXACT``; ``BAD_INPUT``: pyarrow is not installed.
    """
    columns = source_columns(names, types)
    pyarrow = require_pyarrow("Reading a query on another database")
    counted: int | None = None

    def produce(write: Write, work: Work) -> None:
        nonlocal counted
        counted = None
        rows = ArrowRows(pyarrow, names, types)
        collect = _collecting()
        with closing(query.connect()) as connection:
            work.opened(connection)
            with closing(_reading_cursor(connection, batch_rows)) as cursor:
                work.require_wanted()
                query.execute(cursor, query.text)
                while batch := cursor.fetchmany(batch_rows):
                    if rows.rows == 0:
                        _require_names(cursor, names)
                    write(rows.encode(_as_sequences(batch, names)))
                    collect()
                said = _row_count(cursor)
            with suppress(Exception):
                connection.rollback()
        write(rows.end())
        if said not in (None, rows.rows):
            raise Stopped(
                Stop(
                    Code.ROWS_DISAGREE,
                    f"The driver counts {said:,} rows and has given {rows.rows:,}.",
                    facts={"reported": said, "read": rows.rows},
                )
            )
        counted = rows.rows

    def chunks() -> Iterator[bytes]:
        with _collector_paused():
            yield from pumped(produce)

    return StreamLoad(
        "ArrowStream", {}, columns, chunks, lambda: counted, f"rows are read through the driver: {why}."
    )


def _reading_cursor(connection: Any, batch_rows: int) -> Any:
    match driver(connection):
        case "psycopg2":
            postgres_session.begin(connection)
            cursor = connection.cursor(_CURSOR_NAME)
            cursor.itersize = batch_rows
            return cursor
        case "psycopg":
            from psycopg import ServerCursor
            from psycopg.rows import tuple_row

            postgres_session.begin(connection)
            # An extra of the connection may ask for rows as dicts.
            return ServerCursor(connection, _CURSOR_NAME, row_factory=tuple_row)
        case _:
            cursor = connection.cursor()
            with suppress(AttributeError):
                cursor.arraysize = batch_rows
            return cursor


def _as_sequences(batch: Sequence[Any], names: Sequence[str]) -> Sequence[Sequence[Any]]:
    """Return rows by position: an extra of a connection may ask for dicts, whose items are their keys."""
    match batch[0]:
        case tuple() | list():
            return batch
        case Mapping():
            return [[row[name] for name in names] for row in batch]
        case _:
            return [[row[place] for place in range(len(names))] for row in batch]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python's collector from walking through the tuples of each batch, which hold no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _collecting() -> Callable[[], None]:
    """Return what is called per batch: what others leave behind meanwhile is collected now and then."""
    batches = count(1)

    def collect() -> None:
        if next(batches) % _BATCHES_PER_COLLECTION == 0:
            gc.collect()

    return collect


def _require_names(cursor: Any, names: Sequence[str]) -> None:
    if [str(column[0]) for column in cursor.description or ()] != list(names):
        raise Stopped(Stop(Code.SOURCE_FAILED, "The query's columns changed after the load was planned."))


def _row_count(cursor: Any) -> int | None:
    """Return how many rows the driver says that the query gave. A cursor on the server counts otherwise."""
    if driver(cursor) in postgres_session.DRIVERS:
        return None
    said = getattr(cursor, "rowcount", None)
    return said if isinstance(said, int) and 0 <= said < _MOST_ROWS else None


def described(names: Sequence[str]) -> tuple[SourceColumn, ...]:
    """Return columns of which only the names are known."""
    return tuple(SourceColumn(name) for name in names)


def _refused(message: str) -> Stopped:
    return Stopped(Stop(Code.BAD_INPUT, message))
