"""One look at everything that waits on a connection: the queue once, and the records per cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError, stopped
from airflow_provider_dpone.clickhouse.replicas import (
    READ_SETTINGS,
    Answers,
    Fields,
    from_contacted,
    member_section,
    members_of,
    section,
)
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.sql import string
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.watch import Look, Slot, Watch

LOOK_TIMEOUT: Final = 20.0
"""How many seconds each statement of a look may take; the next look is not far."""

_MOST_KEYS: Final = 1000
"""Keys in one statement, whose length is bounded."""


@dataclass(frozen=True, slots=True)
class Lookout:
    """Reads for all watches of a connection together. It changes nothing on any server."""

    server: Server
    control: ControlTable

    def look(self, watches: Collection[Watch]) -> Mapping[Watch, Look]:
        """Return one look for each watch. The queue is read once, however many they are.

        :raises Stopped: something can't be read.
        """
        tokens = {watch.token for watch in watches if watch.queue_tells}
        # The queue first: a record that moves in between wakes a worker, which looks itself.
        read_at, rows = DdlQueue(self.server).read_many(tokens, timeout=LOOK_TIMEOUT) if tokens else (0, {})
        by_cluster: defaultdict[str, set[str]] = defaultdict(set)
        for watch in watches:
            by_cluster[watch.cluster].add(watch.target_key)
        seen = {cluster: self._slots(cluster, keys) for cluster, keys in by_cluster.items()}
        looks = {}
        for watch in watches:
            inventory, slots = seen[watch.cluster]
            looks[watch] = Look(
                rows.get(watch.token, ()), inventory, slots.get(watch.target_key), server_time=read_at
            )
        return looks

    def _slots(self, cluster: str, keys: Collection[str]) -> tuple[Inventory, Mapping[str, Slot]]:
        ordered = sorted(keys)
        slots: dict[str, Slot] = {}
        members: list[Fields] = []
        for start in range(0, len(ordered), _MOST_KEYS):
            answers = self._read(cluster, ordered[start : start + _MOST_KEYS])
            members = answers.all(0, "member")
            for fields in answers.all(0, "slot"):
                slots[fields["target_key"] or ""] = Slot(fields["operation_id"] or "", fields["phase"] or "")
        return Inventory(cluster, members_of(members)), slots

    def _read(self, cluster: str, keys: Sequence[str]) -> Answers:
        columns = {"target_key": "target_key", "operation_id": "operation_id", "phase": "phase"}
        where = f"WHERE target_key IN ({', '.join(string(key) for key in keys)})"
        slots = section("slot", columns, f"FROM {self.control.qualified} {where}")
        sql = from_contacted((member_section(cluster), slots))
        try:
            reply = self.server.read(sql, settings=READ_SETTINGS, timeout=LOOK_TIMEOUT)
        except (ServerError, ConnectFailed, ReplyLost) as error:
            raise stopped(error, "Reading the control records") from None
        return Answers.of(reply.rows)
