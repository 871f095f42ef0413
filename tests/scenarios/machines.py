"""Scenarios of servers that die, Keeper that is lost, and a cluster whose members change."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster import wait_until
from tests.scenarios.outcome import Outcome
from tests.scenarios.queue import LATE
from tests.scenarios.scenario import (
    Scenario,
    cleanup,
    do,
    ends,
    heal,
    live,
    must,
    next_run,
    publish,
    stage,
    staged,
    swaps,
)
from tests.scenarios.swaps import RESUME_2
from tests.scenarios.world import World


def _kill_2(world: World) -> None:
    world.allow(down={2})
    world.cluster.kill_node(2)


KILL_2 = do("replica 2 is killed", _kill_2, looks=True)
START_2 = do("replica 2 starts again", lambda world: world.cluster.start_node(2))


def _names_replica_2(world: World) -> bool:
    return "s1/r2" in str(world.last.stop["message"])


def _contacted_server_dies(world: World) -> None:
    """A worker waits for replica 2; meanwhile the server that it talks to dies and comes back."""
    world.allow(down={1})
    world.cluster.pause_worker(2)
    running = world.work(world.job("publish", timeouts={"publish": 60}))
    wait_until(lambda: world.site.record().record.phase.value == "BOUND")
    world.cluster.kill_node(1)
    world.cluster.start_node(1)
    world.cluster.resume_worker(2)
    world.finished(running)
    ends(world, Outcome.COMMITTED)


def _members(world: World, *, without: int | None) -> None:
    """Restart server 1 with a cluster that lacks a replica, or with the whole one again."""
    file: Path = world.cluster.folder / "n1" / "config.d" / "zz-further-replicas.xml"
    if without is None:
        file.write_text(world.notes["members"])
    else:
        world.notes["members"] = file.read_text()
        file.write_text(re.sub(r"<analytics>.*?</analytics>", "", world.notes["members"]))
    world.allow(down={1})
    world.cluster.stop_node(1)
    world.cluster.start_node(1)


def _shows_both_lists(world: World) -> bool:
    facts = world.last.stop["facts"]
    return bool(facts["admitted"] == ["s1/r1", "s1/r2", "s1/r3"] and facts["now"] == ["s1/r1", "s1/r2"])


def _stops_before_the_dispatch(world: World) -> None:
    """Which is noticed first depends on the moment: the record, or the candidate's replication."""
    result = world.publish(ready=1)
    assert result.code in ("AUTHORITY_UNAVAILABLE", "CANDIDATE_NOT_READY", "CONTROL_TABLE_NOT_SHARED"), str(
        result
    )
    ends(world, result.outcome)


SCENARIOS = (
    Scenario(
        "a replica is down before the admission",
        ("replica outage before admission", "20"),
        Outcome.RETRYABLE,
        (
            live(),
            staged(),
            KILL_2,
            publish(Outcome.RETRYABLE, "REPLICA_UNAVAILABLE", ready=0.5),
            must("it names the replica", _names_replica_2),
            stage(Outcome.RETRYABLE, "REPLICA_UNAVAILABLE"),
            swaps(0),
            START_2,
            heal(),
            publish(Outcome.COMMITTED),
            next_run(),
        ),
    ),
    Scenario(
        "a replica dies after the dispatch and follows when it returns",
        ("replica outage after dispatch", "pause one replica, restart it"),
        Outcome.IN_PROGRESS,
        (
            *LATE,
            KILL_2,
            publish(Outcome.NOT_OBSERVED, "REPLICA_NOT_OBSERVED", publish=1),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            START_2,
            RESUME_2,
            heal(),
            publish(Outcome.COMMITTED),
            must("it was the original entry", lambda w: w.last.receipt["entry"] == w.entry),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "the contacted server dies while a worker waits",
        ("replica outage after dispatch",),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            do("server 1 dies under a waiting worker, and returns", _contacted_server_dies),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "keeper is lost before the dispatch and returns",
        ("Keeper loss",),
        Outcome.NOT_OBSERVED,
        or_else=(Outcome.RETRYABLE,),
        steps=(
            live(),
            staged(),
            do("ZooKeeper stops", lambda world: world.cluster.stop_zookeeper()),
            do("publish stops", _stops_before_the_dispatch),
            swaps(0),
            do("ZooKeeper starts", lambda world: world.cluster.start_zookeeper()),
            heal(),
            publish(Outcome.COMMITTED, ready=60),
            next_run(),
        ),
    ),
    Scenario(
        "keeper is lost after the dispatch and returns",
        ("Keeper loss",),
        Outcome.IN_PROGRESS,
        (
            *LATE,
            do("ZooKeeper stops", lambda world: world.cluster.stop_zookeeper()),
            publish(Outcome.NOT_OBSERVED, publish=1),
            do("ZooKeeper starts", lambda world: world.cluster.start_zookeeper()),
            heal(),
            publish(Outcome.COMMITTED, publish=60),
            must("it was the original entry", lambda w: w.last.receipt["entry"] == w.entry),
            swaps(1),
            next_run(),
        ),
    ),
    Scenario(
        "the cluster loses a member after the dispatch",
        ("12", "change membership"),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            do("replica 3 begins no entry", lambda world: world.cluster.pause_worker(3)),
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            do("server 1 forgets replica 3", lambda world: _members(world, without=3)),
            publish(Outcome.CONTRADICTION, "INVENTORY_DRIFT", publish=1),
            must("it shows both lists", _shows_both_lists),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            do("server 1 knows replica 3 again", lambda world: _members(world, without=None)),
            heal(),
            publish(Outcome.COMMITTED),
            swaps(1),
            cleanup(),
            next_run(),
        ),
        replicas=3,
    ),
    Scenario(
        "the cluster loses a member before the dispatch",
        ("change membership",),
        Outcome.CONTRADICTION,
        (
            live(),
            staged(),
            do("server 1 forgets replica 3", lambda world: _members(world, without=3)),
            publish(Outcome.CONTRADICTION, "INVENTORY_DRIFT", ready=1),
            swaps(0),
            do("server 1 knows replica 3 again", lambda world: _members(world, without=None)),
            heal(),
            publish(Outcome.COMMITTED, ready=60),
            next_run(),
        ),
        replicas=3,
    ),
)
