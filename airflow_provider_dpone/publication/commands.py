"""The ``airflow dpone`` commands that fit a state, ready to be pasted. They are words: nothing is run here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from airflow_provider_dpone.publication.explanation import Explanation, Way

UNKNOWN_CONNECTION: Final = "..."
"""Stands in a command for a connection whose id is not known."""


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The table that a command is about, as its flags name it.

    :ivar conn_id: the Airflow connection; :data:`UNKNOWN_CONNECTION` where it has to be filled in.
    """

    conn_id: str
    cluster: str
    database: str
    table: str

    @property
    def cluster_flags(self) -> tuple[tuple[str, str], ...]:
        """The flags that every command about a cluster takes."""
        return (("--conn-id", self.conn_id), ("--cluster", self.cluster))

    @property
    def flags(self) -> tuple[tuple[str, str], ...]:
        """The flags that every command about a table takes."""
        return (*self.cluster_flags, ("--database", self.database), ("--table", self.table))


_REASON: Final = "--reason '...'"

_COMMANDS: Final[Mapping[Way, str]] = {
    Way.RESOLVE: "resolve",
    Way.ABANDON: "abandon",
    Way.REPAIR: "resolve",
}


def fitting_commands(found: Explanation, target: CommandTarget) -> tuple[str, ...]:
    """Return the commands of an explanation's ways, where a way has one.

    Those that change something rest on the record; without one there are only those that bring it back.
    """
    said: list[str] = []
    if (record := found.record) is not None:
        operation = ("--operation", record.operation_id[:16])
        if Way.ROLL_ON in found.ways:
            undone = ("--operation", record.owner.run_id[:16])
            said.append(command_line("rollback", *target.flags, undone))
        wanted = dict.fromkeys(_COMMANDS[way] for way in found.ways if way in _COMMANDS)
        said += [command_line(name, *target.flags, operation) for name in wanted]
        if Way.RETIRE in found.ways:
            gone = [("--retire", alias) for alias in found.gone]
            said.append(command_line("resolve", *target.flags, operation, *gone))
    if Way.STAGE in found.ways or Way.CLEAN_UP in found.ways:
        said.append(orphans_command(target))
    if Way.RECOVER in found.ways:
        recover = f"{_line('init', target.cluster_flags)} --recover"
        said += [f"{recover} --print-sql", f"{recover} {_REASON}"]
    return tuple(said)


def explain_command(target: CommandTarget) -> str:
    """Return the command that shows what is known about a table, and the repair of each replica."""
    return _line("explain", target.flags)


def orphans_command(target: CommandTarget) -> str:
    """Return the command that lists and drops the tables of a database that nobody reads."""
    return _line("orphans", (*target.cluster_flags, ("--database", target.database)))


def evidence_command(cluster: str, operation_id: str) -> str:
    """Return the command that shows an operation's whole trail."""
    return _line("evidence show", (("--cluster", cluster), ("--operation", operation_id[:16])))


def command_line(name: str, *flags: tuple[str, str]) -> str:
    """Return a command that changes something, ready to be run but for its reason."""
    return f"{_line(name, flags)} {_REASON}"


def _line(name: str, flags: tuple[tuple[str, str], ...]) -> str:
    return f"airflow dpone {name} {' '.join(_flag(flag, value) for flag, value in flags)}"


def _flag(flag: str, value: str) -> str:
    # A value that begins with a dash would be taken for a flag itself.
    return shlex.quote(f"{flag}={value}") if value.startswith("-") else f"{flag} {shlex.quote(value)}"
