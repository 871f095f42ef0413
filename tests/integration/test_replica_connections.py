"""A connection to each replica of a real cluster of independent tables."""

from __future__ import annotations

import json
import logging
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from airflow.sdk import Connection

from airflow_provider_dpone.clickhouse.errors import ReplyLost
from airflow_provider_dpone.clickhouse.replica_connections import ReplicaConnections
from airflow_provider_dpone.hooks.clickhouse import connection_settings
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from tests.cluster import APP_PASSWORD, APP_USER, Endpoint, LocalCluster
from tests.cluster.spec import LOCALHOST
from tests.integration.external_site import ExternalSite, external_site, init

pytestmark = pytest.mark.cluster


@pytest.fixture
def site(cluster: LocalCluster) -> Iterator[ExternalSite]:
    with external_site(cluster) as found:
        yield found


def refused(site: ExternalSite, connections: ReplicaConnections, seen: Observation) -> Stop:
    """Expect a stop before anything but the question who it is was sent, and without a host or a secret."""
    since = site.cluster.last_statement()
    with pytest.raises(Stopped) as caught:
        connections.prove(seen)
    said = "".join(traceback.format_exception(caught.value)) + json.dumps(caught.value.stop.as_json())
    ports = [str(port) for _, port in (*site.cluster.endpoints, *site.cluster.direct_tcp)]
    for hidden in (LOCALHOST, "localhost", socket.gethostname(), APP_PASSWORD, *ports):
        assert hidden not in said
    assert {one.kind for one in site.cluster.statements(since=since)} <= {"SELECT"}
    assert connections.mutations == 0
    return caught.value.stop


def create_and_load(connections: ReplicaConnections, site: ExternalSite, seen: Observation) -> None:
    """Create a table on each replica and fill it, all at once."""

    def work(alias: str, number: int) -> None:
        server = proven[alias]
        server.once(f"CREATE TABLE {site.database}.t{number} (a UInt64) ENGINE = MergeTree ORDER BY a")
        server.once(f"INSERT INTO {site.database}.t{number} FORMAT TSV", body=iter([b"1\n", b"2\n"]))

    proven = connections.prove(seen)
    threads = [
        threading.Thread(target=work, args=(alias, number)) for number, alias in enumerate(proven, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def tables(site: ExternalSite) -> list[list[str]]:
    """The tables of each node."""
    query = f"SELECT name FROM system.tables WHERE database = '{site.database}' ORDER BY name"
    return [[row["name"] for row in site.cluster.query(query, node=node)] for node in site.cluster.nodes]


# ---- where it leads


def test_each_replica_is_written_to_by_itself(site: ExternalSite) -> None:
    seen = site.observe()
    with site.connections(seen) as connections:
        create_and_load(connections, site, seen)
        assert connections.mutations == 4
    assert tables(site) == [["t1"], ["t2"]]
    for node in site.cluster.nodes:
        assert site.cluster.scalar(f"SELECT sum(a) FROM {site.database}.t{node}", node=node) == 3


def test_the_map_of_an_airflow_connection(site: ExternalSite) -> None:
    extra = {"replicas": {alias: str(endpoint) for alias, endpoint in site.replicas.items()}}
    host, port = site.cluster.load_balancer
    connection = Connection(
        conn_id="ch",
        conn_type="dpone_clickhouse",
        host=host,
        port=port,
        login=APP_USER,
        password=APP_PASSWORD,
        extra=json.dumps(extra),
    )
    seen = site.observe()
    connections = ReplicaConnections(connection_settings(connection), seen.inventory)
    names = [server.read("SELECT 1").server_name for server in connections.prove(seen).values()]
    connections.close()
    assert names == ["n1", "n2"]


def test_a_swapped_map_is_refused_before_anything_is_changed(site: ExternalSite) -> None:
    seen = site.observe()
    swapped = dict(zip(site.aliases, reversed(site.cluster.endpoints), strict=True))
    with site.connections(seen, swapped) as connections:
        stop = refused(site, connections, seen)
    assert stop.code is Code.REPLICA_CONNECTION_WRONG
    assert "that of s1/r1 leads to s1/r2, that of s1/r2 leads to s1/r1" in stop.message
    assert tables(site) == [[], []]


def test_two_ways_to_one_server_are_refused(site: ExternalSite) -> None:
    seen = site.observe()
    to_first = {"s1/r1": site.cluster.endpoints[0], "s1/r2": site.cluster.direct_http[0]}
    with site.connections(seen, to_first) as connections:
        stop = refused(site, connections, seen)
    assert stop.code is Code.REPLICA_CONNECTION_WRONG
    assert list(stop.replicas) == ["s1/r2"]


def test_a_server_of_another_cluster_is_refused(site: ExternalSite) -> None:
    seen = site.observe()
    with LocalCluster() as other:
        elsewhere = {**site.replicas, "s1/r2": other.endpoints[1]}
        with site.connections(seen, elsewhere) as connections:
            stop = refused(site, connections, seen)
    assert stop.code is Code.REPLICA_CONNECTION_WRONG
    assert "that of s1/r2 leads to a server that is none of the replicas" in stop.message


def test_a_replica_that_is_down_is_named(site: ExternalSite) -> None:
    seen = site.observe()
    site.cluster.kill_node(2)
    with site.connections(seen) as connections:
        stop = refused(site, connections, seen)
    assert stop.code is Code.REPLICA_UNAVAILABLE
    assert stop.message.startswith("s1/r2 can't be reached directly")
    site.cluster.heal()
    with site.connections(seen) as connections:
        assert list(connections.prove(seen)) == ["s1/r1", "s1/r2"]


def test_the_native_port_is_no_way_to_a_replica(site: ExternalSite) -> None:
    seen = site.observe()
    native = {**site.replicas, "s1/r1": site.cluster.direct_tcp[0]}
    with site.connections(seen, native) as connections:
        stop = refused(site, connections, seen)
    assert (stop.code, list(stop.replicas)) == (Code.REPLICA_UNAVAILABLE, ["s1/r1"])


def test_a_wrong_password_is_no_proof(site: ExternalSite) -> None:
    seen = site.observe()
    settings = replace(site.settings(), password="s3cret-and-wrong")
    connections = ReplicaConnections(settings, seen.inventory)
    stop = refused(site, connections, seen)
    connections.close()
    assert stop.code is Code.SERVER_ERROR
    assert "516 AUTHENTICATION_FAILED" in stop.message


def test_replicas_on_one_host_need_a_map(site: ExternalSite) -> None:
    seen = site.observe()
    with (
        pytest.raises(ValueError, match="one host name for s1/r1, s1/r2") as caught,
        site.connections(seen, {}),
    ):
        pass
    assert LOCALHOST not in str(caught.value)


# ---- by the cluster's own names


@contextmanager
def relay(listen: Endpoint, target: Endpoint) -> Iterator[Endpoint]:
    """Pass connections on to another port; yields where it listens."""
    listener = socket.create_server(listen)

    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(target)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield Endpoint(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def own_hosts(site: ExternalSite, targets: Sequence[Endpoint]) -> Iterator[tuple[Observation, int]]:
    """A look at the replicas as if each had a host of its own, with one HTTP port for all; yields that port, too."""
    seen = site.observe()
    hosts = [f"127.0.0.{10 + node}" for node in site.cluster.nodes]
    with ExitStack() as stack:
        port = 0
        for host, target in zip(hosts, targets, strict=True):
            port = stack.enter_context(relay(Endpoint(host, port), target)).port
        members = tuple(
            replace(member, host_name=host)
            for member, host in zip(seen.inventory.members, hosts, strict=True)
        )
        yield replace(seen, inventory=replace(seen.inventory, members=members)), port


def by_name(site: ExternalSite, seen: Observation, port: int) -> ReplicaConnections:
    settings = replace(site.settings({}), hosts=((LOCALHOST, port),))
    return ReplicaConnections(settings, seen.inventory)


def test_without_a_map_the_clusters_own_names_are_used(site: ExternalSite) -> None:
    with own_hosts(site, site.cluster.endpoints) as (seen, port):
        connections = by_name(site, seen, port)
        create_and_load(connections, site, seen)
        connections.close()
    assert tables(site) == [["t1"], ["t2"]]


def test_names_that_lead_to_the_other_one_are_refused(site: ExternalSite) -> None:
    with own_hosts(site, site.cluster.endpoints[::-1]) as (seen, port):
        connections = by_name(site, seen, port)
        assert refused(site, connections, seen).code is Code.REPLICA_CONNECTION_WRONG
        connections.close()


def test_names_that_lead_nowhere_ask_for_a_map(site: ExternalSite) -> None:
    with own_hosts(site, site.cluster.endpoints) as (seen, port):
        connections = by_name(site, seen, port)
    stop = refused(site, connections, seen)
    connections.close()
    assert (stop.code, list(stop.replicas)) == (Code.REPLICA_UNAVAILABLE, ["s1/r1", "s1/r2"])
    assert "give the address of each replica in 'replicas'" in stop.next_action


# ---- a load balancer in between


def test_what_another_server_answers_through_a_load_balancer_is_a_lost_reply(site: ExternalSite) -> None:
    """Each address was proven, by chance, since the balancer takes another server each time."""
    seen = site.observe()
    balancer = site.cluster.load_balancer
    with (
        relay(Endpoint(LOCALHOST, 0), balancer) as also,
        site.connections(seen, {"s1/r1": balancer, "s1/r2": also}) as connections,
    ):
        try:
            proven = connections.prove(seen)
        except Stopped:  # its turn was the other one's
            site.cluster.query("SELECT 1", node="load_balancer")
            proven = connections.prove(seen)
        server = proven["s1/r1"]
        server.once(f"CREATE TABLE {site.database}.a (a UInt8) ENGINE = MergeTree ORDER BY a")
        with pytest.raises(ReplyLost, match="bound"):
            server.once(f"CREATE TABLE {site.database}.b (a UInt8) ENGINE = MergeTree ORDER BY a")
    assert tables(site) == [["a"], ["b"]]


# ---- the log


def test_no_line_of_ours_has_a_host_or_the_password(
    site: ExternalSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = site.observe()
    with site.connections(seen) as connections:
        create_and_load(connections, site, seen)
    for line in caplog.records:
        assert APP_PASSWORD not in line.getMessage()
        # The library's own lines of this level have the address, as docs/connections.md says.
        assert line.name == "urllib3.connectionpool" or LOCALHOST not in line.getMessage()


# ---- the site itself


def test_one_control_table_serves_both_clusters(site: ExternalSite) -> None:
    again = init(site.cluster)
    assert again.statements == ()
    seen = site.observe("orders")
    assert seen.authority_id == again.authority_id
    assert {facts.control.sentinel for facts in seen.replicas.values()} == {again.authority_id}
    assert [member.internal_replication for member in seen.inventory.members] == [False, False]


def test_the_sites_tables_have_another_uuid_on_each_replica(site: ExternalSite) -> None:
    created = site.create("orders", rows=3)
    facts = [one.tables["orders"] for one in site.observe("orders").replicas.values()]
    assert [one.uuid for one in facts] == created == site.uuids("orders")
    assert len({*created}) == 2
    assert [(one.rows, one.engine_refusal) for one in facts] == [(3, None), (3, None)]
    assert len({one.schema_digest for one in facts}) == 1
