"""Fifth review: unknown moves that are looked at again, waits for a busy target, and what warnings say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_dpone.publication.facts import Dependent, Observation
from airflow_provider_dpone.publication.receipt import PublicationReceipt, stale_dictionaries
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import PublishRequest, publish
from tests.simulation.ports import KEY, Fault, Worker
from tests.simulation.run import OLD, SITE, WAITS
from tests.simulation.test_looking_again import UNKNOWN, dispatched, stage_when_free
from tests.simulation.test_review_findings import Site, once
from tests.simulation.world import World, clone
from tests.unit.builders import in_phase

ALTERED = clone(OLD, uuid="00000000-0000-4000-8000-0000000000ff")


@dataclass(slots=True)
class Acting(Worker):
    """A worker beside which something happens at its calls: ``act`` is told the call's name and number."""

    act: Callable[[str, int], object] = lambda name, number: None
    numbers: Any = None

    def call(self, name: str) -> Fault:
        self.numbers = self.numbers or {}
        self.numbers[name] = self.numbers.get(name, 0) + 1
        self.act(name, self.numbers[name])
        return Worker.call(self, name)


def every(world: World, name: str, table: Any) -> None:
    for replica in world.replicas.values():
        replica.tables[name] = table


# 1. A move that is unknown long after an earlier one was.


@pytest.mark.parametrize("fault", UNKNOWN)
def test_each_unknown_move_is_looked_at_again_however_long_ago_an_earlier_one_was(fault: Fault) -> None:
    """The entry is bound at once; one replica is away for longer than ``Waits.visible``; then Keeper hiccups again."""
    site = Site()
    staged = site.stage(0)
    first, second = once("write", fault), once("write", fault, skip=2 if fault is not Fault.LOST else 1)
    worker = site.worker(
        lambda name: max(first(name), second(name), key=lambda f: f is not Fault.NONE), Acting
    )
    away = site.world.replicas["s1/r2"]

    def act(name: str, number: int) -> None:
        if name == "send":
            away.paused = True
        if name == "sleep" and number == 5:
            away.paused = False

    worker.act = act
    receipt = site.publish(staged, worker=worker)
    assert isinstance(receipt, PublicationReceipt)
    assert site.swaps() == 1


# 2. Keeper that can't be written for a moment can't be read then either.


@pytest.mark.parametrize("fault", UNKNOWN)
def test_a_look_that_fails_after_an_unknown_move_is_waited_for_like_any_other(fault: Fault) -> None:
    site = Site()
    staged = site.stage(0)
    unknown = [False]
    commit = once("write", fault, skip=1)

    def choose(name: str) -> Fault:
        if name == "observe" and unknown[0]:
            unknown[0] = False
            return Fault.REFUSED
        found = commit(name)
        unknown[0] = unknown[0] or found is not Fault.NONE
        return found

    receipt = site.publish(staged, worker=site.worker(choose))
    assert isinstance(receipt, PublicationReceipt)
    assert site.swaps() == 1


# 3. What the receipt warns of, where the reply to the last move was lost or somebody else made it.

NAMES = Dependent("mart", "names", "Dictionary")


@dataclass(slots=True)
class Loading(Acting):
    """A dictionary hangs on the target, and no replica has loaded it since the swap."""

    def observe(self, tables: Collection[str]) -> Observation:
        return replace(Worker.observe(self, tables), dependents=(NAMES,))

    def dictionary_loads(self, dictionaries: Collection[Dependent]) -> Mapping[str, Mapping[Dependent, int]]:
        return {alias: {NAMES: 1} for alias in self.world.replicas}


def test_a_receipt_warns_of_a_dictionary() -> None:
    site = Site()
    staged = site.stage(0)
    assert "names" in " ".join(site.publish(staged, worker=site.worker(kind=Loading)).warnings)


def test_a_receipt_warns_of_a_dictionary_though_the_reply_to_the_commit_was_lost() -> None:
    site = Site()
    staged = site.stage(0)
    # The first write binds the entry.
    receipt = site.publish(staged, worker=site.worker(once("write", Fault.LOST, skip=1), Loading))
    assert not receipt.replayed
    assert "names" in " ".join(receipt.warnings)


def test_a_receipt_warns_of_a_dictionary_though_another_worker_recorded_the_proof() -> None:
    site = Site()
    staged = site.stage(0)
    worker = site.worker(kind=Loading)
    twin = site.worker(kind=Loading)

    def act(name: str, number: int) -> None:
        if name == "sleep" and number == 1:
            publish(site.ports(twin), SITE, PublishRequest(staged.operation_id), WAITS)

    worker.act = act
    receipt = site.publish(staged, worker=worker)
    assert not receipt.replayed
    assert "names" in " ".join(receipt.warnings)


def test_a_warning_does_not_say_what_is_not_known_of_a_dictionary() -> None:
    """Measured on 26.9: after the swap one that was never loaded, or is DIRECT, or whose cached keys are over,
    answers with the new rows; the last two are never loaded again."""
    (warning,) = stale_dictionaries(in_phase(Phase.COMMITTED), [NAMES], {})
    assert "answers with the old rows" not in warning


# 4. A content check that is older than a wait.


def test_after_an_unknown_move_the_content_is_checked_again_before_the_swap() -> None:
    """ABORTED is unknown; while it is waited for, the live table comes back, and somebody writes to the candidate."""
    site = Site()
    staged = site.stage(0)
    every(site.world, "orders", ALTERED)
    worker = site.worker(once("write", Fault.UNSENT), Acting)
    unknown = [False]

    def act(name: str, number: int) -> None:
        if name == "write":
            unknown[0] = True
        if name == "sleep" and unknown[0]:
            every(site.world, "orders", OLD)
            table = site.world.replicas["s1/r1"].tables[staged.candidate]
            every(site.world, staged.candidate, clone(table, content="tampered"))

    worker.act = act
    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=worker)
    assert caught.value.stop.code is Code.CONTENT_DIFFERS
    assert site.swaps() == 0


# 5. Why an operation was given up, where the reply to that was lost.


@pytest.mark.parametrize("fault", [Fault.NONE, *UNKNOWN])
@pytest.mark.parametrize("late", range(1, 5))
def test_an_operation_that_is_given_up_says_why_whatever_became_of_the_first_reply(
    fault: Fault, late: int
) -> None:
    """Not that later data wins: there is none."""
    site = Site()
    staged = site.stage(0)
    every(site.world, "orders", ALTERED)
    worker = site.worker(once("write", fault), Acting)
    calls = [0]

    def act(name: str, number: int) -> None:
        calls[0] += bool(worker.numbers.get("write"))
        if calls[0] == late + 1:
            site.world.arrive()

    worker.act = act
    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=worker)
    assert site.phase() is Phase.ABORTED
    assert site.swaps() == 0
    assert caught.value.stop.code is Code.TARGET_MOVED
    site.world.heal()
    assert ALTERED.uuid in site.uuids()


# What held.


def arriving(site: Site, kind: type[Worker], at: int, choose: Callable[[str], Fault]) -> Any:
    """A worker beside which what was sent and not answered arrives ``at`` calls after its first write."""
    worker = site.worker(choose, kind)
    calls = [0]

    def act(name: str, number: int) -> None:
        calls[0] += bool(worker.numbers.get("write"))
        if calls[0] == at + 1:
            site.world.arrive()

    worker.act = act
    return worker


def unused_permit(site: Site) -> Any:
    """An operation whose permit was claimed and provably never used."""
    staged = site.stage(0)
    with pytest.raises(Stopped):
        site.publish(staged, worker=site.worker(once("claim", Fault.LOST)))
    assert site.phase() is Phase.DISPATCHING
    return staged


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("at", range(24))
def test_a_rearm_that_is_unknown_and_late_never_allows_a_second_send(fault: Fault, at: int) -> None:
    site = Site()
    staged = unused_permit(site)
    receipt = site.publish(staged, worker=arriving(site, Acting, at, once("write", fault)))
    assert isinstance(receipt, PublicationReceipt)
    site.world.heal()
    assert site.swaps() == 1
    assert site.phase() is Phase.COMMITTED


@pytest.mark.parametrize("at", range(20))
@pytest.mark.parametrize("skip", range(3))
def test_two_who_rearm_and_go_on_send_once(at: int, skip: int) -> None:
    """The second one runs as a whole at some call of the first one, whose first write comes late."""
    site = Site()
    staged = unused_permit(site)
    worker = site.worker(once("write", Fault.LATE, skip=skip), Acting)
    calls = [0]

    def act(name: str, number: int) -> None:
        calls[0] += bool(worker.numbers.get("write"))
        if calls[0] == at + 1:
            with suppress(Stopped):
                publish(site.ports(site.worker()), SITE, PublishRequest(staged.operation_id), WAITS)
            site.world.arrive()

    worker.act = act
    # Where the other one goes on while a permit is claimed, it may end as unknown: a retry goes on.
    with suppress(Stopped):
        site.publish(staged, worker=worker)
    site.world.heal()
    site.publish(staged)
    assert site.swaps() == 1
    assert site.phase() is Phase.COMMITTED


@pytest.mark.parametrize("at", range(16))
def test_an_abort_that_is_unknown_and_late_never_meets_a_swap(at: int) -> None:
    """The live table is back when it is looked at again: either the swap or the end, never both."""
    site = Site()
    staged = site.stage(0)
    every(site.world, "orders", ALTERED)
    worker = arriving(site, Acting, at, once("write", Fault.LATE))
    arrive = worker.act

    def act(name: str, number: int) -> None:
        if name == "sleep" and worker.numbers.get("write"):
            for replica in site.world.replicas.values():
                if replica.tables["orders"] == ALTERED:
                    replica.tables["orders"] = OLD
        arrive(name, number)

    worker.act = act
    try:
        site.publish(staged, worker=worker)
    except Stopped:
        assert (site.phase(), site.swaps()) == (Phase.ABORTED, 0)
    else:
        assert (site.phase(), site.swaps()) == (Phase.COMMITTED, 1)
    site.world.heal()
    live = {replica.tables["orders"].uuid for replica in site.world.replicas.values()}
    assert live == ({staged.candidate_uuid} if site.swaps() else {OLD.uuid})
    assert OLD.uuid in site.uuids()


@pytest.mark.parametrize("at", range(30))
@pytest.mark.parametrize("skip", range(3))
def test_a_late_move_of_who_waits_for_the_target_never_meets_the_next_operation(at: int, skip: int) -> None:
    site = Site()
    dispatched(site)
    site.world.work_all()
    stage_when_free(site, arriving(site, Acting, at, once("write", Fault.LATE, skip=skip)))
    site.world.heal()
    assert site.phase() is Phase.PREPARED
    assert site.swaps() == 1
    stored = site.world.stored(KEY)
    assert stored is not None
    assert all(stored.record.candidate in replica.tables for replica in site.world.replicas.values())


def test_a_wait_for_the_target_ends_though_every_look_fails_from_some_moment_on() -> None:
    site = Site()
    site.stage(0)
    looks = [0]

    def choose(name: str) -> Fault:
        looks[0] += name == "observe"
        return Fault.REFUSED if name == "observe" and looks[0] > 2 else Fault.NONE

    began = site.world.now
    with pytest.raises(Stopped):
        stage_when_free(site, site.worker(choose))
    assert site.world.now - began < 120


def test_a_wait_for_the_target_ends_though_the_slot_can_never_be_freed() -> None:
    site = Site()
    dispatched(site)
    site.world.work_all()
    writes = [0]

    def choose(name: str) -> Fault:
        writes[0] += name == "write"
        return Fault.UNSENT if name == "write" and writes[0] > 1 else Fault.NONE

    began = site.world.now
    with pytest.raises(Stopped):
        stage_when_free(site, site.worker(choose))
    assert site.world.now - began < 120
    assert site.phase() is Phase.COMMITTED


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("skip", range(2))
def test_a_partial_end_that_is_stored_with_an_unknown_outcome_is_told_as_what_it_is(
    fault: Fault, skip: int
) -> None:
    """Binding the entry, and keeping its outcome."""
    site = Site()
    staged = site.stage(0)
    site.world.fail_next["s1/r2"] = 1
    worker = site.worker(once("write", fault, skip=skip), Acting)
    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=worker)
    assert worker.numbers["write"] > skip
    assert caught.value.stop.code is Code.PARTIAL_TERMINAL
    assert site.phase() is Phase.TERMINAL
    site.world.heal()
    assert site.swaps() == 1
