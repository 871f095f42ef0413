"""The modelled cluster: everything that outlives a worker, as one small value.

It has one operation on one target. Tables are numbers: what a replica holds under the target's name, the
candidate's name and the parked name. A replica executes a queue entry and marks it in two steps, so that it
may die between them and execute it again; between any two steps the workers may go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import TaskIdentity, parked_name
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Content,
    ContentDigest,
    Generation,
    Owner,
    Phase,
    ReplicatedRecord,
    Row,
    StoredRecord,
    encode,
)
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement
from tests.proof.oracle import Truth
from tests.simulation.ports import KEY, TARGET
from tests.simulation.run import OLD
from tests.simulation.world import AUTHORITY, Entry, RunningLoad, Table, World

NEW: Final = Table("00000000-0000-4000-8000-00000000000b", 10, "new", "/clickhouse/tables/new/01")
NOTHING, OLD_TABLE, NEW_TABLE = 0, 1, 2
TABLES: Final = (None, OLD, NEW)
CANDIDATE: Final = "orders__dpone_1"
NAMES: Final = (TARGET.table, CANDIDATE, parked_name(CANDIDATE))
TARGET_NAME, CANDIDATE_NAME, PARKED_NAME = 0, 1, 2

Names: TypeAlias = tuple[Any, ...]
"""What one replica holds: the number of a table under each of :data:`NAMES`. While independent replicas are staged,
names and tables."""

NO_ROW: Final = (-1, -1)
"""In the place of a row and its version: the target has no record yet."""

WAITING: Final = (0, 0)
"""An entry's state on a replica: (0, 0); (1, code) executed and not marked; (2, code) marked."""


class Request(NamedTuple):
    """An entry of the queue, or one that is on its way. Statements are numbers of :class:`Model`."""

    statement: int
    token: str
    number: int
    hosts: tuple[tuple[int, int], ...]


class LateWrite(NamedTuple):
    """A compare-and-swap that is on its way."""

    expected: tuple[str, int] | None
    row: int


class LateEffect(NamedTuple):
    """A request to one replica, or to the store, that is on its way: a method of the simulated world."""

    method: str
    args: tuple[Any, ...]


class Budget(NamedTuple):
    """What may still go wrong.

    :ivar faults: calls that fail in any way, or workers that are killed.
    :ivar again: replicas that die between executing an entry and marking it.
    :ivar failures: statements that a replica refuses for want of memory.
    :ivar prunes: how often the queue forgets what has ended.
    :ivar members: how often the list of replicas changes, and changes back.
    :ivar away: how often a replica can't be reached for a while.
    :ivar losses: private tables or candidates that somebody drops.
    :ivar spoils: artifacts that the store loses, or gives back damaged.
    """

    faults: int = 0
    again: int = 0
    failures: int = 0
    prunes: int = 0
    members: int = 0
    away: int = 0
    losses: int = 0
    spoils: int = 0


class Staging(NamedTuple):
    """What is there beside the tables and the record while independent replicas are staged.

    :ivar away: the numbers of replicas that can't be reached.
    :ivar artifacts: what is sealed, by its SHA-256: rows, content, and whether it is damaged.
    :ivar read: each reading of a source: what it gave, and how many rows.
    :ivar created: names and UUIDs that were ever given to a table.
    :ivar filled: UUIDs of tables that a load was ever sent to.
    :ivar lost: UUIDs of tables that somebody dropped.
    :ivar recorded: the number of what the records have named so far.
    """

    away: tuple[int, ...] = ()
    loads: tuple[RunningLoad, ...] = ()
    artifacts: tuple[tuple[str, tuple[int, str, bool]], ...] = ()
    read: tuple[tuple[str, int], ...] = ()
    created: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    recorded: int = 0


NO_STAGING: Final = Staging()


class Cluster(NamedTuple):
    """The whole state outside of the workers. Rows are numbers of :class:`Rows`.

    :ivar row: the row and its version.
    :ivar unused: the notes that a permit was not used: epoch and write id.
    :ivar other_members: ``system.clusters`` lists another replica at present.
    """

    replicas: tuple[Names, ...]
    row: tuple[int, int]
    queue: tuple[Request, ...] = ()
    late: tuple[Request | LateWrite | LateEffect, ...] = ()
    unused: frozenset[tuple[int, str]] = frozenset()
    sent: tuple[str, ...] = ()
    permits: tuple[tuple[str, int], ...] = ()
    entries: int = 0
    other_members: bool = False
    budget: Budget = Budget()
    staging: Staging = NO_STAGING


@dataclass(slots=True)
class Model:
    """The cluster's constants, its steps, and its looks, each computed once.

    :ivar first: the target is absent at the beginning.
    """

    size: int
    first: bool = False
    inventory: Inventory = field(init=False)
    other: Inventory = field(init=False)
    rows: list[tuple[Row, AuthorityRecord]] = field(default_factory=list)
    row_index: dict[Row, int] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    truths: dict[object, Truth] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inventory = World(self.size).inventory
        more = Member(1, self.size + 1, f"host{self.size + 1}", 9000, True)
        self.other = Inventory(self.inventory.cluster, (*self.inventory.members, more))

    # The beginning.

    def start(self, budget: Budget) -> Cluster:
        """One prepared operation, whose candidate is complete everywhere."""
        live = NOTHING if self.first else OLD_TABLE
        row = self.number(encode(self._prepared(), "0" * 32), self._prepared())
        return Cluster(((live, NEW_TABLE, NOTHING),) * self.size, (row, 0), budget=budget)

    def _prepared(self) -> AuthorityRecord:
        identity = TaskIdentity("airflow", "dag", "run", "stage", -1, "0")
        return ReplicatedRecord(
            authority_id=AUTHORITY,
            target_key=KEY,
            cluster=TARGET.cluster,
            database=TARGET.database,
            table=TARGET.table,
            operation_id=identity.operation_id(KEY),
            publication_key=identity.publication_key(KEY),
            owner=Owner("dag", "run", "stage", -1),
            order_key=None,
            plan_digest="p" * 64,
            fence_token="f" * 32,
            phase=Phase.PREPARED,
            dispatch_epoch=0,
            inventory_digest=self.inventory.digest,
            replicas=self.inventory.aliases,
            servers=tuple(f"server-{member.host_name}" for member in self.inventory.members),
            predecessor=None if self.first else generation(OLD),
            desired=generation(NEW),
            candidate=CANDIDATE,
            attempt_id="1",
            content=ContentDigest(NEW.rows, NEW.content, NEW.content),
            staged_bytes=NEW.rows,
            live_rows=None if self.first else OLD.rows,
            dependents=(),
            retention=0,
            prepared_at=1_000,
            changed_at=1_000,
        )

    # The record.

    def number(self, row: Row, record: AuthorityRecord) -> int:
        """Return the number of a row."""
        found = self.row_index.get(row)
        if found is None:
            found = self.row_index[row] = len(self.rows)
            self.rows.append((row, record))
        return found

    def stored(self, c: Cluster) -> StoredRecord:
        """Return the record as Keeper holds it."""
        row, record = self.rows[c.row[0]]
        return StoredRecord(record, row.write_id, c.row[1])

    def found(self, c: Cluster) -> tuple[Row | None, int | None]:
        """Return the row and its version as Keeper holds them."""
        return (None, None) if c.row == NO_ROW else (self.rows[c.row[0]][0], c.row[1])

    def record(self, c: Cluster) -> AuthorityRecord | None:
        """Return the record, if there is one."""
        return None if c.row == NO_ROW else self.rows[c.row[0]][1]

    def swapped(self, c: Cluster, expected: tuple[str, int] | None, row: int) -> Cluster | None:
        """Return the cluster after a compare-and-swap; ``None`` if the row is not as expected."""
        found, version = self.found(c)
        if (None if found is None else (found.write_id, version)) != expected:
            return None
        return c._replace(row=(row, c.row[1] + 1))

    # The queue and its workers.

    def request(self, statement: Statement, token: str) -> Request:
        """Return a request that was not queued yet."""
        if statement not in self.statements:
            self.statements.append(statement)
        return Request(self.statements.index(statement), token, 0, (WAITING,) * self.size)

    def queued(self, c: Cluster, request: Request) -> Cluster:
        """Return the cluster with one more entry in the queue."""
        entry = request._replace(number=c.entries + 1)
        return c._replace(queue=(*c.queue, entry), entries=c.entries + 1)

    def executed(self, c: Cluster, replica: int) -> tuple[Cluster, int] | None:
        """Return the cluster after a replica took its next step, and the table that it dropped.

        ``None`` if it has nothing to do.
        """
        at = next((n for n, e in enumerate(c.queue) if e.hosts[replica][0] < 2), None)
        if at is None:
            return None
        done, code = c.queue[at].hosts[replica]
        if done:
            return self._marked(c, at, replica, (2, code)), NOTHING
        names, code, dropped = execute(c.replicas[replica], self.statements[c.queue[at].statement])
        return self._marked(c, at, replica, (1, code), names), dropped

    def again(self, c: Cluster, replica: int) -> Cluster | None:
        """Return the cluster after a replica died between executing an entry and marking it."""
        at = next((n for n, e in enumerate(c.queue) if e.hosts[replica][0] == 1), None)
        if at is None or isinstance(self.statements[c.queue[at].statement], Drop):
            # A second drop finds nothing, since the name is never used again.
            return None
        return self._marked(c, at, replica, WAITING)

    def failed(self, c: Cluster, replica: int) -> Cluster | None:
        """Return the cluster after a replica refused its next entry, with code 241."""
        at = next((n for n, e in enumerate(c.queue) if e.hosts[replica][0] < 2), None)
        if at is None or c.queue[at].hosts[replica][0]:
            return None
        return self._marked(c, at, replica, (1, 241))

    def _marked(
        self, c: Cluster, at: int, replica: int, mark: tuple[int, int], names: Names | None = None
    ) -> Cluster:
        entry = c.queue[at]
        hosts = (*entry.hosts[:replica], mark, *entry.hosts[replica + 1 :])
        queue = (*c.queue[:at], entry._replace(hosts=hosts), *c.queue[at + 1 :])
        if names is None:
            return c._replace(queue=queue)
        return c._replace(queue=queue, replicas=(*c.replicas[:replica], names, *c.replicas[replica + 1 :]))

    def pruned(self, c: Cluster) -> Cluster:
        """Return the cluster after the queue forgot every entry that has ended."""
        return c._replace(queue=tuple(e for e in c.queue if any(done < 2 for done, _ in e.hosts)))

    def arrived(self, c: Cluster, at: int) -> Cluster:
        """Return the cluster after a request that was on its way took effect."""
        request = c.late[at]
        c = c._replace(late=(*c.late[:at], *c.late[at + 1 :]))
        match request:
            case LateWrite():
                return self.swapped(c, request.expected, request.row) or c
            case LateEffect():
                return self.taken(c, request)
            case Request():
                return self.queued(c, request)

    def taken(self, c: Cluster, effect: LateEffect) -> Cluster:
        """Return the cluster after a late request to one replica took effect."""
        raise NotImplementedError

    def healed(self, c: Cluster) -> tuple[Cluster, list[tuple[int, int]]]:
        """Return the cluster when all faults are over and the replicas are idle, and what was dropped where."""
        c = c._replace(other_members=False, budget=Budget())
        while c.late:
            c = self.arrived(c, 0)
        return self.idle(c)

    def idle(self, c: Cluster) -> tuple[Cluster, list[tuple[int, int]]]:
        """Return the cluster when the replicas have nothing left to do, and what was dropped where."""
        drops = []
        for replica in range(self.size):
            while (step := self.executed(c, replica)) is not None:
                c, dropped = step
                if dropped:
                    drops.append((replica, dropped))
        return c, drops

    # Looking.

    def look(
        self, replicas: tuple[Names | None, ...], row: tuple[int, int], tables: tuple[str, ...], other: bool
    ) -> Observation:
        """Return a look at the replicas; one that is ``None`` could not be read."""
        world = World(self.size)
        if other:
            world.inventory = self.other
        for replica, names in zip(world.replicas.values(), replicas, strict=True):
            replica.up = names is not None
            replica.tables = {} if names is None else tables_of(names)
        world.rows[KEY] = (self.rows[row[0]][0], row[1])
        return replace(world.observe(KEY, list(tables)), sequence=0)

    def content(self, c: Cluster, table: str) -> dict[str, Content]:
        """Return the content digest of a table on every replica that has it."""
        world = World(self.size)
        for replica, names in zip(world.replicas.values(), c.replicas, strict=True):
            replica.tables = tables_of(names)
        return world.content(table)

    def queue_rows(self, c: Cluster, token: str) -> tuple[QueueRow, ...]:
        """Return the queue's rows of a token."""
        world = World(self.size)
        names = [member.host_name for member in world.inventory.members]
        for e in c.queue:
            hosts = dict(
                zip(names, ("finished" if done == 2 else "waiting" for done, _ in e.hosts), strict=True)
            )
            codes = dict(zip(names, (code for _, code in e.hosts), strict=True))
            entry = Entry(f"query-{e.number:010d}", self.statements[e.statement], e.token, hosts, codes)  # type: ignore[arg-type]
            world.queue.append(entry)
        return tuple(world.queue_rows(token))

    def truth(self, c: Cluster) -> Truth:
        """Return the world as it is, for the oracle."""
        unfinished = tuple(e.token for e in c.queue if any(done < 2 for done, _ in e.hosts))
        unfinished += tuple(r.token for r in c.late if isinstance(r, Request))
        key = (c.replicas, c.row, c.sent, c.permits, unfinished)
        found = self.truths.get(key)
        if found is None:
            found = self.truths[key] = Truth(
                live={
                    alias: TABLES[names[TARGET_NAME]]
                    for alias, names in zip(self.inventory.aliases, c.replicas, strict=True)
                },
                record=self.rows[c.row[0]][1],
                sent=c.sent,
                permits=c.permits,
                unfinished=unfinished,
                known=frozenset({OLD.uuid, NEW.uuid}),
                before=(OLD.uuid,),
                first=self.first,
            )
        return found


def tables_of(names: Names) -> dict[str, Table]:
    """Return what a replica holds, by name."""
    return {
        name: table
        for name, number in zip(NAMES, names, strict=True)
        if (table := TABLES[number]) is not None
    }


def generation(table: Table) -> Generation:
    """Return the generation of a table, as every replica shows it."""
    world = World(2)
    world.seed(TARGET.table, table)
    seen = world.observe(KEY, [TARGET.table]).table(TARGET.table)
    assert seen is not None
    return seen.generation


def execute(names: Names, statement: Statement) -> tuple[Names, int, int]:
    """Return what a replica holds after a statement, its exception code, and the table that it dropped."""
    held = list(names)
    match statement:
        case Exchange(_, _, target, candidate):
            a, b = NAMES.index(target), NAMES.index(candidate)
            if not held[a] or not held[b]:
                return names, 60, NOTHING
            held[a], held[b] = held[b], held[a]
        case Rename(_, _, source, target):
            a, b = NAMES.index(source), NAMES.index(target)
            if held[b]:
                return names, 57, NOTHING
            if not held[a]:
                return names, 60, NOTHING
            held[a], held[b] = NOTHING, held[a]
        case Drop(_, _, table):
            a = NAMES.index(table)
            dropped, held[a] = held[a], NOTHING
            return (held[0], held[1], held[2]), 0, dropped
    return (held[0], held[1], held[2]), 0, NOTHING
