"""An auth manager for tests: Airflow's own simple one, with DAGs that viewers may not read."""

from __future__ import annotations

from typing import Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

SECRET: Final = "secret_"
"""How the ids of such DAGs begin."""


class PickyAuthManager(SimpleAuthManager):
    """Whoever is no administrator learns nothing about a secret DAG."""

    def is_authorized_dag(
        self,
        *,
        method: Any,
        user: SimpleAuthManagerUser,
        access_entity: DagAccessEntity | None = None,
        details: DagDetails | None = None,
    ) -> bool:
        """Decide as Airflow does, but for secret DAGs."""
        secret = details is not None and (details.id or "").startswith(SECRET)
        if secret and str(user.role).upper() != "ADMIN":
            return False
        return super().is_authorized_dag(
            method=method, user=user, access_entity=access_entity, details=details
        )
