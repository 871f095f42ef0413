"""What becomes of an operation when its evidence can't be written, call by call."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code
from airflow_provider_dpone.publication.trail import (
    NOTED,
    Admission,
    Body,
    CandidateIntent,
    Classification,
    CleanupStep,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    Proven,
    Staged,
    StoredReceipt,
)
from tests.simulation.ports import KEY, Fault
from tests.simulation.run import Calm, History
from tests.simulation.test_review_findings import Site
from tests.simulation.test_ways_out import published, roll_back
from tests.simulation.trail import TrailOracle
from tests.simulation.world import World

PATIENT = {Staged.kind}
"""Kinds that are written again until it works, since a whole load hangs on them."""


def run(faults: dict[int, Fault] | None = None) -> tuple[Calm, History]:
    calm = Calm(faults or {})
    history = History(calm, operations=1)
    history.run()
    return calm, history


def kinds(history: History) -> list[str]:
    return [body.kind for _, body in history.trail.entries]


def evidence_calls() -> list[tuple[int, str]]:
    calm, _ = run()
    return [
        (number, point.removeprefix("evidence "))
        for number, point in enumerate(calm.points)
        if point.startswith("evidence ")
    ]


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST, Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_whichever_write_fails_a_retry_resumes_and_ends_the_operation(fault: Fault) -> None:
    calls = evidence_calls()
    assert {kind for _, kind in calls} >= {"admission", "intent", "staged", "receipt", "cleanup", "dispatch"}
    for number, kind in calls:
        _, history = run({number: fault})
        stored = history.world.stored(KEY)
        assert stored is not None
        assert stored.record.phase is Phase.COMPLETED, f"{fault} at call {number} ({kind})"
        swaps = [token for token, _ in history.world.sent if ":publish:" in token]
        assert len(swaps) == 1
        assert set(history.world.replicas["s1/r1"].tables) == {"orders"}


def test_what_a_step_rests_on_stops_it_and_what_has_happened_does_not() -> None:
    for number, kind in evidence_calls():
        calm, history = run({number: Fault.REFUSED})
        stops = [stop.code for op in history.ops for stop in op.stops]
        if kind in NOTED | PATIENT:
            assert stops == [], kind
        elif stops == []:
            # The copy that publish makes at once, what only waits, and the write that would cost a whole load.
            assert kind in (StoredReceipt.kind, Classification.kind, CompareAndSwap.kind)
        else:
            assert stops == [Code.EVIDENCE_UNAVAILABLE], kind
            # The next thing that happened was not the step, but another try.
            assert calm.points[number + 1] in ("observe", "drop candidate"), kind


def test_the_trail_of_a_calm_operation_tells_it_in_order() -> None:
    _, history = run()
    told = kinds(history)
    order: list[type[Body]] = [
        Admission,
        CandidateIntent,
        Staged,
        CompareAndSwap,
        CompareAndSwapOutcome,
        Classification,
        DispatchOutcome,
        StoredReceipt,
        CleanupStep,
    ]
    firsts = [told.index(kind.kind) for kind in order]
    assert firsts == sorted(firsts)
    seen = [body for _, body in history.trail.entries if isinstance(body, Classification)]
    proven = [body.aggregate for body in seen if body.category is None]
    assert (proven[0], proven[-1]) == (Proven.DISPATCHABLE, Proven.COMMITTED)


def test_each_change_on_the_way_is_told_once() -> None:
    def pause(world: World) -> None:
        world.replicas["s1/r2"].paused = True

    calm = Calm(disturbances={40: pause})
    history = History(calm, operations=1)
    history.run()
    seen = [body for _, body in history.trail.entries if isinstance(body, Classification)]
    for one, other in itertools.pairwise(seen):
        assert not other.says_the_same(one) or one.observed_at == other.observed_at
    waiting = [body for body in seen if body.category is not None]
    assert len(waiting) < 12


def test_a_send_is_told_with_its_reply() -> None:
    calm, _ = run()
    number = calm.points.index("send")
    for fault, reply in ((Fault.NONE, "answered"), (Fault.LOST, "lost"), (Fault.UNSENT, "lost")):
        _, history = run({number: fault})
        found = [body for _, body in history.trail.entries if isinstance(body, DispatchOutcome)]
        assert (found[0].statement, found[0].reply) == ("EXCHANGE", reply)


def test_an_unknown_write_is_told_as_unknown() -> None:
    calm, _ = run()
    number = calm.points.index("claim")
    _, history = run({number: Fault.LOST})
    found = [body for _, body in history.trail.entries if isinstance(body, CompareAndSwapOutcome)]
    assert next(body.outcome for body in found if body.phase is Phase.DISPATCHING) == "unknown"


def test_a_rollback_leaves_the_trail_of_every_publication() -> None:
    site = Site()
    staged = published(site)
    done = roll_back(site, staged.operation_id)
    bodies = [body for operation, body in site.trail.entries if operation == done.operation_id]
    (admission,) = [body for body in bodies if isinstance(body, Admission)]
    assert admission.slot is not None
    assert admission.slot.operation_id == staged.operation_id
    # An operation of this kind creates nothing, so that there is no intent of a candidate.
    intent = "an operation was prepared before the intent of its candidate was written"
    assert set(TrailOracle(site.world, site.trail).problems()) <= {intent}
