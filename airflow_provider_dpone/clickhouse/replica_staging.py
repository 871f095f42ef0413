"""Staging of independent tables: one private table on one replica, a sealed artifact, and a load for each replica.

Every statement that changes something goes to exactly one replica, over a connection that is proven to lead there,
and is sent once. What became of it is never guessed: the protocol looks at the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Final

from airflow_provider_dpone.clickhouse.canonical_digest import (
    FUNCTIONS_SELECT,
    canonical_digest_select,
    deterministic_functions,
    digest_settings,
    outside_profile,
    varying_columns,
)
from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.create_table import TableMark, build_candidate
from airflow_provider_dpone.clickhouse.errors import (
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stop_with,
    stopped,
    summary,
)
from airflow_provider_dpone.clickhouse.grants import Grants
from airflow_provider_dpone.clickhouse.load import Limits, Loader
from airflow_provider_dpone.clickhouse.progress import BROKEN, RunningQueries, in_words
from airflow_provider_dpone.clickhouse.replica_connections import ReplicaConnections
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.source_access import SourceAccess
from airflow_provider_dpone.clickhouse.sql import identifier, qualified
from airflow_provider_dpone.clickhouse.staging_plan import Planned, Planner, check_created, planned_of
from airflow_provider_dpone.clickhouse.table_definition import INDEPENDENT_ENGINE
from airflow_provider_dpone.publication.artifact import Artifact, ArtifactTooLarge
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.record import ReplicaStage
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import ArtifactStore, Loaded, Log, StagePlan, Target
from airflow_provider_dpone.sources import Source, SourceColumn, StreamLoad
from airflow_provider_dpone.values import ClusterRefresh

MOST_AT_ONCE: Final = 8
"""How many replicas are loaded at the same time."""

END_SECONDS: Final = 30.0
"""How long an interrupted staging waits for its replicas' tasks to end."""

_ASK_SECONDS: Final = 60.0
_DROP_SECONDS: Final = 30.0
_RENAME_SECONDS: Final = 60.0

_EXACT_NATIVE: Final[Mapping[str, str]] = {
    # The artifact has the table's own types: where one is another, the load must fail and not convert.
    "input_format_native_allow_types_conversion": "0",
}


class ClusterReplicaStaging:
    """Stages the independent replicas of one stage task. Implements ``routes.ports.ReplicaStaging``."""

    def __init__(
        self,
        server: Server,
        target: Target,
        refresh: ClusterRefresh,
        source: Source,
        log: Log,
        connections: Callable[[Inventory], ReplicaConnections],
        artifacts: Callable[[str], ArtifactStore],
        *,
        control: ControlTable | None = None,
        limits: Limits | None = None,
        running: RunningQueries | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        :param log: what a human follows: one line per event.
        :param connections: makes the connections of admitted replicas.
        :param artifacts: the artifacts of a target, by its key.
        :param control: the control table, for the grants that are needed on it.
        :param running: where long queries are found by whoever stops the task; when it is cancelled, they are killed.
        """
        self._server = server
        self._target = target
        self._refresh = refresh
        self._log = log
        self._connect = connections
        self._artifacts = artifacts
        self._limits = limits or Limits()
        self._running = running = running or RunningQueries()
        self._connections: ReplicaConnections | None = None
        self._servers: Mapping[str, Server] = {}
        self._planned: Planned | None = None
        access = SourceAccess(source, running.cancelled)
        grants = self._grants = Grants(server, target, control or ControlTable(), independent=True)
        self._planner = Planner(server, target, refresh, access, log, grants, engine=INDEPENDENT_ENGINE)
        self._loader = Loader(target, refresh, access, log, self._limits, running)

    @property
    def query_id(self) -> str | None:
        """The id of the newest load's query, once there is one."""
        return self._loader.query_id

    def quoted(self, name: str) -> str:
        """Return the target's database and ``name``, quoted for SQL."""
        return qualified(self._target.database, name)

    def cancel(self) -> bool | None:
        """Stop: kill what runs by its id now, and let nothing begin. May be called by a signal handler.

        :returns: whether a server took each kill up; ``None``: nothing was running.
        """
        return self._running.cancel()

    def close(self) -> None:
        """Close idle connections."""
        if self._connections is not None:
            self._connections.close()

    # ---- plan

    def plan(self, observation: Observation) -> StagePlan:
        """Fix structure, mapping and grants, and prove each direct connection; see the port.

        :raises Stopped: also ``TYPE_NOT_EXACT`` (a type without a canonical content), ``STRUCTURE_REFUSED`` (a
            column that every replica computes for itself, and maybe differently), ``REPLICA_CONNECTION_WRONG``.
        """
        plan = self._planner.plan(observation)
        planned = planned_of(plan)
        self._require_comparable(planned)
        try:
            self._connections = self._connect(observation.inventory)
        except ValueError as error:
            raise stop_with(Code.BAD_INPUT, f"{error}.") from None
        self._servers = self._connections.prove(observation)
        if stop := self._grants.check_directly(self._servers):
            raise Stopped(stop)
        first = observation.inventory.aliases[0]
        self._planner.require_source(plan, first, self._servers[first])
        self._planned = planned
        return plan

    def _require_comparable(self, planned: Planned) -> None:
        definition = planned.definition
        if outside := outside_profile(definition.columns):
            named = ", ".join(f"{identifier(column.name)}: {column.type}" for column in outside)
            raise stop_with(
                Code.TYPE_NOT_EXACT,
                f"{self._target}: there is no canonical content of {named}, so independent tables can't be proven "
                "equal.",
                facts={"columns": [column.name for column in outside]},
            )
        if not any(column.default_kind == "MATERIALIZED" for column in definition.columns):
            return
        try:
            reply = self._server.read(FUNCTIONS_SELECT, timeout=_ASK_SECONDS)
        except BROKEN as error:
            raise stopped(error, "Reading which functions are deterministic") from None
        if varying := varying_columns(definition, deterministic_functions(reply.columns, reply.rows)):
            named = ", ".join(map(identifier, varying))
            raise stop_with(
                Code.STRUCTURE_REFUSED,
                f"{self._target}: every replica computes {named} for itself, and it is not known to be the same "
                "everywhere. Make it a DEFAULT column: then its value is computed once and carried to all.",
                facts={"columns": list(varying)},
            )

    # ---- tables

    def create(self, plan: StagePlan, stage: ReplicaStage, *, authority_id: str, operation_id: str) -> None:
        """Create the attempt's table on its replica; see the port."""
        self._go_on()
        statement = build_candidate(
            planned_of(plan).definition,
            database=self._target.database,
            name=stage.name,
            uuid=stage.uuid,
            cluster=None,
            mark=TableMark(authority_id, operation_id, stage.attempt_id),
        )
        try:
            self._servers[stage.alias].once(
                statement,
                settings={"log_comment": f"dpone1s:{operation_id[:16]}:create:{stage.attempt_id}"},
                timeout=self._limits.create,
            )
        except ConnectFailed as error:
            raise stop_with(
                Code.STAGING_FAILED, f"Creating a table on {stage.alias} failed: {summary(error)}."
            ) from None
        except ServerError as error:
            if error.code == ErrorCode.ACCESS_DENIED:
                raise stopped(error, f"Creating a table on {stage.alias}") from None
            raise stop_with(
                Code.STAGING_FAILED,
                f"Creating a table on {stage.alias} failed: {summary(error)}.",
                facts={"exception_code": error.code, "exception_name": error.name},
            ) from None
        except ReplyLost as error:
            raise stop_with(
                Code.STAGING_UNKNOWN,
                f"Creating a table on {stage.alias} was not answered ({summary(error)}); it may still be created.",
                facts={"replica": stage.alias},
            ) from None

    def check_created(
        self, plan: StagePlan, stage: ReplicaStage, name: str, observation: Observation
    ) -> None:
        """Compare the attempt's table with the plan; see the port."""
        check_created(planned_of(plan), name, {stage.alias: stage.uuid}, observation)

    def promote(self, stage: ReplicaStage, candidate: str) -> None:
        """Give the attempt's table the candidate's name; see the port."""
        self._go_on()
        try:
            self._servers[stage.alias].once(
                f"RENAME TABLE {self.quoted(stage.name)} TO {self.quoted(candidate)}",
                settings={"log_comment": f"dpone1s:promote:{stage.attempt_id}"},
                timeout=_RENAME_SECONDS,
            )
        except ReplyLost:
            self._log(f"{self._target}: the rename on {stage.alias} was not answered; the tables tell.")
        except ServerError as error:
            # An earlier send of the same rename may have been first.
            if error.code not in (ErrorCode.UNKNOWN_TABLE, ErrorCode.TABLE_ALREADY_EXISTS):
                raise stopped(error, f"Renaming a table on {stage.alias}") from None
        except ConnectFailed as error:
            raise stopped(error, f"Renaming a table on {stage.alias}") from None

    def drop(self, stage: ReplicaStage) -> None:
        """Drop the attempt's private table; see the port.

        :raises ValueError: the name is not the attempt's own.
        """
        if stage.attempt_id not in stage.name:
            raise ValueError("only a table of this very attempt may be dropped")
        try:
            self._servers[stage.alias].once(
                f"DROP TABLE IF EXISTS {self.quoted(stage.name)}",
                settings={
                    "log_comment": f"dpone1s:drop:{stage.attempt_id}",
                    # The guard against dropping a large table by mistake; this one is proven to be ours.
                    "max_table_size_to_drop": 0,
                },
                timeout=_DROP_SECONDS,
            )
        except BROKEN as error:
            raise stopped(error, f"Dropping a table on {stage.alias}") from None

    # ---- rows

    def extract(self, plan: StagePlan, stage: ReplicaStage) -> Loaded:
        """Read the source into the attempt's table; see the port."""
        return self._loader.read(planned_of(plan), self._servers[stage.alias], stage.attempt_id, stage.name)

    def seal(self, plan: StagePlan, stage: ReplicaStage, rows: int, *, target_key: str) -> Artifact:
        """Store what the attempt's table holds as an immutable artifact; see the port."""
        columns = ", ".join(identifier(c.name) for c in planned_of(plan).definition.insertable_columns)
        limit = self._refresh.max_source_bytes
        sql = f"SELECT {columns} FROM {self.quoted(stage.name)}"
        try:
            with (
                self._reading(stage.alias) as query_id,
                self._servers[stage.alias].download(
                    sql,
                    format="Native",
                    settings=digest_settings(sql, planned_of(plan).settings),
                    timeout=self._limits.load,
                    query_id=query_id,
                ) as download,
            ):
                if download.rows != rows:
                    raise stop_with(
                        Code.ROWS_DISAGREE,
                        f"{self._target}: {rows:,} rows were read from the source, {download.rows:,} would be sealed.",
                        facts={"loaded": rows, "sealed": download.rows},
                    )
                sealed = self._artifacts(target_key).seal(
                    self._until_cancelled(download.chunks), max_bytes=limit
                )
        except ArtifactTooLarge:
            raise stop_with(
                Code.SOURCE_TOO_LARGE,
                f"The rows of the source are larger than max_source_bytes ({limit:,} bytes, {in_words(limit)}) in the "
                "table's own types.",
                facts={"max_source_bytes": limit},
            ) from None
        except BROKEN as error:
            raise stopped(error, f"Reading the rows from {stage.alias}") from None
        return Artifact(sealed.sha256, sealed.bytes, rows)

    def sealed(self, artifact: Artifact, *, target_key: str) -> bool:
        """Tell whether the store still holds the artifact; see the port."""
        return self._artifacts(target_key).has(artifact)

    def load(self, plan: StagePlan, stage: ReplicaStage, artifact: Artifact, *, target_key: str) -> None:
        """Load the artifact into the attempt's table; see the port."""
        store, definition = self._artifacts(target_key), planned_of(plan).definition
        stream = StreamLoad(
            format=artifact.format,
            columns=tuple(SourceColumn(c.name, c.type) for c in definition.insertable_columns),
            chunks=lambda: store.open(artifact),
            rows=lambda: artifact.rows,
            settings=_EXACT_NATIVE,
        )
        self._loader.copy(planned_of(plan), self._servers[stage.alias], stage.attempt_id, stage.name, stream)

    def settle(self, stage: ReplicaStage) -> None:
        """End what an earlier try may have left running on the attempt's table; see the port."""
        planned = self._planned
        if planned is None:
            raise ValueError("nothing is settled before the plan")
        self._loader.settle(planned.aliases, self._servers[stage.alias], stage.attempt_id)

    def content(self, name: str, alias: str) -> CanonicalDigest:
        """Compute the canonical content of a table on one replica; see the port."""
        self._go_on()
        planned = self._planned
        if planned is None:
            raise ValueError("nothing is compared before the plan")
        doing = f"Computing the content of {name!r} on {alias}"
        sql = canonical_digest_select(self._target.database, name, planned.definition.stored_columns)
        try:
            with self._reading(alias) as query_id:
                reply = self._servers[alias].read(
                    sql,
                    settings=digest_settings(sql, planned.settings),
                    timeout=self._limits.load,
                    query_id=query_id,
                )
            ((rows, digest),) = reply.rows
        except ServerError as error:
            if error.code == ErrorCode.UNKNOWN_TABLE:
                raise stop_with(
                    Code.CANDIDATE_DIFFERS, f"Table {name!r} is missing on {alias}.", facts={"replica": alias}
                ) from None
            raise stopped(error, doing) from None
        except (ConnectFailed, ReplyLost) as error:
            raise stopped(error, doing) from None
        return CanonicalDigest(int(str(rows)), str(digest))

    def _reading(self, alias: str) -> AbstractContextManager[str]:
        # Its server is that of one replica, so one kill meets it.
        return self._running.reading(self._servers[alias], self._target.cluster, (alias,))

    def sweep(self, keep: Artifact | None, *, target_key: str) -> None:
        """Remove the target's artifacts that nothing needs any more; see the port."""
        if not self._artifacts(target_key).sweep(keep):
            self._log(f"{self._target}: not every artifact could be removed now; the next run does it.")

    def _until_cancelled(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._running.cancelled.is_set():
                raise stop_with(Code.STAGING_FAILED, "The sealing was cancelled: the task was asked to stop.")
            yield chunk

    # ---- side by side

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> Sequence[Stopped | None]:
        """Run tasks, one for each replica, each to its end; see the port.

        Interrupted, it ends within a bound: a task that only waits for a server's answer goes on by itself then, and
        stops at its next step.
        """
        pool = ThreadPoolExecutor(min(len(tasks), MOST_AT_ONCE), "dpone-replica")
        running = [pool.submit(task) for task in tasks]
        try:
            wait(running)
        except BaseException:
            # Such as Airflow's timeout of the task, raised by a signal: nobody waits for the loads any more.
            pool.shutdown(wait=False, cancel_futures=True)
            self.cancel()
            wait(running, timeout=END_SECONDS)
            raise
        pool.shutdown()
        return [_stop_of(future) for future in running]

    def _go_on(self) -> None:
        """Begin nothing any more once the task was asked to stop.

        :raises Stopped: it was.
        """
        if self._running.cancelled.is_set():
            raise stop_with(Code.STAGING_FAILED, "The staging was cancelled: the task was asked to stop.")


def _stop_of(future: Future[None]) -> Stopped | None:
    match future.exception():
        case None:
            return None
        case Stopped() as error:
            return error
        case error:
            raise error
