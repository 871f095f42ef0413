"""The initiator's side of an ON CLUSTER statement, emulated: check, enqueue, wait, answer.

Canonical text, syntax errors, effective settings and grants are the server's own: it is asked for each of them with the
caller's credentials.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.cluster.ddl_entry import DDLEntry
from tests.cluster.ddl_queue import QUEUE_PATH, DDLQueue
from tests.cluster.ddl_statement import (
    OnClusterStatement,
    UnsupportedStatementError,
    output_clause,
    parse,
    qualify,
    required_grants,
    substitute_parameters,
    with_uuids,
    without_output_clause,
)
from tests.cluster.ddl_worker import NodeIsActive, wait_for_event
from tests.cluster.keeper import KeeperError, MissingNodeError
from tests.cluster.node_client import Caller, NodeClient
from tests.cluster.spec import Endpoint
from tests.cluster.sql import quote_string

_POLL_SECONDS = 1.0
_SYNTAX_ERROR, _NOT_IMPLEMENTED, _TIMEOUT, _UNFINISHED = 62, 48, 159, 341
_ACCESS_DENIED, _NO_CLUSTER, _KEEPER = 497, 701, 999
_MODES_WITHOUT_NULLS = ("throw", "none", "throw_only_active", "none_only_active")


class StatementRefusedError(RuntimeError):
    """The statement ends with this ClickHouse error.

    Attributes:
        code: its number.
        message: text without code, name and version.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class HostResult:
    """One row of the answer; `code` and `error` are None for a host that has not finished in time."""

    host: Endpoint
    code: int | None
    error: str | None
    remaining: int
    active: int


@dataclass(frozen=True, slots=True)
class Initiator:
    """One server in its role as initiator.

    Attributes:
        name: the server's own host name, with its TCP port.
        baseline: settings that an embedded server changes by itself, which no stand-alone one has.
    """

    client: NodeClient
    queue: DDLQueue
    name: Endpoint
    node_is_active: NodeIsActive
    baseline: Mapping[str, str] = field(default_factory=dict)

    async def run(
        self,
        sql: str,
        caller: Caller,
        query_id: str,
        parameters: Mapping[str, str],
        on_enqueued: Callable[[str], None],
    ) -> str | None:
        """Run a statement on the cluster.

        Args:
            sql: the statement as the caller sent it.
            caller: credentials and settings of the request.
            query_id: of the request.
            parameters: values of query parameters, without their prefix ``param_``.
            on_enqueued: called with the entry's name.

        Returns:
            A query that makes the server send the answer's rows; None if the text has no ON CLUSTER clause after all.

        Raises:
            StatementRefusedError: it failed; nothing was enqueued unless `on_enqueued` was called.
            ServerError: the server itself refused it, or the caller.
            NodeDownError: the server is not there.
        """
        context = await self._context(substitute_parameters(sql, dict(parameters)), caller)
        try:
            statement = parse(context["text"])
            if statement is None:
                return None
            output = output_clause(statement)
            statement = qualify(without_output_clause(statement), context["database"])
            hosts = await self._hosts(statement.cluster)
            await self._check_grants(statement, caller, context["user"])
            statement = with_uuids(statement, uuid4(), uuid4())
        except UnsupportedStatementError as error:
            raise StatementRefusedError(_NOT_IMPLEMENTED, str(error)) from error
        entry = DDLEntry(
            query=statement.text,
            hosts=hosts,
            initiator=self.name,
            settings=self._entry_settings(context["changed"], caller),
            initial_query_id=query_id,
        )
        try:
            name = await self.queue.enqueue(entry)
            on_enqueued(name)
            if context["timeout"] == 0:
                return "SELECT 1 FORMAT Null"
            answer = await self._wait_and_answer(name, entry, context["timeout"], context["mode"])
        except MissingNodeError as error:
            raise StatementRefusedError(
                _UNFINISHED,
                "Cannot provide query execution status. The query's node has been deleted by the cleaner "
                "since it was finished (or its lifetime is expired)",
            ) from error
        except KeeperError as error:
            raise StatementRefusedError(_KEEPER, f"Coordination error: {error}") from error
        return f"{answer} {output}" if output and not answer.endswith("FORMAT Null") else answer

    async def _context(self, sql: str, caller: Caller) -> dict[str, Any]:
        """Canonical text and effective settings, by one query in the caller's name."""
        rows = await self.client.rows(
            "SELECT formatQuerySingleLine({sql:String}) AS text, currentDatabase() AS database, "
            "currentUser() AS user, toInt64(getSetting('distributed_ddl_task_timeout')) AS timeout, "
            "toString(getSetting('distributed_ddl_output_mode')) AS mode, "
            # Not in a subquery: those have settings of their own.
            "groupArrayIf((name, value), changed) AS changed FROM system.settings",
            {"param_sql": _parameter(sql.strip().rstrip(";")), "log_queries": "0"},
            caller,
        )
        return rows[0]

    def _entry_settings(self, changed: list[tuple[str, str]], caller: Caller) -> dict[str, str]:
        """The caller's changed settings, without those that this gateway or the embedded server has changed."""
        ours = {"output_format_json_quote_64bit_integers", "log_queries"} - set(caller.parameters)
        ours.add("database")  # a setting in an embedded server only
        return {
            name: value
            for name, value in sorted(changed)
            if name not in ours and self.baseline.get(name) != value
        }

    async def _hosts(self, cluster: str) -> tuple[Endpoint, ...]:
        rows = await self.client.rows(
            "SELECT host_name, port FROM system.clusters WHERE cluster = {cluster:String} "
            "ORDER BY shard_num, replica_num",
            {"param_cluster": cluster, "log_queries": "0"},
        )
        if not rows:
            raise StatementRefusedError(_NO_CLUSTER, f"Requested cluster '{cluster}' not found")
        return tuple(Endpoint(row["host_name"], row["port"]) for row in rows)

    async def _check_grants(self, statement: OnClusterStatement, caller: Caller, user: str) -> None:
        grants = required_grants(statement)
        if await self._has(", ".join(map(str, grants)), caller):
            return
        for grant in grants:
            if not await self._has(str(grant), caller):
                raise StatementRefusedError(
                    _ACCESS_DENIED,
                    f"{user}: Not enough privileges. To execute this query, it's necessary to have the grant {grant}",
                )

    async def _has(self, grants: str, caller: Caller) -> bool:
        return (await self.client.text(f"CHECK GRANT {grants}", {"log_queries": "0"}, caller)).strip() == "1"

    async def _wait_and_answer(self, name: str, entry: DDLEntry, timeout: int, mode: str) -> str:
        """Wait for the hosts, at most `timeout` seconds (for ever if negative), and make the answer."""
        results: list[HostResult] = []
        started = time.monotonic()
        awaited = set(entry.hosts)
        if mode.endswith("_only_active"):
            awaited = {host for host in awaited if self.node_is_active(host)}
        while True:
            changed = asyncio.Event()
            finished = await self.queue.finished_hosts(name, changed.set)
            seen = {result.host for result in results}
            active = len(await self.queue.active_hosts(name))
            for host in finished:
                if host not in seen:
                    outcome = await self.queue.outcome(name, host)
                    remaining = len(entry.hosts) - len(results) - 1
                    results.append(HostResult(host, outcome.code, outcome.message, remaining, active))
            if awaited <= set(finished):
                break
            left = timeout - (time.monotonic() - started) if timeout > 0 else _POLL_SECONDS
            if left <= 0:
                self._end_in_timeout(name, entry, mode, results, active, time.monotonic() - started)
                break
            await wait_for_event(changed, min(left, _POLL_SECONDS))
        if mode != "never_throw":
            _raise_first_error(results)
        return _answer_query(mode, results, [host for host in entry.hosts if host not in finished], active)

    def _end_in_timeout(
        self,
        name: str,
        entry: DDLEntry,
        mode: str,
        results: list[HostResult],
        active: int,
        waited: float,
    ) -> None:
        """An earlier error of a host hides the timeout; some modes answer with rows instead."""
        if mode not in _MODES_WITHOUT_NULLS:
            return
        _raise_first_error(results)
        remaining = len(entry.hosts) - len(results)
        raise StatementRefusedError(
            _TIMEOUT,
            f"Distributed DDL task {QUEUE_PATH}/{name} is not finished on {remaining} of {len(entry.hosts)} hosts "
            f"({active} of them are currently executing the task, {remaining - active} are inactive). "
            f"They are going to execute the query in background. Was waiting for {waited:.9f} seconds, "
            "which is longer than distributed_ddl_task_timeout",
        )


def _raise_first_error(results: list[HostResult]) -> None:
    for result in results:
        if result.code:
            raise StatementRefusedError(result.code, f"There was an error on [{result.host}]: {result.error}")


def _answer_query(mode: str, results: list[HostResult], unfinished: list[Endpoint], active: int) -> str:
    if mode.startswith("none"):
        return "SELECT 1 FORMAT Null"
    nullable = mode not in _MODES_WITHOUT_NULLS
    rows = results + [
        HostResult(host, None, None, len(unfinished), active) for host in unfinished if nullable
    ]
    values = ", ".join(
        f"({quote_string(row.host.host)}, {row.host.port}, {_or_null(row.code)}, "
        f"{'NULL' if row.error is None else quote_string(row.error)}, {row.remaining}, {row.active})"
        for row in rows
    )
    status, error = ("Nullable(Int64)", "Nullable(String)") if nullable else ("Int64", "String")
    columns = (
        f"host String, port UInt16, status {status}, error {error}, "
        "num_hosts_remaining UInt64, num_hosts_active UInt64"
    )
    source = f"values({quote_string(columns)}, {values})" if rows else f"null({quote_string(columns)})"
    return f"SELECT * FROM {source}"


def _or_null(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def _parameter(text: str) -> str:
    """The value of a String parameter as the HTTP interface reads it: in the escapes of TSV."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
