"""Explain: read what decides about one target, and say what it means. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_dpone.publication.admission import admit_target, cluster_checks
from airflow_provider_dpone.publication.explain import explain as explain_facts
from airflow_provider_dpone.publication.explain import live_state, with_queue
from airflow_provider_dpone.publication.explain_past import explain_unread, lost_control_table, with_past
from airflow_provider_dpone.publication.explain_stages import stage_shown
from airflow_provider_dpone.publication.explanation import Explanation, Way
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.history import Past
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.queue import NotSeen, QueueState, Terminal, read_queue
from airflow_provider_dpone.publication.queue_report import blockers
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase, StoredRecord
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh._common import Site, read_dispatch, swap
from airflow_provider_dpone.routes.ports import (
    Catalog,
    DdlQueue,
    Evidence,
    QueueReports,
    Tables,
    Target,
    Trails,
)

_LOOKS = 5

_NEWEST = 3
"""So many of a table's newest operations are looked up in the evidence."""

_DAYS = 31
"""Operations that were never prepared are looked for on so many days, while the record can be read."""

_WRONG_QUESTION = frozenset({Code.UNKNOWN_CLUSTER, Code.CAS_CONFLICT})
"""Codes of an explanation that can't be given, whatever was written down."""


def explain(
    catalog: Catalog,
    queue: DdlQueue,
    evidence: Evidence,
    site: Site,
    reports: QueueReports | None = None,
    trails: Trails | None = None,
    tables: Tables | None = None,
) -> Explanation:
    """Explain one target from a fresh look; where that is not possible, from what was written down before.

    :param reports: tells what stands before the operation's entry in the queue, and how much behind it.
    :param trails: what was written down before; without it, what can't be read is an error.
    :param tables: looks at the tables where the control table can't be read.
    :raises Stopped: the cluster can't be read and there are no ``trails``; ``UNKNOWN_CLUSTER``;
        ``CAS_CONFLICT``: the operation moves too fast to be explained.
    """
    history = _History(trails, site.target)
    look = _Look(catalog, queue, evidence, site, reports, history)
    try:
        return history.without(look.run())
    except Stopped as stopped:
        if trails is None or stopped.stop.code in _WRONG_QUESTION:
            raise
        return history.without(_from_before(stopped.stop, history, tables))


@dataclass(slots=True)
class _History:
    """The evidence of one target. That it can't be read is said, and stops nothing."""

    trails: Trails | None
    target: Target
    problem: Stop | None = None
    _pasts: dict[str, Past] = field(default_factory=dict)

    def recent(self, days: int | None) -> tuple[str, ...]:
        if self.trails is None:
            return ()
        try:
            return tuple(
                self.trails.recent(self.target.database, self.target.table, limit=_NEWEST, days=days)
            )
        except Stopped as stopped:
            self.problem = stopped.stop
            return ()

    def of(self, operation_id: str) -> Past | None:
        if self.trails is None:
            return None
        if operation_id not in self._pasts:
            try:
                entries = self.trails.entries(operation_id)
            except Stopped as stopped:
                self.problem = stopped.stop
                return None
            if not entries:
                return None
            self._pasts[operation_id] = Past.of(operation_id, entries)
        return self._pasts[operation_id]

    def newest(self, days: int | None) -> tuple[Past, ...]:
        """The newest operations, the newest first."""
        return tuple(past for one in self.recent(days) if (past := self.of(one)) is not None)

    def since(self, record: AuthorityRecord, authority_id: str | None) -> tuple[Past, ...]:
        """The operations that were admitted after the record's, and that it doesn't know."""
        found = []
        for one in self.recent(_DAYS):
            if one == record.operation_id or record.find_settled(one) is not None:
                break
            past = self.of(one)
            if past is not None and not past.stored and past.authority_id == authority_id:
                found.append(past)
        return tuple(found)

    def without(self, told: Explanation) -> Explanation:
        """Say that the evidence could not be read, if it could not."""
        if self.problem is None:
            return told
        return replace(told, unproven=(*told.unproven, f"What happened before: {self.problem.message}"))


@dataclass(slots=True)
class _Look:
    """One look at everything that decides about a target."""

    catalog: Catalog
    queue: DdlQueue
    evidence: Evidence
    site: Site
    reports: QueueReports | None
    history: _History
    unread: Stop | None = None
    """Why the queue could not be read, while the record could."""

    def run(self) -> Explanation:
        target = self.site.target
        for _ in range(_LOOKS):
            first = self.catalog.observe([target.table])
            if (stored := first.record) is None:
                newest = self.history.newest(_DAYS)
                seen = self.catalog.observe([target.table, *_tables_of(newest)]) if newest else first
                if seen.record is None:
                    return self._without_record(seen, newest)
                continue
            state, unused = self._queue(stored)
            record = stored.record
            past = self.history.of(record.operation_id)
            others = self.history.since(record, first.authority_id)
            names = [*_names(record), *(item.name for item in record.retained)]
            names += _tables_of((*others, *((past,) if past else ())))
            seen = self.catalog.observe(names)
            if seen.record == stored:
                refusal = self._refusal(seen) if record.ended else None
                told = explain_facts(
                    stored, seen, state, read_at=first.sequence, permit_unused=unused, refusal=refusal
                )
                if self.unread is not None and told.stop is None:
                    # The replicas alone don't tell what becomes of a swap.
                    told = replace(
                        told, plain=f"{target}: what became of the swap can't be told now.", waiting=()
                    )
                told = with_past(told, seen, past, others, self._drops(record), name=str(target))
                return self._with_queue(told, record)
            # It moved while it was looked at: what was read does not belong together.
        raise Stopped(Stop(Code.CAS_CONFLICT, f"{target}: the record moves while it is looked at."))

    def _without_record(self, seen: Observation, newest: tuple[Past, ...]) -> Explanation:
        """Explain a target without a record: it never had one, or the control table was lost."""
        target = self.site.target
        ours = [past for past in newest if past.authority_id == seen.authority_id]
        stored = next((past for past in newest if past.stored), None)
        of_this = next((past for past in ours if past.stored), None)
        found = self._found(seen)
        lost = lost_control_table(
            seen,
            target.table,
            found,
            of_this if seen.authority_id is not None else stored or (newest[0] if newest else None),
            control_structure=self.site.control_structure,
        )
        if lost is not None:
            past, others = _last_of(newest)
            return explain_unread(lost, past, others, seen, name=str(target), table=target.table)
        told = explain_facts(None, seen, refusal=found[0] if found else None)
        return with_past(told, seen, None, [past for past in ours if not past.stored], {}, name=str(target))

    def _found(self, seen: Observation) -> list[Stop]:
        """Return why a run that began now would be refused."""
        checks = cluster_checks(
            seen,
            database=self.site.target.database,
            control_structure=self.site.control_structure,
            user=self.site.user,
        )
        found = [check.stop for check in checks if check.stop is not None]
        if not found and (authority_id := seen.authority_id) is not None:
            stop = admit_target(seen, self.site.target.table, authority_id=authority_id)
            found += [stop] if stop is not None else []
        return found

    def _refusal(self, seen: Observation) -> Stop | None:
        found = self._found(seen)
        return found[0] if found else None

    def _queue(self, stored: StoredRecord) -> tuple[QueueState | None, bool]:
        record = stored.record
        dispatch = record.publication
        if dispatch is None or record.phase not in (Phase.DISPATCHING, Phase.BOUND):
            return None, False
        try:
            state = read_dispatch(self.queue, self.catalog.inventory, record, dispatch, swap(record))
        except Stopped as stopped:
            self.unread = stopped.stop
            return None, False
        if not isinstance(state, NotSeen):
            return state, False
        try:
            unused = self.evidence.permit_unused(record.operation_id, dispatch.epoch, stored.write_id)
        except Stopped as stopped:
            self.history.problem = stopped.stop
            return state, False
        return state, unused

    def _with_queue(self, told: Explanation, record: AuthorityRecord) -> Explanation:
        """Add what stands before and behind the operation's entry, as long as something waits for it."""
        dispatch = record.disarm if record.disarming else record.publication
        if (
            not told.held
            or dispatch is None
            or record.phase not in (Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL)
        ):
            return told
        if self.unread is None and self.reports is not None:
            try:
                report = self.reports.report(dispatch.token)
            except Stopped as stopped:
                self.unread = stopped.stop
            else:
                return with_queue(told, blockers(report, self.catalog.inventory), report.newer_entries)
        if self.unread is None:
            return told
        return _without_queue(told, self.unread)

    def _drops(self, record: AuthorityRecord) -> dict[str, dict[str, int]]:
        """Return how the last drop of each kept table ended, where the queue still tells."""
        found: dict[str, dict[str, int]] = {}
        for item in record.retained if self.history.trails is not None else ():
            if item.drop is None:
                continue
            try:
                sequence, rows = self.queue.read(item.drop.token)
            except Stopped:
                # It only tells why a table is still there.
                continue
            state = read_queue(
                rows,
                sequence=sequence,
                dispatch=item.drop,
                statement=Drop(record.cluster, record.database, item.name),
                inventory=self.catalog.inventory,
            )
            if isinstance(state, Terminal):
                found[item.name] = {host.alias: host.exception_code for host in state.receipt}
        return found


def _without_queue(told: Explanation, unread: Stop) -> Explanation:
    said = f"What the queue says: it can't be read. {unread.message}"
    if told.stop is not None:
        return replace(told, unproven=(*told.unproven, said))
    return replace(
        told,
        stop=unread,
        ways=(Way.WAIT,),
        unproven=(*told.unproven, said),
        plain=f"{told.plain} The queue can't be read now.",
    )


def _from_before(stop: Stop, history: _History, tables: Tables | None) -> Explanation:
    """Explain from what was written down, and from the tables if they can be read."""
    newest = history.newest(None)
    past, others = _last_of(newest)
    seen = None
    if tables is not None:
        try:
            seen = tables.observe_tables([history.target.table, *_tables_of(newest)])
        except Stopped:
            # The stop that led here says what can't be read.
            seen = None
    return explain_unread(stop, past, others, seen, name=str(history.target), table=history.target.table)


def _last_of(newest: Sequence[Past]) -> tuple[Past | None, Sequence[Past]]:
    """Return the operation that had the record last, or else the newest, and those that were admitted since."""
    for number, past in enumerate(newest):
        if past.stored:
            return past, newest[:number]
    return (newest[0], ()) if newest else (None, ())


def _tables_of(pasts: Collection[Past]) -> list[str]:
    return [name for past in pasts for name in past.tables]


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
    for _ in range(_LOOKS):
        names = _names(record)
        try:
            seen = catalog.observe(names)
        except Stopped as stopped:
            return TargetStatus(record.database, record.table, record, {}, stopped.stop)
        record = seen.record.record if seen.record else record
        if {*_names(record)} <= {*names}:
            return TargetStatus(record.database, record.table, record, _live(record, seen))
        # It has other tables by now than were looked at.
    problem = Stop(
        Code.CAS_CONFLICT, f"{record.database}.{record.table}: the record moves while it is looked at."
    )
    return TargetStatus(record.database, record.table, record, {}, problem)


def _names(record: AuthorityRecord) -> list[str]:
    """Return the names under which an operation's tables may be now."""
    return [
        record.table,
        record.candidate,
        parked_name(record.candidate),
        *(name for name, _ in record.left()),
    ]


def _live(record: AuthorityRecord, seen: Observation) -> dict[str, str]:
    found: dict[str, str] = {}
    for alias in record.replicas:
        if record.ended:
            facts = seen.replicas.get(alias)
            table = facts.tables.get(record.table) if facts else None
            found[alias] = "not observed" if facts is None else "live" if table is not None else "absent"
        else:
            stage = stage_shown(record, seen, alias)
            found[alias] = live_state(record, seen, alias).value + (f" ({stage})" if stage else "")
    return found
