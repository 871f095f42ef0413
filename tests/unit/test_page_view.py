"""What the page says about an operation, in every phase and for every way in which one stops."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dpone.evidence.reader import Trail
from airflow_provider_dpone.publication import decide, transitions
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explain_past import explain_unread, with_past
from airflow_provider_dpone.publication.explanation import NEVER_CREATE, Explanation, Leftover, Way
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.history import ADMITTED, STAGED, Past
from airflow_provider_dpone.publication.queue import HostRow, HostStatus, Running, Terminal
from airflow_provider_dpone.publication.queue_report import Blocker
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.stop import MEANINGS, Category, Code, Stop
from airflow_provider_dpone.publication.trail import (
    Admission,
    Classification,
    CleanupStep,
    CompareAndSwapOutcome,
    OperatorAction,
    Staged,
    TurnedAway,
    Unknown,
)
from airflow_provider_dpone.web.model import LiveFacts, Receipt
from airflow_provider_dpone.web.status import SENT, Tone, status_of
from airflow_provider_dpone.web.timeline import duration
from airflow_provider_dpone.web.view import needs_live, receipt
from tests.unit.builders import (
    ABSENT,
    COMMITTED,
    ENTRY,
    FOREIGN,
    FOREIGN_TARGET,
    NEW,
    NEW_UUID,
    OLD,
    OLD_UUID,
    PENDING,
    REPLICATED_PHASES,
    generation,
    in_phase,
    observation,
    receipt_of,
    record,
    stored,
)
from tests.unit.page_trails import START, classified, explained, held, history, trail

STATES = [ADMITTED, STAGED, *REPLICATED_PHASES]
OPERATION = record().operation_id


def page(
    bodies: list[Any],
    live: Explanation | None = None,
    *,
    later: bool = False,
    age: timedelta = timedelta(seconds=30),
    why_not: str = "why not",
    conn_id: str | None = "clickhouse_default",
) -> Receipt:
    return receipt(
        trail(OPERATION, bodies, conn_id=conn_id),
        LiveFacts(live, why_not="" if live else why_not),
        cluster="analytics",
        later=later,
        now=START + age,
    )


# ---- every phase


TONES = {
    ADMITTED: (Tone.REST, "Staging"),
    STAGED: (Tone.REST, "Staged"),
    Phase.PREPARED: (Tone.REST, "Ready"),
    Phase.DISPATCHING: (Tone.CARE, "In progress"),
    Phase.BOUND: (Tone.CARE, "In progress"),
    Phase.TERMINAL: (Tone.CARE, "In progress"),
    Phase.COMMITTED: (Tone.GOOD, "Published"),
    Phase.COMPLETED_RETAINING: (Tone.GOOD, "Published"),
    Phase.COMPLETED: (Tone.GOOD, "Published"),
    Phase.ABORTED: (Tone.REST, "Not published"),
}


@pytest.mark.parametrize("state", STATES)
def test_each_phase_has_its_tone_and_answers_three_questions(state: str) -> None:
    shown = page(history(state))
    assert shown.state == state
    assert (shown.status.tone, shown.status.word) == TONES[state]
    assert all((shown.what[0], shown.safe, shown.next[0]))
    assert (shown.target, shown.cluster) == ("mart.orders", "analytics")
    assert not shown.facts.live
    assert "Recorded at 2026-01-02 03:04:" in shown.facts.text
    assert shown.facts.text.endswith("why not")
    assert [row.alias for row in shown.replicas] == ["s1/r1", "s1/r2"]
    assert shown.replicas[0].role == "shard 1, replica 1"
    assert len(shown.trail) == len(history(state))


@pytest.mark.parametrize("state", STATES)
def test_the_timeline_ends_where_the_operation_is(state: str) -> None:
    steps = page(history(state)).steps
    kinds = [step.state for step in steps]
    over = state in (Phase.ABORTED, Phase.COMMITTED, Phase.COMPLETED, Phase.COMPLETED_RETAINING)
    assert kinds.count("current") == (0 if over else 1)
    assert kinds == sorted(kinds, key=["done", "current", "todo"].index)
    assert all(step.at for step in steps if step.state != "todo")
    assert not any(step.at for step in steps if step.state == "todo")
    assert all(step.after.startswith("+") for step in steps[1:] if step.at)


def test_a_phase_whose_note_is_missing_has_the_time_of_its_write() -> None:
    bodies = [
        body
        for body in history(Phase.COMMITTED)
        if not (isinstance(body, CompareAndSwapOutcome) and body.phase is Phase.BOUND)
    ]
    steps = {step.title: step for step in page(bodies).steps}
    assert steps["Entry bound"].state == "done"
    assert steps["Entry bound"].at


def test_nothing_at_all_is_recorded() -> None:
    shown = receipt(
        Trail(OPERATION, (), (("admission.json", Unknown("dpone.clickhouse.evidence-admission.v2", True)),)),
        LiveFacts(None, why_not="why not"),
        cluster="analytics",
        later=False,
        now=START,
        owner=Owner("dag", "run", "stage", 3),
    )
    assert shown.owner == Owner("dag", "run", "stage", 3)
    assert shown.replicas == ()
    assert "upgrade the provider" in shown.left_alone[0]
    assert shown.refresh is None


# ---- what stops it


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("phase", sorted(SENT))
def test_each_recorded_stop_is_told_with_the_words_of_its_code(phase: Phase, code: Code) -> None:
    of = in_phase(phase)
    shown = page(history(phase) + held(code, of, COMMITTED, PENDING))
    assert shown.code == code
    assert shown.what[0] == MEANINGS[code].meaning
    assert shown.next == (MEANINGS[code].next_action,)
    on_hold = code.category in (Category.CONTRADICTION, Category.PARTIAL_TERMINAL)
    assert (shown.status.tone is Tone.HOLD) == on_hold
    assert shown.status.tone in (Tone.HOLD, Tone.CARE)
    assert "they see the new data on s1/r1; they see the old data on s1/r2" in shown.safe
    assert shown.safe.startswith("When last seen")


def test_a_reason_that_the_record_has_left_behind_counts_no_more() -> None:
    bound = in_phase(Phase.BOUND)
    bodies = history(Phase.BOUND) + held(Code.REPLICA_NOT_OBSERVED, bound, COMMITTED, None)
    assert page(bodies).status.word == "Not observed"
    moved = bodies + history(Phase.TERMINAL)[len(history(Phase.BOUND)) :]
    assert page(moved).status.word == "In progress"
    assert page(moved).code is None


def test_a_reason_that_this_release_does_not_know_is_named() -> None:
    (last,) = held(Code.PARTIAL_TERMINAL, in_phase(Phase.TERMINAL), COMMITTED, PENDING)
    assert isinstance(last, Classification)
    shown = page([*history(Phase.TERMINAL), replace(last, aggregate="SOMETHING_NEW")])
    assert shown.status.tone is Tone.HOLD
    assert "SOMETHING_NEW" in shown.what[0]
    assert "Upgrade" in shown.next[0]


def test_what_was_given_up_says_why() -> None:
    bodies = history(Phase.ABORTED)
    refusal = held(Code.GUARD_MIN_ROWS, in_phase(Phase.PREPARED), PENDING, PENDING)
    shown = page([*bodies[:-2], *refusal, *bodies[-2:]])
    assert shown.status.word == "Not published"
    assert shown.code == Code.GUARD_MIN_ROWS
    assert MEANINGS[Code.GUARD_MIN_ROWS].meaning in shown.what


@pytest.mark.parametrize("category", list(Category))
@pytest.mark.parametrize("state", STATES)
def test_what_is_proven_stays_green_whatever_else_happens(state: str, category: Category) -> None:
    found = status_of(state, category)
    if TONES[state][0] is Tone.GOOD or state == Phase.ABORTED:
        assert (found.tone, found.word) == TONES[state]
    assert status_of(state, category, later=True).tone is not Tone.HOLD


def test_a_phase_of_a_later_release_is_amber() -> None:
    assert status_of("SOMETHING").tone is Tone.CARE


# ---- live facts


def running(**words: HostRow) -> Running:
    return Running(ENTRY, "d" * 64, {f"s1/{name}": row for name, row in words.items()})


def test_live_facts_go_before_recorded_ones() -> None:
    live = explained(
        in_phase(Phase.BOUND),
        COMMITTED,
        PENDING,
        queue=running(r1=HostRow(HostStatus.SUCCESS, 0), r2=HostRow(HostStatus.IN_PROGRESS)),
    )
    shown = page(history(Phase.DISPATCHING), live)
    assert shown.facts.live
    assert shown.facts.text == "Read from the cluster at 1970-01-01 00:18:20 UTC."
    assert (shown.state, shown.code) == (Phase.BOUND, Code.PARTIAL_IN_PROGRESS)
    assert live.stop is not None
    assert shown.what[0] == live.plain == live.stop.message
    assert shown.safe == live.readers
    assert (shown.readers.word, shown.readers.tone) == ("Affected", Tone.CARE) if shown.readers else False
    assert shown.waiting == live.waiting
    assert shown.unproven == live.unproven
    assert not shown.remembered
    assert shown.next == live.next
    assert shown.never == live.never
    first, second = shown.replicas
    assert (first.status.tone, first.target.generation, first.candidate.generation) == (
        Tone.GOOD,
        "new",
        "old",
    )
    assert (first.target.uuid, first.target.short) == (NEW_UUID, NEW_UUID[:8])
    assert (second.status.tone, second.target.uuid) == (Tone.CARE, OLD_UUID)
    assert (first.ddl.word, second.ddl.word) == ("finished", "in progress")
    assert (first.rows, first.health, first.healthy) == ("10", "healthy", True)
    assert first.content == "equal before the swap"
    assert shown.commands[0].startswith(
        "airflow dpone explain --conn-id clickhouse_default --cluster analytics"
    )


def test_a_terminal_partial_is_red_and_names_the_way_out() -> None:
    of = in_phase(Phase.TERMINAL, 3)
    assert of.publication is not None
    of = replace(of, publication=replace(of.publication, receipt=receipt_of(of, r2=60)))
    live = explained(of, COMMITTED, PENDING, COMMITTED)
    shown = page(history(Phase.TERMINAL, 3), live)
    assert shown.status.tone is Tone.HOLD
    assert [row.status.tone for row in shown.replicas] == [Tone.GOOD, Tone.HOLD, Tone.GOOD]
    assert shown.replicas[1].ddl.word == "failed: 60 UNKNOWN_TABLE: a table doesn't exist"
    assert "shows the statement for s1/r2" in shown.next[-1]
    assert any(command.startswith("airflow dpone resolve ") for command in shown.commands)
    assert not any("EXCHANGE TABLES" in line for line in (*shown.next, *shown.what, *shown.commands))
    assert [step.state for step in shown.steps][5] == "failed"
    assert shown.never


def test_a_contradiction_is_red_and_the_foreign_table_is_marked() -> None:
    live = explained(in_phase(Phase.TERMINAL), COMMITTED, FOREIGN_TARGET)
    shown = page(history(Phase.TERMINAL), live)
    assert (shown.status.tone, shown.code) == (Tone.HOLD, Code.GENERATION_UNKNOWN)
    assert shown.replicas[1].target.generation == "another table"
    assert shown.replicas[1].target.uuid == FOREIGN.uuid
    assert shown.replicas[1].status.tone is Tone.HOLD


def test_an_absent_table_is_told_from_one_that_cannot_be_seen() -> None:
    of = in_phase(Phase.BOUND, predecessor=None)
    shown = page(history(Phase.BOUND, predecessor=None), explained(of, ABSENT, None))
    assert [row.target.generation for row in shown.replicas] == ["absent", "unknown"]
    assert shown.replicas[1].status.word == "can't be read"
    assert shown.replicas[1].seen == "can't be read now"


def test_a_replica_that_is_not_healthy_says_what_is_wrong() -> None:
    sick = dict(COMMITTED)
    table = sick["orders"]
    assert table is not None
    assert table.replication is not None
    sick["orders"] = replace(table, replication=replace(table.replication, is_readonly=True))
    shown = page(history(Phase.COMMITTED), explained(in_phase(Phase.COMMITTED), COMMITTED, sick))
    assert [row.healthy for row in shown.replicas] == [True, False]
    assert shown.next[0].startswith("Nothing to do")
    assert shown.replicas[1].health == "it is read-only"
    assert shown.status.tone is Tone.GOOD


def test_what_blocks_the_queue_and_what_it_will_forget_are_worth_a_look() -> None:
    live = replace(
        explained(in_phase(Phase.BOUND), PENDING, PENDING, queue=running(r1=HostRow(HostStatus.IN_PROGRESS))),
        blocked=(Blocker("query-0000000003", "s1/r2", 1_000, "Active", False, None),),
        newer_entries=700,
    )
    shown = page(history(Phase.BOUND), live)
    assert "query-0000000003, queued by somebody else" in shown.blocked[0]
    assert "700 entries came after" in shown.warnings[0]


def test_a_look_of_a_moment_ago_tells_its_age() -> None:
    live = LiveFacts(explained(in_phase(Phase.BOUND), PENDING, PENDING), age=42.0)
    shown = receipt(trail(OPERATION, history(Phase.BOUND)), live, cluster="analytics", later=False, now=START)
    assert shown.facts.text.endswith("UTC, 42 s ago.")


# ---- an operation that others have followed, and a record that is gone


def followed(outcome: Phase) -> Explanation:
    """The record of a later operation that remembers how this one ended."""
    ended = in_phase(outcome)
    later = in_phase(Phase.PREPARED, operation_id="ff" * 32, settled=ended.remembered("ff" * 32))
    return explained(later, PENDING, PENDING)


@pytest.mark.parametrize(
    ("recorded", "outcome", "word"),
    [
        (Phase.TERMINAL, Phase.COMPLETED, "Published"),
        (Phase.PREPARED, Phase.ABORTED, "Not published"),
        (Phase.COMMITTED, Phase.COMPLETED_RETAINING, "Published"),
    ],
)
def test_a_settled_operation_ends_as_the_later_record_remembers(
    recorded: Phase, outcome: Phase, word: str
) -> None:
    shown = page(history(recorded), followed(outcome))
    assert (shown.state, shown.status.word) == (outcome, word)
    assert not shown.facts.live
    assert shown.refresh is None


@pytest.mark.parametrize(
    ("state", "word"),
    [(ADMITTED, "Given up"), (STAGED, "Given up"), (Phase.PREPARED, "Given up"), (Phase.BOUND, "Ended")],
)
def test_what_a_later_operation_has_followed_is_over(state: str, word: str) -> None:
    shown = page(history(state), later=True)
    assert (shown.status.tone, shown.status.word) == (Tone.REST, word)
    assert shown.refresh is None


def test_another_operations_record_says_nothing_about_one_that_has_none_yet() -> None:
    other = explained(in_phase(Phase.COMPLETED, operation_id="ff" * 32), PENDING, PENDING)
    shown = page(history(STAGED), other)
    assert (shown.state, shown.status.word, shown.facts.live) == (STAGED, "Staged", False)


@pytest.mark.parametrize("state", [Phase.PREPARED, Phase.BOUND, Phase.COMMITTED])
def test_a_record_that_is_gone_is_red(state: Phase) -> None:
    shown = page(history(state), explain(None, observation(None, PENDING, PENDING)))
    assert (shown.status.tone, shown.code) == (Tone.HOLD, Code.CONTROL_TABLE_LOST)
    assert "no record" in shown.what[0]


@pytest.mark.parametrize(
    ("state", "word"),
    [(Phase.PREPARED, "Ended"), (Phase.BOUND, "Ended"), (Phase.COMMITTED, "Published")],
)
def test_a_record_of_before_a_recovery_is_missed_by_nobody(state: Phase, word: str) -> None:
    recovered = replace(explain(None, observation(None, PENDING, PENDING)), authority_id="b" * 32)
    shown = page(history(state), recovered)
    assert (shown.status.word, shown.code, shown.refresh) == (word, None, None)
    assert shown.status.tone is not Tone.HOLD


# ---- what can't be read now


IN_FLIGHT = [*history(Phase.BOUND), *held(Code.PARTIAL_IN_PROGRESS, in_phase(Phase.BOUND), PENDING, PENDING)]


def unread(code: Code, seen: Observation | None, bodies: list[Any] = IN_FLIGHT) -> Explanation:
    return explain_unread(
        Stop(code, "It can't be read."),
        Past.of(OPERATION, trail(OPERATION, bodies).entries),
        (),
        seen,
        name="mart.orders",
        table="orders",
    )


def test_without_the_control_table_the_tables_are_live_and_the_rest_has_its_time() -> None:
    live = unread(Code.AUTHORITY_UNAVAILABLE, observation(None, COMMITTED, PENDING))
    shown = page(IN_FLIGHT, live)
    assert (shown.status.word, shown.code) == ("Not observed", Code.AUTHORITY_UNAVAILABLE)
    assert (shown.remembered, shown.facts.live) == (True, False)
    assert "Not live: It can't be read." in shown.facts.text
    assert "Only the tables below were looked at now, at 1970-01-01 00:18:20 UTC" in shown.facts.text
    assert shown.what[0] == live.plain
    assert "It was BOUND at 2026-01-02 03:04:" in " ".join(shown.what[1:])
    assert [row.target.uuid for row in shown.replicas] == [NEW_UUID, OLD_UUID]
    assert [row.rows for row in shown.replicas] == ["10", "10"]
    assert shown.safe.startswith("Readers are affected")
    assert any("only the control table knows" in line for line in shown.unproven)
    assert shown.next == live.next
    assert shown.next[0].startswith("Restore Keeper; then a retry observes. Explain again then.")
    # Nothing that changes something is offered: it would rest on the record.
    assert [command.split()[2] for command in shown.commands] == ["explain", "evidence"]


def test_what_the_queue_said_is_told_from_what_the_tables_show() -> None:
    queue = running(r1=HostRow(HostStatus.SUCCESS, 0), r2=HostRow(HostStatus.IN_PROGRESS))
    bound = in_phase(Phase.BOUND)
    stop = Stop(Code.PARTIAL_IN_PROGRESS, "It follows.")
    bodies = history(Phase.BOUND) + classified(decide.Wait(stop), bound, 2, COMMITTED, PENDING, queue=queue)
    shown = page(bodies, unread(Code.AUTHORITY_UNAVAILABLE, observation(None, COMMITTED, COMMITTED), bodies))
    assert [row.ddl.word for row in shown.replicas] == ["finished, as recorded", "in progress, as recorded"]
    assert [row.status.word for row in shown.replicas] == ["new data is live", "new data is live"]


def test_without_any_look_the_recorded_matrix_stays_with_its_time() -> None:
    live = unread(Code.SERVER_UNAVAILABLE, None)
    shown = page(IN_FLIGHT, live)
    assert shown.status.word == "Not observed"
    assert [row.seen[:16] for row in shown.replicas] == ["2026-01-02 03:04"] * 2
    assert shown.readers is not None
    assert shown.readers.word == "Not known"
    assert "looked at now" not in shown.facts.text


def test_a_hold_that_is_recorded_stays_red_while_nothing_can_be_read() -> None:
    bodies = history(Phase.TERMINAL) + held(
        Code.PARTIAL_TERMINAL, in_phase(Phase.TERMINAL), COMMITTED, PENDING
    )
    shown = page(bodies, unread(Code.AUTHORITY_UNAVAILABLE, None, bodies))
    assert shown.status.word == "On hold"
    proven = history(Phase.COMMITTED)
    assert page(proven, unread(Code.AUTHORITY_UNAVAILABLE, None, proven)).status.tone is Tone.GOOD


def test_a_lost_control_table_offers_the_recovery_and_nothing_else() -> None:
    shown = page(IN_FLIGHT, unread(Code.CONTROL_TABLE_LOST, observation(None, COMMITTED, COMMITTED)))
    assert (shown.status.tone, shown.code) == (Tone.HOLD, Code.CONTROL_TABLE_LOST)
    assert [command.split()[2] for command in shown.commands] == ["explain", "init", "init", "evidence"]
    assert shown.commands[1].endswith("--recover --print-sql")
    assert shown.commands[2].endswith("--recover --reason '...'")
    assert NEVER_CREATE in shown.never


def test_what_was_written_down_of_another_operation_is_not_told_of_this_one() -> None:
    other = replace(unread(Code.AUTHORITY_UNAVAILABLE, None), past=Past.of("ff" * 32, ()))
    shown = page(IN_FLIGHT, other)
    assert not shown.remembered
    assert shown.facts.text.endswith("Not live: It can't be read.")


# ---- who else is concerned


def turned_away(dag_id: str) -> TurnedAway:
    return TurnedAway("d" * 64, Owner(dag_id, "secret-run", "stage", -1), Code.TARGET_BUSY, Phase.BOUND, 2)


def test_who_was_refused_is_named_to_readers_of_its_dag_alone() -> None:
    own = page([*history(Phase.BOUND), turned_away("dag")])
    assert "run secret-run" in own.refused[0]
    assert "secret-run" in own.trail[-1].what
    foreign = page([*history(Phase.BOUND), turned_away("hidden"), turned_away("hidden")])
    assert foreign.refused == (
        "An operation of another DAG was refused at 2026-01-02 03:04:18 UTC, 2 times, before its source was read.",
    )
    assert not any("hidden" in text or "secret-run" in text for text in map(str, (foreign,)))


def test_the_task_that_wrote_last_is_named_to_readers_of_its_dag_alone() -> None:
    bodies = history(Phase.BOUND)
    live = explained(in_phase(Phase.BOUND), COMMITTED, PENDING)
    known = replace(live, past=Past.of(OPERATION, trail(OPERATION, bodies).entries))
    assert page(bodies, known).waiting[-1].startswith("Heard of last: task stage of DAG dag, run run, try 1")
    assert known.past is not None
    assert known.past.task is not None
    hidden = replace(known, past=replace(known.past, task=replace(known.past.task, dag_id="hidden")))
    assert page(bodies, hidden).waiting == live.waiting


def test_what_others_admitted_since_is_not_told_of_a_published_operation() -> None:
    row = stored(in_phase(Phase.COMPLETED_RETAINING))
    other = Past.of("ff" * 32, trail("ff" * 32, history(STAGED), Owner("hidden", "r", "stage", -1)).entries)
    seen = observation(row, {"orders": NEW}, {"orders": NEW})
    live = with_past(explain(row, seen, read_at=1), seen, None, [other], {}, name="mart.orders")
    assert Way.STAGE in live.ways
    shown = page(history(Phase.COMPLETED_RETAINING), live)
    assert shown.what[0] == "mart.orders: the last operation is published on every replica."
    assert shown.next == ("Nothing to do.",)
    assert not any("orphans" in command for command in shown.commands)
    assert "hidden" not in str(shown)


def test_a_replaced_table_that_stays_is_named_with_what_to_do() -> None:
    of = in_phase(Phase.COMPLETED_RETAINING)
    item = replace(of.retained[0], drop_after=0, name="orders__dpone_1", generation=generation(OLD_UUID))
    row = stored(replace(of, retained=(item,)))
    seen = observation(row, {"orders": NEW}, {"orders": NEW, "orders__dpone_1": OLD})
    live = with_past(
        explain(row, seen, read_at=1), seen, None, (), {item.name: {"s1/r2": 359}}, name="mart.orders"
    )
    shown = page(history(Phase.COMPLETED_RETAINING), live)
    assert shown.status.tone is Tone.GOOD
    assert "exception code 359" in shown.leftovers[0]
    assert f"is still there: {shown.leftovers[0]}." in shown.what[0]
    assert shown.next[0].startswith("Remove the cause")
    assert any(command.startswith("airflow dpone orphans --conn-id") for command in shown.commands)


def test_what_a_staging_attempt_left_is_named_and_nothing_of_others() -> None:
    bodies = history(STAGED)
    (mine,) = [body.table for body in bodies if isinstance(body, Staged)]
    left = [Leftover(name, "candidate", 7, ("s1/r1",), "why") for name in (mine, "orders__dpone_others")]
    live = replace(explained(in_phase(Phase.COMMITTED), COMMITTED, COMMITTED), leftovers=tuple(left))
    shown = page(bodies, live)
    assert shown.leftovers == (str(left[0]),)
    assert shown.commands[0].startswith("airflow dpone orphans --conn-id")
    assert shown.status.word == "Staged"
    assert page(bodies, replace(live, leftovers=tuple(left[1:]))).leftovers == ()


def test_no_replaced_table_is_dropped_where_there_was_none() -> None:
    assert "The replaced table is dropped" in page(history(Phase.COMPLETED)).what[0]
    first = [
        replace(body, live=None) if isinstance(body, Admission) else body for body in history(Phase.COMPLETED)
    ]
    assert "replaced" not in page(first).what[0]


def test_what_is_proven_needs_nobody_and_the_command_says_the_same() -> None:
    live = explained(in_phase(Phase.COMMITTED), COMMITTED, COMMITTED)
    assert live.ways == (Way.FREE,)
    shown = page(history(Phase.COMMITTED), live)
    assert shown.next == live.next
    assert shown.next[0].startswith("Nothing to do")


# ---- cleanup


def test_cleanup_is_told_as_far_as_it_came() -> None:
    assert "Cleanup has not begun" in page(history(Phase.COMMITTED)).cleanup[0]
    assert "gone on every replica" in page(history(Phase.COMPLETED)).cleanup[0]
    assert "dropped when it is due" in page(history(Phase.COMPLETED_RETAINING)).cleanup[-1]
    assert page(history(Phase.BOUND)).cleanup == ()


def test_a_table_that_cannot_be_dropped_says_why_and_stays_green() -> None:
    keep = CleanupStep("keep", "orders__dpone_1", OLD_UUID, 9, ("s1/r1",), Code.CLEANUP_UNSAFE.name)
    shown = page([*history(Phase.COMPLETED_RETAINING), keep])
    assert shown.status.tone is Tone.GOOD
    assert MEANINGS[Code.CLEANUP_UNSAFE].meaning in shown.cleanup[-1]


def test_a_kept_table_is_named_with_its_time() -> None:
    of = in_phase(Phase.COMPLETED_RETAINING)
    shown = page(history(Phase.COMPLETED_RETAINING), explained(of, COMMITTED, COMMITTED))
    assert "orders__dpone_1 is kept until 1970-01-01 00:16:43 UTC." in shown.cleanup


def test_an_operators_last_step_is_told_while_it_is_open() -> None:
    action = OperatorAction("resolve", "disarm", "the worker is gone", Phase.BOUND, 5, 2, "ab" * 16)
    assert "the worker is gone" in page([*history(Phase.BOUND), action]).cleanup[0]


def test_a_resolving_operation_is_in_progress() -> None:
    of = transitions.disarming(in_phase(Phase.BOUND), nonce="0" * 32, now=1_003)
    shown = page(history(Phase.BOUND), explained(of, PENDING, PENDING))
    assert (shown.code, shown.status.tone) == (Code.RESOLVING, Tone.CARE)


# ---- where to go on


def test_an_older_trail_leaves_the_connection_to_be_filled_in() -> None:
    shown = page(history(Phase.BOUND), conn_id=None)
    assert "--conn-id ... --cluster analytics" in shown.commands[0]


def test_the_page_looks_again_while_something_may_happen() -> None:
    assert page(history(Phase.BOUND)).refresh == 5
    assert page(history(Phase.BOUND), age=timedelta(hours=1)).refresh == 30
    assert page(history(Phase.BOUND), age=timedelta(days=2)).refresh is None
    assert page(history(Phase.COMPLETED)).refresh is None


@pytest.mark.parametrize("state", STATES)
def test_the_cluster_is_asked_only_where_it_can_add_something(state: str) -> None:
    expected = state not in (Phase.COMPLETED, Phase.ABORTED)
    assert needs_live(state, later=False) == expected
    assert not needs_live(state, later=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.5, "9.5 s"),
        (59, "59 s"),
        (184, "3 min 4 s"),
        (7_500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_lengths_of_time_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_commit_seen_by_a_terminal_queue_is_proven_and_not_yet_written_down() -> None:
    of = in_phase(Phase.BOUND)
    queue = Terminal(5, ENTRY, of.publication.query_digest or "" if of.publication else "", receipt_of(of))
    shown = page(history(Phase.BOUND), explained(of, COMMITTED, COMMITTED, queue=queue))
    assert shown.status.tone is Tone.CARE
    assert [row.status.tone for row in shown.replicas] == [Tone.GOOD, Tone.GOOD]
