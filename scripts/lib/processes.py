"""Processes as the Linux kernel sees them: who descends from whom, and how to end them all."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """One live process; zombies are not among them."""

    pid: int
    parent: int
    session: int

    @property
    def name(self) -> str:
        """The command line, cut to one readable line; empty if the process is gone."""
        try:
            raw = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:150]


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask the kernel to signal this process when its parent ends. Call it in the child, as ``preexec_fn``.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the subreaper: descendants that lose their parent become children of this process.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def resident_bytes(pid: int) -> int:
    """Memory that a process holds now, shared pages included; 0 if it is gone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")


def all_processes() -> Iterator[Process]:
    """Every live process of the machine."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        # pid (name) state ppid pgrp session ...; a name may itself hold spaces and parentheses
        state, parent, _, session = text.rpartition(")")[2].split()[:4]
        if state != "Z":
            yield Process(int(stat.parent.name), int(parent), int(session))


def descendants(pid: int) -> list[Process]:
    """All live descendants of a process."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        of_one = children.get(waiting.pop(), [])
        found.extend(of_one)
        waiting.extend(process.pid for process in of_one)
    return found


def session_members(session: int) -> list[Process]:
    """All live processes of a session, orphans included: a new parent changes nothing about the session."""
    return [process for process in all_processes() if process.session == session]


def send(pid: int, number: int) -> None:
    """Signal a process, which may have ended in the meantime."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def reap() -> None:
    """Collect the exit status of every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return


def end_descendants(grace_seconds: float) -> None:
    """End all descendants of this process: asked first, killed after the grace time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace_seconds
        told: set[int] = set()
        while (rest := descendants(os.getpid())) and time.monotonic() < deadline:
            for process in rest:
                if process.pid not in told:
                    send(process.pid, number)
                    told.add(process.pid)
            time.sleep(0.05)
            reap()
