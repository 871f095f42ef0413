"""What the commands about held tables do: status, explain, abandon and resolve."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict

from airflow_provider_dpone import composition
from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.cli.output import (
    exit_status,
    operator_name,
    print_json,
    print_log,
    print_text,
)
from airflow_provider_dpone.clickhouse.ddl_queue import render_local
from airflow_provider_dpone.clickhouse.errors import name_of
from airflow_provider_dpone.clickhouse.targets import Unusable
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.commands import CommandTarget, fitting_commands
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase
from airflow_provider_dpone.publication.words import when
from airflow_provider_dpone.routes import cluster_refresh
from airflow_provider_dpone.routes.cluster_refresh import Ended, OperatorRequest, Site, TargetStatus, Waits
from airflow_provider_dpone.routes.ports import Ports, Target

HELD = 2
"""Exit status of a command that reads, where an operation holds a table."""

UNREAD = 1
"""Exit status of `explain`, where the target's record can't be read now."""


def status(args: Namespace) -> None:
    """Show every target of a cluster: phase, operation, since when, and what the replicas hold.

    :raises SystemExit: 2: a table is held, or its state can't be read; 1: nothing can be read.
    """
    with exit_status(args.output), composition.server(args.conn_id) as server:
        found = composition.status(server, args.cluster)
    if args.output == "json":
        print_json({"cluster": args.cluster, "targets": [_status_json(one) for one in found]})
    elif found:
        rows = [("TABLE", "PHASE", "OPERATION", "SINCE", "LIVE"), *map(_status_row, found)]
        widths = [max(len(row[n]) for row in rows) for n in range(5)]
        for row in rows:
            print_text("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        print_text(f"No table of cluster {args.cluster} was ever refreshed.")
    if any(isinstance(one, Unusable) or one.problem or (one.record and _held(one.record)) for one in found):
        raise SystemExit(HELD)


def explain(args: Namespace) -> None:
    """Say what happened to one target, what is proven per replica, and what to do.

    :raises SystemExit: 2: an operation holds the target; 1: how it stands can't be read now, and what was known
        before is shown; or nothing can be told at all.
    """
    target = Target(args.cluster, args.database, args.table)
    with exit_status(args.output), composition.server(args.conn_id) as server:
        found = composition.explain(server, target)
    if args.output == "json":
        print_json(_explanation_json(args, target, found))
    else:
        print_text(*_explanation(args, target, found), sep="\n")
    if not found.read:
        raise SystemExit(UNREAD)
    if found.held:
        raise SystemExit(HELD)


def abandon(args: Namespace) -> None:
    """Give up an operation that was never sent.

    :raises SystemExit: 1: refused; the reason is shown.
    """
    _end(args, cluster_refresh.abandon)


def resolve(args: Namespace) -> None:
    """End an operation whose statement was sent, by what the replicas prove.

    :raises SystemExit: 1: neither outcome is proven; the reason is shown.
    """
    _end(args, cluster_refresh.resolve)


def _end(args: Namespace, command: Callable[[Ports, Site, OperatorRequest, Waits], Ended]) -> None:
    target = Target(args.cluster, args.database, args.table)
    about: dict[str, Json] = {"operator": operator_name(), "conn_id": args.conn_id}
    with exit_status(args.output):
        with bad_input():
            request = OperatorRequest(args.reason, args.operation, tuple(getattr(args, "retire", None) or ()))
            waits = composition.waits()
        with composition.operator_ports(args.conn_id, target, about=about, log=print_log) as connected:
            ended = command(connected.ports, connected.site, request, waits)
    if args.output == "json":
        print_json(
            {
                "ok": True,
                "operation": ended.operation_id,
                "phase": ended.phase.value,
                "changed": ended.changed,
                "kept": ended.kept,
                "retired": list(ended.retired),
                "sealed": ended.sealed,
            }
        )
        return
    outcome = (
        "not published; the target is free" if ended.phase is Phase.ABORTED else "published on every replica"
    )
    print_text(f"{target}: operation {ended.operation_id[:16]} is {ended.phase}: {outcome}.")
    if ended.retired:
        print_text(f"It ended without {', '.join(ended.retired)}, which is gone for ever.")
    if not ended.changed:
        print_text("There was nothing to change.")
    if ended.kept is not None:
        print_text(f"Its data is kept in {ended.kept} for now.")
    if ended.sealed:
        print_text(
            "Rows that it sealed may stay in the artifact folder until the next stage task of this table removes them; "
            "nothing needs them."
        )


def _held(record: AuthorityRecord) -> bool:
    return not (record.ended or record.published)


# ---- status


def _status_row(one: TargetStatus | Unusable) -> tuple[str, str, str, str, str]:
    if isinstance(one, Unusable):
        return (f"record {one.key[:16]}", "?", "", "", one.stop.code)
    record = one.record
    live = one.problem.code if one.problem else _joined(one)
    if record is None:
        return (f"{one.database}.{one.table}", "?", "", "", live)
    owner = record.owner
    return (
        f"{one.database}.{one.table}",
        record.phase.value,
        f"{record.operation_id[:16]} ({owner.dag_id}, {owner.run_id})",
        when(record.changed_at),
        live,
    )


def _joined(one: TargetStatus) -> str:
    states = set(one.live.values())
    if len(states) == 1:
        return f"{states.pop()} on all"
    return ", ".join(f"{alias} {state}" for alias, state in one.live.items())


def _status_json(one: TargetStatus | Unusable) -> Json:
    if isinstance(one, Unusable):
        return {"key": one.key, "problem": one.stop.as_json()}
    record = one.record
    return {
        "database": one.database,
        "table": one.table,
        "operation": record.operation_id if record else None,
        "phase": record.phase.value if record else None,
        "since": record.changed_at if record else None,
        "held": record is not None and _held(record),
        "owner": asdict(record.owner) if record else None,
        "live": dict(one.live),
        "retained": [item.name for item in record.retained] if record else [],
        "problem": one.problem.as_json() if one.problem else None,
    }


# ---- explain


def _commands(conn_id: str, target: Target, found: Explanation) -> tuple[str, ...]:
    return fitting_commands(found, CommandTarget(conn_id, target.cluster, target.database, target.table))


def _explanation(args: Namespace, target: Target, found: Explanation) -> Iterator[str]:
    yield f"{target} on cluster {target.cluster}"
    yield found.plain
    yield found.summary
    if found.operation_id is not None and found.since is not None:
        recorded = "" if found.read else ", as it was written down"
        yield f"Operation {found.operation_id[:16]}, {found.phase} since {when(found.since)}{recorded}"
    yield from _section("Readers", (found.readers,))
    yield from _section("What happened", (*found.happened, *found.newer))
    if found.stop is not None:
        free = found.read and not found.held
        title = "Why a run would be refused" if free else "Why it does not go on"
        yield from _section(title, (found.stop.code, found.stop.message))
    yield from _section("Proven", found.proven)
    yield from _section("Not proven", found.unproven)
    yield from _section(
        "What the queue says" if found.read else "What the queue said",
        [
            f"{alias}: {seen.queue}{_exception(seen.exception_code)}"
            for alias, seen in found.replicas.items()
            if seen.queue is not None
        ],
    )
    yield from _section("What blocks the queue", list(map(str, found.blocked)))
    yield from _section("Warning", found.warnings)
    yield from _section("Who waits", _waiting(found))
    yield from _section("Who was refused meanwhile", list(map(str, found.refused)))
    yield from _section("What is left over", list(map(str, found.leftovers)))
    yield from _section("Safe next", found.next)
    yield from _section(
        "Repair",
        [
            f"{alias}: {render_local(seen.repair)}"
            for alias, seen in found.replicas.items()
            if seen.repair is not None
        ],
    )
    yield from _section("Commands", _commands(args.conn_id, target, found))
    yield from _section("Never", found.never)
    if found.held or not found.read or found.others:
        yield from _section(
            "What was written down, the last entries (not looked at now)", list(map(str, found.recorded))
        )


def _waiting(found: Explanation) -> tuple[str, ...]:
    return found.waiting if found.heard_of is None else (*found.waiting, found.heard_of)


def _exception(code: int | None) -> str:
    if code is None:
        return ""
    return f", exception code {code}" + (f" ({name})" if (name := name_of(code)) else "")


def _section(title: str, lines: tuple[str, ...] | list[str]) -> Iterator[str]:
    if lines:
        yield f"\n{title}"
        yield from (f"  {line}" for line in lines)


def _explanation_json(args: Namespace, target: Target, found: Explanation) -> dict[str, Json]:
    owner = found.owner
    return {
        "ok": found.read,
        "cluster": target.cluster,
        "database": target.database,
        "table": target.table,
        "plain": found.plain,
        "read": found.read,
        "held": found.held,
        "summary": found.summary,
        "operation": found.operation_id,
        "phase": found.phase,
        "since": found.since,
        "owner": asdict(owner) if owner else None,
        "happened": [*found.happened, *found.newer],
        "stop": found.stop.as_json() if found.stop else None,
        "proven": list(found.proven),
        "unproven": list(found.unproven),
        "blocked": [asdict(one) for one in found.blocked],
        "newer_entries": found.newer_entries,
        "warnings": list(found.warnings),
        "observed_at": found.observed_at,
        "affected": found.affected,
        "readers": found.readers,
        "waiting": list(_waiting(found)),
        "refused": [asdict(one) for one in found.refused],
        "leftovers": [asdict(one) for one in found.leftovers],
        "next": [{"way": way.value, "text": text} for way, text in zip(found.ways, found.next, strict=True)],
        "commands": list(_commands(args.conn_id, target, found)),
        "never": list(found.never),
        "replicas": {
            alias: {
                "state": seen.state.value,
                "live": seen.live,
                "uuid": seen.target.uuid,
                "rows": seen.target.rows,
                "problem": seen.target.problem,
                "queue": seen.queue,
                "exception_code": seen.exception_code,
                "repair": render_local(seen.repair) if seen.repair else None,
                "stage": str(seen.stage) if seen.stage else None,
            }
            for alias, seen in found.replicas.items()
        },
        "recorded": [asdict(one) for one in found.recorded],
    }
