"""A connection to each replica: where it leads, and the proof that it does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dpone.clickhouse import replica_connections
from airflow_provider_dpone.clickhouse.errors import ReplyLost, ServerError
from airflow_provider_dpone.clickhouse.replica_connections import ReplicaConnections, replica_endpoints
from airflow_provider_dpone.clickhouse.replicas import server_identity
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.inventory import Inventory, Member
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from tests.unit.builders import inventory, observation
from tests.unit.test_server import (
    SECRET,
    Behaviour,
    FakeServer,
    answer,
    clickhouse_error,
    fake,
    free_port,
    hang_up,
)

USER = "app"
LOCAL = "127.0.0.1"
CREATE = "CREATE TABLE d.t (a UInt8) ENGINE = MergeTree ORDER BY a"


def who(number: int, *, user: str = USER, uuid: str | None = None, name: str | None = None) -> Behaviour:
    """The answer of replica ``number`` to the question who it is."""
    fields = {
        "uuid": f"00000000-0000-4000-8000-{number:012}" if uuid is None else uuid,
        "host": f"host{number}",
        "port": "9000",
        "version": "26.9.2.1",
    }
    rows = [
        [0, part, [text for pair in one.items() for text in pair]]
        for part, one in (("server", fields), ("user", {"user": user}))
    ]
    document = {"meta": [{"name": column} for column in ("replica", "part", "fields")], "data": rows}
    return answer(json.dumps(document), headers={"X-ClickHouse-Server-Display-Name": name or f"n{number}"})


def identity(number: int) -> str:
    return server_identity({"uuid": f"00000000-0000-4000-8000-{number:012}", "host": "", "port": ""})


def seen(replicas: int = 2) -> Observation:
    """A look at replicas whose servers are those of :func:`who`."""
    found = observation(None, *[{}] * replicas)
    return replace(
        found,
        replicas={
            alias: replace(facts, server=identity(number))
            for number, (alias, facts) in enumerate(found.replicas.items(), start=1)
        },
    )


def settings(*ports: int, **more: Any) -> ConnectionSettings:
    """A connection with a map of replicas to ports of this machine."""
    given: dict[str, Any] = {
        "hosts": (("ch.example.com", 8123),),
        "user": USER,
        "password": SECRET,
        "connect_timeout": 2.0,
        "replicas": {f"s1/r{number}": (LOCAL, port) for number, port in enumerate(ports, start=1)},
    }
    return ConnectionSettings(**(given | more))


@contextmanager
def servers(*behaviours: tuple[Behaviour, ...]) -> Iterator[list[FakeServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(fake(*each)) for each in behaviours]


def connections(found: list[FakeServer], **more: Any) -> ReplicaConnections:
    return ReplicaConnections(settings(*(server.port for server in found), **more), inventory(len(found)))


def refused(connected: ReplicaConnections, looked: Observation | None = None) -> Stop:
    with closing(connected), pytest.raises(Stopped) as caught:
        connected.prove(looked or seen())
    said = str(caught.value) + json.dumps(caught.value.stop.as_json())
    for hidden in (LOCAL, "example", "host1", "host2", SECRET, "n1", "n2"):
        assert hidden not in said
    return caught.value.stop


# ---- where each replica is


def test_a_replica_is_looked_for_under_its_name_at_the_connections_port() -> None:
    found = replica_endpoints(settings(hosts=(("lb", 8443), ("other", 8123))), inventory(3))
    assert found == {"s1/r1": ("host1", 8443), "s1/r2": ("host2", 8443), "s1/r3": ("host3", 8443)}


def test_the_map_says_where_each_replica_is_in_the_clusters_order() -> None:
    given = {"s1/r2": ("ch2", 1), "s1/r1": ("::1", 2)}
    found = replica_endpoints(settings(replicas=given), inventory())
    assert list(found.items()) == [("s1/r1", ("::1", 2)), ("s1/r2", ("ch2", 1))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"s1/r1": ("ch1", 1)}, "every replica of cluster 'analytics'; s1/r2 is missing"),
        (
            {"s1/r1": ("ch1", 1), "s1/r2": ("ch2", 1), "s2/r1": ("ch3", 1)},
            "names s2/r1, which cluster 'analytics'",
        ),
        ({"s1/r1": ("ch1", 1), "s1/r2": ("CH1", 1)}, "gives one address to s1/r1, s1/r2"),
    ],
)
def test_a_map_that_is_not_one_of_this_clusters_replicas_is_refused(
    given: dict[str, tuple[str, int]], said: str
) -> None:
    with pytest.raises(ValueError, match="extra 'replicas'") as caught:
        ReplicaConnections(settings(replicas=given), inventory())
    assert said in str(caught.value)
    assert "ch1" not in str(caught.value).lower()


def test_replicas_with_one_host_name_need_a_map() -> None:
    members = tuple(Member(1, number, "same.example.com", 9000 + number, False) for number in (1, 2))
    with pytest.raises(
        ValueError, match=r"one host name for s1/r1, s1/r2 of cluster 'c': give .* 'replicas'"
    ) as caught:
        ReplicaConnections(settings(), Inventory("c", members))
    assert "same" not in str(caught.value)
    mapped = settings(replicas={"s1/r1": ("a", 1), "s1/r2": ("a", 2)})
    assert replica_endpoints(mapped, Inventory("c", members)) == mapped.replicas


def test_a_certificate_file_that_is_missing_is_named_by_its_key() -> None:
    with pytest.raises(ValueError, match="check ca_cert"):
        ReplicaConnections(settings(secure=True, ca_cert="/no/such/ca.pem"), inventory())


def test_nothing_connects_before_it_is_needed() -> None:
    with servers((who(1),), (who(2),)) as found:
        connections(found).close()
        assert [server.connections for server in found] == [0, 0]


def test_nothing_shows_hosts_or_secrets() -> None:
    assert repr(ReplicaConnections(settings(), inventory())) == "ReplicaConnections(s1/r1, s1/r2)"


# ---- the proof


def test_every_replica_is_asked_and_returned_in_order() -> None:
    with (
        servers((who(1),), (who(2),)) as found,
        closing(connections(found, session_settings={"a": "1"})) as connected,
    ):
        proven = connected.prove(seen())
        assert list(proven) == ["s1/r1", "s1/r2"]
        assert [len(server.requests) for server in found] == [1, 1]
    for server in found:
        [heard] = server.requests
        assert (heard.headers["x-clickhouse-user"], heard.headers["x-clickhouse-key"]) == (USER, SECRET)
        assert heard.url_parameters["a"] == "1"


def test_everything_but_the_address_is_the_connections() -> None:
    given = settings(
        secure=True,
        verify=False,
        read_timeout=7.0,
        session_settings={"a": "1"},
        replicas={"s1/r1": ("ch1", 1), "s1/r2": ("ch2", 2)},
    )
    found = [
        replace(given, hosts=(endpoint,), replicas={})
        for endpoint in replica_endpoints(given, inventory()).values()
    ]
    with pytest.MonkeyPatch.context() as patch:
        made: list[ConnectionSettings] = []
        patch.setattr(replica_connections, "Server", made.append)
        ReplicaConnections(given, inventory())
    assert made == found


def test_each_one_has_a_single_host() -> None:
    with servers((who(1), hang_up), (who(2),)) as found, closing(connections(found)) as connected:
        server = connected.prove(seen())["s1/r1"]
        before = found[1].connections
        with pytest.raises(ReplyLost):
            server.read("SELECT 1")
        with pytest.raises(ReplyLost):
            server.once(CREATE)
        assert found[1].connections == before
        assert connected.mutations == server.mutations == 1


def test_swapped_connections_are_told_by_alias() -> None:
    with servers((who(2),), (who(1),)) as found:
        stop = refused(connections(found))
    assert stop.code is Code.REPLICA_CONNECTION_WRONG
    assert stop.category is Category.REFUSED
    assert "that of s1/r1 leads to s1/r2, that of s1/r2 leads to s1/r1" in stop.message
    assert list(stop.replicas) == ["s1/r1", "s1/r2"]


def test_a_server_of_another_cluster_is_refused() -> None:
    with servers((who(1),), (who(7),)) as found:
        stop = refused(connections(found))
    assert stop.code is Code.REPLICA_CONNECTION_WRONG
    assert "that of s1/r2 leads to a server that is none of the replicas" in stop.message


def test_another_user_is_refused() -> None:
    with servers((who(1),), (who(2, user="else"),)) as found:
        stop = refused(connections(found))
    assert stop.code is Code.REPLICA_CONNECTION_WRONG
    assert "that of s1/r2 logs in as another user" in stop.message


def test_without_a_server_uuid_name_and_port_tell_servers_apart() -> None:
    nil = "00000000-0000-0000-0000-000000000000"
    looked = seen()
    for number, facts in enumerate(looked.replicas.values(), start=1):
        by_name = server_identity({"uuid": nil, "host": f"host{number}", "port": "9000"})
        looked = replace(looked, replicas={**looked.replicas, facts.alias: replace(facts, server=by_name)})
    with servers((who(1, uuid=nil),), (who(2, uuid=nil),)) as found, closing(connections(found)) as connected:
        assert len(connected.prove(looked)) == 2
    with servers((who(2, uuid=nil),), (who(1, uuid=nil),)) as found:
        assert refused(connections(found), looked).code is Code.REPLICA_CONNECTION_WRONG


@pytest.mark.parametrize("behaviour", [hang_up, answer("not from ClickHouse", "502 Bad Gateway")])
def test_a_replica_that_gives_no_answer_is_named(behaviour: Behaviour) -> None:
    with servers((who(1),), (behaviour,)) as found:
        stop = refused(connections(found))
    assert stop.code is Code.REPLICA_UNAVAILABLE
    assert stop.message.startswith("s1/r2 can't be reached directly")
    assert list(stop.replicas) == ["s1/r2"]


def test_all_that_can_not_be_reached_are_named_and_the_way_out_depends_on_the_map() -> None:
    stop = refused(ReplicaConnections(settings(free_port(), free_port()), inventory()))
    assert stop.message.startswith("s1/r1, s1/r2 can't")
    assert "correct its address in 'replicas'" in stop.next_action
    members = tuple(Member(1, number, f"no-such-{number}.invalid", 9000, False) for number in (1, 2))
    elsewhere = Inventory("c", members)
    stop = refused(ReplicaConnections(settings(), elsewhere), replace(seen(), inventory=elsewhere))
    assert stop.code is Code.REPLICA_UNAVAILABLE
    assert "give the address of each replica in 'replicas' of the connection's extra" in stop.next_action


def test_a_wrong_connection_counts_more_than_one_that_is_down() -> None:
    with servers((who(2),)) as found:
        connected = ReplicaConnections(settings(found[0].port, free_port()), inventory())
        assert refused(connected).code is Code.REPLICA_CONNECTION_WRONG


def test_an_error_of_the_server_is_no_proof() -> None:
    error = clickhouse_error(516, "AUTHENTICATION_FAILED", f"app: {SECRET} is wrong")
    with servers((who(1),), (error,)) as found:
        stop = refused(connections(found))
    assert stop.code is Code.SERVER_ERROR
    assert "Asking s1/r2 directly" in stop.message


def test_only_a_look_at_these_replicas_and_at_all_of_them_proves_anything() -> None:
    with servers((who(1),), (who(2),)) as found:
        assert refused(connections(found), seen(3)).code is Code.INVENTORY_DRIFT
        looked = replace(seen(), replicas={"s1/r1": seen().replicas["s1/r1"]})
        stop = refused(connections(found), looked)
        assert (stop.code, stop.message[:5]) == (Code.REPLICA_NOT_OBSERVED, "s1/r2")
        assert [server.connections for server in found] == [0, 0]


# ---- after the proof


def test_what_another_server_answers_later_is_a_lost_reply() -> None:
    """Behind a load balancer, the server that was asked need not be the one that is told."""
    error = clickhouse_error(60, "UNKNOWN_TABLE", "no such table")
    with servers((who(1), answer("")), (who(2), error)) as found, closing(connections(found)) as connected:
        proven = connected.prove(seen())
        for server in proven.values():
            # Both answer as "fake" now.
            with pytest.raises(ReplyLost, match="not the server that this connection is bound to"):
                server.once(CREATE)
        assert connected.mutations == 2


def test_the_proof_can_be_made_again() -> None:
    with servers((who(1),), (who(2),)) as found, closing(connections(found)) as connected:
        assert connected.prove(seen()) == connected.prove(seen())


def test_a_proof_that_fails_does_not_widen_an_earlier_one() -> None:
    with (
        servers((who(1), who(1, name="n3"), answer("")), (who(2),)) as found,
        closing(connections(found)) as connected,
    ):
        server = connected.prove(seen())["s1/r1"]
        with pytest.raises(Stopped):
            connected.prove(seen())
        with pytest.raises(ReplyLost, match="bound"):
            server.once(CREATE)


def test_one_thread_for_each_replica() -> None:
    with (
        servers(
            (who(1), answer("", headers={"X-ClickHouse-Server-Display-Name": "n1"})),
            (who(2), answer("", headers={"X-ClickHouse-Server-Display-Name": "n2"})),
        ) as found,
        closing(connections(found)) as connected,
    ):
        proven = connected.prove(seen())
        threads = [
            threading.Thread(target=lambda server=server: [server.once(CREATE) for _ in range(20)])
            for server in proven.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert connected.mutations == 40
        assert [len(server.requests) for server in found] == [21, 21]


# ---- a server that is bound


def test_a_bound_server_reads_only_from_its_own() -> None:
    with fake(who(1), who(1), who(2)) as found:
        server = Server(ConnectionSettings(((LOCAL, found.port),)))
        server.bind("n1")
        with closing(server):
            assert server.read("SELECT 1").server_name == "n1"


def test_an_error_counts_only_from_the_server_that_is_bound() -> None:
    error = clickhouse_error(60, "UNKNOWN_TABLE", "no such table")
    with fake(error) as found, closing(Server(ConnectionSettings(((LOCAL, found.port),)))) as server:
        server.bind("fake")
        with pytest.raises(ServerError):
            server.read("SELECT 1")
        server.bind("another")
        with pytest.raises(ReplyLost):
            server.read("SELECT 1")
