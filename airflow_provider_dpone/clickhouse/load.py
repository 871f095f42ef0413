"""Loading a table in one request: sent once, watched while it runs, and believed when all counts agree."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Final

from airflow_provider_dpone.clickhouse.errors import (
    KEEPER_CODES,
    REPLICA_CODES,
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stop_with,
    stopped,
    summary,
)
from airflow_provider_dpone.clickhouse.exact import (
    NO_DEDUPLICATION,
    Load,
    insert_from_input,
    insert_from_select,
    misfit_column,
)
from airflow_provider_dpone.clickhouse.progress import (
    BROKEN,
    LoadWatch,
    LongQuery,
    RunningQueries,
    Verdict,
    in_words,
)
from airflow_provider_dpone.clickhouse.server import OnceReply, Server
from airflow_provider_dpone.clickhouse.source_access import SourceAccess, source_errors
from airflow_provider_dpone.clickhouse.sql import identifier, qualified, tokens, unquote
from airflow_provider_dpone.clickhouse.staging_plan import Planned
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import Loaded, Log, Target
from airflow_provider_dpone.sources import RowsLoad, SelectLoad, SourceColumn, StreamLoad
from airflow_provider_dpone.values import ClusterRefresh

_SETTLE_SECONDS: Final = 20.0
_QUIET_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 10.0
_ASK_SECONDS: Final = 60.0
_DDL_SLACK_SECONDS: Final = 30.0

_MAYBE_ENQUEUED: Final = frozenset({*KEEPER_CODES, ErrorCode.TIMEOUT_EXCEEDED, ErrorCode.UNFINISHED})
"""Codes with which the contacted server can't tell whether, or how, the replicas do a statement."""

_BUSY_CODES: Final = frozenset(
    {*REPLICA_CODES, ErrorCode.MEMORY_LIMIT_EXCEEDED, ErrorCode.TOO_MANY_SIMULTANEOUS_QUERIES}
)
"""Codes that say nothing about what was asked: a later try may be answered."""

_VIOLATED_CONSTRAINT: Final = 469

_MISFIT_CODES: Final = frozenset(
    {
        *(6, 25, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 321, 349, 376, 407, 675, 676, 691),
    }
)
"""What ClickHouse calls it when a value or a record can't be read as what it should be."""


class TooLarge(Exception):
    """The next chunk would go over the bound."""


class Cancelled(Exception):
    """The task was asked to stop."""


class Body:
    """A stream's chunks on their way: counted before they are sent, and cut at the bound.

    :ivar sent_bytes: bytes given to the connection so far.
    """

    def __init__(self, load: StreamLoad, max_bytes: int, cancel: threading.Event) -> None:
        self.sent_bytes = 0
        self._load = load
        self._max_bytes = max_bytes
        self._cancel = cancel
        self._counted = self._count()
        self._first = b""

    def begin(self) -> None:
        """Wait for the source's first bytes: a server that waits for them would give up after a while.

        :raises Stopped: ``SOURCE_FAILED``, and what the source stops with.
        """
        self._first = next(self._counted, b"")

    def __iter__(self) -> Iterator[bytes]:
        return chain([self._first], self._counted)

    def close(self) -> None:
        """Tell the source that no more is wanted, so that it stops at once."""
        self._counted.close()

    def _count(self) -> Generator[bytes, None, None]:
        for chunk in self._source_chunks():
            if self._cancel.is_set():
                raise Cancelled
            if not chunk:
                continue
            if self.sent_bytes + len(chunk) > self._max_bytes:
                raise TooLarge
            self.sent_bytes += len(chunk)
            yield chunk
        if self._cancel.is_set():
            raise Cancelled

    def _source_chunks(self) -> Iterator[bytes]:
        with source_errors(), closing(_generator(self._load.chunks())) as chunks:
            yield from chunks


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of staging, in seconds.

    :ivar create: how long the replicas may take to create the candidate.
    :ivar load: how long a server may be silent during a load; a load by query is silent until it ends.
    :ivar poll: how often a running load is looked at.
    """

    create: float = 180.0
    load: float = 6 * 3600.0
    poll: float = 2.0


class Loader:
    """Loads the private tables of one stage task, one request for each.

    :ivar query_id: the id of the load's query, once there is one. It holds no secret: ``system.query_log`` has it too.
    """

    def __init__(
        self,
        target: Target,
        refresh: ClusterRefresh,
        access: SourceAccess,
        log: Log,
        limits: Limits,
        running: RunningQueries,
    ) -> None:
        """Prepare; nothing is read yet.

        :param running: where loads are found by whoever stops the task. When it is cancelled, those that run are killed
            within a second and none begins any more.
        """
        self.query_id: str | None = None
        self._target = target
        self._refresh = refresh
        self._access = access
        self._log = log
        self._limits = limits
        self._cancel = running.cancelled
        self._running = running

    def read(self, planned: Planned, server: Server, attempt_id: str, name: str) -> Loaded:
        """Read the source into the table ``name``.

        :param server: the one that gets the request.
        :raises Stopped: ``SOURCE_FAILED``, ``SOURCE_TOO_LARGE``, ``VALUE_REFUSED``, ``ROWS_DISAGREE``,
            ``STAGING_FAILED``: the load has ended; ``STAGING_UNKNOWN``: it may still be running.
        """
        body: Body | None = None
        encoding: Mapping[str, str] = {}
        load = self._access.load()
        if isinstance(load, RowsLoad):
            _require_same(_column_names(planned.source_columns), _column_names(load.columns))
            load = self._access.stream(load, [column.target for column in planned.columns])
        match load:
            case SelectLoad(sql):
                statement = insert_from_select(self._target.database, name, planned.columns, sql)
                source_rows: Callable[[], int | None] = _unknown
            case StreamLoad():
                _require_same(planned.source_columns, load.columns)
                statement = insert_from_input(self._target.database, name, planned.columns, load.format)
                body = Body(load, self._refresh.max_source_bytes, self._cancel)
                source_rows = load.rows
                encoding = load.settings
        ours = {**statement.settings, **NO_DEDUPLICATION}
        known = {name: value for name, value in ours.items() if name in planned.settings}
        # What the source's encoding relies on is never left out: a server that lacks it refuses the load.
        return self._load(
            planned, server, attempt_id, Load(statement.sql, {**known, **encoding}), body, source_rows
        )

    def copy(
        self, planned: Planned, server: Server, attempt_id: str, name: str, stream: StreamLoad
    ) -> Loaded:
        """Load rows that are in the table's own types already, such as a sealed artifact's.

        :raises Stopped: as :meth:`read`.
        """
        columns = ", ".join(identifier(column.name) for column in planned.definition.insertable_columns)
        sql = f"INSERT INTO {qualified(self._target.database, name)} ({columns}) FORMAT {stream.format}"
        known = {name: value for name, value in NO_DEDUPLICATION.items() if name in planned.settings}
        body = Body(stream, self._refresh.max_source_bytes, self._cancel)
        return self._load(
            planned, server, attempt_id, Load(sql, {**known, **stream.settings}), body, stream.rows
        )

    def settle(self, aliases: tuple[str, ...], server: Server, attempt_id: str) -> None:
        """End what an earlier try may have left running, and wait for its end.

        :raises Stopped: ``STAGING_UNKNOWN``: it is not proven to have ended.
        """
        query = self._query(aliases, server, attempt_id)
        ended = stop_with(Code.STAGING_FAILED, "A load of an earlier try was ended.")
        if (stop := self._settled(query, ended, None)) is not ended:
            raise stop

    def _query(self, aliases: tuple[str, ...], server: Server, attempt_id: str) -> LongQuery:
        return LongQuery(server, self._target.cluster, aliases, f"dpone-load-{attempt_id}")

    def _load(
        self,
        planned: Planned,
        server: Server,
        attempt_id: str,
        statement: Load,
        body: Body | None,
        source_rows: Callable[[], int | None],
    ) -> Loaded:
        query = self._query(planned.aliases, server, attempt_id)
        try:
            reply = self._sent(planned, server, attempt_id, statement, query, body)
        finally:
            if body is not None:
                body.close()
        if self._cancel.is_set():
            raise cancelled()
        return self._accepted(reply, body, source_rows())

    def _sent(
        self,
        planned: Planned,
        server: Server,
        attempt_id: str,
        statement: Load,
        query: LongQuery,
        body: Body | None,
    ) -> OnceReply:
        """Send the load once and wait for its end."""
        watch = LoadWatch(
            query,
            title=str(self._target),
            max_bytes=self._refresh.max_source_bytes,
            sent_bytes=None if body is None else lambda: body.sent_bytes,
            cancel=self._cancel,
            log=self._log,
            poll_seconds=self._limits.poll,
        )
        if body is not None:
            try:
                body.begin()
            except TooLarge:
                raise self._too_large("nothing was sent") from None
            except Cancelled:
                raise cancelled() from None
        self.query_id = query.query_id
        try:
            with self._running.waiting(query), watch:
                # A stream's statement leads its body: in the URL, a wide table's would be too long for the
                # proxies that stand in front of many servers.
                return server.once(
                    statement.sql if body is None else "",
                    settings={**statement.settings, "log_comment": f"dpone1s:load:{attempt_id}"},
                    query_id=query.query_id,
                    body=None if body is None else chain([f"{statement.sql}\n".encode()], body),
                    timeout=self._limits.load,
                )
        except ServerError as error:
            raise self._refused(error, planned, watch.verdict) from None
        except ConnectFailed as error:
            raise stop_with(Code.STAGING_FAILED, f"The load was not sent: {summary(error)}.") from None
        except ReplyLost as error:
            cause = stop_with(
                Code.STAGING_FAILED,
                f"The load's reply was lost ({summary(error)}), so the load was given up.",
            )
        except TooLarge:
            cause = self._too_large("its stream was cut there")
        except Cancelled:
            cause = cancelled()
        except Stopped as error:
            cause = error
        except Exception:
            # Of the source, and foreseen by nobody: nobody waits for the load any more.
            query.kill()
            raise
        # The connection is cut and the server may not have noticed yet.
        raise self._settled(query, cause, watch.verdict)

    def _settled(self, query: LongQuery, cause: Stopped, verdict: Verdict | None) -> Stopped:
        """Wait until the load is proven to have ended, killing it if it runs; return what is to be raised.

        It has ended when all replicas answered twice, a second apart, that none runs it: a statement that is
        still on its way to a server has its connection cut and can't complete.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        quiet_since: float | None = None
        while time.monotonic() < deadline:
            try:
                seen = query.look()
            except BROKEN:
                quiet_since = None
            else:
                now = time.monotonic()
                if seen is not None:
                    self._log(f"{self._target}: the load still runs on {seen.alias}; it is killed by its id.")
                    query.kill()
                    quiet_since = None
                elif quiet_since is None:
                    quiet_since = now
                elif now - quiet_since >= _QUIET_SECONDS:
                    match verdict:
                        case Verdict.TOO_LARGE:
                            return self._too_large("it was killed")
                        case Verdict.CANCELLED:
                            return cancelled()
                        case None:
                            return cause
            time.sleep(_QUIET_SECONDS / 2)
        return stop_with(
            Code.STAGING_UNKNOWN,
            f"{cause.stop.message} It is not proven that the load has ended on every replica.",
            facts={"query_id": query.query_id},
        )

    def _accepted(self, reply: OnceReply, body: Body | None, source_rows: int | None) -> Loaded:
        """Take the server's word, if all who count agree."""
        parsed, written, written_bytes = (
            int(reply.summary.get(name, "0")) for name in ("read_rows", "written_rows", "written_bytes")
        )
        size = written_bytes if body is None else body.sent_bytes
        if size > self._refresh.max_source_bytes:
            raise self._too_large(f"the load wrote {size:,} bytes before it could be killed")
        said: dict[str, Json] = {"stored": written}
        if body is not None:
            said["parsed"] = parsed
            if source_rows is not None:
                said["sent"] = source_rows
        if len(set(said.values())) > 1:
            counts = ", ".join(f"{count:,} {what}" for what, count in said.items())
            raise stop_with(
                Code.ROWS_DISAGREE, f"The row counts of the load don't agree: {counts}.", facts=said
            )
        return Loaded(written, size, source_rows)

    def _refused(self, error: ServerError, planned: Planned, verdict: Verdict | None) -> Stopped:
        """Say what a server's error about the load means; the load has ended."""
        match verdict:
            case Verdict.TOO_LARGE:
                return self._too_large("it was killed")
            case Verdict.CANCELLED:
                return cancelled()
        if self._cancel.is_set() and error.code == ErrorCode.QUERY_WAS_CANCELLED:
            return cancelled()
        facts: dict[str, Json] = {"exception_code": error.code, "exception_name": error.name}
        if error.own_message is not None and (column := misfit_column(f"dpone: {error.own_message}")):
            return stop_with(
                Code.VALUE_REFUSED,
                f"A value doesn't fit column {identifier(column)} of {self._target} exactly.",
                facts={"column": column},
            )
        if error.code == _VIOLATED_CONSTRAINT:
            names = (unquote(tokens(entry)[0].text) for entry in planned.definition.constraints)
            name = next((n for n in names if error.mentions(f"Constraint {identifier(n)} ")), None)
            return stop_with(
                Code.VALUE_REFUSED,
                f"A row violates a constraint of {self._target}{f': {identifier(name)}' if name else ''}.",
                facts={"constraint": name},
            )
        if error.code in _MISFIT_CODES:
            column = _misread(error, [column.name for column in planned.columns])
            where = "" if column is None else f" of column {identifier(column)}"
            return stop_with(
                Code.VALUE_REFUSED,
                f"The server can't read a value or a record{where}: {summary(error)}.",
                facts=facts if column is None else {**facts, "column": column},
            )
        if error.code == ErrorCode.ACCESS_DENIED:
            return stopped(error, "Loading the candidate")
        return stop_with(Code.STAGING_FAILED, f"Loading the candidate failed: {summary(error)}.", facts=facts)

    def _too_large(self, then: str) -> Stopped:
        limit = self._refresh.max_source_bytes
        return stop_with(
            Code.SOURCE_TOO_LARGE,
            f"The source is larger than max_source_bytes ({limit:,} bytes, {in_words(limit)}); {then}.",
            facts={"max_source_bytes": limit},
        )


def _unknown() -> None:
    return None


def _misread(error: ServerError, columns: Sequence[str]) -> str | None:
    """Return the column that the server could not read, as far as its error tells."""
    if error.diagnosed_column in columns:
        return error.diagnosed_column
    for column in columns:
        named = (f"column {identifier(column)}", f"column {column} ", f"value of key {column})")
        if any(map(error.mentions, named)):
            return column
    return None


def _require_same(planned: Sequence[object], now: Sequence[object]) -> None:
    """Compare what the plan rests on with what the source has now: its columns, or their names."""
    if list(planned) != list(now):
        raise stop_with(Code.SOURCE_FAILED, "The source's columns changed after the load was planned.")


def _column_names(columns: Sequence[SourceColumn]) -> list[str]:
    return [column.name for column in columns]


def _generator(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Make an iterator closable. Closing it closes what is inside, if that can be closed."""
    yield from chunks


def cancelled() -> Stopped:
    return stop_with(Code.STAGING_FAILED, "The load was cancelled, because the task was asked to stop.")
