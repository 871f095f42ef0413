"""The cluster of independent tables on real servers: how every replica is reached, and a database to work in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.initialise import Initialised, initialise
from airflow_provider_dpone.clickhouse.replica_connections import ReplicaConnections
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.routes.ports import Target
from tests.cluster import INDEPENDENT_CLUSTER_NAME, Endpoint, LocalCluster
from tests.cluster.spec import ADMIN_USER, DATABASE_PREFIX
from tests.integration.refresh_site import settings

CONTROL = ControlTable()


@dataclass(frozen=True)
class ExternalSite:
    """A target of independent tables.

    :ivar endpoints: where workers connect; the load balancer's alone, for some tests.
    """

    cluster: LocalCluster
    database: str
    endpoints: tuple[Endpoint, ...]
    table: str = "orders"
    cluster_name: str = INDEPENDENT_CLUSTER_NAME

    @property
    def target(self) -> Target:
        return Target(self.cluster_name, self.database, self.table)

    @property
    def replicas(self) -> dict[str, Endpoint]:
        """Each replica's own port, which the gateway watches."""
        return dict(zip(self.aliases, self.cluster.endpoints, strict=True))

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(f"s1/r{node}" for node in self.cluster.nodes)

    def settings(self, replicas: Mapping[str, Endpoint] | None = None) -> ConnectionSettings:
        """The connection, with the map of its replicas.

        :param replicas: another map than the right one; an empty one is none.
        """
        given = self.replicas if replicas is None else replicas
        return replace(
            settings(*self.endpoints),
            replicas={alias: (endpoint.host, endpoint.port) for alias, endpoint in given.items()},
        )

    def observe(self, *tables: str) -> Observation:
        """What all replicas show of these tables, and who they are."""
        with closing(Server(self.settings())) as server:
            return Catalog(server, self.target, CONTROL, internal_replication=False).observe(tables)

    @contextmanager
    def connections(
        self, observation: Observation, replicas: Mapping[str, Endpoint] | None = None
    ) -> Iterator[ReplicaConnections]:
        """A connection to each replica, not proven yet.

        :param replicas: as for :meth:`settings`.
        """
        with closing(ReplicaConnections(self.settings(replicas), observation.inventory)) as found:
            yield found

    def create(self, table: str, *, rows: int = 0) -> list[str | None]:
        """Create a plain table on each replica, with another UUID on each, and return the UUIDs."""
        for node in self.cluster.nodes:
            name = f"{self.database}.{table}"
            self.cluster.execute(
                f"CREATE TABLE {name} UUID '{uuid4()}' (id UInt64, name String) ENGINE = MergeTree ORDER BY id",
                node=node,
            )
            self.cluster.execute(
                f"INSERT INTO {name} SELECT number, toString(number) FROM numbers({rows})", node=node
            )
        return self.uuids(table)

    def uuids(self, table: str) -> list[str | None]:
        """The UUID of a table on each replica."""
        found: list[str | None] = []
        for node in self.cluster.nodes:
            rows = self.cluster.query(
                f"SELECT toString(uuid) AS uuid FROM system.tables WHERE database = '{self.database}' "
                f"AND name = '{table}'",
                node=node,
            )
            found.append(rows[0]["uuid"] if rows else None)
        return found


@contextmanager
def external_site(cluster: LocalCluster, *endpoints: Endpoint) -> Iterator[ExternalSite]:
    """A site with a database and a control table. Afterwards faults are undone and the database is gone.

    :param endpoints: where workers connect; the first node by default.
    """
    init(cluster)
    name = f"{DATABASE_PREFIX}_{uuid4().hex[:8]}"
    cluster.execute(f"CREATE DATABASE {name} ON CLUSTER {INDEPENDENT_CLUSTER_NAME} ENGINE = Atomic")
    try:
        yield ExternalSite(cluster, name, endpoints or (cluster.endpoints[0],))
    finally:
        cluster.heal()
        cluster.execute(f"DROP DATABASE {name} ON CLUSTER {INDEPENDENT_CLUSTER_NAME} SYNC")


def init(cluster: LocalCluster) -> Initialised:
    """Create the control table as ``airflow dpone init --cluster independent`` does, if it isn't there."""
    with closing(Server(settings(cluster.endpoints[0], user=ADMIN_USER, password=""))) as server:
        return initialise(server, INDEPENDENT_CLUSTER_NAME, control=CONTROL)
