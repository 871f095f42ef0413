"""Waits in the triggerer until a worker should look at a publication again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from typing import Any, Final

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dpone.publication.watch import (
    Look,
    Watch,
    Why,
    Woken,
    dump_watch,
    dump_woken,
    judge_look,
    load_watch,
)
from airflow_provider_dpone.triggers.poller import poller

HOLD_SECONDS: Final = 10.0
"""From the start to the event at least. Airflow may fail a task whose trigger fires while the process that
deferred it has not ended; that takes up to five seconds."""

RECHECK_SECONDS: Final = 60.0
"""After which a worker looks at the replicas again, where the queue has nothing more to tell."""


class PublicationTrigger(BaseTrigger):
    """Waits for a publication whose queue entry is bound in the record.

    It only reads. It may be started again, and run twice at a time. All publications that wait on one
    connection in one triggerer share one poll. It ends when the entry has ended on every replica, when the record
    moved on, at its own deadline, and when what it reads contradicts the operation; a worker then finds out.

    :param watch: what is waited for: a :class:`publication.watch.Watch` as a JSON object.
    """

    def __init__(self, watch: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = dict(watch)

    @classmethod
    def of(cls, watch: Watch) -> PublicationTrigger:
        """Return the trigger that waits for ``watch``."""
        return cls(dump_watch(watch))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and its arguments, which Airflow stores as plain JSON."""
        return f"{PublicationTrigger.__module__}.{PublicationTrigger.__qualname__}", {"watch": self.watch}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, when a worker should look."""
        started = time.monotonic()
        watch = load_watch(self.watch)
        if watch is None:
            event: dict[str, Any] = {"why": Why.UNKNOWN_WATCH.value, "watch": self.watch}
        else:
            event = dump_woken(await self._wait(watch))
        await asyncio.sleep(max(0.0, started + HOLD_SECONDS - time.monotonic()))
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Say what is true when a user ends the task or clears it while it waits here (Airflow 3.3 and newer).

        Nothing is cancelled: the statement can't be recalled, and the next try's trigger may run already.
        """
        self.log.info(
            "Ended by a user while waiting for the replicas. The statement was sent and can't be recalled: the "
            "replicas carry it out. Clearing the task looks first, and tells what became of it."
        )

    async def _wait(self, watch: Watch) -> Woken:
        shared = poller(watch.conn_id, lambda: partial(look_through, watch.conn_id))
        recheck = None if watch.queue_tells else time.time() + RECHECK_SECONDS
        said = ""
        with shared.seat(watch) as seat:
            while True:
                now = time.time()
                if now >= watch.deadline:
                    return Woken(Why.DEADLINE, watch)
                if recheck is not None and now >= recheck:
                    return Woken(Why.RECHECK, watch)
                until = watch.deadline if recheck is None else min(watch.deadline, recheck)
                try:
                    seen = await asyncio.wait_for(seat.look(), until - now)
                except TimeoutError:
                    continue
                judged = judge_look(watch, seen) if isinstance(seen, Look) else seen
                if isinstance(judged, Woken):
                    return judged
                if judged.said != said:
                    said = judged.said
                    self.log.info("%s", said)


async def look_through(conn_id: str, watches: Collection[Watch]) -> Mapping[Watch, Look]:
    """Take one look for all watches through a connection of Airflow, with the blocking calls in a thread.

    The connection is read each time, since it may have changed while publications wait.

    :raises Stopped: it can't be used, or something can't be read.
    """
    from airflow_provider_dpone import composition

    connection = await BaseHook.aget_connection(conn_id)
    return await asyncio.to_thread(composition.look, connection, watches)
