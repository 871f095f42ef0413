"""``scripts/demo --ui``, as somebody uses it: reads what it prints, opens the pages, presses keys, and ends it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from scripts.lib.processes import Process, descendants, send
from tests.cluster.client import wait_until
from tests.cluster.leftovers import processes_of

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

CHECKOUT = Path(__file__).resolve().parents[2]
START_SECONDS = 900.0
STOP_SECONDS = 60.0
TURNS_GREEN_SECONDS = 120.0


class Demo:
    """A demo that runs, in a process group of its own as in a terminal, with its temporary files in one folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.output = ""
        self._process = subprocess.Popen(
            ["scripts/demo", "--ui"],
            cwd=CHECKOUT,
            env={**os.environ, "TMPDIR": str(folder), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._characters: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        # One at a time: a line tells what is being done long before it ends.
        while character := self._process.stdout.read(1):
            self._characters.put(character)
        self._characters.put("")

    def wait_for(self, text: str, seconds: float) -> None:
        """Read on until this was printed."""
        while text not in self.output:
            try:
                character = self._characters.get(timeout=seconds)
            except Empty:
                pytest.fail(f"{text!r} is not printed:\n{self.output}")
            if not character:
                pytest.fail(f"ended without printing {text!r}:\n{self.output}")
            self.output += character

    def press_enter(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def processes(self) -> list[Process]:
        return descendants(self._process.pid)

    def end(self, number: signal.Signals, *, group: bool) -> int:
        """End it by a signal to all of its group, as by Ctrl-C, or to the one process; returns its exit status."""
        (os.killpg if group else os.kill)(self._process.pid, number)
        return self.ended()

    def ended(self) -> int:
        """Wait until it has ended; returns its exit status."""
        status = self._process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        while character := self._characters.get(timeout=STOP_SECONDS):
            self.output += character
        return status

    def end_whatever_runs(self) -> None:
        """Clean up after a test that failed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                for process in self.processes():
                    send(process.pid, signal.SIGKILL)
                self._process.kill()
                self._process.wait()


@contextmanager
def started(folder: Path, **environment: str) -> Iterator[Demo]:
    demo = Demo(folder, **environment)
    try:
        yield demo
    finally:
        demo.end_whatever_runs()


def assert_nothing_is_left(demo: Demo, processes: list[Process]) -> None:
    assert [one for one in processes if one.name] == []
    assert processes_of(str(demo.folder)) == []
    assert list(demo.folder.iterdir()) == []


class Visitor:
    """Somebody with a browser, logged in as the demo says."""

    def __init__(self, output: str) -> None:
        [(user, password)] = re.findall(r"Log in as (\w+), password (\w+)\.", output)
        addresses = re.findall(r"^  (\w[\w ]+?)  +(http://\S+)$", output, re.MULTILINE)
        self.addresses: Mapping[str, str] = dict(addresses)
        [self._airflow] = re.findall(r"^Airflow runs at (\S+)$", output, re.MULTILINE)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        login = json.dumps({"username": user, "password": password}).encode()
        self._token = json.loads(self._get("/auth/token", login, {"Content-Type": "application/json"}))[
            "access_token"
        ]

    def _get(self, path: str, data: bytes | None, headers: Mapping[str, str]) -> str:
        request = urllib.request.Request(self._airflow + path, data, dict(headers))
        with self._opener.open(request, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def page(self, name: str) -> str:
        """Open one of the addresses that were printed; returns the text within the frame that Airflow shows there."""
        address = self.addresses[name].removeprefix(self._airflow)
        assert '<div id="root"' in self._get(address, None, {})
        task, _, tab = address.partition("/plugin/")
        inside = {"dpone": f"/dpone{task}/-1", "dpone-publications": "/dpone/"}[tab]
        html = self._get(inside, None, {"Cookie": f"_token={self._token}"})
        html = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html[html.index("<main") :]))


def run(command: str) -> str:
    """Run a command that was printed, in a shell of its own."""
    bare: dict[str, Any] = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(["bash", "-c", command], env=bare, capture_output=True, text=True, timeout=300)
    return done.stdout


def after(text: str, beginning: str) -> str:
    """The rest of the only line that begins so, spaces aside."""
    [line] = [line.strip() for line in text.splitlines() if line.strip().startswith(beginning)]
    return line.removeprefix(beginning).strip()


def test_three_publications_are_seen_and_led_to_their_ends(tmp_path: Path) -> None:
    with started(tmp_path) as demo:
        demo.wait_for("leaves nothing behind.\n", START_SECONDS)
        visitor = Visitor(demo.output)
        assert set(visitor.addresses) == {"Publications", "Published", "In progress", "On hold"}

        listed = visitor.page("Publications")
        assert "1 on hold 1 not proven yet" in listed
        order = [
            "On hold mart.orders_held",
            "In progress mart.orders_waiting",
            "Published mart.orders_published",
        ]
        assert sorted(order, key=listed.index) == order
        assert visitor.page("Published").startswith(" Published mart.orders_published")
        waiting, held = visitor.page("In progress"), visitor.page("On hold")
        assert waiting.startswith(" In progress mart.orders_waiting")
        assert "PARTIAL_IN_PROGRESS" in waiting
        assert held.startswith(" On hold mart.orders_held")
        assert "PARTIAL_TERMINAL" in held
        for page in (waiting, held):
            assert re.search(r"s1/r1 shard 1, replica 1 new data is live new .* s1/r2", page)
            assert re.search(r"s1/r2 shard 1, replica 2 old data is live old ", page)

        # What it says to try: the replicas differ, and both publications come to a good end.
        asked = re.findall(r"^ +(curl .* -d 'SELECT .*)$", demo.output, re.MULTILINE)
        assert [run(command) for command in asked] == ["100000\n", "90000\n"]
        demo.press_enter()
        demo.wait_for("The run waiting has ended: success.\n", TURNS_GREEN_SECONDS)
        assert visitor.page("In progress").startswith(" Published mart.orders_waiting")

        source = f"source {shlex.quote(after(demo.output, 'source '))}"
        [explain] = re.findall(
            r"airflow dpone explain --conn-id \S+ --cluster \S+ --database \S+ --table \S+", held
        )
        told = run(f"{source} && {explain}")
        [send_it] = re.findall(r"^ +(curl .*) -d 'THE STATEMENT'$", demo.output, re.MULTILINE)
        repair = f"EXCHANGE {after(told, 's1/r2: EXCHANGE')}"
        assert run(f"{send_it} -d {shlex.quote(repair)}") == ""
        resolved = run(f"{source} && airflow dpone resolve {after(told, 'airflow dpone resolve')}")
        assert "COMMITTED: published on every replica" in resolved
        assert visitor.page("On hold").startswith(" Published mart.orders_held")
        assert [run(command) for command in asked] == ["100000\n", "100000\n"]

        processes = demo.processes()
        assert len(processes) > 8
        assert demo.end(signal.SIGINT, group=True) == 128 + signal.SIGINT
        assert demo.output.endswith("Nothing is left of it.\n")
        assert_nothing_is_left(demo, processes)


@pytest.mark.parametrize("moment", ["ClickHouse replicas ... ", "Starting Airflow ... "])
def test_it_is_ended_while_it_starts(tmp_path: Path, moment: str) -> None:
    with started(tmp_path) as demo:
        demo.wait_for(moment, START_SECONDS)
        wait_until(lambda: len(demo.processes()) > 1)
        processes = demo.processes()
        assert demo.end(signal.SIGTERM, group=False) == 128 + signal.SIGTERM
        assert_nothing_is_left(demo, processes)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, DPONE_ZOOKEEPER_HOME=str(tmp_path / "no-such-folder")) as demo:
        assert demo.ended() == 1
        assert "FAILED: " in demo.output
        assert "no-such-folder" in demo.output
        assert_nothing_is_left(demo, [])
