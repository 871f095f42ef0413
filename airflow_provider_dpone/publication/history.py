"""What the evidence tells about one operation, for people: what was known of it, and since when. Pure.

None of it says what is true now. It is shown beside what was just read, and in its place where nothing can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from airflow_provider_dpone.publication.record import (
    END_PHASES,
    PUBLISHED_PHASES,
    UNSENT_PHASES,
    Owner,
    Phase,
)
from airflow_provider_dpone.publication.stop import ANSWERS_ALIKE
from airflow_provider_dpone.publication.telling import told, told_writer
from airflow_provider_dpone.publication.trail import (
    Admission,
    Body,
    CandidateIntent,
    Classification,
    CleanupStep,
    CompareAndSwap,
    CompareAndSwapOutcome,
    DispatchOutcome,
    Entry,
    OperatorAction,
    PermitUnused,
    ReplicaSeen,
    Staged,
    StoredReceipt,
    TurnedAway,
)
from airflow_provider_dpone.publication.words import seconds_of, when

MOST_LINES: Final = 12
"""Most entries of a trail that are shown; `airflow dpone evidence show` has them all."""

ADMITTED: Final = "ADMITTED"
STAGED: Final = "STAGED"
"""What is said of an operation that is in no record yet."""


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a trail in words.

    :ivar at: seconds since the epoch on its writer's clock.
    :ivar who: the task and its try, or the operator.
    :ivar dag_id: the DAG of the task that wrote it; ``None``: no task did.
    """

    at: int
    what: str
    who: str
    dag_id: str | None = None

    def __str__(self) -> str:
        return f"{when(self.at)}: {self.what} ({self.who})"


@dataclass(frozen=True, slots=True)
class Refused:
    """An operation that was refused because another one holds the target; its source was not read.

    :ivar at: seconds since the epoch on its writer's clock.
    :ivar times: how often it was refused.
    """

    operation_id: str
    owner: Owner
    at: int
    times: int = 1

    def __str__(self) -> str:
        again = f", {self.times} times" if self.times > 1 else ""
        return (
            f"Operation {self.operation_id[:16]} ({self.owner}) was refused at {when(self.at)}{again}, before its "
            "source was read."
        )


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why an operation was given up, as it was written down before that was done.

    :ivar at: seconds since the epoch on its writer's clock.
    :ivar code: the code's name; ``None``: an operator did it.
    :ivar reason: the operator's.
    """

    at: int
    code: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """One operation, as its trail tells. Times are seconds since the epoch on the writers' clocks.

    :ivar state: the last phase that is known to be stored; ``ADMITTED`` or ``STAGED`` before there was any.
    :ivar since: when that was written down.
    :ivar begun: the phase of a later write whose outcome is not written down; ``None`` if there is none.
    :ivar at: of the newest entry.
    :ivar old: UUIDs that the live table had at admission; none if there was none.
    :ivar rows: of the staged candidate.
    :ivar candidates: name and UUIDs of every table that its attempts meant to create; the one that was staged last
        comes last.
    :ivar entry: the queue's entry of its swap, where it was seen.
    :ivar reply: what came back when its swap was sent: ``answered``, ``lost`` or ``refused``; ``None``: nothing is
        written down, as when the worker died.
    :ivar concluded: the newest classification's word, and when.
    :ivar seen: what that classification saw on each replica.
    :ivar given_up: the newest reason for which it may have been given up; whether it was, the record tells.
    :ivar kept: why a table could not be dropped, by its name: the code's name.
    :ivar task: the task that wrote last, and when.
    :ivar refused: who was turned away because of it.
    """

    operation_id: str
    authority_id: str | None
    owner: Owner | None
    state: str
    since: int
    begun: Phase | None
    at: int
    replicas: tuple[str, ...]
    old: frozenset[str]
    rows: int | None
    candidates: tuple[tuple[str, frozenset[str]], ...]
    entry: str | None
    reply: str | None
    replied_at: int | None
    concluded: str | None
    concluded_at: int | None
    seen: tuple[ReplicaSeen, ...]
    given_up: GivenUp | None
    kept: Mapping[str, str]
    task: Line | None
    refused: tuple[Refused, ...]
    lines: tuple[Line, ...]

    @property
    def stored(self) -> bool:
        """Tell whether a record of it is known to have been stored."""
        return self.state not in (ADMITTED, STAGED)

    @property
    def unresolved(self) -> bool:
        """Tell whether it held the target when it was heard of last."""
        return self.stored and Phase(self.state) not in END_PHASES | PUBLISHED_PHASES

    @property
    def sent(self) -> bool:
        """Tell whether a statement of it may have been sent."""
        if self.begun is Phase.DISPATCHING:
            return True
        return self.stored and Phase(self.state) not in UNSENT_PHASES | {Phase.ABORTED}

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that it meant to create."""
        return tuple(name for name, _ in self.candidates)

    @classmethod
    def of(cls, operation_id: str, entries: Iterable[Entry]) -> Past:
        """Return what a trail tells.

        :param entries: in the order in which they were written.
        """
        found = list(entries)
        bodies = [(seconds_of(entry.at), entry.body) for entry in found]
        admissions = [body for _, body in bodies if isinstance(body, Admission)]
        staged = [body for _, body in bodies if isinstance(body, Staged)]
        classified = [(at, body) for at, body in bodies if isinstance(body, Classification)]
        looked = [(at, body) for at, body in classified if body.observed_at is not None]
        swaps = [
            (at, b)
            for at, b in bodies
            if isinstance(b, DispatchOutcome) and b.statement in ("EXCHANGE", "RENAME")
        ]
        last = admissions[-1] if admissions else None
        state, since, begun = _state(bodies)
        tasks = [
            entry for entry in found if "task_id" in entry.about and not isinstance(entry.body, TurnedAway)
        ]
        return cls(
            operation_id=operation_id,
            authority_id=last.authority_id if last else None,
            owner=last.owner if last else None,
            state=state,
            since=since,
            begun=begun,
            at=max((at for at, _ in bodies), default=0),
            replicas=last.replicas if last else (),
            old=last.live.uuids if last and last.live else frozenset(),
            rows=staged[-1].rows if staged else None,
            candidates=_candidates(body for _, body in bodies),
            entry=next((b.entry for _, b in reversed(classified) if b.entry is not None), None),
            # Of a swap, the first reply counts: what came later was about a candidate that was parked.
            reply=swaps[0][1].reply if swaps else None,
            replied_at=swaps[0][0] if swaps else None,
            concluded=classified[-1][1].aggregate if classified else None,
            concluded_at=classified[-1][0] if classified else None,
            seen=looked[-1][1].replicas if looked else (),
            given_up=_given_up(bodies),
            kept={
                b.table: b.why for _, b in bodies if isinstance(b, CleanupStep) and b.step == "keep" and b.why
            },
            task=replace(_line(tasks[-1]), who=_task(tasks[-1])) if tasks else None,
            refused=_refused(bodies),
            lines=tuple(map(_line, found[-MOST_LINES:])),
        )


def _state(bodies: list[tuple[int, Body]]) -> tuple[str, int, Phase | None]:
    """Return the last phase that is known to be stored, since when, and a later one that may be."""
    stored: tuple[int, str, int] | None = None
    intents: dict[str, tuple[int, Phase]] = {}
    state, since = ADMITTED, 0
    for at, body in bodies:
        match body:
            case Admission() if stored is None:
                state, since = ADMITTED, at
            case Staged() if stored is None:
                state, since = STAGED, at
            case CompareAndSwap():
                intents[body.write_id] = (at, body.phase)
            case CompareAndSwapOutcome(write_id, phase, _, outcome, version):
                if outcome != "unknown":
                    intents.pop(write_id, None)
                if outcome == "stored" and version is not None and (stored is None or version >= stored[0]):
                    stored = (version, phase.value, at)
            case StoredReceipt(version, receipt) if stored is None or version > stored[0]:
                # It is made of a stored record, so that it tells the phase where the note of the write is missing.
                stored = (version, receipt.state.value, at)
                intents = {one: found for one, found in intents.items() if found[1] is not receipt.state}
            case PermitUnused(_, write_id):
                intents.pop(write_id, None)
            case _:
                pass
    if stored is not None:
        _, state, since = stored
    open_writes = [phase for at, phase in intents.values() if at >= since]
    return state, since, open_writes[-1] if open_writes else None


def _candidates(bodies: Iterable[Body]) -> tuple[tuple[str, frozenset[str]], ...]:
    found: dict[str, frozenset[str]] = {}
    for body in bodies:
        if isinstance(body, CandidateIntent | Staged):
            found.pop(body.table, None)
            found[body.table] = body.uuids
    return tuple(found.items())


def _given_up(bodies: Iterable[tuple[int, Body]]) -> GivenUp | None:
    found: GivenUp | None = None
    for at, body in bodies:
        match body:
            case CompareAndSwapOutcome(phase=Phase.ABORTED, outcome="stored"):
                # Whoever comes later finds it given up, and may have a reason of its own.
                break
            case Classification(aggregate=code, category=category, phase=phase) if (
                category in ANSWERS_ALIKE and phase in UNSENT_PHASES
            ):
                # What is waited for is no reason, and neither is what is said of an operation that has ended.
                found = GivenUp(at, code)
            case OperatorAction(action="abandon" | "resolve"):
                found = GivenUp(at, None, body.reason)
            case _:
                pass
    return found


def _refused(bodies: Iterable[tuple[int, Body]]) -> tuple[Refused, ...]:
    found: dict[str, Refused] = {}
    for at, body in bodies:
        if isinstance(body, TurnedAway):
            before = found.get(body.operation_id)
            times = before.times + 1 if before else 1
            found[body.operation_id] = Refused(body.operation_id, body.owner, at, times)
    return tuple(found.values())


def _line(entry: Entry) -> Line:
    dag_id = entry.about.get("dag_id")
    return Line(
        seconds_of(entry.at),
        told(entry.body),
        told_writer(entry),
        dag_id if isinstance(dag_id, str) else None,
    )


def _task(entry: Entry) -> str:
    """Return which task wrote an entry: not always one of the operation's own DAG."""
    about = entry.about
    return (
        f"task {about['task_id']} of DAG {about.get('dag_id')}, run {about.get('run_id')}, "
        f"try {about.get('try_number')}"
    )
