"""One SELECT and nothing else, as far as its words and quotes tell.

A query is put into brackets to be described, and some drivers run whatever they are given. So a text with a second
statement, with a bracket that closes more than it opened, or with a verb that writes never reaches a driver. What a
SELECT does by the functions it calls is for the database's own rights to decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped

_READS: Final = frozenset(("SELECT", "WITH", "VALUES", "TABLE"))
_WRITES: Final = frozenset(("INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"))

_VERBS: Final = _WRITES | {"SELECT", "VALUES", "TABLE"}

_STANDARD: Final = (r"'(?:[^']|'')*'", r'"(?:[^"]|"")*"', r"--[^\n]*", r"`[^`]*`")
_MYSQL: Final = (
    r"'(?:[^'\\]|\\.|'')*'",
    r'"(?:[^"\\]|\\.|"")*"',
    r"`(?:[^`]|``)*`",
    r"--(?=\s|$)[^\n]*",
    r"#[^\n]*",
)
_QUOTES: Final = {
    "postgres": (r"[eE]'(?:[^'\\]|\\.|'')*'", r"\$(?P<tag>\w*)\$.*?\$(?P=tag)\$", *_STANDARD[:3]),
    "mssql": (r"\[(?:[^\]]|\]\])*\]", *_STANDARD[:3]),
    "mysql": _MYSQL,
}
"""What hides a text from the reader, by Airflow's name of the connection's type."""

_NESTED_COMMENTS: Final = frozenset(("postgres", "mssql"))
_OPENS_OR_CLOSES: Final = re.compile(r"/\*|\*/")
_UNFINISHED: Final = frozenset("'\"`")


def one_select(sql: str, conn_type: str) -> str:
    """Return the query without a semicolon or comments behind it.

    :param conn_type: the type of the connection on which it will run, which decides how texts are quoted.
    :raises Stopped: ``BAD_INPUT``: it is not exactly one SELECT.
    """
    first = ""
    at_top: list[str] = []
    depth = end = 0
    ended = False
    for token, position in _tokens(sql, conn_type):
        if token == ";":
            ended = True
            continue
        if ended:
            raise _refused("has more than one statement")
        end = position
        match token:
            case "(":
                depth += 1
            case ")" if depth == 0:
                raise _refused("closes a bracket that it did not open")
            case ")":
                depth -= 1
            case _ if token[0].isalpha() and token.isidentifier():
                word = token.upper()
                first = first or word
                if depth == 0:
                    at_top.append(word)
            case _ if token[0] in _UNFINISHED and len(token) == 1:
                raise _refused("has a quote without an end")
    if depth:
        raise _refused("leaves a bracket open")
    if first not in _READS:
        raise _refused("must be one SELECT (it may begin with WITH)")
    # Behind the common tables of a WITH, the first verb is the statement's. Elsewhere REPLACE is a function.
    verb = next((word for word in at_top if word in _VERBS), first)
    if verb in _WRITES or "INTO" in at_top:
        raise _refused(f"must only read, and has {verb if verb in _WRITES else 'INTO'}")
    return sql[:end].strip()


def _tokens(sql: str, conn_type: str) -> Iterator[tuple[str, int]]:
    """Yield what is no space and no comment, with the position behind it. A quoted text is one token."""
    pattern = re.compile("|".join((*_QUOTES.get(conn_type, _STANDARD), r"\w+", r"\S")), re.DOTALL)
    at = 0
    while True:
        while at < len(sql) and sql[at].isspace():
            at += 1
        if sql.startswith("/*", at):
            at = _behind_comment(sql, at, nested=conn_type in _NESTED_COMMENTS)
            continue
        found = pattern.match(sql, at)
        if found is None:
            return
        at = found.end()
        token = found[0]
        if not token.startswith(("--", "#")) or len(token) == 1:
            yield token, at


def _behind_comment(sql: str, start: int, *, nested: bool) -> int:
    depth = 0
    for mark in _OPENS_OR_CLOSES.finditer(sql, start):
        if mark[0] == "*/":
            depth -= 1
        elif nested or depth == 0:
            depth += 1
        if depth == 0:
            return mark.end()
    raise _refused("has a comment without an end")


def _refused(what: str) -> Stopped:
    return Stopped(Stop(Code.BAD_INPUT, f"The source's SQL {what}."))
