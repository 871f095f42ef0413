"""The ways out where tables are independent on every replica: abandon, resolve, retire, drop, go back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.decide import Hold
from airflow_provider_dpone.publication.decide_cleanup import (
    CleanupSituation,
    DispatchDrop,
    FinishDrop,
    WaitForDrop,
    decide_cleanup,
)
from airflow_provider_dpone.publication.decide_resolve import Resolution, decide_resolution, not_abandonable
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.orphans import (
    FoundTable,
    Orphan,
    Why,
    find_orphans,
    is_kept,
    not_droppable,
    orphan_to_drop,
)
from airflow_provider_dpone.publication.queue import NotSeen
from airflow_provider_dpone.publication.record import (
    UNSENT_PHASES,
    IndependentGeneration,
    IndependentRecord,
    IndependentRetained,
    Phase,
    StageState,
    decode,
    encode,
)
from airflow_provider_dpone.publication.retire import not_retirable, without
from airflow_provider_dpone.publication.rollback import Prepare, decide_rollback, prepared
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit import builders
from tests.unit.builders import AUTHORITY, stored
from tests.unit.independent import (
    ALIASES,
    CANDIDATE,
    COMMITTED,
    CONTENT,
    EXTRACT,
    HALF,
    NEW_ON,
    OLD_ON,
    PENDING,
    PRIVATE,
    generation,
    in_phase,
    inventory,
    locked,
    seen,
    shown,
    staging,
    table,
)

# ---- abandon


@pytest.mark.parametrize("phase", list(Phase))
def test_whatever_was_never_sent_is_abandoned_and_nothing_else(phase: Phase) -> None:
    assert (not_abandonable(in_phase(phase)) is None) == (phase in UNSENT_PHASES)


@pytest.mark.parametrize("phase", [Phase.LOCKED, Phase.STAGING])
def test_there_is_nothing_to_resolve_before_anything_was_sent(phase: Phase) -> None:
    step = decide_resolution(Resolution(stored(in_phase(phase)), 1))
    assert isinstance(step, Hold)
    assert "nothing was sent" in step.stop.message
    assert "stage task" in step.stop.next_action
    assert "abandon" in step.stop.next_action


def test_an_abandoned_lock_lists_the_table_that_the_source_is_read_into() -> None:
    left = transitions.aborted(locked(), now=2_000)
    assert [(item.name, {*item.generation.uuids}) for item in left.retained] == [
        (EXTRACT.name, {EXTRACT.uuid})
    ]


def test_an_abandoned_staging_lists_every_name_that_a_table_of_it_may_have() -> None:
    of = staging(r1=StageState.VERIFIED, r2=StageState.CLAIMED).moved(retained=())
    left = transitions.aborted(of, now=2_000)
    assert [(item.name, {*item.generation.uuids}) for item in left.retained] == [
        (PRIVATE["s1/r1"], {NEW_ON["s1/r1"]}),
        (PRIVATE["s1/r2"], {NEW_ON["s1/r2"]}),
        # Its rename may be on its way.
        (CANDIDATE, {NEW_ON["s1/r1"]}),
    ]
    assert decode(encode(left, "w")) == left


def test_a_private_name_is_dropped_before_the_name_that_it_may_get_is_called_free() -> None:
    """A rename that comes late finds nothing to rename then: no table is forgotten under the candidate's name."""
    of = transitions.aborted(staging(r1=StageState.VERIFIED, r2=None).moved(retained=()), now=2_000)
    private, candidate = (item.name for item in of.retained)
    first = {"orders": table(OLD_ON["s1/r1"]), private: table(NEW_ON["s1/r1"])}
    rest = {"orders": table(OLD_ON["s1/r2"])}
    step = decide_cleanup(CleanupSituation(stored(of), 2_000, seen(of, first, rest)))
    assert isinstance(step, DispatchDrop)
    assert step.item.name == private
    renamed = {"orders": table(OLD_ON["s1/r1"]), candidate: table(NEW_ON["s1/r1"])}
    step = decide_cleanup(CleanupSituation(stored(of), 2_000, seen(of, renamed, rest)))
    assert isinstance(step, FinishDrop)
    assert step.item.name == private
    struck = stored(transitions.dropped(of, private, now=2_001))
    step = decide_cleanup(CleanupSituation(struck, 2_001, seen(of, renamed, rest)))
    assert isinstance(step, DispatchDrop)
    assert step.item.name == candidate


def test_what_was_never_published_is_not_called_published_when_its_table_is_kept() -> None:
    of = transitions.aborted(staging(r1=StageState.READY), now=2_000)
    step = decide_cleanup(CleanupSituation(stored(of), 2_000, seen(of, None, PENDING[1])))
    assert isinstance(step, WaitForDrop)
    assert "publication is successful" not in step.stop.message
    assert "Nothing of this operation is live" in step.stop.message


# ---- orphans


def found(uuids: dict[str, str], **changes: Any) -> tuple[FoundTable, ...]:
    plain = FoundTable("", "mart", CANDIDATE, "", AUTHORITY, "op", 100, False, 50)
    return tuple(replace(plain, alias=alias, uuid=uuid, **changes) for alias, uuid in uuids.items())


def orphan(
    *tables: FoundTable, independent: bool = True, records: tuple[IndependentRecord, ...] = ()
) -> Orphan:
    (one,) = find_orphans(
        tables, records, authority_ids=(AUTHORITY,), unreadable_keys=(), now=2_000, independent=independent
    )
    return one


def test_one_table_of_its_own_on_each_replica_is_one_orphan() -> None:
    one = orphan(*found(NEW_ON))
    assert (one.why, one.uuids, one.uuid, one.bytes) == (Why.LEFT, NEW_ON, None, 200)
    assert not_droppable(one) is None
    assert orphan(*found(NEW_ON), independent=False).why is Why.UNEVEN


def test_a_private_attempt_is_on_one_replica() -> None:
    one = orphan(*found({"s1/r2": NEW_ON["s1/r2"]}))
    assert (one.why, one.uuid) == (Why.LEFT, NEW_ON["s1/r2"])


def test_tables_of_two_operations_under_one_name_are_not_dropped() -> None:
    first, second = found(NEW_ON)
    assert orphan(first, replace(second, operation_id="other")).why is Why.UNEVEN
    assert orphan(first, replace(second, authority_id=None)).why is Why.UNMARKED


@pytest.mark.parametrize("name", [CANDIDATE, *PRIVATE.values()])
def test_what_an_operation_stages_is_no_orphan(name: str) -> None:
    of = staging(r1=StageState.VERIFIED, r2=StageState.CLAIMED)
    tables = found({"s1/r1": NEW_ON["s1/r1"]}, name=name)
    assert (
        find_orphans(tables, (of,), authority_ids=(AUTHORITY,), unreadable_keys=(), now=0, independent=True)
        == ()
    )


SHOWN = shown(OLD_ON, NEW_ON)


def test_exactly_the_tables_that_were_listed_are_listed_for_a_drop() -> None:
    of = in_phase(Phase.COMPLETED)
    live = shown(NEW_ON, OLD_ON)
    item = orphan_to_drop(stored(of), seen(of, *live), CANDIDATE, OLD_ON.values(), "orders")
    assert item == generation(OLD_ON)
    for other in ({"s1/r1": OLD_ON["s1/r1"]}, {**OLD_ON, "s1/r2": builders.FOREIGN_UUID}):
        stop = orphan_to_drop(stored(of), seen(of, *live), CANDIDATE, other.values(), "orders")
        assert isinstance(stop, Stop)
        assert "not the table that was listed" in stop.message
    one_is_live = (
        {"orders": table(OLD_ON["s1/r1"]), CANDIDATE: table(OLD_ON["s1/r1"])},
        live[1],
    )
    stop = orphan_to_drop(stored(of), seen(of, *one_is_live), CANDIDATE, OLD_ON.values(), "orders")
    assert isinstance(stop, Stop)
    assert "live table" in stop.message


def test_a_record_of_the_other_mode_lists_nothing() -> None:
    of = builders.in_phase(Phase.COMPLETED)
    stop = orphan_to_drop(stored(of), seen(None, *SHOWN), CANDIDATE, NEW_ON.values(), "orders")
    assert isinstance(stop, Stop)
    assert "replicate themselves otherwise" in stop.message


def test_what_is_listed_is_not_listed_again() -> None:
    of = in_phase(Phase.COMPLETED).moved(
        retained=(IndependentRetained(CANDIDATE, generation(OLD_ON), 0, "op"),)
    )
    assert is_kept(of, CANDIDATE, OLD_ON.values())
    assert is_kept(of, CANDIDATE, [OLD_ON["s1/r2"]])
    assert not is_kept(of, CANDIDATE, NEW_ON.values())
    assert (
        decode(encode(transitions.dropping(of, CANDIDATE, nonce="n", now=2_000), "w")).retained[0].drop
        is not None
    )


# ---- rollback


def published(drop_after: int = 3_000) -> IndependentRecord:
    of = in_phase(Phase.COMPLETED_RETAINING)
    (kept,) = of.retained
    return of.moved(retained=(replace(kept, drop_after=drop_after),))


def test_the_replaced_tables_go_live_again_each_on_its_replica() -> None:
    of = published()
    look = seen(of, *COMMITTED)
    step = decide_rollback(stored(of), look, of.operation_id[:16], 1_100)
    assert isinstance(step, Prepare)
    assert (step.item.generation, step.live) == (generation(OLD_ON), generation(NEW_ON))
    back = prepared(stored(of), step, look, CONTENT, (), "n")
    assert isinstance(back, IndependentRecord)
    assert (back.phase, back.desired, back.predecessor) == (
        Phase.PREPARED,
        generation(OLD_ON),
        generation(NEW_ON),
    )
    assert decode(encode(back, "w")) == back


def test_the_attempts_of_the_undone_operation_are_never_taken_for_what_it_replaced() -> None:
    of = published()
    attempt = IndependentRetained(
        PRIVATE["s1/r1"], generation({"s1/r1": EXTRACT.uuid}), 3_000, of.operation_id
    )
    of = of.moved(retained=(*of.retained, attempt))
    step = decide_rollback(stored(of), seen(of, *COMMITTED), of.operation_id[:16], 1_100)
    assert isinstance(step, Prepare)
    assert step.item.name == CANDIDATE


@pytest.mark.parametrize("tables", [PENDING, HALF, shown(NEW_ON, {"s1/r1": OLD_ON["s1/r1"]})])
def test_what_is_not_on_every_replica_is_not_rolled_back(tables: Any) -> None:
    of = published()
    step = decide_rollback(stored(of), seen(of, *tables), of.operation_id[:16], 1_100)
    assert isinstance(step, Stop)


# ---- a replica that is gone for ever


def three(phase: Phase) -> IndependentRecord:
    """As ``in_phase``, with a third replica between the two, which is gone."""
    of = in_phase(phase)
    members = builders.inventory(3)
    wide = Inventory(members.cluster, tuple(replace(m, internal_replication=False) for m in members.members))

    def with_third(held: IndependentGeneration, uuid: str) -> IndependentGeneration:
        first, last = (one.uuid for one in held.tables)
        return generation({"s1/r1": first, "s1/r2": uuid, "s1/r3": last})

    assert of.predecessor is not None
    return of.moved(
        replicas=wide.aliases,
        servers=tuple(f"server-{alias}" for alias in wide.aliases),
        inventory_digest=wide.digest,
        predecessor=with_third(of.predecessor, "00000000-0000-4000-8000-00000000003a"),
        desired=with_third(of.desired, "00000000-0000-4000-8000-00000000003b"),
        publication=replace(of.publication, receipt=None) if of.publication else None,
    )


def left_of(of: IndependentRecord, *tables: Any) -> Observation:
    """What the two that are left show; the third one has the second one's number now."""
    look = seen(of, *tables)
    servers = {"s1/r1": "server-s1/r1", "s1/r2": "server-s1/r3"}
    return replace(
        look,
        replicas={
            alias: replace(facts, server=servers[alias], inventory_digest=inventory().digest)
            for alias, facts in look.replicas.items()
        },
    )


@pytest.mark.parametrize("tables", [PENDING, COMMITTED], ids=["old", "new"])
def test_where_the_others_hold_one_generation_they_stand_for_all(tables: Any) -> None:
    of = three(Phase.BOUND)
    look = left_of(of, *tables)
    left = without(of, look, ("s1/r2",))
    assert isinstance(left, IndependentRecord)
    assert not_retirable(stored(of), left, look, NotSeen()) is None
    assert left.replicas == ALIASES
    assert {one.alias: one.uuid for one in left.desired.tables} == NEW_ON
    # It is the same generation: a publish task that has its name goes on.
    assert left.desired.uuid == of.desired.uuid
    assert left.desired.identity == generation(NEW_ON).uuid


def test_replicas_that_differ_or_replicate_stand_for_nobody() -> None:
    of = three(Phase.BOUND)
    replicated = tuple(
        {**(one or {}), "orders": builders.table(OLD_ON[a])} for a, one in zip(ALIASES, PENDING, strict=True)
    )
    for tables, words in ((HALF, "different generations"), (replicated, "replicates itself")):
        look = left_of(of, *tables)
        left = without(of, look, ("s1/r2",))
        assert isinstance(left, IndependentRecord)
        stop = not_retirable(stored(of), left, look, NotSeen())
        assert isinstance(stop, Stop)
        assert words in stop.message


def test_what_is_kept_has_the_aliases_of_now_and_the_way_back_stays_open() -> None:
    of = three(Phase.BOUND)
    assert of.predecessor is not None
    kept = IndependentRetained("orders__dpone_kept", of.predecessor, 5_000, "earlier")
    left = without(of.moved(retained=(kept,)), left_of(of, *COMMITTED), ("s1/r2",))
    assert isinstance(left, IndependentRecord)
    assert {one.alias: one.uuid for one in left.retained[0].generation.tables} == OLD_ON
    done = transitions.committed(left.moved(retained=()), entry="e", query_digest="q", receipt=(), now=1_100)
    done = transitions.retaining(done, drop_after=3_000, now=1_100)
    assert isinstance(done, IndependentRecord)
    look = left_of(done, *COMMITTED)
    step = decide_rollback(stored(done), look, done.operation_id[:16], 1_200)
    assert isinstance(step, Prepare)
    assert step.item.generation.uuids == {*OLD_ON.values()}
    # As one that later operations have followed, it is known by what is left of it.
    settled = prepared(stored(done), step, look, CONTENT, (), "n").find_settled(done.operation_id)
    assert settled is not None
    assert settled.uuid == generation(NEW_ON).uuid


def test_a_stop_of_an_unsent_operation_has_a_code() -> None:
    stop = not_abandonable(in_phase(Phase.BOUND))
    assert stop is not None
    assert stop.code is Code.NOT_RESOLVABLE
