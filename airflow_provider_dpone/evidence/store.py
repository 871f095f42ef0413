"""Evidence as immutable JSON objects, one per entry, in Airflow's object storage.

An entry is written before the state that rests on it moves on. A name belongs to one writer: it holds the
operation, what the entry fences, the record's version, the task instance, a number drawn by this process and a
sequence. So no entry is ever written over, not even by an execution that Airflow believes dead.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_dpone.evidence import layout, objects
from airflow_provider_dpone.evidence.layout import IndexName
from airflow_provider_dpone.publication.canonical import Json, canonical_json
from airflow_provider_dpone.publication.trail import (
    NOTED,
    Admission,
    Body,
    CandidateIntent,
    Entry,
    PermitUnused,
    PublishAsked,
    dump_entry,
    load_entry,
)
from airflow_provider_dpone.routes.ports import Attempt, Intent

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

BodyT = TypeVar("BodyT", CandidateIntent, PermitUnused, PublishAsked)


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
        self._folder = layout.cluster_folder(root, cluster)
        self._cluster = cluster
        self._writer = f"{layout.plain(writer)}.{secrets.token_hex(4)}"
        self._about = dict(about or {})
        self._now = now
        self._sequence = 0

    def write(self, operation_id: str, body: Body) -> None:
        """Append one entry. When this returns, it is stored.

        :param operation_id: empty for what is about the whole cluster; that is never pruned.
        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        self._sequence += 1
        at = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        entry = Entry(self._cluster, operation_id, at, self._writer, self._sequence, self._about, body)
        objects.create(
            self._operation(operation_id),
            layout.entry_name(entry),
            dump_entry(entry).encode(),
            # Nobody waits for the disk where nothing rests on the entry.
            durable=body.kind not in NOTED,
        )
        if isinstance(body, Admission):
            # Its first trace is in the list before anything of it exists.
            write_index(self._folder, operation_id, entry.at, body)

    def intents(self, operation_id: str) -> Sequence[Intent]:
        """Return the candidates that attempts of this operation meant to create, the oldest first.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        found = sorted(self._entries(operation_id, CandidateIntent), key=lambda pair: pair[0].at)
        return [Intent(operation_id, Attempt(b.attempt, b.table, b.uuid)) for _, b in found]

    def permit_unused(self, operation_id: str, epoch: int, write_id: str) -> bool:
        """Tell whether an entry proves that this write's permit was never used.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        wanted = PermitUnused(epoch, write_id)
        return any(body == wanted for _, body in self._entries(operation_id, PermitUnused))

    def asked(self, operation_id: str, asker: str) -> bool:
        """Tell whether this asker has found the operation unproven before.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        wanted = PublishAsked(asker)
        return any(body == wanted for _, body in self._entries(operation_id, PublishAsked))

    def knows_cluster(self) -> bool:
        """Tell whether there is, or ever was, an entry of any operation on this cluster.

        :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
        """
        return bool(objects.names(self._folder))

    def _operation(self, operation_id: str) -> ObjectStoragePath:
        return self._folder / (layout.plain(operation_id) or layout.AUDIT)

    def _entries(self, operation_id: str, kind: type[BodyT]) -> Iterator[tuple[Entry, BodyT]]:
        """The whole, readable entries of a kind.

        One that was cut off while it was written is skipped: its writer never went on from it. So is one of a later
        format, which proves nothing to this release.
        """
        folder = self._operation(operation_id)
        for name in objects.names(folder):
            if not (name.startswith(f"{kind.kind}.") and name.endswith(layout.SUFFIX)):
                continue
            entry = load_entry(objects.read(folder / name))
            if (
                isinstance(entry, Entry)
                and isinstance(entry.body, kind)
                and entry.operation_id == operation_id
            ):
                yield entry, entry.body


def write_index(folder: ObjectStoragePath, operation_id: str, at: str, admission: Admission) -> None:
    """Put an operation on a cluster's list. Doing it again changes nothing.

    :param folder: the cluster's.
    :param at: when its admission was written.
    :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
    """
    name, data = index_entry(operation_id, at, admission)
    objects.create(folder / layout.INDEX / name.day, str(name), data)


def index_entry(operation_id: str, at: str, admission: Admission) -> tuple[IndexName, bytes]:
    """Return name and bytes of an operation's entry in the list. They follow from its admission alone."""
    data: dict[str, Json] = {
        "schema": "dpone.clickhouse.evidence-index.v1",
        "operation_id": operation_id,
        "at": at,
        "database": admission.database,
        "table": admission.table,
        # Entries of earlier releases lack it; then the trail's admission tells.
        "owner": asdict(admission.owner),
    }
    return IndexName.of(at, admission.database, admission.table, operation_id), canonical_json(data).encode()
