"""The cluster refresh: stage, publish, clean up. One protocol for whoever drives it.

The shape is the same three times: observe, decide (in the pure core), act once, observe again. All that
is decided here is in which order the ports are called and what is written down before; the operator, the
command line and the simulator run this same code.
"""

from airflow_provider_dpone.routes.cluster_refresh._admit import StageRequest
from airflow_provider_dpone.routes.cluster_refresh._cleanup import CleanedUp, CleanupRequest, cleanup
from airflow_provider_dpone.routes.cluster_refresh._common import Site, Waits
from airflow_provider_dpone.routes.cluster_refresh._explain import TargetStatus, explain, target_status
from airflow_provider_dpone.routes.cluster_refresh._orphans import Dropped, drop_orphan, forget
from airflow_provider_dpone.routes.cluster_refresh._publish import HandedOver, PublishRequest, publish
from airflow_provider_dpone.routes.cluster_refresh._resolve import (
    Ended,
    OperatorRequest,
    abandon,
    audit_action,
    resolve,
)
from airflow_provider_dpone.routes.cluster_refresh._rollback import RolledBack, rollback
from airflow_provider_dpone.routes.cluster_refresh._stage import stage
from airflow_provider_dpone.routes.cluster_refresh._stage_replicas import stage_replicas

__all__ = [
    "CleanedUp",
    "CleanupRequest",
    "Dropped",
    "Ended",
    "HandedOver",
    "OperatorRequest",
    "PublishRequest",
    "RolledBack",
    "Site",
    "StageRequest",
    "TargetStatus",
    "Waits",
    "abandon",
    "audit_action",
    "cleanup",
    "drop_orphan",
    "explain",
    "forget",
    "publish",
    "resolve",
    "rollback",
    "stage",
    "stage_replicas",
    "target_status",
]
