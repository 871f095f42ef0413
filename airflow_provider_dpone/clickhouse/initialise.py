"""``airflow dpone init``: create the control table once per cluster, and name its authority.

Everything here is idempotent and nothing is ever dropped or emptied. What can't be told apart from a
lost control table is refused: creating a new one would forget every publication that is under way.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_dpone.clickhouse.authority import RAISED_BEFORE_EXECUTION, WRITE_SETTINGS
from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.control_table import ControlTable, sentinel_row
from airflow_provider_dpone.clickhouse.errors import (
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stopped,
    summary,
)
from airflow_provider_dpone.clickhouse.replicas import READ_SETTINGS, Answers, from_all_replicas, section
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.table_comment import split_comment
from airflow_provider_dpone.publication.admission import cluster_checks
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import Target

TOKEN_PREFIX: Final = "dponeinit1:"
"""Starts the ``log_comment`` of what is done here. Tokens of publications start differently, on purpose:
those are traces of a control table that existed."""

_PUBLICATION_PREFIX: Final = "dpone1:"
_TASK_TIMEOUT: Final = 30
_PAUSE: Final = 0.5

# What is not there yet is created; these checks of the admission come true by that.
_MAY_FAIL_BEFORE: Final = frozenset(
    {"the database exists", "the control table exists", "the control table is initialised"}
)


@dataclass(frozen=True, slots=True)
class Initialised:
    """What `initialise` found and did.

    :ivar executed: ``False`` if the statements were only asked for.
    :ivar authority_id: names the control table; ``None`` if it has no authority yet (``executed=False``).
    :ivar created_database_on: replicas on which the database was missing.
    :ivar created_table_on: replicas on which the table was missing.
    :ivar created_authority: the authority row was missing.
    :ivar statements: what was (or would be) sent, in order.
    """

    cluster: str
    replicas: tuple[str, ...]
    executed: bool
    authority_id: str | None
    created_database_on: tuple[str, ...] = ()
    created_table_on: tuple[str, ...] = ()
    created_authority: bool = False
    statements: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.statements:
            return (
                f"Nothing to do: the control table is complete on {', '.join(self.replicas)} "
                f"(authority {self.authority_id})."
            )
        if not self.executed:
            return "\n".join(f"{statement};" for statement in self.statements)
        lines = [f"The control table of cluster {self.cluster} is ready (authority {self.authority_id})."]
        if self.created_database_on:
            lines.append(f"Created the database on {', '.join(self.created_database_on)}.")
        if self.created_table_on:
            lines.append(f"Created the table on {', '.join(self.created_table_on)}.")
        if self.created_authority:
            lines.append("Created the authority row.")
        return "\n".join(lines)


def initialise(
    server: Server,
    cluster: str,
    *,
    control: ControlTable | None = None,
    print_sql: bool = False,
    evidence_of_publications: bool = False,
    adopted: Collection[str] = (),
    recovering: bool = False,
    wait: float = 60.0,
    random_hex: Callable[[int], str] = lambda bits: secrets.token_hex(bits // 8),
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Initialised:
    """Create what is missing of the control table, and prove it on every replica.

    :param print_sql: change nothing; return the statements that are missing.
    :param evidence_of_publications: the evidence store has records for this cluster.
    :param adopted: lost authorities whose tables the new one may replace.
    :param recovering: the traces were looked at, and every name that a late statement could use is gone.
    :param wait: for how many seconds the replicas are given time.
    :raises Stopped: ``CONTROL_TABLE_LOST``: there are traces of publications but no authority;
        ``CONTROL_TABLE_INVALID``: an existing table has another structure; what admission refuses about
        the cluster; ``SERVER_ERROR`` and the like.
    """
    return _Initialisation(
        server,
        cluster,
        control or ControlTable(),
        print_sql,
        evidence_of_publications,
        tuple(adopted),
        recovering,
        wait,
        random_hex,
        monotonic,
        sleep,
    ).run()


@dataclass(slots=True)
class _Initialisation:
    server: Server
    cluster: str
    control: ControlTable
    print_sql: bool
    evidence_of_publications: bool
    adopted: tuple[str, ...]
    recovering: bool
    wait: float
    random_hex: Callable[[int], str]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    statements: list[str] = field(default_factory=list)

    def run(self) -> Initialised:
        observation = self._observe()
        without_database = _where(observation, lambda alias: _engine(observation, alias) is None)
        without_table = _without_table(observation)
        if len(without_table) == len(observation.replicas):
            # There is no facade to ask for the authority: any trace means that there was one.
            self._refuse_traces(observation.inventory)
        if without_database:
            self._send(
                "database",
                self.control.create_database(self.cluster),
                lambda now: not _where(now, lambda alias: _engine(now, alias) is None),
            )
        if without_table:
            self._send("table", self.control.create(self.cluster), lambda now: not _without_table(now))
            if not self.print_sql:
                observation = self._observe()
        authority_id = observation.authority_id
        created_authority = authority_id is None
        if created_authority:
            if len(without_table) < len(observation.replicas):
                self._refuse_traces(observation.inventory)
            authority_id = self._create_authority()
        return Initialised(
            cluster=self.cluster,
            replicas=observation.inventory.aliases,
            executed=not self.print_sql,
            authority_id=authority_id,
            created_database_on=without_database,
            created_table_on=without_table,
            created_authority=created_authority,
            statements=tuple(self.statements),
        )

    def _observe(self) -> Observation:
        return observe_before(self.server, self.cluster, self.control)

    def _look(self) -> Observation:
        return _look(self.server, self.cluster, self.control)

    def _refuse_traces(self, inventory: Inventory) -> None:
        """Refuse if anything shows that publications were made before.

        :raises Stopped: ``CONTROL_TABLE_LOST``.
        """
        if self.recovering:
            return
        marked = self._marked_tables(inventory)
        queued = self._queued_publications()
        if not (marked or queued or self.evidence_of_publications):
            return
        found = [f"tables published earlier ({', '.join(marked)})"] if marked else []
        found += [f"{queued} entries of publications in the DDL queue"] if queued else []
        found += ["evidence of publications"] if self.evidence_of_publications else []
        raise Stopped(
            Stop(
                Code.CONTROL_TABLE_LOST,
                f"Cluster {self.cluster!r} has no authority, but {' and '.join(found)}: a control table "
                "existed. Nothing was initialised.",
                facts={"tables": marked, "queue_entries": queued},
            )
        )

    def _marked_tables(self, inventory: Inventory) -> list[str]:
        sql = from_all_replicas(
            self.cluster,
            [
                section(
                    "marked",
                    {"database": "database", "name": "name", "comment": "comment"},
                    "FROM system.tables WHERE position(comment, '[dpone:v') > 0",
                )
            ],
        )
        reply = self._read(sql, "Looking for published tables")
        answers = Answers.of(reply)
        return sorted(
            {
                f"{fields['database']}.{fields['name']}"
                for number, _ in enumerate(inventory.aliases, start=1)
                for fields in answers.all(number, "marked")
                if split_comment(fields["comment"] or "")[1] is not None
            }
        )

    def _queued_publications(self) -> int:
        rows = self._read(
            "SELECT uniqExact(entry) FROM system.distributed_ddl_queue "
            f"WHERE startsWith(settings['log_comment'], '{_PUBLICATION_PREFIX}')",
            "Reading the distributed-DDL queue",
        )
        return int(str(rows[0][0]))

    def _read(self, sql: str, doing: str) -> list[list[object]]:
        try:
            return self.server.read(sql, settings={**READ_SETTINGS, "skip_unavailable_shards": 0}).rows
        except (ServerError, ConnectFailed, ReplyLost) as error:
            raise stopped(error, doing) from None

    def _send(self, action: str, sql: str, done: Callable[[Observation], bool]) -> None:
        """Send one statement to the cluster, once, and look until every replica shows its effect."""
        self.statements.append(sql)
        if self.print_sql:
            return
        failure, wait = "", self.wait
        try:
            self.server.once(
                sql,
                settings={
                    "log_comment": f"{TOKEN_PREFIX}{action}:{self.random_hex(128)}",
                    "distributed_ddl_output_mode": "throw",
                    "distributed_ddl_task_timeout": _TASK_TIMEOUT,
                },
                timeout=_TASK_TIMEOUT + 30.0,
            )
        except ConnectFailed as error:
            raise stopped(error, f"Creating the {action}") from None
        except ServerError as error:
            if not error.remote_host_error and error.code in RAISED_BEFORE_EXECUTION:
                raise stopped(error, f"Creating the {action}") from None
            failure = f" ({summary(error)})"
            if error.code not in (
                ErrorCode.TIMEOUT_EXCEEDED,
                ErrorCode.KEEPER_EXCEPTION,
                ErrorCode.UNFINISHED,
            ):
                # The server has waited for all replicas; waiting longer changes nothing.
                wait = 0.0
            if error.code == ErrorCode.BAD_ARGUMENTS:
                failure += "; is keeper_map_path_prefix configured on every replica?"
        except ReplyLost as error:
            failure = f" ({summary(error)})"
        if not self._until(done, wait):
            raise Stopped(
                Stop(
                    Code.SERVER_ERROR,
                    f"The {action} of the control table did not appear on every replica{failure}.",
                    next_action="Correct the cause and run `airflow dpone init` again; it completes what is missing.",
                )
            )

    def _create_authority(self) -> str | None:
        """Write the authority row, strictly and once; return the authority id that every replica shows."""
        authority_id, write_id = self.random_hex(128), self.random_hex(128)
        sql = self.control.insert(sentinel_row(authority_id, write_id, self.adopted), strict=self.print_sql)
        self.statements.append(sql)
        if self.print_sql:
            return None
        try:
            self.server.once(sql, settings=WRITE_SETTINGS, query_id=write_id)
        except ConnectFailed as error:
            raise stopped(error, "Creating the authority row") from None
        except ServerError as error:
            if error.code in RAISED_BEFORE_EXECUTION:
                raise stopped(error, "Creating the authority row") from None
        except ReplyLost:
            # The row itself will tell. Whoever wrote it, there is one, and no permit depends on it.
            pass
        seen: list[str] = []

        def is_shown(observation: Observation) -> bool:
            if observation.unread or observation.authority_id is None:
                return False
            seen.append(observation.authority_id)
            return True

        if not self._until(is_shown, self.wait):
            raise Stopped(
                Stop(
                    Code.CONTROL_TABLE_NOT_SHARED,
                    "The authority row does not appear on every replica.",
                    next_action="Check keeper_map_path_prefix and Keeper on every replica, then run "
                    "`airflow dpone init` again.",
                )
            )
        return seen[-1]

    def _until(self, done: Callable[[Observation], bool], wait: float) -> bool:
        deadline = self.monotonic() + wait
        while not done(self._look()):
            if self.monotonic() > deadline:
                return False
            self.sleep(_PAUSE)
        return True


def observe_before(server: Server, cluster: str, control: ControlTable) -> Observation:
    """Look at all replicas; everything but what is to be created must be as admission wants it.

    :raises Stopped: the first check that failed: ``CONTROL_TABLE_INVALID`` for a table of another structure or on
        another Keeper path, which is never touched.
    """
    observation = _look(server, cluster, control)
    checks = cluster_checks(
        observation, database=control.database, control_structure=control.structure, user=server.user
    )
    for check in checks:
        if check.stop is not None and check.name not in _MAY_FAIL_BEFORE:
            raise Stopped(check.stop)
    return observation


def _look(server: Server, cluster: str, control: ControlTable) -> Observation:
    target = Target(cluster, control.database, control.name)
    return Catalog(server, target, control, internal_replication=None).observe([])


def _engine(observation: Observation, alias: str) -> str | None:
    return observation.replicas[alias].database_engine


def _without_table(observation: Observation) -> tuple[str, ...]:
    return _where(observation, lambda alias: observation.replicas[alias].control.structure is None)


def _where(observation: Observation, wrong: Callable[[str], bool]) -> tuple[str, ...]:
    return tuple(alias for alias in observation.replicas if wrong(alias))
