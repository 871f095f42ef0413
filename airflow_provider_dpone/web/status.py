"""Tones and words of a status: what the first look tells.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final, assert_never

from airflow_provider_dpone.publication.history import ADMITTED, STAGED
from airflow_provider_dpone.publication.record import PUBLISHED_PHASES, UNSENT_PHASES, Phase
from airflow_provider_dpone.publication.stop import Category

SENT: Final = frozenset({Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL})
"""Phases in which the one statement may be anywhere, and the outcome is not proven."""

UNPREPARED: Final = frozenset({ADMITTED, STAGED})
"""What is in no record yet."""

UNSENT: Final = UNPREPARED | UNSENT_PHASES

OVER: Final = PUBLISHED_PHASES | {Phase.ABORTED}
"""Phases in which the outcome is proven: nothing of the operation can become live, or stop being so, by itself."""

CLOSED: Final = frozenset({Phase.COMPLETED, Phase.ABORTED})
"""Phases that no later one follows."""


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


HELD: Final = Status(Tone.HOLD, "On hold")


_STATUS: Final[Mapping[str, Status]] = {
    ADMITTED: Status(Tone.REST, "Staging"),
    STAGED: Status(Tone.REST, "Staged"),
    Phase.LOCKED: Status(Tone.REST, "Locked"),
    Phase.STAGING: Status(Tone.REST, "Staging"),
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
    if later and state in UNSENT:
        return Status(Tone.REST, "Given up")
    if later and state in SENT:
        return Status(Tone.REST, "Ended")
    found = _STATUS.get(state, Status(Tone.CARE, "Unknown"))
    if stop is None or state in OVER:
        return found
    match stop:
        case Category.CONTRADICTION | Category.PARTIAL_TERMINAL:
            return HELD
        case Category.NOT_OBSERVED:
            return Status(Tone.CARE, "Not observed")
        case Category.IN_PROGRESS:
            return found
        case Category.REFUSED | Category.RETRYABLE | Category.CONFLICT:
            return Status(Tone.CARE, "Stopped") if state in UNSENT else found
        case _:
            assert_never(stop)
