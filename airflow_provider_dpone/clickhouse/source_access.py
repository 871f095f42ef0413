"""The source as staging asks it: what it is, how it is loaded, and its errors without their text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_provider_dpone.clickhouse.errors import stop_with
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.sources import RowsLoad, SelectLoad, Source, SourceColumn, StreamLoad
from airflow_provider_dpone.sources.pump import waited_for


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """A source, and the wish to end that nobody may outwait.

    :ivar cancel: set when the task was asked to stop.
    """

    source: Source
    cancel: threading.Event

    def columns(self, described: Callable[[str], tuple[SourceColumn, ...]]) -> tuple[SourceColumn, ...]:
        """Return the columns of a query on the server.

        :param described: what a server says of a query.
        """
        with source_errors():
            return self.source.columns(described)

    def stream(self, load: RowsLoad, types: Sequence[str]) -> StreamLoad:
        """Fix how rows travel into columns of these types."""
        with source_errors():
            return load.stream(types)

    def load(self) -> SelectLoad | StreamLoad | RowsLoad:
        """Ask the source how it is loaded. A database may let that wait for as long as somebody locks a table."""
        with source_errors():
            load = waited_for(self.source.load, lambda: not self.cancel.is_set())
        if load is None:
            raise stop_with(Code.STAGING_FAILED, "The task was asked to stop before its load began.")
        return load


@contextmanager
def source_errors() -> Iterator[None]:
    """Whatever a source raises becomes ``SOURCE_FAILED`` with the kind of error: its text may hold values."""
    try:
        yield
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001 - a source is anything, so its errors are too
        kind = type(error).__name__
        raise stop_with(
            Code.SOURCE_FAILED, f"The source failed with {kind}.", facts={"error": kind}
        ) from None
