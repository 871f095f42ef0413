"""Scenarios with workers that are killed, sleep, or are started twice."""

from __future__ import annotations

from tests.scenarios.outcome import Outcome
from tests.scenarios.scenario import (
    Scenario,
    Step,
    cleanup,
    do,
    ends,
    held_and_killed,
    live,
    must,
    next_run,
    operator,
    publish,
    stage,
    staged,
    swaps,
    worker,
)
from tests.scenarios.swaps import PAUSE_2, RESUME_2
from tests.scenarios.worker import Fate, Moment
from tests.scenarios.world import SWAP, World


def _retry_stage(world: World) -> None:
    """Airflow starts the stage task of the killed worker again."""
    world.finished(world.work(world.job("stage", sql=world.same_generation(), try_number=2)))
    ends(world, Outcome.STAGED)


RETRY_STAGE = do("the stage task is retried", _retry_stage)


def wakes(*outcomes: Outcome) -> Step:
    """The sleeping worker goes on, and ends in one of these ways."""

    def run(world: World) -> None:
        before = world.site.uuids()
        (sleeper,) = world.workers
        sleeper.wake()
        result = world.finished(sleeper)
        assert result.outcome in outcomes, str(result)
        if result.ok:
            return
        assert world.site.uuids() == before

    return Step("the sleeping worker wakes", run)


def _second_worker(world: World) -> None:
    """Airflow starts a second copy of the task, while the first one sleeps with the permit in its hand."""
    (sleeper,) = world.workers
    second = world.work(world.job("publish", try_number=2))
    second_waits = not second_ended(second, 1.5)
    assert second_waits, "the second worker can't know what the first one will do"
    sleeper.wake()
    results = [world.finished(one) for one in (sleeper, second)]
    assert all(result.ok for result in results), [str(result) for result in results]
    assert Outcome.COMMITTED in {result.outcome for result in results}
    world.seen.append(Outcome.COMMITTED)


def second_ended(running: object, seconds: float) -> bool:
    """Tell whether a worker ends within so many seconds."""
    return bool(running._told.poll(seconds))  # type: ignore[attr-defined]


def _killed_stage(moment: Moment) -> Scenario:
    return Scenario(
        f"stage is killed when {moment.value}",
        ("28", "35", "killed worker"),
        Outcome.KILLED,
        (
            live(),
            worker("stage", moment),
            must("readers are not affected", lambda w: w.site.uuids() == w.notes["old"]),
            RETRY_STAGE,
            publish(Outcome.COMMITTED),
            cleanup(),
            must("nothing is left over", lambda world: world.site.tables() == {"orders"}),
            next_run(),
        ),
    )


def _killed_publish(
    moment: Moment, *more: Step, before: tuple[Step, ...] = (), quick: bool = False
) -> Scenario:
    return Scenario(
        f"publish is killed when {moment.value}",
        ("27", "killed worker"),
        Outcome.KILLED,
        (live(), staged(), *before, worker("publish", moment), *more, next_run()),
        quick=quick,
    )


def _killed_cleanup(moment: Moment) -> Scenario:
    return Scenario(
        f"cleanup is killed when {moment.value}",
        ("killed worker",),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            publish(Outcome.COMMITTED),
            worker("cleanup", moment),
            cleanup(),
            must("only the live table is left", lambda world: world.site.tables() == {"orders"}),
            next_run(),
        ),
    )


def _goes_on(outcome: Outcome = Outcome.COMMITTED) -> tuple[Step, ...]:
    return (publish(outcome), swaps(1), cleanup())


SCENARIOS = (
    _killed_stage(Moment.CREATED),
    _killed_stage(Moment.LOADED),
    _killed_stage(Moment.PREPARED),
    _killed_publish(Moment.BEFORE_CLAIM, *_goes_on()),
    _killed_publish(
        Moment.CLAIMED,
        publish(Outcome.NOT_OBSERVED, "ENTRY_NOT_SEEN", publish=0.5),
        swaps(0),
        operator("resolve", phase="ABORTED"),
        quick=True,
    ),
    _killed_publish(Moment.SENT, *_goes_on()),
    # Only what lasts is bound; a quick swap is proven at once.
    _killed_publish(Moment.BOUND, RESUME_2, *_goes_on(), before=(PAUSE_2,)),
    _killed_publish(Moment.BEFORE_COMMITTED, *_goes_on()),
    _killed_publish(Moment.COMMITTED, *_goes_on(Outcome.REPLAYED)),
    Scenario(
        "publish is killed after the send and before the reply",
        ("27", "killed worker"),
        Outcome.KILLED,
        (
            live(),
            staged(),
            held_and_killed("publish", 1, SWAP, executed=True),
            *_goes_on(),
            next_run(),
        ),
    ),
    _killed_cleanup(Moment.DROP_CLAIMED),
    _killed_cleanup(Moment.DROP_SENT),
    Scenario(
        "a sleeping worker wakes after its operation was closed",
        ("zombie worker",),
        Outcome.RESOLVED,
        (
            live(),
            staged(),
            worker("publish", Moment.CLAIMED, Fate.SLEEP),
            operator("resolve", phase="ABORTED"),
            next_run(),
            wakes(Outcome.REFUSED, Outcome.RETRYABLE, Outcome.ABORTED),
            next_run(),
        ),
    ),
    Scenario(
        "a second worker runs beside one that sleeps with the permit",
        ("zombie second worker", "41"),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            worker("publish", Moment.CLAIMED, Fate.SLEEP),
            do("a second copy of the task waits, and the first one wakes", _second_worker),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "an orphaned stage wakes after a later run was prepared",
        ("orphaned worker",),
        Outcome.COMMITTED,
        (
            next_run(),
            worker("stage", Moment.BEFORE_PREPARED, Fate.SLEEP),
            staged(run="later"),
            wakes(Outcome.REFUSED),
            publish(Outcome.COMMITTED),
            cleanup(),
            must("nothing is left over", lambda world: world.site.tables() == {"orders"}),
            next_run(),
        ),
    ),
    Scenario(
        "an orphaned first stage wakes after another one was published",
        ("orphaned worker", "28"),
        Outcome.COMMITTED,
        (
            live(),
            worker("stage", Moment.BEFORE_PREPARED, Fate.SLEEP),
            staged(run="later"),
            publish(Outcome.COMMITTED),
            # Whether the record was created is not known to it, so that its candidate stays, with its mark.
            wakes(Outcome.RETRYABLE),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "a prepared operation is taken over by a later run",
        ("supersede what was never dispatched",),
        Outcome.STAGED,
        (
            live(),
            staged(),
            do("the first receipt is kept in mind", lambda w: w.notes.update(first=w.receipt)),
            stage(Outcome.STAGED),
            do("the first run publishes", lambda w: w.publish(staged=w.notes["first"])),
            do("and is refused", lambda w: ends(w, Outcome.REFUSED, "SUPERSEDED")),
            publish(Outcome.COMMITTED),
            cleanup(),
            must("nothing is left over", lambda world: world.site.tables() == {"orders"}),
            next_run(),
        ),
    ),
)
