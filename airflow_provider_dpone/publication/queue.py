"""The distributed-DDL queue, normalised: what its rows prove about the one statement we sent.

A row's success says only that the replica ran the text; which generation is live there, the catalogs
say. Whatever is not a well-formed outcome proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TypeAlias

from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.record import Dispatch, HostReceipt
from airflow_provider_dpone.publication.statement import Statement
from airflow_provider_dpone.publication.stop import Code, Stop


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One row of ``system.distributed_ddl_queue``, as read.

    NULL stays ``None``: an exception code of NULL means that the outcome is not known, never success.

    :ivar statement: the query text parsed by the adapter; ``None`` if it is not one of ours.
    """

    entry: str
    query: str
    statement: Statement | None
    token: str
    host: str | None
    port: int | None
    status: str | None
    exception_code: int | None
    exception_text: str | None


@unique
class HostStatus(StrEnum):
    """One replica's row, normalised."""

    IN_PROGRESS = "in progress"
    SUCCESS = "finished"
    FAILURE = "failed"
    UNREADABLE = "unreadable"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class HostRow:
    """A replica's normalised row. ``exception_code`` is set for SUCCESS (0) and FAILURE."""

    status: HostStatus
    exception_code: int | None = None


@dataclass(frozen=True, slots=True)
class NotSeen:
    """No row carries the token. That is no proof that the statement was never queued."""


@dataclass(frozen=True, slots=True)
class Running:
    """The exact entry, on the exact replicas, is still being worked on."""

    entry: str
    query_digest: str
    hosts: Mapping[str, HostRow]


@dataclass(frozen=True, slots=True)
class Terminal:
    """The exact entry has ended on every replica.

    :ivar sequence: order of the read; catalogs count only if read strictly later.
    """

    sequence: int
    entry: str
    query_digest: str
    receipt: tuple[HostReceipt, ...]

    @property
    def succeeded(self) -> bool:
        """Tell whether every replica reported success. It does not mean that the new data is live."""
        return all(host.exception_code == 0 for host in self.receipt)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The entry is seen, but a replica's row is no outcome (yet): wait and read again."""

    entry: str
    query_digest: str
    hosts: Mapping[str, HostRow]


@dataclass(frozen=True, slots=True)
class Contradictory:
    """The queue contradicts the operation: hold."""

    stop: Stop


QueueState: TypeAlias = NotSeen | Running | Terminal | Unreadable | Contradictory


def normalise(row: QueueRow) -> HostRow:
    """Return what one row says about its replica. The table is exhaustive: the rest is unreadable."""
    code, text = row.exception_code, row.exception_text
    match row.status:
        case "Inactive" | "Active":
            if code is None and text is None:
                return HostRow(HostStatus.IN_PROGRESS)
            return HostRow(HostStatus.MALFORMED)
        case "Finished":
            if code == 0 and text == "":
                return HostRow(HostStatus.SUCCESS, 0)
            if code is not None and code > 0 and text:
                return HostRow(HostStatus.FAILURE, code)
            return HostRow(HostStatus.MALFORMED)
        case _:
            return HostRow(HostStatus.UNREADABLE)


def read_queue(
    rows: Sequence[QueueRow],
    *,
    sequence: int,
    dispatch: Dispatch,
    statement: Statement,
    inventory: Inventory,
    gone: int = 0,
) -> QueueState:
    """Return what ``rows`` (all that carry the token) prove about ``dispatch``.

    :param sequence: order of this read.
    :param gone: how many replicas were retired since it was sent: so many other hosts may be named, and
        what they did or will do is no longer asked.
    :param statement: the statement that was dispatched; another one under our token is a contradiction.
    """
    rows = [row for row in rows if row.token == dispatch.token]
    if not rows:
        return NotSeen()
    entries = sorted({row.entry for row in rows})
    if len(entries) > 1:
        return Contradictory(
            Stop(
                Code.ENTRY_AMBIGUOUS,
                f"{len(entries)} queue entries carry this operation's token; exactly one was sent.",
                facts={"entries": entries},
            )
        )
    entry = entries[0]
    texts = sorted({row.query for row in rows})
    query_digest = sha256_hex(texts[0])
    changed = (
        len(texts) > 1
        or rows[0].statement != statement
        or (dispatch.entry is not None and dispatch.entry != entry)
        or (dispatch.query_digest is not None and dispatch.query_digest != query_digest)
    )
    if changed:
        return Contradictory(
            Stop(
                Code.ENTRY_CHANGED,
                f"Queue entry {entry} carries this operation's token, but not its statement.",
                facts={"entry": entry},
            )
        )

    hosts: dict[str, HostRow] = {}
    strangers: set[tuple[str, int]] = set()
    for row in rows:
        if row.host is None or row.port is None:
            return Unreadable(entry, query_digest, hosts)
        alias = inventory.alias_at(row.host, row.port)
        if alias is None:
            strangers.add((row.host, row.port))
            if len(strangers) <= gone:
                continue
            return Contradictory(
                Stop(
                    Code.ENTRY_CHANGED,
                    f"Queue entry {entry} names a host that is not among the admitted replicas.",
                    facts={"entry": entry},
                )
            )
        if alias in hosts:
            return Contradictory(
                Stop(
                    Code.ENTRY_MALFORMED,
                    f"Queue entry {entry} has two rows for replica {alias}.",
                    facts={"entry": entry},
                )
            )
        hosts[alias] = normalise(row)

    malformed = [alias for alias, host in hosts.items() if host.status is HostStatus.MALFORMED]
    if malformed:
        return Contradictory(
            Stop(
                Code.ENTRY_MALFORMED,
                f"Queue entry {entry} reports a status that contradicts itself on {', '.join(malformed)}.",
                facts={"entry": entry},
                replicas={alias: {"queue": host.status.value} for alias, host in hosts.items()},
            )
        )
    missing = [alias for alias in inventory.aliases if alias not in hosts]
    if missing or any(host.status is HostStatus.UNREADABLE for host in hosts.values()):
        return Unreadable(entry, query_digest, hosts)
    if any(host.status is HostStatus.IN_PROGRESS for host in hosts.values()):
        return Running(entry, query_digest, hosts)
    receipt = tuple(HostReceipt(alias, hosts[alias].exception_code or 0) for alias in inventory.aliases)
    return Terminal(sequence, entry, query_digest, receipt)
