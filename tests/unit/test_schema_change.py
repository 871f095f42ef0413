"""Which structure a candidate gets, and how the source's columns map to it."""

from __future__ import annotations

import pytest

from airflow_provider_dpone.clickhouse.create_table import TableDefinition, parse
from airflow_provider_dpone.clickhouse.schema_change import (
    SourceColumn,
    StructurePlan,
    StructureRefusal,
    plan_structure,
)
from airflow_provider_dpone.values import OnSchemaChange


def table(columns: str) -> TableDefinition:
    return parse(f"CREATE TABLE d.t ({columns}) ENGINE = ReplicatedMergeTree ORDER BY a")


TARGET = table(
    "`a` UInt8, `b` String DEFAULT 'x', `m` UInt8 MATERIALIZED a, `c` UInt8 ALIAS a, `e` UInt8 EPHEMERAL 1"
)
WIDER = table("`a` UInt8, `n` Decimal(10, 2) CODEC(ZSTD(1))")
A: SourceColumn = ("a", "UInt8")
N: SourceColumn = ("n", "Decimal(10, 2)")


def plan(
    target: TableDefinition | None,
    structure: TableDefinition | None,
    source: list[SourceColumn],
    mode: OnSchemaChange = "refuse",
) -> StructurePlan:
    result = plan_structure(target, structure, source, mode)
    assert isinstance(result, StructurePlan), result
    return result


def refusal(
    target: TableDefinition | None,
    structure: TableDefinition | None,
    source: list[SourceColumn],
    mode: OnSchemaChange = "refuse",
) -> StructureRefusal:
    result = plan_structure(target, structure, source, mode)
    assert isinstance(result, StructureRefusal), result
    return result


def test_a_live_table_gives_its_structure() -> None:
    planned = plan(TARGET, WIDER, [A])
    assert planned.definition is TARGET
    assert planned.differences == ()


def test_columns_meet_by_name_in_the_sources_order() -> None:
    planned = plan(TARGET, None, [("b", "String"), A])
    assert [column.name for column in planned.columns] == ["b", "a"]


def test_a_column_with_default_may_be_left_out() -> None:
    assert [column.name for column in plan(TARGET, None, [A]).columns] == ["a"]


def test_a_source_column_that_the_table_lacks_is_refused() -> None:
    refused = refusal(TARGET, None, [A, N])
    assert (refused.reason, refused.source_only, refused.table_only) == ("columns_differ", ("n",), ())
    assert "the table lacks: `n`" in refused.message


def test_a_required_column_that_the_source_lacks_is_refused() -> None:
    refused = refusal(TARGET, None, [("b", "String")])
    assert (refused.source_only, refused.table_only) == ((), ("a",))
    assert "without default that the source lacks: `a`" in refused.message


def test_both_lists_are_in_one_refusal() -> None:
    refused = refusal(TARGET, None, [N])
    assert (refused.source_only, refused.table_only) == (("n",), ("a",))


def test_names_are_compared_with_their_case() -> None:
    refused = refusal(TARGET, None, [("A", "UInt8")])
    assert (refused.source_only, refused.table_only) == (("A",), ("a",))


@pytest.mark.parametrize("name", ["m", "c", "e"])
def test_a_column_that_the_table_computes_is_refused(name: str) -> None:
    refused = refusal(TARGET, None, [A, (name, "UInt8")])
    assert refused.source_only == (name,)
    assert f"the table computes: `{name}`" in refused.message


def test_a_source_column_that_comes_twice_is_refused() -> None:
    assert refusal(TARGET, None, [A, A]).reason == "duplicate_columns"


def test_an_absent_table_takes_the_given_structure() -> None:
    planned = plan(None, WIDER, [A, N])
    assert planned.definition is WIDER
    assert planned.differences == ()


def test_an_absent_table_without_structure_is_refused_with_a_suggestion() -> None:
    refused = refusal(None, None, [A, ("it's", None)])
    assert refused.reason == "structure_missing"
    assert refused.suggestion == (
        "TableStructure(\n"
        "    columns={\n"
        "        'a': 'UInt8',\n"
        "        \"it's\": 'String',\n"
        "    },\n"
        "    order_by=[...],  # choose it\n"
        ")"
    )


def test_append_adds_new_columns_with_their_declared_types() -> None:
    planned = plan(TARGET, WIDER, [A, N], "append")
    assert planned.definition.columns == (*TARGET.columns, WIDER.columns[1])
    assert [str(difference) for difference in planned.differences] == ["column `n` was added"]
    assert [column.type for column in planned.columns] == ["UInt8", "Decimal(10, 2)"]


def test_append_without_new_columns_changes_nothing() -> None:
    assert plan(TARGET, None, [A], "append").definition == TARGET


@pytest.mark.parametrize("structure", [None, TARGET])
def test_append_needs_the_type_of_each_new_column(structure: TableDefinition | None) -> None:
    refused = refusal(TARGET, structure, [A, N], "append")
    assert (refused.reason, refused.source_only) == ("type_missing", ("n",))
    assert "'n': 'Decimal(10, 2)'" in refused.suggestion


def test_append_still_refuses_what_the_source_lacks() -> None:
    assert refusal(TARGET, WIDER, [N], "append").table_only == ("a",)


def test_replace_takes_the_given_structure_and_says_what_changes() -> None:
    planned = plan(TARGET, WIDER, [A, N], "replace")
    assert planned.definition is WIDER
    assert {difference.clause for difference in planned.differences} == {
        f"column `{name}`" for name in ("b", "m", "c", "e", "n")
    }


def test_replace_without_structure_is_refused() -> None:
    assert refusal(TARGET, None, [A], "replace").reason == "structure_missing"
