"""Our statements, as they are sent and as a queue entry shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dpone.clickhouse.ddl_queue import (
    DdlQueue,
    parse_statement,
    render,
)
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.queue import NotSeen, QueueRow
from airflow_provider_dpone.publication.queue_report import QueueReport, Unfinished, blockers
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement
from tests.unit.builders import ACTIVE, PENDING, in_phase, inventory, observation, queue_row, stored

EXCHANGE = Exchange("analytics", "mart", "orders", "orders__dpone_1")
RENAME = Rename("analytics", "mart", "orders__dpone_1", "orders")
DROP = Drop("analytics", "mart", "orders__dpone_1")

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


def test_what_is_sent() -> None:
    assert render(EXCHANGE) == (
        "EXCHANGE TABLES `mart`.`orders` AND `mart`.`orders__dpone_1` ON CLUSTER `analytics`"
    )
    assert render(RENAME) == "RENAME TABLE `mart`.`orders__dpone_1` TO `mart`.`orders` ON CLUSTER `analytics`"
    assert render(DROP) == "DROP TABLE IF EXISTS `mart`.`orders__dpone_1` ON CLUSTER `analytics`"


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("EXCHANGE TABLES mart.orders AND mart.orders__dpone_1 ON CLUSTER analytics", EXCHANGE),
        ("RENAME TABLE mart.orders__dpone_1 TO mart.orders ON CLUSTER analytics", RENAME),
        ("DROP TABLE IF EXISTS mart.orders__dpone_1 ON CLUSTER analytics", DROP),
        ('EXCHANGE TABLES "mart".orders AND mart."orders__dpone_1" ON CLUSTER analytics', EXCHANGE),
        (
            "/* ddl_entry=query-1 */ RENAME TABLE mart.orders__dpone_1 TO mart.orders ON CLUSTER analytics",
            RENAME,
        ),
        ("EXCHANGE TABLES d.TO AND d.AND ON CLUSTER ON", Exchange("ON", "d", "TO", "AND")),
        ("DROP TABLE IF EXISTS `a b`.`c\\`d` ON CLUSTER `my-c`", Drop("my-c", "a b", "c`d")),
    ],
)
def test_a_text_of_the_server_is_read_back(text: str, statement: Statement) -> None:
    assert parse_statement(text) == statement


@pytest.mark.parametrize(
    "text",
    [
        "",
        "EXCHANGE TABLES mart.orders AND mart.orders__dpone_1",
        "EXCHANGE TABLES mart.orders AND other.orders__dpone_1 ON CLUSTER analytics",
        "EXCHANGE TABLES orders AND orders__dpone_1 ON CLUSTER analytics",
        "EXCHANGE DICTIONARIES mart.orders AND mart.orders__dpone_1 ON CLUSTER analytics",
        "EXCHANGE TABLES mart.orders AND mart.orders__dpone_1 ON CLUSTER analytics SETTINGS max_threads = 1",
        "EXCHANGE TABLES mart.orders AND mart.orders__dpone_1 ON CLUSTER 'analytics'",
        "RENAME TABLE mart.a TO mart.b, mart.c TO mart.d ON CLUSTER analytics",
        "RENAME TABLE IF EXISTS mart.a TO mart.b ON CLUSTER analytics",
        "RENAME DATABASE a TO b ON CLUSTER analytics",
        "DROP TABLE IF EXISTS mart.orders__dpone_1 ON CLUSTER analytics SYNC",
        "DROP TABLE mart.orders__dpone_1 ON CLUSTER analytics",
        "DROP DATABASE IF EXISTS mart ON CLUSTER analytics",
        "TRUNCATE TABLE mart.orders ON CLUSTER analytics",
        "CREATE TABLE mart.orders ON CLUSTER analytics (`a` UInt8) ENGINE = Memory",
        "DROP TABLE IF EXISTS mart.`open ON CLUSTER analytics",
    ],
)
def test_any_other_text_is_none_of_ours(text: str) -> None:
    assert parse_statement(text) is None


@given(cluster=names, database=names, first=names, second=names)
def test_every_name_survives(cluster: str, database: str, first: str, second: str) -> None:
    statements: list[Statement] = [
        Exchange(cluster, database, first, second),
        Rename(cluster, database, first, second),
        Drop(cluster, database, first),
    ]
    for statement in statements:
        assert parse_statement(render(statement)) == statement


def test_nul_in_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        render(Drop("c", "d", "a\0b"))


@pytest.mark.parametrize("seconds", [0, -1])
def test_an_unbounded_or_blind_wait_of_the_server_is_refused(seconds: int) -> None:
    server = Server(ConnectionSettings((("127.0.0.1", 1),)))
    with pytest.raises(ValueError, match="at least one second"):
        DdlQueue(server, task_timeout=seconds)


def test_what_stands_before_our_entry() -> None:
    def unfinished(entry: str) -> Unfinished:
        return Unfinished(entry, "h", 9000, "Inactive", 0, ours=False)

    row = QueueRow("query-0000000010", "", None, "t", "h", 9000, "Inactive", None, None)
    before, behind = unfinished("query-0000000009"), unfinished("query-0000000011")
    assert QueueReport(1, (row,), 1, (before, behind)).ahead == (before,)
    assert QueueReport(1, (), None, (before, behind)).ahead == ()


def test_what_blocks_a_replica_is_named_without_a_host_and_others_queues_are_no_matter() -> None:
    of = in_phase(Phase.BOUND)
    rows = (queue_row(of, 1), queue_row(of, 2, **ACTIVE))

    def unfinished(entry: str, host: str, initiator: str | None = "host1") -> Unfinished:
        return Unfinished(entry, host, 9000, "Active", 77, False, initiator, 9000)

    report = QueueReport(
        1,
        rows,
        600,
        (
            unfinished("query-0000000001", "host1"),
            unfinished("query-0000000002", "host2"),
            unfinished("query-0000000003", "host2", "somewhere"),
            unfinished("query-0000000004", "host9"),
            unfinished("query-0000000099", "host2"),
        ),
    )
    found = blockers(report, inventory(2))
    # Replica 1 has finished ours, host9 is no replica, and 99 comes after ours.
    assert [(b.entry, b.replica, b.since, b.initiator) for b in found] == [
        ("query-0000000002", "s1/r2", 77, "s1/r1"),
        ("query-0000000003", "s1/r2", 77, None),
    ]
    assert "host" not in str(found)


@pytest.mark.parametrize(("newer", "warned"), [(None, False), (499, False), (500, True)])
def test_people_are_warned_before_the_queue_forgets(newer: int | None, warned: bool) -> None:
    row = stored(in_phase(Phase.BOUND))
    told = replace(explain(row, observation(row, PENDING, PENDING), NotSeen()), newer_entries=newer)
    assert bool(told.warnings) is warned
