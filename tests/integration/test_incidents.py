"""What ``airflow dpone explain`` says in fourteen incidents, each built on real servers.

Each builder says what an operator must learn: what happened, to which operation, what is proven per replica, what is
not known, what is safe next, what never to do, and whether readers are affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import TriggerEvent

from airflow_provider_dpone import composition
from airflow_provider_dpone.cli import holds
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.routes.ports import Target
from airflow_provider_dpone.triggers import poller, publication
from airflow_provider_dpone.triggers.publication import PublicationTrigger
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.integration import incident_site
from tests.integration.incident_site import NEW_ROWS, OLD_ROWS, Said
from tests.integration.refresh_site import RefreshSite, rows_query
from tests.integration.task_site import CONN_ID, connect

pytestmark = pytest.mark.cluster


@pytest.fixture
def site(
    cluster: LocalCluster, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RefreshSite:
    connect(monkeypatch, cluster, tmp_path)
    return RefreshSite(cluster, database, tmp_path / "evidence", (cluster.endpoints[0],))


@pytest.fixture
def shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[RefreshSite, Said], Explanation]:
    """Explains as the command does, and compares everything with what must be said."""
    found: list[Explanation] = []
    real = composition.explain

    def once(server: Server, target: Target) -> Explanation:
        # As text and as JSON the command shows one and the same look.
        if not found:
            found.append(real(server, target))
        return found[0]

    def run(site: RefreshSite, output: str) -> tuple[int, str]:
        arguments = {"cluster": CLUSTER_NAME, "database": site.database, "table": site.table}
        capsys.readouterr()
        status = 0
        try:
            holds.explain(Namespace(conn_id=CONN_ID, output=output, **arguments))
        except SystemExit as end:
            status = int(str(end.code))
        return status, capsys.readouterr().out

    def check(site: RefreshSite, said: Said) -> Explanation:
        since = site.cluster.last_statement()
        found.clear()
        with monkeypatch.context() as patch:
            patch.setattr(composition, "explain", once)
            status, text = run(site, "table")
            status_json, answer = run(site, "json")
        (told,) = found
        assert site.cluster.statements(r"^\s*(ALTER|CREATE|DROP|INSERT|EXCHANGE|RENAME|SYSTEM)", since) == []

        assert told.operation_id == said.operation, text
        assert (told.stop.code if told.stop else None) is said.code, text
        assert {a: one.state.value for a, one in told.replicas.items() if a in said.states} == said.states, (
            text
        )
        assert {alias: one.live for alias, one in told.replicas.items()} == said.live, text
        assert told.ways == said.next, text
        assert set(told.never) == set(said.never), text
        assert told.affected is said.affected, text
        assert (status, status_json) == (said.status, said.status), text
        # Plain words stand first, and the table with its database above all.
        first, plain, *below = text.splitlines()
        assert first == f"{site.database}.{site.table} on cluster {CLUSTER_NAME}"
        for part in said.plain:
            assert part in plain, text
        for part in said.words:
            assert part in "\n".join(below), text
        if said.operation is not None:
            assert said.operation[:16] in text
        for code in [told.stop.code] if told.stop else []:
            assert code in text
        for line in (*told.proven, *told.unproven, *told.next, *told.never, told.readers):
            assert line in text
        commands = [line.strip() for line in text.splitlines() if line.strip().startswith("airflow dpone ")]
        assert len(commands) == len(said.commands), text
        for line, begin in zip(commands, said.commands, strict=True):
            assert line.startswith(f"airflow dpone {begin}")
            assert CLUSTER_NAME in line
        as_json = json.loads(answer)
        assert (as_json["plain"], as_json["affected"]) == (told.plain, told.affected)
        assert as_json["commands"] == commands
        assert "127.0.0.1" not in text + answer
        return told

    return check


Shown = Callable[[RefreshSite, Said], Explanation]


def next_run(site: RefreshSite) -> None:
    """The table is free, and the next run publishes."""
    assert site.refresh(5, run="next").rows == 5
    assert site.counts() == [5, 5]


def test_01_a_replica_is_down_before_admission(site: RefreshSite, shown: Shown) -> None:
    told = shown(site, incident_site.replica_down_before_admission(site))
    assert not told.held
    site.cluster.heal()
    assert site.counts() == [OLD_ROWS, OLD_ROWS]
    assert site.stage(rows_query(NEW_ROWS), run="second").rows == NEW_ROWS


def test_02_a_replica_is_down_after_dispatch(site: RefreshSite, shown: Shown) -> None:
    shown(site, incident_site.replica_down_after_dispatch(site))
    assert site.swaps() == 1


def test_03_the_reply_of_the_swap_was_lost(site: RefreshSite, shown: Shown) -> None:
    shown(site, incident_site.reply_lost(site))
    assert site.swaps() == 1


def test_04_keeper_is_unreachable(site: RefreshSite, shown: Shown) -> None:
    told = shown(site, incident_site.keeper_unreachable(site))
    assert not told.read
    assert told.held
    assert told.recorded
    site.cluster.heal()
    with composition.server(CONN_ID) as server:
        assert composition.explain(server, site.target).read


def test_05_a_foreign_entry_blocks_the_queue(site: RefreshSite, shown: Shown) -> None:
    told = shown(site, incident_site.foreign_entry_blocks(site))
    (blocker,) = told.blocked
    assert (blocker.replica, blocker.ours) == ("s1/r2", False)


def test_06_one_replica_failed(site: RefreshSite, shown: Shown) -> None:
    shown(site, incident_site.one_replica_failed(site))


def test_07_a_replica_swapped_back_after_a_crash(site: RefreshSite, shown: Shown) -> None:
    shown(site, incident_site.swapped_back_after_a_crash(site))


def test_08_the_entry_was_pruned(site: RefreshSite, shown: Shown) -> None:
    shown(site, incident_site.entry_pruned(site))


def test_09_another_operation_holds_the_target(site: RefreshSite, shown: Shown) -> None:
    told = shown(site, incident_site.held_by_another(site))
    assert told.owner is not None
    assert (told.owner.dag_id, told.phase) == ("other_dag", "PREPARED")
    assert [one.owner.run_id for one in told.refused] == ["mine"]


def test_10_staging_died_half_way(site: RefreshSite, shown: Shown) -> None:
    told = shown(site, incident_site.staging_died(site))
    (left,) = told.leftovers
    assert left.bytes is not None
    assert left.bytes > 0
    # The retry of that task does what was said.
    staged = site.stage(rows_query(NEW_ROWS), run="second")
    site.publish(staged)
    site.cleanup(staged)
    assert left.name not in site.tables()
    with composition.server(CONN_ID) as server:
        assert composition.explain(server, site.target).leftovers == ()


def test_11_the_predecessor_cannot_be_dropped(site: RefreshSite, shown: Shown) -> None:
    told = shown(site, incident_site.predecessor_stays(site))
    (left,) = told.leftovers
    assert left.bytes is not None
    assert left.bytes > 0
    assert left.replicas == ("s1/r2",)
    site.cluster.clear_faults()
    next_run(site)
    assert site.tables() == {"orders"}


def test_12_the_control_table_was_dropped(
    site: RefreshSite, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = incident_site.with_own_control_table(site)
    monkeypatch.setenv("AIRFLOW__DPONE__CONTROL_TABLE", own.control.name)
    told = shown(own, incident_site.control_table_dropped(own))
    assert not told.read


def test_12_the_control_table_was_replaced_by_an_empty_one(
    site: RefreshSite, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = incident_site.with_own_control_table(site)
    monkeypatch.setenv("AIRFLOW__DPONE__CONTROL_TABLE", own.control.name)
    said = incident_site.control_table_dropped(own)
    own.cluster.execute(own.control.create(CLUSTER_NAME), settings={"distributed_ddl_task_timeout": 0})
    own.cluster.resume_worker(2)
    own.cluster.heal()
    both = {"s1/r1": "committed", "s1/r2": "committed"}
    emptied = replace(
        said,
        plain=("The control table is empty on s1/r1, s1/r2", "Nothing can be published"),
        states=both,
        live={"s1/r1": "new", "s1/r2": "new"},
        words=said.words[:-1],
        affected=False,
    )
    shown(own, emptied)


def test_13_a_task_was_cleared_while_its_operation_was_unresolved(site: RefreshSite, shown: Shown) -> None:
    told = shown(site, incident_site.cleared_while_unresolved(site))
    (refused,) = told.refused
    assert refused.operation_id != told.operation_id
    assert site.swaps() == 1


def test_14_the_triggerer_and_the_worker_were_restarted(
    site: RefreshSite, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = incident_site.in_flight(site)
    said = incident_site.restarted_while_waiting(site, staged)
    monkeypatch.setenv("AIRFLOW__DPONE__MIN_DEFER_SECONDS", "0.1")
    monkeypatch.setattr(publication, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(poller, "POLL_SECONDS", 0.5)
    # The worker that published is gone; the next one finds the operation and defers.
    publish = incident_site.publish_operator(site, staged, CONN_ID)
    context = incident_site.publish_context()
    with pytest.raises(TaskDeferred) as deferred:
        publish.execute(context)
    path, arguments = deferred.value.trigger.serialize()
    assert path == f"{publication.__name__}.{PublicationTrigger.__name__}"

    async def first_event() -> TriggerEvent:
        async for event in PublicationTrigger(**json.loads(json.dumps(arguments))).run():
            return event
        raise AssertionError("it ended without an event")

    async def killed() -> None:
        waiting = asyncio.create_task(first_event())
        await asyncio.sleep(1)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(killed())
    shown(site, said)

    # Another triggerer takes the trigger over, from what the database has of it; then a worker ends the task.
    site.cluster.resume_worker(2)

    event = asyncio.run(asyncio.wait_for(first_event(), 60))
    receipt = publish.execute_complete(context, event.payload)
    assert (receipt["rows"], receipt["operation_id"]) == (NEW_ROWS, said.operation)
    assert site.counts() == [NEW_ROWS, NEW_ROWS]
    assert site.swaps() == 1
