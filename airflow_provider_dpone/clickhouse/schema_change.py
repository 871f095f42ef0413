"""Which structure the candidate gets, and which of its columns the source fills.

Columns meet by name, always: ``INSERT ... SELECT`` meets them by position and loads swapped columns in
silence. What does not meet is refused with both lists, before a row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from airflow_provider_dpone.clickhouse.sql import identifier
from airflow_provider_dpone.clickhouse.table_definition import (
    ClauseDifference,
    ColumnDefinition,
    TableDefinition,
    differences,
)
from airflow_provider_dpone.values import OnSchemaChange

SourceColumn = tuple[str, str | None]
"""Name and type of a column of the source; a text source has no types."""

_INDENT: Final = "    "


@dataclass(frozen=True, slots=True)
class StructurePlan:
    """The candidate's definition and how the source maps to it.

    ``columns`` are the candidate's columns that the source fills, in the source's order. ``differences`` are
    between the live target and the candidate; there are none without a target.
    """

    definition: TableDefinition
    columns: tuple[ColumnDefinition, ...]
    differences: tuple[ClauseDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class StructureRefusal:
    """Why there is no plan.

    ``source_only`` are source columns that the candidate lacks or computes itself; ``table_only`` are
    columns that need a value and get none; ``suggestion`` is a text to put into the DAG.
    """

    reason: str
    message: str
    source_only: tuple[str, ...] = ()
    table_only: tuple[str, ...] = ()
    suggestion: str = ""


def plan_structure(
    target: TableDefinition | None,
    structure: TableDefinition | None,
    source: Sequence[SourceColumn],
    mode: OnSchemaChange,
) -> StructurePlan | StructureRefusal:
    """Decide the candidate's structure.

    :param target: The live table, or None where there is none.
    :param structure: What the author wrote, in the server's words, or None.
    :param source: The source's columns.
    :param mode: ``refuse``: a live table keeps its structure. ``append``: new source columns are added at
        its end, with the declarations that ``structure`` has for them. ``replace``: ``structure`` wins.
    """
    names = [name for name, _ in source]
    if doubled := tuple(sorted({name for name in names if names.count(name) > 1})):
        return StructureRefusal(
            "duplicate_columns", f"the source has columns twice: {_list(doubled)}", source_only=doubled
        )
    candidate = _candidate(target, structure, source, mode)
    if isinstance(candidate, StructureRefusal):
        return candidate
    if refusal := _unmatched(candidate, names):
        return refusal
    by_name = {column.name: column for column in candidate.columns}
    return StructurePlan(
        candidate,
        tuple(by_name[name] for name in names),
        () if target is None else differences(target, candidate),
    )


def _candidate(
    target: TableDefinition | None,
    structure: TableDefinition | None,
    source: Sequence[SourceColumn],
    mode: OnSchemaChange,
) -> TableDefinition | StructureRefusal:
    if target is None:
        if structure is None:
            return StructureRefusal(
                "structure_missing",
                "the table does not exist and no structure is given; ORDER BY is never guessed",
                suggestion=suggested_structure(source),
            )
        return structure
    match mode:
        case "refuse":
            return target
        case "append":
            return _appended(target, structure, source)
        case "replace":
            if structure is None:
                return StructureRefusal("structure_missing", "on_schema_change='replace' needs a structure")
            return structure
        case _:
            assert_never(mode)


def _appended(
    target: TableDefinition, structure: TableDefinition | None, source: Sequence[SourceColumn]
) -> TableDefinition | StructureRefusal:
    new = [(name, type_text) for name, type_text in source if target.column(name) is None]
    declared = [structure.column(name) if structure else None for name, _ in new]
    if untyped := tuple(name for (name, _), column in zip(new, declared, strict=True) if column is None):
        return StructureRefusal(
            "type_missing",
            f"on_schema_change='append' needs the type of each new column in structure: {_list(untyped)}",
            source_only=untyped,
            suggestion=suggested_columns([column for column in new if column[0] in untyped]),
        )
    return replace(target, columns=(*target.columns, *(column for column in declared if column is not None)))


def _unmatched(candidate: TableDefinition, names: Sequence[str]) -> StructureRefusal | None:
    insertable = {column.name for column in candidate.insertable_columns}
    computed = {column.name for column in candidate.columns} - insertable
    source_only = tuple(name for name in names if name not in insertable)
    table_only = tuple(c.name for c in candidate.columns if c.required and c.name not in names)
    if not source_only and not table_only:
        return None
    parts: list[str] = []
    if unknown := [name for name in source_only if name not in computed]:
        parts.append(f"the source has columns that the table lacks: {_list(unknown)}")
    if taken := [name for name in source_only if name in computed]:
        parts.append(f"the source has columns that the table computes: {_list(taken)}")
    if table_only:
        parts.append(f"the table has columns without default that the source lacks: {_list(table_only)}")
    return StructureRefusal("columns_differ", "; ".join(parts), source_only, table_only)


def suggested_structure(source: Sequence[SourceColumn]) -> str:
    """A ``TableStructure`` to put into the DAG. It has no sorting key yet, so that nobody forgets to choose."""
    return f"TableStructure(\n{_INDENT}{suggested_columns(source)},\n{_INDENT}order_by=[...],  # choose it\n)"


def suggested_columns(source: Sequence[SourceColumn]) -> str:
    """The ``columns=`` argument for these columns; a text source's are all strings."""
    entries = "".join(f"{_INDENT * 2}{name!r}: {type_text or 'String'!r},\n" for name, type_text in source)
    return f"columns={{\n{entries}{_INDENT}}}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(identifier(name) for name in names)
