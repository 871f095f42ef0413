"""Small immutable objects in Airflow's object storage: created once, listed, read, and deleted when pruned.

The one place where a storage's own exceptions become stops of ours, without their text.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.storage import is_local

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


def create(folder: ObjectStoragePath, name: str, data: bytes, *, durable: bool = True) -> None:
    """Create an object, and have the storage keep it. The same bytes under the same name are success.

    :param durable: wait until a local disk has it. Without, it survives this process, not a crash of the machine.
    :raises Stopped: ``EVIDENCE_UNAVAILABLE``: it is not stored, or not known to be.
    """
    try:
        if is_local(folder):
            _create_local_file(folder.path, name, data, durable=durable)
        else:
            _create_object(folder / name, data)
    except FileExistsError:
        if read(folder / name) != data:
            raise unavailable("an entry of this name holds something else") from None
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
        if is_local(folder) or _found(folder / name) != data:
            raise unavailable(f"writing ended with {type(error).__name__}") from None


def names(folder: ObjectStoragePath, below: str = "") -> list[str]:
    """Return the names in a folder, sorted; none if there is no such folder.

    :param below: a folder in it. Making a path of it would take longer than listing it.
    :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
    """
    path = _path(folder, below)
    try:
        if is_local(folder):
            return sorted(os.listdir(path))  # noqa: PTH208 - it is text, and names are all that is wanted
        # A listing that was kept from before would hide what another worker has written since.
        folder.fs.invalidate_cache(path)
        found = folder.fs.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
        raise unavailable(f"listing ended with {type(error).__name__}") from None
    return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)


def read(path: ObjectStoragePath, below: str = "") -> bytes:
    """Return an object's bytes.

    :param below: its path in the folder ``path``; as for :func:`names`.
    :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
    """
    try:
        return cast("bytes", path.fs.cat_file(_path(path, below)))
    except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
        raise unavailable(f"reading ended with {type(error).__name__}") from None


def delete(path: ObjectStoragePath) -> None:
    """Delete an object. One that is gone already is deleted.

    :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
    """
    try:
        path.fs.rm_file(path.path)
    except FileNotFoundError:
        return
    except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
        raise unavailable(f"deleting ended with {type(error).__name__}") from None


def remove_folder(folder: ObjectStoragePath) -> None:
    """Remove an empty folder of a local disk. Object storages have none, and what is not empty stays."""
    if is_local(folder):
        try:
            os.rmdir(folder.path)  # noqa: PTH106 - ObjectStoragePath.rmdir would delete what is in it
        except OSError:
            return


def unavailable(why: str) -> Stopped:
    """Return the stop of a store that can't be used."""
    return Stopped(Stop(Code.EVIDENCE_UNAVAILABLE, f"The evidence store can't be used: {why}."))


def _path(folder: ObjectStoragePath, below: str) -> str:
    return f"{folder.path.rstrip('/')}/{below}" if below else str(folder.path)


def _found(path: ObjectStoragePath) -> bytes | None:
    try:
        return read(path)
    except Stopped:
        return None


def _create_local_file(folder: str, name: str, data: bytes, *, durable: bool) -> None:
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
            if durable:
                os.fsync(stream.fileno())
        if durable:
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
