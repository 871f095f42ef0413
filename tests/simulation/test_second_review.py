"""Second review: histories of the real route code that must not end as they do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.errors import ServerError
from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.facts import Observation, TableFacts
from airflow_provider_dpone.publication.identity import TaskIdentity
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.receipt import PublicationReceipt
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import PublishRequest, StageRequest, publish, stage
from airflow_provider_dpone.routes.ports import Reply
from tests.simulation.ports import KEY, Fault, Killed, SimStaging, Worker
from tests.simulation.run import OLD, SITE, WAITS
from tests.simulation.test_review_findings import Site, SlowStaging, once
from tests.simulation.world import Table, World

# 1. Kept tables that are all due, and no cleanup task.


def test_kept_tables_that_are_all_due_never_block_the_next_run() -> None:
    site = Site()
    with pytest.raises(Stopped) as caught:  # noqa: PT012 - which run it is does not matter
        for run in range(60):
            site.refresh(run, retention=10_000)
    assert caught.value.stop.code is Code.TOO_MANY_RETAINED
    site.world.now += 1_000_000
    site.stage(99, retention=10_000)


# 2. A record that grows beyond its bound after the swap was sent.


class LongEngine(World):
    def _table_facts(self, table: Table) -> TableFacts:
        return replace(World._table_facts(self, table), engine_full="E" * 1_500)


def test_a_record_that_was_prepared_never_outgrows_its_bound_later() -> None:
    site = Site(world=LongEngine())
    with pytest.raises(Stopped) as caught:  # noqa: PT012 - which run it is does not matter
        for run in range(38):
            site.refresh(run, retention=10_000)
    assert caught.value.stop.code is Code.RECORD_TOO_LARGE
    assert site.phase() in (Phase.COMMITTED, Phase.COMPLETED_RETAINING)
    site.world.now += 1_000_000
    site.stage(99)


# 3. Refused before the queue, and the stage task was cleared.


@dataclass
class RefusingQueue:
    worker: Worker

    def send(self, permit: Permit, statement: Any, token: str) -> Reply:
        permit.use(token)
        return Reply(answered=True, exception_code=497, name="ACCESS_DENIED", refused=True)

    def read(self, token: str) -> Any:
        return self.worker.read(token)


def test_a_refused_statement_does_not_hold_the_target_when_its_task_is_gone() -> None:
    site = Site()
    staged = site.stage(0)
    worker = site.worker()
    with pytest.raises(Stopped) as caught:
        site.publish(staged, worker=worker, queue=RefusingQueue(worker))
    assert caught.value.stop.code is Code.STATEMENT_REFUSED
    assert site.phase() is Phase.PREPARED
    site.stage(1)


# 4. A living publish task that another run's stage overtakes.


@dataclass(slots=True)
class Overtaken(Worker):
    """While this worker sleeps, the cluster works, and another run settles, ends and prepares."""

    meanwhile: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        Worker.sleep(self, seconds)
        act, self.meanwhile = self.meanwhile, lambda: None
        act()


def test_a_publication_that_another_run_settled_is_not_called_never_dispatched() -> None:
    site = Site()
    staged = site.stage(0)
    for replica in site.world.replicas.values():
        replica.paused = True

    def next_run() -> None:
        for replica in site.world.replicas.values():
            replica.paused = False
        site.world.work_all()
        site.stage(1)

    worker = site.worker(kind=Overtaken)
    worker.meanwhile = next_run
    said = None
    try:
        site.publish(staged, worker=worker)
    except Stopped as stopped:
        said = stopped.stop
    assert said is None, said


def test_a_receipt_is_not_called_replayed_by_the_task_that_sent_the_swap() -> None:
    site = Site()
    staged = site.stage(0)
    for replica in site.world.replicas.values():
        replica.paused = True

    def other() -> None:
        for replica in site.world.replicas.values():
            replica.paused = False
        site.world.work_all()
        # Another run's stage begins: it settles, and then its own plan fails.
        with suppress(Stopped):
            site.stage(1, worker=site.worker(once("plan", Fault.REFUSED)))

    worker = site.worker(kind=Overtaken)
    worker.meanwhile = other
    receipt = site.publish(staged, worker=worker)
    assert isinstance(receipt, PublicationReceipt)
    assert not receipt.replayed, "'nothing was sent now', says the receipt of the task that sent it"


# 5./6. What was checked is what goes live.


def restage(site: Site, run: int, *, rows: int, content: str) -> Any:
    """A zombie try of the same stage task, whose plan changed or that saw the candidate missing once."""
    worker = site.worker()
    request = StageRequest(
        TaskIdentity("airflow", "dag", f"run{run}", "stage", -1, "0"),
        Owner("dag", f"run{run}", "stage", -1),
        order_key=f"{run:04d}",
    )
    return stage(
        site.ports(worker), SimStaging(worker, rows, content, plan_digest="q" * 64), SITE, request, WAITS
    )


def test_a_candidate_that_was_not_the_one_checked_never_goes_live() -> None:
    """The first look of publish finds one replica a write behind; in the second, another candidate is prepared."""
    site = Site()
    staged = site.stage(0)

    @dataclass(slots=True)
    class Behind(Overtaken):
        looks: int = 0

        def observe(self, tables: Collection[str]) -> Observation:
            seen = Worker.observe(self, tables)
            self.looks += 1
            if self.looks != 1:
                return seen
            facts = seen.replicas["s1/r2"]
            control = replace(facts.control, write_id=None, version=None)
            return replace(seen, replicas={**seen.replicas, "s1/r2": replace(facts, control=control)})

    worker = site.worker(kind=Behind)
    worker.meanwhile = lambda: restage(site, 0, rows=99, content="unaudited")
    with suppress(Stopped):
        publish(
            site.ports(worker),
            SITE,
            PublishRequest(staged.operation_id, candidate_uuid=staged.candidate_uuid),
            WAITS,
        )
    site.world.work_all()
    live = {r.tables["orders"].content for r in site.world.replicas.values()}
    assert "unaudited" not in live


@dataclass(slots=True)
class RestagedAfterContent(Worker):
    then: Callable[[], object] = lambda: None

    def content(self, table: str) -> Any:
        check = Worker.content(self, table)
        act, self.then = self.then, lambda: None
        act()
        return check


def test_a_content_check_of_another_candidate_never_counts() -> None:
    site = Site()
    staged = site.stage(0)
    worker = site.worker(kind=RestagedAfterContent)

    def restaged_and_damaged() -> None:
        second = restage(site, 0, rows=10, content="new0")
        replica = site.world.replicas["s1/r2"]
        replica.tables[second.candidate] = replace(
            replica.tables[second.candidate], rows=3, content="damaged"
        )

    worker.then = restaged_and_damaged
    with suppress(Stopped):
        site.publish(staged, worker=worker)
    assert site.world.replicas["s1/r2"].tables["orders"].content != "damaged"


# 7. Another worker's swap, seen before the dispatch.


@dataclass(slots=True)
class SwapDuringLook(Worker):
    looks: int = 0
    swap: Callable[[], object] = lambda: None

    def observe(self, tables: Collection[str]) -> Observation:
        self.looks += 1
        if self.looks != 2:
            return Worker.observe(self, tables)
        before = Worker.observe(self, tables)
        self.swap()
        after = Worker.observe(self, tables)
        old = {a: replace(f, control=before.replicas[a].control) for a, f in after.replicas.items()}
        return replace(after, record=before.record, replicas=old)


def test_a_twin_that_swaps_during_the_look_is_not_called_different_content() -> None:
    site = Site()
    staged = site.stage(0)
    worker = site.worker(kind=SwapDuringLook)
    worker.swap = lambda: site.publish(staged)
    said = None
    try:
        site.publish(staged, worker=worker)
    except Stopped as stopped:
        said = stopped.stop
    assert said is None, said


# 8. Rows that came while the source was read.


def test_rows_that_came_into_the_live_table_during_the_load_are_warned_of() -> None:
    site = Site()

    def insert() -> None:
        for replica in site.world.replicas.values():
            replica.tables["orders"] = replace(replica.tables["orders"], rows=OLD.rows + 5)

    staged = site.stage(1, staging=lambda worker: SlowStaging(worker, 11, "new1", meanwhile=insert))
    receipt = site.publish(staged)
    assert isinstance(receipt, PublicationReceipt)
    assert receipt.warnings, "five rows left with the predecessor, and nobody was told"


# 9. One failed look after hours of loading.


@pytest.mark.parametrize("skip", [2, 3])
def test_one_failed_look_after_the_load_does_not_throw_the_load_away(skip: int) -> None:
    site = Site()
    site.stage(0, worker=site.worker(once("observe", Fault.REFUSED, skip=skip)))


def test_one_keeper_error_in_the_last_look_does_not_throw_the_load_away() -> None:
    site = Site()

    @dataclass(slots=True)
    class Hiccup(Worker):
        looks: int = 0

        def observe(self, tables: Collection[str]) -> Observation:
            seen = Worker.observe(self, tables)
            self.looks += 1
            if self.looks != 4:
                return seen
            facts = seen.replicas["s1/r2"]
            broken = {
                n: replace(t, replication=replace(t.replication, keeper_error=True, total_replicas=0))
                for n, t in facts.tables.items()
                if t.replication is not None
            }
            return replace(seen, replicas={**seen.replicas, "s1/r2": replace(facts, tables=broken)})

    site.stage(0, worker=site.worker(kind=Hiccup))


# 10. A stuck table of another run ends the wait for one's own.


def test_a_stuck_table_of_another_run_does_not_end_the_wait_for_ones_own() -> None:
    site = Site()
    site.refresh(0, retention=10)
    second = site.refresh(1, retention=1_000)
    site.world.now += 100
    foreign = Table("00000000-0000-4000-8000-0000000000ff", 1, "foreign", "/x")
    # A user's table under the first predecessor's name.
    stored = site.world.stored(KEY)
    assert stored is not None
    name = stored.record.retained[0].name
    site.world.replicas["s1/r2"].tables[name] = foreign
    done = site.cleanup(second)
    assert done.next_due is not None, "the task's own kept table is not due yet, and nobody waits for it"


# 11. Giving up what another worker dispatched.


@dataclass(slots=True)
class AlteredDuringLook(Worker):
    looks: int = 0
    first: Callable[[], object] = lambda: None

    def observe(self, tables: Collection[str]) -> Observation:
        self.looks += 1
        if self.looks != 2:
            return Worker.observe(self, tables)
        before = Worker.observe(self, tables)
        self.first()
        altered = {
            a: replace(
                f,
                tables={
                    n: replace(t, schema_digest="t" * 64) if n == "orders" else t for n, t in f.tables.items()
                },
            )
            for a, f in before.replicas.items()
        }
        return replace(before, replicas=altered)


def test_what_another_worker_dispatched_is_not_called_not_sent() -> None:
    """The other worker looked before the user's ALTER, and its claim is the first write."""
    site = Site()
    staged = site.stage(0)
    worker = site.worker(kind=AlteredDuringLook)
    worker.first = lambda: site.publish(staged)
    said = ""
    try:
        site.publish(staged, worker=worker)
    except Stopped as stopped:
        said = stopped.stop.message
    assert "not sent" not in said, said


# 14. Runs whose candidates a guard refuses.


def test_candidates_that_a_guard_refused_never_block_the_next_good_run() -> None:
    site = Site()
    for run in range(45):
        staged = site.stage(run)
        with pytest.raises(Stopped) as caught:
            publish(
                site.ports(site.worker()),
                SITE,
                PublishRequest(staged.operation_id, Guards(min_rows=10_000)),
                WAITS,
            )
        assert caught.value.stop.code is Code.GUARD_MIN_ROWS


def test_a_candidate_that_was_superseded_before_its_dispatch_is_dropped_by_a_later_run() -> None:
    site = Site()
    first = site.stage(0)
    for run in range(1, 6):
        site.stage(run)
    assert first.candidate_uuid not in site.uuids(), "full copies pile up on every replica"


# 15. Settling that fails for a moment.


@pytest.mark.parametrize("point", ["write", "read queue"])
def test_a_moments_failure_while_settling_is_not_called_busy(point: str) -> None:
    """Busy fails without a retry; the swap is finished, and the next look would prove it."""
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))
    site.world.work_all()
    code = None
    try:
        site.stage(1, worker=site.worker(once(point, Fault.LOST)))
    except Stopped as stopped:
        code = stopped.stop.code
    assert code is not Code.TARGET_BUSY


# 16. An answer whose text was lost.


def test_an_error_without_its_text_is_no_proof_that_nothing_was_queued() -> None:
    class Server:
        def once(self, sql: str, *, before_send: Any, **_: Any) -> None:
            before_send()
            error = ServerError.from_text("<html>an error page of a proxy</html>", code=497)
            assert error is not None
            raise error

    permit = Permit(token="t", epoch=1, write_id="w")
    reply = DdlQueue(Server()).send(permit, Drop("c", "d", "t"), "t")  # type: ignore[arg-type]
    assert not reply.refused
