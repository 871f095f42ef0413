"""A source in a thread of its own: all bytes in order, its error, and an end at once when nobody wants more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from airflow_provider_dpone.sources.base import CHUNK_BYTES
from airflow_provider_dpone.sources.pump import Work, Write, pumped, waited_for


class Connection:
    """What a driver's connection has for other threads."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dpone-source"]


def test_all_bytes_arrive_in_order_and_in_small_pieces() -> None:
    def produce(write: Write, work: Work) -> None:
        write(b"a" * (3 * CHUNK_BYTES + 1))
        write(memoryview(b"b" * 7))
        for number in range(20):
            write(bytes([number]))

    chunks = [chunk for chunk in pumped(produce) if chunk]
    assert b"".join(chunks) == b"a" * (3 * CHUNK_BYTES + 1) + b"b" * 7 + bytes(range(20))
    assert max(map(len, chunks)) <= CHUNK_BYTES


def test_an_error_goes_through_behind_the_bytes_before_it() -> None:
    def produce(write: Write, work: Work) -> None:
        write(b"x")
        raise LookupError("the source broke")

    seen: list[bytes] = []
    with pytest.raises(LookupError):
        seen.extend(pumped(produce))
    assert b"".join(seen) == b"x"
    assert threads() == []


def test_a_source_that_has_nothing_yet_lets_the_puller_look_up() -> None:
    go_on = threading.Event()

    def produce(write: Write, work: Work) -> None:
        assert go_on.wait(10)
        write(b"late")

    stream = pumped(produce)
    assert next(stream) == b""
    go_on.set()
    assert b"".join(stream) == b"late"


def test_whoever_leaves_early_interrupts_a_waiting_source() -> None:
    interrupted = threading.Event()

    def produce(write: Write, work: Work) -> None:
        work.opened(Connection(interrupted.set))
        write(b"x")
        assert interrupted.wait(10)
        raise ConnectionError("cancelled")

    stream = cast("Any", pumped(produce))
    started = time.monotonic()
    with closing(stream):
        assert next(stream) == b"x"
    assert interrupted.is_set()
    assert time.monotonic() - started < 1
    assert threads() == []


def test_whoever_leaves_early_stops_a_source_that_writes_for_ever() -> None:
    def produce(write: Write, work: Work) -> None:
        while True:
            write(b"x")

    stream: Iterator[bytes] = pumped(produce)
    with closing(cast("Any", stream)):
        assert next(stream) == b"x"
    assert threads() == []


def test_an_interruption_that_fails_is_of_no_interest() -> None:
    def interrupt() -> None:
        raise OSError("no route")

    def produce(write: Write, work: Work) -> None:
        work.opened(Connection(interrupt))
        while True:
            write(b"x")

    with closing(cast("Any", pumped(produce))) as stream:
        next(stream)
    assert threads() == []


def test_what_begins_after_it_was_given_up_is_interrupted_too() -> None:
    """The first interrupt comes while nothing runs yet: it has to be said again."""
    left, cancelled = threading.Event(), threading.Event()

    def cancel() -> None:
        if left.is_set():
            cancelled.set()

    def produce(write: Write, work: Work) -> None:
        work.opened(Connection(cancel))
        write(b"x")
        time.sleep(1.5)
        left.set()
        assert cancelled.wait(10)

    with closing(cast("Any", pumped(produce))) as stream:
        assert next(stream) == b"x"
    assert cancelled.wait(10)


def test_no_query_begins_when_nobody_wants_it_any_more() -> None:
    begun = threading.Event()

    def produce(write: Write, work: Work) -> None:
        time.sleep(0.5)
        work.opened(object())
        begun.set()

    with closing(cast("Any", pumped(produce))) as stream:
        assert next(stream) == b""
    assert not begun.wait(1)


def test_work_that_is_not_wanted_any_more_is_not_waited_for() -> None:
    release = threading.Event()
    started = time.monotonic()
    assert waited_for(lambda: release.wait(10), lambda: time.monotonic() - started < 0.3) is None
    assert time.monotonic() - started < 1
    release.set()
    assert waited_for(lambda: 7, lambda: True) == 7
    with pytest.raises(ZeroDivisionError):
        waited_for(lambda: 1 // 0, lambda: True)
