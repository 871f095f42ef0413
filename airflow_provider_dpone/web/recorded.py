"""What an operation's trail says, by its kinds.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from airflow_provider_dpone.evidence.layout import entry_name
from airflow_provider_dpone.evidence.reader import Trail, state_of
from airflow_provider_dpone.publication import trail as evidence
from airflow_provider_dpone.publication.history import ADMITTED, STAGED
from airflow_provider_dpone.publication.record import STAGE_PHASES, Phase
from airflow_provider_dpone.publication.trail import (
    Admission,
    Classification,
    CompareAndSwap,
    CompareAndSwapOutcome,
    Entry,
    Staged,
    StoredReceipt,
)

BodyT = TypeVar("BodyT", Admission, Staged, Classification, StoredReceipt)
KindT = TypeVar("KindT")


_ORDER: Final[Sequence[str]] = (
    ADMITTED,
    Phase.LOCKED,
    Phase.STAGING,
    STAGED,
    Phase.PREPARED,
    Phase.DISPATCHING,
    Phase.BOUND,
    Phase.TERMINAL,
    Phase.COMMITTED,
    Phase.COMPLETED,
)


def order_of(state: str, reached: Collection[str]) -> list[str]:
    """Return the phases in their order. Only independent replicas are staged in the record.

    :param reached: the phases that the trail tells of.
    """
    staged = state in STAGE_PHASES or not STAGE_PHASES.isdisjoint(reached)
    return [phase for phase in _ORDER if staged or phase not in STAGE_PHASES]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a trail says, by its kinds. ``None``: it does not say.

    :ivar state: how far the operation came, as the list of operations says it.
    :ivar unsure: that it came so far is not known: how the write of it ended was not written down.
    :ivar version: of the record that its last stored write made; ``None`` if there is none.
    :ivar reached: phase -> when its write was acknowledged; where nobody noted that, when the write was sent.
    """

    operation_id: str
    entries: tuple[Entry, ...]
    state: str
    unsure: bool
    version: int | None
    reached: Mapping[str, str]
    admission: Admission | None
    staged: Staged | None
    classification: Classification | None
    classified_at: str
    receipt: StoredReceipt | None
    receipt_at: str
    conn_id: str | None

    def bodies(self, kind: type[KindT]) -> list[KindT]:
        """Return what the entries of one kind say, in the order in which they were written."""
        return [entry.body for entry in self.entries if isinstance(entry.body, kind)]

    @property
    def stop(self) -> Classification | None:
        """The classification that says why it does not go on now; ``None`` if the last one says no such thing."""
        last = self.classification
        if last is None or last.category is None:
            return None
        return last if self.version is None or last.version >= self.version else None

    @property
    def epoch(self) -> int:
        """The highest epoch of a write of the record that is known to be stored; 0 if none is."""
        writes = self.bodies(CompareAndSwapOutcome)
        return max((write.epoch for write in writes if write.outcome == "stored"), default=0)

    @property
    def why_ended(self) -> Classification | None:
        """The last classification that named a reason."""
        found = [one for one in self.bodies(Classification) if one.category]
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
    unsure = state == Phase.DISPATCHING and Phase.DISPATCHING not in reached
    # A note may be missing. What must have come before is then as old as the write that made it.
    order = order_of(state, {*reached, *intended})
    for phase in order[: order.index(state) + 1] if state in order else ():
        if phase in intended:
            reached.setdefault(phase, intended[phase])
    classified = _last(entries, Classification)
    proven = _last(entries, StoredReceipt)
    return Recorded(
        operation_id=trail.operation_id,
        entries=entries,
        state=state,
        unsure=unsure,
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
