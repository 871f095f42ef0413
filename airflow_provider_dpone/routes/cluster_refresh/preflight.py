"""Preflight: everything that admission asks of a target, looked at without changing anything.

A stage task stops at the first check that fails. Here all of them are told, so that a cluster can be put in
order in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_dpone.publication.admission import admit_target, busy, cluster_checks
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.inventory import Member
from airflow_provider_dpone.publication.record import Phase, StoredRecord
from airflow_provider_dpone.publication.stop import Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh import Site
from airflow_provider_dpone.routes.ports import Catalog


class Grants(Protocol):
    """Asks the servers what the connection's user may do."""

    def required(self, *, table_functions: bool) -> Sequence[str]:
        """Return the GRANT statements that a refresh of this target needs, in order.

        :param table_functions: those too that loading a file and reading a given structure need.
        """

    def check(self, *, table_functions: bool) -> Stop | None:
        """Return what is missing.

        :param table_functions: as for :meth:`required`.
        :raises Stopped: the server can't be asked.
        """


@dataclass(frozen=True, slots=True)
class Finding:
    """One check by name.

    :ivar stop: why a refresh would stop here; ``None`` if it would not.
    :ivar found: what was seen, for people.
    """

    name: str
    stop: Stop | None
    found: str = ""

    def as_json(self) -> dict[str, Json]:
        """Return the finding as a JSON object."""
        return {
            "name": self.name,
            "ok": self.stop is None,
            "found": self.found,
            "stop": None if self.stop is None else self.stop.as_json(),
        }


class Direct(Protocol):
    """Looks at every replica through a connection of its own."""

    def __call__(self, observation: Observation, /, *, table_functions: bool) -> Iterable[Finding]:
        """Return what was found. Raises nothing.

        :param observation: a look that tells which server each replica is.
        :param table_functions: as for :meth:`Grants.required`.
        """


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found.

    :ivar members: the replicas with host and port, for live output only; empty if they can't be read.
    :ivar grants: the GRANT statements that a refresh of this target needs.
    """

    findings: tuple[Finding, ...]
    members: tuple[Member, ...] = ()
    grants: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether a stage task could begin now."""
        return all(finding.stop is None for finding in self.findings)


def preflight(
    catalog: Catalog, grants: Grants, site: Site, *, from_file: bool = False, direct: Direct | None = None
) -> Preflight:
    """Run every check of the admission against one target. Reads only, and raises nothing of its own.

    What builds on something that could not be read is left out.

    :param from_file: the source is a file, which needs a grant more on some servers.
    :param direct: what is checked on each replica by itself, where the tables are independent.
    """
    try:
        observation = catalog.observe([site.target.table])
    except Stopped as stopped:
        unread = Finding("the cluster can be read", stopped.stop)
        required = tuple(grants.required(table_functions=from_file))
        return Preflight((unread, _grants(grants, from_file)), grants=required)
    inventory = observation.inventory
    # A table that doesn't exist is created from a structure that the server reads first.
    table_functions = from_file or observation.table(site.target.table) is None
    findings = (
        Finding("the cluster can be read", None, f"{len(inventory.members)} replicas in one shard"),
        *_cluster(observation, site),
        _grants(grants, table_functions),
        *(direct(observation, table_functions=table_functions) if direct is not None else ()),
        *_target(observation, site),
    )
    return Preflight(findings, inventory.members, tuple(grants.required(table_functions=table_functions)))


def _cluster(observation: Observation, site: Site) -> Iterator[Finding]:
    versions = sorted({facts.version for facts in observation.replicas.values()})
    found = {
        "every replica answers": ", ".join(observation.replicas),
        "every server is new enough": ", ".join(versions),
        "every replica answers as the connection's user": site.user,
    }
    checks = cluster_checks(
        observation,
        database=site.target.database,
        control_structure=site.control_structure,
        user=site.user,
    )
    for check in checks:
        yield Finding(check.name, check.stop, "" if check.stop else found.get(check.name, ""))


def _grants(grants: Grants, table_functions: bool) -> Finding:
    name = "the user has every grant"
    try:
        return Finding(name, grants.check(table_functions=table_functions))
    except Stopped as stopped:
        return Finding(name, stopped.stop)


def _target(observation: Observation, site: Site) -> Iterator[Finding]:
    slot = _slot(observation.record)
    yield slot
    # What the table looks like while an operation works on it is no reason to repair anything. And without
    # one authority id there is nothing yet by which a table could be foreign.
    if slot.stop is None and observation.authority_id is not None:
        yield _replaceable(observation, site.target.table, observation.authority_id)
    dependents = ", ".join(f"{d.database}.{d.table} ({d.engine})" for d in observation.dependents)
    yield Finding("what depends on the table is known", None, dependents or "nothing")


def _replaceable(observation: Observation, name: str, authority_id: str) -> Finding:
    found = "absent: the first publication creates it, from structure= or ddl="
    if (table := observation.table(name)) is not None:
        rows = observation.rows(name)
        found = f"{table.engine}, {rows:,} rows" if rows is not None else table.engine
    stop = admit_target(observation, name, authority_id=authority_id)
    return Finding("the table can be replaced", stop, "" if stop else found)


def _slot(stored: StoredRecord | None) -> Finding:
    name = "the table is free for the next refresh"
    if stored is None:
        return Finding(name, None, "never published")
    record = stored.record
    who = f"DAG {record.owner.dag_id}, run {record.owner.run_id}, phase {record.phase}"
    if record.retained:
        who += f"; kept: {', '.join(item.name for item in record.retained)}"
    if record.ended or record.phase is Phase.COMMITTED:
        return Finding(name, None, f"last: {who}")
    return Finding(name, busy(record), who)
