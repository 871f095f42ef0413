"""Finds what a cluster has left behind."""

from __future__ import annotations

from pathlib import Path


def processes_of(folder: str) -> list[int]:
    """Processes (but no zombies) that run in this folder, or that name it in their command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                current = str((process / "cwd").readlink())
            except OSError:
                continue  # it has just ended
            if folder in command or current.startswith(folder):
                found.append(int(process.name))
    return found
