"""Python values into Arrow: exact, or refused with the column's name and never with the value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.arrow_rows import ArrowRows, source_columns


def encoded(target: str, values: Sequence[Any]) -> list[Any]:
    """The values as they stand in the stream."""
    assert len(source_columns(["x"], [target])) == 1
    rows = ArrowRows(pa, ["x"], [target])
    data = bytes(rows.encode([(value,) for value in values])) + bytes(rows.end())
    assert rows.rows == len(values)
    found: list[Any] = pa.ipc.open_stream(data).read_all().column("x").to_pylist()
    return found


def refused(target: str, value: Any) -> Stop:
    with pytest.raises(Stopped) as caught:
        encoded(target, [None, value] if not target.startswith("Array") else [value])
    stop = caught.value.stop
    assert stop.code is Code.VALUE_REFUSED
    assert stop.facts["column"] == "x"
    return stop


MOMENT = datetime(2013, 1, 1, 5, tzinfo=UTC)
SOME_UUID = UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")

EXACT = [
    ("Int8", -128, -128),
    ("UInt64", 2**64 - 1, 2**64 - 1),
    ("Int32", Decimal("5.00"), 5),
    ("Int32", 5.0, 5),
    ("UInt8", True, 1),
    ("Int256", -(2**255), str(-(2**255)).encode()),
    ("Float64", 0.1, 0.1),
    ("Float64", 7, 7.0),
    ("Float64", Decimal("0.5"), 0.5),
    ("Float64", Decimal("-Infinity"), float("-inf")),
    ("Float32", 0.5, 0.5),
    ("Decimal(10, 2)", Decimal("1.90"), Decimal("1.90")),
    ("Decimal(10, 2)", Decimal("1E+3"), Decimal("1000.00")),
    ("Decimal(76, 1)", Decimal("9" * 75), Decimal("9" * 75)),
    ("Decimal(10, 2)", 7, Decimal("7.00")),
    ("Bool", True, True),
    ("Bool", 0, False),
    ("String", "a\0é", b"a\0\xc3\xa9"),
    ("String", "", b""),
    ("String", "\\N", b"\\N"),
    ("String", b"\x00\xff", b"\x00\xff"),
    ("LowCardinality(Nullable(String))", "x", b"x"),
    ("FixedString(4)", "ab", b"ab"),
    ("Date", date(1970, 1, 1), date(1970, 1, 1)),
    ("Date32", date(1900, 1, 1), date(1900, 1, 1)),
    ("Date32", datetime(2020, 1, 2), date(2020, 1, 2)),
    ("DateTime", MOMENT, MOMENT),
    ("DateTime64(3)", datetime(2013, 1, 1, 7, tzinfo=timezone(timedelta(hours=2))), MOMENT),
    ("DateTime('Europe/Berlin')", datetime(2013, 1, 1, 5), MOMENT),
    ("DateTime", date(2013, 1, 1), datetime(2013, 1, 1, tzinfo=UTC)),
    ("UUID", SOME_UUID, str(SOME_UUID).encode()),
    ("UUID", str(SOME_UUID), str(SOME_UUID).encode()),
    ("IPv4", IPv4Address("1.2.3.4"), b"1.2.3.4"),
    ("Enum8('a' = 1)", "a", b"a"),
    ("Array(Int16)", [1, Decimal(2), None], [1, 2, None]),
    ("Array(Array(String))", [["a"], []], [[b"a"], []]),
    ("Array(DateTime)", (MOMENT,), [MOMENT]),
]


@pytest.mark.parametrize(("target", "value", "stored"), EXACT, ids=lambda part: str(part)[:30])
def test_what_fits_arrives_as_it_is(target: str, value: Any, stored: Any) -> None:
    assert encoded(target, [value, value]) == [stored, stored]


def test_a_view_of_bytes_arrives_as_these_bytes() -> None:
    assert encoded("String", [memoryview(b"\x00\xff")]) == [b"\x00\xff"]


@pytest.mark.parametrize("target", [target for target, _, _ in EXACT if not target.startswith("Array")])
def test_null_is_null_in_every_type(target: str) -> None:
    assert encoded(target, [None]) == [None]
    assert encoded(target, []) == []


UNFIT = [
    ("Int8", 128),
    ("UInt8", -1),
    ("Int64", 2**63),
    ("Int32", 1.5),
    ("Int32", Decimal("1.5")),
    ("Int32", Decimal("NaN")),
    ("Int32", Decimal("1E+999999999")),
    ("Int32", float("inf")),
    ("Int32", "5"),
    ("Int128", b"5"),
    ("Float64", 2**53 + 1),
    ("Float64", Decimal("0.1")),
    ("Float64", True),
    ("Float64", "0.1"),
    ("Decimal(10, 2)", Decimal("1.999")),
    ("Decimal(10, 2)", Decimal("123456789.12")),
    ("Decimal(10, 2)", Decimal("NaN")),
    ("Decimal(10, 2)", Decimal("Infinity")),
    ("Decimal(10, 2)", 0.5),
    ("Decimal(10, 2)", True),
    ("Bool", 2),
    ("Bool", "t"),
    ("String", 5),
    ("String", SOME_UUID),
    ("String", {"a": 1}),
    ("String", ["a"]),
    ("String", "\ud800"),
    ("Date", datetime(2020, 1, 2, 3)),
    ("Date", MOMENT),
    ("Date32", date(1899, 12, 31)),
    ("Date32", date(9999, 12, 31)),
    ("Date32", 5),
    ("Date32", "2020-01-01"),
    ("DateTime64(6)", datetime(9999, 12, 31, 23, 59, 59, 999_999)),
    ("DateTime64(6)", datetime(1, 1, 1, tzinfo=UTC)),
    ("DateTime", 5),
    ("DateTime", time(12)),
    ("UUID", b"61f0c404"),
    ("Array(Int16)", None),
    ("Array(Int16)", "12"),
    ("Array(Int16)", [1.5]),
    ("Array(Int16)", [1, [2]]),
    ("Array(String)", "ab"),
    ("Array(Array(Int8))", [None]),
    ("Array(DateTime)", [datetime(1, 1, 1)]),
]


@pytest.mark.parametrize(("target", "value"), UNFIT, ids=lambda part: str(part)[:30])
def test_what_does_not_fit_is_refused_without_the_value(target: str, value: Any) -> None:
    stop = refused(target, value)
    if value is not None and len(str(value)) > 2:
        assert str(value) not in f"{stop.message} {stop.facts}"
    assert "Cast the column" in stop.next_action


def test_a_type_without_an_exact_way_is_refused_before_any_row() -> None:
    with pytest.raises(Stopped) as caught:
        source_columns(["a", "b", "c"], ["Int8", "Map(String, Int8)", "JSON"])
    stop = caught.value.stop
    assert stop.code is Code.TYPE_NOT_EXACT
    assert stop.facts["columns"] == ["b", "c"]
    assert "Map(String, Int8)" in stop.message


def test_a_row_of_another_width_is_no_row() -> None:
    rows = ArrowRows(pa, ["x", "y"], ["Int8", "Int8"])
    with pytest.raises(Stopped, match="another width"):
        rows.encode([(1, 2, 3)])
