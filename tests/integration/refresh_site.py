"""The whole route on real servers, without Airflow: one target, and workers that refresh it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dpone.clickhouse.authority import Authority
from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.clickhouse.load import Limits
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.clickhouse.staging import ClusterStaging
from airflow_provider_dpone.composition import SystemClock, SystemRandom
from airflow_provider_dpone.evidence.store import EvidenceStore
from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.identity import TaskIdentity
from airflow_provider_dpone.publication.receipt import PublicationReceipt, StageReceipt
from airflow_provider_dpone.publication.record import Owner, StoredRecord
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanedUp,
    CleanupRequest,
    PublishRequest,
    Site,
    StageRequest,
    Waits,
    cleanup,
    publish,
    stage,
)
from airflow_provider_dpone.routes.ports import Ports, Target
from airflow_provider_dpone.sources import Source, SqlSource
from airflow_provider_dpone.values import ClusterRefresh, MiB, TableStructure
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, Endpoint, LocalCluster
from tests.cluster.spec import ADMIN_USER
from tests.cluster.statement_log import LoggedStatement

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

CONTROL = ControlTable()
STRUCTURE = TableStructure(columns={"id": "UInt64", "name": "String"}, order_by="id")
QUICK = Waits(ready=20, publish=20, cleanup=10, busy=0, visible=5, poll_first=0.05, poll_last=0.5)
ANSWER_SECONDS = 2
"""For so long a server waits for the replicas before it answers that some are late; the provider asks for 5 s."""
_NUMBERS = itertools.count(1)
_INITIALISED: set[Endpoint] = set()
"""Clusters, by their control ports, whose control table this process has created."""


def settings(*endpoints: Endpoint, user: str = APP_USER, password: str = APP_PASSWORD) -> ConnectionSettings:
    """A connection as the least privileged user, unless another one is named."""
    return ConnectionSettings(
        hosts=tuple((endpoint.host, endpoint.port) for endpoint in endpoints), user=user, password=password
    )


def init(cluster: LocalCluster) -> None:
    """Create the control table, as ``airflow dpone init`` does; nothing to do on a cluster that has it."""
    exists = f"EXISTS TABLE {CONTROL.qualified}"
    if cluster.control in _INITIALISED and all(cluster.scalar(exists, node=node) for node in cluster.nodes):
        return
    server = Server(settings(cluster.endpoints[0], user=ADMIN_USER, password=""))
    try:
        initialise(server, CLUSTER_NAME, control=CONTROL)
    finally:
        server.close()
    _INITIALISED.add(cluster.control)


def rows_query(rows: int, start: int = 0) -> str:
    """A query that gives ``rows`` rows."""
    return f"SELECT number + {start} AS id, toString(number) AS name FROM numbers({rows})"


def about(run: str, task: str, conn_id: str = "") -> dict[str, Any]:
    """What a task's entries of the evidence say about their writer."""
    connection = {"conn_id": conn_id} if conn_id else {}
    return {
        "dag_id": "dag",
        "run_id": run,
        "task_id": task,
        "map_index": -1,
        "try_number": 1,
        **connection,
    }


@dataclass
class RefreshSite:
    """A target on a real cluster.

    :ivar endpoints: where workers connect; the load balancer's alone, for some tests.
    :ivar conn_id: the connection that the evidence names, by which the page looks at the cluster.
    :ivar lines: what was logged.
    :ivar since: statements of the gateway's log up to here were there before.
    """

    cluster: LocalCluster
    database: str
    folder: Path
    endpoints: tuple[Endpoint, ...]
    table: str = "orders"
    user: str = APP_USER
    password: str = APP_PASSWORD
    cluster_name: str = CLUSTER_NAME
    control: ControlTable = CONTROL
    waits: Waits = QUICK
    conn_id: str = ""
    internal: bool = True
    lines: list[str] = field(default_factory=list)
    since: int = field(init=False)

    def __post_init__(self) -> None:
        init(self.cluster)
        self.since = self.cluster.last_statement()

    @property
    def connection(self) -> ConnectionSettings:
        """How a worker connects."""
        return settings(*self.endpoints, user=self.user, password=self.password)

    @property
    def target(self) -> Target:
        return Target(self.cluster_name, self.database, self.table)

    @property
    def site(self) -> Site:
        return Site(self.target, user=self.user, control_structure=self.control.structure)

    @contextmanager
    def worker(self, run: str = "run", task: str = "") -> Iterator[tuple[Ports, Server]]:
        """A worker process's ports: new connections, the shared evidence folder.

        :param task: the evidence says that this task of the run writes it.
        """
        server = Server(self.connection)
        try:
            yield (
                Ports(
                    catalog=Catalog(server, self.target, self.control, internal_replication=self.internal),
                    authority=Authority(server, self.cluster_name, self.control),
                    queue=DdlQueue(server, ANSWER_SECONDS),
                    evidence=EvidenceStore(
                        self.trail,
                        cluster=self.cluster_name,
                        writer=f"{run}-{next(_NUMBERS)}",
                        about=about(run, task, self.conn_id) if task else None,
                    ),
                    clock=SystemClock(),
                    random=SystemRandom(),
                    log=self.lines.append,
                ),
                server,
            )
        finally:
            server.close()

    @property
    def trail(self) -> ObjectStoragePath:
        from airflow.sdk import ObjectStoragePath

        return ObjectStoragePath(self.folder.as_uri())

    def stage(
        self,
        source: Source | str,
        *,
        run: str = "run",
        dag: str = "dag",
        series: str = "0",
        order_key: str | None = None,
        allow_older: bool = False,
        retention: int = 0,
        waits: Waits | None = None,
        limits: Limits | None = None,
        **refresh: Any,
    ) -> StageReceipt:
        """Run a stage task."""
        value = ClusterRefresh(
            clickhouse_conn_id="unused",
            cluster=self.cluster_name,
            database=self.database,
            table=self.table,
            **{"max_source_bytes": 512 * MiB, "structure": STRUCTURE, **refresh},
        )
        with self.worker(run, "stage") as (ports, server):
            return self._stage(
                ports,
                server,
                value,
                SqlSource(sql=source) if isinstance(source, str) else source,
                limits or Limits(create=20, load=60, poll=1),
                StageRequest(
                    identity=TaskIdentity("test", dag, run, "stage", -1, series),
                    owner=Owner(dag, run, "stage", -1),
                    order_key=order_key,
                    allow_older=allow_older,
                    retention=retention,
                    refuse_dependents=value.on_dependents == "refuse",
                ),
                waits or self.waits,
            )

    def _stage(
        self,
        ports: Ports,
        server: Server,
        value: ClusterRefresh,
        source: Source,
        limits: Limits,
        request: StageRequest,
        waits: Waits,
    ) -> StageReceipt:
        staging = ClusterStaging(server, self.target, value, source, self.lines.append, limits=limits)
        return stage(ports, staging, self.site, request, waits)

    def publish(
        self,
        staged: StageReceipt,
        guards: Guards | None = None,
        waits: Waits | None = None,
        *,
        run: str = "run",
    ) -> PublicationReceipt:
        """Run a publish task."""
        with self.worker(run, "publish") as (ports, _):
            receipt = publish(
                ports, self.site, PublishRequest(staged.operation_id, guards or Guards()), waits or self.waits
            )
        assert isinstance(receipt, PublicationReceipt)
        return receipt

    def cleanup(self, staged: StageReceipt, waits: Waits | None = None) -> CleanedUp:
        """Run a cleanup task."""
        with self.worker(task="cleanup") as (ports, _):
            return cleanup(
                ports, self.site, CleanupRequest(staged.operation_id, staged.candidate), waits or self.waits
            )

    def refresh(self, rows: int, *, run: str, **arguments: Any) -> PublicationReceipt:
        """Run all three tasks."""
        staged = self.stage(rows_query(rows), run=run, **arguments)
        self.publish(staged)
        done = self.cleanup(staged).receipt
        assert isinstance(done, PublicationReceipt)
        return done

    # What is looked at afterwards.

    def record(self) -> StoredRecord:
        """The target's record."""
        with self.worker() as (ports, _):
            stored = ports.catalog.observe([self.table]).record
        assert stored is not None
        return stored

    def uuids(self, name: str | None = None) -> list[str | None]:
        """The UUID of a table on each replica."""
        found: list[str | None] = []
        for node in self.cluster.nodes:
            rows = self.cluster.query(
                f"SELECT toString(uuid) AS uuid FROM system.tables WHERE database = '{self.database}' "
                f"AND name = '{name or self.table}'",
                node=node,
            )
            found.append(rows[0]["uuid"] if rows else None)
        return found

    def counts(self) -> list[int]:
        """The live rows on each replica."""
        return [
            int(self.cluster.scalar(f"SELECT count() FROM {self.database}.{self.table}", node=node))
            for node in self.cluster.nodes
        ]

    def tables(self) -> set[str]:
        """All tables of the database, on any replica."""
        return {
            row["name"]
            for node in self.cluster.nodes
            for row in self.cluster.query(
                f"SELECT name FROM system.tables WHERE database = '{self.database}'", node=node
            )
        }

    def sent(self, match: str) -> Sequence[LoggedStatement]:
        """The statements that workers sent since this site was made."""
        return self.cluster.statements(match, since=self.since)

    def swaps(self) -> int:
        """How many EXCHANGE and RENAME were sent to the cluster."""
        return len(self.sent(r"^\s*(EXCHANGE|RENAME)\b.* ON CLUSTER "))
