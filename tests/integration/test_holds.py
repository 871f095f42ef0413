"""From a real hold to the next successful run, by what an operator can do."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone.cli import holds
from airflow_provider_dpone.clickhouse.ddl_queue import render_local
from airflow_provider_dpone.publication.explanation import Explanation, Way
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.receipt import StageReceipt
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.statement import Statement
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes import cluster_refresh as route
from airflow_provider_dpone.routes.cluster_refresh import Ended, OperatorRequest, PublishRequest
from airflow_provider_dpone.routes.ports import DdlQueue, Reply
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.cluster.client import wait_until
from tests.integration.control import create_table
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query
from tests.integration.task_site import CONN_ID, connect

pytestmark = pytest.mark.cluster

SWAP = r"^\s*(EXCHANGE|RENAME)\b"
PARK = r"^\s*RENAME .*_parked"
SHORT = replace(QUICK, publish=1)


@pytest.fixture
def site(cluster: LocalCluster, database: str, tmp_path: Path) -> RefreshSite:
    return RefreshSite(cluster, database, tmp_path, (cluster.endpoints[0],))


def stopped(work: Callable[[], Any]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def resolve(site: RefreshSite, **changes: Any) -> Ended:
    with site.worker("operator") as (ports, _):
        return route.resolve(ports, site.site, OperatorRequest("test", **changes), QUICK)


def abandon(site: RefreshSite) -> Ended:
    with site.worker("operator") as (ports, _):
        return route.abandon(ports, site.site, OperatorRequest("test"), QUICK)


def explain(site: RefreshSite) -> Explanation:
    with site.worker() as (ports, _):
        return route.explain(ports.catalog, ports.queue, ports.evidence, site.site)


def prepared(site: RefreshSite, *, first: bool = False) -> StageReceipt:
    """A staged operation, over a table of three rows or over none."""
    if not first:
        create_table(site.cluster, site.database, site.table, 3)
    staged = site.stage(rows_query(9), run="second")
    site.since = site.cluster.last_statement()
    return staged


def cut(site: RefreshSite, *, first: bool = False) -> StageReceipt:
    """A hold: the swap was cut off before it ran, and nobody can know."""
    staged = prepared(site, first=first)
    site.cluster.refuse(1, SWAP)
    assert stopped(lambda: site.publish(staged, waits=SHORT)).code is Code.ENTRY_NOT_SEEN
    return staged


def next_run(site: RefreshSite, rows: int = 5) -> None:
    """The table is free again: the next run publishes."""
    assert site.refresh(rows, run="next").rows == rows
    assert site.counts() == [rows, rows]


def actions(site: RefreshSite) -> list[str]:
    """What the evidence has of operators, in order."""
    found = []
    for file in site.folder.rglob("operator-action.*.json"):
        entry = json.loads(file.read_text())
        assert entry["body"]["reason"]
        found.append((entry["at"], entry["body"]["step"]))
    return [step for _, step in sorted(found)]


@pytest.mark.parametrize("first", [False, True], ids=["exchange", "rename"])
def test_a_swap_that_was_cut_is_disarmed_and_closed_and_the_next_run_publishes(
    site: RefreshSite, first: bool
) -> None:
    staged = cut(site, first=first)
    told = explain(site)
    assert told.held
    assert told.stop is not None
    assert told.stop.code is Code.ENTRY_NOT_SEEN
    assert Way.RESOLVE in told.ways
    assert told.readers.startswith("Readers are not affected")
    before = site.uuids()
    ended = resolve(site)
    assert (ended.phase, ended.kept) == (Phase.ABORTED, parked_name(staged.candidate))
    assert actions(site) == ["disarm", "store that the swap is harmless", "close as not published"]
    assert site.uuids() == before
    assert site.uuids(staged.candidate) == [None, None]
    assert site.uuids(parked_name(staged.candidate)) == [staged.candidate_uuid] * 2
    assert stopped(lambda: site.publish(staged)).code is Code.SUPERSEDED
    assert not explain(site).held
    next_run(site)
    assert parked_name(staged.candidate) in site.tables()


@dataclass
class Sleeping:
    """A queue whose worker falls asleep between the verified permit and the first byte."""

    real: DdlQueue
    asleep: threading.Event = field(default_factory=threading.Event)
    wake: threading.Event = field(default_factory=threading.Event)
    replies: list[Reply] = field(default_factory=list)

    def send(self, permit: Permit, statement: Statement, token: str) -> Reply:
        self.asleep.set()
        assert self.wake.wait(60)
        self.replies.append(self.real.send(permit, statement, token))
        return self.replies[-1]

    def read(self, token: str) -> tuple[int, Sequence[QueueRow]]:
        return self.real.read(token)


@pytest.mark.parametrize("first", [False, True], ids=["exchange", "rename"])
def test_a_sleeping_worker_that_wakes_after_a_resolve_publishes_nothing(
    site: RefreshSite, first: bool
) -> None:
    staged = prepared(site, first=first)
    ended: list[Stop] = []
    with site.worker("sleeper") as (ports, _):
        sleeping = Sleeping(ports.queue)

        def work() -> None:
            request = PublishRequest(staged.operation_id)
            ended.append(
                stopped(lambda: route.publish(replace(ports, queue=sleeping), site.site, request, SHORT))
            )

        sleeper = threading.Thread(target=work)
        sleeper.start()
        assert sleeping.asleep.wait(30)
        assert site.record().record.phase is Phase.DISPATCHING
        assert resolve(site).phase is Phase.ABORTED
        next_run(site)
        live = site.uuids()
        sleeping.wake.set()
        sleeper.join(60)
    # The RENAME of a first publication meets a target that the next run has published since.
    assert [reply.exception_code for reply in sleeping.replies] == [57 if first else 60]
    assert ended[0].code in (Code.SUPERSEDED, Code.CAS_CONFLICT)
    assert site.uuids() == live
    assert site.counts() == [5, 5]
    assert site.uuids(parked_name(staged.candidate)) == [staged.candidate_uuid] * 2


def test_a_partial_swap_that_was_repaired_as_explained_is_committed(site: RefreshSite) -> None:
    staged = prepared(site)
    old = site.uuids()[0]
    site.cluster.fail_execution(2, SWAP)
    assert stopped(lambda: site.publish(staged)).code is Code.PARTIAL_TERMINAL
    told = explain(site)
    assert told.stop is not None
    assert told.stop.code is Code.PARTIAL_TERMINAL
    assert told.readers.startswith("Readers are affected")
    assert told.replicas["s1/r1"].repair is None
    assert stopped(lambda: resolve(site)).code is Code.PARTIAL_TERMINAL
    assert actions(site) == []
    repair = told.replicas["s1/r2"].repair
    assert repair is not None
    site.cluster.execute(render_local(repair), node=2)
    assert resolve(site).phase is Phase.COMMITTED
    assert actions(site) == ["commit"]
    assert site.uuids() == [staged.candidate_uuid] * 2
    assert site.uuids(staged.candidate) == [old, old]
    next_run(site)
    assert site.tables() == {"orders"}


def test_a_swap_that_failed_everywhere_is_closed(site: RefreshSite) -> None:
    staged = prepared(site)
    site.cluster.fail_execution(1, SWAP)
    site.cluster.fail_execution(2, SWAP)
    assert stopped(lambda: site.publish(staged)).code is Code.FAILED_EVERYWHERE
    assert explain(site).ways == (Way.RESOLVE,)
    assert resolve(site).phase is Phase.ABORTED
    next_run(site)


def test_an_entry_that_the_queue_forgot_is_committed_by_what_the_replicas_hold(site: RefreshSite) -> None:
    staged = prepared(site)
    old = site.uuids()[0]
    site.cluster.pause_worker(2)
    stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    assert stopped(lambda: resolve(site)).code in (Code.PARTIAL_IN_PROGRESS, Code.REPLICA_NOT_OBSERVED)
    publication = site.record().record.publication
    assert publication is not None
    assert publication.entry is not None
    entry = publication.entry
    site.cluster.resume_worker(2)
    wait_until(
        lambda: {row["status"] for row in site.cluster.queue_rows() if row["entry"] == entry} == {"Finished"}
    )
    site.cluster.remove_queue_entry(entry)
    assert stopped(lambda: site.publish(staged, waits=SHORT)).code is Code.ENTRY_NOT_SEEN
    assert resolve(site).phase is Phase.COMMITTED
    assert site.uuids(parked_name(staged.candidate)) == [old, old]
    receipt = site.publish(staged)
    assert receipt.replayed
    assert {replica.queue for replica in receipt.replicas} == {"not known"}
    site.cleanup(staged)
    assert site.tables() == {"orders"}
    next_run(site)


def test_a_disarming_that_fails_on_one_replica_closes_nothing_and_goes_on_later(site: RefreshSite) -> None:
    cut(site)
    site.cluster.fail_execution(2, PARK)
    stop = stopped(lambda: resolve(site))
    assert stop.code is Code.NOT_RESOLVABLE
    assert stop.replicas["s1/r2"]["exception_code"] == 164
    assert site.record().record.phase is Phase.DISPATCHING
    told = explain(site)
    assert told.stop is not None
    assert told.stop.code is Code.RESOLVING
    assert {seen.state.value for seen in told.replicas.values()} == {"pending"}
    assert resolve(site).phase is Phase.ABORTED
    next_run(site)


def test_a_refused_disarming_proves_nothing_about_the_swap(site: RefreshSite) -> None:
    cut(site)
    site.cluster.answer_error(1, PARK, 497)
    assert stopped(lambda: resolve(site)).code is Code.STATEMENT_REFUSED
    record = site.record().record
    assert (record.phase, record.disarming) == (Phase.DISPATCHING, True)
    assert resolve(site).phase is Phase.ABORTED


def test_a_lost_reply_of_the_disarming_is_reconciled(site: RefreshSite) -> None:
    cut(site)
    fault = site.cluster.drop_response(1, PARK)
    assert resolve(site).phase is Phase.ABORTED
    assert fault.hits == 1
    next_run(site)


def test_a_replica_that_is_away_resolves_nothing(site: RefreshSite) -> None:
    staged = cut(site)
    site.cluster.kill_node(2)
    try:
        assert stopped(lambda: resolve(site)).code is Code.REPLICA_UNAVAILABLE
        assert explain(site).unproven
    finally:
        site.cluster.start_node(2)
    assert actions(site) == []
    assert site.uuids(staged.candidate) == [staged.candidate_uuid] * 2
    assert resolve(site).phase is Phase.ABORTED


def test_an_abandoned_operation_is_dropped_and_the_next_run_publishes(site: RefreshSite) -> None:
    staged = prepared(site)
    told = explain(site)
    assert Way.ABANDON in told.ways
    ended = abandon(site)
    assert (ended.phase, ended.kept) == (Phase.ABORTED, None)
    assert actions(site) == ["abandon"]
    assert site.tables() == {"orders"}
    assert stopped(lambda: site.publish(staged)).code is Code.SUPERSEDED
    assert stopped(lambda: abandon(site)).code is Code.NOT_RESOLVABLE
    next_run(site)


def test_what_may_have_been_sent_is_not_abandoned(site: RefreshSite) -> None:
    cut(site)
    assert stopped(lambda: abandon(site)).code is Code.NOT_RESOLVABLE
    assert actions(site) == []


def test_another_operation_than_the_one_that_is_meant_is_left_alone(site: RefreshSite) -> None:
    cut(site)
    assert stopped(lambda: resolve(site, operation="0000000000000000")).code is Code.NOT_RESOLVABLE


# The commands.


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
    }
    capsys.readouterr()
    status = 0
    try:
        command(Namespace(**(arguments | more)))
    except SystemExit as end:
        status = int(str(end.code))
    out = capsys.readouterr().out
    return status, json.loads(out) if (arguments | more)["output"] == "json" else out


def test_the_commands_lead_from_a_hold_to_a_free_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, site: RefreshSite, tmp_path: Path
) -> None:
    connect(monkeypatch, site.cluster, tmp_path)
    staged = cut(site)
    status, answer = run(capsys, holds.status, site)
    [row] = [one for one in answer["targets"] if one.get("database") == site.database]
    assert status == holds.HELD
    assert (row["phase"], row["held"]) == ("DISPATCHING", True)
    assert row["live"] == {"s1/r1": "pending", "s1/r2": "pending"}
    status, text = run(capsys, holds.status, site, output="table")
    assert status == holds.HELD
    assert "pending on all" in text

    status, answer = run(capsys, holds.explain, site)
    assert status == holds.HELD
    assert answer["stop"]["code"].endswith("ENTRY_NOT_SEEN")
    [command] = answer["commands"]
    assert command.startswith("airflow dpone resolve ")
    status, text = run(capsys, holds.explain, site, output="table")
    assert status == holds.HELD
    assert "Never run EXCHANGE" in text

    assert run(capsys, holds.resolve, site, reason=" ")[0] == 1
    assert run(capsys, holds.abandon, site, reason="not needed")[0] == 1
    status, answer = run(
        capsys, holds.resolve, site, reason="the worker was killed", operation=staged.operation_id[:16]
    )
    assert status == 0
    assert (answer["phase"], answer["changed"]) == ("ABORTED", True)
    entries = [json.loads(f.read_text()) for f in (tmp_path / "evidence").rglob("operator-action.*.json")]
    assert {entry["body"]["reason"] for entry in entries} == {"the worker was killed"}
    assert all(entry["about"]["operator"] for entry in entries)
    assert run(capsys, holds.explain, site)[0] == 0
    status, text = run(capsys, holds.resolve, site, reason="again", output="table")
    assert status == 0
    assert "There was nothing to change." in text
