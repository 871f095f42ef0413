"""A lost control table is replaced while a worker from before sleeps on a permit, with faults at every call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from airflow_provider_dpone.publication.identity import candidate_name, candidate_parts, lost_name
from airflow_provider_dpone.publication.orphans import FoundTable
from airflow_provider_dpone.publication.recovery import Survey
from airflow_provider_dpone.publication.statement import Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import OperatorAction
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest
from airflow_provider_dpone.routes.recover import recover
from tests.simulation.ports import EvidencePort, Fault, Killed, SimEvidence, Worker
from tests.simulation.run import OLD
from tests.simulation.world import AUTHORITY, Table, World

CANDIDATE = candidate_name("orders", "0123456789abcdef")
NEW = Table("00000000-0000-4000-8000-00000000000b", 10, "new", "/clickhouse/tables/new/01")
SWAP = Exchange("analytics", "mart", "orders", CANDIDATE)
FIRST = Rename("analytics", "mart", CANDIDATE, "orders")


@dataclass
class Cluster:
    """A world without a control table; what it was is forgotten, and one worker still holds a permit."""

    first: bool = False
    world: World = field(default_factory=World)
    trail: SimEvidence = field(default_factory=SimEvidence)
    authority: str | None = None
    adopted: tuple[str, ...] = ()
    nonces: int = 0

    def __post_init__(self) -> None:
        if not self.first:
            self.world.seed("orders", OLD)
        self.world.seed(CANDIDATE, NEW)

    @property
    def sleeping(self) -> Statement:
        return FIRST if self.first else SWAP

    def wake(self) -> None:
        self.world.enqueue(self.sleeping, "dpone1:before")

    def live(self) -> list[str | None]:
        return [
            table.content if (table := replica.tables.get("orders")) else None
            for replica in self.world.replicas.values()
        ]

    def worker(self, choose: Callable[[str], Fault]) -> Worker:
        return Worker(self.world, self.trail, choose, self._nonce)

    def _nonce(self) -> int:
        self.nonces += 1
        return self.nonces


@dataclass
class SimLost:
    """The port onto the cluster. A replica that is away makes every look fail, as on real servers."""

    cluster: Cluster
    worker: Worker

    def survey(self) -> Survey:
        fault = self.worker.call("survey")
        world = self.cluster.world
        away = [alias for alias, replica in world.replicas.items() if not replica.up]
        if fault not in (Fault.NONE, Fault.KILL_AFTER) or away:
            raise Stopped(Stop(Code.SERVER_UNAVAILABLE, "survey: no answer"))
        found = Survey(
            cluster="analytics",
            replicas=tuple(world.replicas),
            authority_id=self.cluster.authority,
            tables=tuple(
                FoundTable(a, "mart", name, t.uuid, AUTHORITY if t is NEW else None, "op", 1, False, 0)
                for a, replica in world.replicas.items()
                for name, t in replica.tables.items()
                if t is NEW or candidate_parts(name)
            ),
            uuids={
                ("mart", name): {
                    a: r.tables[name].uuid for a, r in world.replicas.items() if name in r.tables
                }
                for replica in world.replicas.values()
                for name in replica.tables
            },
            queued=len(world.queue),
            unfinished=tuple(e.name for e in world.queue if {*e.hosts.values()} != {"finished"}),
            elsewhere=frozenset(),
            evidence=True,
        )
        self.worker.after(fault)
        return found

    def park(self, database: str, name: str) -> None:
        fault = self.worker.call("park")
        world = self.cluster.world
        if fault is Fault.REFUSED:
            raise Stopped(Stop(Code.SERVER_UNAVAILABLE, "park: no connection"))
        rename = Rename("analytics", database, name, lost_name(name))
        if fault is Fault.LATE:
            world.late.append(lambda: world.enqueue(rename, "dponeinit1:park"))
        elif fault is not Fault.UNSENT:
            world.enqueue(rename, "dponeinit1:park")
        self.worker.after(fault)
        for _ in range(5):
            self.worker.sleep(1)
            if all(r.up and name not in r.tables for r in world.replicas.values()):
                return
        raise Stopped(Stop(Code.NOT_RESOLVABLE, f"{name} is still there"))

    def create(self, adopted: tuple[str, ...]) -> str:
        fault = self.worker.call("create")
        if fault in (Fault.REFUSED, Fault.UNSENT):
            raise Stopped(Stop(Code.SERVER_UNAVAILABLE, "create: no answer"))
        if self.cluster.authority is None:
            self.cluster.authority, self.cluster.adopted = "n" * 32, adopted
        self.worker.after(fault)
        return self.cluster.authority


def run(cluster: Cluster, choose: Callable[[str], Fault]) -> None:
    worker = cluster.worker(choose)
    recover(SimLost(cluster, worker), EvidencePort(worker), worker, OperatorRequest("test"))


def settled(cluster: Cluster, where: str) -> None:
    """From the new authority on nothing moves, whoever wakes up."""
    assert cluster.authority is not None, where
    before = cluster.live()
    assert len(set(before)) == 1, where
    cluster.wake()
    cluster.world.heal()
    assert cluster.live() == before, where
    assert all(CANDIDATE not in replica.tables for replica in cluster.world.replicas.values()), where
    content = {t.content for r in cluster.world.replicas.values() for t in r.tables.values()}
    assert content == ({"new"} if cluster.first else {"old", "new"}), f"{where}: a generation is lost"


POINTS = 20


@pytest.mark.parametrize("first", [False, True], ids=["exchange", "rename"])
@pytest.mark.parametrize("paused", [False, True], ids=["at once", "one replica late"])
def test_a_worker_that_wakes_at_any_call_publishes_before_the_new_authority_or_never(
    first: bool, paused: bool
) -> None:
    for number in range(POINTS):
        cluster = Cluster(first)
        calls = [0]

        def wakes(_: str, calls: list[int] = calls, at: int = number, cluster: Cluster = cluster) -> Fault:
            if calls[0] == at:
                cluster.world.replicas["s1/r2"].paused = paused
                cluster.wake()
                if not paused or at % 2:
                    cluster.world.work_all()
            calls[0] += 1
            return Fault.NONE

        with suppress(Stopped):
            run(cluster, wakes)
        if cluster.authority is None:
            cluster.world.heal()
            run(cluster, lambda _: Fault.NONE)
        settled(cluster, f"woken at call {number}")


@pytest.mark.parametrize("first", [False, True], ids=["exchange", "rename"])
@pytest.mark.parametrize("wakes_first", [False, True], ids=["sleeps", "woke up"])
def test_any_fault_at_any_call_is_followed_by_the_same_command(first: bool, wakes_first: bool) -> None:
    for number in range(POINTS):
        for fault in Fault:
            cluster = Cluster(first)
            if wakes_first:
                cluster.wake()
                cluster.world.work_all()
            calls = [0]

            def choose(_: str, calls: list[int] = calls, at: int = number, fault: Fault = fault) -> Fault:
                calls[0] += 1
                return fault if calls[0] - 1 == at else Fault.NONE

            with suppress(Stopped, Killed):
                run(cluster, choose)
            cluster.world.heal()
            if cluster.authority is None:
                run(cluster, lambda _: Fault.NONE)
            settled(cluster, f"{fault} at call {number}")
            with pytest.raises(Stopped):
                run(cluster, lambda _: Fault.NONE)


def test_a_replica_that_is_away_recovers_nothing() -> None:
    cluster = Cluster()
    cluster.world.replicas["s1/r2"].up = False
    with pytest.raises(Stopped):
        run(cluster, lambda _: Fault.NONE)
    assert cluster.authority is None
    assert all(CANDIDATE in replica.tables for replica in cluster.world.replicas.values())


def test_the_reason_and_what_was_found_are_in_the_evidence_before_anything_is_parked() -> None:
    cluster = Cluster()
    with pytest.raises(Killed):
        run(cluster, lambda name: Fault.KILL_BEFORE if name == "park" else Fault.NONE)
    actions = [body for _, body in cluster.trail.entries if isinstance(body, OperatorAction)]
    assert len(actions) == len(cluster.trail.entries)
    assert {action.reason for action in actions} == {"test"}
    assert [action.step for action in actions] == [
        f"adopt authority {AUTHORITY}",
        f"park mart.{CANDIDATE}",
        "create the control table",
    ]


def test_without_parking_a_worker_that_wakes_would_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimLost, "park", lambda *_: None)
    monkeypatch.setattr("airflow_provider_dpone.routes.recover.not_recoverable_yet", lambda _: None)
    cluster = Cluster()
    run(cluster, lambda _: Fault.NONE)
    with pytest.raises(AssertionError):
        settled(cluster, "planted")
