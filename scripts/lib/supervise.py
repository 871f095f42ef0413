"""Runs a command within a time limit and ends every process that it leaves behind.

    python -m scripts.lib.supervise --seconds 2700 -- pytest tests
    python -m scripts.lib.supervise --seconds 2700 --beside scripts/check -- pytest tests

What is asked for beside the command runs at the same time; what it printed is shown when it has ended. If it fails, the
command is ended at once.

A process group is not enough for that: servers that a test starts are leaders of their own groups. So this
process makes itself the *subreaper* of all its descendants: whichever of them loses its parent becomes its
child, however it was started, and is found in the end.

Exit status: the command's own, or that of what failed beside it; 128 + signal if a signal ended it; 124 past the limit;
3 if the command succeeded but left processes behind, because a test or a demo that leaks servers has not succeeded.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO

from scripts.lib.processes import Process, adopt_orphans, descendants, die_with_parent, end_descendants, reap

GRACE_SECONDS = 10.0
TIMED_OUT = 124
LEFT_PROCESSES = 3


def run(
    command: list[str], seconds: float, grace_seconds: float = GRACE_SECONDS, beside: str | None = None
) -> int:
    """Run the command and clean up after it. Returns the exit status described above."""
    deadline = time.monotonic() + max(seconds, 0.0)
    adopt_orphans()

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        with ExitStack() as stack:
            other = stack.enter_context(_beside(beside)) if beside else None
            child = subprocess.Popen(command, preexec_fn=die_with_parent)
            try:
                if other is not None and (status := other.ended(deadline, child)) != 0:
                    return status
                status = _status(child.wait(timeout=max(deadline - time.monotonic(), 0.0)))
            except subprocess.TimeoutExpired:
                print(f"supervise: not finished within {seconds:.0f} s", file=sys.stderr, flush=True)
                return TIMED_OUT
        leaked = _still_there_after(1.0)
        for process in leaked:
            print(f"supervise: left behind: {process.pid} {process.name}", file=sys.stderr, flush=True)
        return LEFT_PROCESSES if leaked and status == 0 else status
    finally:
        end_descendants(grace_seconds)


@dataclass
class _Beside:
    """A program that runs at the same time as the command, and what it has printed."""

    process: subprocess.Popen[bytes]
    printed: IO[bytes]

    def ended(self, deadline: float, command: subprocess.Popen[bytes]) -> int:
        """Wait for its end, show what it printed, and return its status.

        Also when the command has ended before: a run whose checks fail is no success.

        Raises:
            subprocess.TimeoutExpired: it still runs at the deadline.
        """
        status = _status(self.process.wait(timeout=max(deadline - time.monotonic(), 0.0)))
        self.printed.seek(0)
        # Not to standard output: that ends with what the command says last.
        print(self.printed.read().decode(errors="replace"), end="", file=sys.stderr, flush=True)
        if status != 0:
            said = "" if command.poll() is not None else "; the command is ended"
            print(f"supervise: {self.process.args!r} ended with {status}{said}", file=sys.stderr, flush=True)
        return status


@contextmanager
def _beside(program: str) -> Iterator[_Beside]:
    """Start a program beside the command. Its lines must not come between those of the command."""
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [program],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        yield _Beside(process, printed)


def _status(returncode: int) -> int:
    """The exit status of a process as a shell tells it."""
    return returncode if returncode >= 0 else 128 - returncode


def _still_there_after(seconds: float) -> list[Process]:
    """Descendants that are still there after a short wait: one that is just ending is no leak."""
    deadline = time.monotonic() + seconds
    while (rest := descendants(os.getpid())) and time.monotonic() < deadline:
        time.sleep(0.05)
        reap()
    return rest


def main(arguments: list[str]) -> int:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description="Run a command, then end whatever it leaves behind.")
    parser.add_argument("--seconds", type=float, required=True, help="time limit")
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        metavar="SECONDS",
        help="how long processes may take to end when asked, before they are killed",
    )
    parser.add_argument(
        "--beside", metavar="PROGRAM", help="what runs at the same time and must succeed, too"
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    return run(options.command, options.seconds, options.grace, options.beside)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
