"""The one next step of a publication: what it asks for, what it changes, where it stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import decide as step
from airflow_provider_dpone.publication.decide import ContentCheck, Guards, Situation, decide_publication
from airflow_provider_dpone.publication.facts import ControlFacts, Observation
from airflow_provider_dpone.publication.queue import (
    Contradictory,
    HostRow,
    HostStatus,
    NotSeen,
    Running,
    Terminal,
    Unreadable,
)
from airflow_provider_dpone.publication.record import AuthorityRecord, ContentDigest, Phase
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit.builders import (
    AUTHORITY,
    COMMITTED,
    CONTENT,
    CONTROL,
    ENTRY,
    FOREIGN_TARGET,
    NEW,
    OLD,
    PENDING,
    in_phase,
    observation,
    query_digest,
    receipt_of,
    record,
    replication,
    stored,
)

PREPARED = record()
DISPATCHED = in_phase(Phase.DISPATCHING)
BOUND = in_phase(Phase.BOUND)
TERMINAL = in_phase(Phase.TERMINAL)
GOOD = ContentCheck(sequence=5, digests={"s1/r1": CONTENT, "s1/r2": CONTENT})
RUNNING = Running(ENTRY, query_digest(DISPATCHED), {"s1/r1": HostRow(HostStatus.IN_PROGRESS)})
ENDED = Terminal(5, ENTRY, query_digest(DISPATCHED), receipt_of(DISPATCHED))


def situation(of: AuthorityRecord, **facts: Any) -> Situation:
    return Situation(operation_id=of.operation_id, stored=stored(of), read_at=1, **facts)


def seen(of: AuthorityRecord, *shown: Any, **changes: Any) -> Observation:
    return observation(stored(of), *shown, **changes)


def stop_of(decided: Any, kind: type[Any]) -> Stop:
    assert isinstance(decided, kind), decided
    stop = decided.stop
    assert isinstance(stop, Stop)
    return stop


# Before the dispatch.


def test_content_is_verified_before_the_last_look() -> None:
    assert decide_publication(situation(PREPARED)) == step.VerifyContent()
    early = seen(PREPARED, PENDING, PENDING, sequence=4)
    assert decide_publication(situation(PREPARED, content=GOOD, observation=early)) == step.ReadCatalogs()


def test_dispatch_only_when_every_replica_is_pending_and_ready() -> None:
    ready = situation(PREPARED, content=GOOD, observation=seen(PREPARED, PENDING, PENDING))
    assert decide_publication(ready) == step.DispatchSwap()


@pytest.mark.parametrize(
    "digests",
    [
        {"s1/r1": CONTENT},
        {"s1/r1": CONTENT, "s1/r2": replace(CONTENT, rows=9)},
        {"s1/r1": CONTENT, "s1/r2": replace(CONTENT, city="9")},
        {"s1/r1": replace(CONTENT, xxh3="9"), "s1/r2": replace(CONTENT, xxh3="9")},
    ],
    ids=["a replica missing", "fewer rows", "another sum", "changed everywhere"],
)
def test_content_that_is_not_what_was_staged_holds(digests: Mapping[str, ContentDigest]) -> None:
    look = seen(PREPARED, PENDING, PENDING)
    decided = decide_publication(situation(PREPARED, content=ContentCheck(5, digests), observation=look))
    assert stop_of(decided, step.Hold).code is Code.CONTENT_DIFFERS


def test_content_under_a_name_that_another_worker_swapped_says_nothing() -> None:
    look = seen(PREPARED, COMMITTED, COMMITTED)
    wrong = ContentCheck(5, {"s1/r1": replace(CONTENT, rows=1), "s1/r2": replace(CONTENT, rows=1)})
    decided = decide_publication(situation(PREPARED, content=wrong, observation=look))
    assert stop_of(decided, step.Wait).code is Code.CAS_CONFLICT


@pytest.mark.parametrize(
    ("shown", "kind", "code"),
    [
        ((PENDING, None), step.Wait, Code.REPLICA_UNAVAILABLE),
        ((PENDING, FOREIGN_TARGET), step.Abort, Code.TARGET_MOVED),
        ((PENDING, {"orders": None, "orders__dpone_1": NEW}), step.Abort, Code.TARGET_MOVED),
        (
            (PENDING, {"orders": replace(OLD, schema_digest="x"), "orders__dpone_1": NEW}),
            step.Abort,
            Code.TARGET_MOVED,
        ),
        ((PENDING, {"orders": OLD, "orders__dpone_1": None}), step.Hold, Code.CANDIDATE_DIFFERS),
        ((PENDING, {"orders": OLD, "orders__dpone_1": OLD}), step.Hold, Code.CANDIDATE_DIFFERS),
        ((PENDING, PENDING, PENDING), step.Hold, Code.INVENTORY_DRIFT),
    ],
    ids=[
        "replica away",
        "foreign live table",
        "live table dropped",
        "live table altered",
        "candidate missing on one replica",
        "candidate is the target",
        "a replica was added",
    ],
)
def test_what_forbids_the_dispatch(shown: tuple[Any, ...], kind: type, code: Code) -> None:
    decided = decide_publication(situation(PREPARED, content=GOOD, observation=seen(PREPARED, *shown)))
    assert stop_of(decided, kind).code is code


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_size": 2},
        {"is_readonly": True},
        {"is_session_expired": True},
        {"active_replicas": 1},
        {"total_replicas": 3},
        {"keeper_error": True, "active_replicas": 0},
        {"log_pointer": 3},
        {"lost_parts": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_candidate_that_is_not_complete_and_healthy_everywhere_waits(changes: dict[str, Any]) -> None:
    lagging = {**PENDING, "orders__dpone_1": replace(NEW, replication=replication(uuid=NEW.uuid, **changes))}
    decided = decide_publication(
        situation(PREPARED, content=GOOD, observation=seen(PREPARED, PENDING, lagging))
    )
    stop = stop_of(decided, step.Wait)
    assert stop.code is Code.CANDIDATE_NOT_READY
    assert "s1/r2" in stop.message


def test_a_candidate_without_any_log_entry_is_ready() -> None:
    empty = {
        **PENDING,
        "orders__dpone_1": replace(
            NEW, replication=replication(uuid=NEW.uuid, log_max_index=0, log_pointer=0)
        ),
    }
    look = seen(PREPARED, PENDING, empty)
    assert decide_publication(situation(PREPARED, content=GOOD, observation=look)) == step.DispatchSwap()


def test_replicas_that_read_different_records_wait() -> None:
    look = seen(PREPARED, PENDING, PENDING)
    behind = replace(look.replicas["s1/r2"], control=ControlFacts(CONTROL, AUTHORITY, "w4", 4))
    look = replace(look, replicas={**look.replicas, "s1/r2": behind})
    decided = decide_publication(situation(PREPARED, content=GOOD, observation=look))
    assert stop_of(decided, step.Wait).code is Code.CONTROL_TABLE_NOT_SHARED


def test_a_record_that_moved_is_not_dispatched_from() -> None:
    look = observation(stored(PREPARED, version=6, write_id="w6"), PENDING, PENDING)
    decided = decide_publication(situation(PREPARED, content=GOOD, observation=look))
    assert stop_of(decided, step.Wait).code is Code.CAS_CONFLICT


def test_another_operations_record_is_never_published() -> None:
    decided = decide_publication(replace(situation(PREPARED), operation_id="mine"))
    assert stop_of(decided, step.Hold).code is Code.SUPERSEDED


@pytest.mark.parametrize(
    ("rows", "live", "guards", "code"),
    [
        (0, 10, Guards(), Code.GUARD_EMPTY),
        (0, 10, Guards(allow_empty=True), None),
        (9, 10, Guards(min_rows=10), Code.GUARD_MIN_ROWS),
        (10, 10, Guards(min_rows=10), None),
        (79, 100, Guards(max_shrink=0.2), Code.GUARD_MAX_SHRINK),
        (80, 100, Guards(max_shrink=0.2), None),
        (5, None, Guards(max_shrink=0.2), None),
        (5, 0, Guards(max_shrink=0.2), None),
    ],
)
def test_guards(rows: int, live: int | None, guards: Guards, code: Code | None) -> None:
    of = record(content=replace(CONTENT, rows=rows), live_rows=live)
    decided = decide_publication(situation(of, guards=guards))
    if code is None:
        assert decided == step.VerifyContent()
    else:
        assert stop_of(decided, step.Hold).code is code


# After the dispatch.


@pytest.mark.parametrize("of", [DISPATCHED, BOUND])
def test_after_a_dispatch_nothing_but_reading_comes_first(of: AuthorityRecord) -> None:
    assert decide_publication(situation(of)) == step.ReadQueue()
    with_look = situation(of, observation=seen(of, PENDING, PENDING), content=GOOD)
    assert decide_publication(with_look) == step.ReadQueue()


@pytest.mark.parametrize("of", [DISPATCHED, BOUND])
def test_an_entry_that_is_not_seen_is_waited_for_and_never_sent_again(of: AuthorityRecord) -> None:
    decided = decide_publication(situation(of, queue=NotSeen(), observation=seen(of, PENDING, PENDING)))
    assert stop_of(decided, step.Wait).code is Code.ENTRY_NOT_SEEN


def test_a_provably_unused_permit_is_rearmed_only_while_no_entry_was_bound() -> None:
    assert decide_publication(situation(DISPATCHED, queue=NotSeen(), permit_unused=True)) == step.Rearm()
    pruned = decide_publication(situation(BOUND, queue=NotSeen(), permit_unused=True))
    assert stop_of(pruned, step.Wait).code is Code.ENTRY_NOT_SEEN
    contradicted = situation(DISPATCHED, queue=RUNNING, permit_unused=True)
    assert isinstance(decide_publication(contradicted), step.Bind)


def test_a_running_or_unreadable_entry_is_bound_before_anything_waits_on_it() -> None:
    bind = step.Bind(ENTRY, query_digest(DISPATCHED))
    assert decide_publication(situation(DISPATCHED, queue=RUNNING)) == bind
    unreadable = Unreadable(ENTRY, query_digest(DISPATCHED), {})
    assert decide_publication(situation(DISPATCHED, queue=unreadable)) == bind
    decided = decide_publication(situation(BOUND, queue=unreadable))
    assert stop_of(decided, step.Wait).code is Code.ENTRY_UNREADABLE


def test_a_running_entry_is_waited_for_with_the_replicas_states() -> None:
    assert decide_publication(situation(BOUND, queue=RUNNING)) == step.ReadCatalogs()
    mixed = situation(BOUND, queue=RUNNING, observation=seen(BOUND, COMMITTED, PENDING))
    assert stop_of(decide_publication(mixed), step.Wait).code is Code.PARTIAL_IN_PROGRESS


def test_a_contradictory_queue_holds() -> None:
    stop = Stop(Code.ENTRY_AMBIGUOUS, "two entries")
    assert decide_publication(situation(BOUND, queue=Contradictory(stop))) == step.Hold(stop)


@pytest.mark.parametrize("sequence", [4, 5])
def test_facts_read_before_the_terminal_receipt_are_thrown_away(sequence: int) -> None:
    early = seen(BOUND, COMMITTED, COMMITTED, sequence=sequence)
    assert decide_publication(situation(BOUND, queue=ENDED, observation=early)) == step.ReadCatalogs()


@pytest.mark.parametrize("of", [DISPATCHED, BOUND])
def test_all_committed_after_the_terminal_receipt_is_committed(of: AuthorityRecord) -> None:
    later = seen(of, COMMITTED, COMMITTED, sequence=6)
    decided = decide_publication(situation(of, queue=ENDED, observation=later))
    assert decided == step.Commit(ENTRY, query_digest(of), receipt_of(of))


def test_a_receipt_that_proves_no_commit_is_stored_before_anything_holds() -> None:
    mixed = seen(BOUND, COMMITTED, PENDING, sequence=6)
    decided = decide_publication(situation(BOUND, queue=ENDED, observation=mixed))
    assert decided == step.StoreReceipt(ENTRY, query_digest(BOUND), receipt_of(BOUND))


def test_a_stored_receipt_needs_catalogs_read_after_the_record() -> None:
    assert decide_publication(situation(TERMINAL)) == step.ReadCatalogs()
    with_record = seen(TERMINAL, COMMITTED, COMMITTED, sequence=1)
    assert decide_publication(situation(TERMINAL, observation=with_record)) == step.ReadCatalogs()


@pytest.mark.parametrize(
    ("shown", "kind", "code"),
    [
        ((COMMITTED, COMMITTED), step.Commit, None),
        ((COMMITTED, PENDING), step.Hold, Code.PARTIAL_TERMINAL),
        ((PENDING, PENDING), step.Hold, Code.SWAPPED_BACK),
        ((COMMITTED, None), step.Wait, Code.REPLICA_NOT_OBSERVED),
        ((COMMITTED, FOREIGN_TARGET), step.Hold, Code.GENERATION_UNKNOWN),
    ],
)
def test_with_a_stored_receipt_only_the_catalogs_decide(
    shown: tuple[Any, ...], kind: type, code: Code | None
) -> None:
    decided = decide_publication(situation(TERMINAL, observation=seen(TERMINAL, *shown)))
    assert isinstance(decided, kind)
    if code is not None:
        assert stop_of(decided, kind).code is code


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.COMPLETED, Phase.COMPLETED_RETAINING])
def test_a_proven_publication_is_done(phase: Phase) -> None:
    assert decide_publication(situation(in_phase(phase))) == step.Done()


def test_a_given_up_operation_is_never_published() -> None:
    assert stop_of(decide_publication(situation(in_phase(Phase.ABORTED))), step.Hold).code is Code.SUPERSEDED
