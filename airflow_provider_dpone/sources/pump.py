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
from typing import Any, Final, TypeVar

from airflow_provider_dpone.sources.base import CHUNK_BYTES, pieces

T = TypeVar("T")

Write = Callable[[bytes | memoryview], None]
"""Hand over the next bytes; waits while the puller is behind."""

_PIECES_WAITING: Final = 16
_BEAT_SECONDS: Final = 0.2
_LAST_WORDS_SECONDS: Final = 1.0
_INTERRUPTS: Final = 60
_WAYS_TO_INTERRUPT: Final = ("cancel_safe", "cancel", "interrupt")
"""How the drivers of PostgreSQL, Oracle and SQLite call what another thread may do to a waiting connection."""


class _Abandoned(Exception):
    """Nobody pulls any more."""


class Work:
    """What a producing thread is told, and what it tells, about whether its work is still wanted."""

    def __init__(self, left: threading.Event) -> None:
        self._left = left
        self._connections: list[Any] = []

    def opened(self, connection: Any) -> None:
        """Remember a connection, so that what it does can be interrupted; then as :meth:`require_wanted`."""
        self._connections.append(connection)
        self.require_wanted()

    def require_wanted(self) -> None:
        """Go no further where nobody pulls any more. What it raises then is for :func:`pumped` alone."""
        if self._left.is_set():
            raise _Abandoned

    def interrupt(self) -> None:
        """Stop what the connections are doing, from another thread, where their driver has a way for that.

        A connection that has none is left alone: to close it while it is used crashes some drivers.
        """
        for connection in self._connections:
            for way in _WAYS_TO_INTERRUPT:
                if callable(stop := getattr(connection, way, None)):
                    # The source is given up whether or not its database hears of it.
                    with suppress(Exception):
                        stop()
                    break


def pumped(produce: Callable[[Write, Work], None]) -> Iterator[bytes]:
    """Run ``produce`` in a thread and yield what it writes.

    :param produce: opens, reads and closes the source. What it raises goes through to the puller.
    """
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(_PIECES_WAITING)
    left = threading.Event()
    work = Work(left)

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
            produce(write, work)
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
            threading.Thread(
                target=_interrupt, args=(work, thread), name="dpone-interrupt", daemon=True
            ).start()
            thread.join(_LAST_WORDS_SECONDS)


def _interrupt(work: Work, thread: threading.Thread) -> None:
    """Interrupt until the thread has ended: once is too early where its query has not begun."""
    for _ in range(_INTERRUPTS):
        work.interrupt()
        thread.join(_LAST_WORDS_SECONDS)
        if not thread.is_alive():
            return


def waited_for(work: Callable[[], T], wanted: Callable[[], bool]) -> T | None:
    """Return what ``work`` returns, done in a thread; ``None`` as soon as it is not wanted any more.

    What it raises goes through. Work that is not wanted any more ends by itself, or with the process.
    """
    done: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(1)

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller has to know
            done.put((None, error))

    threading.Thread(target=run, name="dpone-source", daemon=True).start()
    while wanted():
        with suppress(queue.Empty):
            result, error = done.get(timeout=_BEAT_SECONDS)
            if error is not None:
                raise error
            return result
    return None
