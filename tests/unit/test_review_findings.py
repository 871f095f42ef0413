"""Rules that a review of the cluster refresh asked for, of the pure core and the adapters."""

from __future__ import annotations

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.exact import LoadColumn, insert_from_select
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.admission import admit_target
from airflow_provider_dpone.publication.decide import ContentCheck, Hold, Situation, decide_publication
from airflow_provider_dpone.publication.decide_cleanup import (
    CleanupSituation,
    DispatchDrop,
    decide_cleanup,
)
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.record import MAX_RETAINED, Phase, Retained
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.routes.ports import Target
from tests.unit import builders


def test_a_live_table_with_more_replicas_than_the_cluster_lists_is_refused() -> None:
    """A replica that the cluster's configuration forgot would go on serving the old data."""
    seen = builders.table(builders.OLD_UUID, replicas=3)
    observation = builders.observation(None, {"orders": seen}, {"orders": seen})
    assert admit_target(observation, "orders", authority_id=builders.AUTHORITY) is not None


def test_a_predecessor_that_cannot_be_dropped_does_not_hold_up_the_others() -> None:
    stuck = Retained("orders__dpone_stuck", builders.generation(builders.OLD_UUID), 1_000, "op1")
    other_uuid = "00000000-0000-4000-8000-0000000000c1"
    good = Retained("orders__dpone_good", builders.generation(other_uuid), 1_000, "op2")
    record = replace(builders.in_phase(Phase.COMPLETED_RETAINING), retained=(stuck, good))
    tables = {
        "orders": builders.NEW,
        # Somebody put another table there: it must not be dropped.
        "orders__dpone_stuck": builders.FOREIGN,
        "orders__dpone_good": builders.table(other_uuid),
    }
    stored = builders.stored(record)
    observation = builders.observation(stored, tables, tables)
    decided = decide_cleanup(CleanupSituation(stored, 2_000, observation))
    assert decided == DispatchDrop(good)


def test_no_kept_table_is_ever_forgotten() -> None:
    """What is no longer listed is never dropped: nothing else finds it."""
    kept = tuple(
        Retained(
            f"orders__dpone_k{n}",
            builders.generation(f"00000000-0000-4000-8000-0000000001{n:02d}"),
            9_999,
            f"op{n}",
        )
        for n in range(MAX_RETAINED)
    )
    record = replace(builders.in_phase(Phase.COMMITTED), retained=kept)
    ended = transitions.retaining(record, drop_after=9_999, now=1_004)
    assert {item.name for item in kept} <= {item.name for item in ended.retained}


class Recorder:
    """A server that only writes down the settings of a statement."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def once(self, sql: str, *, settings: dict[str, Any], before_send: Any, **_: Any) -> None:
        before_send()
        self.settings = settings


def test_a_dispatched_statement_always_carries_its_token_into_the_queue() -> None:
    """Entries of format 1 have no settings, so a profile with it would hide every entry of ours."""
    server = Recorder()
    permit = Permit(token="t", epoch=1, write_id="w")
    DdlQueue(server).send(permit, Drop("analytics", "mart", "orders__dpone_1"), "t")  # type: ignore[arg-type]
    assert int(server.settings.get("distributed_ddl_entry_format_version", 1)) >= 2


def test_a_load_by_query_never_takes_a_part_of_the_source_in_silence() -> None:
    """A profile or a connection may say: stop at a limit, or leave a shard out, and say nothing."""
    load = insert_from_select(
        "mart", "orders__dpone_1", [LoadColumn("id", "UInt64", "UInt64")], "SELECT 1 AS id"
    )
    needed = {f"{kind}_overflow_mode": "throw" for kind in OVERFLOWS} | {"skip_unavailable_shards": "0"}
    assert {name: load.settings.get(name) for name in needed} == needed


OVERFLOWS = ("read", "group_by", "sort", "timeout", "set", "join", "transfer", "distinct")


def test_a_look_at_the_cluster_never_takes_a_part_of_the_answer_in_silence() -> None:
    """A row that a limit cut off would look like a table that is absent."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query))
            self.send_error(503)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        # What a connection may say; a user's profile may say the same.
        own = {"result_overflow_mode": "break", "timeout_overflow_mode": "break", "limit": "7"}
        settings = ConnectionSettings((("127.0.0.1", http.server_port),), session_settings=own)
        catalog = Catalog(Server(settings), Target("analytics", "mart", "orders"))
        with pytest.raises(Stopped):
            catalog.observe(["orders"])
        http.shutdown()
    needed = {
        "read_overflow_mode": "throw",
        "result_overflow_mode": "throw",
        "timeout_overflow_mode": "throw",
        "limit": "0",
        "offset": "0",
    }
    assert {name: asked[0].get(name, [""])[0] for name in needed} == needed


def test_a_swap_that_another_worker_made_during_the_look_is_not_called_nothing_published() -> None:
    """Record and tables come from one statement, but not from one moment."""
    stored = builders.stored(builders.in_phase(Phase.PREPARED))
    content = ContentCheck(5, dict.fromkeys(stored.record.replicas, builders.CONTENT))
    after = builders.observation(stored, builders.COMMITTED, builders.COMMITTED, sequence=10)
    decided = decide_publication(
        Situation(stored.record.operation_id, stored, 1, content=content, observation=after)
    )
    assert not isinstance(decided, Hold), decided
