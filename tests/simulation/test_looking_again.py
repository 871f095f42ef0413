"""What passes by itself is looked at again: a write that is unknown, a look that fails while a task waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication.identity import TaskIdentity
from airflow_provider_dpone.publication.receipt import PublicationReceipt
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import PublishRequest, StageRequest, publish, stage
from tests.simulation.ports import Fault, Killed, SimStaging, Worker
from tests.simulation.run import SITE, WAITS
from tests.simulation.test_review_findings import Site, once

UNKNOWN = (Fault.LOST, Fault.UNSENT, Fault.LATE)


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("which", range(2))
def test_a_move_that_needs_no_permit_and_is_unknown_is_looked_at_again(fault: Fault, which: int) -> None:
    """Binding the entry, committing: whatever became of the write, the next look tells."""
    site = Site()
    staged = site.stage(0)
    receipt = site.publish(staged, worker=site.worker(once("write", fault, skip=which)))
    assert isinstance(receipt, PublicationReceipt)
    assert site.swaps() == 1
    assert site.phase() is Phase.COMMITTED


def test_moves_that_stay_unknown_end_within_a_bound_and_do_not_say_that_nothing_was_published() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Stopped) as caught:
        site.publish(
            staged, worker=site.worker(lambda point: Fault.UNSENT if point == "write" else Fault.NONE)
        )
    assert caught.value.stop.code is Code.CAS_OUTCOME_UNKNOWN
    assert "Nothing was published" not in str(caught.value)
    assert site.swaps() == 1
    assert isinstance(site.publish(staged), PublicationReceipt)
    assert site.swaps() == 1


def test_a_permit_that_is_unknown_is_never_looked_at_again() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=site.worker(once("claim", Fault.LOST)))
    assert caught.value.stop.code is Code.CAS_OUTCOME_UNKNOWN
    assert site.swaps() == 0


def stage_when_free(site: Site, worker: Worker) -> Any:
    """A stage task of another DAG that waits for the target."""
    request = StageRequest(
        TaskIdentity("airflow", "other", "run9", "stage", -1, "0"), Owner("other", "run9", "stage", -1)
    )
    waits = replace(WAITS, busy=60)
    return stage(site.ports(worker), SimStaging(worker, 19, "new9"), SITE, request, waits)


def dispatched(site: Site) -> None:
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))


@pytest.mark.parametrize("fault", [*UNKNOWN, Fault.REFUSED])
@pytest.mark.parametrize("which", range(3))
def test_a_write_that_fails_for_a_moment_does_not_end_a_wait_for_the_target(fault: Fault, which: int) -> None:
    """Two who prove and free the same operation at once may both be refused by Keeper."""
    site = Site()
    dispatched(site)
    worker = site.worker(once("write", fault, skip=which))
    site.world.work_all()
    stage_when_free(site, worker)
    assert site.phase() is Phase.PREPARED
    assert site.swaps() == 1


@pytest.mark.parametrize("which", range(1, 4))
def test_a_look_that_fails_for_a_moment_does_not_end_a_wait_for_the_target(which: int) -> None:
    site = Site()
    staged = site.stage(0)
    looks = [0]

    def choose(point: str) -> Fault:
        if point != "observe":
            return Fault.NONE
        looks[0] += 1
        if looks[0] == 6:
            publish(site.ports(site.worker()), SITE, PublishRequest(staged.operation_id), WAITS)
        return Fault.REFUSED if looks[0] == 1 + which else Fault.NONE

    stage_when_free(site, site.worker(choose))
    assert looks[0] > 6
    assert site.swaps() == 1
    assert site.phase() is Phase.PREPARED


def test_a_task_that_has_not_found_the_target_held_says_at_once_what_failed() -> None:
    """Though it may wait: what fails before that is no wait for the target."""
    site = Site()
    site.stage(0)
    looks: list[str] = []

    def choose(point: str) -> Fault:
        looks.extend([point] * (point == "observe"))
        return Fault.REFUSED if len(looks) == 1 and point == "observe" else Fault.NONE

    with pytest.raises(Stopped) as caught:
        stage_when_free(site, site.worker(choose))
    assert caught.value.stop.code is Code.SERVER_UNAVAILABLE
    assert len(looks) == 1
