"""Load every value exactly, or refuse the load.

ClickHouse converts in silence. ``300`` becomes 44 in a ``UInt8``, ``1.999`` becomes 1.99 in a
``Decimal(10, 2)``, 1960 becomes 2129 in a ``Date``, NULL becomes the column's default, 31 February becomes
2 March. So no conversion is left to an ``INSERT``. A column arrives in its *carrier* type, which holds what
the source said without loss, and is converted by an expression that throws for the first value that would
change. The error names the column and never the value.

The rule for typed carriers is the round trip: a value fits when it converts to the target's type and
converts back to the very same value. A ``Float64`` 0.1 does not fit a ``Float32``; it does fit a
``Decimal(10, 2)``, from which it comes back as the same ``Float64``.

Text is its own carrier, ``Nullable(String)``, and has one accepted spelling per type:

========================  ====================================================================================
target                    accepted text
========================  ====================================================================================
integers                  decimal digits with an optional sign, in range
``Decimal``               digits with an optional sign and point, no exponent; only zeros may be dropped
floats                    a decimal number, read as the nearest float; ``inf`` and ``nan`` in words; a number
                          beyond the range is refused
``Bool``                  true, false, t, f, 1, 0 in any case
``Date``, ``Date32``      ``YYYY-MM-DD``, a day that exists and is in range
``DateTime``,             ``YYYY-MM-DD hh:mm:ss`` with ``T`` or a space, a fraction that fits, and ``Z``,
``DateTime64``            ``+hh``, ``+hhmm``, ``+hh:mm`` or nothing, which means the column's time zone. A
                          local time that exists twice there is the server's choice; one that does not exist
                          is refused
``UUID``, ``IPv4``        the canonical form (``UUID`` in any case)
``IPv6``                  any form the server reads, IPv4 included
``Enum``                  the name of an element
``String``                everything, byte for byte
``FixedString``           that many bytes; fewer, if the last one is not a zero byte
========================  ====================================================================================

NULL is never an empty string and never a default. In CSV an unquoted or quoted empty field is the empty
string, and ``\\N`` without quotes is NULL; in JSON ``null`` and an absent key are NULL.

Every statement comes with the settings it relies on: a profile that trims CSV fields or keeps NULL in a
``CAST`` would break the promise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from airflow_provider_dpone.clickhouse.column_types import ColumnType, column_type
from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    TokenKind,
    identifier,
    qualified,
    string,
    tokens,
    tuple_of,
    unquote,
    unused_name,
)

TEXT_CARRIER: Final = "Nullable(String)"

_MISFIT: Final = "dpone: a value does not fit column "
_MISFIT_COLUMN: Final = re.compile(re.escape(_MISFIT) + r"(`(?:[^`\\]|\\.)+`)", re.DOTALL)

_INTEGERS: Final = frozenset(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256))
_FLOATS: Final = frozenset(("Float32", "Float64", "BFloat16"))
_NUMBERS: Final = _INTEGERS | _FLOATS | {"Bool", "Decimal"}
_DAYS: Final = frozenset(("Date", "Date32"))
_TIMES: Final = frozenset(("DateTime", "DateTime64"))
_STRINGS: Final = frozenset(("String", "FixedString"))
_ENUMS: Final = frozenset(("Enum8", "Enum16"))
_ADDRESSES: Final = frozenset(("IPv4", "IPv6"))
_WRITTEN_AS_TEXT: Final = _NUMBERS | _DAYS | _STRINGS | _ENUMS | _ADDRESSES | {"UUID"}
_READ_FROM_TEXT: Final = _WRITTEN_AS_TEXT | _TIMES


class Encoding(Enum):
    """How a carrier's value is written in the body, where the body's format itself has no exact way."""

    PLAIN = "plain"
    HEX = "hex"
    """Bytes as hex digits: ``Nullable(String)``."""

    JSON_ARRAY = "JSON array"
    """A list of texts and nulls as one JSON array: ``Array(Nullable(String))``. An array can't be NULL."""


@dataclass(frozen=True, slots=True)
class LoadColumn:
    """A column of a load: its name, the type in which it arrives, and the type in which it is stored.

    ``encoding`` says how the body spells the carrier's values.
    """

    name: str
    carrier: str
    target: str
    encoding: Encoding = Encoding.PLAIN

    @property
    def wire_type(self) -> str:
        """The type with which the body is read."""
        return self.carrier if self.encoding is Encoding.PLAIN else TEXT_CARRIER


@dataclass(frozen=True, slots=True)
class Load:
    """An INSERT statement and the settings without which it is not exact."""

    sql: str
    settings: Mapping[str, str]


class InexactTypeError(ValueError):
    """Columns whose type cannot be carried exactly. ``columns`` has their names and the two types."""

    def __init__(self, columns: Sequence[LoadColumn], reason: str = "") -> None:
        self.columns = tuple(columns)
        pairs = ", ".join(f"{identifier(c.name)} ({c.carrier} into {c.target})" for c in columns)
        super().__init__(f"cannot be carried exactly: {pairs}{f'. {reason}' if reason else ''}")


_OVERFLOW_MODES: Final = (
    *(f"{limit}_overflow_mode" for limit in ("read", "group_by", "sort", "timeout", "set", "join")),
    *(f"{limit}_overflow_mode" for limit in ("transfer", "distinct", "result")),
    "read_overflow_mode_leaf",
    "timeout_overflow_mode_leaf",
)
"""Limits that a server may be told to obey by breaking off without an error."""

SELECT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cast_keep_nullable": "0",
        "insert_null_as_default": "0",
        "transform_null_in": "0",
        "decimal_check_overflow": "1",
        # Without it, some texts of a float are read as a neighbour of the nearest one.
        "precise_float_parsing": "1",
        "bool_true_representation": "true",
        "bool_false_representation": "false",
        "cast_ipv4_ipv6_default_on_conversion_error": "0",
        # A profile or a connection may say: stop at a limit, or leave a shard out, and say nothing.
        **dict.fromkeys(_OVERFLOW_MODES, "throw"),
        "skip_unavailable_shards": "0",
        "limit": "0",
        "offset": "0",
        "additional_result_filter": "",
        # With it, the server answers before it has loaded anything.
        "run_query_in_background": "0",
    }
)
"""What the expressions rely on, and what keeps a load from taking a part of its source in silence."""

INPUT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **SELECT_SETTINGS,
        # These win over the format that the statement names.
        "format": "",
        "input_format": "",
        # A local time is one of the column's zone. In a query it is left alone: there it is what the text means.
        "session_timezone": "",
        "date_time_input_format": "best_effort",
        "date_time_overflow_behavior": "ignore",
        # With it, the bytes before a broken connection are a whole body.
        "input_format_connection_handling": "0",
        "input_format_column_name_matching_mode": "match_case",
        "input_format_read_datetime_number_as_raw_value": "0",
        "input_format_force_null_for_omitted_fields": "0",
        "input_format_ipv4_default_on_conversion_error": "0",
        "input_format_ipv6_default_on_conversion_error": "0",
        "input_format_null_as_default": "0",
        "input_format_skip_unknown_fields": "0",
        "input_format_allow_errors_num": "0",
        "input_format_allow_errors_ratio": "0",
        "input_format_with_names_use_header": "1",
        "input_format_with_types_use_header": "1",
        "format_csv_null_representation": "\\N",
        "format_csv_allow_single_quotes": "0",
        "format_csv_allow_double_quotes": "1",
        "input_format_csv_trim_whitespaces": "0",
        "input_format_csv_empty_as_default": "0",
        "input_format_csv_detect_header": "0",
        "input_format_csv_skip_first_lines": "0",
        "input_format_csv_skip_trailing_empty_lines": "0",
        "input_format_csv_allow_variable_number_of_columns": "0",
        "input_format_csv_use_default_on_bad_values": "0",
        "input_format_csv_allow_whitespace_or_tab_as_delimiter": "0",
        "input_format_csv_allow_cr_end_of_line": "0",
        "input_format_csv_arrays_as_nested_csv": "0",
        "input_format_csv_enum_as_number": "0",
        "format_tsv_null_representation": "\\N",
        "input_format_tsv_empty_as_default": "0",
        "input_format_tsv_detect_header": "0",
        "input_format_tsv_skip_first_lines": "0",
        "input_format_tsv_skip_trailing_empty_lines": "0",
        "input_format_tsv_allow_variable_number_of_columns": "0",
        "input_format_tsv_crlf_end_of_line": "0",
        "input_format_tsv_enum_as_number": "0",
        "input_format_json_read_numbers_as_strings": "1",
        "input_format_json_read_bools_as_strings": "1",
        "input_format_json_read_arrays_as_strings": "1",
        "input_format_json_read_objects_as_strings": "1",
        "input_format_json_empty_as_default": "0",
        "input_format_json_compact_allow_variable_number_of_columns": "0",
        "input_format_json_throw_on_bad_escape_sequence": "1",
        "input_format_json_named_tuples_as_objects": "1",
        "input_format_json_ignore_unknown_keys_in_named_tuple": "0",
        "input_format_json_defaults_for_missing_elements_in_named_tuple": "0",
        "input_format_json_map_as_array_of_tuples": "0",
        "input_format_import_nested_json": "0",
        "input_format_parquet_allow_missing_columns": "0",
        "input_format_orc_allow_missing_columns": "0",
        "input_format_arrow_allow_missing_columns": "0",
        "input_format_parquet_case_insensitive_column_matching": "0",
        "input_format_orc_case_insensitive_column_matching": "0",
        "input_format_arrow_case_insensitive_column_matching": "0",
        "input_format_parquet_local_time_as_utc": "1",
    }
)
"""What the reading of a body relies on, besides the expressions."""

NO_DEDUPLICATION: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Which of these rules depends on the release; a release doesn't know all of them.
        "insert_deduplicate": "0",
        "deduplicate_insert": "disable",
        "deduplicate_insert_select": "disable",
        "insert_select_deduplicate": "0",
    }
)
"""A load may hold one row, or one block of rows, many times: all of them are kept."""

LOAD_SETTINGS: Final = tuple(
    sorted({*SELECT_SETTINGS, *INPUT_SETTINGS, *NO_DEDUPLICATION, "format_csv_delimiter"})
)
"""Every setting that a load may send. Releases differ in which of them they know."""

_SCALAR_TEXT_FORMATS: Final = frozenset(
    (
        "CSV",
        "CSVWithNames",
        "TabSeparated",
        "TabSeparatedWithNames",
        "TSV",
        "TSVWithNames",
    )
)
_NESTED_TEXT_FORMATS: Final = frozenset(("JSONCompactEachRow", "JSONCompactEachRowWithNames", "JSONEachRow"))
_TYPED_FORMATS: Final = frozenset(("Arrow", "ArrowStream", "Parquet", "Native", "RowBinary"))


def text_carrier(target_type: str, format_name: str) -> str:
    """The type with which a column of a text format is read so that nothing is lost before the check.

    In ``JSONEachRow`` the server reads an absent key as an empty array, map or tuple: whoever sends such a body
    has to see to it that every object has every key.

    Raises :class:`InexactTypeError` for a type that has no exact text here, as nested ones in CSV. Raises
    ``ValueError`` for a format that is not known or has its own types (see
    ``column_types.arrow_carrier``).
    """
    if format_name in _TYPED_FORMATS:
        raise ValueError(f"{format_name} has its own types: the carrier is the type of the source's column")
    if format_name not in _SCALAR_TEXT_FORMATS | _NESTED_TEXT_FORMATS:
        raise ValueError(f"format {format_name} is not supported")
    target = column_type(target_type)
    if target.name in _READ_FROM_TEXT:
        return TEXT_CARRIER
    if format_name in _NESTED_TEXT_FORMATS and (carrier := _nested_carrier(target)):
        return carrier
    raise InexactTypeError([LoadColumn("?", format_name, target_type)])


def _nested_carrier(target: ColumnType) -> str | None:
    parts: list[str] = []
    for name, part in target.elements if target.name in {"Array", "Map", "Tuple"} else ():
        carrier = TEXT_CARRIER if part.name in _READ_FROM_TEXT else _nested_carrier(part)
        if carrier is None:
            return None
        parts.append(carrier if name is None else f"{identifier(name)} {carrier}")
    if target.name == "Map":
        parts[0] = "String"  # a key is never NULL
    return f"{target.name}({', '.join(parts)})" if parts and not target.nullable else None


def exact_select(columns: Iterable[LoadColumn]) -> list[str]:
    """One expression per column: the stored value, or an error that names the column.

    Raises :class:`InexactTypeError` with every column that cannot be carried, and ``ValueError`` when two
    columns have one name.
    """
    columns = list(columns)
    names = [column.name for column in columns]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"columns appear twice: {', '.join(map(identifier, doubled))}")
    expressions = [(column, _exact_column(column)) for column in columns]
    if refused := [column for column, expression in expressions if expression is None]:
        raise InexactTypeError(refused)
    return [expression for _, expression in expressions if expression is not None]


def _exact_column(column: LoadColumn) -> str | None:
    name = identifier(column.name)
    source, target = column_type(column.carrier), column_type(column.target)
    misfit = string(_MISFIT + name)
    match column.encoding:
        case Encoding.PLAIN if source == target:
            return name
        case Encoding.PLAIN:
            # A constant would be folded before the check runs, and the error would not name the column.
            decoded = f"materialize({name})"
        case Encoding.HEX:
            decoded = f"unhex(materialize({name}))"
        case Encoding.JSON_ARRAY:
            is_array = f"ifNull(JSONType({name}) = 'Array', 0)"
            parsed = f"JSONExtract(ifNull({name}, ''), 'Array(Nullable(String))')"
            decoded = f"if(throwIf(NOT {is_array}, {misfit}) = 0, {parsed}, [])"
    return _exact(decoded, source, target, misfit, 1)


def _exact(x: str, source: ColumnType, target: ColumnType, misfit: str, depth: int) -> str | None:
    """``x`` as ``target``. ``misfit`` is the quoted error; ``depth`` keeps lambda arguments apart."""
    if source.text == target.text:
        return x
    if source.bare == target.bare:
        value, fits = x, ""
    elif source.name == target.name and source.name in {"Array", "Map", "Tuple"}:
        if source.nullable or target.nullable:
            return None
        nested = _exact_nested(x, source, target, misfit, depth)
        return None if nested is None else f"CAST({nested}, {string(target.text)})"
    elif leaf := _conversion(_materialised(x, source), source, target):
        value, fits = leaf
    else:
        return None
    bad = f"NOT ifNull({fits}, 0)" if fits else ""
    if source.nullable and target.nullable:
        bad = bad and f"isNotNull({x}) AND {bad}"
    elif source.nullable:
        bad = bad or f"isNull({x})"
    if bad:
        value = f"if(throwIf({bad}, {misfit}) = 0, {value}, NULL)"
    return f"CAST({value}, {string(target.text)})"


def _materialised(x: str, source: ColumnType) -> str:
    """A function over ``LowCardinality`` is evaluated for dictionary entries that no row has."""
    return f"CAST({x}, {string(source.text)})" if source.low_cardinality else x


def _exact_nested(x: str, source: ColumnType, target: ColumnType, misfit: str, depth: int) -> str | None:
    """Element by element; the element of a row is the lambda's argument, so an error still stops the load."""
    if len(source.elements) != len(target.elements):
        return None
    parts: list[str] = []
    argument = f"_dpone_{depth}"
    for at, ((name, inner), (wanted_name, wanted)) in enumerate(
        zip(source.elements, target.elements, strict=True)
    ):
        if name != wanted_name and name is not None and wanted_name is not None:
            return None
        operand = f"tupleElement({x}, {at + 1})" if source.name == "Tuple" else argument
        part = _exact(operand, inner, wanted, misfit, depth + 1)
        if part is None:
            return None
        parts.append(part)
    match source.name:
        case "Tuple":
            return f"tuple({', '.join(parts)})"
        case "Array":
            return f"arrayMap({argument} -> {parts[0]}, {x})"
        case _:
            keys = f"arrayMap({argument} -> {parts[0]}, mapKeys({x}))"
            return f"mapFromArrays({keys}, arrayMap({argument} -> {parts[1]}, mapValues({x})))"


def _conversion(x: str, source: ColumnType, target: ColumnType) -> tuple[str, str] | None:
    """Value and condition of a conversion between different scalar types.

    The condition is about values that are not NULL; an empty one holds always. None where there is no exact
    conversion.
    """
    match source.name, target.name:
        case "String", _ if target.name in _READ_FROM_TEXT:
            return _from_text(x, target)
        case "FixedString", "String":
            # The text ends where the zero bytes at the end begin, and they may be part of the value.
            text = f"CAST({x}, 'Nullable(String)')"
            return text, f"length({text}) = {source.arguments[0]}"
        case _, "String" if source.name in _WRITTEN_AS_TEXT:
            return f"CAST({x}, 'Nullable(String)')", ""
        case _ if source.name in _NUMBERS and target.name in _NUMBERS:
            return _number(x, source, target)
        case _ if source.name in _DAYS | _TIMES and target.name in _DAYS | _TIMES:
            return _round_trip(_clipped(x, source, target), x, source, target)
        case _ if source.name in _ENUMS and target.name in _ENUMS:
            return _label(f"CAST({x}, 'Nullable(String)')", target)
        case "FixedString", "FixedString":
            return _from_text(f"CAST({x}, 'Nullable(String)')", target)
        case _ if source.name in _ADDRESSES and target.name in _ADDRESSES:
            return _round_trip(x, x, source, target)
        case _:
            return None


def _round_trip(operand: str, x: str, source: ColumnType, target: ColumnType) -> tuple[str, str]:
    value = f"accurateCastOrNull({operand}, {string(target.bare)})"
    return value, f"accurateCastOrNull({value}, {string(source.bare)}) = {x}"


def _number(x: str, source: ColumnType, target: ColumnType) -> tuple[str, str]:
    if target.name == "Bool":
        return f"CAST({x} = 1, 'Nullable(Bool)')", f"{x} = 0 OR {x} = 1"
    if source.name in _INTEGERS and target.name in _INTEGERS:
        # What doesn't fit wraps around; comparing integers of two widths compares their values.
        value = f"CAST({x}, 'Nullable({target.bare})')"
        return value, "" if _holds_all(target, source) else f"{value} = {x}"
    # A Decimal that is too large for an integer throws where a number of another type becomes NULL.
    operand = f"toInt256({x})" if source.name == "Decimal" and target.name in _INTEGERS else x
    value, fits = _round_trip(operand, x, source, target)
    if source.name in _FLOATS and target.name in _FLOATS:
        fits = f"{fits} OR isNaN({x})"
    if target.name == "Decimal":
        fits = f"({fits}) AND {_within_precision(value, target)}"
    return value, fits


def _holds_all(target: ColumnType, source: ColumnType) -> bool:
    """Tell whether each integer of one type is one of the other's."""
    (lowest, highest), (least, most) = (_range(kind.name) for kind in (source, target))
    return least <= lowest and highest <= most


def _range(name: str) -> tuple[int, int]:
    bits = int(name.rpartition("Int")[2])
    return (0, 2**bits - 1) if name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _within_precision(value: str, target: ColumnType) -> str:
    """A ``Decimal(10, 2)`` is stored in 64 bits and would take eighteen digits."""
    precision, scale = (int(argument) for argument in target.arguments)
    digits = "9" * precision
    largest = f"{digits[: precision - scale] or '0'}.{digits[:scale]}".removesuffix(".")
    quoted = string(target.bare)
    return (
        f"{value} <= CAST({string(largest)}, {quoted}) AND {value} >= CAST({string('-' + largest)}, {quoted})"
    )


def _clipped(x: str, source: ColumnType, target: ColumnType) -> str:
    """Nanoseconds end in 2262 and the server throws beyond; a clipped value fails the round trip instead."""
    if source.name != "DateTime64" or target.name != "DateTime64" or int(target.arguments[0]) < 8:
        return x
    scale = source.arguments[0]
    last = "2262-04-11 23:47:16" if target.arguments[0] == "9" else "2299-12-31 23:59:59"
    edges = (f"toDateTime64('{edge}', {scale}, 'UTC')" for edge in ("1900-01-01 00:00:00", last))
    return "least(greatest({}, {}), {})".format(x, *edges)


def _from_text(x: str, target: ColumnType) -> tuple[str, str]:
    """Value and condition for text; the forms are those of the module's table."""
    quoted = string(target.bare)
    value = f"accurateCastOrNull({x}, {quoted})"
    match target.name:
        case "FixedString":
            # The way back drops zero bytes at the end: they are exact only where nothing was filled up.
            value, fits = _round_trip(x, x, ColumnType("String"), target)
            return value, f"length({x}) = {target.arguments[0]} OR {fits}"
        case "Bool":
            return (
                f"CAST(lower({x}) IN ('true', 't', '1'), 'Nullable(Bool)')",
                f"lower({x}) IN ('true', 't', '1', 'false', 'f', '0')",
            )
        case "Float32" | "Float64" | "BFloat16":
            in_words = f"match({x}, '(?i)^[+-]?(inf|infinity|nan)$')"
            return value, f"isNotNull({value}) AND (isFinite({value}) OR {in_words})"
        case "Decimal":
            return _decimal_from_text(x, target)
        case "Date" | "Date32":
            return value, f"toString({value}) = {x}"
        case "DateTime" | "DateTime64":
            return _time_from_text(x, target)
        case "UUID":
            return value, f"toString({value}) = lower({x})"
        case "IPv4":
            return value, f"toString({value}) = {x}"
        case "IPv6":
            return value, f"isNotNull({value})"
        case "Enum8" | "Enum16":
            return _label(x, target)
        case name if name.endswith(("128", "256")):
            # Digits beyond the width wrap around, so the number is written again and compared.
            digits = f"replaceRegexpOne({x}, '^[+]?(-?)0*([0-9]+)$', '\\\\1\\\\2')"
            return value, f"toString({value}) = {digits}"
        case _:
            return value, f"isNotNull({value})"


def _decimal_from_text(x: str, target: ColumnType) -> tuple[str, str]:
    precision, scale = (int(argument) for argument in target.arguments)
    pattern = rf"^[+-]?0*[0-9]{{0,{precision - scale}}}(\.[0-9]{{0,{scale}}}0*)?$"
    value = f"accurateCastOrNull({x}, {string(target.bare)})"
    return value, f"match({x}, {string(pattern)}) AND match({x}, '[0-9]') AND isNotNull({value})"


def _time_from_text(x: str, target: ColumnType) -> tuple[str, str]:
    """Parse, then write the instant in the text's own zone and compare: the parser corrects bad calendars."""
    match target.name, target.arguments:
        case "DateTime64", (digits, *zone):
            scale, parser = int(digits), "parseDateTime64BestEffortOrNull"
        case _, zone:
            scale, parser = 0, "parseDateTimeBestEffortOrNull"
    arguments = [x, *([str(scale)] if target.name == "DateTime64" else []), *zone]
    value = f"{parser}({', '.join(arguments)})"
    fraction = rf"(\.[0-9]{{0,{scale}}}0*)?" if scale else r"(\.0+)?"
    form = rf"^\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d{fraction}(Z|[+-]\d\d(:?\d\d)?)?$"
    zone_text = f"extract(substring({x}, 20), '[Z+-].*$')"
    hours, minutes = f"substring({zone_text}, 2, 2)", f"substring({zone_text}, length({zone_text}) - 1)"
    seconds = f"toInt32OrZero({hours}) * 3600 + if(length({zone_text}) > 3, toInt32OrZero({minutes}) * 60, 0)"
    offset = f"if(startsWith({zone_text}, '-'), -1, 1) * ({seconds})"
    there = f"toString(addSeconds(toTimeZone({value}, 'UTC'), {offset}))"
    wall_clock = f"substring(if(empty({zone_text}), toString({value}), {there}), 1, 19)"
    return value, f"match({x}, {string(form)}) AND {wall_clock} = replaceOne(substring({x}, 1, 19), 'T', ' ')"


def _label(x: str, target: ColumnType) -> tuple[str, str]:
    """An unknown name throws without the column's name, so it is replaced before the cast."""
    known = f"{x} IN ({', '.join(string(label) for label in target.labels)})"
    label = f"if(isNull({x}) OR {known}, {x}, {string(target.labels[0])})"
    return f"CAST({label}, {string(f'Nullable({target.bare})')})", known


def misfit_column(error_text: str) -> str | None:
    """The column that the server's error is about, when the error is ours; else None."""
    found = _MISFIT_COLUMN.search(error_text)
    return unquote(found.group(1)) if found else None


def insert_from_select(database: str, table: str, columns: Sequence[LoadColumn], query: str) -> Load:
    """Load from a query that runs on the server.

    Columns are taken from the query by name, never by position. ``query`` may end in a semicolon.

    Raises :class:`InexactTypeError`, ``ValueError`` for two columns of one name, and
    :class:`SqlSyntaxError` for a text that is not one statement.
    """
    expressions = exact_select(columns)
    source = f"FROM (\n{_one_statement(query)}\n)"
    return Load(_insert(database, table, columns, expressions, source), SELECT_SETTINGS)


def insert_from_input(database: str, table: str, columns: Sequence[LoadColumn], format_name: str) -> Load:
    """Load from the body of the request, in one of the server's formats.

    Raises :class:`InexactTypeError`, and ``ValueError`` for two columns of one name.
    """
    expressions = exact_select(columns)
    structure = ", ".join(f"{identifier(column.name)} {column.wire_type}" for column in columns)
    source = f"FROM input({string(structure)})\nFORMAT {format_name}"
    return Load(_insert(database, table, columns, expressions, source), INPUT_SETTINGS)


def _insert(
    database: str, table: str, columns: Sequence[LoadColumn], expressions: Sequence[str], source: str
) -> str:
    names = ", ".join(identifier(column.name) for column in columns)
    return f"INSERT INTO {qualified(database, table)} ({names})\nSELECT {', '.join(expressions)}\n{source}"


def _one_statement(query: str) -> str:
    found = [token for token in tokens(query) if token.kind is not TokenKind.COMMENT]
    if found and found[-1].is_symbol(";"):
        query = query[: found[-1].start]
        found.pop()
    if not found or any(token.is_symbol(";") for token in found):
        raise SqlSyntaxError("the source must be exactly one statement")
    return query


def content_digest_expressions(columns: Sequence[str]) -> tuple[str, str, str]:
    """Row count and two sums of independent 64-bit hashes over the named columns, in their order.

    Together they tell one multiset of rows from another, whatever parts, merges or threads produced it.
    The columns are wrapped in ``tuple()`` because a bare NULL has no hash. List stored columns by name:
    ``*`` leaves out MATERIALIZED ones.

    Raises ``ValueError`` when there is no column.
    """
    if not columns:
        raise ValueError("a digest needs at least one column")
    row = tuple_of(columns)
    return "count()", f"sum(toUInt128(cityHash64({row})))", f"sum(toUInt128(xxh3({row})))"


def content_digest_select(database: str, table: str, columns: Sequence[str]) -> str:
    """One row ``rows, city, xxh3`` for a table on the server that runs it; fit for ``view(...)``."""
    expressions = ", ".join(content_digest_expressions(columns))
    total = identifier(unused_name(columns))
    named = ", ".join(
        f"tupleElement({total}, {at}) AS {name}" for at, name in enumerate(("rows", "city", "xxh3"), start=1)
    )
    return f"SELECT {named} FROM (SELECT tuple({expressions}) AS {total} FROM {qualified(database, table)})"
