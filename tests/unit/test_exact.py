"""Types, refusals and statements of exact loading; values are tried on a server by the integration tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dpone.clickhouse.column_types import ColumnType, arrow_carrier, column_type
from airflow_provider_dpone.clickhouse.exact import (
    INPUT_SETTINGS,
    SELECT_SETTINGS,
    TEXT_CARRIER,
    Encoding,
    InexactTypeError,
    LoadColumn,
    content_digest_expressions,
    content_digest_select,
    exact_select,
    insert_from_input,
    insert_from_select,
    misfit_column,
    text_carrier,
)
from airflow_provider_dpone.clickhouse.sql import SqlSyntaxError, identifier, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UInt8", ColumnType("UInt8")),
        ("Nullable(UInt8)", ColumnType("UInt8", nullable=True)),
        ("LowCardinality(Nullable(String))", ColumnType("String", nullable=True, low_cardinality=True)),
        ("Decimal(10, 2)", ColumnType("Decimal", ("10", "2"))),
        ("Decimal64(3)", ColumnType("Decimal", ("18", "3"))),
        ("DateTime64(3, 'UTC')", ColumnType("DateTime64", ("3", "'UTC'"))),
        ("SimpleAggregateFunction(max, UInt8)", ColumnType("UInt8")),
        ("Nested(a UInt8, b String)", ColumnType("Array", ("Tuple(a UInt8, b String)",))),
        ("Map(String, Array(UInt8))", ColumnType("Map", ("String", "Array(UInt8)"))),
    ],
)
def test_types_are_read_as_the_server_writes_them(text: str, expected: ColumnType) -> None:
    assert column_type(text) == expected


def test_elements_of_a_tuple_have_their_names() -> None:
    named = column_type("Tuple(a Array(UInt8), `b c` Nullable(String))")
    assert named.elements == (("a", column_type("Array(UInt8)")), ("b c", column_type("Nullable(String)")))
    assert column_type("Tuple(Array(UInt8), String)").elements[0] == (None, column_type("Array(UInt8)"))


def test_labels_of_an_enum_are_unquoted() -> None:
    assert column_type(r"Enum8('a' = 1, 'b,)\'' = 2)").labels == ("a", "b,)'")


@pytest.mark.parametrize("text", ["", "(", "1", "'a'", "UInt8 UInt8", "Array(UInt8) x"])
def test_text_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(SqlSyntaxError):
        column_type(text)


def test_equal_types_are_not_touched() -> None:
    columns = [
        LoadColumn("a", "UInt8", "UInt8"),
        LoadColumn("b", "JSON", "JSON"),
        LoadColumn("c", "Time", "Time"),
    ]
    assert exact_select(columns) == ["`a`", "`b`", "`c`"]


def test_widening_to_nullable_needs_no_check() -> None:
    (expression,) = exact_select([LoadColumn("a", "JSON", "Nullable(JSON)")])
    assert "throwIf" not in expression


@pytest.mark.parametrize(
    ("carrier", "target"),
    [
        ("UInt8", "Date"),
        ("UInt32", "DateTime"),
        ("Date", "UInt16"),
        ("Enum8('a' = 1)", "Int8"),
        ("Int8", "Enum8('a' = 1)"),
        ("DateTime", "String"),
        ("DateTime64(3, 'UTC')", "String"),
        ("String", "JSON"),
        ("JSON", "String"),
        ("String", "Dynamic"),
        ("Variant(String, UInt8)", "String"),
        ("String", "AggregateFunction(sum, UInt64)"),
        ("UInt128", "UUID"),
        ("UInt32", "IPv4"),
        ("String", "Array(String)"),
        ("Array(UInt8)", "String"),
        ("Tuple(UInt8)", "Tuple(UInt8, UInt8)"),
        ("Tuple(a UInt8, b UInt8)", "Tuple(b UInt8, a UInt8)"),
        ("Array(JSON)", "Array(String)"),
        ("Nullable(Tuple(a UInt8))", "Tuple(a UInt16)"),
        ("Time", "DateTime"),
        ("IntervalDay", "Int64"),
    ],
)
def test_a_type_without_exact_conversion_is_refused_by_column(carrier: str, target: str) -> None:
    fine = LoadColumn("fine", "UInt8", "UInt8")
    with pytest.raises(InexactTypeError, match="`bad column`") as refusal:
        exact_select([fine, LoadColumn("bad column", carrier, target)])
    assert [column.name for column in refusal.value.columns] == ["bad column"]


def test_all_refused_columns_are_named_at_once() -> None:
    with pytest.raises(InexactTypeError, match=r"`a` .*`b`"):
        exact_select([LoadColumn("a", "UInt8", "Date"), LoadColumn("b", "UInt8", "Date")])


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="twice: `a`"):
        exact_select([LoadColumn("a", "UInt8", "UInt8"), LoadColumn("a", "UInt8", "UInt8")])


@pytest.mark.parametrize(
    "format_name", ["CSV", "CSVWithNames", "TabSeparated", "JSONEachRow", "JSONCompactEachRow"]
)
def test_text_is_read_as_text_so_that_nothing_wraps(format_name: str) -> None:
    assert text_carrier("UInt8", format_name) == TEXT_CARRIER
    assert text_carrier("LowCardinality(String)", format_name) == TEXT_CARRIER


@pytest.mark.parametrize("format_name", ["CSV", "TabSeparated"])
def test_nested_types_are_refused_where_text_cannot_say_them(format_name: str) -> None:
    with pytest.raises(InexactTypeError):
        text_carrier("Array(UInt8)", format_name)


@pytest.mark.parametrize(
    ("target", "carrier"),
    [
        ("Array(Array(UInt8))", "Array(Array(Nullable(String)))"),
        ("Map(UInt8, UInt8)", "Map(String, Nullable(String))"),
        ("Tuple(a UInt8, b Array(UInt8))", "Tuple(`a` Nullable(String), `b` Array(Nullable(String)))"),
    ],
)
def test_nested_types_are_carried_by_json(target: str, carrier: str) -> None:
    assert text_carrier(target, "JSONCompactEachRow") == carrier
    assert text_carrier(target, "JSONEachRow") == carrier


@pytest.mark.parametrize(
    "target", ["JSON", "Dynamic", "AggregateFunction(sum, UInt8)", "Array(JSON)", "Time"]
)
def test_types_without_exact_text_are_refused(target: str) -> None:
    with pytest.raises(InexactTypeError):
        text_carrier(target, "JSONCompactEachRow")


def test_a_typed_format_has_no_text_carrier() -> None:
    with pytest.raises(ValueError, match="own types"):
        text_carrier("UInt8", "Parquet")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="Protobuf is not supported"):
        text_carrier("UInt8", "Protobuf")


@pytest.mark.parametrize(
    ("arrow", "carrier"),
    [
        ("int64", "Nullable(Int64)"),
        ("uint8", "Nullable(UInt8)"),
        ("double", "Nullable(Float64)"),
        ("decimal128(20, 6)", "Nullable(Decimal(20, 6))"),
        ("timestamp[us]", "Nullable(DateTime64(6, 'UTC'))"),
        ("timestamp[ns, tz=Europe/Berlin]", "Nullable(DateTime64(9, 'Europe/Berlin'))"),
        ("date32[day]", "Nullable(Date32)"),
        ("large_string", "Nullable(String)"),
        ("fixed_size_binary[16]", "Nullable(FixedString(16))"),
        ("dictionary<values=string, indices=int32, ordered=0>", "Nullable(String)"),
        ("list<item: int64>", "Array(Nullable(Int64))"),
        ("list<element: list<item: string>>", "Array(Array(Nullable(String)))"),
    ],
)
def test_arrow_types_have_the_carrier_that_loses_nothing(arrow: str, carrier: str) -> None:
    assert arrow_carrier(arrow) == carrier


@pytest.mark.parametrize(
    "arrow", ["duration[s]", "time64[us]", "struct<a: int64>", "null", "month_day_nano_interval"]
)
def test_arrow_types_without_counterpart_have_no_carrier(arrow: str) -> None:
    assert arrow_carrier(arrow) is None


def test_an_arrow_column_without_nulls_is_not_nullable() -> None:
    assert arrow_carrier("int64", nullable=False) == "Int64"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_the_misfit_column_is_found_in_the_error_whatever_its_name(name: str) -> None:
    error = f"Code: 395. DB::Exception: dpone: a value does not fit column {identifier(name)}: while executing `b`"
    assert misfit_column(error) == name


def test_another_error_has_no_misfit_column() -> None:
    assert misfit_column("Code: 60. DB::Exception: Table `d`.`t` does not exist") is None


def test_a_load_from_a_query_names_its_columns_on_both_sides() -> None:
    load = insert_from_select("d", "t", [LoadColumn("b", "UInt8", "UInt8")], "SELECT 1 AS b; -- done")
    assert load.sql == "INSERT INTO `d`.`t` (`b`)\nSELECT `b`\nFROM (\nSELECT 1 AS b\n)"
    assert load.settings == SELECT_SETTINGS


def test_a_comment_at_the_end_of_the_query_does_not_swallow_the_bracket() -> None:
    load = insert_from_select("d", "t", [LoadColumn("b", "UInt8", "UInt8")], "SELECT 1 AS b -- done")
    assert tokens(load.sql)[-1].text == ")"


@pytest.mark.parametrize(
    "query", ["", ";", "-- only a comment", "SELECT 1; SELECT 2", "SELECT 1)", "SELECT (1", "'"]
)
def test_a_query_that_is_not_one_statement_is_refused(query: str) -> None:
    with pytest.raises(SqlSyntaxError):
        insert_from_select("d", "t", [LoadColumn("b", "UInt8", "UInt8")], query)


def test_a_load_from_a_body_says_its_structure_and_format() -> None:
    load = insert_from_input("d", "t", [LoadColumn("it's", TEXT_CARRIER, "String")], "CSV")
    assert load.sql.startswith("INSERT INTO `d`.`t` (`it's`)\nSELECT CAST(if(throwIf(isNull(")
    assert load.sql.endswith("FROM input('`it\\'s` Nullable(String)')\nFORMAT CSV")
    assert load.settings == INPUT_SETTINGS


def test_settings_of_a_load_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        INPUT_SETTINGS["cast_keep_nullable"] = "1"  # type: ignore[index]


def test_a_digest_wraps_its_columns_in_a_tuple() -> None:
    assert content_digest_expressions(["a"]) == (
        "count()",
        "sum(toUInt128(cityHash64(tuple(`a`))))",
        "sum(toUInt128(xxh3(tuple(`a`))))",
    )
    assert content_digest_select("d", "t", ["a"]).endswith(" AS `total` FROM `d`.`t`)")


def test_a_digest_over_no_column_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        content_digest_select("d", "t", [])


def test_an_encoded_column_is_read_as_text_and_decoded_before_it_is_checked() -> None:
    columns = [
        LoadColumn("raw", TEXT_CARRIER, "String", Encoding.HEX),
        LoadColumn("tags", "Array(Nullable(String))", "Array(UInt8)", Encoding.JSON_ARRAY),
    ]
    raw, tags = exact_select(columns)
    assert "unhex(materialize(`raw`))" in raw
    assert "throwIf" in raw  # NULL is refused
    assert "JSONType(`tags`) = 'Array'" in tags
    assert misfit_column("dpone: a value does not fit column `tags`") == "tags"
    assert "does not fit column `tags`" in tags
    load = insert_from_input("d", "t", columns, "TabSeparated")
    assert f"`raw` {TEXT_CARRIER}, `tags` {TEXT_CARRIER}" in load.sql.replace("\\`", "`")


def test_an_encoded_column_keeps_its_check_where_the_types_are_equal() -> None:
    (same,) = exact_select(
        [LoadColumn("x", "Array(Nullable(String))", "Array(Nullable(String))", Encoding.JSON_ARRAY)]
    )
    assert "throwIf" in same
    (raw,) = exact_select([LoadColumn("x", TEXT_CARRIER, TEXT_CARRIER, Encoding.HEX)])
    assert raw == "unhex(materialize(`x`))"
