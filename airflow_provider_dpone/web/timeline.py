"""The phases of an operation with their times, and times in words.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from airflow_provider_dpone.publication.history import ADMITTED, STAGED
from airflow_provider_dpone.publication.record import PUBLISHED_PHASES, Phase
from airflow_provider_dpone.web.model import Step
from airflow_provider_dpone.web.recorded import Recorded, order_of
from airflow_provider_dpone.web.status import OVER, Status, Tone

_TITLES: Final[Mapping[str, str]] = {
    ADMITTED: "Admitted",
    STAGED: "Staged, equal everywhere",
    Phase.LOCKED: "Locked before the source",
    Phase.STAGING: "Source sealed, replicas loaded",
    Phase.PREPARED: "Prepared",
    Phase.DISPATCHING: "Permit for one swap",
    Phase.BOUND: "Entry bound",
    Phase.TERMINAL: "Ended on every replica",
    Phase.COMMITTED: "Proven live",
    Phase.COMPLETED: "Cleaned up",
    Phase.COMPLETED_RETAINING: "Target free, old table kept",
    Phase.ABORTED: "Closed, not published",
}


def timeline(found: Recorded, state: str, status: Status) -> tuple[Step, ...]:
    """Return the phases of an operation, as far as it came and those that are left."""
    order = order_of(state, found.reached)
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
        if number < now or (number == now and state in OVER):
            kind = "done"
        elif number == now:
            kind = "failed" if status.tone is Tone.HOLD else "current"
        else:
            kind, at = "todo", ""
        steps.append(Step(_TITLES[phase], kind, clock(at) if at else "", _between(before, at)))
        before = at or before
    return tuple(steps)


def clock(at: str) -> str:
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
