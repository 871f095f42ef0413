"""Operators and commands without an Airflow around them, on a real cluster: connection, options and context."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster import APP_PASSWORD, APP_USER, LocalCluster

CONN_ID = "site"


def connect(
    monkeypatch: pytest.MonkeyPatch,
    cluster: LocalCluster,
    home: Path,
    *,
    user: str = APP_USER,
    password: str = APP_PASSWORD,
    conn_id: str = CONN_ID,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Make ``conn_id`` a connection to the cluster, and put evidence and artifacts below ``home``."""
    host, port = cluster.endpoints[0]
    connection = {
        "conn_type": "dpone_clickhouse",
        "host": host,
        "port": port,
        "login": user,
        "password": password,
        **({"extra": extra} if extra else {}),
    }
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    monkeypatch.setenv("AIRFLOW__DPONE__EVIDENCE_PATH", (home / "evidence").as_uri())
    monkeypatch.setenv("AIRFLOW__DPONE__ARTIFACT_PATH", (home / "artifacts").as_uri())
    # A command of the CLI sets it for its own process.
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")


def context(run_id: str = "run-1", *, task_id: str = "stage", max_tries: int = 0, **more: Any) -> Any:
    """What an operator's ``execute`` looks at."""
    ti = SimpleNamespace(
        dag_id="orders",
        run_id=run_id,
        task_id=task_id,
        map_index=-1,
        max_tries=max_tries,
        try_number=1,
        id=f"ti-{run_id}-{task_id}",
    )
    return {"ti": ti, "dag_run": SimpleNamespace(conf={}), "params": {}, **more}
