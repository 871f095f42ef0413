"""One digest for equal rows on servers that know nothing of each other.

Where every member has a table of its own, nothing but the rows can show that the members hold the same. A row
is written by the server as ``RowBinary`` and hashed with SHA-256; the hashes are added up as 256-bit numbers. A
sum depends on no order, so parts, merges and threads don't matter, and nothing is sorted or kept. First in a row
are the columns of a fixed width, then all others, both in the order of their names.

The bytes of a row belong to one row only. Each value is written so that its end is known from its beginning:
a fixed number of bytes; a length and that many bytes or elements; one byte for NULL, with the value behind it
where there is one. So the columns of a known structure are read back from the bytes in one way, and two rows
with the same bytes are the same row. That holds for the *profile*, the types below; a table with any other
type is refused.

What counts as equal is what is stored, to the bit:

==========================  ==================================================================================
floats                      their bits: 0.0 is not -0.0, and each NaN is the one that it is
NULL                        itself: neither a default nor an empty string
``Decimal``                 the number behind its scale, which is part of the type
``DateTime``, ``DateTime64``  the instant; the zone is part of the type
``Enum``                    the number, whose name is part of the type
``LowCardinality(T)``       as ``T``: a dictionary is how a part is written, and not what it holds
``FixedString``             all its bytes, the zero bytes at the end too
``Array``, ``Tuple``        their elements in their order
``Map``                     its pairs in their order, which ``mapKeys`` shows and merges keep; a key that stands
                            twice counts twice
==========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from airflow_provider_dpone.clickhouse.column_types import ColumnType, column_type
from airflow_provider_dpone.clickhouse.exact import SELECT_SETTINGS
from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    Token,
    TokenKind,
    identifier,
    qualified,
    tokens,
    unquote,
    unused_name,
)
from airflow_provider_dpone.clickhouse.table_definition import ColumnDefinition, TableDefinition

SCALARS: Final = frozenset(
    (
        *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)),
        *("Float32", "Float64", "BFloat16", "Decimal", "Bool"),
        *("Date", "Date32", "DateTime", "DateTime64", "Time", "Time64"),
        *("String", "FixedString", "UUID", "IPv4", "IPv6", "Enum8", "Enum16"),
    )
)
"""Types of one value; each may be ``Nullable``, and ``LowCardinality`` where the server allows it."""

COMPOUNDS: Final = frozenset(("Array", "Map", "Tuple"))
"""Types of several values, of any type of the profile."""

DIGEST_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # No limit that ends in a part of the rows, no shard left out, nothing in the background.
        **SELECT_SETTINGS,
        # All rows that are stored, and no others.
        "additional_table_filters": "{}",
        "final": "0",
        "apply_deleted_mask": "1",
        "apply_mutations_on_fly": "0",
        "apply_patch_parts": "1",
        # Read here and now: from no cache, no projection, and no other member's parts.
        "use_query_cache": "0",
        "optimize_use_projections": "0",
        "allow_experimental_parallel_reading_from_replicas": "0",
        "max_parallel_replicas": "1",
        # An empty table has the sum 0, and a row that says so.
        "aggregate_functions_null_for_empty": "0",
        "empty_result_for_aggregation_by_empty_set": "0",
        # A long text or array is no error.
        "format_binary_max_string_size": "0",
        "format_binary_max_array_size": "0",
    }
)
"""What the digest relies on, whatever a user's profile says; releases differ in which of them they know.

No setting is known that changes the bytes of a type of the profile. In one statement for all members, of two
releases, a profile's ``additional_result_filter`` may still take a member's answer away: who asks has to count.
"""


_LONG_STATEMENT: Final = 250_000
"""Bytes; by default a server reads ``max_query_size``, 262,144, of which a request for all replicas takes some."""


def digest_settings(sql: str, known: Collection[str]) -> dict[str, str]:
    """Return what to send with a digest's statement, of the settings that are ``known`` to all who get it.

    An unknown one would be refused. A wide table's statement, which names each of its columns, needs one more.
    """
    settings = {name: value for name, value in DIGEST_SETTINGS.items() if name in known}
    return settings if len(sql.encode()) < _LONG_STATEMENT else {**settings, "max_query_size": str(2**24)}


# --- the profile -------------------------------------------------------------------------------------------


def outside_profile(columns: Iterable[ColumnDefinition]) -> tuple[ColumnDefinition, ...]:
    """The stored columns whose type has no digest; they are what a refusal names.

    JSON, Dynamic and Variant are not in the profile, nor are the states of aggregate functions: their bytes
    depend on how a value came about. A column without a type text is outside, too.
    """
    return tuple(column for column in columns if column.stored and not _in_profile(column.type))


def _in_profile(type_text: str) -> bool:
    try:
        return _is_canonical(column_type(type_text))
    except SqlSyntaxError:
        return False


def _is_canonical(kind: ColumnType) -> bool:
    if kind.name in COMPOUNDS:
        return not kind.nullable and all(_is_canonical(element) for _, element in kind.elements)
    return kind.name in SCALARS


# --- the statement -----------------------------------------------------------------------------------------


def canonical_digest_select(database: str, table: str, columns: Collection[ColumnDefinition]) -> str:
    """One row ``rows, sha256`` for a table on the server that runs it; fit for ``view(...)``.

    ``columns`` are the stored ones (``TableDefinition.stored_columns``), in any order, of the profile. Send it
    with :func:`digest_settings`.

    Raises ``ValueError`` where there is no column, or one name stands twice.
    """
    if not columns:
        raise ValueError("a digest needs at least one column")
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise ValueError("a column stands twice")
    total = identifier(unused_name(names))
    digest = f"leftPad(lower(hex(tupleElement({total}, 2))), 64, '0')"
    return (
        f"SELECT tupleElement({total}, 1) AS rows, {digest} AS sha256 FROM ("
        f"SELECT tuple(count(), sum(reinterpretAsUInt256(SHA256({_row(columns)})))) AS {total} "
        f"FROM {qualified(database, table)})"
    )


def _row(columns: Collection[ColumnDefinition]) -> str:
    """An expression for the bytes of a row.

    A column of a fixed width is its memory, in ``RowBinary`` too; read as a whole column it takes a fraction of
    the time that ``formatRow`` takes for it, which writes value by value.
    """
    fixed = sorted(column.name for column in columns if _is_fixed(column_type(column.type)))
    others = sorted({column.name for column in columns}.difference(fixed))
    pieces = [f"reinterpretAsFixedString({identifier(name)})" for name in fixed]
    if others:
        pieces.append(f"formatRow('RowBinary', {', '.join(map(identifier, others))})")
    return f"concat({', '.join(pieces)})" if len(pieces) > 1 else pieces[0]


def _is_fixed(kind: ColumnType) -> bool:
    return kind.name in SCALARS and kind.name != "String" and not (kind.nullable or kind.low_cardinality)


# --- columns that members would compute differently ---------------------------------------------------------

FUNCTIONS_SELECT: Final = (
    "SELECT name, alias_to, case_insensitive, COLUMNS('^deterministic$') FROM system.functions "
    "WHERE NOT is_aggregate AND origin = 'System'"
)
"""What a server knows of its functions; see :func:`deterministic_functions`. Every user may read it."""

_NOT_EQUAL_EVERYWHERE: Final = frozenset(
    (
        # What a model outside answers.
        *("aiEmbed", "aiSimilarity"),
        # What a server is, or has.
        *(
            "addressToLine",
            "addressToLineWithInlines",
            "addressToSymbol",
            "globalVariable",
            "hasThreadFuzzer",
        ),
        *("getMaxTableNameLengthForDatabase", "pgTableIsVisible", "tid", "timeSeriesStoreTags"),
        # Written as functions, their right side may be a table.
        *(
            f"{scope}{name}{suffix}"
            for scope, name in (
                ("", "in"),
                ("", "notIn"),
                ("", "nullIn"),
                ("", "notNullIn"),
                ("global", "In"),
                ("global", "NotIn"),
                ("global", "NullIn"),
                ("global", "NotNullIn"),
            )
            for suffix in ("", "IgnoreSet")
        ),
    )
)
"""Functions that some release calls deterministic, and that two servers may answer differently."""

EQUAL_EVERYWHERE: Final = frozenset(
    (
        *("plus", "minus", "multiply", "divide", "intDiv", "intDivOrZero", "modulo", "negate", "abs"),
        *("round", "floor", "ceil", "greatest", "least", "bitAnd", "bitOr", "bitXor"),
        *("bitShiftLeft", "bitShiftRight", "equals", "notEquals", "less", "greater", "lessOrEquals"),
        *("greaterOrEquals", "and", "or", "not", "xor", "if", "multiIf", "caseWithExpression", "isNull"),
        *("isNotNull", "ifNull", "nullIf", "coalesce", "assumeNotNull", "toNullable", "CAST"),
        *("toString", "toFixedString", "toLowCardinality", "toUUID", "toFloat32", "toFloat64", "toDate"),
        *(f"to{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)),
        *("toDecimal32", "toDecimal64", "toDecimal128", "toDecimal256", "toDate32", "toDateTime"),
        *("toDateTime64", "toTimeZone", "toYear", "toQuarter", "toMonth", "toDayOfMonth", "toDayOfWeek"),
        *("toDayOfYear", "toHour", "toMinute", "toSecond", "toMonday", "toYYYYMM", "toYYYYMMDD", "dateDiff"),
        *(f"toStartOf{unit}" for unit in ("Day", "Hour", "Minute", "Week", "Month", "Quarter", "Year")),
        *(f"toInterval{unit}" for unit in ("Second", "Minute", "Hour", "Day", "Week", "Month", "Year")),
        *("concat", "substring", "substringUTF8", "left", "right", "length", "lengthUTF8", "empty"),
        *("notEmpty", "lower", "upper", "lowerUTF8", "upperUTF8", "reverse", "trimBoth", "trimLeft"),
        *("trimRight", "startsWith", "endsWith", "position", "match", "like", "notLike", "extract"),
        *("replaceOne", "replaceAll", "replaceRegexpOne", "replaceRegexpAll", "splitByChar"),
        *("splitByString", "hex", "unhex", "base64Encode", "base64Decode", "domain", "path", "protocol"),
        *("MD5", "SHA1", "SHA224", "SHA256", "SHA512", "sipHash64", "sipHash128", "cityHash64", "xxHash64"),
        *("array", "arrayElement", "arrayMap", "arrayFilter", "arrayExists", "arrayAll", "arrayConcat"),
        *("arraySort", "arrayDistinct", "arrayStringConcat", "has", "map", "mapKeys", "mapValues", "tuple"),
        *("tupleElement", "toIPv4", "toIPv6", "IPv4NumToString", "IPv4StringToNum"),
    )
)
"""Functions of their arguments alone in every release: enough where a server can't tell for itself."""

_KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "IN", "GLOBAL", "LIKE", "ILIKE", "IS", "NULL", "DISTINCT", "FROM", "AS")
)
_CONSTANTS: Final = frozenset(("true", "false", "inf", "nan"))
_NAMES: Final = frozenset((TokenKind.WORD, TokenKind.IDENTIFIER))


def deterministic_functions(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> frozenset[str]:
    """The functions that give equal values for equal arguments on every server, from FUNCTIONS_SELECT's answer.

    A function that may be written in any case is also here in small letters. Releases such as 24.8
    don't tell which functions are deterministic; a list of well-known ones stands in for that.
    """
    told = "deterministic" in columns
    names: set[str] = set()
    for name, alias_to, any_case, *deterministic in rows:
        if not _NOT_EQUAL_EVERYWHERE.isdisjoint((name, alias_to)) or str(name).startswith("__"):
            continue
        # A server may say NULL, which is: not known.
        if deterministic == [1] if told else name in EQUAL_EVERYWHERE:
            names.add(str(name))
            if any_case:
                names.add(str(name).lower())
    return frozenset(names)


def varying_columns(
    definition: TableDefinition, deterministic: Collection[str], left_out: Collection[str] = ()
) -> tuple[str, ...]:
    """Names of the stored columns that each member computes for itself, and maybe differently.

    A MATERIALIZED expression must be made of ``deterministic`` functions, of constants and of columns that
    don't vary themselves; a word that is nothing of that, such as the bare ``now`` or the name of a table,
    makes it vary. A DEFAULT column is loaded like any other, unless it is one of ``left_out``.

    It is a forecast, and the digest is the proof: what a server's time zone or release changes is not seen here.
    """
    computed = {
        column.name: tuple(tokens(column.default))
        for column in definition.columns
        if column.default_kind and (column.default_kind != "DEFAULT" or column.name in left_out)
    }
    known = _beginnings(column.name for column in definition.columns)
    varying = {name for name, found in computed.items() if not _is_proven(found, known, deterministic)}
    while more := {name for name in computed.keys() - varying if _mentions(computed[name], varying)}:
        varying |= more
    return tuple(column.name for column in definition.columns if column.stored and column.name in varying)


def _beginnings(names: Iterable[str]) -> frozenset[str]:
    """Names as an expression may begin them: a column ``n.x`` is written with a dot between two words."""
    return frozenset(beginning for name in names for beginning in (name, name.partition(".")[0]))


def _mentions(found: Sequence[Token], names: Collection[str]) -> bool:
    beginnings = _beginnings(names)
    return any(token.kind in _NAMES and unquote(token.text) in beginnings for token in found)


def _is_proven(found: Sequence[Token], columns: Collection[str], deterministic: Collection[str]) -> bool:
    """Tell whether the expression is made of nothing but what is known to be equal everywhere."""
    own = frozenset(_own_names(found))
    for at, token in enumerate(found):
        if token.kind not in _NAMES or token.is_word(*_KEYWORDS, *_CONSTANTS):
            continue
        name = unquote(token.text)
        if _is_called(found, at):
            if name not in deterministic and name.lower() not in deterministic:
                return False
        elif _is_right_of_in(found, at):
            return False  # it may be a table, even where a column has the same name
        elif not (at and found[at - 1].is_symbol(".")) and name not in columns and name not in own:
            return False
    return True


def _is_called(found: Sequence[Token], at: int) -> bool:
    return at + 1 < len(found) and found[at + 1].is_symbol("(")


def _is_right_of_in(found: Sequence[Token], at: int) -> bool:
    before = at - 2 if at and found[at - 1].is_symbol("(") else at - 1
    return before >= 0 and found[before].is_word("IN")


def _own_names(found: Sequence[Token]) -> Iterator[str]:
    """What an expression names itself: arguments of lambdas, and what follows AS."""
    for at, (token, following) in enumerate(pairwise(found)):
        if token.is_word("AS") and following.kind in _NAMES:
            yield unquote(following.text)
        elif at and token.is_symbol("-") and following.is_symbol(">") and token.end == following.start:
            yield from _arguments(found[:at])


def _arguments(before: Sequence[Token]) -> Iterator[str]:
    """The names in front of a lambda's arrow: one, or several in brackets."""
    last = before[-1]
    start = len(before) - 1
    while last.is_symbol(")") and not (before[start].is_symbol("(") and before[start].depth == last.depth):
        start -= 1
    yield from (unquote(token.text) for token in before[start:] if token.kind in _NAMES)
