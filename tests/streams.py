"""The stream of a source, for tests that only look at its bytes."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_dpone.sources import RowsLoad, Source, StreamLoad


def streamed(source: Source, types: Sequence[str] | None = None) -> StreamLoad:
    """Return the load of a source that streams.

    :param types: those of the table's columns; ``None``: the very types that the source has.
    """
    match source.load():
        case StreamLoad() as load:
            return load
        case RowsLoad() as rows:
            return rows.stream(types or [str(column.type) for column in rows.columns])
        case other:
            raise AssertionError(f"no stream: {other}")
