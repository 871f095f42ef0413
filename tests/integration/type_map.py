"""The cells of docs/type-map.md: a value of a source, a type of the table, and what becomes of it.

The page is generated from here, and ``test_type_map.py`` proves each cell on real servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

TYPE: Final = "refused in the plan"
VALUE: Final = "refused"

CAST_TEXT: Final = "cast it to `text` in the SELECT"
STRING: Final = "make the column a `String`"


@dataclass(frozen=True, slots=True)
class Exact:
    """What is stored, as ClickHouse writes it: ``toString``, ``hex`` where ``as_hex`` says so; None is NULL."""

    stored: str | None
    as_hex: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """How a cell is refused, and the way out."""

    how: str
    way_out: str


@dataclass(frozen=True, slots=True)
class PostgresCell:
    """A value of PostgreSQL.

    :ivar sql: the expression that gives it, of type ``type``.
    :ivar copy: what becomes of it by COPY; ``driver``: through a driver, the same if left out.
    :ivar by_driver_only: COPY can't take this pair of types, and the driver is used by itself.
    """

    type: str
    sql: str
    target: str
    copy: Exact | Refused
    driver: Exact | Refused | None = None
    by_driver_only: bool = False


def _same(stored: str | None) -> Exact:
    return Exact(stored)


_INFINITY: Final = Refused(VALUE, "turn it into NULL: `nullif(x, 'infinity')`")
_OLD: Final = Refused(
    VALUE, f"not every release's calendar goes beyond 1900 to 2299; {STRING}, and {CAST_TEXT}"
)
_NULL: Final = Refused(VALUE, "make the column `Nullable`, or `coalesce(x, ...)`")
_NULL_ARRAY: Final = Refused(VALUE, "`coalesce(x, '{}')`: ClickHouse has no NULL array")
_FRACTION: Final = Refused(VALUE, "`date_trunc('second', x)`, or a `DateTime64`")
_NAN: Final = Refused(VALUE, "`nullif(x, 'NaN')`, or a `Float64` or `String` column")
_TOO_LARGE: Final = Refused(VALUE, "give the column a wider type")
_DIGITS: Final = Refused(VALUE, "`round(x, n)`, or a larger scale")
_TO_TEXT: Final = Refused(VALUE, CAST_TEXT)

POSTGRES: Final = (
    # NULL and text
    PostgresCell("text", "NULL::text", "Nullable(String)", _same(None)),
    PostgresCell("text", "NULL::text", "String", _NULL),
    PostgresCell("text", "''", "Nullable(String)", _same("")),
    PostgresCell("text", "'NULL'", "Nullable(String)", _same("NULL")),
    PostgresCell("text", "E'\\\\N'", "Nullable(String)", _same("\\N")),
    PostgresCell("text", "E'a\\tb\\nc\\rd\\\\e\\bf\\fg\\x0bh'", "String", _same("a\tb\nc\rd\\e\bf\fg\vh")),
    PostgresCell("text", "E'\\x01\\x1f\\x7f'", "String", _same("\x01\x1f\x7f")),
    PostgresCell("text", "'é日🙂'", "String", _same("é日🙂")),
    PostgresCell("text", "'a'", "LowCardinality(String)", _same("a")),
    PostgresCell("text", "'é'", "FixedString(2)", Exact("C3A9", as_hex=True)),
    PostgresCell("text", "'abc'", "FixedString(2)", _TOO_LARGE),
    PostgresCell("varchar", "'x'::varchar(3)", "String", _same("x")),
    PostgresCell("char(4)", "'x'::char(4)", "String", _same("x   ")),
    # integers
    PostgresCell("smallint", "'-32768'::smallint", "Int16", _same("-32768")),
    PostgresCell("integer", "2147483647", "Int32", _same("2147483647")),
    PostgresCell("integer", "300", "UInt8", _TOO_LARGE),
    PostgresCell("integer", "-1", "UInt64", _TOO_LARGE),
    PostgresCell("bigint", "'-9223372036854775808'::bigint", "Int64", _same("-9223372036854775808")),
    PostgresCell("bigint", "9223372036854775807", "UInt64", _same("9223372036854775807")),
    PostgresCell("bigint", "9007199254740993", "Float64", Refused(VALUE, "an integer or `Decimal` column")),
    PostgresCell("bigint", "9007199254740993", "Int256", _same("9007199254740993")),
    PostgresCell(
        "numeric(20,0)", "18446744073709551615::numeric(20,0)", "UInt64", _same("18446744073709551615")
    ),
    PostgresCell("numeric(20,0)", "18446744073709551616::numeric(20,0)", "UInt64", _TOO_LARGE),
    # numeric and floats
    PostgresCell("numeric(10,2)", "'-0.10'::numeric(10,2)", "Decimal(10, 2)", _same("-0.1")),
    PostgresCell("numeric(10,2)", "1.10::numeric(10,2)", "Decimal(10, 1)", _same("1.1")),
    PostgresCell("numeric(10,2)", "1.15::numeric(10,2)", "Decimal(10, 1)", _DIGITS),
    PostgresCell("numeric(10,2)", "5.00::numeric(10,2)", "Int32", _same("5")),
    PostgresCell("numeric(10,2)", "5.50::numeric(10,2)", "Int32", _DIGITS),
    PostgresCell("numeric(10,2)", "'NaN'::numeric(10,2)", "Decimal(10, 2)", _NAN),
    PostgresCell(
        "numeric(50,5)",
        "'123456789012345678901234567890.12345'::numeric(50,5)",
        "Decimal(50, 5)",
        _same("123456789012345678901234567890.12345"),
    ),
    PostgresCell("numeric", "'1e30'::numeric", "Decimal(38, 2)", _same("1000000000000000000000000000000")),
    PostgresCell("numeric", "0.123::numeric", "Decimal(10, 2)", _DIGITS),
    PostgresCell("numeric", "'NaN'::numeric", "Decimal(10, 2)", _NAN),
    PostgresCell("numeric", "'Infinity'::numeric", "Decimal(10, 2)", _NAN),
    PostgresCell("numeric", "'NaN'::numeric", "Float64", _same("nan"), by_driver_only=True),
    PostgresCell("numeric", "0.5::numeric", "Float64", _same("0.5"), by_driver_only=True),
    PostgresCell("numeric", "1e30::numeric", "String", _same("1" + "0" * 30), _TO_TEXT),
    PostgresCell("double precision", "0.1::float8", "Float64", _same("0.1")),
    PostgresCell("double precision", "'-0'::float8", "Float64", _same("-0")),
    PostgresCell("double precision", "'5e-324'::float8", "Float64", _same("5e-324")),
    PostgresCell(
        "double precision", "'1.7976931348623157e308'::float8", "Float64", _same("1.7976931348623157e308")
    ),
    PostgresCell("double precision", "'NaN'::float8", "Float64", _same("nan")),
    PostgresCell("double precision", "'-Infinity'::float8", "Float64", _same("-inf")),
    PostgresCell(
        "double precision",
        "0.1::float8",
        "Float32",
        Refused(VALUE, "a `Float64` column, or `x::real` in the SELECT"),
        by_driver_only=True,
    ),
    PostgresCell(
        "double precision",
        "0.1::float8",
        "Decimal(10, 2)",
        Refused(VALUE, "`x::numeric` in the SELECT"),
        by_driver_only=True,
    ),
    PostgresCell("real", "0.1::float4", "Float32", _same("0.1"), Refused(VALUE, "a `Float64` column")),
    PostgresCell("real", "0.5::float4", "Float32", _same("0.5")),
    # booleans, enums, UUID
    PostgresCell("boolean", "true", "Bool", _same("true")),
    PostgresCell("boolean", "false", "UInt8", _same("0")),
    PostgresCell("boolean", "NULL::boolean", "Nullable(Bool)", _same(None)),
    PostgresCell("integer", "1", "Bool", _same("true")),
    PostgresCell("integer", "2", "Bool", Refused(VALUE, "`x <> 0`")),
    PostgresCell("enum", "'happy'::mood", "Enum8('happy' = 1, 'sad' = 2)", _same("happy")),
    PostgresCell("enum", "'happy'::mood", "LowCardinality(String)", _same("happy")),
    PostgresCell(
        "enum",
        "'so so'::mood",
        "Enum8('happy' = 1, 'sad' = 2)",
        Refused(VALUE, "add the element to the column's type"),
    ),
    PostgresCell(
        "uuid",
        "'61F0C404-5CB3-11E7-907B-A6006AD3DBA0'::uuid",
        "UUID",
        _same("61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    ),
    PostgresCell("text", "'61f0c404'", "UUID", Refused(VALUE, STRING)),
    # days and moments
    PostgresCell("date", "date '2024-02-29'", "Date", _same("2024-02-29")),
    PostgresCell("date", "date '1969-12-31'", "Date32", _same("1969-12-31")),
    PostgresCell("date", "date '1969-12-31'", "Date", Refused(VALUE, "a `Date32` column")),
    PostgresCell("date", "date '1899-12-31'", "Date32", _same("1899-12-31"), _OLD),
    PostgresCell("date", "date '2300-01-01'", "Date32", _same("2300-01-01"), _OLD),
    PostgresCell("date", "date 'infinity'", "Date32", _INFINITY),
    PostgresCell("date", "date '0044-03-15 BC'", "Date32", _OLD),
    PostgresCell("date", "NULL::date", "Nullable(Date32)", _same(None)),
    PostgresCell(
        "timestamp",
        "timestamp '2013-01-01 05:00:00.123456'",
        "DateTime64(6, 'UTC')",
        _same("2013-01-01 05:00:00.123456"),
    ),
    PostgresCell(
        "timestamp",
        "timestamp '2013-01-01 05:00:00'",
        "DateTime('Europe/Berlin')",
        _same("2013-01-01 06:00:00"),
    ),
    PostgresCell("timestamp", "timestamp '2013-01-01 05:00:00.5'", "DateTime('UTC')", _FRACTION),
    PostgresCell(
        "timestamp",
        "timestamp '1960-01-01 00:00:00'",
        "DateTime64(3, 'UTC')",
        _same("1960-01-01 00:00:00.000"),
    ),
    PostgresCell(
        "timestamp",
        "timestamp '1960-01-01 00:00:00'",
        "DateTime('UTC')",
        Refused(VALUE, "a `DateTime64` column"),
    ),
    PostgresCell(
        "timestamp",
        "timestamp '1850-01-01 00:00:00'",
        "DateTime64(6, 'UTC')",
        _OLD,
    ),
    PostgresCell("timestamp", "timestamp 'infinity'", "DateTime64(6, 'UTC')", _INFINITY),
    PostgresCell("timestamp", "timestamp '-infinity'", "DateTime64(6, 'UTC')", _INFINITY),
    PostgresCell(
        "timestamptz",
        "timestamptz '2013-01-01 05:00:00.5+02'",
        "DateTime64(6, 'UTC')",
        _same("2013-01-01 03:00:00.500000"),
    ),
    PostgresCell(
        "timestamptz",
        "timestamptz '2013-01-01 05:00:00+02'",
        "DateTime('Europe/Berlin')",
        _same("2013-01-01 04:00:00"),
    ),
    PostgresCell(
        "timestamptz",
        "timestamptz '2024-10-27 01:30:00+00'",
        "DateTime('Europe/Berlin')",
        _same("2024-10-27 02:30:00"),
    ),
    PostgresCell(
        "timestamptz",
        "timestamptz '2013-01-01 05:00:00.000001+00'",
        "DateTime64(3, 'UTC')",
        Refused(VALUE, "a `DateTime64(6)` column"),
    ),
    PostgresCell("timestamptz", "timestamptz 'infinity'", "DateTime64(6, 'UTC')", _INFINITY),
    # bytes
    PostgresCell("bytea", "'\\x00ff5c0a09'::bytea", "String", Exact("00FF5C0A09", as_hex=True)),
    PostgresCell("bytea", "''::bytea", "String", Exact("", as_hex=True)),
    PostgresCell("bytea", "NULL::bytea", "Nullable(String)", _same(None)),
    PostgresCell("bytea", "'\\x0001'::bytea", "FixedString(2)", Exact("0001", as_hex=True)),
    # arrays
    PostgresCell("integer[]", "ARRAY[1,NULL,-3]", "Array(Nullable(Int32))", _same("[1,NULL,-3]")),
    PostgresCell("integer[]", "ARRAY[1,NULL]", "Array(Int32)", Refused(VALUE, "`Array(Nullable(Int32))`")),
    PostgresCell("integer[]", "ARRAY[300]", "Array(UInt8)", _TOO_LARGE),
    PostgresCell("integer[]", "'{}'::int[]", "Array(Int32)", _same("[]")),
    PostgresCell("integer[]", "NULL::int[]", "Array(Int32)", _NULL_ARRAY),
    PostgresCell("integer[]", "ARRAY[[1],[2]]", "Array(Int32)", Refused(VALUE, "`Array(Array(Int32))`")),
    PostgresCell(
        "integer[]", "ARRAY[[1,2],[3,4]]", "Array(Array(Int32))", _same("[[1,2],[3,4]]"), by_driver_only=True
    ),
    PostgresCell("bigint[]", "ARRAY[9223372036854775807]", "Array(Int64)", _same("[9223372036854775807]")),
    PostgresCell(
        "text[]",
        "ARRAY['', NULL, 'NULL', 'a''b\"c', E'\\\\N\\t\\n', 'é🙂']",
        "Array(Nullable(String))",
        _same("['',NULL,'NULL','a\\'b\"c','\\\\N\\t\\n','é🙂']"),
    ),
    PostgresCell(
        "float8[]", "ARRAY[0.1, 'NaN', '-Infinity']::float8[]", "Array(Float64)", _same("[0.1,nan,-inf]")
    ),
    PostgresCell("numeric[]", "ARRAY[1.10, 2]::numeric[]", "Array(Decimal(10, 2))", _same("[1.1,2]")),
    PostgresCell("boolean[]", "ARRAY[true,false]", "Array(Bool)", _same("[true,false]")),
    PostgresCell("date[]", "ARRAY[date '1969-12-31']", "Array(Date32)", _same("['1969-12-31']")),
    PostgresCell(
        "timestamp[]",
        "ARRAY[timestamp '2013-01-01 05:00:00.5']",
        "Array(DateTime64(1, 'Europe/Berlin'))",
        _same("['2013-01-01 06:00:00.5']"),
    ),
    PostgresCell(
        "timestamptz[]",
        "ARRAY[timestamptz '2013-01-01 05:00:00+02']",
        "Array(DateTime('UTC'))",
        _same("['2013-01-01 03:00:00']"),
    ),
    PostgresCell(
        "bytea[]", "ARRAY['\\x6100c3a9'::bytea]", "Array(String)", _same("['a\\0é']"), by_driver_only=True
    ),
    PostgresCell("integer[]", "ARRAY[1,2]", "String", _same("{1,2}"), Refused(VALUE, CAST_TEXT)),
    # documents and the rest
    PostgresCell(
        "json", '\'{"a": 1.10, "a": null}\'::json', "String", _same('{"a": 1.10, "a": null}'), _TO_TEXT
    ),
    PostgresCell(
        "jsonb",
        '\'{"b": 1e30, "a": "\\u00e9"}\'::jsonb',
        "String",
        _same('{"a": "é", "b": 1000000000000000000000000000000}'),
        _TO_TEXT,
    ),
    PostgresCell("jsonb", "'{}'::jsonb", "JSON", Refused(TYPE, STRING)),
    PostgresCell("interval", "interval '1 day 2 hours'", "String", _same("1 day 02:00:00"), _TO_TEXT),
    PostgresCell("time", "time '12:34:56.5'", "String", _same("12:34:56.5"), _TO_TEXT),
    PostgresCell("inet", "inet '10.0.0.0/8'", "IPv4", Refused(VALUE, "`host(x)`")),
    PostgresCell("inet", "inet '10.0.0.1'", "IPv4", _same("10.0.0.1")),
    PostgresCell("int4range", "int4range(1, 5)", "String", _same("[1,5)"), _TO_TEXT),
    PostgresCell("xml", "'<a/>'::xml", "String", _same("<a/>")),
)


@dataclass(frozen=True, slots=True)
class ArrowCell:
    """A value of Arrow or Parquet; ``array`` makes a column with this one value."""

    type: str
    value: Any
    target: str
    expected: Exact | Refused
    make: Callable[[Any], Any] | None = None

    def array(self, pyarrow: Any) -> pa.Array:
        """The column."""
        if self.make is not None:
            return self.make(pyarrow)
        return pyarrow.array([self.value], eval(f"pa.{self.type}", {"pa": pyarrow}))


_CAST: Final = "write the column with another type"

ARROW: Final = (
    ArrowCell("string()", None, "Nullable(String)", _same(None)),
    ArrowCell("string()", None, "String", _NULL),
    ArrowCell("string()", "", "Nullable(String)", _same("")),
    ArrowCell("string()", "\\N\t\n\0é🙂", "String", _same("\\N\t\n\0é🙂")),
    ArrowCell("binary()", b"\x00\xff", "String", Exact("00FF", as_hex=True)),
    ArrowCell("binary(2)", b"\x00\xff", "FixedString(2)", Exact("00FF", as_hex=True)),
    ArrowCell("binary(2)", b"a\x00", "FixedString(2)", Exact("6100", as_hex=True)),
    ArrowCell("binary(2)", b"ab", "String", _same("ab")),
    ArrowCell("binary(2)", b"a\x00", "String", Refused(VALUE, "a `FixedString` column")),
    ArrowCell("uint64()", 2**64 - 1, "UInt64", _same("18446744073709551615")),
    ArrowCell("uint64()", 2**64 - 1, "Int64", _TOO_LARGE),
    ArrowCell("int64()", -(2**63), "Int64", _same("-9223372036854775808")),
    ArrowCell("int64()", 300, "UInt8", _TOO_LARGE),
    ArrowCell("float64()", float("nan"), "Float64", _same("nan")),
    ArrowCell("float64()", -0.0, "Float64", _same("-0")),
    ArrowCell("float64()", 0.1, "Float32", Refused(VALUE, "a `Float64` column")),
    ArrowCell("float32()", 0.5, "Float64", _same("0.5")),
    ArrowCell("decimal128(10, 2)", Decimal("1.10"), "Decimal(10, 1)", _same("1.1")),
    ArrowCell("decimal128(10, 2)", Decimal("1.15"), "Decimal(10, 1)", _DIGITS),
    ArrowCell("decimal256(60, 5)", Decimal("1e50"), "Decimal(60, 5)", _same("1" + "0" * 50)),
    ArrowCell("bool_()", True, "Bool", _same("true")),
    ArrowCell("date32()", date(1969, 12, 31), "Date32", _same("1969-12-31")),
    ArrowCell("date32()", date(1969, 12, 31), "Date", Refused(VALUE, "a `Date32` column")),
    ArrowCell("date32()", date(1850, 1, 1), "Date32", _OLD),
    ArrowCell(
        "timestamp('us')", datetime(2013, 1, 1, 5), "DateTime('Europe/Berlin')", _same("2013-01-01 06:00:00")
    ),
    ArrowCell(
        "timestamp('us', '+02:00')",
        datetime(2013, 1, 1, 5),
        "DateTime64(6, 'UTC')",
        _same("2013-01-01 05:00:00.000000"),
    ),
    ArrowCell(
        "timestamp('us', 'UTC')",
        datetime(1960, 1, 1),
        "DateTime64(6, 'UTC')",
        _same("1960-01-01 00:00:00.000000"),
    ),
    ArrowCell("timestamp('us', 'UTC')", datetime(1850, 1, 1), "DateTime64(6, 'UTC')", _OLD),
    ArrowCell(
        "timestamp('ms', 'UTC')",
        datetime(2013, 1, 1, 5, 0, 0, 500_000),
        "DateTime('UTC')",
        Refused(VALUE, "a `DateTime64` column"),
    ),
    ArrowCell("time64('us')", 1, "String", Refused(TYPE, _CAST)),
    ArrowCell("duration('s')", 1, "Int64", Refused(TYPE, _CAST)),
    ArrowCell("list_(pa.int32())", [1, None], "Array(Nullable(Int32))", _same("[1,NULL]")),
    ArrowCell("list_(pa.int32())", None, "Array(Int32)", Refused(VALUE, "write an empty list")),
    ArrowCell("list_(pa.list_(pa.string()))", [["a"], []], "Array(Array(String))", _same("[['a'],[]]")),
    ArrowCell("struct([('a', pa.int8())])", {"a": 1}, "Tuple(a Int8)", Refused(TYPE, _CAST)),
    ArrowCell(
        "string()",
        "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
        "UUID",
        _same("61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    ),
    ArrowCell(
        "string()", "so so", "Enum8('happy' = 1)", Refused(VALUE, "add the element to the column's type")
    ),
)


@dataclass(frozen=True, slots=True)
class DriverCell:
    """A value of Python as a driver gives it (SQLite and others through Airflow's SQL hooks)."""

    value: Any
    target: str
    expected: Exact | Refused


_IN_SQL: Final = "cast it in the SELECT"

DRIVER: Final = (
    DriverCell(None, "Nullable(String)", _same(None)),
    DriverCell(None, "String", _NULL),
    DriverCell("", "Nullable(String)", _same("")),
    DriverCell("\\N\t\n\0é🙂", "String", _same("\\N\t\n\0é🙂")),
    DriverCell(b"\x00\xff", "String", Exact("00FF", as_hex=True)),
    DriverCell(5, "Int8", _same("5")),
    DriverCell(5.0, "Int8", _same("5")),
    DriverCell(Decimal("5.00"), "Int8", _same("5")),
    DriverCell(5.5, "Int8", Refused(VALUE, "`round(x)`")),
    DriverCell(128, "Int8", _TOO_LARGE),
    DriverCell(2**64 - 1, "UInt64", _same("18446744073709551615")),
    DriverCell(2**64, "UInt64", _TOO_LARGE),
    DriverCell("5", "Int8", Refused(VALUE, _IN_SQL)),
    DriverCell(5, "String", Refused(VALUE, _IN_SQL)),
    DriverCell(0.1, "Float64", _same("0.1")),
    DriverCell(float("nan"), "Float64", _same("nan")),
    DriverCell(Decimal("0.1"), "Float64", Refused(VALUE, "a `Decimal` column, or a cast to a float")),
    DriverCell(0.1, "Decimal(10, 2)", Refused(VALUE, "a `Float64` column, or a cast to a decimal")),
    DriverCell(Decimal("1.10"), "Decimal(10, 1)", _same("1.1")),
    DriverCell(Decimal("1.15"), "Decimal(10, 1)", _DIGITS),
    DriverCell(1, "Bool", _same("true")),
    DriverCell(2, "Bool", Refused(VALUE, "`x <> 0`")),
    DriverCell(date(1969, 12, 31), "Date32", _same("1969-12-31")),
    DriverCell(datetime(2013, 1, 1, 5), "Date", Refused(VALUE, "a cast to a date")),
    DriverCell(datetime(2013, 1, 1), "Date", _same("2013-01-01")),
    DriverCell("2013-01-01", "Date", Refused(VALUE, _IN_SQL)),
    DriverCell(datetime(2013, 1, 1, 5), "DateTime('Europe/Berlin')", _same("2013-01-01 06:00:00")),
    DriverCell(datetime(1, 1, 1), "DateTime64(6, 'UTC')", _OLD),
    DriverCell({"a": 1}, "String", _TO_TEXT),
    DriverCell(1, "Map(String, Int8)", Refused(TYPE, STRING)),
)
