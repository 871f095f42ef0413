"""The page and ``explain`` never say that something is safe or live where that is not proven."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import pytest

from airflow_provider_dpone.evidence.layout import entry_name
from airflow_provider_dpone.evidence.reader import state_of
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explanation import Explanation, Way
from airflow_provider_dpone.publication.history import ADMITTED, STAGED
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.stop import Code
from airflow_provider_dpone.publication.trail import (
    Body,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    PermitUnused,
    Staged,
    TurnedAway,
)
from airflow_provider_dpone.web.model import LiveFacts, Receipt
from airflow_provider_dpone.web.status import Tone
from airflow_provider_dpone.web.view import receipt
from tests.unit.builders import (
    COMMITTED,
    FOREIGN,
    FOREIGN_TARGET,
    OLD,
    PENDING,
    TARGET_GONE,
    in_phase,
    observation,
    record,
    stored,
)
from tests.unit.page_trails import START, about, explained, history, trail

Outcome: TypeAlias = Literal["stored", "conflict", "unknown"]
OPERATION = record().operation_id
UNSENT = [ADMITTED, STAGED, Phase.PREPARED]
PUBLISHED = [Phase.COMMITTED, Phase.COMPLETED_RETAINING, Phase.COMPLETED]


def page(bodies: list[Any], live: LiveFacts | Explanation | None = None, *, later: bool = False) -> Receipt:
    facts = live if isinstance(live, LiveFacts) else LiveFacts(live, why_not="" if live else "why not")
    return receipt(
        trail(OPERATION, bodies),
        facts,
        cluster="analytics",
        later=later,
        now=START + timedelta(seconds=30),
    )


def green(shown: Receipt) -> bool:
    """Tell whether the first look says that readers are well."""
    return shown.readers is not None and shown.readers.tone is Tone.GOOD


# ---- a permit whose note is missing


def without_note(outcome: Outcome | None, *, sent: bool, noted: bool = True) -> list[Body]:
    """The trail of a publish task of whose permit only the intent was surely written.

    :param outcome: what it wrote about the compare-and-swap; ``None``: it died before it could.
    :param noted: that the record was PREPARED is written down.
    """
    kept: list[Body] = []
    for body in history(Phase.DISPATCHING):
        match body:
            case CompareAndSwapOutcome(phase=Phase.DISPATCHING):
                if outcome is not None:
                    kept.append(replace(body, outcome=outcome, version=None))
            case CompareAndSwapOutcome(phase=Phase.PREPARED) if not noted:
                pass
            case DispatchOutcome() if not sent:
                pass
            case _:
                kept.append(body)
    return kept


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("outcome", [None, "unknown"])
def test_a_permit_without_a_note_may_have_been_used(outcome: Outcome | None, sent: bool, noted: bool) -> None:
    bodies = without_note(outcome, sent=sent, noted=noted)
    names = [entry_name(entry) for entry in trail(OPERATION, bodies).entries]
    assert state_of(names) == Phase.DISPATCHING
    shown = page(bodies)
    assert shown.status.tone is Tone.CARE
    assert "may have been sent" in shown.what[0]
    assert not green(shown)
    assert "nothing was sent" not in shown.safe


@pytest.mark.parametrize("proof", ["conflict", "permit unused", "a later write"])
def test_a_permit_that_is_proven_void_is_none(proof: str) -> None:
    bodies = without_note("conflict" if proof == "conflict" else None, sent=False)
    intent = next(b for b in bodies if isinstance(b, CompareAndSwap) and b.phase is Phase.DISPATCHING)
    match proof:
        case "permit unused":
            bodies.append(PermitUnused(intent.epoch, intent.write_id))
        case "a later write":
            assert intent.from_version is not None
            bodies.append(
                CompareAndSwapOutcome(
                    "ee" * 16, Phase.PREPARED, intent.epoch, "stored", intent.from_version + 1
                )
            )
    assert state_of(entry_name(entry) for entry in trail(OPERATION, bodies).entries) == Phase.PREPARED
    assert page(bodies).state == Phase.PREPARED


def test_a_record_that_was_read_now_decides_whether_a_permit_was_given() -> None:
    shown = page(without_note(None, sent=False), explained(in_phase(Phase.PREPARED), PENDING, PENDING))
    assert (shown.state, shown.status.word) == (Phase.PREPARED, "Ready")


# ---- what was recorded before the swap says nothing of what it did


@pytest.mark.parametrize("phase", [Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL])
def test_what_was_seen_before_the_swap_is_no_proof_of_what_readers_see_after_it(phase: Phase) -> None:
    shown = page(history(phase))
    assert shown.readers is not None
    assert (shown.readers.word, shown.readers.tone) == ("Not known", Tone.CARE)
    assert "Readers are not affected" not in shown.safe
    assert "they see the old data" in shown.safe


@pytest.mark.parametrize("state", UNSENT)
def test_an_operation_speaks_for_itself_alone(state: str) -> None:
    """Another operation may be half way on the same table: it was admitted before, or its clock is behind."""
    shown = page(history(state))
    assert not green(shown)
    assert "Readers are not affected" not in shown.safe


# ---- what others have followed is not live any more


@pytest.mark.parametrize("state", [*PUBLISHED, Phase.ABORTED])
def test_what_a_later_operation_has_followed_does_not_say_what_readers_see(state: Phase) -> None:
    shown = page(history(state), later=True)
    assert "is live" not in " ".join(shown.what)
    assert shown.readers is None
    assert "later operation" in shown.safe
    assert all("is live" not in row.status.word for row in shown.replicas)


# ---- the cluster contradicts what was proven


CHANGED = {
    "swapped back on one": (COMMITTED, PENDING),
    "swapped back everywhere": (PENDING, PENDING),
    "replaced by hand": (COMMITTED, FOREIGN_TARGET),
    "dropped by hand": (TARGET_GONE, TARGET_GONE),
    "old and nothing beside it": ({"orders": OLD}, {"orders": OLD}),
}


@pytest.mark.parametrize("phase", PUBLISHED)
@pytest.mark.parametrize("seen", CHANGED.values(), ids=CHANGED)
def test_what_was_proven_and_is_not_there_now_is_not_called_live(phase: Phase, seen: Any) -> None:
    of = in_phase(phase)
    told = explain(stored(of), observation(stored(of), *seen, sequence=10), read_at=1)
    assert told.affected is True
    assert "is live on every replica" not in told.plain
    assert "changed since" in told.plain
    assert "Nothing to do" not in " ".join(told.next)
    shown = page(history(phase), told)
    assert (shown.status.tone, shown.status.word) == (Tone.CARE, "Changed since")
    assert not green(shown)
    assert not any(
        row.status.tone in (Tone.GOOD, Tone.REST) for row in shown.replicas if row.target.generation != "new"
    )


def test_what_was_closed_as_not_published_and_is_live_all_the_same_is_not_called_well() -> None:
    of = in_phase(Phase.ABORTED)
    told = explain(stored(of), observation(stored(of), COMMITTED, COMMITTED, sequence=10), read_at=1)
    assert told.affected is True
    assert told.ways == (Way.LOOK,)
    shown = page(history(Phase.BOUND), told)
    assert (shown.status.tone, shown.status.word) == (Tone.CARE, "Changed since")
    moved = explain(stored(of), observation(stored(of), {"orders": FOREIGN}, {"orders": FOREIGN}), read_at=1)
    assert moved.ways == (Way.NOTHING,)


def test_a_published_table_with_a_replica_that_cannot_be_read_is_not_live_on_every_replica() -> None:
    of = in_phase(Phase.COMMITTED)
    told = explain(stored(of), observation(stored(of), COMMITTED, None, sequence=10), read_at=1)
    assert told.affected is None
    assert "the new data is live on every replica" not in told.plain
    assert "s1/r2 can't be read" in told.plain


def test_what_is_live_as_proven_stays_green() -> None:
    for phase in PUBLISHED:
        of = in_phase(phase)
        shown = page(history(phase), explained(of, COMMITTED, COMMITTED))
        assert (shown.status.tone, shown.status.word) == (Tone.GOOD, "Published")
        assert green(shown)


@pytest.mark.parametrize("phase", PUBLISHED)
def test_what_was_proven_once_is_told_as_what_was(phase: Phase) -> None:
    """Nobody looked again: somebody may have changed the table by hand since."""
    shown = page(history(phase))
    assert "went live, and that was proven" in shown.what[0]
    assert shown.safe.startswith("When last seen")
    assert shown.facts.text.startswith("Recorded at")


@pytest.mark.parametrize("phase", [Phase.PREPARED, Phase.BOUND, Phase.COMMITTED])
def test_a_record_that_went_back_in_time_is_not_taken_for_a_later_operation(phase: Phase) -> None:
    earlier = in_phase(Phase.COMPLETED, operation_id="ff" * 32, dispatch_epoch=1)
    shown = page(history(phase), explained(earlier, COMMITTED, COMMITTED))
    assert (shown.status.tone, shown.code) == (Tone.HOLD, Code.CONTROL_TABLE_LOST)
    assert "an earlier operation" in shown.what[0]
    assert not green(shown)


def test_what_was_compared_before_another_candidate_was_staged_does_not_count() -> None:
    bodies = history(Phase.DISPATCHING)
    again = next(body for body in bodies if isinstance(body, Staged))
    assert page(bodies).replicas[0].content == "equal before the swap"
    assert page([*bodies, replace(again, attempt="2")]).replicas[0].content == "equal when staged"


# ---- a look of before


def test_a_look_of_before_is_not_called_live_when_the_cluster_is_late() -> None:
    old = LiveFacts(explained(in_phase(Phase.BOUND), PENDING, PENDING), 42.0, "Not live: it is late.")
    shown = page(history(Phase.BOUND), old)
    assert not shown.facts.live
    assert "42 s ago" in shown.facts.text
    assert "Not live: it is late." in shown.facts.text
    assert shown.readers is not None
    assert shown.readers.word == "Not known"


# ---- who reads


def test_the_task_of_another_dag_is_not_named_in_the_trail() -> None:
    entries = trail(OPERATION, history(Phase.BOUND)).entries
    away = TurnedAway("d" * 64, Owner("hidden", "r", "hidden_task", -1), "TARGET_BUSY", Phase.BOUND, 2)
    other = replace(entries[-1], about=about(Owner("hidden", "r", "hidden_task", -1)), body=away, sequence=99)
    shown = receipt(
        replace(trail(OPERATION, []), entries=(*entries, other)),
        LiveFacts(None, why_not="why not"),
        cluster="analytics",
        later=False,
        now=START,
    )
    assert "hidden" not in str(shown.trail)
    assert shown.trail[-1].who == "a task of another DAG"
    assert shown.trail[0].who == "stage, try 1"
