"""A source in a thread of its own: all bytes in order, its error, and an end at once when nobody wants more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from airflow_provider_dpone.sources.base import CHUNK_BYTES
from airflow_provider_dpone.sources.pump import Write, pumped


def nothing() -> None:
    raise AssertionError("nobody left early")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dpone-source"]


def test_all_bytes_arrive_in_order_and_in_small_pieces() -> None:
    def produce(write: Write) -> None:
        write(b"a" * (3 * CHUNK_BYTES + 1))
        write(memoryview(b"b" * 7))
        for number in range(20):
            write(bytes([number]))

    chunks = [chunk for chunk in pumped(produce, nothing) if chunk]
    assert b"".join(chunks) == b"a" * (3 * CHUNK_BYTES + 1) + b"b" * 7 + bytes(range(20))
    assert max(map(len, chunks)) <= CHUNK_BYTES


def test_an_error_goes_through_behind_the_bytes_before_it() -> None:
    def produce(write: Write) -> None:
        write(b"x")
        raise LookupError("the source broke")

    seen: list[bytes] = []
    with pytest.raises(LookupError):
        seen.extend(pumped(produce, nothing))
    assert b"".join(seen) == b"x"
    assert threads() == []


def test_a_source_that_has_nothing_yet_lets_the_puller_look_up() -> None:
    go_on = threading.Event()

    def produce(write: Write) -> None:
        assert go_on.wait(10)
        write(b"late")

    stream = pumped(produce, nothing)
    assert next(stream) == b""
    go_on.set()
    assert b"".join(stream) == b"late"


def test_whoever_leaves_early_interrupts_a_waiting_source() -> None:
    interrupted = threading.Event()

    def produce(write: Write) -> None:
        write(b"x")
        assert interrupted.wait(10)
        raise ConnectionError("cancelled")

    stream = cast("Any", pumped(produce, interrupted.set))
    started = time.monotonic()
    with closing(stream):
        assert next(stream) == b"x"
    assert interrupted.is_set()
    assert time.monotonic() - started < 1
    assert threads() == []


def test_whoever_leaves_early_stops_a_source_that_writes_for_ever() -> None:
    def produce(write: Write) -> None:
        while True:
            write(b"x")

    stream: Iterator[bytes] = pumped(produce, lambda: None)
    with closing(cast("Any", stream)):
        assert next(stream) == b"x"
    assert threads() == []


def test_an_interruption_that_fails_is_of_no_interest() -> None:
    def produce(write: Write) -> None:
        while True:
            write(b"x")

    def interrupt() -> None:
        raise OSError("no route")

    stream: Iterator[bytes] = pumped(produce, interrupt)
    with closing(cast("Any", stream)):
        next(stream)
    assert threads() == []
