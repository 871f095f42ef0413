"""The artifact store: bytes under their own digest, or none; and never all of the wrong ones."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from airflow_provider_dpone.artifacts.store import ArtifactStore
from airflow_provider_dpone.publication.artifact import Artifact, ArtifactTooLarge, Sealed
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from tests.unit.test_evidence import mounted

TARGET = "ab" * 32
CHUNKS = (b"one, ", b"", b"two, ", b"three")
DATA = b"".join(CHUNKS)


def artifact_of(data: bytes, rows: int = 3) -> Artifact:
    return Artifact(hashlib.sha256(data).hexdigest(), len(data), rows)


ARTIFACT = artifact_of(DATA)
SEALED = Sealed(ARTIFACT.sha256, ARTIFACT.bytes)
OLDER = artifact_of(b"older rows")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_dpone.artifacts.store.CHUNK_BYTES", 4)


@pytest.fixture(params=["file", "memory"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStoragePath:
    if request.param == "file":
        return ObjectStoragePath(tmp_path.as_uri())
    return mounted(monkeypatch, MemoryFileSystem())


def store(root: ObjectStoragePath, target: str = TARGET, cluster: str = "analytics") -> ArtifactStore:
    return ArtifactStore(root, cluster, target)


def seal(root: ObjectStoragePath, data: bytes = DATA) -> Sealed:
    return store(root).seal([data], max_bytes=len(data))


def files(root: ObjectStoragePath) -> list[str]:
    """Every file there, with its path in the root."""
    return sorted(str(path).removeprefix(str(root.path)).lstrip("/") for path in root.fs.find(root.path))


def overwrite(root: ObjectStoragePath, data: bytes, artifact: Artifact = ARTIFACT) -> None:
    path = root / "analytics" / TARGET / artifact.sha256
    path.fs.pipe_file(path.path, data)


def load(root: ObjectStoragePath, artifact: Artifact = ARTIFACT) -> tuple[bytes, Stop | None]:
    """What a load would have sent, and what stopped it."""
    sent = b""
    try:
        for chunk in store(root).open(artifact):
            assert chunk
            sent += chunk
    except Stopped as stopped:
        return sent, stopped.stop
    return sent, None


def read(root: ObjectStoragePath, artifact: Artifact = ARTIFACT) -> tuple[bytes, Code | None]:
    """What a load would have sent, and the code of what stopped it."""
    sent, stop = load(root, artifact)
    return sent, stop.code if stop else None


def unavailable(stop: Stop, how: str) -> bool:
    """Whether a storage's error became a stop, with its kind and without its text."""
    return stop.code is Code.ARTIFACT_UNAVAILABLE and how in str(stop) and "secret-host" not in str(stop)


# --- what is sealed, any worker can open


def test_what_was_sealed_is_opened_by_another_worker(root: ObjectStoragePath) -> None:
    assert not store(root).has(ARTIFACT)
    assert store(root).seal(iter(CHUNKS), max_bytes=len(DATA)) == SEALED
    assert store(root).has(ARTIFACT)
    assert read(root) == (DATA, None)
    assert read(root) == (DATA, None)
    assert files(root) == [f"analytics/{TARGET}/{ARTIFACT.sha256}"]


@pytest.mark.parametrize("chunks", [(), (b"",)])
def test_no_rows_are_an_artifact_too(root: ObjectStoragePath, chunks: tuple[bytes, ...]) -> None:
    empty = artifact_of(b"", rows=0)
    assert store(root).seal(chunks, max_bytes=1) == (empty.sha256, 0)
    assert store(root).has(empty)
    assert read(root, empty) == (b"", None)
    overwrite(root, b"x", empty)
    assert read(root, empty) == (b"", Code.ARTIFACT_DIFFERS)


def test_targets_and_clusters_have_folders_of_their_own(root: ObjectStoragePath) -> None:
    seal(root)
    assert not store(root, target="cd" * 32).has(ARTIFACT)
    assert not store(root, cluster="other/one").has(ARTIFACT)
    store(root, cluster="other/one").seal([DATA], max_bytes=100)
    store(root, target="cd" * 32).sweep(None)
    store(root, cluster="other/one").sweep(None)
    assert files(root) == [f"analytics/{TARGET}/{ARTIFACT.sha256}"]


def test_sealed_files_are_not_for_everybody_to_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        seal(ObjectStoragePath(tmp_path.as_uri()))
    finally:
        os.umask(before)
    (file,) = tmp_path.rglob(ARTIFACT.sha256)
    assert file.stat().st_mode & 0o777 == 0o640


def test_more_than_the_bound_is_not_sealed(root: ObjectStoragePath) -> None:
    pulled = []

    def endless() -> Iterator[bytes]:
        while True:
            pulled.append(1)
            yield b"four"

    with pytest.raises(ArtifactTooLarge):
        store(root).seal(endless(), max_bytes=11)
    assert len(pulled) == 3
    assert files(root) == []


def test_bytes_that_are_there_already_are_success(root: ObjectStoragePath) -> None:
    assert seal(root) == seal(root) == SEALED
    assert read(root) == (DATA, None)
    assert len(files(root)) == 1


def test_sealing_again_repairs_what_was_damaged(root: ObjectStoragePath) -> None:
    seal(root)
    overwrite(root, bytes(len(DATA)))
    assert seal(root) == SEALED
    assert read(root) == (DATA, None)


# --- what is there is what was sealed, or the last chunk is kept back


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="emptied"),
        pytest.param(DATA[:-1], id="cut"),
        pytest.param(DATA + b"!", id="longer"),
        *(pytest.param(DATA[:at] + b"?" + DATA[at + 1 :], id=f"byte {at}") for at in range(len(DATA))),
    ],
)
def test_changed_bytes_are_never_all_given(root: ObjectStoragePath, damaged: bytes) -> None:
    seal(root)
    overwrite(root, damaged)
    sent, stopped = read(root)
    assert stopped is Code.ARTIFACT_DIFFERS
    assert sent == damaged[: len(sent)]
    # Of a damage that the size doesn't show, all but the last chunk of four bytes is given.
    assert len(sent) in (0, 12)
    assert len(sent) < len(damaged) or not damaged


def test_an_artifact_that_is_not_there_is_missing(root: ObjectStoragePath) -> None:
    assert read(root) == (b"", Code.ARTIFACT_MISSING)
    seal(root)
    assert read(root, OLDER) == (b"", Code.ARTIFACT_MISSING)
    assert not store(root).has(OLDER)


@pytest.mark.parametrize("damaged", [DATA[:6], DATA[:6] + b"?" * 9], ids=["cut", "changed"])
def test_what_changes_while_it_is_read_is_not_all_given(tmp_path: Path, damaged: bytes) -> None:
    seal(ObjectStoragePath(tmp_path.as_uri()))
    (file,) = tmp_path.rglob(ARTIFACT.sha256)
    chunks = store(ObjectStoragePath(tmp_path.as_uri())).open(artifact_of(DATA))
    sent = next(chunks)
    # More than what is buffered, so that the change is seen.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_dpone.artifacts.store.CHUNK_BYTES", 3)
        file.write_bytes(damaged)
        with suppress(Stopped):
            for chunk in chunks:
                sent += chunk
    # The system's buffer may hold the bytes that were there before: then they are what was sealed.
    assert sent == DATA or len(sent) < len(damaged)


def test_what_grows_while_it_is_read_gives_what_was_sealed(tmp_path: Path) -> None:
    seal(ObjectStoragePath(tmp_path.as_uri()))
    (file,) = tmp_path.rglob(ARTIFACT.sha256)
    chunks = store(ObjectStoragePath(tmp_path.as_uri())).open(ARTIFACT)
    sent = next(chunks)
    with file.open("ab") as more:
        more.write(b"more")
    assert sent + b"".join(chunks) == DATA


def test_what_is_removed_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    root = ObjectStoragePath(tmp_path.as_uri())
    seal(root)
    chunks = store(root).open(ARTIFACT)
    sent = next(chunks)
    assert store(root).sweep(None)
    assert sent + b"".join(chunks) == DATA
    assert read(root) == (b"", Code.ARTIFACT_MISSING)


def test_leaving_early_closes_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Faulty()
    root = mounted(monkeypatch, storage)
    seal(root)
    opened = len(storage.files)
    chunks = store(root).open(ARTIFACT)
    next(chunks)
    assert [file.closes for file in storage.files[opened:]] == [0]
    chunks.close()
    assert [file.closes for file in storage.files[opened:]] == [1]


def test_a_storage_that_fails_stops_the_reading_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Faulty()
    root = mounted(monkeypatch, storage)
    seal(root)
    calls = storage.calls
    assert read(root) == (DATA, None)
    for at in range(1, storage.calls - calls + 1):
        storage.fail(at, "before", OSError(5, "secret-host: input/output error"))
        sent, stop = load(root)
        if stop:
            assert unavailable(stop, "OSError (EIO)")
            assert len(sent) < len(DATA)
        else:
            # What fails when everything is proven, such as closing, changes nothing.
            assert sent == DATA


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.binary(max_size=9), max_size=6),
    at=st.integers(0, 60),
    instead=st.binary(max_size=6),
    cut=st.integers(0, 6),
)
def test_any_bytes_are_given_whole_and_any_damage_is_not(
    chunks: list[bytes], at: int, instead: bytes, cut: int
) -> None:
    data = b"".join(chunks)
    with tempfile.TemporaryDirectory() as folder:
        root = ObjectStoragePath(Path(folder).as_uri())
        sealed = store(root).seal(chunks, max_bytes=len(data))
        artifact = Artifact(*sealed, rows=0)
        assert artifact == artifact_of(data, rows=0)
        assert read(root, artifact) == (data, None)
        damaged = data[:at] + instead + data[at + cut :]
        overwrite(root, damaged, artifact)
        sent, stopped = read(root, artifact)
        if damaged == data:
            assert (sent, stopped) == (data, None)
        else:
            assert stopped is Code.ARTIFACT_DIFFERS
            assert len(sent) < len(damaged) or not damaged


# --- wherever sealing ends, there is a whole artifact or none


class SourceFailed(Exception):
    """What a source raises of its own."""


def test_what_the_source_raises_goes_through_and_leaves_nothing(root: ObjectStoragePath) -> None:
    def failing() -> Iterator[bytes]:
        yield b"one, "
        raise SourceFailed("row 7")

    with pytest.raises(SourceFailed, match="row 7"):
        store(root).seal(failing(), max_bytes=100)
    assert files(root) == []


class Killed(BaseException):
    """Ends a worker at once: nothing that it does afterwards has an effect."""


class Faulty(MemoryFileSystem):  # type: ignore[misc]
    """An object storage that counts its calls, and fails in or after one of them; or in all that follow, too."""

    protocol = "memory"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.files: list[FaultyFile] = []
        self._at: int | None = None
        self._when = "before"
        self._error: BaseException = Killed()

    def fail(self, at: int, when: str, error: BaseException) -> None:
        """Fail in the call of that number, counted from now."""
        self.calls, self._at, self._when, self._error = 0, at, when, error

    def heal(self) -> None:
        self._at = None

    def call(self, act: Callable[[], Any]) -> Any:
        self.calls += 1
        dead = isinstance(self._error, Killed) and self._at is not None and self.calls > self._at
        now = self.calls == self._at
        if dead or (now and self._when == "before"):
            raise self._error
        try:
            return act()
        finally:
            if now:
                raise self._error

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return self.call(lambda: FaultyFile(self, super(Faulty, self).open(path, mode, **kwargs)))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.call(lambda: super(Faulty, self).cp_file(path1, path2, **kwargs))

    def rm_file(self, path: str) -> None:
        self.call(lambda: super(Faulty, self).rm_file(path))

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.rm_file(path)

    def info(self, path: str, **kwargs: Any) -> Any:
        return self.call(lambda: super(Faulty, self).info(path, **kwargs))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        return self.call(lambda: super(Faulty, self).ls(path, detail, **kwargs))


class FaultyFile:
    def __init__(self, storage: Faulty, file: Any) -> None:
        self._storage = storage
        self._file = file
        self.closes = 0
        storage.files.append(self)

    def write(self, data: bytes) -> None:
        half = len(data) // 2
        self._storage.call(lambda: self._file.write(data[:half]))
        self._storage.call(lambda: self._file.write(data[half:]))

    def read(self, size: int) -> bytes:
        return bytes(self._storage.call(lambda: self._file.read(size)))

    def close(self) -> None:
        self.closes += 1
        self._storage.call(self._file.close)


def calls_of_a_seal(monkeypatch: pytest.MonkeyPatch) -> int:
    storage = Faulty()
    store(mounted(monkeypatch, storage)).seal(CHUNKS, max_bytes=100)
    return storage.calls


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_that_is_killed_leaves_a_whole_artifact_or_parts(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    named = set()
    for at in range(1, calls_of_a_seal(monkeypatch) + 1):
        storage = Faulty()
        root = mounted(monkeypatch, storage)
        storage.fail(at, when, Killed())
        with pytest.raises(Killed):
            store(root).seal(CHUNKS, max_bytes=100)
        storage.heal()
        named.add(store(root).has(ARTIFACT))
        if store(root).has(ARTIFACT):
            assert read(root) == (DATA, None)
        else:
            assert read(root) == (b"", Code.ARTIFACT_MISSING)
        assert [name for name in files(root) if not name.endswith((".part", ARTIFACT.sha256))] == []
        assert store(root).seal(CHUNKS, max_bytes=100) == SEALED
        assert store(root).sweep(ARTIFACT)
        assert files(root) == [f"analytics/{TARGET}/{ARTIFACT.sha256}"]
        assert read(root) == (DATA, None)
    assert named == {False, True}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_storage_that_fails_once_stops_the_sealing_or_has_sealed(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    sealed = set()
    for at in range(1, calls_of_a_seal(monkeypatch) + 1):
        storage = Faulty()
        root = mounted(monkeypatch, storage)
        storage.fail(at, when, ConnectionError("secret-host: connection reset"))
        stop = None
        try:
            assert store(root).seal(CHUNKS, max_bytes=100) == SEALED
        except Stopped as stopped:
            stop = stopped.stop
        storage.heal()
        sealed.add(stop is None)
        if stop:
            assert unavailable(stop, "ConnectionError")
        else:
            assert read(root) == (DATA, None)
        assert store(root).seal(CHUNKS, max_bytes=100) == SEALED
        assert read(root) == (DATA, None)
    assert sealed == {False, True}


def _dies(*_: Any, **__: Any) -> Any:
    os._exit(9)


def _dying_after(act: Callable[..., Any]) -> Callable[..., Any]:
    def act_and_die(*arguments: Any) -> None:
        act(*arguments)
        os._exit(9)

    return act_and_die


@pytest.mark.parametrize(
    ("name", "replacement", "sealed"),
    [
        pytest.param("fdopen", _dies, False, id="the part is created"),
        pytest.param("fsync", _dies, False, id="everything is written"),
        pytest.param("fsync", _dying_after(os.fsync), False, id="the disk has it"),
        pytest.param("replace", _dies, False, id="before it gets its name"),
        pytest.param("replace", _dying_after(os.replace), True, id="it has its name"),
        pytest.param(None, None, False, id="in the source"),
    ],
)
def test_a_process_that_dies_leaves_a_whole_file_or_a_part(
    tmp_path: Path, name: str | None, replacement: Any, sealed: bool
) -> None:
    root = ObjectStoragePath(tmp_path.as_uri())
    worker = store(root)

    def source() -> Iterator[bytes]:
        yield DATA[:7]
        if name is None:
            os._exit(9)
        yield DATA[7:]

    child = os.fork()
    if child == 0:
        try:
            if name is not None:
                setattr(os, name, replacement)
            worker.seal(source(), max_bytes=100)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert store(root).has(ARTIFACT) is sealed
    assert read(root) == ((DATA, None) if sealed else (b"", Code.ARTIFACT_MISSING))
    assert [file.endswith(".part") for file in files(root)] == [not sealed]
    assert seal(root) == SEALED
    assert store(root).sweep(ARTIFACT)
    assert files(root) == [f"analytics/{TARGET}/{ARTIFACT.sha256}"]


@pytest.mark.parametrize("name", ["makedirs", "fdopen", "fsync", "replace"])
def test_a_disk_that_fails_leaves_nothing_and_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = ObjectStoragePath(tmp_path.as_uri())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(Stopped) as caught:
            seal(root)
    assert caught.value.stop.code is Code.ARTIFACT_UNAVAILABLE
    assert "ended with OSError (ENOSPC)" in str(caught.value.stop)
    assert str(tmp_path) not in str(caught.value.stop)
    assert not store(root).has(ARTIFACT)


def test_a_folder_that_cannot_be_written_stops_with_our_own_text(tmp_path: Path) -> None:
    (tmp_path / "analytics").write_text("a file where a folder should be")
    root = ObjectStoragePath(tmp_path.as_uri())
    for act in (
        lambda: seal(root),
        lambda: store(root).has(ARTIFACT),
        lambda: list(store(root).open(ARTIFACT)),
    ):
        with pytest.raises(Stopped) as caught:
            act()
        assert caught.value.stop.code is Code.ARTIFACT_UNAVAILABLE
        assert str(tmp_path) not in str(caught.value.stop)
    assert not store(root).sweep(None)


class HalfCopying(MemoryFileSystem):  # type: ignore[misc]
    """Answers before it has copied anything but the size."""

    protocol = "memory"
    cachable = False

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.pipe_file(path2, bytes(self.size(path1)))


def test_what_a_storage_has_not_copied_yet_is_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    root = mounted(monkeypatch, HalfCopying())
    with pytest.raises(Stopped) as caught:
        seal(root)
    assert unavailable(caught.value.stop, "what was sealed does not read back")
    assert seal(mounted(monkeypatch, MemoryFileSystem())) == SEALED


def test_a_disk_has_the_file_and_its_name_before_it_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ObjectStoragePath(tmp_path.as_uri())
    synced: list[str] = []
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        synced.extend(file[-5:] for file in files(root))
        synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    seal(root)
    assert synced == [".part", "file", ARTIFACT.sha256[-5:], "folder"]


# --- several workers


class Remembering(MemoryFileSystem):  # type: ignore[misc]
    """Keeps what it once said until it is told to forget it, as clients of object storages do."""

    protocol = "memory"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, Any] = {}

    def _once(self, key: str, ask: Callable[[], Any]) -> Any:
        if key not in self._said:
            try:
                self._said[key] = ask()
            except FileNotFoundError as error:
                self._said[key] = error
        if isinstance(self._said[key], FileNotFoundError):
            raise self._said[key]
        return self._said[key]

    def info(self, path: str, **kwargs: Any) -> Any:
        return self._once(f"info {path}", lambda: super(Remembering, self).info(path, **kwargs))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        return self._once(f"ls {path} {detail}", lambda: super(Remembering, self).ls(path, detail, **kwargs))

    def invalidate_cache(self, path: str | None = None) -> None:
        self._said.clear()


def test_what_others_did_meanwhile_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    root = mounted(monkeypatch, Remembering())
    worker = store(root)
    assert not worker.has(ARTIFACT)
    assert worker.sweep(None)
    path = f"/evidence/analytics/{TARGET}/{ARTIFACT.sha256}"
    MemoryFileSystem().pipe_file(path, DATA)
    assert worker.has(ARTIFACT)
    assert b"".join(worker.open(ARTIFACT)) == DATA
    assert worker.sweep(None)
    assert path not in MemoryFileSystem.store


def test_two_workers_that_seal_the_same_bytes_at_once(tmp_path: Path) -> None:
    root = ObjectStoragePath(tmp_path.as_uri())
    together = threading.Barrier(2)
    found: list[Sealed] = []

    def source() -> Iterator[bytes]:
        for byte in DATA:
            together.wait(10)
            yield bytes([byte])

    def work() -> None:
        found.append(store(root).seal(source(), max_bytes=100))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [SEALED, SEALED]
    assert files(root) == [f"analytics/{TARGET}/{ARTIFACT.sha256}"]
    assert read(root) == (DATA, None)


def test_one_worker_seals_while_another_one_is_in_the_middle(root: ObjectStoragePath) -> None:
    def source() -> Iterator[bytes]:
        yield DATA[:7]
        assert seal(root) == SEALED
        yield DATA[7:]
        assert read(root) == (DATA, None)

    assert store(root).seal(source(), max_bytes=100) == SEALED
    assert read(root) == (DATA, None)
    assert len(files(root)) == 1


def test_a_part_that_is_swept_away_under_its_writer_is_not_sealed(root: ObjectStoragePath) -> None:
    def source() -> Iterator[bytes]:
        yield DATA[:7]
        assert store(root).sweep(OLDER)
        yield DATA[7:]

    with pytest.raises(Stopped) as caught:
        store(root).seal(source(), max_bytes=100)
    assert caught.value.stop.code is Code.ARTIFACT_UNAVAILABLE
    assert files(root) == []


def test_a_part_that_is_swept_away_is_not_missed_where_the_same_bytes_are_kept(
    root: ObjectStoragePath,
) -> None:
    def source() -> Iterator[bytes]:
        yield DATA[:7]
        seal(root)
        assert store(root).sweep(ARTIFACT)
        yield DATA[7:]

    assert store(root).seal(source(), max_bytes=100) == SEALED
    assert read(root) == (DATA, None)


# --- sweeping


def test_only_what_is_kept_is_left(root: ObjectStoragePath) -> None:
    assert store(root).sweep(None)
    seal(root, b"older rows")
    seal(root)
    part = root / "analytics" / TARGET / "12.part"
    part.fs.pipe_file(part.path, b"half")
    assert store(root).sweep(ARTIFACT)
    assert files(root) == [f"analytics/{TARGET}/{ARTIFACT.sha256}"]
    assert store(root).sweep(ARTIFACT)
    assert store(root).sweep(None)
    assert files(root) == []
    assert store(root).sweep(None)


def test_what_another_sweep_has_removed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Faulty()
    root = mounted(monkeypatch, storage)
    seal(root)
    storage.fail(2, "before", FileNotFoundError())
    assert store(root).sweep(None)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_cannot_be_removed_is_told_and_left_to_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    storage = Faulty()
    root = mounted(monkeypatch, storage)
    seal(root, b"older rows")
    seal(root)
    storage.fail(at, "before", PermissionError("secret-host: denied"))
    assert not store(root).sweep(None)
    storage.heal()
    assert len(files(root)) == (2 if at == 1 else 1)
    assert store(root).sweep(None)
    assert files(root) == []


# --- what stands in the record


def test_an_artifact_is_read_from_a_record_as_it_was_written() -> None:
    adapter = TypeAdapter(Artifact)
    written = adapter.dump_json(ARTIFACT)
    assert written == b'{"sha256":"%s","bytes":15,"rows":3,"format":"Native"}' % ARTIFACT.sha256.encode()
    assert adapter.validate_json(written) == ARTIFACT


@pytest.mark.parametrize(
    "changed",
    [
        {"sha256": "../" + "a" * 61},
        {"sha256": "A" * 64},
        {"sha256": "a" * 64 + "\n"},
        {"bytes": -1},
        {"bytes": "15"},
        {"rows": -1},
        {"format": "CSV"},
        {"path": "/here"},
    ],
    ids=str,
)
def test_an_artifact_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    valid = {"sha256": ARTIFACT.sha256, "bytes": 15, "rows": 3, "format": "Native"}
    assert TypeAdapter(Artifact).validate_json(json.dumps(valid)) == ARTIFACT
    with pytest.raises(ValidationError):
        TypeAdapter(Artifact).validate_json(json.dumps(valid | changed))
