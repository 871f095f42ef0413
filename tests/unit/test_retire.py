"""A replica that is gone for ever: what must be true before the others may stand for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explanation import Way
from airflow_provider_dpone.publication.facts import Observation, TableFacts
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.queue import (
    Contradictory,
    HostRow,
    HostStatus,
    NotSeen,
    QueueState,
    Running,
    Terminal,
    read_queue,
)
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase
from airflow_provider_dpone.publication.retire import (
    already_retired,
    missing_replicas,
    not_retirable,
    without,
)
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit.builders import (
    COMMITTED,
    ENTRY,
    FOREIGN_TARGET,
    PENDING,
    in_phase,
    inventory,
    observation,
    queue_row,
    replication,
    stored,
    swap,
)

GONE = ("s1/r2",)


def registered(tables: Mapping[str, TableFacts | None], **changes: Any) -> dict[str, TableFacts | None]:
    """The tables with two replicas in Keeper, unless changed."""
    return {
        name: table and replace(table, replication=replication(2, table.uuid, **changes))
        for name, table in tables.items()
    }


def left_of(of: AuthorityRecord, *shown: Mapping[str, TableFacts | None]) -> Observation:
    """A look at the cluster without its second replica: the third one is numbered 2 now."""
    members = inventory(3).members
    now = Inventory("analytics", (members[0], replace(members[2], replica=2)))
    seen = observation(stored(of), *shown)
    servers = {"s1/r1": "server-s1/r1", "s1/r2": "server-s1/r3"}
    replicas = {
        alias: replace(facts, server=servers[alias], inventory_digest=now.digest)
        for alias, facts in seen.replicas.items()
    }
    return replace(seen, inventory=now, replicas=replicas)


def retire(
    of: AuthorityRecord, seen: Observation, queue: QueueState | None = None, gone: tuple[str, ...] = GONE
) -> AuthorityRecord | Stop:
    left = without(of, seen, gone)
    if isinstance(left, Stop):
        return left
    return not_retirable(stored(of), left, seen, queue) or left


OLD_LEFT, NEW_LEFT = registered(PENDING), registered(COMMITTED)


@pytest.mark.parametrize("shown", [OLD_LEFT, NEW_LEFT], ids=["old", "new"])
@pytest.mark.parametrize("phase", [Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL])
def test_where_the_others_prove_one_generation_they_stand_for_all(phase: Phase, shown: Any) -> None:
    of = in_phase(phase, replicas=3)
    left = retire(of, left_of(of, shown, shown), None if phase is Phase.TERMINAL else NotSeen())
    assert isinstance(left, AuthorityRecord)
    assert left.replicas == ("s1/r1", "s1/r2")
    assert left.servers == ("server-s1/r1", "server-s1/r3")
    assert [(r.alias, r.server) for r in left.retired] == [("s1/r2", "server-s1/r2")]
    assert left.phase is phase
    if phase is Phase.TERMINAL:
        assert left.publication is not None
        assert [host.alias for host in left.publication.receipt or ()] == ["s1/r1", "s1/r2"]


def test_every_condition_that_is_missing_is_named_and_retires_nobody() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    running = Running(ENTRY, "d", {"s1/r2": HostRow(HostStatus.IN_PROGRESS)})
    cases: list[tuple[Stop | AuthorityRecord, str]] = [
        (retire(of, left_of(of, OLD_LEFT, OLD_LEFT), NotSeen(), ("s1/r7",)), "not among the admitted"),
        (retire(of, left_of(of, OLD_LEFT, OLD_LEFT), NotSeen(), ("s1/r3",)), "nobody called it gone"),
        (retire(of, left_of(of, OLD_LEFT, OLD_LEFT), running), "have not ended the statement"),
        (retire(of, left_of(of, OLD_LEFT, NEW_LEFT), NotSeen()), "different generations"),
        (retire(of, left_of(of, registered(FOREIGN_TARGET), OLD_LEFT), NotSeen()), "neither generation"),
        (retire(of, left_of(of, registered(PENDING, total_replicas=3), OLD_LEFT), NotSeen()), "DROP REPLICA"),
        (
            retire(of, left_of(of, registered(PENDING, active_replicas=1), OLD_LEFT), NotSeen()),
            "1 of them active",
        ),
        (retire(of, left_of(of, registered(PENDING, keeper_error=True), OLD_LEFT), NotSeen()), "Keeper"),
        (retire(of, left_of(of, registered(PENDING, is_readonly=True), OLD_LEFT), NotSeen()), "read-only"),
        (retire(of, observation(stored(of), OLD_LEFT, OLD_LEFT, OLD_LEFT), NotSeen()), "still lists s1/r2"),
    ]
    for found, words in cases:
        assert isinstance(found, Stop), words
        assert words in found.message


def test_a_replica_that_is_listed_and_away_is_not_gone() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    seen = observation(stored(of), OLD_LEFT, None, OLD_LEFT)
    found = retire(of, seen, NotSeen())
    assert isinstance(found, Stop)
    assert "lists s1/r2" in found.message
    assert missing_replicas(of, seen) == ()


def test_another_server_in_the_place_of_the_one_that_is_gone_is_no_survivor() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    seen = left_of(of, OLD_LEFT, OLD_LEFT)
    replicas = {**seen.replicas, "s1/r2": replace(seen.replicas["s1/r2"], server="server-new")}
    found = retire(of, replace(seen, replicas=replicas), NotSeen(), ("s1/r2", "s1/r3"))
    assert isinstance(found, Stop)
    assert "not admitted with" in found.message


def test_a_replica_that_still_reads_the_old_definition_retires_nobody() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    seen = left_of(of, OLD_LEFT, OLD_LEFT)
    replicas = {**seen.replicas, "s1/r2": replace(seen.replicas["s1/r2"], inventory_digest="old")}
    found = retire(of, replace(seen, replicas=replicas), NotSeen())
    assert isinstance(found, Stop)
    assert "still lists other replicas" in found.message


def test_a_record_that_moved_meanwhile_retires_nobody() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    seen = left_of(of, OLD_LEFT, OLD_LEFT)
    found = retire(of, replace(seen, record=stored(of, version=6, write_id="w6")), NotSeen())
    assert isinstance(found, Stop)
    assert found.code is Code.CAS_CONFLICT


def test_the_same_command_again_goes_on() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    seen = left_of(of, OLD_LEFT, OLD_LEFT)
    left = retire(of, seen, NotSeen())
    assert isinstance(left, AuthorityRecord)
    assert not already_retired(of, seen, GONE)
    assert already_retired(left, seen, GONE)
    assert not already_retired(left, seen, ("s1/r1",))


def test_the_row_of_the_one_that_is_gone_is_no_longer_asked_and_no_other_strange_row_is_taken() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    seen = left_of(of, OLD_LEFT, OLD_LEFT)
    assert of.publication is not None
    rows = [queue_row(of, 1), queue_row(of, 2, status="Inactive", exception_code=None, exception_text=None)]
    rows.append(queue_row(of, 3, exception_code=60, exception_text="Code: 60"))

    def read(gone: int) -> QueueState:
        assert of.publication is not None
        return read_queue(
            rows,
            sequence=5,
            dispatch=of.publication,
            statement=swap(of),
            inventory=seen.inventory,
            gone=gone,
        )

    assert isinstance(read(0), Contradictory)
    found = read(1)
    assert isinstance(found, Terminal)
    assert [(host.alias, host.exception_code) for host in found.receipt] == [("s1/r1", 0), ("s1/r2", 60)]
    rows.append(queue_row(of, 4))
    assert isinstance(read(1), Contradictory)


def test_explain_names_the_replica_that_is_missing() -> None:
    of = in_phase(Phase.BOUND, replicas=3)
    told = explain(stored(of), left_of(of, OLD_LEFT, OLD_LEFT), NotSeen(), read_at=1)
    assert told.gone == GONE
    assert told.ways[0] is Way.RETIRE
