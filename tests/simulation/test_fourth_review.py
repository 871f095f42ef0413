"""Fourth review: histories of the real route code that must not end as they do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import TaskIdentity
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.publication.trail import PermitUnused
from airflow_provider_dpone.routes.cluster_refresh import (
    OperatorRequest,
    StageRequest,
    abandon,
    resolve,
    stage,
)
from airflow_provider_dpone.routes.ports import Claimed
from tests.simulation.ports import KEY, Fault, SimStaging, Worker
from tests.simulation.run import OLD, SITE, WAITS
from tests.simulation.test_review_findings import Site, once
from tests.simulation.world import Replica, World


def restage(site: Site, run: int) -> Any:
    """The next try of the same stage task, whose plan changed."""
    worker = site.worker()
    request = StageRequest(
        TaskIdentity("airflow", "dag", f"run{run}", "stage", -1, "0"),
        Owner("dag", f"run{run}", "stage", -1),
        order_key=f"{run:04d}",
        retention=1_000,
    )
    return stage(
        site.ports(worker), SimStaging(worker, 99, "second", plan_digest="q" * 64), SITE, request, WAITS
    )


@dataclass(slots=True)
class Sleeper(Worker):
    """A try that Airflow believes dead. It sleeps once when its PREPARED is stored, and once before a DROP."""

    prepared: Callable[[], object] = lambda: None
    before_drop: Callable[[], object] = lambda: None

    def call(self, name: str) -> Fault:
        if name == "evidence compare-and-swap-outcome":
            act, self.prepared = self.prepared, lambda: None
            act()
        if name == "drop candidate":
            act, self.before_drop = self.before_drop, lambda: None
            act()
        return Worker.call(self, name)


# 1. A zombie try takes the candidate of the next try for one that was left by an earlier one.


def test_a_sleeping_try_never_drops_the_candidate_that_the_next_try_prepared() -> None:
    site = Site()
    second: list[Any] = []
    worker = site.worker(kind=Sleeper)
    worker.prepared = lambda: second.append(restage(site, 0))
    site.stage(0, worker=worker, retention=1_000)
    site.world.work_all()
    stored = site.world.stored(KEY)
    assert stored is not None
    assert stored.record.candidate == second[0].candidate
    assert all(stored.record.candidate in replica.tables for replica in site.world.replicas.values())


def test_a_sleeping_try_never_drops_the_predecessor_of_the_next_try() -> None:
    site = Site()
    second: list[Any] = []
    worker = site.worker(kind=Sleeper)
    worker.prepared = lambda: second.append(restage(site, 0))
    worker.before_drop = lambda: site.publish(second[0])
    site.stage(0, worker=worker, retention=1_000)
    site.world.work_all()
    assert OLD.uuid in site.uuids(), "the predecessor is kept for its retention"


def test_a_sleeping_try_never_drops_the_live_table_of_a_swap_under_way() -> None:
    """One replica swaps late: the DROP is behind the EXCHANGE in the queue, so nothing of it is lost there."""
    site = Site()
    second: list[Any] = []
    worker = site.worker(kind=Sleeper)
    worker.prepared = lambda: second.append(restage(site, 0))

    def under_way() -> None:
        site.world.replicas["s1/r2"].paused = True
        with suppress(Stopped):
            site.publish(second[0])

    worker.before_drop = under_way
    site.stage(0, worker=worker, retention=1_000)
    site.world.replicas["s1/r2"].paused = False
    site.world.work_all()
    with suppress(Stopped):
        site.publish(second[0])
    assert site.phase() is Phase.COMMITTED, site.phase()
    assert OLD.uuid in site.uuids()


# 2. The cluster grew between the last look and the permit: proven unsent, and held for ever.


@dataclass(slots=True)
class Growing(Worker):
    def claim(self, *args: Any) -> Any:
        result = Worker.claim(self, *args)
        if isinstance(result, Claimed):
            grow(self.world)
            return replace(result, inventory_digest=self.world.inventory.digest)
        return result


def grow(world: World) -> None:
    number = len(world.replicas) + 1
    member = Member(1, number, f"host{number}", 9000, True)
    world.inventory = Inventory("analytics", (*world.inventory.members, member))
    world.replicas[f"s1/r{number}"] = Replica(member.host_name, {"orders": OLD})


def test_a_swap_that_was_provably_not_sent_can_be_given_up_after_the_cluster_grew() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=site.worker(kind=Growing))
    assert caught.value.stop.code is Code.INVENTORY_DRIFT
    assert site.swaps() == 0
    assert any(isinstance(body, PermitUnused) for _, body in site.trail.entries)
    said = []
    for act in (
        lambda: site.publish(staged),
        lambda: resolve(site.ports(site.worker()), SITE, OperatorRequest("grown"), WAITS),
        lambda: abandon(site.ports(site.worker()), SITE, OperatorRequest("grown"), WAITS),
        lambda: site.stage(1),
    ):
        try:
            act()
        except Stopped as stopped:
            said.append(stopped.stop.code.name)
    stored = site.world.stored(KEY)
    assert stored is not None
    free = stored.record.ended or stored.record.phase is Phase.PREPARED
    assert free, (stored.record.phase, said)


# 3. A disk that reports an error when it is asked to keep an entry.


def test_an_entry_that_the_disk_did_not_keep_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import ObjectStoragePath

    from airflow_provider_dpone.evidence import objects

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(Stopped):
        objects.create(ObjectStoragePath(f"file://{tmp_path}/op"), "entry.json", b"{}")


# 4. A store that fails for a moment does not throw a whole load away.


def test_a_store_that_fails_for_a_moment_before_prepared_costs_no_load() -> None:
    site = Site()
    worker = site.worker(once("evidence compare-and-swap", Fault.REFUSED))
    site.stage(0, worker=worker)
    assert site.phase() is Phase.PREPARED


# 5. The trail of a failed load on another installation with the same cluster name.


def test_the_trail_of_another_control_table_is_kept() -> None:
    from airflow_provider_dpone.publication.prune import ClusterNow, TrailFacts, needed

    trail = TrailFacts(
        "o" * 64, "2020", ("mart", "orders"), "b" * 32, False, (("mart", "orders__dpone_1"),), False
    )
    site = Site()
    site.refresh(0)
    stored = site.world.stored(KEY)
    assert stored is not None
    assert stored.record.authority_id != trail.authority_id
    now = ClusterNow((stored.record,), {"mart": frozenset()})
    assert needed(trail, now, before="2026") is not None


# 6. A rollback, where an earlier try's candidate is listed before the table that was replaced.


def test_a_rollback_takes_the_table_that_was_live_and_not_an_earlier_trys_candidate() -> None:
    from airflow_provider_dpone.routes.cluster_refresh import rollback

    site = Site()
    site.stage(0, retention=1_000)
    second = restage(site, 0)
    site.publish(second)
    request = OperatorRequest("bad data", operation=second.operation_id)
    done = rollback(site.ports(site.worker()), SITE, request, WAITS)
    assert done.uuid == OLD.uuid


# 7. The clocks of two servers differ by seconds.


def test_a_rollback_never_publishes_what_was_never_live() -> None:
    from airflow_provider_dpone.routes.cluster_refresh import rollback

    site = Site()
    site.stage(0, retention=1_000)
    site.world.now += 30
    second = restage(site, 0)
    site.publish(second)
    site.world.now -= 30
    request = OperatorRequest("bad data", operation=second.operation_id)
    with suppress(Stopped):
        rollback(site.ports(site.worker()), SITE, request, WAITS)
    site.world.work_all()
    live = {replica.tables["orders"].content for replica in site.world.replicas.values()}
    assert live <= {"old", "second"}, live


# 8. A fresh server stands in a replica's place while a swap is waited for.


@dataclass(slots=True)
class FreshServer(Worker):
    """From the dispatch on, one replica has no control table, so that no rows of it can be read anywhere."""

    def observe(self, tables: Collection[str]) -> Observation:
        seen = Worker.observe(self, tables)
        if not self.world.sent:
            return seen
        control = replace(
            seen.replicas["s1/r2"].control, structure=None, sentinel=None, write_id=None, version=None
        )
        facts = {
            alias: replace(f, control=replace(f.control, sentinel=None, write_id=None, version=None))
            for alias, f in seen.replicas.items()
        }
        facts["s1/r2"] = replace(facts["s1/r2"], control=control)
        return replace(seen, record=None, replicas=facts)


def test_a_replica_without_a_control_table_is_named_and_not_called_a_loss() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=site.worker(kind=FreshServer))
    assert caught.value.stop.code is Code.CONTROL_TABLE_MISSING
