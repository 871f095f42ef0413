"""What an operator may end, fact by fact; and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.decide import (
    Commit,
    Hold,
    ReadCatalogs,
    ReadQueue,
    StoreReceipt,
    Wait,
    decide_publication,
)
from airflow_provider_dpone.publication.decide import Situation as Publication
from airflow_provider_dpone.publication.decide_resolve import (
    CloseUnpublished,
    Disarm,
    Resolution,
    Resolved,
    ResolveStep,
    StoreDisarmed,
    decide_resolution,
    not_abandonable,
)
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explanation import Way
from airflow_provider_dpone.publication.facts import TableFacts
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.queue import Contradictory, NotSeen, QueueState, Running, Terminal
from airflow_provider_dpone.publication.record import UNSENT_PHASES, AuthorityRecord, HostReceipt, Phase
from airflow_provider_dpone.publication.statement import Exchange, Rename
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit.builders import (
    COMMITTED,
    ENTRY,
    FOREIGN_TARGET,
    NEW,
    OLD,
    PENDING,
    REPLICATED_PHASES,
    in_phase,
    independent_in_phase,
    observation,
    receipt_of,
    stored,
)

PARKED = parked_name("orders__dpone_1")
PARKED_OLD: Mapping[str, TableFacts | None] = {"orders": OLD, PARKED: NEW}
PARKED_NEW: Mapping[str, TableFacts | None] = {"orders": NEW, PARKED: OLD}
SENT = (Phase.DISPATCHING, Phase.BOUND)


def disarming(phase: Phase = Phase.DISPATCHING) -> AuthorityRecord:
    return transitions.disarming(in_phase(phase), nonce="1" * 32, now=1_050)


def disarmed() -> AuthorityRecord:
    of = disarming()
    return transitions.disarmed(of, entry="query-9", query_digest="d", receipt=receipt_of(of), now=1_060)


def decide(
    of: AuthorityRecord,
    *shown: Mapping[str, TableFacts | None] | None,
    queue: QueueState | None = None,
    sequence: int = 10,
    **changes: Any,
) -> ResolveStep:
    row = stored(of)
    seen = observation(row, *shown, sequence=sequence) if shown else None
    return decide_resolution(Resolution(row, 1, seen, queue, **changes))


def terminal(of: AuthorityRecord, sequence: int = 5, **codes: int) -> Terminal:
    return Terminal(sequence, "query-9", "d", receipt_of(of, **codes))


@pytest.mark.parametrize("phase", SENT)
@pytest.mark.parametrize("shown", [PENDING, COMMITTED], ids=["old", "new"])
def test_without_the_queues_word_the_swap_is_disarmed_before_anything_is_closed(
    phase: Phase, shown: Any
) -> None:
    assert decide(in_phase(phase)) == ReadQueue()
    assert decide(in_phase(phase), queue=NotSeen()) == ReadCatalogs()
    assert decide(in_phase(phase), shown, shown, queue=NotSeen()) == Disarm()


def test_replicas_that_differ_are_disarmed_too_so_that_nothing_moves_any_more() -> None:
    assert decide(in_phase(Phase.DISPATCHING), COMMITTED, PENDING, queue=NotSeen()) == Disarm()


def test_what_is_not_read_or_not_known_is_not_disarmed() -> None:
    of = in_phase(Phase.DISPATCHING)
    assert isinstance(decide(of, PENDING, None, queue=NotSeen()), Wait)
    held = decide(of, PENDING, FOREIGN_TARGET, queue=NotSeen())
    assert isinstance(held, Hold)
    assert held.stop.code is Code.GENERATION_UNKNOWN


def test_a_running_entry_is_waited_for() -> None:
    of = in_phase(Phase.BOUND)
    step = decide(of, PENDING, PENDING, queue=Running(ENTRY, "d", {}))
    assert isinstance(step, Wait)
    assert step.stop.code is Code.IN_PROGRESS


def test_a_terminal_entry_is_judged_by_later_catalogs_only() -> None:
    of = in_phase(Phase.BOUND)
    assert decide(of, COMMITTED, COMMITTED, queue=terminal(of, 10)) == ReadCatalogs()
    assert isinstance(decide(of, COMMITTED, COMMITTED, queue=terminal(of)), Commit)
    assert isinstance(decide(of, PENDING, COMMITTED, queue=terminal(of)), StoreReceipt)


def test_a_partial_swap_is_held_and_a_repaired_one_committed() -> None:
    of = in_phase(Phase.TERMINAL)
    step = decide(of, PENDING, COMMITTED)
    assert isinstance(step, Hold)
    assert step.stop.code is Code.PARTIAL_TERMINAL
    assert isinstance(decide(of, COMMITTED, COMMITTED), Commit)


def test_a_swap_that_ended_with_old_tables_is_disarmed_before_it_is_closed() -> None:
    assert decide(in_phase(Phase.TERMINAL), PENDING, PENDING) == Disarm()
    assert decide(disarmed(), PARKED_OLD, PARKED_OLD) == CloseUnpublished()


def test_a_disarming_ends_when_it_is_terminal_and_the_name_is_gone_everywhere_after_that() -> None:
    of = disarming()
    assert decide(of) == ReadQueue()
    assert decide(of, PARKED_OLD, PARKED_OLD, queue=terminal(of, 10)) == ReadCatalogs()
    assert isinstance(decide(of, PARKED_OLD, PARKED_NEW, queue=terminal(of)), StoreDisarmed)
    # A replica that ran the RENAME twice reports 60.
    assert isinstance(decide(of, PARKED_OLD, PARKED_OLD, queue=terminal(of, r2=60)), StoreDisarmed)


def test_a_disarming_that_failed_somewhere_is_sent_once_more_by_the_next_command_only() -> None:
    of = disarming()
    failed = terminal(of, r2=164)
    assert decide(of, PARKED_OLD, PENDING, queue=failed) == Disarm()
    step = decide(of, PARKED_OLD, PENDING, queue=failed, sent=1)
    assert isinstance(step, Hold)
    assert step.stop.replicas["s1/r2"] == {"exception_code": 164}
    assert isinstance(decide(of, PARKED_OLD, None, queue=failed, sent=1), Wait)


def test_a_disarming_that_was_repeated_on_the_way_is_sent_anew_by_the_next_command_only() -> None:
    of = disarming()
    twice = Contradictory(Stop(Code.ENTRY_AMBIGUOUS, "two entries"))
    assert decide(of, PARKED_OLD, PENDING, queue=twice) == Disarm()
    assert isinstance(decide(of, PARKED_OLD, PENDING, queue=twice, sent=1), Hold)
    assert isinstance(decide(of, PARKED_OLD, FOREIGN_TARGET, queue=twice), Hold)


def test_after_the_disarming_the_replicas_decide() -> None:
    committed = decide(disarmed(), PARKED_NEW, PARKED_NEW)
    assert committed == Commit(None, None, None)
    step = decide(disarmed(), PARKED_NEW, PARKED_OLD)
    assert isinstance(step, Hold)
    assert step.stop.code is Code.PARTIAL_TERMINAL


@pytest.mark.parametrize("of", [disarming(), disarming(Phase.TERMINAL), disarmed()])
def test_a_publish_task_closes_nothing_meanwhile(of: AuthorityRecord) -> None:
    row = stored(of)
    seen = observation(row, PARKED_OLD, PARKED_OLD)
    step = decide_publication(Publication(of.operation_id, row, 1, observation=seen, queue=NotSeen()))
    assert isinstance(step, Wait)
    assert step.stop.code is Code.RESOLVING


def test_an_operation_that_ended_needs_nothing_and_a_prepared_one_is_not_resolved() -> None:
    for phase in (Phase.COMMITTED, Phase.COMPLETED, Phase.COMPLETED_RETAINING, Phase.ABORTED):
        assert decide(in_phase(phase)) == Resolved()
    assert isinstance(decide(in_phase(Phase.PREPARED)), Hold)


@pytest.mark.parametrize("phase", REPLICATED_PHASES)
def test_only_what_was_never_dispatched_is_abandoned(phase: Phase) -> None:
    never_sent = phase in UNSENT_PHASES
    assert (not_abandonable(independent_in_phase(phase)) is None) == never_sent
    if phase in REPLICATED_PHASES:
        assert (not_abandonable(in_phase(phase)) is None) == never_sent


@pytest.mark.parametrize("phase", sorted(UNSENT_PHASES))
def test_nothing_is_resolved_that_was_never_sent(phase: Phase) -> None:
    held = decide(independent_in_phase(phase))
    assert isinstance(held, Hold)
    assert "abandon" in held.stop.next_action


def test_a_swap_that_may_still_run_is_never_closed() -> None:
    with pytest.raises(ValueError, match="may still run"):
        transitions.unpublished(in_phase(Phase.TERMINAL), now=1_100)
    closed = transitions.unpublished(disarmed(), now=1_100)
    assert closed.retained[-1].name == PARKED
    assert closed.retained[-1].drop_after == 1_100 + transitions.KEEP_PARKED


def test_an_operation_that_is_being_resolved_is_never_prepared_again() -> None:
    with pytest.raises(ValueError, match="being resolved"):
        transitions.rearmed(disarming(), now=1_100)


# What people are told.


def test_a_partial_swap_is_explained_with_one_repair_per_pending_replica() -> None:
    of = in_phase(Phase.TERMINAL)
    row = stored(of)
    told = explain(row, observation(row, COMMITTED, PENDING), read_at=1)
    assert told.ways == (Way.REPAIR,)
    assert told.readers == (
        "Readers are affected: they see the new data on s1/r1; they see the old data on s1/r2."
    )
    assert told.replicas["s1/r1"].repair is None
    assert told.replicas["s1/r2"].repair == Exchange("analytics", "mart", "orders", "orders__dpone_1")
    assert told.never


def test_a_first_publication_is_repaired_by_a_rename() -> None:
    of = replace(in_phase(Phase.TERMINAL), predecessor=None)
    row = stored(of)
    shown = ({"orders": NEW}, {"orders__dpone_1": NEW})
    told = explain(row, observation(row, *shown), read_at=1)
    assert told.replicas["s1/r2"].repair == Rename("analytics", "mart", "orders__dpone_1", "orders")


def test_a_disarmed_partial_swap_is_repaired_from_the_parked_table() -> None:
    row = stored(disarmed())
    told = explain(row, observation(row, PARKED_NEW, PARKED_OLD), read_at=1)
    assert told.replicas["s1/r2"].repair == Exchange("analytics", "mart", "orders", PARKED)


@pytest.mark.parametrize(
    ("phase", "ways"),
    [
        (Phase.PREPARED, (Way.RETRY, Way.ABANDON)),
        (Phase.DISPATCHING, (Way.WAIT, Way.RESOLVE)),
        (Phase.BOUND, (Way.WAIT, Way.RESOLVE)),
        (Phase.COMMITTED, (Way.FREE,)),
        (Phase.ABORTED, (Way.NOTHING,)),
    ],
)
def test_the_way_on_depends_on_what_was_sent(phase: Phase, ways: tuple[Way, ...]) -> None:
    row = stored(in_phase(phase))
    shown = COMMITTED if phase is Phase.COMMITTED else PENDING
    told = explain(row, observation(row, shown, shown), NotSeen(), read_at=1)
    assert told.ways == ways
    assert told.held == (phase not in (Phase.COMMITTED, Phase.ABORTED))
    assert told.readers.startswith("Readers are not affected")


def test_a_word_of_the_only_holder_that_nothing_was_sent_needs_no_operator() -> None:
    row = stored(in_phase(Phase.DISPATCHING))
    told = explain(row, observation(row, PENDING, PENDING), NotSeen(), read_at=1, permit_unused=True)
    assert told.ways == (Way.RETRY,)


def test_a_replica_that_cannot_be_read_is_not_proven() -> None:
    row = stored(in_phase(Phase.BOUND))
    told = explain(row, observation(row, COMMITTED, None), NotSeen(), read_at=1)
    assert [line.partition(":")[0] for line in told.proven] == ["s1/r1"]
    assert told.unproven[0] == "s1/r2: can't be read"
    assert told.replicas["s1/r2"].live == "unknown"


def test_a_table_that_was_never_published_is_free() -> None:
    told = explain(None, observation(None, {}, {}))
    assert not told.held
    assert told.next == ("Nothing to do.",)


def test_the_receipt_of_a_resolved_publication_says_that_the_queue_is_not_known() -> None:
    from airflow_provider_dpone.publication.receipt import publication_receipt

    of = transitions.committed(disarmed(), entry=None, query_digest=None, receipt=None, now=1_070)
    receipt = publication_receipt(of, replayed=False)
    assert receipt.entry is None
    assert [(r.alias, r.queue, r.exception_code) for r in receipt.replicas] == [
        ("s1/r1", "not known", None),
        ("s1/r2", "not known", None),
    ]
    assert HostReceipt("s1/r1", 0) in (of.disarm.receipt or () if of.disarm else ())
