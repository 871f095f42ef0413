"""Which tables no record needs, and which of them may be dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.facts import TableFacts
from airflow_provider_dpone.publication.identity import (
    candidate_name,
    candidate_parts,
    only_target,
    parked_name,
)
from airflow_provider_dpone.publication.orphans import (
    FoundTable,
    Orphan,
    Why,
    find_orphans,
    kept_but_replaced,
    not_droppable,
    orphan_to_drop,
)
from airflow_provider_dpone.publication.record import (
    MAX_RETAINED,
    AuthorityRecord,
    Generation,
    Phase,
    Retained,
)
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit.builders import (
    AUTHORITY,
    FOREIGN_UUID,
    KEY,
    NEW_UUID,
    OLD_UUID,
    REPLICATED_PHASES,
    generation,
    in_phase,
    observation,
    stored,
    table,
)

NAME = "orders__dpone_0123456789abcdef"
LEFT_UUID = "00000000-0000-4000-8000-00000000000d"
LEFT = table(LEFT_UUID)


def found(name: str = NAME, uuid: str = LEFT_UUID, **changes: Any) -> tuple[FoundTable, ...]:
    plain = FoundTable("s1/r1", "mart", name, uuid, AUTHORITY, "op", 100, False, 50)
    return tuple(replace(plain, alias=alias, **changes) for alias in ("s1/r1", "s1/r2"))


def orphans(
    *tables: FoundTable, records: tuple[AuthorityRecord, ...] = (), **more: Any
) -> tuple[Orphan, ...]:
    return find_orphans(
        tables, records, **{"authority_ids": (AUTHORITY,), "unreadable_keys": (), "now": 2_000, **more}
    )


def why(*tables: FoundTable, records: tuple[AuthorityRecord, ...] = (), **more: Any) -> list[Why]:
    return [one.why for one in orphans(*tables, records=records, **more)]


def keeping(item: Retained, phase: Phase = Phase.ABORTED) -> AuthorityRecord:
    return in_phase(phase, retained=(item,))


KEPT = Retained(NAME, generation(LEFT_UUID), 3_000, "op")


def test_a_table_that_no_record_names_is_left_over_with_its_size_and_its_target() -> None:
    (orphan,) = orphans(*found(), records=(in_phase(Phase.COMPLETED),))
    assert (orphan.why, orphan.table, orphan.bytes, orphan.uuid) == (Why.LEFT, "orders", 200, LEFT_UUID)
    assert orphan.droppable
    assert not_droppable(orphan) is None
    assert why(*found()) == [Why.LEFT]


@pytest.mark.parametrize("phase", REPLICATED_PHASES)
def test_what_a_record_needs_is_no_orphan(phase: Phase) -> None:
    of = in_phase(phase)
    live = found("orders", OLD_UUID)
    candidate = found(of.candidate, NEW_UUID)
    records = (of,)
    if of.ended:
        assert why(*live, records=records) == []
    else:
        parked = found(parked_name(of.candidate), NEW_UUID)
        assert why(*live, *candidate, *parked, records=records) == []


def test_a_kept_table_is_an_orphan_only_when_its_time_is_over_or_its_name_was_taken() -> None:
    assert why(*found(), records=(keeping(KEPT),)) == []
    assert why(*found(), records=(keeping(KEPT),), now=3_000) == [Why.DUE]
    assert why(*found(uuid=FOREIGN_UUID), records=(keeping(KEPT),)) == [Why.REPLACED]
    here, there = found()
    assert why(here, replace(there, uuid=FOREIGN_UUID), records=(keeping(KEPT),)) == [Why.BESIDE]


@pytest.mark.parametrize(
    ("tables", "expected", "more"),
    [
        (found(authority_id=None), Why.UNMARKED, {}),
        (found(authority_id="c" * 32), Why.FOREIGN, {}),
        (found("my_copy"), Why.RENAMED, {}),
        (found("table__dpone_0123456789abcdef"), Why.NO_TARGET, {}),
        (found(in_use=True), Why.IN_USE, {}),
        (found(), Why.UNREADABLE, {"unreadable_keys": (KEY,)}),
        (found(), Why.UNDER_WAY, {"records": (in_phase(Phase.BOUND),)}),
        ((found()[0], replace(found()[1], uuid=FOREIGN_UUID)), Why.UNEVEN, {}),
    ],
    ids=lambda value: value.name if isinstance(value, Why) else "",
)
def test_what_is_not_surely_ours_and_unneeded_is_listed_and_not_dropped(
    tables: Any, expected: Why, more: Any
) -> None:
    (orphan,) = orphans(*tables, **more)
    assert orphan.why is expected
    stop = not_droppable(orphan)
    assert stop is not None
    assert stop.code in (Code.NOT_RESOLVABLE, Code.TARGET_BUSY)


def test_the_table_of_an_authority_that_was_adopted_may_be_dropped() -> None:
    lost = found(authority_id="b" * 32)
    assert why(*lost) == [Why.FOREIGN]
    assert why(*lost, authority_ids=(AUTHORITY, "b" * 32)) == [Why.LEFT]


def test_a_name_tells_its_target_only_where_no_other_target_has_such_names() -> None:
    attempt = "0123456789abcdef"
    assert only_target(candidate_name("orders", attempt)) == "orders"
    assert only_target(parked_name(candidate_name("orders", attempt))) == "orders"
    for target in ("x" * 64, "x" * 80, "o.rders", "table"):
        assert only_target(candidate_name(target, attempt)) is None
    for name in ("orders", "orders__dpone_1", "orders__dpone_0123456789ABCDEF", f"__dpone_{attempt}"):
        assert candidate_parts(name) is None
        assert only_target(name) is None


# What a drop looks at again.


def to_drop(of: AuthorityRecord | None, *shown: Any, uuid: str = LEFT_UUID) -> Generation | Stop:
    row = stored(of) if of else None
    return orphan_to_drop(row, observation(row, *shown), NAME, (uuid,), "orders")


SHOWN = {"orders": table(OLD_UUID), NAME: LEFT}


@pytest.mark.parametrize("phase", REPLICATED_PHASES)
def test_only_a_target_that_is_free_gets_an_orphan_listed(phase: Phase) -> None:
    decided = to_drop(in_phase(phase), SHOWN, SHOWN)
    if in_phase(phase).ended:
        assert decided == LEFT.generation
    else:
        assert isinstance(decided, Stop)
        assert decided.code is Code.TARGET_BUSY


@pytest.mark.parametrize(
    "shown",
    [
        ({"orders": table(OLD_UUID)}, {"orders": table(OLD_UUID)}),
        (SHOWN, {**SHOWN, NAME: table(FOREIGN_UUID)}),
        ({**SHOWN, "orders": LEFT}, SHOWN),
    ],
    ids=["gone", "another table on one replica", "live on one replica"],
)
def test_a_table_that_is_not_what_was_listed_is_left_alone(shown: Any) -> None:
    decided = to_drop(in_phase(Phase.COMPLETED), *shown)
    assert isinstance(decided, Stop)
    assert decided.code is Code.NOT_RESOLVABLE


def test_a_table_that_only_one_replica_has_may_be_listed_and_a_blind_look_may_not() -> None:
    of = in_phase(Phase.COMPLETED)
    rest: dict[str, TableFacts | None] = {"orders": table(OLD_UUID)}
    assert to_drop(of, SHOWN, rest) == LEFT.generation
    seen = observation(stored(of), SHOWN, rest)
    replicas = {**seen.replicas, "s1/r2": replace(seen.replicas["s1/r2"], sees_database=False)}
    decided = orphan_to_drop(stored(of), replace(seen, replicas=replicas), NAME, (LEFT_UUID,), "orders")
    assert isinstance(decided, Stop)


def test_a_full_list_takes_no_orphan() -> None:
    full = tuple(replace(KEPT, name=f"{NAME}{n}") for n in range(MAX_RETAINED - 1))
    decided = to_drop(in_phase(Phase.ABORTED, retained=full), SHOWN, SHOWN)
    assert isinstance(decided, Stop)
    assert decided.code is Code.TOO_MANY_RETAINED


def test_listing_renews_the_fence_and_is_for_end_phases_only() -> None:
    before = in_phase(Phase.COMPLETED)
    after = transitions.listed(before, KEPT, nonce="n", now=2_000)
    assert after.phase is Phase.COMPLETED_RETAINING
    assert after.retained == (KEPT,)
    assert after.fence_token != before.fence_token
    with pytest.raises(ValueError, match="no such move"):
        transitions.listed(in_phase(Phase.PREPARED), KEPT, nonce="n", now=2_000)


def test_a_kept_table_is_forgotten_only_where_another_one_has_its_name_and_it_is_nowhere() -> None:
    of = keeping(KEPT)
    foreign = {"orders": table(OLD_UUID), NAME: table(FOREIGN_UUID)}
    nothing = {"orders": table(OLD_UUID)}

    def decided(*shown: Any) -> Retained | Stop:
        return kept_but_replaced(of, observation(stored(of), *shown), NAME)

    assert decided(foreign, foreign) == KEPT
    assert decided(foreign, nothing) == KEPT
    assert isinstance(decided(nothing, nothing), Stop)
    assert isinstance(decided(SHOWN, foreign), Stop)
    assert isinstance(kept_but_replaced(of, observation(stored(of), foreign, foreign), "other"), Stop)
    left = transitions.forgotten(of, NAME, now=2_000).retained
    assert NAME not in [item.name for item in left]
