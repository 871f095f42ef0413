"""One Airflow and one cluster for tests of refreshes: runs, receipts, logs, and what really was sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from tests.airflow.harness import LocalAirflow
from tests.cluster import LocalCluster

CONN_ID = "refreshes"
LOAD = r"^\s*INSERT INTO `?mart_"
SWAP = r"^\s*(EXCHANGE TABLES|RENAME TABLE)\b.*\bON CLUSTER\b"
DROP = r"^\s*DROP TABLE\b.*\bON CLUSTER\b"
RUN_SECONDS = 180.0


class Bench:
    """One Airflow, one cluster, and a database of the test's own."""

    def __init__(self, airflow: LocalAirflow, cluster: LocalCluster, database: str) -> None:
        self.airflow = airflow
        self.cluster = cluster
        self.database = database

    def run(self, dag_id: str, *, expect: str = "success", **conf: Any) -> str:
        """Run a DAG to its end; returns the run id."""
        run_id = f"{dag_id}-{uuid4().hex[:8]}"
        self.airflow.trigger(dag_id, run_id, {"database": self.database, **conf})
        self.wait(dag_id, run_id, expect=expect)
        return run_id

    def wait(self, dag_id: str, run_id: str, *, expect: str = "success") -> None:
        state = self.airflow.wait_run(dag_id, run_id, RUN_SECONDS)
        if state != expect:
            tasks = self.airflow.task_instances(dag_id, run_id)
            logs = [
                self.airflow.task_log(dag_id, run_id, t.task_id, t.try_number, t.map_index) for t in tasks
            ]
            pytest.fail(f"{run_id} is {state}\n" + "\n".join(logs)[-8000:])

    def receipt(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self.airflow.xcom(dag_id, run_id, task_id, map_index=map_index)
        assert len(json.dumps(answer)) < 16 * 1024
        return answer

    def tries(self, dag_id: str, run_id: str, task_id: str) -> int:
        return self.airflow.task_instance(dag_id, run_id, task_id).try_number

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        return self.airflow.task_log(dag_id, run_id, task_id, self.tries(dag_id, run_id, task_id))

    def asset_events(self, dag_id: str, run_id: str) -> list[Mapping[str, Any]]:
        """The asset events that a run's tasks have made."""
        found = self.airflow.api("GET", f"/assets/events?source_dag_id={dag_id}&source_run_id={run_id}")
        return list(found["asset_events"])

    def sent(self, pattern: str, since: int) -> int:
        """How many statements left a task, errors and lost replies included."""
        return sum(
            self.database in statement.text or "EXCHANGE" in statement.text
            for statement in self.cluster.statements(pattern, since)
        )

    def rows(self, table: str) -> list[int]:
        """The live rows on each replica."""
        return [
            self.cluster.scalar(f"SELECT count() FROM {self.database}.{table}", node=node)
            for node in self.cluster.nodes
        ]

    def tables(self) -> set[str]:
        """Every table of the database, on any replica."""
        sql = f"SELECT name FROM system.tables WHERE database = '{self.database}'"
        return {row["name"] for node in self.cluster.nodes for row in self.cluster.query(sql, node=node)}
