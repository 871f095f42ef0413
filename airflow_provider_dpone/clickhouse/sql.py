"""ClickHouse SQL text: quoting, and a lexer for reading what the server wrote.

Quoting is exact: the server reads back the very value that was quoted, whatever it holds. The lexer is not
a parser. It splits a statement into tokens with their nesting depth, which is enough to find a clause at the
top level without being fooled by a string, a quoted name or a comment that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

_ESCAPES: Final = {
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\0": "\\0",
}
_UNESCAPES: Final = {
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "0": "\0",
    "a": "\a",
    "v": "\v",
    "e": "\x1b",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "`": "`",
    "/": "/",
    "=": "=",
}


class SqlSyntaxError(ValueError):
    """The text is not the SQL that was expected; the message names the position, never the content."""


class TokenKind(Enum):
    """What a token is; whitespace is never one."""

    WORD = "word"
    """A bare identifier or a keyword."""
    IDENTIFIER = "identifier"
    """An identifier in backticks or double quotes."""
    STRING = "string"
    """A literal in single quotes or a heredoc."""
    NUMBER = "number"
    SYMBOL = "symbol"
    """One character of punctuation."""
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a statement.

    ``depth`` counts the brackets around it; an opening bracket and its closing one have the depth outside.
    """

    kind: TokenKind
    text: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        """Offset just behind the token."""
        return self.start + len(self.text)

    def is_word(self, *words: str) -> bool:
        """Whether this is one of the bare ``words``, compared with their case.

        Text formatted by the server has its keywords in capitals, so the case tells ``TTL`` from a column
        that somebody called ``ttl``.
        """
        return self.kind is TokenKind.WORD and self.text in words

    def is_symbol(self, *symbols: str) -> bool:
        """Whether this is one of the punctuation characters."""
        return self.kind is TokenKind.SYMBOL and self.text in symbols


def identifier(name: str) -> str:
    """Quote a name: a database, table, column, cluster or setting.

    The quotes are always there, so no name has to be compared with a list of keywords.

    Raises ``ValueError`` for an empty name, for NUL and for text that has no UTF-8 form.
    """
    if not name:
        raise ValueError("an identifier must not be empty")
    if "\0" in name:
        raise ValueError("an identifier must not contain NUL")
    return _quoted(name, "`")


def string(value: str) -> str:
    """Quote a value as a string literal. NUL is a legal character of a value and is written ``\\0``.

    Raises ``ValueError`` for text that has no UTF-8 form.
    """
    return _quoted(value, "'")


def qualified(database: str, table: str) -> str:
    """``database.table``, both quoted. Raises ``ValueError`` as :func:`identifier` does."""
    return f"{identifier(database)}.{identifier(table)}"


def tuple_of(names: Sequence[str]) -> str:
    """``tuple(`a`, `b`)``. The function is written out because ``(a)`` is not a tuple."""
    return f"tuple({', '.join(identifier(name) for name in names)})"


def unused_name(names: Collection[str]) -> str:
    """A name that is none of ``names``: one that a SELECT gives would hide the column of the same name."""
    name = "total"
    while name in names:
        name += "_"
    return name


def _quoted(text: str, quote: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} has no UTF-8 form") from None
    body = "".join(f"\\{char}" if char == quote else _ESCAPES.get(char, char) for char in text)
    return f"{quote}{body}{quote}"


def unquote(text: str) -> str:
    """The value of a quoted identifier, a string literal, or a bare word.

    Raises :class:`SqlSyntaxError` when a quote is not closed or an escape is not complete.
    """
    if not text:
        raise SqlSyntaxError("nothing to unquote")
    quote = text[0]
    if quote == "$":
        marker = text[: text.index("$", 1) + 1]
        return text[len(marker) : -len(marker)]
    if quote not in "'\"`":
        return text
    if len(text) < 2 or text[-1] != quote:
        raise SqlSyntaxError("the quote is not closed")
    return "".join(_unescaped(text[1:-1], quote))


def _unescaped(body: str, quote: str) -> Iterator[str]:
    at = 0
    while at < len(body):
        char = body[at]
        if char == quote:
            at += 2  # a doubled quote stands for one
            yield char
        elif char != "\\":
            at += 1
            yield char
        elif at + 1 == len(body):
            raise SqlSyntaxError("an escape is not complete")
        elif body[at + 1] == "x":
            if not (digits := _ASCII_HEX.match(body, at + 2)):
                raise SqlSyntaxError("an escape is not complete, or not ASCII")
            yield chr(int(digits.group(), 16))
            at += 4
        elif body[at + 1] == "N":
            at += 2  # the server reads \N as nothing inside a literal
        else:
            # An unknown escape keeps its backslash, as the server does with \% and \_.
            yield _UNESCAPES.get(body[at + 1], body[at : at + 2])
            at += 2


_QUOTED: Final = {
    "'": re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL),
    '"': re.compile(r'"(?:[^"\\]|\\.|"")*"', re.DOTALL),
    "`": re.compile(r"`(?:[^`\\]|\\.|``)*`", re.DOTALL),
}
_ASCII_HEX: Final = re.compile(r"[0-7][0-9a-fA-F]")
_SPACE: Final = re.compile(r"\s+")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_NUMBER: Final = re.compile(r"(?:0[xX][0-9a-fA-F]+|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?)\w*")
_HEREDOC: Final = re.compile(r"(\$\w*\$).*?\1", re.DOTALL)
_LINE_COMMENT: Final = re.compile(r"(?:--|#!|# )[^\n]*")
_BLOCK_EDGE: Final = re.compile(r"/\*|\*/")
_CLOSING: Final = {")": "(", "]": "[", "}": "{"}


def tokens(text: str) -> tuple[Token, ...]:
    """Split a statement into tokens, comments included.

    Raises :class:`SqlSyntaxError` for an unclosed quote, comment or bracket.
    """
    found: list[Token] = []
    open_brackets: list[str] = []
    at = 0
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        kind, end = _next_token(text, at)
        token = text[at:end]
        if (
            kind is TokenKind.SYMBOL
            and token in _CLOSING
            and (not open_brackets or open_brackets.pop() != _CLOSING[token])
        ):
            raise SqlSyntaxError(f"the bracket at {at} was never opened")
        found.append(Token(kind, token, at, len(open_brackets)))
        if kind is TokenKind.SYMBOL and token in _CLOSING.values():
            open_brackets.append(token)
        at = end
    if open_brackets:
        raise SqlSyntaxError("a bracket is not closed")
    return tuple(found)


def _next_token(text: str, at: int) -> tuple[TokenKind, int]:
    char = text[at]
    if pattern := _QUOTED.get(char):
        if not (match := pattern.match(text, at)):
            raise SqlSyntaxError(f"the quote at {at} is not closed")
        return (TokenKind.STRING if char == "'" else TokenKind.IDENTIFIER), match.end()
    if text.startswith("/*", at):
        return TokenKind.COMMENT, _block_comment_end(text, at)
    if match := _LINE_COMMENT.match(text, at):
        return TokenKind.COMMENT, match.end()
    if match := _HEREDOC.match(text, at):
        return TokenKind.STRING, match.end()
    if match := _WORD.match(text, at):
        return TokenKind.WORD, match.end()
    if match := _NUMBER.match(text, at):
        return TokenKind.NUMBER, match.end()
    return TokenKind.SYMBOL, at + 1


def _block_comment_end(text: str, start: int) -> int:
    """Block comments nest in ClickHouse."""
    depth = 0
    for edge in _BLOCK_EDGE.finditer(text, start):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise SqlSyntaxError(f"the comment at {start} is not closed")


def split_top_level(text: str, separator: str = ",") -> tuple[str, ...]:
    """Split at a punctuation character outside of brackets, strings and comments; parts are stripped.

    Raises :class:`SqlSyntaxError` as :func:`tokens` does.
    """
    cuts = [token for token in tokens(text) if token.depth == 0 and token.is_symbol(separator)]
    starts = [0, *(cut.end for cut in cuts)]
    ends = [*(cut.start for cut in cuts), len(text)]
    parts = tuple(text[start:end].strip() for start, end in zip(starts, ends, strict=True))
    return () if parts == ("",) else parts


_BEFORE_OPERAND: Final = frozenset(
    (
        "AND",
        "AS",
        "BY",
        "DIV",
        "GLOBAL",
        "ILIKE",
        "IN",
        "IS",
        "LIKE",
        "MOD",
        "NOT",
        "ON",
        "OR",
        "SET",
        "WHERE",
    )
)


def ends_operand(token: Token) -> bool:
    """Whether an expression may be complete after this token.

    A keyword that starts a clause can only follow such a token. That is what tells the clause from a column
    of the same name: the server writes ``ORDER BY TTL TTL TTL + toIntervalDay(1)`` without quotes.
    """
    match token.kind:
        case TokenKind.WORD:
            return token.text not in _BEFORE_OPERAND
        case TokenKind.SYMBOL:
            return token.text in _CLOSING
        case TokenKind.COMMENT:
            return False
        case _:
            return True
