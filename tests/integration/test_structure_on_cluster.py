"""A candidate has its target's structure on every replica, clause by clause; nothing is dropped or guessed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse.create_table import TableDefinition, differences, parse
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.sources import SqlSource
from airflow_provider_dpone.values import TableStructure
from tests.cluster import LocalCluster
from tests.integration.staging_site import Site

pytestmark = pytest.mark.cluster

COLUMNS = "id UInt64, at DateTime('UTC'), name String"
SOURCE = SqlSource("SELECT 1::UInt64 AS id, toDateTime('2013-01-01 05:00:00', 'UTC') AS at, 'x' AS name")


@pytest.fixture
def site(cluster: LocalCluster, database: str) -> Site:
    return Site(cluster, database, (cluster.endpoints[0],))


def definitions(site: Site, table: str) -> list[TableDefinition]:
    """The table as each replica shows it."""
    return [
        parse(
            site.cluster.scalar(
                "SELECT create_table_query FROM system.tables "
                f"WHERE database = '{site.database}' AND name = '{table}'",
                node=node,
            )
        )
        for node in site.cluster.nodes
    ]


def server_text(site: Site, table: str) -> list[str]:
    """The server's own CREATE TABLE on each replica, without the name and our mark: read by no code of ours."""
    texts = [
        site.cluster.scalar(
            "SELECT create_table_query FROM system.tables "
            f"WHERE database = '{site.database}' AND name = '{table}'",
            node=node,
        )
        for node in site.cluster.nodes
    ]
    unmarked = [re.sub(r" ?\[dpone:v1 [^]]*\]", "", text).removesuffix(" COMMENT ''") for text in texts]
    return [text.replace(f"{site.database}.{table} ", "", 1) for text in unmarked]


CLAUSES = {
    "plain": (COLUMNS, "ORDER BY id"),
    "no sorting key": (COLUMNS, "ORDER BY tuple()"),
    "defaults": (
        f"{COLUMNS}, d UInt64 DEFAULT id + 1, m String MATERIALIZED upper(name), a UInt64 ALIAS id * 2, "
        "e String EPHEMERAL 'x', de String DEFAULT e",
        "ORDER BY id",
    ),
    "codecs": (
        "id UInt64 CODEC(Delta(8), ZSTD(3)), at DateTime('UTC') CODEC(DoubleDelta), name String CODEC(LZ4HC(9))",
        "ORDER BY id",
    ),
    "column comments": (
        "id UInt64 COMMENT 'it''s', at DateTime('UTC'), name String COMMENT 'a \\n b'",
        "ORDER BY id",
    ),
    "table comment": (COLUMNS, "ORDER BY id COMMENT 'Orders \\'of\\' all shops'"),
    "skip indexes": (
        f"{COLUMNS}, INDEX i1 name TYPE bloom_filter(0.01) GRANULARITY 4, INDEX i2 (id, at) TYPE minmax",
        "ORDER BY id",
    ),
    "projections": (
        f"{COLUMNS}, PROJECTION p1 (SELECT id, name ORDER BY name), PROJECTION p2 (SELECT name, count() GROUP BY name)",
        "ORDER BY id",
    ),
    "constraints": (
        f"{COLUMNS}, CONSTRAINT c1 CHECK id > 0, CONSTRAINT c2 ASSUME length(name) < 100",
        "ORDER BY id",
    ),
    "ttl that recompresses": (COLUMNS, "ORDER BY id TTL at + INTERVAL 1 MONTH RECOMPRESS CODEC(ZSTD(17))"),
    "ttl that moves": (COLUMNS, "ORDER BY id TTL at + INTERVAL 1 WEEK TO DISK 'default'"),
    "partition key": (COLUMNS, "PARTITION BY toYYYYMM(at) ORDER BY id"),
    "partition by a tuple": (COLUMNS, "PARTITION BY (toYear(at), id % 4) ORDER BY id"),
    "primary key that is shorter": (COLUMNS, "PRIMARY KEY id ORDER BY (id, at, cityHash64(name))"),
    "descending sorting key": (
        COLUMNS,
        "ORDER BY (id, at DESC) SETTINGS allow_experimental_reverse_key = 1",
    ),
    "sample key": (COLUMNS, "ORDER BY (id, intHash32(id)) SAMPLE BY intHash32(id)"),
    "settings": (
        COLUMNS,
        "ORDER BY id SETTINGS index_granularity = 1024, min_bytes_for_wide_part = 0, storage_policy = 'default'",
    ),
    "nullable key": (
        "id Nullable(UInt64), at DateTime('UTC'), name String",
        "ORDER BY id SETTINGS allow_nullable_key = 1",
    ),
    "types": (
        f"{COLUMNS}, lc LowCardinality(Nullable(String)) DEFAULT NULL, en Enum8('a' = 1, 'b,)' = 2) DEFAULT 'a', "
        "arr Array(Nullable(String)) DEFAULT [], tup Tuple(x UInt8, y String) DEFAULT (0, ''), "
        "mp Map(String, Array(UInt8)) DEFAULT map(), dec Decimal(20, 4) DEFAULT 0, u UUID DEFAULT generateUUIDv4(), "
        "ip IPv6 DEFAULT '::1', fs FixedString(4) DEFAULT 'abcd', big UInt256 DEFAULT 1",
        "ORDER BY id",
    ),
    "nested": (f"{COLUMNS}, n Nested(a UInt8, b String)", "ORDER BY id"),
    "names that need quotes": (
        "id UInt64, at DateTime('UTC'), name String, `TTL` UInt8 DEFAULT 1, `a b` UInt8 DEFAULT 2, "
        "`back\\`tick` UInt8 DEFAULT 3, `ORDER BY` UInt8 DEFAULT 4",
        "ORDER BY (id, `TTL`, `ORDER BY`)",
    ),
}


@pytest.mark.parametrize("clause", CLAUSES)
def test_the_candidate_has_the_clause_on_every_replica(site: Site, clause: str) -> None:
    site.create(*CLAUSES[clause])
    source = SOURCE
    if clause == "nested":
        source = SqlSource(f"{SOURCE.sql}, [1::UInt8] AS `n.a`, ['x'] AS `n.b`")
    (target, *others) = definitions(site, "t")
    assert all(not differences(target, other) for other in others)

    attempt, loaded = site.staged(site.staging(source))

    for candidate in definitions(site, attempt.name):
        assert differences(target, candidate) == ()
        assert candidate.columns == target.columns
        assert candidate.indexes == target.indexes
        assert candidate.projections == target.projections
        assert candidate.constraints == target.constraints
        assert (candidate.ttl, candidate.settings) == (target.ttl, target.settings)
        assert (candidate.partition_by, candidate.order_by) == (target.partition_by, target.order_by)
        assert (candidate.primary_key, candidate.sample_by) == (target.primary_key, target.sample_by)
        assert candidate.user_comment == target.comment
        assert candidate.comment.startswith(f"{target.comment} [dpone:v1 ".lstrip())
    assert server_text(site, attempt.name) == server_text(site, "t")
    assert loaded.rows == 1
    assert site.rows(f"SELECT id, name FROM {site.database}.{attempt.name}") == [[1, "x"]]


def test_the_target_is_refused_where_rows_change_later(site: Site) -> None:
    site.create(COLUMNS, "ORDER BY id TTL at + INTERVAL 100 YEAR DELETE")
    with pytest.raises(Stopped) as caught:
        site.planned(site.staging(SOURCE))
    assert caught.value.stop.code is Code.UNSUPPORTED_TARGET


def test_the_keeper_path_is_the_candidates_own(site: Site) -> None:
    """A literal path, which CREATE TABLE ... AS would copy, collides; every candidate has its own."""
    site.cluster.execute(
        f"CREATE TABLE {site.database}.t ON CLUSTER analytics ({COLUMNS}) ENGINE = "
        f"ReplicatedMergeTree('/clickhouse/tables/literal/{site.database}', '{{replica}}') ORDER BY id"
    )
    first, _ = site.staged(site.staging(SOURCE))
    second, _ = site.staged(site.staging(SOURCE))
    ((paths,),) = site.rows(
        "SELECT uniqExact(zookeeper_path) FROM system.replicas "
        f"WHERE database = '{site.database}' AND table IN ('t', '{first.name}', '{second.name}')"
    )
    assert paths == 3


# --- on_schema_change --------------------------------------------------------------------

WIDER = SqlSource(f"{SOURCE.sql}, toDecimal64('1.50', 2) AS price")
STRUCTURE = TableStructure(
    columns={
        "id": "UInt64",
        "price": "Decimal(18, 2) CODEC(ZSTD(1))",
        "name": "LowCardinality(String)",
        "at": "DateTime('UTC')",
    },
    order_by=["name", "id"],
    partition_by="toYYYYMM(at)",
    settings={"index_granularity": 2048},
    comment="the new one",
)


def refused(site: Site, source: SqlSource, **refresh: Any) -> Stopped:
    with pytest.raises(Stopped) as caught:
        site.planned(site.staging(source, **refresh))
    return caught.value


def test_refuse_keeps_the_live_structure_and_refuses_another_source(site: Site) -> None:
    site.create(COLUMNS, "ORDER BY id")
    error = refused(site, WIDER, structure=STRUCTURE)
    assert error.stop.code is Code.SCHEMA_MISMATCH
    assert error.stop.facts == {"source_only": ["price"], "table_only": []}
    attempt, _ = site.staged(site.staging(SOURCE, structure=STRUCTURE))
    assert not differences(definitions(site, "t")[0], definitions(site, attempt.name)[1])


def test_append_adds_the_sources_new_columns_with_the_given_types(site: Site) -> None:
    site.create(COLUMNS, "ORDER BY id COMMENT 'kept'")
    error = refused(site, WIDER, on_schema_change="append")
    assert error.stop.code is Code.SCHEMA_MISMATCH
    assert "'price': 'Decimal(18, 2)'" in error.stop.message

    staging = site.staging(WIDER, on_schema_change="append", structure=STRUCTURE)
    plan = site.planned(staging)
    assert plan.schema_difference == ("column `price` was added",)
    attempt, _ = site.staged(staging)
    live = definitions(site, "t")[0]
    for candidate in definitions(site, attempt.name):
        assert candidate.columns[:3] == live.columns
        assert [column.name for column in candidate.columns] == ["id", "at", "name", "price"]
        assert (candidate.order_by, candidate.user_comment) == ("id", "kept")
    assert site.rows(f"SELECT toString(price) FROM {site.database}.{attempt.name}") == [["1.5"]]


def test_append_without_new_columns_changes_nothing(site: Site) -> None:
    site.create(COLUMNS, "ORDER BY id")
    assert site.planned(site.staging(SOURCE, on_schema_change="append")).schema_difference == ()


def test_append_never_leaves_a_column_out(site: Site) -> None:
    site.create(f"{COLUMNS}, more UInt8", "ORDER BY id")
    error = refused(site, WIDER, on_schema_change="append", structure=STRUCTURE)
    assert error.stop.facts == {"source_only": [], "table_only": ["more"]}


def test_replace_gives_the_candidate_the_new_structure(site: Site) -> None:
    site.create(COLUMNS, "ORDER BY id COMMENT 'the old one'")
    staging = site.staging(WIDER, on_schema_change="replace", structure=STRUCTURE)
    plan = site.planned(staging)
    said = "\n".join(plan.schema_difference)
    for clause in (
        "column `price`",
        "column `name`",
        "ORDER BY",
        "PARTITION BY",
        "COMMENT",
        "index_granularity",
    ):
        assert clause in said
    attempt, loaded = site.staged(staging)
    assert loaded.rows == 1
    for candidate in definitions(site, attempt.name):
        assert [column.name for column in candidate.columns] == ["id", "price", "name", "at"]
        assert candidate.order_by == "(name, id)"
        assert candidate.partition_by == "toYYYYMM(at)"
        assert candidate.user_comment == "the new one"
        assert dict(candidate.settings)["index_granularity"] == "2048"
    # What is live is what it was.
    assert definitions(site, "t")[0].user_comment == "the old one"


def test_replace_with_ddl(site: Site) -> None:
    site.create(COLUMNS, "ORDER BY id")
    ddl = """
        CREATE TABLE (
            at   DateTime('UTC'),
            id   UInt32,          -- narrower
            name String,
            INDEX i name TYPE set(100),
            PROJECTION p (SELECT name, count() GROUP BY name)
        ) ORDER BY at
    """
    attempt, _ = site.staged(site.staging(SOURCE, on_schema_change="replace", ddl=ddl))
    for candidate in definitions(site, attempt.name):
        assert [(column.name, column.type) for column in candidate.columns] == [
            ("at", "DateTime('UTC')"),
            ("id", "UInt32"),
            ("name", "String"),
        ]
        assert len(candidate.indexes) == len(candidate.projections) == 1
    assert site.rows(f"SELECT id, name FROM {site.database}.{attempt.name}") == [[1, "x"]]
