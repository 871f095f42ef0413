"""A lexer for ClickHouse SQL: enough to find clauses and names outside strings and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

_TOKEN = re.compile(
    r"""
      (?P<space>\s+ | --[^\n]* | \#[!\ ][^\n]* | /\*.*?\*/)
    | (?P<heredoc>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<identifier>`(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*")
    | (?P<word>[A-Za-z_][A-Za-z0-9_$]*)
    | (?P<number>[0-9][0-9A-Za-z_.]*)
    | (?P<punctuation>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Kind(Enum):
    """What a token is. WORD is an unquoted identifier or a keyword, IDENTIFIER a quoted one."""

    WORD = auto()
    IDENTIFIER = auto()
    STRING = auto()
    NUMBER = auto()
    PUNCTUATION = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a statement; `start` and `end` are offsets into its text."""

    kind: Kind
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether this is one of these keywords (given in capitals)."""
        return self.kind is Kind.WORD and self.text.upper() in words

    def is_mark(self, mark: str) -> bool:
        """Whether this is that punctuation character."""
        return self.kind is Kind.PUNCTUATION and self.text == mark

    @property
    def is_name(self) -> bool:
        """Whether this may name an object."""
        return self.kind in (Kind.WORD, Kind.IDENTIFIER)

    @property
    def value(self) -> str:
        """The text without its quotes."""
        return unquote(self.text) if self.kind in (Kind.IDENTIFIER, Kind.STRING) else self.text


def tokenize(sql: str) -> list[Token]:
    """The tokens of a statement, without white space and comments."""
    return list(_tokens(sql))


def _tokens(sql: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(sql):
        if match["space"] is not None:
            continue
        if match["string"] is not None or match["heredoc"] is not None:
            kind = Kind.STRING
        elif match["identifier"] is not None:
            kind = Kind.IDENTIFIER
        elif match["word"] is not None:
            kind = Kind.WORD
        elif match["number"] is not None:
            kind = Kind.NUMBER
        else:
            kind = Kind.PUNCTUATION
        yield Token(kind, match[0], match.start(), match.end())


def first_word(sql: str) -> str:
    """The keyword that a statement begins with, in capitals; empty if it begins with something else."""
    for token in _tokens(sql):
        return token.text.upper() if token.kind is Kind.WORD else ""
    return ""


def unquote(text: str) -> str:
    """The value of a quoted identifier or string, or of a heredoc."""
    if text.startswith("$"):
        tag_length = text.index("$", 1) + 1
        return text[tag_length:-tag_length]
    return re.sub(
        r"\\(.)|(['`\"])\2",
        lambda match: _ESCAPES.get(match[1], match[1]) if match[1] is not None else match[2],
        text[1:-1],
        flags=re.DOTALL,
    )


def escape(text: str) -> str:
    """The inside of a quoted string."""
    for character, code in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(character, code)
    return text.replace("\0", "\\0").replace("\b", "\\b").replace("\f", "\\f")


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


def quote_string(text: str) -> str:
    """A string literal."""
    return f"'{escape(text)}'"


def quote_name(name: str) -> str:
    """An identifier, in backquotes where it needs them."""
    if _PLAIN_IDENTIFIER.fullmatch(name):
        return name
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def replace_table(sql: str, database: str, table: str, replacement: str) -> str:
    """Put `replacement` (``db.name``) wherever the statement names that table.

    Both ways of naming are recognised: ``db.table`` (also as a column's prefix) and the two arguments ``db, table``
    of table functions such as ``clusterAllReplicas``.
    """
    tokens = tokenize(sql)
    pieces = []
    position = index = 0
    while index + 2 < len(tokens):
        first, middle, last = tokens[index : index + 3]
        named = first.is_name and first.value == database and last.is_name and last.value == table
        after_dot = index > 0 and tokens[index - 1].is_mark(".")
        if named and not after_dot and (middle.is_mark(".") or middle.is_mark(",")):
            new = replacement if middle.is_mark(".") else replacement.replace(".", ", ", 1)
            pieces += [sql[position : first.start], new]
            position = last.end
            index += 3
        else:
            index += 1
    return "".join([*pieces, sql[position:]])
