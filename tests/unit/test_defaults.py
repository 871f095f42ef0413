"""Every default and deadline on ``docs/defaults.md``: a change of one is a decision, and reaches what it is for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dpone import composition
from airflow_provider_dpone.options import OPTIONS
from airflow_provider_dpone.routes.cluster_refresh import Waits
from tests.unit.test_docs import generate


@pytest.fixture(autouse=True)
def without_options(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Nothing is set; the fixture sets an option as an environment does."""
    for name in OPTIONS:
        monkeypatch.delenv(f"AIRFLOW__DPONE__{name.upper()}", raising=False)
    return lambda name, value: monkeypatch.setenv(f"AIRFLOW__DPONE__{name.upper()}", value)


def test_the_options() -> None:
    assert {name: option.default for name, option in OPTIONS.items()} == {
        "deployment_id": "default",
        "evidence_path": "",
        "evidence_path_is_shared": "False",
        "artifact_path": "",
        "artifact_path_is_shared": "False",
        "control_database": "dpone",
        "control_table": "authority_v1",
        "ready_timeout": "600",
        "publish_timeout": "3600",
        "min_defer_seconds": "15",
        "cleanup_timeout": "60",
        "busy_timeout": "3600",
        "load_timeout": "21600",
    }


def test_the_arguments() -> None:
    defaults = {
        (where, argument.strip("`")): default.strip("`")
        for _, where, argument, default, _ in (
            [cell.strip() for cell in line.split("|")]
            for line in generate().operator_defaults().splitlines()[2:]
        )
        if default != "**required**"
    }
    assert defaults == {
        ("ClusterRefresh", "structure"): "None",
        ("ClusterRefresh", "ddl"): "None",
        ("ClusterRefresh", "replication_mode"): '"internal"',
        ("ClusterRefresh", "on_schema_change"): '"refuse"',
        ("ClusterRefresh", "on_dependents"): '"report"',
        ("ClusterRefresh", "retain_predecessor"): "None",
        ("SqlSource", "conn_id"): "None",
        ("SqlSource", "parameters"): "None",
        ("SqlSource", "batch_rows"): "10000",
        ("FileSource", "format"): "None",
        ("FileSource", "conn_id"): "None",
        ("FileSource", "options"): "{}",
        ("StageOperator", "order_key"): "None",
        ("StageOperator", "allow_older"): "False",
        ("StageOperator", "on_busy"): '"fail"',
        ("StageOperator", "busy_timeout"): "None",
        ("StageOperator", "load_timeout"): "None",
        ("PublishOperator", "staged"): "None",
        ("PublishOperator", "allow_empty"): "False",
        ("PublishOperator", "min_rows"): "None",
        ("PublishOperator", "max_shrink"): "None",
        ("PublishOperator", "publish_timeout"): "None",
        ("PublishOperator", "deferrable"): "None",
        ("CleanupOperator", "staged"): "None",
        ("CleanupOperator", "wait"): "True",
    }


def test_the_lengths_of_time_that_no_option_changes() -> None:
    seconds = [line.split("|")[1].strip() for line in generate().fixed_times().splitlines()[2:]]
    assert seconds == [
        *("10", "300"),  # a connection
        *("60", "20", "14400"),  # looks at the replicas
        *("180", "2", "20"),  # staging
        *("60", "5"),  # a compare-and-swap
        *("5", "30", "60"),  # the one statement and the queue
        *("5", "0.25", "10"),  # waiting in a worker
        *("10", "10", "120", "20", "60", "120"),  # waiting in the triggerer
        *("3600", "60", "5"),  # cleanup, init, KILL QUERY
    ]


def test_what_the_route_waits_by_default() -> None:
    assert composition.waits() == Waits(ready=600, publish=3600, cleanup=60, busy=0)
    assert composition.waits(busy=None).busy == 3600
    assert composition.patience_in_worker() == 15
    assert composition.load_seconds(None) == 21600
    rest = composition.waits()
    assert (rest.visible, rest.poll_first, rest.poll_last) == (5, 0.25, 10)


@pytest.mark.parametrize(
    ("option", "asked"),
    [
        ("ready_timeout", lambda: composition.waits().ready),
        ("publish_timeout", lambda: composition.waits().publish),
        ("cleanup_timeout", lambda: composition.waits().cleanup),
        ("busy_timeout", lambda: composition.waits(busy=None).busy),
        ("min_defer_seconds", composition.patience_in_worker),
        ("load_timeout", lambda: composition.load_seconds(None)),
    ],
)
def test_an_option_changes_what_it_is_for(
    without_options: Callable[[str, str], None], option: str, asked: Callable[[], float]
) -> None:
    without_options(option, "77.5")
    assert asked() == 77.5


@pytest.mark.parametrize(
    "asked",
    [
        lambda: composition.waits(publish=timedelta(seconds=7)).publish,
        lambda: composition.waits(busy=timedelta(seconds=7)).busy,
        lambda: composition.load_seconds(timedelta(seconds=7)),
    ],
    ids=["publish_timeout", "busy_timeout", "load_timeout"],
)
def test_what_a_task_says_goes_first(without_options: Any, asked: Callable[[], float]) -> None:
    for option in ("publish_timeout", "busy_timeout", "load_timeout"):
        without_options(option, "77.5")
    assert asked() == 7
