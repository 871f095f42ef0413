"""Scenarios of the tables: what moves in between, what depends on them, and who else holds them."""

from __future__ import annotations

import pytest

from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.watching import Lookout
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.publication.watch import Woken, judge_look, load_watch
from tests.cluster import CLUSTER_NAME, wait_until
from tests.cluster.spec import ADMIN_USER
from tests.integration.refresh_site import settings
from tests.scenarios.outcome import Outcome
from tests.scenarios.queue import FINISHED
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
    stage,
    staged,
    swaps,
)
from tests.scenarios.swaps import PAUSE_2, RESUME_2
from tests.scenarios.world import COLUMNS, ENGINE, World, together

FIXED = "ReplicatedMergeTree('/clickhouse/tables/{database}/{table}/{shard}', '{replica}')"


def sql(
    text: str, statement: str, *, node: int = 1, by_hand: tuple[int, ...] = (), everywhere: bool = False
) -> Step:
    """A statement of somebody else; ``{db}`` is the database.

    :param everywhere: run it on each node, without ON CLUSTER.
    """

    def run(world: World) -> None:
        world.allow(by_hand=by_hand)
        candidate = world.staged.candidate if world.staged else ""
        rendered = statement.replace("{db}", world.site.database).replace("{candidate}", candidate)
        for each in world.cluster.nodes if everywhere else (node,):
            world.cluster.execute(rendered, node=each, settings={"alter_sync": "2"})

    return Step(text, run)


def _moved(name: str, *steps: Step, quick: bool = False) -> Scenario:
    return Scenario(
        name,
        ("change UUID, engine, schema or path",),
        Outcome.ABORTED,
        (
            live(),
            staged(),
            *steps,
            publish(Outcome.ABORTED, "TARGET_MOVED"),
            must("the candidate is dropped", lambda w: w.receipt.candidate not in w.site.tables()),
            swaps(0),
            next_run(),
        ),
        quick=quick,
    )


def _deferred(world: World) -> None:
    job = world.job(
        "publish", arguments={"deferrable": True}, environment={"AIRFLOW__DPONE__MIN_DEFER_SECONDS": "0.5"}
    )
    world.finished(world.work(job))
    ends(world, Outcome.DEFERRED)
    world.notes["watch"] = world.last.receipt["watch"]
    world.entry = world.bound_entry()


def _woken(world: World) -> list[bool]:
    """Two triggers look at the same time; they only read."""
    watch = load_watch(world.notes["watch"])
    assert watch is not None
    mark = world.cluster.last_statement()
    answers: list[bool] = []

    def trigger() -> None:
        server = Server(settings(*world.site.endpoints))
        try:
            seen = Lookout(server, world.site.control).look([watch])[watch]
        finally:
            server.close()
        answers.append(isinstance(judge_look(watch, seen), Woken))

    together([trigger, trigger])
    sent = world.cluster.statements("", since=mark)
    assert {statement.kind for statement in sent} == {"SELECT"}, sent
    return answers


def _dictionary_follows(world: World) -> bool:
    """Every replica's dictionary reads the new data in the end."""
    name = f"g{world.generation}"
    query = f"SELECT dictGetOrDefault('{world.site.database}.names', 'name', toUInt64(1), '')"
    wait_until(lambda: all(world.cluster.scalar(query, node=node) == name for node in world.cluster.nodes))
    return True


def _stale_dictionary_is_told(world: World) -> bool:
    """It is loaded by each replica in its own time, so it is told, not assumed."""
    (warning,) = (text for text in world.last.receipt["warnings"] if f"{world.site.database}.seldom" in text)
    return "s1/r1, s1/r2" in warning


def _view_is_fed(world: World) -> None:
    """A row that is inserted after the swap reaches the view, or the receipt has warned of it."""
    world.allow(by_hand={1, 2})
    table = f"{world.site.database}.orders"
    world.cluster.execute(f"INSERT INTO {table} VALUES (777777, 'by hand')")
    fed = world.cluster.scalar(f"SELECT count() FROM {world.site.database}.sink WHERE id = 777777")
    assert fed or world.last.receipt["warnings"], world.last.receipt


def _init(world: World) -> None:
    server = Server(settings(world.cluster.endpoints[0], user=ADMIN_USER, password=""))
    try:
        initialise(server, CLUSTER_NAME, control=world.site.control)
    finally:
        server.close()


def _lose_control(world: World) -> None:
    """Replica 2 loses its control table, and has it again at the end, however the scenario ends."""
    world.cluster.execute(f"DROP TABLE {world.site.control.qualified} SYNC", node=2)
    world.stack.callback(_init_anew, world)


def _init_anew(world: World) -> None:
    (mine,) = world.cluster.query(
        f"SELECT toUInt8(count()) AS found FROM system.tables WHERE database = '{world.site.control.database}' "
        f"AND name = '{world.site.control.name}' AND engine != 'KeeperMap'",
        node=2,
    )
    if mine["found"]:
        world.cluster.execute(f"DROP TABLE {world.site.control.qualified} SYNC", node=2)
    _init(world)


def _init_is_refused(world: World) -> None:
    with pytest.raises(Stopped, match="CONTROL_TABLE_LOST"):
        _init(world)


def _dependents(world: World) -> bool:
    return bool(world.receipt.dependents)


SCENARIOS = (
    _moved(
        "the live table was replaced after staging",
        sql(
            "another table is made",
            f"CREATE TABLE {{db}}.other ON CLUSTER analytics AS {{db}}.orders ENGINE = {ENGINE} ORDER BY id",
        ),
        sql(
            "and exchanged", "EXCHANGE TABLES {db}.other AND {db}.orders ON CLUSTER analytics", by_hand=(1, 2)
        ),
        quick=True,
    ),
    _moved(
        "the live table was altered after staging",
        sql(
            "a column is added",
            "ALTER TABLE {db}.orders ON CLUSTER analytics ADD COLUMN extra UInt8 DEFAULT 0",
        ),
    ),
    Scenario(
        "the candidate is missing on one replica",
        ("13",),
        Outcome.REFUSED,
        (
            live(),
            staged(),
            sql("it is dropped on replica 2", "DROP TABLE {db}.{candidate} SYNC", node=2, by_hand=(2,)),
            publish(Outcome.REFUSED, "CANDIDATE_DIFFERS", ready=1),
            must("it names the replica", lambda w: "s1/r2" in w.last.stop["message"]),
            swaps(0),
            operator("abandon", phase="ABORTED"),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "the live table is missing on a replica after the dispatch",
        ("17",),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            PAUSE_2,
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            do("the bound entry is kept in mind", lambda w: setattr(w, "entry", w.bound_entry())),
            sql("replica 1 loses the live table", "DETACH TABLE {db}.orders SYNC", by_hand=(1,)),
            RESUME_2,
            FINISHED,
            publish(Outcome.CONTRADICTION, "GENERATION_UNKNOWN"),
            cleanup(Outcome.REFUSED, "NOT_COMMITTED"),
            operator("resolve", Outcome.CONTRADICTION, "GENERATION_UNKNOWN"),
            sql("replica 1 has it again", "ATTACH TABLE {db}.orders"),
            heal(),
            publish(Outcome.COMMITTED),
            next_run(),
        ),
    ),
    Scenario(
        "somebody exchanged the table on one of three replicas",
        ("3",),
        Outcome.CONTRADICTION,
        (
            do("a generation by hand", lambda world: world.notes.update(sql=world.new_generation())),
            sql(
                "a table with a fixed path",
                f"CREATE TABLE {{db}}.orders ON CLUSTER analytics {COLUMNS} ENGINE = {FIXED} ORDER BY id",
            ),
            sql(
                "another one",
                f"CREATE TABLE {{db}}.other ON CLUSTER analytics {COLUMNS} ENGINE = {FIXED} ORDER BY id",
            ),
            sql("replica 1 swaps them", "EXCHANGE TABLES {db}.other AND {db}.orders", by_hand=(1,)),
            stage(Outcome.CONTRADICTION, "TARGET_NOT_UNIFORM"),
            must("nothing was made", lambda world: world.site.tables() == {"orders", "other"}),
            sql("replica 1 swaps them back", "EXCHANGE TABLES {db}.other AND {db}.orders"),
            next_run(),
        ),
        replicas=3,
    ),
    Scenario(
        "a materialized view hangs on the table",
        ("22", "27"),
        Outcome.COMMITTED,
        (
            live(),
            sql(
                "a sink",
                "CREATE TABLE {db}.sink (id UInt64) ENGINE = MergeTree ORDER BY id",
                everywhere=True,
            ),
            sql(
                "a view",
                "CREATE MATERIALIZED VIEW {db}.feed TO {db}.sink AS SELECT id FROM {db}.orders",
                everywhere=True,
            ),
            staged(),
            must("the receipt lists it", _dependents),
            publish(Outcome.COMMITTED),
            do("a row is inserted by hand", _view_is_fed),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "a dictionary hangs on the table",
        ("25", "26"),
        Outcome.COMMITTED,
        (
            live(),
            sql(
                "a dictionary",
                "CREATE DICTIONARY {db}.names (id UInt64, name String) PRIMARY KEY id "
                "SOURCE(CLICKHOUSE(USER 'default' DB '{db}' TABLE 'orders')) LIFETIME(1) LAYOUT(FLAT())",
                everywhere=True,
            ),
            sql(
                "a dictionary that is seldom loaded",
                "CREATE DICTIONARY {db}.seldom (id UInt64, name String) PRIMARY KEY id "
                "SOURCE(CLICKHOUSE(USER 'default' DB '{db}' TABLE 'orders')) LIFETIME(36000) LAYOUT(FLAT())",
                everywhere=True,
            ),
            sql("it is loaded", "SYSTEM RELOAD DICTIONARY {db}.seldom", everywhere=True),
            staged(),
            must("the receipt lists it", _dependents),
            publish(Outcome.COMMITTED),
            must("the receipt says where the dictionary was not seen to load", _stale_dictionary_is_told),
            must("every replica's dictionary follows", _dictionary_follows),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "another run holds the table, and a clear of it too",
        ("39", "another operation holds the target"),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(run="first"),
            PAUSE_2,
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            stage(Outcome.REFUSED, "IDENTITY_REUSED", run="first"),
            stage(Outcome.CONFLICT, "TARGET_BUSY", run="first", series="1"),
            stage(Outcome.CONFLICT, "TARGET_BUSY", run="second"),
            RESUME_2,
            publish(Outcome.COMMITTED),
            staged(run="first", series="1"),
            publish(Outcome.COMMITTED),
            swaps(2),
            next_run(),
        ),
    ),
    Scenario(
        "another run holds the table",
        ("another operation holds the target",),
        Outcome.CONFLICT,
        (
            live(),
            staged(run="first"),
            PAUSE_2,
            do("the first run waits in vain", lambda world: world.publish(publish=1)),
            stage(Outcome.CONFLICT, "TARGET_BUSY", run="second"),
            RESUME_2,
            publish(Outcome.COMMITTED),
            next_run(),
        ),
        quick=True,
    ),
    Scenario(
        "a retry of stage reads nothing again",
        ("38", "39"),
        Outcome.STAGED,
        (
            live(),
            staged(run="first"),
            do("what was staged is kept in mind", lambda w: w.notes.update(candidate=w.receipt.candidate)),
            do("the task's output is lost", lambda world: setattr(world, "staged", None)),
            do(
                "stage is retried",
                lambda w: w.stage(
                    f"SELECT number AS id, 'g{w.generation}' AS name FROM numbers({100 + w.generation})",
                    run="first",
                ),
            ),
            do("and resumes", lambda world: ends(world, Outcome.STAGED)),
            must(
                "with the same candidate",
                lambda w: w.receipt.candidate == w.notes["candidate"] and w.receipt.resumed,
            ),
            publish(Outcome.COMMITTED),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "two triggers wait for one publication",
        ("40", "38"),
        Outcome.DEFERRED,
        (
            live(),
            staged(),
            PAUSE_2,
            do("publish defers", _deferred),
            must("both triggers wait", lambda world: _woken(world) == [False, False]),
            RESUME_2,
            FINISHED,
            must("both triggers end", lambda world: _woken(world) == [True, True]),
            publish(Outcome.COMMITTED),
            swaps(1),
            cleanup(),
            next_run(),
        ),
    ),
    Scenario(
        "somebody else settles what a trigger waits for",
        ("42",),
        Outcome.DEFERRED,
        (
            live(),
            staged(),
            PAUSE_2,
            do("publish defers", _deferred),
            RESUME_2,
            next_run(),
            must("both triggers end", lambda world: _woken(world) == [True, True]),
            swaps(2),
            next_run(),
        ),
    ),
    Scenario(
        "the control table is dropped on one replica",
        ("32", "partially create the control facade"),
        Outcome.REFUSED,
        (
            live(),
            staged(),
            do("it is dropped on replica 2", _lose_control),
            publish(Outcome.REFUSED, "CONTROL_TABLE_MISSING", ready=1),
            stage(Outcome.REFUSED, "CONTROL_TABLE_MISSING"),
            swaps(0),
            do("init creates what is missing", _init),
            publish(Outcome.COMMITTED),
            next_run(),
        ),
    ),
    Scenario(
        "the control table has another structure on one replica",
        ("32", "block a mismatch of the facade"),
        Outcome.CONTRADICTION,
        (
            live(),
            staged(),
            do("it is dropped on replica 2", _lose_control),
            do(
                "and made differently",
                lambda w: w.cluster.execute(
                    f"CREATE TABLE {w.site.control.qualified} (k String) ENGINE = Memory", node=2
                ),
            ),
            publish(Outcome.CONTRADICTION, "CONTROL_TABLE_INVALID", ready=1),
            stage(Outcome.CONTRADICTION, "CONTROL_TABLE_INVALID"),
            swaps(0),
            do("init creates it anew", _init_anew),
            publish(Outcome.COMMITTED),
            next_run(),
        ),
    ),
    Scenario(
        "the control table is lost while an operation is under way",
        ("32", "control table dropped"),
        Outcome.IN_PROGRESS,
        (
            live(),
            staged(),
            PAUSE_2,
            publish(Outcome.IN_PROGRESS, "PARTIAL_IN_PROGRESS", publish=1),
            do(
                "it is dropped on every replica",
                lambda w: [
                    w.cluster.execute(f"DROP TABLE {w.site.control.qualified} SYNC", node=node)
                    for node in w.cluster.nodes
                ],
            ),
            publish(Outcome.REFUSED, "CONTROL_TABLE_MISSING", publish=1),
            cleanup(Outcome.REFUSED, "CONTROL_TABLE_MISSING"),
            stage(Outcome.REFUSED, "CONTROL_TABLE_MISSING"),
            do("init is refused", _init_is_refused),
            RESUME_2,
            must("both generations are kept", lambda w: {"orders", w.receipt.candidate} <= w.site.tables()),
            swaps(1),
        ),
        own_cluster=True,
    ),
)
