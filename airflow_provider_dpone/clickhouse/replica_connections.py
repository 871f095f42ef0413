"""A connection of its own to every replica, for what each of them must be told directly.

A cluster whose tables don't replicate themselves is loaded replica by replica, so here it matters which
server answers. An address proves nothing about that: names are reused, maps go stale, and load balancers
stand in between. Each server is therefore asked who it is, and must be the one that answered under the same
alias when all replicas were looked at. Only then is there anything to write through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError, stopped
from airflow_provider_dpone.clickhouse.replicas import (
    READ_SETTINGS,
    Answers,
    from_contacted,
    section,
    server_identity,
    server_section,
)
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped

PROOF_TIMEOUT: Final = 20.0
"""How many seconds a replica may take to say who it is."""

_WHO: Final = from_contacted(
    [server_section(), section("user", {"user": "currentUser()"}, "FROM system.one")],
)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Who answers at a replica's address.

    :ivar server: as in :class:`ReplicaFacts`.
    :ivar name: how the server calls itself in its replies.
    """

    server: str
    user: str
    name: str


class ReplicaConnections:
    """One :class:`Server` per replica, each with a single address, and all with the connection's user and TLS.

    A replica is looked for under its own name in ``system.clusters``, at the HTTP port of the connection's
    first host, unless the connection's extra ``replicas`` says where each of them is.

    One thread may work with each replica's server; :meth:`prove` and :meth:`close` are for one thread alone.
    """

    def __init__(self, settings: ConnectionSettings, inventory: Inventory) -> None:
        """Prepare; nothing is connected yet.

        :raises ValueError: it isn't clear where each replica is, or a certificate file can't be loaded. The text
            names no host.
        """
        self._inventory = inventory
        self._user = settings.user
        self._mapped = bool(settings.replicas)
        endpoints = replica_endpoints(settings, inventory)
        try:
            self._servers = {
                alias: Server(replace(settings, hosts=(endpoint,), replicas={}))
                for alias, endpoint in endpoints.items()
            }
        except OSError as error:
            raise ValueError(
                f"a certificate file of the connection can't be loaded ({type(error).__name__}): check ca_cert, "
                "client_cert and client_cert_key"
            ) from None

    def __repr__(self) -> str:
        return f"ReplicaConnections({', '.join(self._servers)})"

    @property
    def mutations(self) -> int:
        """How many requests that change something have left (in whole or in part) so far."""
        return sum(server.mutations for server in self._servers.values())

    def prove(self, observation: Observation) -> Mapping[str, Server]:
        """Prove that each connection leads to its replica, and return them by alias, in the inventory's order.

        From here on, what another server answers on one of them is a lost reply.

        :param observation: what told which server each replica is.
        :raises Stopped: ``REPLICA_CONNECTION_WRONG``: one leads elsewhere, or logs in as another user;
            ``REPLICA_UNAVAILABLE``: one leads nowhere; ``INVENTORY_DRIFT`` or ``REPLICA_NOT_OBSERVED``: the
            observation is of other replicas, or not of all; ``SERVER_ERROR``: a server refused to answer.
        """
        self._require_all(observation)
        answers: dict[str, _Answer] = {}
        silent: dict[str, str] = {}
        for alias, server in self._servers.items():
            try:
                answers[alias] = _ask(alias, server)
            except (ConnectFailed, ReplyLost) as error:
                silent[alias] = str(error)
        wrong = {
            alias: said
            for alias, answer in answers.items()
            if (said := self._contradiction(alias, answer, observation))
        }
        if wrong:
            raise Stopped(_wrong(wrong))
        if silent:
            raise Stopped(self._unavailable(silent))
        for alias, answer in answers.items():
            self._servers[alias].bind(answer.name)
        return MappingProxyType(self._servers)

    def close(self) -> None:
        """Close idle connections."""
        for server in self._servers.values():
            server.close()

    def _require_all(self, observation: Observation) -> None:
        if observation.inventory.digest != self._inventory.digest:
            message = "The cluster's replicas are not those that the direct connections were made for."
            raise Stopped(Stop(Code.INVENTORY_DRIFT, message))
        if unseen := [alias for alias in self._servers if alias not in observation.replicas]:
            message = f"{', '.join(unseen)} can't be read, so it isn't known which server that is."
            raise Stopped(Stop(Code.REPLICA_NOT_OBSERVED, message))

    def _contradiction(self, alias: str, answer: _Answer, observation: Observation) -> str:
        """Say what is wrong with an answer; nothing if it is the replica's own."""
        if answer.server != observation.replicas[alias].server:
            others = {facts.server: other for other, facts in observation.replicas.items()}
            return f"leads to {others.get(answer.server, 'a server that is none of the replicas')}"
        if answer.user != self._user:
            return "logs in as another user"
        return ""

    def _unavailable(self, silent: Mapping[str, str]) -> Stop:
        way_out = (
            "or correct its address in 'replicas' of the connection's extra."
            if self._mapped
            else "or, if its name in system.clusters leads nowhere from Airflow, give the address of each replica in "
            "'replicas' of the connection's extra."
        )
        return Stop(
            Code.REPLICA_UNAVAILABLE,
            f"{', '.join(silent)} can't be reached directly. Nothing was changed on it.",
            replicas={alias: {"connection": said} for alias, said in silent.items()},
            next_action=f"Bring the replica back, {way_out}",
        )


def replica_endpoints(settings: ConnectionSettings, inventory: Inventory) -> dict[str, tuple[str, int]]:
    """Return the HTTP endpoint of each replica, in the inventory's order.

    :raises ValueError: a replica has none, or two have the same one.
    """
    cluster = f"cluster {inventory.cluster!r}"
    given = settings.replicas
    if unknown := [alias for alias in given if alias not in inventory.aliases]:
        raise ValueError(
            f"extra 'replicas' of the connection names {', '.join(unknown)}, which {cluster} doesn't have"
        )
    if given and (missing := [alias for alias in inventory.aliases if alias not in given]):
        raise ValueError(
            f"extra 'replicas' of the connection must name every replica of {cluster}; {', '.join(missing)} is missing"
        )
    _, port = settings.hosts[0]
    endpoints = {
        member.alias: given[member.alias] if given else (member.host_name, port)
        for member in inventory.members
    }
    places = [(host.lower(), port) for host, port in endpoints.values()]
    if shared := [alias for alias, place in zip(endpoints, places, strict=True) if places.count(place) > 1]:
        raise ValueError(
            f"extra 'replicas' of the connection gives one address to {', '.join(shared)}"
            if given
            else f"system.clusters has one host name for {', '.join(shared)} of {cluster}: give the address of each "
            "replica in extra 'replicas' of the connection"
        )
    return endpoints


def _ask(alias: str, server: Server) -> _Answer:
    """Ask the server at a replica's address who it is."""
    try:
        reply = server.read(_WHO, settings=READ_SETTINGS, timeout=PROOF_TIMEOUT)
    except ServerError as error:
        raise stopped(error, f"Asking {alias} directly which server it is") from None
    answers = Answers.of(reply.rows)
    who, user = answers.one(0, "server"), answers.one(0, "user")
    if who is None or user is None:
        raise ReplyLost("the answer is not complete")
    return _Answer(server_identity(who), user["user"] or "", reply.server_name)


def _wrong(said: Mapping[str, str]) -> Stop:
    each = ", ".join(f"that of {alias} {what}" for alias, what in said.items())
    return Stop(
        Code.REPLICA_CONNECTION_WRONG,
        f"Direct connections are wrong: {each}. Nothing was changed through them.",
        replicas={alias: {"connection": what} for alias, what in said.items()},
    )
