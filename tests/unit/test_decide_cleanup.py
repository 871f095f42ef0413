"""The one next step of a cleanup: only the exact predecessor is ever dropped, and the slot never stays blocked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import decide_cleanup as step
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.decide import Hold, ReadCatalogs
from airflow_provider_dpone.publication.decide_cleanup import CleanupSituation, decide_cleanup
from airflow_provider_dpone.publication.queue import NotSeen, Running, Terminal
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit.builders import (
    ABSENT,
    CLEANED,
    COMMITTED,
    ENTRY,
    FOREIGN,
    NEW,
    OLD,
    TARGET_GONE,
    in_phase,
    observation,
    receipt_of,
    replication,
    stored,
)

PROVEN = in_phase(Phase.COMMITTED)
KEPT = in_phase(Phase.COMPLETED_RETAINING)
DROPPING = transitions.dropping(KEPT, KEPT.candidate, nonce="1" * 32, now=1_006)
ENDED = Terminal(5, ENTRY, "d", receipt_of(PROVEN))


def stop_of(decided: Any) -> Stop:
    """Why a table is not dropped."""
    stop = decided.items[0][1] if isinstance(decided, step.Keep) else decided.stop
    assert isinstance(stop, Stop)
    return stop


def situation(of: AuthorityRecord, *shown: Any, now: int = 2_000, **facts: Any) -> CleanupSituation:
    look = observation(stored(of), *shown) if shown else None
    return CleanupSituation(stored=stored(of), now=now, observation=look, **facts)


def test_tables_kept_by_a_prepared_record_are_dropped_but_never_its_candidate() -> None:
    prepared = in_phase(Phase.PREPARED, retained=(replace(KEPT.retained[0], name="orders__dpone_older"),))
    shown = {"orders": OLD, "orders__dpone_1": NEW, "orders__dpone_older": FOREIGN}
    item = replace(prepared.retained[0], generation=FOREIGN.generation)
    prepared = replace(prepared, retained=(item,))
    assert decide_cleanup(situation(prepared, shown, shown)) == step.DispatchDrop(item)
    assert decide_cleanup(situation(in_phase(Phase.PREPARED), shown, shown)) == step.Idle(None)


@pytest.mark.parametrize("phase", [Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL])
def test_nothing_is_cleaned_before_the_commit_is_proven(phase: Phase) -> None:
    decided = decide_cleanup(situation(in_phase(phase), COMMITTED, COMMITTED))
    assert isinstance(decided, Hold)
    assert decided.stop.code is Code.NOT_COMMITTED


def test_a_committed_publication_is_ended_and_its_predecessor_dropped_in_one_move() -> None:
    assert decide_cleanup(situation(PROVEN)) == ReadCatalogs()
    assert decide_cleanup(situation(PROVEN, COMMITTED, COMMITTED)) == step.Retain(1_003, drop_now=True)


def test_without_a_predecessor_there_is_nothing_to_drop() -> None:
    first = replace(PROVEN, predecessor=None)
    assert decide_cleanup(situation(first, CLEANED, CLEANED)) == step.Retain(1_003, drop_now=False)


def test_retention_keeps_the_predecessor_on_the_servers_clock() -> None:
    kept = replace(PROVEN, retention=5_000)
    assert decide_cleanup(situation(kept, COMMITTED, COMMITTED)) == step.Retain(6_003, drop_now=False)
    listed = transitions.retaining(kept, drop_after=6_003, now=2_000)
    assert decide_cleanup(situation(listed, now=6_002)) == step.Idle(6_003)
    assert decide_cleanup(situation(listed, now=6_003)) == ReadCatalogs()


@pytest.mark.parametrize(
    "shown",
    [(COMMITTED, None), (COMMITTED, {"orders": NEW, "orders__dpone_1": FOREIGN}), (COMMITTED, TARGET_GONE)],
    ids=["a replica is away", "a foreign table has the name", "the live table is missing"],
)
def test_a_predecessor_that_cannot_be_dropped_never_blocks_the_slot(shown: tuple[Any, ...]) -> None:
    assert decide_cleanup(situation(PROVEN, *shown)) == step.Retain(1_003, drop_now=False)


def test_a_listed_predecessor_is_dropped_when_it_is_exactly_itself() -> None:
    decided = decide_cleanup(situation(KEPT, COMMITTED, COMMITTED))
    assert decided == step.DispatchDrop(KEPT.retained[0])


@pytest.mark.parametrize(
    ("shown", "kind", "code"),
    [
        ((COMMITTED, {"orders": NEW, "orders__dpone_1": FOREIGN}), step.Keep, Code.CLEANUP_UNSAFE),
        ((COMMITTED, {"orders": OLD, "orders__dpone_1": None}), step.Keep, Code.CLEANUP_UNSAFE),
        ((COMMITTED, TARGET_GONE), step.Keep, Code.GENERATION_UNKNOWN),
        ((COMMITTED, ABSENT), step.Keep, Code.GENERATION_UNKNOWN),
        ((COMMITTED, None), step.WaitForDrop, Code.REPLICA_NOT_OBSERVED),
    ],
    ids=["foreign table", "the predecessor is live", "live table missing", "both missing", "replica away"],
)
def test_what_forbids_a_drop(shown: tuple[Any, ...], kind: type, code: Code) -> None:
    decided = decide_cleanup(situation(KEPT, *shown))
    assert isinstance(decided, kind)
    assert stop_of(decided).code is code


@pytest.mark.parametrize("changes", [{"is_readonly": True}, {"keeper_error": True}, {"lost_parts": 1}])
def test_the_predecessor_is_kept_while_a_replica_of_the_live_table_is_unhealthy(
    changes: dict[str, Any],
) -> None:
    sick = {"orders": replace(NEW, replication=replication(uuid=NEW.uuid, **changes)), "orders__dpone_1": OLD}
    assert isinstance(decide_cleanup(situation(KEPT, COMMITTED, sick)), step.WaitForDrop)


def test_absence_is_believed_only_where_the_database_is_seen() -> None:
    blind = situation(KEPT, CLEANED, CLEANED)
    assert blind.observation is not None
    replicas = {a: replace(f, sees_database=False) for a, f in blind.observation.replicas.items()}
    decided = decide_cleanup(replace(blind, observation=replace(blind.observation, replicas=replicas)))
    assert isinstance(decided, step.WaitForDrop)


def test_a_sent_drop_is_reconciled_before_anything_else() -> None:
    assert decide_cleanup(situation(DROPPING, COMMITTED, COMMITTED)) == step.ReadDropQueue(
        DROPPING.retained[0]
    )
    running = situation(DROPPING, queue=Running(ENTRY, "d", {}), queue_of=DROPPING.candidate)
    decided = decide_cleanup(running)
    assert isinstance(decided, step.WaitForDrop)
    assert decided.stop.code is Code.CLEANUP_PENDING


@pytest.mark.parametrize("queue", [ENDED, NotSeen()], ids=["terminal", "not seen"])
def test_absent_everywhere_is_the_end_of_a_drop(queue: Any) -> None:
    done = situation(DROPPING, CLEANED, CLEANED, queue=queue, queue_of=DROPPING.candidate)
    assert decide_cleanup(done) == step.FinishDrop(DROPPING.retained[0])


@pytest.mark.parametrize("queue", [ENDED, NotSeen()], ids=["terminal", "not seen"])
def test_a_drop_that_left_the_exact_predecessor_is_sent_again(queue: Any) -> None:
    partial = situation(DROPPING, CLEANED, COMMITTED, queue=queue, queue_of=DROPPING.candidate)
    assert decide_cleanup(partial) == step.DispatchDrop(DROPPING.retained[0])


def test_a_refused_drop_ends_as_pending_with_the_publication_successful() -> None:
    refused = Terminal(5, ENTRY, "d", receipt_of(PROVEN, r2=359))
    spent = situation(
        DROPPING,
        CLEANED,
        COMMITTED,
        queue=refused,
        queue_of=DROPPING.candidate,
        sent={DROPPING.candidate: step.MOST_DROPS},
    )
    decided = decide_cleanup(spent)
    assert isinstance(decided, step.Keep)
    stop = stop_of(decided)
    assert stop.code is Code.CLEANUP_PENDING
    assert "successful" in stop.message
    assert stop.replicas["s1/r2"] == {"exception_code": 359}


def test_nothing_due_is_idle() -> None:
    assert decide_cleanup(situation(in_phase(Phase.COMPLETED))) == step.Idle(None)


def test_a_given_up_candidate_is_dropped_though_nothing_was_published() -> None:
    aborted = in_phase(Phase.ABORTED)
    shown = {"orders": None, "orders__dpone_1": NEW}
    assert decide_cleanup(situation(aborted, shown, shown)) == step.DispatchDrop(aborted.retained[0])
