"""Explain: read what decides about one target, and say what it means. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_dpone.publication.explain import Explanation, live_state
from airflow_provider_dpone.publication.explain import explain as explain_facts
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.queue import NotSeen, QueueState
from airflow_provider_dpone.publication.queue_report import blockers
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase, StoredRecord
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh._common import Site, read_dispatch, swap
from airflow_provider_dpone.routes.ports import Catalog, DdlQueue, Evidence, QueueReports

_LOOKS = 5


def explain(
    catalog: Catalog, queue: DdlQueue, evidence: Evidence, site: Site, reports: QueueReports | None = None
) -> Explanation:
    """Explain one target from a fresh look.

    :param reports: tells what stands before the operation's entry in the queue, and how much behind it.
    :raises Stopped: the cluster, the queue or the evidence can't be read; ``CAS_CONFLICT``: the operation
        moves too fast to be explained.
    """
    for _ in range(_LOOKS):
        first = catalog.observe([site.target.table])
        stored = first.record
        if stored is None:
            return explain_facts(None, first)
        state, unused = _queue(catalog, queue, evidence, stored)
        record = stored.record
        seen = catalog.observe([record.table, record.candidate, parked_name(record.candidate)])
        if seen.record == stored:
            told = explain_facts(stored, seen, state, read_at=first.sequence, permit_unused=unused)
            return told if reports is None else _with_queue(told, reports, catalog, record)
        # It moved while it was looked at: what was read does not belong together.
    raise Stopped(Stop(Code.CAS_CONFLICT, f"{site.target}: the record moves while it is looked at."))


def _with_queue(
    told: Explanation, reports: QueueReports, catalog: Catalog, record: AuthorityRecord
) -> Explanation:
    """Add what stands before and behind the operation's entry, as long as something waits for it."""
    dispatch = record.disarm if record.disarming else record.publication
    if (
        not told.held
        or dispatch is None
        or record.phase not in (Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL)
    ):
        return told
    report = reports.report(dispatch.token)
    return replace(told, blocked=blockers(report, catalog.inventory), newer_entries=report.newer_entries)


def _queue(
    catalog: Catalog, queue: DdlQueue, evidence: Evidence, stored: StoredRecord
) -> tuple[QueueState | None, bool]:
    record = stored.record
    dispatch = record.publication
    if dispatch is None or record.phase not in (Phase.DISPATCHING, Phase.BOUND):
        return None, False
    state = read_dispatch(queue, catalog.inventory, record, dispatch, swap(record))
    unused = isinstance(state, NotSeen) and evidence.permit_unused(
        record.operation_id, dispatch.epoch, stored.write_id
    )
    return state, unused


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One row of ``airflow dpone status``.

    :ivar live: state per replica; empty if the replicas could not be read.
    :ivar problem: why the record or the replicas can't be read.
    """

    database: str
    table: str
    record: AuthorityRecord | None
    live: Mapping[str, str]
    problem: Stop | None = None


def target_status(catalog: Catalog, record: AuthorityRecord) -> TargetStatus:
    """Return how one target stands now: its record, and what the replicas hold."""
    try:
        seen = catalog.observe([record.table, record.candidate, parked_name(record.candidate)])
    except Stopped as stopped:
        return TargetStatus(record.database, record.table, record, {}, stopped.stop)
    current = seen.record.record if seen.record else record
    if current.candidate != record.candidate:
        return target_status(catalog, current)
    return TargetStatus(record.database, record.table, current, _live(current, seen))


def _live(record: AuthorityRecord, seen: Observation) -> dict[str, str]:
    found: dict[str, str] = {}
    for alias in record.replicas:
        if record.ended:
            facts = seen.replicas.get(alias)
            table = facts.tables.get(record.table) if facts else None
            found[alias] = "not observed" if facts is None else "live" if table is not None else "absent"
        else:
            found[alias] = live_state(record, seen, alias).value
    return found
