"""Scenarios of independent tables: every replica is staged by itself, from what is read from the source once."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_dpone import composition
from airflow_provider_dpone.clickhouse.errors import ReplyLost
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.publication.content import CanonicalDigest
from tests.integration.refresh_site import settings
from tests.scenarios import checker
from tests.scenarios.killed import RETRY_STAGE, wakes
from tests.scenarios.outcome import Outcome
from tests.scenarios.scenario import (
    Scenario,
    Step,
    cleanup,
    do,
    ends,
    heal,
    held_and_killed,
    live,
    must,
    next_run,
    operator,
    publish,
    staged,
    swaps,
    worker,
)
from tests.scenarios.swaps import repair
from tests.scenarios.worker import Fate, Moment
from tests.scenarios.world import COPY, SOURCE, SWAP, World

MEASURED = "the reply of the first replica's load is lost"
"""The scenario whose receipt is kept."""

UNTOUCHED = must("the live tables are untouched", lambda world: world.site.uuids() == world.notes["old"])
NOTHING_LEFT = must("nothing is left over", lambda world: world.site.tables() == {"orders"})
READ_ONCE = must("the source was read once", lambda world: len(world.site.sent(SOURCE)) == 1)
TO_THE_END = (publish(Outcome.COMMITTED), swaps(1), cleanup(), NOTHING_LEFT, next_run(), NOTHING_LEFT)


def _stages(world: World, outcome: Outcome, code: str = "", **more: object) -> None:
    """A stage task of a new generation, in a worker."""
    world.finished(world.work(world.job("stage", sql=world.new_generation(), **more)))
    ends(world, outcome, code)


# ---- what this route is measured by


def _naive(world: World) -> None:
    """What a plain client does: it repeats the INSERT whose reply it didn't get."""
    table, rows = f"{world.site.database}.naive", world.same_generation()
    for node in world.cluster.nodes:
        world.cluster.execute(
            f"CREATE TABLE {table} (id UInt64, name String) ENGINE = MergeTree ORDER BY id", node=node
        )
    fault = world.cluster.drop_response(1, r"^\s*INSERT INTO .*naive")
    servers = [Server(settings(endpoint)) for endpoint in world.cluster.endpoints]
    try:
        for server in servers:
            try:
                server.once(f"INSERT INTO {table} {rows}", settings={}, timeout=60)
            except ReplyLost:
                server.once(f"INSERT INTO {table} {rows}", settings={}, timeout=60)
    finally:
        for server in servers:
            server.close()
    assert fault.hits == 1
    world.notes["naive"] = _duplicates(world, "naive")
    for node in world.cluster.nodes:
        world.cluster.execute(f"DROP TABLE {table} SYNC", node=node)


def _duplicates(world: World, table: str) -> dict[str, int]:
    """Rows that are there more than once, on each replica."""
    sql = f"SELECT toUInt32(count() - uniqExact(id, name)) FROM {world.site.database}.{table}"
    return {f"s1/r{node}": int(world.cluster.scalar(sql, node=node)) for node in world.cluster.nodes}


def _load_reply_lost(world: World) -> None:
    fault = world.cluster.drop_response(1, COPY)
    _stages(world, Outcome.RETRYABLE)
    assert fault.hits == 1
    world.notes["lost"] = fault.hits


def _receipt(world: World) -> None:
    """Measure, and keep the receipt: opaque ids, digests and counts only."""
    (committed,) = [
        r.receipt for r in world.results if r.task == "publish" and r.outcome is Outcome.COMMITTED
    ]
    with world.site.worker("measure") as (ports, _):
        found = ports.catalog.content(world.site.table).digests
    contents = {a: digest.sha256 for a, digest in found.items() if isinstance(digest, CanonicalDigest)}
    duplicates = _duplicates(world, world.site.table)
    uuids, counts = world.site.uuids(), world.site.counts()
    world.kept = {
        "schema": "dpone.proof.lost-load-reply.v1",
        "scope": "local_synthetic",
        "operation": committed["operation_id"],
        "artifact": committed["artifact"]["sha256"],
        "artifact_bytes": committed["artifact"]["bytes"],
        "content": committed["content"]["sha256"],
        "rows": committed["rows"],
        "tries": [
            {"task": result.task, "outcome": result.outcome.value, "code": result.code}
            for result in world.results
        ],
        "replicas": [
            {
                "alias": alias,
                "table": uuid,
                "rows": rows,
                "duplicate_rows": duplicates[alias],
                "content": contents.get(alias, ""),
            }
            for alias, uuid, rows in zip(duplicates, uuids, counts, strict=True)
        ],
        "lost_replies": world.notes["lost"],
        "source_reads": len(world.site.sent(SOURCE)),
        "loads": len(world.site.sent(COPY)),
        "swaps": world.site.swaps(),
        "duplicate_rows": sum(duplicates.values()),
        "false_successes": len(list(checker.success_is_proven(world.history()))),
        "generations": len({*contents.values()}),
        "baseline_duplicate_rows": world.notes["naive"],
    }


def _as_promised(world: World) -> bool:
    kept = world.kept
    return (
        (kept["duplicate_rows"], kept["false_successes"], kept["generations"]) == (0, 0, 1)
        and (kept["source_reads"], kept["loads"], kept["swaps"]) == (1, len(world.cluster.nodes), 1)
        and {replica["content"] for replica in kept["replicas"]} == {kept["content"]}
        and {replica["rows"] for replica in kept["replicas"]} == {kept["rows"]}
        and sum(kept["baseline_duplicate_rows"].values()) == kept["rows"]
    )


# ---- workers that die, sleep, or are two


def _killed(moment: Moment, *more: Step, quick: bool = False) -> Scenario:
    return Scenario(
        f"stage is killed when {moment.value}",
        ("killed worker",),
        Outcome.KILLED,
        (live(), worker("stage", moment), UNTOUCHED, RETRY_STAGE, *more, *TO_THE_END),
        independent=True,
        quick=quick,
    )


def _killed_while(doing: str, step: Step, *more: Step) -> Scenario:
    return Scenario(
        f"stage is killed while {doing}",
        ("killed worker", "done late"),
        Outcome.KILLED,
        (live(), step, UNTOUCHED, RETRY_STAGE, *more, *TO_THE_END),
        independent=True,
    )


def _race(world: World) -> None:
    """Airflow runs two copies of one stage task at the same time: the one that took over last stages."""
    sql = world.new_generation()
    running = [world.work(world.job("stage", sql=sql, try_number=number)) for number in (1, 2)]
    results = [world.finished(one) for one in running]
    assert any(result.ok for result in results), [str(result) for result in results]
    assert all(result.ok or result.retried_by_airflow for result in results), [str(r) for r in results]
    world.seen.append(Outcome.STAGED)


def _found_by_orphans(world: World) -> bool:
    """A create that came late left a table, and ``airflow dpone orphans`` names it."""
    with world.site.worker("orphans") as (_, server):
        found = composition.orphans(server, world.site.cluster_name)
    left = world.site.tables() - {"orders"}
    return bool(left) and left <= {one.name for one in found}


# ---- machines


def _held_load(world: World) -> None:
    """The load of replica 2 is on its way."""
    world.faults["load"] = world.cluster.hold(2, COPY)
    world.work(world.job("stage", sql=world.new_generation()))
    world.faults["load"].wait_for_hit(120)


def _load_ends(world: World) -> None:
    (running,) = world.workers
    world.faults["load"].release()
    result = world.finished(running)
    assert result.outcome in (Outcome.RETRYABLE, Outcome.NOT_OBSERVED), str(result)
    ends(world, result.outcome)


def _kill_2(world: World) -> None:
    world.allow(down={2})
    world.cluster.kill_node(2)


def _crossed(world: World) -> None:
    """The map of the direct connections names each replica's port for another one."""
    aliases = [f"s1/r{node}" for node in world.cluster.nodes]
    crossed = dict(zip(aliases, reversed(world.cluster.endpoints), strict=True))
    _stages(world, Outcome.REFUSED, "REPLICA_CONNECTION_WRONG", replicas=crossed)


_INDEPENDENT: tuple[Scenario, ...] = (
    Scenario(
        MEASURED,
        ("lost load reply", "33"),
        Outcome.RETRYABLE,
        (
            live(),
            do("the reply of replica 1's load is cut, and stage stops", _load_reply_lost, looks=True),
            UNTOUCHED,
            RETRY_STAGE,
            publish(Outcome.COMMITTED),
            publish(Outcome.REPLAYED),
            do("a plain client repeats the same load", _naive),
            do("rows, contents and statements are counted", _receipt),
            must("no row is there twice, and all replicas hold one generation", _as_promised),
            cleanup(),
            NOTHING_LEFT,
            next_run(),
        ),
        independent=True,
        quick=True,
    ),
    _killed(Moment.LOCKED, READ_ONCE),
    _killed_while("the source is read", held_and_killed("stage", 1, SOURCE)),
    _killed(Moment.SEALED),
    _killed_while("a replica's load is on its way", held_and_killed("stage", 2, COPY), READ_ONCE),
    _killed_while("a replica answers its load", held_and_killed("stage", 2, COPY, executed=True), READ_ONCE),
    _killed(Moment.LOADED, READ_ONCE),
    _killed(Moment.RENAMED, READ_ONCE, quick=True),
    _killed(Moment.BEFORE_PREPARED, READ_ONCE),
    Scenario(
        "a stage worker that sleeps is taken over, and wakes",
        ("zombie second worker", "41"),
        Outcome.STAGED,
        (
            live(),
            worker("stage", Moment.LOADED, Fate.SLEEP),
            RETRY_STAGE,
            wakes(Outcome.RETRYABLE),
            READ_ONCE,
            *TO_THE_END,
        ),
        independent=True,
    ),
    Scenario(
        "two stage workers of one operation run at the same time",
        ("zombie second worker", "41"),
        Outcome.STAGED,
        (live(), do("two copies of one stage task run", _race), *TO_THE_END),
        independent=True,
    ),
    Scenario(
        "an operation is abandoned while its stage worker sleeps",
        ("zombie worker", "abandon"),
        Outcome.RESOLVED,
        (
            live(),
            worker("stage", Moment.LOADED, Fate.SLEEP),
            operator("abandon", phase="ABORTED"),
            UNTOUCHED,
            next_run(),
            wakes(Outcome.RETRYABLE, Outcome.REFUSED, Outcome.CONTRADICTION),
            next_run(),
            NOTHING_LEFT,
        ),
        independent=True,
    ),
    Scenario(
        "an operation is abandoned while its stage worker is about to create a table",
        ("zombie worker", "abandon"),
        Outcome.RESOLVED,
        (
            live(),
            worker("stage", Moment.BEFORE_CREATE, Fate.SLEEP),
            operator("abandon", phase="ABORTED"),
            UNTOUCHED,
            next_run(),
            NOTHING_LEFT,
            wakes(Outcome.RETRYABLE, Outcome.REFUSED, Outcome.CONTRADICTION),
            must("the table that it left is found", _found_by_orphans),
            next_run(),
        ),
        independent=True,
    ),
    Scenario(
        "a replica is killed during its load and comes back",
        ("replica outage while staging",),
        Outcome.RETRYABLE,
        or_else=(Outcome.NOT_OBSERVED,),
        steps=(
            live(),
            do("the load of replica 2 is held", _held_load),
            do("replica 2 is killed", _kill_2),
            do("stage ends", _load_ends),
            do("replica 2 starts again", lambda world: world.cluster.start_node(2)),
            heal(),
            UNTOUCHED,
            RETRY_STAGE,
            READ_ONCE,
            *TO_THE_END,
        ),
        independent=True,
    ),
    Scenario(
        "keeper is lost while replicas are loaded and returns",
        ("Keeper loss",),
        Outcome.RETRYABLE,
        or_else=(Outcome.NOT_OBSERVED,),
        steps=(
            live(),
            do("the load of replica 2 is held", _held_load),
            do("ZooKeeper stops", lambda world: world.cluster.stop_zookeeper()),
            do("stage ends", _load_ends),
            do("ZooKeeper starts", lambda world: world.cluster.start_zookeeper()),
            heal(),
            UNTOUCHED,
            RETRY_STAGE,
            READ_ONCE,
            *TO_THE_END,
        ),
        independent=True,
    ),
    Scenario(
        "a direct connection leads to another replica",
        ("wrong connection",),
        Outcome.REFUSED,
        (
            live(),
            do("stage is given crossed connections, and is refused", _crossed),
            UNTOUCHED,
            must("the source was not read", lambda world: not world.site.sent(SOURCE)),
            NOTHING_LEFT,
            RETRY_STAGE,
            *TO_THE_END,
        ),
        independent=True,
    ),
    Scenario(
        "the reply of the exchange is lost after it ran",
        ("lost response after commit", "33"),
        Outcome.COMMITTED,
        (
            live(),
            staged(),
            do("the swap's reply will be cut", lambda world: world.cluster.drop_response(1, SWAP)),
            *TO_THE_END,
        ),
        independent=True,
    ),
    Scenario(
        f"publish is killed when {Moment.SENT.value}",
        ("27", "killed worker"),
        Outcome.KILLED,
        (live(), staged(), worker("publish", Moment.SENT), *TO_THE_END),
        independent=True,
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
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            operator("resolve", Outcome.PARTIAL_TERMINAL, "PARTIAL_TERMINAL"),
            repair(),
            operator("resolve", phase="COMMITTED"),
            swaps(1),
            next_run(),
            NOTHING_LEFT,
        ),
        independent=True,
    ),
    Scenario(
        "three replicas behind a load balancer",
        ("4",),
        Outcome.COMMITTED,
        (live(), staged(), *TO_THE_END),
        replicas=3,
        balanced=True,
        independent=True,
    ),
)
SCENARIOS = tuple(replace(one, name=f"independent tables: {one.name}") for one in _INDEPENDENT)
