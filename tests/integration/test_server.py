"""The HTTP boundary against real servers: what was executed, and how often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from tests.cluster import LocalCluster
from tests.cluster.spec import APP_USER, CLUSTER_NAME, Endpoint
from tests.integration import control

pytestmark = pytest.mark.cluster


class Target:
    """A plain table on the first node, and a connection to it."""

    def __init__(self, cluster: LocalCluster, database: str) -> None:
        self.cluster = cluster
        self.table = f"{database}.numbers"
        self.server = control.server(cluster.endpoints[0])
        cluster.execute(f"CREATE TABLE {self.table} (n UInt64) ENGINE = MergeTree ORDER BY n")
        self.mark = cluster.last_statement()

    def rows(self) -> int:
        return int(self.cluster.scalar(f"SELECT count() FROM {self.table}"))

    def arrived(self) -> int:
        """How many INSERT statements have come to the gateway."""
        return len(self.cluster.statements("^INSERT", since=self.mark))


@pytest.fixture
def target(cluster: LocalCluster, database: str) -> Target:
    return Target(cluster, database)


def test_an_insert_is_acknowledged_with_its_rows(target: Target) -> None:
    reply = target.server.once(f"INSERT INTO {target.table} SELECT number FROM numbers(5)")
    assert reply.summary["written_rows"] == "5"
    assert reply.server_name
    assert target.rows() == 5


def test_a_lost_reply_is_not_sent_again_though_the_statement_was_executed(target: Target) -> None:
    target.cluster.drop_response(None, "^INSERT")
    with pytest.raises(ReplyLost):
        target.server.once(f"INSERT INTO {target.table} SELECT number FROM numbers(5)")
    assert (target.rows(), target.arrived()) == (5, 1)


def test_a_cut_before_the_execution_is_not_sent_again(target: Target) -> None:
    target.cluster.refuse(None, "^INSERT")
    with pytest.raises(ReplyLost):
        target.server.once(f"INSERT INTO {target.table} SELECT number FROM numbers(5)")
    assert (target.rows(), target.arrived()) == (0, 1)


def test_a_slow_answer_is_a_lost_reply(target: Target) -> None:
    target.cluster.delay(None, "^INSERT", 1.5, executed=True)
    with pytest.raises(ReplyLost):
        target.server.once(f"INSERT INTO {target.table} SELECT 1", timeout=0.5)
    assert target.arrived() == 1


def test_a_server_that_is_down_gets_nothing_and_no_other_one_does(target: Target) -> None:
    server = Server(
        ConnectionSettings((Endpoint("127.0.0.1", 1), target.cluster.endpoints[0]), user=APP_USER)
    )
    with pytest.raises(ConnectFailed):
        server.once(f"INSERT INTO {target.table} SELECT 1", pinned=0)
    assert target.arrived() == 0


def test_an_error_of_the_server_has_its_code_and_name(target: Target) -> None:
    with pytest.raises(ServerError) as caught:
        target.server.once(f"INSERT INTO {target.table}_missing SELECT 1")
    assert (caught.value.code, caught.value.name) == (60, "UNKNOWN_TABLE")
    assert "numbers" not in str(caught.value)


def test_an_error_in_the_middle_of_a_query_is_an_error(target: Target) -> None:
    with pytest.raises(ServerError) as caught:
        target.server.read("SELECT throwIf(number = 500000, 'no') FROM numbers(1000000)")
    assert caught.value.name == "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"


def test_the_error_of_a_replica_is_told_apart(target: Target) -> None:
    target.cluster.fail_execution(2, "CREATE TABLE")
    with pytest.raises(ServerError) as caught:
        target.server.once(
            f"CREATE TABLE {target.table}_2 ON CLUSTER {CLUSTER_NAME} (a UInt8) "
            f"ENGINE = {control.REPLICATED} ORDER BY a"
        )
    assert caught.value.remote_host_error
    assert caught.value.code == 164


def test_our_own_check_speaks_on_a_real_server(target: Target) -> None:
    with pytest.raises(ServerError) as caught:
        target.server.once(
            f"INSERT INTO {target.table} SELECT throwIf(1, 'dpone: a value does not fit column `n`')"
        )
    assert caught.value.own_message == "a value does not fit column `n`"


def test_a_streamed_insert(target: Target) -> None:
    chunks = (f"{n}\n".encode() for n in range(1_000))
    reply = target.server.once(f"INSERT INTO {target.table} FORMAT TSV", body=chunks)
    assert reply.summary["written_rows"] == "1000"
    assert target.rows() == 1_000


def test_a_source_that_fails_half_way_leaves_nothing_that_looks_complete(target: Target) -> None:
    class SourceBroke(Exception):
        pass

    def rows() -> Iterator[bytes]:
        for n in range(100):
            yield f"{n}\n".encode()
        raise SourceBroke

    with pytest.raises(SourceBroke):
        target.server.once(f"INSERT INTO {target.table} FORMAT TSV", body=rows())
    assert target.rows() == 0
    assert target.arrived() == 1


def test_a_value_that_can_not_be_parsed_is_an_error_of_the_server(target: Target) -> None:
    with pytest.raises(ServerError):
        target.server.once(f"INSERT INTO {target.table} FORMAT TSV", body=iter([b"1\n", b"x\n"]))
    assert target.rows() == 0


def test_numbers_are_exact(target: Target) -> None:
    reply = target.server.read(
        "SELECT toUInt128('340282366920938463463374607431768211455') AS a, toInt64(-9223372036854775808) AS b, "
        "toUInt64(18446744073709551615) AS c, toDecimal128('0.1000000000000000000000000000000000001', 37) AS d, "
        "nan AS e, NULL AS f, [1, 2] AS g, map('k', 'v') AS h"
    )
    assert reply.dicts() == [
        {
            "a": 2**128 - 1,
            "b": -(2**63),
            "c": 2**64 - 1,
            "d": "0.1000000000000000000000000000000000001",
            "e": "nan",
            "f": None,
            "g": [1, 2],
            "h": {"k": "v"},
        }
    ]


def test_a_result_without_rows_has_its_columns(target: Target) -> None:
    reply = target.server.read("SELECT 1 AS a, 'x' AS b WHERE 0")
    assert (reply.columns, reply.rows) == (("a", "b"), [])


def test_reads_go_on_when_a_replica_is_down(target: Target) -> None:
    server = control.server(*target.cluster.endpoints)
    target.cluster.kill_node(1)
    assert server.read("SELECT 1 AS one").dicts() == [{"one": 1}]


def test_a_wrong_password_is_an_error_without_the_password(target: Target) -> None:
    server = Server(ConnectionSettings((target.cluster.endpoints[0],), user=APP_USER, password="no-such-pw"))
    with pytest.raises(ServerError) as caught:
        server.read("SELECT 1")
    assert caught.value.code in (194, 516)
    assert "no-such-pw" not in str(caught.value)
