"""A cluster whose control table is lost, as ``airflow dpone init --recover`` sees and changes it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.control_table import COMMENT, ControlTable
from airflow_provider_dpone.clickhouse.ddl_queue import TOKEN_PREFIX, render
from airflow_provider_dpone.clickhouse.errors import (
    ConnectFailed,
    ReplyLost,
    ServerError,
    stopped,
    summary,
)
from airflow_provider_dpone.clickhouse.initialise import TOKEN_PREFIX as INIT_PREFIX
from airflow_provider_dpone.clickhouse.initialise import initialise, observe_before
from airflow_provider_dpone.clickhouse.leftovers import read_leftovers
from airflow_provider_dpone.clickhouse.replicas import READ_SETTINGS, Answers, from_all_replicas, section
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.sql import qualified, string
from airflow_provider_dpone.publication.identity import lost_name
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.record import SENTINEL_KEY
from airflow_provider_dpone.publication.recovery import Survey
from airflow_provider_dpone.publication.statement import Rename
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import Target

_TASK_TIMEOUT: Final = 30
_PAUSE: Final = 0.5


@dataclass(slots=True)
class LostControlTable:
    """Implements :class:`routes.recover.Lost`.

    :ivar evidence: the evidence has records of this cluster.
    :ivar wait: for how many seconds the replicas are given time.
    """

    server: Server
    cluster: str
    control: ControlTable
    evidence: bool
    wait: float = 60.0
    random_hex: Callable[[int], str] = lambda bits: secrets.token_hex(bits // 8)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    sent: list[str] = field(default_factory=list)

    def survey(self) -> Survey:
        """Look for all traces; see :meth:`routes.recover.Lost.survey`."""
        before = observe_before(self.server, self.cluster, self.control)
        # The queue comes before the tables: what it has finished, the tables show.
        queued, unfinished = self._queue(before.inventory)
        tables, _ = read_leftovers(self.server, self.cluster)
        # The authority comes last: without one, no table above can be a new authority's.
        before = observe_before(self.server, self.cluster, self.control)
        databases = sorted({table.database for table in tables})
        return Survey(
            cluster=self.cluster,
            replicas=before.inventory.aliases,
            authority_id=before.authority_id,
            tables=tables,
            uuids=self._uuids(before.inventory, databases) if databases else {},
            queued=queued,
            unfinished=unfinished,
            elsewhere=self._elsewhere(),
            evidence=self.evidence,
            independent=before.inventory.independent,
        )

    def park(self, database: str, name: str) -> None:
        """Take a name away; see :meth:`routes.recover.Lost.park`."""
        sql = self.parking(database, name)
        self.sent.append(sql)
        said = ""
        try:
            self.server.once(
                sql,
                settings={
                    "log_comment": f"{INIT_PREFIX}park:{self.random_hex(128)}",
                    "distributed_ddl_output_mode": "throw",
                    "distributed_ddl_task_timeout": _TASK_TIMEOUT,
                    "distributed_ddl_entry_format_version": 5,
                },
                timeout=_TASK_TIMEOUT + 30.0,
            )
        except ConnectFailed as error:
            raise stopped(error, "Parking a table") from None
        except (ServerError, ReplyLost) as error:
            # A replica that has no such table says so. What counts is that nobody has it any more.
            said = f" ({summary(error)})"
        deadline = self.monotonic() + self.wait
        while still := self._having(database, name):
            if said or self.monotonic() > deadline:
                raise Stopped(
                    Stop(
                        Code.NOT_RESOLVABLE,
                        f"{database}.{name} is still there on {', '.join(still)}{said}. There is no authority yet.",
                        next_action="Remove the cause and run `airflow dpone init --recover` again.",
                    )
                )
            self.sleep(_PAUSE)

    def create(self, adopted: tuple[str, ...]) -> str:
        """Create the control table; see :meth:`routes.recover.Lost.create`."""
        done = initialise(
            self.server, self.cluster, control=self.control, wait=self.wait, adopted=adopted, recovering=True
        )
        self.sent.extend(done.statements)
        if done.authority_id is None:
            raise ValueError("an executed initialisation has an authority")
        return done.authority_id

    def parking(self, database: str, name: str) -> str:
        """Return the statement that parks a table."""
        return render(Rename(self.cluster, database, name, lost_name(name)))

    def _having(self, database: str, name: str) -> list[str]:
        """Return where a table still is.

        :raises Stopped: a replica can't be read, or our user may not see the database there.
        """
        seen = Catalog(self.server, Target(self.cluster, database, name), self.control, None).observe([name])
        if seen.unread:
            raise Stopped(
                Stop(
                    Code.REPLICA_UNAVAILABLE,
                    f"{', '.join(seen.unread)} can't be read. There is no authority yet.",
                )
            )
        return [alias for alias, facts in seen.replicas.items() if name in facts.tables]

    def _queue(self, inventory: Inventory) -> tuple[int, tuple[str, ...]]:
        comment = "settings['log_comment']"
        ours = (
            f"(startsWith({comment}, {string(TOKEN_PREFIX)}) OR startsWith({comment}, {string(INIT_PREFIX)}))"
        )
        rows = self._read(
            f"SELECT uniqExactIf(entry, startsWith({comment}, {string(TOKEN_PREFIX)})), "
            "groupArrayIf(tuple(entry, host, port), status IS NULL OR toString(status) != 'Finished') "
            f"FROM system.distributed_ddl_queue WHERE {ours}",
            "Reading the distributed-DDL queue",
        )
        ((queued, unfinished),) = rows
        if not isinstance(unfinished, list):
            raise TypeError("the server answered in another form than asked for")
        said = []
        for entry, host, port in unfinished:
            alias = (
                inventory.alias_at(str(host), int(port)) if host is not None and port is not None else None
            )
            if alias is not None or host is None:
                said.append(f"{entry} on {alias or 'a host that is not told'}")
        return int(str(queued)), tuple(sorted(said))

    def _uuids(self, inventory: Inventory, databases: list[str]) -> dict[tuple[str, str], dict[str, str]]:
        named = ", ".join(string(database) for database in databases)
        rows = self._read(
            from_all_replicas(
                self.cluster,
                [
                    section(
                        "table",
                        {"database": "database", "name": "name", "uuid": "uuid"},
                        f"FROM system.tables WHERE database IN ({named})",
                    )
                ],
            ),
            "Looking at the tables",
        )
        answers = Answers.of(rows)
        found: dict[tuple[str, str], dict[str, str]] = {}
        for number, alias in enumerate(inventory.aliases, start=1):
            for fields in answers.all(number, "table"):
                key = (fields["database"] or "", fields["name"] or "")
                found.setdefault(key, {})[alias] = fields["uuid"] or ""
        return found

    def _elsewhere(self) -> frozenset[str]:
        """Return the authority ids of other control tables of this provider on the contacted server."""
        rows = self._read(
            "SELECT database, name FROM system.tables WHERE engine = 'KeeperMap' "
            f"AND comment = {string(COMMENT)} "
            f"AND (database, name) != ({string(self.control.database)}, {string(self.control.name)})",
            "Looking for other control tables",
        )
        found: set[str] = set()
        for database, name in rows:
            authorities = self._read(
                f"SELECT operation_id FROM {qualified(str(database), str(name))} "
                f"WHERE target_key = {string(SENTINEL_KEY)}",
                "Reading another control table",
            )
            found |= {str(authority) for (authority,) in authorities}
        return frozenset(found)

    def _read(self, sql: str, doing: str) -> list[list[object]]:
        try:
            return self.server.read(sql, settings={**READ_SETTINGS, "skip_unavailable_shards": 0}).rows
        except (ServerError, ConnectFailed, ReplyLost) as error:
            raise stopped(error, doing) from None
