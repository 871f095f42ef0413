"""One poll per connection and interval for everything in an event loop that waits on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.publication.watch import Look, Waiting, Watch

POLL_SECONDS: Final = 10.0
"""Between two looks: each costs the server a pass over the whole queue in Keeper."""

LONGEST_POLL_SECONDS: Final = 120.0
"""Between two looks that fail, at most; the pause doubles."""

LookAtAll: TypeAlias = Callable[[Collection[Watch]], Awaitable[Mapping[Watch, Look]]]


@dataclass(eq=False, slots=True)
class Seat:
    """One waiting trigger. Two copies of a trigger have two seats."""

    watch: Watch
    _latest: asyncio.Queue[Look | Waiting] = field(default_factory=lambda: asyncio.Queue(maxsize=1))

    async def look(self) -> Look | Waiting:
        """Return the next look, or why there is none; the last one at once if it was not asked for yet."""
        return await self._latest.get()

    def show(self, seen: Look | Waiting) -> None:
        """Replace what was not asked for yet."""
        if self._latest.full():
            self._latest.get_nowait()
        self._latest.put_nowait(seen)


@dataclass(eq=False, slots=True)
class Poller:
    """Looks for all seats together, as long as there are any.

    :ivar look: takes one look for all watches.
    """

    look: LookAtAll
    _seats: set[Seat] = field(default_factory=set)
    _task: asyncio.Task[None] | None = None

    @contextmanager
    def seat(self, watch: Watch) -> Iterator[Seat]:
        """Take a seat; the last one to leave ends the polling."""
        seat = Seat(watch)
        self._seats.add(seat)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll())
        try:
            yield seat
        finally:
            self._seats.discard(seat)
            if not self._seats and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _poll(self) -> None:
        pause = POLL_SECONDS
        while True:
            # First the pause: triggers that start together are all seated by then.
            await asyncio.sleep(pause)
            try:
                looks = await self.look(frozenset(seat.watch for seat in self._seats))
            except Exception as error:  # noqa: BLE001 - whatever it is, looking goes on; its text may hold secrets
                pause = min(pause * 2, LONGEST_POLL_SECONDS)
                why = error.stop.message if isinstance(error, Stopped) else f"{type(error).__name__}."
                for seat in self._seats:
                    seat.show(Waiting(f"There is no look at what is waited for: {why}"))
                continue
            pause = POLL_SECONDS
            for seat in self._seats:
                if (look := looks.get(seat.watch)) is not None:
                    seat.show(look)


_pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Poller]] = WeakKeyDictionary()


def poller(conn_id: str, make: Callable[[], LookAtAll]) -> Poller:
    """Return the running loop's poller of a connection.

    :param make: makes what looks, if there is no poller yet.
    """
    pollers = _pollers.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in pollers:
        pollers[conn_id] = Poller(make())
    return pollers[conn_id]
