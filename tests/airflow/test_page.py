"""The page in a real api-server: mounted by Airflow, behind its security, over evidence and a cluster that are real."""

from __future__ import annotations

import re
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.airflow.bench import CONN_ID, Bench
from tests.cluster import APP_PASSWORD, APP_USER
from tests.cluster.client import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

DEFERRED = "refresh_deferred"


def tab(dag_id: str, run_id: str, task_id: str, map_index: int | str = "{MAP_INDEX}") -> str:
    return f"/dpone/dags/{dag_id}/runs/{quote(run_id, safe='')}/tasks/{task_id}/{quote(str(map_index))}"


def shown(bench: Bench, path: str) -> str:
    status, headers, text = bench.airflow.page(path, bench.airflow.token("viewer"))
    assert status == 200, text
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert_no_secrets(bench, text)
    return text


def assert_no_secrets(bench: Bench, text: str) -> None:
    for host, port in bench.cluster.endpoints:
        assert f"{host}:{port}" not in text
    for secret in (APP_PASSWORD, APP_USER, "SELECT number"):
        assert secret not in text


def test_airflow_knows_the_plugin(bench: Bench) -> None:
    (plugin,) = [one for one in bench.airflow.api("GET", "/plugins")["plugins"] if one["name"] == "dpone"]
    assert [view["destination"] for view in plugin["external_views"]] == ["task_instance", "nav"]
    assert [app["url_prefix"] for app in plugin["fastapi_apps"]] == ["/dpone"]
    assert bench.airflow.api("GET", "/plugins/importErrors")["import_errors"] == []


def test_a_publication_is_watched_from_its_deferral_to_its_proof(bench: Bench) -> None:
    bench.run(DEFERRED, rows=10)
    late = bench.cluster.hold_execution(2, "EXCHANGE")
    run_id = f"{DEFERRED}-{uuid4().hex[:8]}"
    bench.airflow.trigger(DEFERRED, run_id, {"database": bench.database, "rows": 20})
    bench.airflow.wait_task(DEFERRED, run_id, "late.publish", ["deferred"], 90.0)
    path = tab(DEFERRED, run_id, "late.publish")

    wait_until(lambda: '<p class="facts live">' in shown(bench, path), timeout=60)
    text = shown(bench, path)
    assert f"{bench.database}.late" in text
    assert f"airflow dpone explain --conn-id {CONN_ID}" in text
    words = re.sub(r"<[^>]+>|\s+", " ", text)
    assert "Live" in words
    assert re.search(r"In progress +" + bench.database, words)
    assert "the new data is live on s1/r1; s1/r2 will follow" in words
    assert "<main data-refresh" in text
    assert "1 not proven yet" in shown(bench, "/dpone/")

    late.release()
    bench.wait(DEFERRED, run_id)
    for task_id in ("late.stage", "late.publish", "late.cleanup"):
        text = shown(bench, tab(DEFERRED, run_id, task_id))
        assert text.count("</svg>new data is live") == 2
        assert "<span>Published</span>" in text
        assert "<main data-refresh" not in text
    listed = shown(bench, f"/dpone/?target={bench.database}.late")
    assert len(set(re.findall(r"operations/(\w+)/", listed))) == 2

    path = f"/dags/{DEFERRED}/dagRuns/{run_id}/taskInstances/late.publish/links"
    links = bench.airflow.api("GET", path)["extra_links"]
    assert links == {"Publication receipt": f"dags/{DEFERRED}/runs/{run_id}/tasks/late.publish/plugin/dpone"}


def test_mapped_tasks_and_other_tasks(bench: Bench) -> None:
    run_id = bench.run("refresh_mapped", rows=5)
    for index, table in enumerate(("first", "second")):
        for task_id in ("stage", "publish"):
            text = shown(bench, tab("refresh_mapped", run_id, task_id, index))
            assert f"<h1>{bench.database}.{table}</h1>" in text
    assert "all is well" in shown(bench, tab("refresh_many", "no-run", "tables_of_the_run"))


def test_clearing_stage_shows_the_new_operation_and_links_the_old(bench: Bench) -> None:
    dag_id = "refresh_checked"
    run_id = bench.run(dag_id)
    first = bench.receipt(dag_id, run_id, "publish")["operation_id"]
    bench.airflow.clear(dag_id, run_id, ["stage"], downstream=True)
    bench.wait(dag_id, run_id)
    second = bench.receipt(dag_id, run_id, "publish")["operation_id"]
    for task_id in ("stage", "publish"):
        text = shown(bench, tab(dag_id, run_id, task_id))
        assert f"operation <code>{second[:16]}</code>" in text
        assert f"operations/{first}/analytics" in text
    assert f"operation <code>{first[:16]}</code>" in shown(
        bench, f"/dpone/dags/{dag_id}/operations/{first}/analytics"
    )


def test_whoever_may_not_read_a_dag_sees_nothing_of_it(bench: Bench) -> None:
    dag_id = "refresh_checked"
    run_id = bench.run(dag_id)
    operation = bench.receipt(dag_id, run_id, "publish")["operation_id"]
    viewer, admin = bench.airflow.token("viewer"), bench.airflow.token("admin")
    own = f"/dpone/dags/{dag_id}/operations/{operation}/analytics"

    for path in (own, tab(dag_id, run_id, "publish"), "/dpone/"):
        assert bench.airflow.page(path)[0] == 401
        assert bench.airflow.page(path, "no.token.this")[0] in (401, 403)
        assert bench.airflow.page(path, viewer)[0] == 200
    for path in (own, tab(dag_id, run_id, "publish")):
        other = path.replace(dag_id, "refresh_mapped")
        assert bench.database not in bench.airflow.page(other, viewer)[2]
        secret = path.replace(dag_id, "secret_dag")
        assert bench.airflow.page(secret, viewer)[0] == 403
        assert bench.airflow.page(secret, admin)[0] in (200, 404)
    assert bench.airflow.page(own.replace(dag_id, "refresh_mapped"), admin)[0] == 404
