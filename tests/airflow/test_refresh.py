"""Refreshes on a real scheduler and a real cluster: identity over retries and clears, and what really was sent."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.airflow.bench import DROP, LOAD, RUN_SECONDS, SWAP, Bench
from tests.cluster import APP_PASSWORD
from tests.postgres import LocalPostgres

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]


def csv(folder: Path, rows: int) -> str:
    file = folder / f"{rows}.csv"
    file.write_text("name,id\n" + "".join(f"name {n},{n}\n" for n in range(rows)))
    return str(file)


def test_two_refreshes_from_dicts_and_templates(bench: Bench, tmp_path: Path) -> None:
    dag_id = "refresh_from_file"
    since = bench.cluster.last_statement()
    first = bench.run(dag_id, file=csv(tmp_path, 10))
    staged = bench.receipt(dag_id, first, "orders.stage")
    published = bench.receipt(dag_id, first, "orders.publish")
    assert (staged["rows"], staged["live_rows"]) == (10, None)
    assert (published["statement"], published["rows"], published["replayed"]) == ("RENAME", 10, False)
    assert bench.rows("orders") == [10, 10]

    second = bench.run(dag_id, file=csv(tmp_path, 30))
    published = bench.receipt(dag_id, second, "orders.publish")
    assert (published["statement"], published["state"]) == ("EXCHANGE", "COMMITTED")
    assert [replica["content_match"] for replica in published["replicas"]] == [True, True]
    assert bench.receipt(dag_id, second, "orders.cleanup")["state"] == "COMPLETED"
    assert bench.rows("orders") == [30, 30]
    assert bench.tables() == {"orders"}
    assert (bench.sent(LOAD, since), bench.sent(SWAP, since)) == (2, 2)

    log = bench.log(dag_id, second, "orders.stage")
    for line in ("30 rows loaded", "2 of 2 replicas ready", "prepared 30 rows"):
        assert line in log
    rendered = bench.airflow.task_instance(dag_id, second, "orders.stage").raw["rendered_fields"]
    assert rendered["refresh"]["database"] == bench.database
    assert rendered["refresh"]["table"] == "orders"
    for secret in (APP_PASSWORD, "SELECT number"):
        assert secret not in log


def test_a_refresh_from_a_connection_that_airflow_keeps(bench: Bench, postgres: LocalPostgres) -> None:
    """The source's thread asks the task's supervisor for the connection; nothing else knows it."""
    dag_id = "refresh_from_postgres"
    shop = {
        "conn_type": "postgres",
        "host": "127.0.0.1",
        "port": postgres.port,
        "login": "postgres",
        "schema": "postgres",
    }
    bench.airflow.add_connection("shop", shop)
    run_id = bench.run(dag_id, rows=4321)
    assert bench.receipt(dag_id, run_id, "orders.stage")["rows"] == 4321
    assert bench.rows("orders") == [4321, 4321]
    log = bench.log(dag_id, run_id, "orders.stage")
    assert "COPY stream is passed on" in log
    assert "generate_series" not in log


def test_a_check_on_the_candidate_and_no_word_about_the_stage_task(bench: Bench) -> None:
    dag_id = "refresh_checked"
    run_id = bench.run(dag_id, rows=1234)
    assert bench.airflow.xcom(dag_id, run_id, "check") == 1234
    assert bench.receipt(dag_id, run_id, "publish")["rows"] == 1234
    assert bench.rows("checked") == [1234, 1234]


def test_clearing_stage_is_a_new_operation_and_clearing_publish_is_not(bench: Bench) -> None:
    dag_id = "refresh_checked"
    run_id = bench.run(dag_id)
    first = bench.receipt(dag_id, run_id, "publish")

    since = bench.cluster.last_statement()
    bench.airflow.clear(dag_id, run_id, ["publish"])
    bench.wait(dag_id, run_id)
    again = bench.receipt(dag_id, run_id, "publish")
    assert (again["operation_id"], again["replayed"]) == (first["operation_id"], True)
    assert (bench.sent(LOAD, since), bench.sent(SWAP, since), bench.sent(DROP, since)) == (0, 0, 0)

    bench.airflow.clear(dag_id, run_id, ["stage"], downstream=True)
    bench.wait(dag_id, run_id)
    anew = bench.receipt(dag_id, run_id, "publish")
    assert anew["operation_id"] != first["operation_id"]
    assert (anew["statement"], anew["replayed"]) == ("EXCHANGE", False)
    assert (bench.sent(LOAD, since), bench.sent(SWAP, since)) == (1, 1)


def test_a_retry_of_publish_resumes_and_neither_extracts_nor_publishes_again(bench: Bench) -> None:
    dag_id = "refresh_checked"
    since = bench.cluster.last_statement()
    # The control record moves to DISPATCHING, and the word of it gets lost: no permission to send anything.
    lost = bench.cluster.drop_response(None, r"^\s*ALTER TABLE.*DISPATCHING")
    run_id = bench.run(dag_id)
    assert lost.hits == 1
    assert bench.tries(dag_id, run_id, "publish") == 2
    first_try = bench.airflow.task_log(dag_id, run_id, "publish", 1)
    assert "CAS_OUTCOME_UNKNOWN" in first_try
    receipt = bench.receipt(dag_id, run_id, "publish")
    assert receipt["operation_id"] == bench.receipt(dag_id, run_id, "stage")["operation_id"]
    assert (receipt["epoch"], receipt["replayed"]) == (2, False)
    assert (bench.sent(LOAD, since), bench.sent(SWAP, since)) == (1, 1)
    assert bench.rows("checked") == [1000, 1000]


def test_a_lost_reply_to_the_swap_is_no_failure_at_all(bench: Bench) -> None:
    dag_id = "refresh_checked"
    since = bench.cluster.last_statement()
    lost = bench.cluster.drop_response(None, SWAP, after="enqueue")
    run_id = bench.run(dag_id)
    assert lost.hits == 1
    assert bench.tries(dag_id, run_id, "publish") == 1
    assert bench.sent(SWAP, since) == 1
    assert bench.receipt(dag_id, run_id, "publish")["replayed"] is False


def test_a_retry_of_stage_takes_over_what_was_staged(bench: Bench) -> None:
    dag_id = "refresh_first_try_lost"
    since = bench.cluster.last_statement()
    run_id = bench.run(dag_id)
    assert bench.tries(dag_id, run_id, "stage") == 2
    assert bench.receipt(dag_id, run_id, "stage")["resumed"] is True
    assert (bench.sent(LOAD, since), bench.sent(SWAP, since)) == (1, 1)
    assert bench.rows("lost") == [1000, 1000]


def test_each_mapped_task_is_an_operation_of_its_own(bench: Bench) -> None:
    dag_id = "refresh_mapped"
    run_id = bench.run(dag_id, rows=5)
    published = [bench.receipt(dag_id, run_id, "publish", index) for index in range(2)]
    assert [receipt["table"] for receipt in published] == ["first", "second"]
    assert [receipt["owner"]["map_index"] for receipt in published] == [0, 1]
    assert published[0]["operation_id"] != published[1]["operation_id"]
    assert bench.rows("first") == bench.rows("second") == [5, 5]


def test_what_a_guard_refuses_is_not_tried_again(bench: Bench) -> None:
    dag_id = "refresh_too_small"
    since = bench.cluster.last_statement()
    run_id = bench.run(dag_id, expect="failed")
    assert bench.tries(dag_id, run_id, "small.stage") == 1
    assert bench.tries(dag_id, run_id, "small.publish") == 1
    assert bench.airflow.task_instance(dag_id, run_id, "small.cleanup").state == "upstream_failed"
    assert "GUARD_MIN_ROWS" in bench.log(dag_id, run_id, "small.publish")
    assert bench.sent(SWAP, since) == 0
    assert "small" not in bench.tables()


def test_a_kept_table_is_waited_for_without_a_worker(bench: Bench) -> None:
    dag_id = "refresh_kept"
    bench.run(dag_id, rows=1)
    run_id = f"{dag_id}-{uuid4().hex[:8]}"
    bench.airflow.trigger(dag_id, run_id, {"database": bench.database, "rows": 2})
    bench.airflow.wait_task(dag_id, run_id, "kept.cleanup", ["up_for_reschedule"], RUN_SECONDS)
    published = bench.receipt(dag_id, run_id, "kept.publish")
    # Live, with the old table still there, and the target free for others.
    assert bench.rows("kept") == [2, 2]
    assert len(bench.tables()) == 2
    bench.wait(dag_id, run_id)
    cleaned = bench.receipt(dag_id, run_id, "kept.cleanup")
    assert (cleaned["operation_id"], cleaned["state"]) == (published["operation_id"], "COMPLETED")
    assert bench.tables() == {"kept"}
    assert bench.tries(dag_id, run_id, "kept.cleanup") == 1
