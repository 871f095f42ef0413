"""Staging on a ClickHouse cluster: fix the plan, create the candidate everywhere, load it in one request.

Each statement that changes something is sent once. A candidate belongs to one attempt: what went wrong is
never repaired in it and never appended to. It is dropped, and a retry builds another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.create_table import (
    ClauseDifference,
    ColumnDefinition,
    DefinitionError,
    TableDefinition,
    TableMark,
    admit_engine,
    build_candidate,
    ddl_text,
    describe_columns,
    described,
    differences,
    format_query,
    from_ddl,
    parse,
    schema_digest,
    structure_text,
)
from airflow_provider_dpone.clickhouse.errors import (
    KEEPER_CODES,
    REPLICA_CODES,
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stopped,
    summary,
)
from airflow_provider_dpone.clickhouse.exact import (
    NO_DEDUPLICATION,
    InexactTypeError,
    Load,
    LoadColumn,
    exact_select,
    insert_from_input,
    insert_from_select,
    misfit_column,
    text_carrier,
)
from airflow_provider_dpone.clickhouse.grants import READ_ON_FILE, Grants
from airflow_provider_dpone.clickhouse.progress import BROKEN, LoadQuery, LoadWatch, Verdict, in_words
from airflow_provider_dpone.clickhouse.replicas import READ_SETTINGS
from airflow_provider_dpone.clickhouse.schema_change import StructurePlan, StructureRefusal, plan_structure
from airflow_provider_dpone.clickhouse.server import OnceReply, Server
from airflow_provider_dpone.clickhouse.sql import identifier, qualified, string, tokens, unquote
from airflow_provider_dpone.publication.canonical import Json, digest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import Attempt, Loaded, Log, StagePlan, Target
from airflow_provider_dpone.sources import RowsLoad, SelectLoad, Source, SourceColumn, StreamLoad
from airflow_provider_dpone.sources.pump import waited_for
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


class _TooLarge(Exception):
    """The next chunk would go over the bound."""


class _Cancelled(Exception):
    """The task was asked to stop."""


class _Body:
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
                raise _Cancelled
            if not chunk:
                continue
            if self.sent_bytes + len(chunk) > self._max_bytes:
                raise _TooLarge
            self.sent_bytes += len(chunk)
            yield chunk
        if self._cancel.is_set():
            raise _Cancelled

    def _source_chunks(self) -> Iterator[bytes]:
        with _source_errors(), closing(_generator(self._load.chunks())) as chunks:
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


@dataclass(frozen=True, slots=True)
class _Planned:
    """The adapter's part of a plan.

    :ivar definition: what the candidate shall be.
    :ivar columns: what is loaded, in the source's order.
    :ivar aliases: the replicas, in the cluster's order.
    :ivar settings: those of the settings that a load may need which every replica knows.
    """

    definition: TableDefinition
    source_columns: tuple[SourceColumn, ...]
    columns: tuple[LoadColumn, ...]
    aliases: tuple[str, ...]
    settings: frozenset[str]


class ClusterStaging:
    """Builds, loads and drops the candidates of one stage task. Implements ``routes.ports.Staging``."""

    def __init__(
        self,
        server: Server,
        target: Target,
        refresh: ClusterRefresh,
        source: Source,
        log: Log,
        *,
        control: ControlTable | None = None,
        limits: Limits = Limits(),
        cancel: threading.Event | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        :param log: what a human follows: one line per event.
        :param control: the control table, for the grants that are needed on it.
        :param cancel: when set, a running load is killed within a second; :meth:`cancel` sets it too.
        """
        self._server = server
        self._target = target
        self._refresh = refresh
        self._source = source
        self._log = log
        self._grants = Grants(server, target, control or ControlTable())
        self._limits = limits
        self._cancel = cancel or threading.Event()
        self._running: LoadQuery | None = None
        self.query_id: str | None = None
        """The id of the load's query, once there is one. It holds no secret: ``system.query_log`` has it too."""

    def quoted(self, name: str) -> str:
        """Return the target's database and ``name``, quoted for SQL."""
        return qualified(self._target.database, name)

    def cancel(self) -> bool | None:
        """Stop: kill a running load by its id now, and let none begin. May be called by a signal handler.

        :returns: whether a server took the kill up; ``None``: no load was running.
        """
        self._cancel.set()
        if (running := self._running) is not None:
            return running.kill()
        return None

    # --- Plan --------------------------------------------------------------------------

    def plan(self, observation: Observation) -> StagePlan:
        """Fix structure, column mapping and grants. Reads no row of the source, changes nothing.

        :raises Stopped: ``STRUCTURE_MISSING``, ``STRUCTURE_REFUSED``, ``SCHEMA_MISMATCH``,
            ``TYPE_NOT_EXACT``, ``UNSUPPORTED_TARGET``, ``MISSING_GRANT``, ``BAD_INPUT``, ``SOURCE_FAILED``,
            and what reading from the server raises.
        """
        self._grants.require()
        load = self._source_load()
        if not isinstance(load, SelectLoad):
            self._grants.require(table_functions=True)
        columns = self._columns() if isinstance(load, SelectLoad) else load.columns
        structure = self._structure(self._live(observation), load, columns)
        if isinstance(load, RowsLoad):
            load = self._stream(load, [column.type for column in structure.columns])
            columns = load.columns
            if load.note:
                self._log(f"{self._target}: {load.note}")
        loaded = _load_columns(columns, structure.columns, load)
        aliases = observation.inventory.aliases
        refresh, target = self._refresh, self._target
        return StagePlan(
            digest=digest(
                "dpone/stage-plan.v1",
                self._source.identity(),
                [target.cluster, target.database, target.table],
                schema_digest(structure.definition),
                [[column.name, column.carrier, column.target] for column in loaded],
                [refresh.replication_mode, refresh.on_schema_change],
            ),
            schema_difference=tuple(str(difference) for difference in structure.differences),
            payload=_Planned(structure.definition, columns, loaded, aliases, _known_settings(observation)),
        )

    def _columns(self) -> tuple[SourceColumn, ...]:
        with _source_errors():
            return self._source.columns(self._described)

    def _stream(self, load: RowsLoad, types: Sequence[str]) -> StreamLoad:
        with _source_errors():
            return load.stream(types)

    def _described(self, sql: str) -> tuple[SourceColumn, ...]:
        rows = self._read("Describing the source's query", f"DESCRIBE TABLE (\n{sql}\n)", Code.BAD_INPUT)
        return tuple(SourceColumn(str(row["name"]), str(row["type"])) for row in rows)

    def _live(self, observation: Observation) -> TableDefinition | None:
        table = observation.table(self._target.table)
        if table is None:
            return None
        try:
            definition = parse(table.create_query)
        except DefinitionError as error:
            raise _stop(Code.UNSUPPORTED_TARGET, f"{self._target} can't be rebuilt: {error}.") from None
        if refusal := admit_engine(definition):
            raise _stop(Code.UNSUPPORTED_TARGET, f"{self._target} can't be replaced: {refusal.message}.")
        return definition

    def _structure(
        self,
        live: TableDefinition | None,
        load: SelectLoad | StreamLoad | RowsLoad,
        columns: tuple[SourceColumn, ...],
    ) -> StructurePlan:
        """Decide the candidate's structure and which of its columns the source fills."""
        mode = self._refresh.on_schema_change
        given = self._given() if live is None or mode != "refuse" else None
        named = not isinstance(load, StreamLoad) or _named(load, columns, live, given)
        match plan_structure(live, given, [(column.name, column.type) for column in columns], mode):
            case StructurePlan() as structure:
                if refusal := admit_engine(structure.definition):
                    raise _stop(Code.STRUCTURE_REFUSED, f"The structure can't be used: {refusal.message}.")
                return structure
            case StructureRefusal() as refused:
                raise _structure_refused(refused, self._target, len(columns), named=named)

    def _given(self) -> TableDefinition | None:
        """Return what the DAG author wrote, in the server's own words."""
        refresh = self._refresh
        doing = "Reading the given structure"
        try:
            if refresh.structure is not None:
                text = structure_text(refresh.structure)
            elif refresh.ddl is not None:
                text = ddl_text(refresh.ddl)
            else:
                return None
            ((formatted,),) = (row.values() for row in self._read(doing, format_query(text)))
            definition = from_ddl(str(formatted))
            rows = self._read(doing, describe_columns(definition))
            return described(definition, [{name: str(value) for name, value in row.items()} for row in rows])
        except DefinitionError as error:
            raise _stop(Code.STRUCTURE_REFUSED, f"The given structure can't be used: {error}.") from None

    def _read(self, doing: str, sql: str, refused: Code = Code.STRUCTURE_REFUSED) -> list[dict[str, object]]:
        """Ask the server about something that the DAG author wrote; an error is an answer to that."""
        try:
            return self._server.read(sql, timeout=_ASK_SECONDS).dicts()
        except ServerError as error:
            if error.code == ErrorCode.ACCESS_DENIED:
                raise self._denied(error, doing) from None
            if error.code in _BUSY_CODES:
                raise stopped(error, doing) from None
            raise _stop(
                refused,
                f"{doing} failed: {summary(error)}.",
                facts={"exception_code": error.code, "exception_name": error.name},
            ) from None
        except (ConnectFailed, ReplyLost) as error:
            raise stopped(error, doing) from None

    def _denied(self, error: ServerError, doing: str) -> Stopped:
        """Name the grant, where it is the one that some releases want for ``input()`` and ``null()``."""
        stop = self._grants.lacking([READ_ON_FILE]) if error.mentions(str(READ_ON_FILE)) else None
        return stopped(error, doing) if stop is None else Stopped(stop)

    # --- Create and drop ---------------------------------------------------------------

    def create(self, plan: StagePlan, attempt: Attempt, *, authority_id: str, operation_id: str) -> None:
        """Create the candidate on every replica, under the attempt's UUID and with our mark in its COMMENT.

        :raises Stopped: ``STAGING_FAILED`` (refused or failed somewhere), ``MISSING_GRANT``,
            ``STAGING_UNKNOWN``: it may still be created.
        """
        planned = _planned(plan)
        statement = build_candidate(
            planned.definition,
            database=self._target.database,
            name=attempt.name,
            uuid=attempt.uuid,
            cluster=self._target.cluster,
            mark=TableMark(authority_id, operation_id, attempt.attempt_id),
        )
        try:
            self._server.once(
                statement,
                settings={
                    "log_comment": f"dpone1s:{operation_id[:16]}:create:{attempt.attempt_id}",
                    "distributed_ddl_task_timeout": int(self._limits.create),
                    "distributed_ddl_output_mode": "throw",
                },
                timeout=self._limits.create + _DDL_SLACK_SECONDS,
            )
        except ConnectFailed as error:
            raise _stop(Code.STAGING_FAILED, f"Creating the candidate failed: {summary(error)}.") from None
        except ServerError as error:
            if error.code not in _MAYBE_ENQUEUED or error.remote_host_error:
                raise self._not_created(error) from None
            self._await_created(attempt, planned.aliases, summary(error))
        except ReplyLost as error:
            self._await_created(attempt, planned.aliases, summary(error))

    def _not_created(self, error: ServerError) -> Stopped:
        if error.code == ErrorCode.ACCESS_DENIED:
            return stopped(error, "Creating the candidate")
        where = " on a replica" if error.remote_host_error else ""
        return _stop(
            Code.STAGING_FAILED,
            f"Creating the candidate failed{where}: {summary(error)}.",
            facts={"exception_code": error.code, "exception_name": error.name},
        )

    def _await_created(self, attempt: Attempt, aliases: tuple[str, ...], why: str) -> None:
        """The statement may be in the queue: wait until every replica shows its table, or the time is up."""
        self._log(f"{self._target}: creating {attempt.name} was not answered ({why}); looking for it.")
        deadline = time.monotonic() + self._limits.create
        created: set[str] = set()
        while True:
            try:
                created = self._created_on(attempt, aliases)
            except BROKEN:
                created = set()
            if created == set(aliases):
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(_QUIET_SECONDS)
        raise _stop(
            Code.STAGING_UNKNOWN,
            f"Creating the candidate was not answered ({why}), and it is not seen on every replica.",
            replicas={alias: {"created": alias in created} for alias in aliases},
        )

    def _created_on(self, attempt: Attempt, aliases: tuple[str, ...]) -> set[str]:
        found = self._server.read(
            "SELECT _shard_num, toString(uuid) FROM "
            f"clusterAllReplicas({identifier(self._target.cluster)}, system.tables) "
            f"WHERE database = {string(self._target.database)} AND name = {string(attempt.name)}",
            settings={**READ_SETTINGS, "skip_unavailable_shards": 0},
            timeout=_LOOK_SECONDS,
        ).rows
        return {aliases[int(str(number)) - 1] for number, uuid in found if uuid == attempt.uuid}

    def check_created(self, plan: StagePlan, attempt: Attempt, observation: Observation) -> None:
        """Compare the candidate on every replica with the plan, clause by clause.

        :raises Stopped: ``CANDIDATE_DIFFERS``, with the clauses per replica.
        """
        wanted = _planned(plan).definition
        problems: dict[str, dict[str, Json]] = {}
        for alias in observation.inventory.aliases:
            facts = observation.replicas.get(alias)
            table = facts.tables.get(attempt.name) if facts else None
            if table is None:
                problems[alias] = {"exists": False}
            elif table.uuid != attempt.uuid:
                problems[alias] = {"uuid": table.uuid}
            else:
                try:
                    found = differences(wanted, parse(table.create_query))
                except DefinitionError:
                    problems[alias] = {"readable": False}
                    continue
                if found:
                    problems[alias] = {difference.clause: _how(difference) for difference in found}
        if problems:
            clauses = dict.fromkeys(clause for found in problems.values() for clause in found)
            raise _stop(
                Code.CANDIDATE_DIFFERS,
                f"The candidate is not what was asked for on {', '.join(problems)}: {', '.join(clauses)}.",
                replicas=problems,
            )

    def drop(self, attempt: Attempt) -> None:
        """Drop a candidate that the rule for drops allows to be dropped. Sent once, not waited for.

        :raises ValueError: the name is not the attempt's own.
        :raises Stopped: the server refused it or could not be asked.
        """
        if attempt.attempt_id not in attempt.name:
            raise ValueError("only a candidate of this very attempt may be dropped")
        try:
            self._server.once(
                f"DROP TABLE IF EXISTS {self.quoted(attempt.name)} "
                f"ON CLUSTER {identifier(self._target.cluster)}",
                settings={
                    "log_comment": f"dpone1s:drop:{attempt.attempt_id}",
                    "distributed_ddl_task_timeout": 0,
                    # The guard against dropping a large table by mistake; this one is proven to be ours.
                    "max_table_size_to_drop": 0,
                },
                timeout=_DDL_SLACK_SECONDS,
            )
        except BROKEN as error:
            raise stopped(error, "Dropping the candidate") from None

    # --- Load ------------------------------------------------------------------------

    def load(self, plan: StagePlan, attempt: Attempt) -> Loaded:
        """Read the source into the candidate, in one request.

        :raises Stopped: ``SOURCE_FAILED``, ``SOURCE_TOO_LARGE``, ``VALUE_REFUSED``, ``ROWS_DISAGREE``,
            ``STAGING_FAILED``: the load has ended; ``STAGING_UNKNOWN``: it may still be running.
        """
        planned = _planned(plan)
        body: _Body | None = None
        encoding: Mapping[str, str] = {}
        load = self._source_load()
        if isinstance(load, RowsLoad):
            _require_same(_column_names(planned.source_columns), _column_names(load.columns))
            load = self._stream(load, [column.target for column in planned.columns])
        match load:
            case SelectLoad(sql):
                statement = insert_from_select(self._target.database, attempt.name, planned.columns, sql)
                source_rows: Callable[[], int | None] = _unknown
            case StreamLoad():
                _require_same(planned.source_columns, load.columns)
                statement = insert_from_input(
                    self._target.database, attempt.name, planned.columns, load.format
                )
                body = _Body(load, self._refresh.max_source_bytes, self._cancel)
                source_rows = load.rows
                encoding = load.settings
        query = LoadQuery(
            self._server, self._target.cluster, planned.aliases, f"dpone-load-{attempt.attempt_id}"
        )
        ours = {**statement.settings, **NO_DEDUPLICATION}
        known = {name: value for name, value in ours.items() if name in planned.settings}
        # What the source's encoding relies on is never left out: a server that lacks it refuses the load.
        load_statement = Load(statement.sql, {**known, **encoding})
        try:
            reply = self._sent(planned, attempt, load_statement, query, body)
        finally:
            if body is not None:
                body.close()
        if self._cancel.is_set():
            raise _cancelled()
        return self._accepted(reply, body, source_rows())

    def _source_load(self) -> SelectLoad | StreamLoad | RowsLoad:
        """Ask the source how it is loaded. A database may let that wait for as long as somebody locks a table."""
        with _source_errors():
            load = waited_for(self._source.load, lambda: not self._cancel.is_set())
        if load is None:
            raise _stop(Code.STAGING_FAILED, "The task was asked to stop before its load began.")
        return load

    def _sent(
        self, planned: _Planned, attempt: Attempt, statement: Load, query: LoadQuery, body: _Body | None
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
            except _TooLarge:
                raise self._too_large("nothing was sent") from None
            except _Cancelled:
                raise _cancelled() from None
        self._running, self.query_id = query, query.query_id
        try:
            with watch:
                # A stream's statement leads its body: in the URL, a wide table's would be too long for the
                # proxies that stand in front of many servers.
                return self._server.once(
                    statement.sql if body is None else "",
                    settings={**statement.settings, "log_comment": f"dpone1s:load:{attempt.attempt_id}"},
                    query_id=query.query_id,
                    body=None if body is None else chain([f"{statement.sql}\n".encode()], body),
                    timeout=self._limits.load,
                )
        except ServerError as error:
            raise self._refused(error, planned, watch.verdict) from None
        except ConnectFailed as error:
            raise _stop(Code.STAGING_FAILED, f"The load was not sent: {summary(error)}.") from None
        except ReplyLost as error:
            cause = _stop(
                Code.STAGING_FAILED,
                f"The load's reply was lost ({summary(error)}), so the load was given up.",
            )
        except _TooLarge:
            cause = self._too_large("its stream was cut there")
        except _Cancelled:
            cause = _cancelled()
        except Stopped as error:
            cause = error
        except BaseException:
            # Such as Airflow's timeout of the task, raised by a signal: nobody waits for the load any more.
            query.kill()
            raise
        finally:
            self._running = None
        # The connection is cut and the server may not have noticed yet.
        raise self._settled(query, cause, watch.verdict)

    def _settled(self, query: LoadQuery, cause: Stopped, verdict: Verdict | None) -> Stopped:
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
                            return _cancelled()
                        case None:
                            return cause
            time.sleep(_QUIET_SECONDS / 2)
        return _stop(
            Code.STAGING_UNKNOWN,
            f"{cause.stop.message} It is not proven that the load has ended on every replica.",
            facts={"query_id": query.query_id},
        )

    def _accepted(self, reply: OnceReply, body: _Body | None, source_rows: int | None) -> Loaded:
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
            raise _stop(Code.ROWS_DISAGREE, f"The row counts of the load don't agree: {counts}.", facts=said)
        return Loaded(written, size, source_rows)

    def _refused(self, error: ServerError, planned: _Planned, verdict: Verdict | None) -> Stopped:
        """Say what a server's error about the load means; the load has ended."""
        match verdict:
            case Verdict.TOO_LARGE:
                return self._too_large("it was killed")
            case Verdict.CANCELLED:
                return _cancelled()
        if self._cancel.is_set() and error.code == ErrorCode.QUERY_WAS_CANCELLED:
            return _cancelled()
        facts: dict[str, Json] = {"exception_code": error.code, "exception_name": error.name}
        if error.own_message is not None and (column := misfit_column(f"dpone: {error.own_message}")):
            return _stop(
                Code.VALUE_REFUSED,
                f"A value doesn't fit column {identifier(column)} of {self._target} exactly.",
                facts={"column": column},
            )
        if error.code == _VIOLATED_CONSTRAINT:
            names = (unquote(tokens(entry)[0].text) for entry in planned.definition.constraints)
            name = next((n for n in names if error.mentions(f"Constraint {identifier(n)} ")), None)
            return _stop(
                Code.VALUE_REFUSED,
                f"A row violates a constraint of {self._target}{f': {identifier(name)}' if name else ''}.",
                facts={"constraint": name},
            )
        if error.code in _MISFIT_CODES:
            column = _misread(error, [column.name for column in planned.columns])
            where = "" if column is None else f" of column {identifier(column)}"
            return _stop(
                Code.VALUE_REFUSED,
                f"The server can't read a value or a record{where}: {summary(error)}.",
                facts=facts if column is None else {**facts, "column": column},
            )
        if error.code == ErrorCode.ACCESS_DENIED:
            return stopped(error, "Loading the candidate")
        return _stop(Code.STAGING_FAILED, f"Loading the candidate failed: {summary(error)}.", facts=facts)

    def _too_large(self, then: str) -> Stopped:
        limit = self._refresh.max_source_bytes
        return _stop(
            Code.SOURCE_TOO_LARGE,
            f"The source is larger than max_source_bytes ({limit:,} bytes, {in_words(limit)}); {then}.",
            facts={"max_source_bytes": limit},
        )


def _known_settings(observation: Observation) -> frozenset[str]:
    """Return the settings of a load that every replica knows."""
    known = [facts.load_settings for facts in observation.replicas.values()]
    return frozenset.intersection(*known) if known else frozenset()


def _load_columns(
    source: Sequence[SourceColumn], table: Sequence[ColumnDefinition], load: SelectLoad | StreamLoad
) -> tuple[LoadColumn, ...]:
    """Match each source column with its column of the table, and prove that the type can be carried."""
    columns: list[LoadColumn] = []
    refused: list[LoadColumn] = []
    for given, column in zip(source, table, strict=True):
        carrier = given.type
        if carrier is None and isinstance(load, StreamLoad):
            try:
                carrier = text_carrier(column.type, load.format)
            except InexactTypeError:
                refused.append(LoadColumn(given.name, f"{load.format} text", column.type))
                continue
        columns.append(LoadColumn(given.name, carrier or column.type, column.type, given.encoding))
    try:
        exact_select(columns)
    except InexactTypeError as error:
        refused.extend(error.columns)
    if refused:
        pairs = "; ".join(f"{identifier(c.name)}: {c.carrier} into {c.target}" for c in refused)
        raise _stop(
            Code.TYPE_NOT_EXACT,
            f"Types that can't be carried exactly: {pairs}.",
            facts={"columns": [column.name for column in refused]},
        )
    return tuple(columns)


def _named(
    load: StreamLoad,
    columns: Sequence[SourceColumn],
    live: TableDefinition | None,
    given: TableDefinition | None,
) -> bool:
    """Tell whether the columns' names may be shown. A first record that is no header holds values.

    It is taken for a header if most of it are names that the table or the given structure has.

    :raises Stopped: ``BAD_INPUT``: none of it is.
    """
    if not load.names_from_data:
        return True
    tables = [table for table in (live, given) if table is not None]
    known = sum(any(table.column(column.name) for table in tables) for column in columns)
    if tables and not known:
        raise _stop(
            Code.BAD_INPUT,
            f"The first record of the {load.format} file names no column of the table, so it seems to be no "
            "header.",
        )
    return known * 2 > len(columns)


def _structure_refused(refused: StructureRefusal, target: Target, columns: int, *, named: bool) -> Stopped:
    match refused.reason:
        case "structure_missing":
            code = Code.STRUCTURE_MISSING
        case "duplicate_columns":
            code = Code.BAD_INPUT
        case _:
            code = Code.SCHEMA_MISMATCH
    if not named:
        return _stop(code, f"{target}: {_unnamed(refused, columns)}")
    facts: dict[str, Json] = {}
    if refused.source_only or refused.table_only:
        facts = {"source_only": list(refused.source_only), "table_only": list(refused.table_only)}
    hint = f" For example:\n{refused.suggestion}" if refused.suggestion else ""
    return _stop(code, f"{target}: {refused.message}.{hint}", facts=facts)


def _unnamed(refused: StructureRefusal, columns: int) -> str:
    """Say why there is no plan without the names of the source's columns."""
    why = "They are not shown, since they may be the values of a first row"
    hint = f"{why}: give options={{'header': False, 'columns': [...]}} if the file has no header."
    if refused.reason == "structure_missing":
        return f"{refused.message}. The file's first record has {columns} field(s). {hint}"
    return (
        f"the table and the file's first record, of {columns} field(s), have different columns: "
        f"{len(refused.source_only)} in the record only. {hint}"
    )


def _planned(plan: StagePlan) -> _Planned:
    if not isinstance(plan.payload, _Planned):
        raise TypeError("the plan was made by another adapter")
    return plan.payload


def _how(difference: ClauseDifference) -> str:
    """Say how a clause differs, without its text: a default may hold anything."""
    match difference.expected, difference.actual:
        case "", _:
            return "added"
        case _, "":
            return "missing"
        case _:
            return "changed"


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
        raise _stop(Code.SOURCE_FAILED, "The source's columns changed after the load was planned.")


def _column_names(columns: Sequence[SourceColumn]) -> list[str]:
    return [column.name for column in columns]


def _generator(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Make an iterator closable. Closing it closes what is inside, if that can be closed."""
    yield from chunks


@contextmanager
def _source_errors() -> Iterator[None]:
    """Whatever a source raises becomes ``SOURCE_FAILED`` with the kind of error: its text may hold values."""
    try:
        yield
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001 - a source is anything, so its errors are too
        kind = type(error).__name__
        raise _stop(Code.SOURCE_FAILED, f"The source failed with {kind}.", facts={"error": kind}) from None


def _cancelled() -> Stopped:
    return _stop(Code.STAGING_FAILED, "The load was cancelled, because the task was asked to stop.")


def _stop(
    code: Code,
    message: str,
    *,
    facts: Mapping[str, Json] | None = None,
    replicas: Mapping[str, Mapping[str, Json]] | None = None,
) -> Stopped:
    return Stopped(Stop(code, message, facts=facts or {}, replicas=replicas or {}))
