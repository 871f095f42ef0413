"""The moves of an authority record. Each is the record that a compare-and-swap would store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from airflow_provider_dpone.publication.identity import correlation_token, parked_name
from airflow_provider_dpone.publication.record import (
    DROP_PHASES,
    END_PHASES,
    UNSENT_PHASES,
    AuthorityRecord,
    Dispatch,
    HostReceipt,
    IndependentGeneration,
    Phase,
    Retained,
    Retired,
    encode,
    new_fence_token,
)

R = TypeVar("R", bound=AuthorityRecord)

KEEP_PARKED = 24 * 3600
"""How many seconds a parked candidate is kept at least."""


def dispatching(
    record: AuthorityRecord, *, nonce: str, now: int, live_rows: int | None = None
) -> AuthorityRecord:
    """PREPARED -> DISPATCHING under the next epoch, with the token of the one statement.

    :param live_rows: rows of the live table in the last look before the dispatch.
    """
    _require(record, Phase.PREPARED)
    epoch = record.dispatch_epoch + 1
    token = correlation_token(record.operation_id, "publish", epoch, nonce)
    return record.moved(
        phase=Phase.DISPATCHING,
        dispatch_epoch=epoch,
        publication=Dispatch(token, epoch),
        live_rows_at_dispatch=live_rows,
        changed_at=now,
    )


def rearmed(record: AuthorityRecord, *, now: int) -> AuthorityRecord:
    """DISPATCHING -> PREPARED, on the proof that the epoch's permit was never used.

    The epoch stays, so that the next dispatch claims a higher one.
    """
    _require(record, Phase.DISPATCHING)
    if record.disarming:
        raise ValueError("an operation that is being resolved is not prepared again")
    return record.moved(phase=Phase.PREPARED, publication=None, changed_at=now)


def bound(record: AuthorityRecord, *, entry: str, query_digest: str, now: int) -> AuthorityRecord:
    """DISPATCHING -> BOUND: the queue entry is known."""
    _require(record, Phase.DISPATCHING)
    return record.moved(
        phase=Phase.BOUND, publication=_seen(record.publication, entry, query_digest, None), changed_at=now
    )


def terminal(
    record: AuthorityRecord, *, entry: str, query_digest: str, receipt: tuple[HostReceipt, ...], now: int
) -> AuthorityRecord:
    """DISPATCHING or BOUND -> TERMINAL: the complete receipt is stored before anything rests on it."""
    _require(record, Phase.DISPATCHING, Phase.BOUND)
    publication = _seen(record.publication, entry, query_digest, receipt)
    return record.moved(phase=Phase.TERMINAL, publication=publication, changed_at=now)


def committed(
    record: AuthorityRecord,
    *,
    entry: str | None,
    query_digest: str | None,
    receipt: tuple[HostReceipt, ...] | None,
    now: int,
) -> AuthorityRecord:
    """-> COMMITTED: every replica was seen with the new generation, after the receipt.

    Where the swap was disarmed, the receipt of that stands for the queue's word, which may be ``None``.
    """
    _require(record, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL)
    return record.moved(
        phase=Phase.COMMITTED,
        publication=_seen(record.publication, entry, query_digest, receipt),
        committed_at=now,
        published_order_key=record.order_key or record.published_order_key,
        changed_at=now,
    )


def disarming(record: AuthorityRecord, *, nonce: str, now: int) -> AuthorityRecord:
    """Claim the RENAME that takes the candidate's name away, under the next epoch."""
    _require(record, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL)
    if record.disarmed:
        raise ValueError("a swap is disarmed once")
    epoch = record.dispatch_epoch + 1
    token = correlation_token(record.operation_id, "disarm", epoch, nonce)
    return record.moved(dispatch_epoch=epoch, disarm=Dispatch(token, epoch), changed_at=now)


def disarmed(
    record: AuthorityRecord, *, entry: str, query_digest: str, receipt: tuple[HostReceipt, ...], now: int
) -> AuthorityRecord:
    """-> TERMINAL: the candidate's old name exists on no replica, so nothing that is late can swap."""
    _require(record, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL)
    return record.moved(
        phase=Phase.TERMINAL,
        candidate=parked_name(record.candidate),
        disarm=_seen(record.disarm, entry, query_digest, receipt),
        changed_at=now,
    )


def unpublished(record: AuthorityRecord, *, now: int) -> AuthorityRecord:
    """TERMINAL -> ABORTED: disarmed, and every replica was seen with the old generation since.

    The parked table is kept for the retention, at least for a day: people may want to look at it.
    """
    _require(record, Phase.TERMINAL)
    if not record.disarmed:
        raise ValueError("a swap that may still run can't be closed as not published")
    drop_after = max(now + max(record.retention, KEEP_PARKED), record.keep_until or 0)
    return record.moved(phase=Phase.ABORTED, retained=kept(record, drop_after=drop_after), changed_at=now)


def retired(
    record: AuthorityRecord, present: Mapping[str, str], *, inventory_digest: str, now: int
) -> AuthorityRecord:
    """Admit the replicas that are left in the place of those that were admitted.

    :param present: alias at admission -> alias now, of each replica that is left, in the order of the cluster's
        definition; the others are gone.
    """
    _require(record, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL)
    servers = dict(zip(record.replicas, record.servers, strict=True))
    gone = tuple(
        Retired(alias, servers[alias], record.dispatch_epoch, now)
        for alias in record.replicas
        if alias not in present
    )
    return record.moved(
        replicas=tuple(present.values()),
        servers=tuple(servers[alias] for alias in present),
        predecessor=record.predecessor.renamed(present) if record.predecessor else None,
        desired=record.desired.renamed(present),
        inventory_digest=inventory_digest,
        publication=_of_those_left(record.publication, present),
        disarm=_of_those_left(record.disarm, present),
        retained=tuple(_renamed(item, record.replicas, present) for item in record.retained),
        retired=(*record.retired, *gone),
        changed_at=now,
    )


def aborted(record: R, *, now: int, drop_after: int | None = None) -> R:
    """Not dispatched -> ABORTED: no permit for the candidate can ever be claimed, so all is listed for a drop.

    :param drop_after: when it may be dropped; at once by default.
    """
    _require(record, *UNSENT_PHASES)
    retained = kept(record, drop_after=now if drop_after is None else drop_after)
    return record.moved(phase=Phase.ABORTED, retained=retained, changed_at=now)


def kept(record: AuthorityRecord, *, drop_after: int) -> tuple[Retained, ...]:
    """Return the retained tables with those added that a never dispatched record leaves.

    Admission has left room for them: no kept table is ever forgotten.
    """
    drop_after = max(drop_after, record.keep_until or 0)
    known = {item.name for item in record.retained}
    left = (record.keep(name, table, drop_after=drop_after) for name, table in record.left())
    return (*record.retained, *(item for item in left if item.name not in known))


def inherited(before: AuthorityRecord | None, *, now: int) -> tuple[Any, ...]:
    """Return the retained tables for the record of an operation that follows ``before``.

    What an operation leaves that was never dispatched, and that is superseded now, is among them.
    """
    if before is None:
        return ()
    return kept(before, drop_after=now) if before.phase in UNSENT_PHASES else before.retained


def require_room(record: AuthorityRecord) -> None:
    """Refuse to prepare a record that could outgrow its bound later: a swap that was sent has to be recorded.

    :raises Stopped: ``RECORD_TOO_LARGE``.
    """
    now = record.changed_at
    grown = dispatching(record, nonce="0" * 32, now=now, live_rows=record.live_rows)
    receipt = tuple(HostReceipt(alias, 65_535) for alias in record.replicas)
    grown = disarming(grown, nonce="0" * 32, now=now)
    grown = disarmed(grown, entry="query-" + "9" * 10, query_digest="0" * 64, receipt=receipt, now=now)
    grown = committed(grown, entry="query-" + "9" * 10, query_digest="0" * 64, receipt=receipt, now=now)
    grown = retaining(grown, drop_after=now, now=now)
    for item in grown.retained:
        grown = dropping(grown, item.name, nonce="0" * 32, now=now)
    encode(grown, "0" * 32)


def retaining(record: AuthorityRecord, *, drop_after: int, now: int) -> AuthorityRecord:
    """COMMITTED -> an end phase: the slot is free, the predecessor is listed by name and UUID."""
    _require(record, Phase.COMMITTED)
    if record.predecessor is None:
        phase = Phase.COMPLETED_RETAINING if record.retained else Phase.COMPLETED
        return record.moved(phase=phase, changed_at=now)
    return record.moved(
        phase=Phase.COMPLETED_RETAINING,
        retained=(
            *record.retained,
            record.keep(record.candidate, record.predecessor, drop_after=drop_after),
        ),
        changed_at=now,
    )


def listed(record: AuthorityRecord, item: Retained, *, nonce: str, now: int) -> AuthorityRecord:
    """List a table that no record needed, so that it can be dropped, in an end phase.

    The new fence token makes whoever prepared from an earlier version give up: a stage task that sleeps takes
    a record that was only cleaned up for the one that it knows.

    :raises Stopped: ``RECORD_TOO_LARGE``.
    """
    _require(record, *END_PHASES)
    phase = Phase.COMPLETED_RETAINING if record.phase is Phase.COMPLETED else record.phase
    moved = record.moved(
        phase=phase,
        fence_token=new_fence_token(record.operation_id, nonce),
        retained=(*record.retained, item),
        changed_at=now,
    )
    encode(dropping(moved, item.name, nonce="0" * 32, now=now), "0" * 32)
    return moved


def forgotten(record: AuthorityRecord, name: str, *, now: int) -> AuthorityRecord:
    """Strike a kept table off the list without a drop: another table has its name."""
    return dropped(record, _retained(record, name).name, now=now)


def dropping(record: AuthorityRecord, name: str, *, nonce: str, now: int) -> AuthorityRecord:
    """Claim the drop of one retained predecessor under the next epoch."""
    _require(record, *DROP_PHASES)
    epoch = record.dispatch_epoch + 1
    item = _retained(record, name)
    drop = Dispatch(correlation_token(item.operation_id, "drop", epoch, nonce), epoch)
    changed = replace(item, drop=drop)
    return record.moved(
        dispatch_epoch=epoch,
        retained=tuple(changed if r.name == name else r for r in record.retained),
        changed_at=now,
    )


def dropped(record: AuthorityRecord, name: str, *, now: int) -> AuthorityRecord:
    """Strike a predecessor that is proven absent on every replica off the list."""
    _require(record, *DROP_PHASES)
    retained = tuple(r for r in record.retained if r.name != name)
    phase = Phase.COMPLETED if record.phase is Phase.COMPLETED_RETAINING and not retained else record.phase
    return record.moved(phase=phase, retained=retained, changed_at=now)


def _seen(
    dispatch: Dispatch | None,
    entry: str | None,
    query_digest: str | None,
    receipt: tuple[HostReceipt, ...] | None,
) -> Dispatch:
    if dispatch is None:
        raise ValueError("a dispatched record has a dispatch")
    return Dispatch(dispatch.token, dispatch.epoch, entry, query_digest, receipt)


def _of_those_left(dispatch: Dispatch | None, present: Mapping[str, str]) -> Dispatch | None:
    if dispatch is None or dispatch.receipt is None:
        return dispatch
    codes = {host.alias: host.exception_code for host in dispatch.receipt}
    receipt = tuple(HostReceipt(now, codes[then]) for then, now in present.items() if then in codes)
    return Dispatch(dispatch.token, dispatch.epoch, dispatch.entry, dispatch.query_digest, receipt)


def _renamed(item: Retained, admitted: Collection[str], present: Mapping[str, str]) -> Retained:
    """Return a kept table with the aliases of now, where it was listed under the same ones."""
    tables = item.generation.tables if isinstance(item.generation, IndependentGeneration) else ()
    if not all(table.alias in admitted for table in tables):
        return item
    return replace(item, generation=item.generation.renamed(present))


def _retained(record: AuthorityRecord, name: str) -> Retained:
    for item in record.retained:
        if item.name == name:
            return item
    raise ValueError("only a listed predecessor may be dropped")


def _require(record: AuthorityRecord, *phases: Phase) -> None:
    if record.phase not in phases:
        raise ValueError(f"no such move from {record.phase}")
