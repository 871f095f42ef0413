"""What stands before and behind one entry of the distributed-DDL queue, for people who ask why nothing moves."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.words import when

FORGOTTEN_AFTER = 1_000
"""After how many newer entries the queue forgets an entry, as servers are configured by default."""

MANY_NEWER = 500
"""From how many newer entries on people are warned."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An entry that a host has not finished, for people who ask why nothing moves.

    :ivar since: when the entry was queued, seconds since the epoch on Keeper's clock.
    :ivar ours: the entry carries a token of this provider.
    :ivar initiator_host: which server queued it, by the name that it has for itself; never shown.
    """

    entry: str
    host: str | None
    port: int | None
    status: str | None
    since: int
    ours: bool
    initiator_host: str | None = None
    initiator_port: int | None = None


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One look at the whole queue.

    :ivar sequence: order of the read within this process.
    :ivar rows: what carries the token.
    :ivar newer_entries: how many entries are newer than the token's; ``None`` if it is not seen. The queue
        forgets an entry after 1,000 newer ones.
    :ivar unfinished: entries that some host has not finished, the token's own excepted.
    """

    sequence: int
    rows: tuple[QueueRow, ...]
    newer_entries: int | None
    unfinished: tuple[Unfinished, ...]

    @property
    def ahead(self) -> tuple[Unfinished, ...]:
        """The unfinished entries that come before the token's: a host works on them first."""
        entry = min((row.entry for row in self.rows), default=None)
        return tuple(u for u in self.unfinished if entry is not None and u.entry < entry)


@dataclass(frozen=True, slots=True)
class Blocker:
    """An entry that a replica has not finished, and that it works on before ours.

    :ivar replica: where.
    :ivar since: when it was queued, seconds since the epoch on Keeper's clock.
    :ivar status: as the queue says it: Active or Inactive; ``None`` if unknown.
    :ivar ours: it carries a token of this provider.
    :ivar initiator: the replica through which it was queued; ``None``: another server, or not known.
    """

    entry: str
    replica: str
    since: int
    status: str | None
    ours: bool
    initiator: str | None

    def __str__(self) -> str:
        whose = "this provider" if self.ours else "somebody else"
        through = f" through {self.initiator}" if self.initiator else ""
        return (
            f"{self.replica}: {self.entry}, queued by {whose}{through} at {when(self.since)}, is "
            f"{self.status or 'unknown'} and comes first"
        )


def blockers(report: QueueReport, inventory: Inventory) -> tuple[Blocker, ...]:
    """Return what a replica that has not finished our entry has to finish first."""
    late = {(row.host, row.port) for row in report.rows if row.status != "Finished"}
    found = []
    for one in report.ahead:
        if (one.host, one.port) not in late or one.host is None or one.port is None:
            continue
        alias = inventory.alias_at(one.host, one.port)
        if alias is None:
            continue
        initiator = None
        if one.initiator_host is not None and one.initiator_port is not None:
            initiator = inventory.alias_at(one.initiator_host, one.initiator_port)
        found.append(Blocker(one.entry, alias, one.since, one.status, one.ours, initiator))
    return tuple(found)
