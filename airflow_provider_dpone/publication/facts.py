"""What was read from the cluster in one statement: an observation, with the order in which it was read.

Every fact carries the sequence number of its read. Later means strictly later: a catalog that was read
before the complete terminal receipt proves nothing about what came after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.record import Generation, StoredRecord, independent_generation


@dataclass(frozen=True, slots=True)
class Replication:
    """A table's row of ``system.replicas`` on one replica.

    ``keeper_error`` is set when Keeper could not be read: the counts are then zero and mean nothing.
    ``last_queue_update_exception`` is not asked for: no later success clears it (measured on 26.9), so after one
    moment without Keeper it would condemn a healthy table until its server restarts. What a broken queue does is
    seen in the counts: log entries that are not taken over.
    """

    zookeeper_name: str
    zookeeper_path: str
    replica_name: str
    is_readonly: bool
    is_session_expired: bool
    queue_size: int
    log_max_index: int
    log_pointer: int
    total_replicas: int
    active_replicas: int
    lost_parts: int
    keeper_error: bool


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table as one replica shows it.

    :ivar engine_full: normalised: without the Keeper path and replica arguments.
    :ivar engine_refusal: why a table of this kind can't be published to; ``None`` if it can.
    :ivar create_query: the server's own CREATE text, for building a candidate; never stored or shown.
    :ivar comment_authority: the authority id in our part of the COMMENT, if there is one.
    :ivar rows: the replica's own row count; ``None`` where the engine has none.
    """

    uuid: str
    engine: str
    engine_full: str
    schema_digest: str
    engine_refusal: str | None
    create_query: str
    comment_authority: str | None
    rows: int | None
    bytes: int | None
    replication: Replication | None

    @property
    def generation(self) -> Generation:
        """The identity that travels with the table object through every rename."""
        replication = self.replication
        return Generation(
            uuid=self.uuid,
            engine_full=self.engine_full,
            schema_digest=self.schema_digest,
            zookeeper_name=replication.zookeeper_name if replication else "",
            zookeeper_path=replication.zookeeper_path if replication else "",
        )


@dataclass(frozen=True, slots=True)
class ControlFacts:
    """The control table on one replica: its structure and what it holds under our two keys.

    :ivar structure: digest of columns, engine and Keeper root; ``None`` if the table is absent.
    :ivar sentinel: the authority id in the sentinel row, ``None`` if there is no such row.
    :ivar version: KeeperMap's ``_version`` of the target's row, ``None`` if there is no row.
    :ivar adopted: lost authorities whose tables the sentinel's row adopts.
    """

    structure: str | None
    sentinel: str | None
    write_id: str | None
    version: int | None
    adopted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """Everything that one statement read from one replica.

    :ivar server: what tells servers apart: ``serverUUID()``, or name and port where that is nil.
    :ivar user: ``currentUser()`` there; another one means that grants are not the caller's.
    :ivar known_settings: those of the settings that loads and content digests may send which this server knows.
    :ivar sees_database: this read proves that our user sees the database's tables on this replica,
        so that a table's absence is a fact.
    """

    alias: str
    server: str
    version: str
    user: str
    inventory_digest: str
    database_engine: str | None
    sees_database: bool
    known_settings: frozenset[str]
    tables: Mapping[str, TableFacts]
    control: ControlFacts


@dataclass(frozen=True, slots=True)
class Dependent:
    """An object that hangs on the target's name: a view, a dictionary, a Distributed table."""

    database: str
    table: str
    engine: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at all replicas.

    :ivar sequence: order of the read within this process; larger is later.
    :ivar server_time: the contacted server's clock, seconds since the epoch.
    :ivar replicas: by alias; a replica that could not be read is missing.
    :ivar record: the target's record as the contacted server reads it.
    """

    sequence: int
    server_time: int
    inventory: Inventory
    replicas: Mapping[str, ReplicaFacts]
    record: StoredRecord | None
    dependents: tuple[Dependent, ...]

    @property
    def authority_id(self) -> str | None:
        """The control table's authority id, if every replica that was read shows the same one."""
        ids = {facts.control.sentinel for facts in self.replicas.values()}
        return ids.pop() if len(ids) == 1 else None

    @property
    def adopted(self) -> frozenset[str]:
        """The lost authorities that the control table adopted, as every replica that was read shows them."""
        seen = [facts.control.adopted for facts in self.replicas.values()]
        return frozenset.intersection(*seen) if seen else frozenset()

    def table(self, name: str) -> TableFacts | None:
        """Return the table as the first replica that shows it sees it."""
        for facts in self.replicas.values():
            if (table := facts.tables.get(name)) is not None:
                return table
        return None

    @property
    def independent(self) -> bool:
        """Tell whether the replicas' tables are independent of each other: nothing copies rows between them."""
        return self.inventory.independent

    def generation(self, name: str) -> Generation | None:
        """Return what the replicas that were read show under a name; ``None`` if none of them has it.

        It is no proof that every replica shows the same: that is what admission checks.
        """
        table = self.table(name)
        if table is None or not self.independent:
            return table.generation if table else None
        shown = {alias: t.uuid for alias, f in self.replicas.items() if (t := f.tables.get(name))}
        return independent_generation(table.engine_full, table.schema_digest, shown)

    def rows(self, name: str) -> int | None:
        """Return the largest row count that a replica reports for a table."""
        counts = [t.rows for f in self.replicas.values() if (t := f.tables.get(name)) and t.rows is not None]
        return max(counts, default=None)

    @property
    def unread(self) -> tuple[str, ...]:
        """The replicas that could not be read."""
        return tuple(alias for alias in self.inventory.aliases if alias not in self.replicas)
