"""Finds the programs of a PostgreSQL server on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Written by the script that prepares a checkout: {"programs": folder, "libraries": folders joined by ":"}.
_NOTE = Path(__file__).resolve().parents[2] / ".cache" / "postgres.json"
_DEBIAN = Path("/usr/lib/postgresql")


class PostgresNotFoundError(RuntimeError):
    """No PostgreSQL server on this machine; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class PostgresInstallation:
    """Where ``initdb`` and ``postgres`` are, and the libraries that the system does not find by itself."""

    programs: Path
    libraries: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment in which they run: nothing of the caller's own settings for PostgreSQL."""
        found = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {**found, "LD_LIBRARY_PATH": self.libraries} if self.libraries else found


def find_postgres() -> PostgresInstallation:
    """Return the installation that the setup script wrote down, or Debian's newest.

    Raises:
        PostgresNotFoundError: there is none.
    """
    if _NOTE.exists():
        note = json.loads(_NOTE.read_text())
        found = PostgresInstallation(Path(note["programs"]), note["libraries"])
        if (found.programs / "postgres").exists():
            return found
    for folder in sorted(_DEBIAN.glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True):
        if (folder / "postgres").exists():
            return PostgresInstallation(folder)
    raise PostgresNotFoundError(
        f"no PostgreSQL server in {_DEBIAN} and no {_NOTE.name} in .cache: run scripts/setup"
    )
