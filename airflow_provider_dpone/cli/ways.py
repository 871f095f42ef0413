"""What the commands beside a hold do: orphans and rollback."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_dpone import composition
from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.cli.output import (
    exit_status,
    operator_name,
    print_json,
    print_log,
    print_text,
)
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.commands import command_line
from airflow_provider_dpone.publication.orphans import Orphan
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.words import when
from airflow_provider_dpone.routes import cluster_refresh
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest
from airflow_provider_dpone.routes.ports import Target


def orphans(args: Namespace) -> None:
    """List the tables of this provider that no record needs; drop one, or forget a kept one that was replaced.

    :raises SystemExit: 1: refused, or something can't be read; the reason is shown.
    """
    with exit_status(args.output):
        with composition.server(args.conn_id) as server:
            found = composition.orphans(server, args.cluster)
        name = args.drop or args.forget
        if name is not None:
            _change(args, _only(found, name, args.database))
            return
    if args.database is not None:
        found = tuple(one for one in found if one.database == args.database)
    if args.output == "json":
        print_json({"cluster": args.cluster, "orphans": [_as_json(one) for one in found]})
        return
    if not found:
        print_text(f"No table on cluster {args.cluster} is left over.")
    for one in found:
        replicas = ", ".join(one.uuids)
        print_text(
            f"{one.database}.{one.name}  {one.bytes:,} bytes on {replicas}, since {when(one.changed_at)}"
        )
        print_text(f"    {one.why}")
        if one.operation_id:
            print_text(f"    operation {one.operation_id[:16]}")
        if one.droppable:
            where = (("--conn-id", args.conn_id), ("--cluster", args.cluster), ("--database", one.database))
            print_text(f"    {command_line('orphans', *where, ('--drop', one.name))}")


def rollback(args: Namespace) -> None:
    """Publish the table again that an operation replaced.

    :raises SystemExit: 1: refused, or not proven yet; the reason is shown.
    """
    target = Target(args.cluster, args.database, args.table)
    with exit_status(args.output):
        with bad_input():
            request = OperatorRequest(args.reason, args.operation)
            waits = composition.waits()
        with composition.operator_ports(args.conn_id, target, about=_about(args), log=print_log) as connected:
            done = cluster_refresh.rollback(connected.ports, connected.site, request, waits)
    if args.output == "json":
        print_json(
            {
                "ok": True,
                "operation": done.operation_id,
                "phase": done.phase.value,
                "live": done.uuid,
                "uuids": dict(done.uuids),
                "rows": done.rows,
                "replayed": done.replayed,
                "retained": list(done.retained),
            }
        )
        return
    print_text(
        f"{target}: operation {done.operation_id[:16]} is {done.phase}: {done.rows:,} rows are live again."
    )
    if done.replayed:
        print_text("There was nothing to change.")
    print_text(
        f"What was live before is kept in {', '.join(done.retained)}."
        if done.retained
        else "Nothing is kept."
    )


def _only(found: tuple[Orphan, ...], name: str, database: str | None) -> Orphan:
    meant = [one for one in found if one.name == name and database in (None, one.database)]
    if len(meant) == 1:
        return meant[0]
    where = ", ".join(one.database for one in meant)
    raise Stopped(
        Stop(
            Code.BAD_INPUT,
            f"Tables named {name!r} are left over in {where}."
            if meant
            else f"No table {name!r} is left over.",
            next_action="Name the database with --database."
            if meant
            else "List them: `airflow dpone orphans`.",
        )
    )


def _change(args: Namespace, orphan: Orphan) -> None:
    with bad_input():
        if args.drop and args.forget:
            raise ValueError("--drop and --forget are two commands")
        request = OperatorRequest(args.reason or "")
        waits = composition.waits()
        target = Target(args.cluster, orphan.database, orphan.table or orphan.name)
    with composition.operator_ports(args.conn_id, target, about=_about(args), log=print_log) as connected:
        if args.forget:
            item = cluster_refresh.forget(connected.ports, connected.site, orphan.name, request, waits)
            answer: dict[str, Json] = {"ok": True, "forgotten": item.name, "uuid": item.generation.uuid}
            said = f"{item.name} is struck off the record of {target}. No table was dropped."
        else:
            done = cluster_refresh.drop_orphan(connected.ports, connected.site, orphan, request, waits)
            answer = {
                "ok": True,
                "dropped": done.name,
                "uuid": orphan.uuid,
                "uuids": dict(done.uuids),
                "gone": done.gone,
            }
            said = (
                f"{done.name} is gone on every replica."
                if done.gone
                else f"{done.name} is listed for a drop; cleanup goes on with it."
            )
    if args.output == "json":
        print_json(answer)
    else:
        print_text(said)


def _about(args: Namespace) -> dict[str, Json]:
    return {"operator": operator_name(), "conn_id": args.conn_id}


def _as_json(one: Orphan) -> Json:
    return {
        "database": one.database,
        "name": one.name,
        "uuids": dict(one.uuids),
        "bytes": one.bytes,
        "operation": one.operation_id,
        "table": one.table,
        "why": one.why.name.lower(),
        "says": one.why.value,
        "droppable": one.droppable,
        "since": one.changed_at,
    }
