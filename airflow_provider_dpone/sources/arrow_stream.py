"""Batches of Arrow as one stream of bytes, and pyarrow, which is needed for that and is not always there."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped

if TYPE_CHECKING:
    from types import ModuleType


def require_pyarrow(doing: str) -> ModuleType:
    """Return pyarrow.

    :raises Stopped: ``BAD_INPUT``: it is not installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]
    except ImportError:
        raise Stopped(
            Stop(
                Code.BAD_INPUT,
                f"{doing} needs pyarrow, which is not installed here.",
                next_action='Install it on every worker: pip install "airflow-provider-dpone[parquet]".',
            )
        ) from None
    found: ModuleType = pyarrow
    return found


class ArrowStream:
    """Gives the bytes of each batch as it comes; those of the first begin with the stream's header."""

    def __init__(self, pyarrow: ModuleType, schema: Any) -> None:
        self._sink = io.BytesIO()
        self._writer = pyarrow.ipc.new_stream(self._sink, schema)

    def encoded(self, batch: Any) -> bytes:
        """Return the bytes of a batch."""
        self._writer.write_batch(batch)
        return self._taken()

    def end(self) -> bytes:
        """Return the bytes that end the stream."""
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data
