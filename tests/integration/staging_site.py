"""A place to stage at: a real cluster, a database on it, and what the tests look at afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from airflow_provider_dpone.clickhouse.exact import LOAD_SETTINGS
from airflow_provider_dpone.clickhouse.load import Limits
from airflow_provider_dpone.clickhouse.progress import RunningQueries
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.clickhouse.staging import ClusterStaging
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.facts import ControlFacts, Observation, ReplicaFacts, TableFacts
from airflow_provider_dpone.publication.identity import candidate_name
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.routes.ports import Attempt, Loaded, StagePlan, Target
from airflow_provider_dpone.sources import Source, SourceColumn, StreamLoad
from airflow_provider_dpone.values import ClusterRefresh, MiB
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, Endpoint, LocalCluster, User

APP = User(APP_USER, password=APP_PASSWORD)
"""The user of the demo and the documentation, with the least that everything needs."""

AUTHORITY_ID = "0f" * 16
OPERATION_ID = "ab" * 32

ENGINE = "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')"


def new_attempt(table: str) -> Attempt:
    """An attempt as the route makes one."""
    attempt_id = uuid4().hex[:16]
    return Attempt(attempt_id, candidate_name(table, attempt_id), str(uuid4()))


@dataclass
class Site:
    """The cluster and a database of the test's own.

    :ivar lines: what was logged.
    """

    cluster: LocalCluster
    database: str
    endpoints: tuple[Endpoint, ...]
    user: User = APP
    session_settings: Mapping[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def server(self) -> Server:
        """A connection as the least privileged user."""
        return Server(
            ConnectionSettings(
                hosts=tuple((endpoint.host, endpoint.port) for endpoint in self.endpoints),
                user=self.user.name,
                password=self.user.password,
                session_settings=self.session_settings,
            )
        )

    def staging(
        self,
        source: Source,
        *,
        table: str = "t",
        limits: Limits | None = None,
        running: RunningQueries | None = None,
        **refresh: Any,
    ) -> ClusterStaging:
        """The adapter under test."""
        value = ClusterRefresh(
            clickhouse_conn_id="unused",
            cluster=CLUSTER_NAME,
            database=self.database,
            table=table,
            **{"max_source_bytes": 512 * MiB, **refresh},
        )
        return ClusterStaging(
            self.server(),
            Target(CLUSTER_NAME, self.database, table),
            value,
            source,
            self._log,
            limits=limits or Limits(create=20.0, poll=1.0),
            running=running,
        )

    def _settings(self, node: int) -> set[str]:
        return {row["name"] for row in self.cluster.query("SELECT name FROM system.settings", node=node)}

    def _log(self, message: str) -> None:
        self.lines.append(message)

    def create(self, columns: str, clauses: str = "ORDER BY tuple()", *, table: str = "t") -> None:
        """Create the live table on every replica."""
        self.cluster.execute(
            f"CREATE TABLE {self.database}.{table} ON CLUSTER {CLUSTER_NAME} ({columns}) ENGINE = {ENGINE} {clauses}"
        )

    def observe(self, *tables: str) -> Observation:
        """What every replica shows about these tables, read from each one directly."""
        members = [
            Member(
                row["shard_num"],
                row["replica_num"],
                row["host_name"],
                row["port"],
                bool(row["internal_replication"]),
            )
            for row in self.cluster.query(
                "SELECT shard_num, replica_num, host_name, port, internal_replication FROM system.clusters "
                f"WHERE cluster = '{CLUSTER_NAME}' ORDER BY shard_num, replica_num"
            )
        ]
        inventory = Inventory(CLUSTER_NAME, tuple(members))
        replicas = {
            alias: ReplicaFacts(
                alias=alias,
                server=str(node),
                version=self.cluster.scalar("SELECT version()", node=node),
                user=self.user.name,
                inventory_digest=inventory.digest,
                database_engine="Atomic",
                sees_database=True,
                known_settings=frozenset(LOAD_SETTINGS) & self._settings(node),
                tables={name: facts for name in tables if (facts := self._table(name, node)) is not None},
                control=ControlFacts(None, None, None, None),
            )
            for alias, node in zip(inventory.aliases, self.cluster.nodes, strict=True)
        }
        return Observation(1, 0, inventory, replicas, None, ())

    def _table(self, name: str, node: int) -> TableFacts | None:
        rows = self.cluster.query(
            "SELECT toString(uuid) AS uuid, engine, create_table_query, total_rows FROM system.tables "
            f"WHERE database = '{self.database}' AND name = '{name}'",
            node=node,
        )
        if not rows:
            return None
        (row,) = rows
        return TableFacts(
            uuid=row["uuid"],
            engine=row["engine"],
            engine_full="",
            schema_digest="",
            engine_refusal=None,
            create_query=row["create_table_query"],
            comment_authority=None,
            rows=row["total_rows"],
            bytes=None,
            replication=None,
        )

    def planned(self, staging: ClusterStaging, table: str = "t") -> StagePlan:
        """The plan for the table as it is now."""
        return staging.plan(self.observe(table))

    def built(self, staging: ClusterStaging, table: str = "t") -> tuple[StagePlan, Attempt]:
        """Plan, and create a candidate that was checked."""
        plan, attempt = self.planned(staging, table), new_attempt(table)
        staging.create(plan, attempt, authority_id=AUTHORITY_ID, operation_id=OPERATION_ID)
        staging.check_created(plan, attempt, self.observe(attempt.name))
        return plan, attempt

    def staged(self, staging: ClusterStaging, table: str = "t") -> tuple[Attempt, Loaded]:
        """A candidate that is loaded and complete on every replica."""
        plan, attempt = self.built(staging, table)
        loaded = staging.load(plan, attempt)
        self.sync(attempt.name)
        return attempt, loaded

    def sync(self, table: str) -> None:
        """Wait until every replica holds the whole table."""
        for node in self.cluster.nodes:
            self.cluster.execute(f"SYSTEM SYNC REPLICA {self.database}.{table}", node=node)

    def rows(self, sql: str) -> list[list[Any]]:
        """The rows of a query, which every replica must answer in the same way."""
        answers = [
            [list(row.values()) for row in self.cluster.query(sql, node=node)] for node in self.cluster.nodes
        ]
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def count(self, table: str) -> int:
        """How many rows a table has on every replica."""
        ((rows,),) = self.rows(f"SELECT count() FROM {self.database}.{table}")
        return int(rows)

    def exists(self, table: str) -> bool:
        """Whether a table exists on any replica."""
        return any(self.exists_on(table, node) for node in self.cluster.nodes)

    def exists_everywhere(self, table: str) -> bool:
        """Whether a table exists on every replica."""
        return all(self.exists_on(table, node) for node in self.cluster.nodes)

    def exists_on(self, table: str, node: int) -> bool:
        """Whether a table exists on one replica."""
        sql = f"SELECT 1 FROM system.tables WHERE database = '{self.database}' AND name = '{table}'"
        return bool(self.cluster.query(sql, node=node))

    def running(self, attempt: Attempt) -> int:
        """On how many replicas the attempt's load runs."""
        return sum(
            self.cluster.scalar(
                f"SELECT count() FROM system.processes WHERE query_id = 'dpone-load-{attempt.attempt_id}'",
                node=node,
            )
            for node in self.cluster.nodes
        )


@dataclass(frozen=True, slots=True)
class Streamed:
    """A source of prepared chunks, for what no file can do: fail half way, count wrongly, be slow."""

    start: Callable[[], Iterator[bytes]]
    column_names: tuple[str, ...]
    format: str = "CSV"
    row_count: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def identity(self) -> Json:
        return {"kind": "test"}

    def columns(self, describe: Any) -> tuple[SourceColumn, ...]:
        return self.load().columns

    def load(self) -> StreamLoad:
        columns = tuple(SourceColumn(name) for name in self.column_names)
        return StreamLoad(self.format, self.settings, columns, self.start, lambda: self.row_count)

    def rendered(self, render: Any) -> Streamed:
        return self

    def serialize(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def deserialize(cls, data: Mapping[str, Any], version: int) -> Streamed:
        raise NotImplementedError


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[Callable[[], BaseException | None]]:
    """Run ``work`` beside the test; the yielded function waits for its end and returns what it raised."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is handed to the test
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def finished() -> BaseException | None:
        thread.join(60)
        assert not thread.is_alive(), "the work has not ended within a minute"
        return failure[0] if failure else None

    yield finished
    thread.join(60)
