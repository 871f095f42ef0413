"""Planted secrets, hosts, SQL text and row values are looked for wherever the provider writes."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_dpone import ClusterRefresh, FileSource, MiB, SqlSource, TableStructure
from airflow_provider_dpone.cli import evidence as evidence_cli
from airflow_provider_dpone.cli import holds
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.clickhouse.staging import ClusterStaging
from airflow_provider_dpone.evidence.reader import EvidenceReader
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator
from airflow_provider_dpone.operators.base import RefreshOperator
from airflow_provider_dpone.publication.trail import KINDS
from tests.cluster import APP_PASSWORD, CLUSTER_NAME, LocalCluster
from tests.cluster.spec import LOCALHOST
from tests.integration.task_site import CONN_ID, connect, context
from tests.unit.test_evidence_reader import arguments

pytestmark = pytest.mark.cluster

LITERAL = "l1teral-in-the-sql"
ROW = "v4lue-of-a-row"
WRONG_PASSWORD = "p4ssword-planted"
ELSEWHERE = "h0st-planted.invalid"
FOREIGN = "t3xt-of-a-foreign-error"
FILE = "n4me-of-a-file"
PLANTED = (
    APP_PASSWORD,
    WRONG_PASSWORD,
    LITERAL,
    ROW,
    ELSEWHERE,
    LOCALHOST,
    "localhost",
    FOREIGN,
    "SELECT number",
)

LIBRARIES = {"urllib3.connectionpool": {LOCALHOST, ELSEWHERE}, "fsspec.local": {FILE}}

ROWS = SqlSource(f"SELECT number AS id, '{ROW}' AS name FROM numbers(5) WHERE name != '{LITERAL}'")


@dataclass
class Site:
    """A refreshed table, and everything that was said about it.

    :ivar said: name of the place and text.
    """

    cluster: LocalCluster
    database: str
    folder: Path
    said: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def refresh(self, table: str = "orders", **changes: Any) -> ClusterRefresh:
        given: dict[str, Any] = {
            "max_source_bytes": MiB,
            "structure": TableStructure(columns={"id": "UInt64", "name": "String"}, order_by="id"),
        }
        return ClusterRefresh(CONN_ID, CLUSTER_NAME, self.database, table, **(given | changes))

    def stage(self, run: str, source: Any = ROWS, *, table: str = "orders", **changes: Any) -> Any:
        operator = StageOperator(task_id="stage", refresh=self.refresh(table, **changes), source=source)
        return self._kept(f"stage {run}", operator.execute(context(run)))

    def publish(self, run: str, staged: Any, *, table: str = "orders", **more: Any) -> Any:
        operator = PublishOperator(task_id="publish", refresh=self.refresh(table), staged=staged, **more)
        return self._kept(f"publish {run}", operator.execute(context(run, task_id="publish")))

    def cleanup(self, run: str, staged: Any) -> Any:
        operator = CleanupOperator(task_id="cleanup", refresh=self.refresh(), staged=staged)
        return self._kept(f"cleanup {run}", operator.execute(context(run, task_id="cleanup")))

    def fails(self, code: str, work: Callable[[], Any]) -> None:
        """Expect a failure, and keep all of it that a task log or a person would see."""
        with pytest.raises((AirflowException, SystemExit)) as caught:
            work()
        text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert code in text, text
        self.errors.append(code)
        self.said.append((f"error {code}", text))

    def _kept(self, what: str, answer: Any) -> Any:
        self.said.append((f"XCom of {what}", json.dumps(answer)))
        return answer


def breaks(*_: object, **__: object) -> None:
    """Code that fails with a text of its own."""
    raise RuntimeError(FOREIGN)


@pytest.fixture
def site(
    monkeypatch: pytest.MonkeyPatch,
    cluster: LocalCluster,
    database: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> Site:
    connect(monkeypatch, cluster, tmp_path)
    initialise(DponeClickHouseHook(CONN_ID).get_conn(), CLUSTER_NAME)
    caplog.set_level(logging.DEBUG)
    found = Site(cluster, database, tmp_path / "evidence")
    monkeypatch.setattr(RefreshOperator, "_say", lambda _, message: found.said.append(("task log", message)))
    return found


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_what_was_planted_is_nowhere_to_be_found(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = site.cluster
    since = cluster.last_statement()

    # Success.
    staged = site.stage("good")
    site.publish("good", staged)
    site.cleanup("good", staged)

    # Sources: a value that the server can't cast, a value that doesn't fit, a source that isn't there, code that fails.
    bad_cast = SqlSource(f"SELECT number AS id, toString(toUInt8('{ROW}')) AS name FROM numbers(3)")
    site.fails("SOURCE_FAILED", lambda: site.stage("cast", bad_cast))
    csv = tmp_path / f"{FILE}.csv"
    csv.write_text(f"id,name\n{ROW},x\n")
    site.fails("VALUE_REFUSED", lambda: site.stage("value", FileSource(str(csv))))
    site.fails("SOURCE_FAILED", lambda: site.stage("file", FileSource(str(tmp_path / f"{FILE}-2.csv"))))
    with monkeypatch.context() as patched:
        patched.setattr(ClusterStaging, "plan", breaks)
        site.fails("RuntimeError", lambda: site.stage("code"))
    wide = SqlSource(f"SELECT number AS id, '{ROW}' AS name, '{LITERAL}' AS more FROM numbers(2)")
    site.fails("SCHEMA_MISMATCH", lambda: site.stage("wide", wide))

    # Guards, and a publication that another one waits for.
    staged = site.stage("second")
    site.fails("GUARD_MIN_ROWS", lambda: site.publish("second", staged, min_rows=99))
    cluster.drop_response(None, r"^\s*ALTER TABLE.*DISPATCHING")
    site.fails("CAS_OUTCOME_UNKNOWN", lambda: site.publish("second", staged))
    cluster.clear_faults()
    cluster.drop_response(None, r"^\s*EXCHANGE")
    cluster.pause_worker(2)
    site.fails("IN_PROGRESS", lambda: site.publish("second", staged, publish_timeout=seconds(1)))
    site.fails("TARGET_BUSY", lambda: site.stage("busy"))
    cluster.clear_faults()
    cluster.resume_worker(2)
    site.publish("second", staged)

    # A swap that the server refuses before it is queued, with the statement in the server's own text.
    staged = site.stage("refused")
    cluster.answer_error(None, r"^\s*EXCHANGE", code=497)
    site.fails("STATEMENT_REFUSED", lambda: site.publish("refused", staged))
    cluster.clear_faults()

    # A swap that fails everywhere, what an operator is told of it, and what the operator ends.
    for node in cluster.nodes:
        cluster.fail_execution(node, r"EXCHANGE")
    site.fails("FAILED_EVERYWHERE", lambda: site.publish("refused", staged, publish_timeout=seconds(10)))
    cluster.clear_faults()
    target = {"database": site.database, "table": "orders", "conn_id": CONN_ID}
    with pytest.raises(SystemExit):
        holds.explain(arguments("json", **{**target, "cluster": CLUSTER_NAME}))
    holds.resolve(
        arguments("json", **{**target, "cluster": CLUSTER_NAME, "reason": "test", "operation": None})
    )
    evidence_cli.show(arguments("json", cluster=CLUSTER_NAME, operation=staged["operation_id"]))

    # Connections: another password, and a host that doesn't exist.
    connect(monkeypatch, cluster, tmp_path, password=WRONG_PASSWORD)
    site.fails("AUTHENTICATION_FAILED", lambda: site.stage("password"))
    elsewhere = {
        "conn_type": "dpone_clickhouse",
        "host": ELSEWHERE,
        "port": 8123,
        "login": "dpone_app",
        "password": WRONG_PASSWORD,
    }
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(elsewhere))
    site.fails("SERVER_UNAVAILABLE", lambda: site.stage("host"))
    # What is explained from the evidence alone.
    for output in ("json", "table"):
        with pytest.raises(SystemExit):
            holds.explain(arguments(output, **{**target, "cluster": CLUSTER_NAME}))

    # Evidence that can't be written.
    connect(monkeypatch, cluster, tmp_path)
    monkeypatch.setenv("AIRFLOW__DPONE__EVIDENCE_PATH", csv.as_uri())
    site.fails("EVIDENCE_UNAVAILABLE", lambda: site.stage("evidence"))

    printed = capsys.readouterr()
    texts = [
        *site.said,
        *((f"logger {r.name}", r.getMessage()) for r in caplog.records if r.name not in LIBRARIES),
        ("standard output", printed.out),
        ("standard error", printed.err),
        *((str(file.name), file.read_text()) for file in site.folder.rglob("*") if file.is_file()),
        *(("name in the evidence", file.name) for file in site.folder.rglob("*")),
        *(("record", json.dumps(row)) for row in cluster.query("SELECT * FROM dpone.authority_v1")),
    ]

    # What was planted was really there to be leaked, and what is searched is really there.
    sent = json.dumps([statement.text for statement in cluster.statements(since=since)])
    for secret in (ROW, LITERAL, "SELECT number"):
        assert secret in sent
    assert cluster.scalar(f"SELECT any(name) FROM {site.database}.orders") == ROW
    assert len(site.errors) == 14
    written = {file.name.partition(".")[0] for file in site.folder.rglob("*.json")}
    assert written >= set(KINDS) - {"pruned"}
    assert any(site.database in text for place, text in texts if place == "record")
    assert any("rows loaded" in text for place, text in texts if place == "task log")

    # At level DEBUG libraries name what they open themselves, a server or a file, and nothing else.
    for record in caplog.records:
        if record.name in LIBRARIES:
            rest = set(PLANTED) - LIBRARIES[record.name]
            assert [secret for secret in rest if secret in record.getMessage()] == []

    found = [(place, secret) for place, text in texts for secret in PLANTED if secret in text]
    assert found == []


def test_a_trail_on_a_real_cluster_is_whole_and_in_order(site: Site) -> None:
    from airflow.sdk import ObjectStoragePath

    staged = site.stage("good")
    site.publish("good", staged)
    staged = site.stage("again")
    site.publish("again", staged)
    site.cleanup("again", staged)
    reader = EvidenceReader(ObjectStoragePath(site.folder.as_uri()), CLUSTER_NAME)
    listed = reader.operations(limit=10, target=(site.database, "orders"))
    assert [one.state for one in listed] == ["COMPLETED", "COMPLETED"]
    assert listed[0].operation_id == staged["operation_id"]
    trail = reader.trail(listed[0].operation_id)
    assert trail.unknown == ()
    story = [entry.body.mark.word for entry in trail.entries]
    for earlier, later in (
        ("admitted", "create"),
        ("create", "ready"),
        ("ready", "to-PREPARED"),
        ("stored-PREPARED", "DISPATCHABLE"),
        ("DISPATCHABLE", "to-DISPATCHING"),
        ("to-DISPATCHING", "EXCHANGE-answered"),
        ("EXCHANGE-answered", "stored-DISPATCHING"),
        ("to-COMMITTED", "stored-COMMITTED"),
        ("free", "drop"),
        ("drop", "DROP-answered"),
        ("DROP-answered", "gone"),
        ("gone", "stored-COMPLETED"),
    ):
        assert story.index(earlier) < story.index(later), story
    proof = [e.body for e in trail.entries if e.body.mark.word == "COMMITTED"]
    assert [body.kind for body in proof] == ["classification", "receipt", "receipt"]
    assert story.index("COMMITTED") < story.index("to-COMMITTED")
