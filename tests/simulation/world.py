"""The simulated world: replicas, a control row in Keeper, a distributed-DDL queue, and virtual time.

It models what the reference facts say of real servers, and nothing kinder: a statement whose reply is lost
may have run, may still run, or may never run; a replica that crashed between applying an entry and marking
it runs the entry again; the queue forgets. The same situations are tested on real servers in
``tests/integration``; this world is for the many thousand interleavings that real servers are too slow for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from airflow_provider_dpone.publication import artifact as product
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.facts import (
    ControlFacts,
    Observation,
    ReplicaFacts,
    Replication,
    TableFacts,
)
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.record import (
    STAGE_PHASES,
    AuthorityRecord,
    Content,
    ContentDigest,
    IndependentRecord,
    Row,
    StageState,
    StoredRecord,
    decode,
)
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement

AUTHORITY = "a" * 32
CONTROL = "control-structure"
USER = "dpone_app"

HostState: TypeAlias = Literal["waiting", "applied", "finished"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table object on a replica. Its UUID and content travel with it through every rename."""

    uuid: str
    rows: int
    content: str
    path: str


@dataclass(slots=True)
class Artifact:
    """What was sealed, in the store that outlives every worker.

    :ivar damaged: the store gives back other bytes than it was given.
    """

    rows: int
    content: str
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class RunningLoad:
    """A load that a server still works on though nobody waits for it: some of its rows are there."""

    alias: str
    uuid: str
    rows: int
    content: str


@dataclass(slots=True)
class Replica:
    """One server: its names, and whether it is reachable and works on the queue.

    :ivar host: how the cluster's definition and the queue call it, whatever its number is.
    """

    host: str
    tables: dict[str, Table] = field(default_factory=dict)
    up: bool = True
    paused: bool = False


@dataclass(slots=True)
class Entry:
    """One entry of the distributed-DDL queue; its hosts are those that were listed when it was sent."""

    name: str
    statement: Statement
    token: str
    hosts: dict[str, HostState]
    codes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Applied:
    """A statement that a replica really executed, for the oracle."""

    alias: str
    entry: str
    statement: Statement
    removed: str | None = None


def content_digest(content: str) -> str:
    """Return the digest that a record holds of a content; what a source gave is named by it."""
    return content if len(content) == 64 else sha256_hex(content)


@dataclass(slots=True)
class Recorded:
    """What the records of a target of independent tables have named so far. Tables are named by their UUIDs.

    :ivar claimed: each attempt, with its operation.
    :ivar bound: each attempt, with the artifact that was bound while it was claimed.
    :ivar proven: each table that was recorded to hold the content, with the candidate's name that it may get.
    :ivar ready: those that were recorded to have the candidate's name.
    :ivar prepared: those that were ever prepared to go live.
    :ivar listed: those that were ever listed to be dropped.
    :ivar generations: the tables of a generation, by the generation's own UUID.
    """

    claimed: set[tuple[str, str]] = field(default_factory=set)
    bound: set[tuple[str, product.Artifact | None]] = field(default_factory=set)
    proven: set[tuple[str, str]] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    prepared: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    generations: dict[str, frozenset[str]] = field(default_factory=dict)

    def add(self, record: AuthorityRecord) -> None:
        """Take in what was stored."""
        if not isinstance(record, IndependentRecord):
            return
        for stage in (*record.stages, *([record.extract] if record.extract is not None else [])):
            self.claimed.add((record.operation_id, stage.uuid))
            self.bound.add((stage.uuid, record.artifact))
        for stage in record.stages:
            if stage.state is not StageState.CLAIMED:
                self.proven.add((record.candidate, stage.uuid))
            if stage.state is StageState.READY:
                self.ready.add(stage.uuid)
        if record.phase not in STAGE_PHASES:
            self.prepared |= record.desired.uuids
        for item in record.retained:
            self.listed |= item.generation.uuids
        for generation in (record.desired, record.predecessor):
            if generation is not None:
                self.generations[generation.uuid] = generation.uuids


@dataclass(slots=True)
class World:
    """All state that outlives a worker, and the history that the oracle reads."""

    replica_count: int = 2
    independent: bool = False
    """Nothing copies rows between the replicas: each has tables of its own, which are worked on directly."""
    now: float = 1_000.0
    sequence: int = 0
    inventory: Inventory = field(init=False)
    replicas: dict[str, Replica] = field(init=False)
    removed: list[Replica] = field(init=False)
    rows: dict[str, tuple[Row, int]] = field(default_factory=dict)
    stores: list[tuple[Row | None, Row, int]] = field(default_factory=list)
    """Every change of a row: what was there before, what is there now, its version."""
    queue: list[Entry] = field(default_factory=list)
    entries: int = 0
    late: list[Callable[[], None]] = field(default_factory=list)
    sent: list[tuple[str, Statement]] = field(default_factory=list)
    permits: list[tuple[str, int]] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    crash_before_mark: dict[str, int] = field(default_factory=dict)
    fail_next: dict[str, int] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    """What is sealed for the one target, by SHA-256."""
    loads: list[RunningLoad] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    """Every reading of a source: what it gave, and how many rows. No two are alike."""
    created: set[str] = field(default_factory=set)
    """Names and UUIDs that were ever given to a table of one replica."""
    filled: set[str] = field(default_factory=set)
    """UUIDs of tables that a load was ever sent to."""
    changes: int = 0
    """How often a table was changed directly."""
    broken: list[str] = field(default_factory=list)
    """What no worker may ask for, whatever comes of it."""
    recorded: Recorded = field(default_factory=Recorded)
    """What the records have named, where tables are independent."""

    def __post_init__(self) -> None:
        members = tuple(
            Member(1, n, f"host{n}", 9000, not self.independent) for n in range(1, self.replica_count + 1)
        )
        self.inventory = Inventory("analytics", members)
        self.replicas = {member.alias: Replica(member.host_name) for member in members}
        self.removed: list[Replica] = []

    def remove(self, alias: str) -> Replica:
        """Take a replica out of the cluster's definition and its tables out of Keeper; those behind it move up."""
        gone = self.replicas.pop(alias)
        self.removed.append(gone)
        left = list(self.replicas.values())
        members = tuple(Member(1, n, r.host, 9000, not self.independent) for n, r in enumerate(left, start=1))
        self.inventory = Inventory("analytics", members)
        self.replicas = dict(zip(self.inventory.aliases, left, strict=True))
        return gone

    def seed(self, name: str, table: Table) -> None:
        """Give every replica a table, as if it had been there before."""
        for number, replica in enumerate(self.replicas.values(), start=1):
            own = replace(table, uuid=f"{table.uuid[:-4]}{number:x}{table.uuid[-3:]}", path="")
            replica.tables[name] = own if self.independent else table

    # Independent replicas, each worked on directly. A request that finds its server away is lost.

    def create(self, alias: str, name: str, uuid: str) -> bool:
        """Create an empty table on one replica; ``False``: its name or its UUID is taken."""
        tables = self.replicas[alias].tables
        if name in tables or any(table.uuid == uuid for table in tables.values()):
            return False
        tables[name] = Table(uuid, 0, "", "")
        self.changes += 1
        return True

    def load(self, alias: str, name: str, rows: int, content: str, *, running: bool = False) -> bool:
        """Append rows to a table on one replica; ``False``: there is no such table.

        :param running: only some rows are there by now, and the load goes on.
        """
        tables = self.replicas[alias].tables
        if name not in tables:
            return False
        if running:
            self.loads.append(RunningLoad(alias, tables[name].uuid, rows, content))
            rows, content = rows // 2, f"part of {content}"
        tables[name] = _appended(tables[name], rows, content)
        self.changes += 1
        return True

    def end_load(self, load: RunningLoad, *, killed: bool) -> None:
        """End a load that is running: with all of its rows, or killed with those that it had."""
        self.loads.remove(load)
        if killed:
            return
        tables = self.replicas[load.alias].tables
        for name, table in tables.items():
            if table.uuid == load.uuid:
                chunks = table.content.split("+")
                chunks.remove(f"part of {load.content}")
                content = "+".join(sorted([*chunks, load.content]))
                tables[name] = replace(table, rows=table.rows + load.rows - load.rows // 2, content=content)
                self.changes += 1

    def rename(self, alias: str, name: str, to: str) -> bool:
        """Rename a table on one replica; ``False``: it is not there, or the other name is taken."""
        tables = self.replicas[alias].tables
        if name not in tables or to in tables:
            return False
        tables[to] = tables.pop(name)
        self.changes += 1
        return True

    def drop(self, alias: str, name: str) -> None:
        """Drop a table on one replica by its name."""
        if (table := self.replicas[alias].tables.pop(name, None)) is not None:
            self.changes += 1
            self.applied.append(Applied(alias, "direct", Drop("", "", name), table.uuid))

    def tick(self) -> int:
        """Return the next number in the order of reads."""
        self.sequence += 1
        return self.sequence

    # The queue and its workers.

    def enqueue(self, statement: Statement, token: str) -> None:
        """Append an entry, as the initiator does with one create in Keeper."""
        self.entries += 1
        hosts: dict[str, HostState] = {replica.host: "waiting" for replica in self.replicas.values()}
        self.queue.append(Entry(f"query-{self.entries:010d}", statement, token, hosts))

    def work(self, alias: str) -> None:
        """Let a replica's worker take one step: the oldest entry that it has not finished."""
        self.work_on(alias, self.replicas[alias])

    def work_on(self, alias: str, replica: Replica) -> None:
        """Let a server's worker take one step, whether the cluster still lists it or not."""
        if not replica.up or replica.paused:
            return
        if running := [load for load in self.loads if load.alias == alias]:
            self.end_load(running[0], killed=False)
        for entry in self.queue:
            if entry.hosts.get(replica.host, "finished") == "finished":
                continue
            if self.fail_next.get(alias, 0) > 0 and isinstance(entry.statement, Exchange | Rename):
                self.fail_next[alias] -= 1
                code = 241
            else:
                code = self._execute(alias, replica, entry)
            if self.crash_before_mark.get(alias, 0) > 0:
                # The server dies after executing and before marking: it will execute again.
                self.crash_before_mark[alias] -= 1
                entry.hosts[replica.host] = "waiting"
                return
            entry.hosts[replica.host] = "finished"
            entry.codes[replica.host] = code
            return

    def work_all(self) -> None:
        """Let every worker finish what it can."""
        for _ in range(len(self.queue) + 1):
            for alias in self.replicas:
                self.work(alias)

    def _execute(self, alias: str, replica: Replica, entry: Entry) -> int:
        tables, removed = replica.tables, None
        match entry.statement:
            case Exchange(_, _, target, candidate):
                if target not in tables or candidate not in tables:
                    return 60
                tables[target], tables[candidate] = tables[candidate], tables[target]
            case Rename(_, _, source, target):
                if target in tables:
                    return 57
                if source not in tables:
                    return 60
                tables[target] = tables.pop(source)
            case Drop(_, _, name):
                if (table := tables.pop(name, None)) is not None:
                    removed = table.uuid
        self.applied.append(Applied(alias, entry.name, entry.statement, removed))
        return 0

    def prune(self) -> None:
        """Forget every entry that no replica is working on, as a busy queue does."""
        self.queue = [e for e in self.queue if any(state != "finished" for state in e.hosts.values())]

    def arrive(self) -> None:
        """Let the oldest request that was on its way take effect."""
        if self.late:
            self.late.pop(0)()

    def heal(self) -> None:
        """End all faults: replicas return, requests on their way arrive, workers catch up."""
        for replica in self.replicas.values():
            replica.up, replica.paused = True, False
        self.crash_before_mark.clear()
        self.fail_next.clear()
        while self.late:
            self.arrive()
        while self.loads:
            self.end_load(self.loads[0], killed=False)
        self.work_all()

    # Keeper.

    def swap_row(self, expected: tuple[str, int] | None, row: Row) -> bool:
        """Store ``row`` if the key is as expected: (write id, version), or absent. One atomic step."""
        current = self.rows.get(row.target_key)
        if expected is None:
            if current is not None:
                return False
            self._store(None, row, 0)
            return True
        if current is None or (current[0].write_id, current[1]) != expected:
            return False
        self._store(current[0], row, current[1] + 1)
        return True

    def _store(self, before: Row | None, row: Row, version: int) -> None:
        self.rows[row.target_key] = (row, version)
        self.stores.append((before, row, version))
        if self.independent:
            self.recorded.add(decoded(row))

    def stored(self, key: str) -> StoredRecord | None:
        """Return the record under ``key``."""
        if (current := self.rows.get(key)) is None:
            return None
        row, version = current
        return StoredRecord(decoded(row), row.write_id, version)

    # Looking.

    def observe(self, key: str, tables: list[str]) -> Observation:
        """One look at all replicas that are up."""
        record = self.stored(key)
        return Observation(
            sequence=self.tick(),
            server_time=int(self.now),
            inventory=self.inventory,
            replicas={
                alias: self._facts(alias, replica, record, tables)
                for alias, replica in self.replicas.items()
                if replica.up
            },
            record=record,
            dependents=(),
        )

    def _facts(
        self, alias: str, replica: Replica, record: StoredRecord | None, tables: list[str]
    ) -> ReplicaFacts:
        return ReplicaFacts(
            alias=alias,
            server=f"server-{replica.host}",
            version="26.9.2.1",
            user=USER,
            inventory_digest=self.inventory.digest,
            database_engine="Atomic",
            sees_database=True,
            known_settings=frozenset(),
            tables={name: self._table_facts(table) for name in tables if (table := replica.tables.get(name))},
            control=ControlFacts(
                CONTROL,
                AUTHORITY,
                record.write_id if record else None,
                record.version if record else None,
            ),
        )

    def _table_facts(self, table: Table) -> TableFacts:
        active = sum(replica.up for replica in self.replicas.values())
        return _table_facts(table, len(self.replicas), active, self.independent)

    def content(self, name: str) -> dict[str, Content]:
        """The content digest of a table on every replica that has it."""
        return {
            alias: CanonicalDigest(table.rows, content_digest(table.content))
            if self.independent
            else ContentDigest(table.rows, table.content, table.content)
            for alias, replica in self.replicas.items()
            if (table := replica.tables.get(name)) is not None
        }

    def queue_rows(self, token: str) -> list[QueueRow]:
        """The queue's rows of ``token``."""
        rows = []
        for entry in self.queue:
            if entry.token != token:
                continue
            for host, state in entry.hosts.items():
                finished = state == "finished"
                code = entry.codes.get(host, 0) if finished else None
                rows.append(
                    QueueRow(
                        entry=entry.name,
                        query=_text(entry.statement),
                        statement=entry.statement,
                        token=token,
                        host=host,
                        port=9000,
                        status="Finished" if finished else "Inactive",
                        exception_code=code,
                        exception_text=None if code is None else ("" if code == 0 else f"Code: {code}"),
                    )
                )
        return rows


@lru_cache(maxsize=10_000)
def decoded(row: Row) -> AuthorityRecord:
    """Return the record in ``row``. Each row is decoded once: the same row is read many times."""
    return decode(row)


@lru_cache(maxsize=10_000)
def _text(statement: Statement) -> str:
    return repr(statement)


@lru_cache(maxsize=10_000)
def _table_facts(table: Table, count: int, active: int, independent: bool) -> TableFacts:
    engine = "MergeTree" if independent else "ReplicatedMergeTree"
    return TableFacts(
        uuid=table.uuid,
        engine=engine,
        engine_full=f"{engine} ORDER BY id",
        schema_digest="s" * 64,
        engine_refusal=None,
        create_query="",
        comment_authority=None,
        rows=table.rows,
        bytes=table.rows,
        replication=None
        if independent
        else Replication(
            zookeeper_name="default",
            zookeeper_path=table.path,
            replica_name="r",
            is_readonly=False,
            is_session_expired=False,
            queue_size=0,
            log_max_index=1,
            log_pointer=2,
            total_replicas=count,
            active_replicas=active,
            lost_parts=0,
            keeper_error=False,
        ),
    )


def _appended(table: Table, rows: int, content: str) -> Table:
    """The table with more rows: their order does not matter, how often they are there does."""
    chunks = [*(table.content.split("+") if table.content else []), content]
    return replace(table, rows=table.rows + rows, content="+".join(sorted(chunks)))


def clone(table: Table, **changes: object) -> Table:
    """A changed copy of a table."""
    return replace(table, **changes)  # type: ignore[arg-type]
