"""The whole route on real servers where every replica has a table of its own: :class:`RefreshSite`, for these."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_dpone.artifacts.store import ArtifactStore
from airflow_provider_dpone.clickhouse.load import Limits
from airflow_provider_dpone.clickhouse.replica_connections import ReplicaConnections
from airflow_provider_dpone.clickhouse.replica_staging import ClusterReplicaStaging
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.receipt import StageReceipt
from airflow_provider_dpone.routes.cluster_refresh import StageRequest, Waits, stage_replicas
from airflow_provider_dpone.routes.ports import Ports
from airflow_provider_dpone.sources import Source
from airflow_provider_dpone.values import ClusterRefresh
from tests.cluster import INDEPENDENT_CLUSTER_NAME, Endpoint
from tests.integration.refresh_site import RefreshSite, settings


@dataclass
class IndependentSite(RefreshSite):
    """A target of independent tables."""

    cluster_name: str = INDEPENDENT_CLUSTER_NAME
    internal: bool = False

    @property
    def replicas(self) -> dict[str, Endpoint]:
        """Each replica's own port, which the gateway watches."""
        return {f"s1/r{node}": endpoint for node, endpoint in enumerate(self.cluster.endpoints, start=1)}

    @property
    def connection(self) -> ConnectionSettings:
        """How a worker connects, with the map of the replicas."""
        return replace(
            settings(*self.endpoints, user=self.user, password=self.password),
            replicas={alias: (endpoint.host, endpoint.port) for alias, endpoint in self.replicas.items()},
        )

    @property
    def artifacts(self) -> Path:
        """The folder of all artifacts, beside that of the evidence."""
        return self.folder.with_name(f"{self.folder.name}-artifacts")

    def store(self, key: str) -> ArtifactStore:
        """The artifacts of a target."""
        from airflow.sdk import ObjectStoragePath

        return ArtifactStore(ObjectStoragePath(self.artifacts.as_uri()), self.cluster_name, key)

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
        staging = ClusterReplicaStaging(
            server,
            self.target,
            replace(value, replication_mode="external"),
            source,
            self.lines.append,
            lambda inventory: ReplicaConnections(server.settings, inventory),
            self.store,
            limits=limits,
        )
        with closing(staging):
            return stage_replicas(ports, staging, self.site, request, waits)
