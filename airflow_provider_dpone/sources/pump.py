"""Turn a source that pushes its bytes into a stream that can be pulled, and that stops within a moment.

A driver may sit in a system call for minutes: while the database sorts, nothing arrives, and a signal to the
task waits until the call returns. So the driver works in a thread of its own. Whoever pulls gets an empty
chunk now and then while there is nothing, and may leave at any of them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from airflow_provider_dpone.sources.base import CHUNK_BYTES, pieces

Write = Callable[[bytes | memoryview], None]
"""Hand over the next bytes; waits while the puller is behind."""

_PIECES_WAITING: Final = 4
_BEAT_SECONDS: Final = 0.2
_LAST_WORDS_SECONDS: Final = 1.0


class _Abandoned(Exception):
    """Nobody pulls any more."""


def pumped(produce: Callable[[Write], None], interrupt: Callable[[], None]) -> Iterator[bytes]:
    """Run ``produce`` in a thread and yield what it writes.

    :param produce: opens, reads and closes the source. What it raises goes through to the puller.
    :param interrupt: makes a ``produce`` that is waiting for its database come back; called from another
        thread, once, when the puller leaves early. Its own errors are of no interest then.
    """
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(_PIECES_WAITING)
    left = threading.Event()

    def hand_over(item: bytes | BaseException | None) -> None:
        while not left.is_set():
            with suppress(queue.Full):
                waiting.put(item, timeout=_BEAT_SECONDS)
                return
        raise _Abandoned

    def write(data: bytes | memoryview) -> None:
        for piece in [data] if isinstance(data, bytes) and len(data) <= CHUNK_BYTES else pieces(data):
            hand_over(piece)

    def run() -> None:
        end: BaseException | None = None
        try:
            produce(write)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the puller has to know
            end = error
        with suppress(_Abandoned):
            hand_over(end)

    thread = threading.Thread(target=run, name="dpone-source", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = waiting.get(timeout=_BEAT_SECONDS)
            except queue.Empty:
                yield b""
                continue
            match item:
                case bytes():
                    yield item
                case None:
                    return
                case error:
                    raise error
    finally:
        left.set()
        if thread.is_alive():
            # A driver may need the network to tell its database; nobody shall wait for that.
            threading.Thread(target=_quietly, args=(interrupt,), name="dpone-interrupt", daemon=True).start()
            thread.join(_LAST_WORDS_SECONDS)


def _quietly(interrupt: Callable[[], None]) -> None:
    # The source is given up whether or not its database hears of it.
    with suppress(Exception):
        interrupt()
