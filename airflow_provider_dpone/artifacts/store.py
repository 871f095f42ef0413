"""The sealed artifacts of one target, in Airflow's object storage.

    <cluster>/<target key>/<SHA-256 of its bytes>    an artifact
    <cluster>/<target key>/<random>.part             what is not sealed yet, or never was

A name that is a digest appears at once and with all its bytes, and says which bytes they are. So there is nothing to
lock: whoever seals the same bytes puts the same artifact there, and any worker can prove what it reads.

The one place where this storage's own exceptions become stops of ours, without their text.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import errorcode
from typing import IO, TYPE_CHECKING, Final, cast
from urllib.parse import quote

from airflow_provider_dpone.publication.artifact import Artifact, ArtifactTooLarge, Sealed
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.storage import is_local

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

CHUNK_BYTES: Final = 1024 * 1024
"""How much is read at once. Twice as much is in memory, and what the storage's own file reads ahead."""

_PART: Final = ".part"


class ArtifactStore:
    """The artifacts of one target.

    :param root: the folder that all workers share.
    :param cluster: the cluster's name.
    :param target_key: the key of the target's slot; its artifacts have a folder of their own.
    """

    def __init__(self, root: ObjectStoragePath, cluster: str, target_key: str) -> None:
        self._folder = root / quote(cluster, safe="") / quote(target_key, safe="")

    def seal(self, chunks: Iterable[bytes], *, max_bytes: int) -> Sealed:
        """Store bytes under the name that follows from them. When this returns, any worker can open them.

        They are on the disk, or acknowledged by the storage. One chunk at a time is in memory. Interrupted anywhere,
        it leaves a part at most, which no name leads to and :meth:`sweep` removes.

        :param chunks: the bytes in order; empty chunks are passed over. What it raises goes through as it is.
        :raises ArtifactTooLarge: there are more than ``max_bytes``.
        :raises Stopped: ``ARTIFACT_UNAVAILABLE``: it is not stored, or not known to be.
        """
        part = self._folder / f"{secrets.token_hex(16)}{_PART}"
        hashed, size = hashlib.sha256(), 0
        with _storage("writing"):
            file = _create(part)
        try:
            for chunk in chunks:
                size += len(chunk)
                if size > max_bytes:
                    raise ArtifactTooLarge
                hashed.update(chunk)
                with _storage("writing"):
                    file.write(chunk)
            with _storage("writing"):
                _finish(file, part)
            sealed = Sealed(hashed.hexdigest(), size)
            self._name(part, sealed)
        finally:
            # Where it was sealed, there is no part any more. A storage may keep one that was not closed for later.
            with suppress(Exception):
                file.close()
            with suppress(Exception):
                part.fs.rm_file(part.path)
        return sealed

    def open(self, artifact: Artifact) -> Generator[bytes, None, None]:
        """Read an artifact in chunks. The last one is given only when all of them are proven to be what was sealed.

        So whoever passes them on as they come has never passed on all of the wrong bytes. Close it to leave early.

        :raises Stopped: ``ARTIFACT_MISSING``; ``ARTIFACT_DIFFERS``; ``ARTIFACT_UNAVAILABLE``.
        """
        path = self._path(artifact.sha256)
        size = _size(path)
        if size is None:
            raise _missing()
        if size != artifact.bytes:
            raise _differs(f"it has {size} bytes, and {artifact.bytes} were sealed")
        hashed, left, held = hashlib.sha256(), artifact.bytes, b""
        with _storage("reading"):
            file = _reader(path)
        try:
            while left:
                with _storage("reading"):
                    chunk = file.read(min(CHUNK_BYTES, left))
                if not chunk:
                    break
                hashed.update(chunk)
                left -= len(chunk)
                if held:
                    yield held
                held = chunk
        finally:
            with suppress(Exception):
                file.close()
        if hashed.hexdigest() != artifact.sha256:
            raise _differs("its bytes have another SHA-256")
        if held:
            yield held

    def has(self, artifact: Artifact) -> bool:
        """Tell whether an artifact is there with its size. Its bytes are not looked at.

        :raises Stopped: ``ARTIFACT_UNAVAILABLE``.
        """
        return _size(self._path(artifact.sha256)) == artifact.bytes

    def sweep(self, keep: Artifact | None) -> bool:
        """Remove everything else of this target: older artifacts, and parts.

        It is for whoever holds the target's slot, with the artifact of the record that it has just read. One that
        sweeps late, after its slot went to another operation, takes away what that one is sealing or has sealed:
        never rows of a table, and nothing that could be taken for something else. That operation then stops
        (``ARTIFACT_UNAVAILABLE``, ``ARTIFACT_MISSING``), and reads its source again.

        :return: whether nothing else is left. What is, the next sweep removes; no error comes of it.
        """
        names = self._names()
        doomed = [name for name in names or () if keep is None or name != keep.sha256]
        removed = [self._remove(name) for name in doomed]
        return names is not None and all(removed)

    def _path(self, name: str) -> ObjectStoragePath:
        return self._folder / name

    def _name(self, part: ObjectStoragePath, sealed: Sealed) -> None:
        """Give a part its name, in place of what may be there, and look whether that is what was written.

        :raises Stopped: ``ARTIFACT_UNAVAILABLE``.
        """
        failed: Stopped | None = None
        try:
            with _storage("naming"):
                _rename(part, self._path(sealed.sha256))
        except Stopped as stopped:
            # The reply may be lost alone; or the part was swept away, and another worker has sealed the same bytes.
            failed = stopped
        if not self._reads_back(sealed):
            raise failed or _unavailable("what was sealed does not read back")

    def _reads_back(self, sealed: Sealed) -> bool:
        """Tell whether what was sealed is there: by its size on a disk, and by its bytes elsewhere.

        A disk gives a file another name and that is all. Other storages copy, and some answer before they have.

        :raises Stopped: ``ARTIFACT_UNAVAILABLE``.
        """
        artifact = Artifact(*sealed, rows=0)
        if is_local(self._folder):
            return self.has(artifact)
        try:
            for _ in self.open(artifact):
                pass
        except Stopped as stopped:
            if stopped.stop.code is Code.ARTIFACT_UNAVAILABLE:
                raise
            return False
        return True

    def _names(self) -> list[str] | None:
        """Return the names in the folder, ``None`` if they can't be listed."""
        try:
            # A listing that was kept from before would hide what another worker has written since.
            self._folder.fs.invalidate_cache(self._folder.path)
            found = self._folder.fs.ls(self._folder.path, detail=False)
        except FileNotFoundError:
            return []
        except Exception:  # noqa: BLE001 - every storage has its own exceptions
            return None
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def _remove(self, name: str) -> bool:
        path = self._path(name)
        try:
            path.fs.rm_file(path.path)
        except FileNotFoundError:
            return True
        except Exception:  # noqa: BLE001 - every storage has its own exceptions
            return False
        return True


def _create(part: ObjectStoragePath) -> IO[bytes]:
    """Open a new file for writing. A local one is nobody's to read but the owner's and the group's: it is rows."""
    if not is_local(part):
        return cast("IO[bytes]", part.fs.open(part.path, "wb"))
    os.makedirs(part.parent.path, exist_ok=True)  # noqa: PTH103 - ObjectStoragePath.mkdir asks more of a storage
    return os.fdopen(os.open(part.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb")


def _finish(file: IO[bytes], part: ObjectStoragePath) -> None:
    """Close a written file, when the disk has it. An object comes into being by being closed."""
    if is_local(part):
        file.flush()
        os.fsync(file.fileno())
    file.close()


def _rename(part: ObjectStoragePath, path: ObjectStoragePath) -> None:
    """Move a file in its folder: at once on a disk, by a copy within the storage elsewhere."""
    if not is_local(part):
        part.fs.mv(part.path, path.path)
        return
    os.replace(part.path, path.path)  # noqa: PTH105 - these are no paths of pathlib
    directory = os.open(path.parent.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _reader(path: ObjectStoragePath) -> IO[bytes]:
    try:
        return cast("IO[bytes]", path.fs.open(path.path, "rb"))
    except FileNotFoundError:
        raise _missing() from None


def _size(path: ObjectStoragePath) -> int | None:
    """Return a file's size, ``None`` if there is none.

    :raises Stopped: ``ARTIFACT_UNAVAILABLE``.
    """
    with _storage("looking"):
        path.fs.invalidate_cache(path.parent.path)
        try:
            return int(path.fs.info(path.path)["size"])
        except FileNotFoundError:
            return None


@contextmanager
def _storage(doing: str) -> Iterator[None]:
    """Turn what a storage raises into a stop.

    :raises Stopped: ``ARTIFACT_UNAVAILABLE``.
    """
    try:
        yield
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001 - every storage has its own exceptions
        cause = errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
        kind = type(error).__name__
        raise _unavailable(f"{doing} ended with {kind}" + (f" ({cause})" if cause else "")) from None


def _unavailable(why: str) -> Stopped:
    return Stopped(Stop(Code.ARTIFACT_UNAVAILABLE, f"The artifact store can't be used: {why}."))


def _missing() -> Stopped:
    return Stopped(Stop(Code.ARTIFACT_MISSING, "The sealed artifact is not in the artifact store."))


def _differs(how: str) -> Stopped:
    return Stopped(Stop(Code.ARTIFACT_DIFFERS, f"The stored artifact is not what was sealed: {how}."))
