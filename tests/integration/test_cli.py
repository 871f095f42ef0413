"""``airflow dpone ...`` on a real cluster."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand

from airflow_provider_dpone import ClusterRefresh, MiB, SqlSource, TableStructure
from airflow_provider_dpone.cli import commands
from airflow_provider_dpone.cli.definition import commands as defined
from airflow_provider_dpone.operators import StageOperator
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.integration.task_site import CONN_ID, connect, context

pytestmark = pytest.mark.cluster

READS = {"SELECT", "WITH", "SHOW", "CHECK", "DESCRIBE", "EXISTS"}


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, tmp_path: Path) -> None:
    connect(monkeypatch, cluster, tmp_path)


def init(**changes: Any) -> None:
    arguments: dict[str, Any] = {
        "conn_id": CONN_ID,
        "cluster": CLUSTER_NAME,
        "print_sql": False,
        "output": "table",
    }
    commands.init(Namespace(**(arguments | changes)))


def preflight(capsys: pytest.CaptureFixture[str], *, status: int = 0, **changes: Any) -> Any:
    """Run it, and return its JSON, or its text with ``output="table"``."""
    arguments: dict[str, Any] = {
        "conn_id": CONN_ID,
        "cluster": CLUSTER_NAME,
        "table": "orders",
        "replication_mode": "internal",
        "source": "query",
        "output": "json",
    }
    capsys.readouterr()
    found = 0
    try:
        commands.preflight(Namespace(**(arguments | changes)))
    except SystemExit as end:
        found = int(str(end.code))
    out = capsys.readouterr().out
    assert found == status, out
    return out if changes.get("output") == "table" else json.loads(out)


def failed(answer: Any) -> dict[str, str]:
    """Name -> code of the checks that failed."""
    return {
        check["name"]: check["stop"]["code"].removeprefix("DPONE_CLICKHOUSE_CLUSTER_")
        for check in answer["checks"]
        if not check["ok"]
    }


def test_the_parser_takes_what_the_commands_need() -> None:
    (group,) = defined()
    flags = {
        command.name: {flag for argument in command.args for flag in argument.flags}
        for command in group.subcommands  # type: ignore[union-attr]
        if isinstance(command, ActionCommand)
    }
    assert flags["init"] >= {"--conn-id", "--cluster", "--print-sql"}
    assert flags["preflight"] >= {"--conn-id", "--cluster", "--database", "--table", "--output"}


def test_init_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    init()
    capsys.readouterr()
    init(output="json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["replicas"] == ["s1/r1", "s1/r2"]
    assert len(answer["authority_id"]) == 32
    assert answer["statements"] == []
    init(print_sql=True)
    assert "Nothing to do" in capsys.readouterr().out


def test_an_unknown_cluster_ends_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        init(cluster="nowhere")
    assert end.value.code == 1
    assert "DPONE_CLICKHOUSE_CLUSTER_UNKNOWN" in capsys.readouterr().err


def test_an_unknown_connection_ends_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        init(conn_id="nothing", output="json")
    assert end.value.code == 1
    assert "nothing" in json.loads(capsys.readouterr().out)["stop"]["message"]


def test_a_target_in_order_passes_every_check_and_nothing_is_changed(
    capsys: pytest.CaptureFixture[str], cluster: LocalCluster, database: str
) -> None:
    init()
    since = cluster.last_statement()
    answer = preflight(capsys, database=database)
    assert answer["ok"] is True
    assert failed(answer) == {}
    names = {check["name"]: check["found"] for check in answer["checks"]}
    assert names["the table can be replaced"].startswith("absent")
    assert names["the table is free for the next refresh"] == "never published"
    assert [replica["replica"] for replica in answer["replicas"]] == ["s1/r1", "s1/r2"]
    assert any(grant.startswith("GRANT ") for grant in answer["grants"])
    assert {statement.kind for statement in cluster.statements(since=since)} <= READS


def test_all_that_is_wrong_is_told_at_once_and_people_see_hosts(
    capsys: pytest.CaptureFixture[str], cluster: LocalCluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    init()
    cluster.execute(f"CREATE TABLE {database}.orders (id UInt64) ENGINE = MergeTree ORDER BY id", node=1)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    answer = preflight(capsys, database=database, status=1)
    assert failed(answer) == {
        "the table can be replaced": "TARGET_NOT_UNIFORM",
        "the evidence has a place that all workers share": "BAD_INPUT",
    }
    text = preflight(capsys, database=database, status=1, output="table")
    assert "127.0.0.1:" in text
    assert "FAIL  the table can be replaced" in text
    assert "A refresh would be refused: 2 checks failed." in text


def test_a_missing_database_is_found_on_every_replica(capsys: pytest.CaptureFixture[str]) -> None:
    init()
    answer = preflight(capsys, database="mart_nowhere", status=1)
    assert failed(answer) == {"the database exists": "UNSUPPORTED_DATABASE"}


def test_what_cannot_be_read_is_the_only_finding_about_the_cluster(
    capsys: pytest.CaptureFixture[str],
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    connect(monkeypatch, cluster, tmp_path, password="n0t-this")
    answer = preflight(capsys, database="mart", status=1)
    assert set(failed(answer)) == {"the cluster can be read", "the user has every grant"}
    assert "n0t-this" not in json.dumps(answer)


def test_a_table_that_another_operation_holds_names_it(
    capsys: pytest.CaptureFixture[str], cluster: LocalCluster, database: str
) -> None:
    init()
    refresh = ClusterRefresh(
        CONN_ID,
        CLUSTER_NAME,
        database,
        "orders",
        max_source_bytes=MiB,
        structure=TableStructure(columns={"id": "UInt64"}, order_by="id"),
    )
    source = SqlSource("SELECT number AS id FROM numbers(3)")
    StageOperator(task_id="stage", refresh=refresh, source=source).execute(context("held"))
    answer = preflight(capsys, database=database, status=1)
    assert failed(answer) == {"the table is free for the next refresh": "TARGET_BUSY"}
    (check,) = [check for check in answer["checks"] if not check["ok"]]
    assert check["stop"]["facts"]["run_id"] == "held"
    assert check["stop"]["facts"]["since"] > 0
