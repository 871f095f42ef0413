"""The trigger of a waiting publication: what is stored of it, when it ends, and what it costs the servers."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import pytest

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.server import ReadReply
from airflow_provider_dpone.clickhouse.watching import Lookout
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.watch import (
    Look,
    Slot,
    Waiting,
    Watch,
    Why,
    Woken,
    dump_watch,
    judge_look,
    load_watch,
    load_woken,
)
from airflow_provider_dpone.triggers import poller, publication
from airflow_provider_dpone.triggers.publication import PublicationTrigger
from tests.unit.builders import FAILED, INACTIVE, in_phase, inventory, queue_row

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "triggers"
RECORD = in_phase(Phase.BOUND)
LATER = 4_102_444_800
WATCH = Watch.of(RECORD, conn_id="clickhouse_default", deadline=LATER)
SLOT = Slot(RECORD.operation_id, "BOUND")
ENDED = [queue_row(RECORD, 1), queue_row(RECORD, 2)]
RUNNING = [queue_row(RECORD, 1), queue_row(RECORD, 2, **INACTIVE)]

T = TypeVar("T")


def look(rows: Sequence[QueueRow], slot: Slot | None = SLOT, replicas: int = 2) -> Look:
    return Look(rows, inventory(replicas), slot, 1_100)


def judged(rows: Sequence[QueueRow], watch: Watch = WATCH, **more: Any) -> Why | None:
    found = judge_look(watch, look(rows, **more))
    return found.why if isinstance(found, Woken) else None


# --- What one look means


def test_an_entry_that_ended_everywhere_is_handed_back_with_its_rows() -> None:
    found = judge_look(WATCH, look([queue_row(RECORD, 1), queue_row(RECORD, 2, **FAILED)]))
    assert isinstance(found, Woken)
    outcome = found.watch.outcome
    assert outcome is not None
    assert [(host.alias, host.exception_code) for host in outcome.receipt] == [("s1/r1", 0), ("s1/r2", 60)]
    assert (outcome.entry, outcome.query_digest) == (WATCH.entry, WATCH.query_digest)
    assert outcome.read_at == 1_100


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (RUNNING, None),
        ([], None),
        (ENDED[:1], None),
        ([ENDED[0], replace(ENDED[1], status="Removing")], None),
        (ENDED, Why.OUTCOME),
        ([ENDED[0], replace(ENDED[1], entry="query-0000000008")], Why.CONTRADICTION),
        ([replace(row, query="EXCHANGE TABLES a AND b") for row in ENDED], Why.CONTRADICTION),
        ([ENDED[0], replace(ENDED[1], host="elsewhere")], Why.CONTRADICTION),
        ([ENDED[0], replace(ENDED[1], exception_code=None)], Why.CONTRADICTION),
    ],
)
def test_what_the_queue_shows(rows: list[QueueRow], why: Why | None) -> None:
    assert judged(rows) is why


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.BOUND])
def test_any_move_of_the_record_ends_the_wait(phase: Phase) -> None:
    assert judged(RUNNING, slot=Slot(RECORD.operation_id, phase.value)) is Why.RECORD


def test_a_record_of_another_operation_ends_the_wait() -> None:
    assert judged(RUNNING, slot=Slot("another", "BOUND")) is Why.RECORD


def test_a_record_that_is_not_seen_proves_nothing() -> None:
    assert judged(RUNNING, slot=None) is None


def test_other_replicas_than_were_admitted_are_no_matter_for_waiting() -> None:
    assert judged(RUNNING, replicas=3) is Why.CONTRADICTION


def test_the_queue_is_not_asked_when_it_has_told_everything() -> None:
    terminal = Watch.of(in_phase(Phase.TERMINAL), conn_id="ch", deadline=LATER)
    assert judged(ENDED, terminal, slot=Slot(RECORD.operation_id, "TERMINAL")) is None
    woken = judge_look(WATCH, look(ENDED))
    assert isinstance(woken, Woken)
    assert isinstance(judge_look(woken.watch, look(ENDED)), Waiting)


@pytest.mark.parametrize("phase", [Phase.PREPARED, Phase.DISPATCHING, Phase.ABORTED])
def test_what_is_not_bound_can_not_be_waited_for(phase: Phase) -> None:
    with pytest.raises(ValueError, match="bound"):
        Watch.of(in_phase(phase), conn_id="ch", deadline=LATER)


# --- What Airflow stores


@pytest.mark.parametrize("name", ["v1-bound", "v1-terminal", "v1-outcome"])
def test_what_earlier_releases_stored_is_still_understood(name: str) -> None:
    stored = json.loads((GOLDEN / f"{name}.json").read_text())
    module, _, attribute = stored["classpath"].rpartition(".")
    trigger = getattr(import_module(module), attribute)(**stored["kwargs"])
    assert load_watch(trigger.watch) == GOLDEN_WATCHES[name]
    assert trigger.serialize() == (stored["classpath"], stored["kwargs"])
    assert PublicationTrigger.of(GOLDEN_WATCHES[name]).serialize() == trigger.serialize()


def _with_outcome() -> Watch:
    found = judge_look(WATCH, look(ENDED))
    assert isinstance(found, Woken)
    return found.watch


GOLDEN_WATCHES = {
    "v1-bound": WATCH,
    "v1-terminal": Watch.of(in_phase(Phase.TERMINAL), conn_id="clickhouse_default", deadline=LATER),
    "v1-outcome": _with_outcome(),
}


@pytest.mark.parametrize(
    "changes",
    [{"schema": "dpone.clickhouse.watch.v2"}, {"more": 1}, {"epoch": "4"}, {"phase": "LATER"}],
)
def test_what_another_release_wrote_wakes_a_worker(
    quick: None, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    stored = {**dump_watch(WATCH), **changes}
    event = run(first_event(PublicationTrigger(stored)))
    assert event == {"why": "unknown_watch", "watch": stored}
    assert load_woken(event) is None


@pytest.mark.parametrize("event", [None, {}, "success", {"why": "outcome"}, float("nan"), object()])
def test_an_event_of_another_kind_is_no_event(event: object) -> None:
    assert load_woken(event) is None


# --- Waiting


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same times, a thousand times shorter."""
    for module, name in (
        (poller, "POLL_SECONDS"),
        (poller, "LONGEST_POLL_SECONDS"),
        (publication, "HOLD_SECONDS"),
        (publication, "RECHECK_SECONDS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / 1000)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, 30)

    return asyncio.run(bounded())


async def first_event(trigger: PublicationTrigger) -> Any:
    events = [event.payload async for event in trigger.run()]
    assert len(events) == 1
    assert json.loads(json.dumps(events[0])) == events[0]
    return events[0]


def see(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], Look | Exception]
) -> list[Collection[Watch]]:
    """Replace the looks at servers; ``answer`` gets the number of the look. Returns what was looked for."""
    taken: list[Collection[Watch]] = []

    async def look_through(conn_id: str, watches: Collection[Watch]) -> Mapping[Watch, Look]:
        taken.append(watches)
        found = answer(len(taken))
        if isinstance(found, Exception):
            raise found
        return dict.fromkeys(watches, found)

    monkeypatch.setattr(publication, "look_through", look_through)
    return taken


def again() -> PublicationTrigger:
    """The trigger as a triggerer makes it from what is stored."""
    _, kwargs = PublicationTrigger.of(WATCH).serialize()
    return PublicationTrigger(**json.loads(json.dumps(kwargs)))


def test_it_ends_with_the_outcome(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = see(monkeypatch, lambda number: look(RUNNING if number < 3 else ENDED))
    woken = load_woken(run(first_event(again())))
    assert woken is not None
    assert (woken.why, len(taken)) == (Why.OUTCOME, 3)
    assert woken.watch.outcome is not None


def test_two_copies_end_alike(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, lambda number: look(RUNNING if number < 2 else ENDED))

    async def both() -> tuple[Any, Any]:
        return await asyncio.gather(first_event(again()), first_event(again()))

    first, second = run(both())
    assert first == second


def test_it_can_be_ended_and_started_anew(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = see(monkeypatch, lambda number: look(RUNNING if number < 4 else ENDED))

    async def restarted() -> tuple[int, Any]:
        before = asyncio.create_task(first_event(again()))
        while len(taken) < 2:
            await asyncio.sleep(0.001)
        before.cancel()
        await asyncio.gather(before, return_exceptions=True)
        seen = len(taken)
        # Nobody waits, so nobody polls.
        await asyncio.sleep(0.05)
        assert len(taken) == seen
        return seen, await first_event(again())

    seen, event = run(restarted())
    assert event["why"] == "outcome"
    assert len(taken) > seen


def test_errors_are_survived_with_growing_pauses(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []

    def answer(number: int) -> Look | Exception:
        times.append(time.monotonic())
        match number:
            case 1 | 2 | 3:
                return Stopped(Stop(Code.SERVER_UNAVAILABLE, "No host can be reached."))
            case 4:
                return RuntimeError("password=secret")
            case _:
                return look(ENDED)

    see(monkeypatch, answer)
    assert run(first_event(again()))["why"] == "outcome"
    pauses = [after - before for before, after in itertools.pairwise(times)]
    for pause, least in zip(pauses, (0.02, 0.04, 0.08, 0.12), strict=True):
        assert pause >= least


def test_an_error_is_told_to_all_who_wait_without_its_text(quick: None) -> None:
    async def look_at_all(watches: Collection[Watch]) -> Mapping[Watch, Look]:
        raise RuntimeError("password=secret")

    async def two_seats() -> list[Look | Waiting]:
        shared = poller.Poller(look_at_all)
        with shared.seat(WATCH) as one, shared.seat(replace(WATCH, table="lines")) as two:
            return [await one.look(), await two.look()]

    told = Waiting("There is no look at what is waited for: RuntimeError.")
    assert run(two_seats()) == [told, told]


@pytest.mark.parametrize(
    "answer", [look(RUNNING), look([]), RuntimeError("down")], ids=["late", "gone", "down"]
)
def test_it_ends_at_its_own_deadline(
    quick: None, monkeypatch: pytest.MonkeyPatch, answer: Look | Exception
) -> None:
    see(monkeypatch, lambda _: answer)
    watch = replace(WATCH, deadline=int(time.time()) + 1)
    event = run(first_event(PublicationTrigger.of(watch)))
    assert time.time() >= watch.deadline
    assert (event["why"], event["watch"]) == ("deadline", dump_watch(watch))


def test_where_the_queue_has_told_everything_a_worker_looks_now_and_then(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(monkeypatch, lambda _: look(ENDED))
    watch = _with_outcome()
    event = run(first_event(PublicationTrigger.of(watch)))
    assert (event["why"], event["watch"]) == ("recheck", dump_watch(watch))


def test_the_first_event_is_held_back(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "HOLD_SECONDS", 0.3)
    see(monkeypatch, lambda _: look(ENDED))
    started = time.monotonic()
    run(first_event(again()))
    assert time.monotonic() - started >= 0.3


def test_the_hold_is_longer_than_a_worker_lingers() -> None:
    assert publication.HOLD_SECONDS >= 10


# --- What it costs


def many(count: int) -> list[Watch]:
    return [
        replace(
            WATCH,
            token=f"dpone1:{n:016x}:publish:1:{n:032x}",
            operation_id=f"{n:064x}",
            target_key=f"{n:064x}",
        )
        for n in range(count)
    ]


def _flat(fields: dict[str, str]) -> list[str]:
    return [text for pair in fields.items() for text in pair]


class CountingServer:
    """Answers looks as a server would, and counts them; whatever else is called does not exist."""

    def __init__(self, watches: Collection[Watch]) -> None:
        self.watches = watches
        self.ended = False
        self.longest = 0
        self.reads: Counter[str] = Counter()

    def read(self, sql: str, **_: Any) -> ReadReply:
        self.longest = max(self.longest, len(sql))
        if "system.distributed_ddl_queue" in sql:
            self.reads["queue"] += 1
            rows = RUNNING if not self.ended else ENDED
            found = [
                [r.entry, r.query, w.token, r.host, r.port, r.status, r.exception_code, r.exception_text]
                for w in self.watches
                for r in rows
            ]
            return ReadReply(("read_at", "rows"), [[1_100, found]], "n1", {})
        self.reads["records"] += 1
        members = [
            {
                "shard": "1",
                "replica": f"{m.replica}",
                "host": m.host_name,
                "port": "9000",
                "internal": "1",
                "local": "0",
            }
            for m in inventory().members
        ]
        slots = [
            {"target_key": w.target_key, "operation_id": w.operation_id, "phase": "BOUND"}
            for w in self.watches
            if w.target_key in sql
        ]
        rows_of_parts: list[list[object]] = [[0, "member", _flat(m)] for m in members]
        rows_of_parts += [[0, "slot", _flat(s)] for s in slots]
        return ReadReply(("replica", "part", "fields"), rows_of_parts, "n1", {})


def test_a_thousand_waiting_publications_cost_one_look_at_the_queue_per_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "POLL_SECONDS", 0.5)
    monkeypatch.setattr(publication, "HOLD_SECONDS", 0.0)
    watches = many(1_000)
    server = CountingServer(watches)
    lookout = Lookout(server, ControlTable())  # type: ignore[arg-type]

    async def look_through(conn_id: str, asked: Collection[Watch]) -> Mapping[Watch, Look]:
        assert conn_id == WATCH.conn_id
        assert len(asked) == 1_000
        found = await asyncio.to_thread(lookout.look, asked)
        server.ended = True
        return found

    monkeypatch.setattr(publication, "look_through", look_through)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(first_event(PublicationTrigger.of(watch)) for watch in watches))

    events = run(all_of_them())
    assert {event["why"] for event in events} == {"outcome"}
    assert len({event["watch"]["operation_id"] for event in events}) == 1_000
    # One look while the replicas worked, one that saw the end.
    assert server.reads == {"queue": 2, "records": 2}
    assert server.longest < 200_000


def test_each_connection_is_looked_through_by_itself(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    async def look_through(conn_id: str, watches: Collection[Watch]) -> Mapping[Watch, Look]:
        asked.append((conn_id, len(watches)))
        return dict.fromkeys(watches, look(ENDED))

    monkeypatch.setattr(publication, "look_through", look_through)

    async def both() -> Any:
        other = PublicationTrigger.of(replace(WATCH, conn_id="other"))
        return await asyncio.gather(first_event(again()), first_event(other))

    run(both())
    assert sorted(asked) == [("clickhouse_default", 1), ("other", 1)]


def test_more_than_a_statement_can_name_are_still_one_look_at_the_queue() -> None:
    watches = many(2_500)
    server = CountingServer(watches)
    looks = Lookout(server, ControlTable()).look(watches)  # type: ignore[arg-type]
    assert server.reads == {"queue": 1, "records": 3}
    assert {len(found.rows) for found in looks.values()} == {2}
    assert all(watch_slot.slot == Slot(w.operation_id, "BOUND") for w, watch_slot in looks.items())
    assert server.longest < 200_000


def test_where_no_queue_has_news_it_is_not_read() -> None:
    server = CountingServer([WATCH])
    looks = Lookout(server, ControlTable()).look([_with_outcome()])  # type: ignore[arg-type]
    assert server.reads == {"records": 1}
    assert [found.rows for found in looks.values()] == [()]
