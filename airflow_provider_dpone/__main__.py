"""``python -m airflow_provider_dpone ...``: what ``airflow dpone ...`` is.

Airflow 3.1 takes no commands from providers; newer releases do.
"""

from __future__ import annotations

import argparse
from typing import Any


def main() -> None:
    """Run one command."""
    from airflow_provider_dpone.cli.definition import commands
    from airflow_provider_dpone.compat import add_command

    parser = argparse.ArgumentParser(prog="python -m airflow_provider_dpone")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    group: Any
    for group in commands():
        for command in group.subcommands:
            add_command(subparsers, command)
    arguments = parser.parse_args()
    arguments.func(arguments)


if __name__ == "__main__":
    main()
