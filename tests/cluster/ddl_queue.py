"""The distributed DDL queue in ZooKeeper, in ClickHouse's own layout, and what its system table shows of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict

from tests.cluster.ddl_entry import DDLEntry, ExecutionStatus, host_id, parse_host_id
from tests.cluster.ddl_statement import parse
from tests.cluster.keeper import ExistingNodeError, Keeper, MissingNodeError, Znode
from tests.cluster.spec import Endpoint

QUEUE_PATH = "/clickhouse/task_queue/ddl"

QUEUE_COLUMNS = (
    "entry String, entry_version Nullable(UInt8), initiator_host Nullable(String), "
    "initiator_port Nullable(UInt16), cluster String, query String, settings Map(String, String), "
    "query_create_time DateTime, host Nullable(String), port Nullable(UInt16), "
    "status Nullable(Enum8('Inactive' = 0, 'Active' = 1, 'Finished' = 2, 'Removing' = 3, 'Unknown' = 4)), "
    "exception_code Nullable(UInt16), exception_text Nullable(String), query_finish_time Nullable(DateTime), "
    "query_duration_ms Nullable(UInt64)"
)
"""Columns of system.distributed_ddl_queue, the same in ClickHouse 24.8 and 26.9."""


class QueueStatus(StrEnum):
    """Values of the status column."""

    INACTIVE = "Inactive"
    ACTIVE = "Active"
    FINISHED = "Finished"
    REMOVING = "Removing"
    UNKNOWN = "Unknown"


class QueueRow(TypedDict):
    """One row of system.distributed_ddl_queue. Times are seconds since 1970, by ZooKeeper's clock."""

    entry: str
    entry_version: int | None
    initiator_host: str | None
    initiator_port: int | None
    cluster: str
    query: str
    settings: dict[str, str]
    query_create_time: int
    host: str | None
    port: int | None
    status: str | None
    exception_code: int | None
    exception_text: str | None
    query_finish_time: int | None
    query_duration_ms: int | None


@dataclass(frozen=True, slots=True)
class RowOverride:
    """A lie that the system table tells about the entries whose query matches `match`.

    With `hidden`, there is no row at all. Otherwise the rows of `host` (of every host, if it is None) get these three
    values, whatever the queue itself says.
    """

    match: str
    host: Endpoint | None = None
    status: str | None = None
    exception_code: int | None = None
    exception_text: str | None = None
    hidden: bool = False

    def applies_to(self, row: QueueRow) -> bool:
        """Whether this is a row to lie about."""
        named = self.host is None or (row["host"], row["port"]) == (self.host.host, self.host.port)
        return named and re.search(self.match, row["query"], re.IGNORECASE | re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of one entry, and the same as lines of JSON."""

    rows: tuple[QueueRow, ...]
    lines: str


def _lines(rows: Iterable[QueueRow]) -> str:
    return "".join([f"{json.dumps(row)}\n" for row in rows])


@dataclass(slots=True)
class DDLQueue:
    """Reads and writes the queue through one ZooKeeper session."""

    keeper: Keeper
    overrides: list[RowOverride] = field(default_factory=list)
    _enqueueing: asyncio.Lock = field(default_factory=asyncio.Lock)
    # An entry never changes, so it is read once. A znode is created only once under a name, too.
    _entries: dict[str, tuple[DDLEntry, int]] = field(default_factory=dict)
    _finished: dict[str, Znode] = field(default_factory=dict)
    # Nor does what the table shows of an entry that every host has finished. A session has thousands of them.
    _settled: dict[str, _Group] = field(default_factory=dict)

    async def names(self, watch: Callable[[], None] | None = None) -> list[str]:
        """Names of all entries, oldest first."""
        await self.keeper.ensure_path(QUEUE_PATH)
        return [name for name in await self.keeper.children(QUEUE_PATH, watch) if name.startswith("query-")]

    async def entry(self, name: str) -> DDLEntry:
        """One entry.

        Raises:
            MissingNodeError: it has been removed.
        """
        return (await self._read_entry(name))[0]

    async def _read_entry(self, name: str) -> tuple[DDLEntry, int]:
        if name not in self._entries:
            znode = await self.keeper.get(f"{QUEUE_PATH}/{name}")
            self._entries[name] = (DDLEntry.from_text(znode.text), znode.created_ms)
        return self._entries[name]

    async def enqueue(self, entry: DDLEntry) -> str:
        """Append an entry; returns its name."""
        await self.keeper.ensure_path(QUEUE_PATH)
        async with self._enqueueing:
            return await self._append(entry)

    async def append_finished(self, entry: DDLEntry) -> str:
        """Append an entry that every host has already marked as finished, so that nobody executes it."""
        async with self._enqueueing:
            name = await self._append(entry)
            for host in entry.hosts:
                status = ExecutionStatus(0, "")
                await self.keeper.create(f"{QUEUE_PATH}/{name}/finished/{host_id(host)}", status.to_text())
        return name

    async def _append(self, entry: DDLEntry) -> str:
        path = await self.keeper.create(f"{QUEUE_PATH}/query-", entry.to_text(), sequence=True)
        for folder in ("active", "finished"):
            await self.keeper.create(f"{path}/{folder}")
        return path.rsplit("/", 1)[1]

    async def settled(self) -> None:
        """Wait until no entry is half written."""
        async with self._enqueueing:
            return

    async def remove(self, name: str) -> None:
        """Delete an entry with everything below it, as the cleaner does."""
        self._entries.pop(name, None)
        self._settled.pop(name, None)
        await self.keeper.delete(f"{QUEUE_PATH}/{name}", recursive=True)

    async def mark_active(self, name: str, host: Endpoint) -> None:
        """Announce that this host is executing the entry."""
        try:
            await self.keeper.create(f"{QUEUE_PATH}/{name}/active/{host_id(host)}", ephemeral=True)
        except ExistingNodeError:
            return

    async def unmark_active(self, name: str, host: Endpoint) -> None:
        """Take the announcement back, as the end of the host's session would."""
        await self.keeper.delete(f"{QUEUE_PATH}/{name}/active/{host_id(host)}")

    async def mark_finished(self, name: str, host: Endpoint, status: ExecutionStatus) -> None:
        """Record this host's outcome, for ever; ends the announcement in the same transaction."""
        path = f"{QUEUE_PATH}/{name}"
        await self.keeper.replace(
            f"{path}/active/{host_id(host)}", f"{path}/finished/{host_id(host)}", status.to_text()
        )

    async def is_finished(self, name: str, host: Endpoint) -> bool:
        """Whether this host has recorded an outcome."""
        return await self.keeper.exists(f"{QUEUE_PATH}/{name}/finished/{host_id(host)}")

    async def finished_hosts(self, name: str, watch: Callable[[], None] | None = None) -> list[Endpoint]:
        """The hosts that have recorded an outcome."""
        children = await self.keeper.children(f"{QUEUE_PATH}/{name}/finished", watch)
        return [parse_host_id(child) for child in children]

    async def active_hosts(self, name: str) -> list[Endpoint]:
        """The hosts that announce that they are executing the entry."""
        return [parse_host_id(child) for child in await self.keeper.children(f"{QUEUE_PATH}/{name}/active")]

    async def outcome(self, name: str, host: Endpoint) -> ExecutionStatus:
        """What this host has recorded."""
        return ExecutionStatus.from_text((await self._read_finished(name, host_id(host))).text)

    async def _read_finished(self, name: str, host: str) -> Znode:
        path = f"{QUEUE_PATH}/{name}/finished/{host}"
        if path not in self._finished:
            self._finished[path] = await self.keeper.get(path)
        return self._finished[path]

    async def rows(self) -> list[QueueRow]:
        """What system.distributed_ddl_queue shows."""
        return list(self._overridden([row for group in await self._groups() for row in group.rows]))

    async def lines(self) -> str:
        """The same, one JSON object a line."""
        if self.overrides:
            return _lines(await self.rows())
        return "".join([group.lines for group in await self._groups()])

    async def _groups(self) -> list[_Group]:
        names = await self.names()
        unsettled = [name for name in names if name not in self._settled]
        read = dict(
            zip(unsettled, await asyncio.gather(*map(self._rows_unless_removed, unsettled)), strict=True)
        )
        groups = []
        for name in names:
            group = self._settled.get(name)
            if group is None:
                group = _Group(tuple(read[name]), _lines(read[name]))
                if group.rows and all(row["status"] == QueueStatus.FINISHED for row in group.rows):
                    self._settled[name] = group
            groups.append(group)
        return groups

    async def _rows_unless_removed(self, name: str) -> list[QueueRow]:
        try:
            return await self._rows_of(name)
        except MissingNodeError:
            # The entry went away while it was read: the table skips it, too.
            self._entries.pop(name, None)
            return []

    def _overridden(self, rows: list[QueueRow]) -> Iterator[QueueRow]:
        for row in rows:
            override = next((each for each in self.overrides if each.applies_to(row)), None)
            if override is None:
                yield row
            elif not override.hidden:
                yield {
                    **row,
                    "status": override.status,
                    "exception_code": override.exception_code,
                    "exception_text": override.exception_text,
                }

    async def _rows_of(self, name: str) -> list[QueueRow]:
        entry, created_ms = await self._read_entry(name)
        try:
            # In this order a host can move from active to finished in between, but is not seen twice.
            active = await self.keeper.children(f"{QUEUE_PATH}/{name}/active")
            finished = await self.keeper.children(f"{QUEUE_PATH}/{name}/finished")
            unfinished_status = QueueStatus.INACTIVE
        except MissingNodeError:
            if not await self.keeper.exists(f"{QUEUE_PATH}/{name}"):
                raise
            active, finished, unfinished_status = [], [], QueueStatus.REMOVING
        rows = []
        for host in dict.fromkeys([*finished, *active, *(host_id(host) for host in entry.hosts)]):
            endpoint = parse_host_id(host)
            row = _row(name, entry, created_ms, endpoint, unfinished_status)
            if host in finished:
                await self._fill_outcome(row, name, host, created_ms)
            elif host in active:
                row["status"] = QueueStatus.ACTIVE
            rows.append(row)
        return rows or [_row(name, entry, created_ms, None, QueueStatus.UNKNOWN)]

    async def _fill_outcome(self, row: QueueRow, name: str, host: str, created_ms: int) -> None:
        try:
            znode = await self._read_finished(name, host)
        except MissingNodeError:
            row["status"] = QueueStatus.REMOVING
            return
        outcome = ExecutionStatus.from_text(znode.text)
        row["status"] = QueueStatus.FINISHED
        row["exception_code"] = outcome.code
        row["exception_text"] = outcome.message
        row["query_finish_time"] = znode.created_ms // 1000
        row["query_duration_ms"] = znode.created_ms - created_ms


def _row(name: str, entry: DDLEntry, created_ms: int, host: Endpoint | None, status: str) -> QueueRow:
    statement = parse(entry.query)
    return {
        "entry": name,
        "entry_version": entry.version,
        "initiator_host": entry.initiator.host,
        "initiator_port": entry.initiator.port,
        "cluster": statement.cluster if statement is not None else "",
        "query": entry.query,
        "settings": dict(entry.settings),
        "query_create_time": created_ms // 1000,
        "host": host.host if host is not None else None,
        "port": host.port if host is not None else None,
        "status": status,
        "exception_code": None,
        "exception_text": None,
        "query_finish_time": None,
        "query_duration_ms": None,
    }
