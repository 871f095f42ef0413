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

ARG_ONE_DATABASE = _arg(("--database",), help="Only operations on a table of this database")
ARG_ONE_TABLE = _arg(("--table",), help="Only operations on this table")
ARG_LIMIT = _arg(("--limit",), help="How many at most (default: 50)", type=int, default=50)
ARG_TRAIL = _arg(
    ("--operation",), help="The beginning of the operation's id, at least 8 characters", required=True
)
ARG_OLDER_THAN = _arg(
    ("--older-than",), help="Age of the newest entry, such as 90d or 36h; at least 1d", required=True
)
ARG_DRY_RUN = _arg(("--dry-run",), help="Delete nothing, and say what would be deleted", action="store_true")

ARG_REASON = _arg(("--reason",), help="Why; it is kept in the evidence", required=True)
ARG_OPERATION = _arg(
    ("--operation",),
    help="The beginning of the operation's id, as explain shows it: refuse if another one holds the table",
)
ARG_RETIRE = _arg(
    ("--retire",),
    help="A replica that is gone for ever, as it was called at admission (s1/r2); may be given more than once",
    action="append",
    metavar="REPLICA",
)
ARG_RECOVER = _arg(
    ("--recover",),
    help="The control table was lost: replace it by a new authority; needs --reason",
    action="store_true",
)
ARG_DROP = _arg(("--drop",), help="Drop this table, if that is proven safe", metavar="NAME")
ARG_FORGET = _arg(
    ("--forget",),
    help="Strike this kept table off the record, because another table has its name; nothing is dropped",
    metavar="NAME",
)
ARG_ANY_DATABASE = _arg(("--database",), help="Only this database")
ARG_ANY_REASON = _arg(("--reason",), help="Why; needed for a change, and kept in the evidence")
ARG_UNDONE = _arg(
    ("--operation",),
    help="The beginning of the id of the operation whose data is live and is undone, as explain shows it",
    required=True,
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
                        "traces of earlier publications exist without a control table, it refuses: with --recover "
                        "it takes away every name that a late statement could use, and then creates a new authority "
                        "that adopts the published tables."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.commands.init"),
                    args=(ARG_CONN_ID, ARG_CLUSTER, ARG_RECOVER, ARG_ANY_REASON, ARG_PRINT_SQL, ARG_OUTPUT),
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
                        "Read record, queue and replicas, and say what they mean. Where the record can't be "
                        "read, say what was known before, from the evidence, and what the tables show. Reads "
                        "only. Exit status: 0 if the table is free, 2 if an operation holds it, 1 if its record "
                        "can't be read now, or nothing can be told."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.holds.explain"),
                    args=(ARG_CONN_ID, ARG_CLUSTER, ARG_DATABASE, ARG_TABLE, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="abandon",
                    help="Give up an operation that was never sent",
                    description=(
                        "Free a table from an operation whose statement was never sent, prepared or still being "
                        "staged, and drop its tables where that is proven safe. Refused for anything that may have "
                        "been sent. Exit status: "
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
                        "that readers see and says so. With --retire a replica that is gone for ever is left out, "
                        "where the others prove all that it takes. Exit status: 0 if the operation is committed "
                        "or closed, 1 if not."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.holds.resolve"),
                    args=(
                        ARG_CONN_ID,
                        ARG_CLUSTER,
                        ARG_DATABASE,
                        ARG_TABLE,
                        ARG_REASON,
                        ARG_OPERATION,
                        ARG_RETIRE,
                        ARG_OUTPUT,
                    ),
                ),
                ActionCommand(
                    name="orphans",
                    help="List tables of this provider that no record needs, and drop one",
                    description=(
                        "Look on every replica for tables with this provider's mark or a name like its own that no "
                        "record needs, and say why each is there. --drop first makes it impossible for anybody to "
                        "publish the table, and then drops exactly that table. Exit status: 0 if it was listed or "
                        "changed, 1 if not."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.ways.orphans"),
                    args=(
                        ARG_CONN_ID,
                        ARG_CLUSTER,
                        ARG_ANY_DATABASE,
                        ARG_DROP,
                        ARG_FORGET,
                        ARG_ANY_REASON,
                        ARG_OUTPUT,
                    ),
                ),
                ActionCommand(
                    name="rollback",
                    help="Publish the table again that an operation replaced, while it is kept",
                    description=(
                        "Publish the kept predecessor again as a new operation, with the same proof on every replica. "
                        "Run again, it goes on with the same operation and never swaps back. Exit status: 0 if it "
                        "is proven, 1 if it was refused or is not proven yet."
                    ),
                    func=lazy_load_command("airflow_provider_dpone.cli.ways.rollback"),
                    args=(
                        ARG_CONN_ID,
                        ARG_CLUSTER,
                        ARG_DATABASE,
                        ARG_TABLE,
                        ARG_REASON,
                        ARG_UNDONE,
                        ARG_OUTPUT,
                    ),
                ),
                _evidence(),
            ),
        )
    ]


def _evidence() -> GroupCommand:
    return GroupCommand(
        name="evidence",
        help="The durable trail of every operation: list it, show it, keep it small",
        subcommands=(
            ActionCommand(
                name="list",
                help="List operations, newest first, and how far each came",
                description=(
                    "Read the list of operations in the evidence. The state is the last one that the "
                    "operation's own trail tells; what holds now, `status` says. Reads only."
                ),
                func=lazy_load_command("airflow_provider_dpone.cli.evidence.list_operations"),
                args=(ARG_CLUSTER, ARG_ONE_DATABASE, ARG_ONE_TABLE, ARG_LIMIT, ARG_OUTPUT),
            ),
            ActionCommand(
                name="show",
                help="Show the whole trail of one operation, in order",
                description="Read everything that was written down about one operation. Reads only.",
                func=lazy_load_command("airflow_provider_dpone.cli.evidence.show"),
                args=(ARG_CLUSTER, ARG_TRAIL, ARG_OUTPUT),
            ),
            ActionCommand(
                name="reindex",
                help="Rebuild the list of operations from their trails",
                description=(
                    "Add what is missing in the list of operations, and take off what has no trail any more. "
                    "It can be run at any time, and again."
                ),
                func=lazy_load_command("airflow_provider_dpone.cli.evidence.reindex"),
                args=(ARG_CLUSTER, ARG_OUTPUT),
            ),
            ActionCommand(
                name="prune",
                help="Delete the trails of operations that ended long ago",
                description=(
                    "Delete the trails of operations that have ended, whose newest entry is older than the "
                    "given age, and that no record and no table on the cluster needs. The last operation of "
                    "each table is always kept. What is deleted is written down first. It can be run again."
                ),
                func=lazy_load_command("airflow_provider_dpone.cli.evidence.prune"),
                args=(ARG_CONN_ID, ARG_CLUSTER, ARG_OLDER_THAN, ARG_DRY_RUN, ARG_OUTPUT),
            ),
        ),
    )
