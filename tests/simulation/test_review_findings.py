"""Rules that a review of the cluster refresh asked for, each as one short history of the real route code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.errors import ServerError
from airflow_provider_dpone.publication.facts import ControlFacts, Observation
from airflow_provider_dpone.publication.identity import TaskIdentity
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.receipt import PublicationReceipt, StageReceipt
from airflow_provider_dpone.publication.record import MAX_SETTLED, Owner, Phase, encode
from airflow_provider_dpone.publication.statement import Exchange, Rename
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanupRequest,
    PublishRequest,
    StageRequest,
    cleanup,
    publish,
    stage,
)
from airflow_provider_dpone.routes.ports import Attempt, Loaded, Ports, StagePlan
from tests.simulation.ports import KEY, EvidencePort, Fault, Killed, SimEvidence, SimStaging, Worker
from tests.simulation.run import OLD, SITE, WAITS
from tests.simulation.world import World


def no_fault(_: str) -> Fault:
    return Fault.NONE


def once(point: str, fault: Fault, *, skip: int = 0) -> Callable[[str], Fault]:
    """``fault`` at the call ``point`` that comes after ``skip`` others of that name; none elsewhere."""
    left = [skip]

    def choose(name: str) -> Fault:
        if name != point:
            return Fault.NONE
        left[0] -= 1
        return fault if left[0] == -1 else Fault.NONE

    return choose


@dataclass
class Site:
    """One target, whose runs are called one after the other."""

    world: World = field(default_factory=World)
    trail: SimEvidence = field(default_factory=SimEvidence)
    nonces: int = 0

    def __post_init__(self) -> None:
        self.world.seed("orders", OLD)

    def worker(self, choose: Callable[[str], Fault] = no_fault, kind: type[Worker] = Worker) -> Any:
        return kind(self.world, self.trail, choose, self._nonce)

    def ports(self, worker: Worker, **changes: Any) -> Ports:
        evidence = EvidencePort(worker)
        return replace(Ports(worker, worker, worker, evidence, worker, worker, worker), **changes)

    def stage(
        self,
        run: int,
        *,
        worker: Worker | None = None,
        staging: Callable[[Worker], SimStaging] | None = None,
        retention: int = 0,
    ) -> StageReceipt:
        worker = worker or self.worker()
        request = StageRequest(
            TaskIdentity("airflow", "dag", f"run{run}", "stage", -1, "0"),
            Owner("dag", f"run{run}", "stage", -1),
            order_key=f"{run:04d}",
            retention=retention,
        )
        candidate = staging(worker) if staging else SimStaging(worker, 10 + run, f"new{run}")
        return stage(self.ports(worker), candidate, SITE, request, WAITS)

    def publish(self, staged: StageReceipt, *, worker: Worker | None = None, **changes: Any) -> Any:
        worker = worker or self.worker()
        return publish(self.ports(worker, **changes), SITE, PublishRequest(staged.operation_id), WAITS)

    def cleanup(self, staged: StageReceipt) -> Any:
        request = CleanupRequest(staged.operation_id, staged.candidate)
        return cleanup(self.ports(self.worker()), SITE, request, WAITS)

    def refresh(self, run: int, *, retention: int = 0) -> StageReceipt:
        staged = self.stage(run, retention=retention)
        self.publish(staged)
        return staged

    def swaps(self) -> int:
        return sum(isinstance(statement, Exchange | Rename) for _, statement in self.world.sent)

    def phase(self) -> Phase:
        stored = self.world.stored(KEY)
        assert stored is not None
        return stored.record.phase

    def uuids(self) -> set[str]:
        return {table.uuid for replica in self.world.replicas.values() for table in replica.tables.values()}

    def _nonce(self) -> int:
        self.nonces += 1
        return self.nonces


# A swap is sent once.


class Interrupted(BaseException):
    """What a signal handler raises, such as a task's time limit."""


@contextmanager
def a_signal_when_the_send_has_returned() -> Iterator[None]:
    """Raise where a signal may: at the first call after the statement has left."""
    getter = Permit.used.fget  # type: ignore[attr-defined]
    outer = sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and frame.f_code is getter.__code__:
            sys.settrace(outer)
            raise Interrupted
        return None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(outer)


def test_a_signal_after_the_send_never_makes_the_permit_look_unused() -> None:
    site = Site()
    staged = site.stage(0)
    # The statement has left and is still on its way: its reply is lost.
    with pytest.raises(Interrupted), a_signal_when_the_send_has_returned():
        site.publish(staged, worker=site.worker(once("send", Fault.LATE)))
    assert site.swaps() == 1
    with suppress(Stopped):
        site.publish(staged)
    site.world.heal()
    assert site.swaps() == 1, "the swap was sent again"
    assert {r.tables["orders"].uuid for r in site.world.replicas.values()} == {staged.candidate_uuid}


# A run is not undone by the end of the one before.


@dataclass(slots=True)
class SlowStaging(SimStaging):
    """A load during which something else happens."""

    meanwhile: Callable[[], object] = lambda: None

    def load(self, plan: StagePlan, attempt: Attempt) -> Loaded:
        loaded = SimStaging.load(self, plan, attempt)
        self.meanwhile()
        return loaded


def test_the_last_runs_cleanup_does_not_make_a_running_stage_fail() -> None:
    site = Site()
    first = site.refresh(0, retention=100)
    site.cleanup(first)
    assert site.phase() is Phase.COMPLETED_RETAINING

    def due() -> None:
        site.world.now += 200
        site.cleanup(first)

    staged = site.stage(1, staging=lambda worker: SlowStaging(worker, 11, "new1", meanwhile=due))
    assert site.publish(staged).state is Phase.COMMITTED


def test_a_kept_predecessor_that_is_due_is_dropped_by_the_next_run() -> None:
    site = Site()
    site.refresh(0, retention=100)
    site.world.now += 1_000
    site.stage(1, retention=100)
    assert OLD.uuid not in site.uuids()


def test_one_cleanup_drops_all_that_is_due() -> None:
    site = Site()
    for run in range(5):
        last = site.refresh(run, retention=1_000)
    site.world.now += 5_000
    site.cleanup(last)
    assert site.phase() is Phase.COMPLETED


# A target is not held for ever without need.


def test_a_finished_swap_whose_publish_task_is_gone_does_not_block_the_next_run() -> None:
    """The stage task was cleared while its publish task died: nothing can resume the first operation."""
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))
    site.world.work_all()
    assert all(r.tables["orders"].uuid == staged.candidate_uuid for r in site.world.replicas.values())
    site.stage(1)


class Refusing:
    """A server that refuses a statement before it queues it."""

    def once(self, sql: str, *, before_send: Callable[[], None], **_: Any) -> Any:
        before_send()
        raise ServerError(497, "ACCESS_DENIED", "Code: 497. DB::Exception: dpone: Not enough privileges.")


def test_a_swap_that_was_refused_before_it_was_queued_can_be_sent_when_the_cause_is_gone() -> None:
    site = Site()
    staged = site.stage(0)

    @dataclass
    class Queue:
        worker: Worker
        real: DdlQueue

        def send(self, *args: Any) -> Any:
            return self.real.send(*args)

        def read(self, token: str) -> Any:
            return self.worker.read(token)

    worker = site.worker()
    with pytest.raises(Stopped):
        site.publish(staged, worker=worker, queue=Queue(worker, DdlQueue(Refusing())))  # type: ignore[arg-type]
    assert site.publish(staged).state is Phase.COMMITTED


def test_one_failed_read_of_the_queue_does_not_end_the_wait_for_the_proof() -> None:
    site = Site()
    staged = site.stage(0)
    receipt = site.publish(staged, worker=site.worker(once("read queue", Fault.REFUSED)))
    assert receipt.state is Phase.COMMITTED


def test_one_failed_look_at_the_replicas_does_not_end_the_wait_for_the_proof() -> None:
    site = Site()
    staged = site.stage(0)
    # The first two looks come before the dispatch.
    receipt = site.publish(staged, worker=site.worker(once("observe", Fault.REFUSED, skip=2)))
    assert receipt.state is Phase.COMMITTED


@dataclass(slots=True)
class Lagging(Worker):
    """Replica 2 reads from a follower of Keeper that is one look behind."""

    seen: ControlFacts | None = None

    def observe(self, tables: Collection[str]) -> Observation:
        now = Worker.observe(self, tables)
        facts = now.replicas["s1/r2"]
        before, self.seen = self.seen, facts.control
        if before is None:
            return now
        return replace(now, replicas={**now.replicas, "s1/r2": replace(facts, control=before)})


def test_a_replica_that_lags_one_look_behind_does_not_make_the_stage_fail() -> None:
    site = Site()
    site.refresh(0)
    # The first thing that this stage does is to free the slot; its own write is not yet seen everywhere.
    site.stage(1, worker=site.worker(kind=Lagging))


# What is said is true.


def test_rows_that_came_into_the_live_table_after_staging_are_warned_of() -> None:
    site = Site()
    staged = site.stage(0)
    for replica in site.world.replicas.values():
        replica.tables["orders"] = replace(replica.tables["orders"], rows=OLD.rows + 5)
    receipt = site.publish(staged)
    assert isinstance(receipt, PublicationReceipt)
    assert receipt.warnings, "five rows left with the predecessor, and nobody was told"


def test_an_operation_that_is_no_longer_remembered_is_not_called_unpublished() -> None:
    site = Site()
    first = site.refresh(0)
    for run in range(1, MAX_SETTLED + 2):
        site.refresh(run)
    said = ""
    try:
        site.publish(first)
    except Stopped as stopped:
        said = stopped.stop.message
    assert "not published" not in said


def test_a_replica_that_was_added_after_the_dispatch_is_named_as_drift() -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))
    world = site.world
    members = (*world.inventory.members, Member(1, 3, "host3", 9000, True))

    @dataclass(slots=True)
    class Grown(Worker):
        @property
        def inventory(self) -> Inventory:
            return Inventory("analytics", members)

        def observe(self, tables: Collection[str]) -> Observation:
            return replace(Worker.observe(self, tables), inventory=self.inventory)

    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=site.worker(kind=Grown))
    assert caught.value.stop.code is Code.INVENTORY_DRIFT


def test_a_control_table_that_one_replica_lacks_is_not_called_nothing_staged() -> None:
    """The catalog reads no record at all where a replica has no control table."""
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))

    @dataclass(slots=True)
    class Without(Worker):
        def observe(self, tables: Collection[str]) -> Observation:
            now = Worker.observe(self, tables)
            bare = {
                alias: replace(
                    facts,
                    control=ControlFacts(
                        facts.control.structure if alias == "s1/r1" else None, None, None, None
                    ),
                )
                for alias, facts in now.replicas.items()
            }
            return replace(now, replicas=bare, record=None)

    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=site.worker(kind=Without))
    assert caught.value.stop.code is Code.CONTROL_TABLE_MISSING


def test_a_publication_that_somebody_else_proved_and_followed_is_answered_and_not_called_unpublished() -> (
    None
):
    """While a publish task waits, the next run's stage proves its swap, frees the slot and takes it."""
    site = Site()
    staged = site.stage(0)
    done: list[object] = []

    @dataclass(slots=True)
    class Waiting(Worker):
        def read(self, token: str) -> Any:
            if not done:
                done.append(True)
                site.world.work_all()
                site.stage(1)
            return Worker.read(self, token)

    receipt = site.publish(staged, worker=site.worker(kind=Waiting))
    assert receipt.state in (Phase.COMPLETED, Phase.COMPLETED_RETAINING, Phase.COMMITTED)
    assert not receipt.replayed


def test_a_publication_that_was_ended_by_somebody_is_seen_though_its_entry_is_not() -> None:
    """The entry was forgotten by the queue; a person resolved the operation while its task waits."""
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))
    site.world.work_all()
    site.world.prune()
    resolved: list[object] = []

    @dataclass(slots=True)
    class Waiting(Worker):
        def sleep(self, seconds: float) -> None:
            Worker.sleep(self, seconds)
            if not resolved:
                resolved.append(True)
                stored = site.world.stored(KEY)
                assert stored is not None
                moved = stored.record.moved(phase=Phase.ABORTED)
                site.world.swap_row((stored.write_id, stored.version), encode(moved, "by hand"))

    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=site.worker(kind=Waiting))
    assert caught.value.stop.code is Code.SUPERSEDED
