"""Scenarios of staging: loads that are cut, repeated or wrong, and candidates that are not complete."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from airflow_provider_dpone.clickhouse.load import Limits
from tests.cluster import wait_until
from tests.integration.refresh_site import QUICK
from tests.integration.staging_site import Streamed
from tests.scenarios.outcome import Outcome
from tests.scenarios.scenario import (
    Scenario,
    Step,
    cleanup,
    do,
    ends,
    live,
    must,
    next_run,
    publish,
    stage,
    staged,
    swaps,
)
from tests.scenarios.swaps import PAUSE_2, RESUME_2
from tests.scenarios.world import LOAD, World

_SHORT = replace(QUICK, ready=1.5)
CREATE = r"^\s*CREATE TABLE"


def _untouched() -> Step:
    return must("the live table is untouched", lambda w: w.site.uuids() == w.notes["old"])


def _no_leftovers() -> Step:
    return must("nothing is left over", lambda world: world.site.tables() == {"orders"})


def _again(outcome: Outcome, code: str = "") -> Step:
    """The task is retried with the same source."""

    def run(world: World) -> None:
        world.stage(world.same_generation())
        ends(world, outcome, code)

    return Step(f"stage is retried: {outcome} {code}".rstrip(), run)


def _broken(bad: bool) -> Streamed:
    def rows() -> Iterator[bytes]:
        for number in range(10):
            if number == 7 and not bad:
                raise ConnectionResetError
            yield f"{'seven' if number == 7 else number},g0\n".encode()

    return Streamed(rows, ("id", "name"), row_count=10)


def _without_parts(world: World) -> None:
    """Replica 2 fetches nothing of the candidate."""
    fault = world.cluster.hold(1, LOAD)
    sql = world.new_generation()
    thread = threading.Thread(target=lambda: world.stage(sql, waits=_SHORT))
    thread.start()
    fault.wait_for_hit()
    (candidate,) = [name for name in world.site.tables() if "__dpone_" in name]
    world.cluster.execute(f"SYSTEM STOP FETCHES {world.site.database}.{candidate}", node=2)
    world.notes["candidate"] = candidate
    fault.release()
    thread.join(60)
    ends(world, Outcome.RETRYABLE, "CANDIDATE_NOT_READY")
    assert list(world.last.stop["replicas"]) == ["s1/r2"], world.last.stop


def _keeper_path(world: World) -> str:
    (path,) = {
        row["zookeeper_path"]
        for row in world.cluster.query(
            f"SELECT zookeeper_path FROM system.replicas WHERE database = '{world.site.database}' "
            f"AND table = '{world.receipt.candidate}'"
        )
    }
    return str(path)


def _kept(world: World) -> None:
    world.notes["kept"] = (world.receipt.candidate, world.receipt.candidate_uuid, _keeper_path(world))


def _all_new(world: World) -> bool:
    now = (world.receipt.candidate, world.receipt.candidate_uuid, _keeper_path(world))
    return all(one != other for one, other in zip(now, world.notes["kept"], strict=True))


SCENARIOS = (
    Scenario(
        "the reply of the load is lost at the end",
        ("33",),
        Outcome.RETRYABLE,
        (
            live(),
            do("the load's reply will be cut", lambda world: world.cluster.drop_response(1, LOAD)),
            stage(Outcome.RETRYABLE),
            _untouched(),
            _again(Outcome.STAGED),
            publish(Outcome.COMMITTED),
            cleanup(),
            _no_leftovers(),
            next_run(),
        ),
    ),
    Scenario(
        "the load is refused for too many parts twice",
        ("36",),
        Outcome.RETRYABLE,
        (
            live(),
            do("the load will be refused twice", lambda world: world.cluster.answer_error(1, LOAD, 252, 2)),
            stage(Outcome.RETRYABLE),
            _again(Outcome.RETRYABLE),
            _untouched(),
            _again(Outcome.STAGED),
            publish(Outcome.COMMITTED),
            cleanup(),
            _no_leftovers(),
            next_run(),
        ),
    ),
    Scenario(
        "the source breaks half way",
        ("35",),
        Outcome.RETRYABLE,
        (
            live(),
            do("a source that breaks", lambda world: world.stage(_broken(bad=False), run="broken")),
            do("is retryable", lambda world: ends(world, Outcome.RETRYABLE, "SOURCE_FAILED")),
            _untouched(),
            swaps(0),
            next_run(),
            _no_leftovers(),
        ),
    ),
    Scenario(
        "one row in ten is bad",
        ("37",),
        Outcome.REFUSED,
        (
            live(),
            do("a source with a bad row", lambda world: world.stage(_broken(bad=True), run="bad")),
            do("is refused", lambda world: ends(world, Outcome.REFUSED, "VALUE_REFUSED")),
            _untouched(),
            swaps(0),
            next_run(),
            _no_leftovers(),
        ),
    ),
    Scenario(
        "a replica lacks parts of the candidate",
        ("20",),
        Outcome.RETRYABLE,
        (
            live(),
            do("replica 2 fetches nothing of the candidate", _without_parts),
            _untouched(),
            swaps(0),
            _again(Outcome.STAGED),
            publish(Outcome.COMMITTED),
            next_run(),
        ),
    ),
    Scenario(
        "the reply of the create is lost and a replica is late",
        ("15",),
        Outcome.RETRYABLE,
        (
            live(),
            PAUSE_2,
            do(
                "the create's reply will be cut",
                lambda world: world.cluster.drop_response(1, CREATE, after="enqueue"),
            ),
            stage(Outcome.RETRYABLE, "STAGING_UNKNOWN", limits=Limits(create=1)),
            RESUME_2,
            do(
                "replica 2 has followed",
                lambda world: wait_until(
                    lambda: all(r["status"] == "Finished" for r in world.cluster.queue_rows("__dpone_"))
                ),
            ),
            _again(Outcome.STAGED),
            publish(Outcome.COMMITTED),
            cleanup(),
            _no_leftovers(),
            next_run(),
        ),
    ),
    Scenario(
        "names and paths are never used again",
        ("14",),
        Outcome.STAGED,
        (
            live(),
            staged(run="same"),
            do("name, UUID and path are kept in mind", _kept),
            stage(Outcome.STAGED, run="same"),
            must("all of them are new", _all_new),
            publish(Outcome.COMMITTED),
            cleanup(),
            _no_leftovers(),
            next_run(),
        ),
    ),
)
