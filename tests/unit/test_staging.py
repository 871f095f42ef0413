"""What surrounds a load, with a stand-in for the server; the same on a real one is in the integration tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_dpone.clickhouse.errors import ReplyLost
from airflow_provider_dpone.clickhouse.progress import (
    LoadWatch,
    LongQuery,
    RunningQueries,
    Sighting,
    Verdict,
    in_words,
)
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.clickhouse.staging import ClusterStaging
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import Attempt, StagePlan, Target
from airflow_provider_dpone.sources import SqlSource
from airflow_provider_dpone.values import ClusterRefresh, KiB


class FakeQuery:
    """Runs for ever and has written more at each look; until it is killed."""

    query_id = "dpone-load-1"

    def __init__(self, *, step: int = 1000, broken: int = 0) -> None:
        self.step = step
        self.broken = broken
        self.looks = 0
        self.killed = threading.Event()

    def look(self) -> Sighting | None:
        self.looks += 1
        if self.looks <= self.broken:
            raise ReplyLost("no answer")
        if self.killed.is_set():
            return None
        return Sighting("s1/r2", self.looks * 10, self.looks * self.step)

    def kill(self) -> bool:
        self.killed.set()
        return True


class Lines(list[str]):
    def log(self, message: str) -> None:
        self.append(message)


def taking_kills() -> tuple[Server, list[str]]:
    """A server that says that it has taken each kill up, and what it was sent."""
    sent: list[str] = []

    def once(sql: str, **_: Any) -> SimpleNamespace:
        sent.append(sql)
        return SimpleNamespace(text=sql)

    return cast("Server", SimpleNamespace(once=once, user="loader")), sent


def test_a_read_that_may_take_long_is_killed_by_its_id_and_none_begins_after_that() -> None:
    server, sent = taking_kills()
    running = RunningQueries()
    with running.reading(server, "analytics", ("s1/r1",)) as query_id:
        assert running.cancel() is True
    assert len(sent) == 1
    assert f"query_id = '{query_id}'" in sent[0]
    assert running.cancel() is None
    with pytest.raises(Stopped, match="asked to stop"), running.reading(server, "analytics", ("s1/r1",)):
        pytest.fail("it began")


@pytest.mark.parametrize(("error", "kills"), [(KeyboardInterrupt, 1), (ValueError, 0)])
def test_a_read_whose_wait_is_interrupted_is_killed(error: type[BaseException], kills: int) -> None:
    server, sent = taking_kills()
    with pytest.raises(error), RunningQueries().reading(server, "analytics", ("s1/r1",)):
        raise error
    assert len(sent) == kills


def watch(
    query: FakeQuery,
    lines: Lines,
    *,
    max_bytes: int = 1_000_000,
    sent_bytes: Callable[[], int] | None = None,
    cancel: threading.Event | None = None,
    poll_seconds: float = 0.1,
) -> LoadWatch:
    return LoadWatch(
        cast("LongQuery", query),
        title="mart.orders",
        max_bytes=max_bytes,
        sent_bytes=sent_bytes,
        cancel=cancel or threading.Event(),
        log=lines.log,
        poll_seconds=poll_seconds,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_short_load_is_never_looked_at() -> None:
    query, lines = FakeQuery(), Lines()
    with watch(query, lines, poll_seconds=2.0):
        time.sleep(0.3)
    assert query.looks == 0
    assert lines == []


def test_a_long_load_tells_how_far_it_is() -> None:
    query, lines = FakeQuery(), Lines()
    with watch(query, lines):
        wait_until(lambda: len(lines) >= 2)
    assert lines[0].startswith(
        "mart.orders: s1/r2 is loading; 10 rows, 1000 bytes (0 % of max_source_bytes), "
    )
    assert not query.killed.is_set()


def test_a_stream_shows_what_was_sent() -> None:
    query, lines = FakeQuery(step=10**9), Lines()
    with watch(query, lines, sent_bytes=lambda: 512 * KiB) as watching:
        wait_until(lambda: bool(lines))
    assert "512.0 KiB (52 % of max_source_bytes)" in lines[0]
    # The sender keeps a stream's bound itself, to the byte.
    assert watching.verdict is None
    assert not query.killed.is_set()


def test_a_query_over_its_bound_is_killed_and_looks_that_fail_do_not_hide_it() -> None:
    query = FakeQuery(step=100, broken=2)
    with watch(query, Lines(), max_bytes=450) as watching:
        assert query.killed.wait(20)
    assert watching.verdict is Verdict.TOO_LARGE
    assert query.looks >= 5


def test_a_cancelled_load_is_killed() -> None:
    query, cancel = FakeQuery(), threading.Event()
    with watch(query, Lines(), cancel=cancel, poll_seconds=60) as watching:
        cancel.set()
        assert query.killed.wait(20)
    assert watching.verdict is Verdict.CANCELLED


def test_the_watch_ends_with_the_load() -> None:
    query = FakeQuery()
    with watch(query, Lines()):
        wait_until(lambda: query.looks > 0)
    time.sleep(0.5)
    looks = query.looks
    time.sleep(0.5)
    assert query.looks == looks


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB"), (2**50, "1024.0 TiB")],
)
def test_bytes_in_words(size: int, words: str) -> None:
    assert in_words(size) == words


@pytest.fixture
def staging() -> ClusterStaging:
    # Nothing listens on port 1: a test that sends something fails.
    return ClusterStaging(
        Server(ConnectionSettings(hosts=(("127.0.0.1", 1),))),
        Target("analytics", "mart", "orders"),
        ClusterRefresh("conn", "analytics", "mart", "orders", max_source_bytes=1),
        SqlSource("SELECT 1"),
        Lines().log,
    )


def test_only_a_name_of_the_attempt_is_dropped(staging: ClusterStaging) -> None:
    with pytest.raises(ValueError, match="this very attempt"):
        staging.drop(Attempt("c" * 16, "orders", "5f0c6a3e-8a4c-4a0e-9f53-3d9d6d3f0b11"))


def test_another_adapters_plan_is_not_taken(staging: ClusterStaging) -> None:
    with pytest.raises(TypeError, match="another adapter"):
        staging.load(StagePlan("d", (), object()), Attempt("c" * 16, "orders__dpone_" + "c" * 16, "u"))


def test_names_are_quoted(staging: ClusterStaging) -> None:
    assert staging.quoted("we`ird") == "`mart`.`we\\`ird`"


def test_after_a_cancel_no_load_begins(staging: ClusterStaging) -> None:
    staging.cancel()
    with pytest.raises(Stopped) as caught:
        staging._loader._access.load()
    assert caught.value.stop.code is Code.STAGING_FAILED
