"""Every table on the cluster that carries our mark or a name like ours, on every replica, in one statement."""

from __future__ import annotations

from typing import Final

from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError, stopped
from airflow_provider_dpone.clickhouse.replicas import (
    READ_SETTINGS,
    Answers,
    from_all_replicas,
    from_contacted,
    int_of,
    member_section,
    members_of,
    section,
)
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.sql import string
from airflow_provider_dpone.clickhouse.table_comment import split_comment
from airflow_provider_dpone.publication.identity import CANDIDATE_ENDING, candidate_parts
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.orphans import FoundTable

_TIMEOUT: Final = 60.0
_LIKE_OURS: Final = f"{CANDIDATE_ENDING}$"
_NAMED_IN_A_QUERY: Final = f"[^ .,;()`'\"]+{CANDIDATE_ENDING}"


def read_leftovers(server: Server, cluster: str) -> tuple[tuple[FoundTable, ...], int]:
    """Return the tables that carry our mark or a name like ours, and the server's time in seconds.

    A live table is among them: whether a record needs one is not decided here.

    :raises Stopped: a replica can't be read; then nothing is known of it.
    """
    per_replica = [
        section(
            "table",
            {
                "database": "database",
                "name": "name",
                "uuid": "uuid",
                "comment": "comment",
                "bytes": "total_bytes",
                "changed": "toUnixTimestamp(metadata_modification_time)",
            },
            f"FROM system.tables WHERE position(comment, '[dpone:v') > 0 OR match(name, {string(_LIKE_OURS)})",
        ),
        section(
            "named",
            {"name": "arrayJoin(arrayDistinct(extractAll(query, " + string(_NAMED_IN_A_QUERY) + ")))"},
            "FROM system.processes WHERE position(query, '__dpone_') > 0",
        ),
    ]
    contacted = [
        member_section(cluster),
        section("clock", {"now": "toUnixTimestamp(now())"}, "FROM system.one"),
    ]
    sql = f"{from_all_replicas(cluster, per_replica)} UNION ALL {from_contacted(contacted)}"
    try:
        reply = server.read(sql, settings={**READ_SETTINGS, "skip_unavailable_shards": 0}, timeout=_TIMEOUT)
    except (ServerError, ConnectFailed, ReplyLost) as error:
        raise stopped(error, "Looking for tables of this provider") from None
    answers = Answers.of(reply.rows)
    inventory = Inventory(cluster, members_of(answers.all(0, "member")))
    clock = answers.one(0, "clock") or {}
    found = []
    for number, alias in enumerate(inventory.aliases, start=1):
        named = {fields["name"] for fields in answers.all(number, "named")}
        for fields in answers.all(number, "table"):
            name, mark = fields["name"] or "", split_comment(fields["comment"] or "")[1]
            if mark is None and candidate_parts(name) is None:
                continue
            found.append(
                FoundTable(
                    alias=alias,
                    database=fields["database"] or "",
                    name=name,
                    uuid=fields["uuid"] or "",
                    authority_id=mark.authority_id if mark else None,
                    operation_id=mark.operation_id if mark else None,
                    bytes=int_of(fields["bytes"]),
                    in_use=name in named,
                    changed_at=int_of(fields["changed"]),
                )
            )
    return tuple(found), int_of(clock.get("now"))
