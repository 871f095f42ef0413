"""Runs a command within a time limit and ends every process that it leaves behind.

    python -m scripts.lib.supervise --seconds 2700 -- pytest tests

A process group is not enough for that: servers that a test starts are leaders of their own groups. So this
process makes itself the *subreaper* of all its descendants: whichever of them loses its parent becomes its
child, however it was started, and is found in the end.

Exit status: the command's own; 128 + signal if a signal ended it; 124 past the limit; 3 if the command
succeeded but left processes behind, because a test or a demo that leaks servers has not succeeded.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from scripts.lib.processes import Process, adopt_orphans, descendants, die_with_parent, end_descendants, reap

GRACE_SECONDS = 10.0
TIMED_OUT = 124
LEFT_PROCESSES = 3


def run(command: list[str], seconds: float, grace_seconds: float = GRACE_SECONDS) -> int:
    """Run the command and clean up after it. Returns the exit status described above."""
    adopt_orphans()

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        child = subprocess.Popen(command, preexec_fn=die_with_parent)
        try:
            status = child.wait(timeout=max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            print(f"supervise: not finished within {seconds:.0f} s", file=sys.stderr, flush=True)
            return TIMED_OUT
        status = status if status >= 0 else 128 - status
        leaked = _still_there_after(1.0)
        for process in leaked:
            print(f"supervise: left behind: {process.pid} {process.name}", file=sys.stderr, flush=True)
        return LEFT_PROCESSES if leaked and status == 0 else status
    finally:
        end_descendants(grace_seconds)


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
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    return run(options.command, options.seconds, options.grace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
