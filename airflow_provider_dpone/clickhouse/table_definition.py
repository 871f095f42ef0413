"""A table's definition, read from the server's own CREATE TABLE text and compared clause by clause.

The text comes from ``system.tables.create_table_query`` or ``formatQuerySingleLine``. Both are written by the
server's formatter: keywords in capitals, columns in backticks, no comments. The pieces are kept as they are
and only taken apart where a rule needs to look inside.

Some of it is identity and not structure: name, UUID, Keeper path, replica name, and the provider's mark in
the comment. All comparisons and digests leave that out, so a candidate equals its target, every replica
equals every other, and nothing changes when two tables exchange their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    Token,
    TokenKind,
    ends_operand,
    identifier,
    split_top_level,
    string,
    tokens,
    unquote,
)
from airflow_provider_dpone.clickhouse.table_comment import split_comment
from airflow_provider_dpone.publication.canonical import digest

REPLICATED_ENGINE: Final = "ReplicatedMergeTree"
INDEPENDENT_ENGINE: Final = "MergeTree"

_COLUMN_CLAUSES: Final = (
    "NOT NULL",
    "NULL",
    "DEFAULT",
    "MATERIALIZED",
    "EPHEMERAL",
    "ALIAS",
    "COMMENT",
    "CODEC",
    "STATISTICS",
    "TTL",
    "COLLATE",
    "SETTINGS",
)
_DEFAULT_KINDS: Final = ("DEFAULT", "MATERIALIZED", "EPHEMERAL", "ALIAS")
_TABLE_CLAUSES: Final = (
    "PARTITION BY",
    "PRIMARY KEY",
    "ORDER BY",
    "SAMPLE BY",
    "TTL",
    "SETTINGS",
    "COMMENT",
)
_MAY_BE_BARE: Final = frozenset(("NOT NULL", "NULL", "EPHEMERAL"))

# The server adds this one when it creates a table, so a definition that never met a server may lack it.
_WRITTEN_BY_SERVER: Final = {"index_granularity": "8192"}


class DefinitionError(ValueError):
    """The text is not a CREATE TABLE that can be read; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """One column, split into the clauses of its declaration.

    ``type`` is empty where the declaration has none and the default expression decides. ``default`` is the
    expression of the default kind. All texts are as the server wrote them.
    """

    name: str
    type: str
    default_kind: str = ""
    default: str = ""
    comment: str = ""
    codec: str = ""
    ttl: str = ""
    null: str = ""
    statistics: str = ""
    collate: str = ""
    settings: str = ""

    @property
    def declaration(self) -> str:
        """The column as CREATE TABLE has it, with its name."""
        parts = [
            identifier(self.name),
            self.type,
            self.null,
            f"{self.default_kind} {self.default}".strip(),
            self.comment and f"COMMENT {self.comment}",
            self.codec and f"CODEC{self.codec}",
            self.statistics and f"STATISTICS{self.statistics}",
            self.ttl and f"TTL {self.ttl}",
            self.collate and f"COLLATE {self.collate}",
            self.settings and f"SETTINGS {self.settings}",
        ]
        return " ".join(part for part in parts if part)

    @property
    def stored(self) -> bool:
        """Whether rows on disk have a value: everything but ALIAS and EPHEMERAL."""
        return self.default_kind in {"", "DEFAULT", "MATERIALIZED"}

    @property
    def insertable(self) -> bool:
        """Whether a load gives the value: no column that the table computes."""
        return self.default_kind in {"", "DEFAULT"}

    @property
    def required(self) -> bool:
        """Whether a load has to give the value."""
        return self.default_kind == ""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """What CREATE TABLE says, clause by clause. Keys, TTL and entries are texts of the server.

    ``comment`` is the value, with the provider's mark where there is one. ``name`` and ``uuid`` are what the
    text says and no part of the structure.
    """

    columns: tuple[ColumnDefinition, ...]
    engine: str
    engine_arguments: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    projections: tuple[str, ...] = ()
    partition_by: str = ""
    primary_key: str = ""
    order_by: str = ""
    sample_by: str = ""
    ttl: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    comment: str = ""
    name: str = field(default="", compare=False)

    @property
    def user_comment(self) -> str:
        """The comment without the provider's mark."""
        return split_comment(self.comment)[0]

    @property
    def stored_columns(self) -> tuple[ColumnDefinition, ...]:
        """The columns that rows have on disk, in their order: what a content digest covers."""
        return tuple(column for column in self.columns if column.stored)

    @property
    def insertable_columns(self) -> tuple[ColumnDefinition, ...]:
        """The columns that a load may give."""
        return tuple(column for column in self.columns if column.insertable)

    def column(self, name: str) -> ColumnDefinition | None:
        """The column of that name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class ClauseDifference:
    """A clause that two definitions do not share. An absent clause is an empty text."""

    clause: str
    expected: str
    actual: str

    def __str__(self) -> str:
        """The clause and what became of it. Its text is SQL, which belongs in no log, receipt or error."""
        match self.expected, self.actual:
            case "", _:
                return f"{self.clause} was added"
            case _, "":
                return f"{self.clause} is missing"
            case _:
                return f"{self.clause} is another one"


@dataclass(frozen=True, slots=True)
class EngineRefusal:
    """Why a table cannot be refreshed. ``reason`` is a short word for programs, ``message`` is for people."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message


# --- reading -----------------------------------------------------------------------------------------------


def parse(text: str) -> TableDefinition:
    """Read a CREATE TABLE as the server writes it.

    Raises :class:`DefinitionError` for anything else: a view or dictionary, ``AS SELECT``, text the lexer
    cannot follow, a clause that is not known, and a secret that the server has hidden.
    """
    try:
        return _parse(text)
    except SqlSyntaxError as error:
        raise DefinitionError(f"the CREATE TABLE text cannot be read: {error}") from None


def _parse(text: str) -> TableDefinition:
    found = tokens(text)
    if any(token.kind is TokenKind.COMMENT for token in found):
        raise DefinitionError("a comment is not the server's own text")
    if any(token.text == "'[HIDDEN]'" for token in found):
        raise DefinitionError("the definition holds a secret that the server does not show")
    if len(found) < 2 or not (found[0].is_word("CREATE") and found[1].is_word("TABLE")):
        raise DefinitionError("the text is not a CREATE TABLE")
    opening = next((i for i, token in enumerate(found) if token.depth == 0 and token.is_symbol("(")), None)
    if opening is None:
        raise DefinitionError("the table has no list of columns")
    name = _name(text, found[2:opening])
    closing = _closing(found, opening)
    elements = split_top_level(text[found[opening].end : found[closing].start])
    engine, arguments, behind = _engine(text, found, closing + 1)
    _refuse_unknown(found[behind:])
    clauses = _clauses(text, found[behind:], _TABLE_CLAUSES)
    return TableDefinition(
        columns=tuple(_column(element) for element in elements if _entry(element) is None),
        indexes=_entries(elements, "INDEX"),
        constraints=_entries(elements, "CONSTRAINT"),
        projections=_entries(elements, "PROJECTION"),
        engine=engine,
        engine_arguments=arguments,
        partition_by=clauses.get("PARTITION BY", ""),
        primary_key=clauses.get("PRIMARY KEY", ""),
        order_by=clauses.get("ORDER BY", ""),
        sample_by=clauses.get("SAMPLE BY", ""),
        ttl=clauses.get("TTL", ""),
        settings=_settings(clauses.get("SETTINGS", "")),
        comment=unquote(clauses["COMMENT"]) if "COMMENT" in clauses else "",
        name=name,
    )


def _refuse_unknown(found: Sequence[Token]) -> None:
    """A clause that is not known would end up as the tail of the one before it."""
    for before, token in pairwise(found):
        if token.depth == 0 and ends_operand(before) and token.is_word("AS", "UNIQUE", "EMPTY", "CLONE"):
            raise DefinitionError(f"{token.text} is not part of a table's structure")


def _name(text: str, found: Sequence[Token]) -> str:
    """The qualified name. Some profiles show the UUID behind it; ON CLUSTER is never in the server's text."""
    match found:
        case [*_, uuid, value] if uuid.is_word("UUID") and value.kind is TokenKind.STRING:
            found = found[:-2]
    if not found or any(
        t.kind not in {TokenKind.WORD, TokenKind.IDENTIFIER} and t.text != "." for t in found
    ):
        raise DefinitionError("the table has no name, or more than a name stands before its columns")
    if len(found) not in {1, 3} or (len(found) == 3 and not found[1].is_symbol(".")):
        raise DefinitionError("more than a name stands before the columns")
    return text[found[0].start : found[-1].end]


def _closing(found: Sequence[Token], opening: int) -> int:
    depth = found[opening].depth
    return next(i for i in range(opening + 1, len(found)) if found[i].depth == depth)


def _engine(text: str, found: Sequence[Token], at: int) -> tuple[str, tuple[str, ...], int]:
    """Name, arguments, and the index of the token behind them. No engine is an empty name."""
    if at >= len(found) or not found[at].is_word("ENGINE"):
        return "", (), at
    if at + 2 >= len(found) or not found[at + 1].is_symbol("=") or found[at + 2].kind is not TokenKind.WORD:
        raise DefinitionError("the engine has no name")
    name, behind = found[at + 2].text, at + 3
    if behind < len(found) and found[behind].is_symbol("("):
        closing = _closing(found, behind)
        arguments = split_top_level(text[found[behind].end : found[closing].start])
        return name, arguments, closing + 1
    return name, (), behind


def _clauses(text: str, found: Sequence[Token], grammar: Sequence[str]) -> dict[str, str]:
    """Cut the tokens' text into its clauses, which come in the order of ``grammar``, each at most once."""
    starts = list(_starts(found, grammar))
    if found and (not starts or starts[0][1] != 0):
        raise DefinitionError("an unknown clause stands where a clause begins")
    clauses: dict[str, str] = {}
    for at, (clause, _, first) in enumerate(starts):
        end = starts[at + 1][1] if at + 1 < len(starts) else len(found)
        if first >= end and clause not in _MAY_BE_BARE:
            raise DefinitionError(f"{clause} is empty")
        clauses[clause] = text[found[first].start : found[end - 1].end] if first < end else ""
    return clauses


def _starts(found: Sequence[Token], grammar: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Clause, index of its keyword, index of the first token behind the keyword."""
    top = found[0].depth if found else 0
    position, free_from = 0, 0
    for at, token in enumerate(found):
        if token.depth != top or at < free_from or (at and not ends_operand(found[at - 1])):
            continue
        for rank in range(position, len(grammar)):
            words = grammar[rank].split()
            behind = at + len(words)
            if [t.text for t in found[at:behind] if t.kind is TokenKind.WORD] == words:
                yield grammar[rank], at, behind
                # What follows a keyword is its operand, even when it is spelled like a clause.
                free_from = behind if grammar[rank] in _MAY_BE_BARE else behind + 1
                position = rank + 1
                break


def _entry(element: str) -> str | None:
    first = tokens(element)[0]
    return first.text if first.is_word("INDEX", "CONSTRAINT", "PROJECTION") else None


def _entries(elements: Sequence[str], kind: str) -> tuple[str, ...]:
    return tuple(element[len(kind) :].strip() for element in elements if _entry(element) == kind)


def _column(element: str) -> ColumnDefinition:
    name, *found = tokens(element)
    if name.kind not in {TokenKind.WORD, TokenKind.IDENTIFIER}:
        raise DefinitionError("a column has no name")
    type_text, behind = _type(element, found)
    clauses = _clauses(element, found[behind:], _COLUMN_CLAUSES)
    kind = next((kind for kind in _DEFAULT_KINDS if kind in clauses), "")
    return ColumnDefinition(
        name=unquote(name.text),
        type=type_text,
        default_kind=kind,
        default=clauses.get(kind, ""),
        comment=clauses.get("COMMENT", ""),
        codec=clauses.get("CODEC", ""),
        ttl=clauses.get("TTL", ""),
        null=next((null for null in ("NOT NULL", "NULL") if null in clauses), ""),
        statistics=clauses.get("STATISTICS", ""),
        collate=clauses.get("COLLATE", ""),
        settings=clauses.get("SETTINGS", ""),
    )


def _type(element: str, found: Sequence[Token]) -> tuple[str, int]:
    """The type's text, and the index of the token behind it."""
    if (
        not found
        or found[0].kind is not TokenKind.WORD
        or found[0].is_word(*_DEFAULT_KINDS, "CODEC", "COMMENT")
    ):
        return "", 0
    behind = 1
    while behind < len(found) and found[behind].kind is TokenKind.WORD and found[behind].depth == 0:
        # DOUBLE PRECISION and its like: words that are no clause belong to the type.
        if any(found[behind].text == clause.split()[0] for clause in _COLUMN_CLAUSES):
            break
        behind += 1
    if behind < len(found) and found[behind].is_symbol("("):
        behind = _closing(found, behind) + 1
    return element[found[0].start : found[behind - 1].end], behind


def _settings(text: str) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for setting in split_top_level(text):
        name, equals, *_ = tokens(setting)
        if not equals.is_symbol("="):
            raise DefinitionError("a setting has no value")
        pairs.append((unquote(name.text), setting[equals.end :].strip()))
    return tuple(pairs)


# --- comparing ---------------------------------------------------------------------------------------------


def structure_arguments(definition: TableDefinition) -> tuple[str, ...]:
    """The engine's arguments without Keeper path and replica name."""
    replicated = definition.engine.startswith("Replicated")
    return definition.engine_arguments[2:] if replicated else definition.engine_arguments


def normalized_engine_full(definition: TableDefinition) -> str:
    """The engine with all its clauses, as ``engine_full`` has it, without Keeper path and replica name."""
    arguments = structure_arguments(definition)
    parts = [f"{definition.engine}({', '.join(arguments)})" if arguments else definition.engine]
    parts += [f"{clause} {text}" for clause, text in _table_clauses(definition) if text]
    return " ".join(parts)


def _table_clauses(definition: TableDefinition) -> tuple[tuple[str, str], ...]:
    settings = dict(sorted(definition.settings))
    return (
        ("PARTITION BY", definition.partition_by),
        ("PRIMARY KEY", definition.primary_key),
        ("ORDER BY", definition.order_by),
        ("SAMPLE BY", definition.sample_by),
        ("TTL", definition.ttl),
        ("SETTINGS", ", ".join(f"{name} = {value}" for name, value in settings.items())),
    )


def schema_digest(definition: TableDefinition) -> str:
    """SHA-256 of the structure. Equal for equal tables on every replica and across EXCHANGE."""
    return digest(
        "dpone.table-structure.v1",
        [column.declaration for column in definition.columns],
        list(definition.indexes),
        list(definition.constraints),
        list(definition.projections),
        normalized_engine_full(definition),
        definition.user_comment,
    )


def differences(expected: TableDefinition, actual: TableDefinition) -> tuple[ClauseDifference, ...]:
    """Every clause that is not the same, ``expected`` against ``actual``.

    A setting that the server writes by itself is no difference when ``expected`` does not mention it.
    """
    return tuple(_differences(expected, actual))


def _differences(expected: TableDefinition, actual: TableDefinition) -> Iterator[ClauseDifference]:
    yield from _of_mappings(
        "column",
        {column.name: column.declaration for column in expected.columns},
        {column.name: column.declaration for column in actual.columns},
    )
    orders = [[identifier(column.name) for column in d.columns] for d in (expected, actual)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        yield ClauseDifference("order of columns", ", ".join(orders[0]), ", ".join(orders[1]))
    for clause in ("indexes", "constraints", "projections"):
        yield from _of_mappings(
            clause.removesuffix("es" if clause == "indexes" else "s"),
            {_first_word(entry): entry for entry in getattr(expected, clause)},
            {_first_word(entry): entry for entry in getattr(actual, clause)},
        )
    pairs = [
        ("engine", expected.engine, actual.engine),
        ("engine arguments", *(", ".join(structure_arguments(d)) for d in (expected, actual))),
        (
            "COMMENT",
            expected.user_comment and string(expected.user_comment),
            actual.user_comment and string(actual.user_comment),
        ),
    ]
    for (clause, one), (_, other) in zip(_table_clauses(expected), _table_clauses(actual), strict=True):
        if clause != "SETTINGS":
            pairs.append((clause, one, other))
    yield from (ClauseDifference(clause, one, other) for clause, one, other in pairs if one != other)
    known = dict(expected.settings)
    added = {name: value for name, value in _WRITTEN_BY_SERVER.items() if name not in known}
    written = {name: value for name, value in actual.settings if added.get(name) != value}
    yield from _of_mappings("setting", known, written)


def _of_mappings(
    clause: str, expected: Mapping[str, str], actual: Mapping[str, str]
) -> Iterator[ClauseDifference]:
    for name in dict.fromkeys((*expected, *actual)):
        one, other = expected.get(name, ""), actual.get(name, "")
        if one != other:
            yield ClauseDifference(f"{clause} {identifier(name)}", one, other)


def _first_word(entry: str) -> str:
    return unquote(tokens(entry)[0].text)


# --- admitting ---------------------------------------------------------------------------------------------


def admit_engine(definition: TableDefinition, engine: str = REPLICATED_ENGINE) -> EngineRefusal | None:
    """Why a table of this definition cannot be refreshed, or None.

    Rows are proven by a digest of their content, so nothing may change rows later: no engine that replaces,
    sums or collapses them, and no TTL that deletes, rolls up or resets them. Moving to a disk or volume and
    recompressing leave rows as they are.
    """
    if definition.engine != engine:
        return EngineRefusal("engine", f"the engine is {definition.engine or 'not given'}, not {engine}")
    if extra := structure_arguments(definition):
        return EngineRefusal("engine_arguments", f"the engine has {len(extra)} more arguments than it should")
    if columns := [identifier(column.name) for column in definition.columns if column.ttl]:
        return EngineRefusal("column_ttl", f"TTL resets values of {', '.join(columns)} later")
    if definition.ttl and not _keeps_rows(definition.ttl):
        return EngineRefusal("row_ttl", "the table's TTL deletes or rolls up rows later")
    return None


def _keeps_rows(ttl: str) -> bool:
    """Whether each rule of a TTL only moves or recompresses. What is not understood changes rows."""
    return all(_moves_or_recompresses(tokens(rule)) for rule in split_top_level(ttl))


def _moves_or_recompresses(rule: Sequence[Token]) -> bool:
    top = [token for token in rule if token.depth == 0]
    if any(a.is_word("GROUP") and b.is_word("BY") for a, b in pairwise(top)):
        return False
    match [token.text for token in top[-5:]]:
        case [*_, "TO", "DISK" | "VOLUME", _] | [*_, "TO", "DISK" | "VOLUME", "IF", "EXISTS", _]:
            return True
        case [*_, "RECOMPRESS", "CODEC", "(", ")"]:
            return True
        case _:
            return False
