"""Emulated ON CLUSTER statements: answers, errors, timeouts, grants and the queue's table."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster import (
    APP_PASSWORD,
    APP_USER,
    CLUSTER_NAME,
    ClickHouseError,
    ClusterClient,
    LocalCluster,
    User,
    wait_until,
)
from tests.cluster.ddl_queue import QUEUE_COLUMNS
from tests.cluster.leftovers import processes_of

pytestmark = pytest.mark.cluster

ON = f"ON CLUSTER {CLUSTER_NAME}"


def refused(cluster: ClusterClient, sql: str, **arguments: object) -> ClickHouseError:
    with pytest.raises(ClickHouseError) as raised:
        cluster.execute(sql, **arguments)  # type: ignore[arg-type]
    return raised.value


def test_answer_has_one_row_per_host(cluster: LocalCluster, database: str) -> None:
    rows = cluster.query(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    assert {(row["host"], row["port"]) for row in rows} == set(cluster.direct_tcp)
    assert [(row["status"], row["error"]) for row in rows] == [(0, "")] * 2
    assert [row["num_hosts_remaining"] for row in rows] == [1, 0]


def test_format_clause_is_obeyed(cluster: LocalCluster, database: str) -> None:
    body = cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory FORMAT CSVWithNames")
    assert body.startswith('"host","port","status"')
    assert "FORMAT" not in cluster.queue_rows(f"{database}.t")[0]["query"]


@pytest.mark.parametrize(
    ("sql", "code", "http_status"),
    [
        ("DROP TABLE {db}.missing ON CLUSTER analytics", 60, 404),
        ("CREATE TABLE {db}.t ON CLUSTER nowhere (a UInt8) ENGINE = Memory", 701, 500),
        ("CREATE TABLE {db}.t ON CLUSTER analytics (a UInt8", 62, 400),
        ("DROP TABLE {db}.t ON CLUSTER analytics SETTINGS log_comment = 'x'", 48, 501),
    ],
)
def test_errors_have_code_and_http_status_of_the_server(
    cluster: LocalCluster, database: str, sql: str, code: int, http_status: int
) -> None:
    error = refused(cluster, sql.format(db=database))
    assert (error.code, error.http_status) == (code, http_status)
    assert str(error).startswith(f"Code: {code}. DB::Exception: ")
    assert str(error).count(f"Code: {code}.") == (2 if code == 60 else 1)  # 60 comes from a host, and says so


def test_host_error_is_named_and_the_other_host_still_executes(cluster: LocalCluster, database: str) -> None:
    cluster.execute(f"CREATE TABLE {database}.t (a UInt8) ENGINE = Memory", node=2)
    error = refused(cluster, f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory")
    assert error.code == 57
    assert f"There was an error on [{cluster.direct_tcp[1]}]: Code: 57. DB::Exception: " in str(error)
    assert cluster.scalar(f"EXISTS {database}.t", node=1) == 1
    by_port = {row["port"]: row for row in cluster.queue_rows(f"{database}.t")}
    assert [by_port[endpoint.port]["exception_code"] for endpoint in cluster.direct_tcp] == [0, 57]
    assert {row["status"] for row in by_port.values()} == {"Finished"}


def test_timeout_is_159_and_the_statement_goes_on(cluster: LocalCluster, database: str) -> None:
    cluster.pause_worker(2)
    sql = f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory"
    error = refused(cluster, sql, settings={"distributed_ddl_task_timeout": 1})
    assert (error.code, error.http_status) == (159, 408)
    assert (
        "is not finished on 1 of 2 hosts (0 of them are currently executing the task, 1 are inactive)"
        in str(error)
    )
    assert cluster.scalar(f"EXISTS {database}.t", node=2) == 0
    cluster.resume_worker(2)
    wait_until(lambda: cluster.scalar(f"EXISTS {database}.t", node=2) == 1)


def test_timeout_of_zero_returns_at_once_without_rows(cluster: LocalCluster, database: str) -> None:
    cluster.pause_worker(1)
    cluster.pause_worker(2)
    body = cluster.execute(
        f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory",
        settings={"distributed_ddl_task_timeout": 0},
    )
    assert body == ""
    assert {row["status"] for row in cluster.queue_rows(f"{database}.t")} == {"Inactive"}


@pytest.mark.parametrize("mode", ["null_status_on_timeout", "never_throw"])
def test_modes_that_answer_a_timeout_with_null(cluster: LocalCluster, database: str, mode: str) -> None:
    cluster.pause_worker(2)
    rows = cluster.query(
        f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory",
        settings={"distributed_ddl_task_timeout": 1, "distributed_ddl_output_mode": mode},
    )
    assert [(row["port"], row["status"], row["error"]) for row in rows] == [
        (cluster.direct_tcp[0].port, 0, ""),
        (cluster.direct_tcp[1].port, None, None),
    ]


def test_never_throw_answers_an_error_with_a_row(cluster: LocalCluster, database: str) -> None:
    rows = cluster.query(
        f"DROP TABLE {database}.missing {ON}", settings={"distributed_ddl_output_mode": "never_throw"}
    )
    assert [row["status"] for row in rows] == [60, 60]
    assert all("does not exist" in row["error"] for row in rows)


def test_mode_none_answers_nothing_but_still_fails(cluster: LocalCluster, database: str) -> None:
    none = {"distributed_ddl_output_mode": "none"}
    assert cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory", settings=none) == ""
    assert refused(cluster, f"DROP TABLE {database}.missing {ON}", settings=none).code == 60


def test_queue_table_has_the_columns_of_the_real_one(cluster: LocalCluster) -> None:
    described = cluster.query(
        "SELECT name, type FROM system.columns WHERE database = 'system' AND "
        "table = 'distributed_ddl_queue' ORDER BY position"
    )
    real = ", ".join(f"{row['name']} {row['type']}" for row in described)
    assert real == QUEUE_COLUMNS


def test_queue_table_is_read_like_any_other(cluster: LocalCluster, database: str) -> None:
    settings = {"log_comment": f"op-{database}"}
    cluster.execute(f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory", settings=settings)
    where = f"settings['log_comment'] = 'op-{database}'"
    rows = cluster.query(
        "SELECT entry, q.port AS port, status, exception_code, exception_text, cluster, query, "
        "query_finish_time >= query_create_time AS ordered, query_duration_ms < 10000 AS quick "
        f"FROM system.distributed_ddl_queue AS q WHERE {where}",
        user=APP_USER,
        password=APP_PASSWORD,
    )
    assert {row["port"] for row in rows} == {endpoint.port for endpoint in cluster.direct_tcp}
    assert {(row["status"], row["exception_code"], row["exception_text"]) for row in rows} == {
        ("Finished", 0, "")
    }
    assert {(row["cluster"], row["ordered"], row["quick"]) for row in rows} == {(CLUSTER_NAME, 1, 1)}
    for source in (
        f"clusterAllReplicas('{CLUSTER_NAME}', system.distributed_ddl_queue)",
        f"clusterAllReplicas('{CLUSTER_NAME}', system, distributed_ddl_queue)",
        f"clusterAllReplicas('{CLUSTER_NAME}', view(SELECT * FROM system.distributed_ddl_queue))",
    ):
        counted = cluster.query(
            f"SELECT count() AS rows, uniqExact(entry) AS entries FROM {source} WHERE {where}",
            user=APP_USER,
            password=APP_PASSWORD,
        )
        assert counted == [{"rows": 4, "entries": 1}]


def test_entry_has_only_the_settings_that_the_caller_changed(cluster: LocalCluster, database: str) -> None:
    cluster.execute(
        f"CREATE TABLE t {ON} (a UInt8) ENGINE = Memory",
        settings={
            "log_comment": "it's, a = b",
            "max_threads": 3,
            "database": database,
            "query_id": f"q-{database}",
        },
    )
    row = cluster.queue_rows(f"{database}.t")[0]
    assert row["settings"] == {"log_comment": "it's, a = b", "max_threads": "3"}


def test_entry_of_an_unreachable_host_is_executed_when_it_returns(
    cluster: LocalCluster, database: str
) -> None:
    cluster.kill_node(2)
    error = refused(
        cluster,
        f"CREATE TABLE {database}.t {ON} (a UInt8) ENGINE = Memory",
        settings={"distributed_ddl_task_timeout": 1},
    )
    assert error.code == 159
    rows = {row["port"]: row["status"] for row in cluster.queue_rows(f"{database}.t")}
    assert rows == {cluster.direct_tcp[0].port: "Finished", cluster.direct_tcp[1].port: "Inactive"}
    only_active = {"distributed_ddl_output_mode": "throw_only_active"}
    assert (
        len(cluster.query(f"CREATE TABLE {database}.u {ON} (a UInt8) ENGINE = Memory", settings=only_active))
        == 1
    )
    cluster.start_node(2)
    wait_until(
        lambda: (
            cluster.scalar(f"SELECT count() FROM system.tables WHERE database = '{database}'", node=2) == 2
        )
    )


GRANTS = {
    "create_table": ("CREATE TABLE", "CREATE TABLE {db}.n ON CLUSTER analytics (a UInt8) ENGINE = Memory"),
    "drop_table": ("DROP TABLE", "DROP TABLE {db}.a ON CLUSTER analytics"),
    "insert": ("INSERT", "EXCHANGE TABLES {db}.a AND {db}.b ON CLUSTER analytics"),
    "select": ("SELECT", "RENAME TABLE {db}.a TO {db}.c ON CLUSTER analytics"),
    "alter_update": ("ALTER UPDATE", "ALTER TABLE {db}.a ON CLUSTER analytics UPDATE a = 1 WHERE 1"),
    "create_database": ("CREATE DATABASE", "CREATE DATABASE {db}_n ON CLUSTER analytics"),
    "cluster": ("CLUSTER", "DROP TABLE {db}.a ON CLUSTER analytics"),
}
_ALL = ("CREATE TABLE", "DROP TABLE", "INSERT", "SELECT", "ALTER UPDATE", "CREATE DATABASE")


def _user_without(name: str) -> User:
    missing = GRANTS[name][0]
    grants = [f"GRANT {privilege} ON mart*.*" for privilege in _ALL if privilege != missing]
    if missing != "CLUSTER":
        grants.append("GRANT CLUSTER ON *.*")
    return User(f"without_{name}", tuple(grants))


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    """A cluster without <secret>, with external replication and with one user for each missing grant."""
    users = [_user_without(name) for name in GRANTS]
    with LocalCluster(internal_replication=False, secret=False, users=users) as running:
        running.execute("CREATE DATABASE mart_g ON CLUSTER analytics")
        for name in ("a", "b"):
            running.execute(
                f"CREATE TABLE mart_g.{name} ON CLUSTER analytics (a UInt8) ENGINE = MergeTree ORDER BY a"
            )
        yield running
    assert processes_of(str(running.folder)) == []
    assert not running.folder.exists()


@pytest.mark.parametrize("name", GRANTS)
def test_missing_grant_is_497_and_nothing_is_enqueued(guarded: LocalCluster, name: str) -> None:
    privilege, sql = GRANTS[name]
    before = len(guarded.queue_rows())
    error = refused(guarded, sql.format(db="mart_g"), user=f"without_{name}")
    assert (error.code, error.http_status) == (
        497,
        refused(guarded, "SELECT * FROM mart_g.a", user="without_select").http_status,
    )
    assert f"without_{name}: Not enough privileges" in str(error)
    assert f"the grant {privilege} ON " in str(error)
    assert len(guarded.queue_rows()) == before


def test_reading_the_queue_needs_a_grant(guarded: LocalCluster) -> None:
    error = refused(guarded, "SELECT count() FROM system.distributed_ddl_queue", user="without_cluster")
    assert error.code == 497
    assert "SELECT ON system.distributed_ddl_queue" in str(error)


def test_wrong_password_is_the_servers_own_error(guarded: LocalCluster) -> None:
    for sql in ("SELECT 1", "SELECT count() FROM system.distributed_ddl_queue", f"DROP TABLE mart_g.a {ON}"):
        assert refused(guarded, sql, user=APP_USER, password="wrong").code == 516


def test_without_secret_other_replicas_run_it_as_default(guarded: LocalCluster) -> None:
    # currentUser() is evaluated where the query begins, so the other replica's log is asked instead.
    query = "SELECT * FROM clusterAllReplicas('analytics', system.one)"
    guarded.query(query, user=APP_USER, password=APP_PASSWORD, settings={"query_id": "without-secret"})
    guarded.execute("SYSTEM FLUSH LOGS", node=2)
    users = guarded.query(
        "SELECT DISTINCT user, initial_user FROM system.query_log WHERE initial_query_id = 'without-secret'",
        node=2,
    )
    assert users == [{"user": "default", "initial_user": APP_USER}]


def test_external_replication_is_what_the_servers_say(guarded: LocalCluster) -> None:
    flags = guarded.query(
        "SELECT DISTINCT internal_replication AS flag FROM system.clusters WHERE cluster = 'analytics'"
    )
    assert flags == [{"flag": 0}]


def test_waiting_is_not_polling(cluster: LocalCluster, database: str) -> None:
    started = time.monotonic()
    for number in range(5):
        cluster.execute(f"CREATE TABLE {database}.t{number} {ON} (a UInt8) ENGINE = Memory")
    assert time.monotonic() - started < 4.0  # the poll that backs the watches up takes a second each
