"""PostgreSQL's own COPY stream, passed on as it is: no value becomes an object of Python.

COPY's text format is ClickHouse's TabSeparated: the same escapes, the same ``\\N``. Each column is read in the
type that PostgreSQL gave it, so every text is in range, and ClickHouse converts it to the table's type by the
rules of :mod:`~airflow_provider_dpone.clickhouse.exact`. Three kinds of values have no common spelling and
are written otherwise by the SELECT inside the COPY: bytes as hex digits, arrays as JSON, and timestamps as
their text in UTC.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_provider_dpone.clickhouse.column_types import ColumnType, column_type
from airflow_provider_dpone.clickhouse.exact import (
    TEXT_CARRIER,
    Encoding,
    InexactTypeError,
    LoadColumn,
    exact_select,
)
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources import postgres_session
from airflow_provider_dpone.sources.base import SourceColumn, StreamLoad, driver
from airflow_provider_dpone.sources.dbapi import Query, checked_names
from airflow_provider_dpone.sources.pump import Work, Write, pumped

COPY_DRIVERS: Final = postgres_session.DRIVERS
"""Packages whose connections can COPY."""

_PIECE_BYTES: Final = 256 * 1024

_TYPED: Final = {
    "bool": "Bool",
    "int2": "Int16",
    "int4": "Int32",
    "int8": "Int64",
    "oid": "UInt32",
    "float4": "Float32",
    "float8": "Float64",
    "uuid": "UUID",
}
"""Types whose every text ClickHouse reads as the same value, with the type that holds all of them."""

_SUGGESTED: Final = {
    "date": "Date32",
    "timestamp": "DateTime64(6, 'UTC')",
    "timestamptz": "DateTime64(6, 'UTC')",
}
_MOST_PRECISION: Final = 76

_ELEMENTS: Final = frozenset(
    (
        *_TYPED,
        *_SUGGESTED,
        "numeric",
        "text",
        "varchar",
        "name",
        "time",
        "timetz",
        "interval",
        "json",
        "jsonb",
    )
)
"""Types whose cast to text is their text in a column of their own. Of ``bpchar`` and ``inet``, for two, it is not."""

_WHOLE: Final = frozenset(("int2", "int4", "int8", "oid"))

_OWN_FLOATS: Final = frozenset(("float4", "float8"))
"""They travel as text, which the server converts to the nearest float if it is told to.

Reading a body, releases before 26.7 take a neighbour of it for one text in six, and no setting helps: seen on 24.8.
"""

_NUMBERS: Final = frozenset((*_WHOLE, "numeric"))
"""Types that are read without a look for NULL, which is quicker, where the table's column has none.

ClickHouse stops at ``\\N`` then, since no number begins so. A text would be one of these letters, and the letters of a
moment or a UUID are not looked at as closely by every release.
"""

_TYPES: Final = """
WITH RECURSIVE base(oid, type, element) AS (
    SELECT oid, oid, false FROM pg_catalog.pg_type WHERE oid = ANY(%s)
    UNION ALL
    SELECT base.oid,
           CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END,
           base.element OR t.typtype <> 'd'
    FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type
    WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0 AND NOT base.element)
)
SELECT base.oid::pg_catalog.int8, t.typname::pg_catalog.text, n.nspname = 'pg_catalog', t.typtype = 'e', base.element
FROM base
JOIN pg_catalog.pg_type t ON t.oid = base.type
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.typtype <> 'd' AND (base.element OR t.typcategory <> 'A' OR t.typelem = 0)
"""
"""What a type is behind its domains, and what its elements are behind theirs if it is an array."""


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    """A column of a query on PostgreSQL.

    :ivar type: the type's name behind its domains, as ``pg_type`` has it; of an array, its elements' with ``array``
        set. One that is not PostgreSQL's own stands in brackets.
    :ivar enum: it is one of labels.
    :ivar precision: of a ``numeric`` that has one, as is ``scale``.
    """

    name: str
    type: str
    array: bool = False
    enum: bool = False
    precision: int | None = None
    scale: int | None = None

    @property
    def suggested(self) -> str:
        """The type of ClickHouse that holds every usual value of this one; NULL is not asked for."""
        if self.array:
            return f"Array(Nullable({PostgresColumn('', self.type).suggested}))"
        return self._decimal or _TYPED.get(self.type) or _SUGGESTED.get(self.type) or "String"

    @property
    def _decimal(self) -> str | None:
        match self.type, self.precision, self.scale:
            case "numeric", int(precision), int(scale) if 0 <= scale <= precision <= _MOST_PRECISION:
                return f"Decimal({precision}, {scale})"
            case _:
                return None

    @property
    def typed(self) -> str | None:
        """The type as which COPY's text is read, if it is not read as text."""
        if self.array or self.type in _OWN_FLOATS:
            return None
        return self._decimal or _TYPED.get(self.type)


@dataclass(frozen=True, slots=True)
class _Copied:
    """How a column goes through COPY: the expression that is selected, and what the stream holds then."""

    expression: str
    column: SourceColumn


class NoCopy(Exception):
    """COPY can't be used; the text says why, for the log."""


def describe(query: Query, connection: Any) -> tuple[PostgresColumn, ...]:
    """Ask PostgreSQL for the query's columns. It plans the query and runs nothing of it.

    :raises Stopped: ``BAD_INPUT``: a column has no name.
    :raises NoCopy: what answers is not PostgreSQL.
    """
    postgres_session.begin(connection)
    with closing(_cursor(connection)) as cursor:
        cursor.execute("SELECT pg_catalog.version()")
        if "redshift" in str(cursor.fetchone()[0]).lower():
            raise NoCopy("Redshift has no COPY to the client")
        query.execute(cursor, query.wrapped(rest=" LIMIT 0"))
        fields = list(cursor.description or ())
        checked_names([str(field[0]) for field in fields])
        cursor.execute(_TYPES, ([field[1] for field in fields],))
        types = {int(oid): found for oid, *found in cursor.fetchall()}
    return tuple(_column(field, types.get(field[1])) for field in fields)


def _column(field: Any, found: Sequence[Any] | None) -> PostgresColumn:
    name, precision, scale = str(field[0]), field[4], field[5]
    if found is None:
        return PostgresColumn(name, "[unknown]")
    type_name, own, enum, array = found
    type_name = type_name if own else f"[{type_name}]"
    # psycopg2 makes large numbers of a modifier that is not there.
    if array or type_name != "numeric" or precision is None or scale is None or precision > 1000:
        return PostgresColumn(name, type_name, array, enum)
    return PostgresColumn(name, type_name, precision=precision, scale=scale)


def copy_stream(query: Query, columns: Sequence[PostgresColumn], types: Sequence[str]) -> StreamLoad:
    """Return the load by COPY.

    :param types: those of the table's columns.
    :raises NoCopy: a column can't travel exactly this way.
    """
    copied = [_copied(column, target) for column, target in zip(columns, types, strict=True)]
    reported: int | None = None

    def produce(write: Write, work: Work) -> None:
        nonlocal reported
        reported = None
        with closing(query.connect()) as connection:
            work.opened(connection)
            if list(describe(query, connection)) != list(columns):
                raise Stopped(
                    Stop(Code.SOURCE_FAILED, "The query's columns changed after the load was planned.")
                )
            select = _selecting(query, [(one.column.name, one.expression) for one in copied])
            work.require_wanted()
            rows = _copy(query, connection, f"COPY (\n{select}\n) TO STDOUT", write)
            connection.rollback()
        reported = rows

    def chunks() -> Iterator[bytes]:
        return pumped(produce)

    return StreamLoad(
        "TabSeparated",
        _MOMENT_SETTINGS,
        tuple(one.column for one in copied),
        chunks,
        lambda: reported,
        "PostgreSQL's COPY stream is passed on as it is: every column is exact that way.",
    )


def _copied(column: PostgresColumn, target: str) -> _Copied:
    """Choose how a column goes through COPY into this type of the table.

    :raises NoCopy: there is no exact way.
    """
    name, source = column.name, quoted(column.name)
    kind = column_type(target)
    if not _same_rule(column, kind):
        raise _no_way(column, target)
    if column.array and kind.name == "Array":
        # A timestamp without a zone is one in UTC, which is the session's zone.
        ((_, element),) = kind.elements
        is_moment = column.type == "timestamp" and element.name in _MOMENTS
        elements = "timestamptz[]::pg_catalog.text[]" if is_moment else "text[]"
        # PostgreSQL does not declare an array's dimensions. ClickHouse refuses what is no array in JSON.
        expression = (
            f"CASE WHEN {source} IS NULL "
            f"OR coalesce(pg_catalog.array_ndims({source}), 1) OPERATOR(pg_catalog.=) 1 "
            # To anyelement: a function of that name for arrays of text may be somebody's own.
            f"THEN pg_catalog.to_json({source}::pg_catalog.{elements})::pg_catalog.text ELSE 'null' END"
        )
        found = SourceColumn(name, "Array(Nullable(String))", Encoding.JSON_ARRAY)
    elif column.array:
        expression, found = source, SourceColumn(name, TEXT_CARRIER)
    elif column.type == "bytea":
        expression = f"pg_catalog.encode({source}, 'hex')"
        found = SourceColumn(name, TEXT_CARRIER, Encoding.HEX)
    elif column.type in {"timestamp", "timestamptz"} and kind.name in _MOMENTS:
        expression, found = _moment(column.type, source), SourceColumn(name, _MOMENT_CARRIER)
    else:
        match column.typed:
            case None:
                carrier = TEXT_CARRIER
            case typed if column.type in _NUMBERS and not kind.nullable:
                carrier = typed
            case typed:
                carrier = f"Nullable({typed})"
        # The text is read as the type that it was described with: PostgreSQL itself refuses another one.
        expression = f"{source}::pg_catalog.{column.type}" if column.type in _WHOLE else source
        if (column.type, kind.name) == ("float4", "Float64"):
            # The text of a real is short for another double than the one that it is.
            expression = f"{source}::pg_catalog.float8"
        found = SourceColumn(name, carrier)
    try:
        exact_select([LoadColumn(name, str(found.type), target, found.encoding)])
    except InexactTypeError:
        raise _no_way(column, target) from None
    return _Copied(expression, found)


_MOMENTS: Final = frozenset(("DateTime", "DateTime64"))
_MOMENT_CARRIER: Final = "Nullable(DateTime64(6, 'UTC'))"
_MOMENT_SETTINGS: Final = {"date_time_input_format": "basic"}
"""The only one of ClickHouse's ways to read a moment that is quick; it knows no zones."""


def _moment(kind: str, source: str) -> str:
    """Return a moment as its text in UTC. One that ClickHouse would move into its calendar becomes what it can't read.

    A timestamp without a zone is one in UTC, which is the session's zone.
    """
    first, last = "1900-01-01 00:00:00", "2299-12-31 23:59:59.999999"
    zone = "" if kind == "timestamp" else "+00"
    return (
        f"CASE WHEN {source} OPERATOR(pg_catalog.<) pg_catalog.{kind} '{first}{zone}' "
        f"OR {source} OPERATOR(pg_catalog.>) pg_catalog.{kind} '{last}{zone}' "
        f"THEN pg_catalog.timestamp 'infinity' ELSE {source}::pg_catalog.timestamp END"
    )


_FLOATS: Final = frozenset(("Float32", "Float64", "BFloat16"))


def _same_rule(column: PostgresColumn, kind: ColumnType) -> bool:
    """Tell whether reading PostgreSQL's text as this type changes no value that means something else.

    What is read as a type of its own is converted by a checked rule. Text is taken as the nearest float, so no number
    may come to a float as text but one that PostgreSQL wrote from that very float.
    """
    if column.array:
        if column.type not in _ELEMENTS and not column.enum:
            return False
        if kind.name != "Array":
            return kind.name == "String"
        ((_, element),) = kind.elements
        if element.name == "Array":
            return False
        if element.name in _FLOATS and column.type in {*_WHOLE, "numeric"}:
            return False
        return column.type not in _OWN_FLOATS or _TYPED[column.type] == element.name
    match column.type:
        case "numeric" if column.typed is None:
            return kind.name not in _FLOATS
        case "float4":
            return kind.name in {"Float32", "Float64", "String"}
        case "float8":
            return kind.name in {"Float64", "String"}
        case "bytea":
            return kind.name in {"String", "FixedString"}
        case "bit" | "varbit":
            return kind.name in {"String", "FixedString", "Bool"}
        case _:
            return True


def _no_way(column: PostgresColumn, target: str) -> NoCopy:
    kind = f"{column.type}[]" if column.array else column.type
    return NoCopy(f"column {column.name!r} has no exact way from {kind} into {target}")


def as_doubles(query: Query, columns: Sequence[PostgresColumn]) -> Query:
    """Return the query with each ``real`` as the double that it is.

    Drivers make a double of a real's shortest text, which is another one: 0.1 where the real is 0.10000000149.
    """
    if all(column.type != "float4" for column in columns):
        return query
    expressions = []
    for column in columns:
        cast = f"::pg_catalog.float8{'[]' if column.array else ''}" if column.type == "float4" else ""
        expressions.append((column.name, quoted(column.name) + cast))
    return replace(query, text=_selecting(query, expressions))


def _selecting(query: Query, expressions: Iterable[tuple[str, str]]) -> str:
    """Return a SELECT of these expressions over the query, each under its name."""
    selected = ", ".join(f"{expression} AS {quoted(name)}" for name, expression in expressions)
    if query.parameters is not None:
        selected = selected.replace("%", "%%")  # a name is no placeholder
    return query.wrapped(selected)


def quoted(name: str) -> str:
    """Return an identifier of PostgreSQL."""
    return '"' + name.replace('"', '""') + '"'


def _cursor(connection: Any) -> Any:
    """Return a cursor that gives tuples, whatever the connection's extras ask for, and puts parameters into the text.

    COPY can't have its parameters sent apart, and a query may have other types when they are.
    """
    if driver(connection) == "psycopg2":
        from psycopg2.extensions import cursor  # type: ignore[import-untyped]

        return connection.cursor(cursor_factory=cursor)
    from psycopg import ClientCursor
    from psycopg.rows import tuple_row

    return ClientCursor(connection, row_factory=tuple_row)


class _Pieces(io.RawIOBase):
    """Hands over what a buffer in front of it has gathered."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # The buffer uses its memory again.
        self._write(bytes(data))
        return len(data)


def _copy(query: Query, connection: Any, sql: str, write: Write) -> int:
    """Run a COPY and return how many rows PostgreSQL says it has given."""
    copied = _copy_by_psycopg2 if driver(connection) == "psycopg2" else _copy_by_libpq
    rows = copied(query, connection, sql, write)
    if rows < 0:
        raise Stopped(Stop(Code.SOURCE_FAILED, "PostgreSQL ended the COPY without a count of its rows."))
    return rows


def _copy_by_psycopg2(query: Query, connection: Any, sql: str, write: Write) -> int:
    buffer = io.BufferedWriter(_Pieces(write), _PIECE_BYTES)
    with closing(_cursor(connection)) as cursor:
        bound = sql if query.parameters is None else cursor.mogrify(sql, query.parameters).decode()
        cursor.copy_expert(bound, buffer)
        rows = int(cursor.rowcount)
    buffer.flush()
    buffer.detach()
    return rows


def _copy_by_libpq(query: Query, connection: Any, sql: str, write: Write) -> int:
    """Use psycopg's wrapper of libpq: its cursor's COPY takes three times the processor's time for each row.

    Waiting for a row lets other threads run, and a cancelled query ends the wait.
    """
    from psycopg.pq import ExecStatus

    with closing(_cursor(connection)) as cursor:
        bound = sql if query.parameters is None else cursor.mogrify(sql, query.parameters)
    libpq = connection.pgconn
    begun = libpq.exec_(bound.encode())
    if begun.status != ExecStatus.COPY_OUT:
        raise _postgres_error(begun)
    read, gathered = libpq.get_copy_data, bytearray()
    while True:
        size, data = read(0)
        if size < 0:
            break
        # Cheaper for a row than a file's write() is, and than rows that are kept to be joined.
        gathered += data
        if len(gathered) >= _PIECE_BYTES:
            write(bytes(gathered))
            gathered.clear()
    ended = libpq.get_result()
    while libpq.get_result() is not None:
        pass
    if ended is None or ended.status != ExecStatus.COMMAND_OK:
        raise _postgres_error(ended)
    write(bytes(gathered))
    return -1 if ended.command_tuples is None else int(ended.command_tuples)


def _postgres_error(result: Any) -> Exception:
    """Return psycopg's error for a result, without PostgreSQL's text."""
    from psycopg import OperationalError, errors
    from psycopg.pq import DiagnosticField

    state = None if result is None else result.error_field(DiagnosticField.SQLSTATE)
    try:
        kind: type[Exception] = OperationalError if state is None else errors.lookup(state.decode())
    except KeyError:
        kind = OperationalError
    return kind("PostgreSQL ended the COPY with an error")
