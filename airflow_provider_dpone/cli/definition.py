"""The commands as ``airflow`` lists them. Importing this costs nothing more; a command's code comes when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

_arg: Final[Callable[..., Arg]] = Arg

ARG_CONN_ID = _arg(
    ("--conn-id",),
    help="The Airflow connection to any server of the cluster",
    required=True,
)
ARG_CLUSTER = _arg(("--cluster",), help="The cluster's name in remote_servers", required=True)
ARG_DATABASE = _arg(("--database",), help="The table's database", required=True)
ARG_TABLE = _arg(("--table",), help="The table", required=True)
ARG_PRINT_SQL = _arg(
    ("--print-sql",),
    help="Change nothing, and print the statements that are missing",
    action="store_true",
)
ARG_MODE = _arg(
    ("--replication-mode",),
    help="internal for replicated tables, external for independent ones (default: internal)",
    choices=("internal", "external"),
    default="internal",
)
ARG_OUTPUT = _arg(
    ("-o", "--output"),
    help="Output format: table or json (default: table)",
    choices=("table", "json"),
    default="table",
)


def commands() -> list[CLICommand]:
    """Return the group ``dpone``."""
    return [
        GroupCommand(
            name="dpone",
            help="Refreshes of ClickHouse tables, proven on every replica",
            subcommands=(
                ActionCommand(
                    name="init",
                    help="Create the control table of a cluster, once",
                    description=(
                        "Create the control table of a cluster and name its authority. It can be run again at "
                        "any time: it completes what is missing and never drops or empties anything. Where "
                        "traces of earlier publications exist without a control table, it refuses."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.commands.init"),
                    args=(ARG_CONN_ID, ARG_CLUSTER, ARG_PRINT_SQL, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="preflight",
                    help="Check everything that a refresh of a table needs, without changing anything",
                    description=(
                        "Run every admission check against one table and list the grants it needs. Reads "
                        "only. Exit status: 0 if a refresh could begin now, 1 if not."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.commands.preflight"),
                    args=(ARG_CONN_ID, ARG_CLUSTER, ARG_DATABASE, ARG_TABLE, ARG_MODE, ARG_OUTPUT),
                ),
            ),
        )
    ]
