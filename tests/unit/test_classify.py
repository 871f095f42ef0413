"""The reconciliation table: what catalogs and queue prove together, and in which order they count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication.classify import (
    ReplicaState,
    StoredReceipt,
    Verdict,
    judge,
    replica_state,
)
from airflow_provider_dpone.publication.facts import TableFacts
from airflow_provider_dpone.publication.queue import HostRow, HostStatus, Running, Terminal
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Category, Code
from tests.unit.builders import (
    ABSENT,
    CLEANED,
    COMMITTED,
    ENTRY,
    FOREIGN_TARGET,
    NEW,
    OLD,
    PENDING,
    TARGET_GONE,
    in_phase,
    observation,
    query_digest,
    receipt_of,
    replication,
    stored,
)

Tables = Mapping[str, TableFacts | None]

EXISTING = in_phase(Phase.BOUND)
FIRST = in_phase(Phase.BOUND, predecessor=None)
FIRST_PENDING: Tables = {"orders": None, "orders__dpone_1": NEW}


def running(of: Any = EXISTING) -> Running:
    return Running(ENTRY, query_digest(of), {"s1/r1": HostRow(HostStatus.IN_PROGRESS)})


def terminal(sequence: int = 5, **codes: int) -> Terminal:
    return Terminal(sequence, ENTRY, query_digest(EXISTING), receipt_of(EXISTING, **codes))


def verdict(evidence: Any, *shown: Tables | None, of: Any = EXISTING) -> Verdict:
    return judge(of, observation(stored(of), *shown), evidence).verdict


@pytest.mark.parametrize(
    ("of", "shown", "expected"),
    [
        (EXISTING, PENDING, ReplicaState.PENDING),
        (EXISTING, COMMITTED, ReplicaState.COMMITTED),
        (EXISTING, CLEANED, ReplicaState.CLEANED),
        (EXISTING, FOREIGN_TARGET, ReplicaState.UNKNOWN),
        (EXISTING, TARGET_GONE, ReplicaState.UNKNOWN),
        (EXISTING, ABSENT, ReplicaState.UNKNOWN),
        (EXISTING, {"orders": OLD, "orders__dpone_1": None}, ReplicaState.UNKNOWN),
        (EXISTING, {"orders": OLD, "orders__dpone_1": OLD}, ReplicaState.UNKNOWN),
        (EXISTING, {"orders": NEW, "orders__dpone_1": NEW}, ReplicaState.UNKNOWN),
        (FIRST, FIRST_PENDING, ReplicaState.PENDING),
        (FIRST, CLEANED, ReplicaState.COMMITTED),
        (FIRST, COMMITTED, ReplicaState.UNKNOWN),
        (FIRST, ABSENT, ReplicaState.UNKNOWN),
        (FIRST, PENDING, ReplicaState.UNKNOWN),
    ],
)
def test_each_mapping_of_one_replica(of: Any, shown: Tables, expected: ReplicaState) -> None:
    assert replica_state(of, observation(stored(of), shown, shown), "s1/r1") is expected


@pytest.mark.parametrize(
    "drift",
    [
        {"schema_digest": "0" * 64},
        {"engine_full": "ReplicatedMergeTree ORDER BY other"},
        {"replication": replication(uuid="elsewhere")},
        {"replication": replication(uuid=NEW.uuid, zookeeper_name="auxiliary")},
    ],
    ids=["schema", "engine", "keeper path", "keeper name"],
)
def test_the_right_uuid_with_another_identity_is_unknown(drift: Mapping[str, Any]) -> None:
    shown = {"orders": replace(NEW, **drift), "orders__dpone_1": OLD}
    assert (
        replica_state(EXISTING, observation(stored(EXISTING), shown, shown), "s1/r1") is ReplicaState.UNKNOWN
    )


def test_names_prove_nothing_only_uuids_do() -> None:
    swapped_by_name: Tables = {"orders": replace(OLD, uuid="x"), "orders__dpone_1": NEW}
    assert verdict(terminal(), swapped_by_name, COMMITTED) is Verdict.CONTRADICTION


def test_absence_is_a_fact_only_where_the_database_is_seen() -> None:
    seen = observation(stored(EXISTING), CLEANED, CLEANED)
    blind = {a: replace(f, sees_database=False) for a, f in seen.replicas.items()}
    assert replica_state(EXISTING, replace(seen, replicas=blind), "s1/r1") is ReplicaState.NOT_OBSERVED


@pytest.mark.parametrize("codes", [{}, {"r2": 60}], ids=["success", "failure"])
def test_all_committed_after_a_terminal_entry_is_committed_whatever_the_code(codes: dict[str, int]) -> None:
    assert verdict(terminal(**codes), COMMITTED, COMMITTED) is Verdict.COMMITTED


def test_all_committed_while_the_entry_is_active_is_not_committed() -> None:
    assert verdict(running(), COMMITTED, COMMITTED) is Verdict.IN_PROGRESS


def test_all_pending_while_the_entry_is_active_is_in_progress() -> None:
    assert verdict(running(), PENDING, PENDING) is Verdict.IN_PROGRESS


def test_a_mix_while_the_entry_is_active_is_partial_in_progress() -> None:
    judged = judge(EXISTING, observation(stored(EXISTING), COMMITTED, PENDING), running())
    assert judged.verdict is Verdict.PARTIAL_IN_PROGRESS
    assert judged.stop is not None
    assert judged.stop.category is Category.IN_PROGRESS
    assert "s1/r2 will follow" in judged.stop.message


@pytest.mark.parametrize("codes", [{}, {"r2": 60}], ids=["queue says success", "queue says failure"])
def test_a_mix_after_a_terminal_entry_is_partial_terminal(codes: dict[str, int]) -> None:
    judged = judge(EXISTING, observation(stored(EXISTING), COMMITTED, PENDING), terminal(**codes))
    assert judged.verdict is Verdict.PARTIAL_TERMINAL
    assert judged.stop is not None
    assert judged.stop.category is Category.PARTIAL_TERMINAL
    assert judged.stop.replicas["s1/r2"]["state"] == "pending"


def test_all_pending_after_a_terminal_failure_fails_closed() -> None:
    assert verdict(terminal(r1=60, r2=60), PENDING, PENDING) is Verdict.FAILED_EVERYWHERE


@pytest.mark.parametrize("codes", [{}, {"r2": 60}], ids=["everywhere", "on one replica"])
def test_all_pending_though_the_queue_says_success_holds(codes: dict[str, int]) -> None:
    judged = judge(EXISTING, observation(stored(EXISTING), PENDING, PENDING), terminal(**codes))
    assert judged.verdict is Verdict.SWAPPED_BACK
    assert judged.stop is not None
    assert judged.stop.category is Category.CONTRADICTION


@pytest.mark.parametrize("evidence", [running(), terminal()], ids=["running", "terminal"])
def test_a_foreign_table_dominates(evidence: Any) -> None:
    judged = judge(EXISTING, observation(stored(EXISTING), COMMITTED, FOREIGN_TARGET), evidence)
    assert judged.verdict is Verdict.CONTRADICTION
    assert judged.stop is not None
    assert judged.stop.code is Code.GENERATION_UNKNOWN


@pytest.mark.parametrize("evidence", [running(), terminal()], ids=["running", "terminal"])
def test_a_replica_that_cannot_be_read_is_not_observed_and_never_skipped(evidence: Any) -> None:
    judged = judge(EXISTING, observation(stored(EXISTING), COMMITTED, None), evidence)
    assert judged.verdict is Verdict.NOT_OBSERVED
    assert judged.stop is not None
    assert judged.stop.category is Category.NOT_OBSERVED


def test_a_target_missing_after_a_restart_is_no_cleanup() -> None:
    assert verdict(terminal(), COMMITTED, TARGET_GONE) is Verdict.CONTRADICTION


def test_a_predecessor_that_is_gone_before_any_cleanup_is_a_contradiction() -> None:
    assert verdict(terminal(), COMMITTED, CLEANED) is Verdict.CONTRADICTION


def test_a_changed_member_list_is_drift() -> None:
    judged = judge(EXISTING, observation(stored(EXISTING), COMMITTED, COMMITTED, COMMITTED), terminal())
    assert judged.stop is not None
    assert judged.stop.code is Code.INVENTORY_DRIFT


def test_another_server_in_a_replicas_place_is_drift() -> None:
    seen = observation(stored(EXISTING), COMMITTED, COMMITTED)
    replaced = {a: replace(f, server="another") if a == "s1/r2" else f for a, f in seen.replicas.items()}
    judged = judge(EXISTING, replace(seen, replicas=replaced), terminal())
    assert judged.stop is not None
    assert judged.stop.code is Code.INVENTORY_DRIFT
    assert "s1/r2" in judged.stop.message


@pytest.mark.parametrize(
    "evidence", [terminal(sequence=10), terminal(sequence=11), StoredReceipt(10, receipt_of(EXISTING))]
)
def test_catalogs_read_before_or_with_the_terminal_receipt_are_never_judged(evidence: Any) -> None:
    with pytest.raises(ValueError, match="strictly after"):
        judge(EXISTING, observation(stored(EXISTING), COMMITTED, COMMITTED, sequence=10), evidence)
