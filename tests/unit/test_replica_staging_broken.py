"""What broke the staging of independent replicas in a review: each sequence of events, and that it is harmless now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.decide import incomplete
from airflow_provider_dpone.publication.identity import OPERATOR, ROLLBACK
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Owner,
    Phase,
    StageState,
    StoredRecord,
    encode,
    independent_generation,
)
from airflow_provider_dpone.publication.replica_stages import MAX_REPLICAS
from airflow_provider_dpone.publication.stop import Category, Code, Stopped
from tests.unit.builders import own_table
from tests.unit.replica_site import ReplicaSite, stop


def failing(*calls: str, code: Code = Code.STAGING_FAILED) -> Callable[[str], object]:
    """Let these calls stop."""

    def at(name: str) -> None:
        if name in calls:
            raise stop(code)

    return at


def live(site: ReplicaSite, **changes: Any) -> None:
    """Give every replica a table that is live."""
    for number, held in enumerate(site.tables.values(), start=1):
        uuid = f"00000000-0000-4000-8000-{number:012d}"
        held["orders"] = own_table(uuid, **changes)
        site.contents[uuid] = "old"


def stopped_by(site: ReplicaSite, **given: Any) -> Code:
    """Run a try that stops, and return why."""
    with pytest.raises(Stopped) as caught:
        site.stage(**given)
    return caught.value.stop.code


def phase(site: ReplicaSite) -> Phase:
    """The phase that is stored now."""
    return site.record.phase


# 1. Nothing is dropped while a target is locked, and a run that follows lists what the one before it left.


def test_runs_that_fail_one_after_the_other_leave_no_tables_and_never_close_the_target() -> None:
    site = ReplicaSite(failing("extract", code=Code.SOURCE_FAILED))
    for day in range(60):
        assert stopped_by(site, run=f"day {day}") is Code.SOURCE_FAILED
        assert len(site.names) <= 2
    site.at = lambda name: None
    site.stage(run="the day on which the source is repaired")
    assert phase(site) is Phase.PREPARED


def test_tables_that_are_too_large_for_a_cleanup_are_dropped_by_whoever_follows_their_operation() -> None:
    """Private tables may be of any size, as candidates of tables that replicate themselves are dropped."""
    site = ReplicaSite(failing("extract", code=Code.SOURCE_FAILED), guarded=True)
    for day in range(5):
        stopped_by(site, run=f"day {day}")
        assert len(site.names) <= 1
    site.at = failing("extract", code=Code.SOURCE_TOO_LARGE)
    stopped_by(site, run="one that is given up")
    assert site.names == set()


def test_tries_that_fail_one_after_the_other_drop_what_the_one_before_read() -> None:
    site = ReplicaSite(failing("extract", code=Code.SOURCE_FAILED))
    for _ in range(10):
        assert stopped_by(site) is Code.SOURCE_FAILED
        assert len(site.names) <= 2


def test_attempts_that_fail_one_after_the_other_drop_what_the_one_before_loaded() -> None:
    site = ReplicaSite(failing("load s1/r2"))
    for _ in range(10):
        assert stopped_by(site) is Code.STAGING_FAILED
        # That of the first replica, and at most two of the second.
        assert len(site.names) <= 3


def test_an_attempt_that_can_not_be_settled_is_not_dropped() -> None:
    site = ReplicaSite(failing("load s1/r2"))
    stopped_by(site)
    site.at = failing("settle", code=Code.STAGING_UNKNOWN)
    before = site.names
    assert stopped_by(site) is Code.STAGING_UNKNOWN
    assert site.names == before


def cluster_of(replicas: int) -> tuple[ReplicaSite, list[str]]:
    """A target that is live on so many replicas, and the calls for it."""
    calls: list[str] = []
    site = ReplicaSite(calls.append, {f"s1/r{number}": {} for number in range(1, replicas + 1)})
    live(site)
    return site, calls


def test_a_cluster_of_many_replicas_is_staged_or_refused_before_anything_is_read() -> None:
    site, calls = cluster_of(MAX_REPLICAS)
    site.stage()
    assert phase(site) is Phase.PREPARED
    assert "extract" in calls
    for replicas, definition, code in (
        (MAX_REPLICAS, "MergeTree ORDER BY " + "o" * 2500, Code.RECORD_TOO_LARGE),
        (MAX_REPLICAS + 1, "MergeTree ORDER BY id", Code.UNSUPPORTED_TOPOLOGY),
    ):
        site, calls = cluster_of(replicas)
        live(site, engine_full=definition)
        assert stopped_by(site) is code
        assert "extract" not in calls
        assert site.row is None


def waking_late(site: ReplicaSite, call: str) -> Callable[[str], object]:
    """A worker that sleeps before ``call``, while its operation is given up and its table is called gone."""

    def at(name: str) -> None:
        if name == call:
            site.at = lambda name: None
            assert site.abandon().kept is None
            assert site.record.retained == ()

    return at


@pytest.mark.parametrize("call", ["create s1/r1", "create s1/r2"])
def test_a_worker_that_wakes_late_drops_the_table_that_it_creates_then(call: str) -> None:
    site = ReplicaSite()
    site.at = waking_late(site, call)
    assert stopped_by(site) is Code.CAS_CONFLICT
    assert site.names == set()
    assert phase(site) is Phase.ABORTED
    assert any("created too late" in line for line in site.lines)
    assert not any("stays locked" in line for line in site.lines)


@pytest.mark.parametrize("code", [Code.STAGING_FAILED, Code.CONTENT_DIFFERS])
def test_a_worker_that_wakes_late_drops_its_table_whatever_it_stops_with(code: Code) -> None:
    """It stops before it meets the record again."""
    site = ReplicaSite()
    late = waking_late(site, "create s1/r2")

    def at(name: str) -> None:
        late(name)
        if name == "create s1/r2":
            site.at = once

    def once(name: str) -> None:
        site.at = lambda name: None
        raise stop(code)

    site.at = at
    assert stopped_by(site) is code
    assert site.names == set()
    assert phase(site) is Phase.ABORTED
    assert any("created too late" in line for line in site.lines)
    assert not any("stays locked" in line or "the target is free, the live" in line for line in site.lines)


def test_a_worker_that_wakes_late_leaves_alone_what_a_record_names_or_what_is_not_its_own() -> None:
    # Listed still: cleanup does it.
    site = ReplicaSite(guarded=True)

    def listed(name: str) -> None:
        if name == "load s1/r1":
            site.at = lambda name: None
            site.abandon()

    site.at = listed
    assert stopped_by(site) is Code.CAS_CONFLICT
    kept = {item.name for item in site.record.retained}
    assert kept
    assert site.names <= kept

    # Another table has the name.
    site = ReplicaSite()

    def replaced(name: str) -> None:
        if name == "observe":
            held = site.tables["s1/r2"]
            held |= {
                one: replace(table, uuid="00000000-0000-4000-8000-0000000000ff")
                for one, table in held.items()
            }

    def given_up(name: str) -> None:
        if name == "create s1/r2":
            site.at = replaced
            site.abandon()

    site.at = given_up
    assert stopped_by(site) is Code.CAS_CONFLICT
    assert site.record.retained == ()
    assert len(site.names) == 1


def test_who_abandons_is_told_that_sealed_rows_stay_until_somebody_holds_the_target_again() -> None:
    site = ReplicaSite(failing("load s1/r2"))
    stopped_by(site)
    assert site.abandon().sealed
    assert len(site.artifacts) == 1
    site.at = lambda name: None
    site.stage(series="1")
    assert site.artifacts == set()


def test_an_operation_that_has_left_too_much_behind_frees_the_target() -> None:
    site = ReplicaSite(failing("extract", code=Code.SOURCE_FAILED))
    codes: list[Code] = []
    while Code.TOO_MANY_RETAINED not in codes:
        codes.append(stopped_by(site))
        assert len(codes) < 60
    assert phase(site) is Phase.ABORTED
    assert site.names == set()
    site.at = lambda name: None
    site.stage(series="1")
    assert phase(site) is Phase.PREPARED


def test_a_changed_plan_of_an_operation_that_has_left_too_much_behind_frees_the_target() -> None:
    site = ReplicaSite(failing("extract", code=Code.SOURCE_FAILED))
    codes: list[Code] = []
    while Code.TOO_MANY_RETAINED not in codes:
        codes.append(stopped_by(site, plan=f"{len(codes) % 10}"))
        assert len(codes) < 80
    assert phase(site) is Phase.ABORTED


# 2. The record's bound.


def test_a_record_that_becomes_too_large_can_still_be_given_up() -> None:
    """A long ORDER BY stands in the record once for each table that is listed."""
    site = ReplicaSite(
        failing("load s1/r2"), engine=dict.fromkeys(("s1/r1", "s1/r2"), "MergeTree " + "o" * 3000)
    )
    codes: list[Code] = []
    while not codes or codes[-1] is Code.STAGING_FAILED:
        codes.append(stopped_by(site))
    assert codes[-1] in (Code.RECORD_TOO_LARGE, Code.TOO_MANY_RETAINED)
    assert phase(site) is Phase.ABORTED
    assert site.names == set()
    site.at = lambda name: None
    site.stage(series="1")
    assert phase(site) is Phase.PREPARED


def test_a_record_that_becomes_too_large_can_be_abandoned_at_any_moment() -> None:
    site = ReplicaSite(
        failing("load s1/r2"), engine=dict.fromkeys(("s1/r1", "s1/r2"), "MergeTree " + "o" * 3000)
    )
    for _ in range(60):
        code = stopped_by(site)
        # At each moment the record that an abandon writes, and those of all the drops after it, have room.
        given_up: AuthorityRecord = site.record
        if phase(site) is Phase.STAGING:
            given_up = transitions.aborted(site.record, now=1)
        for item in given_up.retained:
            given_up = transitions.dropping(given_up, item.name, nonce="0" * 32, now=1)
        encode(given_up, "0" * 32)
        if code is not Code.STAGING_FAILED:
            return
    raise AssertionError("it never became too large")


def test_what_could_not_be_recorded_after_the_swap_is_not_prepared() -> None:
    """``PREPARED`` fits by itself, and not with the receipts, the epochs and the drops that would follow."""
    engine = "MergeTree " + "o" * 28_000
    site = ReplicaSite(engine=dict.fromkeys(("s1/r1", "s1/r2"), engine))
    live(site, engine_full=engine)
    assert stopped_by(site) is Code.RECORD_TOO_LARGE
    # It is known before the target is locked and the source is read.
    assert site.row is None
    assert site.names == set()


# 3. A cleanup beside the lock.


def test_a_cleanup_between_admission_and_lock_does_not_end_the_run() -> None:
    """The cleanup of the run before drops a kept table meanwhile: the slot is as free as it was."""
    site = ReplicaSite()
    site.stage(run="first")
    site.abandon()
    name = "orders__dpone_00000000000000ff"
    assert site.row is not None
    item = site.record.keep(name, independent_generation("", "", {}), drop_after=9_999_999_999)
    site.row = replace(site.row, record=site.record.moved(retained=(item,)))

    def cleaned(call: str) -> None:
        if call == "evidence admission":
            site.at = lambda name: None
            assert site.row is not None
            moved = transitions.dropped(site.record, name, now=1_000)
            site.row = StoredRecord(moved, "another write", site.row.version + 1)

    site.at = cleaned
    site.stage(run="second")
    assert phase(site) is Phase.PREPARED
    assert not any(item.name == name for item in site.record.retained)


def test_another_operation_between_admission_and_lock_ends_the_run() -> None:
    site = ReplicaSite()
    site.stage(run="first")
    site.abandon()

    def locked(call: str) -> None:
        if call == "evidence admission":
            site.at = lambda name: None
            site.stage(run="third")

    site.at = locked
    assert stopped_by(site, run="second") is Code.TARGET_MOVED
    assert site.record.owner.run_id == "third"


# 4. What somebody does to a table that is ready.


def test_a_ready_table_that_got_other_rows_ends_the_operation_and_frees_the_target() -> None:
    """It can't be dropped under the shared name and built again, so that every retry would meet it."""
    site = ReplicaSite(failing("load s1/r2"))
    stopped_by(site)
    candidate = site.record.candidate
    held = site.tables["s1/r1"]
    held[candidate] = replace(held[candidate], rows=11)
    site.at = lambda name: None
    with pytest.raises(Stopped) as caught:
        site.stage()
    assert caught.value.stop.category in (Category.REFUSED, Category.CONTRADICTION)
    assert phase(site) is Phase.ABORTED
    site.stage(series="1")
    assert phase(site) is Phase.PREPARED


def test_tables_that_replicas_define_otherwise_are_not_prepared() -> None:
    """Publish compares whole generations: it would refuse them each time, after the source was read for nothing."""
    site = ReplicaSite(engine={"s1/r2": "MergeTree ORDER BY id SETTINGS index_granularity = 1024"})
    assert stopped_by(site) is Code.CANDIDATE_DIFFERS
    assert phase(site) is Phase.ABORTED
    assert site.names == set()


def test_rows_that_a_delete_has_masked_do_not_hold_up_a_rollback() -> None:
    """The server counts them, the content check doesn't: the rollback was prepared and could never be sent."""
    site = ReplicaSite()
    site.stage()
    prepared = site.record
    masked = replace(own_table("00000000-0000-4000-8000-00000000000a"), rows=11)
    assert incomplete(prepared, masked) == "11 of 10 rows are there"
    rolled_back = prepared.moved(owner=Owner(OPERATOR, "undone", ROLLBACK, -1))
    assert incomplete(rolled_back, masked) is None


# 5. A replica that has just started may show its tables one after the other.


def hidden_once(site: ReplicaSite, alias: str, looks: int = 1) -> None:
    """Let a replica show none of its tables in the next looks of the staging."""
    held, left = site.tables[alias], [looks]

    def at(name: str) -> None:
        if name == "observe":
            site.tables[alias] = {} if left[0] > 0 else held
            left[0] -= 1

    site.at = at


def test_a_ready_table_that_one_look_does_not_show_is_not_built_again() -> None:
    site = ReplicaSite(failing("load s1/r2"))
    stopped_by(site)
    stage = site.record.stage_of("s1/r1")
    assert stage is not None
    assert stage.state is StageState.READY
    # The admission looks first.
    hidden_once(site, "s1/r1", looks=2)
    site.stage()
    assert phase(site) is Phase.PREPARED
    assert stage.uuid in site.record.desired.uuids


def test_a_control_table_that_one_look_does_not_show_does_not_undo_the_staging() -> None:
    site = ReplicaSite()
    hidden: list[str] = []

    def at(name: str) -> None:
        stages = site.record.stages if site.row else ()
        ready = len(stages) == 2 and all(stage.state is StageState.READY for stage in stages)
        if name == "observe" and ready and not hidden:
            hidden.append(name)
            raise stop(Code.CONTROL_TABLE_MISSING)

    site.at = at
    site.stage()
    assert hidden
    assert phase(site) is Phase.PREPARED


def test_a_live_table_that_one_look_does_not_show_does_not_undo_the_staging() -> None:
    site = ReplicaSite()
    live(site)

    def at(name: str) -> None:
        stages = site.record.stages if site.row else ()
        if len(stages) == 2 and all(stage.state is StageState.READY for stage in stages):
            hidden_once(site, "s1/r2")

    site.at = at
    site.stage()
    assert phase(site) is Phase.PREPARED
