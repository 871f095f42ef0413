"""The admitted replicas of a cluster, and the digest that fences a change of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from airflow_provider_dpone.publication.canonical import digest
from airflow_provider_dpone.publication.stop import Code, Stop


@dataclass(frozen=True, slots=True)
class Member:
    """One replica as ``system.clusters`` lists it. Host and port never leave the process."""

    shard: int
    replica: int
    host_name: str
    port: int
    internal_replication: bool

    @property
    def alias(self) -> str:
        """The name under which people and records see this replica, such as ``s1/r2``."""
        return f"s{self.shard}/r{self.replica}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The replicas of one cluster, in the order in which ``clusterAllReplicas`` numbers them."""

    cluster: str
    members: tuple[Member, ...]

    @property
    def aliases(self) -> tuple[str, ...]:
        """The replicas' aliases, in order."""
        return tuple(member.alias for member in self.members)

    @property
    def independent(self) -> bool:
        """Tell whether the cluster is one whose tables nothing copies from one replica to another."""
        return not any(member.internal_replication for member in self.members)

    @property
    def digest(self) -> str:
        """The fence on membership. Resolved IP addresses are not in it: a restarted pod keeps its place."""
        return _digest(self)

    def alias_at(self, host_name: str, port: int) -> str | None:
        """Return the alias of the replica at that address, as the DDL queue names it."""
        for member in self.members:
            if (member.host_name, member.port) == (host_name, port):
                return member.alias
        return None


@lru_cache(maxsize=64)
def _digest(inventory: Inventory) -> str:
    # One inventory is asked for its digest at every look, once per replica.
    return digest(
        "dpone/inventory.v1",
        inventory.cluster,
        [
            [m.shard, m.replica, m.host_name, m.port, m.internal_replication]
            for m in sorted(inventory.members, key=lambda m: (m.shard, m.replica))
        ],
    )


def admit(
    cluster: str, members: Sequence[Member], *, internal_replication: bool, fewest: int = 2
) -> Inventory | Stop:
    """Admit a topology of one shard with at least two replicas, or say why it can't be published to.

    :param fewest: one for operators, who must be able to end what began while there were more.
    """
    members = sorted(members, key=lambda m: (m.shard, m.replica))

    def refuse(code: Code, message: str, **facts: int | str | list[str]) -> Stop:
        return Stop(code, message, facts={"cluster": cluster, **facts})

    if not members:
        return refuse(Code.UNKNOWN_CLUSTER, f"The server knows no cluster named {cluster!r}.")
    shards = {m.shard for m in members}
    if len(shards) > 1:
        return refuse(
            Code.UNSUPPORTED_TOPOLOGY,
            f"Cluster {cluster!r} has {len(shards)} shards; one shard can be published to.",
            shards=len(shards),
        )
    if len(members) < fewest:
        return refuse(
            Code.UNSUPPORTED_TOPOLOGY,
            f"Cluster {cluster!r} has one replica; a cluster refresh needs at least two.",
            replicas=len(members),
        )
    endpoints = Counter((m.host_name, m.port) for m in members)
    repeated = [m.alias for m in members if endpoints[(m.host_name, m.port)] > 1]
    if repeated or len({m.replica for m in members}) < len(members):
        return refuse(
            Code.UNSUPPORTED_TOPOLOGY,
            f"Cluster {cluster!r} lists one endpoint or replica number twice.",
            repeated=repeated,
        )
    flags = {m.internal_replication for m in members}
    if len(flags) > 1:
        return refuse(
            Code.REPLICATION_MODE_MISMATCH,
            f"The replicas of {cluster!r} disagree in internal_replication.",
            without_internal_replication=[m.alias for m in members if not m.internal_replication],
        )
    if flags != {internal_replication}:
        observed = "internal" if flags == {True} else "external"
        wanted = "internal" if internal_replication else "external"
        return refuse(
            Code.REPLICATION_MODE_MISMATCH,
            f"replication_mode is {wanted!r}, but cluster {cluster!r} is configured for {observed!r} "
            f"(internal_replication={str(flags == {True}).lower()}).",
        )
    return Inventory(cluster, tuple(members))
