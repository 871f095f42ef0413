"""What the page shows, as plain values: made from the evidence, and from an explanation where one could be read.

Pure: no I/O and no clock. What was recorded and what was read just now are told by the same words, which are those of
``airflow dpone explain`` and of the stable codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum, unique
from typing import Final, TypeVar, assert_never

from airflow_provider_dpone.clickhouse.errors import told_code
from airflow_provider_dpone.evidence.layout import entry_name
from airflow_provider_dpone.evidence.reader import Trail, state_of
from airflow_provider_dpone.publication import trail as evidence
from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.commands import (
    UNKNOWN_CONNECTION,
    CommandTarget,
    evidence_command,
    explain_command,
    fitting_commands,
    orphans_command,
)
from airflow_provider_dpone.publication.explain_past import still_there
from airflow_provider_dpone.publication.explain_words import plain_words, readers_in_words, see_together
from airflow_provider_dpone.publication.explanation import (
    Explanation,
    Leftover,
    Shown,
    Way,
    generation_of,
)
from airflow_provider_dpone.publication.history import ADMITTED, STAGED, Past
from airflow_provider_dpone.publication.receipt import ReplicaReceipt
from airflow_provider_dpone.publication.record import (
    PUBLISHED_PHASES,
    AuthorityRecord,
    Owner,
    Phase,
    is_rollback,
)
from airflow_provider_dpone.publication.stop import MEANINGS, Category, Code
from airflow_provider_dpone.publication.telling import told, told_writer
from airflow_provider_dpone.publication.trail import (
    Admission,
    Classification,
    CleanupStep,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    Entry,
    OperatorAction,
    Staged,
    StoredReceipt,
    TurnedAway,
)
from airflow_provider_dpone.publication.words import when

BodyT = TypeVar("BodyT", Admission, Staged, Classification, StoredReceipt)

SENT: Final = frozenset({Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL})
"""Phases in which the one statement may be anywhere, and the outcome is not proven."""

_UNSENT: Final = frozenset({ADMITTED, STAGED, Phase.PREPARED})


@unique
class Tone(StrEnum):
    """What the first look tells. Each tone has a colour, a shape and, in :class:`Status`, a word."""

    HOLD = "hold"
    """Red: it does not go on by itself, a person has to act."""
    CARE = "care"
    """Amber: not proven yet; wait, or look again."""
    GOOD = "good"
    """Green: proven on every replica."""
    REST = "rest"
    """Grey: nothing of it is live, and nothing is on its way."""


@dataclass(frozen=True, slots=True)
class Status:
    """Tone and word."""

    tone: Tone
    word: str


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What could be read from the cluster while the page was made.

    :ivar explanation: ``None`` if nothing could be read, or nothing needed to be.
    :ivar age: seconds since the look began.
    :ivar why_not: in a sentence, why there is no explanation; empty if there is one.
    """

    explanation: Explanation | None
    age: float = 0.0
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Where the replicas' facts come from.

    :ivar live: read while the page was made.
    :ivar text: since when they are true, and why they are not live.
    """

    live: bool
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """One phase of the timeline.

    :ivar state: ``done``, ``current``, ``todo`` or ``failed``.
    :ivar at: when it was reached: UTC, as text.
    :ivar after: how long after the step before.
    """

    title: str
    state: str
    at: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table in the matrix: which generation, and its UUID."""

    generation: str
    uuid: str = ""

    @property
    def short(self) -> str:
        """The UUID's first eight digits."""
        return self.uuid[:8]


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica in the matrix.

    :ivar role: shard and replica number in words.
    :ivar ddl: how the queue's entry ended there, with what its code means.
    :ivar content: whether the content of its candidate was compared.
    :ivar healthy: ``None``: not known.
    :ivar seen: when it was looked at.
    """

    alias: str
    role: str
    status: Status
    target: Cell
    candidate: Cell
    ddl: Status
    rows: str
    content: str
    health: str
    healthy: bool | None
    seen: str


@dataclass(frozen=True, slots=True)
class TrailRow:
    """One entry of the evidence."""

    at: str
    kind: str
    what: str
    who: str


@dataclass(frozen=True, slots=True)
class Detail:
    """A fact with its name. ``code``: it is an identifier or a number, to be copied."""

    name: str
    value: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Facts that belong together."""

    title: str
    details: tuple[Detail, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Everything that the page shows about one operation.

    :ivar what: what happened, the most important first.
    :ivar safe: whether readers are affected, and what they see.
    :ivar readers: the same at a glance; ``None`` where another operation decides it.
    :ivar next: what is safe next.
    :ivar never: what would destroy something.
    :ivar code: of what stops it.
    :ivar remembered: nothing could be read, so that all that is said was written down before.
    :ivar unproven: what is not known, and why.
    :ivar waiting: who waits for what.
    :ivar refused: who was refused because this operation holds the table.
    :ivar leftovers: tables of this operation that nobody reads.
    :ivar cleanup: what became of the replaced table.
    :ivar left_alone: entries that this release can't use, with the reason.
    :ivar refresh: after how many seconds the page loads itself again; ``None``: it has ended.
    """

    operation_id: str
    cluster: str
    target: str
    owner: Owner | None
    state: str
    status: Status
    what: tuple[str, ...]
    safe: str
    readers: Status | None
    next: tuple[str, ...]
    never: tuple[str, ...]
    code: str | None
    remembered: bool
    unproven: tuple[str, ...]
    waiting: tuple[str, ...]
    refused: tuple[str, ...]
    leftovers: tuple[str, ...]
    facts: Facts
    steps: tuple[Step, ...]
    replicas: tuple[ReplicaRow, ...]
    commands: tuple[str, ...]
    blocked: tuple[str, ...]
    warnings: tuple[str, ...]
    dependents: tuple[str, ...]
    cleanup: tuple[str, ...]
    groups: tuple[Group, ...]
    trail: tuple[TrailRow, ...]
    left_alone: tuple[str, ...]
    refresh: int | None


# ---- the parts of a trail


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a trail says, by its kinds. ``None``: it does not say.

    :ivar state: how far the operation came, as the list of operations says it.
    :ivar version: of the record that its last stored write made; ``None`` if there is none.
    :ivar reached: phase -> when its write was acknowledged; where nobody noted that, when the write was sent.
    """

    operation_id: str
    entries: tuple[Entry, ...]
    state: str
    version: int | None
    reached: Mapping[str, str]
    admission: Admission | None
    staged: Staged | None
    classification: Classification | None
    classified_at: str
    receipt: StoredReceipt | None
    receipt_at: str
    conn_id: str | None

    @property
    def stop(self) -> Classification | None:
        """The classification that says why it does not go on now; ``None`` if the last one says no such thing."""
        last = self.classification
        if last is None or last.category is None:
            return None
        return last if self.version is None or last.version >= self.version else None

    @property
    def why_ended(self) -> Classification | None:
        """The last classification that named a reason."""
        found = [e.body for e in self.entries if isinstance(e.body, Classification) and e.body.category]
        return found[-1] if found else None


def recorded(trail: Trail) -> Recorded:
    """Return what a trail says."""
    entries = trail.entries
    reached: dict[str, str] = {}
    intended: dict[str, str] = {}
    version: int | None = None
    for entry in entries:
        match entry.body:
            case Admission():
                reached.setdefault(ADMITTED, entry.at)
            case Staged():
                reached[STAGED] = entry.at
            case CompareAndSwap() as write:
                intended[write.phase] = entry.at
            case CompareAndSwapOutcome(outcome="stored") as write:
                reached[write.phase] = entry.at
                version = max(version or 0, write.version or 0)
            case StoredReceipt() as proof:
                reached.setdefault(Phase.COMMITTED, entry.at)
                version = max(version or 0, proof.version)
            case _:
                pass
    state = state_of(map(entry_name, entries))
    # A note may be missing. What must have come before is then as old as the write that made it.
    for phase in _ORDER[: _ORDER.index(state) + 1] if state in _ORDER else ():
        if phase in intended:
            reached.setdefault(phase, intended[phase])
    classified = _last(entries, Classification)
    proven = _last(entries, StoredReceipt)
    return Recorded(
        operation_id=trail.operation_id,
        entries=entries,
        state=state,
        version=version,
        reached=reached,
        admission=_body(_last(entries, Admission), Admission),
        staged=_body(_last(entries, Staged), Staged),
        classification=_body(classified, Classification),
        classified_at=classified.at if classified else "",
        receipt=_body(proven, StoredReceipt),
        receipt_at=proven.at if proven else "",
        conn_id=connection_of(entries),
    )


def connection_of(entries: Iterable[Entry]) -> str | None:
    """Return the connection that the last admitted attempt used; ``None`` if its evidence doesn't tell."""
    found = [entry.about.get("conn_id") for entry in entries if isinstance(entry.body, Admission)]
    last = found[-1] if found else None
    return last if isinstance(last, str) else None


def _last(entries: Sequence[Entry], kind: type[evidence.Body]) -> Entry | None:
    return next((entry for entry in reversed(entries) if isinstance(entry.body, kind)), None)


def _body(entry: Entry | None, kind: type[BodyT]) -> BodyT | None:
    return entry.body if entry is not None and isinstance(entry.body, kind) else None


# ---- the status


_STATUS: Final[Mapping[str, Status]] = {
    ADMITTED: Status(Tone.REST, "Staging"),
    STAGED: Status(Tone.REST, "Staged"),
    Phase.PREPARED: Status(Tone.REST, "Ready"),
    Phase.DISPATCHING: Status(Tone.CARE, "In progress"),
    Phase.BOUND: Status(Tone.CARE, "In progress"),
    Phase.TERMINAL: Status(Tone.CARE, "In progress"),
    Phase.COMMITTED: Status(Tone.GOOD, "Published"),
    Phase.COMPLETED_RETAINING: Status(Tone.GOOD, "Published"),
    Phase.COMPLETED: Status(Tone.GOOD, "Published"),
    Phase.ABORTED: Status(Tone.REST, "Not published"),
}


def status_of(state: str, stop: Category | None = None, *, later: bool = False) -> Status:
    """Return tone and word of an operation.

    :param state: its phase, or ``ADMITTED`` or ``STAGED``.
    :param stop: the category of what stops it now.
    :param later: a later operation was prepared for the same table since.
    """
    if later and state in _UNSENT:
        return Status(Tone.REST, "Given up")
    if later and state in SENT:
        return Status(Tone.REST, "Ended")
    found = _STATUS.get(state, Status(Tone.CARE, "Unknown"))
    if stop is None or state in PUBLISHED_PHASES or state == Phase.ABORTED:
        return found
    match stop:
        case Category.CONTRADICTION | Category.PARTIAL_TERMINAL:
            return Status(Tone.HOLD, "On hold")
        case Category.NOT_OBSERVED:
            return Status(Tone.CARE, "Not observed")
        case Category.IN_PROGRESS:
            return found
        case Category.REFUSED | Category.RETRYABLE | Category.CONFLICT:
            return Status(Tone.CARE, "Stopped") if state in _UNSENT else found
        case _:
            assert_never(stop)


# ---- the words


_WHAT: Final[Mapping[str, str]] = {
    ADMITTED: "The new rows are being loaded into a table beside the live one.",
    STAGED: "The new rows are loaded and equal on every replica. The publication is not prepared yet.",
    Phase.PREPARED: "The new rows are ready on every replica. The swap was not sent yet.",
    Phase.DISPATCHING: "The swap was permitted once and may have been sent. It will not be sent again.",
    Phase.BOUND: "The swap is in the queue, and the replicas work on it.",
    Phase.TERMINAL: "The swap has ended on every replica. What each one holds is being proven.",
    Phase.COMMITTED: "The new data is live, and that is proven on every replica.",
    Phase.COMPLETED_RETAINING: "The new data is live, and that is proven on every replica.",
    Phase.COMPLETED: "The new data is live, and that is proven on every replica. The replaced table is dropped.",
    Phase.ABORTED: "It was closed as not published. None of its data is live.",
}

_SAFE: Final[Mapping[str, str]] = {
    ADMITTED: "Readers are not affected: the live table is only read.",
    STAGED: "Readers are not affected: the live table is only read.",
    Phase.PREPARED: "Readers are not affected: nothing was sent for this operation.",
    Phase.ABORTED: "Readers are not affected: it changed nothing for them.",
}

_NEXT: Final[Mapping[str, str]] = {
    ADMITTED: "Nothing to do while the stage task runs. If it has failed, its log says why, and a retry stages anew.",
    STAGED: "Nothing to do while the stage task runs. If it has failed, its log says why, and a retry goes on.",
    Phase.PREPARED: "Let the publish task run. If it has failed, its log says why; clearing it goes on from here.",
    Phase.DISPATCHING: "Wait, and let the publish task (or a later run) observe again.",
    Phase.BOUND: "Wait, and let the publish task (or a later run) observe again.",
    Phase.TERMINAL: "Wait, and let the publish task (or a later run) observe again.",
    Phase.COMMITTED: "Nothing to do. The cleanup task, or the next refresh of the table, drops the replaced table.",
    Phase.COMPLETED_RETAINING: "Nothing to do. The replaced table is dropped when it is due.",
    Phase.COMPLETED: "Nothing to do.",
    Phase.ABORTED: "Nothing to do. A new run stages anew.",
}

_LOST: Final = (
    "The evidence knows this operation's record, but the cluster has no record of the table: the control table may "
    "have been dropped or replaced."
)
_RECOVERED: Final = (
    "The control table was recovered since: it is a new one, and has no record of this operation. How the operation "
    "ended is not in its own trail."
)
_GIVEN_UP: Final = (
    "It was given up: a later operation was prepared for the same table, and this one can do nothing more."
)
_FOLLOWED: Final = (
    "A later operation was prepared for the same table, so this one has ended. How is not in its own trail."
)


@dataclass(frozen=True, slots=True)
class _Words:
    status: Status
    what: tuple[str, ...]
    safe: str
    affected: bool | None
    next: tuple[str, ...]
    never: tuple[str, ...] = ()
    code: str | None = None
    elsewhere: bool = False
    """What readers see is decided by another operation."""


def _words(found: Recorded, state: str, told_live: Explanation | None, recorded_by: _Record) -> _Words:
    if recorded_by is _Record.LOST:
        meaning = MEANINGS[Code.CONTROL_TABLE_LOST]
        return _Words(
            _HELD,
            (_LOST, meaning.meaning),
            _NOT_KNOWN,
            None,
            (meaning.next_action,),
            code=Code.CONTROL_TABLE_LOST,
        )
    if recorded_by is _Record.RECOVERED and (state in _UNSENT or state in SENT):
        return _Words(
            Status(Tone.REST, "Ended"),
            (_RECOVERED,),
            "Look at the table's newest operation, or explain the table: they tell what readers see.",
            None,
            ("Nothing to do here.",),
            elsewhere=True,
        )
    if recorded_by is _Record.LATER and (state in _UNSENT or state in SENT):
        return _Words(
            status_of(state, later=True),
            (_GIVEN_UP if state in _UNSENT else _FOLLOWED,),
            "Look at the later operation: it is the one that decides what readers see.",
            None,
            ("Nothing to do here.",),
            elsewhere=True,
        )
    if told_live is not None:
        stop = told_live.stop
        return _Words(
            _status_told(found, state, told_live),
            (told_live.plain, *told_live.happened),
            told_live.readers,
            told_live.affected,
            (*told_live.next, *_repairs(told_live)),
            told_live.never if told_live.held or not told_live.read else (),
            stop.code if stop else None,
        )
    stopped = found.stop if state in SENT or state == Phase.PREPARED else None
    if stopped is not None:
        code = _code(stopped.aggregate)
        return _Words(
            status_of(state, stopped.category),
            (MEANINGS[code].meaning if code else f"It is stopped by {stopped.aggregate}.", _WHAT[state]),
            *_safe(found, state),
            (
                MEANINGS[code].next_action
                if code
                else "Upgrade the provider: this release doesn't know the reason.",
            ),
            code=code.value if code else stopped.aggregate,
        )
    first = found.admission is not None and found.admission.live is None
    told_as = Phase.COMMITTED if first and state == Phase.COMPLETED else state
    what = [_WHAT.get(told_as, f"Its phase is {state}, which this release doesn't know.")]
    why = found.why_ended if state == Phase.ABORTED else None
    code = _code(why.aggregate) if why else None
    if code is not None:
        what.append(MEANINGS[code].meaning)
    return _Words(
        status_of(state),
        tuple(what),
        *_safe(found, state),
        (_NEXT.get(state, "Upgrade the provider on the api-server."),),
        code=code.value if code else None,
    )


def _repairs(told_live: Explanation) -> Iterator[str]:
    """Statements are no matter of a page: the command shows them to whoever may run it."""
    pending = [alias for alias, one in told_live.replicas.items() if one.repair is not None]
    if pending:
        yield f"`airflow dpone explain` shows the statement for {', '.join(pending)}."


def _code(name: str) -> Code | None:
    return Code.__members__.get(name)


def _status_told(found: Recorded, state: str, told_live: Explanation) -> Status:
    stop = told_live.stop
    if told_live.read:
        return status_of(state, stop.category if stop is not None and told_live.held else None)
    if stop is not None and stop.code in (Code.CONTROL_TABLE_LOST, Code.CONTROL_TABLE_MISSING):
        return _HELD
    recorded_stop = status_of(state, found.stop.category if found.stop else None)
    if state in SENT and recorded_stop.tone is not Tone.HOLD:
        return status_of(state, Category.NOT_OBSERVED)
    return recorded_stop


_HELD: Final = Status(Tone.HOLD, "On hold")
_NOT_KNOWN: Final = "It is not known what readers see."


def _safe(found: Recorded, state: str) -> tuple[str, bool | None]:
    """Return whether readers are affected, as far as it is recorded: in words and in one."""
    if state in _SAFE:
        return _SAFE[state], False
    live = {row.alias: row.target.generation for row in _recorded_replicas(found, state)}
    if not live:
        return _NOT_KNOWN, None
    missing = found.admission is not None and found.admission.live is not None
    affected = see_together(live, missing=missing)
    return f"When last seen: {readers_in_words(affected, live, missing=missing)}", affected


def _readers(affected: bool | None, status: Status) -> Status:
    match affected:
        case True:
            return Status(Tone.HOLD if status.tone is Tone.HOLD else Tone.CARE, "Affected")
        case False:
            return Status(Tone.GOOD, "Not affected")
        case None:
            return Status(Tone.CARE, "Not known")
        case _:
            assert_never(affected)


# ---- an explanation, narrowed to one operation


@unique
class _Record(StrEnum):
    """Whose the record is, as far as the page knows."""

    OWN = "own"
    LATER = "later"
    """A later operation was prepared for the same table."""
    LOST = "lost"
    RECOVERED = "recovered"


def _record_of(found: Recorded, state: str, told_live: Explanation, operation_id: str) -> _Record:
    if (record := told_live.record) is not None:
        return _Record.OWN if record.operation_id == operation_id else _Record.LATER
    if not told_live.read or state in _ENDED:
        return _Record.OWN
    mine = found.admission.authority_id if found.admission else None
    recovered = None not in (mine, told_live.authority_id) and mine != told_live.authority_id
    return _Record.RECOVERED if recovered else _Record.LOST


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


def _told(entry: Entry, dag_id: str | None) -> str:
    if isinstance(entry.body, TurnedAway) and entry.body.owner.dag_id != dag_id:
        return f"{entry.body.code}: an operation of another DAG was refused, its source was not read"
    return told(entry.body)


# ---- the replicas


def _live_replicas(
    found: Recorded, told_live: Explanation, state: str, stop: Category | None
) -> Iterator[ReplicaRow]:
    seen = f"{when(told_live.observed_at)}" if told_live.observed_at is not None else ""
    for alias, one in told_live.replicas.items():
        problem = one.target.problem if one.target.uuid else None
        known = one.state is not ReplicaState.NOT_OBSERVED and one.target.uuid is not None
        rows = one.target.rows
        yield ReplicaRow(
            alias=alias,
            role=_role(alias),
            status=_replica_status(one.state, state, stop),
            target=_cell(one.target),
            candidate=_cell(one.candidate),
            ddl=_ddl(one.queue, one.exception_code, recorded=not told_live.read),
            rows="" if rows is None else f"{rows:,}",
            content=_content(found, alias),
            health=(problem or "healthy") if known else "not known",
            healthy=problem is None if known else None,
            seen=seen if one.state is not ReplicaState.NOT_OBSERVED else "can't be read now",
        )


def _recorded_replicas(found: Recorded, state: str) -> Iterator[ReplicaRow]:
    new = found.staged.uuid if found.staged else None
    old = found.admission.live.uuid if found.admission and found.admission.live else None
    rows = f"{found.staged.rows:,}" if found.staged else ""

    def cell(uuid: str | None) -> Cell:
        return Cell(generation_of(uuid, new=new, old=old), uuid or "")

    proof = found.receipt.receipt if found.receipt else None
    if proof is not None and found.receipt_at >= found.classified_at:
        for one in proof.replicas:
            yield ReplicaRow(
                alias=one.alias,
                role=_role(one.alias),
                status=Status(Tone.GOOD, "new data is live"),
                target=cell(one.after.target),
                candidate=cell(one.after.candidate),
                ddl=_ddl(one.queue, one.exception_code),
                rows=f"{one.rows:,}",
                content=_content(found, one.alias, one),
                health="not recorded",
                healthy=None,
                seen=_clock(found.receipt_at),
            )
        return
    last = found.classification
    seen = {} if last is None else {one.alias: one for one in last.replicas}
    at = "" if last is None else _clock(found.classified_at)
    aliases = list(seen) or list(found.admission.replicas if found.admission else ())
    for alias in aliases:
        replica = seen.get(alias)
        names = replica.names if replica else None
        looked_at = replica is not None and replica.state is not None
        yield ReplicaRow(
            alias=alias,
            role=_role(alias),
            status=_replica_status(
                replica.state if replica else None, state, last.category if last else None
            ),
            target=cell(names.target) if names else Cell("unknown"),
            candidate=cell(names.candidate) if names else Cell("unknown"),
            ddl=_ddl(replica.queue, replica.exception_code) if replica else _ddl(None, None),
            rows=rows if alias in (found.staged.replicas if found.staged else ()) else "",
            content=_content(found, alias),
            health="not recorded",
            healthy=None,
            seen=at if looked_at else "not looked at",
        )


def _replica_status(seen: ReplicaState | None, state: str, stop: Category | None) -> Status:
    match seen:
        case None:
            return Status(Tone.REST, "not looked at")
        case ReplicaState.COMMITTED | ReplicaState.CLEANED:
            return Status(Tone.GOOD, "new data is live")
        case ReplicaState.PENDING:
            if state not in SENT:
                return Status(Tone.REST, "old data is live")
            held = stop in (Category.PARTIAL_TERMINAL, Category.CONTRADICTION)
            return Status(Tone.HOLD if held else Tone.CARE, "old data is live")
        case ReplicaState.NOT_OBSERVED:
            return Status(Tone.CARE, "can't be read")
        case ReplicaState.REPLACED:
            return Status(Tone.HOLD, "another server")
        case ReplicaState.UNKNOWN:
            # After the end the table goes on to live without this operation.
            ended = state in PUBLISHED_PHASES or state == Phase.ABORTED
            return Status(Tone.REST, "changed since") if ended else Status(Tone.HOLD, "neither generation")
        case _:
            assert_never(seen)


def _ddl(queue: str | None, code: int | None, *, recorded: bool = False) -> Status:
    """Return how the queue's entry ended on a replica.

    :param recorded: beside facts of now, it was written down before.
    """
    before = ", as recorded" if recorded else ""
    if code:
        return Status(Tone.HOLD, f"failed: {told_code(code)}{before}")
    match queue:
        case None:
            return Status(Tone.REST, "not known")
        case "finished":
            return Status(Tone.GOOD, f"finished{before}")
        case "in progress":
            return Status(Tone.CARE, f"in progress{before}")
        case _:
            return Status(Tone.CARE, f"{queue}{before}")


def _cell(one: Shown) -> Cell:
    return Cell(one.generation, one.uuid or "")


def _content(found: Recorded, alias: str, proof: ReplicaReceipt | None = None) -> str:
    if proof is not None:
        return "equal" if proof.content_match else "differs"
    dispatchable = any(
        isinstance(e.body, Classification)
        and e.body.aggregate == evidence.Proven.DISPATCHABLE
        and any(one.alias == alias for one in e.body.replicas)
        for e in found.entries
    )
    if dispatchable:
        return "equal before the swap"
    return "equal when staged" if found.staged and alias in found.staged.replicas else "not compared"


def _role(alias: str) -> str:
    shard, _, replica = alias.partition("/")
    if shard[:1] == "s" and replica[:1] == "r" and shard[1:].isdecimal() and replica[1:].isdecimal():
        return f"shard {shard[1:]}, replica {replica[1:]}"
    return ""


# ---- the timeline


_ORDER: Final[Sequence[str]] = (
    ADMITTED,
    STAGED,
    Phase.PREPARED,
    Phase.DISPATCHING,
    Phase.BOUND,
    Phase.TERMINAL,
    Phase.COMMITTED,
    Phase.COMPLETED,
)

_TITLES: Final[Mapping[str, str]] = {
    ADMITTED: "Admitted",
    STAGED: "Staged, equal everywhere",
    Phase.PREPARED: "Prepared",
    Phase.DISPATCHING: "Permit for one swap",
    Phase.BOUND: "Entry bound",
    Phase.TERMINAL: "Ended on every replica",
    Phase.COMMITTED: "Proven live",
    Phase.COMPLETED: "Cleaned up",
    Phase.COMPLETED_RETAINING: "Target free, old table kept",
    Phase.ABORTED: "Closed, not published",
}


def _timeline(found: Recorded, state: str, status: Status) -> tuple[Step, ...]:
    order = list(_ORDER)
    if state == Phase.COMPLETED_RETAINING or (
        Phase.COMPLETED_RETAINING in found.reached and state != Phase.COMPLETED
    ):
        order[-1] = Phase.COMPLETED_RETAINING
    elif Phase.COMPLETED_RETAINING in found.reached:
        order.insert(-1, Phase.COMPLETED_RETAINING)
    if state == Phase.ABORTED:
        order = [phase for phase in order if phase in found.reached and phase not in PUBLISHED_PHASES]
        order.append(Phase.ABORTED)
    now = order.index(state) if state in order else -1
    steps: list[Step] = []
    before = ""
    for number, phase in enumerate(order):
        at = found.reached.get(phase, "")
        if number < now or (number == now and (state in _ENDED or state == Phase.COMMITTED)):
            kind = "done"
        elif number == now:
            kind = "failed" if status.tone is Tone.HOLD else "current"
        else:
            kind, at = "todo", ""
        steps.append(Step(_TITLES[phase], kind, _clock(at) if at else "", _between(before, at)))
        before = at or before
    return tuple(steps)


_ENDED: Final = frozenset({Phase.COMPLETED, Phase.COMPLETED_RETAINING, Phase.ABORTED})


def _clock(at: str) -> str:
    """A time of the evidence for people: whole seconds, UTC."""
    return f"{at[:10]} {at[11:19]} UTC" if len(at) >= 19 else at


def _between(before: str, at: str) -> str:
    if not before or not at:
        return ""
    try:
        seconds = (datetime.fromisoformat(at) - datetime.fromisoformat(before)).total_seconds()
    except ValueError:
        return ""
    return "" if seconds < 0 else f"+{duration(seconds)}"


def duration(seconds: float) -> str:
    """Return a length of time in words: two units at most."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


# ---- everything below the matrix


def _groups(
    found: Recorded, record: AuthorityRecord | None, told_live: Explanation | None
) -> tuple[Group, ...]:
    groups = (
        Group("Operation", tuple(_operation(found))),
        Group("Queue entry", tuple(_entry(found, record, told_live))),
        Group("Tables", tuple(_tables(found, record))),
        Group("Content", tuple(_data(found))),
        Group("Plan and authority", tuple(_plan(found, record))),
    )
    return tuple(group for group in groups if group.details)


def _operation(found: Recorded) -> Iterator[Detail]:
    yield Detail("Operation", found.operation_id, code=True)
    if (admission := found.admission) is None:
        return
    owner = admission.owner
    if is_rollback(owner):
        yield Detail("Began by", "an operator's rollback")
        yield Detail("Undoes operation", owner.run_id, code=True)
    else:
        yield Detail("DAG", owner.dag_id, code=True)
        yield Detail("Run", owner.run_id, code=True)
        index = "" if owner.map_index < 0 else f", map index {owner.map_index}"
        yield Detail("Stage task", f"{owner.task_id}{index}", code=True)
    yield Detail(
        "Order key", admission.order_key or "none: runs are not ordered", code=bool(admission.order_key)
    )
    if found.conn_id is not None:
        yield Detail("Connection", found.conn_id, code=True)


def _entry(
    found: Recorded, record: AuthorityRecord | None, told_live: Explanation | None
) -> Iterator[Detail]:
    publication = record.publication if record else None
    entries = [
        e.body.entry for e in found.entries if isinstance(e.body, Classification) and e.body.entry is not None
    ]
    proof = found.receipt.receipt if found.receipt else None
    entry = (publication.entry if publication else None) or (proof.entry if proof else None)
    entry = entry or (entries[-1] if entries else None)
    if entry is not None:
        yield Detail("Bound entry", entry, code=True)
    sends = [
        e.body for e in found.entries if isinstance(e.body, DispatchOutcome) and e.body.statement != "DROP"
    ]
    if sends:
        last = sends[-1]
        yield Detail("Statement", f"{last.statement}, sent once in epoch {last.epoch}")
        code = f": {told_code(last.exception_code)}" if last.exception_code else ""
        yield Detail("Reply", f"{last.reply}{code}")
        yield Detail("Token", last.token, code=True)
    elif publication is not None:
        yield Detail("Epoch", str(publication.epoch))
        yield Detail("Token", publication.token, code=True)
    if told_live is not None and told_live.newer_entries is not None:
        yield Detail("Newer entries", f"{told_live.newer_entries:,}; the queue forgets it after 1,000")


def _tables(found: Recorded, record: AuthorityRecord | None) -> Iterator[Detail]:
    admission, staged = found.admission, found.staged
    if admission is not None:
        yield Detail("Target", f"{admission.database}.{admission.table}", code=True)
        if admission.live is not None:
            yield Detail("Old table's UUID", admission.live.uuid, code=True)
        else:
            yield Detail("Old table", "there was none")
    if staged is not None:
        yield Detail("New table's UUID", staged.uuid, code=True)
        yield Detail("Candidate", record.candidate if record else staged.table, code=True)
    if admission is not None:
        kept = duration(admission.retention) if admission.retention else "not kept"
        yield Detail("Old table is kept for", kept)
        for line in admission.schema_difference:
            yield Detail("Structure changed", line)


def _data(found: Recorded) -> Iterator[Detail]:
    if found.staged is not None:
        yield Detail("Rows", f"{found.staged.rows:,}")
        if found.staged.source_rows is not None:
            yield Detail("Rows the source gave", f"{found.staged.source_rows:,}")
        yield Detail("Bytes", f"{found.staged.bytes:,}")
        content = found.staged.content
        yield Detail("Digest (city)", content.city, code=True)
        yield Detail("Digest (xxh3)", content.xxh3, code=True)
    if found.admission is not None and found.admission.live_rows is not None:
        yield Detail("Live rows at admission", f"{found.admission.live_rows:,}")


def _plan(found: Recorded, record: AuthorityRecord | None) -> Iterator[Detail]:
    if found.admission is not None:
        yield Detail("Plan digest", found.admission.plan_digest, code=True)
        yield Detail("Inventory digest", found.admission.inventory_digest, code=True)
        yield Detail("Authority", found.admission.authority_id, code=True)
        yield Detail("Record", found.admission.target_key, code=True)
    if found.version is not None:
        yield Detail("Record's version", str(found.version))
    if record is not None:
        yield Detail("Fence token", record.fence_token, code=True)


def _cleanup(found: Recorded, record: AuthorityRecord | None, state: str) -> Iterator[str]:
    if state not in PUBLISHED_PHASES:
        actions = [e.body for e in found.entries if isinstance(e.body, OperatorAction)]
        if actions:
            yield f"An operator's last step: {told(actions[-1])}."
        return
    steps = [e.body for e in found.entries if isinstance(e.body, CleanupStep)]
    if found.admission is not None and found.admission.live is None:
        yield "There was no table before, so there is nothing to drop."
    elif state == Phase.COMPLETED:
        yield "The replaced table is gone on every replica."
    elif state == Phase.COMMITTED:
        yield "The replaced table is still there. Cleanup has not begun."
    kept = record.retained if record else ()
    for item in kept:
        yield f"{item.name} is kept until {when(item.drop_after)}."
    if not kept and state == Phase.COMPLETED_RETAINING:
        proof = found.receipt.receipt if found.receipt else None
        for one in proof.retained if proof else ():
            yield f"{one.table} is kept until {when(one.drop_after)}."
        yield "The replaced table is listed, to be dropped when it is due."
    if steps and steps[-1].step == "keep" and state != Phase.COMPLETED:
        code = _code(steps[-1].why or "")
        code = code or next((one for one in Code if one.value == steps[-1].why), None)
        why = MEANINGS[code].meaning if code else (steps[-1].why or "")
        yield f"{steps[-1].table} can't be dropped now. {why}"


def _warnings(found: Recorded, told_live: Explanation | None) -> Iterator[str]:
    if told_live is not None:
        yield from told_live.warnings
    proof = found.receipt.receipt if found.receipt else None
    yield from dict.fromkeys(
        (*(found.admission.warnings if found.admission else ()), *(proof.warnings if proof else ()))
    )


# ---- the whole


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
    unprepared = state in (ADMITTED, STAGED)
    attempts = _attempts(live.explanation, past) if unprepared else ()
    told_live = None if unprepared else live.explanation
    if (
        told_live is not None
        and not told_live.read
        and told_live.operation_id not in (None, past.operation_id)
    ):
        told_live = None
    recorded_by = _Record.LATER if later else _Record.OWN
    if told_live is not None:
        recorded_by = _record_of(found, state, told_live, trail.operation_id)
        record = told_live.record
        if recorded_by is _Record.LATER and record is not None:
            settled = record.find_settled(trail.operation_id)
            state = settled.outcome.value if settled else state
        elif record is not None:
            state = record.phase.value
        own = recorded_by is _Record.OWN and (record is not None or not told_live.read)
        told_live = _narrowed(told_live, past) if own else None
    own_record = told_live.record if told_live is not None else None
    words = _words(found, state, told_live, recorded_by)
    target = CommandTarget(
        found.conn_id or UNKNOWN_CONNECTION,
        cluster,
        admission.database if admission else "...",
        admission.table if admission else "...",
    )
    ends = words.status.tone is not Tone.CARE and words.status.tone is not Tone.HOLD
    commands = () if told_live is None else fitting_commands(told_live, target)
    if not ends or state == Phase.PREPARED:
        commands = (explain_command(target), *commands)
    if attempts:
        commands = (orphans_command(target),)
    over = recorded_by is not _Record.OWN
    return Receipt(
        operation_id=trail.operation_id,
        cluster=cluster,
        target=f"{admission.database}.{admission.table}" if admission else "",
        owner=owner,
        state=state,
        status=words.status,
        what=words.what,
        safe=words.safe,
        readers=None if words.elsewhere else _readers(words.affected, words.status),
        next=words.next,
        never=words.never,
        code=words.code,
        remembered=told_live is not None and not told_live.read,
        unproven=told_live.unproven if told_live is not None else (),
        waiting=tuple(_waiting(told_live, dag_id)),
        refused=tuple(_refused(past, dag_id)),
        leftovers=tuple(map(str, told_live.leftovers if told_live is not None else attempts)),
        facts=_facts(found, told_live, live),
        steps=_timeline(found, state, words.status),
        replicas=tuple(_replicas(found, told_live, state)),
        commands=(*commands, evidence_command(cluster, trail.operation_id)),
        blocked=tuple(map(str, told_live.blocked)) if told_live is not None else (),
        warnings=tuple(_warnings(found, told_live)),
        dependents=(own_record.dependents if own_record else None)
        or (admission.dependents if admission else ()),
        cleanup=tuple(_cleanup(found, own_record, state)),
        groups=_groups(found, own_record, told_live),
        trail=tuple(
            TrailRow(_clock(entry.at), entry.body.kind, _told(entry, dag_id), told_writer(entry))
            for entry in trail.entries
        ),
        left_alone=tuple(f"{name} {why}." for name, why in trail.unknown),
        refresh=None if over else _refresh(found, state, now),
    )


def _replicas(found: Recorded, told_live: Explanation | None, state: str) -> Iterator[ReplicaRow]:
    if told_live is None or not told_live.replicas or told_live.observed_at is None:
        return _recorded_replicas(found, state)
    stop = told_live.stop.category if told_live.stop is not None else None
    return _live_replicas(found, told_live, state, stop)


def _facts(found: Recorded, told_live: Explanation | None, live: LiveFacts) -> Facts:
    age = f", {duration(live.age)} ago" if live.age >= 10 else ""
    observed_at = told_live.observed_at if told_live is not None else None
    if told_live is not None and told_live.read and observed_at is not None:
        return Facts(live=True, text=f"Read from the cluster at {when(observed_at)}{age}.")
    at = max(found.receipt_at, found.classified_at) or (found.entries[-1].at if found.entries else "")
    said = [f"Recorded at {_clock(at)}." if at else "Nothing is recorded about the replicas."]
    unread = live.explanation if live.explanation is not None and not live.explanation.read else None
    if unread is not None and unread.stop is not None:
        said.append(f"Not live: {unread.stop.message}")
    if observed_at is not None:
        said.append(f"Only the tables below were looked at now, at {when(observed_at)}{age}.")
    return Facts(live=False, text=" ".join([*said, *([live.why_not] if live.why_not else [])]))


def _refresh(found: Recorded, state: str, now: datetime) -> int | None:
    """Seconds until the page is loaded again: soon while something happens, and seldom where it has stopped."""
    if state in _ENDED or state == Phase.COMMITTED or not found.entries:
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
    return not later and state not in (Phase.COMPLETED, Phase.ABORTED)
