"""What a user holds, as SHOW GRANTS tells it, against what a refresh needs."""

from __future__ import annotations

import pytest

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.grants import (
    ENGINE_OF_ITS_OWN,
    READ_ON_FILE,
    RequiredGrant,
    missing,
    needed_directly,
    parse_grants,
    required_grants,
    required_grants_of_init,
    statements,
)
from airflow_provider_dpone.routes.ports import Target

TARGET = Target("analytics", "mart", "orders")
REQUIRED = required_grants(TARGET)


def lacking(*lines: str, target: Target = TARGET) -> set[str]:
    """What is missing of a target's grants for a user with these."""
    return {str(grant) for grant in missing(required_grants(target), parse_grants(lines))}


def one(privilege: str) -> RequiredGrant:
    """The last of that privilege: the one on the target where there are several."""
    return [grant for grant in REQUIRED if grant.privilege == privilege][-1]


def holds(privilege: str, *lines: str) -> bool:
    return not missing([one(privilege)], parse_grants(lines))


def test_every_grant_says_what_it_is_for() -> None:
    assert all(grant.why and grant.privilege and grant.scope for grant in REQUIRED)


def test_the_statements_give_what_is_required_and_no_more() -> None:
    written = statements(REQUIRED, "app")
    assert lacking(*written) == set()
    for position in range(len(written)):
        assert lacking(*written[:position], *written[position + 1 :])
    assert "GRANT SELECT, INSERT, CREATE TABLE, DROP TABLE ON `mart`.* TO `app`" in written
    assert "GRANT SELECT, INSERT, ALTER UPDATE ON `dpone`.`authority_v1` TO `app`" in written


def test_independent_replicas_are_told_directly_what_needs_grants_there() -> None:
    independent = required_grants(TARGET, independent=True)
    assert {str(grant) for grant in REQUIRED} - {str(grant) for grant in independent} == {
        "KILL QUERY ON *.*",
        "TABLE ENGINE ON ReplicatedMergeTree",
    }
    assert {str(grant) for grant in independent} - {str(grant) for grant in REQUIRED} == {
        "TABLE ENGINE ON MergeTree"
    }
    directly = needed_directly(required_grants(TARGET, independent=True, table_functions=True), "mart")
    assert [str(grant) for grant in directly] == [
        "SELECT ON `system`.`processes`",
        "SELECT ON `mart`.*",
        "INSERT ON `mart`.*",
        "CREATE TABLE ON `mart`.*",
        "DROP TABLE ON `mart`.*",
        "TABLE ENGINE ON MergeTree",
        str(READ_ON_FILE),
    ]


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("GRANT TABLE ENGINE ON MergeTree TO app", True),
        ("GRANT TABLE ENGINE ON * TO app", True),
        ("GRANT ALL ON *.* TO app", True),
        ("GRANT TABLE ENGINE ON Memory TO app", False),
        ("GRANT CREATE TABLE ON *.* TO app", False),
        ("GRANT ALL ON mart.* TO app", False),
    ],
)
def test_a_server_may_ask_for_the_engine_of_a_table_of_its_own(line: str, held: bool) -> None:
    assert missing([ENGINE_OF_ITS_OWN], parse_grants([line])) == (() if held else (ENGINE_OF_ITS_OWN,))


def test_a_user_without_grants_lacks_all() -> None:
    assert lacking() == {str(grant) for grant in REQUIRED}


@pytest.mark.parametrize(
    "lines",
    [
        ["GRANT ALL ON *.* TO app"],
        ["GRANT ALL ON *.* TO app WITH GRANT OPTION"],
        [
            "GRANT READ, WRITE ON * TO app",
            "GRANT SHOW, SELECT, INSERT, ALTER, CREATE, DROP, KILL QUERY, CLUSTER ON *.* TO app",
            # As a server shows that asks for no engine.
            "GRANT TABLE ENGINE ON * TO app",
        ],
        [
            "GRANT SELECT, INSERT, ALTER, CREATE, DROP, KILL QUERY, SOURCES, CLUSTER ON *.* TO app",
            "GRANT TABLE ENGINE ON ReplicatedMergeTree TO app",
        ],
    ],
)
def test_wide_grants_are_enough(lines: list[str]) -> None:
    assert lacking(*lines) == set()


@pytest.mark.parametrize(
    ("privilege", "line"),
    [
        ("REMOTE", "GRANT REMOTE ON *.* TO app"),
        ("REMOTE", "GRANT READ, WRITE ON REMOTE TO app"),
        ("REMOTE", "GRANT READ ON * TO app"),
        ("CREATE TEMPORARY TABLE", "GRANT CREATE TEMPORARY TABLE ON *.* TO app"),
        ("CREATE TEMPORARY TABLE", "GRANT CREATE ARBITRARY TEMPORARY TABLE ON *.* TO app"),
        ("CREATE TEMPORARY TABLE", "GRANT CREATE TABLE ON mart.* TO app"),
        ("CREATE TABLE", "GRANT CREATE ON mart.* TO app"),
        ("CREATE TABLE", "GRANT CREATE TABLE ON `mart`.* TO app"),
        ("CREATE TABLE", "GRANT CREATE TABLE ON ma*.* TO app"),
        ("CREATE TABLE", "GRANT CREATE TABLE ON mart.orders* TO app"),
        ("DROP TABLE", "GRANT SELECT, DROP ON *.* TO app"),
        ("ALTER UPDATE", "GRANT ALTER TABLE ON dpone.authority_v1 TO app"),
        ("CLUSTER", "GRANT KILL QUERY, CLUSTER ON *.* TO app"),
    ],
)
def test_a_grant_that_is_enough(privilege: str, line: str) -> None:
    assert holds(privilege, line)


@pytest.mark.parametrize(
    ("privilege", "line"),
    [
        ("REMOTE", "GRANT READ ON S3 TO app"),
        ("REMOTE", "GRANT WRITE ON REMOTE TO app"),
        ("CREATE TABLE", "GRANT CREATE TABLE ON mart2.* TO app"),
        ("CREATE TABLE", "GRANT CREATE TABLE ON mart.orders TO app"),
        ("CREATE TABLE", "GRANT CREATE TABLE ON mart.orders__dpone_* TO app"),
        ("CREATE TABLE", "GRANT CREATE VIEW ON mart.* TO app"),
        ("CREATE TABLE", "GRANT CREATE DATABASE ON *.* TO app"),
        ("DROP TABLE", "GRANT DROP VIEW ON mart.* TO app"),
        ("ALTER UPDATE", "GRANT ALTER DELETE ON dpone.* TO app"),
        ("ALTER UPDATE", "GRANT ALTER UPDATE(payload) ON dpone.authority_v1 TO app"),
        ("ALTER UPDATE", "GRANT ALTER UPDATE ON dpone.authority_v2 TO app"),
        ("CLUSTER", "GRANT CLUSTER ON mart.* TO app"),
        ("CLUSTER", "GRANT outer TO app"),
        ("CLUSTER", "GRANT `CLUSTER ON *.*` TO app"),
        ("CLUSTER", "REVOKE CLUSTER ON *.* FROM app"),
        ("CLUSTER", "not a grant at all '"),
    ],
)
def test_a_grant_that_is_not_enough(privilege: str, line: str) -> None:
    assert not holds(privilege, line)


@pytest.mark.parametrize(
    ("line", "enough"),
    [
        ("GRANT READ ON FILE TO app", True),
        ("GRANT READ, WRITE ON FILE TO app", True),
        ("GRANT READ ON * TO app", True),
        ("GRANT WRITE ON FILE TO app", False),
        ("GRANT READ ON REMOTE TO app", False),
        ("GRANT SELECT ON *.* TO app", False),
    ],
)
def test_reading_file_is_a_grant_on_a_source(line: str, enough: bool) -> None:
    assert (not missing([READ_ON_FILE], parse_grants([line]))) is enough


def test_reading_file_is_required_only_where_a_table_function_is_used() -> None:
    assert READ_ON_FILE not in required_grants(TARGET)
    with_functions = required_grants(TARGET, table_functions=True)
    assert with_functions == (*REQUIRED, READ_ON_FILE)
    assert statements(with_functions, "app")[-1] == "GRANT READ ON FILE TO `app`"


def test_two_narrow_grants_are_enough_together() -> None:
    assert holds(
        "CREATE TABLE",
        "GRANT CREATE TABLE ON mart.orders TO app",
        "GRANT CREATE TABLE ON mart.orders__dpone_* TO app",
    )


def test_a_partial_revoke_counts_where_it_touches_our_tables() -> None:
    grant = "GRANT DROP TABLE ON mart.* TO app"
    assert holds("DROP TABLE", grant, "REVOKE DROP TABLE ON mart.customers FROM app")
    assert not holds("DROP TABLE", grant, "REVOKE DROP TABLE ON mart.orders FROM app")
    assert not holds("DROP TABLE", grant, "REVOKE DROP TABLE ON mart.ord* FROM app")
    assert not holds("DROP TABLE", grant, "REVOKE ALL ON mart.* FROM app")
    assert holds("DROP TABLE", grant, "REVOKE SELECT ON mart.orders FROM app")


def test_columns_do_not_hide_the_privileges_beside_them() -> None:
    line = "GRANT SELECT(a, b), INSERT ON mart.* TO app"
    assert holds("INSERT", line)
    assert not holds("SELECT", line)


def test_names_that_need_quotes() -> None:
    target = Target("c", "we ird", "a`b")
    given = statements(required_grants(target), "o'brien")
    assert lacking(*given, target=target) == set()
    assert "GRANT SELECT, INSERT, CREATE TABLE, DROP TABLE ON `we ird`.* TO `o'brien`" in given


def test_another_control_table() -> None:
    control = ControlTable("ops", "swaps")
    grants = [str(grant) for grant in required_grants(TARGET, control)]
    assert "ALTER UPDATE ON `ops`.`swaps`" in grants


def test_what_init_needs() -> None:
    grants = {str(grant) for grant in required_grants_of_init()}
    assert {"CREATE DATABASE ON `dpone`.*", "CREATE TABLE ON `dpone`.*", "CLUSTER ON *.*"} <= grants
    assert not any("mart" in grant for grant in grants)
