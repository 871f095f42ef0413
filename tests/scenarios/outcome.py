"""How one run of a task ended, in the classes that people speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from airflow_provider_dpone.publication.stop import Category, Stop


class Outcome(StrEnum):
    """How a task ended."""

    STAGED = "STAGED"
    COMMITTED = "COMMITTED"
    REPLAYED = "REPLAYED"
    """Answered from what was proven earlier."""
    CLEANED = "CLEANED"
    RESOLVED = "RESOLVED"
    """An operator's command ended the operation."""
    DEFERRED = "DEFERRED"
    KILLED = "KILLED"
    """The worker's process ended without a word."""
    ABORTED = "ABORTED"
    """Refused, and the operation was closed: its candidate can't go live any more."""
    REFUSED = "REFUSED"
    RETRYABLE = "RETRYABLE"
    CONFLICT = "CONFLICT"
    IN_PROGRESS = "IN_PROGRESS"
    NOT_OBSERVED = "NOT_OBSERVED"
    CONTRADICTION = "CONTRADICTION"
    PARTIAL_TERMINAL = "PARTIAL_TERMINAL"


SUCCESSES = frozenset(
    {Outcome.STAGED, Outcome.COMMITTED, Outcome.REPLAYED, Outcome.CLEANED, Outcome.RESOLVED}
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a task left behind, whether it ran in this process or in a worker of its own.

    :ivar task: ``stage``, ``publish``, ``cleanup``, ``resolve`` or ``abandon``.
    :ivar receipt: what it returned, as JSON.
    :ivar stop: the :class:`Stop` that ended it, as JSON.
    :ivar error: the exception's class, where there was one.
    """

    task: str
    outcome: Outcome
    receipt: Mapping[str, Any] = field(default_factory=dict)
    stop: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def stopped(cls, task: str, stop: Stop, error: str = "Stopped") -> Self:
        """The result of a task that stopped."""
        return cls(task, Outcome[stop.category.name], stop=stop.as_json(), error=error)

    @property
    def code(self) -> str:
        """The stop's code without the prefix; empty for a success."""
        return str(self.stop.get("code", "")).removeprefix("DPONE_CLICKHOUSE_CLUSTER_")

    @property
    def ok(self) -> bool:
        """Whether the task succeeded."""
        return self.outcome in SUCCESSES

    @property
    def retried_by_airflow(self) -> bool:
        """Whether Airflow would run the task again by itself."""
        return self.outcome in (
            Outcome.RETRYABLE,
            Outcome.IN_PROGRESS,
            Outcome.NOT_OBSERVED,
            Outcome.KILLED,
        )

    def __str__(self) -> str:
        told = f"{self.task}: {self.outcome}"
        if not self.stop:
            return f"{told} {self.error}".rstrip()
        return f"{told} {self.code} - {self.stop['message']} {dict(self.stop['replicas']) or ''}".rstrip()


assert {category.name for category in Category} <= set(Outcome.__members__)
