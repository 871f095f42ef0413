"""Waiting outside of a worker: what is waited for, what one look at it means, and what is handed back.

Nothing here permits anything. A look only tells when a worker should look itself, with one exception: the
outcome of a queue entry that the queue has forgotten by then can't be read again, so it is handed on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from functools import cache
from typing import Any, Literal, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.queue import (
    Contradictory,
    NotSeen,
    QueueRow,
    Running,
    Terminal,
    Unreadable,
    read_queue,
)
from airflow_provider_dpone.publication.record import AuthorityRecord, Dispatch, HostReceipt, Phase
from airflow_provider_dpone.publication.statement import Exchange, Rename, Statement

SCHEMA: Literal["dpone.clickhouse.watch.v1"] = "dpone.clickhouse.watch.v1"

_T = TypeVar("_T")
_STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class SeenOutcome:
    """The terminal rows of a queue entry, normalised, as somebody else read them.

    :ivar read_at: when they were read, seconds since the epoch on the server's clock.
    """

    __pydantic_config__ = _STRICT

    entry: str
    query_digest: str
    receipt: tuple[HostReceipt, ...]
    read_at: int

    def terminal(self, dispatch: Dispatch, replicas: Sequence[str]) -> Terminal | None:
        """Return what it proves about ``dispatch``; ``None`` if it is not about its bound entry.

        Its place in the order of reads is before every read of this process, so that catalogs are read anew.

        :param replicas: the admitted replicas; a receipt of others proves nothing.
        """
        bound = dispatch.entry is not None and dispatch.query_digest is not None
        same = (self.entry, self.query_digest) == (dispatch.entry, dispatch.query_digest)
        if not (bound and same) or tuple(host.alias for host in self.receipt) != tuple(replicas):
            return None
        return Terminal(0, self.entry, self.query_digest, self.receipt)


@dataclass(frozen=True, slots=True)
class Watch:
    """A publication whose queue entry is bound, and until when it is waited for. Plain values, no secret.

    :ivar conn_id: the Airflow connection.
    :ivar phase: ``BOUND``, or ``TERMINAL`` where the queue has nothing more to tell.
    :ivar deadline: when waiting ends, seconds since the epoch; the same over all deferrals.
    :ivar outcome: what an earlier watch saw, while no worker could store it.
    """

    __pydantic_config__ = _STRICT

    schema: Literal["dpone.clickhouse.watch.v1"]
    conn_id: str
    cluster: str
    database: str
    table: str
    candidate: str
    target_key: str
    operation_id: str
    replaces: bool
    inventory_digest: str
    phase: Phase
    token: str
    epoch: int
    entry: str
    query_digest: str
    deadline: int
    outcome: SeenOutcome | None = None

    @classmethod
    def of(cls, record: AuthorityRecord, *, conn_id: str, deadline: int) -> Self:
        """Return the watch of a publication.

        :raises ValueError: its entry is not bound: what the queue may forget must not be left to wait.
        """
        publication = record.publication
        if publication is None or publication.entry is None or publication.query_digest is None:
            raise ValueError("only a publication whose queue entry is bound can be watched")
        return cls(
            schema=SCHEMA,
            conn_id=conn_id,
            cluster=record.cluster,
            database=record.database,
            table=record.table,
            candidate=record.candidate,
            target_key=record.target_key,
            operation_id=record.operation_id,
            replaces=record.predecessor is not None,
            inventory_digest=record.inventory_digest,
            phase=record.phase,
            token=publication.token,
            epoch=publication.epoch,
            entry=publication.entry,
            query_digest=publication.query_digest,
            deadline=deadline,
        )

    @property
    def queue_tells(self) -> bool:
        """Tell whether the queue may still have news."""
        return self.phase is Phase.BOUND and self.outcome is None

    @property
    def statement(self) -> Statement:
        """The statement that was dispatched."""
        if self.replaces:
            return Exchange(self.cluster, self.database, self.table, self.candidate)
        return Rename(self.cluster, self.database, self.candidate, self.table)

    @property
    def dispatch(self) -> Dispatch:
        """What the queue's rows are compared with."""
        return Dispatch(self.token, self.epoch, self.entry, self.query_digest)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the target's record stands."""

    operation_id: str
    phase: str


@dataclass(frozen=True, slots=True)
class Look:
    """What was read about one watched publication.

    :ivar rows: the queue's rows that carry its token.
    :ivar slot: ``None`` if no record was seen.
    :ivar server_time: when it was read, seconds since the epoch.
    """

    rows: Sequence[QueueRow]
    inventory: Inventory
    slot: Slot | None
    server_time: int


@unique
class Why(StrEnum):
    """Why a worker should look.

    OUTCOME: the entry has ended on every replica.
    RECORD: the target's record moved on, or is not this operation's any more.
    CONTRADICTION: what was read contradicts the operation.
    RECHECK: the queue has nothing more to tell, but the replicas may.
    DEADLINE: the time is up.
    UNKNOWN_WATCH: another release wrote what is to be waited for.
    """

    OUTCOME = "outcome"
    RECORD = "record"
    CONTRADICTION = "contradiction"
    RECHECK = "recheck"
    DEADLINE = "deadline"
    UNKNOWN_WATCH = "unknown_watch"


@dataclass(frozen=True, slots=True)
class Woken:
    """What the waiting ended with. It is a hint and never proof: whoever gets it observes anew.

    :ivar watch: what was waited for, with the outcome that was seen, if one was.
    """

    __pydantic_config__ = _STRICT

    why: Why
    watch: Watch


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing to do yet.

    :ivar said: what is known, for people.
    """

    said: str


def judge_look(watch: Watch, look: Look) -> Woken | Waiting:
    """Return whether one look is a reason for a worker to look itself."""
    slot = look.slot
    if slot is not None and (slot.operation_id, slot.phase) != (watch.operation_id, watch.phase.value):
        return Woken(Why.RECORD, watch)
    name = f"{watch.database}.{watch.table}"
    if not watch.queue_tells:
        return Waiting(
            f"{name}: queue entry {watch.entry} has ended; the replicas are looked at again later."
        )
    if look.inventory.digest != watch.inventory_digest:
        return Woken(Why.CONTRADICTION, watch)
    queue = read_queue(
        look.rows, sequence=0, dispatch=watch.dispatch, statement=watch.statement, inventory=look.inventory
    )
    match queue:
        case Terminal(_, entry, query_digest, receipt):
            outcome = SeenOutcome(entry, query_digest, receipt, look.server_time)
            return Woken(Why.OUTCOME, replace(watch, outcome=outcome))
        case Contradictory():
            return Woken(Why.CONTRADICTION, watch)
        case NotSeen():
            return Waiting(f"{name}: queue entry {watch.entry} is not in the queue now.")
        case Running(_, _, hosts) | Unreadable(_, _, hosts):
            states = ", ".join(f"{alias} {row.status.value}" for alias, row in sorted(hosts.items()))
            return Waiting(f"{name}: queue entry {watch.entry}: {states or 'no replica is seen'}.")


def dump_watch(watch: Watch) -> dict[str, Any]:
    """Return a watch as a JSON object."""
    body: dict[str, Any] = _watch_adapter().dump_python(watch, mode="json")
    return body


def dump_woken(woken: Woken) -> dict[str, Any]:
    """Return what a watch ended with as a JSON object."""
    body: dict[str, Any] = _woken_adapter().dump_python(woken, mode="json")
    return body


def load_watch(value: object) -> Watch | None:
    """Return the watch that :func:`dump_watch` wrote; ``None`` for what this release doesn't know."""
    return _load(_watch_adapter(), value)


def load_woken(value: object) -> Woken | None:
    """Return what :func:`dump_woken` wrote; ``None`` for what this release doesn't know."""
    return _load(_woken_adapter(), value)


def _load(adapter: TypeAdapter[_T], value: object) -> _T | None:
    try:
        # Through JSON: strict mode tells lists from tuples, and text from enumerations.
        return adapter.validate_json(json.dumps(value))
    except (ValidationError, TypeError, ValueError):
        return None


@cache
def _watch_adapter() -> TypeAdapter[Watch]:
    return TypeAdapter(Watch)


@cache
def _woken_adapter() -> TypeAdapter[Woken]:
    return TypeAdapter(Woken)
