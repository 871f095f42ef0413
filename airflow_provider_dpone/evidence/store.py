"""Evidence as immutable JSON objects, one per entry, in Airflow's object storage.

An entry is written before the state that rests on it moves on. A name belongs to one writer: it holds the
operation, what the entry fences, the task instance, a number drawn by this process and a sequence. So no entry
is ever written over, not even by an execution that Airflow believes dead.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

from airflow_provider_dpone.publication.canonical import Json, canonical_json
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import Attempt, Intent

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

SCHEMA: Final = "dpone.evidence.v1"

_SUFFIX: Final = ".json"


class EvidenceStore:
    """The trail of one cluster's operations.

    :param root: the folder that all workers share.
    :param cluster: the cluster's name; its operations have a folder of their own.
    :param writer: who writes: the task instance's id, or what else names this execution.
    :param about: what every entry says about its writer, for people.
    """

    def __init__(
        self,
        root: ObjectStoragePath,
        *,
        cluster: str,
        writer: str,
        about: Mapping[str, Json] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = root / quote(cluster, safe="")
        self._cluster = cluster
        self._writer = f"{_plain(writer)}.{secrets.token_hex(4)}"
        self._about = dict(about or {})
        self._now = now
        self._sequence = 0

    def write(self, operation_id: str, kind: str, body: Mapping[str, Json]) -> None:
        """Append one entry. When this returns, it is stored.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        self._sequence += 1
        fence = body.get("attempt") or body.get("write_id") or ""
        name = f"{_plain(kind)}.{_plain(str(fence))}.{self._writer}.{self._sequence:06d}{_SUFFIX}"
        entry: dict[str, Json] = {
            "schema": SCHEMA,
            "cluster": self._cluster,
            "operation_id": operation_id,
            "kind": kind,
            "at": self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "writer": self._writer,
            "sequence": self._sequence,
            "about": self._about,
            "body": body,
        }
        folder = self._operation(operation_id)
        data = canonical_json(entry).encode()
        try:
            if folder.protocol in ("", "file", "local"):
                _create_local_file(folder.path, name, data)
            else:
                _create_object(folder / name, data)
        except FileExistsError:
            if self._bytes(folder / name) != data:
                raise _unavailable("an entry of this name holds something else") from None
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
            if self._found(folder / name) != data:
                raise _unavailable(f"writing ended with {type(error).__name__}") from None

    def intents(self, operation_id: str) -> Sequence[Intent]:
        """Return the candidates that attempts of this operation meant to create, the oldest first.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        found: list[tuple[str, Intent]] = []
        for entry in self._entries(operation_id, "intent"):
            match entry:
                case {
                    "at": str() as at,
                    "body": {"attempt": str() as attempt, "table": str() as table, "uuid": str() as uuid},
                }:
                    found.append((at, Intent(operation_id, Attempt(attempt, table, uuid))))
        return [intent for _, intent in sorted(found, key=lambda pair: pair[0])]

    def permit_unused(self, operation_id: str, epoch: int, write_id: str) -> bool:
        """Tell whether an entry proves that this write's permit was never used.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        return any(
            entry.get("body") == {"epoch": epoch, "write_id": write_id}
            for entry in self._entries(operation_id, "permit-unused")
        )

    def asked(self, operation_id: str, asker: str) -> bool:
        """Tell whether this asker has found the operation unproven before.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        return any(
            entry.get("body") == {"asker": asker} for entry in self._entries(operation_id, "publish-asked")
        )

    def knows_cluster(self) -> bool:
        """Tell whether there is an entry of any operation on this cluster.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        return any(True for _ in self._names(self._folder))

    def _operation(self, operation_id: str) -> ObjectStoragePath:
        return self._folder / _plain(operation_id)

    def _entries(self, operation_id: str, kind: str) -> Iterator[Mapping[str, Json]]:
        """The whole, readable entries of a kind.

        One that was cut off while it was written is skipped: its writer never went on from it.
        """
        folder = self._operation(operation_id)
        for name in self._names(folder):
            if not (name.startswith(f"{_plain(kind)}.") and name.endswith(_SUFFIX)):
                continue
            try:
                entry = json.loads(self._bytes(folder / name))
            except ValueError:
                continue
            match entry:
                case {"schema": "dpone.evidence.v1", "operation_id": found, "kind": stored} if (
                    found == operation_id and stored == kind
                ):
                    yield entry

    def _names(self, folder: ObjectStoragePath) -> Iterator[str]:
        try:
            # A listing that was kept from before would hide what another worker has written since.
            folder.fs.invalidate_cache(folder.path)
            found = folder.fs.ls(folder.path, detail=False)
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
            raise _unavailable(f"listing ended with {type(error).__name__}") from None
        yield from sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def _bytes(self, path: ObjectStoragePath) -> bytes:
        try:
            return cast("bytes", path.fs.cat_file(path.path))
        except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
            raise _unavailable(f"reading ended with {type(error).__name__}") from None

    def _found(self, path: ObjectStoragePath) -> bytes | None:
        try:
            return self._bytes(path)
        except Stopped:
            return None


def _create_local_file(folder: str, name: str, data: bytes) -> None:
    """Create a file that must not exist, and have the disk keep it.

    :raises FileExistsError: it exists.
    """
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - a folder descriptor is needed anyway
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.fsync(directory)
    finally:
        os.close(directory)


def _create_object(path: ObjectStoragePath, data: bytes) -> None:
    """Create an object that must not exist, with the storage's own condition where it has one.

    :raises FileExistsError: it exists.
    """
    storage = path.fs
    try:
        file = storage.open(path.path, "xb")
    except (NotImplementedError, ValueError):
        # A storage without conditional writes. The name is ours alone, so looking first is enough.
        if storage.exists(path.path):
            raise FileExistsError from None
        file = storage.open(path.path, "wb")
    with file:
        file.write(data)


def _plain(text: str) -> str:
    """``text`` with only what is safe in any storage's names."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


def _unavailable(why: str) -> Stopped:
    return Stopped(Stop(Code.EVIDENCE_UNAVAILABLE, f"The evidence store can't be used: {why}."))
