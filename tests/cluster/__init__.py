"""A cluster of real ClickHouse servers and a real ZooKeeper, without Docker; see docs/test-cluster.md."""

from tests.cluster.client import ClickHouseError, ClusterClient, ControlError, Fault, wait_until
from tests.cluster.ddl_queue import QueueRow, QueueStatus
from tests.cluster.local import ClusterNotStartedError, LocalCluster
from tests.cluster.spec import (
    APP_PASSWORD,
    APP_USER,
    CLUSTER_NAME,
    INDEPENDENT_CLUSTER_NAME,
    ClusterSpec,
    Endpoint,
    User,
)
from tests.cluster.statement_log import LoggedStatement, Outcome

__all__ = [
    "APP_PASSWORD",
    "APP_USER",
    "CLUSTER_NAME",
    "INDEPENDENT_CLUSTER_NAME",
    "ClickHouseError",
    "ClusterClient",
    "ClusterNotStartedError",
    "ClusterSpec",
    "ControlError",
    "Endpoint",
    "Fault",
    "LocalCluster",
    "LoggedStatement",
    "Outcome",
    "QueueRow",
    "QueueStatus",
    "User",
    "wait_until",
]
