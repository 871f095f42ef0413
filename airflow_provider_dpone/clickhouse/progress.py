"""Follow a long query by its id: how far it is, whether it still runs, how to kill it.

The id belongs to one load or one comparison and is never used again, so looking for it and killing by it can meet
no other query. It is looked for on every replica, because behind a load balancer nobody knows which one
runs it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Self

from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError, stop_with
from airflow_provider_dpone.clickhouse.replicas import READ_SETTINGS
from airflow_provider_dpone.clickhouse.server import Server, Settings
from airflow_provider_dpone.clickhouse.sql import identifier, string
from airflow_provider_dpone.publication.stop import Code
from airflow_provider_dpone.routes.ports import Log

BROKEN: Final = (ServerError, ConnectFailed, ReplyLost)
"""What a look that did not succeed raises."""

_EVERYWHERE: Final[Settings] = {**READ_SETTINGS, "skip_unavailable_shards": 0}
_LOOK_SECONDS: Final = 10.0
_KILL_SECONDS: Final = 5.0
_FIRST_LOOK_SECONDS: Final = 1.0
_SLICE_SECONDS: Final = 0.2
_LONGEST_SILENCE: Final = 30.0
_QUEUE_SECONDS: Final = 10
_KILL_AGAIN_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A running load.

    :ivar alias: the replica that runs it.
    :ivar rows: rows that went through it so far.
    :ivar written_bytes: bytes written to the candidate so far, as they are in memory.
    """

    alias: str
    rows: int
    written_bytes: int


class LongQuery:
    """A query that may take long, known by its id on every replica."""

    def __init__(self, server: Server, cluster: str, aliases: tuple[str, ...], query_id: str) -> None:
        """Name the query; nothing is read yet.

        :param aliases: the replicas, in the order in which ``clusterAllReplicas`` numbers them.
        """
        self.query_id = query_id
        self._server = server
        self._cluster = cluster
        self._aliases = aliases

    @property
    def _everywhere(self) -> str:
        return (
            f"clusterAllReplicas({identifier(self._cluster)}, system.processes) "
            f"WHERE is_initial_query AND query_id = {string(self.query_id)}"
        )

    def look(self) -> Sighting | None:
        """Return where it runs, or ``None``: every replica has answered and none runs it.

        :raises ServerError: not every replica could be read, as with the next two.
        :raises ConnectFailed:
        :raises ReplyLost:
        """
        found = self._server.read(
            "SELECT _shard_num AS number, greatest(read_rows, written_rows) AS rows, written_bytes "
            f"FROM {self._everywhere}",
            settings=_EVERYWHERE,
            timeout=_LOOK_SECONDS,
        ).rows
        if not found:
            return None
        number, rows, written_bytes = (int(str(value)) for value in found[0])
        return Sighting(self._aliases[number - 1], rows, written_bytes)

    def kill(self) -> bool:
        """Kill it wherever it runs. Tell whether a server took that up; it may end a moment later.

        ``KILL QUERY`` reaches the server that gets it and no other. So it is sent once per replica, which is
        enough behind most load balancers, and at last through the cluster's queue.
        """
        condition = f"WHERE query_id = {string(self.query_id)} AND user = {string(self._server.user)} ASYNC"
        for _ in self._aliases:
            try:
                reply = self._server.once(f"KILL QUERY {condition} FORMAT TSV", timeout=_KILL_SECONDS)
            except BROKEN:
                continue
            if self.query_id in reply.text:
                return True
        try:
            if not self._runs():
                return False
            self._server.once(
                f"KILL QUERY ON CLUSTER {identifier(self._cluster)} {condition}",
                settings={"distributed_ddl_task_timeout": _QUEUE_SECONDS},
                timeout=2 * _QUEUE_SECONDS,
            )
        except BROKEN:
            return False
        return True

    def _runs(self) -> bool:
        """Ask all replicas over a connection of its own.

        A signal handler may stand on top of a read that holds the lock of the pooled ones.
        """
        reply = self._server.once(
            f"SELECT count() FROM {self._everywhere} FORMAT TSV", settings=_EVERYWHERE, timeout=_LOOK_SECONDS
        )
        return reply.text.strip() != "0"


class RunningQueries:
    """The long queries for which one task waits, so that a signal handler can kill them.

    :ivar cancelled: set when the task was asked to stop: nothing begins any more.
    """

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._queries: dict[str, LongQuery] = {}

    def cancel(self) -> bool | None:
        """Kill them by their ids now, and let none begin. May be called by a signal handler.

        :returns: whether a server took each kill up; ``None``: none was running.
        """
        self.cancelled.set()
        if not (running := [*self._queries.values()]):
            return None
        killed: list[bool] = []
        # Each of them is killed, whatever became of the others.
        with ExitStack() as each:
            for query in running:
                each.callback(lambda one: killed.append(one.kill()), query)
        return all(killed)

    @contextmanager
    def waiting(self, query: LongQuery) -> Iterator[None]:
        """Wait for the end of a query. Where the wait itself is interrupted, the query is killed."""
        self._queries[query.query_id] = query
        try:
            yield
        except Exception:
            raise
        except BaseException:
            # Such as Airflow's timeout of the task, raised by a signal: nobody waits for it any more.
            query.kill()
            raise
        finally:
            del self._queries[query.query_id]

    @contextmanager
    def reading(self, server: Server, cluster: str, aliases: tuple[str, ...]) -> Iterator[str]:
        """Name a read that may take minutes: its query id, under which it is killed where the task is.

        :raises Stopped: ``SERVER_ERROR``: the task was asked to stop.
        """
        query = LongQuery(server, cluster, aliases, f"dpone-read-{secrets.token_hex(8)}")
        with self.waiting(query):
            if self.cancelled.is_set():
                raise stop_with(Code.SERVER_ERROR, "The task was asked to stop, so nothing more is read.")
            yield query.query_id


class Verdict(Enum):
    """Why a watch killed the load."""

    TOO_LARGE = "too large"
    CANCELLED = "cancelled"


class LoadWatch:
    """Watches a load from a thread of its own while the caller waits for the reply.

    It tells how far the load is, kills one that writes more than it may, and kills one that was cancelled.
    The first look is a second after the start, so that a short load costs nothing more.
    """

    def __init__(
        self,
        query: LongQuery,
        *,
        title: str,
        max_bytes: int,
        sent_bytes: Callable[[], int] | None,
        cancel: threading.Event,
        log: Log,
        poll_seconds: float,
    ) -> None:
        """Prepare; the watch begins with the ``with`` block.

        :param title: what is loaded, for the log.
        :param max_bytes: what the load may have.
        :param sent_bytes: for a stream, the bytes sent so far, whose bound the sender keeps itself;
            ``None`` for a query, whose written bytes are bounded here.
        """
        self.verdict: Verdict | None = None
        self._query = query
        self._title = title
        self._max_bytes = max_bytes
        self._sent_bytes = sent_bytes
        self._cancel = cancel
        self._log = log
        self._poll_seconds = poll_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=query.query_id, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        # A look at a replica that hangs must not hold up a load that has ended.
        self._thread.join(_SLICE_SECONDS)

    def _run(self) -> None:
        started = time.monotonic()
        next_look = started + min(_FIRST_LOOK_SECONDS, self._poll_seconds)
        next_line, silence = next_look, self._poll_seconds
        rows_before, line_before = 0, started
        next_kill = started
        while not self._ended.wait(_SLICE_SECONDS):
            if self._cancel.is_set():
                self.verdict = self.verdict or Verdict.CANCELLED
            now = time.monotonic()
            if self.verdict is not None:
                if now >= next_kill:
                    self._query.kill()
                    next_kill = time.monotonic() + _KILL_AGAIN_SECONDS
                continue
            if now < next_look:
                continue
            next_look = now + self._poll_seconds
            try:
                seen = self._query.look()
            except BROKEN:
                continue
            if seen is None or self._ended.is_set():
                continue
            size = seen.written_bytes if self._sent_bytes is None else self._sent_bytes()
            if self._sent_bytes is None and size > self._max_bytes:
                self.verdict = Verdict.TOO_LARGE
            elif now >= next_line:
                rate = (seen.rows - rows_before) / (now - line_before)
                self._log(self._line(seen, size, rate))
                rows_before, line_before = seen.rows, now
                next_line, silence = now + silence, min(2 * silence, _LONGEST_SILENCE)

    def _line(self, seen: Sighting, size: int, rate: float) -> str:
        share = 100 * size / self._max_bytes
        return (
            f"{self._title}: {seen.alias} is loading; {seen.rows:,} rows, {in_words(size)} "
            f"({share:.0f} % of max_source_bytes), {rate:,.0f} rows/s."
        )


def in_words(size: int) -> str:
    """Return a number of bytes with a unit that fits."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
