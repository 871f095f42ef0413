"""What happened, whether it is safe, and what is next: in plain words.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final, assert_never

from airflow_provider_dpone.publication.explain_words import (
    changed_since,
    readers_in_words,
    see_together,
    seen_in_words,
)
from airflow_provider_dpone.publication.explanation import WAYS, Explanation, Way
from airflow_provider_dpone.publication.history import ADMITTED, STAGED
from airflow_provider_dpone.publication.record import PUBLISHED_PHASES, Phase
from airflow_provider_dpone.publication.stop import MEANINGS, Category, Code
from airflow_provider_dpone.web.matrix import recorded_rows
from airflow_provider_dpone.web.recorded import Recorded
from airflow_provider_dpone.web.status import HELD, SENT, UNSENT, Status, Tone, status_of


@unique
class RecordOwner(StrEnum):
    """Whose the record is, as far as the page knows."""

    OWN = "own"
    LATER = "later"
    """A later operation was prepared for the same table."""
    EARLIER = "earlier"
    """An earlier operation's: the record went back in time, as when Keeper was restored from a backup."""
    LOST = "lost"
    RECOVERED = "recovered"


def code_named(name: str) -> Code | None:
    """Return the code of a name; ``None``: this release has none."""
    return Code.__members__.get(name)


_WHAT: Final[Mapping[str, str]] = {
    ADMITTED: "The new rows are being loaded into a table beside the live one.",
    STAGED: "The new rows are loaded and equal on every replica. The publication is not prepared yet.",
    Phase.LOCKED: "The table is locked for this operation. Its source is being read, or its stage task has died.",
    Phase.STAGING: (
        "The rows of the source are sealed, and every replica is loaded from them by itself, or the stage task has "
        "died."
    ),
    Phase.PREPARED: "The new rows are ready on every replica. The swap was not sent yet.",
    Phase.DISPATCHING: "The swap was permitted once and may have been sent. It will not be sent again.",
    Phase.BOUND: "The swap is in the queue, and the replicas work on it.",
    Phase.TERMINAL: "The swap has ended on every replica. What each one holds is being proven.",
    Phase.COMMITTED: "The new data went live, and that was proven on every replica.",
    Phase.COMPLETED_RETAINING: "The new data went live, and that was proven on every replica.",
    Phase.COMPLETED: "The new data went live, and that was proven on every replica. The replaced table is dropped.",
    Phase.ABORTED: "It was closed as not published. None of its data is live.",
}

_SAFE: Final[Mapping[str, str]] = {
    ADMITTED: "This operation has changed nothing for readers: the live table is only read.",
    STAGED: "This operation has changed nothing for readers: the live table is only read.",
    Phase.LOCKED: "This operation has changed nothing for readers: the live table is only read.",
    Phase.STAGING: "This operation has changed nothing for readers: the live table is only read.",
    Phase.PREPARED: "This operation has changed nothing for readers: no swap was sent for it.",
    Phase.ABORTED: "This operation has changed nothing for readers.",
}
"""Of an operation alone: what others do to the table is not in its trail."""

_LOOK_NEWEST: Final = (
    "Look at the table's newest operation, or explain the table: they tell what readers see."
)
_LOOK_LATER: Final = "Look at the later operation: it is the one that decides what readers see."

_NEXT: Final[Mapping[str, str]] = {
    ADMITTED: "Nothing to do while the stage task runs. If it has failed, its log says why, and a retry stages anew.",
    STAGED: "Nothing to do while the stage task runs. If it has failed, its log says why, and a retry goes on.",
    Phase.LOCKED: f"{WAYS[Way.STAGE_ON]} {WAYS[Way.ABANDON]}",
    Phase.STAGING: f"{WAYS[Way.STAGE_ON]} {WAYS[Way.ABANDON]}",
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
_BACK: Final = (
    "The evidence knows this operation's record, but the cluster's record is that of an earlier operation: the control "
    "table may have been restored from before."
)
_RECOVERED: Final = (
    "The control table was recovered since: it is a new one, and has no record of this operation. How the operation "
    "ended is not in its own trail."
)
_UNSURE: Final = (
    "A permit for the swap was asked for. How that ended was not written down: the swap may have been sent."
)
_WAS: Final[Mapping[str, str]] = {
    Phase.COMMITTED: "It was published, and that was proven on every replica.",
    Phase.COMPLETED_RETAINING: "It was published, and that was proven on every replica.",
    Phase.COMPLETED: "It was published, and that was proven on every replica.",
    Phase.ABORTED: "It was closed as not published.",
}
_GIVEN_UP: Final = (
    "It was given up: a later operation has taken the same table, and this one can do nothing more."
)
_FOLLOWED: Final = (
    "A later operation has taken the same table, so this one has ended. How is not in its own trail."
)


@dataclass(frozen=True, slots=True)
class Headline:
    """The three answers, with what would destroy something and the code of what stops it.

    :ivar readers: whether they are affected, at a glance; ``None`` where another operation decides it.
    """

    status: Status
    what: tuple[str, ...]
    safe: str
    readers: Status | None
    next: tuple[str, ...]
    never: tuple[str, ...] = ()
    code: str | None = None


def headline(
    found: Recorded, state: str, told_live: Explanation | None, recorded_by: RecordOwner, *, of_now: bool
) -> Headline:
    """Return the headline of an operation.

    :param state: its phase; of a record that was read just now, if there is one.
    :param told_live: an explanation that is about this operation.
    :param of_now: it was read while the page was made.
    """
    if recorded_by in (RecordOwner.LOST, RecordOwner.EARLIER):
        meaning = MEANINGS[Code.CONTROL_TABLE_LOST]
        return Headline(
            HELD,
            (_LOST if recorded_by is RecordOwner.LOST else _BACK, meaning.meaning),
            _NOT_KNOWN,
            _readers(None, HELD),
            (meaning.next_action,),
            code=Code.CONTROL_TABLE_LOST,
        )
    if recorded_by is RecordOwner.RECOVERED and (state in UNSENT or state in SENT):
        return Headline(
            Status(Tone.REST, "Ended"),
            (_RECOVERED,),
            _LOOK_NEWEST,
            None,
            ("Nothing to do here.",),
        )
    if recorded_by is RecordOwner.LATER and (state in UNSENT or state in SENT):
        return Headline(
            status_of(state, later=True),
            (_GIVEN_UP if state in UNSENT else _FOLLOWED,),
            _LOOK_LATER,
            None,
            ("Nothing to do here.",),
        )
    if recorded_by is not RecordOwner.OWN:
        since = "A later operation" if recorded_by is RecordOwner.LATER else "A recovery of the control table"
        return Headline(
            status_of(state),
            (f"{_WAS.get(state, _FOLLOWED)} {since} has followed.", *_why_closed(found, state)),
            _LOOK_LATER if recorded_by is RecordOwner.LATER else _LOOK_NEWEST,
            None,
            ("Nothing to do here.",),
        )
    if told_live is not None:
        stop = told_live.stop
        status = _status_told(found, state, told_live)
        # What was seen a while ago is no proof while the swap is on its way.
        unproven = told_live.affected is False and not of_now and state in SENT
        return Headline(
            status,
            (told_live.plain, *told_live.happened),
            _NOT_KNOWN if unproven else told_live.readers,
            _readers(None if unproven else told_live.affected, status),
            (*told_live.next, *_repairs(told_live)),
            told_live.never if told_live.held or not told_live.read else (),
            stop.code if stop else None,
        )
    stopped = found.stop if state in SENT or state == Phase.PREPARED else None
    if stopped is not None:
        code = code_named(stopped.aggregate)
        status = status_of(state, stopped.category)
        return Headline(
            status,
            (MEANINGS[code].meaning if code else f"It is stopped by {stopped.aggregate}.", _WHAT[state]),
            *_safe(found, state, status),
            (
                MEANINGS[code].next_action
                if code
                else "Upgrade the provider: this release doesn't know the reason.",
            ),
            code=code.value if code else stopped.aggregate,
        )
    # Where the table was new, none was replaced.
    first = found.admission is not None and found.admission.live is None
    told_as = Phase.COMMITTED if first and state == Phase.COMPLETED else state
    what = _WHAT.get(told_as, f"Its phase is {state}, which this release doesn't know.")
    code = _code_of_end(found, state)
    return Headline(
        status_of(state),
        (_UNSURE if found.unsure and state == found.state else what, *_why_closed(found, state)),
        *_safe(found, state, status_of(state)),
        (_NEXT.get(state, "Upgrade the provider on the api-server."),),
        code=code.value if code else None,
    )


def _code_of_end(found: Recorded, state: str) -> Code | None:
    why = found.why_ended if state == Phase.ABORTED else None
    return code_named(why.aggregate) if why else None


def _why_closed(found: Recorded, state: str) -> Iterator[str]:
    code = _code_of_end(found, state)
    if code is not None:
        yield MEANINGS[code].meaning


def _repairs(told_live: Explanation) -> Iterator[str]:
    """Statements are no matter of a page: the command shows them to whoever may run it."""
    pending = [alias for alias, one in told_live.replicas.items() if one.repair is not None]
    if pending:
        yield f"`airflow dpone explain` shows the statement for {', '.join(pending)}."


def _status_told(found: Recorded, state: str, told_live: Explanation) -> Status:
    stop = told_live.stop
    record = told_live.record
    if record is not None and changed_since(record, told_live.replicas):
        return Status(Tone.CARE, "Changed since")
    if told_live.read:
        return status_of(state, stop.category if stop is not None and told_live.held else None)
    if stop is not None and stop.code in (Code.CONTROL_TABLE_LOST, Code.CONTROL_TABLE_MISSING):
        return HELD
    recorded_stop = status_of(state, found.stop.category if found.stop else None)
    if state in SENT and recorded_stop.tone is not Tone.HOLD:
        return status_of(state, Category.NOT_OBSERVED)
    return recorded_stop


_NOT_KNOWN: Final = "It is not known what readers see."


def _safe(found: Recorded, state: str, status: Status) -> tuple[str, Status]:
    """Return whether readers are affected, as far as it is recorded: in words, and at a glance."""
    if state in _SAFE:
        return _SAFE[state], Status(Tone.REST, "Untouched")
    live = {row.alias: row.target.generation for row in recorded_rows(found, state)}
    if not live:
        return _NOT_KNOWN, _readers(None, status)
    missing = found.admission is not None and found.admission.live is not None
    affected = see_together(live, missing=missing)
    if affected is False and state not in PUBLISHED_PHASES:
        # It was seen before the swap, or while it was on its way.
        return f"{_NOT_KNOWN} When last seen, {seen_in_words(live, missing=missing)}.", _readers(None, status)
    return f"When last seen: {readers_in_words(affected, live, missing=missing)}", _readers(affected, status)


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
