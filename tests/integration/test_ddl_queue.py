"""One statement through the real queue: sent once, found by its token, read back as the same value."""

from __future__ import annotations

import uuid

import pytest

from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.replicas import next_sequence
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import Reply
from tests.cluster import LocalCluster
from tests.cluster.client import wait_until
from tests.cluster.ddl_queue import QueueStatus
from tests.cluster.spec import CLUSTER_NAME, Endpoint
from tests.integration import control

pytestmark = pytest.mark.cluster


class Sender:
    """Sends under fresh tokens through one endpoint."""

    def __init__(self, cluster: LocalCluster, database: str, *endpoints: Endpoint) -> None:
        # First of all, so that no token of these tests looks like a trace of a lost control table.
        control.authority_id(cluster)
        self.cluster = cluster
        self.database = database
        self.queue = DdlQueue(control.server(*(endpoints or cluster.endpoints[:1])), task_timeout=2)
        self.mark = cluster.last_statement()

    def permit(self) -> Permit:
        return Permit(token=f"dpone1:test:publish:1:{uuid.uuid4().hex}", epoch=1, write_id="w")

    def exchange(self) -> Exchange:
        return Exchange(CLUSTER_NAME, self.database, "orders", "candidate")

    def sent(self) -> list[str]:
        """Texts of the ON CLUSTER statements that have come to the gateway."""
        return [s.text for s in self.cluster.statements("ON CLUSTER", since=self.mark)]


@pytest.fixture
def sender(cluster: LocalCluster, database: str) -> Sender:
    control.create_table(cluster, database, "orders", rows=1)
    control.create_table(cluster, database, "candidate", rows=2)
    return Sender(cluster, database)


def swapped(sender: Sender, before: list[str]) -> bool:
    return control.uuids(sender.cluster, sender.database, "orders") == before


def test_an_exchange_is_sent_once_and_found_by_its_token(sender: Sender) -> None:
    candidate = control.uuids(sender.cluster, sender.database, "candidate")
    permit = sender.permit()
    assert sender.queue.send(permit, sender.exchange(), permit.token) == Reply(
        answered=True, exception_code=0
    )
    assert permit.used
    assert swapped(sender, candidate)
    assert len(sender.sent()) == 1

    sequence, rows = sender.queue.read(permit.token)
    assert sequence < next_sequence()
    assert {row.entry for row in rows} == {rows[0].entry}
    assert {row.statement for row in rows} == {sender.exchange()}
    assert {(row.host, row.port) for row in rows} == {tuple(e) for e in sender.cluster.direct_tcp}
    assert {(row.status, row.exception_code, row.exception_text) for row in rows} == {("Finished", 0, "")}


def test_settings_of_the_statement(sender: Sender) -> None:
    permit = sender.permit()
    sender.queue.send(permit, sender.exchange(), permit.token)
    [statement] = sender.cluster.statements("^EXCHANGE", since=sender.mark)
    assert statement.log_comment == permit.token
    assert statement.query_id not in ("", permit.token)
    assert statement.settings["distributed_ddl_output_mode"] == "throw"
    assert statement.settings["distributed_ddl_task_timeout"] == "2"
    assert statement.settings["distributed_ddl_entry_format_version"] == "5"
    assert statement.settings["skip_unavailable_shards"] == "0"


@pytest.mark.parametrize("name", ["plain", "with space", "back`tick", "quo'te\"s", "ünïcode", "back\\slash"])
def test_any_name_comes_back_as_the_same_statement(sender: Sender, name: str) -> None:
    control.create_table(sender.cluster, sender.database, name)
    statements: list[Statement] = [
        Exchange(CLUSTER_NAME, sender.database, name, "candidate"),
        Rename(CLUSTER_NAME, sender.database, name, f"{name} 2"),
        Drop(CLUSTER_NAME, sender.database, f"{name} 2"),
    ]
    for statement in statements:
        permit = sender.permit()
        assert sender.queue.send(permit, statement, permit.token).exception_code == 0
        _, rows = sender.queue.read(permit.token)
        assert [row.statement for row in rows] == [statement] * 2


def test_a_drop_that_finds_nothing_succeeds(sender: Sender) -> None:
    permit = sender.permit()
    drop = Drop(CLUSTER_NAME, sender.database, "nothing")
    assert sender.queue.send(permit, drop, permit.token) == Reply(answered=True, exception_code=0)


# ---- replies that prove nothing


@pytest.mark.parametrize("when", ["enqueue", "execution"])
def test_a_lost_reply_is_a_reply_and_nothing_is_sent_again(sender: Sender, when: str) -> None:
    candidate = control.uuids(sender.cluster, sender.database, "candidate")
    sender.cluster.drop_response(None, "^EXCHANGE", after="enqueue" if when == "enqueue" else "execution")
    permit = sender.permit()
    assert sender.queue.send(permit, sender.exchange(), permit.token) == Reply(False, None)
    wait_until(lambda: swapped(sender, candidate))
    assert len(sender.sent()) == 1
    _, rows = sender.queue.read(permit.token)
    assert len({row.entry for row in rows}) == 1


def test_a_statement_that_never_arrived_looks_like_a_lost_reply(sender: Sender) -> None:
    live = control.uuids(sender.cluster, sender.database, "orders")
    sender.cluster.refuse(None, "^EXCHANGE")
    permit = sender.permit()
    assert sender.queue.send(permit, sender.exchange(), permit.token) == Reply(False, None)
    assert permit.used
    assert swapped(sender, live)
    assert sender.queue.read(permit.token)[1] == ()


def test_a_slow_replica_gives_an_answer_and_its_row_stays_open(sender: Sender) -> None:
    sender.cluster.pause_worker(2)
    permit = sender.permit()
    reply = sender.queue.send(permit, sender.exchange(), permit.token)
    assert reply == Reply(answered=True, exception_code=159, name="TIMEOUT_EXCEEDED")
    _, rows = sender.queue.read(permit.token)
    by_port = {row.port: row for row in rows}
    done, waiting = (by_port[endpoint.port] for endpoint in sender.cluster.direct_tcp)
    assert (done.status, done.exception_code, done.exception_text) == ("Finished", 0, "")
    # NULL is not zero: nothing is known of this one.
    assert (waiting.status, waiting.exception_code, waiting.exception_text) == ("Inactive", None, None)


def test_a_failing_replica_is_an_answer_with_its_code(sender: Sender) -> None:
    sender.cluster.fail_execution(2, "EXCHANGE")
    permit = sender.permit()
    reply = sender.queue.send(permit, sender.exchange(), permit.token)
    # The same code from the contacted server would prove that nothing was queued; from a replica it doesn't.
    assert (reply.answered, reply.exception_code, reply.refused) == (True, 164, False)
    _, rows = sender.queue.read(permit.token)
    assert sorted(row.exception_code or 0 for row in rows) == [0, 164]
    assert all(row.exception_text for row in rows if row.exception_code)


def test_a_statement_that_is_refused_before_it_is_queued_is_told_apart(sender: Sender) -> None:
    permit = sender.permit()
    nowhere = Exchange("nowhere", sender.database, "orders", "candidate")
    reply = sender.queue.send(permit, nowhere, permit.token)
    assert (reply.answered, reply.exception_code, reply.refused) == (True, 701, True)
    permit = sender.permit()
    forbidden = Drop(CLUSTER_NAME, "system", "clusters")
    reply = sender.queue.send(permit, forbidden, permit.token)
    assert (reply.answered, reply.exception_code, reply.refused) == (True, 497, True)
    assert sender.queue.read(permit.token)[1] == ()


@pytest.mark.parametrize("code", [999, 159, 209, 241, 202, 60])
def test_an_error_that_may_come_after_the_queueing_refuses_nothing(sender: Sender, code: int) -> None:
    sender.cluster.answer_error(None, "^EXCHANGE", code, executed=True)
    permit = sender.permit()
    reply = sender.queue.send(permit, sender.exchange(), permit.token)
    assert (reply.answered, reply.exception_code, reply.refused) == (True, code, False)
    assert sender.queue.read(permit.token)[1]


# ---- the permit


def test_without_a_connection_the_permit_is_not_used(sender: Sender) -> None:
    queue = DdlQueue(control.server(Endpoint("127.0.0.1", 1)))
    permit = sender.permit()
    with pytest.raises(Stopped) as caught:
        queue.send(permit, sender.exchange(), permit.token)
    assert caught.value.stop.code is Code.SERVER_UNAVAILABLE
    assert not permit.used
    assert sender.queue.send(permit, sender.exchange(), permit.token).exception_code == 0


def test_a_used_permit_sends_nothing(sender: Sender) -> None:
    permit = sender.permit()
    sender.queue.send(permit, sender.exchange(), permit.token)
    with pytest.raises(RuntimeError, match="one send"):
        sender.queue.send(permit, sender.exchange(), permit.token)
    assert len(sender.sent()) == 1


def test_a_permit_for_another_token_sends_nothing(sender: Sender) -> None:
    permit = sender.permit()
    with pytest.raises(RuntimeError, match="another statement"):
        sender.queue.send(permit, sender.exchange(), "other-token")
    assert sender.sent() == []
    assert not permit.used


def test_whatever_fails_after_the_permit_is_used_is_a_lost_reply(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a defect behind the first byte")

    monkeypatch.setattr("airflow_provider_dpone.clickhouse.server._server_error", broken)
    permit = sender.permit()
    assert sender.queue.send(permit, sender.exchange(), permit.token) == Reply(False, None)
    assert permit.used


# ---- reading


def test_an_unknown_token_has_no_rows(sender: Sender) -> None:
    assert sender.queue.read("dpone1:none")[1] == ()


@pytest.mark.parametrize("more", [1, 1_500], ids=["named", "more than a statement names"])
def test_many_tokens_are_read_in_one_pass(sender: Sender, more: int) -> None:
    ours = [sender.permit(), sender.permit()]
    for permit in ours:
        sender.queue.send(permit, sender.exchange(), permit.token)
    unknown = [f"dpone1:test:publish:1:{n:032x}" for n in range(more)]
    before = int(sender.cluster.scalar("SELECT toUnixTimestamp(now())"))
    read_at, rows = sender.queue.read_many([*unknown, *(permit.token for permit in ours)])
    assert before <= read_at <= before + 60
    for permit in ours:
        assert sorted(rows[permit.token], key=str) == sorted(sender.queue.read(permit.token)[1], key=str)
        assert len(rows[permit.token]) == 2
    assert {rows[token] for token in unknown} == {()}


def test_two_entries_under_one_token_are_both_shown(sender: Sender) -> None:
    permit = sender.permit()
    sender.queue.send(permit, sender.exchange(), permit.token)
    first = sender.queue.read(permit.token)[1][0].entry
    second = sender.cluster.duplicate_queue_entry(first)
    assert {row.entry for row in sender.queue.read(permit.token)[1]} == {first, second}


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [("Removing", None, None), ("Unknown", None, None), (None, None, None), ("Finished", None, None)],
)
def test_a_row_is_read_as_it_is(
    sender: Sender, status: QueueStatus | None, code: int | None, text: str | None
) -> None:
    permit = sender.permit()
    sender.queue.send(permit, sender.exchange(), permit.token)
    sender.cluster.report_queue_row(
        "EXCHANGE", node=2, status=status, exception_code=code, exception_text=text
    )
    rows = {row.port: row for row in sender.queue.read(permit.token)[1]}
    row = rows[sender.cluster.direct_tcp[1].port]
    assert (row.status, row.exception_code, row.exception_text) == (status, code, text)


def test_a_statement_of_another_shape_under_our_token_is_none_of_ours(sender: Sender) -> None:
    token = sender.permit().token
    sender.cluster.execute(
        f"TRUNCATE TABLE {sender.database}.candidate ON CLUSTER {CLUSTER_NAME}",
        settings={"log_comment": token},
    )
    assert {row.statement for row in sender.queue.read(token)[1]} == {None}


def test_what_blocks_the_queue_and_how_much_is_newer(sender: Sender) -> None:
    sender.cluster.pause_worker(2)
    foreign = {"distributed_ddl_task_timeout": 0}
    table = f"{sender.database}.other"
    sender.cluster.execute(
        f"CREATE TABLE {table} ON CLUSTER {CLUSTER_NAME} (a UInt8) ENGINE = Memory", settings=foreign
    )
    permit = sender.permit()
    sender.queue.send(permit, sender.exchange(), permit.token)
    for _ in range(2):
        sender.cluster.execute(f"DROP TABLE IF EXISTS {table} ON CLUSTER {CLUSTER_NAME}", settings=foreign)

    report = sender.queue.report(permit.token)
    assert report.newer_entries == 2
    [ahead] = report.ahead
    assert (ahead.host, ahead.port) == tuple(sender.cluster.direct_tcp[1])
    assert (ahead.status, ahead.ours) == ("Inactive", False)
    assert ahead.since > 1_500_000_000


def test_a_queue_that_can_not_be_read_is_a_stop(sender: Sender) -> None:
    sender.cluster.answer_error(None, "distributed_ddl_queue", 999)
    with pytest.raises(Stopped) as caught:
        sender.queue.read("dpone1:any")
    assert caught.value.stop.code is Code.AUTHORITY_UNAVAILABLE


def test_one_look_at_the_queue_is_one_request(sender: Sender) -> None:
    before = sender.cluster.request_count()
    sender.queue.report("dpone1:any")
    assert sender.cluster.request_count() == before + 1
