"""The replicas' tasks, side by side: what becomes of them when the task that waits for them is interrupted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast

import pytest

from airflow_provider_dpone.clickhouse import replica_staging
from airflow_provider_dpone.clickhouse.replica_staging import MOST_AT_ONCE, ClusterReplicaStaging
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.record import ReplicaStage, StageState
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import StagePlan, Target
from airflow_provider_dpone.sources import SqlSource
from airflow_provider_dpone.values import ClusterRefresh, KiB


class TimedOut(BaseException):
    """What Airflow raises in the main thread when a task has taken too long."""


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> ClusterReplicaStaging:
    monkeypatch.setattr(replica_staging, "END_SECONDS", 0.3, raising=False)
    refresh = ClusterRefresh(
        clickhouse_conn_id="ch",
        cluster="analytics",
        database="mart",
        table="orders",
        max_source_bytes=KiB,
        replication_mode="external",
    )
    never: Any = None
    return ClusterReplicaStaging(
        Server(ConnectionSettings(hosts=(("localhost", 1),))),
        Target("analytics", "mart", "orders"),
        refresh,
        SqlSource(sql="SELECT 1"),
        print,
        never,
        never,
    )


@pytest.fixture
def alarm() -> Iterator[None]:
    """Interrupt the main thread in a moment."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_an_interrupted_staging_does_not_wait_for_an_answer_that_takes_hours(
    staging: ClusterReplicaStaging,
) -> None:
    answered, started = threading.Event(), []

    def task() -> None:
        started.append(time.monotonic())
        answered.wait(5)

    began = time.monotonic()
    try:
        with pytest.raises(TimedOut):
            staging.side_by_side([task] * (MOST_AT_ONCE + 2))
        assert time.monotonic() - began < 3
    finally:
        answered.set()
    time.sleep(0.1)
    # Those that were still waiting for their turn never begin.
    assert len(started) == MOST_AT_ONCE


def test_nothing_new_begins_on_a_replica_when_the_task_was_asked_to_stop(
    staging: ClusterReplicaStaging,
) -> None:
    staging.cancel()
    stage = ReplicaStage("s1/r1", "0" * 16, f"orders__dpone_{'0' * 16}", "0" * 36, StageState.CLAIMED)
    plan = StagePlan("p", (), cast("Any", None))
    for step in (
        lambda: staging.create(plan, stage, authority_id="a", operation_id="o"),
        lambda: staging.promote(stage, "orders__dpone_1"),
        lambda: staging.content("orders", "s1/r1"),
    ):
        with pytest.raises(Stopped) as caught:
            step()
        assert caught.value.stop.code is Code.STAGING_FAILED


def test_what_each_task_stopped_with_comes_back_in_their_order(staging: ClusterReplicaStaging) -> None:
    stopped = Stopped(Stop(Code.STAGING_FAILED, "as the test says"))

    def fails() -> None:
        raise stopped

    assert staging.side_by_side([fails, lambda: None, fails]) == [stopped, None, stopped]
