"""Parquet, read in batches and sent as a stream of Arrow.

The file itself can't be streamed into ClickHouse: its directory is at the end, so the server would hold all
of it in memory. A batch of rows is decoded here, and goes to the server as Arrow, which carries every value
as it is.

How many rows fit a batch is not plain from a file's size. A column of equal texts holds the text once, in its
dictionary, and grows when it is decoded; so the dictionaries are looked at before the rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from airflow_provider_dpone.clickhouse.column_types import ColumnType, arrow_carrier, column_type
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.arrow_checks import unfit
from airflow_provider_dpone.sources.arrow_stream import ArrowStream, require_pyarrow
from airflow_provider_dpone.sources.base import RowsLoad, SourceColumn, StreamLoad
from airflow_provider_dpone.sources.csv_file import Open
from airflow_provider_dpone.sources.pump import Work, Write, pumped

if TYPE_CHECKING:
    from types import ModuleType

_BATCH_BYTES: Final = 8 * 1024 * 1024
_BATCH_ROWS: Final = 32_768
_MOST_BYTES: Final = 16 * 1024 * 1024
"""What a batch may come to if each of its rows has the longest text of each column's dictionary."""

_PREFIXED_ROWS: Final = 1024
"""Rows of a batch with a column that spells a text as an end to the one before: no size is told in advance."""

_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""The bytes that a value takes in memory at least."""

_INTEGER_BITS: Final = {f"{sign}Int{bits}": bits for sign in ("", "U") for bits in (8, 16, 32)}

_FIRST_NANOSECOND: Final = -9_223_372_036  # 1677-09-21 in seconds, and the first one that all fits
_END_NANOSECOND: Final = 9_223_372_036  # 2262-04-11


def rows(files: Sequence[Open]) -> RowsLoad:
    """Return the load of Parquet files, one after the other. Columns and types come from their footers.

    :raises Stopped: ``BAD_INPUT``: pyarrow is not installed, or the files' columns differ.
        ``TYPE_NOT_EXACT``: a column has a type that ClickHouse can't take exactly.
    """
    pyarrow = require_pyarrow("Reading Parquet")
    from pyarrow import parquet  # type: ignore[import-untyped]

    schemas = [_schema(parquet, opened) for opened in files]
    schema = schemas[0]
    for number, other in enumerate(schemas, start=1):
        if not other.equals(schema):
            raise Stopped(
                Stop(Code.BAD_INPUT, f"File {number} of {len(files)} has other columns than the first one.")
            )
    columns = tuple(_column(field.with_nullable(True)) for field in schema)
    return RowsLoad(columns, partial(_stream, pyarrow, files, schema))


def _stream(pyarrow: ModuleType, files: Sequence[Open], schema: Any, types: Sequence[str]) -> StreamLoad:
    from pyarrow import parquet

    sent = pyarrow.schema(
        [_sent(pyarrow, field, column_type(target)) for field, target in zip(schema, types, strict=True)]
    )
    columns = tuple(_column(field) for field in sent)
    given: int | None = None

    def produce(write: Write, _: Work) -> None:
        nonlocal given
        given = None
        count = 0
        stream = ArrowStream(pyarrow, sent)
        for opened in files:
            with opened() as file:
                for batch in _batches(parquet, file, schema):
                    values = [
                        _decoded(pyarrow, field, column)
                        for field, column in zip(sent, batch.columns, strict=True)
                    ]
                    for piece in _pieces(pyarrow.RecordBatch.from_arrays(values, schema=sent)):
                        write(stream.encoded(piece))
                        count += piece.num_rows
        write(stream.end())
        given = count

    return StreamLoad("ArrowStream", {}, columns, lambda: pumped(produce), lambda: given)


def _schema(parquet: ModuleType, opened: Open) -> Any:
    with opened() as file:
        return parquet.ParquetFile(file).schema_arrow


def _batches(parquet: ModuleType, file: BinaryIO, schema: Any) -> Iterator[Any]:
    """Yield the rows of a file, few enough at a time to be held in memory."""

    def reader(**options: Any) -> Any:
        # Column chunks are read through a small buffer: a row group may be larger than memory.
        return parquet.ParquetFile(file, buffer_size=1024 * 1024, pre_buffer=False, **options)

    plain = reader()
    if not plain.schema_arrow.equals(schema):
        raise Stopped(Stop(Code.BAD_INPUT, "The file's columns changed while it was staged."))
    leaves = [plain.schema.column(at) for at in range(len(plain.schema))]
    # Both readers tell what the plain one doesn't: the dictionaries, and times that nanoseconds can't hold. The footer
    # is read once: it may be large, and far away.
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    encoded = reader(read_dictionary=texts, metadata=plain.metadata)
    old_times = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    seconds = reader(coerce_int96_timestamp_unit="s", metadata=plain.metadata) if old_times else None
    for group in range(plain.metadata.num_row_groups):
        rows = _batch_rows(plain.metadata.row_group(group), leaves, encoded, group)
        if seconds is not None:
            for batch in seconds.iter_batches(rows, row_groups=[group], columns=old_times):
                for field, values in zip(batch.schema, batch.columns, strict=True):
                    _require_nanoseconds(field.name, values)
        # One thread decodes as fast as the server takes the rows in; several need a half more of the processor's time.
        yield from plain.iter_batches(rows, row_groups=[group], use_threads=False)


def _batch_rows(group: Any, leaves: Sequence[Any], encoded: Any, number: int) -> int:
    """Return how many rows of a row group are held in memory at a time."""
    most: int = _BATCH_ROWS
    size = 0
    texts: dict[str, int] = {}
    for at, leaf in enumerate(leaves):
        chunk = group.column(at)
        width = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[leaf.physical_type]
        size += max(chunk.total_uncompressed_size, chunk.num_values * width)
        if "DELTA_BYTE_ARRAY" in chunk.encodings:
            most = min(most, _PREFIXED_ROWS)
        elif leaf.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in chunk.encodings):
            texts[leaf.path] = chunk.total_uncompressed_size
    rows: int = max(group.num_rows, 1)
    most = min(most, _BATCH_BYTES * rows // max(size, 1))
    # No text is longer than the column that holds it: a small row group needs no closer look.
    if min(most, rows) * sum(texts.values()) > _MOST_BYTES:
        values = max(group.column(at).num_values for at, leaf in enumerate(leaves) if leaf.path in texts)
        longest = _longest_texts(encoded, number, texts)
        # Several may be in one row, where the column holds lists.
        most = min(most, _MOST_BYTES * rows // max(longest * values, 1))
    return max(most, 1)


def _longest_texts(encoded: Any, group: int, sizes: Mapping[str, int]) -> int:
    """Return the length of the longest text in each column's dictionary, added up.

    The first rows come with all of the dictionary. Where they don't, the size of the column stands in.
    """
    from pyarrow import compute

    batch = next(encoded.iter_batches(_PREFIXED_ROWS, row_groups=[group], columns=list(sizes)))
    found = 0
    for column, size in zip(batch.columns, sizes.values(), strict=True):
        values = column
        while hasattr(values, "flatten") and not hasattr(values, "dictionary"):
            values = values.flatten()
        texts = getattr(values, "dictionary", ())
        found += compute.max(compute.binary_length(texts)).as_py() if len(texts) else size
    return found


def _sent(pyarrow: ModuleType, field: Any, target: ColumnType) -> Any:
    """Return the name and the type with which a column is sent, so that the server has little to convert.

    Integers go in the width of the table's column, where that is smaller, and nothing has a place for NULL where the
    table's column has none. Texts go without their dictionary: pyarrow reads other texts where a file's dictionary
    holds one twice, and some servers keep only the first of several dictionaries.
    """
    kind = _without_dictionary(pyarrow, field.type)
    if pyarrow.types.is_integer(kind) and _INTEGER_BITS.get(target.name, kind.bit_width) < kind.bit_width:
        kind = getattr(pyarrow, target.name.lower())()
    return field.with_type(kind).with_nullable(target.nullable)


def _without_dictionary(pyarrow: ModuleType, kind: Any) -> Any:
    if pyarrow.types.is_dictionary(kind):
        return kind.value_type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        make = pyarrow.large_list if pyarrow.types.is_large_list(kind) else pyarrow.list_
        return make(kind.value_field.with_type(_without_dictionary(pyarrow, kind.value_type)))
    return kind


def _decoded(pyarrow: ModuleType, field: Any, values: Any) -> Any:
    if pyarrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type != field.type:
        try:
            values = values.cast(field.type)
        except pyarrow.ArrowInvalid:
            # Its text holds the value.
            raise _value_refused(field.name, f"an integer that {field.type} has not") from None
    if (found := unfit(values)) is not None:
        raise _value_refused(field.name, found)
    if values.null_count and not field.nullable:
        raise _value_refused(field.name, "NULL, which the table's column can't hold")
    return values


def _pieces(batch: Any) -> Iterator[Any]:
    """Cut a batch that came out large: its rows may differ much in size."""
    rows = -(-batch.num_rows // max(1, -(-batch.nbytes // _BATCH_BYTES)))
    for start in range(0, batch.num_rows, max(rows, 1)):
        yield batch.slice(start, rows)


def _column(field: Any) -> SourceColumn:
    carrier = arrow_carrier(str(field.type), nullable=field.nullable)
    if carrier is None:
        raise Stopped(
            Stop(
                Code.TYPE_NOT_EXACT,
                f"Column {field.name!r} has the Arrow type {field.type}, which can't be carried exactly.",
                next_action="Write the column with another type, for example as text.",
            )
        )
    return SourceColumn(field.name, carrier)


def _require_nanoseconds(name: str, seconds: Any) -> None:
    """Refuse what would wrap around: a time of the old kind is a day and a time of day, and read as nanoseconds."""
    from pyarrow import compute

    while hasattr(seconds, "flatten") and not hasattr(seconds.type, "unit"):
        seconds = seconds.flatten()
    found = compute.min_max(seconds.cast("int64"))
    lowest, highest = found["min"].as_py(), found["max"].as_py()
    if lowest is not None and (lowest < _FIRST_NANOSECOND or highest >= _END_NANOSECOND):
        what = "a timestamp outside of the years 1678 to 2261, and INT96 is read as nanoseconds"
        raise _value_refused(name, what)


def _value_refused(name: str, what: str) -> Stopped:
    return Stopped(Stop(Code.VALUE_REFUSED, f"Column {name!r} holds {what}.", facts={"column": name}))
