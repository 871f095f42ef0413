"""Definitions: reading, comparing, admitting; and the statements of candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dpone.clickhouse.create_table import (
    ClauseDifference,
    ColumnDefinition,
    DefinitionError,
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
from airflow_provider_dpone.clickhouse.sql import identifier, string
from airflow_provider_dpone.clickhouse.table_comment import with_mark
from airflow_provider_dpone.values import TableStructure

UUID = "11111111-2222-3333-4444-555555555555"
MARK = TableMark("a" * 32, "b" * 64, "c" * 16)

FULL = (
    r"CREATE TABLE mart.orders (`id` UInt64 DEFAULT 5 COMMENT 'it\'s' CODEC(Delta(8), ZSTD(3)) STATISTICS(tdigest), "
    r"`m` String MATERIALIZED toString(id), `c` Int8 ALIAS id + 1, `e` String EPHEMERAL 'x', "
    r"`we ird\`q` Nullable(DateTime64(3, 'UTC')), `t` Tuple(x UInt8, y String), `dt` DateTime, "
    r"`en` Enum8('a' = 1, 'b,)' = 2), `st` String SETTINGS (min_compress_block_size = 1024), "
    r"INDEX i1 id TYPE minmax GRANULARITY 4, INDEX i2 (id, m) TYPE bloom_filter(0.01) GRANULARITY 1, "
    r"CONSTRAINT c1 CHECK id > 0, PROJECTION p (SELECT id ORDER BY m)) "
    r"ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}') PARTITION BY toYYYYMM(dt) "
    r"PRIMARY KEY id ORDER BY (id, cityHash64(m)) SAMPLE BY id "
    r"TTL dt + toIntervalMonth(2) RECOMPRESS CODEC(ZSTD(17)), dt + toIntervalWeek(1) TO DISK 'default' "
    r"SETTINGS index_granularity = 1024, storage_policy = 'default' COMMENT 'tab\'le \n c'"
)


def table(
    tail: str = "ORDER BY a", columns: str = "`a` UInt8", engine: str = "ReplicatedMergeTree"
) -> TableDefinition:
    arguments = (
        "('/clickhouse/tables/{uuid}/{shard}', '{replica}')" if engine.startswith("Replicated") else ""
    )
    return parse(f"CREATE TABLE d.t ({columns}) ENGINE = {engine}{arguments} {tail}")


def candidate(definition: TableDefinition, **changes: str) -> str:
    arguments = {"database": "mart", "name": "c", "uuid": UUID, "cluster": "analytics"} | changes
    return build_candidate(definition, mark=MARK, **arguments)


def reread(statement: str) -> TableDefinition:
    """The candidate as the server would show it: without UUID and ON CLUSTER."""
    return parse(statement.replace(f" UUID '{UUID}' ON CLUSTER `analytics`", ""))


# --- reading


def test_every_clause_is_read() -> None:
    full = parse(FULL)
    assert full.name == "mart.orders"
    assert full.engine == "ReplicatedMergeTree"
    assert full.engine_arguments == ("'/clickhouse/tables/{uuid}/{shard}'", "'{replica}'")
    assert full.indexes == (
        "i1 id TYPE minmax GRANULARITY 4",
        "i2 (id, m) TYPE bloom_filter(0.01) GRANULARITY 1",
    )
    assert full.constraints == ("c1 CHECK id > 0",)
    assert full.projections == ("p (SELECT id ORDER BY m)",)
    assert full.partition_by == "toYYYYMM(dt)"
    assert full.primary_key == "id"
    assert full.order_by == "(id, cityHash64(m))"
    assert full.sample_by == "id"
    assert (
        full.ttl
        == "dt + toIntervalMonth(2) RECOMPRESS CODEC(ZSTD(17)), dt + toIntervalWeek(1) TO DISK 'default'"
    )
    assert full.settings == (("index_granularity", "1024"), ("storage_policy", "'default'"))
    assert full.comment == "tab'le \n c"


def test_every_part_of_a_column_is_read() -> None:
    columns = {column.name: column for column in parse(FULL).columns}
    assert columns["id"] == ColumnDefinition(
        "id",
        "UInt64",
        default_kind="DEFAULT",
        default="5",
        comment=r"'it\'s'",
        codec="(Delta(8), ZSTD(3))",
        statistics="(tdigest)",
    )
    assert columns["we ird`q"].type == "Nullable(DateTime64(3, 'UTC'))"
    assert columns["en"].type == "Enum8('a' = 1, 'b,)' = 2)"
    assert columns["st"].settings == "(min_compress_block_size = 1024)"


def test_a_declaration_is_written_back_as_it_was() -> None:
    elements = FULL[FULL.index("(") + 1 : FULL.index(", INDEX")]
    assert ", ".join(column.declaration for column in parse(FULL).columns) == elements


@pytest.mark.parametrize(
    "declaration",
    [
        "`a` UInt8 NOT NULL DEFAULT 1",
        "`a` UInt8 NULL",
        "`a` DOUBLE PRECISION DEFAULT 1.5",
        "`a` DEFAULT b + 1",
        "`a` UInt8 DEFAULT COMMENT COMMENT 'x'",
        "`a` UInt8 DEFAULT CODEC + TTL CODEC(ZSTD(1))",
        "`a` UInt8 EPHEMERAL COMMENT 'x'",
        "`a` DateTime TTL a + toIntervalDay(1)",
    ],
)
def test_unusual_declarations_are_written_back_as_they_were(declaration: str) -> None:
    assert table(columns=declaration).columns[0].declaration == declaration


def test_columns_named_like_clauses_are_not_taken_for_clauses() -> None:
    definition = table(
        "PARTITION BY PRIMARY ORDER BY TTL TTL TTL + toIntervalDay(5) SETTINGS a = 1 COMMENT 'x'"
    )
    assert definition.partition_by == "PRIMARY"
    assert definition.order_by == "TTL"
    assert definition.ttl == "TTL + toIntervalDay(5)"
    assert definition.settings == (("a", "1"),)


def test_clauses_inside_strings_and_brackets_are_not_taken_for_clauses() -> None:
    definition = table("ORDER BY (a, 'x) SETTINGS a = 1') COMMENT 'COMMENT \\' TTL'")
    assert definition.order_by == "(a, 'x) SETTINGS a = 1')"
    assert definition.comment == "COMMENT ' TTL"
    assert definition.settings == ()


def test_a_uuid_that_a_profile_shows_is_not_part_of_the_name() -> None:
    assert parse(f"CREATE TABLE d.t UUID '{UUID}' (`a` UInt8) ENGINE = Memory").name == "d.t"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1",
        "CREATE VIEW d.v (`a` UInt8) AS SELECT 1",
        "CREATE MATERIALIZED VIEW d.v TO d.t (`a` UInt8) AS SELECT 1",
        "CREATE DICTIONARY d.d (`a` UInt64) PRIMARY KEY a SOURCE(NULL()) LAYOUT(FLAT())",
        "CREATE TABLE d.t AS d.s",
        "CREATE TABLE d.t (`a` UInt8) ENGINE = MergeTree ORDER BY a AS SELECT 1",
        "CREATE TABLE d.t (`a` UInt8) ENGINE = MergeTree ORDER BY a UNIQUE KEY a",
        "CREATE TABLE d.t (`a` UInt8) ENGINE = MergeTree FOO BY a",
        "CREATE TABLE d.t (`a` UInt8) ENGINE = MergeTree ORDER BY",
        "CREATE TABLE IF NOT EXISTS d.t (`a` UInt8) ENGINE = Memory",
        "CREATE TABLE d.t ON CLUSTER c (`a` UInt8) ENGINE = Memory",
        "CREATE TABLE d.t (`a` UInt8 ENGINE = Memory",
        "CREATE TABLE d.t (`a` UInt8) ENGINE = Memory /* x */",
        "CREATE TABLE d.t (`a` String DEFAULT encrypt('aes-256-ofb', '[HIDDEN]')) ENGINE = Memory",
    ],
)
def test_what_is_not_a_readable_create_table_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError):
        parse(text)


def test_computed_columns_are_told_from_stored_ones() -> None:
    full = parse(FULL)
    assert tuple(column.name for column in full.stored_columns) == (
        "id",
        "m",
        "we ird`q",
        "t",
        "dt",
        "en",
        "st",
    )
    assert [column.name for column in full.insertable_columns] == ["id", "we ird`q", "t", "dt", "en", "st"]
    assert [column.name for column in full.columns if column.required] == ["we ird`q", "t", "dt", "en", "st"]


# --- building


def test_a_candidate_has_every_clause_of_its_target() -> None:
    built = reread(candidate(parse(FULL)))
    assert differences(parse(FULL), built) == ()
    assert replace(built, comment=parse(FULL).comment) == parse(FULL)


def test_a_candidate_has_its_own_name_uuid_cluster_and_mark() -> None:
    statement = candidate(parse(FULL), database="we ird", name="c`d", cluster="an'alytics")
    assert statement.startswith(
        rf"CREATE TABLE `we ird`.`c\`d` UUID '{UUID}' ON CLUSTER `an'alytics` (`id` UInt64 "
    )
    assert statement.endswith(f"COMMENT 'tab\\'le \\n c {MARK}'")


def test_a_literal_keeper_path_is_replaced_by_one_with_the_uuid() -> None:
    definition = parse(
        "CREATE TABLE d.t (`a` UInt8) ENGINE = ReplicatedMergeTree('/clickhouse/tables/d/t', 'r1') ORDER BY a"
    )
    assert "ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')" in candidate(
        definition
    )


def test_another_keeper_with_the_uuid_in_its_path_is_kept() -> None:
    definition = parse(
        "CREATE TABLE d.t (`a` UInt8) ENGINE = ReplicatedMergeTree('aux:/x/{uuid}', '{host}') ORDER BY a"
    )
    assert "ReplicatedMergeTree('aux:/x/{uuid}', '{host}')" in candidate(definition)
    assert "('/y/{uuid}', '{r}')" in candidate(definition, keeper_path="/y/{uuid}", replica="{r}")


def test_the_mark_of_a_published_target_is_replaced_and_not_repeated() -> None:
    first = reread(candidate(table("ORDER BY a COMMENT 'mine'")))
    second = reread(candidate(first))
    assert second.comment == first.comment == f"mine {MARK}"


def test_a_nil_or_malformed_uuid_is_refused() -> None:
    for uuid in ("00000000-0000-0000-0000-000000000000", "x"):
        with pytest.raises(ValueError):
            candidate(table(), uuid=uuid)


# --- comment


@given(st.text(), st.sampled_from([MARK, TableMark("1", "2", "3")]))
def test_the_users_comment_and_the_mark_come_apart_again(user: str, mark: TableMark) -> None:
    comment = with_mark(split_comment(user)[0], mark)
    assert split_comment(comment) == (split_comment(user)[0], mark)


@given(st.text())
def test_a_comment_without_mark_is_the_users(user: str) -> None:
    assert split_comment(f"{user}x") == (f"{user}x", None)


@pytest.mark.parametrize(
    "comment", ["[dpone]", "[dpone:v1]", "[dpone:v1 authority=a]", f"{MARK} x", "[dpone:v1 a=b]"]
)
def test_what_only_looks_like_a_mark_is_the_users(comment: str) -> None:
    assert split_comment(comment) == (comment, None)


def test_a_mark_of_a_later_version_still_shows_its_authority() -> None:
    user, mark = split_comment("mine [dpone:v2 authority=abc lease=1]")
    assert user == "mine"
    assert mark == TableMark("abc", "", "", 2)


@pytest.mark.parametrize("bad", ["", "a b", "a]", "x" * 65])
def test_an_id_that_could_not_be_read_back_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="operation_id"):
        TableMark("a", bad, "c")


# --- comparing


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        (("DEFAULT 5", "DEFAULT 6"), "column `id`"),
        ((r"COMMENT 'it\'s'", "COMMENT 'its'"), "column `id`"),
        (("Delta(8), ", ""), "column `id`"),
        (("STATISTICS(tdigest)", "STATISTICS(minmax)"), "column `id`"),
        (("`dt` DateTime,", "`dt` DateTime64(3),"), "column `dt`"),
        (("`dt` DateTime,", "`dt` DateTime TTL dt + toIntervalDay(1),"), "column `dt`"),
        (("`st` String SETTINGS (min_compress_block_size = 1024)", "`st` String"), "column `st`"),
        ((", `en` Enum8('a' = 1, 'b,)' = 2)", ""), "column `en`"),
        (("GRANULARITY 4", "GRANULARITY 5"), "index `i1`"),
        ((", INDEX i2 (id, m) TYPE bloom_filter(0.01) GRANULARITY 1", ""), "index `i2`"),
        (("CHECK id > 0", "CHECK id > 1"), "constraint `c1`"),
        (("(SELECT id ORDER BY m)", "(SELECT m ORDER BY id)"), "projection `p`"),
        (("ENGINE = ReplicatedMergeTree(", "ENGINE = ReplicatedReplacingMergeTree("), "engine"),
        (("'{replica}')", "'{replica}', v)"), "engine arguments"),
        (("toYYYYMM(dt)", "toDate(dt)"), "PARTITION BY"),
        (("PRIMARY KEY id ", ""), "PRIMARY KEY"),
        (("ORDER BY (id, cityHash64(m))", "ORDER BY id"), "ORDER BY"),
        (("SAMPLE BY id", "SAMPLE BY intHash32(id)"), "SAMPLE BY"),
        (("toIntervalMonth(2)", "toIntervalMonth(3)"), "TTL"),
        (("index_granularity = 1024", "index_granularity = 1025"), "setting `index_granularity`"),
        (("storage_policy = 'default'", "storage_policy = 'hot'"), "setting `storage_policy`"),
        ((r"COMMENT 'tab\'le \n c'", "COMMENT 'table'"), "COMMENT"),
    ],
)
def test_a_changed_clause_is_a_difference_and_changes_the_digest(
    change: tuple[str, str], clause: str
) -> None:
    assert change[0] in FULL
    expected, actual = parse(FULL), parse(FULL.replace(*change))
    assert [difference.clause for difference in differences(expected, actual)] == [clause]
    assert schema_digest(expected) != schema_digest(actual)


def test_columns_in_another_order_are_a_difference() -> None:
    one, other = table(columns="`a` UInt8, `b` UInt8"), table(columns="`b` UInt8, `a` UInt8")
    assert differences(one, other) == (ClauseDifference("order of columns", "`a`, `b`", "`b`, `a`"),)
    assert schema_digest(one) != schema_digest(other)


@pytest.mark.parametrize(
    "change",
    [
        ("mart.orders", "mart.other"),
        ("{uuid}/{shard}", "mart/orders"),
        ("'{replica}'", "'r1'"),
        (r"\n c'", rf"\n c {MARK}'"),
        (
            "index_granularity = 1024, storage_policy = 'default'",
            "storage_policy = 'default', index_granularity = 1024",
        ),
    ],
)
def test_name_keeper_path_replica_and_mark_are_no_difference(change: tuple[str, str]) -> None:
    assert change[0] in FULL
    expected, actual = parse(FULL), parse(FULL.replace(*change))
    assert differences(expected, actual) == ()
    assert schema_digest(expected) == schema_digest(actual)
    assert normalized_engine_full(expected) == normalized_engine_full(actual)


def test_the_setting_that_the_server_adds_is_no_difference() -> None:
    assert differences(table(), table("ORDER BY a SETTINGS index_granularity = 8192")) == ()


def test_another_value_of_that_setting_is_a_difference() -> None:
    (difference,) = differences(table(), table("ORDER BY a SETTINGS index_granularity = 1"))
    assert str(difference) == "setting `index_granularity` was added"
    (missing,) = differences(table("ORDER BY a SETTINGS index_granularity = 8192"), table())
    assert str(missing) == "setting `index_granularity` is missing"


def test_a_changed_clause_is_named_without_its_sql() -> None:
    (difference,) = differences(table("ORDER BY a"), table("ORDER BY b"))
    assert str(difference) == "ORDER BY is another one"


def test_the_normalized_engine_has_its_clauses_and_no_place_in_keeper() -> None:
    assert normalized_engine_full(table("PARTITION BY b ORDER BY a SETTINGS y = 1, x = 2 COMMENT 'c'")) == (
        "ReplicatedMergeTree PARTITION BY b ORDER BY a SETTINGS x = 2, y = 1"
    )


# --- admitting


@pytest.mark.parametrize(
    "engine",
    [
        "MergeTree",
        "ReplicatedReplacingMergeTree",
        "ReplicatedSummingMergeTree",
        "ReplicatedAggregatingMergeTree",
        "ReplicatedCollapsingMergeTree",
        "ReplicatedVersionedCollapsingMergeTree",
        "ReplicatedGraphiteMergeTree",
        "ReplicatedCoalescingMergeTree",
        "SharedMergeTree",
        "Memory",
        "Log",
        "Distributed",
        "Buffer",
        "KeeperMap",
    ],
)
def test_every_other_engine_is_refused(engine: str) -> None:
    refusal = admit_engine(table(engine=engine))
    assert refusal is not None
    assert refusal.reason == "engine"
    assert engine in str(refusal)


def test_the_plain_replicated_engine_is_admitted() -> None:
    assert admit_engine(parse(FULL)) is None
    assert admit_engine(table("ORDER BY a")) is None


def test_a_route_for_independent_tables_admits_their_engine() -> None:
    assert admit_engine(table(engine="MergeTree"), "MergeTree") is None


def test_engine_arguments_of_the_old_syntax_are_refused() -> None:
    refusal = admit_engine(
        parse("CREATE TABLE d.t (`a` Date) ENGINE = ReplicatedMergeTree('/p', 'r', a, (a), 8192)")
    )
    assert refusal is not None
    assert refusal.reason == "engine_arguments"


@pytest.mark.parametrize(
    "ttl",
    [
        "d + toIntervalDay(1)",
        "d + toIntervalDay(1) DELETE",
        "d + toIntervalDay(1) WHERE a = 1",
        "d + toIntervalDay(1) GROUP BY a SET b = max(b)",
        "d + toIntervalDay(1) TO DISK 'x', d + toIntervalDay(2)",
        "d + toIntervalDay(2) RECOMPRESS CODEC(ZSTD(1)), d + toIntervalDay(1) GROUP BY a SET b = max(b), c = any(c)",
        "RECOMPRESS + toIntervalDay(1)",
        "toIntervalDay(1) + `TO DISK`",
    ],
)
def test_a_ttl_that_changes_rows_is_refused(ttl: str) -> None:
    refusal = admit_engine(table(f"ORDER BY a TTL {ttl}"))
    assert refusal is not None
    assert refusal.reason == "row_ttl"


@pytest.mark.parametrize(
    "ttl",
    [
        "d + toIntervalDay(1) TO DISK 'x'",
        "d + toIntervalDay(1) TO VOLUME 'x'",
        "d + toIntervalDay(1) TO DISK IF EXISTS 'x'",
        "d + toIntervalDay(1) RECOMPRESS CODEC(ZSTD(17))",
        "d + toIntervalDay(1) TO VOLUME 'x', d + toIntervalDay(2) RECOMPRESS CODEC(Delta(1), LZ4HC(2))",
    ],
)
def test_a_ttl_that_moves_or_recompresses_is_admitted(ttl: str) -> None:
    assert admit_engine(table(f"ORDER BY a TTL {ttl}")) is None


def test_a_ttl_on_a_column_is_refused_by_column() -> None:
    refusal = admit_engine(table(columns="`a` UInt8, `we ird` DateTime TTL a + toIntervalDay(1)"))
    assert refusal is not None
    assert (refusal.reason, "`we ird`" in refusal.message) == ("column_ttl", True)


# --- structures that somebody wrote


def test_a_structure_becomes_a_create_table() -> None:
    structure = TableStructure(
        columns={"we ird": "UInt64 CODEC(Delta)", "at": "DateTime"},
        order_by=["we ird", "toDate(at)"],
        partition_by="toYYYYMM(at)",
        primary_key="we ird",
        sample_by="we ird",
        ttl=["at + INTERVAL 1 DAY TO DISK 'x'"],
        settings={"storage_policy": "it's", "index_granularity": 1, "ratio": 0.5, "flag": True},
        comment="c",
        indexes=["i at TYPE minmax"],
        projections=["p (SELECT at)"],
        constraints=["k CHECK 1"],
    )
    assert structure_text(structure) == (
        "CREATE TABLE dpone_candidate (`we ird` UInt64 CODEC(Delta), `at` DateTime, INDEX i at TYPE minmax, "
        "CONSTRAINT k CHECK 1, PROJECTION p (SELECT at)) ENGINE = ReplicatedMergeTree PARTITION BY toYYYYMM(at) "
        "PRIMARY KEY `we ird` ORDER BY (`we ird`, toDate(at)) SAMPLE BY `we ird` TTL at + INTERVAL 1 DAY TO DISK 'x' "
        r"SETTINGS `flag` = 1, `index_granularity` = 1, `ratio` = 0.5, `storage_policy` = 'it\'s' COMMENT 'c'"
    )


@pytest.mark.parametrize(
    ("order_by", "text"),
    [((), "tuple()"), ("a", "`a`"), ("a, b", "(a, b)"), (["a", "b"], "(`a`, `b`)"), ("(a, b)", "(a, b)")],
)
def test_a_sorting_key_is_written_as_one_expression(order_by: str | list[str], text: str) -> None:
    statement = structure_text(TableStructure(columns={"a": "UInt8", "b": "UInt8"}, order_by=order_by))
    assert statement.endswith(f" ORDER BY {text}")


@pytest.mark.parametrize(
    "declaration",
    ["UInt8, b UInt8", "UInt8) ENGINE = Memory --", "UInt8 -- x", "UInt8; DROP TABLE x", "'", "Array("],
)
def test_a_declaration_that_is_more_than_one_is_refused(declaration: str) -> None:
    with pytest.raises(DefinitionError, match="columns"):
        structure_text(TableStructure(columns={"a": declaration}, order_by=()))


@pytest.mark.parametrize("argument", ["order_by", "partition_by", "primary_key", "sample_by", "ttl"])
def test_a_key_that_ends_the_statement_is_refused(argument: str) -> None:
    structure = TableStructure.from_mapping(
        {"columns": {"a": "UInt8"}, "order_by": (), argument: "a; DROP TABLE x"}
    )
    with pytest.raises(DefinitionError, match=argument):
        structure_text(structure)


def test_ddl_without_a_name_gets_a_placeholder() -> None:
    assert ddl_text("/* mine */ create table\n(a UInt8) engine = ReplicatedMergeTree") == (
        "/* mine */ create table\ndpone_candidate (a UInt8) engine = ReplicatedMergeTree"
    )


@pytest.mark.parametrize(
    "ddl",
    [
        "",
        "SELECT 1",
        "CREATE TABLE t (a UInt8)",
        "CREATE TABLE IF NOT EXISTS (a UInt8)",
        "CREATE OR REPLACE TABLE (a UInt8)",
        "CREATE TEMPORARY TABLE (a UInt8)",
        f"CREATE TABLE UUID '{UUID}' (a UInt8)",
        "CREATE TABLE ON CLUSTER c (a UInt8)",
        "CREATE VIEW (a UInt8)",
        "CREATE TABLE 'x",
    ],
)
def test_ddl_with_what_is_not_its_own_is_refused(ddl: str) -> None:
    with pytest.raises(DefinitionError, match="ddl"):
        ddl_text(ddl)


def test_formatted_ddl_becomes_a_definition() -> None:
    definition = from_ddl("CREATE TABLE dpone_candidate (`a` UInt8) ENGINE = ReplicatedMergeTree ORDER BY a")
    assert definition == replace(table(), engine_arguments=())


def test_ddl_without_engine_is_replicated() -> None:
    assert from_ddl("CREATE TABLE dpone_candidate (`a` UInt8) ORDER BY a").engine == "ReplicatedMergeTree"


@pytest.mark.parametrize(
    ("formatted", "reason"),
    [
        (
            "CREATE TABLE dpone_candidate (`a` UInt8) ENGINE = ReplicatedMergeTree('/p', 'r') ORDER BY a",
            "are ours",
        ),
        ("CREATE TABLE dpone_candidate (`a` UInt8) ENGINE = ReplicatedMergeTree", "ORDER BY is missing"),
        ("CREATE TABLE other (`a` UInt8) ENGINE = ReplicatedMergeTree ORDER BY a", "no name"),
        (
            "CREATE TABLE dpone_candidate (`a` UInt8) ENGINE = ReplicatedMergeTree ORDER BY a AS SELECT 1",
            "AS is not",
        ),
        ("CREATE TABLE dpone_candidate AS d.t", "no list of columns"),
    ],
)
def test_formatted_ddl_with_what_is_not_its_own_is_refused(formatted: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        from_ddl(formatted)


def test_columns_take_the_servers_description() -> None:
    definition = from_ddl(
        "CREATE TABLE dpone_candidate (`a` Int DEFAULT 1 COMMENT 'x' CODEC(Delta, ZSTD) STATISTICS(tdigest), "
        "`n` Nested(x Int, y text)) ORDER BY a"
    )
    assert describe_columns(definition) == (
        r"DESCRIBE TABLE null('`a` Int DEFAULT 1 COMMENT \'x\' CODEC(Delta, ZSTD), `n` Nested(x Int, y text)')"
    )
    row = dict.fromkeys(("default_type", "default_expression", "codec_expression", "ttl_expression"), "")
    resolved = described(
        definition,
        [
            row
            | {"name": "a", "type": "Int32", "default_type": "DEFAULT", "default_expression": "1"}
            | {"codec_expression": "Delta(4), ZSTD(1)"},
            row | {"name": "n.x", "type": "Array(Int32)"},
            row | {"name": "n.y", "type": "Array(String)"},
        ],
    )
    assert [column.declaration for column in resolved.columns] == [
        "`a` Int32 DEFAULT 1 COMMENT 'x' CODEC(Delta(4), ZSTD(1)) STATISTICS(tdigest)",
        "`n.x` Array(Int32)",
        "`n.y` Array(String)",
    ]


def test_a_description_of_other_columns_is_refused() -> None:
    with pytest.raises(DefinitionError, match="other columns"):
        described(table(), [])


def test_a_statement_is_formatted_as_a_value() -> None:
    assert format_query("it's") == r"SELECT formatQuerySingleLine('it\'s')"


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_names_and_comment_survive_building_and_reading(names: list[str], comment: str) -> None:
    columns = ", ".join(f"{identifier(name)} String COMMENT {string(comment)}" for name in names)
    definition = table(f"ORDER BY ({', '.join(map(identifier, names))}) COMMENT {string(comment)}", columns)
    assert [column.name for column in definition.columns] == names
    built = reread(candidate(definition))
    assert differences(definition, built) == ()
    assert split_comment(built.comment) == (split_comment(comment)[0], MARK)
