"""A review of the changes after bc33215: what each test says should hold, and does not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_dpone.clickhouse.canonical_digest import (
    DIGEST_SETTINGS,
    canonical_digest_select,
    digest_settings,
)
from airflow_provider_dpone.clickhouse.errors import ReplyLost
from airflow_provider_dpone.clickhouse.progress import LongQuery, RunningQueries
from airflow_provider_dpone.clickhouse.replica_staging import ClusterReplicaStaging
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.clickhouse.table_definition import ColumnDefinition
from airflow_provider_dpone.operators.publish import PublishOperator
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.decide import Abort, Hold
from airflow_provider_dpone.publication.record import HostReceipt, Phase, StoredRecord
from airflow_provider_dpone.publication.replica_stages import MAX_REPLICAS
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import OperatorAction
from airflow_provider_dpone.publication.witness import witness
from tests.unit.builders import in_phase, stored
from tests.unit.evidence_entries import WRITE
from tests.unit.replica_site import ReplicaSite, stop
from tests.unit.test_explain_past import given_up, past
from tests.unit.test_replica_staging_broken import cluster_of, failing, phase, stopped_by

# ---- (c) kills


class Replica2:
    """The server of s1/r2: it runs a query, and the first answers to a kill are lost."""

    user = "loader"

    def __init__(self) -> None:
        self.sent: list[str] = []

    def once(self, sql: str, **_: Any) -> SimpleNamespace:
        self.sent.append(sql)
        if sql.startswith("SELECT"):
            return SimpleNamespace(text="1\n")
        if "ON CLUSTER" not in sql:
            raise ReplyLost("the connection broke")
        return SimpleNamespace(text="")

    def read(self, sql: str, **_: Any) -> SimpleNamespace:
        # clusterAllReplicas numbers the replicas of the cluster: this is the second.
        return SimpleNamespace(rows=[[2, 0, 0]])


def staging_on(running: RunningQueries, server: Any) -> Any:
    """The adapter as far as naming a read takes."""
    one: Any = object.__new__(ClusterReplicaStaging)
    one._running = running
    one._servers = {"s1/r2": server}
    one._target = SimpleNamespace(cluster="analytics")
    return one


def test_a_kill_of_a_comparison_on_the_second_replica_that_is_not_answered_goes_through_the_queue() -> None:
    server, running = Replica2(), RunningQueries()
    with staging_on(running, server)._reading("s1/r2"):
        assert running.cancel() is True
    assert "ON CLUSTER" in server.sent[-1]


def test_airflows_timeout_is_not_swallowed_by_a_kill_on_the_second_replica() -> None:
    class TaskTimeout(BaseException):
        pass

    server, running = Replica2(), RunningQueries()
    with pytest.raises(TaskTimeout), staging_on(running, server)._reading("s1/r2"):
        raise TaskTimeout


def test_each_query_is_killed_whatever_became_of_those_before_it() -> None:
    running, killed = RunningQueries(), []

    class Good(LongQuery):
        def kill(self) -> bool:
            killed.append(self.query_id)
            return True

    bad = staging_on(running, Replica2())
    good = Good(cast("Server", None), "analytics", ("s1/r1",), "its-own")
    with bad._reading("s1/r2"), running.waiting(good):
        try:
            running.cancel()
        finally:
            assert killed == ["its-own"]


def test_a_signal_that_meets_the_pool_of_connections_does_not_wait_for_itself() -> None:
    """The main thread takes a connection out of the pool for its read when the signal comes."""
    server = Server(ConnectionSettings(hosts=(("127.0.0.1", 9),), user="u", password="p"))
    running = RunningQueries()
    with running.reading(server, "analytics", ("s1/r1",)):
        mutex = cast("Any", server._pools[0].pool).mutex  # what LifoQueue.get holds
        with mutex:
            # A signal handler runs on top of that very frame: here a thread stands for it, so that the test ends.
            handler = threading.Thread(target=running.cancel, daemon=True)
            handler.start()
            handler.join(5)
            waits = handler.is_alive()
    assert not waits


# ---- (d) who wakes late


def test_a_worker_that_wakes_late_says_so_where_another_replica_stopped_otherwise() -> None:
    """An abandon drops r1's table under its load, which fails; r2's claim finds the record moved."""
    site = ReplicaSite()

    def at(name: str) -> None:
        if name == "load s1/r1":
            site.at = lambda name: None
            site.abandon()
            raise stop(Code.STAGING_FAILED)

    site.at = at
    with pytest.raises(Stopped):
        site.stage()
    assert phase(site) is Phase.ABORTED
    assert not any("the target stays locked for this operation" in line for line in site.lines)


def test_a_late_table_is_dropped_though_another_replica_stopped_otherwise() -> None:
    site = ReplicaSite()

    def at(name: str) -> None:
        if name == "create s1/r1":
            # The source is sealed already: this is the second create on r1.
            if phase(site) is not Phase.STAGING:
                return
            site.at = lambda name: failing_load(name)
            site.abandon()
            assert site.record.retained == ()

    def failing_load(name: str) -> None:
        if name == "observe" and site.names:
            site.at = lambda name: None
            # r1's look is not answered.
            raise stop(Code.REPLICA_NOT_OBSERVED)

    site.at = at
    with pytest.raises(Stopped):
        site.stage()
    assert phase(site) is Phase.ABORTED
    assert site.names == set()


# ---- (e) many replicas


def test_as_many_replicas_as_are_said_to_fit_do_fit() -> None:
    site, _ = cluster_of(MAX_REPLICAS)
    site.stage()
    assert phase(site) is Phase.PREPARED


def test_a_definition_too_long_for_the_record_is_refused_before_the_source_is_read() -> None:
    site, calls = cluster_of(MAX_REPLICAS)
    site.engine = dict.fromkeys(site.tables, "MergeTree ORDER BY id " + "x" * 2500)
    assert stopped_by(site) is Code.RECORD_TOO_LARGE
    assert "extract" not in calls


def test_a_retry_has_places_after_every_load_has_failed_once() -> None:
    site, _ = cluster_of(MAX_REPLICAS)
    site.at = failing(*(f"load {alias}" for alias in site.tables), code=Code.ARTIFACT_UNAVAILABLE)
    assert stopped_by(site) is Code.ARTIFACT_UNAVAILABLE
    site.at = lambda _: None
    site.stage()
    assert phase(site) is Phase.PREPARED


def test_contents_that_differ_again_and_again_leave_places_for_the_next_run() -> None:
    site, _ = cluster_of(MAX_REPLICAS)
    for day in range(4):
        site.at = failing(*(f"load {alias}" for alias in site.tables), code=Code.CONTENT_DIFFERS)
        assert stopped_by(site, run=f"day{day}") is Code.CONTENT_DIFFERS
    site.at = lambda _: None
    site.stage(run="mended")
    assert phase(site) is Phase.PREPARED


# ---- (f) the word of abandon


def test_an_operation_that_sealed_nothing_is_not_said_to_have_sealed_rows() -> None:
    site = ReplicaSite(failing("extract", code=Code.SERVER_UNAVAILABLE))
    stopped_by(site)
    assert phase(site) is Phase.LOCKED
    assert site.artifacts == set()
    assert not site.abandon().sealed


def test_rows_that_stay_behind_a_prepared_operation_are_told_of() -> None:
    class Killed(BaseException):
        pass

    class Dies(ReplicaSite):
        def sweep(self, keep: Any, *, target_key: str) -> None:
            raise Killed

    site = Dies()
    with pytest.raises(Killed):
        site.stage()
    assert phase(site) is Phase.PREPARED
    assert len(site.artifacts) == 1
    assert site.abandon().sealed


# ---- (b) the reason of giving up


def test_what_publish_notes_after_an_operation_was_given_up_is_not_its_reason() -> None:
    audit = OperatorAction("abandon", "abandon", "its worker is gone", Phase.PREPARED, 0, 1, WRITE)
    # What publish decides for a record that is ABORTED, and notes.
    after = witness(
        stored(in_phase(Phase.ABORTED)), Hold(Stop(Code.SUPERSEDED, "It was given up.")), None, None
    )
    assert after is not None
    assert given_up(audit, after).endswith(": its worker is gone")


def test_what_was_waited_for_before_an_operation_was_abandoned_by_a_trail_that_is_lost_is_no_reason() -> None:
    waited = witness(
        stored(in_phase(Phase.PREPARED)), Hold(Stop(Code.REPLICA_UNAVAILABLE, "It is gone.")), None, None
    )
    reason = witness(
        stored(in_phase(Phase.PREPARED)), Abort(Stop(Code.TARGET_MOVED, "It moved.")), None, None
    )
    assert waited is not None
    assert reason is not None
    assert past(reason, waited).given_up is not None
    assert past(reason, waited).given_up.code == "TARGET_MOVED"  # type: ignore[union-attr]


# ---- (e) the next run


def test_a_run_that_follows_one_that_was_never_published_has_room_where_that_one_had() -> None:
    """The first run's publish failed for good (min_rows, say). Every later run of the DAG has to get through."""
    site, _ = cluster_of(MAX_REPLICAS)
    site.stage(run="monday")
    assert phase(site) is Phase.PREPARED
    site.stage(run="tuesday")
    assert phase(site) is Phase.PREPARED


# ---- (c) what is said


def test_what_is_true_of_the_statement_is_said_although_no_server_answers_a_kill() -> None:
    """The supervisor kills the process five seconds after the signal; a kill may take longer than half a minute."""

    class SupervisorsKill(BaseException):
        pass

    def hang() -> None:
        raise SupervisorsKill

    said: list[str] = []
    operator = object.__new__(PublishOperator)
    connected = SimpleNamespace(running=SimpleNamespace(cancel=hang), statements_sent=0)
    object.__setattr__(operator, "_connected", connected)
    object.__setattr__(operator, "_say", said.append)
    with pytest.raises(SupervisorsKill):
        operator.on_kill()
    assert any("has sent no statement" in line for line in said)


def test_a_run_has_room_beside_a_predecessor_that_is_kept_as_asked() -> None:
    """``retain_predecessor`` never blocks the target: each day's run is published, and each old table kept."""
    site, _ = cluster_of(MAX_REPLICAS)
    for day in range(3):
        site.stage(run=f"day{day}", retention=10**6)
        record = site.record
        receipt = tuple(HostReceipt(alias, 0) for alias in record.replicas)
        moved = transitions.dispatching(record, nonce="0" * 32, now=int(site.now))
        moved = transitions.committed(
            moved, entry="query-0000000001", query_digest="0" * 64, receipt=receipt, now=int(site.now)
        )
        moved = transitions.retaining(moved, drop_after=10**6, now=int(site.now))
        for held in site.tables.values():
            held["orders"], held[record.candidate] = held[record.candidate], held["orders"]
        assert site.row is not None
        site.row = StoredRecord(moved, "9" * 32, site.row.version + 1)


# ---- (a) the digest


def test_a_wide_table_whose_names_fit_into_a_statement_has_a_digest() -> None:
    """A server parses 262,144 bytes by default; a profile may forbid another bound, so it is sent only where needed."""
    wide = [ColumnDefinition(f"{number:064d}", "UInt8") for number in range(3_000)]
    assert sum(len(column.name) + 4 for column in wide) < 262_144
    for columns, longer in ((wide, True), (wide[:100], False)):
        sql = canonical_digest_select("d", "t", columns)
        assert (len(sql.encode()) > 262_144) is longer
        assert ("max_query_size" in digest_settings(sql, DIGEST_SETTINGS)) is longer
