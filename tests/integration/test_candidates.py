"""Candidates on real servers: built from a live table, from a structure and from DDL, and compared."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from airflow_provider_dpone.clickhouse.create_table import (
    CREATE_SETTINGS,
    TableDefinition,
    TableMark,
    admit_engine,
    build_candidate,
    ddl_text,
    describe_columns,
    described,
    differences,
    format_query,
    from_ddl,
    normalized_engine_full,
    parse,
    schema_digest,
    split_comment,
    structure_text,
)
from airflow_provider_dpone.clickhouse.sql import qualified, string
from airflow_provider_dpone.values import TableStructure
from tests.cluster import CLUSTER_NAME, ClickHouseError, LocalCluster

pytestmark = pytest.mark.cluster

MARK = TableMark("a" * 32, "b" * 64, "c" * 16)

COLUMNS = r"""
    id UInt64 CODEC(Delta, ZSTD(3)), at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'it\'s \\ a
    line', `we ird``q` LowCardinality(Nullable(String)), amount Decimal(18, 4), en Enum8('a' = 1, 'b,)' = 2),
    n Nested(x Int, y text), m String MATERIALIZED upper(`we ird``q`), c Int8 ALIAS id + 1, e String EPHEMERAL 'x',
    t Tuple(x UInt8, `y z` String), mp Map(String, Array(UInt8)), TTL Date, dt DateTime,
    st String STATISTICS(uniq) SETTINGS (min_compress_block_size = 1024),
    INDEX i1 id TYPE minmax, INDEX i2 (id, m) TYPE bloom_filter(0.01) GRANULARITY 3,
    PROJECTION p (SELECT id ORDER BY amount), CONSTRAINT k CHECK id >= 0
"""
TABLES = [
    f"({COLUMNS}) ENGINE = ReplicatedMergeTree PARTITION BY toYYYYMM(dt) PRIMARY KEY id ORDER BY (id, cityHash64(m)) "
    "TTL dt + INTERVAL 1 MONTH RECOMPRESS CODEC(ZSTD(17)), dt + INTERVAL 1 WEEK TO VOLUME 'default' "
    "SETTINGS storage_policy = 'default', min_bytes_for_wide_part = '10M' COMMENT 'mine \\' [and] \\n yours'",
    "(a UInt8) ENGINE = ReplicatedMergeTree ORDER BY tuple()",
    "(a UInt64, b Int) ENGINE = ReplicatedMergeTree('/clickhouse/tables/{database}/{table}', 'r-{replica}') "
    "ORDER BY (a, b) SAMPLE BY a",
    "(TTL Date, SETTINGS UInt8, COMMENT String) ENGINE = ReplicatedMergeTree ORDER BY `TTL` PARTITION BY `SETTINGS` "
    "TTL `TTL` + INTERVAL 1 DAY TO DISK 'default' COMMENT 'TTL SETTINGS a = 1'",
]


def shown(cluster: LocalCluster, database: str, table: str, node: int = 1) -> TableDefinition:
    """The table as a replica shows it."""
    text = cluster.scalar(
        "SELECT create_table_query FROM system.tables "
        f"WHERE database = {string(database)} AND name = {string(table)}",
        node=node,
    )
    return parse(text)


def built(cluster: LocalCluster, database: str, definition: TableDefinition, name: str) -> str:
    """Create a candidate on every replica and return its UUID."""
    uuid = str(uuid4())
    cluster.execute(
        build_candidate(definition, database=database, name=name, uuid=uuid, cluster=CLUSTER_NAME, mark=MARK),
        # What a profile may hold.
        settings={"data_type_default_nullable": "1", **CREATE_SETTINGS},
    )
    return uuid


def understood(cluster: LocalCluster, text: str) -> TableDefinition:
    """What somebody wrote, in the server's words."""
    definition = from_ddl(cluster.scalar(format_query(text)))
    return described(definition, cluster.query(describe_columns(definition)))


@pytest.mark.parametrize(
    "ddl", TABLES, ids=["every clause", "smallest", "literal path", "names like clauses"]
)
def test_a_candidate_of_a_live_table_equals_it_on_every_replica(
    cluster: LocalCluster, database: str, ddl: str
) -> None:
    cluster.execute(f"CREATE TABLE {qualified(database, 't')} ON CLUSTER {CLUSTER_NAME} {ddl}")
    target = shown(cluster, database, "t")
    assert admit_engine(target) is None
    uuid = built(cluster, database, target, "c`d")
    for node in cluster.nodes:
        candidate = shown(cluster, database, "c`d", node)
        assert differences(target, candidate) == ()
        assert schema_digest(candidate) == schema_digest(target)
        assert normalized_engine_full(candidate) == normalized_engine_full(target)
        assert split_comment(candidate.comment) == (target.comment, MARK)
        assert replace(candidate, comment=target.comment, engine_arguments=()) == replace(
            target, engine_arguments=()
        )
        found = cluster.scalar(
            f"SELECT uuid FROM system.tables WHERE database = {string(database)} AND name = 'c`d'", node=node
        )
        assert found == uuid
    paths = cluster.query(
        f"SELECT table, zookeeper_path AS path, active_replicas AS active FROM system.replicas "
        f"WHERE database = {string(database)} ORDER BY table"
    )
    assert [row["active"] for row in paths] == [2, 2]
    assert uuid in paths[0]["path"]
    assert paths[0]["path"] != paths[1]["path"]


def test_what_a_live_table_was_allowed_to_be_its_candidate_is_too(
    cluster: LocalCluster, database: str
) -> None:
    cluster.execute(
        f"CREATE TABLE {qualified(database, 't')} ON CLUSTER {CLUSTER_NAME} (n Nested(x UInt8, y String), "
        "a LowCardinality(UInt8), f FixedString(300), c UInt8 CODEC(Delta, Delta)) "
        "ENGINE = ReplicatedMergeTree ORDER BY tuple()",
        settings={
            "flatten_nested": 0,
            "allow_suspicious_low_cardinality_types": 1,
            "allow_suspicious_fixed_string_types": 1,
            "allow_suspicious_codecs": 1,
        },
    )
    target = shown(cluster, database, "t")
    built(cluster, database, target, "c")
    assert differences(target, shown(cluster, database, "c")) == ()


def test_digests_do_not_change_when_the_tables_exchange_their_names(
    cluster: LocalCluster, database: str
) -> None:
    cluster.execute(f"CREATE TABLE {qualified(database, 't')} ON CLUSTER {CLUSTER_NAME} {TABLES[2]}")
    target = shown(cluster, database, "t")
    built(cluster, database, target, "c")
    cluster.execute(
        f"EXCHANGE TABLES {qualified(database, 't')} AND {qualified(database, 'c')} ON CLUSTER {CLUSTER_NAME}"
    )
    for node in cluster.nodes:
        live, predecessor = shown(cluster, database, "t", node), shown(cluster, database, "c", node)
        assert schema_digest(live) == schema_digest(predecessor) == schema_digest(target)
        assert split_comment(live.comment)[1] == MARK
        assert split_comment(predecessor.comment)[1] is None


def test_the_candidate_of_a_published_table_can_be_built_again(cluster: LocalCluster, database: str) -> None:
    cluster.execute(f"CREATE TABLE {qualified(database, 't')} ON CLUSTER {CLUSTER_NAME} {TABLES[2]}")
    for name, source in (("c1", "t"), ("c2", "c1"), ("c3", "c2")):
        built(cluster, database, shown(cluster, database, source), name)
    assert shown(cluster, database, "c3").comment == str(MARK)
    assert differences(shown(cluster, database, "t"), shown(cluster, database, "c3")) == ()


STRUCTURE = TableStructure(
    columns={
        "id": "Int CODEC(Delta, ZSTD) COMMENT 'x'",
        "we ird": "varchar(10) NULL",
        "text": "text NOT NULL DEFAULT 'a' || 'b'",
        "dt": "DateTime",
        "n": "Nested(x Int, y text)",
        "d": "DEFAULT id + 1",
        "m": "String MATERIALIZED toString(id)",
        "s": "DOUBLE PRECISION STATISTICS(tdigest)",
        "TTL": "enum('x', 'y')",
    },
    order_by=["id", "we ird"],
    partition_by="toYYYYMM(dt)",
    primary_key="id",
    ttl="dt + INTERVAL 1 DAY TO DISK 'default'",
    settings={"allow_nullable_key": True, "storage_policy": "default"},
    indexes=["i text TYPE bloom_filter"],
    projections=["p (SELECT id ORDER BY dt)"],
    constraints=["k CHECK id > 0"],
    comment="it's",
)
DDL = """-- written by hand
    create table (id Int codec(Delta, ZSTD), `n` Nested(x Int), d Datetime default now() /* now */, primary key id)
    engine = ReplicatedMergeTree order by (id, d) ttl d + interval 1 week recompress codec(ZSTD(5)) comment $$it's$$
"""


@pytest.mark.parametrize("text", [structure_text(STRUCTURE), ddl_text(DDL)], ids=["structure", "ddl"])
def test_what_somebody_wrote_equals_the_created_table(
    cluster: LocalCluster, database: str, text: str
) -> None:
    expected = understood(cluster, text)
    built(cluster, database, expected, "c")
    for node in cluster.nodes:
        assert differences(expected, shown(cluster, database, "c", node)) == ()
    assert admit_engine(expected) is None


def test_a_structure_that_smuggles_in_a_select_is_refused(cluster: LocalCluster) -> None:
    structure = TableStructure(columns={"a": "UInt8"}, order_by="a AS SELECT 1 AS a")
    with pytest.raises(ValueError, match="AS is not part"):
        understood(cluster, structure_text(structure))


def test_an_unknown_type_is_the_servers_error_before_anything_exists(cluster: LocalCluster) -> None:
    with pytest.raises(ClickHouseError) as refusal:
        understood(cluster, structure_text(TableStructure(columns={"a": "UInt7"}, order_by="a")))
    assert refusal.value.code == 50


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("(a UInt8) ENGINE = MergeTree ORDER BY a", "engine"),
        ("(a UInt8, v UInt8) ENGINE = ReplicatedReplacingMergeTree(v) ORDER BY a", "engine"),
        ("(a UInt8) ENGINE = Memory", "engine"),
        (f"(a UInt8) ENGINE = Distributed('{CLUSTER_NAME}', 'system', 'one')", "engine"),
        ("(d Date) ENGINE = ReplicatedMergeTree ORDER BY d TTL d + INTERVAL 1 DAY", "row_ttl"),
        ("(d Date) ENGINE = ReplicatedMergeTree ORDER BY d TTL d + INTERVAL 1 DAY DELETE WHERE 1", "row_ttl"),
        (
            "(d Date, v UInt8) ENGINE = ReplicatedMergeTree ORDER BY d "
            "TTL d + INTERVAL 1 DAY GROUP BY d SET v = max(v)",
            "row_ttl",
        ),
        ("(d Date, v UInt8 TTL d + INTERVAL 1 DAY) ENGINE = ReplicatedMergeTree ORDER BY d", "column_ttl"),
    ],
)
def test_a_table_whose_rows_change_by_themselves_is_refused(
    cluster: LocalCluster, database: str, ddl: str, reason: str
) -> None:
    cluster.execute(f"CREATE TABLE {qualified(database, 't')} ON CLUSTER {CLUSTER_NAME} {ddl}")
    refusal = admit_engine(shown(cluster, database, "t"))
    assert refusal is not None
    assert refusal.reason == reason


def test_a_table_with_a_hidden_secret_is_refused(cluster: LocalCluster, database: str) -> None:
    cluster.execute(
        f"CREATE TABLE {qualified(database, 't')} ON CLUSTER {CLUSTER_NAME} "
        f"(a String DEFAULT encrypt('aes-256-ofb', 'a', '{'k' * 32}')) ENGINE = ReplicatedMergeTree ORDER BY a"
    )
    with pytest.raises(ValueError, match="secret"):
        shown(cluster, database, "t")
