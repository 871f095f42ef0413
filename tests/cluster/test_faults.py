"""Every fault that a test can arm, and what it leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.cluster import (
    APP_PASSWORD,
    APP_USER,
    CLUSTER_NAME,
    ClickHouseError,
    ControlError,
    LocalCluster,
    LoggedStatement,
    Outcome,
    QueueStatus,
    wait_until,
)

pytestmark = pytest.mark.cluster

ON = f"ON CLUSTER {CLUSTER_NAME}"
REPLICATED = "ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}') ORDER BY a"


class InBackground:
    """Runs a call in a thread; `join` returns what it raised, or None."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except (ClickHouseError, ConnectionError) as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> BaseException | None:
        self._thread.join(60)
        assert not self.running
        return self._error


def statuses(cluster: LocalCluster, match: str) -> list[str | None]:
    """Status of each host, in node order."""
    by_port = {row["port"]: row["status"] for row in cluster.queue_rows(match)}
    return [by_port.get(endpoint.port) for endpoint in cluster.direct_tcp]


def outcomes(statements: list[LoggedStatement]) -> list[Outcome]:
    return [statement.outcome for statement in statements]


# --- Client requests -------------------------------------------------------------------


@pytest.fixture
def table(cluster: LocalCluster, database: str) -> str:
    name = f"{database}.t"
    cluster.execute(f"CREATE TABLE {name} {ON} (a UInt64) {REPLICATED}")
    return name


def test_dropped_response_of_a_plain_statement(cluster: LocalCluster, table: str) -> None:
    fault = cluster.drop_response(1, f"INSERT INTO {table}")
    with pytest.raises(ConnectionError):
        cluster.execute(f"INSERT INTO {table} SELECT number FROM numbers(10)", observed=True)
    assert fault.hits == 1
    assert cluster.scalar(f"SELECT count() FROM {table}") == 10
    cluster.execute(f"INSERT INTO {table} SELECT 100", observed=True)
    assert outcomes(cluster.statements(f"INSERT INTO {table}")) == [Outcome.DROPPED, Outcome.OK]


def test_dropped_response_of_a_cluster_statement(cluster: LocalCluster, database: str) -> None:
    cluster.drop_response(1, f"CREATE TABLE {database}")
    with pytest.raises(ConnectionError):
        cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory", observed=True)
    assert [cluster.scalar(f"EXISTS {database}.t", node=node) for node in cluster.nodes] == [1, 1]
    (logged,) = cluster.statements(f"CREATE TABLE {database}")
    assert (logged.outcome, logged.on_cluster) == (Outcome.DROPPED, True)
    assert logged.entry == cluster.queue_rows(f"{database}.t")[0]["entry"]


def test_connection_cut_right_after_enqueueing(cluster: LocalCluster, database: str) -> None:
    held = cluster.hold_execution(2, database)
    cluster.drop_response(1, database, after="enqueue")
    with pytest.raises(ConnectionError):
        cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory", observed=True)
    held.wait_for_hit()
    assert statuses(cluster, f"{database}.t")[1] == "Active"
    held.release()
    wait_until(lambda: statuses(cluster, f"{database}.t") == ["Finished", "Finished"])


def test_fault_on_any_node_hits_through_the_load_balancer(cluster: LocalCluster, table: str) -> None:
    cluster.drop_response(None, f"INSERT INTO {table}", 2)
    for value in range(2):
        with pytest.raises(ConnectionError):
            cluster.execute(f"INSERT INTO {table} SELECT {value}", node="load_balancer", observed=True)
    cluster.execute(f"INSERT INTO {table} SELECT 2", node="load_balancer", observed=True)
    logged = cluster.statements(f"INSERT INTO {table}")
    assert outcomes(logged) == [Outcome.DROPPED, Outcome.DROPPED, Outcome.OK]
    assert {statement.node for statement in logged} == {1, 2}


def test_fault_on_one_node_leaves_the_other_alone(cluster: LocalCluster, table: str) -> None:
    fault = cluster.refuse(2, f"INSERT INTO {table}")
    cluster.execute(f"INSERT INTO {table} SELECT 1", node=1, observed=True)
    assert fault.hits == 0
    with pytest.raises(ConnectionError):
        cluster.execute(f"INSERT INTO {table} SELECT 2", node=2, observed=True)


def test_refused_statement_is_not_executed(cluster: LocalCluster, table: str, database: str) -> None:
    cluster.refuse(1, f"INSERT INTO {table}|DROP TABLE {table}", 2)
    with pytest.raises(ConnectionError):
        cluster.execute(f"INSERT INTO {table} SELECT 1", observed=True)
    with pytest.raises(ConnectionError):
        cluster.execute(f"DROP TABLE {table} {ON}", observed=True)
    assert cluster.scalar(f"SELECT count() FROM {table}") == 0
    assert len(cluster.queue_rows(f"DROP TABLE {table}")) == 0
    assert outcomes(cluster.statements(table)) == [Outcome.REFUSED, Outcome.REFUSED]


@pytest.mark.parametrize("executed", [False, True])
def test_error_instead_of_the_answer(cluster: LocalCluster, table: str, executed: bool) -> None:
    cluster.answer_error(1, f"INSERT INTO {table}", 999, executed=executed)
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(f"INSERT INTO {table} SELECT 1", observed=True)
    assert raised.value.code == 999
    assert "(KEEPER_EXCEPTION)" in str(raised.value)
    assert cluster.scalar(f"SELECT count() FROM {table}") == int(executed)


@pytest.mark.parametrize("executed", [False, True])
def test_delay(cluster: LocalCluster, table: str, executed: bool) -> None:
    cluster.delay(1, f"INSERT INTO {table}", 0.6, executed=executed)
    started = time.monotonic()
    insert = InBackground(lambda: cluster.execute(f"INSERT INTO {table} SELECT 1", observed=True))
    if executed:
        wait_until(lambda: cluster.scalar(f"SELECT count() FROM {table}") == 1)
        assert insert.running
    else:
        assert cluster.scalar(f"SELECT count() FROM {table}") == 0
    assert insert.join() is None
    assert time.monotonic() - started >= 0.6


@pytest.mark.parametrize("executed", [False, True])
def test_hold(cluster: LocalCluster, table: str, executed: bool) -> None:
    fault = cluster.hold(1, f"INSERT INTO {table}", executed=executed)
    insert = InBackground(lambda: cluster.execute(f"INSERT INTO {table} SELECT 1", observed=True))
    fault.wait_for_hit()
    if executed:
        wait_until(lambda: cluster.scalar(f"SELECT count() FROM {table}") == 1)
    else:
        assert cluster.scalar(f"SELECT count() FROM {table}") == 0
    assert insert.running
    fault.release()
    assert insert.join() is None
    assert cluster.scalar(f"SELECT count() FROM {table}") == 1


def test_log_has_what_a_client_sent(cluster: LocalCluster, database: str) -> None:
    mark, requests = cluster.last_statement(), cluster.request_count()
    cluster.query(
        f"SELECT '{database}' AS name",
        node=2,
        user=APP_USER,
        password=APP_PASSWORD,
        settings={"log_comment": "mine", "query_id": f"id-{database}"},
        observed=True,
    )
    with pytest.raises(ClickHouseError):
        cluster.execute(f"DROP TABLE {database}.missing {ON}", observed=True)
    good, bad = cluster.statements(database, since=mark)
    assert (good.node, good.kind, good.user, good.query_id) == (2, "SELECT", APP_USER, f"id-{database}")
    assert (good.log_comment, good.outcome, good.http_status, good.code) == ("mine", Outcome.OK, 200, 0)
    assert (bad.kind, bad.outcome, bad.code, bad.http_status) == ("DROP", Outcome.ERROR, 60, 404)
    assert bad.sequence > good.sequence
    assert cluster.request_count() - requests == 2


def test_faults_are_refused_when_they_make_no_sense(cluster: LocalCluster) -> None:
    with pytest.raises(ControlError, match="not a regular expression"):
        cluster.refuse(1, "(")
    with pytest.raises(ControlError, match="count must be at least 1"):
        cluster.refuse(1, ".", 0)


# --- Execution of queue entries --------------------------------------------------------


def test_paused_worker_begins_nothing(cluster: LocalCluster, database: str) -> None:
    cluster.pause_worker(2)
    create = InBackground(
        lambda: cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    )
    wait_until(lambda: statuses(cluster, f"{database}.t") == ["Finished", "Inactive"])
    assert create.running
    cluster.resume_worker(2)
    assert create.join() is None


@pytest.mark.parametrize("code", [164, 60])
def test_failed_execution_is_a_real_error(cluster: LocalCluster, database: str, code: int) -> None:
    fault = cluster.fail_execution(2, database, code=code)
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    assert raised.value.code == code
    assert fault.hits == 1
    assert [cluster.scalar(f"EXISTS {database}.t", node=node) for node in cluster.nodes] == [1, 0]
    by_port = {row["port"]: row for row in cluster.queue_rows(f"{database}.t")}
    row = by_port[cluster.direct_tcp[1].port]
    assert (row["status"], row["exception_code"]) == ("Finished", code)
    assert (row["exception_text"] or "").startswith(f"Code: {code}. DB::Exception: ")


def test_execution_with_an_error_that_workers_retry_is_not_recorded(
    cluster: LocalCluster, database: str
) -> None:
    fault = cluster.fail_execution(2, database, 2, code=999)
    cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    assert fault.hits == 2
    assert [row["exception_code"] for row in cluster.queue_rows(f"{database}.t")] == [0, 0]


@pytest.mark.parametrize("executed", [False, True])
def test_held_execution_is_active(cluster: LocalCluster, database: str, executed: bool) -> None:
    fault = cluster.hold_execution(1, database, executed=executed)
    create = InBackground(
        lambda: cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    )
    fault.wait_for_hit()
    wait_until(lambda: statuses(cluster, f"{database}.t") == ["Active", "Finished"])
    assert cluster.scalar(f"EXISTS {database}.t") == int(executed)
    fault.release()
    assert create.join() is None


def test_delayed_execution(cluster: LocalCluster, database: str) -> None:
    cluster.delay_execution(1, database, 0.5)
    started = time.monotonic()
    cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    assert time.monotonic() - started >= 0.5


def uuid_of_live(cluster: LocalCluster, database: str, node: int) -> str:
    query = f"SELECT uuid FROM system.tables WHERE database = '{database}' AND name = 'live'"
    return str(cluster.scalar(query, node=node))


@pytest.fixture
def swappable(cluster: LocalCluster, database: str) -> str:
    for name in ("live", "candidate"):
        cluster.execute(f"CREATE TABLE {database}.{name} {ON} (a UInt64) {REPLICATED}")
    return f"EXCHANGE TABLES {database}.live AND {database}.candidate {ON}"


def test_worker_that_crashes_before_its_mark_swaps_back(
    cluster: LocalCluster, database: str, swappable: str
) -> None:
    before = [uuid_of_live(cluster, database, node) for node in cluster.nodes]
    cluster.crash_worker_before_mark(2, "EXCHANGE")
    cluster.execute(swappable)
    after = [uuid_of_live(cluster, database, node) for node in cluster.nodes]
    assert after[0] != before[0]
    assert after[1] == before[1]  # executed twice
    assert [row["exception_code"] for row in cluster.queue_rows(swappable)] == [0, 0]


def test_crashed_worker_stays_dead_until_its_node_restarts(
    cluster: LocalCluster, database: str, swappable: str
) -> None:
    before = uuid_of_live(cluster, database, 2)
    cluster.crash_worker_before_mark(2, "EXCHANGE", restart_after=None)
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(swappable, settings={"distributed_ddl_task_timeout": 1})
    assert raised.value.code == 159
    assert not cluster.worker_alive(2)
    assert statuses(cluster, swappable) == ["Finished", "Inactive"]
    assert uuid_of_live(cluster, database, 2) != before
    cluster.kill_node(2)
    cluster.start_node(2)
    wait_until(lambda: statuses(cluster, swappable) == ["Finished", "Finished"])
    assert uuid_of_live(cluster, database, 2) == before


def test_restarted_worker_skips_what_it_has_marked(
    cluster: LocalCluster, database: str, swappable: str
) -> None:
    cluster.execute(swappable)
    after = uuid_of_live(cluster, database, 2)
    cluster.restart_worker(2)
    cluster.execute(f"CREATE TABLE {database}.marker {ON} (a UInt8) ENGINE = Memory")
    assert uuid_of_live(cluster, database, 2) == after


def test_crash_of_the_node_during_execution_leaves_the_entry_inactive(
    cluster: LocalCluster, database: str, swappable: str
) -> None:
    before = uuid_of_live(cluster, database, 2)
    held = cluster.hold_execution(2, "EXCHANGE", executed=True)
    exchange = InBackground(lambda: cluster.execute(swappable))
    held.wait_for_hit()
    assert uuid_of_live(cluster, database, 2) != before
    cluster.kill_node(2)
    wait_until(lambda: statuses(cluster, swappable) == ["Finished", "Inactive"])
    cluster.start_node(2)
    assert exchange.join() is None
    assert uuid_of_live(cluster, database, 2) == before


# --- The queue's table -----------------------------------------------------------------


@pytest.fixture
def finished_entry(cluster: LocalCluster, database: str) -> str:
    cluster.execute(
        f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory",
        settings={"log_comment": f"op-{database}"},
    )
    return cluster.queue_rows(f"{database}.t")[0]["entry"]


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (QueueStatus.REMOVING, None, None),
        (QueueStatus.UNKNOWN, None, None),
        (None, None, None),
        (QueueStatus.FINISHED, None, None),
        (QueueStatus.ACTIVE, 57, "Code: 57. DB::Exception: contradictory"),
        (QueueStatus.FINISHED, 0, "Code: 57. DB::Exception: contradictory"),
    ],
)
def test_queue_reports_what_it_is_told_to(
    cluster: LocalCluster,
    database: str,
    finished_entry: str,
    status: QueueStatus | None,
    code: int | None,
    text: str | None,
) -> None:
    cluster.report_queue_row(f"{database}.t", node=2, status=status, exception_code=code, exception_text=text)
    rows = cluster.query(
        "SELECT port, status, exception_code, exception_text FROM system.distributed_ddl_queue "
        f"WHERE entry = '{finished_entry}'"
    )
    by_port = {row.pop("port"): row for row in rows}
    good = {"status": "Finished", "exception_code": 0, "exception_text": ""}
    assert by_port[cluster.direct_tcp[0].port] == good
    assert by_port[cluster.direct_tcp[1].port] == {
        "status": status,
        "exception_code": code,
        "exception_text": text,
    }
    cluster.clear_faults()
    assert statuses(cluster, f"{database}.t") == ["Finished", "Finished"]


def test_hidden_rows(cluster: LocalCluster, database: str, finished_entry: str) -> None:
    cluster.hide_queue_rows(f"{database}.t", node=1)
    assert statuses(cluster, f"{database}.t") == [None, "Finished"]
    cluster.hide_queue_rows(f"{database}.t")
    assert cluster.queue_rows(f"{database}.t") == []


def test_lie_that_is_told_before_the_entry_exists(cluster: LocalCluster, database: str) -> None:
    cluster.report_queue_row(f"CREATE TABLE {database}", status=QueueStatus.UNKNOWN)
    cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    assert statuses(cluster, f"{database}.t") == ["Unknown", "Unknown"]


def test_duplicate_entry_is_not_executed(cluster: LocalCluster, database: str, swappable: str) -> None:
    cluster.execute(swappable, settings={"log_comment": f"op-{database}"})
    after = uuid_of_live(cluster, database, 1)
    original = cluster.queue_rows(swappable)[0]
    copy = cluster.duplicate_queue_entry(original["entry"])
    rows = [row for row in cluster.queue_rows(swappable) if row["entry"] == copy]
    assert [row["settings"] for row in rows] == [original["settings"]] * 2
    assert [row["status"] for row in rows] == ["Finished", "Finished"]
    cluster.execute(f"CREATE TABLE {database}.marker {ON} (a UInt8) ENGINE = Memory")
    assert uuid_of_live(cluster, database, 1) == after


def test_duplicate_entry_that_is_executed(cluster: LocalCluster, database: str, swappable: str) -> None:
    before = uuid_of_live(cluster, database, 1)
    cluster.execute(swappable)
    copy = cluster.duplicate_queue_entry(cluster.queue_rows(swappable)[0]["entry"], execute=True)
    wait_until(
        lambda: (
            {row["status"] for row in cluster.queue_rows(swappable) if row["entry"] == copy} == {"Finished"}
        )
    )
    assert uuid_of_live(cluster, database, 1) == before


def test_removed_entry_is_gone_and_not_executed_again(
    cluster: LocalCluster, database: str, finished_entry: str
) -> None:
    cluster.remove_queue_entry(finished_entry)
    assert cluster.queue_rows(f"{database}.t") == []
    cluster.restart_worker(1)
    cluster.execute(f"CREATE TABLE {database}.marker {ON} (a UInt8) ENGINE = Memory")


def test_entry_that_is_removed_while_its_initiator_waits(cluster: LocalCluster, database: str) -> None:
    cluster.pause_worker(2)
    create = InBackground(
        lambda: cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    )
    wait_until(lambda: statuses(cluster, f"{database}.t") == ["Finished", "Inactive"])
    cluster.remove_queue_entry(cluster.queue_rows(f"{database}.t")[0]["entry"])
    error = create.join()
    assert isinstance(error, ClickHouseError)
    assert error.code == 341


# --- Processes -------------------------------------------------------------------------


def test_killed_node_loses_nothing(cluster: LocalCluster, table: str) -> None:
    cluster.execute(f"INSERT INTO {table} SELECT 1", node=2)
    cluster.kill_node(2)
    assert cluster.running() == {"zookeeper": True, "n1": True, "n2": False}
    with pytest.raises(ConnectionError):
        cluster.execute("SELECT 1", node=2, observed=True)
    assert cluster.statements("SELECT 1")[-1].outcome is Outcome.NODE_DOWN
    assert [cluster.query("SELECT getMacro('replica') AS r", node="load_balancer") for _ in range(2)] == [
        [{"r": "r1"}],
        [{"r": "r1"}],
    ]
    cluster.execute(f"INSERT INTO {table} SELECT 2", node=1)
    cluster.start_node(2)
    cluster.heal()
    cluster.execute(f"SYSTEM SYNC REPLICA {table}", node=2)
    assert cluster.scalar(f"SELECT sum(a) FROM {table}", node=2) == 3


def test_initiator_that_dies_while_it_waits_cuts_the_connection(cluster: LocalCluster, database: str) -> None:
    cluster.pause_worker(2)
    create = InBackground(
        lambda: cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory", observed=True)
    )
    wait_until(lambda: statuses(cluster, f"{database}.t") == ["Finished", "Inactive"])
    cluster.kill_node(1)
    assert isinstance(create.join(), ConnectionError)
    cluster.resume_worker(2)
    wait_until(lambda: statuses(cluster, f"{database}.t") == ["Finished", "Finished"])


def test_node_that_is_shut_down_in_order(cluster: LocalCluster, table: str) -> None:
    cluster.execute(f"INSERT INTO {table} SELECT 1", node=2)
    cluster.stop_node(2)
    assert not cluster.running()["n2"]
    cluster.start_node(2)
    assert cluster.scalar(f"SELECT count() FROM {table}", node=2) == 1


def test_zookeeper_outage(cluster: LocalCluster, table: str, database: str) -> None:
    cluster.execute(
        f"CREATE TABLE {database}.control (k String) ENGINE = KeeperMap('/{database}') PRIMARY KEY k"
    )
    cluster.stop_zookeeper()
    assert cluster.scalar(f"SELECT count() FROM {table}") == 0
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(f"SELECT * FROM {database}.control", settings={"keeper_max_retries": 0})
    assert raised.value.code == 999
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(f"DROP TABLE {table} {ON}")
    assert raised.value.code == 999
    cluster.heal()
    cluster.execute(f"INSERT INTO {table} SELECT 1")
    assert cluster.query(f"SELECT * FROM {database}.control") == []
    cluster.execute(f"CREATE TABLE {database}.after {ON} (a UInt8) ENGINE = Memory")
