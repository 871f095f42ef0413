"""Loading is exact or refused, on a real server."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dpone.clickhouse.column_types import arrow_carrier
from airflow_provider_dpone.clickhouse.exact import (
    Load,
    LoadColumn,
    content_digest_select,
    insert_from_input,
    insert_from_select,
    misfit_column,
    text_carrier,
)
from airflow_provider_dpone.clickhouse.sql import identifier, qualified, string, tokens, unquote
from tests.cluster import LocalCluster
from tests.cluster.spec import ADMIN_USER, DATABASE_PREFIX, Endpoint

pytestmark = pytest.mark.cluster


class ServerError(Exception):
    """What the server answered."""


class Server:
    """One server over HTTP, for tests only."""

    def __init__(self, endpoint: Endpoint, database: str) -> None:
        self.endpoint = endpoint
        self.database = database

    def run(self, sql: str, settings: Mapping[str, str] | None = None, body: bytes | None = None) -> str:
        parameters = {"wait_end_of_query": "1", "async_insert": "0", **(settings or {})}
        if body is not None:
            parameters["query"] = sql
        request = urllib.request.Request(
            f"http://{self.endpoint}/?{urllib.parse.urlencode(parameters)}",
            sql.encode() if body is None else body,
            {"X-ClickHouse-User": ADMIN_USER},
        )
        try:
            with urllib.request.urlopen(request) as response:
                answer: bytes = response.read()
        except urllib.error.HTTPError as error:
            raise ServerError(error.read().decode()) from None
        return answer.decode()

    def rows(self, sql: str) -> list[list[Any]]:
        # Sixty-four bits and decimals as text: a float would hide what this is about.
        answer = self.run(
            f"{sql} FORMAT JSONCompactEachRow",
            {
                "output_format_json_quote_64bit_integers": "1",
                "output_format_json_quote_decimals": "1",
                "output_format_json_quote_denormals": "1",
            },
        )
        return [json.loads(line) for line in answer.splitlines()]

    def table(self, columns: str, name: str = "t") -> str:
        """Create an empty table in place of one that is there, and return its quoted name."""
        table = qualified(self.database, name)
        self.run(
            f"CREATE OR REPLACE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY tuple()",
            {"allow_suspicious_low_cardinality_types": "1"},
        )
        return table

    def load(self, load: Load, body: bytes | None = None) -> None:
        self.run(load.sql, load.settings, body)


@pytest.fixture(scope="module")
def server(cluster: LocalCluster) -> Iterator[Server]:
    """One replica, with a database that all tests of this module share: what is tested ends at one server."""
    server = Server(cluster.direct_http[0], f"{DATABASE_PREFIX}_exact")
    server.run(f"CREATE DATABASE {identifier(server.database)} ENGINE = Atomic")
    yield server
    server.run(f"DROP DATABASE {identifier(server.database)} SYNC")


def load_one(server: Server, carrier: str, value: str, target: str, column: str = "x") -> list[list[Any]]:
    """Load one value and return what is stored."""
    server.table(f"{identifier(column)} {target}")
    query = f"SELECT CAST({value}, {string(carrier)}) AS {identifier(column)} FROM numbers(1)"
    server.load(insert_from_select(server.database, "t", [LoadColumn(column, carrier, target)], query))
    return server.rows(f"SELECT * FROM {qualified(server.database, 't')}")


UTC0 = "DateTime('UTC')"
UTC3 = "DateTime64(3, 'UTC')"
UTC9 = "DateTime64(9, 'UTC')"
BERLIN = "DateTime('Europe/Berlin')"
ENUM = "Enum8('a' = 1, 'b' = 2)"

FITS = [
    # integers
    ("UInt16", "255", "UInt8", 255),
    ("Int64", "-128", "Int8", -128),
    ("UInt64", "9223372036854775807", "Int64", "9223372036854775807"),
    (
        "Int256",
        "'-170141183460469231731687303715884105728'",
        "Int128",
        "-170141183460469231731687303715884105728",
    ),
    ("UInt8", "7", "UInt256", "7"),
    ("Bool", "true", "UInt8", 1),
    ("UInt8", "0", "Bool", False),
    ("Float64", "3", "UInt8", 3),
    ("Decimal(18, 3)", "'5.000'", "Int32", 5),
    # floats
    ("Float64", "0.5", "Float32", 0.5),
    ("Float64", "nan", "Float32", "nan"),
    ("Float64", "-inf", "Float32", "-inf"),
    ("UInt64", "9007199254740992", "Float64", 9007199254740992),
    ("Decimal(18, 3)", "'0.125'", "Float64", 0.125),
    # decimals
    ("Decimal(18, 3)", "'123.450'", "Decimal(10, 2)", "123.45"),
    ("Decimal(10, 2)", "'-99999999.99'", "Decimal(38, 10)", "-99999999.99"),
    ("Int64", "99999999", "Decimal(10, 2)", "99999999"),
    ("Float64", "0.1", "Decimal(10, 2)", "0.1"),
    # days and instants
    ("Date32", "'2149-06-06'", "Date", "2149-06-06"),
    ("Date", "'2000-01-02'", "Date32", "2000-01-02"),
    ("Date", "'2000-01-02'", UTC0, "2000-01-02 00:00:00"),
    (UTC0, "'2000-01-02 00:00:00'", "Date", "2000-01-02"),
    (UTC3, "'2000-01-02 03:04:05.000'", UTC0, "2000-01-02 03:04:05"),
    (UTC3, "'1950-01-02 03:04:05.678'", "DateTime64(6, 'UTC')", "1950-01-02 03:04:05.678000"),
    (UTC3, "'2262-04-11 23:47:16.000'", UTC9, "2262-04-11 23:47:16.000000000"),
    (UTC3, "'1900-01-01 00:00:00.000'", UTC9, "1900-01-01 00:00:00.000000000"),
    (UTC0, "'2024-06-01 10:00:00'", BERLIN, "2024-06-01 12:00:00"),
    # text and the rest
    ("FixedString(4)", "'abcd'", "String", "abcd"),
    ("FixedString(2)", "'ab'", "FixedString(4)", "ab\0\0"),
    (ENUM, "'b'", "String", "b"),
    (ENUM, "'a'", "Enum16('a' = 10, 'c' = 3)", "a"),
    ("UUID", "'61f0c404-5cb3-11e7-907b-a6006ad3dba0'", "String", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    ("IPv4", "'1.2.3.4'", "IPv6", "::ffff:1.2.3.4"),
    ("IPv6", "'::ffff:1.2.3.4'", "IPv4", "1.2.3.4"),
    ("Float64", "0.1", "String", "0.1"),
    # NULL and LowCardinality
    ("Nullable(UInt16)", "NULL", "Nullable(UInt8)", None),
    ("Nullable(UInt16)", "7", "UInt8", 7),
    ("UInt16", "7", "Nullable(UInt8)", 7),
    ("LowCardinality(String)", "'7'", "UInt8", 7),
    ("LowCardinality(Nullable(String))", "NULL", "Nullable(UInt8)", None),
    ("LowCardinality(Nullable(String))", "'x'", "LowCardinality(String)", "x"),
    ("UInt16", "7", "LowCardinality(UInt8)", 7),
    ("Nullable(String)", "NULL", f"Nullable({ENUM})", None),
    ("Nullable(String)", "NULL", "Nullable(Bool)", None),
    ("Nullable(UInt8)", "NULL", "Nullable(Bool)", None),
    ("Nullable(String)", "NULL", f"Nullable({UTC3})", None),
    ("Nullable(String)", "NULL", "Nullable(Decimal(10, 2))", None),
    # nested
    ("Array(UInt16)", "[1, 255]", "Array(UInt8)", [1, 255]),
    ("Array(UInt16)", "[]", "Array(UInt8)", []),
    ("Array(Nullable(Int64))", "[1, NULL]", "Array(Nullable(UInt8))", [1, None]),
    ("Array(Array(UInt16))", "[[1], []]", "Array(Array(UInt8))", [[1], []]),
    ("Array(LowCardinality(String))", "['1']", "Array(UInt8)", [1]),
    ("Map(String, UInt16)", "map('a', 1)", "Map(String, UInt8)", {"a": 1}),
    ("Tuple(UInt16, String)", "(1, '2')", "Tuple(UInt8, UInt8)", [1, 2]),
    ("Tuple(a UInt16, `b c` String)", "(1, '2')", "Tuple(a UInt8, `b c` UInt8)", {"a": 1, "b c": 2}),
    ("SimpleAggregateFunction(max, UInt16)", "5", "UInt8", 5),
]

MISFITS = [
    ("UInt16", "300", "UInt8"),
    ("Int8", "-1", "UInt8"),
    ("Int8", "-1", "UInt64"),
    ("UInt64", "9223372036854775808", "Int64"),
    ("UInt8", "200", "Int8"),
    ("Int256", "'170141183460469231731687303715884105728'", "Int128"),
    ("UInt8", "2", "Bool"),
    ("Float64", "0.5", "Bool"),
    ("Float64", "1.5", "UInt8"),
    ("Float64", "nan", "UInt8"),
    ("Float64", "1e30", "UInt64"),
    ("Float64", "0.1", "Float32"),
    ("Float64", "1e300", "Float32"),
    ("UInt64", "9007199254740993", "Float64"),
    ("Decimal(18, 3)", "'1.500'", "Int32"),
    ("Decimal(18, 3)", "'99999999999.000'", "Int32"),
    ("Decimal(38, 3)", "'99999999999999999999999.001'", "Float64"),
    ("Decimal(18, 3)", "'123.456'", "Decimal(10, 2)"),
    ("Decimal(18, 2)", "'100000000.00'", "Decimal(10, 2)"),
    ("Int64", "100000000", "Decimal(10, 2)"),
    ("Int64", "9223372036854775807", "Decimal(10, 2)"),
    ("Float64", "0.125", "Decimal(10, 2)"),
    ("Float64", "nan", "Decimal(10, 2)"),
    ("Date32", "'1960-01-01'", "Date"),
    ("Date32", "'2200-01-01'", "Date"),
    ("Date32", "'1960-01-01'", UTC0),
    ("Date32", "'2299-01-01'", UTC9),
    ("Date", "'2149-06-06'", UTC0),
    (UTC0, "'2000-01-02 03:04:05'", "Date"),
    (UTC3, "'1960-01-01 00:00:00.000'", UTC0),
    (UTC3, "'2000-01-01 00:00:00.500'", UTC0),
    (UTC3, "'1969-12-31 23:59:59.500'", UTC0),
    (UTC3, "'2200-01-01 00:00:00.000'", UTC0),
    (UTC3, "'2299-01-01 00:00:00.000'", UTC9),
    (UTC9, "'2000-01-01 00:00:00.000000001'", UTC3),
    ("String", "'abcd'", "FixedString(3)"),
    ("String", "'a\\0'", "FixedString(3)"),
    ("FixedString(4)", "'abc'", "FixedString(2)"),
    ("String", "'c'", ENUM),
    (ENUM, "'b'", "Enum8('a' = 1)"),
    ("IPv6", "'::1'", "IPv4"),
    ("Nullable(UInt8)", "NULL", "UInt8"),
    ("Nullable(UInt16)", "NULL", "UInt8"),
    ("Nullable(String)", "NULL", "String"),
    ("Nullable(String)", "NULL", ENUM),
    ("LowCardinality(Nullable(String))", "NULL", "LowCardinality(String)"),
    ("Array(UInt16)", "[1, 300]", "Array(UInt8)"),
    ("Array(Nullable(UInt8))", "[1, NULL]", "Array(UInt8)"),
    ("Array(Array(UInt16))", "[[1], [300]]", "Array(Array(UInt8))"),
    ("Map(String, UInt16)", "map('a', 300)", "Map(String, UInt8)"),
    ("Tuple(UInt16, String)", "(300, '2')", "Tuple(UInt8, UInt8)"),
]

TEXT_FITS = [
    ("0", "UInt8", 0),
    ("+007", "UInt8", 7),
    ("-128", "Int8", -128),
    ("18446744073709551615", "UInt64", "18446744073709551615"),
    ("-9223372036854775808", "Int64", "-9223372036854775808"),
    ("340282366920938463463374607431768211455", "UInt128", "340282366920938463463374607431768211455"),
    ("-00170141183460469231731687303715884105728", "Int128", "-170141183460469231731687303715884105728"),
    ("1.50", "Decimal(10, 2)", "1.5"),
    ("1.5000", "Decimal(10, 2)", "1.5"),
    ("-.5", "Decimal(10, 2)", "-0.5"),
    ("+00012345678.99", "Decimal(10, 2)", "12345678.99"),
    ("9" * 76, "Decimal(76, 0)", "9" * 76),
    ("0.1", "Float64", 0.1),
    ("0.1", "Float32", 0.1),
    ("1e-400", "Float64", 0),
    ("-Inf", "Float64", "-inf"),
    ("NaN", "Float32", "nan"),
    ("TRUE", "Bool", True),
    ("f", "Bool", False),
    ("2149-06-06", "Date", "2149-06-06"),
    ("1900-01-01", "Date32", "1900-01-01"),
    ("2000-02-29 23:59:59", UTC0, "2000-02-29 23:59:59"),
    ("2000-02-29T23:59:59.000Z", UTC0, "2000-02-29 23:59:59"),
    ("2106-02-07 06:28:15", UTC0, "2106-02-07 06:28:15"),
    ("1969-12-31 23:59:59.5", UTC3, "1969-12-31 23:59:59.500"),
    ("2000-01-01 00:00:00.123000", UTC3, "2000-01-01 00:00:00.123"),
    ("2000-01-01 00:00:00.123456789", UTC9, "2000-01-01 00:00:00.123456789"),
    ("2000-01-01 00:00:00+03", UTC3, "1999-12-31 21:00:00.000"),
    ("2000-01-01 00:00:00.5-0330", UTC3, "2000-01-01 03:30:00.500"),
    ("2000-01-01T00:00:00+05:45", UTC0, "1999-12-31 18:15:00"),
    ("2024-06-01 12:00:00", BERLIN, "2024-06-01 12:00:00"),
    ("2024-06-01 12:00:00Z", BERLIN, "2024-06-01 14:00:00"),
    ("61F0C404-5cb3-11e7-907b-a6006ad3dba0", "UUID", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    ("1.2.3.4", "IPv4", "1.2.3.4"),
    ("fe80::1", "IPv6", "fe80::1"),
    ("b", ENUM, "b"),
    ("ab", "FixedString(3)", "ab\0"),
    ("", "String", ""),
]

TEXT_MISFITS = [
    ("256", "UInt8"),
    ("-1", "UInt8"),
    ("1.0", "UInt8"),
    ("1e2", "UInt8"),
    (" 1", "UInt8"),
    ("", "UInt8"),
    ("99999999999999999999", "UInt64"),
    ("9223372036854775808", "Int64"),
    ("340282366920938463463374607431768211456", "UInt128"),
    ("170141183460469231731687303715884105728", "Int128"),
    ("-1", "UInt256"),
    ("9" * 90, "Int256"),
    ("123.456", "Decimal(10, 2)"),
    ("123456789.00", "Decimal(10, 2)"),
    ("1e5", "Decimal(10, 2)"),
    (".", "Decimal(10, 2)"),
    ("-", "Decimal(10, 2)"),
    ("1,5", "Decimal(10, 2)"),
    ("1\n", "Decimal(10, 2)"),
    ("1e400", "Float64"),
    ("1e39", "Float32"),
    ("1.5 ", "Float64"),
    ("0x1p3", "Float64"),
    ("yes", "Bool"),
    ("2", "Bool"),
    ("1969-12-31", "Date"),
    ("2149-06-07", "Date"),
    ("2001-02-29", "Date"),
    ("20000101", "Date"),
    ("2000-1-1", "Date"),
    ("2000-01-01 00:00:00", "Date"),
    ("1969-12-31 23:59:59", UTC0),
    ("2106-02-07 06:28:16", UTC0),
    ("2000-01-01 00:00:00.5", UTC0),
    ("2001-02-29 00:00:00", UTC0),
    ("2000-01-01 24:00:00", UTC0),
    ("2000-01-01 00:00:60", UTC3),
    ("2000-01-01 00:00:00.1234", UTC3),
    ("2000-01-01", UTC0),
    ("946684800", UTC0),
    ("0001-01-01 00:00:00", UTC9),
    ("2263-01-01 00:00:00", UTC9),
    ("2024-03-31 02:30:00", BERLIN),
    ("61f0c4045cb311e7907ba6006ad3dba0", "UUID"),
    ("x", "UUID"),
    ("01.2.3.4", "IPv4"),
    ("1.2.3", "IPv4"),
    ("::g", "IPv6"),
    ("c", ENUM),
    ("abcd", "FixedString(3)"),
]


@pytest.mark.parametrize(("carrier", "value", "target", "stored"), FITS)
def test_a_value_that_survives_the_round_trip_is_stored(
    server: Server, carrier: str, value: str, target: str, stored: object
) -> None:
    assert load_one(server, carrier, value, target) == [[stored]]


@pytest.mark.parametrize(("carrier", "value", "target"), MISFITS)
def test_a_value_that_would_change_is_refused_by_column(
    server: Server, carrier: str, value: str, target: str
) -> None:
    with pytest.raises(ServerError) as refusal:
        load_one(server, carrier, value, target, column="we`ird 'x'")
    assert misfit_column(str(refusal.value)) == "we`ird 'x'"
    assert server.rows(f"SELECT count() FROM {qualified(server.database, 't')}") == [["0"]]


@pytest.mark.parametrize(("text", "target", "stored"), TEXT_FITS)
def test_text_in_the_accepted_form_is_stored(server: Server, text: str, target: str, stored: object) -> None:
    server.table(f"x {target}")
    column = LoadColumn("x", text_carrier(target, "JSONEachRow"), target)
    load = insert_from_input(server.database, "t", [column], "JSONEachRow")
    server.load(load, json.dumps({"x": text}).encode())
    assert server.rows(f"SELECT x FROM {qualified(server.database, 't')}") == [[stored]]


@pytest.mark.parametrize(("text", "target"), TEXT_MISFITS)
def test_text_in_another_form_is_refused_by_column(server: Server, text: str, target: str) -> None:
    server.table(f"x {target}")
    column = LoadColumn("x", text_carrier(target, "JSONEachRow"), target)
    load = insert_from_input(server.database, "t", [column], "JSONEachRow")
    with pytest.raises(ServerError) as refusal:
        server.load(load, json.dumps({"x": text}).encode())
    assert misfit_column(str(refusal.value)) == "x"


ARROW = [
    # Arrow's type, value, the table's type, what is stored (None: refused by column)
    (pa.int64(), 255, "UInt8", 255),
    (pa.int64(), 300, "UInt8", None),
    (pa.int64(), None, "UInt8", None),
    (pa.uint64(), 2**64 - 1, "UInt64", str(2**64 - 1)),
    (pa.uint64(), 2**64 - 1, "Int64", None),
    (pa.float16(), 1.5, "Float32", 1.5),
    (pa.float64(), 0.1, "Float32", None),
    (pa.bool_(), True, "Bool", True),
    (pa.decimal128(20, 3), Decimal("1.230"), "Decimal(10, 2)", "1.23"),
    (pa.decimal128(20, 3), Decimal("1.234"), "Decimal(10, 2)", None),
    (pa.decimal256(60, 2), Decimal("1.23"), "Decimal(10, 2)", "1.23"),
    (pa.date32(), date(2000, 1, 1), "Date", "2000-01-01"),
    (pa.date32(), date(1950, 1, 1), "Date", None),
    (
        pa.timestamp("us"),
        datetime(2000, 1, 1, 0, 0, 0, 5),
        "DateTime64(6, 'UTC')",
        "2000-01-01 00:00:00.000005",
    ),
    (pa.timestamp("us"), datetime(2000, 1, 1, 0, 0, 0, 5), "DateTime64(3, 'UTC')", None),
    (
        pa.timestamp("s", tz="Europe/Berlin"),
        datetime(2024, 6, 1, 10, tzinfo=UTC),
        UTC0,
        "2024-06-01 10:00:00",
    ),
    (pa.large_string(), "\0 é", "String", "\0 é"),
    (pa.binary(4), b"abcd", "FixedString(4)", "abcd"),
    (pa.dictionary(pa.int32(), pa.string()), "a", "LowCardinality(String)", "a"),
    (pa.list_(pa.int64()), [1, None], "Array(Nullable(UInt8))", [1, None]),
    (pa.list_(pa.int64()), [1, 300], "Array(UInt8)", None),
]


@pytest.mark.parametrize(("arrow_type", "value", "target", "stored"), ARROW)
def test_arrow_values_are_stored_exactly_or_refused_by_column(
    server: Server, arrow_type: pa.DataType, value: object, target: str, stored: object
) -> None:
    table = server.table(f"x {target}")
    rows = pa.table({"x": pa.array([value], arrow_type)})
    body = io.BytesIO()
    with pa.ipc.new_stream(body, rows.schema) as writer:
        writer.write_table(rows)
    carrier = arrow_carrier(str(arrow_type))
    assert carrier is not None
    load = insert_from_input(server.database, "t", [LoadColumn("x", carrier, target)], "ArrowStream")
    if stored is None:
        with pytest.raises(ServerError, match="does not fit column `x`"):
            server.load(load, body.getvalue())
    else:
        server.load(load, body.getvalue())
        assert server.rows(f"SELECT x FROM {table}") == [[stored]]


@pytest.mark.parametrize(
    ("format_name", "body"),
    [
        ("CSV", b'1,\n2,""\n3,\\N\n4,"\\N"\n5,NULL\n6,"  a ""b"" "\n7,  c \n'),
        ("CSVWithNames", b's,n\n,1\n"",2\n\\N,3\n"\\N",4\nNULL,5\n"  a ""b"" ",6\n  c ,7\n'),
        ("TabSeparated", b'1\t\n2\t\n3\t\\N\n4\t\\\\N\n5\tNULL\n6\t  a "b" \n7\t  c \n'),
        (
            "JSONEachRow",
            b'{"n":1,"s":""}{"s":"","n":2}{"n":3}{"n":4,"s":"\\\\N"}{"n":5,"s":"NULL"}'
            b'{"n":"6","s":"  a \\"b\\" "}{"n":7,"s":"  c "}',
        ),
        (
            "JSONCompactEachRow",
            b'[1,""][2,""][3,null][4,"\\\\N"][5,"NULL"]["6","  a \\"b\\" "][7,"  c "]',
        ),
    ],
)
def test_null_and_the_empty_string_stay_apart_in_every_text_format(
    server: Server, format_name: str, body: bytes
) -> None:
    server.table("n UInt8, s Nullable(String)")
    columns = [
        LoadColumn(name, text_carrier(target, format_name), target)
        for name, target in (("n", "UInt8"), ("s", "Nullable(String)"))
    ]
    server.load(insert_from_input(server.database, "t", columns, format_name), body)
    assert [row[0] for row in server.rows(f"SELECT s FROM {qualified(server.database, 't')} ORDER BY n")] == [
        "",
        "",
        None,
        "\\N",
        "NULL",
        '  a "b" ',
        "  c ",
    ]


@pytest.mark.parametrize(
    ("format_name", "body"),
    [
        ("CSV", b"x\n\n"),
        ("TabSeparated", b"x\n\\N\n"),
        ("JSONEachRow", b'{"s":"x"}{}'),
        ("JSONEachRow", b'{"s":null}'),
    ],
)
def test_an_absent_number_is_refused_and_never_defaulted(
    server: Server, format_name: str, body: bytes
) -> None:
    server.table("s UInt8")
    column = LoadColumn("s", text_carrier("UInt8", format_name), "UInt8")
    with pytest.raises(ServerError) as refusal:
        server.load(insert_from_input(server.database, "t", [column], format_name), body)
    assert misfit_column(str(refusal.value)) == "s"


def test_a_key_that_no_column_has_is_refused(server: Server) -> None:
    server.table("s UInt8")
    column = LoadColumn("s", text_carrier("UInt8", "JSONEachRow"), "UInt8")
    with pytest.raises(ServerError, match="Unknown field"):
        server.load(insert_from_input(server.database, "t", [column], "JSONEachRow"), b'{"s":1,"t":2}')


def test_a_header_like_first_line_of_csv_is_a_row(server: Server) -> None:
    server.table("s String")
    column = LoadColumn("s", text_carrier("String", "CSV"), "String")
    server.load(insert_from_input(server.database, "t", [column], "CSV"), b"s\nt\n")
    assert server.rows(f"SELECT s FROM {qualified(server.database, 't')} ORDER BY s") == [["s"], ["t"]]


def test_numbers_in_json_keep_their_digits(server: Server) -> None:
    server.table("s Decimal(60, 20)")
    column = LoadColumn("s", text_carrier("Decimal(60, 20)", "JSONEachRow"), "Decimal(60, 20)")
    digits = "1234567890123456789012345678901234567890.12345678901234567891"
    load = insert_from_input(server.database, "t", [column], "JSONEachRow")
    server.load(load, f'{{"s":{digits}}}'.encode())
    assert server.rows(f"SELECT s FROM {qualified(server.database, 't')}") == [[digits]]


@pytest.mark.parametrize(
    ("target", "body", "stored"),
    [
        ("Array(UInt8)", b"[[1,2]]", [1, 2]),
        ("Array(Nullable(Decimal(10, 2)))", b"[[1.50,null]]", ["1.5", None]),
        ("Map(String, UInt8)", b'[{"a":1}]', {"a": 1}),
        ("Tuple(a UInt8, b Array(String))", b'[{"b":["x"],"a":1}]', {"a": 1, "b": ["x"]}),
    ],
)
def test_nested_text_is_carried_element_by_element(
    server: Server, target: str, body: bytes, stored: object
) -> None:
    server.table(f"s {target}")
    column = LoadColumn("s", text_carrier(target, "JSONCompactEachRow"), target)
    server.load(insert_from_input(server.database, "t", [column], "JSONCompactEachRow"), body)
    assert server.rows(f"SELECT s FROM {qualified(server.database, 't')}") == [[stored]]


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("Array(UInt8)", b"[[1,300]]"),
        ("Array(UInt8)", b"[[1,null]]"),
        ("Array(UInt8)", b"[null]"),
        ("Array(UInt8)", b"[]"),
        ("Map(String, UInt8)", b'[{"a":300}]'),
        ("Tuple(a UInt8, b String)", b'[{"a":1}]'),
        ("Tuple(a UInt8, b String)", b'[{"a":1,"b":"x","c":1}]'),
    ],
)
def test_nested_text_that_does_not_fit_is_refused(server: Server, target: str, body: bytes) -> None:
    server.table(f"s {target}")
    column = LoadColumn("s", text_carrier(target, "JSONCompactEachRow"), target)
    with pytest.raises(ServerError):
        server.load(insert_from_input(server.database, "t", [column], "JSONCompactEachRow"), body)
    assert server.rows(f"SELECT count() FROM {qualified(server.database, 't')}") == [["0"]]


def test_columns_are_taken_by_name_whatever_their_order(server: Server) -> None:
    server.table("a UInt8, b UInt8")
    columns = [LoadColumn("a", "UInt8", "UInt8"), LoadColumn("b", "UInt16", "UInt8")]
    query = "SELECT toUInt16(2) AS b, toUInt8(1) AS a -- the end;"
    server.load(insert_from_select(server.database, "t", columns, query))
    assert server.rows(f"SELECT a, b FROM {qualified(server.database, 't')}") == [[1, 2]]


def test_a_default_is_computed_for_a_column_that_is_left_out(server: Server) -> None:
    server.table("a UInt8, b UInt8 DEFAULT a + 1")
    server.load(
        insert_from_select(
            server.database, "t", [LoadColumn("a", "UInt16", "UInt8")], "SELECT toUInt16(1) AS a;"
        )
    )
    assert server.rows(f"SELECT a, b FROM {qualified(server.database, 't')}") == [[1, 2]]


def test_a_profile_that_keeps_null_in_casts_changes_nothing(server: Server) -> None:
    server.table("x UInt8")
    load = insert_from_select(
        server.database,
        "t",
        [LoadColumn("x", "Nullable(UInt16)", "UInt8")],
        "SELECT toNullable(toUInt16(1)) AS x",
    )
    server.run(load.sql, {"cast_keep_nullable": "1", "insert_null_as_default": "1", **load.settings})
    assert server.rows(f"SELECT x FROM {qualified(server.database, 't')}") == [[1]]


def test_content_digests_are_equal_only_for_equal_rows(server: Server) -> None:
    for name, rows in (
        ("one", "1, NULL), (2, 'b'"),
        ("other", "2, 'b'), (1, NULL"),
        ("third", "1, ''), (2, 'b'"),
    ):
        table = server.table("a UInt8, b Nullable(String)", name)
        server.run(f"INSERT INTO {table} VALUES ({rows})")
    one, other, third = (
        server.rows(content_digest_select(server.database, name, ["a", "b"]))
        for name in ("one", "other", "third")
    )
    assert one == other
    assert one != third
    assert one[0][0] == third[0][0] == "2"


def test_a_digest_has_no_name_that_hides_a_column(server: Server) -> None:
    names = ["rows", "city", "xxh3", "total"]
    table = server.table(", ".join(f"{name} UInt8" for name in names))
    server.run(f"INSERT INTO {table} VALUES (1, 2, 3, 4)")
    named = server.rows(content_digest_select(server.database, "t", names))
    server.table("a UInt8, b UInt8, c UInt8, d UInt8")
    server.run(f"INSERT INTO {table} VALUES (1, 2, 3, 4)")
    assert named == server.rows(content_digest_select(server.database, "t", ["a", "b", "c", "d"]))


def test_an_empty_table_has_a_content_digest(server: Server) -> None:
    server.table("x UInt8")
    assert server.rows(content_digest_select(server.database, "t", ["x"])) == [["0", "0", "0"]]


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_server_reads_the_literal_as_the_value(server: Server, value: str) -> None:
    answer = server.run(f"SELECT hex({string(value)})")
    assert bytes.fromhex(answer.strip()).decode() == value


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_the_server_reads_the_identifier_as_the_name(server: Server, name: str) -> None:
    assert server.run(f"SELECT 1 AS {identifier(name)} FORMAT JSON").encode()
    formatted = server.run(f"SELECT hex(formatQuerySingleLine({string(f'SELECT 1 AS {identifier(name)}')}))")
    assert unquote(tokens(bytes.fromhex(formatted.strip()).decode())[-1].text) == name


@settings(max_examples=150, deadline=None)
@given(
    st.integers(-(2**70), 2**70),
    st.sampled_from(["Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64"]),
)
def test_an_integer_is_stored_exactly_when_it_is_in_range(server: Server, value: int, target: str) -> None:
    bits = int(target.removeprefix("U").removeprefix("Int"))
    low, high = (0, 2**bits) if target.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if low <= value < high:
        assert int(load_one(server, "Int256", string(str(value)), target)[0][0]) == value
    else:
        with pytest.raises(ServerError, match="does not fit column `x`"):
            load_one(server, "Int256", string(str(value)), target)
