"""What a receipt shows, as plain values that the templates lay out.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.record import Owner
from airflow_provider_dpone.web.status import Status


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What could be read from the cluster while the page was made.

    :ivar explanation: ``None`` if nothing could be read, or nothing needed to be.
    :ivar age: seconds since the look began.
    :ivar why_not: in a sentence, why there is no explanation, or only one of before; empty if there is one of now.
    """

    explanation: Explanation | None
    age: float = 0.0
    why_not: str = ""

    @property
    def of_now(self) -> bool:
        """Tell whether it was read while the page was made, and not before."""
        return self.explanation is not None and not self.why_not


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
