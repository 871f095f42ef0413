"""Rows of Python values as Arrow, with the types that the table's columns ask for; exact or refused.

pyarrow is strict about ranges and lax about kinds: it makes 1 of 1.5, a day of a moment, and a list of
letters of a text. So the kinds of values are looked at first, a column of a batch at a time. Usually all are
of the kind that the column takes, and pyarrow converts the whole column; else each value is converted by a
rule that is exact, or refused with the column's name.

A datetime without a time zone is taken as UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

from airflow_provider_dpone.clickhouse.column_types import ColumnType, column_type
from airflow_provider_dpone.clickhouse.exact import TEXT_CARRIER, InexactTypeError, LoadColumn, exact_select
from airflow_provider_dpone.clickhouse.sql import SqlSyntaxError
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.arrow_checks import unfit
from airflow_provider_dpone.sources.arrow_stream import ArrowStream
from airflow_provider_dpone.sources.base import SourceColumn

if TYPE_CHECKING:
    from types import ModuleType

Convert = Callable[[Any], Any]

WAY_OUT: Final = "Cast the column in the query's SELECT, for example to text, or give the table another type."

_NONE: Final = type(None)
_MOST_DIGITS: Final = 100


class _Unfit(Exception):
    """A value that a column can't take; the text says of which kind it is, never what it is."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How values for one type of the table are carried.

    :ivar carrier: the type in which ClickHouse reads them.
    :ivar arrow: makes the Arrow type, given pyarrow.
    :ivar types: the types of values that pyarrow carries exactly, all others are converted one by one.
    :ivar convert: converts a value of another type exactly.
    """

    carrier: str
    arrow: Callable[[ModuleType], Any]
    types: frozenset[type]
    convert: Convert


def kind_of(target: ColumnType) -> Kind | None:
    """Return how values for this type are carried; ``None`` if there is no exact way."""
    match target.name:
        case "Int8" | "Int16" | "Int32" | "Int64" | "UInt8" | "UInt16" | "UInt32" | "UInt64" as name:
            return _kind(name, lambda pa: getattr(pa, name.lower())(), {int}, _integer)
        case "Int128" | "Int256" | "UInt128" | "UInt256":
            return _text(lambda value: str(_integer(value)))
        case "Float32" | "Float64" | "BFloat16":
            return _kind("Float64", lambda pa: pa.float64(), {float, int}, _float)
        case "Decimal":
            precision, scale = (int(argument) for argument in target.arguments)
            wide = "decimal128" if precision <= 38 else "decimal256"
            return _kind(
                target.bare, lambda pa: getattr(pa, wide)(precision, scale), {Decimal, int}, _refused
            )
        case "Bool":
            return _kind("Bool", lambda pa: pa.bool_(), {bool}, _bool)
        case "String" | "FixedString":
            return _kind("String", lambda pa: pa.binary(), {str, bytes, bytearray, memoryview}, _refused)
        case "Date" | "Date32":
            return _kind("Date32", lambda pa: pa.date32(), {date}, _day)
        case "DateTime" | "DateTime64":
            carrier = "DateTime64(6, 'UTC')"
            return _kind(carrier, lambda pa: pa.timestamp("us", "UTC"), {datetime}, _moment)
        case "UUID":
            return _text(_as_text(UUID))
        case "IPv4" | "IPv6":
            return _text(_as_text(IPv4Address, IPv6Address))
        case "Enum8" | "Enum16":
            return _text(_refused)
        case "Array":
            return _array(target)
        case _:
            return None


def _kind(
    carrier: str,
    arrow: Callable[[ModuleType], Any],
    types: set[type],
    convert: Convert,
) -> Kind:
    return Kind(f"Nullable({carrier})", arrow, frozenset(types), convert)


def _text(convert: Convert) -> Kind:
    return Kind(TEXT_CARRIER, lambda pa: pa.binary(), frozenset({str}), convert)


def _array(target: ColumnType) -> Kind | None:
    ((_, element),) = target.elements
    inner = kind_of(element)
    if inner is None:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return _refused(value)
        return _converted(value, inner)

    # No type of value is taken as it is: pyarrow would look no deeper than the list.
    return Kind(f"Array({inner.carrier})", lambda pa: pa.list_(inner.arrow(pa)), frozenset(), convert)


# --- One value at a time --------------------------------------------------------------------


def _refused(value: Any) -> NoReturn:
    raise _Unfit(f"a value of the Python type {type(value).__name__}")


def _integer(value: Any) -> int:
    match value:
        case bool() | int():
            return int(value)
        case float() if value.is_integer():
            return int(value)
        case Decimal() if value.is_finite() and value.adjusted() < _MOST_DIGITS and value == int(value):
            return int(value)
        case _:
            return _refused(value)


def _float(value: Any) -> float:
    match value:
        case Decimal() if Decimal(float(value)) == value or not value.is_finite():
            return float(value)
        case _:
            return _refused(value)


def _bool(value: Any) -> bool:
    match value:
        case int() | Decimal() if value in (0, 1):
            return bool(value)
        case _:
            return _refused(value)


def _day(value: Any) -> date:
    match value:
        case datetime(tzinfo=None) if value.time() == time():
            return value.date()
        case _:
            return _refused(value)


def _moment(value: Any) -> datetime:
    # The type itself: a datetime of another library may count nanoseconds.
    if type(value) is date:
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return _refused(value)


def _as_text(*types: type) -> Convert:
    def convert(value: Any) -> str:
        return str(value) if isinstance(value, types) else _refused(value)

    return convert


def _converted(values: Iterable[Any], kind: Kind) -> list[Any]:
    types = kind.types
    return [value if value is None or type(value) in types else kind.convert(value) for value in values]


# --- Columns and batches ----------------------------------------------------------------------


def source_columns(names: Sequence[str], types: Sequence[str]) -> tuple[SourceColumn, ...]:
    """Return the columns with the carriers in which they arrive for these types of the table.

    :raises Stopped: ``TYPE_NOT_EXACT``, with every column that has no exact carrier.
    """
    found: list[SourceColumn] = []
    refused: list[tuple[str, str]] = []
    for name, text in zip(names, types, strict=True):
        kind = _kind_for(text)
        if kind is None or not carries(kind.carrier, text):
            refused.append((name, text))
        else:
            found.append(SourceColumn(name, kind.carrier))
    if refused:
        pairs = "; ".join(f"{name!r} into {text}" for name, text in refused)
        raise Stopped(
            Stop(
                Code.TYPE_NOT_EXACT,
                f"A query on another database can't fill these columns exactly: {pairs}.",
                next_action=WAY_OUT,
                facts={"columns": [name for name, _ in refused]},
            )
        )
    return tuple(found)


def _kind_for(text: str) -> Kind | None:
    try:
        return kind_of(column_type(text))
    except SqlSyntaxError:
        return None


def carries(carrier: str, target: str) -> bool:
    """Tell whether ClickHouse converts this carrier to the target's type exactly."""
    try:
        exact_select([LoadColumn("x", carrier, target)])
    except InexactTypeError:
        return False
    return True


class ArrowRows:
    """Encodes batches of rows as one stream of Arrow.

    :ivar rows: rows encoded so far.
    """

    def __init__(self, pyarrow: ModuleType, names: Sequence[str], types: Sequence[str]) -> None:
        """Write the stream's header.

        :param types: those of the table's columns; :func:`source_columns` has accepted them.
        """
        kinds = [_kind_for(text) for text in types]
        self.rows = 0
        self._pyarrow = pyarrow
        self._columns = [
            (name, kind, kind.arrow(pyarrow)) for name, kind in zip(names, kinds, strict=True) if kind
        ]
        self._schema = pyarrow.schema([(name, arrow) for name, _, arrow in self._columns])
        self._stream = ArrowStream(pyarrow, self._schema)

    def encode(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Return the bytes of a batch.

        :raises Stopped: ``VALUE_REFUSED``: a value doesn't fit its column exactly.
        """
        columns = list(zip(*rows, strict=True)) or [()] * len(self._columns)
        if len(columns) != len(self._columns):
            raise Stopped(Stop(Code.SOURCE_FAILED, "The query gave a row of another width than its columns."))
        arrays = [
            self._array(name, kind, arrow, values)
            for (name, kind, arrow), values in zip(self._columns, columns, strict=True)
        ]
        self.rows += len(rows)
        return self._stream.encoded(self._pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema))

    def end(self) -> bytes:
        """Return the bytes that end the stream."""
        return self._stream.end()

    def _array(self, name: str, kind: Kind, arrow: Any, values: Sequence[Any]) -> Any:
        try:
            present = set(map(type, values))
            present.discard(_NONE)
            if not present <= kind.types:
                values = _converted(values, kind)
            array = self._pyarrow.array(values, arrow)
        except _Unfit as error:
            raise _misfit(name, str(error)) from None
        except (self._pyarrow.ArrowException, ValueError, TypeError, OverflowError):
            # Their texts hold the value.
            raise _misfit(name, "a value out of the range or precision of its type") from None
        if (found := unfit(array)) is not None:
            raise _misfit(name, found)
        return array


def _misfit(name: str, what: str) -> Stopped:
    return Stopped(
        Stop(
            Code.VALUE_REFUSED,
            f"Column {name!r} holds {what}, which can't be stored exactly.",
            next_action=WAY_OUT,
            facts={"column": name},
        )
    )
