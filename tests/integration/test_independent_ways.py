"""What an operator sees and does where tables are independent, on real servers: to the next successful run."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone import composition
from airflow_provider_dpone.cli import commands, holds, ways
from airflow_provider_dpone.clickhouse import replica_staging
from airflow_provider_dpone.clickhouse.grants import READ_ON_FILE, Grants, required_grants
from airflow_provider_dpone.clickhouse.replica_staging import ClusterReplicaStaging
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.explanation import Explanation, Way
from airflow_provider_dpone.publication.orphans import Orphan, Why
from airflow_provider_dpone.publication.record import IndependentRecord, Phase
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes import cluster_refresh as route
from airflow_provider_dpone.routes.cluster_refresh import Ended, OperatorRequest, RolledBack
from airflow_provider_dpone.routes.ports import Target
from tests.cluster import INDEPENDENT_CLUSTER_NAME, LocalCluster
from tests.cluster.client import wait_until
from tests.integration.external_site import external_site, init
from tests.integration.independent_site import IndependentSite
from tests.integration.refresh_site import QUICK, rows_query
from tests.integration.task_site import CONN_ID, connect
from tests.integration.test_grants import PASSWORD, user
from tests.integration.test_independent_refresh import LOAD, SOURCE, SWAP

pytestmark = pytest.mark.cluster

DAY = 24 * 3600
SHORT = replace(QUICK, publish=1)


@pytest.fixture
def site(cluster: LocalCluster, tmp_path: Path) -> Iterator[IndependentSite]:
    with external_site(cluster) as found:
        yield IndependentSite(cluster, found.database, tmp_path / "evidence", (cluster.endpoints[0],))


def stopped(work: Callable[[], Any]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def explain(site: IndependentSite) -> Explanation:
    with site.worker() as (ports, _):
        return route.explain(ports.catalog, ports.queue, ports.evidence, site.site)


def abandon(site: IndependentSite) -> Ended:
    with site.worker("operator") as (ports, _):
        return route.abandon(ports, site.site, OperatorRequest("its DAG is gone"), QUICK)


def rollback(site: IndependentSite, operation: str) -> RolledBack:
    with site.worker("operator") as (ports, _):
        return route.rollback(ports, site.site, OperatorRequest("test", operation[:16]), QUICK)


def orphans(site: IndependentSite) -> tuple[Orphan, ...]:
    with site.worker() as (_, server):
        found = composition.orphans(server, INDEPENDENT_CLUSTER_NAME)
    return tuple(one for one in found if one.database == site.database)


def run(
    capsys: pytest.CaptureFixture[str],
    command: Callable[[Namespace], None],
    site: IndependentSite,
    **more: Any,
) -> tuple[int, Any]:
    """Exit status, and the JSON that was printed."""
    arguments: dict[str, Any] = {
        "conn_id": CONN_ID,
        "cluster": INDEPENDENT_CLUSTER_NAME,
        "database": site.database,
        "table": site.table,
        "output": "json",
        "operation": None,
        "reason": None,
        "drop": None,
        "forget": None,
    }
    capsys.readouterr()
    status = 0
    try:
        command(Namespace(**(arguments | more)))
    except SystemExit as end:
        status = int(str(end.code))
    return status, json.loads(capsys.readouterr().out)


def half_staged(site: IndependentSite) -> IndependentRecord:
    """A stage task that died: one replica is ready, the other one's load never arrived."""
    site.refresh(3, run="first")
    site.cluster.refuse(2, LOAD)
    assert stopped(lambda: site.stage(rows_query(9), run="second")).code
    record = site.record().record
    assert isinstance(record, IndependentRecord)
    assert record.phase is Phase.STAGING
    return record


def test_a_staging_whose_task_is_dead_is_told_replica_by_replica_and_given_up(
    site: IndependentSite,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    record = half_staged(site)
    live = site.uuids()
    told = explain(site)
    assert {alias: str(one.stage) for alias, one in told.replicas.items()} == {
        "s1/r1": "ready",
        "s1/r2": "claimed",
    }
    assert [one.target.uuid for one in told.replicas.values()] == live
    assert {one.live for one in told.replicas.values()} == {"old"}
    assert told.ways == (Way.STAGE_ON, Way.ABANDON)
    assert told.affected is False

    connect(monkeypatch, site.cluster, tmp_path)
    status, answer = run(capsys, holds.status, site)
    assert status == 2
    [mine] = [one for one in answer["targets"] if one["database"] == site.database]
    assert (mine["phase"], mine["held"]) == ("STAGING", True)
    assert mine["live"] == {"s1/r1": "staging (ready)", "s1/r2": "staging (claimed)"}
    status, answer = run(capsys, holds.explain, site)
    assert (status, answer["phase"]) == (2, "STAGING")
    assert {alias: one["stage"] for alias, one in answer["replicas"].items()} == {
        "s1/r1": "ready",
        "s1/r2": "claimed",
    }
    assert stopped(lambda: site.stage(rows_query(5), run="other", dag="another")).code is Code.TARGET_BUSY

    ended = abandon(site)
    assert (ended.operation_id, ended.phase, ended.kept) == (record.operation_id, Phase.ABORTED, None)
    assert site.tables() == {"orders"}
    assert (site.uuids(), site.counts()) == (live, [3, 3])
    after = site.record().record
    assert after.retained == ()
    assert site.refresh(5, run="other", dag="another").rows == 5
    assert site.counts() == [5, 5]


def test_a_table_of_somebody_under_the_candidates_name_is_never_dropped_and_there_is_a_way_out(
    site: IndependentSite,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    connect(monkeypatch, site.cluster, tmp_path)
    name = half_staged(site).candidate
    second = f"{site.database}.{name}"
    site.cluster.execute(f"CREATE TABLE {second} (id UInt64) ENGINE = Log", node=2)
    site.cluster.execute(f"INSERT INTO {second} VALUES (1)", node=2)
    assert abandon(site).kept == name
    (item,) = site.record().record.retained
    (left,) = explain(site).leftovers
    assert left.replicas == ("s1/r1",)
    assert "another table has its name on s1/r2" in left.why
    assert "rename it away" in left.why
    (orphan,) = orphans(site)
    assert orphan.why is Why.BESIDE
    for more in ({"drop": name}, {"forget": name}):
        status, answer = run(capsys, ways.orphans, site, reason="test", **more)
        assert (status, answer["stop"]["code"]) == (1, Code.NOT_RESOLVABLE)
        assert "rename it away" in answer["stop"]["next_action"]
    # It holds nobody up.
    assert site.refresh(4, run="meanwhile", dag="another").rows == 4
    assert item in site.record().record.retained

    site.cluster.execute(f"RENAME TABLE {second} TO {site.database}.somebodys", node=2)
    assert site.refresh(5, run="next", dag="another").rows == 5
    assert site.record().record.retained == ()
    assert site.tables() == {"orders", "somebodys"}
    assert site.cluster.scalar(f"SELECT count() FROM {site.database}.somebodys", node=2) == 1


def test_a_lock_whose_task_is_dead_is_given_up(site: IndependentSite) -> None:
    site.refresh(3, run="first")
    site.cluster.refuse(1, SOURCE)
    stopped(lambda: site.stage(rows_query(9), run="second"))
    assert site.record().record.phase is Phase.LOCKED
    told = explain(site)
    assert "The source is being read, or its stage task has died" in told.plain
    assert abandon(site).phase is Phase.ABORTED
    assert site.tables() == {"orders"}
    assert site.counts() == [3, 3]


def test_a_stage_task_that_still_runs_when_it_is_given_up_moves_nothing(site: IndependentSite) -> None:
    site.refresh(3, run="first")
    ended: list[Ended] = []
    original = IndependentSite.store

    def giving_up(self: IndependentSite, key: str) -> Any:
        # Between the lock and the sealing.
        if not ended and self.record().record.phase is Phase.LOCKED:
            ended.append(abandon(self))
        return original(self, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndependentSite, "store", giving_up)
        stop = stopped(lambda: site.stage(rows_query(9), run="second"))
    assert ended
    # Where the record moved on by more than one write, that its own was not among them is not proven.
    assert stop.code in (Code.CAS_CONFLICT, Code.CAS_OUTCOME_UNKNOWN, Code.SERVER_ERROR)
    assert not any("stays locked" in line for line in site.lines)
    record = site.record().record
    assert (record.phase, record.operation_id) == (Phase.ABORTED, ended[0].operation_id)
    assert site.counts() == [3, 3]
    assert site.refresh(5, run="next").rows == 5
    assert site.tables() == {"orders"}


def test_a_comparison_on_a_replica_ends_with_its_task(
    site: IndependentSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = (
        "SELECT count(), toString(sum(sleepEachRow(0.01))) FROM numbers(1000000) SETTINGS max_block_size = 10"
    )
    monkeypatch.setattr(replica_staging, "canonical_digest_select", lambda *_: endless)
    ended: list[bool | None] = []
    running = "SELECT count() FROM system.processes WHERE query_id LIKE 'dpone-read-%'"
    original = ClusterReplicaStaging.content

    def content(self: ClusterReplicaStaging, name: str, alias: str) -> CanonicalDigest:
        def kill() -> None:
            wait_until(lambda: site.cluster.scalar(running) == 1)
            ended.append(self.cancel())

        with ThreadPoolExecutor() as pool:
            killing = pool.submit(kill)
            try:
                return original(self, name, alias)
            finally:
                killing.result()

    monkeypatch.setattr(ClusterReplicaStaging, "content", content)
    stop = stopped(lambda: site.stage(rows_query(3), run="first"))
    assert (stop.code, stop.facts["exception_code"], ended) == (Code.SERVER_ERROR, 394, [True])
    assert site.cluster.scalar(running) == 0
    # Nothing is given up: a retry goes on.
    assert site.record().record.phase is Phase.LOCKED


def test_a_bad_load_is_rolled_back_on_every_replica(
    site: IndependentSite,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    site.refresh(3, run="good", retention=DAY)
    good = site.uuids()
    bad = site.refresh(9, run="bad", retention=DAY)
    done = rollback(site, bad.operation_id)
    assert (done.phase, done.rows, done.uuid) == (Phase.COMPLETED_RETAINING, 3, None)
    assert list(done.uuids.values()) == site.uuids() == good
    again = rollback(site, bad.operation_id)
    assert (again.replayed, again.uuids) == (True, done.uuids)
    assert site.refresh(5, run="next").rows == 5
    assert site.counts() == [5, 5]


def test_a_swap_that_was_cut_off_is_resolved_by_each_replicas_own_tables(site: IndependentSite) -> None:
    site.refresh(3, run="first")
    live = site.uuids()
    staged = site.stage(rows_query(9), run="second")
    site.cluster.refuse(1, SWAP)
    assert stopped(lambda: site.publish(staged, waits=SHORT)).code is Code.ENTRY_NOT_SEEN
    with site.worker("operator") as (ports, _):
        ended = route.resolve(ports, site.site, OperatorRequest("the worker was killed"), QUICK)
    assert (ended.phase, site.uuids()) == (Phase.ABORTED, live)
    assert ended.kept is not None
    assert site.refresh(5, run="next").rows == 5
    assert site.counts() == [5, 5]


def test_tables_of_their_own_under_one_name_are_dropped_together(
    site: IndependentSite,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The record forgot a candidate, as when Keeper was restored from before: only its mark tells whose it is."""
    connect(monkeypatch, site.cluster, tmp_path)
    site.refresh(3, run="first")
    staged = site.stage(rows_query(9), run="second")
    abandoned = site.uuids(staged.candidate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_dpone.routes.cluster_refresh._resolve.finish_drops", lambda *_: None)
        assert abandon(site).kept == staged.candidate
    with site.worker("operator") as (ports, _):
        seen = ports.catalog.observe([site.table])
        assert seen.record is not None
        from airflow_provider_dpone.publication import transitions

        struck = transitions.forgotten(seen.record.record, staged.candidate, now=seen.server_time)
        ports.authority.write(seen.record, struck, "0" * 32)
    (orphan,) = orphans(site)
    assert (orphan.why, orphan.uuid, list(orphan.uuids.values())) == (Why.LEFT, None, abandoned)
    status, answer = run(capsys, ways.orphans, site, drop=orphan.name, reason="nobody needs it")
    assert status == 0, answer
    assert (answer["gone"], answer["uuid"], list(answer["uuids"].values())) == (True, None, abandoned)
    assert site.tables() == {"orders"}
    assert orphans(site) == ()


def test_preflight_asks_every_replica_by_itself(
    site: IndependentSite,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    site.refresh(3, run="first")
    replicas = {alias: f"{endpoint.host}:{endpoint.port}" for alias, endpoint in site.replicas.items()}
    connect(monkeypatch, site.cluster, tmp_path, extra={"replicas": replicas})
    status, answer = run(capsys, commands.preflight, site, replication_mode="external", source="query")
    failed = [one for one in answer["checks"] if not one["ok"]]
    assert (status, failed) == (0, [])
    names = {one["name"] for one in answer["checks"]}
    assert {
        "every replica is reached by a connection of its own",
        "the user has every grant on each replica",
        "the artifacts have a place that all workers share",
    } <= names
    connect(
        monkeypatch,
        site.cluster,
        tmp_path,
        extra={"replicas": dict(zip(replicas, reversed(replicas.values()), strict=True))},
    )
    status, answer = run(capsys, commands.preflight, site, replication_mode="external", source="query")
    assert status == 1
    [wrong] = [one for one in answer["checks"] if not one["ok"]]
    assert wrong["stop"]["code"] == Code.REPLICA_CONNECTION_WRONG


# ---- exactly the grants that are documented


@pytest.fixture
def strict() -> Iterator[LocalCluster]:
    """A cluster with a user who has exactly the grants of independent tables, and one who may not fill them."""
    required = required_grants(Target(INDEPENDENT_CLUSTER_NAME, "mart", "orders"), independent=True)
    fewer = [grant for grant in required if str(grant) != "INSERT ON `mart`.*"]
    with LocalCluster(users=[user("exact", [*required, READ_ON_FILE]), user("reader", fewer)]) as running:
        init(running)
        running.execute(f"CREATE DATABASE mart ON CLUSTER {INDEPENDENT_CLUSTER_NAME} ENGINE = Atomic")
        yield running


def test_the_documented_grants_are_enough_and_a_missing_one_is_named_before_anything_is_changed(
    strict: LocalCluster, tmp_path: Path
) -> None:
    def as_user(name: str) -> IndependentSite:
        endpoint = strict.endpoints[0]
        return IndependentSite(strict, "mart", tmp_path, (endpoint,), user=name, password=PASSWORD)

    site = as_user("exact")
    site.refresh(3, run="first", retention=DAY)
    bad = site.refresh(9, run="second", retention=DAY)
    assert rollback(site, bad.operation_id).rows == 3
    half = as_user("exact")
    half.cluster.refuse(2, LOAD)
    stopped(lambda: half.stage(rows_query(9), run="third"))
    assert abandon(half).phase is Phase.ABORTED
    assert site.counts() == [3, 3]

    reader = as_user("reader")
    stop = stopped(lambda: reader.stage(rows_query(5), run="fourth"))
    assert stop.code is Code.MISSING_GRANT
    assert "INSERT ON `mart`.*" in stop.message
    assert reader.sent(r"^\s*CREATE TABLE") == []
    with reader.worker() as (_, server):
        grants = Grants(server, reader.target, independent=True)
        found = grants.check_directly({"s1/r2": server})
    assert found is not None
    assert (found.facts["replica"], found.code) == ("s1/r2", Code.MISSING_GRANT)
