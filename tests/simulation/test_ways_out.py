"""What operators begin themselves, with a fault at every call, and workers that wake up afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import rollback as rollback_step
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.orphans import Orphan, Why
from airflow_provider_dpone.publication.receipt import StageReceipt
from airflow_provider_dpone.publication.record import Phase, StoredRecord
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import (
    OperatorRequest,
    abandon,
    drop_orphan,
    forget,
    resolve,
    rollback,
)
from tests.simulation.ports import KEY, Fault, Killed, Worker
from tests.simulation.run import OLD, SITE, WAITS
from tests.simulation.run import leftovers as find_leftovers
from tests.simulation.test_review_findings import Site, once
from tests.simulation.world import Replica, World

KEEP = 1_000


def record(site: Site) -> StoredRecord:
    stored = site.world.stored(KEY)
    assert stored is not None
    return stored


def live(site: Site) -> list[str]:
    return [replica.tables["orders"].content for replica in site.world.replicas.values()]


def published(site: Site, run: int = 0, *, retention: int = KEEP) -> StageReceipt:
    staged = site.refresh(run, retention=retention)
    site.cleanup(staged)
    return staged


def roll_back(site: Site, operation: str, worker: Worker | None = None) -> Any:
    worker = worker or site.worker()
    return rollback(site.ports(worker), SITE, OperatorRequest("test", operation[:16]), WAITS)


def counting() -> tuple[Callable[[str], Fault], list[str]]:
    points: list[str] = []

    def choose(name: str) -> Fault:
        points.append(name)
        return Fault.NONE

    return choose, points


def at(number: int, fault: Fault) -> Callable[[str], Fault]:
    """``fault`` at the call of this number."""
    calls = [0]

    def choose(_: str) -> Fault:
        calls[0] += 1
        return fault if calls[0] - 1 == number else Fault.NONE

    return choose


# Rollback.


def test_a_rollback_publishes_the_kept_table_once_and_says_so_again() -> None:
    site = Site()
    staged = published(site)
    swaps = site.swaps()
    done = roll_back(site, staged.operation_id)
    assert (done.phase, done.uuid, done.rows, done.replayed) == (
        Phase.COMPLETED_RETAINING,
        OLD.uuid,
        OLD.rows,
        False,
    )
    assert live(site) == ["old", "old"]
    assert done.retained == (staged.candidate,)
    again = roll_back(site, staged.operation_id)
    assert again == replace(done, replayed=True)
    assert site.swaps() == swaps + 1


def test_a_rollback_is_rolled_back_only_by_its_own_name() -> None:
    site = Site()
    staged = published(site)
    done = roll_back(site, staged.operation_id)
    back = roll_back(site, done.operation_id)
    assert back.uuid == staged.candidate_uuid
    assert live(site) == ["new0", "new0"]
    with pytest.raises(Stopped) as caught:
        roll_back(site, staged.operation_id)
    assert caught.value.stop.code in (Code.NOT_RESOLVABLE, Code.GENERATION_UNKNOWN)
    assert live(site) == ["new0", "new0"]


def test_the_next_run_follows_a_rollback() -> None:
    site = Site()
    staged = published(site)
    roll_back(site, staged.operation_id)
    published(site, 1)
    assert live(site) == ["new1", "new1"]


def test_a_rollback_of_a_committed_operation_frees_its_slot_first() -> None:
    site = Site()
    staged = site.refresh(0, retention=KEEP)
    assert site.phase() is Phase.COMMITTED
    assert roll_back(site, staged.operation_id).uuid == OLD.uuid


@pytest.mark.parametrize("case", ["nothing is kept", "due", "another table is live", "altered"])
def test_a_rollback_is_refused_without_a_trace(case: str) -> None:
    site = Site()
    staged = published(site, retention=0 if case == "nothing is kept" else KEEP)
    match case:
        case "due":
            site.world.now += KEEP
        case "another table is live":
            for replica in site.world.replicas.values():
                replica.tables["orders"] = replace(OLD, uuid="00000000-0000-4000-8000-00000000000c")
        case "altered":
            replica = site.world.replicas["s1/r2"]
            replica.tables[staged.candidate] = replace(replica.tables[staged.candidate], path="/another")
    before = record(site)
    with pytest.raises(Stopped):
        roll_back(site, staged.operation_id)
    assert record(site) == before
    assert site.swaps() == 1


def test_a_kept_table_whose_rows_differ_between_replicas_is_not_published_again() -> None:
    site = Site()
    staged = published(site)
    replica = site.world.replicas["s1/r2"]
    replica.tables[staged.candidate] = replace(replica.tables[staged.candidate], rows=1)
    with pytest.raises(Stopped) as caught:
        roll_back(site, staged.operation_id)
    assert caught.value.stop.code is Code.CONTENT_DIFFERS
    assert live(site) == ["new0", "new0"]


def test_an_abandoned_rollback_keeps_the_table_as_long_as_before_and_can_be_begun_again() -> None:
    site = Site()
    staged = published(site)
    until = record(site).record.retained[0].drop_after
    with pytest.raises(Killed):
        roll_back(site, staged.operation_id, site.worker(once("content", Fault.KILL_BEFORE, skip=1)))
    assert site.phase() is Phase.PREPARED
    with pytest.raises(Stopped) as caught:
        site.stage(1)
    assert caught.value.stop.code is Code.TARGET_BUSY
    assert "rollback" in caught.value.stop.next_action
    abandon(site.ports(site.worker()), SITE, OperatorRequest("test"), WAITS)
    assert [item.drop_after for item in record(site).record.retained] == [until]
    assert roll_back(site, staged.operation_id).uuid == OLD.uuid
    assert live(site) == ["old", "old"]


def test_a_rollback_that_meets_any_fault_at_any_call_ends_when_it_is_run_again() -> None:
    site = Site()
    staged = published(site)
    begun = deepcopy(site)
    choose, points = counting()
    roll_back(site, staged.operation_id, site.worker(choose))
    for number in range(len(points)):
        for fault in Fault:
            if fault is Fault.NONE:
                continue
            site = deepcopy(begun)
            with suppress(Stopped, Killed):
                roll_back(site, staged.operation_id, site.worker(at(number, fault)))
            site.world.heal()
            for _ in range(3):
                try:
                    done = roll_back(site, staged.operation_id)
                    break
                except Stopped:
                    # Held, since nobody can know whether the swap was sent.
                    with suppress(Stopped):
                        resolve(site.ports(site.worker()), SITE, OperatorRequest("test"), WAITS)
            where = f"{fault} at call {number} ({points[number]})"
            assert live(site) == ["old", "old"], where
            assert done.uuid == OLD.uuid, where
            per_operation: dict[str, int] = {}
            for token, _ in site.world.sent:
                _, operation, action, *_ = token.split(":")
                if action == "publish":
                    per_operation[operation] = per_operation.get(operation, 0) + 1
            assert max(per_operation.values()) == 1, where
            site.world.work_all()
            assert live(site) == ["old", "old"], where


# Orphans.


def leftovers(site: Site) -> tuple[Orphan, ...]:
    return find_leftovers(site.world, site.trail)


def drop(site: Site, orphan: Orphan, worker: Worker | None = None) -> Any:
    return drop_orphan(site.ports(worker or site.worker()), SITE, orphan, OperatorRequest("test"), WAITS)


def died_while_staging(site: Site) -> Orphan:
    with pytest.raises(Killed):
        site.stage(6, worker=site.worker(once("load", Fault.KILL_AFTER)))
    (orphan,) = leftovers(site)
    assert (orphan.why, orphan.table) == (Why.LEFT, "orders")
    return orphan


@pytest.mark.parametrize("before", [False, True], ids=["no record", "a record"])
def test_what_a_dead_stage_left_is_dropped(before: bool) -> None:
    site = Site()
    if before:
        published(site, 5, retention=0)
    orphan = died_while_staging(site)
    assert drop(site, orphan).gone
    assert leftovers(site) == ()
    assert all(set(replica.tables) == {"orders"} for replica in site.world.replicas.values())
    published(site, 7)
    assert live(site) == ["new7", "new7"]


@dataclass(slots=True)
class Sleeper(Worker):
    """While this worker stages, somebody else acts before its next call named ``point``."""

    point: str = ""
    meanwhile: Callable[[], object] = lambda: None

    def call(self, name: str) -> Fault:
        if name == self.point:
            act, self.meanwhile = self.meanwhile, lambda: None
            act()
        return Worker.call(self, name)


@pytest.mark.parametrize("point", ["content", "observe", "evidence compare-and-swap", "write"])
@pytest.mark.parametrize("before", [False, True], ids=["no record", "a record"])
def test_a_stage_task_that_sleeps_while_its_candidate_is_dropped_prepares_nothing(
    before: bool, point: str
) -> None:
    site = Site()
    if before:
        published(site, 5, retention=0)
    worker = site.worker(kind=Sleeper)
    worker.point = point

    def act() -> None:
        (orphan,) = leftovers(site)
        drop(site, orphan)

    def staged() -> None:
        # Only when the candidate is loaded.
        if any(table.rows == 19 for table in site.world.replicas["s1/r1"].tables.values()):
            act()
        else:
            worker.meanwhile = staged

    worker.meanwhile = staged
    with pytest.raises(Stopped):
        site.stage(9, worker=worker)
    site.world.work_all()
    assert leftovers(site) == ()
    stored = site.world.stored(KEY)
    assert stored is not None
    assert stored.record.phase is not Phase.PREPARED
    published(site, 10)
    assert live(site) == ["new10", "new10"]


def test_a_table_that_an_operation_needs_is_never_dropped() -> None:
    site = Site()
    orphan = died_while_staging(site)
    staged = site.stage(7)
    assert [one.why for one in leftovers(site)] == [Why.UNDER_WAY]
    for one in (orphan, replace(orphan, name=staged.candidate, uuids={"s1/r1": staged.candidate_uuid})):
        with pytest.raises(Stopped) as caught:
            drop(site, one)
        assert caught.value.stop.code is Code.TARGET_BUSY
    assert not any(isinstance(statement, Drop) for _, statement in site.world.sent)


def test_another_table_under_the_orphans_name_is_left_alone() -> None:
    site = Site()
    orphan = died_while_staging(site)
    foreign = replace(OLD, uuid="ffffffff-0000-4000-8000-000000000001")
    site.world.replicas["s1/r2"].tables[orphan.name] = foreign
    assert [one.why for one in leftovers(site)] == [Why.UNEVEN]
    with pytest.raises(Stopped):
        drop(site, orphan)
    assert site.world.replicas["s1/r2"].tables[orphan.name] == foreign


def test_a_drop_of_an_orphan_that_meets_any_fault_at_any_call_ends_when_it_is_run_again() -> None:
    site = Site()
    choose, points = counting()
    orphan = died_while_staging(site)
    begun = deepcopy(site)
    drop(site, orphan, site.worker(choose))
    for number in range(len(points)):
        for fault in Fault:
            if fault is Fault.NONE:
                continue
            site = deepcopy(begun)
            with suppress(Stopped, Killed):
                drop(site, orphan, site.worker(at(number, fault)))
            site.world.heal()
            for one in leftovers(site):
                drop(site, one)
            where = f"{fault} at call {number} ({points[number]})"
            assert leftovers(site) == (), where
            published(site, 7)
            assert live(site) == ["new7", "new7"], where


def test_a_kept_table_whose_name_was_taken_is_forgotten_and_nothing_is_dropped() -> None:
    site = Site()
    staged = published(site)
    with pytest.raises(Stopped):
        forget(site.ports(site.worker()), SITE, staged.candidate, OperatorRequest("test"), WAITS)
    foreign = replace(OLD, uuid="ffffffff-0000-4000-8000-000000000001")
    for replica in site.world.replicas.values():
        replica.tables[staged.candidate] = foreign
    (orphan,) = leftovers(site)
    assert orphan.why is Why.REPLACED
    with pytest.raises(Stopped):
        drop(site, orphan)
    item = forget(site.ports(site.worker()), SITE, staged.candidate, OperatorRequest("test"), WAITS)
    assert item.generation.uuid == OLD.uuid
    assert record(site).record.retained == ()
    assert all(r.tables[staged.candidate] == foreign for r in site.world.replicas.values())


# A replica that is gone for ever.


def retire(site: Site, *gone: str, worker: Worker | None = None) -> Any:
    request = OperatorRequest("test", retire=gone)
    return resolve(site.ports(worker or site.worker()), SITE, request, WAITS)


def lost_a_replica(*, swapped: bool, swap_on_the_lost: bool) -> tuple[Site, StageReceipt, Replica]:
    """A hold: the swap is in the queue, the second of three replicas burnt down, and the cluster forgot it."""
    site = Site(World(3))
    staged = site.stage(0, retention=KEEP)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))
    if not swapped:
        for alias in site.world.replicas:
            site.world.fail_next[alias] = 1
    if not swap_on_the_lost:
        site.world.replicas["s1/r2"].up = False
    site.world.work_all()
    site.world.fail_next.clear()
    gone = site.world.remove("s1/r2")
    gone.up = False
    with pytest.raises(Stopped) as caught:
        site.publish(staged)
    assert caught.value.stop.code is Code.INVENTORY_DRIFT
    return site, staged, gone


@pytest.mark.parametrize("swap_on_the_lost", [False, True], ids=["lost before", "lost after"])
@pytest.mark.parametrize("swapped", [False, True], ids=["old", "new"])
def test_an_operation_ends_without_a_replica_that_is_gone_and_what_comes_back_hurts_nobody(
    swapped: bool, swap_on_the_lost: bool
) -> None:
    site, staged, gone = lost_a_replica(swapped=swapped, swap_on_the_lost=swap_on_the_lost)
    with pytest.raises(Stopped) as caught:
        resolve(site.ports(site.worker()), SITE, OperatorRequest("test"), WAITS)
    assert caught.value.stop.code is Code.INVENTORY_DRIFT
    ended = retire(site, "s1/r2")
    assert ended.retired == ("s1/r2",)
    assert ended.phase is (Phase.COMMITTED if swapped else Phase.ABORTED)
    assert live(site) == (["new0"] * 2 if swapped else ["old"] * 2)
    assert record(site).record.replicas == ("s1/r1", "s1/r2")
    if swapped:
        receipt = site.publish(staged)
        assert receipt.retired == ("s1/r2",)
        assert [replica.alias for replica in receipt.replicas] == ["s1/r1", "s1/r2"]
    published(site, 1)
    gone.up = True
    before = live(site)
    for _ in range(20):
        site.world.work_on("gone", gone)
    assert live(site) == before == ["new1", "new1"]
    published(site, 2)
    assert live(site) == ["new2", "new2"]


def test_a_swap_that_nobody_saw_is_disarmed_on_the_replicas_that_are_left() -> None:
    site = Site(World(3))
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_BEFORE)))
    gone = site.world.remove("s1/r2")
    assert retire(site, "s1/r2").phase is Phase.ABORTED
    gone.up = True
    for _ in range(20):
        site.world.work_on("gone", gone)
    assert live(site) == ["old", "old"]


@pytest.mark.parametrize("swapped", [False, True], ids=["old", "new"])
def test_a_retirement_that_meets_any_fault_at_any_call_ends_when_it_is_run_again(swapped: bool) -> None:
    site, _, _ = lost_a_replica(swapped=swapped, swap_on_the_lost=False)
    begun = deepcopy(site)
    choose, points = counting()
    retire(site, "s1/r2", worker=site.worker(choose))
    for number in range(len(points)):
        for fault in Fault:
            if fault is Fault.NONE:
                continue
            site = deepcopy(begun)
            with suppress(Stopped, Killed):
                retire(site, "s1/r2", worker=site.worker(at(number, fault)))
            site.world.heal()
            ended = retire(site, "s1/r2")
            where = f"{fault} at call {number} ({points[number]})"
            assert ended.phase is (Phase.COMMITTED if swapped else Phase.ABORTED), where
            assert [r.alias for r in record(site).record.retired] == ["s1/r2"], where
            site.world.work_all()
            assert live(site) == (["new0"] * 2 if swapped else ["old"] * 2), where


def test_a_publish_task_that_sleeps_goes_on_with_the_replicas_that_are_left() -> None:
    site, staged, _ = lost_a_replica(swapped=True, swap_on_the_lost=False)
    worker = site.worker(once("write", Fault.KILL_AFTER, skip=1))
    with pytest.raises(Killed):
        retire(site, "s1/r2", worker=worker)
    assert [r.alias for r in record(site).record.retired] == ["s1/r2"]
    assert site.publish(staged).state is Phase.COMMITTED


# Planted bugs: each must break what the tests above rely on.


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "without a new fence token"])
def test_only_the_new_fence_token_keeps_a_stage_task_from_preparing_what_is_about_to_be_dropped(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transitions.listed

    def listed(record: Any, *args: Any, **more: Any) -> Any:
        return replace(real(record, *args, **more), fence_token=record.fence_token)

    if planted:
        monkeypatch.setattr(transitions, "listed", listed)
    site = Site()
    published(site, 5, retention=0)
    worker = site.worker(kind=Sleeper)
    worker.point = "content"

    def dropped_late() -> None:
        # The operator's process dies when the drop is sent, and the replicas are slow.
        with suppress(Killed):
            drop(site, leftovers(site)[0], site.worker(once("send", Fault.KILL_AFTER)))
        for replica in site.world.replicas.values():
            replica.paused = True

    worker.meanwhile = dropped_late
    with suppress(Stopped):
        site.stage(9, worker=worker)
    now = record(site).record
    prepared = now.phase is Phase.PREPARED
    for replica in site.world.replicas.values():
        replica.paused = False
    site.world.work_all()
    lost = all(now.candidate not in replica.tables for replica in site.world.replicas.values())
    assert (prepared and lost) is planted


def test_a_rollback_that_were_a_new_operation_each_time_would_swap_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollback_step, "is_rollback_of", lambda *_: False)
    site = Site()
    staged = published(site)
    roll_back(site, staged.operation_id)
    with pytest.raises(Stopped):
        roll_back(site, staged.operation_id)
    assert live(site) == ["old", "old"], "what is live is compared before anything is sent"
