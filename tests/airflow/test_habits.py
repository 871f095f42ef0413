"""One refresh end to end: what Airflow, OpenLineage and the metrics were told. Runs on every supported Airflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.bench import SWAP, Bench
from tests.airflow.conftest import LINEAGE
from tests.airflow.harness import VERSION, LocalAirflow
from tests.airflow.metrics import MetricsReceived
from tests.cluster import APP_PASSWORD
from tests.cluster.client import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

DAG_ID = "habits"
STAGE, PUBLISH, CLEANUP = "orders.stage", "orders.publish", "orders.cleanup"
SECRETS = ("s3cret", "c0nfidential", APP_PASSWORD)


@pytest.fixture(scope="module")
def lineage(airflow_env: LocalAirflow) -> Path:
    return airflow_env.dags_folder.parent / LINEAGE


def test_a_refresh_says_once_what_it_did(
    bench: Bench, metrics_received: MetricsReceived, lineage: Path
) -> None:
    bench.cluster.execute(
        f"CREATE TABLE {bench.database}.raw ON CLUSTER analytics (id UInt64) ENGINE = ReplicatedMergeTree ORDER BY id"
    )
    bench.cluster.execute(f"INSERT INTO {bench.database}.raw SELECT number FROM numbers(50)")
    bench.run(DAG_ID, rows=10)
    since = bench.cluster.last_statement()
    run_id = bench.run(DAG_ID, rows=20)
    for task_id in (STAGE, PUBLISH, CLEANUP):
        print(f"--- {task_id}\n{bench.log(DAG_ID, run_id, task_id)}")
    published = bench.receipt(DAG_ID, run_id, PUBLISH)
    assert (published["replayed"], published["rows"], bench.rows("orders")) == (False, 20, [20, 20])
    assert bench.sent(SWAP, since) == 1

    # The asset: one event, after the proof.
    said = {
        "operation_id": published["operation_id"],
        "epoch": published["epoch"],
        "rows": 20,
        "replicas": ["s1/r1", "s1/r2"],
    }
    assert [event["extra"] for event in bench.asset_events(DAG_ID, run_id)] == [said]

    # The pointer, where this Airflow has a place for it.
    if VERSION >= (3, 3):
        pointer = {
            "operation_id": published["operation_id"],
            "epoch": published["epoch"],
            "entry": published["entry"],
            "phase": "COMMITTED",
        }
        path = f"/dags/{DAG_ID}/dagRuns/{run_id}/taskInstances/{PUBLISH}/state-store"
        assert pointer in list(values(bench.airflow.api("GET", path)))

    # The metrics.
    target = f"cluster=analytics,target={bench.database}.orders"
    wait_until(lambda: any("dpone.publish.duration" in line for line in metrics_received.lines), timeout=10)
    for start, end in (
        (f"airflow.dpone.publications,{target},outcome=committed", ":1|c"),
        (f"airflow.dpone.stages,{target},outcome=staged", ":1|c"),
        (f"airflow.dpone.stage.rows,{target}", ":20|c"),
        (f"airflow.dpone.stage.bytes,{target}", "|c"),
        (f"airflow.dpone.stage.duration,{target}", "|ms"),
        (f"airflow.dpone.publish.duration,{target}", "|ms"),
    ):
        assert any(line.startswith(start) and line.endswith(end) for line in metrics_received.lines), start

    # OpenLineage.
    wait_until(lambda: len(complete(lineage, PUBLISH)) == 2, timeout=30)
    staged, live = complete(lineage, STAGE)[-1], complete(lineage, PUBLISH)[-1]
    assert [one["name"] for one in staged["inputs"]] == [f"{bench.database}.raw"]
    assert staged["run"]["facets"]["externalQuery"]["externalQueryId"]
    [output] = live["outputs"]
    assert (output["namespace"], output["name"]) == ("clickhouse://analytics", f"{bench.database}.orders")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 20
    assert output["outputFacets"]["outputStatistics"]["size"] == published["bytes"]
    assert output["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "OVERWRITE"
    assert live["run"]["facets"]["externalQuery"]["externalQueryId"] == published["entry"]

    # Clearing publish alone: the old answer, and nothing new is said.
    bench.airflow.clear(DAG_ID, run_id, [PUBLISH])
    bench.wait(DAG_ID, run_id)
    assert bench.receipt(DAG_ID, run_id, PUBLISH)["replayed"] is True
    assert bench.sent(SWAP, since) == 1
    assert len(bench.asset_events(DAG_ID, run_id)) == 1
    wait_until(lambda: len(complete(lineage, PUBLISH)) == 3, timeout=30)
    assert complete(lineage, PUBLISH)[-1]["outputs"] == []

    # Nothing of all this gives away what nobody may see.
    everything = lineage.read_text() + "\n".join(metrics_received.lines)
    hosts = [f"{host}:{port}" for host, port in bench.cluster.endpoints]
    assert [secret for secret in (*SECRETS, *hosts) if secret in everything] == []


def test_the_connections_form_has_the_fields(bench: Bench) -> None:
    # The API of the web interface, which only it is promised.
    metas = bench.airflow._send("GET", "/ui/connections/hook_meta", None, bench.airflow.authorization())
    [ours] = [meta for meta in metas if meta["connection_type"] == "dpone_clickhouse"]
    assert {"secure", "verify", "ca_cert", "hosts"} <= set(ours["extra_fields"])
    assert ours["standard_fields"]["login"]["title"] == "User"


def complete(lineage: Path, task_id: str) -> list[dict[str, Any]]:
    """The events of a task's good end, the oldest first."""
    events = [json.loads(line) for line in lineage.read_text().splitlines()]
    return [
        event
        for event in events
        if event["eventType"] == "COMPLETE" and event["job"]["name"] == f"{DAG_ID}.{task_id}"
    ]


def values(answer: Any) -> Any:
    """Every value of an answer of the API, however deep."""
    yield answer
    inside = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    for one in inside:
        yield from values(json.loads(one) if isinstance(one, str) and one.startswith("{") else one)
