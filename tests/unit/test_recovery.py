"""A lost control table: what must be true before a new authority may be created."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse.control_table import authority_of, sentinel_row
from airflow_provider_dpone.publication.admission import admit_target
from airflow_provider_dpone.publication.orphans import FoundTable
from airflow_provider_dpone.publication.recovery import (
    RecoveryPlan,
    Survey,
    not_recoverable_yet,
    plan_recovery,
)
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from tests.unit.builders import AUTHORITY, OLD, observation

LOST = "b" * 32
ELSEWHERE = "c" * 32
CANDIDATE = "orders__dpone_0123456789abcdef"
REPLICAS = ("s1/r1", "s1/r2")


def table(name: str, alias: str, uuid: str = "u1", authority: str | None = LOST) -> FoundTable:
    return FoundTable(alias, "mart", name, uuid, authority, "op", 1, False, 0)


def everywhere(name: str, uuid: str = "u1", authority: str | None = LOST) -> tuple[FoundTable, ...]:
    return tuple(table(name, alias, uuid, authority) for alias in REPLICAS)


def survey(
    *tables: FoundTable, uuids: dict[tuple[str, str], dict[str, str]] | None = None, **changes: Any
) -> Survey:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for one in tables:
        found.setdefault((one.database, one.name), {})[one.alias] = one.uuid
    plain = Survey(
        cluster="analytics",
        replicas=REPLICAS,
        authority_id=None,
        tables=tables,
        uuids=found | (uuids or {}),
        queued=0,
        unfinished=(),
        elsewhere=frozenset(),
        evidence=False,
    )
    return replace(plain, **changes)


LIVE = everywhere("orders", "live")


def test_every_name_that_a_late_statement_could_use_is_parked_first() -> None:
    unmarked = everywhere("orders__dpone_aaaaaaaaaaaaaaaa", "old", None)
    plan = plan_recovery(survey(*LIVE, *everywhere(CANDIDATE, "new"), *unmarked))
    assert plan == RecoveryPlan(
        (LOST,), ("mart.orders",), (("mart", CANDIDATE), ("mart", "orders__dpone_aaaaaaaaaaaaaaaa"))
    )


def test_independent_replicas_have_the_same_table_where_one_operation_made_it() -> None:
    def each(name: str, *operations: str | None) -> tuple[FoundTable, ...]:
        return tuple(
            replace(table(name, alias, f"{name}-{alias}"), operation_id=operation)
            for alias, operation in zip(REPLICAS, operations, strict=True)
        )

    even = (*each("orders", "old", "old"), *each(CANDIDATE, "new", "new"))
    assert plan_recovery(survey(*even, independent=True)) == RecoveryPlan(
        (LOST,), ("mart.orders",), (("mart", CANDIDATE),)
    )
    assert isinstance(plan_recovery(survey(*even)), Stop)
    half = (*each("orders", "old", "new"), *each(CANDIDATE, "new", "old"))
    stop = plan_recovery(survey(*half, independent=True))
    assert isinstance(stop, Stop)
    assert stop.code is Code.TARGET_NOT_UNIFORM
    private = table("orders__dpone_aaaaaaaaaaaaaaaa", "s1/r2", "p")
    assert isinstance(plan_recovery(survey(*even, private, independent=True)), RecoveryPlan)
    gone = (*even[:1], *even[2:])
    assert isinstance(plan_recovery(survey(*gone, independent=True)), Stop)


def test_what_is_parked_stays_parked_and_a_first_publication_is_parked_too() -> None:
    assert plan_recovery(survey(*LIVE, *everywhere(f"{CANDIDATE}_lost", "new"))) == RecoveryPlan(
        (LOST,), ("mart.orders",), ()
    )
    assert plan_recovery(survey(*everywhere(CANDIDATE))) == RecoveryPlan((LOST,), (), (("mart", CANDIDATE),))


def test_a_candidate_that_only_one_replica_has_is_parked_there() -> None:
    plan = plan_recovery(survey(*LIVE, table(CANDIDATE, "s1/r2", "new")))
    assert isinstance(plan, RecoveryPlan)
    assert plan.park == (("mart", CANDIDATE),)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (survey(*LIVE, authority_id=AUTHORITY), "not lost"),
        (survey(), "no trace"),
        (survey(*LIVE, unfinished=("query-7 on s1/r2",)), "not finished everywhere"),
        (survey(LIVE[0]), "different tables under mart.orders"),
        (survey(LIVE[0], table("orders", "s1/r2", "other")), "different tables under mart.orders"),
        (survey(*LIVE, table(CANDIDATE, "s1/r1", "a"), table(CANDIDATE, "s1/r2", "b")), CANDIDATE),
        (
            survey(*everywhere(CANDIDATE), uuids={("mart", "orders"): {"s1/r1": "x", "s1/r2": "y"}}),
            "different tables under mart.orders",
        ),
        (
            survey(*LIVE, *everywhere(CANDIDATE), uuids={("mart", f"{CANDIDATE}_lost"): {"s1/r1": "x"}}),
            "name for that is taken",
        ),
    ],
)
def test_a_recovery_that_is_not_safe_is_refused_and_says_why(found: Survey, words: str) -> None:
    plan = plan_recovery(found)
    assert isinstance(plan, Stop)
    assert words in plan.message
    assert not_recoverable_yet(found) == plan


def test_what_came_while_the_others_were_parked_is_parked_before_anything_is_created() -> None:
    stop = not_recoverable_yet(survey(*LIVE, *everywhere(CANDIDATE)))
    assert stop is not None
    assert "came while" in stop.message
    assert not_recoverable_yet(survey(*LIVE)) is None


def test_the_tables_of_a_control_table_that_exists_elsewhere_are_not_touched() -> None:
    other = "items__dpone_0123456789abcdef"
    found = survey(
        *LIVE,
        *everywhere("items", "live2", ELSEWHERE),
        *everywhere(other, "new2", ELSEWHERE),
        *everywhere("items__dpone_bbbbbbbbbbbbbbbb", "old2", None),
        elsewhere=frozenset({ELSEWHERE}),
    )
    assert plan_recovery(found) == RecoveryPlan((LOST,), ("mart.orders",), ())


def test_traces_in_the_queue_or_the_evidence_alone_are_enough_to_recover() -> None:
    for found in (survey(queued=3), survey(evidence=True)):
        assert plan_recovery(found) == RecoveryPlan((), (), ())


# What the new authority admits.


def test_the_authoritys_row_names_what_it_adopted_and_nothing_else_is_read_from_it() -> None:
    assert authority_of(sentinel_row(AUTHORITY, "w")) == (AUTHORITY, frozenset())
    row = sentinel_row(AUTHORITY, "w", [LOST])
    assert authority_of(row) == (AUTHORITY, frozenset({LOST}))
    for payload in (row.payload.replace(LOST, "x"), row.payload.replace("adopted", "others")):
        with pytest.raises(Stopped):
            authority_of(replace(row, payload=payload))
    with pytest.raises(ValueError, match="32 hex"):
        sentinel_row(AUTHORITY, "w", ["short"])


@pytest.mark.parametrize("who", ["everybody", "one replica", "nobody"])
def test_a_table_of_a_lost_authority_is_admitted_where_every_replica_shows_its_adoption(who: str) -> None:
    marked = {"orders": replace(OLD, comment_authority=LOST)}
    seen = observation(None, marked, marked)
    adopting = {"everybody": REPLICAS, "one replica": ("s1/r1",), "nobody": ()}[who]
    replicas = {
        alias: replace(
            facts, control=replace(facts.control, adopted=frozenset({LOST} if alias in adopting else ()))
        )
        for alias, facts in seen.replicas.items()
    }
    stop = admit_target(replace(seen, replicas=replicas), "orders", authority_id=AUTHORITY)
    if who == "everybody":
        assert stop is None
    else:
        assert stop is not None
        assert stop.code is Code.FOREIGN_AUTHORITY


def test_a_table_of_this_authority_without_a_record_is_still_refused() -> None:
    marked = {"orders": replace(OLD, comment_authority=AUTHORITY)}
    stop = admit_target(observation(None, marked, marked), "orders", authority_id=AUTHORITY)
    assert stop is not None
    assert stop.code is Code.CONTROL_TABLE_LOST
