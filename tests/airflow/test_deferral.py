"""A publication that waits in the triggerer, on a real scheduler, a real triggerer and a real cluster."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.airflow.bench import DROP, SWAP, Bench
from tests.airflow.harness import VERSION
from tests.cluster.client import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

DAG_ID = "refresh_deferred"
PUBLISH = "late.publish"
CLEANUP = "late.cleanup"
DEFERRED_WITHIN = 90.0
LAST_WORDS = "Ended by a user while waiting for the replicas. The statement was sent and can't be recalled"


def test_a_late_replica_is_waited_for_in_the_triggerer_and_the_swap_is_sent_once(bench: Bench) -> None:
    bench.run(DAG_ID, rows=10)
    since = bench.cluster.last_statement()
    late = bench.cluster.hold_execution(2, "EXCHANGE")
    run_id = f"{DAG_ID}-{uuid4().hex[:8]}"
    bench.airflow.trigger(DAG_ID, run_id, {"database": bench.database, "rows": 20})
    bench.airflow.wait_task(DAG_ID, run_id, PUBLISH, ["deferred"], DEFERRED_WITHIN)
    assert (late.hits, bench.sent(SWAP, since), bench.rows("late")) == (1, 1, [20, 10])

    # The triggerer looks, and what it sees is in the task's log.
    wait_until(lambda: "s1/r1 finished, s1/r2 in progress" in bench.log(DAG_ID, run_id, PUBLISH), timeout=60)
    bench.airflow.restart("triggerer")
    assert bench.airflow.task_instance(DAG_ID, run_id, PUBLISH).state == "deferred"
    late.release()
    bench.wait(DAG_ID, run_id)

    published = bench.receipt(DAG_ID, run_id, PUBLISH)
    assert (published["statement"], published["state"], published["replayed"]) == (
        "EXCHANGE",
        "COMMITTED",
        False,
    )
    assert [replica["content_match"] for replica in published["replicas"]] == [True, True]
    assert bench.rows("late") == [20, 20]
    assert (bench.sent(SWAP, since), bench.sent(DROP, since)) == (1, 1)
    assert bench.tries(DAG_ID, run_id, PUBLISH) == 1
    assert [event["extra"]["operation_id"] for event in bench.asset_events(DAG_ID, run_id)] == [
        published["operation_id"]
    ]
    assert "Woken: outcome." in bench.log(DAG_ID, run_id, PUBLISH)


@pytest.mark.skipif(VERSION < (3, 3), reason="earlier releases of Airflow don't tell a trigger")
def test_a_waiting_task_that_a_user_ends_says_that_the_swap_goes_on(bench: Bench) -> None:
    bench.run(DAG_ID, rows=10)
    since = bench.cluster.last_statement()
    late = bench.cluster.hold_execution(2, "EXCHANGE")
    run_id = f"{DAG_ID}-{uuid4().hex[:8]}"
    bench.airflow.trigger(DAG_ID, run_id, {"database": bench.database, "rows": 20})
    bench.airflow.wait_task(DAG_ID, run_id, PUBLISH, ["deferred"], DEFERRED_WITHIN)
    wait_until(lambda: "s1/r2 in progress" in bench.log(DAG_ID, run_id, PUBLISH), timeout=60)
    assert LAST_WORDS not in bench.log(DAG_ID, run_id, PUBLISH)
    bench.airflow.set_task_state(DAG_ID, run_id, PUBLISH, "failed")
    wait_until(lambda: LAST_WORDS in bench.log(DAG_ID, run_id, PUBLISH), timeout=60)

    # What it says is true: the replica that was late has swapped, and clearing the task finds that out.
    late.release()
    wait_until(lambda: bench.rows("late") == [20, 20], timeout=60)
    bench.airflow.clear(DAG_ID, run_id, [PUBLISH, CLEANUP])
    bench.wait(DAG_ID, run_id)
    assert bench.receipt(DAG_ID, run_id, PUBLISH)["state"] == "COMMITTED"
    assert bench.sent(SWAP, since) == 1
