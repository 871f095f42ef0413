"""What must be true before anything is changed: each check alone, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication.admission import (
    FinishFirst,
    Request,
    Resume,
    Slot,
    admit_cluster,
    admit_request,
    admit_target,
    cluster_checks,
    moved_since,
)
from airflow_provider_dpone.publication.facts import ControlFacts, Observation
from airflow_provider_dpone.publication.record import (
    STAGE_PHASES,
    UNSENT_PHASES,
    AuthorityRecord,
    Phase,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop
from tests.unit.builders import (
    AUTHORITY,
    CONTROL,
    FOREIGN,
    IDENTITY,
    KEY,
    NEW,
    OLD,
    PENDING,
    REPLICATED_PHASES,
    USER,
    generation,
    in_phase,
    independent_in_phase,
    independently,
    observation,
    own_table,
    own_tables,
    own_uuid,
    record,
    stored,
)

LIVE = {"orders": OLD}
MINE = record().operation_id


def second(seen: Observation, **changes: Any) -> Observation:
    """The observation with replica 2 changed."""
    return replace(seen, replicas={**seen.replicas, "s1/r2": replace(seen.replicas["s1/r2"], **changes)})


def control(**changes: Any) -> ControlFacts:
    return replace(ControlFacts(CONTROL, AUTHORITY, "w5", 5), **changes)


def cluster(seen: Observation) -> Stop | None:
    return admit_cluster(seen, database="mart", control_structure=CONTROL, user=USER)


GOOD = observation(stored(record()), LIVE, LIVE)


def test_a_complete_healthy_cluster_is_admitted() -> None:
    assert cluster(GOOD) is None
    checks = list(cluster_checks(GOOD, database="mart", control_structure=CONTROL, user=USER))
    assert len({check.name for check in checks}) == len(checks) > 10


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"server": "server-s1/r1"}, Code.REPLICAS_NOT_DISTINCT),
        ({"inventory_digest": "other"}, Code.INVENTORY_DRIFT),
        ({"user": "default"}, Code.INTERSERVER_SECRET_MISSING),
        ({"version": "24.3.1.1"}, Code.CAPABILITY_MISSING),
        ({"version": "23.12.1.1"}, Code.CAPABILITY_MISSING),
        ({"database_engine": None}, Code.UNSUPPORTED_DATABASE),
        ({"database_engine": "Replicated"}, Code.UNSUPPORTED_DATABASE),
        ({"database_engine": "Ordinary"}, Code.UNSUPPORTED_DATABASE),
        ({"control": control(structure=None, sentinel=None)}, Code.CONTROL_TABLE_MISSING),
        ({"control": control(structure="other")}, Code.CONTROL_TABLE_INVALID),
        ({"control": control(sentinel=None)}, Code.CONTROL_TABLE_INVALID),
        ({"control": control(sentinel="b" * 32)}, Code.CONTROL_TABLE_INVALID),
        ({"control": control(version=4)}, Code.CONTROL_TABLE_NOT_SHARED),
        ({"control": control(write_id="other")}, Code.CONTROL_TABLE_NOT_SHARED),
        ({"control": control(write_id=None, version=None)}, Code.CONTROL_TABLE_NOT_SHARED),
    ],
)
def test_one_replica_that_differs_is_refused(changes: dict[str, Any], code: Code) -> None:
    stop = cluster(second(GOOD, **changes))
    assert stop is not None
    assert stop.code is code
    assert stop.next_action


def test_an_unreachable_replica_is_named_and_nothing_was_started() -> None:
    stop = cluster(observation(stored(record()), LIVE, None))
    assert stop is not None
    assert stop.code is Code.REPLICA_UNAVAILABLE
    assert "s1/r2" in stop.message
    assert stop.category is Category.RETRYABLE


def test_the_same_release_as_the_oldest_is_new_enough() -> None:
    assert cluster(second(GOOD, version="24.8.14.39")) is None


def target(seen: Observation) -> Stop | None:
    return admit_target(seen, "orders", authority_id=AUTHORITY)


def test_an_absent_target_is_admitted() -> None:
    assert target(observation(None, {}, {})) is None


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ({}, Code.TARGET_NOT_UNIFORM),
        ({"orders": NEW}, Code.TARGET_NOT_UNIFORM),
        ({"orders": replace(OLD, schema_digest="x")}, Code.TARGET_NOT_UNIFORM),
        ({"orders": replace(OLD, engine_refusal="it is a view")}, Code.UNSUPPORTED_TARGET),
        ({"orders": replace(OLD, comment_authority="b" * 32)}, Code.FOREIGN_AUTHORITY),
    ],
    ids=["missing on one", "another uuid", "another schema", "wrong engine", "another authority"],
)
def test_a_target_that_cannot_be_replaced(shown: dict[str, Any], code: Code) -> None:
    stop = target(observation(stored(record()), LIVE, shown))
    assert stop is not None
    assert stop.code is code


def test_a_live_table_of_ours_without_a_record_means_the_control_table_was_lost() -> None:
    ours = {"orders": replace(OLD, comment_authority=AUTHORITY)}
    stop = target(observation(None, ours, ours))
    assert stop is not None
    assert stop.code is Code.CONTROL_TABLE_LOST


def test_a_live_table_of_ours_with_its_record_is_admitted() -> None:
    ours = {"orders": replace(OLD, comment_authority=AUTHORITY)}
    assert target(observation(stored(in_phase(Phase.COMPLETED)), ours, ours)) is None


# The slot.


def request(**changes: Any) -> Request:
    asked = Request(
        operation_id="new-operation",
        publication_key=IDENTITY.publication_key(KEY),
        order_key="2026-01-03",
        allow_older=False,
    )
    return replace(asked, **changes)


def admitted(of: AuthorityRecord | None, asked: Request | None = None) -> Any:
    return admit_request(observation(stored(of) if of else None, LIVE, LIVE), "orders", asked or request())


def test_an_empty_slot_is_free() -> None:
    assert admitted(None) == Slot(None, generation(OLD.uuid), 10)


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.COMPLETED_RETAINING, Phase.ABORTED])
def test_an_ended_operation_frees_the_slot(phase: Phase) -> None:
    assert isinstance(admitted(in_phase(phase)), Slot)


def test_a_committed_operation_is_finished_first() -> None:
    assert isinstance(admitted(in_phase(Phase.COMMITTED)), FinishFirst)


@pytest.mark.parametrize("phase", [Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL])
def test_a_dispatched_operation_holds_the_target_and_is_named(phase: Phase) -> None:
    stop = admitted(in_phase(phase))
    assert stop.code is Code.TARGET_BUSY
    assert stop.category is Category.CONFLICT
    assert stop.facts["phase"] == phase.value
    assert stop.facts["since"] == in_phase(phase).changed_at
    assert "run run" in stop.message


def test_a_prepared_operation_of_another_publication_holds_the_target() -> None:
    assert admitted(record(), request(publication_key="other")).code is Code.TARGET_BUSY


def test_a_later_run_of_the_same_publication_supersedes_what_was_never_dispatched() -> None:
    slot = admitted(record())
    assert isinstance(slot, Slot)
    assert slot.stored == stored(record())


def test_an_older_run_never_supersedes_a_newer_one() -> None:
    assert admitted(record(), request(order_key="2026-01-01")).code is Code.OLDER_THAN_PUBLISHED


def test_older_than_published_is_refused_unless_allowed() -> None:
    done = in_phase(Phase.COMPLETED)
    assert done.published_order_key == "2026-01-02"
    assert admitted(done, request(order_key="2026-01-01")).code is Code.OLDER_THAN_PUBLISHED
    assert isinstance(admitted(done, request(order_key="2026-01-01", allow_older=True)), Slot)
    assert isinstance(admitted(done, request(order_key="2026-01-02")), Slot)
    assert isinstance(admitted(done, request(order_key=None)), Slot)


def test_the_own_prepared_operation_is_resumed() -> None:
    assert admitted(record(), request(operation_id=MINE)) == Resume(stored(record()))


@pytest.mark.parametrize("phase", [p for p in REPLICATED_PHASES if p is not Phase.PREPARED])
def test_the_own_operation_from_dispatch_on_is_never_staged_again(phase: Phase) -> None:
    stop = admitted(in_phase(phase), request(operation_id=MINE))
    assert stop.code is Code.IDENTITY_REUSED


def test_an_operation_in_the_settled_list_is_never_staged_again() -> None:
    later = record(operation_id="later", settled=in_phase(Phase.COMPLETED).remembered("later"))
    assert admitted(later, request(operation_id=MINE)).code is Code.IDENTITY_REUSED


# Independent tables, and a change between the two modes.


OWN = tuple({"orders": own_table(own_uuid(n, "a"))} for n in (1, 2))


def independent(of: AuthorityRecord | None, asked: Request | None = None) -> Any:
    seen = independently(observation(stored(of) if of else None, *OWN))
    return admit_request(seen, "orders", asked or request())


def test_independent_tables_are_one_generation_though_each_has_its_own_uuid() -> None:
    assert target(independently(observation(None, *OWN))) is None
    assert independent(None) == Slot(None, own_tables("a"), 10)
    other = {"orders": own_table(own_uuid(2, "a"), schema_digest="x")}
    stop = target(independently(observation(None, OWN[0], other)))
    assert stop is not None
    assert stop.code is Code.TARGET_NOT_UNIFORM


@pytest.mark.parametrize("phase", sorted(UNSENT_PHASES))
def test_the_own_operation_is_taken_over_while_it_is_staged(phase: Phase) -> None:
    of = independent_in_phase(phase)
    assert independent(of, request(operation_id=MINE)) == Resume(stored(of))


@pytest.mark.parametrize("phase", sorted(STAGE_PHASES))
def test_an_operation_that_is_being_staged_holds_the_target_against_other_publications(phase: Phase) -> None:
    of = independent_in_phase(phase)
    assert independent(of, request(publication_key="other")).code is Code.TARGET_BUSY
    assert isinstance(independent(of), Slot)
    assert independent(of, request(order_key="2026-01-01")).code is Code.OLDER_THAN_PUBLISHED


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("mine", [True, False])
def test_external_starts_when_the_internal_record_is_over_and_nothing_is_kept(
    phase: Phase, mine: bool
) -> None:
    if phase in STAGE_PHASES:
        return
    of = replace(in_phase(phase), retained=())
    found = independent(of, request(**({"operation_id": MINE} if mine else {})))
    if of.ended and not mine:
        assert isinstance(found, Slot)
        assert found.live == own_tables("a")
    elif of.ended:
        assert found.code is Code.IDENTITY_REUSED
    else:
        assert found.code is Code.REPLICATION_MODE_MISMATCH
        assert "'internal'" in found.message


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("mine", [True, False])
def test_internal_starts_when_the_external_record_is_over_and_nothing_is_kept(
    phase: Phase, mine: bool
) -> None:
    of = replace(independent_in_phase(phase), retained=())
    found = admitted(of, request(**({"operation_id": MINE} if mine else {})))
    if of.ended and not mine:
        assert isinstance(found, Slot)
        assert found.live == generation(OLD.uuid)
    elif of.ended:
        assert found.code is Code.IDENTITY_REUSED
    else:
        assert found.code is Code.REPLICATION_MODE_MISMATCH
        assert "'external'" in found.message


def test_the_mode_is_not_changed_while_a_table_is_kept() -> None:
    for found in (
        independent(in_phase(Phase.COMPLETED_RETAINING)),
        independent(in_phase(Phase.ABORTED)),
        admitted(independent_in_phase(Phase.COMPLETED_RETAINING)),
        admitted(independent_in_phase(Phase.ABORTED)),
    ):
        assert found.code is Code.REPLICATION_MODE_MISMATCH
        assert found.facts["retained"]
        assert "cleanup" in found.next_action


# What moved while staging.


SLOT = Slot(stored(record()), generation(OLD.uuid), 10)


def test_nothing_moved() -> None:
    assert moved_since(observation(stored(record()), PENDING, PENDING), "orders", SLOT) is None


@pytest.mark.parametrize(
    "found",
    [
        None,
        stored(record(fence_token="0" * 32), version=6),
        stored(record(operation_id="other"), version=6),
        stored(in_phase(Phase.DISPATCHING), version=6),
    ],
    ids=["record gone", "staged anew", "another operation", "dispatched"],
)
def test_a_record_that_moved_while_staging(found: StoredRecord | None) -> None:
    stop = moved_since(observation(found, PENDING, PENDING), "orders", SLOT)
    assert stop is not None
    assert stop.code is Code.TARGET_MOVED


@pytest.mark.parametrize("of", [record(), in_phase(Phase.COMPLETED_RETAINING)])
def test_a_record_that_was_only_cleaned_up_meanwhile_has_not_moved(of: AuthorityRecord) -> None:
    slot = Slot(stored(of), generation(OLD.uuid), 10)
    found = stored(replace(of, retained=()), version=7, write_id="w7")
    assert moved_since(observation(found, PENDING, PENDING), "orders", slot) is None


@pytest.mark.parametrize(
    "live",
    [FOREIGN, replace(OLD, schema_digest="migrated"), None],
    ids=["replaced", "migrated", "dropped"],
)
def test_a_live_table_that_moved_on_one_replica_while_staging(live: Any) -> None:
    shown = {key: value for key, value in {"orders": live}.items() if value is not None}
    stop = moved_since(observation(stored(record()), LIVE, shown), "orders", SLOT)
    assert stop is not None
    assert stop.code is Code.TARGET_MOVED
    assert stop.category is Category.REFUSED
