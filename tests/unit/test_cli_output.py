"""What every command prints in the same way."""

from __future__ import annotations

import shlex

from airflow_provider_dpone.publication.commands import command_line


def test_a_printed_command_can_be_pasted_whatever_a_table_is_called() -> None:
    line = command_line("orphans", ("--database", "mart"), ("--drop", "or ders'; rm__dpone_0123456789abcdef"))
    assert shlex.split(line) == [
        *("airflow", "dpone", "orphans", "--database", "mart"),
        *("--drop", "or ders'; rm__dpone_0123456789abcdef", "--reason", "..."),
    ]
