"""What operators begin themselves, on real servers: from a real situation to the next successful run."""

from __future__ import annotations

import json
import re
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone import composition
from airflow_provider_dpone.cli import commands, holds, ways
from airflow_provider_dpone.publication.identity import lost_name, parked_name
from airflow_provider_dpone.publication.orphans import Orphan, Why
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes import cluster_refresh as route
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest, PublishRequest, RolledBack
from tests.cluster import CLUSTER_NAME, INDEPENDENT_CLUSTER_NAME, LocalCluster
from tests.cluster.client import ClickHouseError, wait_until
from tests.cluster.spec import ADMIN_USER
from tests.integration.control import create_table
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query
from tests.integration.task_site import CONN_ID, connect
from tests.integration.test_holds import Sleeping

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
    else:
        # In a database that shows no table at all, nobody can tell that one is absent.
        site.cluster.execute(
            f"CREATE TABLE {site.database}.other ON CLUSTER {CLUSTER_NAME} (id UInt64) ENGINE = Log"
        )
    rest = site.tables()
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
    assert status == 0, answer
    assert answer["gone"]
    assert site.tables() == rest
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
    create_table(site.cluster, site.database, site.table, 3)
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


# What blocks the queue.


def test_explain_names_what_a_late_replica_works_on_first(
    site: RefreshSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch, site.cluster, tmp_path)
    create_table(site.cluster, site.database, site.table, 3)
    staged = site.stage(rows_query(9), run="second")
    held = site.cluster.hold_execution(2, "CREATE TABLE .*foreign")
    site.cluster.execute(
        f"CREATE TABLE {site.database}.foreign ON CLUSTER {CLUSTER_NAME} (id UInt64) ENGINE = Log",
        settings={"distributed_ddl_task_timeout": 0},
    )
    held.wait_for_hit()
    stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    status, answer = run(capsys, holds.explain, site)
    assert status == holds.HELD
    [blocker] = answer["blocked"]
    assert (blocker["replica"], blocker["ours"]) == ("s1/r2", False)
    assert answer["newer_entries"] == 0
    assert "queued by somebody else" in run(capsys, holds.explain, site, output="table")[1]
    held.release()
    assert site.publish(staged).rows == 9


# A replica that is late while an operator resolves.


def test_a_replica_that_follows_after_a_resolve_began_runs_both_statements_in_order(
    site: RefreshSite,
) -> None:
    """Nobody sees the swap's entry any more, and the second replica has not run it."""
    create_table(site.cluster, site.database, site.table, 3)
    old = site.uuids()[0]
    staged = site.stage(rows_query(9), run="second")
    site.cluster.pause_worker(2)
    site.cluster.hide_queue_rows("EXCHANGE TABLES")
    short = replace(QUICK, publish=1, cleanup=2)
    assert stopped(lambda: site.publish(staged, waits=short)).code is Code.ENTRY_NOT_SEEN

    def resolve() -> Any:
        with site.worker("operator") as (ports, _):
            return route.resolve(ports, site.site, OperatorRequest("test"), short)

    assert stopped(resolve).code is Code.RESOLVING
    assert site.uuids() == [staged.candidate_uuid, old]
    site.cluster.resume_worker(2)
    wait_until(lambda: site.uuids(parked_name(staged.candidate)) == [old, old])
    assert resolve().phase is Phase.COMMITTED
    assert site.uuids() == [staged.candidate_uuid] * 2
    # The next run's own entry is to be seen again.
    site.cluster.heal()
    assert site.refresh(5, run="next").rows == 5


# On a cluster of its own, which they change for good: a lost control table, and a replica that is gone for ever.


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(replicas=3) as running:
        yield running


def on_own(own: LocalCluster, database: str, folder: Path) -> RefreshSite:
    own.execute(f"CREATE DATABASE IF NOT EXISTS {database} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
    return RefreshSite(own, database, folder / "evidence", (own.endpoints[0],))


def lose_control_table(own: LocalCluster) -> None:
    for node in own.nodes:
        own.execute("DROP TABLE dpone.authority_v1 SYNC", node=node)


def init(capsys: pytest.CaptureFixture[str], **more: Any) -> tuple[int, Any]:
    arguments: dict[str, Any] = {
        "conn_id": CONN_ID,
        "cluster": CLUSTER_NAME,
        "print_sql": False,
        "recover": False,
        "reason": None,
        "output": "json",
    }
    capsys.readouterr()
    status = 0
    try:
        commands.init(Namespace(**(arguments | more)))
    except SystemExit as end:
        status = int(str(end.code))
    return status, json.loads(capsys.readouterr().out)


def test_a_lost_control_table_is_recovered_and_a_worker_from_before_publishes_nothing(
    own: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = on_own(own, "mart_lost", tmp_path)
    connect(monkeypatch, own, tmp_path, user=ADMIN_USER, password="")
    first = site.refresh(3, run="first")
    staged = site.stage(rows_query(9), run="second")
    ended: list[Stop] = []
    with site.worker("sleeper") as (ports, _):
        sleeping = Sleeping(ports.queue)

        def work() -> None:
            request = PublishRequest(staged.operation_id)
            short = replace(QUICK, publish=1)
            ended.append(
                stopped(lambda: route.publish(replace(ports, queue=sleeping), site.site, request, short))
            )

        sleeper = threading.Thread(target=work)
        sleeper.start()
        assert sleeping.asleep.wait(30)
        lose_control_table(own)
        assert stopped(lambda: site.stage(rows_query(5), run="next")).code is Code.CONTROL_TABLE_MISSING
        status, answer = init(capsys)
        assert (status, answer["stop"]["code"]) == (1, Code.CONTROL_TABLE_LOST.value)
        assert "init --recover" in answer["stop"]["next_action"]
        assert init(capsys, recover=True)[0] == 1
        status, answer = init(capsys, recover=True, print_sql=True)
        assert (status, answer["parked"]) == (0, [f"mart_lost.{staged.candidate}"])
        assert staged.candidate in site.tables()

        status, answer = init(capsys, recover=True, reason="an administrator dropped it")
        assert status == 0, answer
        assert answer["adopted"] == [first.authority_id]
        assert answer["tables"] == ["mart_lost.orders"]
        sleeping.wake.set()
        sleeper.join(60)
    assert [reply.exception_code for reply in sleeping.replies] == [60]
    assert len(ended) == 1
    assert site.counts() == [3, 3, 3]
    assert site.uuids(lost_name(staged.candidate)) == [staged.candidate_uuid] * 3
    assert stopped(lambda: site.publish(staged)).code in (Code.NOT_STAGED, Code.SUPERSEDED)

    third = site.refresh(5, run="next")
    assert third.authority_id == answer["authority_id"] != first.authority_id
    assert site.counts() == [5, 5, 5]
    assert init(capsys, recover=True, reason="again")[0] == 1
    assert init(capsys)[0] == 0


def test_nothing_is_recovered_while_a_statement_of_before_is_under_way(
    own: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = on_own(own, "mart_busy", tmp_path)
    connect(monkeypatch, own, tmp_path, user=ADMIN_USER, password="")
    site.refresh(3, run="first")
    staged = site.stage(rows_query(9), run="second")
    own.pause_worker(3)
    stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    lose_control_table(own)
    status, answer = init(capsys, recover=True, reason="test")
    assert status == 1
    assert "not finished everywhere" in answer["stop"]["message"]
    own.resume_worker(3)
    wait_until(lambda: site.counts() == [9, 9, 9])
    wait_until(lambda: {row["status"] for row in own.queue_rows()} == {"Finished"})
    status, answer = init(capsys, recover=True, reason="test")
    assert status == 0, answer
    assert site.refresh(5, run="next").rows == 5


def without_second_replica(own: LocalCluster, databases_and_tables: list[str]) -> None:
    """The second server is gone for ever: out of the definition, and out of the tables in Keeper."""
    own.stop_node(2)
    for node in (1, 3):
        own.stop_node(node)
        for name in ("cluster.xml", "zz-further-replicas.xml"):
            definition = own.folder / f"n{node}" / "config.d" / name
            text = re.sub(r"<replica number=\"2\">.*?</replica>", "", definition.read_text(), flags=re.DOTALL)
            definition.write_text(text)
        own.start_node(node)
    listed = "SELECT count() FROM system.clusters WHERE cluster IN "
    listed += f"('{CLUSTER_NAME}', '{INDEPENDENT_CLUSTER_NAME}')"
    wait_until(lambda: [int(own.scalar(listed, node=node)) for node in (1, 3)] == [4, 4])
    for name in databases_and_tables:
        drop_replica(own, name)


def drop_replica(own: LocalCluster, name: str) -> None:
    """Remove the second replica of a table from Keeper, as soon as its session there has expired."""

    def dropped() -> bool:
        try:
            own.execute(f"SYSTEM DROP REPLICA 'r2' FROM TABLE {name}", node=1)
        except ClickHouseError as error:
            # It is called active until then.
            if error.code != 305:
                raise
            return False
        return True

    wait_until(dropped)


def test_an_operation_ends_without_a_replica_that_is_gone_for_ever(own: LocalCluster, tmp_path: Path) -> None:
    site = on_own(own, "mart_gone", tmp_path)
    site.refresh(3, run="first")
    staged = site.stage(rows_query(9), run="second")
    own.pause_worker(2)
    late = stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    assert late.code is Code.PARTIAL_IN_PROGRESS

    def resolve(*gone: str) -> Any:
        with site.worker("operator") as (ports, _):
            return route.resolve(ports, site.site, OperatorRequest("it burnt down", retire=gone), QUICK)

    assert "still lists s1/r2" in stopped(lambda: resolve("s1/r2")).message
    without_second_replica(own, ["mart_gone.orders"])
    assert stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=1))).code is Code.INVENTORY_DRIFT
    assert stopped(resolve).code is Code.INVENTORY_DRIFT
    with site.worker() as (ports, _):
        told = route.explain(ports.catalog, ports.queue, ports.evidence, site.site)
    assert told.gone == ("s1/r2",)
    # It is still registered in Keeper for the other table.
    assert "SYSTEM DROP REPLICA" in stopped(lambda: resolve("s1/r2")).message
    drop_replica(own, f"mart_gone.{staged.candidate}")
    ended = resolve("s1/r2")
    assert (ended.phase, ended.retired) == (Phase.COMMITTED, ("s1/r2",))
    receipt = site.publish(staged)
    assert receipt.retired == ("s1/r2",)
    assert [replica.alias for replica in receipt.replicas] == ["s1/r1", "s1/r2"]
    site.cleanup(staged)
    assert site.refresh(5, run="next").rows == 5

    def left() -> list[int]:
        return [int(own.scalar("SELECT count() FROM mart_gone.orders", node=node)) for node in (1, 3)]

    assert left() == [5, 5]
    # It comes back, and its worker runs what it missed: on its own tables alone.
    own.start_node(2)
    own.resume_worker(2)
    wait_until(lambda: {row["status"] for row in own.queue_rows()} == {"Finished"})
    assert left() == [5, 5]
    assert site.refresh(6, run="last").rows == 6
    assert left() == [6, 6]
