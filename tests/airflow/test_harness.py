"""The harness itself: what the other tests against a real Airflow rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.lib.processes import session_members
from tests.airflow.harness import AirflowApiError, AirflowStartError, LocalAirflow

pytestmark = pytest.mark.airflow

RETRY_AND_MAP = "probe_retry_and_map"


@pytest.fixture(scope="module")
def finished_run(airflow_env: LocalAirflow) -> str:
    """A run of the probe DAG that has ended; its tests clear it, so they run in the order of this file."""
    run_id = airflow_env.trigger(RETRY_AND_MAP, "probe-1", conf={"key": "value"})
    assert run_id == "probe-1"
    assert airflow_env.wait_run(RETRY_AND_MAP, run_id) == "success"
    return run_id


def tries(airflow: LocalAirflow, run_id: str) -> dict[tuple[str, int], int]:
    """The number of the latest try of each task instance."""
    tasks = airflow.task_instances(RETRY_AND_MAP, run_id)
    return {(task.task_id, task.map_index): task.try_number for task in tasks}


def test_automatic_retry(airflow_env: LocalAirflow, finished_run: str) -> None:
    assert airflow_env.task_instance(RETRY_AND_MAP, finished_run, "flaky").state == "success"
    assert airflow_env.xcom(RETRY_AND_MAP, finished_run, "flaky") == 2
    failure = "the first try fails on purpose"
    assert failure in airflow_env.task_log(RETRY_AND_MAP, finished_run, "flaky", try_number=1)
    assert failure not in airflow_env.task_log(RETRY_AND_MAP, finished_run, "flaky", try_number=2)


def test_mapped_task(airflow_env: LocalAirflow, finished_run: str) -> None:
    values = [airflow_env.xcom(RETRY_AND_MAP, finished_run, "twice", map_index=index) for index in range(3)]
    assert values == [2, 4, 6]


def test_clear_one_mapped_instance(airflow_env: LocalAirflow, finished_run: str) -> None:
    before = airflow_env.task_instance(RETRY_AND_MAP, finished_run, "twice", map_index=1)
    airflow_env.clear(RETRY_AND_MAP, finished_run, [("twice", 1)])
    assert airflow_env.wait_run(RETRY_AND_MAP, finished_run) == "success"
    after = airflow_env.task_instance(RETRY_AND_MAP, finished_run, "twice", map_index=1)
    assert after.id != before.id
    assert tries(airflow_env, finished_run) == {
        ("flaky", -1): 2,
        ("twice", 0): 1,
        ("twice", 1): 2,
        ("twice", 2): 1,
    }


def test_clear_with_downstream(airflow_env: LocalAirflow, finished_run: str) -> None:
    before = airflow_env.task_instance(RETRY_AND_MAP, finished_run, "flaky")
    airflow_env.clear(RETRY_AND_MAP, finished_run, ["flaky"], downstream=True)
    assert airflow_env.wait_run(RETRY_AND_MAP, finished_run) == "success"
    after = airflow_env.task_instance(RETRY_AND_MAP, finished_run, "flaky")
    assert (before.try_number, after.try_number) == (2, 3)
    assert after.max_tries > before.max_tries
    assert tries(airflow_env, finished_run)[("twice", 0)] == 2


def test_deferral_survives_a_restart_of_the_triggerer(airflow_env: LocalAirflow) -> None:
    run_id = airflow_env.trigger("probe_deferral")
    airflow_env.wait_task("probe_deferral", run_id, "sleeper", ["deferred"])
    airflow_env.restart("triggerer")
    assert airflow_env.wait_run("probe_deferral", run_id) == "success"
    assert airflow_env.xcom("probe_deferral", run_id, "sleeper") == 1


def test_killed_task_is_tried_again(airflow_env: LocalAirflow) -> None:
    run_id = airflow_env.trigger("probe_wait")
    running = airflow_env.wait_task("probe_wait", run_id, "waiter", ["running"])
    airflow_env.kill_task("probe_wait", run_id, "waiter", process="task")
    assert airflow_env.wait_run("probe_wait", run_id) == "success"
    assert airflow_env.xcom("probe_wait", run_id, "waiter") == "second try"
    assert airflow_env.task_instance("probe_wait", run_id, "waiter").id != running.id
    with pytest.raises(AssertionError, match="does not run"):
        airflow_env.kill_task("probe_wait", run_id, "waiter")


def test_mark_failed_while_running(airflow_env: LocalAirflow) -> None:
    run_id = airflow_env.trigger("probe_wait")
    airflow_env.wait_task("probe_wait", run_id, "waiter", ["running"])
    airflow_env.set_task_state("probe_wait", run_id, "waiter", "failed")
    assert airflow_env.wait_run("probe_wait", run_id) == "failed"


DAG_SOURCE = """
from airflow.sdk import BaseHook, dag, task

@dag(schedule=None)
def probe_added():
    @task
    def connection():
        found = BaseHook.get_connection("probe")
        return [found.host, found.port, found.extra_dejson, ANSWER]
    connection()

probe_added()
"""


def test_added_dag_and_connection(airflow_env: LocalAirflow) -> None:
    with pytest.raises(AssertionError, match="ANSWER"):
        airflow_env.add_dag("probe_added", DAG_SOURCE + "print(ANSWER)\n")
    airflow_env.add_connection("probe", {"conn_type": "http", "host": "wrong"})
    connection = {"conn_type": "http", "host": "127.0.0.1", "port": 8123, "extra": {"secure": False}}
    airflow_env.add_connection("probe", connection)
    for answer in (41, 42):
        airflow_env.add_dag("probe_added", f"ANSWER = {answer}\n{DAG_SOURCE}")
        run_id = airflow_env.trigger("probe_added")
        assert airflow_env.wait_run("probe_added", run_id) == "success"
        found = airflow_env.xcom("probe_added", run_id, "connection")
        assert found == ["127.0.0.1", 8123, {"secure": False}, answer]


def test_refused_request(airflow_env: LocalAirflow) -> None:
    with pytest.raises(AirflowApiError, match="HTTP 404") as caught:
        airflow_env.api("GET", "/dags/no_such_dag")
    assert caught.value.status == 404


def test_command_line(airflow_env: LocalAirflow) -> None:
    done = airflow_env.cli("config", "get-value", "core", "executor")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "LocalExecutor")


def test_failed_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    airflow = LocalAirflow(tmp_path, config={"core": {"executor": "no.such.Executor"}})
    with pytest.raises(AirflowStartError, match=r"no\.such\.Executor"):
        airflow.start_all()
    assert not airflow.home.exists()
    assert airflow.sessions
    assert not [process for session in airflow.sessions for process in session_members(session)]
