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
ARG_SOURCE = _arg(
    ("--source",),
    help="What the rows come from, for the grants: query or file (default: query)",
    choices=("query", "file"),
    default="query",
)
ARG_OUTPUT = _arg(
    ("-o", "--output"),
    help="Output format: table or json (default: table)",
    choices=("table", "json"),
    default="table",
)

ARG_REASON = _arg(("--reason",), help="Why; it is kept in the evidence", required=True)
ARG_OPERATION = _arg(
    ("--operation",),
    help="The beginning of the operation's id, as explain shows it: refuse if another one holds the table",
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
                    args=(
                        ARG_CONN_ID,
                        ARG_CLUSTER,
                        ARG_DATABASE,
                        ARG_TABLE,
                        ARG_MODE,
                        ARG_SOURCE,
                        ARG_OUTPUT,
                    ),
                ),
                ActionCommand(
                    name="status",
                    help="Show every table of a cluster that was ever refreshed, and who holds it",
                    description=(
                        "Read the records of all tables and what the replicas hold now. Reads only. Exit "
                        "status: 0 if no table is held, 2 if one is, 1 if it can't be read."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.holds.status"),
                    args=(ARG_CONN_ID, ARG_CLUSTER, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="explain",
                    help="Say what happened to a table, what is proven, what is safe next and what never",
                    description=(
                        "Read record, queue and replicas, and say what they mean. Reads only. Exit status: 0 "
                        "if the table is free, 2 if an operation holds it, 1 if it can't be read."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.holds.explain"),
                    args=(ARG_CONN_ID, ARG_CLUSTER, ARG_DATABASE, ARG_TABLE, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="abandon",
                    help="Give up an operation that was prepared and never sent",
                    description=(
                        "Free a table from an operation whose statement was never sent, and drop its candidate "
                        "where that is proven safe. Refused for anything that may have been sent. Exit status: "
                        "0 if the table is free, 1 if nothing was changed or it is not known."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.holds.abandon"),
                    args=(
                        ARG_CONN_ID,
                        ARG_CLUSTER,
                        ARG_DATABASE,
                        ARG_TABLE,
                        ARG_REASON,
                        ARG_OPERATION,
                        ARG_OUTPUT,
                    ),
                ),
                ActionCommand(
                    name="resolve",
                    help="End an operation whose statement was sent, by what the replicas prove",
                    description=(
                        "Commit an operation that every replica proves, or make its swap harmless and close it "
                        "where every replica holds the old table. Where replicas differ, it changes nothing "
                        "that readers see and says so. Exit status: 0 if the operation is committed or closed, "
                        "1 if not."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.holds.resolve"),
                    args=(
                        ARG_CONN_ID,
                        ARG_CLUSTER,
                        ARG_DATABASE,
                        ARG_TABLE,
                        ARG_REASON,
                        ARG_OPERATION,
                        ARG_OUTPUT,
                    ),
                ),
            ),
        )
    ]
