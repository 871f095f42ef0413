"""Where the parts are put together: from an Airflow connection to the ports that the routes drive."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_dpone import options
from airflow_provider_dpone.artifacts.store import ArtifactStore
from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.clickhouse.authority import Authority
from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.grants import Grants
from airflow_provider_dpone.clickhouse.leftovers import read_leftovers
from airflow_provider_dpone.clickhouse.load import Limits
from airflow_provider_dpone.clickhouse.progress import RunningQueries
from airflow_provider_dpone.clickhouse.replica_connections import ReplicaConnections
from airflow_provider_dpone.clickhouse.replica_staging import ClusterReplicaStaging
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.staging import ClusterStaging
from airflow_provider_dpone.clickhouse.targets import Unusable, read_targets
from airflow_provider_dpone.clickhouse.watching import Lookout
from airflow_provider_dpone.evidence.prune import PruneResult
from airflow_provider_dpone.evidence.prune import prune as run_prune
from airflow_provider_dpone.evidence.reader import EvidenceReader, clusters
from airflow_provider_dpone.evidence.store import EvidenceStore
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook, server_of
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.orphans import Orphan, find_orphans
from airflow_provider_dpone.publication.record import AuthorityRecord
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.watch import Look, Watch
from airflow_provider_dpone.routes.cluster_refresh import Site, TargetStatus, Waits, target_status
from airflow_provider_dpone.routes.cluster_refresh import explain as run_explain
from airflow_provider_dpone.routes.cluster_refresh.preflight import Finding, Preflight
from airflow_provider_dpone.routes.cluster_refresh.preflight import preflight as run_preflight
from airflow_provider_dpone.routes.ports import Log, Ports, Target
from airflow_provider_dpone.sources import Source
from airflow_provider_dpone.storage import artifact_root, evidence_root
from airflow_provider_dpone.values import ClusterRefresh

if TYPE_CHECKING:
    from airflow.sdk import Connection


class SystemClock:
    """Time of this machine."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class SystemRandom:
    """Randomness that nobody can foresee."""

    def hex(self, bits: int) -> str:
        """Return ``bits`` random bits as hex digits."""
        return secrets.token_hex(bits // 8)

    def uuid(self) -> str:
        """Return a random UUID."""
        return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Connected:
    """The ports of one task, on one connection."""

    server: Server
    ports: Ports
    site: Site
    control: ControlTable
    queue: DdlQueue
    running: RunningQueries

    @property
    def statements_sent(self) -> int:
        """How many statements for the whole cluster may have left this process."""
        return self.queue.sent

    def staging(self, refresh: ClusterRefresh, source: Source, load_seconds: float) -> ClusterStaging:
        """Return the adapter that builds and loads candidates.

        :param load_seconds: how long a server may be silent during a load.
        """
        return ClusterStaging(
            self.server,
            self.site.target,
            refresh,
            source,
            self.ports.log,
            control=self.control,
            limits=Limits(load=load_seconds),
            running=self.running,
        )

    @contextmanager
    def replica_staging(
        self, refresh: ClusterRefresh, source: Source, load_seconds: float
    ) -> Iterator[ClusterReplicaStaging]:
        """Return the adapter that stages independent replicas; its own connections are closed at the end.

        :param load_seconds: as for :meth:`staging`.
        :raises Stopped: ``BAD_INPUT``: an option can't be used.
        """
        with bad_input():
            root = artifact_root()
        staging = ClusterReplicaStaging(
            self.server,
            self.site.target,
            refresh,
            source,
            self.ports.log,
            lambda inventory: ReplicaConnections(self.server.settings, inventory),
            lambda key: ArtifactStore(root, refresh.cluster, key),
            control=self.control,
            limits=Limits(load=load_seconds),
            running=self.running,
        )
        with closing(staging):
            yield staging


@contextmanager
def connect(
    refresh: ClusterRefresh, *, writer: str, about: Mapping[str, Json], log: Log
) -> Iterator[Connected]:
    """Put the ports together for one target. Nothing is sent yet; idle connections are closed at the end.

    :param writer: names this execution in the evidence.
    :param about: what the evidence says about it, for people.
    :raises Stopped: ``BAD_INPUT``: the connection or an option can't be used.
    """
    target = Target(refresh.cluster, refresh.database, refresh.table)
    with bad_input():
        control = control_table()
        trail = evidence(refresh.cluster, writer=writer, about=about)
    with server(refresh.clickhouse_conn_id) as connection:
        yield _connected(
            connection,
            target,
            control,
            trail,
            log,
            internal_replication=refresh.replication_mode == "internal",
        )


@contextmanager
def server(conn_id: str, *, patience: float | None = None) -> Iterator[Server]:
    """Return the server of an Airflow connection, not connected yet; it is closed at the end.

    :param patience: for how many seconds a server may be silent at most, whatever the connection says.
    :raises Stopped: ``BAD_INPUT``: the connection can't be used.
    """
    with bad_input():
        hook = DponeClickHouseHook(conn_id)
        found = hook.get_conn() if patience is None else hook.hurried(patience)
    try:
        yield found
    finally:
        found.close()


def look(connection: Connection, watches: Collection[Watch]) -> Mapping[Watch, Look]:
    """Look once at all publications that wait on a connection.

    :raises Stopped: ``BAD_INPUT``: the connection or an option can't be used; otherwise as
        :meth:`Lookout.look`.
    """
    with bad_input():
        found, control = server_of(connection), control_table()
    try:
        return Lookout(found, control).look(watches)
    finally:
        found.close()


def preflight(server: Server, target: Target, *, internal_replication: bool, from_file: bool) -> Preflight:
    """Run every check of the admission against one target, and whether evidence could be written.

    :param from_file: the source is a file.
    :raises Stopped: ``BAD_INPUT``: an option can't be used.
    """
    with bad_input():
        control = control_table()
    grants = Grants(server, target, control, independent=not internal_replication)
    found = run_preflight(
        Catalog(server, target, control, internal_replication=internal_replication),
        grants,
        Site(target, user=server.user, control_structure=control.structure),
        from_file=from_file,
        direct=None if internal_replication else _DirectChecks(server, grants),
    )
    places = [_shared_place("the evidence has a place that all workers share", evidence_root)]
    if not internal_replication:
        places.append(_shared_place("the artifacts have a place that all workers share", artifact_root))
    return replace(found, findings=(*found.findings, *places))


def _shared_place(name: str, root: Callable[[], object]) -> Finding:
    try:
        with bad_input():
            root()
    except Stopped as stopped:
        return Finding(name, stopped.stop)
    return Finding(name, None)


@dataclass(frozen=True, slots=True)
class _DirectChecks:
    """What is asked of every independent replica by itself; implements ``preflight.Direct``."""

    server: Server
    grants: Grants

    def __call__(self, observation: Observation, *, table_functions: bool) -> Iterator[Finding]:
        reached = "every replica is reached by a connection of its own"
        try:
            with bad_input():
                connections = ReplicaConnections(self.server.settings, observation.inventory)
        except Stopped as stopped:
            yield Finding(reached, stopped.stop)
            return
        with closing(connections):
            try:
                servers = connections.prove(observation)
            except Stopped as stopped:
                yield Finding(reached, stopped.stop)
                return
            yield Finding(reached, None, ", ".join(servers))
            granted = "the user has every grant on each replica"
            try:
                yield Finding(granted, self.grants.check_directly(servers, table_functions=table_functions))
            except Stopped as stopped:
                yield Finding(granted, stopped.stop)


def status(server: Server, cluster: str) -> tuple[TargetStatus | Unusable, ...]:
    """Return how every target of a cluster stands now. Reads only.

    :raises Stopped: the control table can't be read; ``BAD_INPUT``: an option can't be used.
    """
    with bad_input():
        control = control_table()
    return tuple(
        found
        if isinstance(found, Unusable)
        else target_status(
            Catalog(
                server,
                Target(found.cluster, found.database, found.table),
                control,
                internal_replication=None,
                fewest_replicas=1,
            ),
            found,
        )
        for found in read_targets(server, control, cluster)
    )


def orphans(server: Server, cluster: str) -> tuple[Orphan, ...]:
    """Return the tables of this provider on a cluster that no record needs. Reads only.

    :raises Stopped: a replica or the control table can't be read; ``BAD_INPUT``: an option can't be used.
    """
    with bad_input():
        control = control_table()
    # The tables come first: a record that is written later can only need more of them.
    tables, now = read_leftovers(server, cluster)
    target = Target(cluster, control.database, control.name)
    seen = Catalog(server, target, control, internal_replication=None, fewest_replicas=1).observe([])
    if seen.authority_id is None:
        raise Stopped(
            Stop(Code.CONTROL_TABLE_MISSING, "The control table has no authority, so nothing is known.")
        )
    records = read_targets(server, control, cluster)
    return find_orphans(
        tables,
        # A stage task from before a recovery may have left a record under a key that nobody reads.
        [r for r in records if not isinstance(r, Unusable) and r.authority_id == seen.authority_id],
        authority_ids=(seen.authority_id, *sorted(seen.adopted)),
        unreadable_keys={record.key for record in records if isinstance(record, Unusable)},
        now=now,
        independent=seen.independent,
    )


def explain(server: Server, target: Target) -> Explanation:
    """Explain one target, as the command and the page show it. Reads only.

    Where the control table or the cluster can't be read, it is explained from the evidence.

    :raises Stopped: ``UNKNOWN_CLUSTER``; ``CAS_CONFLICT``: it moves too fast; ``BAD_INPUT``: an option can't be used.
    """
    with bad_input():
        control = control_table()
        trail = evidence(target.cluster, writer="explain")
        reader = evidence_reader(target.cluster)
    catalog = Catalog(server, target, control, internal_replication=None, fewest_replicas=1)
    return run_explain(
        catalog,
        DdlQueue(server),
        trail,
        Site(target, user=server.user, control_structure=control.structure),
        DdlQueue(server),
        reader,
        catalog,
    )


@contextmanager
def operator_ports(
    conn_id: str, target: Target, *, about: Mapping[str, Json], log: Log
) -> Iterator[Connected]:
    """Put the ports together for an operator's command on one target, with either replication mode.

    :param about: what the evidence says about the operator.
    :raises Stopped: ``BAD_INPUT``: the connection or an option can't be used.
    """
    with bad_input():
        control = control_table()
        trail = evidence(target.cluster, writer="operator", about=about)
    with server(conn_id) as connection:
        yield _connected(
            connection, target, control, trail, log, internal_replication=None, fewest_replicas=1
        )


def _connected(
    connection: Server,
    target: Target,
    control: ControlTable,
    trail: EvidenceStore,
    log: Log,
    *,
    internal_replication: bool | None,
    fewest_replicas: int = 2,
) -> Connected:
    queue, running = DdlQueue(connection), RunningQueries()
    return Connected(
        connection,
        Ports(
            catalog=Catalog(
                connection,
                target,
                control,
                internal_replication=internal_replication,
                fewest_replicas=fewest_replicas,
                running=running,
            ),
            authority=Authority(connection, target.cluster, control),
            queue=queue,
            evidence=trail,
            clock=SystemClock(),
            random=SystemRandom(),
            log=log,
        ),
        Site(target, user=connection.user, control_structure=control.structure),
        control,
        queue,
        running,
    )


def evidence(cluster: str, *, writer: str, about: Mapping[str, Json] | None = None) -> EvidenceStore:
    """Return the evidence of a cluster's operations.

    :raises ValueError: its folder can't be used, as the option stands.
    """
    return EvidenceStore(evidence_root(), cluster=cluster, writer=writer, about=about)


def evidence_readers() -> dict[str, EvidenceReader]:
    """Return what reads the evidence, for each cluster that has some.

    :raises ValueError: its folder can't be used, as the option stands.
    :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
    """
    root = evidence_root()
    return {cluster: EvidenceReader(root, cluster) for cluster in clusters(root)}


def evidence_reader(cluster: str) -> EvidenceReader:
    """Return what reads the evidence of a cluster.

    :raises ValueError: its folder can't be used, as the option stands.
    """
    return EvidenceReader(evidence_root(), cluster)


def prune_evidence(
    server: Server, cluster: str, *, older_than: timedelta, dry_run: bool, about: Mapping[str, Json]
) -> PruneResult:
    """Delete the trails of operations that ended long ago and that nothing on the cluster needs.

    :param about: what the evidence says about the operator.
    :raises Stopped: ``BAD_INPUT``: an option can't be used; ``RECORD_INVALID`` and ``RECORD_NEWER``: a record
        can't be read, so it is not known what it needs; otherwise as what it reads.
    """
    with bad_input():
        control = control_table()
        trail = evidence(cluster, writer="prune", about=about)
        reader = evidence_reader(cluster)
    records: list[AuthorityRecord] = []
    for found in read_targets(server, control, cluster):
        if isinstance(found, Unusable):
            raise Stopped(found.stop)
        records.append(found)

    def existing(database: str, names: Collection[str]) -> frozenset[str] | None:
        # Which target it is doesn't matter: only the named tables are looked at.
        catalog = Catalog(server, Target(cluster, database, ""), control, internal_replication=None)
        seen = catalog.observe(names)
        if seen.unread or not all(facts.sees_database for facts in seen.replicas.values()):
            return None
        return frozenset(name for facts in seen.replicas.values() for name in facts.tables)

    with bad_input():
        return run_prune(reader, trail, tuple(records), existing, older_than=older_than, dry_run=dry_run)


def control_table() -> ControlTable:
    """Return the control table that the options name.

    :raises ValueError: a name can't be one.
    """
    return ControlTable(options.text(options.CONTROL_DATABASE), options.text(options.CONTROL_TABLE))


def waits(*, publish: timedelta | None = None, busy: timedelta | None = timedelta(0)) -> Waits:
    """Return how long things may take, from the options where the task says nothing.

    :param busy: ``None``: as the option says; zero: don't wait.
    :raises ValueError: an option makes no sense.
    """
    return Waits(
        ready=options.seconds(options.READY_TIMEOUT),
        publish=_or_option(publish, options.PUBLISH_TIMEOUT),
        cleanup=options.seconds(options.CLEANUP_TIMEOUT),
        busy=_or_option(busy, options.BUSY_TIMEOUT),
    )


def patience_in_worker() -> float:
    """Return for how many seconds a deferrable task waits before it defers.

    :raises ValueError: the option makes no sense.
    """
    return options.seconds(options.MIN_DEFER_SECONDS)


def load_seconds(given: timedelta | None) -> float:
    """Return how long a server may be silent during a load.

    :raises ValueError: the option makes no sense.
    """
    return _or_option(given, options.LOAD_TIMEOUT)


def _or_option(given: timedelta | None, option: options.Option) -> float:
    return options.seconds(option) if given is None else given.total_seconds()
