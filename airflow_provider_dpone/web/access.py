"""Everything that the page takes from Airflow beyond its promises: who asks, what they may read, and connections.

Read in the sources of 3.1.8, 3.2.2 and 3.3.2, and tested on the installed one:

* ``get_user`` is a dependency of FastAPI that works in a mounted application. Its arguments changed in between, so it
  is never called, only depended on. It refuses with 401 whoever is not logged in, and with 403 a token that is none.
* The auth manager comes from ``get_auth_manager``; the dependency ``AuthManagerDep`` reads the state of the mounted
  application, which has none.
* A connection is read as in a task, by the hook: ``airflow.api_fastapi.main`` declares its process a server, where the
  Task SDK looks into the metadata database and the configured secrets backends. It needs no supervisor there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from fastapi import Depends

from airflow_provider_dpone import composition
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.routes.ports import Target

User: TypeAlias = Annotated[Any, Depends(get_user)]
"""The user who asks. Without one, the request is refused before the route begins."""

PATIENCE: Final = 10.0
"""Seconds for which a server may be silent while the page looks at a cluster; longer, and the look is given up."""


def may_read(user: Any, dag_id: str) -> bool:
    """Tell whether a user may read what a DAG's tasks hand on, which receipts are."""
    return bool(
        get_auth_manager().is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.XCOM,
            details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
            user=user,
        )
    )


def reader_of(user: Any) -> Callable[[str], bool]:
    """Return what tells whether this user may read a DAG's data; each DAG is asked for once."""
    known: dict[str, bool] = {}

    def ask(dag_id: str) -> bool:
        if dag_id not in known:
            known[dag_id] = may_read(user, dag_id)
        return known[dag_id]

    return ask


def explain_now(conn_id: str, target: Target) -> Explanation:
    """Look at a target through an Airflow connection. Reads only.

    :raises Stopped: it can't be read.
    :raises Exception: whatever a secrets backend raises; a connection that doesn't exist, too.
    """
    with composition.server(conn_id, patience=PATIENCE) as server:
        return composition.explain(server, target)
