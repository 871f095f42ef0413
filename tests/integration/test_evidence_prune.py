"""Pruning the evidence against what a real cluster holds."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.exceptions import AirflowException

from airflow_provider_dpone import ClusterRefresh, MiB, SqlSource, TableStructure, composition
from airflow_provider_dpone.cli import evidence as cli
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.evidence import prune as pruning
from airflow_provider_dpone.evidence.prune import PruneResult
from airflow_provider_dpone.evidence.reader import EvidenceReader
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator
from airflow_provider_dpone.publication.trail import CandidateIntent
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.integration.task_site import CONN_ID, connect, context
from tests.unit.test_evidence_reader import arguments

pytestmark = pytest.mark.cluster

ROWS = SqlSource("SELECT number AS id FROM numbers(5)")
FAILS = SqlSource("SELECT number AS id FROM numbers(5) WHERE throwIf(number = 3)")


class Site:
    """A refreshed table, and its evidence."""

    def __init__(self, cluster: LocalCluster, database: str, folder: Path) -> None:
        self.cluster = cluster
        self.refresh = ClusterRefresh(
            CONN_ID,
            CLUSTER_NAME,
            database,
            "orders",
            max_source_bytes=MiB,
            structure=TableStructure(columns={"id": "UInt64"}, order_by="id"),
        )
        self.reader = EvidenceReader(ObjectStoragePath((folder / "evidence").as_uri()), CLUSTER_NAME)

    def stage(self, run: str, source: SqlSource = ROWS) -> Any:
        return StageOperator(task_id="stage", refresh=self.refresh, source=source).execute(context(run))

    def run(self, run: str) -> str:
        """Refresh the table; return the operation."""
        staged = self.stage(run)
        for operator in (PublishOperator, CleanupOperator):
            task = operator(task_id="task", refresh=self.refresh, staged=staged)
            task.execute(context(run, task_id="task"))
        return str(staged["operation_id"])

    def fail(self, run: str) -> str:
        """Fail while staging; return the operation."""
        before = set(self.reader.operation_ids())
        with pytest.raises(AirflowException, match="STAGING_FAILED"):
            self.stage(run, FAILS)
        (operation,) = set(self.reader.operation_ids()) - before
        return operation

    def prune(self) -> PruneResult:
        with composition.server(CONN_ID) as server:
            return composition.prune_evidence(
                server, CLUSTER_NAME, older_than=timedelta(0), dry_run=False, about={"operator": "ann"}
            )

    def candidate(self, operation: str) -> str:
        (body,) = [
            e.body for e in self.reader.trail(operation).entries if isinstance(e.body, CandidateIntent)
        ]
        return body.table


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, database: str, tmp_path: Path) -> Site:
    connect(monkeypatch, cluster, tmp_path)
    initialise(DponeClickHouseHook(CONN_ID).get_conn(), CLUSTER_NAME)
    return Site(cluster, database, tmp_path)


def test_only_what_ended_and_nothing_needs_is_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = site.run("run-1"), site.run("run-2")
    failed, left = site.fail("run-3"), site.fail("run-4")
    last = site.run("run-5")
    capsys.readouterr()
    more = {"conn_id": CONN_ID, "cluster": CLUSTER_NAME, "dry_run": False}
    cli.prune(arguments("json", older_than="1d", **more))
    assert json.loads(capsys.readouterr().out) == {
        "cluster": CLUSTER_NAME,
        "dry_run": False,
        "deleted": [],
        "kept": {"it is too young": 5},
    }

    monkeypatch.setattr(pruning, "SHORTEST_AGE", timedelta(0))
    # A candidate that was left behind on one replica, for whatever reason.
    table = f"{site.refresh.database}.{site.candidate(left)}"
    site.cluster.execute(f"CREATE TABLE {table} (id UInt64) ENGINE = MergeTree ORDER BY id", node=2)
    done = site.prune()
    assert set(done.deleted) == {first, second, failed}
    assert done.kept == {"a table of it still exists": 1, "it is the last operation of its target": 1}
    assert set(site.reader.operation_ids()) == {left, last}
    assert [one.operation_id for one in site.reader.operations(limit=10)] == [last, left]

    site.cluster.execute(f"DROP TABLE {table} SYNC", node=2)
    assert site.prune().deleted == (left,)
    # The table goes on as if nothing had been.
    assert site.run("run-6") in site.reader.operation_ids()
    assert set(site.prune().deleted) == {last}


def test_a_replica_that_is_away_keeps_everything(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run("run-1")
    site.run("run-2")
    monkeypatch.setattr(pruning, "SHORTEST_AGE", timedelta(0))
    site.cluster.stop_node(2)
    try:
        assert site.prune().deleted == ()
    finally:
        site.cluster.start_node(2)
        site.cluster.heal()
    assert len(site.prune().deleted) == 1
