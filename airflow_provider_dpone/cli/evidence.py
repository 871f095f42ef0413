"""What the commands about the evidence do: list, show, reindex and prune."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from airflow_provider_dpone import composition
from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.cli.output import exit_status, operator_name, print_json, print_text
from airflow_provider_dpone.evidence.reader import Trail
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.telling import told, told_writer
from airflow_provider_dpone.publication.trail import Admission, dump_entry

MOST_LISTED: Final = 1000
"""Most operations that one list shows."""

_UNITS: Final = {"d": timedelta(days=1), "h": timedelta(hours=1)}


def list_operations(args: Namespace) -> None:
    """List operations, newest first.

    :raises SystemExit: 1: refused, or the evidence can't be read.
    """
    with exit_status(args.output):
        with bad_input():
            if not 1 <= args.limit <= MOST_LISTED:
                raise ValueError(f"--limit must be 1 to {MOST_LISTED}")
            if (args.database is None) != (args.table is None):
                raise ValueError("--database and --table name a table together")
            reader = composition.evidence_reader(args.cluster)
        target = None if args.table is None else (args.database, args.table)
        found = reader.operations(limit=args.limit, target=target)
    if args.output == "json":
        operations: list[Json] = [
            {
                "operation": one.operation_id,
                "at": one.at,
                "database": one.database,
                "table": one.table,
                "state": one.state,
            }
            for one in found
        ]
        print_json({"cluster": args.cluster, "operations": operations})
    elif found:
        header = ("ADMITTED", "TABLE", "OPERATION", "STATE")
        rows = [(one.at, f"{one.database}.{one.table}", one.operation_id[:16], one.state) for one in found]
        print_text(*_aligned([header, *rows]), sep="\n")
    else:
        print_text(f"The evidence lists no such operation on cluster {args.cluster}.")


def show(args: Namespace) -> None:
    """Show the whole trail of one operation.

    :raises SystemExit: 1: there is no such operation, or the evidence can't be read.
    """
    with exit_status(args.output):
        with bad_input():
            reader = composition.evidence_reader(args.cluster)
            operation_id = reader.find(args.operation)
        trail = reader.trail(operation_id)
    if args.output == "json":
        print_json(
            {
                "cluster": args.cluster,
                "operation": operation_id,
                "entries": [json.loads(dump_entry(entry)) for entry in trail.entries],
                "left_alone": [{"name": name, "why": f"it {why}"} for name, why in trail.unknown],
            }
        )
    else:
        print_text(*_trail(trail), sep="\n")


def reindex(args: Namespace) -> None:
    """Rebuild the list of operations.

    :raises SystemExit: 1: the evidence can't be read or written.
    """
    with exit_status(args.output):
        with bad_input():
            reader = composition.evidence_reader(args.cluster)
        done = reader.reindex()
    if args.output == "json":
        print_json(
            {
                "cluster": args.cluster,
                "operations": done.operations,
                "added": done.added,
                "repaired": done.repaired,
                "removed": done.removed,
                "unlisted": done.unlisted,
            }
        )
        return
    print_text(
        f"{done.operations} operations are on the list of cluster {args.cluster}: {done.added} entries were "
        f"missing, {done.repaired} were cut off or older, {done.removed} had no trail."
    )
    if done.unlisted:
        print_text(f"{done.unlisted} operations have no admission, and so no place on the list.")


def prune(args: Namespace) -> None:
    """Delete the trails of operations that ended long ago.

    :raises SystemExit: 1: refused, or something can't be read; what was deleted until then stays deleted.
    """
    with exit_status(args.output):
        with bad_input():
            older_than = _age(args.older_than)
        with composition.server(args.conn_id) as server:
            done = composition.prune_evidence(
                server,
                args.cluster,
                older_than=older_than,
                dry_run=args.dry_run,
                about={"operator": operator_name()},
            )
    if args.output == "json":
        print_json(
            {
                "cluster": args.cluster,
                "dry_run": args.dry_run,
                "deleted": list(done.deleted),
                "kept": dict(done.kept),
            }
        )
        return
    verb = "would be deleted" if args.dry_run else "deleted"
    print_text(f"{len(done.deleted)} trails of cluster {args.cluster} {verb}.")
    for why, number in sorted(done.kept.items()):
        print_text(f"{number} kept: {why}.")


def _age(text: str) -> timedelta:
    """Return an age such as ``90d``.

    :raises ValueError: it is none.
    """
    found = re.fullmatch(r"(\d{1,6})([dh])", text.strip())
    if found is None:
        raise ValueError("--older-than takes a number of days or hours, such as 90d or 36h")
    return int(found[1]) * _UNITS[found[2]]


def _trail(trail: Trail) -> Iterator[str]:
    yield f"Operation {trail.operation_id}"
    admission = next((e.body for e in trail.entries if isinstance(e.body, Admission)), None)
    if admission is not None:
        owner = admission.owner
        yield f"{admission.database}.{admission.table}, DAG {owner.dag_id}, run {owner.run_id}"
    yield ""
    rows = [(entry.at, entry.body.kind, told(entry.body), told_writer(entry)) for entry in trail.entries]
    yield from _aligned([("WHEN", "ENTRY", "WHAT", "WHO"), *rows])
    for name, why in trail.unknown:
        yield f"{name} {why}."


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
