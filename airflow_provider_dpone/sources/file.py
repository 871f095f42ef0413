"""Files as source, wherever Airflow's object storage can reach them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO, ClassVar, Final, Literal, Self, get_args

from airflow_provider_dpone.publication.canonical import Json, digest
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources import compression, csv_file, json_file, parquet_file
from airflow_provider_dpone.sources.base import Describe, Render, RowsLoad, SourceColumn, StreamLoad
from airflow_provider_dpone.sources.pump import Work, Write, pumped
from airflow_provider_dpone.values import FrozenMapping

_PATTERN: Final = re.compile(r"[*?\[]")

FileFormat = Literal["Parquet", "CSV", "JSONEachRow"]
"""What a file may hold."""

_FORMATS: Final[Mapping[str, FileFormat]] = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".csv": "CSV",
    ".jsonl": "JSONEachRow",
    ".ndjson": "JSONEachRow",
    ".json": "JSONEachRow",
}


@dataclass(frozen=True, slots=True)
class FileSource:
    """The rows of one file, or of all files that match a pattern, streamed in a single request.

    :param path: A path or URL of Airflow's object storage: ``/data/x.csv``, ``s3://bucket/x.parquet``. With
        ``*``, ``?`` or ``[`` in it, it is a pattern (``s3://bucket/day=*/*.parquet``); the files must be of
        one format and have the same columns, and are read in the order of their names. A name that ends in
        ``.gz``, ``.zst``, ``.bz2`` or ``.xz`` is decompressed on the way (CSV and JSON lines).
    :param format: ``Parquet``, ``CSV`` or ``JSONEachRow`` (one object per line); from the name's suffix if
        left out.
    :param conn_id: The Airflow connection of the storage.
    :param options: For CSV: ``null`` (the unquoted field that means NULL, ``\\N`` by default), ``delimiter``,
        and ``header=False`` with ``columns=[...]`` for a file without a header row. Other formats have none.
    :raises ValueError: An argument is wrong; the message names it.
    """

    path: str
    format: FileFormat | None = None
    conn_id: str | None = None
    options: Mapping[str, Any] = FrozenMapping()

    __version__: ClassVar[int] = 1
    templated_fields: ClassVar[tuple[str, ...]] = ("path", "conn_id")

    def __post_init__(self) -> None:
        """Check what needs no file."""
        path: object = self.path
        if not isinstance(path, str) or not path.strip():
            raise ValueError("path must not be empty")
        if self.format is not None and self.format not in get_args(FileFormat):
            raise ValueError(f"format must be one of {', '.join(map(repr, get_args(FileFormat)))}")
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in dict(self.options or {}).items()
        }
        object.__setattr__(self, "options", FrozenMapping(sorted(options.items())))
        if self.format == "CSV" or self.options:
            csv_file.CsvOptions.from_mapping(self.options)
        if self.format not in (None, "CSV") and self.options:
            raise ValueError(f"{self.format} files have no options")

    def identity(self) -> Json:
        """Path and options as a digest: a path may hold credentials or values."""
        return {
            "kind": "file",
            "format": self.format,
            "conn_id": self.conn_id,
            "file": digest("dpone/file-source.v1", self.path, _as_json(self.options)),
        }

    def columns(self, describe: Describe) -> tuple[SourceColumn, ...]:
        """The columns by the file's header, footer or first object."""
        return self.load().columns

    def load(self) -> StreamLoad | RowsLoad:
        """A load that streams the files. Which ones they are is looked up now."""
        form = self._known_format()
        files = self._files()
        match form:
            case "CSV":
                return _pumped(csv_file.stream(files, csv_file.CsvOptions.from_mapping(self.options)))
            case "JSONEachRow":
                return _pumped(json_file.stream(files))
            case "Parquet":
                return parquet_file.rows(files)

    def _known_format(self) -> FileFormat:
        name, packing = compression.split(self.path)
        found = self.format or _FORMATS.get(PurePosixPath(name).suffix.lower())
        if found is None:
            raise _refused("The file's format can't be told from its name: give format=.")
        if found != "CSV" and self.options:
            raise _refused(f"{found} files have no options.")
        if found == "Parquet" and packing is not None:
            raise _refused("A Parquet file is not compressed as a whole: give the .parquet file itself.")
        return found

    def _files(self) -> list[csv_file.Open]:
        """Return what opens each of the files, decompressed."""
        # Airflow is imported late: reading a DAG file must stay cheap.
        from airflow.sdk import ObjectStoragePath

        try:
            path = ObjectStoragePath(self.path, conn_id=self.conn_id)
            storage, name = path.fs, path.path
        except (ImportError, ValueError):
            raise _refused(
                "Airflow has no file system for this path: install the provider of its storage, and check "
                "path and conn_id."
            ) from None
        if not _PATTERN.search(self.path):
            return [partial(_opened, storage, name)]
        found = sorted(storage.glob(name))
        if not found:
            raise _refused("No file matches the pattern of path.")
        return [partial(_opened, storage, one) for one in found]

    def rendered(self, render: Render) -> Self:
        """A copy with the path and the connection's id rendered."""
        conn_id = None if self.conn_id is None else render(self.conn_id)
        return type(self)(render(self.path), self.format, conn_id, self.options)

    def serialize(self) -> dict[str, Any]:
        """Plain data for XCom and for expanded tasks."""
        return {
            "path": self.path,
            "format": self.format,
            "conn_id": self.conn_id,
            "options": _as_json(self.options),
        }

    @classmethod
    def deserialize(cls, data: Mapping[str, Any], version: int) -> Self:
        """The value that :meth:`serialize` wrote. Raises ``ValueError`` for a version newer than this one."""
        if version > cls.__version__:
            raise ValueError("this FileSource was written by a newer release: upgrade the provider")
        return cls(**data)


def _pumped(load: StreamLoad) -> StreamLoad:
    """Let the storage be read in a thread: it may be slow to answer, and decompressing overlaps sending."""

    def produce(write: Write, _: Work) -> None:
        for chunk in load.chunks():
            write(chunk)

    return replace(load, chunks=lambda: pumped(produce))


@contextmanager
def _opened(storage: Any, name: str) -> Iterator[BinaryIO]:
    with storage.open(name, "rb") as file, compression.unpacked(file, name) as plain:
        yield plain


def _as_json(options: Mapping[str, Any]) -> dict[str, Json]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _refused(message: str) -> Stopped:
    return Stopped(Stop(Code.BAD_INPUT, message))
