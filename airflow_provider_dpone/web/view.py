"""What the page shows, as plain values: made from the evidence, and from an explanation where one could be read.

Pure: no I/O and no clock. What was recorded and what was read just now are told by the same words, which are those of
``airflow dpone explain`` and of the stable codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from airflow_provider_dpone.evidence.reader import Trail
from airflow_provider_dpone.publication.commands import (
    UNKNOWN_CONNECTION,
    CommandTarget,
    evidence_command,
    explain_command,
    fitting_commands,
    orphans_command,
)
from airflow_provider_dpone.publication.explain_past import still_there
from airflow_provider_dpone.publication.explain_words import plain_words
from airflow_provider_dpone.publication.explanation import Explanation, Leftover, Way
from airflow_provider_dpone.publication.history import Past
from airflow_provider_dpone.publication.record import END_PHASES, UNSENT_PHASES, Owner
from airflow_provider_dpone.publication.telling import told, told_writer
from airflow_provider_dpone.publication.trail import Entry, TurnedAway
from airflow_provider_dpone.publication.words import when
from airflow_provider_dpone.web.details import cleanup, groups, warnings
from airflow_provider_dpone.web.headline import RecordOwner, headline
from airflow_provider_dpone.web.matrix import as_before, replica_rows
from airflow_provider_dpone.web.model import Facts, LiveFacts, Receipt, TrailRow
from airflow_provider_dpone.web.recorded import Recorded, recorded
from airflow_provider_dpone.web.status import CLOSED, OVER, UNPREPARED, Tone
from airflow_provider_dpone.web.timeline import clock, duration, timeline


def _record_of(found: Recorded, state: str, told_live: Explanation, operation_id: str) -> RecordOwner:
    if (record := told_live.record) is not None:
        if record.operation_id == operation_id:
            return RecordOwner.OWN
        # Epochs only grow over a target's whole life, as long as it has the same control table.
        same = found.admission is not None and found.admission.authority_id == record.authority_id
        back = same and record.dispatch_epoch < found.epoch and record.find_settled(operation_id) is None
        return RecordOwner.EARLIER if back else RecordOwner.LATER
    if not told_live.read or state in END_PHASES:
        return RecordOwner.OWN
    mine = found.admission.authority_id if found.admission else None
    recovered = None not in (mine, told_live.authority_id) and mine != told_live.authority_id
    return RecordOwner.RECOVERED if recovered else RecordOwner.LOST


def _narrowed(told_live: Explanation, past: Past) -> Explanation:
    """Return what an explanation of the table says about this operation.

    Whoever may read one DAG learns nothing here of the operations of others: those that were admitted since.
    """
    plain, ways = told_live.plain, told_live.ways
    leftovers = tuple(
        one for one in told_live.leftovers if one.kind == "predecessor" or one.name in past.tables
    )
    if (record := told_live.record) is not None and not told_live.held:
        plain = plain_words(record, told_live.replicas, told_live.stop) + still_there(leftovers)
        ways = tuple(way for way in ways if way is not Way.STAGE) or (Way.NOTHING,)
    return replace(told_live, plain=plain, ways=ways, leftovers=leftovers, others=())


def _attempts(told_live: Explanation | None, past: Past) -> tuple[Leftover, ...]:
    """Return the tables of an operation that was not prepared: those of its staging attempts."""
    if told_live is None or not told_live.read:
        return ()
    return tuple(one for one in told_live.leftovers if one.name in past.tables)


def _waiting(told_live: Explanation | None, dag_id: str | None) -> Iterator[str]:
    if told_live is None:
        return
    yield from told_live.waiting
    task = told_live.past.task if told_live.past else None
    if told_live.heard_of is not None and task is not None and task.dag_id == dag_id:
        yield told_live.heard_of


def _refused(past: Past, dag_id: str | None) -> Iterator[str]:
    for one in past.refused:
        again = f", {one.times} times" if one.times > 1 else ""
        yield (
            str(one)
            if one.owner.dag_id == dag_id
            else f"An operation of another DAG was refused at {when(one.at)}{again}, before its source was read."
        )


def _who(entry: Entry, dag_id: str | None) -> str:
    foreign = "task_id" in entry.about and entry.about.get("dag_id") not in (None, dag_id)
    return "a task of another DAG" if foreign else told_writer(entry)


def _told(entry: Entry, dag_id: str | None) -> str:
    if isinstance(entry.body, TurnedAway) and entry.body.owner.dag_id != dag_id:
        return f"{entry.body.code}: an operation of another DAG was refused, its source was not read"
    return told(entry.body)


def receipt(
    trail: Trail,
    live: LiveFacts,
    *,
    cluster: str,
    later: bool,
    now: datetime,
    owner: Owner | None = None,
    dag_id: str | None = None,
) -> Receipt:
    """Return what the page shows about one operation.

    :param later: a later operation was prepared for the same table.
    :param now: the page's time, by which it is decided how soon to look again.
    :param owner: whose it is, where the trail's admission can't be read.
    :param dag_id: the DAG whose readers see it; what names another one is left out. ``None``: its owner's.
    """
    found = recorded(trail)
    past = Past.of(trail.operation_id, trail.entries)
    state = found.state
    admission = found.admission
    owner = admission.owner if admission else owner
    dag_id = dag_id or (owner.dag_id if owner else None)
    # The record is another operation's as long as this one has none: only its attempts' tables can be told of now.
    unprepared = state in UNPREPARED
    attempts = _attempts(live.explanation, past) if unprepared else ()
    told_live = None if unprepared else live.explanation
    if (
        told_live is not None
        and not told_live.read
        and told_live.operation_id not in (None, past.operation_id)
    ):
        told_live = None
    recorded_by = RecordOwner.LATER if later else RecordOwner.OWN
    if told_live is not None:
        recorded_by = _record_of(found, state, told_live, trail.operation_id)
        record = told_live.record
        if recorded_by is RecordOwner.LATER and record is not None:
            settled = record.find_settled(trail.operation_id)
            state = settled.outcome.value if settled else state
        elif record is not None:
            state = record.phase.value
        own = recorded_by is RecordOwner.OWN and (record is not None or not told_live.read)
        told_live = _narrowed(told_live, past) if own else None
    own_record = told_live.record if told_live is not None else None
    words = headline(found, state, told_live, recorded_by, of_now=live.of_now)
    target = CommandTarget(
        found.conn_id or UNKNOWN_CONNECTION,
        cluster,
        admission.database if admission else "...",
        admission.table if admission else "...",
    )
    ends = words.status.tone is not Tone.CARE and words.status.tone is not Tone.HOLD
    commands = () if told_live is None else fitting_commands(told_live, target)
    if not ends or state in UNSENT_PHASES:
        commands = (explain_command(target), *commands)
    if attempts:
        commands = (orphans_command(target),)
    over = recorded_by is not RecordOwner.OWN
    rows = replica_rows(found, told_live, state)
    return Receipt(
        operation_id=trail.operation_id,
        cluster=cluster,
        target=f"{admission.database}.{admission.table}" if admission else "",
        owner=owner,
        state=state,
        status=words.status,
        what=words.what,
        safe=words.safe,
        readers=words.readers,
        next=words.next,
        never=words.never,
        code=words.code,
        remembered=told_live is not None and not told_live.read,
        unproven=told_live.unproven if told_live is not None else (),
        waiting=tuple(_waiting(told_live, dag_id)),
        refused=tuple(_refused(past, dag_id)),
        leftovers=tuple(map(str, told_live.leftovers if told_live is not None else attempts)),
        facts=_facts(found, told_live, live),
        steps=timeline(found, state, words.status),
        replicas=tuple(map(as_before, rows) if over else rows),
        commands=(*commands, evidence_command(cluster, trail.operation_id)),
        blocked=tuple(map(str, told_live.blocked)) if told_live is not None else (),
        warnings=tuple(warnings(found, told_live)),
        dependents=(own_record.dependents if own_record else None)
        or (admission.dependents if admission else ()),
        cleanup=tuple(cleanup(found, own_record, state)),
        groups=groups(found, own_record, told_live),
        trail=tuple(
            TrailRow(clock(entry.at), entry.body.kind, _told(entry, dag_id), _who(entry, dag_id))
            for entry in trail.entries
        ),
        left_alone=tuple(f"{name} {why}." for name, why in trail.unknown),
        refresh=None if over else _refresh(found, state, now),
    )


def _facts(found: Recorded, told_live: Explanation | None, live: LiveFacts) -> Facts:
    age = f", {duration(live.age)} ago" if live.age >= 10 or not live.of_now else ""
    observed_at = told_live.observed_at if told_live is not None else None
    if told_live is not None and told_live.read and observed_at is not None:
        text = f"Read from the cluster at {when(observed_at)}{age}. {live.why_not}".strip()
        return Facts(live=live.of_now, text=text)
    at = max(found.receipt_at, found.classified_at) or (found.entries[-1].at if found.entries else "")
    said = [f"Recorded at {clock(at)}." if at else "Nothing is recorded about the replicas."]
    unread = live.explanation if live.explanation is not None and not live.explanation.read else None
    if unread is not None and unread.stop is not None:
        said.append(f"Not live: {unread.stop.message}")
    if observed_at is not None:
        said.append(f"Only the tables below were looked at now, at {when(observed_at)}{age}.")
    return Facts(live=False, text=" ".join([*said, *([live.why_not] if live.why_not else [])]))


def _refresh(found: Recorded, state: str, now: datetime) -> int | None:
    """Seconds until the page is loaded again: soon while something happens, and seldom where it has stopped."""
    if state in OVER or not found.entries:
        return None
    try:
        age = (now - datetime.fromisoformat(found.entries[-1].at)).total_seconds()
    except ValueError:
        return None
    if age < 600:
        return 5
    return 30 if age < 86_400 else None


def needs_live(state: str, *, later: bool) -> bool:
    """Tell whether a look at the cluster can add to what is recorded."""
    return not later and state not in CLOSED
