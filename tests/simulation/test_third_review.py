"""Third review: histories of the operator commands that must not end as they do."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse import recover as real
from airflow_provider_dpone.publication.facts import TableFacts
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.record import Phase, encode
from airflow_provider_dpone.publication.statement import Drop, Exchange
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanupRequest,
    OperatorRequest,
    abandon,
    cleanup,
    forget,
    resolve,
)
from airflow_provider_dpone.routes.recover import recover
from tests.simulation.ports import KEY, EvidencePort, Fault, Killed
from tests.simulation.run import OLD, SITE, WAITS
from tests.simulation.test_recover import SimLost
from tests.simulation.test_review_findings import Site, once
from tests.simulation.test_second_review import restage
from tests.simulation.test_ways_out import (
    KEEP,
    died_while_staging,
    drop,
    leftovers,
    live,
    published,
    record,
    roll_back,
)
from tests.simulation.world import AUTHORITY, Entry, Replica, Table, World

REQUEST = OperatorRequest("test")

# 1. A rollback sleeps on a swap that names a parked table; the control table is lost and recovered.


@dataclass
class Lost:
    """What ``SimLost`` needs of a cluster, around a world that the real routes made."""

    world: World
    authority: str | None = None
    adopted: tuple[str, ...] = ()


def resolved_as_published(site: Site) -> Any:
    """The queue forgot a swap that was done; the operator's resolve parks the predecessor and commits."""
    staged = site.stage(0, retention=KEEP)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))
    site.world.work_all()
    site.world.prune()
    ended = resolve(site.ports(site.worker()), SITE, REQUEST, WAITS)
    assert ended.phase is Phase.COMMITTED
    return staged


def test_a_rollback_that_sleeps_through_a_recovery_never_swaps_under_the_new_authority() -> None:
    site = Site()
    staged = resolved_as_published(site)
    # The permit is used, the request hangs (worker frozen, connection slow): it arrives much later.
    with pytest.raises(Stopped):
        roll_back(site, staged.operation_id, site.worker(once("send", Fault.LATE)))
    assert site.world.sent[-1][1] == Exchange("analytics", "mart", "orders", parked_name(staged.candidate))
    assert live(site) == ["new0", "new0"]
    # The control table is dropped; an operator recovers it.
    site.world.rows.clear()
    lost = Lost(site.world)
    worker = site.worker()
    recover(SimLost(lost, worker), EvidencePort(worker), worker, REQUEST)  # type: ignore[arg-type]
    assert lost.authority is not None
    before = live(site)
    while site.world.late:
        site.world.arrive()
    site.world.work_all()
    assert live(site) == before, "a statement of the lost authority went live under the new one"


# 2. One record is lost (Keeper came back from an older backup), the authority row is there.


class Marked(World):
    def _table_facts(self, table: Table) -> TableFacts:
        facts = World._table_facts(self, table)
        return facts if table.content in ("old", "") else replace(facts, comment_authority=AUTHORITY)


def test_orphans_never_drops_a_kept_table_where_the_record_is_lost() -> None:
    site = Site(world=Marked())
    published(site)
    del site.world.rows[KEY]
    with pytest.raises(Stopped) as caught:
        site.stage(1)
    assert caught.value.stop.code is Code.CONTROL_TABLE_LOST
    for orphan in leftovers(site):
        if orphan.droppable:
            with suppress(Stopped):
                drop(site, orphan)
    assert OLD.uuid in site.uuids(), "the predecessor that the user asked to keep was dropped as an orphan"


def test_orphans_never_turns_the_guard_for_a_lost_record_off() -> None:
    site = Site(world=Marked())
    published(site, 5, retention=0)
    orphan = died_while_staging(site)
    first = site.stage(7)
    with pytest.raises(Stopped):
        site.publish(first, worker=site.worker(once("send", Fault.LATE)))
    del site.world.rows[KEY]
    with pytest.raises(Stopped) as caught:
        site.stage(8)
    assert caught.value.stop.code is Code.CONTROL_TABLE_LOST
    try:
        drop(site, orphan)
    except Stopped:
        return
    published(site, 8)
    assert live(site) == ["new8", "new8"]
    site.world.heal()
    assert live(site) == ["new8", "new8"], "the older run's swap undid a publication that was called proven"


# 3. The predecessor was dropped by hand while the swap was not proven yet.


@pytest.mark.parametrize("pruned", [False, True], ids=["queue tells", "queue forgot"])
def test_a_predecessor_that_is_gone_for_good_is_no_hold_for_ever(pruned: bool) -> None:
    site = Site()
    staged = site.stage(0)
    with pytest.raises(Killed):
        site.publish(staged, worker=site.worker(once("send", Fault.KILL_AFTER)))
    site.world.work_all()
    if pruned:
        site.world.prune()
    del site.world.replicas["s1/r2"].tables[staged.candidate]
    assert live(site) == ["new0", "new0"]
    said = []
    for command in (
        lambda: site.publish(staged),
        lambda: resolve(site.ports(site.worker()), SITE, REQUEST, WAITS),
        lambda: abandon(site.ports(site.worker()), SITE, REQUEST, WAITS),
        lambda: roll_back(site, staged.operation_id),
        lambda: site.stage(1),
    ):
        try:
            command()
        except Stopped as stopped:
            said.append(stopped.stop.code.name)
    assert len(said) < 5, f"no way out: {said}"


# 4. Two tables are kept for one operation.


@dataclass
class TooLarge(World):
    """A server that refuses to drop one table: max_table_size_to_drop."""

    large: str = ""

    def _execute(self, alias: str, replica: Replica, entry: Entry) -> int:
        if isinstance(entry.statement, Drop) and entry.statement.table == self.large:
            return 359
        return World._execute(self, alias, replica, entry)


def test_a_rollback_finds_the_predecessor_beside_an_undroppable_candidate_of_the_same_operation() -> None:
    world = TooLarge()
    site = Site(world=world)
    first = site.stage(0, retention=KEEP)
    world.large = first.candidate
    second = restage(site, 0, rows=10, content="new0")
    site.publish(second)
    stored = record(site)
    assert stored.record.operation_id == first.operation_id
    # restage has no retention of its own; give the kept predecessor time.
    moved = stored.record.moved(retention=KEEP)
    site.world.rows[KEY] = (encode(moved, stored.write_id), stored.version)
    done = roll_back(site, second.operation_id)
    assert done.uuid == OLD.uuid


# 5. Whose retention.


def test_what_a_rollback_replaces_is_kept_as_long_as_the_undone_operation_asked() -> None:
    site = Site()
    staged = published(site, retention=KEEP)
    site.stage(1, retention=0)
    abandon(site.ports(site.worker()), SITE, REQUEST, WAITS)
    done = roll_back(site, staged.operation_id)
    assert done.retained == (staged.candidate,), (
        "what was live was dropped at once: the rollback has no way back"
    )


# 6. An automatic retry after the operator dropped what its first try had left.


@pytest.mark.parametrize("before", [False, True], ids=["no record", "a record"])
def test_the_retry_of_a_stage_whose_leftover_was_dropped_stages_again(before: bool) -> None:
    site = Site()
    if before:
        published(site, 5, retention=0)
    orphan = died_while_staging(site)
    assert drop(site, orphan).gone
    site.stage(6)


# 7. Two operators recover at once: one's survey is read while the other creates the authority.


def test_a_recovery_reads_the_authority_after_the_tables_that_it_would_park(monkeypatch: Any) -> None:
    read: list[str] = []

    class Seen:
        inventory = World().inventory
        authority_id = None

    def tables(*_: Any) -> Any:
        read.append("tables")
        return (), 0

    def authority(*_: Any) -> Seen:
        read.append("authority")
        return Seen()

    monkeypatch.setattr(real, "observe_before", authority)
    monkeypatch.setattr(real, "read_leftovers", tables)
    monkeypatch.setattr(real.LostControlTable, "_queue", lambda *_: (0, ()))
    monkeypatch.setattr(real.LostControlTable, "_elsewhere", lambda *_: frozenset())
    real.LostControlTable(None, "analytics", None, evidence=True).survey()  # type: ignore[arg-type]
    assert read.index("tables") < max(n for n, what in enumerate(read) if what == "authority"), (
        "a candidate that the new authority's first run made in between would be parked"
    )


# 8. A host that left the cluster for ever has an entry that it never finished.


def test_a_host_that_is_gone_for_ever_does_not_block_a_recovery_for_a_week() -> None:
    class Server:
        def read(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(rows=[["1", [("query-1", "burnt-down", 9000)]]])

    lost = real.LostControlTable(Server(), "analytics", None, evidence=True)  # type: ignore[arg-type]
    _, unfinished = lost._queue(World().inventory)
    assert unfinished == (), (
        "the retired replica will never finish it; 'bring every replica back' is no way out"
    )


# 10. A kept table is forgotten while a drop of its name is on its way.


def test_what_has_the_name_of_a_forgotten_table_is_never_dropped() -> None:
    site = Site()
    staged = published(site)
    site.world.now += KEEP
    with pytest.raises(Stopped):
        cleanup(
            site.ports(site.worker(once("send", Fault.LATE))),
            SITE,
            CleanupRequest(staged.operation_id, staged.candidate),
            WAITS,
        )
    # The kept table was renamed away by hand, and a copy has its name.
    copy = replace(OLD, uuid="ffffffff-0000-4000-8000-000000000001", content="a copy")
    for replica in site.world.replicas.values():
        replica.tables["orders_kept"] = replica.tables.pop(staged.candidate)
        replica.tables[staged.candidate] = copy
    with suppress(Stopped):
        forget(site.ports(site.worker()), SITE, staged.candidate, REQUEST, WAITS)
        site.world.heal()
        assert copy.uuid in site.uuids(), (
            "forget said that no table is dropped; the drop on its way went by the name"
        )
