"""What happened on a cluster while something was tried: plain data, gathered from outside of the product."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.cluster import ClusterClient, LoggedStatement, QueueRow
from tests.scenarios.outcome import Result

READ_SECONDS = 0.2
"""Pause between two reads of a reader."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader saw, from one moment until something else was seen.

    :ivar kind: ``rows``, ``absent``, ``down`` (no server answers) or ``error``.
    :ivar names: the distinct generations among the rows.
    :ivar rows: how many rows there were.
    :ivar code: ClickHouse's error code.
    """

    kind: str
    names: tuple[str, ...] = ()
    rows: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How the target stood after a step.

    :ivar tables: per node, the UUID of every table of the database; ``None`` where the node is down.
    :ivar digests: per node, rows and hash of the live table; ``None`` where it is absent or can't be read.
    :ivar record: the record as JSON; ``None`` where there is none or it can't be read.
    :ivar write_id: of the record.
    :ivar keys: how many rows the control table has for this target.
    :ivar held: what ``explain`` says: whether an operation holds the target.
    :ivar code: the code that ``explain`` gives; empty if there is none.
    :ivar ways: the ways on that it names.
    :ivar result: the task that ended just before; ``None`` where the step was something else.
    :ivar at_work: a worker still runs or sleeps.
    """

    step: str
    tables: Mapping[int, Mapping[str, str] | None]
    digests: Mapping[int, tuple[int, str] | None]
    record: Mapping[str, Any] | None
    write_id: str
    keys: int
    held: bool
    code: str
    ways: tuple[str, ...]
    result: Result | None = None
    at_work: bool = False


@dataclass(frozen=True, slots=True)
class Execution:
    """A statement of the queue that a server ran, by its own ``query_log``."""

    node: int
    entry: str
    sql: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One entry of the evidence folder."""

    operation_id: str
    kind: str
    at: float
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a scenario did to the cluster itself, so that it is no fault of the product.

    :ivar down: nodes that were taken down.
    :ivar twice: nodes whose DDL worker executed an entry twice.
    :ivar by_hand: nodes on which the scenario changed or repaired tables by hand.
    :ivar copied: tokens of which the scenario made a second queue entry.
    """

    down: frozenset[int] = frozenset()
    twice: frozenset[int] = frozenset()
    by_hand: frozenset[int] = frozenset()
    copied: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class History:
    """All that is known about one scenario.

    :ivar generations: rows and hash of each generation that was ever staged, by name.
    :ivar published: the order in which generations were meant to go live.
    :ivar statements: what the product sent, by the gateway's log.
    :ivar readers: per node, what its reader saw, in order.
    :ivar independent: every replica has a table of its own.
    """

    database: str
    table: str
    nodes: tuple[int, ...]
    generations: Mapping[str, tuple[int, str]]
    statements: Sequence[LoggedStatement]
    queue: Sequence[QueueRow]
    executions: Sequence[Execution]
    evidence: Sequence[Evidence]
    snapshots: Sequence[Snapshot]
    readers: Mapping[int, Sequence[Seen]]
    allowed: Allowed = field(default_factory=Allowed)
    independent: bool = False


class Reader:
    """Reads the live table of one node over and over, past the gateway, until it is stopped."""

    def __init__(self, cluster: ClusterClient, node: int, database: str, table: str) -> None:
        host, port = cluster.direct_http[node - 1]
        self._url = f"http://{host}:{port}/?default_format=JSONCompact&log_queries=0"
        self._sql = (
            f"SELECT arraySort(groupUniqArray(4)(name)), toUInt32(count()) FROM {database}.{table}".encode()
        )
        self.seen: list[Seen] = []
        self.reads = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"reader-{node}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _loop(self) -> None:
        while not self._over.wait(READ_SECONDS):
            seen = self._read()
            self.reads += 1
            if not self.seen or self.seen[-1] != seen:
                self.seen.append(seen)

    def _read(self) -> Seen:
        try:
            with urllib.request.urlopen(self._url, self._sql, timeout=30) as answer:
                ((names, rows),) = json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            code = int(error.headers.get("X-ClickHouse-Exception-Code") or 0)
            return Seen("absent") if code in (60, 81) else Seen("error", code=code)
        except (OSError, ValueError):
            return Seen("down")
        return Seen("rows", tuple(names), int(rows))


def read_evidence(folder: Path) -> list[Evidence]:
    """Every whole entry of the evidence below ``folder``, oldest first."""
    found = []
    for file in folder.rglob("*.json"):
        try:
            entry = json.loads(file.read_text())
        except ValueError:
            continue  # cut off while its writer was killed
        if "operation_id" in entry and "body" in entry:
            found.append(Evidence(entry["operation_id"], entry["kind"], _seconds(entry["at"]), entry["body"]))
    return sorted(found, key=lambda entry: entry.at)


def _seconds(at: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(at).timestamp()


def read_executions(cluster: ClusterClient, node: int, database: str) -> list[Execution]:
    """The queue's statements on this database that the node has run, as far as its ``query_log`` still knows.

    :raises ConnectionError: the node is down.
    """
    cluster.execute("SYSTEM FLUSH LOGS query_log", node=node)
    if not cluster.query(
        "SELECT 1 FROM system.tables WHERE database = 'system' AND name = 'query_log'", node=node
    ):
        return []
    rows = cluster.query(
        "SELECT query FROM system.query_log WHERE type = 'QueryFinish' AND event_date >= today() - 1 "
        f"AND startsWith(query, '/* ddl_entry=') AND position(query, '{database}') > 0 "
        "ORDER BY event_time_microseconds",
        node=node,
    )
    found = []
    for row in rows:
        match = re.match(r"/\* ddl_entry=(\S+) \*/ (.*)", row["query"], re.DOTALL)
        if match:
            found.append(Execution(node, match[1], match[2]))
    return found


def now() -> float:
    """Seconds since 1970."""
    return time.time()
