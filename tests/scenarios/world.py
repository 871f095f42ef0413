"""One scenario's world: a target on a real cluster, its workers, its readers, and all that they leave behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.receipt import (
    PublicationReceipt,
    SettledReceipt,
    StageReceipt,
    dump,
)
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.routes import cluster_refresh as route
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest, Waits
from airflow_provider_dpone.sources import Source
from tests.cluster import APP_PASSWORD, APP_USER, ClickHouseError, Fault, LocalCluster, wait_until
from tests.integration.independent_site import IndependentSite
from tests.integration.refresh_site import QUICK, RefreshSite
from tests.scenarios import checker
from tests.scenarios.history import Allowed, History, Reader, Snapshot, read_evidence, read_executions
from tests.scenarios.outcome import Outcome, Result
from tests.scenarios.worker import CONN_ID, Job, Worker

COLUMNS = "(id UInt64, name String)"
ENGINE = "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')"
SWAP = r"^\s*(EXCHANGE|RENAME)\b.* ON CLUSTER "
CAS = r"^\s*ALTER TABLE .*authority_v1.* UPDATE"
LOAD = r"^\s*INSERT INTO `mart\w+`\.`\w+__dpone_"
SOURCE = r"^\s*INSERT INTO .*__dpone_[\s\S]*\bnumbers\("
"""The load from the source."""
COPY = r"^\s*INSERT INTO .*__dpone_.* FORMAT Native"
"""The load of one independent replica, from the artifact."""
DROP = r"^\s*DROP TABLE"
QUEUE = r"distributed_ddl_queue"
PATIENT = replace(QUICK, ready=60, publish=60, cleanup=30)
"""A busy machine is no reason for another outcome."""


@dataclass
class World:
    """What a scenario acts on.

    :ivar step: what is being done, in words.
    :ivar generation: number of the generation that was staged last; its rows are all named ``g<number>``.
    :ivar staged: the receipt of the operation that is under way.
    :ivar entry: the queue entry that a scenario keeps in mind.
    :ivar results: how every task ended, in order.
    :ivar seen: the outcomes that the scenario was written for, in order.
    :ivar kept: what was measured, for the proof; most scenarios measure nothing.
    """

    site: RefreshSite
    step: str = ""
    generation: int = 0
    staged: StageReceipt | None = None
    entry: str = ""
    results: list[Result] = field(default_factory=list)
    seen: list[Outcome] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    allowed: Allowed = field(default_factory=Allowed)
    generations: dict[str, tuple[int, str]] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    readers: dict[int, Reader] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)

    # ---- what the scenarios ask for

    @property
    def cluster(self) -> LocalCluster:
        return self.site.cluster

    @property
    def independent(self) -> bool:
        """Whether every replica has a table of its own."""
        return not self.site.internal

    @property
    def receipt(self) -> StageReceipt:
        """The operation that is under way."""
        assert self.staged is not None, "nothing is staged"
        return self.staged

    @property
    def last(self) -> Result:
        """How the last task ended."""
        return self.results[-1]

    def new_generation(self, rows: int | None = None) -> str:
        """Begin a new generation; return the query that gives its rows."""
        self.generation += 1
        name = f"g{self.generation}"
        count = 100 + self.generation if rows is None else rows
        (found,) = self.cluster.query(
            f"SELECT toUInt32(count()) AS rows, toString(sum(cityHash64(number, '{name}'))) AS hash "
            f"FROM numbers({count})"
        )
        self.generations[name] = (found["rows"], found["hash"])
        return f"SELECT number AS id, '{name}' AS name FROM numbers({count})"

    def same_generation(self) -> str:
        """The query of the newest generation once more, for a retry."""
        rows, _ = self.generations[f"g{self.generation}"]
        return f"SELECT number AS id, 'g{self.generation}' AS name FROM numbers({rows})"

    def make_live(self) -> None:
        """Make and fill a table as somebody else would have: shared by all replicas, or one on each."""
        table, rows = f"{self.site.database}.{self.site.table}", self.new_generation()
        if not self.independent:
            self.cluster.execute(
                f"CREATE TABLE {table} ON CLUSTER analytics {COLUMNS} ENGINE = {ENGINE} ORDER BY id"
            )
            self.cluster.execute(
                f"INSERT INTO {table} {rows}", settings={"insert_quorum": len(self.cluster.nodes)}
            )
            return
        for node in self.cluster.nodes:
            self.cluster.execute(f"CREATE TABLE {table} {COLUMNS} ENGINE = MergeTree ORDER BY id", node=node)
            self.cluster.execute(f"INSERT INTO {table} {rows}", node=node)

    def run(self, task: str, work: Callable[[], Any]) -> Result:
        """Run a task in this process."""
        try:
            receipt = work()
        except Stopped as stopped:
            result = Result.stopped(task, stopped.stop)
        else:
            result = Result(task, _success(task, receipt), receipt=_json(receipt))
            if isinstance(receipt, StageReceipt):
                self.staged = receipt
        return self.note(result)

    def note(self, result: Result) -> Result:
        """Take down how a task ended, and what it left behind."""
        if result.outcome is Outcome.REFUSED and result.task == "publish":
            record, _, _ = self._row()
            if record is not None and record["phase"] == "ABORTED":
                result = replace(result, outcome=Outcome.ABORTED)
        self.results.append(result)
        self.look(result)
        return result

    def stage(
        self, source: Source | str | None = None, *, run: str | None = None, **arguments: Any
    ) -> Result:
        """Stage a new generation, or what is given."""
        wanted = self.new_generation() if source is None else source
        name = run or f"run{self.generation}"
        return self.run("stage", lambda: self.site.stage(wanted, run=name, **arguments))

    def publish(
        self, *, staged: StageReceipt | None = None, guards: Guards | None = None, **waits: float
    ) -> Result:
        """Publish what is staged."""
        receipt, patience = staged or self.receipt, replace(PATIENT, **waits)
        return self.run("publish", lambda: self.site.publish(receipt, guards, patience))

    def cleanup(self, **waits: float) -> Result:
        """Clean up after what was published."""
        receipt = self.receipt
        return self.run("cleanup", lambda: self.site.cleanup(receipt, replace(PATIENT, **waits)).receipt)

    def operate(self, command: str, **waits: float) -> Result:
        """Run an operator's command."""
        work = {"resolve": route.resolve, "abandon": route.abandon}[command]

        def run() -> Any:
            with self.site.worker("operator") as (ports, _):
                return work(ports, self.site.site, OperatorRequest("scenario"), replace(PATIENT, **waits))

        return self.run(command, run)

    def explain(self) -> Explanation:
        """What ``airflow dpone explain`` says.

        :raises Stopped: something can't be read.
        """
        with self.site.worker("explain") as (ports, server):
            queue = DdlQueue(server)
            return route.explain(ports.catalog, queue, ports.evidence, self.site.site, queue)

    def job(self, task: str, **more: Any) -> Job:
        """A task for a worker, on what is under way.

        :param more: of the job; and ``replicas``, another map of the direct connections than the right one.
        """
        host, port = self.site.endpoints[0]
        connection: dict[str, Any] = {
            "conn_type": "dpone_clickhouse",
            "host": host,
            "port": port,
            "login": APP_USER,
            "password": APP_PASSWORD,
        }
        places = {"EVIDENCE": self.site.folder}
        if isinstance(self.site, IndependentSite):
            replicas = more.pop("replicas", self.site.replicas)
            connection["extra"] = {
                "replicas": {alias: f"{at.host}:{at.port}" for alias, at in replicas.items()}
            }
            places["ARTIFACT"] = self.site.artifacts
        timeouts = {"ready": 60, "publish": 60, "cleanup": 30, **more.pop("timeouts", {})}
        environment = {
            f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(connection),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            **{f"AIRFLOW__DPONE__{name}_PATH": folder.as_uri() for name, folder in places.items()},
            "_AIRFLOW_PROCESS_CONTEXT": "",
            **{f"AIRFLOW__DPONE__{name.upper()}_TIMEOUT": str(value) for name, value in timeouts.items()},
            **more.pop("environment", {}),
        }
        fields: dict[str, Any] = {
            "task": task,
            "environment": environment,
            "cluster": self.site.cluster_name,
            "database": self.site.database,
            "table": self.site.table,
            "run": f"run{self.generation}",
            "mode": "external" if self.independent else "internal",
            "staged": None if task == "stage" else dump(self.receipt),
            "waits": {"poll_first": 0.05, "poll_last": 0.5},
        }
        return Job(**{**fields, **more})

    def work(self, job: Job) -> Worker:
        """Start a worker."""
        worker = self.stack.enter_context(Worker(job))
        self.workers.append(worker)
        return worker

    def finished(self, worker: Worker, seconds: float = 240.0) -> Result:
        """Wait for a worker's end, and take down how it ended."""
        result = worker.result(seconds)
        self.workers.remove(worker)
        if worker.job.task == "stage" and result.ok:
            from airflow_provider_dpone.publication.receipt import load_stage_receipt

            self.staged = load_stage_receipt(dict(result.receipt))
        return self.note(result)

    def allow(self, **changes: Any) -> None:
        """Remember what the scenario itself does to the cluster."""
        added: dict[str, Any] = {
            name: getattr(self.allowed, name) | frozenset(nodes) for name, nodes in changes.items()
        }
        self.allowed = replace(self.allowed, **added)

    def bound_entry(self) -> str:
        """The queue entry that the record names."""
        publication = self.site.record().record.publication
        assert publication is not None
        assert publication.entry is not None, "no entry is bound"
        return publication.entry

    def wait_finished(self, entry: str) -> None:
        """Wait until every replica has finished an entry."""
        wait_until(
            lambda: {r["status"] for r in self.cluster.queue_rows() if r["entry"] == entry} == {"Finished"}
        )

    # ---- what is looked at

    def _row(self) -> tuple[Mapping[str, Any] | None, str, int]:
        """The record as JSON, its write id, and how many rows the target has, past the product's own reading."""
        sql = (
            f"SELECT write_id, payload FROM {self.site.control.qualified} "
            f"WHERE JSONExtractString(payload, 'record', 'database') = '{self.site.database}' "
            f"AND JSONExtractString(payload, 'record', 'table') = '{self.site.table}'"
        )
        for node in self.cluster.nodes:
            try:
                rows = self.cluster.query(sql, node=node)
            except (ClickHouseError, ConnectionError, TimeoutError):
                continue
            if not rows:
                return None, "", 0
            return json.loads(rows[0]["payload"])["record"], rows[0]["write_id"], len(rows)
        return None, "", 0

    def look(self, result: Result | None = None) -> None:
        """Take down how the target stands."""
        record, write_id, keys = self._row()
        held, code = False, ""
        ways: tuple[str, ...] = ()
        if record is not None and record["phase"] in checker.HELD:
            try:
                told = self.explain()
            except Stopped as stopped:
                held, code = True, stopped.stop.code.value
            else:
                held, ways = told.held, tuple(way.value for way in told.ways)
                code = told.stop.code.value if told.stop else ""
                # Another worker may have gone on while explain was looking.
                record, write_id, keys = self._row()
        self.snapshots.append(
            Snapshot(
                step=f"{self.step} ({result.task})" if result else self.step,
                tables={node: self._on_node(node, self._tables) for node in self.cluster.nodes},
                digests={node: self._on_node(node, self._digest) for node in self.cluster.nodes},
                record=record,
                write_id=write_id,
                keys=keys,
                held=held,
                code=code,
                ways=ways,
                result=result,
                at_work=bool(self.workers),
            )
        )

    def _on_node(self, node: int, read: Callable[[int], Any]) -> Any:
        try:
            return read(node)
        except (ConnectionError, TimeoutError):
            return None

    def _tables(self, node: int) -> dict[str, str]:
        sql = (
            f"SELECT name, toString(uuid) AS uuid FROM system.tables WHERE database = '{self.site.database}'"
        )
        return {row["name"]: row["uuid"] for row in self.cluster.query(sql, node=node)}

    def _digest(self, node: int) -> tuple[int, str] | None:
        sql = (
            "SELECT toUInt32(count()) AS rows, toString(sum(cityHash64(id, name))) AS hash "
            f"FROM {self.site.database}.{self.site.table}"
        )
        try:
            (row,) = self.cluster.query(sql, node=node)
        except ClickHouseError:
            return None
        return row["rows"], row["hash"]

    def history(self) -> History:
        """All that happened, once every node is back."""
        database = self.site.database
        return History(
            database=database,
            table=self.site.table,
            nodes=tuple(self.cluster.nodes),
            generations=dict(self.generations),
            statements=[s for s in self.site.sent("") if s.user == APP_USER],
            queue=[row for row in self.cluster.queue_rows() if database in row["query"]],
            executions=[
                run for node in self.cluster.nodes for run in read_executions(self.cluster, node, database)
            ],
            evidence=read_evidence(self.site.folder),
            snapshots=list(self.snapshots),
            readers={node: list(reader.seen) for node, reader in self.readers.items()},
            allowed=self.allowed,
            independent=self.independent,
        )


@contextmanager
def a_world(
    cluster: LocalCluster, database: str, folder: Path, *, balanced: bool = False, independent: bool = False
) -> Iterator[World]:
    """A new world with a reader on each node; its workers end with it.

    :param independent: every replica has a table of its own.
    """
    endpoint = cluster.load_balancer if balanced else cluster.endpoints[0]
    kind = IndependentSite if independent else RefreshSite
    world = World(kind(cluster, database, folder, (endpoint,), waits=PATIENT))
    with world.stack as stack:
        for node in cluster.nodes:
            reader = Reader(cluster, node, database, world.site.table)
            world.readers[node] = stack.enter_context(reader)
        yield world


def violations(world: World) -> list[str]:
    """What the checker says about all that happened."""
    return checker.check(world.history())


def together(work: list[Callable[[], Any]]) -> None:
    """Run all at the same time, and wait for all."""
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


def _success(task: str, receipt: Any) -> Outcome:
    match task, receipt:
        case "stage", _:
            return Outcome.STAGED
        case "publish", PublicationReceipt(replayed=False):
            return Outcome.COMMITTED
        case "publish", PublicationReceipt() | SettledReceipt():
            return Outcome.REPLAYED
        case "cleanup", _:
            return Outcome.CLEANED
        case _:
            return Outcome.RESOLVED


def _json(receipt: Any) -> Mapping[str, Any]:
    if isinstance(receipt, StageReceipt | PublicationReceipt | SettledReceipt):
        return dump(receipt)
    return asdict(receipt)


__all__ = [
    "CAS",
    "COLUMNS",
    "COPY",
    "DROP",
    "ENGINE",
    "LOAD",
    "QUEUE",
    "SOURCE",
    "SWAP",
    "Waits",
    "World",
    "a_world",
    "together",
    "violations",
]
