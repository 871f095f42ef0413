"""What can still be read of a suspended frame."""

from __future__ import annotations

import sys
from types import FrameType

from tests.exploration.liveness import live_variables


def pause() -> tuple[FrameType, frozenset[str]]:
    caller = sys._getframe(1)
    return caller, live_variables(caller.f_code, caller.f_lasti)


def test_what_is_written_before_it_is_read_again_is_left_out() -> None:
    def route(stale: int, used: int) -> tuple[frozenset[str], int]:
        again = stale + 1
        _, live = pause()
        again = used
        return live, again

    live, _ = route(1, 2)
    assert "used" in live
    assert not live & {"stale", "again"}


def test_a_loop_and_a_handler_keep_what_they_read() -> None:
    def route(items: list[int], word: str) -> tuple[frozenset[str], str]:
        live: frozenset[str] = frozenset()
        total = 0
        for item in items:
            try:
                _, live = pause()
                total += item
            except ValueError:
                return live, word
        return live, str(total)

    live, _ = route([1, 2], "x")
    assert {"total", "item", "word"} <= live
