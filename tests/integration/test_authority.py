"""Compare-and-swap on the real control table: what is acknowledged, what is not, and what is never repeated."""

from __future__ import annotations

import copy
import pickle
import threading
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse.authority import Authority, judge
from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase, StoredRecord, encode
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.publication.transitions import dispatching
from airflow_provider_dpone.routes.ports import Claimed, Conflict, OutcomeUnknown, Stored, Target
from tests.cluster import LocalCluster
from tests.cluster.spec import CLUSTER_NAME, Endpoint
from tests.integration import control
from tests.unit import builders

WRITES = r"^(INSERT INTO|ALTER TABLE) `?dpone`?\.`?authority_v1`?"


class Site:
    """One target in the control table, and workers that write its record."""

    def __init__(self, cluster: LocalCluster, database: str) -> None:
        self.cluster = cluster
        self.database = database
        self.authority_id = control.authority_id(cluster)
        self.mark = cluster.last_statement()

    def worker(self, *endpoints: Endpoint, **more: Any) -> Authority:
        return Authority(control.server(*(endpoints or self.cluster.endpoints[:1])), CLUSTER_NAME, **more)

    def record(self, **changes: Any) -> AuthorityRecord:
        return control.record(self.authority_id, self.database, **changes)

    def created(self) -> StoredRecord:
        result = self.worker().write(None, self.record(), "w0")
        assert isinstance(result, Stored)
        self.mark = self.cluster.last_statement()
        return result.stored

    def writes(self) -> list[str]:
        """The write ids of all mutations that have reached the gateway."""
        return [s.query_id for s in self.cluster.statements(WRITES, since=self.mark)]

    def seen(self) -> StoredRecord | None:
        target = Target(CLUSTER_NAME, self.database, "orders")
        return Catalog(control.server(self.cluster.endpoints[1]), target).observe([]).record


@pytest.fixture
def site(cluster: LocalCluster, database: str) -> Site:
    return Site(cluster, database)


pytestmark = pytest.mark.cluster


def test_a_record_is_created_and_updated_one_version_at_a_time(site: Site) -> None:
    first = site.record()
    created = site.worker().write(None, first, "w0")
    assert created == Stored(StoredRecord(first, "w0", 0))
    second = first.moved(phase=Phase.ABORTED)
    assert isinstance(created, Stored)
    updated = site.worker().write(created.stored, second, "w1")
    assert updated == Stored(StoredRecord(second, "w1", 1))
    assert site.seen() == StoredRecord(second, "w1", 1)
    assert site.writes() == ["w0", "w1"]


def test_each_write_is_one_statement_with_the_strict_settings(site: Site) -> None:
    created = site.created()
    site.worker().write(created, created.record, "w1")
    [statement] = site.cluster.statements(WRITES, since=site.mark)
    assert statement.query_id == "w1"
    assert {
        name: statement.settings[name]
        for name in ("keeper_map_strict_mode", "insert_keeper_max_retries", "async_insert")
    } == {"keeper_map_strict_mode": "1", "insert_keeper_max_retries": "0", "async_insert": "0"}


def test_a_record_with_any_text_comes_back_as_it_is(site: Site) -> None:
    odd = "'; DROP TABLE x -- \\ ` \" \n ünïcode \U0001f600"
    record = site.record(candidate=odd, fence_token=odd, owner=replace(builders.record().owner, run_id=odd))
    created = site.worker().write(None, record, "w'0")
    assert isinstance(created, Stored)
    updated = site.worker().write(created.stored, record.moved(changed_at=2_000), "w\\1")
    assert isinstance(updated, Stored)
    assert site.seen() == updated.stored


def test_a_claim_gives_a_permit_and_the_inventory_that_was_read_with_it(site: Site) -> None:
    created = site.created()
    moved = dispatching(created.record, nonce="0" * 32, now=1_001)
    assert moved.publication is not None
    claimed = site.worker().claim(created, moved, moved.publication.token, "w1")
    assert isinstance(claimed, Claimed)
    assert claimed.stored == StoredRecord(moved, "w1", 1)
    assert (claimed.permit.epoch, claimed.permit.write_id) == (moved.dispatch_epoch, "w1")
    assert not claimed.permit.used
    target = Target(CLUSTER_NAME, site.database, "orders")
    catalog = Catalog(control.server(site.cluster.endpoints[0]), target)
    assert claimed.inventory_digest == catalog.observe([]).inventory.digest
    for steal in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            steal(claimed.permit)


def test_a_second_create_gives_nothing(site: Site) -> None:
    site.created()
    result = site.worker().write(None, site.record(plan_digest="q" * 64), "w1")
    assert isinstance(result, OutcomeUnknown)
    assert site.writes() == ["w1"]
    seen = site.seen()
    assert seen is not None
    assert (seen.write_id, seen.version) == ("w0", 0)


def test_an_update_that_matches_nothing_succeeds_on_the_server_and_is_a_conflict_here(site: Site) -> None:
    created = site.created()
    winner = site.worker().write(created, created.record.moved(changed_at=2_000), "winner")
    assert isinstance(winner, Stored)
    loser = site.worker().claim(created, created.record.moved(changed_at=3_000), "token", "loser")
    assert loser == Conflict()
    assert site.writes() == ["winner", "loser"]
    statement = site.cluster.statements(WRITES, since=site.mark)[-1]
    assert (statement.outcome, statement.code) == ("ok", 0)


def test_a_record_that_moved_on_by_more_than_one_write_proves_nothing(site: Site) -> None:
    created = site.created()
    once = site.worker().write(created, created.record.moved(changed_at=2_000), "w1")
    assert isinstance(once, Stored)
    assert isinstance(site.worker().write(once.stored, created.record, "w2"), Stored)
    assert isinstance(site.worker().write(created, created.record, "late"), OutcomeUnknown)


@pytest.mark.parametrize("field_name", ["operation_id", "fence_token", "phase", "dispatch_epoch"])
def test_every_column_of_the_predicate_counts(site: Site, field_name: str) -> None:
    created = site.created()
    other = {
        "operation_id": "0" * 64,
        "fence_token": "0" * 32,
        "phase": Phase.ABORTED,
        "dispatch_epoch": 99,
    }[field_name]
    wrong = replace(created, record=created.record.moved(**{field_name: other}))
    result = site.worker(visible_within=0.2).write(wrong, created.record.moved(changed_at=2_000), "w1")
    assert isinstance(result, OutcomeUnknown)
    assert site.seen() == created


def test_a_foreign_write_id_under_the_expected_version_is_a_conflict(site: Site) -> None:
    created = site.created()
    result = site.worker().write(replace(created, write_id="foreign"), created.record, "w1")
    assert result == Conflict()
    assert site.seen() == created


def test_of_many_workers_from_one_version_at_most_one_gets_a_permit(site: Site) -> None:
    stored = site.created()
    for round_ in range(8):
        results = race(site, stored, [f"w{round_}-{n}" for n in range(4)])
        claims = [result for result in results if isinstance(result, Claimed)]
        assert len(results) == 4
        assert len(claims) == 1
        assert site.seen() == claims[0].stored
        stored = claims[0].stored


def race(site: Site, stored: StoredRecord, names: list[str]) -> list[Claimed | Conflict | OutcomeUnknown]:
    """Let workers claim from the same version at the same time, through both replicas."""
    results: list[Claimed | Conflict | OutcomeUnknown] = []
    gate = threading.Barrier(len(names))

    def work(number: int, name: str) -> None:
        worker = site.worker(site.cluster.endpoints[number % 2])
        moved = stored.record.moved(dispatch_epoch=stored.record.dispatch_epoch + 1)
        gate.wait(10)
        results.append(worker.claim(stored, moved, "token", name))

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


# ---- unknown outcomes


def test_a_lost_reply_gives_no_permit_though_the_write_happened(site: Site) -> None:
    created = site.created()
    site.cluster.drop_response(None, WRITES)
    moved = created.record.moved(dispatch_epoch=5)
    result = site.worker().claim(created, moved, "token", "w1")
    assert isinstance(result, OutcomeUnknown)
    assert site.writes() == ["w1"]
    seen = site.seen()
    assert seen == StoredRecord(moved, "w1", 1)


def test_a_lost_create_gives_nothing_though_the_row_is_there(site: Site) -> None:
    site.cluster.drop_response(None, WRITES)
    assert isinstance(site.worker().write(None, site.record(), "w0"), OutcomeUnknown)
    assert site.writes() == ["w0"]
    assert site.seen() is not None


@pytest.mark.parametrize("executed", [False, True])
@pytest.mark.parametrize("code", [999, 242, 241, 159, 209])
def test_an_error_that_keeper_may_be_behind_is_an_unknown_outcome(
    site: Site, code: int, executed: bool
) -> None:
    created = site.created()
    site.cluster.answer_error(None, WRITES, code, executed=executed)
    result = site.worker().claim(created, created.record.moved(dispatch_epoch=5), "token", "w1")
    assert isinstance(result, OutcomeUnknown)
    assert str(code) in result.why
    assert site.writes() == ["w1"]


def test_a_slow_reply_is_an_unknown_outcome(site: Site) -> None:
    created = site.created()
    site.cluster.delay(None, WRITES, 1.5, executed=True)
    result = site.worker(timeout=0.5).claim(created, created.record.moved(dispatch_epoch=5), "token", "w1")
    assert isinstance(result, OutcomeUnknown)
    assert site.writes() == ["w1"]


def test_without_keeper_the_outcome_is_unknown(site: Site) -> None:
    created = site.created()
    site.cluster.stop_zookeeper()
    result = site.worker().write(created, created.record, "w1")
    assert isinstance(result, OutcomeUnknown)
    assert site.writes() == ["w1"]


# ---- surely not written


@pytest.mark.parametrize(
    ("code", "stop"), [(497, Code.MISSING_GRANT), (60, Code.SERVER_ERROR), (62, Code.SERVER_ERROR)]
)
def test_an_error_before_the_execution_is_a_stop(site: Site, code: int, stop: Code) -> None:
    created = site.created()
    site.cluster.answer_error(None, WRITES, code)
    with pytest.raises(Stopped) as caught:
        site.worker().write(created, created.record, "w1")
    assert caught.value.stop.code is stop
    assert site.seen() == created


def test_without_a_connection_nothing_is_written(site: Site) -> None:
    created = site.created()
    with pytest.raises(Stopped) as caught:
        site.worker(Endpoint("127.0.0.1", 1)).write(created, created.record, "w1")
    assert caught.value.stop.code is Code.SERVER_UNAVAILABLE
    assert site.writes() == []


# ---- the read-back


def test_the_read_back_is_repeated_and_the_write_is_not(site: Site) -> None:
    created = site.created()
    # Each read tries two connections: two reads fail, the third one answers.
    cut = site.cluster.refuse(None, "^SELECT", count=4)
    result = site.worker().write(created, created.record, "w1")
    assert isinstance(result, Stored)
    assert cut.hits == 4
    assert site.writes() == ["w1"]


def test_a_write_that_can_not_be_read_back_gives_no_permit(site: Site) -> None:
    created = site.created()
    site.cluster.refuse(None, "^SELECT", count=1_000)
    result = site.worker(visible_within=0.3).claim(
        created, created.record.moved(dispatch_epoch=5), "token", "w1"
    )
    assert isinstance(result, OutcomeUnknown)
    assert site.writes() == ["w1"]


def test_it_works_behind_a_load_balancer_that_takes_another_replica_each_time(site: Site) -> None:
    worker = site.worker(site.cluster.load_balancer)
    stored: StoredRecord | None = None
    for n in range(6):
        result = worker.write(stored, site.record(changed_at=1_000 + n), f"w{n}")
        assert isinstance(result, Stored)
        stored = result.stored
        if n == 2:
            # Each write and its read-back alternate; now the other replica takes the writes.
            worker.server.read("SELECT 1")
    assert stored is not None
    assert stored.version == 5
    assert {s.node for s in site.cluster.statements(WRITES, since=site.mark)} == {1, 2}


def test_a_permit_is_for_the_claimed_token(site: Site) -> None:
    created = site.created()
    claimed = site.worker().claim(created, created.record.moved(dispatch_epoch=5), "token", "w1")
    assert isinstance(claimed, Claimed)
    with pytest.raises(RuntimeError, match="another statement"):
        claimed.permit.use("other")
    claimed.permit.use("token")
    with pytest.raises(RuntimeError, match="one send"):
        claimed.permit.use("token")


# ---- what a read-back proves, exhaustively

OLD = StoredRecord(builders.record(), "old", 7)
NEW_ROW = encode(builders.record(changed_at=2_000), "new")
OLD_ROW = encode(OLD.record, "old")
FOREIGN_ROW = encode(builders.record(changed_at=3_000), "foreign")
TAMPERED_ROW = replace(NEW_ROW, payload="{}")


@pytest.mark.parametrize(
    ("expected", "found", "version", "verdict"),
    [
        (OLD, NEW_ROW, 8, 8),
        (None, NEW_ROW, 0, 0),
        # The reader lags behind: ask again.
        (OLD, OLD_ROW, 7, None),
        (OLD, FOREIGN_ROW, 6, None),
        (OLD, None, None, None),
        (None, None, None, None),
        # Proven not to have happened.
        (OLD, FOREIGN_ROW, 8, Conflict()),
        (OLD, FOREIGN_ROW, 7, Conflict()),
        # Not proven either way.
        (OLD, FOREIGN_ROW, 9, OutcomeUnknown("")),
        (OLD, NEW_ROW, 9, OutcomeUnknown("")),
        (OLD, NEW_ROW, 7, OutcomeUnknown("")),
        (OLD, TAMPERED_ROW, 8, OutcomeUnknown("")),
        (None, NEW_ROW, 1, OutcomeUnknown("")),
        (None, FOREIGN_ROW, 0, OutcomeUnknown("")),
        (None, FOREIGN_ROW, 1, OutcomeUnknown("")),
    ],
)
def test_what_a_read_back_proves(
    expected: StoredRecord | None, found: Any, version: int | None, verdict: Any
) -> None:
    judged = judge(expected, NEW_ROW, found, version)
    if isinstance(verdict, OutcomeUnknown):
        assert isinstance(judged, OutcomeUnknown)
    else:
        assert judged == verdict
