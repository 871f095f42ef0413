"""A user with exactly the documented grants runs everything; one grant less is named before anything is changed.

What is the server's own here, and what the test cluster emulates:

* Which grants a user has, ``CHECK GRANT``, and every refusal of a statement on one server are the server's own.
* That ``ON CLUSTER`` statements ask for ``CLUSTER`` and for the grants of what they do, and that the queue's table asks
  for ``SELECT``, is the emulated initiator's and gateway's (`EMULATED`).
* ``KILL QUERY ON CLUSTER`` is not emulated. That it asks for ``KILL QUERY`` is taken from ClickHouse's source; a user
  may kill its own query on one server without it.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_dpone import ClusterRefresh, FileSource, MiB, SqlSource, TableStructure, composition
from airflow_provider_dpone.cli import commands
from airflow_provider_dpone.clickhouse.grants import READ_ON_FILE, RequiredGrant, required_grants, statements
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator
from airflow_provider_dpone.publication.watch import load_watch
from airflow_provider_dpone.routes.ports import Target
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.cluster.client import ClickHouseError
from tests.cluster.spec import User
from tests.integration.task_site import CONN_ID, connect, context

pytestmark = pytest.mark.cluster

DATABASE = "mart"
TABLE = "orders"
TARGET = Target(CLUSTER_NAME, DATABASE, TABLE)
REQUIRED = required_grants(TARGET)
PASSWORD = "p"
WATCH = Path(__file__).parents[1] / "golden" / "triggers" / "v1-bound.json"
READS = {"SELECT", "WITH", "SHOW", "CHECK", "DESCRIBE", "EXISTS"}
ACCESS_DENIED = 497

IMPLIED = "CREATE TEMPORARY TABLE ON *.*"
"""Can't be taken away here: CREATE TABLE brings it along."""

SWAP = f"EXCHANGE TABLES {DATABASE}.a AND {DATABASE}.b ON CLUSTER {CLUSTER_NAME}"
NEEDED_FOR: dict[str, str] = {
    "REMOTE ON *.*": f"SELECT 1 FROM clusterAllReplicas({CLUSTER_NAME}, system.one)",
    "SELECT ON `system`.`clusters`": "SELECT 1 FROM system.clusters",
    "SELECT ON `system`.`replicas`": "SELECT 1 FROM system.replicas",
    "SELECT ON `system`.`processes`": "SELECT 1 FROM system.processes",
    "SELECT ON `dpone`.`authority_v1`": "SELECT payload FROM dpone.authority_v1",
    "INSERT ON `dpone`.`authority_v1`": "INSERT INTO dpone.authority_v1 (target_key) VALUES ('x')",
    "ALTER UPDATE ON `dpone`.`authority_v1`": (
        "ALTER TABLE dpone.authority_v1 UPDATE phase = '' WHERE target_key = 'x'"
    ),
    f"SELECT ON `{DATABASE}`.*": f"SELECT id FROM {DATABASE}.{TABLE}",
    f"INSERT ON `{DATABASE}`.*": f"INSERT INTO {DATABASE}.{TABLE} VALUES (1, '')",
    f"CREATE TABLE ON `{DATABASE}`.*": f"CREATE TABLE {DATABASE}.x (id UInt64) ENGINE = Memory",
    f"DROP TABLE ON `{DATABASE}`.*": f"DROP TABLE {DATABASE}.spare",
    "TABLE ENGINE ON ReplicatedMergeTree": (
        f"CREATE TABLE {DATABASE}.x (id UInt64) ENGINE = ReplicatedMergeTree('/x/{{uuid}}', 'r') ORDER BY id"
    ),
}
"""Grant -> a statement of the kind that the provider sends, which the server itself refuses without it."""

EMULATED: dict[str, str] = {
    "CLUSTER ON *.*": SWAP,
    "SELECT ON `system`.`distributed_ddl_queue`": "SELECT 1 FROM system.distributed_ddl_queue",
    f"SELECT ON `{DATABASE}`.*": SWAP,
    f"INSERT ON `{DATABASE}`.*": SWAP,
    f"CREATE TABLE ON `{DATABASE}`.*": SWAP,
    f"DROP TABLE ON `{DATABASE}`.*": SWAP,
}
"""The same, where the refusal is emulated."""

NOT_EMULATED = "KILL QUERY ON *.*"


def user(name: str, grants: Sequence[RequiredGrant]) -> User:
    """A user with these grants. In a configuration file the statements don't name the grantee."""
    texts = tuple(text.partition(" TO ")[0] for text in statements(grants, name))
    return User(name, grants=texts, password=PASSWORD)


def name_of(index: int) -> str:
    return f"without_{index}"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster whose control table exists, with a user for each set of grants."""
    users = [
        user("exact", [*REQUIRED, READ_ON_FILE]),
        user("queries", REQUIRED),
        *(user(name_of(n), [g for g in REQUIRED if g is not lacking]) for n, lacking in enumerate(REQUIRED)),
    ]
    with LocalCluster(users=users) as running, pytest.MonkeyPatch.context() as patch:
        connect(patch, running, tmp_path_factory.mktemp("init"), user="default", password="")
        initialise(DponeClickHouseHook(CONN_ID).get_conn(), CLUSTER_NAME)
        running.execute(f"CREATE DATABASE {DATABASE} ON CLUSTER {CLUSTER_NAME}")
        running.execute(f"CREATE TABLE {DATABASE}.spare (id UInt64) ENGINE = Memory")
        yield running


class Tasks:
    """The operators and commands, as one user."""

    def __init__(self, cluster: LocalCluster, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.folder = folder
        self.patch = patch

    def as_user(self, name: str) -> None:
        connect(self.patch, self.cluster, self.folder, user=name, password=PASSWORD)

    def refresh(self, table: str = TABLE) -> ClusterRefresh:
        return ClusterRefresh(
            CONN_ID,
            CLUSTER_NAME,
            DATABASE,
            table,
            max_source_bytes=MiB,
            structure=TableStructure(columns={"id": "UInt64", "name": "String"}, order_by="id"),
        )

    def stage(self, run_id: str, rows: int = 1, *, table: str = TABLE, from_file: bool = False) -> Any:
        source: Any = SqlSource(f"SELECT number AS id, 'x' AS name FROM numbers({rows})")
        if from_file:
            path = self.folder / f"{run_id}.csv"
            path.write_text("id,name\n" + "".join(f"{n},x\n" for n in range(rows)))
            source = FileSource(str(path))
        return StageOperator(task_id="stage", refresh=self.refresh(table), source=source).execute(
            context(run_id)
        )

    def refused(self, run_id: str, **arguments: Any) -> str:
        """What a stage task says that is not let in."""
        with pytest.raises(AirflowFailException, match="MISSING_GRANT") as caught:
            self.stage(run_id, **arguments)
        return str(caught.value)

    def cycle(self, run_id: str, rows: int, *, from_file: bool = False) -> Any:
        """Stage, publish and clean up; returns the publication receipt."""
        staged = self.stage(run_id, rows, from_file=from_file)
        done = PublishOperator(task_id="publish", refresh=self.refresh(), staged=staged).execute(
            context(run_id, task_id="publish")
        )
        cleaned = CleanupOperator(task_id="cleanup", refresh=self.refresh(), staged=staged).execute(
            context(run_id, task_id="cleanup")
        )
        assert cleaned["state"] == "COMPLETED"
        return done

    def live_rows(self) -> list[int]:
        sql = f"SELECT count() FROM {DATABASE}.{TABLE}"
        return [self.cluster.scalar(sql, node=node) for node in self.cluster.nodes]

    def preflight(self, capsys: pytest.CaptureFixture[str], *, source: str = "query") -> list[str]:
        """Which grants the command says are missing."""
        capsys.readouterr()
        arguments = {"cluster": CLUSTER_NAME, "database": DATABASE, "table": TABLE, "source": source}
        with suppress(SystemExit):
            commands.preflight(
                Namespace(conn_id=CONN_ID, replication_mode="internal", output="json", **arguments)
            )
        answer = json.loads(capsys.readouterr().out)
        (check,) = [check for check in answer["checks"] if check["name"] == "the user has every grant"]
        assert check["ok"] or (check["stop"]["code"].endswith("MISSING_GRANT") and not answer["ok"])
        return [] if check["ok"] else check["stop"]["facts"]["missing"]

    def refusals(self, since: int) -> list[str]:
        """Statements that the server refused for want of a grant."""
        return [s.text for s in self.cluster.statements(since=since) if s.code == ACCESS_DENIED]

    def changes(self, since: int) -> list[str]:
        """Statements that are no reads."""
        return [s.text for s in self.cluster.statements(since=since) if s.kind not in READS]


@pytest.fixture
def tasks(strict: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    return Tasks(strict, tmp_path, monkeypatch)


@pytest.fixture
def published(tasks: Tasks) -> Tasks:
    """The table exists, with one row."""
    tasks.as_user("exact")
    if not tasks.cluster.query(f"EXISTS TABLE {DATABASE}.{TABLE}")[0]["result"]:
        tasks.cycle("first", 1)
    return tasks


def test_the_documented_grants_are_enough_for_everything(
    tasks: Tasks, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks.as_user("exact")
    since = tasks.cluster.last_statement()
    assert tasks.preflight(capsys) == []
    created = tasks.cycle("creates", 3, from_file=True)
    replaced = tasks.cycle("replaces", 5)
    assert (created["statement"], replaced["statement"]) == ("RENAME", "EXCHANGE")
    assert tasks.live_rows() == [5, 5]
    assert tasks.preflight(capsys, source="file") == []

    # What a triggerer reads, and what the commands for operators read.
    body = {**json.loads(WATCH.read_text())["kwargs"]["watch"], "cluster": CLUSTER_NAME, "conn_id": CONN_ID}
    watch = load_watch(body)
    assert watch is not None
    assert watch.queue_tells
    assert set(composition.look(BaseHook.get_connection(CONN_ID), {watch})) == {watch}
    with composition.server(CONN_ID) as server:
        assert composition.explain(server, TARGET).stop is None
        assert len(composition.status(server, CLUSTER_NAME)) == 1
    assert {s.user for s in tasks.cluster.statements(since=since)} == {"exact"}
    assert tasks.refusals(since) == []


def test_a_query_into_a_table_that_exists_needs_no_grant_on_files(
    published: Tasks, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = published
    tasks.as_user("queries")
    since = tasks.cluster.last_statement()
    assert tasks.preflight(capsys) == []
    tasks.cycle("query", 6)
    assert tasks.live_rows() == [6, 6]
    assert tasks.refusals(since) == []


def test_a_file_and_a_new_table_need_the_grant_on_files(
    published: Tasks, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = published
    tasks.as_user("queries")
    since = tasks.cluster.last_statement()
    assert tasks.preflight(capsys, source="file") == [str(READ_ON_FILE)]
    for said in (tasks.refused("file", from_file=True), tasks.refused("new", table="another")):
        assert "READ ON FILE" in said
        assert "GRANT READ ON FILE TO `queries`" in said
    assert tasks.changes(since) == []


@pytest.mark.parametrize("index", range(len(REQUIRED)), ids=[str(grant) for grant in REQUIRED])
def test_one_grant_less_is_named_and_nothing_is_changed(
    published: Tasks, capsys: pytest.CaptureFixture[str], index: int
) -> None:
    tasks, grant = published, str(REQUIRED[index])
    tasks.as_user(name_of(index))
    since = tasks.cluster.last_statement()
    if grant == IMPLIED:
        assert tasks.preflight(capsys) == []
        return
    assert tasks.preflight(capsys) == [grant]
    assert grant in tasks.refused(f"lacks-{index}")
    assert tasks.changes(since) == []


@pytest.mark.parametrize(
    ("index", "sql"),
    [
        pytest.param(index, needed[str(grant)], id=f"{grant}{note}")
        for needed, note in ((NEEDED_FOR, ""), (EMULATED, " (emulated)"))
        for index, grant in enumerate(REQUIRED)
        if str(grant) in needed
    ],
)
def test_none_of_them_is_superfluous(published: Tasks, index: int, sql: str) -> None:
    assert code(published.cluster, sql, name_of(index)) == ACCESS_DENIED


def test_a_swap_asks_for_no_more_than_these(strict: LocalCluster) -> None:
    assert code(strict, SWAP, "exact") not in (0, ACCESS_DENIED)  # the tables are not there


def test_every_grant_is_looked_at() -> None:
    assert {str(g) for g in REQUIRED} == {*NEEDED_FOR, *EMULATED, IMPLIED, NOT_EMULATED}


def code(cluster: LocalCluster, sql: str, name: str) -> int:
    """The error code of a statement; 0 for success."""
    try:
        cluster.execute(sql, user=name, password=PASSWORD)
    except ClickHouseError as error:
        return error.code
    return 0
