"""Files that were compressed as a whole, known by the end of their names and decompressed on the way."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.arrow_stream import require_pyarrow
from airflow_provider_dpone.sources.base import CHUNK_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class _Packed:
    """The packed file: even nothing is some bytes when it is packed, so a file without any was cut."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._empty = True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if data:
            self._empty = False
        elif self._empty:
            raise Stopped(Stop(Code.SOURCE_FAILED, "A compressed file holds no byte: it was cut short."))
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Whoever opened the file closes it."""


class _Parts(io.RawIOBase):
    """Reads bz2 and xz, which may be several packed parts in a row.

    Python's own readers take what is no further part for padding, and drop the rest of the file in silence.
    """

    def __init__(self, file: _Packed, decompressor: Callable[[], Any], *, padded: bool) -> None:
        self._file = file
        self._new = decompressor
        self._now = decompressor()
        self._padded = padded

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        while True:
            data = b""
            if self._now.eof:
                data = self._next_part()
                if not data:
                    return 0
                self._now = self._new()
            elif self._now.needs_input:
                data = self._file.read(CHUNK_BYTES)
                if not data:
                    raise EOFError("the file ends before its packed contents do")
            found = self._now.decompress(data, len(target))
            if found:
                target[: len(found)] = found
                return len(found)

    def _next_part(self) -> bytes:
        """Return the first bytes of the next part, or nothing at the end of the file."""
        data = self._now.unused_data or self._file.read(CHUNK_BYTES)
        padding = 0
        while self._padded and data and not data[0]:
            rest = data.lstrip(b"\0")
            padding += len(data) - len(rest)
            data = rest or self._file.read(CHUNK_BYTES)
        if padding % 4:
            raise EOFError("the padding behind a packed part has no length that xz allows")
        return data


def _gzip(file: _Packed) -> Any:
    return gzip.open(cast("BinaryIO", file))


def _bz2(file: _Packed) -> Any:
    return io.BufferedReader(_Parts(file, bz2.BZ2Decompressor, padded=False), CHUNK_BYTES)


def _xz(file: _Packed) -> Any:
    return io.BufferedReader(_Parts(file, lzma.LZMADecompressor, padded=True), CHUNK_BYTES)


def _zstd(file: _Packed) -> Any:
    """Zstandard is in pyarrow; the standard library has it from Python 3.14 on."""
    pyarrow = require_pyarrow("Reading a .zst file")
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    ".gz": _gzip,
    ".zst": _zstd,
    ".bz2": _bz2,
    ".xz": _xz,
}
"""What reads each kind. All of them raise an error for a file that was cut short, or has something else behind."""


def split(name: str) -> tuple[str, str | None]:
    """Return a name without the suffix of its compression, and that suffix."""
    for suffix in _READERS:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, None


@contextmanager
def unpacked(file: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Return the file's contents, decompressed as its name says.

    :raises Stopped: ``BAD_INPUT``: what is needed for that is not installed. While it is read,
        ``SOURCE_FAILED``: the file is empty.
    """
    _, suffix = split(name)
    if suffix is None:
        yield file
        return
    with _READERS[suffix](_Packed(file)) as plain:
        yield cast("BinaryIO", plain)
