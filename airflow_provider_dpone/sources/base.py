"""What a source of rows is: a frozen value that says what it is, which columns it has, and how to load it.

There are two ways to load. A query on the same ClickHouse runs there and no row leaves the server. Anything
else is a stream of bytes in one of ClickHouse's formats, sent as the body of one request; a query on another
database becomes such a stream once the types of the table's columns are known. Columns are always matched by
name, so a source names each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

from airflow_provider_dpone.clickhouse.exact import Encoding
from airflow_provider_dpone.publication.canonical import Json


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column that a source delivers.

    :ivar type: ClickHouse's name of the type in which it arrives; ``None`` for a text format, where the
        table's type decides how the text is read.
    :ivar encoding: how a value of that type is written in the stream.
    """

    name: str
    type: str | None = None
    encoding: Encoding = Encoding.PLAIN


Describe: TypeAlias = Callable[[str], Sequence[SourceColumn]]
"""Ask ClickHouse for the columns of a query, without running it."""

Render: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class SelectLoad:
    """A query that the server runs into the candidate by itself."""

    sql: str


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """Rows as one body of encoded, uncompressed bytes.

    :ivar format: ClickHouse's name of the encoding.
    :ivar settings: settings of ClickHouse that the encoding relies on.
    :ivar columns: what the body holds, in the order in which it holds them.
    :ivar chunks: starts the stream. An exception out of it means that the source failed; the bytes before
        it are no complete source. A chunk is at most :data:`CHUNK_BYTES` long. An empty one says that the
        source has nothing yet, so that whoever waits can stop waiting. The iterator is closed when no more
        of it is wanted.
    :ivar rows: how many rows the source says that it gave; to be asked after the last chunk. ``None``: it
        can't tell.
    :ivar note: how the rows travel, where there is a choice; for the log.
    :ivar names_from_data: the columns' names stand in front of the rows with nothing to tell them from one, so
        that they may be values.
    """

    format: str
    settings: Mapping[str, str]
    columns: tuple[SourceColumn, ...]
    chunks: Callable[[], Iterator[bytes]]
    rows: Callable[[], int | None]
    note: str = ""
    names_from_data: bool = False


@dataclass(frozen=True, slots=True)
class RowsLoad:
    """Rows whose columns are known, as of a query on another database; the table's types decide how they travel.

    :ivar columns: in the source's order. Their types are what a new table might have.
    :ivar stream: returns the stream, given the types of the table's columns in the same order.

        :raises Stopped: ``TYPE_NOT_EXACT``: a column can't be carried into that type exactly.
    """

    columns: tuple[SourceColumn, ...]
    stream: Callable[[Sequence[str]], StreamLoad]


CHUNK_BYTES = 512 * 1024
"""Size of the pieces of a stream, in bytes: large enough for the socket, small enough to stop at once."""


@runtime_checkable
class Source(Protocol):
    """Where the rows come from. Values are frozen; nothing is opened before :meth:`columns` is called."""

    def identity(self) -> Json:
        """Return what makes this source this one. It enters the plan's digest.

        Whatever could be a secret or a row's value enters it as a digest only.
        """

    def columns(self, describe: Describe) -> tuple[SourceColumn, ...]:
        """Return the columns. Reads no row (of a file: its header, its footer or its first object).

        :raises Stopped: the source can't be used as it is.
        """

    def load(self) -> SelectLoad | StreamLoad | RowsLoad:
        """Return how to load it. Reads no row.

        :raises Stopped: the source can't be used as it is.
        """

    def rendered(self, render: Render) -> Self:
        """Return a copy in which every templated string was rendered."""

    def serialize(self) -> dict[str, Any]:
        """Return plain data for XCom and for expanded tasks."""

    @classmethod
    def deserialize(cls, data: Mapping[str, Any], version: int) -> Self:
        """Return the value that :meth:`serialize` wrote.

        :raises ValueError: the version is newer than this class's.
        """


def driver(connection: Any) -> str:
    """Return the name of the package from which a connection comes."""
    return type(connection).__module__.partition(".")[0]


def pieces(data: bytes | memoryview, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Cut ``data`` into chunks of at most ``size`` bytes."""
    view = memoryview(data)
    for start in range(0, len(view), size):
        yield bytes(view[start : start + size])
