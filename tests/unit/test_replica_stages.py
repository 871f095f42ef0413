"""Staging of independent replicas: every next step by what is seen, and every move from where it is allowed."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.facts import Observation, TableFacts
from airflow_provider_dpone.publication.record import (
    MAX_RETAINED,
    MAX_SETTLED,
    NOT_SEALED,
    STAGE_PHASES,
    IndependentRecord,
    Phase,
    ReplicaStage,
    Settled,
    StageState,
    independent_generation,
)
from airflow_provider_dpone.publication.replica_stages import (
    MAX_REPLICAS,
    Claim,
    MarkReady,
    Promote,
    Ready,
    ReplicaStep,
    SeenReplica,
    Verify,
    all_ready,
    claimed,
    decide_replica,
    extracting,
    needs_artifact,
    no_place_left,
    prepared,
    ready,
    require_room,
    sealed,
    see_replica,
    taken_over,
    verified,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from tests.unit.builders import (
    ARTIFACT,
    BASELINE,
    CANONICAL,
    ENGINE,
    EXTRACT,
    FOREIGN_UUID,
    attempt,
    independent_in_phase,
    locked,
    own_table,
    own_uuid,
    replica_facts,
    staging,
    stored,
)
from tests.unit.builders import observation as look

R1 = "s1/r1"
OURS = own_uuid(1)
CLAIMED, VERIFIED, READY = StageState.CLAIMED, StageState.VERIFIED, StageState.READY

# What is next.

SEEN: list[tuple[StageState, str | None, str | None, type[ReplicaStep]]] = [
    # The state in the record, what has the private name, what has the candidate's name, what is next.
    (CLAIMED, None, None, Claim),
    (CLAIMED, OURS, None, Verify),
    (CLAIMED, FOREIGN_UUID, None, Claim),
    (CLAIMED, None, OURS, Claim),
    (CLAIMED, OURS, OURS, Verify),
    (CLAIMED, FOREIGN_UUID, OURS, Claim),
    (VERIFIED, None, None, Claim),
    (VERIFIED, OURS, None, Promote),
    (VERIFIED, FOREIGN_UUID, None, Claim),
    (VERIFIED, None, OURS, MarkReady),
    (VERIFIED, OURS, OURS, MarkReady),
    (VERIFIED, FOREIGN_UUID, OURS, MarkReady),
    (READY, None, None, Claim),
    (READY, OURS, None, Claim),
    (READY, FOREIGN_UUID, None, Claim),
    (READY, None, OURS, Ready),
    (READY, OURS, OURS, Ready),
    (READY, FOREIGN_UUID, OURS, Ready),
]


@pytest.mark.parametrize(("state", "private", "candidate", "step"), SEEN)
def test_the_next_step_of_a_replica(
    state: StageState, private: str | None, candidate: str | None, step: type[ReplicaStep]
) -> None:
    decided = decide_replica(staging(attempt(1, state)), R1, SeenReplica(private, candidate))
    assert type(decided) is step


def test_every_state_is_decided_for_every_sight() -> None:
    sights = (None, OURS, FOREIGN_UUID)
    assert {case[:3] for case in SEEN} == {
        (state, private, candidate)
        for state in StageState
        for private in sights
        for candidate in sights
        if candidate != FOREIGN_UUID
    }


@pytest.mark.parametrize("state", StageState)
@pytest.mark.parametrize("private", [None, OURS, FOREIGN_UUID])
def test_another_table_under_the_candidates_name_is_refused_in_every_state(
    state: StageState, private: str | None
) -> None:
    decided = decide_replica(staging(attempt(1, state)), R1, SeenReplica(private, FOREIGN_UUID))
    assert isinstance(decided, Stop)
    assert decided.code is Code.CANDIDATE_DIFFERS
    assert decided.category is Category.REFUSED
    assert decided.facts["replica"] == R1


def test_a_replica_without_an_attempt_claims_one() -> None:
    assert decide_replica(staging(attempt(2, READY)), R1, None) == Claim()


def test_an_attempt_is_never_decided_unseen() -> None:
    with pytest.raises(ValueError, match="a look at its tables"):
        decide_replica(staging(attempt(1)), R1, None)


# What a look shows.


def shown(*tables: dict[str, TableFacts | None] | None, **changes: Any) -> Observation:
    of = stored(staging(attempt(1)))
    seen = look(of, *tables)
    if changes:
        facts = replica_facts(R1, tables[0] or {}, of=of, members=seen.inventory, **changes)
        seen = replace(seen, replicas={**seen.replicas, R1: facts})
    return seen


PRIVATE, CANDIDATE = attempt(1).name, staging().candidate


@pytest.mark.parametrize("private", [None, OURS, FOREIGN_UUID])
@pytest.mark.parametrize("candidate", [None, OURS, FOREIGN_UUID])
def test_what_a_look_shows_of_an_attempt(private: str | None, candidate: str | None) -> None:
    tables = {
        PRIVATE: own_table(private) if private else None,
        CANDIDATE: own_table(candidate) if candidate else None,
    }
    # The other replica's tables say nothing about this one.
    other: dict[str, TableFacts | None] = {
        CANDIDATE: own_table(own_uuid(2)),
        PRIVATE: own_table(own_uuid(2)),
    }
    seen = see_replica(staging(attempt(1)), R1, shown(tables, other))
    assert seen == SeenReplica(private, candidate)


def test_a_replica_that_can_not_be_read_proves_nothing() -> None:
    stop = see_replica(staging(attempt(1)), R1, shown(None, {}))
    assert isinstance(stop, Stop)
    assert stop.code is Code.REPLICA_UNAVAILABLE
    assert stop.passing


@pytest.mark.parametrize("tables", [{}, {PRIVATE: own_table(OURS)}, {CANDIDATE: own_table(OURS)}])
def test_absence_is_a_fact_only_where_the_database_is_seen(tables: dict[str, TableFacts | None]) -> None:
    stop = see_replica(staging(attempt(1)), R1, shown(tables, {}, sees_database=False))
    assert isinstance(stop, Stop)
    assert stop.code is Code.REPLICA_NOT_OBSERVED


def test_presence_is_a_fact_whatever_else_is_seen() -> None:
    both: dict[str, TableFacts | None] = {PRIVATE: own_table(OURS), CANDIDATE: own_table(FOREIGN_UUID)}
    seen = see_replica(staging(attempt(1)), R1, shown(both, {}, sees_database=False))
    assert seen == SeenReplica(OURS, FOREIGN_UUID)


def test_only_an_attempt_is_looked_for() -> None:
    with pytest.raises(ValueError, match="only an attempt"):
        see_replica(staging(), R1, shown({}, {}))


@pytest.mark.parametrize(
    ("states", "complete", "loads"),
    [
        ((None, None), False, True),
        ((READY, None), False, True),
        ((READY, CLAIMED), False, True),
        ((READY, VERIFIED), False, False),
        ((VERIFIED, VERIFIED), False, False),
        ((READY, READY), True, False),
    ],
)
def test_when_all_is_ready_and_when_the_artifact_is_still_needed(
    states: tuple[StageState | None, ...], complete: bool, loads: bool
) -> None:
    stages = (attempt(n, state) for n, state in enumerate(states, start=1) if state is not None)
    record = staging(*stages)
    assert all_ready(record) is complete
    assert needs_artifact(record) is loads


# The moves.


def seal(record: IndependentRecord) -> IndependentRecord:
    return sealed(
        record,
        artifact=ARTIFACT,
        content=CANONICAL,
        baseline=BASELINE,
        engine_full=ENGINE,
        schema_digest="s" * 64,
        source_bytes=100,
        now=1_001,
    )


Move = Callable[[IndependentRecord], IndependentRecord]
MOVES: dict[str, tuple[Move, frozenset[Phase]]] = {
    "taken over": (lambda of: taken_over(of, nonce="1", now=1_001), STAGE_PHASES),
    "extracting": (lambda of: extracting(of, EXTRACT, now=1_001), frozenset({Phase.LOCKED})),
    "sealed": (seal, frozenset({Phase.LOCKED})),
    "claimed": (lambda of: claimed(of, attempt(1, number=1), now=1_001), frozenset({Phase.STAGING})),
    "verified": (lambda of: verified(of, "s1/r2", now=1_001), frozenset({Phase.STAGING})),
    "ready": (lambda of: ready(of, R1, now=1_001), frozenset({Phase.STAGING})),
    "aborted": (lambda of: transitions.aborted(of, now=1_001), STAGE_PHASES | {Phase.PREPARED}),
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("name", MOVES)
def test_a_move_is_made_from_its_own_phases_only(name: str, phase: Phase) -> None:
    move, allowed = MOVES[name]
    record = independent_in_phase(phase)
    if phase in allowed:
        assert move(record).changed_at == 1_001
    else:
        with pytest.raises(ValueError, match="no such move"):
            move(record)


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.STAGING])
def test_only_what_is_being_staged_is_prepared(phase: Phase) -> None:
    with pytest.raises(ValueError, match="no such move"):
        prepared(independent_in_phase(phase), live_rows=1, now=1_001)


@pytest.mark.parametrize("before", [None, *StageState])
@pytest.mark.parametrize(("move", "allowed"), [(verified, CLAIMED), (ready, VERIFIED)])
def test_a_replica_advances_one_state_at_a_time(
    move: Any, allowed: StageState, before: StageState | None
) -> None:
    record = staging(*([] if before is None else [attempt(1, before)]), attempt(2))
    if before is not allowed:
        with pytest.raises(ValueError, match="is not"):
            move(record, R1, now=1_001)
        return
    after = move(record, R1, now=1_001)
    stage = after.stage_of(R1)
    assert stage == replace(attempt(1), state={CLAIMED: VERIFIED, VERIFIED: READY}[allowed])
    assert after.stage_of("s1/r2") == attempt(2)


def test_taking_over_gives_a_new_fence_and_changes_nothing_else() -> None:
    record = independent_in_phase(Phase.STAGING)
    after = taken_over(record, nonce="1", now=1_001)
    assert after.fence_token not in (record.fence_token, taken_over(record, nonce="2", now=1_001).fence_token)
    assert replace(after, fence_token=record.fence_token, changed_at=record.changed_at) == record


def kept(record: IndependentRecord) -> dict[str, frozenset[str]]:
    return {item.name: item.generation.uuids for item in record.retained}


def test_an_earlier_extract_is_left_behind_when_another_is_claimed() -> None:
    first = extracting(locked(), EXTRACT, now=1_001)
    assert (first.extract, first.retained) == (EXTRACT, ())
    other = attempt(1, number=3)
    second = extracting(first, other, now=1_002)
    assert second.extract == other
    assert kept(second) == {EXTRACT.name: frozenset({EXTRACT.uuid})}
    assert second.retained[0].drop_after == 1_002


def test_sealing_binds_the_artifact_and_lists_the_extract() -> None:
    after = seal(extracting(locked(), EXTRACT, now=1_000))
    assert after.phase is Phase.STAGING
    assert (after.artifact, after.content, after.baseline) == (ARTIFACT, CANONICAL, BASELINE)
    assert (after.desired.engine_full, after.desired.tables) == (ENGINE, ())
    assert after.extract is None
    assert kept(after) == {EXTRACT.name: frozenset({EXTRACT.uuid})}


@pytest.mark.parametrize("before", StageState)
def test_another_attempt_leaves_the_earlier_one_behind_under_its_own_name(before: StageState) -> None:
    record = staging(attempt(1, before), attempt(2, READY))
    other = attempt(1, number=4)
    after = claimed(record, other, now=1_001)
    assert after.stage_of(R1) == other
    assert after.stage_of("s1/r2") == attempt(2, READY)
    assert kept(after) == kept(record) | {attempt(1).name: frozenset({OURS})}


@pytest.mark.parametrize("number", [0, 1])
def test_prepared_needs_every_replica(number: int) -> None:
    stages = [attempt(1, READY), attempt(2, READY)][:number]
    with pytest.raises(ValueError, match="every replica"):
        prepared(staging(*stages), live_rows=1, now=1_001)
    with pytest.raises(ValueError, match="every replica"):
        prepared(staging(attempt(1, READY), attempt(2, VERIFIED)), live_rows=1, now=1_001)


def test_prepared_names_the_table_of_every_replica_in_the_order_of_the_cluster() -> None:
    after = prepared(staging(attempt(2, READY), attempt(1, READY)), live_rows=8, now=1_001)
    assert after.phase is Phase.PREPARED
    assert [(table.alias, table.uuid) for table in after.desired.tables] == [
        (R1, OURS),
        ("s1/r2", own_uuid(2)),
    ]
    assert after.desired == independent_generation(ENGINE, "s" * 64, {R1: OURS, "s1/r2": own_uuid(2)})
    assert (after.stages, after.live_rows, after.prepared_at) == ((), 8, 1_001)
    assert after.artifact == ARTIFACT


# What is left where the operation is given up.


def left(*stages: ReplicaStage, extract: ReplicaStage | None = None) -> dict[str, frozenset[str]]:
    return {name: table.uuids for name, table in staging(*stages, extract=extract).left()}


def test_giving_up_lists_every_name_that_an_attempt_may_have() -> None:
    assert left() == {}
    assert left(attempt(1)) == {attempt(1).name: frozenset({OURS})}
    # Its rename may be on its way: it has one name or the other.
    assert left(attempt(1, VERIFIED)) == {attempt(1).name: frozenset({OURS}), CANDIDATE: frozenset({OURS})}
    assert left(attempt(1, READY)) == {CANDIDATE: frozenset({OURS})}
    assert left(attempt(1, READY), attempt(2, VERIFIED)) == {
        attempt(2).name: frozenset({own_uuid(2)}),
        CANDIDATE: frozenset({OURS, own_uuid(2)}),
    }
    assert left(extract=EXTRACT) == {EXTRACT.name: frozenset({EXTRACT.uuid})}


def test_a_private_name_is_listed_before_the_candidates() -> None:
    """It is dropped first then: a rename that comes between the two drops is seen by the second."""
    names = [name for name, _ in staging(attempt(1, READY), attempt(2, VERIFIED)).left()]
    assert names == [attempt(2).name, CANDIDATE]


def test_what_is_given_up_is_kept_until_it_is_dropped() -> None:
    record = staging(attempt(1, VERIFIED))
    after = transitions.aborted(record, now=1_001)
    assert after.phase is Phase.ABORTED
    assert set(kept(after)) == {EXTRACT.name, attempt(1).name, CANDIDATE}
    assert transitions.inherited(record, now=1_001) == after.retained
    assert transitions.inherited(None, now=1_001) == ()


def test_there_is_room_for_what_a_giving_up_lists() -> None:
    record = staging()
    item = record.keep("t", record.attempt_table(attempt(1)), drop_after=0)
    most = MAX_RETAINED - len(record.replicas) - 4
    full = replace(record, retained=tuple(replace(item, name=f"t{n}") for n in range(most)))
    assert no_place_left(full) is None
    stop = no_place_left(replace(full, retained=(*full.retained, item)))
    assert stop is not None
    assert stop.code is Code.TOO_MANY_RETAINED


@pytest.mark.parametrize("replicas", [2, 13, MAX_REPLICAS])
def test_where_a_first_run_has_room_each_later_one_has_it(replicas: int) -> None:
    aliases = tuple(f"s1/r{number}" for number in range(1, replicas + 1))
    first = replace(locked(), replicas=aliases, extract=None, retained=(), settled=(), predecessor=None)

    def has_room(record: IndependentRecord, length: int) -> bool:
        try:
            require_room(record, "o" * length)
        except Stopped:
            return False
        return True

    # The longest definition for which there is room.
    longest = bisect(range(8_000), False, key=lambda length: not has_room(first, length)) - 1
    assert has_room(first, longest)
    one, *_ = aliases
    tables = independent_generation("o" * longest, "0" * 64, dict.fromkeys(aliases, EXTRACT.uuid))
    alone = independent_generation("o" * longest, "0" * 64, {one: EXTRACT.uuid})
    item = first.keep(EXTRACT.name, tables, drop_after=1_000)
    later = replace(
        first,
        dispatch_epoch=9_999,
        predecessor=tables,
        retained=(
            *(replace(item, name=f"{n}{item.name[1:]}") for n in range(2)),
            *(replace(item, name=f"{n:02}{item.name[2:]}", generation=alone) for n in range(replicas)),
        ),
        settled=(Settled("0" * 64, Phase.COMPLETED, 9_999, 1_000, 10**9, EXTRACT.uuid),) * MAX_SETTLED,
    )
    assert has_room(later, longest)
    assert not has_room(first, longest + 1)


def test_what_is_not_sealed_yet_has_no_content() -> None:
    assert locked().content == NOT_SEALED
    assert locked().desired.uuids == frozenset()
