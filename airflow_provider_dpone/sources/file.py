"""A file as source, wherever Airflow's object storage can reach it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, ClassVar, Final, Literal, Self, cast, get_args

from airflow_provider_dpone.publication.canonical import Json, digest
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources import csv_file, json_file, parquet_file
from airflow_provider_dpone.sources.base import Describe, Render, SourceColumn, StreamLoad
from airflow_provider_dpone.values import FrozenMapping

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
    """The rows of one file, streamed in a single request.

    :param path: A path or URL of Airflow's object storage: ``/data/x.csv``, ``s3://bucket/x.parquet``. A name
        that ends in ``.gz`` is decompressed on the way (CSV and JSON lines).
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

    def load(self) -> StreamLoad:
        """A load that streams the file."""
        match self._known_format():
            case "CSV":
                return csv_file.stream(self._opened, csv_file.CsvOptions.from_mapping(self.options))
            case "JSONEachRow":
                return json_file.stream(self._opened)
            case "Parquet":
                return parquet_file.stream(self._opened)

    def _known_format(self) -> FileFormat:
        name = PurePosixPath(self.path.removesuffix(".gz"))
        found = self.format or _FORMATS.get(name.suffix.lower())
        if found is None:
            raise _refused("The file's format can't be told from its name: give format=.")
        if found != "CSV" and self.options:
            raise _refused(f"{found} files have no options.")
        if found == "Parquet" and self.path.endswith(".gz"):
            raise _refused("A Parquet file is not compressed as a whole: give the .parquet file itself.")
        return found

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        # Airflow is imported late: reading a DAG file must stay cheap.
        from airflow.sdk import ObjectStoragePath

        try:
            path = ObjectStoragePath(self.path, conn_id=self.conn_id)
            file: BinaryIO = path.open("rb")  # type: ignore[no-untyped-call]
        except (ImportError, ValueError):
            raise _refused(
                "Airflow has no file system for this path: install the provider of its storage, and check "
                "path and conn_id."
            ) from None
        with file:
            if self.path.endswith(".gz"):
                with gzip.open(file) as unpacked:
                    yield cast("BinaryIO", unpacked)
            else:
                yield file

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


def _as_json(options: Mapping[str, Any]) -> dict[str, Json]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _refused(message: str) -> Stopped:
    return Stopped(Stop(Code.BAD_INPUT, message))
