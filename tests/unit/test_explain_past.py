"""What the evidence tells, beside what was read and in its place: told apart, with its time, and never as proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.decide import Abort, Wait
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explain_past import explain_unread, lost_control_table, with_past
from airflow_provider_dpone.publication.explain_words import see_together
from airflow_provider_dpone.publication.explanation import NEVER_CREATE, Explanation, Way
from airflow_provider_dpone.publication.facts import ControlFacts, Observation, TableFacts
from airflow_provider_dpone.publication.history import Past
from airflow_provider_dpone.publication.queue import NotSeen, QueueRow
from airflow_provider_dpone.publication.receipt import publication_receipt
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import (
    Body,
    CandidateIntent,
    CleanupStep,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    Entry,
    OperatorAction,
    PermitUnused,
    StoredReceipt,
    TurnedAway,
)
from airflow_provider_dpone.publication.witness import witness
from airflow_provider_dpone.publication.words import seconds_of, size, when
from airflow_provider_dpone.routes import cluster_refresh as route
from airflow_provider_dpone.routes.cluster_refresh import Site
from airflow_provider_dpone.routes.ports import Target
from tests.unit.builders import (
    ABSENT,
    AUTHORITY,
    COMMITTED,
    CONTROL,
    NEW,
    NEW_UUID,
    OLD,
    OLD_UUID,
    PENDING,
    USER,
    generation,
    in_phase,
    observation,
    stored,
    table,
)
from tests.unit.evidence_entries import ENTRIES, WRITE
from tests.unit.evidence_entries import entry as entry_of

KEEPER = Stop(Code.AUTHORITY_UNAVAILABLE, "Looking at the replicas failed.")
ADMITTED: Body = ENTRIES["admission"].body
INTENT = CandidateIntent("1", "orders__dpone_1", NEW_UUID, "mart")


def past(*bodies: Body) -> Past:
    return Past.of("66c8" * 16, [entry_of(body, number) for number, body in enumerate(bodies, 1)])


def write(phase: Phase, outcome: Any = "stored", version: int = 0) -> tuple[Body, Body]:
    write_id = f"{version:032x}"
    return (
        CompareAndSwap(write_id, phase, 1, None, "f" * 32),
        CompareAndSwapOutcome(write_id, phase, 1, outcome, version if outcome == "stored" else None),
    )


IN_FLIGHT = past(
    ADMITTED,
    INTENT,
    ENTRIES["staged"].body,
    *write(Phase.PREPARED),
    *write(Phase.DISPATCHING, version=1),
    DispatchOutcome("EXCHANGE", "t", 1, WRITE, "lost", None, ""),
    *write(Phase.BOUND, version=2),
)


def unread(stop: Stop, of: Past | None, seen: Observation | None = None) -> Explanation:
    return explain_unread(stop, of, (), seen, name="mart.orders", table="orders")


# The trail.


def test_a_trail_tells_how_far_its_operation_came() -> None:
    assert (past().state, past().stored) == ("ADMITTED", False)
    assert past(ADMITTED).state == "ADMITTED"
    assert past(ADMITTED, ENTRIES["staged"].body).state == "STAGED"
    assert (IN_FLIGHT.state, IN_FLIGHT.unresolved, IN_FLIGHT.sent) == ("BOUND", True, True)
    assert (IN_FLIGHT.old, IN_FLIGHT.candidates, IN_FLIGHT.reply) == (
        frozenset({OLD_UUID}),
        (("orders__dpone_1", frozenset({NEW_UUID})),),
        "lost",
    )
    ended = past(ADMITTED, *write(Phase.COMPLETED, version=7))
    assert not ended.unresolved


@pytest.mark.parametrize(
    ("after", "begun", "sent"),
    [
        ((), Phase.DISPATCHING, True),
        ((CompareAndSwapOutcome(WRITE, Phase.DISPATCHING, 1, "unknown", None),), Phase.DISPATCHING, True),
        ((CompareAndSwapOutcome(WRITE, Phase.DISPATCHING, 1, "conflict", None),), None, False),
        ((PermitUnused(1, WRITE),), None, False),
    ],
    ids=["killed", "unknown", "conflict", "unused"],
)
def test_a_write_without_an_outcome_may_have_been_stored(
    after: tuple[Body, ...], begun: Phase | None, sent: bool
) -> None:
    claim = CompareAndSwap(WRITE, Phase.DISPATCHING, 1, 0, "f" * 32)
    found = past(ADMITTED, *write(Phase.PREPARED), claim, *after)
    assert (found.state, found.begun, found.sent) == ("PREPARED", begun, sent)


def test_a_receipt_tells_the_phase_where_the_note_of_the_write_is_missing() -> None:
    proof = publication_receipt(in_phase(Phase.COMMITTED), replayed=False)
    claim, _ = write(Phase.COMMITTED, version=4)
    found = past(ADMITTED, *write(Phase.TERMINAL, version=3), claim, StoredReceipt(4, proof))
    assert (found.state, found.begun, found.unresolved) == ("COMMITTED", None, False)
    assert past(StoredReceipt(4, proof), *write(Phase.COMPLETED, version=5)).state == "COMPLETED"


def test_a_refusal_stands_once_with_how_often() -> None:
    owner = Owner("dag", "later", "stage", -1)
    one = TurnedAway("d" * 64, owner, "TARGET_BUSY", Phase.BOUND, 2)
    (found,) = past(ADMITTED, one, one).refused
    assert (found.operation_id, found.owner, found.times) == ("d" * 64, owner, 2)
    assert "2 times, before its source was read" in str(found)


@given(st.datetimes(datetime(1900, 1, 1), datetime(9999, 12, 31)))
def test_times_are_those_of_the_calendar(at: datetime) -> None:
    seconds = int(at.replace(microsecond=0, tzinfo=UTC).timestamp())
    assert when(seconds) == at.strftime("%Y-%m-%d %H:%M:%S UTC")
    assert seconds_of(at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")) == seconds


def test_sizes_are_read_and_what_is_no_time_is_none() -> None:
    assert seconds_of("no time") == 0
    assert [size(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30, 2 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
    ]


# Readers.


@pytest.mark.parametrize(
    ("live", "missing", "affected"),
    [
        (("new", "new"), True, False),
        (("new", "old"), True, True),
        (("new", "unknown"), True, None),
        (("unknown", "unknown"), True, None),
        (("new", "old", "unknown"), True, True),
        (("absent", "absent"), True, True),
        (("absent", "absent"), False, False),
        (("another table", "another table"), True, True),
    ],
)
def test_readers_are_affected_where_they_do_not_see_one_generation(
    live: tuple[str, ...], missing: bool, affected: bool | None
) -> None:
    replicas = {f"s1/r{n}": word for n, word in enumerate(live, 1)}
    assert see_together(replicas, missing=missing) is affected


def test_readers_who_find_no_table_are_affected() -> None:
    row = stored(in_phase(Phase.TERMINAL))
    assert explain(row, observation(row, ABSENT, ABSENT), read_at=1).readers == (
        "Readers are affected: the table is missing on s1/r1, s1/r2."
    )


def test_what_readers_see_on_no_replica_is_not_called_harmless() -> None:
    row = stored(in_phase(Phase.BOUND))
    told = explain(row, observation(row, None, None), NotSeen(), read_at=1)
    assert told.affected is None
    assert told.readers.startswith("Whether readers are affected is not known")


# In place of what can't be read.


def test_without_the_control_table_the_tables_still_tell_what_readers_see() -> None:
    told = unread(KEEPER, IN_FLIGHT, observation(None, COMMITTED, PENDING))
    assert (told.read, told.held, told.affected) == (False, True, True)
    assert {alias: one.state for alias, one in told.replicas.items()} == {
        "s1/r1": ReplicaState.COMMITTED,
        "s1/r2": ReplicaState.PENDING,
    }
    assert told.ways == (Way.RESTORE,)
    assert all(line.endswith("(looked at now)") for line in told.proven)
    assert (told.phase, told.operation_id) == ("BOUND", "66c8" * 16)
    assert any("only the control table knows" in line for line in told.unproven)


def test_without_any_look_nothing_is_proven_and_the_last_one_has_its_time() -> None:
    row = stored(in_phase(Phase.BOUND))
    stop = Stop(Code.PARTIAL_IN_PROGRESS, "One follows.")
    seen = witness(row, Wait(stop), observation(row, COMMITTED, PENDING), None)
    assert seen is not None
    told = unread(
        Stop(Code.SERVER_UNAVAILABLE, "No server answers."),
        replace(IN_FLIGHT, seen=seen.replicas, concluded_at=60),
    )
    assert (told.proven, told.affected) == ((), None)
    assert told.unproven[0] == (
        "s1/r1: can't be read; when it was looked at last, at 1970-01-01 00:01:00 UTC, it was committed"
    )
    assert "No server answers." in told.plain


def test_without_any_evidence_nothing_is_made_up() -> None:
    told = unread(KEEPER, None)
    assert (told.operation_id, told.held, told.replicas) == (None, False, {})
    assert "The evidence tells of no operation" in told.plain
    assert told.readers == "What readers see is not known."
    # There is a table, and nothing to compare it with.
    told = unread(KEEPER, None, observation(None, PENDING, PENDING))
    assert (told.affected, {seen.live for seen in told.replicas.values()}) == (None, {"unknown"})
    assert "neither generation" not in told.readers


# A control table that was lost.


def without_control(seen: Observation, control: ControlFacts) -> Observation:
    return replace(
        seen, replicas={alias: replace(facts, control=control) for alias, facts in seen.replicas.items()}
    )


MISSING = Stop(Code.CONTROL_TABLE_MISSING, "missing", facts={"replicas": ["s1/r1", "s1/r2"]})
EMPTY = Stop(Code.CONTROL_TABLE_INVALID, "no authority", facts={"replicas": ["s1/r1", "s1/r2"]})
OTHER = Stop(Code.CONTROL_TABLE_INVALID, "another structure")
DROPPED = ControlFacts(None, None, None, None)
EMPTIED = ControlFacts(CONTROL, None, None, None)
PUBLISHED: Mapping[str, TableFacts | None] = {"orders": table(OLD_UUID, comment_authority=AUTHORITY)}
UNMARKED: Mapping[str, TableFacts | None] = {"orders": OLD}
FOREIGN = Stop(Code.FOREIGN_AUTHORITY, "another control table's")


@pytest.mark.parametrize(
    ("control", "shown", "found", "before", "code"),
    [
        (DROPPED, UNMARKED, [MISSING], None, Code.CONTROL_TABLE_MISSING),
        (DROPPED, PUBLISHED, [MISSING], None, Code.CONTROL_TABLE_LOST),
        (DROPPED, UNMARKED, [MISSING], IN_FLIGHT, Code.CONTROL_TABLE_LOST),
        (EMPTIED, UNMARKED, [EMPTY], None, Code.CONTROL_TABLE_INVALID),
        (EMPTIED, UNMARKED, [EMPTY], IN_FLIGHT, Code.CONTROL_TABLE_LOST),
        (replace(EMPTIED, structure="other"), PUBLISHED, [OTHER], IN_FLIGHT, Code.CONTROL_TABLE_INVALID),
        (replace(EMPTIED, sentinel="b" * 32), PUBLISHED, [FOREIGN], None, Code.FOREIGN_AUTHORITY),
        (replace(EMPTIED, sentinel=AUTHORITY), UNMARKED, [], IN_FLIGHT, Code.CONTROL_TABLE_LOST),
        (replace(EMPTIED, sentinel=AUTHORITY), UNMARKED, [], None, None),
        (replace(EMPTIED, sentinel=AUTHORITY), UNMARKED, [], past(ADMITTED), None),
        # After a recovery: what was stored under the old authority is no longer missed.
        (replace(EMPTIED, sentinel="b" * 32), UNMARKED, [], IN_FLIGHT, None),
    ],
)
def test_a_control_table_that_was_lost_is_not_taken_for_one_that_never_was(
    control: ControlFacts,
    shown: Mapping[str, TableFacts | None],
    found: Sequence[Stop],
    before: Past | None,
    code: Code | None,
) -> None:
    seen = without_control(observation(None, shown, shown), control)
    stop = lost_control_table(seen, "orders", found, before, control_structure=CONTROL)
    assert (stop.code if stop else None) is code


def test_a_lost_control_table_is_recovered_and_nothing_else_is_safe() -> None:
    lost = Stop(Code.CONTROL_TABLE_LOST, "It is gone.")
    told = unread(lost, IN_FLIGHT, observation(None, PENDING, PENDING))
    assert told.ways == (Way.RECOVER,)
    assert NEVER_CREATE in told.never
    assert unread(MISSING, None).ways == (Way.START,)
    assert unread(FOREIGN, IN_FLIGHT).ways == (Way.LOOK,)


# Beside what was read.


@pytest.mark.parametrize(
    ("codes", "drop_after", "kept", "why"),
    [
        (
            {"s1/r2": 359, "s1/r1": 0},
            0,
            (),
            "its drop failed on s1/r2 with exception code 359 (the server",
        ),
        ({}, 5_000, (), "it is kept for as long as retain_predecessor asks"),
        (
            {},
            0,
            (CleanupStep("keep", "orders__dpone_1", OLD_UUID, 9, None, "CLEANUP_UNSAFE"),),
            "the table under the",
        ),
        ({}, 0, (), "it is due: cleanup or the next run drops it"),
    ],
)
def test_a_predecessor_that_is_still_there_is_named_with_its_size_and_why(
    codes: Mapping[str, int], drop_after: int, kept: tuple[Body, ...], why: str
) -> None:
    of = in_phase(Phase.COMPLETED_RETAINING)
    item = replace(
        of.retained[0], drop_after=drop_after, name="orders__dpone_1", generation=generation(OLD_UUID)
    )
    row = stored(replace(of, retained=(item,)))
    seen = observation(row, {"orders": NEW}, {"orders": NEW, "orders__dpone_1": replace(OLD, bytes=5 << 20)})
    told = with_past(
        explain(row, seen, read_at=1), seen, past(ADMITTED, *kept), (), {item.name: codes}, name="mart.orders"
    )
    (left,) = told.leftovers
    assert (left.replicas, left.bytes) == (("s1/r2",), 5 << 20)
    assert why in str(left)
    assert "5.0 MiB" in str(left)
    assert (Way.CLEAN_UP in told.ways) is (drop_after < 5_000)


def given_up(*bodies: Body) -> str:
    row = stored(in_phase(Phase.ABORTED))
    seen = observation(row, {"orders": OLD}, {"orders": OLD})
    told = with_past(explain(row, seen, read_at=1), seen, past(ADMITTED, *bodies), (), {}, name="mart.orders")
    return told.happened[-1]


def test_an_operation_that_was_given_up_says_why() -> None:
    row = stored(in_phase(Phase.PREPARED))
    reason = witness(row, Abort(Stop(Code.TARGET_NOT_UNIFORM, "They differ.")), None, None)
    assert reason is not None
    said = given_up(reason)
    assert said.startswith("The reason was written down at ")
    assert said.endswith("(DPONE_CLICKHOUSE_CLUSTER_TARGET_NOT_UNIFORM)")
    audit = OperatorAction("abandon", "abandon", "its worker is gone", Phase.LOCKED, 0, 1, WRITE)
    assert given_up(reason, audit).endswith(": its worker is gone")
    assert given_up(audit, *write(Phase.ABORTED), reason) == given_up(audit)
    # Later drops are written to the same trail.
    assert given_up(audit, *write(Phase.ABORTED), reason, *write(Phase.ABORTED)) == given_up(audit)
    assert given_up(replace(reason, aggregate="OF_A_LATER_RELEASE")) == given_up()


class Silent:
    """Evidence that can't be read."""

    def recent(self, *_: object, **__: object) -> Sequence[str]:
        raise Stopped(Stop(Code.EVIDENCE_UNAVAILABLE, "The store does not answer."))

    def entries(self, _: str) -> Sequence[Entry]:
        raise Stopped(Stop(Code.EVIDENCE_UNAVAILABLE, "The store does not answer."))


class Look:
    """A catalog that shows one thing."""

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self.inventory = seen.inventory

    def observe(self, _: object) -> Observation:
        return self.seen


def test_evidence_that_cannot_be_read_hides_nothing_that_can() -> None:
    row = stored(in_phase(Phase.PREPARED))
    catalog: Any = Look(observation(row, PENDING, PENDING))
    nobody: Any = None
    site = Site(Target("analytics", "mart", "orders"), user=USER, control_structure=CONTROL)
    told = route.explain(catalog, nobody, nobody, site, trails=Silent())
    assert told.read
    assert told.phase == "PREPARED"
    assert told.unproven[-1] == "What happened before: The store does not answer."


class NoQueue:
    """A queue that can't be read."""

    def read(self, _: str) -> tuple[int, Sequence[QueueRow]]:
        raise Stopped(Stop(Code.SERVER_ERROR, "No node."))


def test_a_queue_that_cannot_be_read_hides_no_record() -> None:
    row = stored(in_phase(Phase.BOUND))
    catalog: Any = Look(observation(row, COMMITTED, PENDING))
    queue: Any = NoQueue()
    nobody: Any = None
    site = Site(Target("analytics", "mart", "orders"), user=USER, control_structure=CONTROL)
    told = route.explain(catalog, queue, nobody, site)
    assert (told.read, told.held, told.affected) == (True, True, True)
    assert told.stop is not None
    assert told.stop.code is Code.SERVER_ERROR
    assert told.ways == (Way.WAIT,)
    assert told.unproven[-1].startswith("What the queue says: it can't be read.")
    assert told.plain.endswith("what became of the swap can't be told now. The queue can't be read now.")
    assert told.waiting == ()
    assert told.replicas["s1/r1"].repair is None
