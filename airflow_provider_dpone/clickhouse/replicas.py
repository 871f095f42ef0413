"""One statement for every replica.

A statement is made of sections: SELECTs whose rows all have the form ``part, fields``, so that facts of
different shape come back in one answer. It goes to one server, which runs it on every replica by
``clusterAllReplicas(cluster, view(...))`` and numbers the replicas in the order of its ``system.clusters``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from airflow_provider_dpone.clickhouse.server import Settings
from airflow_provider_dpone.clickhouse.sql import string
from airflow_provider_dpone.publication.canonical import digest
from airflow_provider_dpone.publication.inventory import Member

Fields: TypeAlias = Mapping[str, str | None]
"""What one row of a section holds: every value as text, NULL as ``None``."""

READ_SETTINGS: Final[Settings] = {
    # The view is sent to every replica as it is; parallel replicas would have it computed only once.
    "allow_experimental_parallel_reading_from_replicas": 0,
    "use_query_cache": 0,
    "show_table_uuid_in_table_create_query_if_not_nil": 0,
    # Without Keeper the server would try ten times, for half a minute. We come back and look again.
    "keeper_max_retries": 2,
}

_sequence = itertools.count(1)


def next_sequence() -> int:
    """Return the place of a read in the order of all reads of this process.

    It is taken before the read is sent: of two reads, the one with the larger number started later.
    """
    return next(_sequence)


def section(part: str, fields: Mapping[str, str], source: str) -> str:
    """Return a SELECT of rows ``part, fields`` with every field as text; sections are joined by UNION ALL.

    ``fields`` is an array of names and values in turn: half the work of a map, for a server that has to
    understand the statement anew on every replica.

    No field and no source may hold a scalar subquery: inside ``clusterAllReplicas`` the contacted server
    would compute it once, for all replicas. ``IN (SELECT ...)`` is computed where the section runs.
    """
    items = ", ".join(f"{string(name)}, toString({expression})" for name, expression in fields.items())
    return f"SELECT {string(part)} AS part, [{items}] AS fields {source}"


def member_section(cluster: str) -> str:
    """Return the section ``member``: the cluster's replicas as the server that runs it lists them."""
    return section(
        "member",
        {
            "shard": "shard_num",
            "replica": "replica_num",
            "host": "host_name",
            "port": "port",
            "internal": "internal_replication",
            "local": "is_local",
        },
        f"FROM system.clusters WHERE cluster = {string(cluster)}",
    )


def server_section() -> str:
    """Return the section ``server``: which server it is that runs it, and of which release."""
    return section(
        "server",
        {"uuid": "serverUUID()", "host": "hostName()", "port": "tcpPort()", "version": "version()"},
        "FROM system.one",
    )


def server_identity(server: Fields) -> str:
    """Return what tells servers apart, from the section ``server``, hashed: host names never leave the process."""
    uuid = server["uuid"] or ""
    if uuid.strip("0-"):
        return digest("dpone/server.v1", "uuid", uuid)
    return digest("dpone/server.v1", "endpoint", server["host"] or "", server["port"] or "")


def members_of(rows: Iterable[Fields]) -> tuple[Member, ...]:
    """Return the members in the order in which ``clusterAllReplicas`` numbers them."""
    return tuple(
        sorted((member_of(fields) for fields in rows), key=lambda member: (member.shard, member.replica))
    )


def from_all_replicas(cluster: str, sections: Sequence[str]) -> str:
    """Return a SELECT of ``replica, part, fields`` that runs the sections on every replica."""
    return (
        "SELECT toUInt32(_shard_num) AS replica, part, fields "
        f"FROM clusterAllReplicas({string(cluster)}, view({' UNION ALL '.join(sections)}))"
    )


def from_contacted(sections: Sequence[str]) -> str:
    """Return a SELECT of ``replica, part, fields`` on the contacted server alone, as replica 0."""
    return f"SELECT toUInt32(0) AS replica, part, fields FROM ({' UNION ALL '.join(sections)})"


@dataclass(slots=True)
class Answers:
    """The rows of a statement made of sections, by replica number and part."""

    _rows: Mapping[tuple[int, str], list[Fields]]
    replicas: frozenset[int]

    @classmethod
    def of(cls, rows: Iterable[Sequence[object]]) -> Answers:
        """Sort the rows of a reply."""
        found: defaultdict[tuple[int, str], list[Fields]] = defaultdict(list)
        for replica, part, fields in rows:
            if not isinstance(replica, int) or not isinstance(fields, list):
                raise TypeError("the server answered in another form than asked for")
            found[replica, str(part)].append(dict(zip(fields[::2], fields[1::2], strict=True)))
        return cls(found, frozenset(replica for replica, _ in found if replica))

    def all(self, replica: int, part: str) -> list[Fields]:
        """Return all rows of a part."""
        return self._rows.get((replica, part), [])

    def one(self, replica: int, part: str) -> Fields | None:
        """Return the only row of a part, if there is one."""
        return next(iter(self.all(replica, part)), None)


def member_of(fields: Fields) -> Member:
    """Return one row of the section ``member``."""
    return Member(
        shard=int_of(fields["shard"]),
        replica=int_of(fields["replica"]),
        host_name=fields["host"] or "",
        port=int_of(fields["port"]),
        internal_replication=fields["internal"] == "1",
    )


def int_of(text: str | None) -> int:
    """Return a field's number, 0 for NULL."""
    return int(text) if text else 0
