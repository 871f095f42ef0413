"""The tutorial, followed to the letter: each command of the page in one shell, in its order, with nothing else done.

What differs from a reader's afternoon is said here and nowhere hidden:

* The ports 8123 and 8080 may be taken on a machine that runs tests, so free ones stand in their places throughout.
* Docker's blocks are left out: the page offers the local cluster in their place, and that one is taken.
* ``pip`` is uv's, which does the same in seconds. With ``DPONE_TUTORIAL_PIP=1`` it is pip itself.
* The package comes as a wheel that is built from this checkout, and all others in the versions that are tested.
* Where a reader looks whether the tasks are green (``when: the run is a success``), the test asks Airflow.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from scripts.lib.bootstrap import uv_environment
from scripts.lib.processes import send, session_members
from tests.cluster.client import wait_until
from tests.cluster.processes import free_ports

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = CHECKOUT / "docs" / "tutorial.md"
LOCK: Final = CHECKOUT / "requirements" / "dev.txt"
UV: Final = Path(sys.executable).with_name("uv")
DAG_ID: Final = "first_refresh"
TEN_MINUTES: Final = 600.0
_END: Final = "the command before this line has ended with"


@dataclass(frozen=True)
class Step:
    """One thing that the page asks its reader to do."""

    kind: str
    text: str


def steps(page: str) -> Iterator[Step]:
    """Yield what the page asks for: commands to run, files to save, and when to go on."""
    found = re.finditer(
        r"^<!-- when: (?P<when>.+?) -->$"
        r"|^Save this as `(?P<file>[^`]+)`:$"
        r"|^```(?P<language>\w+)\n(?P<block>.*?)^```$",
        page,
        re.DOTALL | re.MULTILINE,
    )
    for one in found:
        if one["when"]:
            yield Step("when", one["when"])
        elif one["file"]:
            yield Step("file", one["file"])
        elif one["language"] in ("bash", "python"):
            yield Step(one["language"], one["block"])


class Shell:
    """One interactive bash, as in a reader's terminal: background jobs have process groups of their own."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home = home
        self._asked = 0
        self.log = home / "terminal.log"
        self._output = self.log.open("wb")
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=CHECKOUT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # Without a terminal, job control has to be asked for.
        self._write("set -m\n")

    def run(self, commands: str, timeout: float = 300.0) -> str:
        """Run commands to their end and return what they printed; the first that fails ends the test."""
        start = self.log.stat().st_size
        for line in commands.replace("\\\n", " ").splitlines():
            # A command must not take the next ones for its input.
            self._write(f"{{ {line}\n}} < /dev/null\nprintf '\\n%s %s\\n' '{_END}' $?\n")
            self._asked += 1
            printed = self._await(start, timeout)
            status = re.findall(rf"^{_END} (\d+)$", printed, re.MULTILINE)[-1]
            assert status == "0", f"{line}\n{printed}\n{self._standalone()}"
        return self._printed(start)

    def close(self) -> None:
        """End the shell and whatever it has left running."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        deadline = time.monotonic() + 20
        while (left := session_members(self._process.pid)) and time.monotonic() < deadline:
            for process in left:
                send(process.pid, 9)
            time.sleep(0.1)
        self._process.wait()
        self._output.close()

    def jobs(self) -> list[str]:
        """The programs that still run in this terminal, the shell left out."""
        return [one.name for one in session_members(self._process.pid) if one.pid != self._process.pid]

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def _printed(self, start: int) -> str:
        return self.log.read_bytes()[start:].decode(errors="replace")

    def _await(self, start: int, timeout: float) -> str:
        wait_until(lambda: self.log.read_text(errors="replace").count(_END) >= self._asked, timeout=timeout)
        return self._printed(start)

    def _standalone(self) -> str:
        log = self.home / "dpone-tutorial" / "standalone.log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture
def shell(tmp_path: Path, wheels: Path) -> Iterator[Shell]:
    asked = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
    # Nothing of what this shell knows about Python and Airflow is in a reader's.
    unknown = ("AIRFLOW_", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unknown)}
    env = uv_environment(settings, kept) | {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "UV_CACHE_DIR": subprocess.run(
            [UV, "cache", "dir"], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip(),
        "UV_CONSTRAINT": str(LOCK),
        # As pip does.
        "UV_COMPILE_BYTECODE": "1",
        "PIP_CONSTRAINT": str(LOCK),
        # What is looked for on this machine stays on it, whatever proxy the environment names.
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        sep = "," if name.startswith("UV") else " "
        env[name] = sep.join(filter(None, [env.get(name), str(wheels)]))
    one = Shell(tmp_path, env)
    try:
        if not os.environ.get("DPONE_TUTORIAL_PIP"):
            one.run(f'pip() {{ "{UV}" pip "$@"; }}')
        yield one
    finally:
        one.close()


def test_the_tutorial_leads_to_the_first_receipt_in_ten_minutes(shell: Shell) -> None:
    clickhouse, airflow = free_ports(2)
    page = PAGE.read_text()
    assert page.count("8123") > 5
    assert page.count("8080") > 2
    page = page.replace("8123", str(clickhouse)).replace("8080", str(airflow))
    shell.run(f"export AIRFLOW__API__PORT={airflow} AIRFLOW__API__BASE_URL=http://localhost:{airflow}")
    shell.run(f"export AIRFLOW__CORE__EXECUTION_API_SERVER_URL=http://localhost:{airflow}/execution/")

    begun = time.monotonic()
    file: Path | None = None
    took: dict[str, float] = {}
    said: dict[str, str] = {}
    for step in steps(page):
        start = time.monotonic()
        if step.kind == "file":
            file = Path(step.text.replace("~", str(shell.home)))
            continue
        if step.kind == "python":
            assert file is not None
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step.text)
        elif step.kind == "when":
            assert step.text == "the run is a success"
            wait_for_success(airflow)
            look_at_the_receipt(airflow)
            took["the receipt, from the first command on"] = time.monotonic() - begun
        elif not step.text.startswith("docker "):
            said[step.text] = shell.run(step.text)
        took[step.text.splitlines()[0][:70]] = time.monotonic() - start
    for what, seconds in took.items():
        print(f"{seconds:6.1f} s  {what}")

    text = "\n".join(said.values())
    assert "The control table of cluster analytics is ready" in text
    assert "mart.orders on cluster analytics: A refresh could begin now." in text
    assert re.search(r"^r1\t100000\t1249987500(\.0+)?$", text, re.MULTILINE)
    assert re.search(r"^r2\t100000\t1249987500(\.0+)?$", text, re.MULTILINE)
    assert time.monotonic() - begun < TEN_MINUTES
    # The page takes down what it has put up.
    wait_until(lambda: shell.jobs() == [], timeout=60)


def wait_for_success(port: int) -> None:
    """What a reader sees turn green."""

    def state() -> str:
        runs = get(port, f"/api/v2/dags/{DAG_ID}/dagRuns")["dag_runs"]
        return " ".join(sorted({run["state"] for run in runs}))

    wait_until(lambda: state() in ("success", "failed"), timeout=240)
    assert state() == "success"


def look_at_the_receipt(port: int) -> None:
    """The tab that the page speaks of, as the reader's browser loads it."""
    runs = get(port, f"/api/v2/dags/{DAG_ID}/dagRuns")["dag_runs"]
    run_id = next(run["dag_run_id"] for run in runs if run["run_type"] == "manual")
    path = f"/dpone/dags/{DAG_ID}/runs/{quote(run_id, safe='')}/tasks/orders.publish/-1"
    shown = load(port, path)
    assert "<h1>mart.orders</h1>" in shown
    assert "<span>Published</span>" in shown
    assert shown.count("</svg>new data is live") == 2


def get(port: int, path: str) -> Any:
    return json.loads(load(port, path))


def load(port: int, path: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://localhost:{port}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_the_page_is_read_as_its_reader_does() -> None:
    kinds = [step.kind for step in steps(PAGE.read_text())]
    assert kinds.count("file") == kinds.count("python") == kinds.count("when") == 1
    assert kinds.index("file") + 1 == kinds.index("python")
    assert kinds.count("bash") > 10


def test_a_command_that_fails_ends_the_test(tmp_path: Path) -> None:
    one = Shell(tmp_path, dict(os.environ))
    try:
        assert "here" in one.run("sleep 60 &\necho here")
        with pytest.raises(AssertionError, match="has ended with 3"):
            one.run("(exit 3)")
        one.run("kill %?60")
        wait_until(lambda: one.jobs() == [])
    finally:
        one.close()
