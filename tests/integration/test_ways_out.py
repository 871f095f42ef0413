"""What operators begin themselves, on real servers: from a real situation to the next successful run."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone import composition
from airflow_provider_dpone.cli import ways
from airflow_provider_dpone.publication.orphans import Orphan, Why
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes import cluster_refresh as route
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest, RolledBack
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query
from tests.integration.task_site import CONN_ID, connect

pytestmark = pytest.mark.cluster

SWAP = r"^\s*(EXCHANGE|RENAME)\b"
DAY = 24 * 3600


@pytest.fixture
def site(cluster: LocalCluster, database: str, tmp_path: Path) -> RefreshSite:
    return RefreshSite(cluster, database, tmp_path / "evidence", (cluster.endpoints[0],))


def stopped(work: Callable[[], Any]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def rollback(site: RefreshSite, operation: str, waits: Any = QUICK) -> RolledBack:
    with site.worker("operator") as (ports, _):
        return route.rollback(ports, site.site, OperatorRequest("test", operation[:16]), waits)


def run(
    capsys: pytest.CaptureFixture[str], command: Callable[[Namespace], None], site: RefreshSite, **more: Any
) -> tuple[int, Any]:
    """Exit status, and the JSON or the text that was printed."""
    arguments: dict[str, Any] = {
        "conn_id": CONN_ID,
        "cluster": CLUSTER_NAME,
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
    out = capsys.readouterr().out
    return status, json.loads(out) if (arguments | more)["output"] == "json" else out


# Rollback.


def test_a_bad_load_is_rolled_back_and_the_next_run_publishes(site: RefreshSite) -> None:
    site.refresh(3, run="good", retention=DAY)
    good = site.uuids()
    bad = site.refresh(9, run="bad", retention=DAY)
    done = rollback(site, bad.operation_id)
    assert (done.phase, done.rows, done.replayed) == (Phase.COMPLETED_RETAINING, 3, False)
    assert site.uuids() == good
    assert site.counts() == [3, 3]
    swaps = site.swaps()
    assert rollback(site, bad.operation_id) == replace(done, replayed=True)
    assert site.swaps() == swaps
    assert site.refresh(5, run="next").rows == 5
    assert site.counts() == [5, 5]


def test_a_rollback_whose_reply_was_lost_is_proven_and_not_sent_again(site: RefreshSite) -> None:
    site.refresh(3, run="good", retention=DAY)
    bad = site.refresh(9, run="bad", retention=DAY)
    before = site.swaps()
    fault = site.cluster.drop_response(1, SWAP)
    assert rollback(site, bad.operation_id).rows == 3
    assert fault.hits == 1
    assert site.swaps() == before + 1


def test_a_rollback_waits_for_a_replica_that_is_late_and_goes_on_when_it_is_run_again(
    site: RefreshSite,
) -> None:
    site.refresh(3, run="good", retention=DAY)
    bad = site.refresh(9, run="bad", retention=DAY)
    before = site.swaps()
    site.cluster.pause_worker(2)
    late = stopped(lambda: rollback(site, bad.operation_id, replace(QUICK, publish=2)))
    assert late.code in (Code.IN_PROGRESS, Code.PARTIAL_IN_PROGRESS)
    busy = stopped(lambda: site.stage(rows_query(5), run="next"))
    assert busy.code is Code.TARGET_BUSY
    assert "rollback" in busy.next_action
    site.cluster.resume_worker(2)
    assert rollback(site, bad.operation_id).rows == 3
    assert site.swaps() == before + 1
    assert site.counts() == [3, 3]


def test_what_is_not_kept_or_not_live_is_not_rolled_back(site: RefreshSite) -> None:
    first = site.refresh(3, run="first", retention=DAY)
    assert stopped(lambda: rollback(site, first.operation_id)).code is Code.NOT_RESOLVABLE
    second = site.refresh(9, run="second")
    assert stopped(lambda: rollback(site, second.operation_id)).code is Code.NOT_RESOLVABLE
    assert stopped(lambda: rollback(site, first.operation_id)).code is Code.GENERATION_UNKNOWN
    assert stopped(lambda: rollback(site, "0" * 16)).code is Code.NOT_RESOLVABLE
    assert site.counts() == [9, 9]


# Orphans.


def died_while_staging(site: RefreshSite) -> None:
    """The worker dies in the load: its candidate stays, and no record names it."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_dpone.routes.cluster_refresh._stage._Stage._wait_ready", die)
        patch.setattr("airflow_provider_dpone.routes.cluster_refresh._stage._Stage._discard", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            site.stage(rows_query(9), run="died")


def orphans(site: RefreshSite) -> tuple[Orphan, ...]:
    with site.worker() as (_, server):
        found = composition.orphans(server, CLUSTER_NAME)
    return tuple(one for one in found if one.database == site.database)


@pytest.mark.parametrize("before", [False, True], ids=["no record", "a record"])
def test_what_a_dead_stage_left_is_listed_and_dropped(
    site: RefreshSite,
    before: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    connect(monkeypatch, site.cluster, tmp_path)
    if before:
        site.refresh(3, run="first")
    died_while_staging(site)
    (orphan,) = orphans(site)
    assert (orphan.why, orphan.table) == (Why.LEFT, "orders")
    assert set(orphan.uuids) == {"s1/r1", "s1/r2"}
    status, answer = run(capsys, ways.orphans, site)
    assert status == 0
    assert [(one["name"], one["droppable"]) for one in answer["orphans"]] == [(orphan.name, True)]
    assert orphan.name in run(capsys, ways.orphans, site, output="table")[1]

    assert run(capsys, ways.orphans, site, drop=orphan.name)[0] == 1
    assert orphan.name in site.tables()
    status, answer = run(capsys, ways.orphans, site, drop=orphan.name, reason="its worker died")
    assert (status, answer["gone"]) == (0, True)
    assert site.tables() == ({"orders"} if before else set())
    assert orphans(site) == ()
    assert run(capsys, ways.orphans, site, drop=orphan.name, reason="again")[0] == 1
    assert site.refresh(5, run="next").rows == 5


def test_a_target_under_way_and_strange_tables_are_left_alone(
    site: RefreshSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch, site.cluster, tmp_path)
    died_while_staging(site)
    site.stage(rows_query(5), run="next")
    strange = "orders__dpone_0123456789abcdef"
    site.cluster.execute(
        f"CREATE TABLE {site.database}.{strange} ON CLUSTER {CLUSTER_NAME} (id UInt64) ENGINE = Log"
    )
    whys = {one.name: one.why for one in orphans(site)}
    assert whys.pop(strange) is Why.UNMARKED
    (left,) = whys
    assert whys[left] is Why.UNDER_WAY
    for name in (left, strange):
        status, answer = run(capsys, ways.orphans, site, drop=name, reason="test")
        assert status == 1
        assert answer["stop"]["code"].endswith(("TARGET_BUSY", "NOT_RESOLVABLE"))
    assert {left, strange} <= site.tables()


def test_a_kept_table_whose_name_was_taken_is_forgotten(
    site: RefreshSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch, site.cluster, tmp_path)
    site.refresh(3, run="first")
    site.refresh(9, run="second", retention=DAY)
    (item,) = site.record().record.retained
    assert orphans(site) == ()
    site.cluster.execute(f"DROP TABLE {site.database}.{item.name} ON CLUSTER {CLUSTER_NAME} SYNC")
    site.cluster.execute(
        f"CREATE TABLE {site.database}.{item.name} ON CLUSTER {CLUSTER_NAME} (id UInt64) ENGINE = Log"
    )
    (orphan,) = orphans(site)
    assert orphan.why is Why.REPLACED
    assert run(capsys, ways.orphans, site, drop=item.name, reason="test")[0] == 1
    status, answer = run(capsys, ways.orphans, site, forget=item.name, reason="somebody took its name")
    assert (status, answer.get("forgotten")) == (0, item.name)
    assert site.record().record.retained == ()
    assert item.name in site.tables()
    assert site.refresh(5, run="next").rows == 5
