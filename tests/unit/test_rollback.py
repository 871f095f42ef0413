"""Whether a replaced table may be published again, and as which operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explanation import Way
from airflow_provider_dpone.publication.facts import TableFacts
from airflow_provider_dpone.publication.record import AuthorityRecord, Dispatch, Phase
from airflow_provider_dpone.publication.rollback import (
    FreeFirst,
    GoOn,
    Prepare,
    RollbackStep,
    decide_rollback,
    prepared,
    rollback_id,
)
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit.builders import (
    COMMITTED,
    CONTENT,
    FOREIGN,
    NEW,
    OLD,
    PENDING,
    in_phase,
    observation,
    stored,
)

NOW = 1_100
SHOWN = COMMITTED


def published(**item: Any) -> AuthorityRecord:
    """The new table is live; the old one is kept until 2000."""
    of = in_phase(Phase.COMPLETED_RETAINING)
    (kept,) = of.retained
    return of.moved(retained=(replace(kept, **{"drop_after": 2_000, **item}),))


def decide(of: AuthorityRecord, *shown: Any, operation: str | None = None, now: int = NOW) -> RollbackStep:
    row = stored(of)
    return decide_rollback(
        row, observation(row, *(shown or (SHOWN, SHOWN))), operation or of.operation_id[:16], now
    )


def begun(of: AuthorityRecord) -> AuthorityRecord:
    step = decide(of)
    assert isinstance(step, Prepare)
    row = stored(of)
    return prepared(row, step, observation(row, SHOWN, SHOWN), CONTENT, (), "n")


def test_the_kept_table_is_prepared_under_an_id_that_follows_from_what_is_undone() -> None:
    of = published()
    step = decide(of)
    assert step == Prepare(
        rollback_id(of.target_key, of.operation_id, 0), of.operation_id, of.retained[0], NEW.generation
    )
    record = begun(of)
    assert (record.phase, record.predecessor, record.desired) == (
        Phase.PREPARED,
        NEW.generation,
        OLD.generation,
    )
    assert record.candidate == of.retained[0].name
    assert record.retained == ()
    assert record.find_settled(of.operation_id) is not None
    assert record.published_order_key == of.published_order_key
    assert record.dispatch_epoch == of.dispatch_epoch


@pytest.mark.parametrize(
    "phase",
    [Phase.PREPARED, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL, Phase.COMMITTED, Phase.COMPLETED],
)
def test_the_same_command_goes_on_with_the_same_operation(phase: Phase) -> None:
    of = published()
    record = begun(of).moved(phase=phase)
    assert decide(record, operation=of.operation_id[:16]) == GoOn(record.operation_id)


def test_a_rollback_that_was_given_up_is_begun_again_under_the_next_id() -> None:
    of = published()
    given_up = transitions.aborted(begun(of), now=NOW)
    assert given_up.retained[0].drop_after == 2_000
    step = decide(given_up, operation=of.operation_id[:16])
    assert isinstance(step, Prepare)
    assert step.operation_id == rollback_id(of.target_key, of.operation_id, 1)
    assert step.live == NEW.generation


def test_a_rollback_is_undone_by_its_own_id() -> None:
    of = published()
    record = begun(of)
    back = transitions.dispatching(record, nonce="0" * 32, now=NOW)
    at: dict[str, Any] = {"entry": "query-1", "query_digest": "d", "receipt": (), "now": NOW}
    back = transitions.committed(back, **at)
    back = transitions.retaining(back, drop_after=3_000, now=NOW)
    shown = {"orders": OLD, record.candidate: NEW}
    step = decide(back, shown, shown)
    assert isinstance(step, Prepare)
    assert step.undone == record.operation_id
    assert step.item.generation == NEW.generation


def test_a_committed_operation_is_ended_first() -> None:
    of = in_phase(Phase.COMMITTED)
    assert decide(of) == FreeFirst(stored(of))


@pytest.mark.parametrize("phase", [Phase.PREPARED, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL])
def test_a_target_under_way_is_not_rolled_back(phase: Phase) -> None:
    step = decide(in_phase(phase))
    assert isinstance(step, Stop)
    assert step.code is Code.TARGET_BUSY


FOREIGN_LIVE: dict[str, TableFacts | None] = {**SHOWN, "orders": FOREIGN}
ALTERED: dict[str, TableFacts | None] = {
    **SHOWN,
    "orders__dpone_1": replace(OLD, schema_digest="altered"),
}


@pytest.mark.parametrize(
    ("of", "shown", "words"),
    [
        (in_phase(Phase.COMPLETED), (SHOWN, SHOWN), "nothing that it replaced"),
        (in_phase(Phase.ABORTED), (PENDING, PENDING), "was not published"),
        (published(drop_after=NOW), (SHOWN, SHOWN), "due to be dropped"),
        (published(drop=Dispatch("t", 9)), (SHOWN, SHOWN), "being dropped"),
        (published(), (FOREIGN_LIVE, SHOWN), "what is live is not"),
        (published(), (FOREIGN_LIVE, FOREIGN_LIVE), "what is live is not"),
        (published(), (SHOWN, {"orders": NEW}), "but not on s1/r2"),
        (published(), (ALTERED, ALTERED), "altered since"),
        (published(), (SHOWN, ALTERED), "not the same generation"),
    ],
)
def test_a_rollback_is_refused_and_says_why(of: AuthorityRecord, shown: Any, words: str) -> None:
    step = decide(of, *shown)
    assert isinstance(step, Stop)
    assert words in step.message


def test_a_structure_that_cannot_be_admitted_is_not_published_again() -> None:
    shown = {**SHOWN, "orders__dpone_1": replace(OLD, engine_refusal="its engine is Log")}
    step = decide(published(), shown, shown)
    assert isinstance(step, Stop)
    assert step.code is Code.UNSUPPORTED_TARGET


def test_an_operation_that_is_not_known_or_not_the_only_one_meant_is_not_undone() -> None:
    of = published()
    other = replace(of, operation_id=f"{of.operation_id[:20]}{'0' * 44}")
    two = of.moved(settled=(*of.settled, *other.remembered(of.operation_id)))
    for record, operation in ((of, "0" * 16), (two, of.operation_id[:16])):
        step = decide(record, operation=operation)
        assert isinstance(step, Stop)
        assert step.code is Code.NOT_RESOLVABLE
    assert isinstance(decide(two, operation=of.operation_id), Prepare)


def test_explain_names_the_command_that_goes_on_with_a_rollback() -> None:
    row = stored(begun(published()))
    told = explain(row, observation(row, SHOWN, SHOWN))
    assert told.ways == (Way.ROLL_ON, Way.ABANDON)
    assert "rollback" in told.summary
