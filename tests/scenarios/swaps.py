"""Scenarios of the swap itself: replies that are lost, replicas that are late, fail or repeat, workers that race."""

from __future__ import annotations

from airflow_provider_dpone.clickhouse.ddl_queue import render_local
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.routes.ports import Claimed, Conflict
from tests.cluster import wait_until
from tests.scenarios.outcome import Outcome
from tests.scenarios.scenario import (
    Scenario,
    Step,
    cleanup,
    do,
    ends,
    heal,
    live,
    must,
    next_run,
    operator,
    publish,
    staged,
    swaps,
)
from tests.scenarios.world import CAS, DROP, SWAP, World, together

PAUSE_2 = do("replica 2 begins no entry", lambda world: world.cluster.pause_worker(2))
RESUME_2 = do("replica 2 goes on", lambda world: world.cluster.resume_worker(2))


def repair() -> Step:
    """Run on each pending replica what ``explain`` prints for it."""

    def run(world: World) -> None:
        repairs = {alias: seen.repair for alias, seen in world.explain().replicas.items() if seen.repair}
        assert repairs
        for alias, statement in repairs.items():
            world.cluster.execute(render_local(statement), node=int(alias.rpartition("r")[2]))

    return do("each pending replica is repaired as explain says", run, looks=True)


def _both_generations(world: World) -> bool:
    names = world.site.tables()
    return {world.site.table, world.receipt.candidate} <= names


def _same_entry(world: World) -> bool:
    return bool(world.last.receipt["entry"] == world.entry)


def _race(world: World) -> None:
    workers = [world.work(world.job("publish", try_number=n)) for n in range(1, 4)]
    results = [world.finished(worker) for worker in workers]
    assert any(result.outcome is Outcome.COMMITTED for result in results), results
    for result in results:
        assert result.ok or result.outcome is Outcome.RETRYABLE, str(result)
    world.seen.append(Outcome.COMMITTED)


def _two_claims(world: World) -> None:
    """Two workers claim from the same version: one permit, one version more, and a stale write that does nothing."""
    stored = world.site.record()
    results: list[object] = []

    def claim(number: int) -> None:
        record = transitions.dispatching(stored.record, nonce=f"{number:032x}", now=stored.record.changed_at)
        token = record.publication.token if record.publication else ""
        with world.site.worker() as (ports, _):
            results.append(ports.authority.claim(stored, record, token, f"{number:032x}"))

    together([lambda: claim(1), lambda: claim(2)])
    claimed = [result for result in results if isinstance(result, Claimed)]
    conflicts = [result for result in results if isinstance(result, Conflict)]
    assert (len(claimed), len(conflicts)) == (1, 1), results
    assert world.site.record().version == stored.version + 1
    assert claimed[0].stored == world.site.record()


def _lost_claim(world: World) -> None:
    fault = world.cluster.drop_response(1, CAS)
    world.publish()
    ends(world, Outcome.RETRYABLE, "CAS_OUTCOME_UNKNOWN")
    assert fault.hits == 1
    claims = [
        s for s in world.site.sent(CAS) if "DISPATCHING" in s.text and s.text.index("DISPATCHING") < 400
    ]
    assert len({s.query_id for s in claims}) == len(claims)
    assert world.site.record().record.phase.value == "DISPATCHING"
    assert world.site.swaps() == 0


def _comment_and_token(world: World) -> None:
    table = f"{world.site.database}.commented"
    world.cluster.execute(
        f"/* a note */ CREATE TABLE {table} ON CLUSTER analytics (id UInt8) ENGINE = Memory",
        settings={"log_comment": "a-token-of-its-own"},
    )
    rows = world.cluster.queue_rows(table)
    assert {row["settings"].get("log_comment") for row in rows} == {"a-token-of-its-own"}
    assert not any("a note" in row["query"] for row in rows)
    assert len({row["entry"] for row in rows}) == 1


def _late_arrival(world: World) -> None:
    """The worker dies while its statement is still on the way."""
    fault = world.cluster.hold(1, SWAP)
    worker = world.work(world.job("publish"))
    fault.wait_for_hit()
    worker.kill()
    world.finished(worker)
    ends(world, Outcome.KILLED)
    world.faults["held"] = fault


def _arrives(world: World) -> None:
    """The statement that was on its way reaches the server, and the replicas run into nothing."""
    live = world.site.uuids()
    world.faults["held"].release()
    wait_until(lambda: not [s for s in world.site.sent(SWAP) if s.outcome == "running"])
    entries = [s.entry for s in world.site.sent(SWAP) if s.entry]
    for entry in entries:
        world.wait_finished(entry)
    assert world.site.uuids() == live


SCENARIOS = (
    Scenario(
        "an existing table is exchanged and cleaned up",
        ("normal existing target", "4"),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            publish(Outcome.COMMITTED),
            cleanup(),
            must("only the live table is left", lambda world: world.site.tables() == {"orders"}),
            swaps(1),
            publish(Outcome.REPLAYED),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "an absent table is published by one rename",
        ("normal absent target",),
        Outcome.COMMITTED,
        (staged(), publish(Outcome.COMMITTED), cleanup(), swaps(1), next_run()),
    ),
    Scenario(
        "three replicas behind a load balancer",
        ("4",),
        Outcome.COMMITTED,
        (live(), staged(), publish(Outcome.COMMITTED), cleanup(), swaps(1), next_run()),
        replicas=3,
        balanced=True,
    ),
    Scenario(
        "the reply of the exchange is lost after it ran",
        ("lost response after commit", "33"),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            do("the swap's reply will be cut", lambda world: world.cluster.drop_response(1, SWAP)),
            publish(Outcome.COMMITTED),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "the reply of the rename is lost as soon as it is queued",
        ("lost response after enqueue",),
        Outcome.COMMITTED,
        (
            staged(),
            do(
                "the connection will be cut while the replicas work",
                lambda world: world.cluster.drop_response(1, SWAP, after="enqueue"),
            ),
            publish(Outcome.COMMITTED),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "the deadline is reached while no replica has begun",
        ("deadline while waiting", "5"),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            PAUSE_2,
            do("replica 1 begins no entry", lambda world: world.cluster.pause_worker(1)),
            publish(Outcome.IN_PROGRESS, "IN_PROGRESS", publish=1),
            must("both generations are kept", _both_generations),
            do("the bound entry is kept in mind", lambda w: setattr(w, "entry", w.bound_entry())),
            heal(),
            publish(Outcome.COMMITTED),
            must("it was the original entry", _same_entry),
            swaps(1),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "a paused replica converges by the original entry",
        ("pause one replica", "5"),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            PAUSE_2,
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            do("the bound entry is kept in mind", lambda w: setattr(w, "entry", w.bound_entry())),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            RESUME_2,
            publish(Outcome.COMMITTED),
            must("it was the original entry", _same_entry),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "a replica runs out of memory for a while and then follows",
        ("2",),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            do(
                "replica 2 gets an error that its worker retries, again and again",
                lambda world: world.cluster.fail_execution(2, SWAP, count=1000, code=241),
            ),
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            heal(),
            publish(Outcome.COMMITTED),
            swaps(1),
            next_run(),
        ),
    ),
    Scenario(
        "one replica fails and is repaired as explained",
        ("terminal error on one replica",),
        Outcome.PARTIAL_TERMINAL,
        (
            live(),
            staged(),
            do("the swap will fail on replica 2", lambda world: world.cluster.fail_execution(2, SWAP)),
            publish(Outcome.PARTIAL_TERMINAL, "PARTIAL_TERMINAL"),
            publish(Outcome.PARTIAL_TERMINAL, "PARTIAL_TERMINAL"),
            must("both generations are kept", _both_generations),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            swaps(1),
            operator("resolve", Outcome.PARTIAL_TERMINAL, "PARTIAL_TERMINAL"),
            repair(),
            operator("resolve", phase="COMMITTED"),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "one of three fails while another one is late",
        ("terminal error on one replica", "3"),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            do("the swap will fail on replica 2", lambda world: world.cluster.fail_execution(2, SWAP)),
            do("replica 3 begins no entry", lambda world: world.cluster.pause_worker(3)),
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            do("replica 3 goes on", lambda world: world.cluster.resume_worker(3)),
            publish(Outcome.PARTIAL_TERMINAL, "PARTIAL_TERMINAL"),
            repair(),
            operator("resolve", phase="COMMITTED"),
            next_run(),
        ),
        replicas=3,
    ),
    Scenario(
        "the swap fails on every replica",
        ("terminal error everywhere",),
        Outcome.PARTIAL_TERMINAL,
        (
            live(),
            staged(),
            do(
                "the swap will fail everywhere",
                lambda world: [world.cluster.fail_execution(node, SWAP) for node in world.cluster.nodes],
            ),
            publish(Outcome.PARTIAL_TERMINAL, "FAILED_EVERYWHERE"),
            operator("resolve", phase="ABORTED"),
            next_run(),
        ),
    ),
    Scenario(
        "a server dies after its exchange and runs it again",
        ("1",),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            do("replica 2 is allowed to run it twice", lambda w: w.allow(twice={2}, down={2})),
            do(
                "replica 2 will not record what it ran",
                lambda world: world.cluster.hold_execution(2, SWAP, executed=True),
            ),
            publish(Outcome.IN_PROGRESS, publish=1),
            do("replica 2 is killed", lambda world: world.cluster.kill_node(2)),
            do("replica 2 starts again", lambda world: world.cluster.start_node(2)),
            publish(Outcome.PARTIAL_TERMINAL, "PARTIAL_TERMINAL"),
            must(
                "though the queue says success everywhere",
                lambda w: {r["exception_code"] for r in w.last.stop["replicas"].values()} == {0},
            ),
            repair(),
            operator("resolve", phase="COMMITTED"),
            next_run(),
        ),
    ),
    Scenario(
        "every replica runs it twice",
        ("1", "swapped back"),
        Outcome.CONTRADICTION,
        (
            live(),
            staged(),
            do("both replicas are allowed to run it twice", lambda w: w.allow(twice={1, 2})),
            do(
                "both workers die before they record it, and start again",
                lambda world: [world.cluster.crash_worker_before_mark(node, SWAP) for node in (1, 2)],
            ),
            publish(Outcome.CONTRADICTION, "SWAPPED_BACK"),
            operator("resolve", phase="ABORTED"),
            next_run(),
        ),
    ),
    Scenario(
        "three workers race",
        ("race workers", "41"),
        Outcome.COMMITTED,
        (live(), staged(), do("three workers publish at the same time", _race), swaps(1), next_run()),
    ),
    Scenario(
        "two claims from one version",
        ("compare-and-swap on the server", "29"),
        Outcome.NOT_OBSERVED,
        (
            live(),
            staged(),
            do("two workers claim from the same version", _two_claims, looks=True),
            publish(Outcome.NOT_OBSERVED, "ENTRY_NOT_SEEN", publish=0.5),
            operator("resolve", phase="ABORTED"),
            next_run(),
        ),
    ),
    Scenario(
        "the reply of the claim is lost",
        ("discard a committed reply", "30"),
        Outcome.RETRYABLE,
        (
            live(),
            staged(),
            do("the claim's reply is cut, and publish stops", _lost_claim),
            publish(Outcome.COMMITTED),
            swaps(1),
            cleanup(),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "the swap is cut off before the server",
        ("sent or not",),
        Outcome.NOT_OBSERVED,
        (
            live(),
            staged(),
            do("the swap will be cut off", lambda world: world.cluster.refuse(1, SWAP)),
            publish(Outcome.NOT_OBSERVED, "ENTRY_NOT_SEEN", publish=0.5),
            publish(Outcome.NOT_OBSERVED, "ENTRY_NOT_SEEN", publish=0.5),
            operator("abandon", Outcome.REFUSED, "NOT_RESOLVABLE"),
            operator("resolve", phase="ABORTED"),
            publish(Outcome.ABORTED, "SUPERSEDED"),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "the swap arrives after its operation was closed",
        ("done late",),
        Outcome.KILLED,
        (
            live(),
            staged(),
            do("the worker is killed while its swap is on the way", _late_arrival, looks=True),
            publish(Outcome.NOT_OBSERVED, "ENTRY_NOT_SEEN", publish=0.5),
            operator("resolve", phase="ABORTED"),
            do("the swap arrives now", _arrives, looks=True),
            next_run(),
        ),
    ),
    Scenario(
        "the server refuses the swap before the queue",
        ("refused by the server",),
        Outcome.RETRYABLE,
        (
            live(),
            staged(),
            do("the swap will be refused", lambda world: world.cluster.answer_error(1, SWAP, 497)),
            publish(Outcome.RETRYABLE, "STATEMENT_REFUSED"),
            publish(Outcome.COMMITTED),
            next_run(),
        ),
    ),
    Scenario(
        "a leading comment is lost and the token is not",
        ("leading comment and log_comment",),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            do("a statement with a comment and a token is queued", _comment_and_token),
            publish(Outcome.COMMITTED),
            must(
                "exactly one entry carries the token",
                lambda world: (
                    len(
                        {
                            row["entry"]
                            for row in world.cluster.queue_rows(world.receipt.candidate)
                            if ":publish:" in row["settings"].get("log_comment", "")
                        }
                    )
                    == 1
                ),
            ),
            next_run(),
        ),
    ),
    Scenario(
        "the reply of the cleanup is lost",
        ("lose the cleanup's reply",),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            publish(Outcome.COMMITTED),
            do("the drop's reply will be cut", lambda world: world.cluster.drop_response(1, DROP)),
            cleanup(),
            must("only the live table is left", lambda world: world.site.tables() == {"orders"}),
            next_run(),
        ),
    ),
    Scenario(
        "the predecessor can't be dropped",
        ("25", "cleanup fails"),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            publish(Outcome.COMMITTED),
            do("drops fail on replica 2", lambda world: world.cluster.fail_execution(2, DROP, count=20)),
            cleanup(Outcome.RETRYABLE, "CLEANUP_PENDING"),
            must("readers have the new data", lambda w: w.site.counts() == [w.receipt.rows] * 2),
            heal(),
            next_run(),
            must("only the live table is left", lambda world: world.site.tables() == {"orders"}),
        ),
    ),
)
