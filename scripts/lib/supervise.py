"""Runs a command within a time limit and ends every process that it leaves behind.

    python scripts/lib/supervise.py --seconds 2700 -- pytest tests

A process group is not enough for that: servers that a test starts are leaders of their own groups. So this
process makes itself the *subreaper* of all its descendants: whichever of them loses its parent becomes its
child, however it was started, and is found in the end.

Exit status: the command's own; 128 + signal if a signal ended it; 124 past the limit; 3 if the command
succeeded but left processes behind, because a test or a demo that leaks servers has not succeeded.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 10.0
TIMED_OUT = 124
LEFT_PROCESSES = 3

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process.

    Raises:
        OSError: the kernel refused.
    """
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def children_of(pid: int) -> list[int]:
    """The live children of a process, zombies left out, in no particular order."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # pid (name) state ppid ...; a name may itself hold spaces and parentheses
        state, parent = text.rpartition(")")[2].split()[:2]
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def descendants_of(pid: int) -> list[int]:
    """All live descendants of a process."""
    found = []
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop()
        found.append(child)
        waiting.extend(children_of(child))
    return found


def name_of(pid: int) -> str:
    """The command line of a process, cut to one readable line; empty if it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:150]


def reap() -> None:
    """Collect the exit status of every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return


def end_all(grace_seconds: float) -> None:
    """End all descendants of this process: asked first, killed after the grace time."""
    for number, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, grace_seconds)):
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while rest := descendants_of(os.getpid()):
            for pid in set(rest) - told:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            told.update(rest)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
            reap()
        reap()


def run(command: list[str], seconds: float, grace_seconds: float = GRACE_SECONDS) -> int:
    """Run the command and clean up after it. Returns the exit status described above."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        child = subprocess.Popen(command, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
        try:
            status = child.wait(timeout=max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            print(f"supervise: not finished within {seconds:.0f} s", file=sys.stderr, flush=True)
            return TIMED_OUT
        status = status if status >= 0 else 128 - status
        leaked = _still_there_after(1.0)
        for pid in leaked:
            print(f"supervise: left behind: {pid} {name_of(pid)}", file=sys.stderr, flush=True)
        return LEFT_PROCESSES if leaked and status == 0 else status
    finally:
        end_all(grace_seconds)


def _still_there_after(seconds: float) -> list[int]:
    """Descendants that are still there after a short wait: one that is just ending is no leak."""
    deadline = time.monotonic() + seconds
    while (rest := descendants_of(os.getpid())) and time.monotonic() < deadline:
        time.sleep(0.05)
        reap()
    return rest


def main(arguments: list[str]) -> int:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description="Run a command, then end whatever it leaves behind.")
    parser.add_argument("--seconds", type=float, required=True, help="time limit")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    return run(options.command, options.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
