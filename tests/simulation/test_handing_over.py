"""Publications that somebody else waits for: when they are handed over, and what a later call makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication.receipt import PublicationReceipt, StageReceipt
from airflow_provider_dpone.publication.record import HostReceipt, Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.publication.watch import Look, SeenOutcome, Slot, Watch, Why, Woken, judge_look
from airflow_provider_dpone.routes.cluster_refresh import (
    HandedOver,
    OperatorRequest,
    PublishRequest,
    publish,
    resolve,
)
from tests.simulation.ports import KEY, Fault, Killed, Worker
from tests.simulation.run import SITE, WAITS
from tests.simulation.test_review_findings import Site, once

ASKER = "the publish task"


def publish_with(site: Site, staged: StageReceipt, worker: Worker | None = None, **request: Any) -> Any:
    worker = worker or site.worker()
    return publish(site.ports(worker), SITE, PublishRequest(staged.operation_id, **request), WAITS)


def handed_over(site: Site, staged: StageReceipt) -> HandedOver:
    """Publish while replica 2 does nothing, and wait a second for it."""
    site.world.replicas["s1/r2"].paused = True
    with pytest.raises(HandedOver) as caught:
        publish_with(site, staged, hand_over_after=1.0, asker=ASKER)
    return caught.value


def woken(site: Site, watch: Watch) -> Woken | None:
    """What a look at the present world is a reason for."""
    stored = site.world.stored(KEY)
    assert stored is not None
    slot = Slot(stored.record.operation_id, stored.record.phase.value)
    rows = site.world.queue_rows(watch.token)
    judged = judge_look(watch, Look(rows, site.world.inventory, slot, int(site.world.now)))
    return judged if isinstance(judged, Woken) else None


def test_a_bound_publication_is_handed_over_and_another_call_finishes_it() -> None:
    site = Site()
    staged = site.stage(0)
    handed = handed_over(site, staged)
    assert handed.record.phase is Phase.BOUND
    # The time of the whole wait is one, whoever waits.
    assert 0 < handed.left <= WAITS.publish - 1
    watch = Watch.of(handed.record, conn_id="ch", deadline=2_000)
    assert woken(site, watch) is None

    site.world.heal()
    event = woken(site, watch)
    assert event is not None
    assert event.why is Why.OUTCOME
    receipt = publish_with(site, staged, hand_over_after=1.0, outcome=event.watch.outcome)
    assert isinstance(receipt, PublicationReceipt)
    assert (site.phase(), site.swaps()) == (Phase.COMMITTED, 1)


def test_a_proof_that_somebody_else_recorded_meanwhile_is_no_replay_for_who_waited() -> None:
    site = Site()
    staged = site.stage(0)
    handed = handed_over(site, staged)
    site.world.heal()
    publish_with(site, staged)
    event = woken(site, Watch.of(handed.record, conn_id="ch", deadline=2_000))
    assert event is not None
    assert event.why is Why.RECORD
    assert not publish_with(site, staged, asker=ASKER).replayed
    assert publish_with(site, staged, asker="the task after it was cleared").replayed


@pytest.mark.parametrize("meanwhile", ["nobody", "another run began", "another run was published"])
@pytest.mark.parametrize(("point", "skip"), [("send", 0), ("read queue", 0), ("write", 0), ("write", 1)])
def test_a_retry_is_no_replay_whatever_its_killed_try_had_done(point: str, skip: int, meanwhile: str) -> None:
    """A try is killed after the statement was sent; the next one finds the operation proven, by whomever."""
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Killed):
        publish_with(site, staged, site.worker(once(point, Fault.KILL_AFTER, skip=skip)), asker=ASKER)
    site.world.heal()
    if meanwhile != "nobody":
        another = site.stage(1)
        if meanwhile == "another run was published":
            publish_with(site, another)
    assert not publish_with(site, staged, asker=ASKER).replayed
    assert publish_with(site, staged, asker="the task after it was cleared").replayed


def test_a_retry_of_a_cleared_task_answers_as_its_first_try_would_have() -> None:
    site = Site()
    staged = site.stage(0)
    assert not publish_with(site, staged, asker=ASKER).replayed
    cleared = "the task after it was cleared"
    with pytest.raises(Stopped):
        publish_with(site, staged, site.worker(once("observe", Fault.LOST)), asker=cleared)
    assert publish_with(site, staged, asker=cleared).replayed


def test_that_a_task_asked_is_on_record_before_anything_is_sent() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Stopped) as caught:
        publish_with(site, staged, site.worker(once("evidence publish-asked", Fault.REFUSED)), asker=ASKER)
    assert caught.value.stop.code is Code.EVIDENCE_UNAVAILABLE
    assert (site.phase(), site.swaps()) == (Phase.PREPARED, 0)


def test_what_is_not_bound_is_never_handed_over() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Stopped) as caught:
        publish_with(site, staged, site.worker(once("send", Fault.LATE)), hand_over_after=1.0)
    assert not isinstance(caught.value, HandedOver)
    assert caught.value.stop.code is Code.ENTRY_NOT_SEEN
    assert site.phase() is Phase.DISPATCHING


def test_nothing_is_handed_over_without_being_asked_for_or_when_the_time_is_up() -> None:
    requests: tuple[dict[str, Any], ...] = ({}, {"patience": 0.5, "hand_over_after": 1.0})
    for request in requests:
        site = Site()
        staged = site.stage(0)
        site.world.replicas["s1/r2"].paused = True
        with pytest.raises(Stopped) as caught:
            publish_with(site, staged, **request)
        assert not isinstance(caught.value, HandedOver)


def forgotten(site: Site, staged: StageReceipt) -> SeenOutcome:
    """The replicas end the entry, it is looked at, and the queue forgets it before any worker looks."""
    handed = handed_over(site, staged)
    site.world.heal()
    event = woken(site, Watch.of(handed.record, conn_id="ch", deadline=2_000))
    assert event is not None
    assert event.watch.outcome is not None
    site.world.prune()
    assert not site.world.queue
    return event.watch.outcome


def test_an_outcome_that_the_queue_forgot_is_stored_from_what_was_seen() -> None:
    site = Site()
    staged = site.stage(0)
    outcome = forgotten(site, staged)
    with pytest.raises(Stopped) as caught:
        publish_with(site, staged, patience=0.0)
    assert caught.value.stop.code is Code.ENTRY_NOT_SEEN
    publish_with(site, staged, outcome=outcome)
    assert (site.phase(), site.swaps()) == (Phase.COMMITTED, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"entry": "query-0000009999"},
        {"query_digest": "0" * 64},
        {"receipt": (HostReceipt("s1/r1", 0),)},
        {"receipt": (HostReceipt("s1/r1", 0), HostReceipt("s1/r3", 0))},
    ],
    ids=["another entry", "another text", "a replica is missing", "another replica"],
)
def test_an_outcome_of_something_else_proves_nothing(changes: dict[str, Any]) -> None:
    site = Site()
    staged = site.stage(0)
    outcome = forgotten(site, staged)
    with pytest.raises(Stopped) as caught:
        publish_with(site, staged, patience=0.0, outcome=replace(outcome, **changes))
    assert caught.value.stop.code is Code.ENTRY_NOT_SEEN
    assert site.phase() is Phase.BOUND


def test_a_seen_outcome_does_not_go_before_what_the_queue_still_shows() -> None:
    site = Site()
    staged = site.stage(0)
    handed = handed_over(site, staged)
    publication = handed.record.publication
    assert publication is not None
    assert publication.entry is not None
    assert publication.query_digest is not None
    # It claims that both have ended; replica 2 has not begun.
    receipt = tuple(HostReceipt(alias, 0) for alias in handed.record.replicas)
    claimed = SeenOutcome(publication.entry, publication.query_digest, receipt, 1_000)
    with pytest.raises(HandedOver):
        publish_with(site, staged, hand_over_after=1.0, outcome=claimed)
    assert site.phase() is Phase.BOUND


def test_a_seen_outcome_is_no_word_about_what_is_live() -> None:
    site = Site()
    staged = site.stage(0)
    outcome = forgotten(site, staged)
    # A crashed replica ran the entry once more and swapped the old table back.
    tables = site.world.replicas["s1/r2"].tables
    tables["orders"], tables[staged.candidate] = tables[staged.candidate], tables["orders"]
    with pytest.raises(Stopped) as caught:
        publish_with(site, staged, outcome=outcome)
    assert caught.value.stop.code is Code.PARTIAL_TERMINAL
    assert site.phase() is Phase.TERMINAL


def test_a_swap_that_was_made_harmless_without_any_entry_is_never_handed_over() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Stopped):
        publish_with(site, staged, site.worker(once("send", Fault.UNSENT)), patience=0.0)
    operator = site.ports(site.worker(once("write", Fault.KILL_BEFORE, skip=1)))
    with pytest.raises(Killed):
        resolve(operator, SITE, OperatorRequest("test"), WAITS)
    assert site.phase() is Phase.TERMINAL
    with pytest.raises(Stopped) as caught:
        publish_with(site, staged, hand_over_after=1.0)
    assert not isinstance(caught.value, HandedOver)
    assert caught.value.stop.code is Code.RESOLVING
