"""The profile, the statement, and which columns members compute for themselves; values are a server's affair."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter, ValidationError

from airflow_provider_dpone.clickhouse.canonical_digest import (
    COMPOUNDS,
    DIGEST_SETTINGS,
    SCALARS,
    canonical_digest_select,
    deterministic_functions,
    outside_profile,
    varying_columns,
)
from airflow_provider_dpone.clickhouse.exact import SELECT_SETTINGS
from airflow_provider_dpone.clickhouse.sql import string, tokens
from airflow_provider_dpone.clickhouse.table_definition import ColumnDefinition, TableDefinition
from airflow_provider_dpone.publication.content import CanonicalDigest
from tests.integration.canonical_types import ENCODINGS

ZERO = "0" * 64

# --- the value ---------------------------------------------------------------------------------------------


def test_a_digest_survives_json() -> None:
    adapter = TypeAdapter(CanonicalDigest)
    digest = CanonicalDigest(3, ZERO)
    assert adapter.validate_json(adapter.dump_json(digest)) == digest


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": -1, "sha256": ZERO},
        {"rows": "1", "sha256": ZERO},
        {"rows": 1, "sha256": ZERO[1:]},
        {"rows": 1, "sha256": "A" * 64},
        {"rows": 1, "sha256": f"{ZERO}\n"},
        {"rows": 1, "sha256": ZERO, "city": "1"},
        {"rows": 1},
    ],
    ids=str,
)
def test_what_is_no_digest_is_not_read_as_one(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(CanonicalDigest).validate_json(json.dumps(fields))


# --- the profile -------------------------------------------------------------------------------------------

INSIDE = [
    *(
        one
        for one in sorted(SCALARS)
        if one not in {"Decimal", "DateTime64", "FixedString", "Enum8", "Enum16"}
    ),
    "Decimal(76, 38)",
    "Decimal32(2)",
    "DateTime('Europe/Berlin')",
    "DateTime64(9, 'UTC')",
    "Time64(6)",
    "FixedString(3)",
    "Enum8('a' = 1, 'b,)' = -2)",
    "Enum16('a' = 1000)",
    "Nullable(Float64)",
    "LowCardinality(String)",
    "LowCardinality(Nullable(FixedString(2)))",
    "Array(Array(Nullable(Decimal(10, 2))))",
    "Map(LowCardinality(String), Array(UInt8))",
    "Tuple(a Array(UInt8), `b c` Nullable(String))",
    "Nested(a UInt8, b String)",
    "SimpleAggregateFunction(max, UInt64)",
]
OUTSIDE = [
    "AggregateFunction(uniq, UInt64)",
    "JSON",
    "JSON(max_dynamic_paths = 8, a UInt32)",
    "Object('json')",
    "Dynamic",
    "Variant(String, UInt64)",
    "Array(Variant(String, UInt64))",
    "Map(String, JSON)",
    "Tuple(a UInt8, b Array(Dynamic))",
    "Nullable(Tuple(UInt8))",
    "Nothing",
    "IntervalDay",
    "Point",
    "Ring",
    "QBit(Float32, 8)",
    "SimpleAggregateFunction(anyLast, Variant(String, UInt64))",
    "Unheard",
    "",
    "UInt8 UInt8",
]


def column(type_text: str, kind: str = "", name: str = "x") -> ColumnDefinition:
    return ColumnDefinition(name, type_text, kind, "1" if kind else "")


@pytest.mark.parametrize("text", INSIDE)
def test_types_of_the_profile(text: str) -> None:
    assert outside_profile([column(text)]) == ()


@pytest.mark.parametrize("text", OUTSIDE)
def test_types_outside_are_named(text: str) -> None:
    assert outside_profile([column(text)]) == (column(text),)


def test_every_column_outside_is_named_and_only_what_is_stored_counts() -> None:
    columns = [
        column("JSON", name="a"),
        column("UInt8", name="b"),
        column("Dynamic", "MATERIALIZED", name="c"),
        column("Dynamic", "DEFAULT", name="d"),
        column("Dynamic", "ALIAS", name="e"),
        column("Dynamic", "EPHEMERAL", name="f"),
    ]
    assert [outside.name for outside in outside_profile(columns)] == ["a", "c", "d"]


def test_every_type_of_the_profile_is_tried_on_servers() -> None:
    tried = {token.text for kind in ENCODINGS for token in tokens(kind)}
    assert tried >= SCALARS | COMPOUNDS
    assert outside_profile([column(kind) for kind in ENCODINGS]) == ()


@pytest.mark.parametrize("kind", ENCODINGS)
def test_no_value_is_the_beginning_of_another(kind: str) -> None:
    """That is what makes a row of several columns readable in one way only."""
    encodings = [encoding for _, encoding in ENCODINGS[kind]]
    assert len(set(encodings)) == len(encodings) > 1
    assert not [(a, b) for a in encodings for b in encodings if a != b and b.startswith(a)]


# --- the statement -----------------------------------------------------------------------------------------


def test_the_statement() -> None:
    columns = [column("String", name="b"), column("Nullable(Int8)", name="a"), column("Int32", name="n")]
    assert canonical_digest_select("d", "t", columns) == (
        "SELECT tupleElement(`total`, 1) AS rows, leftPad(lower(hex(tupleElement(`total`, 2))), 64, '0') AS sha256 "
        "FROM (SELECT tuple(count(), sum(reinterpretAsUInt256(SHA256("
        "concat(reinterpretAsFixedString(`n`), formatRow('RowBinary', `a`, `b`)))))) "
        "AS `total` FROM `d`.`t`)"
    )


@pytest.mark.parametrize("kind", ENCODINGS)
def test_columns_of_a_fixed_width_are_read_as_their_memory(kind: str) -> None:
    widths = {len(encoding) for _, encoding in ENCODINGS[kind]}
    sql = canonical_digest_select("d", "t", [column(kind)])
    variable = ("String", "Nullable", "Array", "Map", "Tuple", "LowCardinality")
    if kind.startswith(variable):
        assert "SHA256(formatRow('RowBinary', `x`))" in sql
    else:
        assert len(widths) == 1
        assert "SHA256(reinterpretAsFixedString(`x`))" in sql


@pytest.mark.parametrize("kind", ["UInt8", "String"])
def test_the_order_of_columns_does_not_matter(kind: str) -> None:
    names = ["b", "a", "ä", "B", "n.x", "日", "🙂"]
    one, other = (
        [column(kind, name=name) for name in found] for found in (names, sorted(names, reverse=True))
    )
    assert canonical_digest_select("d", "t", one) == canonical_digest_select("d", "t", other)


def test_names_are_quoted_and_none_is_hidden() -> None:
    names = ["a`b", "total", "total_"]
    sql = canonical_digest_select("d`", "t", [column("String", name=name) for name in names])
    assert "'RowBinary', `a\\`b`, `total`, `total_`" in sql
    assert "AS `total__` FROM `d\\``.`t`" in sql


@pytest.mark.parametrize("names", [[], ["a", "b", "a"]])
def test_a_digest_needs_columns_each_once(names: list[str]) -> None:
    with pytest.raises(ValueError, match="column"):
        canonical_digest_select("d", "t", [column("UInt8", name=name) for name in names])


def test_what_keeps_a_load_whole_keeps_a_digest_whole() -> None:
    assert SELECT_SETTINGS.items() <= DIGEST_SETTINGS.items()


# --- columns that members compute --------------------------------------------------------------------------

FUNCTIONS = frozenset(("toString", "arrayMap", "toDate", "toIntervalDay", "multiIf", "CAST", "tuple"))


def table(*columns: ColumnDefinition) -> TableDefinition:
    return TableDefinition(columns, "MergeTree")


def computed(expression: str, name: str = "m", kind: str = "MATERIALIZED") -> ColumnDefinition:
    return ColumnDefinition(name, "String", kind, expression)


PLAIN = [ColumnDefinition(name, "UInt8") for name in ("a", "b", "n.x", "odd name", "now")]


@pytest.mark.parametrize(
    "expression",
    [
        "1",
        "'now()'",
        "a + b",
        "-a",
        "true",
        "inf",
        "a IS NOT NULL",
        "(a >= 1) AND NOT (b % 2)",
        "toString(`odd name`)",
        "CAST(a, 'Enum8(\\'rand()\\' = 1)')",
        "toDate('2020-01-01') + toIntervalDay(a)",
        "multiIf(a = 1, 'x', b = 2, 'y', NULL)",
        "arrayMap(x -> (x + a), n.x)",
        "arrayMap((x, y) -> ((x + y) + a), [a], n.x)",
        "arrayMap(x -> arrayMap(y -> (x + y), [b]), [a])",
        "(a + 1 AS z) + z",
        "(a, b).1",
        "a IN (1, 2)",
        "a IN (NULL, 1)",
        "(a, b) NOT IN ((1, 2), (3, 4))",
        "a IN tuple(1, 2)",
        "a IN (toDate('2020-01-01'))",
        "now",  # the column
    ],
)
def test_what_is_made_of_known_functions_is_equal_everywhere(expression: str) -> None:
    assert varying_columns(table(*PLAIN, computed(expression)), FUNCTIONS) == ()


@pytest.mark.parametrize(
    "expression",
    [
        "rand()",
        "toString(rand())",
        "a + rand(b)",
        "`rand`()",
        "Now()",
        "today",
        "CURRENT_TIMESTAMP",
        "NOW",
        "user",
        "toString(hostName())",
        "dictGet('d.dict', 'x', a)",
        "if(a, b, 1)",  # unknown here
        "arrayMap(x -> (x + rand()), [a])",
        "arrayMap(x -> (x + y), [a])",
        "a IN (d.t)",
        "a IN d.t",
        "a IN (b)",
        "a IN b",
        "a GLOBAL IN (d.t)",
        "in(a, b)",
        "(SELECT 1)",
        "lambda",
    ],
)
def test_what_is_not_known_to_be_equal_everywhere_varies(expression: str) -> None:
    assert varying_columns(table(*PLAIN, computed(expression)), FUNCTIONS) == ("m",)


def test_only_what_is_stored_and_computed_is_named() -> None:
    definition = table(
        ColumnDefinition("a", "UInt8"),
        computed("rand()", "default", "DEFAULT"),
        computed("rand()", "alias", "ALIAS"),
        computed("rand()", "ephemeral", "EPHEMERAL"),
        computed("a + 1", "fine"),
        computed("rand()", "materialized"),
    )
    assert varying_columns(definition, FUNCTIONS) == ("materialized",)
    assert varying_columns(definition, FUNCTIONS, left_out=["default"]) == ("default", "materialized")


def test_what_is_computed_from_a_varying_column_varies() -> None:
    definition = table(
        computed("d + 1", "e"),
        computed("c + 1", "d"),
        computed("b", "c", "ALIAS"),
        computed("rand()", "b", "EPHEMERAL"),
        computed("`n.x`", "quoted"),
        computed("n.x", "dotted"),
        computed("rand()", "n.x"),
        computed("f", "from_default"),
        computed("now()", "f", "DEFAULT"),
        computed("", "g", "EPHEMERAL"),
        computed("g", "from_ephemeral"),
    )
    assert varying_columns(definition, FUNCTIONS) == ("e", "d", "quoted", "dotted", "n.x")


TOLD = ("name", "alias_to", "case_insensitive", "deterministic")


@pytest.mark.parametrize(("any_case", "written"), [(1, "lower"), (1, "LOWER"), (1, "Lower"), (0, "lower")])
def test_a_function_is_known_in_the_cases_in_which_it_may_be_written(any_case: int, written: str) -> None:
    known = deterministic_functions(TOLD, [["lower", "", any_case, 1]])
    assert varying_columns(table(*PLAIN, computed(f"{written}(a)")), known) == ()


def test_the_server_says_which_functions_are_deterministic() -> None:
    rows = [
        ["toString", "", 0, 1],
        ["Abs", "", 1, 1],
        ["substr", "substring", 1, 1],
        ["rand", "", 0, 0],
        ["neighbor", "", 0, None],
        ["in", "", 0, 1],
        ["AIEmbed", "aiEmbed", 0, 1],
        ["__internal", "", 0, 1],
    ]
    assert deterministic_functions(TOLD, rows) == {"toString", "Abs", "abs", "substr"}


def test_where_the_server_does_not_say_a_list_does() -> None:
    rows = [[name, "", 0] for name in ("toString", "rand", "plus", "geohashEncode", "now", "in")]
    assert deterministic_functions(TOLD[:-1], rows) == {"toString", "plus"}


def test_a_string_is_no_name() -> None:
    assert varying_columns(table(*PLAIN, computed(string("rand() + `x`"))), FUNCTIONS) == ()
