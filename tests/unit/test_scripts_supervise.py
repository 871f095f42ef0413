"""Supervised commands: their status is passed on, and nothing that they start outlives them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.lib.processes import all_processes

CHECKOUT = Path(__file__).resolve().parents[2]


def supervise(script: str, seconds: float = 30.0, *options: str) -> subprocess.Popen[str]:
    """Start a shell script under supervision."""
    command = [sys.executable, "-m", "scripts.lib.supervise", "--seconds", str(seconds), *options]
    return subprocess.Popen(
        [*command, "--", "bash", "-c", script],
        cwd=CHECKOUT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def alive(marker: str) -> list[str]:
    """Command lines of live processes that hold this text, other than the supervisor's own."""
    return [one.name for one in all_processes() if marker in one.name and "supervise" not in one.name]


@pytest.mark.parametrize("status", [0, 1, 5])
def test_status_is_passed_on(status: int) -> None:
    assert supervise(f"exit {status}").wait() == status


def test_status_of_a_signal() -> None:
    assert supervise("kill -KILL $$").wait() == 128 + signal.SIGKILL


def test_process_left_behind_is_named_ended_and_a_failure() -> None:
    # In a session of its own, and orphaned at once.
    process = supervise("(setsid sleep 61.25 >/dev/null 2>&1 &)")
    _, errors = process.communicate()
    assert process.returncode == 3
    assert "left behind" in errors
    assert "sleep 61.25" in errors
    assert alive("sleep 61.25") == []


def test_failure_is_not_hidden_by_a_process_left_behind() -> None:
    assert supervise("(setsid sleep 61.5 >/dev/null 2>&1 &); exit 1").wait() == 1
    assert alive("sleep 61.5") == []


def test_time_limit() -> None:
    process = supervise("setsid sleep 62.25 & sleep 62.5", seconds=0.5)
    _, errors = process.communicate()
    assert process.returncode == 124
    assert "not finished within" in errors
    assert alive("sleep 62") == []


def test_interrupted_supervisor_ends_everything() -> None:
    process = supervise("setsid sleep 63.25 & echo started; sleep 63.5")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert alive("sleep 63") == []


def test_killed_supervisor_takes_its_command_along() -> None:
    process = supervise("echo started; exec sleep 64.25")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while alive("sleep 64.25") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive("sleep 64.25") == []


def program(folder: Path, script: str) -> str:
    """A program that runs this shell script."""
    file = folder / "program"
    file.write_text(f"#!/usr/bin/env bash\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("command", ["sleep 0.5; echo tests", "echo tests"], ids=["longer", "shorter"])
def test_what_succeeds_beside_the_command_is_shown_apart(tmp_path: Path, command: str) -> None:
    beside = program(tmp_path, "echo one; sleep 0.2; echo two")
    process = supervise(command, 30.0, "--beside", beside)
    output, errors = process.communicate()
    assert process.returncode == 0
    assert errors == "one\ntwo\n"
    assert output == "tests\n"


def test_status_of_the_command_counts_after_a_success_beside_it(tmp_path: Path) -> None:
    assert supervise("exit 5", 30.0, "--beside", program(tmp_path, "sleep 0.2")).wait() == 5


def test_failure_beside_the_command_ends_it(tmp_path: Path) -> None:
    beside = program(tmp_path, "echo wrong; exit 7")
    process = supervise("setsid sleep 65.25 & sleep 65.5", 30.0, "--beside", beside)
    _, errors = process.communicate()
    assert process.returncode == 7
    assert errors.startswith("wrong\n")
    assert f"'{beside}'" in errors
    assert "ended with 7; the command is ended" in errors
    assert alive("sleep 65") == []


def test_failure_beside_a_command_that_has_succeeded_is_a_failure(tmp_path: Path) -> None:
    beside = program(tmp_path, "sleep 0.5; exit 7")
    assert supervise("exit 0", 30.0, "--beside", beside).wait() == 7


def test_time_limit_is_for_what_runs_beside_the_command_too(tmp_path: Path) -> None:
    beside = program(tmp_path, "sleep 66.25")
    assert supervise("exit 0", 0.5, "--beside", beside).wait() == 124
    assert alive("sleep 66.25") == []
