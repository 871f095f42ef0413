"""Quoting and the lexer of ClickHouse SQL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    TokenKind,
    ends_operand,
    identifier,
    qualified,
    split_top_level,
    string,
    tokens,
    tuple_of,
    unquote,
)

utf8_text = st.text(st.characters(exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(utf8_text)
def test_a_string_literal_reads_back_as_the_value(value: str) -> None:
    assert unquote(string(value)) == value


@given(names)
def test_an_identifier_reads_back_as_the_name(name: str) -> None:
    assert unquote(identifier(name)) == name


@given(utf8_text)
def test_a_literal_is_one_token_whatever_it_holds(value: str) -> None:
    (token,) = tokens(string(value))
    assert (token.kind, token.start, token.end) == (TokenKind.STRING, 0, len(string(value)))


@given(names, utf8_text, names)
def test_quoted_text_never_opens_a_bracket_or_a_clause(name: str, value: str, other: str) -> None:
    found = tokens(f"({identifier(name)}, {string(value)}) SETTINGS {identifier(other)}")
    assert [token.text for token in found if token.kind is TokenKind.WORD] == ["SETTINGS"]
    assert [token.depth for token in found] == [0, 1, 1, 1, 0, 0, 0]


@given(st.text(st.sampled_from("ab1 .'\"`\\()[]{},;$/*-#\n")))
def test_tokens_cover_everything_but_space_or_the_text_is_refused(text: str) -> None:
    try:
        found = tokens(text)
    except SqlSyntaxError:
        return
    covered = "".join(token.text for token in found)
    between = text
    for token in reversed(found):
        assert text[token.start : token.end] == token.text
        between = between[: token.start] + between[token.end :]
    assert between.strip() == ""
    assert len(covered) + len(between) == len(text)


def test_nul_is_a_value_but_never_a_name() -> None:
    assert string("a\0b") == r"'a\0b'"
    with pytest.raises(ValueError, match="NUL"):
        identifier("a\0b")


def test_an_empty_identifier_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        identifier("")


@pytest.mark.parametrize("quote", [string, identifier])
def test_text_without_utf8_form_is_refused(quote: object) -> None:
    assert callable(quote)
    with pytest.raises(ValueError, match="UTF-8"):
        quote("a\ud800")


def test_quotes_and_backslashes_are_escaped() -> None:
    assert string("it's \\ \n\t") == r"'it\'s \\ \n\t'"
    assert identifier("we`ird") == r"`we\`ird`"


def test_a_qualified_name_quotes_both_parts() -> None:
    assert qualified("a.b", "c") == "`a.b`.`c`"


def test_tuple_is_always_written_out() -> None:
    assert tuple_of(["a"]) == "tuple(`a`)"


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it''s'", "it's"),
        (r"'\%\_'", r"\%\_"),
        (r"'\x41'", "A"),
        (r"'a\Nb'", "ab"),
        ("`a``b`", "a`b"),
        ('"a""b"', 'a"b'),
        ("$x$it's$x$", "it's"),
        ("plain", "plain"),
    ],
)
def test_unquote_reads_every_form_of_the_server(literal: str, value: str) -> None:
    assert unquote(literal) == value


@pytest.mark.parametrize("text", ["", "'a", r"'\xff'", r"'\x4'"])
def test_unquote_refuses_what_is_incomplete(text: str) -> None:
    with pytest.raises(SqlSyntaxError):
        unquote(text)


@pytest.mark.parametrize("text", ["'a", "`a", '"a', "/* a /* b */", "(", ")", "(]", "[(])"])
def test_unclosed_text_is_refused(text: str) -> None:
    with pytest.raises(SqlSyntaxError):
        tokens(text)


@pytest.mark.parametrize(
    "comment", ["-- SETTINGS (", "# SETTINGS (", "#! SETTINGS (", "/* a /* SETTINGS ( */ b */"]
)
def test_comments_are_one_token(comment: str) -> None:
    assert [token.kind for token in tokens(f"a {comment}\n b")] == [
        TokenKind.WORD,
        TokenKind.COMMENT,
        TokenKind.WORD,
    ]


def test_a_heredoc_is_a_string() -> None:
    assert [token.kind for token in tokens("$$ it's ( $$ 1")] == [TokenKind.STRING, TokenKind.NUMBER]


def test_split_ignores_brackets_strings_and_comments() -> None:
    assert split_top_level("a(b, c), 'd, e', `f, g` /* h, i */") == (
        "a(b, c)",
        "'d, e'",
        "`f, g` /* h, i */",
    )


def test_split_of_nothing_is_nothing() -> None:
    assert split_top_level("  ") == ()


@pytest.mark.parametrize("operand", ["a", "`a`", "'a'", "1", "(a)", "[a]", "DESC"])
def test_an_operand_may_end_a_clause(operand: str) -> None:
    assert ends_operand(tokens(operand)[-1])


@pytest.mark.parametrize("operator", ["+", "=", "AND", "BY", "NOT", ",", "-- a"])
def test_an_operator_never_ends_a_clause(operator: str) -> None:
    assert not ends_operand(tokens(operator)[-1])
