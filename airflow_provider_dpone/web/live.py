"""Live facts within a deadline, read in threads of their own and shared by everybody who looks.

A look that takes longer goes on behind the page, and the next page shows what it found. So a table is looked at once
at a time, and each connection has a few threads of its own: a cluster that is slow to answer holds up neither the
api-server nor the looks at another one. A look whose turn comes after the deadline is not taken: nobody waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.routes.ports import Target
from airflow_provider_dpone.web.model import LiveFacts

DEADLINE: Final = 2.0
"""Seconds for which a page waits for the cluster."""

SHARED_FOR: Final = 3.0
"""Seconds for which a look counts as one of now, for whoever else asks."""

KEPT_FOR: Final = 60.0
"""Seconds for which a look is still shown, with its age, while a new one takes too long."""

_AT_ONCE: Final = 2
"""Looks through one connection."""

Key = tuple[str, Target]
Explain = Callable[[str, Target], Explanation]


class _TooLate(Exception):
    """The turn of a look came when nobody waited for it any more."""


@dataclass(frozen=True, slots=True)
class _Look:
    began: float
    result: Future[Explanation]


class LiveReader:
    """Looks at clusters for the page.

    :param explain: reads one target through a connection; it is called in a thread, and may be slow.
    """

    def __init__(self, explain: Explain, *, deadline: float = DEADLINE) -> None:
        self._explain = explain
        self._deadline = deadline
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._running: dict[Key, _Look] = {}
        self._done: dict[Key, _Look] = {}

    async def read(self, conn_id: str, target: Target) -> LiveFacts:
        """Return what the cluster says now, or why that is not known; within the deadline."""
        look = self._look((conn_id, target))
        waiting = asyncio.wrap_future(look.result)
        try:
            found = await asyncio.wait_for(asyncio.shield(waiting), self._deadline)
        except TimeoutError:
            waiting.add_done_callback(_heard)
            return self._earlier((conn_id, target), begun=look.result.running() or look.result.done())
        except _TooLate:
            return self._earlier((conn_id, target), begun=False)
        except Stopped as stopped:
            return LiveFacts(None, why_not=f"Not live: {stopped.stop.message}")
        except Exception as error:  # noqa: BLE001 - its text may hold a host or a secret
            return LiveFacts(
                None, why_not=f"Not live: the connection can't be used ({type(error).__name__})."
            )
        return LiveFacts(found, age=time.monotonic() - look.began)

    def _look(self, key: Key) -> _Look:
        with self._lock:
            now = time.monotonic()
            self._done = {k: look for k, look in self._done.items() if now - look.began < KEPT_FOR}
            if (running := self._running.get(key)) is not None:
                return running
            if (done := self._done.get(key)) is not None and now - done.began < SHARED_FOR:
                return done
            threads = self._threads.get(key[0])
            if threads is None:
                threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dpone-live")
                self._threads[key[0]] = threads
            look = self._running[key] = _Look(now, threads.submit(self._in_turn, now, key))
        look.result.add_done_callback(lambda _: self._ended(key, look))
        return look

    def _in_turn(self, asked: float, key: Key) -> Explanation:
        if time.monotonic() - asked > self._deadline:
            raise _TooLate
        return self._explain(*key)

    def _ended(self, key: Key, look: _Look) -> None:
        with self._lock:
            self._running.pop(key, None)
            if not isinstance(look.result.exception(), _TooLate):
                self._done[key] = look

    def _earlier(self, key: Key, *, begun: bool) -> LiveFacts:
        within = f"within {self._deadline:g} s"
        late = (
            f"Not live: the cluster did not answer {within}."
            if begun
            else f"Not live: it was not looked at {within}, because other looks through this connection are under way."
        )
        with self._lock:
            done = self._done.get(key)
        if done is None or done.result.exception() is not None:
            return LiveFacts(None, why_not=late)
        return LiveFacts(done.result.result(), age=time.monotonic() - done.began, why_not=late)


def _heard(late: asyncio.Future[Explanation]) -> None:
    """Nobody waits for this result here any more; an exception in it is no surprise."""
    if not late.cancelled():
        late.exception()
