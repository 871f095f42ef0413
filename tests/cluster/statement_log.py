"""What passed through the gateway: every statement and its outcome, and the number of requests."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

_KEPT_STATEMENTS = 50_000


class Outcome(StrEnum):
    """How a request ended, as the client saw it."""

    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    """A ClickHouse error, whose code is in the entry."""
    REFUSED = "refused"
    """Cut by a fault before the server saw it."""
    DROPPED = "dropped"
    """Cut by a fault after the server had done it."""
    NODE_DOWN = "node_down"
    """The server was not there, or went away meanwhile; the client's connection was cut."""
    CLIENT_GONE = "client_gone"
    """The client went away before its request was complete."""


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """One request with a statement.

    Attributes:
        sequence: position in the log, from 1; strictly increasing.
        started_at: seconds since 1970.
        node: the replica that it was sent to.
        kind: the statement's first keyword in capitals.
        text: the statement, cut after 16 kB. What follows ``FORMAT ...`` of an INSERT may be part of it.
        on_cluster: whether it went through the emulated DDL queue.
        entry: name of the queue entry, if one was made.
        settings: URL parameters other than the transport's and the credentials.
        code: ClickHouse error code; 0 if there was none.
    """

    sequence: int
    started_at: float
    node: int
    kind: str
    text: str
    query_id: str
    user: str
    settings: Mapping[str, str] = field(default_factory=dict)
    on_cluster: bool = False
    entry: str = ""
    outcome: Outcome = Outcome.RUNNING
    http_status: int = 0
    code: int = 0
    seconds: float = 0.0

    @property
    def log_comment(self) -> str:
        """The setting of this name; empty if it was not sent."""
        return self.settings.get("log_comment", "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> LoggedStatement:
        """The inverse of `to_dict`."""
        return cls(**{**fields, "outcome": Outcome(fields["outcome"])})


class StatementLog:
    """The log itself, in memory; it keeps the newest 50 000 statements."""

    def __init__(self) -> None:
        self._statements: dict[int, LoggedStatement] = {}
        self._order: deque[int] = deque()
        self._sequence = 0
        self._requests: Counter[int] = Counter()

    def count_request(self, node: int) -> None:
        """Count one HTTP request, with a statement or without."""
        self._requests[node] += 1

    @property
    def requests(self) -> dict[int, int]:
        """Number of HTTP requests per node."""
        return dict(self._requests)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest statement; 0 if there is none."""
        return self._sequence

    def begin(
        self, *, node: int, kind: str, text: str, query_id: str, user: str, settings: Mapping[str, str]
    ) -> int:
        """Log a statement before anything happens to it; returns its sequence number."""
        self._sequence += 1
        self._statements[self._sequence] = LoggedStatement(
            sequence=self._sequence,
            started_at=time.time(),
            node=node,
            kind=kind,
            text=text,
            query_id=query_id,
            user=user,
            settings=settings,
        )
        self._order.append(self._sequence)
        if len(self._order) > _KEPT_STATEMENTS:
            del self._statements[self._order.popleft()]
        return self._sequence

    def enqueued(self, sequence: int, entry: str) -> None:
        """Note that the statement is in the DDL queue."""
        self._change(sequence, on_cluster=True, entry=entry)

    def end(self, sequence: int, outcome: Outcome, *, http_status: int = 0, code: int = 0) -> None:
        """Note how the request ended."""
        statement = self._statements.get(sequence)
        if statement is not None:
            self._change(
                sequence,
                outcome=outcome,
                http_status=http_status,
                code=code,
                seconds=time.time() - statement.started_at,
            )

    def _change(self, sequence: int, **changes: Any) -> None:
        if sequence in self._statements:
            self._statements[sequence] = replace(self._statements[sequence], **changes)

    def select(self, *, match: str, since: int) -> list[LoggedStatement]:
        """Statements after sequence number `since` whose text matches, oldest first."""
        pattern = re.compile(match, re.IGNORECASE | re.DOTALL)
        return [
            statement
            for statement in self._statements.values()
            if statement.sequence > since and pattern.search(statement.text)
        ]
