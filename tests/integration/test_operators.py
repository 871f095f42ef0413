"""The operators on a real cluster, without a scheduler: evidence, log and what must never be in them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_dpone import ClusterRefresh, FileSource, MiB, SqlSource, TableStructure
from airflow_provider_dpone.clickhouse import catalog
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator
from airflow_provider_dpone.operators.base import RefreshOperator
from tests.cluster import APP_PASSWORD, CLUSTER_NAME, LocalCluster, wait_until
from tests.integration.task_site import CONN_ID, connect, context

pytestmark = pytest.mark.cluster

SECRET_IN_SQL = "c0nfidential"
SECRET_IN_ROWS = "s3cret-row"
ROWS = SqlSource(
    f"SELECT number AS id, '{SECRET_IN_ROWS}' AS name FROM numbers(5) WHERE name != '{SECRET_IN_SQL}'"
)


class Site:
    """A database, an evidence folder, and what the operators logged."""

    def __init__(self, cluster: LocalCluster, database: str, folder: Path) -> None:
        self.cluster = cluster
        self.database = database
        self.folder = folder
        self.lines: list[str] = []

    def refresh(self, **changes: Any) -> ClusterRefresh:
        arguments: dict[str, Any] = {
            "max_source_bytes": MiB,
            "structure": TableStructure(columns={"id": "UInt64", "name": "String"}, order_by="id"),
        }
        return ClusterRefresh(CONN_ID, CLUSTER_NAME, self.database, "orders", **(arguments | changes))

    def stage(self, run_id: str = "run-1", source: Any = ROWS, max_tries: int = 0, **arguments: Any) -> Any:
        operator = StageOperator(task_id="stage", refresh=self.refresh(), source=source, **arguments)
        return operator.execute(context(run_id, max_tries=max_tries))

    def publish(self, staged: Any, run_id: str = "run-1", **arguments: Any) -> Any:
        operator = PublishOperator(task_id="publish", refresh=self.refresh(), staged=staged, **arguments)
        return operator.execute(context(run_id, task_id="publish"))

    def cleanup(self, staged: Any, run_id: str = "run-1") -> Any:
        operator = CleanupOperator(task_id="cleanup", refresh=self.refresh(), staged=staged)
        return operator.execute(context(run_id, task_id="cleanup"))

    def evidence(self, kind: str = "") -> list[dict[str, Any]]:
        entries = [json.loads(path.read_text()) for path in sorted(self.folder.rglob("*.json"))]
        # The list of operations has no kinds.
        return [entry for entry in entries if kind in ("", entry.get("kind")) and "kind" in entry]

    def count(self) -> list[int]:
        sql = f"SELECT count() FROM {self.database}.orders"
        return [self.cluster.scalar(sql, node=node) for node in self.cluster.nodes]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, database: str, tmp_path: Path) -> Site:
    connect(monkeypatch, cluster, tmp_path)
    initialise(DponeClickHouseHook(CONN_ID).get_conn(), CLUSTER_NAME)
    found = Site(cluster, database, tmp_path / "evidence")
    monkeypatch.setattr(RefreshOperator, "_say", lambda _, message: found.lines.append(message))
    return found


def test_a_refresh_leaves_its_trail_and_gives_nothing_away(site: Site) -> None:
    staged = site.stage()
    published = site.publish(staged)
    cleaned = site.cleanup(staged)
    assert site.count() == [5, 5]
    assert (published["state"], cleaned["state"]) == ("COMMITTED", "COMPLETED")

    (intent,) = site.evidence("intent")
    assert intent["body"]["uuid"] == staged["candidate_uuid"]
    assert intent["about"] == {
        "dag_id": "orders",
        "run_id": "run-1",
        "task_id": "stage",
        "map_index": -1,
        "try_number": 1,
        "conn_id": CONN_ID,
    }
    phases = [entry["body"]["phase"] for entry in site.evidence("compare-and-swap")]
    assert {"PREPARED", "DISPATCHING", "COMMITTED", "COMPLETED"} <= set(phases)
    assert {entry["operation_id"] for entry in site.evidence()} == {staged["operation_id"]}
    assert site.evidence("permit-unused") == []

    everything = json.dumps([staged, published, cleaned, site.evidence(), site.lines])
    for secret in (APP_PASSWORD, SECRET_IN_SQL, SECRET_IN_ROWS, "127.0.0.1", "SELECT number"):
        assert secret not in everything
    for line in ("5 rows loaded", "2 of 2 replicas ready", "committed on s1/r1, s1/r2"):
        assert any(line in said for said in site.lines)


def test_a_try_that_sent_nothing_says_so_and_the_next_one_goes_on(site: Site) -> None:
    staged = site.stage()
    site.cluster.drop_response(None, r"^\s*ALTER TABLE.*DISPATCHING")
    with pytest.raises(AirflowException, match="CAS_OUTCOME_UNKNOWN") as caught:
        site.publish(staged)
    assert not isinstance(caught.value, AirflowFailException)
    (unused,) = site.evidence("permit-unused")
    assert unused["body"]["epoch"] == 1
    assert site.publish(staged)["epoch"] == 2
    assert site.count() == [5, 5]


def test_another_run_is_kept_out_until_the_target_is_free(site: Site) -> None:
    staged = site.stage()
    for node in site.cluster.nodes:
        site.cluster.pause_worker(node)
    with pytest.raises(AirflowException, match="STILL RUNNING"):
        site.publish(staged, publish_timeout=_seconds(2))
    with pytest.raises(AirflowFailException, match="TARGET_BUSY"):
        _of_another_dag(site).execute(_another_context())

    with pytest.raises(AirflowFailException, match="TARGET_BUSY"):
        _of_another_dag(site, on_busy="wait", busy_timeout=_seconds(2)).execute(_another_context())

    site.lines.clear()
    waiting = _of_another_dag(site, on_busy="wait", busy_timeout=_seconds(60))
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(waiting.execute, _another_context())
        try:
            wait_until(lambda: any(line.startswith("Waiting.") for line in site.lines), timeout=30)
        finally:
            for node in site.cluster.nodes:
                site.cluster.resume_worker(node)
        assert site.publish(staged)["operation_id"] == staged["operation_id"]
        assert answer.result()["live_rows"] == 5


def _of_another_dag(site: Site, **arguments: Any) -> StageOperator:
    return StageOperator(task_id="other", refresh=site.refresh(), source=ROWS, **arguments)


def _another_context() -> Any:
    return context("run-2", task_id="other")


def _seconds(number: int) -> timedelta:
    return timedelta(seconds=number)


def test_older_data_does_not_go_over_newer(site: Site) -> None:
    site.publish(site.stage(order_key="2026-01-02"))
    with pytest.raises(AirflowFailException, match="OLDER_THAN_PUBLISHED"):
        site.stage("run-2", order_key="2026-01-01")
    assert site.stage("run-3", order_key="2026-01-01", allow_older=True)["rows"] == 5


def test_what_was_published_is_not_staged_again_under_the_same_identity(site: Site) -> None:
    site.publish(site.stage())
    with pytest.raises(AirflowFailException, match="IDENTITY_REUSED"):
        site.stage()
    operator = StageOperator(task_id="stage", refresh=site.refresh(), source=ROWS)
    again = context("run-1")
    again["dag_run"].conf = {"new_operation": True}
    assert operator.execute(again)["resumed"] is False


def test_killing_the_task_kills_its_load(site: Site) -> None:
    slow = SqlSource(
        "SELECT number AS id, toString(sleepEachRow(0.2)) AS name FROM numbers(600) SETTINGS max_block_size=1"
    )
    operator = StageOperator(task_id="stage", refresh=site.refresh(), source=slow)
    raised: list[BaseException] = []

    def execute() -> None:
        try:
            operator.execute(context())
        except AirflowException as error:
            raised.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    running = "SELECT count() FROM system.processes WHERE query_id LIKE 'dpone-load-%'"
    wait_until(lambda: sum(site.cluster.scalar(running, node=n) for n in site.cluster.nodes) > 0, timeout=60)
    operator.on_kill()
    thread.join(60)
    assert not thread.is_alive()
    assert "STAGING_FAILED" in str(raised[0])
    assert sum(site.cluster.scalar(running, node=node) for node in site.cluster.nodes) == 0
    tables = f"SELECT count() FROM system.tables WHERE database = '{site.database}'"
    wait_until(lambda: sum(site.cluster.scalar(tables, node=n) for n in site.cluster.nodes) == 0, timeout=30)


def test_killing_the_task_kills_its_comparison(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the source is loaded already: it runs on every replica, and may take as long."""
    endless = "SELECT count() AS rows, sum(sleepEachRow(0.01)) AS sum1, 0 AS sum2 FROM numbers(1000000)"
    monkeypatch.setattr(
        catalog, "content_digest_select", lambda *_: f"{endless} SETTINGS max_block_size = 10"
    )
    monkeypatch.setenv("AIRFLOW__DPONE__READY_TIMEOUT", "2")
    operator = StageOperator(task_id="stage", refresh=site.refresh(), source=ROWS)
    raised: list[BaseException] = []

    def execute() -> None:
        try:
            operator.execute(context())
        except AirflowException as error:
            raised.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    running = "SELECT count() FROM system.processes WHERE initial_query_id LIKE 'dpone-read-%'"

    def everywhere() -> int:
        return sum(site.cluster.scalar(running, node=node) for node in site.cluster.nodes)

    wait_until(lambda: everywhere() >= len(site.cluster.nodes), timeout=60)
    operator.on_kill()
    wait_until(lambda: everywhere() == 0, timeout=5)
    thread.join(60)
    assert not thread.is_alive()
    assert "SERVER_ERROR" in str(raised[0])
    tables = f"SELECT count() FROM system.tables WHERE database = '{site.database}'"
    wait_until(lambda: sum(site.cluster.scalar(tables, node=n) for n in site.cluster.nodes) == 0, timeout=30)


def test_evidence_that_cannot_be_written_stops_before_anything_is_created(site: Site, tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("in the way")
    since = site.cluster.last_statement()
    with pytest.raises(AirflowException, match="EVIDENCE_UNAVAILABLE") as caught:
        site.stage()
    assert not isinstance(caught.value, AirflowFailException)
    assert site.cluster.statements(r"^\s*(CREATE|INSERT|ALTER|DROP)", since) == []


def test_a_wrong_password_is_told_without_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, tmp_path: Path
) -> None:
    connect(monkeypatch, cluster, tmp_path, password="n0t-this")
    with pytest.raises(AirflowException, match="516 AUTHENTICATION_FAILED") as caught:
        site.stage()
    assert "n0t-this" not in str(caught.value)


def test_a_file_that_is_not_there_is_a_failure_of_the_source(site: Site, tmp_path: Path) -> None:
    with pytest.raises(AirflowException, match="SOURCE_FAILED") as caught:
        site.stage(source=FileSource(str(tmp_path / "orders.csv")))
    assert str(tmp_path) not in str(caught.value)
