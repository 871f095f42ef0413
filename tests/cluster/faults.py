"""Faults that a test arms in the gateway, each for the next few statements that match. Pure bookkeeping, no I/O."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class FaultKind(StrEnum):
    """What goes wrong.

    The first group hits client requests, the second the execution of a queue entry by a replica's DDL worker.
    """

    REFUSE = "refuse"
    """The connection is cut before the server sees anything."""
    DROP_RESPONSE = "drop_response"
    """The server has done it, and the connection is cut instead of the answer."""
    DROP_AFTER_ENQUEUE = "drop_after_enqueue"
    """An ON CLUSTER statement is in the queue; the connection is cut while the replicas still work."""
    ERROR_BEFORE = "error_before"
    """The answer is a ClickHouse error; the server has done nothing."""
    ERROR_AFTER = "error_after"
    """The answer is a ClickHouse error; the server has done it all the same."""
    DELAY_BEFORE = "delay_before"
    """The statement reaches the server late."""
    DELAY_AFTER = "delay_after"
    """The answer reaches the client late."""
    HOLD_BEFORE = "hold_before"
    """The statement waits, until released, before it reaches the server."""
    HOLD_AFTER = "hold_after"
    """The answer waits until released."""

    FAIL_EXECUTION = "fail_execution"
    """The replica answers the statement with a real error and records it."""
    DELAY_EXECUTION = "delay_execution"
    """The replica announces the entry (Active) and executes it late."""
    HOLD_EXECUTION = "hold_execution"
    """The replica announces the entry (Active) and executes it when released."""
    HOLD_MARK = "hold_mark"
    """The replica has executed the entry and records its outcome when released."""
    CRASH_BEFORE_MARK = "crash_before_mark"
    """The worker executes the entry and dies before it records the outcome, so it will execute it again."""


_TIMED = (
    *(FaultKind.DELAY_BEFORE, FaultKind.DELAY_AFTER, FaultKind.DELAY_EXECUTION),
    FaultKind.CRASH_BEFORE_MARK,
)


@dataclass(slots=True)
class ArmedFault:
    """A fault that waits for its statement.

    Attributes:
        node: the replica it applies to; None is any.
        match: regular expression, searched in the statement's text without regard to case.
        remaining: how many more statements it hits.
        seconds: length of a delay; for a crash, time until the worker starts again (negative: it stays dead).
        code: ClickHouse error code of an error.
        hits: how many statements it has hit so far.
    """

    number: int
    kind: FaultKind
    node: int | None
    match: re.Pattern[str]
    remaining: int
    seconds: float = 0.0
    code: int = 0
    hits: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        """Wait until the fault is released; a delay ends by itself, too."""
        if self.kind in _TIMED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.released.wait(), self.seconds)
        else:
            await self.released.wait()


class FaultRegistry:
    """All armed faults, in the order in which they were armed."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._faults: dict[int, ArmedFault] = {}

    def arm(
        self,
        kind: FaultKind,
        *,
        node: int | None,
        match: str,
        count: int = 1,
        seconds: float = 0.0,
        code: int = 0,
    ) -> ArmedFault:
        """Add a fault.

        Raises:
            ValueError: the count is not positive, or `match` is not a regular expression.
        """
        if count < 1:
            raise ValueError("count must be at least 1")
        try:
            pattern = re.compile(match, re.IGNORECASE | re.DOTALL)
        except re.error as error:
            raise ValueError(f"not a regular expression: {match!r}") from error
        fault = ArmedFault(next(self._numbers), kind, node, pattern, count, seconds, code)
        self._faults[fault.number] = fault
        return fault

    def take(self, node: int, statement: str, *kinds: FaultKind) -> ArmedFault | None:
        """The first fault of these kinds that hits this statement; it is used up by one."""
        return next(self._hits(node, statement, kinds), None)

    def _hits(self, node: int, statement: str, kinds: tuple[FaultKind, ...]) -> Iterator[ArmedFault]:
        for fault in self._faults.values():
            wanted = fault.kind in kinds and fault.node in (None, node) and fault.remaining > 0
            if wanted and fault.match.search(statement):
                fault.remaining -= 1
                fault.hits += 1
                yield fault

    def get(self, number: int) -> ArmedFault:
        """The fault with this number.

        Raises:
            KeyError: never armed.
        """
        return self._faults[number]

    def clear(self) -> None:
        """Disarm everything and release whatever waits. Hits stay readable."""
        for fault in self._faults.values():
            fault.remaining = 0
            fault.released.set()
