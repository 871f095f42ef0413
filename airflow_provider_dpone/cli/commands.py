"""What the commands do."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from airflow_provider_dpone import composition
from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.cli.output import exit_status, operator_name, print_json, print_log, print_text
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.clickhouse.recover import LostControlTable
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.recovery import plan_recovery
from airflow_provider_dpone.publication.stop import Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest
from airflow_provider_dpone.routes.cluster_refresh.preflight import Preflight
from airflow_provider_dpone.routes.ports import Target
from airflow_provider_dpone.routes.recover import recover


def init(args: Namespace) -> None:
    """Create the control table of a cluster, recover a lost one, or print the statements that are missing.

    :raises SystemExit: 1: refused; the reason is shown.
    """
    if getattr(args, "recover", False):
        _recover(args)
        return
    with exit_status(args.output), composition.server(args.conn_id) as server:
        with bad_input():
            control = composition.control_table()
            evidence = composition.evidence(args.cluster, writer="init")
        done = initialise(
            server,
            args.cluster,
            control=control,
            print_sql=args.print_sql,
            evidence_of_publications=evidence.knows_cluster(),
        )
    if args.output == "json":
        print_json(
            {
                "cluster": done.cluster,
                "replicas": list(done.replicas),
                "executed": done.executed,
                "authority_id": done.authority_id,
                "created_database_on": list(done.created_database_on),
                "created_table_on": list(done.created_table_on),
                "created_authority": done.created_authority,
                "statements": list(done.statements),
            }
        )
    else:
        print_text(str(done))


def _recover(args: Namespace) -> None:
    """Replace a lost control table by a new authority."""
    with exit_status(args.output), composition.server(args.conn_id) as server:
        with bad_input():
            control = composition.control_table()
            request = None if args.print_sql else OperatorRequest(args.reason or "")
            evidence = composition.evidence(args.cluster, writer="init", about={"operator": operator_name()})
        lost = LostControlTable(server, args.cluster, control, evidence.knows_cluster())
        if request is None:
            plan = plan_recovery(lost.survey())
            if isinstance(plan, Stop):
                raise Stopped(plan)
            authority_id, statements = None, [lost.parking(database, name) for database, name in plan.park]
        else:
            done = recover(lost, evidence, print_log, request)
            plan, authority_id, statements = done.plan, done.authority_id, lost.sent
    if args.output == "json":
        print_json(
            {
                "cluster": args.cluster,
                "executed": request is not None,
                "authority_id": authority_id,
                "adopted": list(plan.adopted),
                "tables": list(plan.live),
                "parked": [f"{database}.{name}" for database, name in plan.park],
                "statements": list(statements),
            }
        )
    elif request is None:
        print_text(f"Would adopt the tables of {', '.join(plan.adopted) or 'nobody'}: {', '.join(plan.live)}")
        print_text("Would park first, and then create a new control table:")
        print_text(*(f"{statement};" for statement in statements), sep="\n")
    else:
        print_text(f"The control table of cluster {args.cluster} has the new authority {authority_id}.")
        print_text(f"Adopted: {', '.join(plan.live) or 'no table'}. Parked: {len(plan.park)}.")


def preflight(args: Namespace) -> None:
    """Show every admission check of one table, and the grants that it needs.

    :raises SystemExit: 1: a refresh would be refused now.
    """
    target = Target(args.cluster, args.database, args.table)
    internal = args.replication_mode == "internal"
    with exit_status(args.output), composition.server(args.conn_id) as server:
        found = composition.preflight(
            server, target, internal_replication=internal, from_file=args.source == "file"
        )
    if args.output == "json":
        print_json(_as_json(target, found))
    else:
        _print_table(target, found)
    if not found.ok:
        raise SystemExit(1)


def _as_json(target: Target, found: Preflight) -> dict[str, Json]:
    return {
        "cluster": target.cluster,
        "database": target.database,
        "table": target.table,
        "ok": found.ok,
        "replicas": [{"replica": m.alias, "host": m.host_name, "port": m.port} for m in found.members],
        "checks": [finding.as_json() for finding in found.findings],
        "grants": list(found.grants),
    }


def _print_table(target: Target, found: Preflight) -> None:
    for member in found.members:
        print_text(f"{member.alias}  {member.host_name}:{member.port}")
    width = max(len(finding.name) for finding in found.findings)
    print_text()
    for finding in found.findings:
        if finding.stop is None:
            print_text(f"ok    {finding.name:<{width}}  {finding.found}".rstrip())
            continue
        print_text(f"FAIL  {finding.name:<{width}}  {finding.stop.code}")
        print_text(*(f"      {line}" for line in _explained(finding.stop)), sep="\n")
    print_text("\nGrants that a refresh of this table needs:")
    print_text(*(f"  {grant};" for grant in found.grants), sep="\n")
    print_text()
    failed = sum(finding.stop is not None for finding in found.findings)
    checks = "1 check" if failed == 1 else f"{failed} checks"
    verdict = "A refresh could begin now." if found.ok else f"A refresh would be refused: {checks} failed."
    print_text(f"{target} on cluster {target.cluster}: {verdict}")


def _explained(stop: Stop) -> Iterator[str]:
    yield stop.message
    for alias, facts in stop.replicas.items():
        yield f"{alias}: " + ", ".join(f"{key}={value}" for key, value in facts.items())
    yield f"Next: {stop.next_action}"
