"""Scenarios of the distributed-DDL queue: what it forgets, repeats, or says that can't be read."""

from __future__ import annotations

from typing import Any

from tests.cluster import QueueStatus
from tests.scenarios.outcome import Outcome
from tests.scenarios.scenario import (
    Scenario,
    Step,
    cleanup,
    do,
    heal,
    live,
    must,
    next_run,
    operator,
    publish,
    staged,
    swaps,
)
from tests.scenarios.swaps import PAUSE_2, RESUME_2, repair
from tests.scenarios.world import QUEUE, World

LATE = (
    live(),
    staged(),
    PAUSE_2,
    publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
    do("the bound entry is kept in mind", lambda w: setattr(w, "entry", w.bound_entry())),
)
FINISHED = do("the entry has finished everywhere", lambda world: world.wait_finished(world.entry))


def _poison(world: World) -> None:
    """An entry of somebody else that replica 2 can't finish stands before ours."""
    world.cluster.fail_execution(2, "poison", count=1000, code=242)
    world.cluster.execute(
        f"CREATE TABLE {world.site.database}.poison ON CLUSTER analytics (id UInt8) ENGINE = Memory",
        settings={"distributed_ddl_task_timeout": 0},
    )


def _blocked(world: World) -> bool:
    """Explain names the entry that replica 2 has to finish first."""
    (poison,) = {row["entry"] for row in world.cluster.queue_rows("poison")}
    return [(one.replica, one.entry) for one in world.explain().blocked] == [("s1/r2", poison)]


def _reports(**says: Any) -> Step:
    def run(world: World) -> None:
        world.cluster.report_queue_row(world.receipt.candidate, node=2, **says)

    told = ", ".join(f"{name} {value}" for name, value in says.items())
    return Step(f"the queue says of replica 2: {told}", run)


def _copy(world: World) -> None:
    world.cluster.duplicate_queue_entry(world.entry)
    publication = world.site.record().record.publication
    assert publication is not None
    world.allow(copied={publication.token})


def _unreadable(name: str, outcome: Outcome, code: str, **says: Any) -> Scenario:
    return Scenario(
        f"the queue says {name}",
        ("9", "every queue status"),
        Outcome.IN_PROGRESS,
        (
            *LATE,
            _reports(**says),
            RESUME_2,
            publish(outcome, code, publish=1),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            heal(),
            publish(Outcome.COMMITTED),
            must("it was the original entry", lambda w: w.last.receipt["entry"] == w.entry),
            swaps(1),
            next_run(),
        ),
    )


SCENARIOS = (
    _unreadable("Removing", Outcome.NOT_OBSERVED, "ENTRY_UNREADABLE", status=QueueStatus.REMOVING),
    _unreadable("Unknown", Outcome.NOT_OBSERVED, "ENTRY_UNREADABLE", status=QueueStatus.UNKNOWN),
    _unreadable("nothing", Outcome.NOT_OBSERVED, "ENTRY_UNREADABLE", status=None),
    _unreadable(
        "Finished without a code", Outcome.CONTRADICTION, "ENTRY_MALFORMED", status=QueueStatus.FINISHED
    ),
    _unreadable(
        "Finished with a code and no text",
        Outcome.CONTRADICTION,
        "ENTRY_MALFORMED",
        status=QueueStatus.FINISHED,
        exception_code=60,
        exception_text="",
    ),
    _unreadable(
        "Active with an error",
        Outcome.CONTRADICTION,
        "ENTRY_MALFORMED",
        status=QueueStatus.ACTIVE,
        exception_code=60,
        exception_text="an error",
    ),
    Scenario(
        "the queue shows no row for one replica",
        ("missing host rows",),
        Outcome.IN_PROGRESS,
        (
            *LATE,
            do("rows are hidden", lambda w: w.cluster.hide_queue_rows(w.receipt.candidate, node=2)),
            RESUME_2,
            publish(Outcome.NOT_OBSERVED, publish=1),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            heal(),
            publish(Outcome.COMMITTED),
            next_run(),
        ),
    ),
    Scenario(
        "two entries carry one token",
        ("two entries with one token",),
        Outcome.CONTRADICTION,
        (
            live(),
            staged(),
            PAUSE_2,
            do("publish waits in vain", lambda world: world.publish(publish=1)),
            do("the bound entry is kept in mind", lambda w: setattr(w, "entry", w.bound_entry())),
            do("the entry is copied", _copy),
            publish(Outcome.CONTRADICTION, "ENTRY_AMBIGUOUS"),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            RESUME_2,
            FINISHED,
            operator("resolve", phase="COMMITTED"),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "the queue forgets the entry before it was read",
        ("7", "1000 newer entries"),
        Outcome.IN_PROGRESS,
        (
            *LATE,
            RESUME_2,
            FINISHED,
            do("the entry is removed", lambda world: world.cluster.remove_queue_entry(world.entry)),
            publish(Outcome.NOT_OBSERVED, "ENTRY_NOT_SEEN", publish=0.5),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            operator("resolve", phase="COMMITTED"),
            publish(Outcome.REPLAYED),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "the queue forgets an entry that a replica never ran",
        ("7", "12"),
        Outcome.IN_PROGRESS,
        (
            *LATE,
            do("the entry is removed", lambda world: world.cluster.remove_queue_entry(world.entry)),
            RESUME_2,
            publish(Outcome.NOT_OBSERVED, "ENTRY_NOT_SEEN", publish=0.5),
            operator("resolve", Outcome.PARTIAL_TERMINAL, "PARTIAL_TERMINAL"),
            repair(),
            operator("resolve", phase="COMMITTED"),
            next_run(),
        ),
    ),
    Scenario(
        "a poisoned entry stands before ours",
        ("6",),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            do("an entry that replica 2 can't finish is queued", _poison),
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            must("explain names the entry before ours", _blocked),
            heal(),
            publish(Outcome.COMMITTED),
            swaps(1),
            next_run(),
        ),
    ),
    Scenario(
        "reading the queue fails for a moment",
        ("10",),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            do("the queue will not be readable, twice", lambda w: w.cluster.answer_error(1, QUEUE, 999, 2)),
            publish(Outcome.COMMITTED),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
)
