"""The evidence store: entries that are written once, and found again."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from airflow_provider_dpone.evidence.store import EvidenceStore
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.publication.trail import (
    CandidateIntent,
    CompareAndSwap,
    PermitUnused,
    PublishAsked,
)

OPERATION = "ab" * 32
WRITE_ID = "cd" * 16
INTENT = CandidateIntent("a1", "orders__dpone_a1", "u1", "mart")
UNUSED = PermitUnused(3, WRITE_ID)
SWAP = CompareAndSwap(WRITE_ID, Phase.DISPATCHING, 3, 7, "f" * 32)


@pytest.fixture(params=["file", "memory"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStoragePath:
    if request.param == "file":
        return ObjectStoragePath(tmp_path.as_uri())
    return mounted(monkeypatch, MemoryFileSystem())


def mounted(monkeypatch: pytest.MonkeyPatch, storage: MemoryFileSystem) -> ObjectStoragePath:
    """A folder in a storage of this test's own."""
    monkeypatch.setattr("airflow.sdk.io.store._STORE_CACHE", {})
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    attach("memory", fs=storage)
    return ObjectStoragePath("memory://evidence")


def store(root: ObjectStoragePath, writer: str = "ti-1", cluster: str = "analytics") -> EvidenceStore:
    return EvidenceStore(root, cluster=cluster, writer=writer, about={"dag_id": "d"})


def entries(root: ObjectStoragePath) -> dict[str, Any]:
    found = {}
    for path in root.fs.find(root.path):
        found[str(path)] = json.loads(root.fs.cat_file(path))
    return found


def test_an_intent_is_found_by_another_worker(root: ObjectStoragePath) -> None:
    store(root).write(OPERATION, INTENT)
    (found,) = store(root, "ti-2").intents(OPERATION)
    assert found.operation_id == OPERATION
    assert (found.attempt.attempt_id, found.attempt.name, found.attempt.uuid) == (
        "a1",
        "orders__dpone_a1",
        "u1",
    )


def test_intents_come_in_the_order_in_which_they_were_meant(root: ObjectStoragePath) -> None:
    times = (datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in itertools.count())
    for attempt in ("z", "a", "m"):
        EvidenceStore(root, cluster="analytics", writer="w", now=lambda: next(times)).write(
            OPERATION, replace(INTENT, attempt=attempt)
        )
    assert [intent.attempt.attempt_id for intent in store(root).intents(OPERATION)] == ["z", "a", "m"]


def test_an_entry_says_what_wrote_it_and_in_which_format(root: ObjectStoragePath) -> None:
    store(root).write(OPERATION, INTENT)
    ((name, entry),) = entries(root).items()
    assert entry["schema"] == "dpone.clickhouse.evidence-intent.v1"
    assert entry["operation_id"] == OPERATION
    assert entry["about"] == {"dag_id": "d"}
    assert entry["body"] == asdict(INTENT)
    for part in (OPERATION, "intent", "a1", "ti-1", "000001"):
        assert part in name


def test_no_two_writers_share_a_name_even_with_one_task_instance_id(root: ObjectStoragePath) -> None:
    for writer in (store(root), store(root), store(root, "ti-2")):
        for _ in range(2):
            writer.write(OPERATION, SWAP)
    assert len(entries(root)) == 6


def test_an_unused_permit_is_proven_by_epoch_and_write_together(root: ObjectStoragePath) -> None:
    evidence = store(root)
    assert not evidence.permit_unused(OPERATION, 3, WRITE_ID)
    evidence.write(OPERATION, UNUSED)
    assert store(root, "ti-2").permit_unused(OPERATION, 3, WRITE_ID)
    assert not evidence.permit_unused(OPERATION, 4, WRITE_ID)
    assert not evidence.permit_unused(OPERATION, 3, "other")
    assert not evidence.permit_unused("ef" * 32, 3, WRITE_ID)


def test_who_asked_for_a_proof_in_vain_is_known_to_its_next_try(root: ObjectStoragePath) -> None:
    store(root, "ti-1").write(OPERATION, PublishAsked("a"))
    assert store(root, "ti-2").asked(OPERATION, "a")
    assert not store(root, "ti-2").asked(OPERATION, "b")
    assert not store(root, "ti-2").asked("ef" * 32, "a")


def test_an_intent_to_write_is_no_proof_of_an_unused_permit(root: ObjectStoragePath) -> None:
    evidence = store(root)
    evidence.write(OPERATION, SWAP)
    assert not evidence.permit_unused(OPERATION, 3, WRITE_ID)


def test_clusters_are_kept_apart_and_known(root: ObjectStoragePath) -> None:
    assert not store(root).knows_cluster()
    store(root, cluster="other/one").write(OPERATION, INTENT)
    assert store(root, cluster="other/one").knows_cluster()
    assert not store(root).knows_cluster()
    assert store(root).intents(OPERATION) == []


def fixed(root: ObjectStoragePath) -> EvidenceStore:
    """A store whose next entry has a known name and known bytes."""
    found = EvidenceStore(root, cluster="analytics", writer="w", now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    found._writer = "w"
    return found


def test_the_same_bytes_under_the_same_name_are_success(root: ObjectStoragePath) -> None:
    fixed(root).write(OPERATION, INTENT)
    fixed(root).write(OPERATION, INTENT)
    assert len(entries(root)) == 1


def test_other_bytes_under_the_same_name_are_never_written_over(root: ObjectStoragePath) -> None:
    fixed(root).write(OPERATION, INTENT)
    before = entries(root)
    with pytest.raises(Stopped) as caught:
        fixed(root).write(OPERATION, replace(INTENT, uuid="u2"))
    assert caught.value.stop.code is Code.EVIDENCE_UNAVAILABLE
    assert entries(root) == before


def test_an_entry_that_was_cut_off_proves_nothing(tmp_path: Path) -> None:
    root = ObjectStoragePath(tmp_path.as_uri())
    store(root).write(OPERATION, UNUSED)
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(path.read_bytes()[:-5])
    assert not store(root).permit_unused(OPERATION, 3, WRITE_ID)


def test_an_entry_of_a_later_format_is_left_alone(tmp_path: Path) -> None:
    root = ObjectStoragePath(tmp_path.as_uri())
    store(root).write(OPERATION, INTENT)
    (path,) = tmp_path.rglob("*.json")
    path.write_text(path.read_text().replace("evidence-intent.v1", "evidence-intent.v2"))
    assert store(root).intents(OPERATION) == []


def test_a_folder_that_cannot_be_written_stops_with_our_own_text(tmp_path: Path) -> None:
    (tmp_path / "analytics").write_text("a file where a folder should be")
    root = ObjectStoragePath(tmp_path.as_uri())
    with pytest.raises(Stopped) as caught:
        store(root).write(OPERATION, INTENT)
    assert caught.value.stop.code is Code.EVIDENCE_UNAVAILABLE
    assert str(tmp_path) not in str(caught.value.stop)


class BrokenStorage(MemoryFileSystem):  # type: ignore[misc]
    """Loses the reply of a write, or the write itself."""

    protocol = "memory"
    cachable = False
    stores_first = True

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if "b" in mode and mode != "rb":
            if self.stores_first:
                return _LostOnClose(super().open(path, mode, **kwargs))
            raise ConnectionError("secret-host: no route")
        return super().open(path, mode, **kwargs)


class _LostOnClose:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> Any:
        return self

    def write(self, data: bytes) -> None:
        self.file.write(data)

    def __exit__(self, *_: object) -> None:
        self.file.close()
        raise ConnectionError("secret-host: connection reset")


def test_a_lost_reply_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    root = mounted(monkeypatch, BrokenStorage())
    store(root).write(OPERATION, INTENT)
    assert len(entries(root)) == 1


def test_a_lost_write_stops_without_the_storages_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokenStorage, "stores_first", False)
    with pytest.raises(Stopped) as caught:
        store(mounted(monkeypatch, BrokenStorage())).write(OPERATION, INTENT)
    assert "ConnectionError" in str(caught.value.stop)
    assert "secret-host" not in str(caught.value.stop)
