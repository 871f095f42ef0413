"""Column types: read as the server writes them, and what the server reads Arrow's types as."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    TokenKind,
    split_top_level,
    string,
    tokens,
    unquote,
)

_DECIMAL_PRECISION: Final = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type's name and what stands in its brackets; ``Nullable`` and ``LowCardinality`` are flags.

    ``Decimal64(3)`` is ``Decimal(18, 3)``; ``SimpleAggregateFunction(f, T)`` is the ``T`` it stores.
    """

    name: str
    arguments: tuple[str, ...] = ()
    nullable: bool = False
    low_cardinality: bool = False

    @property
    def bare(self) -> str:
        """The type as text, without ``Nullable`` and ``LowCardinality``."""
        return f"{self.name}({', '.join(self.arguments)})" if self.arguments else self.name

    @property
    def text(self) -> str:
        """The type as text, without ``LowCardinality``."""
        return f"Nullable({self.bare})" if self.nullable else self.bare

    @property
    def elements(self) -> tuple[tuple[str | None, ColumnType], ...]:
        """Name (of a named tuple's element) and type of each part of an Array, Map or Tuple."""
        return tuple(_element(argument) for argument in self.arguments)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of an Enum's elements."""
        return tuple(unquote(tokens(argument)[0].text) for argument in self.arguments)


@lru_cache(maxsize=4096)
def column_type(text: str) -> ColumnType:
    """Read a type as the server writes it. Raises :class:`SqlSyntaxError` for text that is no type."""
    name, arguments = _name_and_arguments(text)
    match name, arguments:
        case "Nullable", (inner,):
            inside = column_type(inner)
            return ColumnType(inside.name, inside.arguments, nullable=True)
        case "LowCardinality", (inner,):
            inside = column_type(inner)
            return ColumnType(inside.name, inside.arguments, inside.nullable, low_cardinality=True)
        case "SimpleAggregateFunction", (_, inner):
            return column_type(inner)
        case (("Decimal32" | "Decimal64" | "Decimal128" | "Decimal256"), (scale,)):
            return ColumnType("Decimal", (str(_DECIMAL_PRECISION[name]), scale))
        case "Nested", _:
            return ColumnType("Array", (f"Tuple({', '.join(arguments)})",))
        case _:
            return ColumnType(name, arguments)


def _name_and_arguments(text: str) -> tuple[str, tuple[str, ...]]:
    found = tokens(text)
    if not found or found[0].kind is not TokenKind.WORD:
        raise SqlSyntaxError("a type starts with its name")
    if len(found) == 1:
        return found[0].text, ()
    if not (found[1].is_symbol("(") and found[-1].is_symbol(")") and found[-1].depth == 0):
        raise SqlSyntaxError("a type is a name, or a name with arguments in brackets")
    return found[0].text, split_top_level(text[found[1].end : found[-1].start])


def _element(text: str) -> tuple[str | None, ColumnType]:
    found = tokens(text)
    if len(found) > 1 and found[0].depth == found[1].depth == 0 and not found[1].is_symbol("("):
        return unquote(found[0].text), column_type(text[found[1].start :])
    return None, column_type(text)


_ARROW_SCALARS: Final = {
    **{
        f"{kind}{bits}": f"{name}{bits}"
        for kind, name in (("int", "Int"), ("uint", "UInt"))
        for bits in (8, 16, 32, 64)
    },
    "bool": "Bool",
    "halffloat": "Float32",
    "float": "Float32",
    "double": "Float64",
    "string": "String",
    "large_string": "String",
    "string_view": "String",
    "binary": "String",
    "large_binary": "String",
    "binary_view": "String",
    "date32[day]": "Date32",
}
_ARROW_DECIMAL: Final = re.compile(r"decimal(?:32|64|128|256)\((\d+), (\d+)\)")
_ARROW_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=([\w/+:-]+))?\]")
_OFFSET: Final = re.compile(r"[+-]\d\d:?\d\d")
_ARROW_FIXED: Final = re.compile(r"fixed_size_binary\[(\d+)\]")
_ARROW_DICTIONARY: Final = re.compile(r"dictionary<values=(\w+), .*>")
_ARROW_LIST: Final = re.compile(r"(?:large_)?list<\w+: (.*?)(?: not null)?>")
_ARROW_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def arrow_carrier(arrow_type: str, *, nullable: bool = True) -> str | None:
    """The type with which the server reads a column of Arrow or Parquet, from ``str()`` of its Arrow type.

    A timestamp without a zone, or with an offset for one, is read as UTC. None for a type that has no exact
    counterpart. A list cannot be NULL in ClickHouse and would be read as an empty one: the caller refuses
    NULL lists itself.
    """
    carrier = _arrow_scalar(arrow_type)
    if carrier is not None:
        return f"Nullable({carrier})" if nullable else carrier
    if match := _ARROW_LIST.fullmatch(arrow_type):
        element = arrow_carrier(match.group(1))
        return None if element is None else f"Array({element})"
    return None


def _arrow_scalar(arrow_type: str) -> str | None:
    if scalar := _ARROW_SCALARS.get(arrow_type):
        return scalar
    if match := _ARROW_DECIMAL.fullmatch(arrow_type):
        return f"Decimal({match.group(1)}, {match.group(2)})"
    if match := _ARROW_TIMESTAMP.fullmatch(arrow_type):
        # The server knows zones by their names. A value is an instant, so any zone holds it.
        zone = "UTC" if match.group(2) is None or _OFFSET.fullmatch(match.group(2)) else match.group(2)
        return f"DateTime64({_ARROW_DIGITS[match.group(1)]}, {string(zone)})"
    if match := _ARROW_FIXED.fullmatch(arrow_type):
        return f"FixedString({match.group(1)})"
    if match := _ARROW_DICTIONARY.fullmatch(arrow_type):
        return _arrow_scalar(match.group(1))
    return None
