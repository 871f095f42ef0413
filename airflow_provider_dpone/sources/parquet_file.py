"""Parquet, read in batches and sent as a stream of Arrow.

The file itself can't be streamed into ClickHouse: its directory is at the end, so the server would hold all
of it in memory. A batch of rows is decoded here, and goes to the server as Arrow, which carries every value
as it is.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dpone.clickhouse.column_types import arrow_carrier
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.base import SourceColumn, StreamLoad, pieces
from airflow_provider_dpone.sources.csv_file import Open

if TYPE_CHECKING:
    from types import ModuleType

_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_ROWS: Final = 65_536


def stream(opened: Open) -> StreamLoad:
    """Return the load of a Parquet file. Columns and types come from its footer.

    :raises Stopped: ``BAD_INPUT``: pyarrow is not installed. ``TYPE_NOT_EXACT``: a column has a type that
        ClickHouse can't take exactly.
    """
    pyarrow, parquet = _pyarrow()
    with opened() as file:
        footer = parquet.ParquetFile(file)
        schema, rows, size = footer.schema_arrow, footer.metadata.num_rows, _uncompressed(footer.metadata)
    columns = tuple(_column(field) for field in schema)
    batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)))
    given: int | None = None

    def chunks() -> Iterator[bytes]:
        nonlocal given
        given = None
        count = 0
        with opened() as file:
            # Column chunks are read through a small buffer: a row group may be larger than memory.
            reader = parquet.ParquetFile(file, buffer_size=1024 * 1024, pre_buffer=False)
            if not reader.schema_arrow.equals(schema):
                raise Stopped(Stop(Code.BAD_INPUT, "The file's columns changed while it was staged."))
            sink = io.BytesIO()
            with pyarrow.ipc.new_stream(sink, schema) as writer:
                for batch in reader.iter_batches(batch_size=batch_rows):
                    for field, values in zip(schema, batch.columns, strict=True):
                        _refuse_null_lists(field.name, values)
                    writer.write_batch(batch)
                    count += batch.num_rows
                    yield from _drained(sink)
            yield from _drained(sink)
        given = count

    return StreamLoad("ArrowStream", {}, columns, chunks, lambda: given)


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise Stopped(
            Stop(
                Code.BAD_INPUT,
                "Reading Parquet needs pyarrow, which is not installed here.",
                next_action='Install the extra on every worker: pip install "airflow-provider-dpone[parquet]".',
            )
        ) from None
    return pyarrow, parquet


def _uncompressed(metadata: Any) -> int:
    return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _column(field: Any) -> SourceColumn:
    carrier = arrow_carrier(str(field.type))
    if carrier is None:
        raise Stopped(
            Stop(
                Code.TYPE_NOT_EXACT,
                f"Column {field.name!r} has the Arrow type {field.type}, which can't be carried exactly.",
                next_action="Write the column with another type, for example as text.",
            )
        )
    return SourceColumn(field.name, carrier)


def _refuse_null_lists(name: str, values: Any) -> None:
    """ClickHouse has no NULL array and would store an empty one."""
    if str(values.type).startswith(("list<", "large_list<")):
        if values.null_count:
            raise Stopped(
                Stop(Code.VALUE_REFUSED, f"Column {name!r} holds a NULL list; an array can't be NULL.")
            )
        _refuse_null_lists(name, values.flatten())


def _drained(sink: io.BytesIO) -> Iterator[bytes]:
    yield from pieces(sink.getvalue())
    sink.seek(0)
    sink.truncate()
