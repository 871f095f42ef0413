"""Files that were compressed as a whole, known by the end of their names and decompressed on the way."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped


def _zstd(file: BinaryIO) -> Any:
    """Zstandard is in pyarrow; the standard library has it from Python 3.14 on."""
    try:
        import pyarrow  # type: ignore[import-untyped]
    except ImportError:
        raise Stopped(
            Stop(
                Code.BAD_INPUT,
                "Reading a .zst file needs pyarrow, which is not installed here.",
                next_action='Install it on every worker: pip install "airflow-provider-dpone[parquet]".',
            )
        ) from None
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    ".gz": gzip.open,
    ".zst": _zstd,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
"""What reads each kind. All of them raise an error at the end of a file that was cut short."""


def split(name: str) -> tuple[str, str | None]:
    """Return a name without the suffix of its compression, and that suffix."""
    for suffix in _READERS:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, None


@contextmanager
def unpacked(file: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Return the file's contents, decompressed as its name says.

    :raises Stopped: ``BAD_INPUT``: what is needed for that is not installed.
    """
    _, suffix = split(name)
    if suffix is None:
        yield file
        return
    with _READERS[suffix](file) as plain:
        yield cast("BinaryIO", plain)
