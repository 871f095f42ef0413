"""The values a DAG author writes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dpone.values import ClusterRefresh, FrozenMapping, GiB, KiB, MiB, TableStructure

STRUCTURE = TableStructure(
    columns={"id": "UInt64", "at": "DateTime CODEC(Delta, ZSTD)"},
    order_by=["id"],
    partition_by="toYYYYMM(at)",
    ttl="at + INTERVAL 1 MONTH TO VOLUME 'cold'",
    settings={"storage_policy": "tiered", "index_granularity": 1024},
    indexes=["by_id id TYPE minmax"],
)


def refresh(**changes: Any) -> ClusterRefresh:
    arguments: dict[str, Any] = {
        "clickhouse_conn_id": "ch",
        "cluster": "analytics",
        "database": "mart",
        "table": "orders",
        "max_source_bytes": 2 * GiB,
    }
    return ClusterRefresh(**(arguments | changes))


def test_units_are_binary() -> None:
    assert (KiB, MiB, GiB) == (2**10, 2**20, 2**30)


@pytest.mark.parametrize("argument", ["clickhouse_conn_id", "cluster", "database", "table", "ddl"])
@pytest.mark.parametrize("value", ["", "  ", "a\0b"])
def test_an_empty_name_or_nul_is_refused_by_argument(argument: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{argument} must not"):
        refresh(**{argument: value})


@pytest.mark.parametrize("value", [0, -1, True, None, 1.5, "2GiB"])
def test_the_source_bound_must_be_a_positive_number_of_bytes(value: object) -> None:
    with pytest.raises(ValueError, match=r"max_source_bytes must be a positive .* max_source_bytes=2 \* GiB"):
        refresh(max_source_bytes=value)


def test_a_missing_source_bound_is_refused_like_a_wrong_one() -> None:
    with pytest.raises(ValueError, match="max_source_bytes must be a positive"):
        ClusterRefresh(clickhouse_conn_id="ch", cluster="c", database="d", table="t")


@pytest.mark.parametrize("argument", ["replication_mode", "on_schema_change", "on_dependents"])
def test_a_choice_outside_of_its_list_is_refused_with_the_list(argument: str) -> None:
    with pytest.raises(ValueError, match=f"^{argument} must be one of '"):
        refresh(**{argument: "maybe"})


@pytest.mark.parametrize("value", [timedelta(seconds=-1), timedelta(milliseconds=1), 60, True, "1 day"])
def test_a_retention_that_is_no_whole_number_of_seconds_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^retain_predecessor must be a timedelta"):
        refresh(retain_predecessor=value)


def test_a_retention_is_kept_as_seconds_in_plain_data() -> None:
    value = refresh(retain_predecessor=timedelta(days=2))
    data = value.serialize()
    assert data["retain_predecessor"] == 2 * 24 * 3600
    assert ClusterRefresh.deserialize(data, 1) == value
    assert ClusterRefresh.from_mapping({**data, "retain_predecessor": timedelta(days=2)}) == value
    assert refresh().serialize()["retain_predecessor"] is None
    with pytest.raises(ValueError, match="retain_predecessor"):
        ClusterRefresh.from_mapping({**data, "retain_predecessor": True})


def test_structure_and_ddl_together_are_refused() -> None:
    with pytest.raises(ValueError, match="write one of them"):
        refresh(structure=STRUCTURE, ddl="CREATE TABLE (a UInt8)")


def test_replace_without_a_structure_is_refused() -> None:
    with pytest.raises(ValueError, match="never guessed"):
        refresh(on_schema_change="replace")
    assert refresh(on_schema_change="replace", structure=STRUCTURE).structure == STRUCTURE


def test_a_dict_in_place_of_a_structure_is_refused() -> None:
    with pytest.raises(ValueError, match="from_mapping"):
        refresh(structure={"columns": {}})


def test_a_structure_without_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="columns must not be empty"):
        TableStructure(columns={}, order_by=())


@pytest.mark.parametrize("columns", [{"": "UInt8"}, {"a": ""}, {"a\0": "UInt8"}, {"a": "UInt8\0"}])
def test_an_empty_column_or_nul_is_refused(columns: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="columns"):
        TableStructure(columns=columns, order_by=())


def test_an_unsaid_sorting_key_is_refused() -> None:
    with pytest.raises(ValueError, match="order_by is missing"):
        TableStructure.from_mapping({"columns": {"a": "UInt8"}})
    with pytest.raises(ValueError, match="order_by is missing"):
        TableStructure(columns={"a": "UInt8"}, order_by=None)  # type: ignore[arg-type]


def test_a_setting_that_is_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="settings"):
        TableStructure(columns={"a": "UInt8"}, order_by=(), settings={"a": None})  # type: ignore[dict-item]


def test_a_single_expression_and_a_list_of_it_are_equal() -> None:
    assert TableStructure(columns={"a": "UInt8"}, order_by="a") == TableStructure(
        columns={"a": "UInt8"}, order_by=["a"]
    )


def test_the_order_of_columns_counts_and_that_of_settings_does_not() -> None:
    one = TableStructure(columns={"a": "T", "b": "T"}, order_by=(), settings={"x": 1, "y": 2})
    assert one != TableStructure(columns={"b": "T", "a": "T"}, order_by=(), settings={"x": 1, "y": 2})
    assert one == TableStructure(columns={"a": "T", "b": "T"}, order_by=(), settings={"y": 2, "x": 1})


def test_values_are_frozen_hashable_and_copyable() -> None:
    value = refresh(structure=STRUCTURE)
    assert hash(value) == hash(copy.deepcopy(value))
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(FrozenInstanceError):
        value.table = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        STRUCTURE.columns["a"] = "b"  # type: ignore[index]


def test_a_caller_that_changes_its_dict_does_not_change_the_value() -> None:
    columns = {"a": "UInt8"}
    structure = TableStructure(columns=columns, order_by=())
    columns["b"] = "UInt8"
    assert dict(structure.columns) == {"a": "UInt8"}


def test_airflow_finds_no_field_to_assign_to() -> None:
    assert not hasattr(refresh(), "template_fields")
    assert set(ClusterRefresh.templated_fields) < {field.name for field in fields(ClusterRefresh)}


def test_rendering_makes_a_new_value_with_every_string_rendered() -> None:
    template = refresh(
        table="{{ t }}",
        structure=TableStructure(
            columns={"{{ c }}": "{{ type }}"},
            order_by=["{{ c }}"],
            settings={"storage_policy": "{{ p }}", "index_granularity": 1},
            comment="{{ n }}",
        ),
    )
    answers = {
        "{{ t }}": "orders",
        "{{ c }}": "id",
        "{{ type }}": "Int8",
        "{{ p }}": "hot",
        "{{ n }}": "note",
    }
    rendered = template.rendered(lambda text: answers.get(text, text))
    assert rendered == refresh(
        structure=TableStructure(
            columns={"id": "Int8"},
            order_by=["id"],
            settings={"storage_policy": "hot", "index_granularity": 1},
            comment="note",
        )
    )
    assert template.table == "{{ t }}"


def test_rendering_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="table must not be empty"):
        refresh(table="{{ t }}").rendered(lambda text: "" if "{{" in text else text)


def test_choices_are_not_templated() -> None:
    seen: list[str] = []

    def render(text: str) -> str:
        seen.append(text)
        return text

    refresh().rendered(render)
    assert seen == ["ch", "analytics", "mart", "orders"]


@pytest.mark.parametrize(
    "value", [refresh(), refresh(structure=STRUCTURE), refresh(ddl="CREATE TABLE (a UInt8)")]
)
def test_serialized_values_read_back(value: ClusterRefresh) -> None:
    assert ClusterRefresh.deserialize(value.serialize(), ClusterRefresh.__version__) == value


def test_serialized_data_is_plain() -> None:
    def plain(data: object) -> bool:
        match data:
            case dict():
                return all(isinstance(key, str) and plain(value) for key, value in data.items())
            case list():
                return all(map(plain, data))
            case _:
                return data is None or type(data) in (str, int, float, bool)

    assert plain(refresh(structure=STRUCTURE).serialize())


@pytest.mark.parametrize("owner", [ClusterRefresh, TableStructure])
def test_a_newer_version_is_refused(owner: type[ClusterRefresh] | type[TableStructure]) -> None:
    with pytest.raises(ValueError, match="upgrade the provider"):
        owner.deserialize({}, owner.__version__ + 1)


def test_a_dict_is_accepted_with_a_nested_structure() -> None:
    data = refresh(structure=STRUCTURE).serialize() | {
        "structure": {"columns": {"a": "UInt8"}, "order_by": []}
    }
    assert ClusterRefresh.from_mapping(data).structure == TableStructure(columns={"a": "UInt8"}, order_by=())


def test_an_unknown_name_in_a_dict_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no argument tabel; it has .*table"):
        ClusterRefresh.from_mapping({"tabel": "orders"})
    with pytest.raises(ValueError, match=r"no argument orderby; it has .*order_by"):
        TableStructure.from_mapping({"orderby": "id"})


@pytest.mark.parametrize("missing", ["clickhouse_conn_id", "cluster", "database", "table"])
def test_a_missing_name_in_a_dict_is_refused(missing: str) -> None:
    data = refresh().serialize()
    del data[missing]
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        ClusterRefresh.from_mapping(data)


@given(st.dictionaries(st.text(), st.integers()))
def test_a_frozen_mapping_is_the_mapping_in_its_order(items: dict[str, int]) -> None:
    frozen = FrozenMapping(items)
    assert list(frozen.items()) == list(items.items())
    assert frozen == FrozenMapping(items)
    assert hash(frozen) == hash(FrozenMapping(items))
