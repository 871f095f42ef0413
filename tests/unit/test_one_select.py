"""What is taken for one SELECT, by the quotes of each kind of database."""

from __future__ import annotations

import time

import pytest

from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.sources.one_select import one_select

KINDS = ("postgres", "mysql", "mssql", "sqlite", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sql", "query"),
    [
        ("SELECT 1 AS x", None),
        ("  SELECT 1 AS x ; ", "SELECT 1 AS x"),
        ("SELECT 1 AS x; -- done", "SELECT 1 AS x"),
        ("SELECT 1 AS x /* ; */ -- ;\n", "SELECT 1 AS x"),
        ("-- a\n/* b; */ SELECT 1 AS x", None),
        ("(SELECT 1 AS x) UNION ALL (SELECT 2)", None),
        ("with a as (select 1 as x) select * from a", None),
        ("VALUES (1)", None),
        ("SELECT ';' AS a, 'it''s (' AS b, \";)\" AS c FROM t", None),
        ("SELECT replace(a, 'x', 'y'), \"into\" FROM t FOR UPDATE", None),
    ],
)
def test_one_query_is_taken_without_what_ends_it(kind: str, sql: str, query: str | None) -> None:
    assert one_select(sql, kind) == (sql if query is None else query)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "must be one SELECT"),
        ("-- nothing", "must be one SELECT"),
        ('"SELECT"', "must be one SELECT"),
        ("DELETE FROM t", "must be one SELECT"),
        ("-- SELECT\nDELETE FROM t", "must be one SELECT"),
        ("EXEC p", "must be one SELECT"),
        ("WITH a AS (SELECT 1) DELETE FROM t", "DELETE"),
        ("with a(x) as (select 1), b as (select 2) insert into t select * from a", "INSERT"),
        ("SELECT * INTO u FROM t", "INTO"),
        ("SELECT 1; SELECT 2", "more than one statement"),
        ("SELECT 1;;SELECT 2", "more than one statement"),
        ("SELECT 1 AS x) d; DROP TABLE t; SELECT * FROM (SELECT 1", "closes a bracket"),
        ("SELECT (1", "leaves a bracket open"),
        ("SELECT 1 /* a", "comment without an end"),
        ("SELECT 'a", "quote without an end"),
    ],
)
def test_what_is_more_or_less_than_one_query_is_refused(kind: str, sql: str, why: str) -> None:
    with pytest.raises(Stopped) as caught:
        one_select(sql, kind)
    assert caught.value.stop.code is Code.BAD_INPUT
    assert why in caught.value.stop.message


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        ("postgres", "SELECT E'a\\'; b' AS x"),
        ("postgres", "SELECT 'a\\' AS x"),
        ("postgres", "SELECT $$;)$$ AS x, $tag$ $$ ; $tag$ AS y"),
        ("postgres", "SELECT /* a /* b */ ; */ 1 AS x"),
        ("mysql", "SELECT 'a\\'; b' AS x, `;)` FROM t # ; (\n"),
        ("mssql", "SELECT [;)] AS [a]] ;] FROM t"),
        ("mssql", "SELECT /* a /* b */ ; */ 1 AS x"),
    ],
)
def test_each_database_has_quotes_of_its_own(kind: str, sql: str) -> None:
    assert one_select(sql, kind).startswith("SELECT")


def test_a_long_text_is_read_in_no_time() -> None:
    started = time.monotonic()
    one_select("/* a */ " * 20_000 + "SELECT " + "(" * 20_000 + "1" + ")" * 20_000, "postgres")
    with pytest.raises(Stopped):
        one_select("/* a " * 20_000 + "SELECT 1", "postgres")
    assert time.monotonic() - started < 2.0
