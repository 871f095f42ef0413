"""Parquet, read in batches and sent as a stream of Arrow.

The file itself can't be streamed into ClickHouse: its directory is at the end, so the server would hold all
of it in memory. A batch of rows is decoded here, and goes to the server as Arrow, which carries every value
as it is.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dpone.clickhouse.column_types import arrow_carrier
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.arrow_checks import unfit
from airflow_provider_dpone.sources.base import SourceColumn, StreamLoad
from airflow_provider_dpone.sources.csv_file import Open
from airflow_provider_dpone.sources.pump import Work, Write, pumped

if TYPE_CHECKING:
    from types import ModuleType

_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_ROWS: Final = 65_536


def stream(files: Sequence[Open]) -> StreamLoad:
    """Return the load of Parquet files, one after the other. Columns and types come from their footers.

    :raises Stopped: ``BAD_INPUT``: pyarrow is not installed, or the files' columns differ.
        ``TYPE_NOT_EXACT``: a column has a type that ClickHouse can't take exactly.
    """
    pyarrow, parquet = _pyarrow()
    footers = [_footer(parquet, opened) for opened in files]
    schema = footers[0].schema
    for number, footer in enumerate(footers, start=1):
        if not footer.schema.equals(schema):
            raise Stopped(
                Stop(Code.BAD_INPUT, f"File {number} of {len(files)} has other columns than the first one.")
            )
    columns = tuple(_column(field) for field in schema)
    given: int | None = None

    def produce(write: Write, _: Work) -> None:
        nonlocal given
        given = None
        count = 0
        sink = io.BytesIO()
        with pyarrow.ipc.new_stream(sink, schema) as writer:
            for opened, footer in zip(files, footers, strict=True):
                with opened() as file:
                    # Column chunks are read through a small buffer: a row group may be larger than memory.
                    reader = parquet.ParquetFile(file, buffer_size=1024 * 1024, pre_buffer=False)
                    if not reader.schema_arrow.equals(schema):
                        raise Stopped(Stop(Code.BAD_INPUT, "The file's columns changed while it was staged."))
                    for batch in reader.iter_batches(batch_size=footer.batch_rows):
                        for field, values in zip(schema, batch.columns, strict=True):
                            _require_fit(field.name, values)
                        writer.write_batch(batch)
                        count += batch.num_rows
                        write(_taken(sink))
        write(_taken(sink))
        given = count

    return StreamLoad("ArrowStream", {}, columns, lambda: pumped(produce), lambda: given)


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file's footer says. ``batch_rows``: how many of its rows are held in memory at a time."""

    schema: Any
    batch_rows: int


def _footer(parquet: ModuleType, opened: Open) -> _Footer:
    with opened() as file:
        found = parquet.ParquetFile(file)
        rows, size = found.metadata.num_rows, _uncompressed(found.metadata)
        return _Footer(found.schema_arrow, max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1))))


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


def _require_fit(name: str, values: Any) -> None:
    if (found := unfit(values)) is not None:
        raise Stopped(Stop(Code.VALUE_REFUSED, f"Column {name!r} holds {found}.", facts={"column": name}))


def _taken(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
