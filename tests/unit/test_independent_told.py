"""What people are told of tables that are independent on every replica: each by its own UUID, and each stage."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_dpone.evidence.layout import entry_name
from airflow_provider_dpone.evidence.reader import state_of
from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explain_past import explain_unread, with_past
from airflow_provider_dpone.publication.explain_stages import stage_shown
from airflow_provider_dpone.publication.explanation import Explanation, Way
from airflow_provider_dpone.publication.history import Past
from airflow_provider_dpone.publication.prune import ClusterNow, TrailFacts, needed
from airflow_provider_dpone.publication.receipt import IndependentReceipt, publication_receipt
from airflow_provider_dpone.publication.record import IndependentRecord, Phase, StageState
from airflow_provider_dpone.publication.stop import Code, Stop
from airflow_provider_dpone.publication.trail import (
    CompareAndSwapOutcome,
    IndependentLive,
    IndependentStaged,
    dump_entry,
    json_schemas,
    load_entry,
    schema_of,
)
from airflow_provider_dpone.web.model import LiveFacts, Receipt
from airflow_provider_dpone.web.status import Status, Tone
from airflow_provider_dpone.web.view import receipt
from tests.unit.builders import stored
from tests.unit.evidence_entries import entry
from tests.unit.independent import (
    ALIASES,
    ARTIFACT,
    CANDIDATE,
    CLEANED,
    COMMITTED,
    EXTRACT,
    HALF,
    LOCKED,
    NEW_ON,
    OLD_ON,
    PENDING,
    PRIVATE,
    admitted,
    explained,
    history,
    in_phase,
    locked,
    seen,
    shown,
    staging,
    table,
)
from tests.unit.page_trails import START, trail

GOLDEN = Path(__file__).parents[1] / "golden" / "evidence"
OPERATION = locked().operation_id
STAGED_PHASES = [Phase.LOCKED, Phase.STAGING]
SHOWS = {
    Phase.LOCKED: LOCKED,
    Phase.STAGING: shown(OLD_ON, {"s1/r1": NEW_ON["s1/r1"]}),
    Phase.PREPARED: PENDING,
    Phase.DISPATCHING: PENDING,
    Phase.BOUND: HALF,
    Phase.TERMINAL: COMMITTED,
    Phase.COMMITTED: COMMITTED,
    Phase.COMPLETED_RETAINING: COMMITTED,
    Phase.COMPLETED: CLEANED,
    Phase.ABORTED: PENDING,
}
GREEN = {Phase.COMMITTED, Phase.COMPLETED_RETAINING, Phase.COMPLETED}


def page(
    state: Phase, live: Explanation | None = None, *, later: bool = False, bodies: Any = None
) -> Receipt:
    return receipt(
        trail(OPERATION, bodies if bodies is not None else history(state)),
        LiveFacts(live, why_not="" if live else "why not"),
        cluster="analytics",
        later=later,
        now=START + timedelta(seconds=30),
    )


def said(told: Explanation) -> str:
    return " ".join((told.plain, told.readers, *told.happened, *told.proven, *told.unproven, *told.waiting))


# ---- every phase


@pytest.mark.parametrize("phase", list(Phase))
def test_each_replica_is_compared_with_its_own_tables(phase: Phase) -> None:
    told = explained(in_phase(phase), *SHOWS[phase])
    assert {one.live for one in told.replicas.values()} <= {"new", "old"}
    assert ReplicaState.UNKNOWN not in {one.state for one in told.replicas.values() if not told.record.ended}  # type: ignore[union-attr]
    assert "neither generation" not in said(told)
    assert {one.candidate.generation for one in told.replicas.values()} <= {"new", "old", "absent"}


@pytest.mark.parametrize("phase", list(Phase))
def test_the_page_compares_what_was_written_down_with_each_replicas_own_tables(phase: Phase) -> None:
    recorded = page(phase)
    assert recorded.state == phase
    generations = {one.generation for row in recorded.replicas for one in (row.target, row.candidate)}
    assert "another table" not in generations
    live = page(phase, explained(in_phase(phase), *SHOWS[phase]))
    assert {row.alias: row.target.uuid for row in live.replicas} == {
        alias: (one or {})["orders"].uuid  # type: ignore[union-attr]
        for alias, one in zip(ALIASES, SHOWS[phase], strict=True)
    }
    assert "neither generation" not in {row.status.word for row in live.replicas}
    assert {row.health for row in live.replicas} == {"not replicated"}
    assert {row.healthy for row in live.replicas} == {None}


@pytest.mark.parametrize("phase", list(Phase))
def test_only_what_is_proven_on_every_replica_is_green(phase: Phase) -> None:
    for made in (page(phase), page(phase, explained(in_phase(phase), *SHOWS[phase]))):
        assert (made.status.tone is Tone.GOOD) == (phase in GREEN)
        assert all((made.what[0], made.safe, made.next[0]))


@pytest.mark.parametrize("phase", list(Phase))
def test_the_timeline_has_the_phases_of_its_kind(phase: Phase) -> None:
    steps = page(phase).steps
    titles = [step.title for step in steps]
    assert titles[1] == "Locked before the source"
    assert titles.index("Locked before the source") < titles.index("Source sealed, replicas loaded")
    kinds = [step.state for step in steps]
    assert kinds == sorted(kinds, key=["done", "current", "todo"].index)
    over = phase in GREEN or phase is Phase.ABORTED
    assert kinds.count("current") == (0 if over else 1)
    assert all(step.at for step in steps if step.state != "todo")


# ---- locked and staging


@pytest.mark.parametrize(
    ("phase", "word"), [(Phase.LOCKED, "Locked"), (Phase.STAGING, "Staging")], ids=["locked", "staging"]
)
def test_what_is_being_staged_says_who_has_the_table_and_which_ways_there_are(
    phase: Phase, word: str
) -> None:
    told = explained(in_phase(phase), *SHOWS[phase])
    assert told.stop is None
    assert told.ways == (Way.STAGE_ON, Way.ABANDON)
    assert told.held
    assert told.affected is False
    assert "DAG dag, run run" in told.plain
    assert "Nothing was sent." in told.plain
    assert "stage task" in told.waiting[0]
    assert "publish task" not in " ".join(told.waiting)
    made = page(phase, told)
    assert (made.status.word, made.status.tone) == (word, Tone.REST)
    assert any("airflow dpone abandon" in line for line in made.commands)
    recorded = page(phase)
    assert (recorded.status.word, recorded.status.tone) == (word, Tone.REST)
    assert recorded.readers is not None
    assert recorded.readers.word == "Untouched"


def test_the_stage_of_each_replica_is_told_with_its_table() -> None:
    of = staging(r1=StageState.READY, r2=StageState.CLAIMED)
    told = explained(of, *SHOWS[Phase.STAGING])
    assert {alias: str(one.stage) for alias, one in told.replicas.items()} == {
        "s1/r1": "ready",
        "s1/r2": "claimed",
    }
    assert "ready on s1/r1 of 2 replicas" in told.plain
    assert any(line.startswith("s1/r1: ready: its table was proven to hold exactly") for line in told.proven)
    assert "s1/r2: claimed: an attempt is claimed; what its table holds is not proven" in told.unproven
    made = page(Phase.STAGING, told)
    assert {row.status for row in made.replicas} == {Status(Tone.REST, "as it was when locked")}
    assert [row.content for row in made.replicas] == [
        "ready: equal to what was sealed",
        "claimed: not compared",
    ]
    [group] = [group for group in made.groups if group.title == "Staging"]
    details = {detail.name: detail.value for detail in group.details}
    assert details["Sealed artifact (SHA-256)"] == ARTIFACT.sha256
    assert (details["s1/r1"], details["s1/r2"]) == ("ready", "claimed")
    assert details["Private table on s1/r2"] == PRIVATE["s1/r2"]
    assert details["Old rows, equal on every replica"] == "10"


@pytest.mark.parametrize("state", list(StageState))
def test_a_stage_is_proven_only_where_its_table_is_seen(state: StageState) -> None:
    of = staging(r1=state)
    gone = stage_shown(of, seen(of, *shown(OLD_ON, {})), "s1/r1")
    assert gone is not None
    assert not gone.proven
    unread = stage_shown(of, seen(of, None, PENDING[1]), "s1/r1")
    assert unread is not None
    assert (unread.proven, unread.seen) == (False, None)
    blind = seen(of, *shown(OLD_ON, {}))
    replicas = {alias: replace(facts, sees_database=False) for alias, facts in blind.replicas.items()}
    hidden = stage_shown(of, replace(blind, replicas=replicas), "s1/r1")
    assert hidden is not None
    assert (hidden.proven, hidden.seen) == (False, None)
    foreign = stage_shown(of, seen(of, *shown(OLD_ON, {"s1/r1": OLD_ON["s1/r2"]})), "s1/r1")
    assert foreign is not None
    assert not foreign.proven
    private = stage_shown(
        of,
        seen(of, {"orders": table(OLD_ON["s1/r1"]), PRIVATE["s1/r1"]: table(NEW_ON["s1/r1"])}, None),
        "s1/r1",
    )
    assert private is not None
    assert private.proven == (state is not StageState.CLAIMED)


def test_what_is_ready_on_no_replica_is_not_called_ready() -> None:
    of = staging(r1=StageState.READY, r2=StageState.READY)
    told = explained(of, *shown(OLD_ON, {}))
    assert "ready on none of 2 replicas" in told.plain
    assert [str(one.stage) for one in told.replicas.values()] == ["ready, not there now"] * 2
    assert not [line for line in told.proven if "ready" in line]


def test_a_lock_whose_source_is_read_says_nothing_of_rows() -> None:
    told = explained(locked(), *LOCKED)
    assert "0 rows" not in said(told)
    assert EXTRACT.name in " ".join(told.happened)
    assert "nothing is sealed" in " ".join(told.happened)
    given_up = explained(locked().moved(phase=Phase.ABORTED), *LOCKED)
    assert "0 rows" not in said(given_up)
    assert "compared on every replica" not in said(given_up)


def test_a_table_that_moved_while_it_is_locked_is_not_called_untouched() -> None:
    told = explained(locked(), *shown(NEW_ON, {}))
    assert told.affected is True
    assert [one.state for one in told.replicas.values()] == [ReplicaState.UNKNOWN] * 2


def test_a_target_that_is_absent_stays_so_while_it_is_staged() -> None:
    of = staging().moved(predecessor=None)
    told = explained(of, *shown({}, {}))
    assert {one.state for one in told.replicas.values()} == {ReplicaState.STAGING}
    assert told.affected is False


@pytest.mark.parametrize("phase", STAGED_PHASES)
def test_an_operation_that_another_one_has_followed_can_do_nothing_more(phase: Phase) -> None:
    made = page(phase, later=True)
    assert made.status.word == "Given up"
    assert made.readers is None


# ---- what a permit may have done is never hidden behind an earlier phase


@pytest.mark.parametrize("known", [Phase.LOCKED, Phase.STAGING])
def test_a_permit_that_was_asked_for_counts_though_no_later_write_is_noted(known: Phase) -> None:
    kept = [
        body
        for body in history(Phase.DISPATCHING)
        if not isinstance(body, CompareAndSwapOutcome) or body.phase in (Phase.LOCKED, known)
    ]
    entries = trail(OPERATION, kept).entries
    assert state_of(map(entry_name, entries)) == Phase.DISPATCHING
    assert Past.of(OPERATION, entries).sent
    made = page(Phase.DISPATCHING, bodies=kept)
    assert "may have been sent" in made.what[0]
    assert made.readers is not None
    assert made.readers.word == "Not known"


@pytest.mark.parametrize("phase", STAGED_PHASES)
def test_nothing_was_sent_for_what_is_being_staged(phase: Phase) -> None:
    past = Past.of(OPERATION, trail(OPERATION, history(phase)).entries)
    assert (past.state, past.unresolved, past.sent) == (phase, True, False)
    down = Stop(Code.AUTHORITY_UNAVAILABLE, "Looking at the replicas failed.")
    told = explain_unread(down, past, (), seen(None, *SHOWS[phase]), name="mart.orders", table="orders")
    assert "The stage task" in told.waiting[0]
    assert {one.state for one in told.replicas.values()} == {ReplicaState.STAGING}
    assert all(one.target.problem is None for one in told.replicas.values())
    assert not any("statement has ended" in line for line in told.unproven)


def test_where_the_record_cannot_be_read_each_replica_is_compared_with_its_own_tables() -> None:
    past = Past.of(OPERATION, trail(OPERATION, history(Phase.BOUND)).entries)
    down = Stop(Code.AUTHORITY_UNAVAILABLE, "Looking at the replicas failed.")
    told = explain_unread(down, past, (), seen(None, *HALF), name="mart.orders", table="orders")
    assert [one.state for one in told.replicas.values()] == [ReplicaState.PENDING, ReplicaState.COMMITTED]
    assert told.affected is True


# ---- what is left over


def test_the_attempts_of_an_operation_that_is_being_staged_are_no_leftovers() -> None:
    of = staging(r1=StageState.READY)
    past = Past.of(OPERATION, trail(OPERATION, history(Phase.STAGING)).entries)
    tables = tuple(
        {
            **(one or {}),
            PRIVATE[alias]: table(NEW_ON[alias]) if alias == "s1/r2" else None,
            EXTRACT.name: table(EXTRACT.uuid) if alias == EXTRACT.alias else None,
        }
        for alias, one in zip(ALIASES, SHOWS[Phase.STAGING], strict=True)
    )
    look = seen(of, *tables)
    told = with_past(explain(stored(of), look, read_at=1), look, past, (), {}, name="mart.orders")
    # The private table of the source is listed: it is dropped when the operation moves on.
    assert [(one.name, one.kind, one.replicas) for one in told.leftovers] == [
        (EXTRACT.name, "candidate", ("s1/r1",))
    ]


def test_what_was_given_up_does_not_say_that_a_replaced_table_is_still_there() -> None:
    of = in_phase(Phase.ABORTED)
    look = seen(of, *PENDING)
    told = with_past(explain(stored(of), look, read_at=1), look, None, (), {}, name="mart.orders")
    assert {one.kind for one in told.leftovers} == {"candidate"}
    assert "that it replaced" not in told.plain


# ---- receipts and evidence


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.COMPLETED_RETAINING, Phase.COMPLETED])
def test_a_receipt_has_each_replicas_own_uuids(phase: Phase) -> None:
    proof = publication_receipt(in_phase(phase), replayed=False)
    assert isinstance(proof, IndependentReceipt)
    for one in proof.replicas:
        assert (one.before.target, one.after.target) == (OLD_ON[one.alias], NEW_ON[one.alias])
        assert one.after.candidate == (None if phase is Phase.COMPLETED else OLD_ON[one.alias])
    assert proof.artifact == ARTIFACT


def test_the_evidence_names_the_table_of_each_replica() -> None:
    bodies = history(Phase.PREPARED)
    live = admitted(locked()).live
    assert isinstance(live, IndependentLive)
    assert live.uuids == {*OLD_ON.values()}
    [staged] = [body for body in bodies if isinstance(body, IndependentStaged)]
    assert {one.alias: one.uuid for one in staged.tables} == NEW_ON
    assert (staged.table, staged.artifact) == (CANDIDATE, ARTIFACT)
    for body in bodies:
        written = entry(body)
        assert load_entry(dump_entry(written).encode()) == written


def test_a_trail_is_not_deleted_while_the_table_under_the_shared_name_exists() -> None:
    entries = trail(OPERATION, history(Phase.PREPARED)).entries
    facts = TrailFacts.of(OPERATION, entries, newer=False)
    assert ("mart", CANDIDATE) in facts.names
    now = ClusterNow((), {"mart": frozenset({CANDIDATE})})
    assert needed(facts, now, before="9") == "a table of it still exists"


@pytest.mark.parametrize("kind", ["admission", "staged", "receipt"])
def test_golden_entries_of_independent_tables_stay_readable_and_are_written_the_same(kind: str) -> None:
    golden = (GOLDEN / f"external-v1-{kind}.json").read_text().rstrip("\n")
    [body] = [body for body in history(Phase.COMPLETED) if body.kind == kind]
    assert load_entry(golden.encode()) == entry(body)
    assert dump_entry(entry(body)) == golden
    jsonschema.validate(json.loads(golden), json_schemas()[schema_of(kind)])


def test_a_proof_that_was_written_down_is_told_by_each_replicas_own_tables() -> None:
    rows = page(Phase.COMPLETED).replicas
    assert [(row.target.generation, row.target.uuid) for row in rows] == [("new", NEW_ON[a]) for a in ALIASES]
    names = [detail.name for group in page(Phase.COMPLETED).groups for detail in group.details]
    assert {f"Old table's UUID on {a}" for a in ALIASES} | {f"New table's UUID on {a}" for a in ALIASES} <= {
        *names
    }


def test_a_record_of_another_kind_says_nothing_of_stages() -> None:
    of = in_phase(Phase.PREPARED)
    assert isinstance(of, IndependentRecord)
    assert stage_shown(of, seen(of, *PENDING), "s1/r1") is None
