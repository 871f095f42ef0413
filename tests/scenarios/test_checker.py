"""The checker finds what must never happen: histories with one planted violation each, and one without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster import LoggedStatement, Outcome, QueueRow
from tests.scenarios import checker
from tests.scenarios.history import Allowed, Evidence, Execution, History, Seen, Snapshot
from tests.scenarios.outcome import Outcome as Ended
from tests.scenarios.outcome import Result

OPERATION = "ab" * 32
TOKEN = f"dpone1:{OPERATION[:16]}:publish:1:{'0' * 32}"
OLD, NEW = "old-uuid", "new-uuid"
CANDIDATE = "orders__dpone_0123456789abcdef"


def statement(text: str, **changes: Any) -> LoggedStatement:
    fields: dict[str, Any] = {
        "sequence": 1,
        "started_at": 100.0,
        "node": 1,
        "kind": text.split()[0],
        "text": text,
        "query_id": "q",
        "user": "dpone_app",
        "outcome": Outcome.OK,
    }
    return LoggedStatement(**(fields | changes))


SWAP = statement(
    "EXCHANGE TABLES db.orders AND db.candidate", settings={"log_comment": TOKEN}, entry="query-1"
)


def row(entry: str) -> QueueRow:
    return {  # type: ignore[typeddict-item]
        "entry": entry,
        "query": "EXCHANGE TABLES db.orders AND db.candidate",
        "settings": {"log_comment": TOKEN},
    }


def record(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "operation_id": OPERATION,
        "phase": "COMMITTED",
        "dispatch_epoch": 1,
        "desired": {"uuid": NEW},
        "predecessor": {"uuid": OLD},
        "candidate": CANDIDATE,
        "retained": [],
    }
    return fields | changes


PROVEN = Result(
    "publish",
    Ended.COMMITTED,
    receipt={"rows": 2, "replicas": [{"after": {"target": NEW}}, {"after": {"target": NEW}}]},
)


def snapshot(**changes: Any) -> Snapshot:
    tables = {"orders": NEW, CANDIDATE: OLD}
    fields: dict[str, Any] = {
        "step": "a step",
        "tables": {1: tables, 2: tables},
        "digests": {1: (2, "two"), 2: (2, "two")},
        "record": record(),
        "write_id": "w1",
        "keys": 1,
        "held": False,
        "code": "",
        "ways": ("retry",),
        "result": PROVEN,
    }
    return Snapshot(**(fields | changes))


READ = [Seen("absent"), Seen("rows", ("g1",), 1), Seen("rows", ("g2",), 2)]
GOOD = History(
    database="db",
    table="orders",
    nodes=(1, 2),
    generations={"g1": (1, "one"), "g2": (2, "two")},
    statements=[
        statement("ALTER TABLE dpone.authority_v1 UPDATE phase = 'DISPATCHING'", query_id="w1"),
        SWAP,
    ],
    queue=[row("query-1"), row("query-1")],
    executions=[Execution(1, "query-1", "EXCHANGE"), Execution(2, "query-1", "EXCHANGE")],
    evidence=[
        Evidence(OPERATION, "intent", 90.0, {"table": CANDIDATE}),
        Evidence(OPERATION, "compare-and-swap", 99.0, {"phase": "DISPATCHING", "epoch": 1}),
    ],
    snapshots=[snapshot()],
    readers={1: READ, 2: READ},
)


def test_a_good_history_has_no_violation() -> None:
    assert checker.check(GOOD) == []


def _sent(*more: LoggedStatement) -> History:
    return replace(GOOD, statements=[*GOOD.statements, *more])


def _seen(*more: Seen) -> History:
    return replace(GOOD, readers={1: READ, 2: [*READ, *more]})


def _after(**changes: Any) -> History:
    return replace(GOOD, snapshots=[*GOOD.snapshots, snapshot(result=None, **changes)])


def _again(token: str) -> LoggedStatement:
    return replace(SWAP, settings={"log_comment": token})


def _on(node: int, tables: dict[str, str]) -> dict[int, dict[str, str]]:
    return {key: tables if key == node else {"orders": NEW, CANDIDATE: OLD} for key in (1, 2)}


ATTEMPT = "orders__dpone_1111111111111111"
OTHER = "orders__dpone_2222222222222222"
READ_SOURCE = f"INSERT INTO `db`.`{ATTEMPT}` (`id`, `name`) SELECT id, name FROM numbers(2)"
LOADED = f"INSERT INTO `db`.`{OTHER}` (`id`, `name`) FORMAT Native"
ALIASES = ("s1/r1", "s1/r2")


def own(name: str) -> dict[str, Any]:
    """A generation of independent tables."""
    return {"uuid": name, "tables": [{"alias": alias, "uuid": f"{name}-{alias}"} for alias in ALIASES]}


def own_tables(**more: str) -> dict[int, dict[str, str]]:
    """What each node has: its own table under each name."""
    names = {"orders": NEW, CANDIDATE: OLD, **more}
    return {
        node: {name: f"{uuid}-{alias}" for name, uuid in names.items()}
        for node, alias in enumerate(ALIASES, start=1)
    }


OWN_PROVEN = replace(
    PROVEN,
    receipt={"rows": 2, "replicas": [{"after": {"target": f"{NEW}-{alias}"}} for alias in ALIASES]},
)
OWN_RECORD = record(desired=own(NEW), predecessor=own(OLD))
INDEPENDENT = replace(
    GOOD,
    independent=True,
    statements=[
        *GOOD.statements,
        statement(READ_SOURCE),
        statement(LOADED),
        statement(f"DROP TABLE IF EXISTS `db`.`{ATTEMPT}`"),
    ],
    evidence=[
        *(Evidence(OPERATION, "intent", 90.0, {"table": name}) for name in (ATTEMPT, OTHER)),
        *GOOD.evidence[1:],
    ],
    snapshots=[snapshot(tables=own_tables(), record=OWN_RECORD, result=OWN_PROVEN)],
)


def test_a_good_history_of_independent_tables_has_no_violation() -> None:
    assert checker.check(INDEPENDENT) == []


def _own(*more: LoggedStatement, **changes: Any) -> History:
    """The good history of independent tables, with more statements and another last look."""
    last = replace(INDEPENDENT.snapshots[0], **changes)
    return replace(INDEPENDENT, statements=[*INDEPENDENT.statements, *more], snapshots=[last])


STAGING = record(
    phase="STAGING",
    desired={"uuid": "", "tables": []},
    predecessor=own(OLD),
    stages=[
        {"alias": "s1/r1", "name": ATTEMPT, "uuid": "proven", "state": "verified"},
        {"alias": "s1/r2", "name": OTHER, "uuid": "claimed", "state": "claimed"},
    ],
)
LIVE_OLD = {node: {"orders": f"{OLD}-{alias}"} for node, alias in enumerate(ALIASES, start=1)}


def test_an_attempt_that_is_not_proven_may_be_gone() -> None:
    tables = {1: {**LIVE_OLD[1], ATTEMPT: "proven"}, 2: LIVE_OLD[2]}
    found = _own(tables=tables, record=STAGING, result=None, held=True, ways=("stage on",))
    assert checker.check(found) == []


def test_what_was_given_up_may_be_gone() -> None:
    given_up = _own(tables=LIVE_OLD, record={**STAGING, "phase": "ABORTED"}, result=None)
    assert checker.check(given_up) == []


STORED = {"outcome": "stored", "phase": "DISPATCHING", "epoch": 1}
TWO_RECEIPTS = replace(PROVEN, receipt={**PROVEN.receipt, "replicas": [{"after": {"target": NEW}}]})
PLANTED: tuple[tuple[str, Callable[..., Any], History, str], ...] = (
    (
        "a swap that is sent again under the next epoch",
        checker.one_swap_per_operation,
        _sent(_again(TOKEN.replace(":1:", ":2:"))),
        "sent its swap 2 times",
    ),
    (
        "two permits of one epoch",
        checker.one_permit_per_epoch,
        _sent(_again(TOKEN[:-1] + "1")),
        "gave 2 permits",
    ),
    ("a permit that is used twice", checker.one_permit_per_epoch, _sent(SWAP), "was used 2 times"),
    (
        "an epoch that two writes claimed",
        checker.one_permit_per_epoch,
        replace(
            GOOD,
            snapshots=[snapshot(record=record(phase="DISPATCHING"), write_id=w) for w in ("w1", "w2")],
        ),
        "claimed by 2 writes",
    ),
    (
        "an epoch that two writes stored",
        checker.one_permit_per_epoch,
        replace(
            GOOD,
            evidence=[
                *GOOD.evidence,
                *(
                    Evidence(OPERATION, "compare-and-swap-outcome", 99.5, {**STORED, "write_id": write})
                    for write in ("w1", "w2")
                ),
            ],
        ),
        "claimed by 2 writes",
    ),
    (
        "two entries of one statement",
        checker.one_entry_per_statement,
        replace(GOOD, queue=[row("query-1"), row("query-2")]),
        "query-1, query-2",
    ),
    (
        "an entry that a server ran twice",
        checker.executed_once,
        replace(GOOD, executions=[*GOOD.executions, GOOD.executions[1]]),
        "node 2 ran query-1 2 times",
    ),
    (
        "a compare-and-swap that is sent again",
        checker.one_send_per_write,
        _sent(GOOD.statements[0]),
        "was sent 2 times",
    ),
    (
        "a dropped live table",
        checker.nothing_foreign_is_destroyed,
        _sent(statement("DROP TABLE IF EXISTS `db`.`orders` ON CLUSTER c")),
        "dropped `orders`",
    ),
    (
        "a dropped control table",
        checker.nothing_foreign_is_destroyed,
        _sent(statement("DROP TABLE dpone.authority_v1")),
        "dropped authority_v1",
    ),
    (
        "a deleted record",
        checker.nothing_foreign_is_destroyed,
        _sent(statement("ALTER TABLE dpone.authority_v1 DELETE WHERE 1")),
        "sent ALTER",
    ),
    (
        "a swap before its claim is written down",
        checker.intent_before_claim,
        replace(GOOD, evidence=[replace(GOOD.evidence[1], at=101.0)]),
        "before its claim",
    ),
    (
        "a reader's error",
        checker.readers_see_one_generation,
        _seen(Seen("error", code=252)),
        "got error 252",
    ),
    ("a reader without an answer", checker.readers_see_one_generation, _seen(Seen("down")), "no answer"),
    ("a live table that vanishes", checker.readers_see_one_generation, _seen(Seen("absent")), "vanished"),
    (
        "mixed rows",
        checker.readers_see_one_generation,
        _seen(Seen("rows", ("g1", "g2"), 3)),
        "3 rows of g1, g2",
    ),
    (
        "half of a generation",
        checker.readers_see_one_generation,
        _seen(Seen("rows", ("g2",), 1)),
        "1 rows of g2",
    ),
    (
        "a live table that goes back",
        checker.readers_see_one_generation,
        _seen(Seen("rows", ("g1",), 1)),
        "went back",
    ),
    (
        "a lost predecessor",
        checker.needed_tables_are_kept,
        _after(tables=_on(2, {"orders": NEW})),
        "the old generation is gone on node 2",
    ),
    (
        "a lost candidate",
        checker.needed_tables_are_kept,
        _after(record=record(phase="BOUND"), tables=_on(1, {"orders": OLD})),
        "the new generation is gone on node 1",
    ),
    (
        "a lost live table after the end",
        checker.needed_tables_are_kept,
        _after(record=record(phase="COMPLETED"), tables=_on(1, {"orders": OLD})),
        "the live generation is gone",
    ),
    (
        "a success with another table on a replica",
        checker.success_is_proven,
        replace(GOOD, snapshots=[snapshot(tables=_on(2, {"orders": OLD, CANDIDATE: NEW}))]),
        "node 2 holds another table",
    ),
    (
        "a success with other content",
        checker.success_is_proven,
        replace(GOOD, snapshots=[snapshot(digests={1: (2, "two"), 2: (2, "other")})]),
        "content that nobody staged",
    ),
    (
        "a success with the old content",
        checker.success_is_proven,
        replace(GOOD, snapshots=[snapshot(digests={1: (2, "two"), 2: (1, "one")})]),
        "node 2 holds 1 rows",
    ),
    (
        "a success with a replica down",
        checker.success_is_proven,
        replace(GOOD, snapshots=[snapshot(tables={1: {"orders": NEW, CANDIDATE: OLD}, 2: None})]),
        "node 2 was down",
    ),
    (
        "a success that leaves a replica out",
        checker.success_is_proven,
        replace(GOOD, snapshots=[snapshot(result=TWO_RECEIPTS)]),
        "succeeded on 1 replicas",
    ),
    (
        "a failure without a code",
        checker.nothing_is_held_without_a_reason,
        replace(GOOD, snapshots=[snapshot(result=Result("publish", Ended.REFUSED))]),
        "ended without a code",
    ),
    (
        "a hold without a code",
        checker.nothing_is_held_without_a_reason,
        _after(record=record(phase="TERMINAL"), held=True, ways=("look",)),
        "held without a code",
    ),
    (
        "a hold that explain does not see",
        checker.nothing_is_held_without_a_reason,
        _after(record=record(phase="BOUND")),
        "explain sees no hold",
    ),
    ("two records", checker.one_record_per_target, _after(keys=2), "2 records"),
    (
        "a table that nobody wrote down",
        checker.no_table_without_a_reason,
        _after(tables=_on(1, {"orders": NEW, CANDIDATE: OLD, "orders__dpone_ffffffffffffffff": "x"})),
        "orders__dpone_ffffffffffffffff is left on node 1",
    ),
    (
        "one table on two independent replicas",
        checker.success_is_proven,
        _own(result=PROVEN, tables={1: {"orders": NEW}, 2: {"orders": NEW}}),
        "with 1 tables on 2 replicas",
    ),
    (
        "an independent replica with the other one's table",
        checker.success_is_proven,
        _own(tables={1: own_tables()[2], 2: own_tables()[1]}),
        "node 1 holds another table",
    ),
    (
        "a lost predecessor of one independent replica",
        checker.needed_tables_are_kept,
        _own(tables={1: own_tables()[1], 2: {"orders": f"{NEW}-s1/r2"}}),
        "the old generation is gone on node 2",
    ),
    (
        "a live table that is lost while replicas are staged",
        checker.needed_tables_are_kept,
        _own(tables={1: {ATTEMPT: "proven"}, 2: LIVE_OLD[2]}, record=STAGING),
        "the old generation is gone on node 1",
    ),
    (
        "a proven table that is lost while another replica is loaded",
        checker.needed_tables_are_kept,
        _own(tables=LIVE_OLD, record=STAGING),
        "the proven table is gone on node 1",
    ),
    (
        "a staging that explain does not see",
        checker.nothing_is_held_without_a_reason,
        _own(record=STAGING, result=None, held=False),
        "explain sees no hold",
    ),
    (
        "a row that is there twice",
        checker.live_rows_were_staged,
        _own(digests={1: (2, "two"), 2: (3, "two and one again")}, result=None),
        "node 2 has 3 live rows that nobody staged so",
    ),
    (
        "a source that is read again",
        checker.source_is_read_once,
        _own(statement(READ_SOURCE)),
        "was read again after a replica was loaded",
    ),
    (
        "a load that is appended",
        checker.one_load_per_attempt,
        _own(statement(LOADED)),
        f"{OTHER} was loaded 2 times",
    ),
    (
        "a dropped table that nothing lists",
        checker.only_listed_tables_are_dropped,
        _own(statement("DROP TABLE `db`.`orders__dpone_3333333333333333`")),
        "dropped orders__dpone_3333333333333333, which nothing lists",
    ),
    (
        "a table that is dropped before it is written down",
        checker.only_listed_tables_are_dropped,
        _own(statement(f"DROP TABLE `db`.`{ATTEMPT}`", started_at=89.0)),
        f"dropped {ATTEMPT}, which nothing lists",
    ),
    (
        "a candidate that is dropped on one replica",
        checker.only_listed_tables_are_dropped,
        _own(statement(f"DROP TABLE `db`.`{CANDIDATE}`")),
        f"dropped {CANDIDATE} on one replica",
    ),
)


@pytest.mark.parametrize(
    ("invariant", "planted", "words"), [p[1:] for p in PLANTED], ids=[p[0] for p in PLANTED]
)
def test_a_planted_violation_is_found_by_its_invariant(
    invariant: Callable[[History], Any], planted: History, words: str
) -> None:
    assert any(words in found for found in invariant(planted)), list(invariant(planted))
    assert checker.check(planted)


def test_every_invariant_can_fail() -> None:
    assert {planted[1] for planted in PLANTED} == set(checker.INVARIANTS)


def test_what_a_scenario_does_itself_is_no_violation() -> None:
    allowed = Allowed(down=frozenset({2}), twice=frozenset({2}), copied=frozenset({TOKEN}))
    for planted in (
        _seen(Seen("down")),
        _seen(Seen("rows", ("g1",), 1)),
        replace(GOOD, queue=[row("query-1"), row("query-2")]),
        replace(GOOD, executions=[*GOOD.executions, GOOD.executions[1]]),
    ):
        assert checker.check(planted)
        assert checker.check(replace(planted, allowed=allowed)) == []


def test_a_refusal_before_the_queue_allows_another_epoch() -> None:
    refused = replace(SWAP, outcome=Outcome.ERROR, entry="")
    again = _again(TOKEN.replace(":1:", ":2:"))
    claim = replace(GOOD.evidence[1], body={"phase": "DISPATCHING", "epoch": 2})
    history = replace(GOOD, statements=[GOOD.statements[0], refused, again], evidence=[*GOOD.evidence, claim])
    assert checker.check(history) == []
