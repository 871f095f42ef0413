"""The pure parts of the emulation: lexer, ON CLUSTER statements, entry text, checksum."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from tests.cluster.ddl_entry import DDLEntry, ExecutionStatus, host_id, parse_host_id
from tests.cluster.ddl_statement import (
    UnsupportedStatementError,
    may_have_on_cluster,
    needs_leader,
    output_clause,
    parse,
    qualify,
    required_grants,
    substitute_parameters,
    text_for_host,
    with_uuids,
    without_output_clause,
)
from tests.cluster.part_exchange import FileHash
from tests.cluster.spec import ClusterSpec, Endpoint, User
from tests.cluster.sql import quote_name, replace_table

TABLE_UUID, INNER_UUID = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("/* x */ create table a.b on /* y */ cluster c (x Int8) engine = Memory", True),
        ("DROP TABLE a ON CLUSTER `c`", True),
        ("CREATE TABLE a (x String COMMENT 'on cluster c') ENGINE = Memory", False),
        ("CREATE VIEW v AS SELECT 1 FROM a JOIN b ON cluster IN (1)", False),
        ("SELECT 'x' -- on cluster c", False),
        ("INSERT INTO a VALUES ('DROP TABLE a ON CLUSTER c')", False),
        ("", False),
    ],
)
def test_on_cluster_is_found_in_raw_text(sql: str, expected: bool) -> None:
    assert may_have_on_cluster(sql) is expected


@pytest.mark.parametrize(
    ("sql", "action", "kind", "names"),
    [
        ("CREATE TABLE IF NOT EXISTS a.b ON CLUSTER c (x Int8) ENGINE = Memory", "CREATE", "TABLE", ["a.b"]),
        ("CREATE OR REPLACE TABLE b ON CLUSTER c (x Int8) ENGINE = Log", "CREATE", "TABLE", ["x.b"]),
        ("CREATE DATABASE a ON CLUSTER c", "CREATE", "DATABASE", ["a.`*`"]),
        ("DROP TABLE IF EXISTS a.b, a.`c d` ON CLUSTER c SYNC", "DROP", "TABLE", ["a.b", "a.`c d`"]),
        ("EXCHANGE TABLES a.b AND c ON CLUSTER c", "EXCHANGE", "TABLE", ["a.b", "x.c"]),
        ("RENAME TABLE a.b TO a.c, d TO e ON CLUSTER c", "RENAME", "TABLE", ["a.b", "a.c", "x.d", "x.e"]),
        ("ALTER TABLE a.b ON CLUSTER c (ADD COLUMN `z` Int8)", "ALTER", "TABLE", ["a.b"]),
        ("TRUNCATE TABLE a.b ON CLUSTER c", "TRUNCATE", "TABLE", ["a.b"]),
        ("OPTIMIZE TABLE b ON CLUSTER c FINAL", "OPTIMIZE", "TABLE", ["x.b"]),
        ("SYSTEM FLUSH LOGS ON CLUSTER c", "SYSTEM", "", []),
    ],
)
def test_statement_is_taken_apart(sql: str, action: str, kind: str, names: list[str]) -> None:
    statement = parse(sql)
    assert statement is not None
    qualified = qualify(statement, "x")
    assert (qualified.cluster, qualified.action, qualified.kind) == ("c", action, kind)
    assert [str(name) for name in qualified.names] == names


def test_created_table_gets_the_uuid_before_its_cluster() -> None:
    statement = parse("CREATE TABLE a.b ON CLUSTER c (x Int8) ENGINE = Memory")
    assert statement is not None
    text = with_uuids(statement, TABLE_UUID, INNER_UUID).text
    assert text == f"CREATE TABLE a.b UUID '{TABLE_UUID}' ON CLUSTER c (x Int8) ENGINE = Memory"


def test_given_uuid_is_kept() -> None:
    statement = parse("CREATE TABLE a.b UUID '0-1' ON CLUSTER c (x Int8) ENGINE = Memory")
    assert statement is not None
    assert with_uuids(statement, TABLE_UUID, INNER_UUID) is statement
    assert text_for_host(statement) == "CREATE TABLE a.b UUID '0-1' (x Int8) ENGINE = Memory"


def test_materialized_view_gets_the_uuid_of_its_inner_table_too() -> None:
    statement = parse("CREATE MATERIALIZED VIEW a.v ON CLUSTER c (x Int8) ENGINE = Log AS SELECT 1 AS x")
    assert statement is not None
    text = with_uuids(statement, TABLE_UUID, INNER_UUID).text
    assert f"UUID '{TABLE_UUID}' ON CLUSTER c TO INNER UUID '{INNER_UUID}' (x Int8)" in text


def test_keeper_map_is_created_without_uuid() -> None:
    statement = parse("CREATE TABLE a.b ON CLUSTER c (k String) ENGINE = KeeperMap('/p') PRIMARY KEY k")
    assert statement is not None
    text = text_for_host(with_uuids(statement, TABLE_UUID, INNER_UUID))
    assert text == "CREATE TABLE a.b (k String) ENGINE = KeeperMap('/p') PRIMARY KEY k"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE a.b ON CLUSTER c (ADD COLUMN z Int8)", True),
        ("ALTER TABLE a.b ON CLUSTER c (MODIFY SETTING x = 1)", False),
        ("OPTIMIZE TABLE a.b ON CLUSTER c", True),
        ("TRUNCATE TABLE a.b ON CLUSTER c", True),
        ("DROP TABLE a.b ON CLUSTER c", False),
        ("EXCHANGE TABLES a.b AND a.c ON CLUSTER c", False),
    ],
)
def test_leader_only_statements(sql: str, expected: bool) -> None:
    statement = parse(sql)
    assert statement is not None
    assert needs_leader(statement) is expected


@pytest.mark.parametrize(
    ("sql", "grants"),
    [
        (
            "CREATE TABLE a.b ON CLUSTER c (x Int8) ENGINE = Log",
            ["CREATE TABLE ON a.b", "TABLE ENGINE ON Log"],
        ),
        ("CREATE OR REPLACE TABLE a.b ON CLUSTER c (x Int8)", ["CREATE TABLE ON a.b", "DROP TABLE ON a.b"]),
        ("CREATE DATABASE a ON CLUSTER c", ["CREATE DATABASE ON a.*"]),
        ("DROP DATABASE a ON CLUSTER c", ["DROP DATABASE ON a.*"]),
        ("DROP VIEW a.v ON CLUSTER c", ["DROP VIEW ON a.v"]),
        (
            "RENAME TABLE a.b TO a.d ON CLUSTER c",
            ["SELECT ON a.b", "DROP TABLE ON a.b", "CREATE TABLE ON a.d", "INSERT ON a.d"],
        ),
        (
            "EXCHANGE TABLES a.b AND a.d ON CLUSTER c",
            [
                *("SELECT ON a.b", "DROP TABLE ON a.b", "CREATE TABLE ON a.d", "INSERT ON a.d"),
                *("SELECT ON a.d", "DROP TABLE ON a.d", "CREATE TABLE ON a.b", "INSERT ON a.b"),
            ],
        ),
        ("ALTER TABLE a.b ON CLUSTER c (UPDATE x = 1 WHERE (y = 2))", ["ALTER UPDATE ON a.b"]),
        ("ALTER TABLE a.b ON CLUSTER c (MODIFY COMMENT 'x')", ["ALTER MODIFY COMMENT ON a.b"]),
    ],
)
def test_grants(sql: str, grants: list[str]) -> None:
    statement = parse(sql)
    assert statement is not None
    assert [str(grant) for grant in required_grants(statement)] == ["CLUSTER ON *.*", *grants]


@pytest.mark.parametrize(
    "sql", ["BACKUP TABLE a.b ON CLUSTER c TO Disk('x')", "RENAME DATABASE a TO b ON CLUSTER c"]
)
def test_statements_that_are_not_emulated_are_refused(sql: str) -> None:
    with pytest.raises(UnsupportedStatementError):
        required_grants(parse(sql))  # type: ignore[arg-type]


def test_format_clause_belongs_to_the_answer() -> None:
    statement = parse("DROP TABLE a.b ON CLUSTER c SYNC FORMAT JSON")
    assert statement is not None
    assert output_clause(statement) == "FORMAT JSON"
    assert without_output_clause(statement).text == "DROP TABLE a.b ON CLUSTER c SYNC"


def test_parameters_are_put_in() -> None:
    text = substitute_parameters(
        "CREATE TABLE a.{t:Identifier} (x String DEFAULT {d:String}, p String DEFAULT '{t:Identifier}')",
        {"t": "odd name", "d": "it's"},
    )
    assert text == "CREATE TABLE a.`odd name` (x String DEFAULT 'it\\'s', p String DEFAULT '{t:Identifier}')"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM system.q", "SELECT * FROM e.q2"),
        ("SELECT system.q.entry, 'system.q' FROM `system`.q -- system.q", None),
        ("SELECT * FROM clusterAllReplicas('c', system, q)", "SELECT * FROM clusterAllReplicas('c', e, q2)"),
        ("SELECT a.system.q", "SELECT a.system.q"),
    ],
)
def test_table_is_replaced_outside_strings(sql: str, expected: str | None) -> None:
    if expected is None:
        expected = "SELECT e.q2.entry, 'system.q' FROM e.q2 -- system.q"
    assert replace_table(sql, "system", "q", "e.q2") == expected


@pytest.mark.parametrize(
    ("name", "quoted"), [("a_1", "a_1"), ("1a", "`1a`"), ("a`b", "`a\\`b`"), ("é", "`é`")]
)
def test_names_are_quoted_where_they_need_it(name: str, quoted: str) -> None:
    assert quote_name(name) == quoted


def test_host_id_escapes_like_clickhouse() -> None:
    host = Endpoint("chi-1.example", 9000)
    assert host_id(host) == "chi%2D1%2Eexample:9000"
    assert parse_host_id(host_id(host)) == host


def test_entry_survives_its_text() -> None:
    entry = DDLEntry(
        query="CREATE TABLE a.b ON CLUSTER c (x String DEFAULT '\\n: \t')",
        hosts=(Endpoint("127.0.0.1", 9000), Endpoint("b-2", 9001)),
        initiator=Endpoint("n.x", 9000),
        settings={"log_comment": "it's, a = 'b'\n", "max_threads": "3"},
        initial_query_id="id",
    )
    text = entry.to_text()
    assert text.startswith("version: 5\nquery: CREATE TABLE")
    assert "hosts: ['127%2E0%2E0%2E1:9000','b%2D2:9001']\ninitiator: n%2Ex:9000\n" in text
    assert text.endswith("tracing: 00000000-0000-0000-0000-000000000000\n0\n\n0\ninitial_query_id: id\n")
    assert DDLEntry.from_text(text) == entry


def test_outcome_survives_its_text() -> None:
    assert ExecutionStatus(0, "").to_text() == "0\n"
    failure = ExecutionStatus(57, "Code: 57.\nexists")
    assert ExecutionStatus.from_text(failure.to_text()) == failure


def test_specification_survives_its_text() -> None:
    spec = ClusterSpec(
        replicas=3,
        internal_replication=False,
        users=(User("u", ("GRANT SELECT ON *.*",), "p", {"readonly": "1"}),),
    )
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_file_hash_does_not_depend_on_how_the_bytes_arrive() -> None:
    data = struct.pack("<1000Q", *range(1000))
    whole, pieces = FileHash(), FileHash()
    whole.update(data)
    for start in range(0, len(data), 77):
        pieces.update(data[start : start + 77])
    assert whole.digest() == pieces.digest() != FileHash().digest()
