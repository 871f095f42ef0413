"""Six situations in which somebody opens the tab of a task: what was run, and where its receipt is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote
from uuid import uuid4

from tests.airflow.bench import RUN_SECONDS, Bench

DAG_ID: Final = "refresh_deferred"
"""Its publish task waits in the triggerer. Tasks: ``late.stage``, ``late.publish`` and ``late.cleanup``."""

PUBLISH: Final = "late.publish"
ON_CLUSTER_SWAP: Final = "EXCHANGE"


@dataclass(frozen=True)
class Situation:
    """A task instance.

    :ivar go_on: ends what holds it up; nothing to end by default.
    """

    dag_id: str
    run_id: str
    task_id: str
    go_on: Callable[[], None] = lambda: None

    @property
    def receipt(self) -> str:
        """Where the page itself is, as Airflow's own page asks for it."""
        run = quote(self.run_id, safe="")
        return f"/dpone/dags/{self.dag_id}/runs/{run}/tasks/{self.task_id}/%7BMAP_INDEX%7D"

    @property
    def task_page(self) -> str:
        """The task instance's page in Airflow."""
        return f"/dags/{self.dag_id}/runs/{quote(self.run_id, safe='')}/tasks/{self.task_id}"


def start(bench: Bench, rows: int) -> str:
    """Begin a run."""
    run_id = f"{DAG_ID}-{uuid4().hex[:8]}"
    bench.airflow.trigger(DAG_ID, run_id, {"database": bench.database, "rows": rows})
    return run_id


def committed(bench: Bench) -> Situation:
    """The new data is live everywhere, and the old table is gone."""
    bench.run(DAG_ID, rows=1000)
    return Situation(DAG_ID, bench.run(DAG_ID, rows=1200), PUBLISH)


def waiting(bench: Bench) -> Situation:
    """One replica has not begun, and the task waits for it in the triggerer."""
    bench.run(DAG_ID, rows=1000)
    late = bench.cluster.hold_execution(2, ON_CLUSTER_SWAP)
    run_id = start(bench, 1200)
    bench.airflow.wait_task(DAG_ID, run_id, PUBLISH, ["deferred"], RUN_SECONDS)
    return Situation(DAG_ID, run_id, PUBLISH, late.release)


def partial(bench: Bench) -> Situation:
    """One replica refused the swap for ever."""
    bench.run(DAG_ID, rows=1000)
    bench.cluster.fail_execution(2, ON_CLUSTER_SWAP)
    return Situation(DAG_ID, bench.run(DAG_ID, expect="failed", rows=1200), PUBLISH)


def unknown(bench: Bench) -> Situation:
    """One replica is down since the swap was sent."""
    waits = waiting(bench)
    bench.cluster.kill_node(2)
    return waits


def cleanup_pending(bench: Bench) -> Situation:
    """Everything is live, and one replica can't drop the old table."""
    bench.run(DAG_ID, rows=1000)
    bench.cluster.fail_execution(2, r"^\s*DROP TABLE", count=1000)
    run_id = start(bench, 1200)
    bench.airflow.wait_task(DAG_ID, run_id, PUBLISH, ["success"], RUN_SECONDS)
    states = ("up_for_retry", "up_for_reschedule", "failed", "success")
    bench.airflow.wait_task(DAG_ID, run_id, "late.cleanup", states, RUN_SECONDS)
    return Situation(DAG_ID, run_id, "late.cleanup")


def not_ours(bench: Bench) -> Situation:
    """A task of another kind."""
    run_id = f"somebody-{uuid4().hex[:8]}"
    bench.airflow.add_dag("somebody_elses", SOMEBODY_ELSES)
    bench.airflow.trigger("somebody_elses", run_id)
    bench.wait("somebody_elses", run_id)
    return Situation("somebody_elses", run_id, "hello")


SOMEBODY_ELSES: Final = """
from airflow.sdk import DAG, task

with DAG("somebody_elses", schedule=None):

    @task
    def hello():
        return "hello"

    hello()
"""

SITUATIONS: Final[Mapping[str, Callable[[Bench], Situation]]] = {
    "committed": committed,
    "waiting": waiting,
    "partial": partial,
    "unknown": unknown,
    "cleanup-pending": cleanup_pending,
    "not-ours": not_ours,
}
