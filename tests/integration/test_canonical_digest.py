"""Equal rows have one canonical digest on two releases, and other rows have another."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import pytest

from airflow_provider_dpone.clickhouse.canonical_digest import (
    DIGEST_SETTINGS,
    EQUAL_EVERYWHERE,
    FUNCTIONS_SELECT,
    canonical_digest_select,
    deterministic_functions,
    varying_columns,
)
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.clickhouse.sql import identifier, string
from airflow_provider_dpone.clickhouse.table_definition import ColumnDefinition, parse
from airflow_provider_dpone.publication.content import CanonicalDigest
from scripts.lib.environments import environment
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster, User
from tests.cluster.spec import DATABASE_PREFIX
from tests.integration.canonical_types import ENCODINGS

pytestmark = pytest.mark.cluster

DATABASE = f"{DATABASE_PREFIX}_canonical"
PINNED, OLDER = 1, 2

HOSTILE = {
    "additional_table_filters": f"{{'{DATABASE}.t': 'k != 1'}}",
    "aggregate_functions_null_for_empty": "1",
    "apply_deleted_mask": "0",
    "empty_result_for_aggregation_by_empty_set": "1",
    "enable_parallel_replicas": "1",
    "cluster_for_parallel_replicas": CLUSTER_NAME,
    "extremes": "1",
    "final": "1",
    "format_binary_max_array_size": "1",
    "format_binary_max_string_size": "1",
    "limit": "1",
    "max_block_size": "1",
    "max_threads": "3",
    "offset": "1",
    "output_format_binary_encode_types_in_binary_format": "1",
    "output_format_binary_write_json_as_string": "1",
    "parallel_replicas_for_non_replicated_merge_tree": "1",
    "prefer_column_name_to_alias": "1",
    "read_overflow_mode": "break",
    "session_timezone": "Asia/Tokyo",
    "use_query_cache": "1",
}
"""What a profile may say: to answer in part, from a cache, from elsewhere, or in other words."""

FILTER = {"additional_result_filter": "rows = 0"}
"""A 26.7 that a 26.9 asks on behalf of a user goes by the user's own profile here: its answer is missing then."""


@pytest.fixture(scope="module")
def members() -> Iterator[LocalCluster]:
    """Two members without replication: the pinned release, and an older one."""
    (older,) = environment("older").glob("lib/python*/site-packages/chdb")
    users = [
        User(name, ("GRANT ALL ON *.*",), settings=profile)
        for name, profile in (("hostile", HOSTILE), ("filtering", FILTER))
    ]
    with LocalCluster(
        replicas=2, internal_replication=False, chdb_folders={OLDER: older}, users=users
    ) as cluster:
        assert len({cluster.scalar("SELECT version()", node=node) for node in cluster.nodes}) == 2
        cluster.execute(f"CREATE DATABASE {DATABASE} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
        yield cluster


def settings(cluster: LocalCluster, asked: int | None = None) -> dict[str, str]:
    """What is sent with a digest: the settings that the asked member knows, or all of them do."""
    names = ", ".join(map(string, DIGEST_SETTINGS))
    known = [
        {
            row["name"]
            for row in cluster.query(f"SELECT name FROM system.settings WHERE name IN ({names})", node=node)
        }
        for node in cluster.nodes
        if asked in {None, node}
    ]
    return {name: value for name, value in DIGEST_SETTINGS.items() if all(name in each for each in known)}


def fill(
    cluster: LocalCluster,
    node: int,
    columns: Mapping[str, str],
    rows: Iterable[str],
    *,
    name: str = "t",
    parts: int = 1,
    more: str = "",
) -> None:
    """Make a table of these rows, each a list of expressions, in so many parts that stay apart."""
    table = f"{DATABASE}.{identifier(name)}"
    declared = ", ".join(f"{identifier(column)} {kind}" for column, kind in columns.items())
    cluster.execute(
        f"CREATE OR REPLACE TABLE {table} ({declared}) ENGINE = MergeTree ORDER BY tuple() {more}",
        node=node,
        settings={"allow_suspicious_low_cardinality_types": 1},
    )
    cluster.execute(f"SYSTEM STOP MERGES {table}", node=node)
    names = ", ".join(map(identifier, columns))
    selects = [f"SELECT {row}" for row in rows]
    for at in range(parts):
        if chosen := selects[at::parts]:
            cluster.execute(
                f"INSERT INTO {table} ({names}) {' UNION ALL '.join(chosen)}",
                node=node,
                settings={"allow_suspicious_low_cardinality_types": 1, "deduplicate_insert": "disable"},
            )


def digest(
    cluster: LocalCluster,
    node: int,
    columns: Mapping[str, str],
    *,
    name: str = "t",
    user: str = "default",
    **more: str,
) -> CanonicalDigest:
    """The digest as one member computes it."""
    (row,) = cluster.query(
        canonical_digest_select(DATABASE, name, defined(columns)),
        node=node,
        user=user,
        settings={**settings(cluster, node), **more},
    )
    return CanonicalDigest(**row)


def defined(columns: Mapping[str, str]) -> list[ColumnDefinition]:
    return [ColumnDefinition(name, kind) for name, kind in columns.items()]


def expected(rows: Sequence[str]) -> CanonicalDigest:
    """The digest of rows that are given as the hexadecimal digits of their bytes, without any server."""
    hashes = (hashlib.sha256(bytes.fromhex(row)).digest() for row in rows)
    total = sum(int.from_bytes(one, "little") for one in hashes) % 2**256
    return CanonicalDigest(len(rows), f"{total:064x}")


def cast(expression: str, kind: str) -> str:
    return f"CAST({expression}, {string(kind)})"


# --- equal content -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENCODINGS)
def test_every_value_has_the_bytes_that_are_written_down(members: LocalCluster, kind: str) -> None:
    rows = [cast(value, kind) for value, _ in ENCODINGS[kind]]
    for node in members.nodes:
        fill(members, node, {"x": kind}, rows)
        assert digest(members, node, {"x": kind}) == expected([encoding for _, encoding in ENCODINGS[kind]])


VARIABLE = r"(String|Nullable|LowCardinality|Array|Map|Tuple)\b"
WIDE = {f"c{at:02}": kind for at, kind in enumerate(ENCODINGS)}
ROWS = 12
WIDE_ROWS = [
    ", ".join(cast(values[row % len(values)][0], kind) for kind, values in ENCODINGS.items())
    for row in range(ROWS)
]
FIXED_FIRST = sorted(ENCODINGS, key=lambda kind: re.match(VARIABLE, kind) is not None)
WIDE_DIGEST = expected(
    ["".join(ENCODINGS[kind][row % len(ENCODINGS[kind])][1] for kind in FIXED_FIRST) for row in range(ROWS)]
)


@pytest.mark.parametrize(
    ("parts", "reverse", "more"),
    [
        pytest.param(1, False, "", id="one part"),
        pytest.param(1, True, "", id="one part, the rows in reverse"),
        pytest.param(ROWS, False, "", id="a part for each row"),
        pytest.param(5, True, "", id="five parts, the rows in reverse"),
        pytest.param(3, False, "SETTINGS min_bytes_for_wide_part = 0", id="a file for each column"),
        pytest.param(
            3, False, "SETTINGS ratio_of_defaults_for_sparse_serialization = 0.01", id="defaults left out"
        ),
        pytest.param(
            3,
            False,
            "SETTINGS map_serialization_version = 'with_buckets', map_buckets_min_avg_size = 0, "
            "map_serialization_version_for_zero_level_parts = 'with_buckets', min_bytes_for_wide_part = 0",
            id="maps in buckets",
        ),
    ],
)
def test_how_rows_are_stored_does_not_matter(
    members: LocalCluster, parts: int, reverse: bool, more: str
) -> None:
    rows = WIDE_ROWS[::-1] if reverse else WIDE_ROWS
    for node in members.nodes:
        fill(members, node, WIDE, rows, parts=parts, more=more)
        for threads in ("1", "4"):
            assert digest(members, node, WIDE, max_threads=threads, max_block_size="3") == WIDE_DIGEST
        members.execute(f"SYSTEM START MERGES {DATABASE}.t", node=node)
        members.execute(f"OPTIMIZE TABLE {DATABASE}.t FINAL", node=node)
        assert members.scalar(f"SELECT uniqExact(_part) FROM {DATABASE}.t", node=node) == 1
        assert digest(members, node, WIDE) == WIDE_DIGEST


def test_the_order_of_columns_in_the_table_does_not_matter(members: LocalCluster) -> None:
    for node in members.nodes:
        for columns in (
            {"a": "UInt8", "b": "String", "rows": "UInt8"},
            {"rows": "UInt8", "b": "String", "a": "UInt8"},
        ):
            values = {"a": "1", "b": "'x'", "rows": "2"}
            fill(members, node, columns, [", ".join(values[name] for name in columns)])
            assert digest(members, node, columns) == expected(["01" + "02" + "0178"])


def test_a_column_may_have_any_name(members: LocalCluster) -> None:
    names = ["rows", "sha256", "total", "total_", "a`b'c\\", "日本", "n.x", "count()"]
    for node in members.nodes:
        columns = dict.fromkeys(names, "UInt8")
        fill(members, node, columns, [", ".join(str(names.index(name)) for name in names)])
        row = "".join(f"{names.index(name):02x}" for name in sorted(names))
        assert digest(members, node, columns) == expected([row])


def test_an_empty_table_has_a_digest(members: LocalCluster) -> None:
    for node in members.nodes:
        fill(members, node, {"x": "UInt8"}, [])
        assert digest(members, node, {"x": "UInt8"}) == CanonicalDigest(0, "0" * 64)


def test_many_rows_in_many_threads(members: LocalCluster) -> None:
    """Sums of threads and parts wrap around as one sum does."""
    digests = set()
    for node in members.nodes:
        for order in ("number", "-number", "cityHash64(number)"):
            table = f"{DATABASE}.t"
            members.execute(
                f"CREATE OR REPLACE TABLE {table} (k UInt64, s String) ENGINE = MergeTree ORDER BY k",
                node=node,
            )
            members.execute(
                f"INSERT INTO {table} SELECT number, toString(number) FROM numbers(300000) ORDER BY {order}",
                node=node,
                settings={"max_insert_block_size": 20_000, "min_insert_block_size_rows": 20_000},
            )
            digests |= {
                digest(members, node, {"k": "UInt64", "s": "String"}, max_threads=threads)
                for threads in ("1", "4")
            }
    rows = ((n.to_bytes(8, "little") + bytes([len(str(n))]) + str(n).encode()).hex() for n in range(300_000))
    assert digests == {expected(list(rows))}


# --- other content -----------------------------------------------------------------------------------------

COLUMNS = {
    "k": "UInt8",
    "a": "String",
    "b": "String",
    "f": "Float64",
    "n": "Nullable(String)",
    "l": "Array(Nullable(String))",
    "m": "Map(String, UInt8)",
    "d": "Decimal(9, 2)",
    "t": "DateTime64(3, 'UTC')",
    "e": "Enum8('x' = 1, 'y' = 2)",
}
BASE = {
    "k": "1", "a": "'ab'", "b": "'c'", "f": "0.0", "n": "NULL", "l": "['']", "m": "map('a', 1, 'b', 2)",
    "d": "'1.10'", "t": "'2024-01-01 00:00:00.001'", "e": "'x'",
}  # fmt: skip
OTHER = {**BASE, "k": "2", "a": "'z'"}


def row(values: Mapping[str, str], **changed: str) -> str:
    return ", ".join(cast({**values, **changed}[name], kind) for name, kind in COLUMNS.items())


CONTENTS: Mapping[str, Sequence[str]] = {
    "the rows": [row(BASE), row(OTHER)],
    "a negative zero": [row(BASE, f="-0.0"), row(OTHER)],
    "a NaN": [row(BASE, f="reinterpretAsFloat64(toUInt64(0x7ff8000000000000))"), row(OTHER)],
    "another NaN": [row(BASE, f="reinterpretAsFloat64(toUInt64(0x7ff8000000000001))"), row(OTHER)],
    "the next float": [row(BASE, f="5e-324"), row(OTHER)],
    "an empty text for NULL": [row(BASE, n="''"), row(OTHER)],
    "NULL in an array": [row(BASE, l="[NULL]"), row(OTHER)],
    "no element": [row(BASE, l="[]"), row(OTHER)],
    "one element more": [row(BASE, l="['', '']"), row(OTHER)],
    "another order in a map": [row(BASE, m="map('b', 2, 'a', 1)"), row(OTHER)],
    "values of a map in each other's place": [row(BASE, m="map('a', 2, 'b', 1)"), row(OTHER)],
    "a digit of a decimal": [row(BASE, d="'1.11'"), row(OTHER)],
    "a decimal ten times as large": [row(BASE, d="'11'"), row(OTHER)],
    "a millisecond": [row(BASE, t="'2024-01-01 00:00:00.002'"), row(OTHER)],
    "another name of an enum": [row(BASE, e="'y'"), row(OTHER)],
    "two columns in each other's place": [row(BASE, a="'c'", b="'ab'"), row(OTHER)],
    "a character on the other side of a border": [row(BASE, a="'a'", b="'bc'"), row(OTHER)],
    "a value in the other row": [row(BASE, a="'z'"), row(OTHER, a="'ab'")],
    "a row less": [row(BASE)],
    "the other row less": [row(OTHER)],
    "a row twice": [row(BASE), row(BASE), row(OTHER)],
    "each row twice": [row(BASE), row(OTHER)] * 2,
    "one row twice, the other gone": [row(BASE), row(BASE)],
    "no row": [],
}


def test_any_other_content_has_another_digest(members: LocalCluster) -> None:
    found: list[dict[str, CanonicalDigest]] = []
    for node in members.nodes:
        digests = {}
        for name, rows in CONTENTS.items():
            fill(members, node, COLUMNS, rows)
            digests[name] = digest(members, node, COLUMNS)
            assert digests[name].rows == len(rows)
        found.append(digests)
    assert found[0] == found[1]
    same = [(a, b) for a, b in combinations(CONTENTS, 2) if found[0][a].sha256 == found[0][b].sha256]
    assert same == []


# --- the way it is asked for -------------------------------------------------------------------------------


def of_all_members(
    cluster: LocalCluster, columns: Mapping[str, str], *, asked: int, user: str
) -> list[CanonicalDigest]:
    """The digests of all members from one statement, in the order of their numbers."""
    inner = canonical_digest_select(DATABASE, "t", defined(columns))
    rows = cluster.query(
        f"SELECT _shard_num AS number, rows, sha256 FROM clusterAllReplicas({CLUSTER_NAME}, view({inner}))",
        node=asked,
        user=user,
        settings=settings(cluster),
    )
    assert sorted(int(row["number"]) for row in rows) == [1, 2]
    return [
        CanonicalDigest(row["rows"], row["sha256"])
        for row in sorted(rows, key=lambda row: int(row["number"]))
    ]


@pytest.mark.parametrize("asked", [PINNED, OLDER])
def test_all_members_answer_one_statement_each_for_itself(members: LocalCluster, asked: int) -> None:
    fill(members, 1, COLUMNS, [row(BASE), row(OTHER)])
    fill(members, 2, COLUMNS, [row(OTHER), row(BASE)], parts=2)
    one, other = of_all_members(members, COLUMNS, asked=asked, user="default")
    assert one == other
    fill(members, 2, COLUMNS, [row(OTHER), row(BASE, f="-0.0")])
    one, other = of_all_members(members, COLUMNS, asked=asked, user="default")
    assert one != other


@pytest.mark.parametrize("rows", [[], [row(BASE), row(OTHER)]], ids=["empty", "rows"])
@pytest.mark.parametrize("asked", [PINNED, OLDER])
def test_a_profile_changes_nothing(members: LocalCluster, asked: int, rows: Sequence[str]) -> None:
    fill(members, 1, COLUMNS, rows)
    fill(members, 2, COLUMNS, rows, parts=2)
    plain = digest(members, asked, COLUMNS)
    assert digest(members, asked, COLUMNS, user="hostile") == plain
    assert digest(members, asked, COLUMNS, user="filtering") == plain
    found = of_all_members(members, COLUMNS, asked=asked, user="hostile")
    assert found == [plain, plain]


def test_deleted_rows_are_no_content(members: LocalCluster) -> None:
    for node in members.nodes:
        fill(members, node, {"x": "UInt8"}, ["1", "2"])
        members.execute(f"SYSTEM START MERGES {DATABASE}.t", node=node)
        members.execute(f"DELETE FROM {DATABASE}.t WHERE x = 2", node=node)
        assert digest(members, node, {"x": "UInt8"}) == expected(["01"])
        assert digest(members, node, {"x": "UInt8"}, user="hostile") == expected(["01"])


# --- columns that members compute --------------------------------------------------------------------------


def functions(cluster: LocalCluster, node: int) -> frozenset[str]:
    """What a member knows of its functions, asked as the user with the least grants."""
    host, port = cluster.direct_http[node - 1]
    server = Server(ConnectionSettings(hosts=((host, port),), user=APP_USER, password=APP_PASSWORD))
    reply = server.read(FUNCTIONS_SELECT)
    return deterministic_functions(reply.columns, reply.rows)


def test_members_know_their_functions(members: LocalCluster) -> None:
    for node in members.nodes:
        known = functions(members, node)
        assert known >= EQUAL_EVERYWHERE
        assert known >= {"cityHash64", "JSONExtractString", "formatDateTime", "concat", "CAST"}
        assert not known & {
            *("now", "now64", "today", "yesterday", "rand", "rand64", "randConstant", "randomString"),
            *("generateUUIDv4", "generateUUIDv7", "generateULID", "generateSnowflakeID", "hostName"),
            *("serverUUID", "getMacro", "version", "uptime", "timezone", "dictGet", "dictGetOrDefault"),
            *("dictHas", "joinGet", "currentUser", "currentDatabase", "getSetting", "rowNumberInBlock"),
            *("rowNumberInAllBlocks", "neighbor", "runningDifference", "regionToCity", "file", "aiEmbed"),
        }


def test_columns_that_each_member_computes_are_named(members: LocalCluster) -> None:
    expressions = {
        "fine": "concat(lower(s), '-', toString(cityHash64(k, s)))",
        "day": "toDate('2020-01-01') + INTERVAL k DAY",
        "parts": "arrayMap((x, y) -> x + y + k, [k], n.x)",
        "listed": "k IN (1, 2, 3)",
        "at": "NOW()",
        "bare": "CURRENT_TIMESTAMP",
        "dice": "k + rand()",
        "id": "generateUUIDv4()",
        "where_from": "hostName()",
        "after": "bare + INTERVAL 1 DAY",
        "aliased": "a + 1",
        "member": f"k IN {DATABASE}.lookup",
    }
    computed = ", ".join(
        f"{name} String MATERIALIZED {expression}" for name, expression in expressions.items()
    )
    for node in members.nodes:
        members.execute(f"CREATE OR REPLACE TABLE {DATABASE}.lookup (k UInt8) ENGINE = Set", node=node)
        members.execute(
            f"CREATE OR REPLACE TABLE {DATABASE}.t (k UInt8, s String, n Nested(x UInt8), d DateTime DEFAULT now(), "
            f"a UInt64 ALIAS rand(), {computed}) ENGINE = MergeTree ORDER BY k",
            node=node,
        )
        text = members.scalar(
            f"SELECT create_table_query FROM system.tables WHERE database = '{DATABASE}' AND name = 't'",
            node=node,
        )
        found = varying_columns(parse(text), functions(members, node))
        assert found == ("at", "bare", "dice", "id", "where_from", "after", "aliased", "member")
