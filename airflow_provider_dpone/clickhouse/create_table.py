"""Candidates: the CREATE TABLE of a table that is to take another one's place.

``CREATE TABLE c AS t`` would lose TTL and settings and keep the literal Keeper path. So the candidate is
built from the target's whole definition, piece by piece as the server wrote it, with exactly four things
changed: name, UUID, Keeper path and replica name, and the provider's mark in the comment.

A structure that somebody wrote, as a value or as DDL, goes the same way once the server has put it into its
own words. That takes two questions, which the caller sends and which change nothing:

1. :func:`format_query` of the text -> the server's formatting, for :func:`parse` or :func:`from_ddl`;
2. :func:`describe_columns` of the definition -> types and codecs without aliases, for :func:`described`.

After that an expected definition and the one of the created table compare clause by clause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final
from uuid import UUID

from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    TokenKind,
    identifier,
    qualified,
    split_top_level,
    string,
    tokens,
)
from airflow_provider_dpone.clickhouse.table_comment import TableMark, split_comment, with_mark
from airflow_provider_dpone.clickhouse.table_definition import (
    REPLICATED_ENGINE,
    ClauseDifference,
    ColumnDefinition,
    DefinitionError,
    EngineRefusal,
    TableDefinition,
    admit_engine,
    differences,
    normalized_engine_full,
    parse,
    schema_digest,
    structure_arguments,
)
from airflow_provider_dpone.values import TableStructure

__all__ = [
    "CREATE_SETTINGS",
    "ClauseDifference",
    "ColumnDefinition",
    "DefinitionError",
    "EngineRefusal",
    "TableDefinition",
    "TableMark",
    "admit_engine",
    "build_candidate",
    "ddl_text",
    "describe_columns",
    "described",
    "differences",
    "format_query",
    "from_ddl",
    "normalized_engine_full",
    "parse",
    "schema_digest",
    "split_comment",
    "structure_text",
]

DEFAULT_KEEPER_PATH: Final = "/clickhouse/tables/{uuid}/{shard}"
DEFAULT_REPLICA: Final = "{replica}"
CREATE_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flatten_nested": "0",
        "data_type_default_nullable": "0",
        "allow_suspicious_low_cardinality_types": "1",
        "allow_suspicious_fixed_string_types": "1",
        "allow_suspicious_variant_types": "1",
        "allow_suspicious_codecs": "1",
        "allow_suspicious_indices": "1",
        "allow_suspicious_primary_key": "1",
        "allow_suspicious_ttl_expressions": "1",
    }
)
"""Settings for the statement of :func:`build_candidate`.

A profile must not change what the definition says, and what the live table was allowed to be its candidate
is too. An author's structure meets the server's own judgement in :func:`describe_columns`, without them.
"""

_PLACEHOLDER: Final = "dpone_candidate"


def build_candidate(
    definition: TableDefinition,
    *,
    database: str,
    name: str,
    uuid: str,
    cluster: str | None,
    mark: TableMark,
    keeper_path: str | None = None,
    replica: str | None = None,
) -> str:
    """The statement that creates the candidate on every replica of ``cluster``, or on the server that gets it.

    :param uuid: The table's UUID, chosen by us and the same on all replicas.
    :param cluster: ``None``: only the server that gets the statement creates it.
    :param keeper_path: Where the table lives in Keeper. Without it the definition's own path is kept if it
        has ``{uuid}`` (so another ensemble or prefix stays), else the server's usual default is used.
    :param replica: The replica's name in Keeper; chosen together with the path.
    :raises ValueError: A name that cannot be quoted, or a UUID that is none.
    """
    if UUID(uuid).int == 0:
        raise ValueError("the candidate's UUID must not be nil")
    own = _own_keeper_arguments(definition)
    arguments = structure_arguments(definition)
    if definition.engine.startswith("Replicated"):
        place = string(keeper_path or own[0]), string(replica or own[1])
        arguments = (*place, *arguments)
    where = "" if cluster is None else f" ON CLUSTER {identifier(cluster)}"
    table = f"{qualified(database, name)} UUID {string(str(UUID(uuid)))}{where}"
    comment = with_mark(definition.user_comment, mark)
    return _create_table(table, replace(definition, engine_arguments=arguments, comment=comment))


def _own_keeper_arguments(definition: TableDefinition) -> tuple[str, str]:
    match definition.engine_arguments:
        case path, name, *_ if "{uuid}" in path and "{" in name:
            return path[1:-1], name[1:-1]
        case _:
            return DEFAULT_KEEPER_PATH, DEFAULT_REPLICA


def _create_table(table: str, definition: TableDefinition) -> str:
    elements = [
        *(column.declaration for column in definition.columns),
        *(f"INDEX {entry}" for entry in definition.indexes),
        *(f"CONSTRAINT {entry}" for entry in definition.constraints),
        *(f"PROJECTION {entry}" for entry in definition.projections),
    ]
    engine = definition.engine
    if definition.engine_arguments:
        engine += f"({', '.join(definition.engine_arguments)})"
    clauses = (
        ("PARTITION BY", definition.partition_by),
        ("PRIMARY KEY", definition.primary_key),
        ("ORDER BY", definition.order_by),
        ("SAMPLE BY", definition.sample_by),
        ("TTL", definition.ttl),
        ("SETTINGS", ", ".join(f"{name} = {value}" for name, value in definition.settings)),
        ("COMMENT", string(definition.comment) if definition.comment else ""),
    )
    parts = [f"CREATE TABLE {table}", f"({', '.join(elements)})", f"ENGINE = {engine}"]
    return " ".join([*parts, *(f"{clause} {text}" for clause, text in clauses if text)])


# --- structures that somebody wrote ------------------------------------------------------------------------


def format_query(text: str) -> str:
    """The query that has the server format a statement without running it. Its one value is the text."""
    return f"SELECT formatQuerySingleLine({string(text)})"


def structure_text(structure: TableStructure, engine: str = REPLICATED_ENGINE) -> str:
    """A CREATE TABLE for the server to format, from a structure.

    Raises :class:`DefinitionError` when a piece is not one piece: a comma, semicolon or comment in it, or
    a bracket that is not closed. That the pieces say what they should is up to the server.
    """
    definition = TableDefinition(
        columns=tuple(
            ColumnDefinition(name, _piece(declaration, f"columns[{name!r}]"))
            for name, declaration in structure.columns.items()
        ),
        indexes=tuple(_piece(entry, "indexes") for entry in structure.indexes),
        constraints=tuple(_piece(entry, "constraints") for entry in structure.constraints),
        projections=tuple(_piece(entry, "projections") for entry in structure.projections),
        engine=engine,
        partition_by=_key(structure.partition_by, "partition_by", structure.columns),
        primary_key=_key(structure.primary_key, "primary_key", structure.columns),
        order_by=_key(structure.order_by, "order_by", structure.columns),
        sample_by=_key(structure.sample_by, "sample_by", structure.columns),
        ttl=", ".join(_piece(rule, "ttl", commas=True) for rule in structure.ttl or ()),
        settings=tuple((identifier(name), _setting(value)) for name, value in structure.settings.items()),
        comment=structure.comment or "",
    )
    return _create_table(_PLACEHOLDER, definition)


def _piece(text: str, argument: str, *, commas: bool = False) -> str:
    try:
        found = tokens(text)
    except SqlSyntaxError as error:
        raise DefinitionError(f"{argument} cannot be read: {error}") from None
    if not found or any(token.kind is TokenKind.COMMENT for token in found):
        raise DefinitionError(f"{argument} is empty or has a comment")
    if any(t.depth == 0 and (t.is_symbol(";") or (t.is_symbol(",") and not commas)) for t in found):
        raise DefinitionError(f"{argument} is more than one piece")
    return text.strip()


def _key(value: str | Sequence[str] | None, argument: str, columns: Mapping[str, str]) -> str:
    if value is None:
        return ""
    entries = (value,) if isinstance(value, str) else tuple(value)
    pieces = [
        identifier(entry) if entry in columns else _piece(entry, argument, commas=True) for entry in entries
    ]
    match pieces:
        case []:
            return "tuple()"
        case [one] if len(split_top_level(one)) == 1:
            return one
        case _:
            return f"({', '.join(pieces)})"


def _setting(value: str | int | float | bool) -> str:
    return string(value) if isinstance(value, str) else str(int(value) if isinstance(value, bool) else value)


def ddl_text(ddl: str) -> str:
    """A CREATE TABLE for the server to format, from the DDL of a table without a name.

    Raises :class:`DefinitionError` when the text does not begin ``CREATE TABLE (``: name, UUID and cluster
    are not its own to choose.
    """
    try:
        found = [token for token in tokens(ddl) if token.kind is not TokenKind.COMMENT]
    except SqlSyntaxError as error:
        raise DefinitionError(f"ddl cannot be read: {error}") from None
    if [token.text.upper() for token in found[:3]] != ["CREATE", "TABLE", "("]:
        raise DefinitionError(
            "ddl must begin with CREATE TABLE ( and the columns: name, UUID, ON CLUSTER, IF NOT EXISTS and "
            "OR REPLACE are not part of it"
        )
    return f"{ddl[: found[2].start]}{_PLACEHOLDER} {ddl[found[2].start :]}"


def from_ddl(formatted: str, default_engine: str = REPLICATED_ENGINE) -> TableDefinition:
    """The definition in the server's formatting of :func:`ddl_text` or :func:`structure_text`.

    An engine that is not given is ``default_engine``. Raises :class:`DefinitionError` as
    :func:`parse` does, and for a Keeper path and replica name, which are not the author's to choose.
    """
    definition = parse(formatted)
    if definition.name != _PLACEHOLDER:
        raise DefinitionError("the table must have no name of its own")
    engine = definition.engine or default_engine
    if engine.startswith("Replicated") and definition.engine_arguments:
        raise DefinitionError(f"{engine} must be written without arguments: Keeper path and replica are ours")
    if not definition.order_by and not definition.primary_key:
        raise DefinitionError(
            "ORDER BY is missing: write the sorting key, or tuple() for a table without one"
        )
    return replace(definition, engine=engine, name="")


def describe_columns(definition: TableDefinition) -> str:
    """The query that has the server read column declarations without creating anything.

    Rows are ``name, type, default_type, default_expression, comment, codec_expression, ttl_expression``.
    """
    declarations = ", ".join(
        replace(column, statistics="", settings="").declaration for column in definition.columns
    )
    return f"DESCRIBE TABLE null({string(declarations)})"


def described(definition: TableDefinition, rows: Iterable[Mapping[str, str]]) -> TableDefinition:
    """The definition with the columns as the server described them: types in full, ``Nested`` in parts.

    Raises :class:`DefinitionError` when the rows are not those of this definition.
    """
    columns = tuple(_described(definition, row) for row in rows)
    if {column.name for column in definition.columns} - {
        name for column in columns for name in (column.name, column.name.partition(".")[0])
    }:
        raise DefinitionError("the server described other columns")
    return replace(definition, columns=columns)


def _described(definition: TableDefinition, row: Mapping[str, str]) -> ColumnDefinition:
    written = definition.column(row["name"]) or ColumnDefinition(row["name"], row["type"])
    return replace(
        written,
        type=row["type"],
        default_kind=row["default_type"],
        default=row["default_expression"],
        codec=f"({row['codec_expression']})" if row["codec_expression"] else "",
        ttl=row["ttl_expression"],
        null="",
    )
