"""What ends in the middle of a publication, on a real scheduler: workers, triggerer, time. One swap in each case."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from tests.airflow.bench import Bench
from tests.cluster import CLUSTER_NAME
from tests.cluster.client import Fault, wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

STARTED_WITHIN = 90.0
"""Seconds from a run's start to its swap; several runs share two cores."""


def swap_of(table: str) -> str:
    """What matches the one statement that replaces this table."""
    return rf"^\s*EXCHANGE TABLES\b.*\b{table}\b.*\bON CLUSTER\b"


def create(bench: Bench, table: str) -> None:
    """The table as it was before: empty."""
    bench.cluster.execute(
        f"CREATE TABLE {bench.database}.{table} ON CLUSTER {CLUSTER_NAME} (id UInt64) "
        "ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}') ORDER BY id"
    )


def start(bench: Bench, dag_id: str, rows: int = 10) -> str:
    run_id = f"{dag_id}-{uuid4().hex[:8]}"
    bench.airflow.trigger(dag_id, run_id, {"database": bench.database, "rows": rows})
    return run_id


def swaps(bench: Bench, table: str) -> int:
    """How many swaps of the table left a task, errors and lost replies included."""
    return sum(bench.database in statement.text for statement in bench.cluster.statements(swap_of(table)))


def proven(bench: Bench, dag_id: str, run_id: str, table: str, rows: int = 10) -> Mapping[str, Any]:
    """The receipt of a publication that was proven, with one statement."""
    receipt = bench.receipt(dag_id, run_id, "publish")
    assert (receipt["statement"], receipt["rows"], receipt["replayed"]) == ("EXCHANGE", rows, False)
    assert [replica["content_match"] for replica in receipt["replicas"]] == [True, True]
    assert bench.rows(table) == [rows, rows]
    assert swaps(bench, table) == 1
    return receipt


def test_whatever_ends_a_worker_after_the_swap_was_sent_it_is_proven_and_sent_once(bench: Bench) -> None:
    """All four while the reply to the swap is awaited.

    Killed with its supervisor, as with a lost machine; out of time; cleared, upon which Airflow asks the process to end
    and kills it five seconds later; asked to end by somebody else, which Airflow passes to ``on_kill`` and no further.
    """
    dags = ("worker_killed", "worker_out_of_time", "worker_cleared", "worker_terminated")
    cases = {dag_id: dag_id.removeprefix("worker_") for dag_id in dags}
    held: dict[str, Fault] = {}
    runs: dict[str, str] = {}
    for dag_id, table in cases.items():
        create(bench, table)
        held[dag_id] = bench.cluster.hold(None, swap_of(table), executed=True)
        runs[dag_id] = start(bench, dag_id)

    def end(dag_id: str) -> None:
        run_id = runs[dag_id]
        match dag_id:
            case "worker_killed":
                bench.airflow.kill_task(dag_id, run_id, "publish")
            case "worker_cleared":
                bench.airflow.clear(dag_id, run_id, ["publish"])
            case "worker_terminated":
                bench.airflow.kill_task(dag_id, run_id, "publish", process="task", number=signal.SIGTERM)
                held[dag_id].release()

    sent: set[str] = set()

    def all_sent() -> bool:
        for dag_id in [dag_id for dag_id in cases if dag_id not in sent and held[dag_id].hits]:
            end(dag_id)
            sent.add(dag_id)
        return len(sent) == len(cases)

    wait_until(all_sent, timeout=STARTED_WITHIN)
    for dag_id, table in cases.items():
        bench.wait(dag_id, runs[dag_id])
        proven(bench, dag_id, runs[dag_id], table)
        tries = bench.tries(dag_id, runs[dag_id], "publish")
        match dag_id:
            case "worker_terminated":
                assert tries == 1
            case "worker_out_of_time":
                assert tries >= 2  # on a busy machine the next try may run out of time as well
            case _:
                assert tries == 2
        assert bench.tries(dag_id, runs[dag_id], "stage") == 1
    out_of_time = bench.airflow.task_log("worker_out_of_time", runs["worker_out_of_time"], "publish", 1)
    assert "AirflowTaskTimeout" in out_of_time


def start_and_hold_before_dispatch(
    bench: Bench, dag_id: str, table: str, rows: int = 10
) -> tuple[str, Fault]:
    """Start a run and hold its publish task just before it dispatches."""
    # Stage looks into the candidate at its end, and publish looks again before the dispatch.
    content = rf"cityHash64.*\b{table}__dpone_"
    by_stage = bench.cluster.hold(None, content)
    run_id = start(bench, dag_id, rows)
    by_stage.wait_for_hit(STARTED_WITHIN)
    by_publish = bench.cluster.hold(None, content)
    by_stage.release()
    by_publish.wait_for_hit(STARTED_WITHIN)
    return run_id, by_publish


def test_what_a_dead_worker_never_sent_is_superseded_by_the_next_run(bench: Bench) -> None:
    dag_id, table = "worker_lost_before", "lost_before"
    create(bench, table)
    run_id, _ = start_and_hold_before_dispatch(bench, dag_id, table, rows=3)
    bench.airflow.kill_task(dag_id, run_id, "publish")

    later = start(bench, dag_id, rows=4)
    bench.wait(dag_id, later)
    proven(bench, dag_id, later, table, rows=4)
    assert bench.tables() == {table}
    bench.wait(dag_id, run_id, expect="failed")
    assert (bench.rows(table), swaps(bench, table)) == ([4, 4], 1)


def test_a_publication_that_outlives_its_timeout_keeps_the_table_until_publish_is_cleared(
    bench: Bench,
) -> None:
    dag_id, table = "out_of_patience", "busy"
    create(bench, table)
    late = bench.cluster.hold_execution(2, rf"EXCHANGE.*\b{table}\b")
    run_id = start(bench, dag_id)
    bench.airflow.wait_task(dag_id, run_id, "publish", ["deferred"], STARTED_WITHIN)
    refused, waiting = start(bench, "busy_fails", rows=20), start(bench, "busy_waits", rows=30)

    bench.wait("busy_fails", refused, expect="failed")
    assert bench.tries("busy_fails", refused, "stage") == 1
    said = bench.log("busy_fails", refused, "stage")
    for word in ("TARGET_BUSY", dag_id, run_id):
        assert word in said

    bench.wait(dag_id, run_id, expect="failed")
    said = bench.log(dag_id, run_id, "publish")
    for word in ("Woken: deadline", "STILL RUNNING", "s1/r2"):
        assert word in said
    assert (bench.rows(table), swaps(bench, table)) == ([10, 0], 1)
    assert bench.airflow.task_instance("busy_waits", waiting, "stage").state == "running"
    assert run_id in bench.log("busy_waits", waiting, "stage")

    bench.airflow.clear(dag_id, run_id, ["publish"])
    late.release()
    bench.wait("busy_waits", waiting)
    assert bench.rows(table) == [30, 30]
    assert swaps(bench, table) == 2
    bench.airflow.wait_task(dag_id, run_id, "publish", ["success"])
    assert bench.receipt(dag_id, run_id, "publish")["rows"] == 10


def test_deferred_publications_wait_for_a_triggerer_to_come(bench: Bench) -> None:
    """One waits in a triggerer that is killed, the other defers while there is none."""
    killed, absent = "triggerer_killed", "triggerer_absent"  # DAGs and tables
    for table in (killed, absent):
        create(bench, table)
    # A replica that is late is late with everything behind, a candidate's creation as well.
    run_id, before_dispatch = start_and_hold_before_dispatch(bench, absent, absent)
    late = bench.cluster.hold_execution(2, rf"EXCHANGE.*\b{killed}\b")
    runs = {absent: run_id, killed: start(bench, killed)}
    bench.airflow.wait_task(killed, runs[killed], "publish", ["deferred"], STARTED_WITHIN)
    wait_until(lambda: is_waited_for(bench, killed, runs[killed]), timeout=30)
    bench.airflow.kill("triggerer")
    try:
        before_dispatch.release()
        bench.airflow.wait_task(absent, runs[absent], "publish", ["deferred"], STARTED_WITHIN)
        late.release()
        wait_until(lambda: bench.rows(killed) == bench.rows(absent) == [10, 10])
        for dag_id, run_id in runs.items():
            assert bench.airflow.task_instance(dag_id, run_id, "publish").state == "deferred"
    finally:
        bench.airflow.start("triggerer")
    for dag_id, run_id in runs.items():
        bench.wait(dag_id, run_id)
        assert bench.tries(dag_id, run_id, "publish") == 1
        proven(bench, dag_id, run_id, dag_id)


def is_waited_for(bench: Bench, dag_id: str, run_id: str) -> bool:
    """Whether a triggerer has taken over what publish waits for."""
    return bench.airflow.task_instance(dag_id, run_id, "publish").raw["triggerer_job"] is not None
