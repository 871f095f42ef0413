"""What an operation takes from its task: who it is, and in which order it comes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dpone.operators.context import (
    about,
    new_operation,
    order_key,
    owner,
    task_identity,
    writer,
)


def context(
    conf: dict[str, Any] | None = None, params: dict[str, Any] | None = None, **ti: Any
) -> dict[str, Any]:
    fields = {
        "dag_id": "orders",
        "run_id": "manual__1",
        "task_id": "stage",
        "map_index": -1,
        "max_tries": 2,
        "try_number": 1,
        "id": "01-first",
    }
    return {
        "ti": SimpleNamespace(**(fields | ti)),
        "dag_run": SimpleNamespace(conf=conf),
        "params": params or {},
    }


def operation(**ti: Any) -> str:
    return task_identity(context(**ti), "prod").operation_id("target")


def test_a_retry_is_the_same_operation() -> None:
    assert operation() == operation(try_number=2, id="02-second")


@pytest.mark.parametrize(
    "changed",
    [
        {"max_tries": 5},
        {"dag_id": "other"},
        {"run_id": "manual__2"},
        {"task_id": "stage2"},
        {"map_index": 0},
    ],
)
def test_a_clear_and_every_other_name_make_another_operation(changed: dict[str, Any]) -> None:
    assert operation(**changed) != operation()


def test_two_installations_have_different_operations() -> None:
    one, other = (task_identity(context(), name).operation_id("t") for name in ("prod", "test"))
    assert one != other


def test_a_task_without_a_map_index_is_one_that_is_not_mapped() -> None:
    assert operation(map_index=None) == operation(map_index=-1)


@pytest.mark.parametrize("value", [True, "again", 2])
def test_the_run_can_ask_for_a_new_operation(value: object) -> None:
    asked = task_identity(context(conf={"new_operation": value}), "prod")
    assert asked.operation_id("target") != operation()
    # Its own retries are that operation again.
    retry = task_identity(context(conf={"new_operation": value}, try_number=2, id="x"), "prod")
    assert asked == retry


def test_a_param_of_the_dag_asks_as_well_and_the_runs_own_word_goes_first() -> None:
    assert new_operation(context(params={"new_operation": "a"})) == "a"
    assert new_operation(context({"new_operation": "b"}, {"new_operation": "a"})) == "b"


@pytest.mark.parametrize("value", [False, "", None, 0])
def test_an_empty_wish_is_none(value: object) -> None:
    assert task_identity(context(conf={"new_operation": value}), "prod").operation_id("target") == operation()


def test_order_is_the_end_of_the_data_interval_in_utc_text_of_one_length() -> None:
    early = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    late = datetime(2026, 1, 2, 3, 4, 5, 10, tzinfo=timezone(timedelta(hours=-2)))
    keys = [order_key({"data_interval_end": end}) for end in (early, late)]
    assert keys == ["2026-01-02T03:04:05.000000Z", "2026-01-02T05:04:05.000010Z"]


def test_a_run_without_a_data_interval_has_no_order() -> None:
    assert order_key({}) is None
    assert order_key({"data_interval_end": None}) is None


def test_people_are_told_whom_to_ask() -> None:
    found = owner(context(map_index=3))
    assert (found.dag_id, found.run_id, found.task_id, found.map_index) == ("orders", "manual__1", "stage", 3)
    said = about(context(), "clickhouse")
    assert (said["try_number"], said["conn_id"]) == (1, "clickhouse")
    assert writer(context()) == "01-first"
