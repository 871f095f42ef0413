"""Independent replicas, one situation each: what comes late, what is taken over, the ways out of a locked target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_dpone.publication.identity import TaskIdentity
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.receipt import StageReceipt
from airflow_provider_dpone.publication.record import (
    IndependentRecord,
    Owner,
    Phase,
    ReplicatedRecord,
    StageState,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Classification
from airflow_provider_dpone.routes.cluster_refresh import (
    OperatorRequest,
    StageRequest,
    abandon,
    resolve,
    rollback,
    stage,
    stage_replicas,
)
from tests.simulation.ports import KEY, Fault, Killed, SimStaging, Worker
from tests.simulation.replica_staging import SimReplicaStaging
from tests.simulation.run import OLD, SITE, WAITS
from tests.simulation.test_review_findings import Site, no_fault, once
from tests.simulation.world import World, content_digest


@dataclass
class OwnSite(Site):
    """A target of independent tables."""

    world: World = field(default_factory=lambda: World(independent=True))

    def run(
        self,
        run: int = 0,
        choose: Callable[[str], Fault] = no_fault,
        *,
        dag: str = "dag",
        series: int = 0,
        retention: int = 0,
    ) -> StageReceipt:
        """Run a stage task once."""
        worker = self.worker(choose)
        request = self.request(run, dag, series, retention)
        staging = SimReplicaStaging(worker, 10 + run, f"new{run}", lambda count: count - 1)
        try:
            return stage_replicas(self.ports(worker), staging, SITE, request, WAITS)
        finally:
            assert self.world.broken == []

    def request(self, run: int, dag: str = "dag", series: int = 0, retention: int = 0) -> StageRequest:
        identity = TaskIdentity("airflow", dag, f"run{run}", "stage", -1, str(series))
        owner = Owner(dag, f"run{run}", "stage", -1)
        return StageRequest(identity, owner, order_key=f"{run:04d}", retention=retention)

    def stopped(self, run: int = 0, choose: Callable[[str], Fault] = no_fault, **more: Any) -> Stop:
        """Run a stage task that stops."""
        with pytest.raises(Stopped) as caught:
            self.run(run, choose, **more)
        return caught.value.stop

    def killed(self, point: str, fault: Fault = Fault.KILL_AFTER, *, skip: int = 0) -> None:
        """Run a stage task whose worker is killed."""
        with pytest.raises(Killed):
            self.run(0, once(point, fault, skip=skip))

    @property
    def record(self) -> IndependentRecord:
        stored = self.world.stored(KEY)
        assert stored is not None
        assert isinstance(stored.record, IndependentRecord)
        return stored.record

    def why_given_up(self, operation_id: str) -> str | None:
        """What its trail says of why an operation was given up."""
        found = [
            body.aggregate
            for of, body in self.trail.entries
            if of == operation_id and isinstance(body, Classification)
        ]
        return found[-1] if found else None

    def live(self) -> list[str]:
        return [replica.tables["orders"].content for replica in self.world.replicas.values()]

    def finish(self, staged: StageReceipt) -> None:
        """Publish and clean up, and leave nothing behind."""
        self.publish(staged)
        self.cleanup(staged)
        assert {name for r in self.world.replicas.values() for name in r.tables} == {"orders"}

    def command(self, command: Any) -> Any:
        """Run an operator's command."""
        return command(self.ports(self.worker()), SITE, OperatorRequest("test"), WAITS)


# What comes late.


def test_a_rename_that_comes_after_another_try_went_on_with_the_same_table_finds_nothing() -> None:
    site = OwnSite()
    assert site.stopped(choose=once("promote", Fault.LATE)).code is Code.STAGING_UNKNOWN
    before = {stage.alias: stage.uuid for stage in site.record.stages}
    assert {stage.state for stage in site.record.stages} >= {StageState.VERIFIED}
    staged = site.run()
    assert len(site.world.late) == 1
    site.world.arrive()
    after = {table.alias: table.uuid for table in site.record.desired.tables}
    assert before.items() <= after.items()
    site.finish(staged)
    assert site.live() == [content_digest("new0.0")] * 2


@pytest.mark.parametrize("again", [{}, {"series": 1}, {"run": 1}], ids=["retry", "clear", "next run"])
@pytest.mark.parametrize("point", ["create replica", "extract", "load replica", "promote", "seal"])
def test_what_comes_late_never_goes_live(point: str, again: dict[str, Any]) -> None:
    site = OwnSite()
    site.stopped(choose=once(point, Fault.LATE))
    staged = site.run(**again)
    while site.world.late:
        site.world.arrive()
    site.publish(staged)
    assert len({*site.live()}) == 1
    assert site.live()[0] in [content_digest(f"new{again.get('run', 0)}.{number}") for number in range(9)]
    assert "+" not in site.live()[0]


def test_a_load_that_still_runs_is_settled_and_its_table_taken_over_or_left_behind() -> None:
    for killed in (True, False):
        site = OwnSite()
        assert site.stopped(choose=once("load replica", Fault.LOST)).code is Code.STAGING_UNKNOWN
        (load,) = site.world.loads
        if killed:
            site.world.end_load(load, killed=True)
        staged = site.run()
        assert (load.uuid in site.record.desired.uuids) is not killed
        assert not site.world.loads
        site.finish(staged)
        assert site.live() == [content_digest("new0.0")] * 2


def test_a_load_that_ran_twice_is_found_out() -> None:
    site = OwnSite()
    stop = site.stopped(choose=once("load replica", Fault.TWICE))
    assert stop.code is Code.CONTENT_DIFFERS
    # A retry would meet the same answer, so the target was given up: a clear begins anew.
    assert site.record.phase is Phase.ABORTED
    site.publish(site.run(series=1))
    assert len({*site.live()}) == 1
    assert any(item.name.startswith("orders__dpone_") for item in site.record.retained), "kept for a day"


# The source is read once.


@pytest.mark.parametrize("point", ["create replica", "load replica", "content replica", "promote"])
def test_a_retry_reads_the_source_again_only_before_it_is_sealed(point: str) -> None:
    site = OwnSite()
    site.killed(point, skip=1)
    assert site.record.phase is Phase.STAGING
    site.finish(site.run())
    assert list(site.world.read) == [content_digest("new0.0")]


def test_another_publication_is_refused_and_reads_nothing() -> None:
    site = OwnSite()
    site.killed("seal")
    assert site.record.phase is Phase.LOCKED
    stop = site.stopped(1, dag="another")
    assert (stop.code, stop.category) == (Code.TARGET_BUSY, Category.CONFLICT)
    assert list(site.world.read) == [content_digest("new0.0")]


def test_an_execution_that_lost_the_slot_does_not_read_the_source() -> None:
    site = OwnSite()

    def choose(name: str) -> Fault:
        if name == "create replica" and not site.record.ended:
            site.command(abandon)
        return Fault.NONE

    assert site.stopped(choose=choose).code is Code.CAS_CONFLICT
    assert site.record.phase is Phase.ABORTED
    assert not site.world.read


# The ways out.


@pytest.mark.parametrize("point", ["extract", "load replica"])
def test_an_operator_gives_up_what_is_being_staged(point: str) -> None:
    site = OwnSite()
    site.killed(point)
    with pytest.raises(Stopped) as caught:
        site.command(resolve)
    assert caught.value.stop.code is Code.NOT_RESOLVABLE
    request = OperatorRequest("gone", retire=("s1/r2",))
    with pytest.raises(Stopped, match="nothing to resolve"):
        resolve(site.ports(site.worker()), SITE, request, WAITS)
    assert site.command(abandon).phase is Phase.ABORTED
    assert {name for r in site.world.replicas.values() for name in r.tables} == {"orders"}
    assert site.stopped().code is Code.IDENTITY_REUSED
    site.finish(site.run(1, dag="another"))


@pytest.mark.parametrize("damaged", [True, False])
def test_an_artifact_that_is_damaged_or_lost_is_sealed_anew(damaged: bool) -> None:
    site = OwnSite()
    site.killed("create replica", skip=1)
    (artifact,) = site.world.artifacts.values()
    artifact.damaged = damaged
    if damaged:
        # A retry finds it there, and is told what it is when it loads it.
        assert site.stopped().code is Code.STAGING_FAILED
        assert site.record.phase is Phase.STAGING
    else:
        site.world.artifacts.clear()
    site.finish(site.run(series=int(damaged)))
    assert site.live() == [content_digest("new0.1")] * 2


def test_live_tables_that_differ_are_never_replaced_and_the_source_is_not_read() -> None:
    site = OwnSite()
    replica = site.world.replicas["s1/r2"]
    replica.tables["orders"] = replace(replica.tables["orders"], rows=8, content="old+stray")
    stop = site.stopped()
    assert stop.code is Code.TARGET_NOT_UNIFORM
    assert not site.world.read
    assert site.record.phase is Phase.ABORTED
    assert site.why_given_up(site.record.operation_id) == "TARGET_NOT_UNIFORM"
    # They are brought together, and the task is cleared.
    first = site.world.replicas["s1/r1"]
    first.tables["orders"] = replace(first.tables["orders"], rows=8, content="old+stray")
    staged = site.run(series=1)
    assert site.record.baseline is not None
    assert site.record.baseline.sha256 == content_digest("old+stray")
    site.finish(staged)


def test_a_rollback_brings_every_replicas_own_table_back() -> None:
    site = OwnSite()
    before = [replica.tables["orders"].uuid for replica in site.world.replicas.values()]
    staged = site.run(retention=1_000)
    site.publish(staged)
    site.cleanup(staged)
    request = OperatorRequest("test", staged.operation_id)
    done = rollback(site.ports(site.worker()), SITE, request, WAITS)
    assert (done.rows, done.replayed) == (OLD.rows, False)
    assert [replica.tables["orders"].uuid for replica in site.world.replicas.values()] == before
    again = rollback(site.ports(site.worker()), SITE, request, WAITS)
    assert again == replace(done, replayed=True)


def test_a_run_that_follows_one_that_is_staged_says_so_in_its_trail() -> None:
    site = OwnSite()
    site.killed("extract")
    followed = site.record.operation_id
    site.finish(site.run(1))
    assert site.why_given_up(followed) == "SUPERSEDED"


# From one mode to the other.


def change_mode(site: Site) -> None:
    """Somebody configures the cluster anew, with other tables under the target's name."""
    world = site.world
    world.independent = not world.independent
    members = (replace(m, internal_replication=not world.independent) for m in world.inventory.members)
    world.inventory = Inventory(world.inventory.cluster, tuple(members))
    world.seed("orders", replace(OLD, uuid="00000000-0000-4000-8000-0000000000aa"))


def stage_once(site: OwnSite, run: int) -> StageReceipt:
    if site.world.independent:
        return site.run(run)
    worker: Worker = site.worker()
    staging = SimStaging(worker, 10 + run, f"new{run}")
    return stage(site.ports(worker), staging, SITE, site.request(run), WAITS)


@pytest.mark.parametrize("independent", [False, True], ids=["to external", "to internal"])
def test_the_mode_changes_when_the_last_publication_is_over(independent: bool) -> None:
    site = OwnSite(world=World(independent=independent))
    kinds = (IndependentRecord, ReplicatedRecord)
    stage_once(site, 0)
    change_mode(site)
    with pytest.raises(Stopped) as caught:
        stage_once(site, 1)
    assert caught.value.stop.code is Code.REPLICATION_MODE_MISMATCH
    site = OwnSite(world=World(independent=independent))
    site.finish(staged := stage_once(site, 0))
    assert site.phase() is Phase.COMPLETED
    change_mode(site)
    after = stage_once(site, 1)
    stored = site.world.stored(KEY)
    assert stored is not None
    assert isinstance(stored.record, kinds[independent])
    assert stored.record.find_settled(staged.operation_id) is not None
    site.finish(after)
