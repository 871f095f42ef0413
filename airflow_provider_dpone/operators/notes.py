"""The first and the last lines of a task's log: what it is about to do, what came of it, and what follows.

The lines in between are those of the routes. None holds SQL, a host or a value of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_dpone.publication.words import when

if TYPE_CHECKING:
    from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt, StageReceipt
    from airflow_provider_dpone.publication.record import AuthorityRecord
    from airflow_provider_dpone.values import ClusterRefresh

OPERATION_DIGITS = 16
"""How much of an operation's id people see; the commands find it by its beginning."""


def begins(what: str, refresh: ClusterRefresh) -> str:
    """Return the first line: what the task does, to which table, through which connection."""
    return (
        f"{what} {refresh.database}.{refresh.table} on cluster {refresh.cluster!r}, through connection "
        f"{refresh.clickhouse_conn_id!r}."
    )


def staged(receipt: StageReceipt, seconds: float) -> str:
    """Return the last line of a stage task."""
    before = "" if receipt.live_rows is None else f" (the live table has {receipt.live_rows:,})"
    how = "An earlier try had staged this" if receipt.resumed else f"Staged in {seconds:.1f} s"
    return (
        f"{how}: {receipt.rows:,} rows{before}, {receipt.bytes:,} bytes, equal on {', '.join(receipt.replicas)}, in "
        f"{receipt.candidate_sql}. Operation {receipt.operation_id[:OPERATION_DIGITS]}. Nothing is live yet; publish "
        "makes it so."
    )


def published(receipt: PublicationReceipt | SettledReceipt, seconds: float) -> str:
    """Return the line that says what is proven."""
    from airflow_provider_dpone.publication.receipt import PublicationReceipt

    table = f"{receipt.database}.{receipt.table}"
    operation = f"Operation {receipt.operation_id[:OPERATION_DIGITS]}"
    if not isinstance(receipt, PublicationReceipt):
        at, what = when(receipt.settled_at), f"{receipt.rows:,} rows; a later operation has followed"
    else:
        at = when(receipt.committed_at)
        what = f"{receipt.rows:,} rows on {', '.join(one.alias for one in receipt.replicas)}"
        operation += f", epoch {receipt.epoch}, queue entry {receipt.entry or 'not known'}"
    if receipt.replayed:
        return (
            f"{table} was published at {at} already: {what}. {operation}. This is the old answer: nothing was sent, "
            "and no asset event is made."
        )
    return f"Published and proven in {seconds:.1f} s: {table} has {what}. {operation}."


def warnings(receipt: PublicationReceipt | SettledReceipt) -> Iterator[str]:
    """Yield what the receipt warns of, one line each."""
    for one in getattr(receipt, "warnings", ()):
        yield f"{receipt.database}.{receipt.table}: {one}."


def handed_over(record: AuthorityRecord, deadline: float) -> str:
    """Return the last line of a worker that hands its wait over.

    :param deadline: seconds since the epoch.
    """
    publication = record.publication
    entry = publication.entry if publication is not None else None
    return (
        f"{record.database}.{record.table}: queue entry {entry} is not through yet. The triggerer waits for it until "
        f"{when(int(deadline))}, without a worker slot; nothing is sent again."
    )


def cleaned(receipt: PublicationReceipt | SettledReceipt) -> str:
    """Return the line that says what is left of a publication."""
    table = f"{receipt.database}.{receipt.table}"
    kept = [f"{one.table} until {when(one.drop_after)}" for one in getattr(receipt, "retained", ())]
    if kept:
        return f"{table} is free for its next refresh. Kept: {', '.join(kept)}."
    return f"{table} is free for its next refresh, and nothing of this one is left beside it."
