"""Staging on a ClickHouse cluster: fix the plan, create the candidate everywhere, load it in one request.

Each statement that changes something is sent once. A candidate belongs to one attempt: what went wrong is
never repaired in it and never appended to. It is dropped, and a retry builds another one.
"""

from __future__ import annotations

import time
from typing import Final

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.create_table import (
    TableMark,
    build_candidate,
)
from airflow_provider_dpone.clickhouse.errors import (
    KEEPER_CODES,
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
from airflow_provider_dpone.clickhouse.progress import BROKEN, RunningQueries
from airflow_provider_dpone.clickhouse.replicas import READ_SETTINGS
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.source_access import SourceAccess
from airflow_provider_dpone.clickhouse.sql import identifier, qualified, string
from airflow_provider_dpone.clickhouse.staging_plan import Planner, check_created, planned_of
from airflow_provider_dpone.clickhouse.table_definition import REPLICATED_ENGINE
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import Attempt, Loaded, Log, StagePlan, Target
from airflow_provider_dpone.sources import Source
from airflow_provider_dpone.values import ClusterRefresh

_QUIET_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 10.0
_DDL_SLACK_SECONDS: Final = 30.0

_MAYBE_ENQUEUED: Final = frozenset({*KEEPER_CODES, ErrorCode.TIMEOUT_EXCEEDED, ErrorCode.UNFINISHED})
"""Codes with which the contacted server can't tell whether, or how, the replicas do a statement."""


class ClusterStaging:
    """Builds, loads and drops the candidates of one stage task. Implements ``routes.ports.Staging``."""

    def __init__(
        self,
        server: Server,
        target: Target,
        refresh: ClusterRefresh,
        source: Source,
        log: Log,
        *,
        control: ControlTable | None = None,
        limits: Limits | None = None,
        running: RunningQueries | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        :param log: what a human follows: one line per event.
        :param control: the control table, for the grants that are needed on it.
        :param running: where loads are found by whoever stops the task; when it is cancelled, they are killed.
        """
        self._server = server
        self._target = target
        self._log = log
        self._limits = limits = limits or Limits()
        self._running = running = running or RunningQueries()
        access = SourceAccess(source, running.cancelled)
        grants = Grants(server, target, control or ControlTable())
        self._planner = Planner(server, target, refresh, access, log, grants, engine=REPLICATED_ENGINE)
        self._loader = Loader(target, refresh, access, log, limits, running)

    @property
    def query_id(self) -> str | None:
        """The id of the load's query, once there is one. It holds no secret: ``system.query_log`` has it too."""
        return self._loader.query_id

    def quoted(self, name: str) -> str:
        """Return the target's database and ``name``, quoted for SQL."""
        return qualified(self._target.database, name)

    def cancel(self) -> bool | None:
        """Stop: kill what runs by its id now, and let nothing begin. May be called by a signal handler.

        :returns: whether a server took the kill up; ``None``: nothing was running.
        """
        return self._running.cancel()

    def plan(self, observation: Observation) -> StagePlan:
        """Fix structure, column mapping and grants. Reads no row of the source, changes nothing.

        :raises Stopped: as :meth:`Planner.plan`.
        """
        return self._planner.plan(observation)

    def create(self, plan: StagePlan, attempt: Attempt, *, authority_id: str, operation_id: str) -> None:
        """Create the candidate on every replica, under the attempt's UUID and with our mark in its COMMENT.

        :raises Stopped: ``STAGING_FAILED`` (refused or failed somewhere), ``MISSING_GRANT``,
            ``STAGING_UNKNOWN``: it may still be created.
        """
        planned = planned_of(plan)
        statement = build_candidate(
            planned.definition,
            database=self._target.database,
            name=attempt.name,
            uuid=attempt.uuid,
            cluster=self._target.cluster,
            mark=TableMark(authority_id, operation_id, attempt.attempt_id),
        )
        try:
            self._server.once(
                statement,
                settings={
                    "log_comment": f"dpone1s:{operation_id[:16]}:create:{attempt.attempt_id}",
                    "distributed_ddl_task_timeout": int(self._limits.create),
                    "distributed_ddl_output_mode": "throw",
                },
                timeout=self._limits.create + _DDL_SLACK_SECONDS,
            )
        except ConnectFailed as error:
            raise stop_with(
                Code.STAGING_FAILED, f"Creating the candidate failed: {summary(error)}."
            ) from None
        except ServerError as error:
            if error.code not in _MAYBE_ENQUEUED or error.remote_host_error:
                raise self._not_created(error) from None
            self._await_created(attempt, planned.aliases, summary(error))
        except ReplyLost as error:
            self._await_created(attempt, planned.aliases, summary(error))

    def _not_created(self, error: ServerError) -> Stopped:
        if error.code == ErrorCode.ACCESS_DENIED:
            return stopped(error, "Creating the candidate")
        where = " on a replica" if error.remote_host_error else ""
        return stop_with(
            Code.STAGING_FAILED,
            f"Creating the candidate failed{where}: {summary(error)}.",
            facts={"exception_code": error.code, "exception_name": error.name},
        )

    def _await_created(self, attempt: Attempt, aliases: tuple[str, ...], why: str) -> None:
        """The statement may be in the queue: wait until every replica shows its table, or the time is up."""
        self._log(f"{self._target}: creating {attempt.name} was not answered ({why}); looking for it.")
        deadline = time.monotonic() + self._limits.create
        created: set[str] = set()
        while True:
            try:
                created = self._created_on(attempt, aliases)
            except BROKEN:
                created = set()
            if created == set(aliases):
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(_QUIET_SECONDS)
        raise stop_with(
            Code.STAGING_UNKNOWN,
            f"Creating the candidate was not answered ({why}), and it is not seen on every replica.",
            replicas={alias: {"created": alias in created} for alias in aliases},
        )

    def _created_on(self, attempt: Attempt, aliases: tuple[str, ...]) -> set[str]:
        found = self._server.read(
            "SELECT _shard_num, toString(uuid) FROM "
            f"clusterAllReplicas({identifier(self._target.cluster)}, system.tables) "
            f"WHERE database = {string(self._target.database)} AND name = {string(attempt.name)}",
            settings={**READ_SETTINGS, "skip_unavailable_shards": 0},
            timeout=_LOOK_SECONDS,
        ).rows
        return {aliases[int(str(number)) - 1] for number, uuid in found if uuid == attempt.uuid}

    def check_created(self, plan: StagePlan, attempt: Attempt, observation: Observation) -> None:
        """Compare the candidate on every replica with the plan, clause by clause.

        :raises Stopped: ``CANDIDATE_DIFFERS``, with the clauses per replica.
        """
        uuids = dict.fromkeys(observation.inventory.aliases, attempt.uuid)
        check_created(planned_of(plan), attempt.name, uuids, observation)

    def drop(self, attempt: Attempt) -> None:
        """Drop a candidate that the rule for drops allows to be dropped. Sent once, not waited for.

        :raises ValueError: the name is not the attempt's own.
        :raises Stopped: the server refused it or could not be asked.
        """
        if attempt.attempt_id not in attempt.name:
            raise ValueError("only a candidate of this very attempt may be dropped")
        try:
            self._server.once(
                f"DROP TABLE IF EXISTS {self.quoted(attempt.name)} "
                f"ON CLUSTER {identifier(self._target.cluster)}",
                settings={
                    "log_comment": f"dpone1s:drop:{attempt.attempt_id}",
                    "distributed_ddl_task_timeout": 0,
                    # The guard against dropping a large table by mistake; this one is proven to be ours.
                    "max_table_size_to_drop": 0,
                },
                timeout=_DDL_SLACK_SECONDS,
            )
        except BROKEN as error:
            raise stopped(error, "Dropping the candidate") from None

    def load(self, plan: StagePlan, attempt: Attempt) -> Loaded:
        """Read the source into the candidate, in one request.

        :raises Stopped: as :meth:`Loader.read`.
        """
        return self._loader.read(planned_of(plan), self._server, attempt.attempt_id, attempt.name)
