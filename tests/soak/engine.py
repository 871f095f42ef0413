"""Publishes one after the other, gets into trouble, and gets out again as Airflow and an operator would."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock
from uuid import uuid4

from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster
from tests.integration.refresh_site import RefreshSite
from tests.scenarios import checker
from tests.scenarios.history import Allowed
from tests.scenarios.outcome import Outcome, Result
from tests.scenarios.worker import Moment
from tests.scenarios.world import CAS, DROP, LOAD, PATIENT, SWAP, World
from tests.soak.operator import NoWayOutError, end_hold
from tests.soak.plan import Publication, Trouble

CONN_ID = "soak"
_TRIES = 12
_SHORT = 1.5
"""Seconds for which publish waits at first while a trouble lasts."""

_LONG = 30.0
_KEPT_ENTRIES = 100


class SoakError(AssertionError):
    """Something that must never be was seen."""


@dataclass
class Counts:
    """What happened, for the report.

    :ivar stops: how often a task stopped, by code.
    :ivar ended: what operators did, by code and command.
    """

    stops: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    not_published: int = 0
    """Operations that were closed as not published, so that a new one had to be staged."""


@dataclass
class Soak:
    """A cluster with some targets, and what each must hold.

    :ivar committed: name of the generation that each target must hold, by the target's number.
    :ivar mark: the newest statement, and
    :ivar last_entry: the newest queue entry, when everything was looked at last.
    """

    cluster: LocalCluster
    worlds: list[World]
    counts: Counts = field(default_factory=Counts)
    committed: dict[int, str] = field(default_factory=dict)
    calm_seconds: list[float] = field(default_factory=list)
    mark: int = 0
    last_entry: str = ""

    # ---- one publication

    def publish(self, wanted: Publication) -> None:
        """Publish once, whatever it takes.

        :raises SoakError: it could not be done by what is documented.
        """
        world = self.worlds[wanted.target]
        started = time.monotonic()
        sql = world.new_generation(wanted.rows)
        run = f"run{wanted.number}"
        self.counts.troubles[wanted.trouble.value] += 1
        for series in range(_TRIES):
            self._stage(world, wanted, sql, run, series)
            if self._publish(world, wanted, first=series == 0):
                break
            self.counts.not_published += 1
        else:
            raise SoakError(f"publication {wanted.number} was not published in {_TRIES} operations")
        self.committed[wanted.target] = f"g{world.generation}"
        self._clean(world, wanted)
        if wanted.trouble is Trouble.NONE:
            self.calm_seconds.append(time.monotonic() - started)

    def _stage(self, world: World, wanted: Publication, sql: str, run: str, series: int) -> None:
        if series == 0:
            match wanted.trouble:
                case Trouble.CUT_LOAD:
                    self.cluster.drop_response(1, LOAD)
                case Trouble.KILLED_STAGE:
                    job = world.job("stage", moment=wanted.moment, sql=sql, run=run)
                    self._count(world.finished(world.work(job)))
                    again = replace(job, moment=None, try_number=2)
                    self._until_ok(world, lambda: world.finished(world.work(again)))
                    return
                case _:
                    pass
        self._until_ok(world, lambda: world.stage(sql, run=run, series=str(series)))

    def _publish(self, world: World, wanted: Publication, *, first: bool) -> bool:
        """Publish; ``False`` if the operation was closed as not published."""
        patience = self._get_into_trouble(world, wanted) if first else _LONG
        for number in range(_TRIES):
            result = world.publish(publish=patience, ready=_SHORT if first and number == 0 else _LONG)
            self._count(result)
            if result.ok:
                return True
            if number == 0:
                self._get_out_of_trouble(world, wanted)
                patience = _SHORT if result.code == "ENTRY_NOT_SEEN" else _LONG
                if result.retried_by_airflow:
                    continue
            match result.outcome:
                case Outcome.ABORTED | Outcome.REFUSED:
                    return False
                case Outcome.RETRYABLE:
                    self.cluster.heal()
                case _:
                    if self._end_hold(world) == "ABORTED":
                        return False
        raise SoakError(f"publication {wanted.number} is still not proven: {world.last}")

    def _clean(self, world: World, wanted: Publication) -> None:
        match wanted.trouble:
            case Trouble.CUT_DROP:
                self.cluster.drop_response(1, DROP)
            case Trouble.DROP_FAILS:
                self.cluster.fail_execution(wanted.node, DROP, count=2)
            case Trouble.KILLED_CLEANUP:
                self._count(world.finished(world.work(world.job("cleanup", moment=wanted.moment))))
            case _:
                pass
        self._until_ok(world, lambda: world.cleanup())

    def _until_ok(self, world: World, work: Callable[[], Result]) -> None:
        for _ in range(_TRIES):
            result = work()
            self._count(result)
            if result.ok:
                return
            if not result.retried_by_airflow:
                break
            self.cluster.heal()
        raise SoakError(f"{world.site.table}: {world.last}")

    def _count(self, result: Result) -> None:
        if result.code:
            self.counts.stops[result.code] += 1
        elif not result.ok:
            self.counts.stops[result.outcome.value] += 1

    def _end_hold(self, world: World) -> str:
        try:
            return end_hold(world, CONN_ID, self.counts.ended)
        except NoWayOutError as error:
            raise SoakError(f"{world.site.table}: {world.last}\n{error}") from error

    # ---- trouble

    def _get_into_trouble(self, world: World, wanted: Publication) -> float:
        """Arrange what goes wrong around the swap; return for how long publish may wait meanwhile."""
        cluster, node = self.cluster, wanted.node
        match wanted.trouble:
            case Trouble.CUT_SWAP:
                cluster.drop_response(1, SWAP)
            case Trouble.CUT_ENQUEUED:
                cluster.drop_response(1, SWAP, after="enqueue")
            case Trouble.CUT_CLAIM:
                cluster.drop_response(1, CAS)
            case Trouble.REFUSED_SWAP:
                cluster.refuse(1, SWAP)
                return _SHORT
            case Trouble.REFUSED_CLAIM:
                cluster.refuse(1, CAS)
            case Trouble.DELAYED:
                cluster.delay_execution(node, SWAP, 1.0)
            case Trouble.PAUSED:
                cluster.pause_worker(node)
                return _SHORT
            case Trouble.TWICE:
                cluster.crash_worker_before_mark(node, SWAP)
                world.allow(twice={node})
            case Trouble.FAILS:
                cluster.fail_execution(node, SWAP)
            case Trouble.FAILS_EVERYWHERE:
                for each in cluster.nodes:
                    cluster.fail_execution(each, SWAP)
            case Trouble.FORGOTTEN | Trouble.DOUBLED:
                cluster.pause_worker(node)
                self._count(world.publish(publish=_SHORT))
                entry = world.bound_entry()
                if wanted.trouble is Trouble.DOUBLED:
                    cluster.duplicate_queue_entry(entry)
                    world.allow(copied={s.log_comment for s in world.site.sent(SWAP)})
                cluster.resume_worker(node)
                world.wait_finished(entry)
                if wanted.trouble is Trouble.FORGOTTEN:
                    cluster.remove_queue_entry(entry)
                return _SHORT
            case Trouble.NODE_DOWN:
                cluster.kill_node(node)
                return _SHORT
            case Trouble.NODE_DIES:
                cluster.pause_worker(node)
                self._count(world.publish(publish=_SHORT))
                cluster.kill_node(node)
                return _SHORT
            case Trouble.NO_KEEPER:
                cluster.stop_zookeeper()
                return _SHORT
            case Trouble.KEEPER_LOST:
                cluster.pause_worker(node)
                self._count(world.publish(publish=_SHORT))
                cluster.stop_zookeeper()
                return _SHORT
            case Trouble.KILLED_PUBLISH:
                lasts = wanted.moment is Moment.BOUND  # a quick swap is proven before it is bound
                if lasts:
                    cluster.pause_worker(node)
                self._count(world.finished(world.work(world.job("publish", moment=wanted.moment))))
                if lasts:
                    cluster.resume_worker(node)
                return _SHORT
            case _:
                pass
        return _LONG

    def _get_out_of_trouble(self, world: World, wanted: Publication) -> None:
        """What the people who run the cluster do: restart what is down."""
        match wanted.trouble:
            case Trouble.NODE_DOWN | Trouble.NODE_DIES:
                self.cluster.start_node(wanted.node)
                self.cluster.heal()
            case Trouble.NO_KEEPER | Trouble.KEEPER_LOST:
                self.cluster.start_zookeeper()
                self.cluster.heal()
            case Trouble.PAUSED:
                self.cluster.resume_worker(wanted.node)
            case _:
                pass

    # ---- what must be so

    def verify(self) -> None:
        """Compare every target with what was committed last, on every replica, and look for leftovers.

        :raises SoakError: something is not as it must be.
        """
        self.cluster.heal()
        found = [
            wrong
            for number, name in self.committed.items()
            for wrong in _not_as_committed(self.worlds[number], name)
        ]
        self.worlds[0].site.since = self.mark
        happened = self.worlds[0].history()
        # What the queue keeps of earlier parts was judged then, with what those parts had planted.
        new = [run for run in happened.executions if run.entry > self.last_entry]
        queue = [row for row in happened.queue if row["entry"] > self.last_entry]
        allowed = Allowed(
            twice=frozenset[int]().union(*(world.allowed.twice for world in self.worlds)),
            copied=frozenset[str]().union(*(world.allowed.copied for world in self.worlds)),
        )
        for world in self.worlds:
            found += checker.check(
                replace(
                    happened,
                    table=world.site.table,
                    executions=new,
                    queue=queue,
                    generations=world.generations,
                    snapshots=world.snapshots,
                    allowed=allowed,
                )
            )
        if found:
            raise SoakError("\n".join(dict.fromkeys(found)))
        self._begin_anew()

    def _begin_anew(self) -> None:
        for world in self.worlds:
            world.snapshots, world.results, world.allowed = [], [], Allowed()
        self.mark = self.cluster.last_statement()
        # As the queue's cleaner does, only sooner: each read of the queue passes over every entry.
        entries = sorted({row["entry"] for row in self.cluster.queue_rows()})
        self.last_entry = entries[-1]
        for entry in entries[:-_KEPT_ENTRIES]:
            self.cluster.remove_queue_entry(entry)


def _not_as_committed(world: World, generation: str) -> Iterator[str]:
    """What differs from the one generation on every replica, one record, and no table beside what it names."""
    world.step = "the end"
    world.look()
    seen = world.snapshots[-1]
    if seen.keys != 1:
        yield f"{world.site.table} has {seen.keys} records"
    if seen.record is None:
        yield f"{world.site.table} has no readable record"
        return
    named = {world.site.table, *(item["name"] for item in seen.record["retained"])}
    for node, tables in seen.tables.items():
        if seen.digests[node] != world.generations[generation]:
            yield f"{world.site.table} on node {node} is not {generation}"
        for name in tables or {}:
            if name.startswith(f"{world.site.table}__") and name not in named:
                yield f"{name} is left on node {node}"


@contextmanager
def a_soak(cluster: LocalCluster, targets: int, folder: Path) -> Iterator[Soak]:
    """A database with so many targets on a cluster, and the commands' connection to it."""
    database = f"mart_soak_{uuid4().hex[:8]}"
    host, port = cluster.endpoints[0]
    connection = {
        "conn_type": "dpone_clickhouse",
        "host": host,
        "port": port,
        "login": APP_USER,
        "password": APP_PASSWORD,
    }
    environment = {
        f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(connection),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__DPONE__EVIDENCE_PATH": folder.as_uri(),
        "AIRFLOW__DPONE__CLEANUP_TIMEOUT": "20",
        "_AIRFLOW_PROCESS_CONTEXT": "",
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment))
        cluster.execute(f"CREATE DATABASE {database} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
        worlds = []
        for number in range(targets):
            site = RefreshSite(
                cluster, database, folder, (cluster.endpoints[0],), table=f"target{number}", waits=PATIENT
            )
            world = World(site)
            stack.enter_context(world.stack)
            worlds.append(world)
        try:
            yield Soak(cluster, worlds, mark=cluster.last_statement())
        finally:
            cluster.heal()
            cluster.execute(f"DROP DATABASE {database} ON CLUSTER {CLUSTER_NAME} SYNC")
