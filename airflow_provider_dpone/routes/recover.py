"""Recover: replace a control table that was lost by a new authority, after every old name was taken away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_provider_dpone.publication.recovery import (
    RecoveryPlan,
    Survey,
    not_recoverable_yet,
    plan_recovery,
)
from airflow_provider_dpone.publication.stop import Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest, audit_action
from airflow_provider_dpone.routes.ports import Evidence, Log

RECOVERY = "recovery"
"""Under what name the evidence keeps it: it belongs to no operation."""


class Lost(Protocol):
    """A cluster whose control table is lost."""

    def survey(self) -> Survey:
        """Look for all traces on every replica.

        :raises Stopped: a replica can't be read; the control table that is there is another one.
        """

    def park(self, database: str, name: str) -> None:
        """Take a table's name away on every replica by one RENAME, and wait until it is gone everywhere.

        :raises Stopped: it is still there on a replica, or that is not known.
        """

    def create(self, adopted: tuple[str, ...]) -> str:
        """Create what is missing of the control table and then, strictly, its authority; return the authority's id.

        :raises Stopped: it is not proven on every replica.
        """


@dataclass(frozen=True, slots=True)
class Recovered:
    """A recovered control table.

    :ivar authority_id: the new authority.
    :ivar plan: what was adopted, and what was parked by this run.
    """

    authority_id: str
    plan: RecoveryPlan


def recover(lost: Lost, evidence: Evidence, log: Log, request: OperatorRequest) -> Recovered:
    """Replace a lost control table. Interrupted anywhere, the same command goes on where it stopped.

    :raises Stopped: nothing may be published yet: there is no authority.
    """
    survey = lost.survey()
    plan = plan_recovery(survey)
    if isinstance(plan, Stop):
        raise Stopped(plan)
    found = survey.as_json()
    log(f"Found: {', '.join(f'{key} {value}' for key, value in found.items())}.")
    # All of it is written down before the first name is taken away.
    for step in (
        *(f"adopt authority {one}" for one in plan.adopted),
        *(f"park {database}.{name}" for database, name in plan.park),
        "create the control table",
    ):
        audit_action(evidence, RECOVERY, request, "init --recover", step)
    for database, name in plan.park:
        log(f"{database}.{name} is parked, so that a statement from before finds nothing.")
        lost.park(database, name)
    # Only now is it final what the replicas hold: nothing that names these tables can change them any more.
    if stop := not_recoverable_yet(lost.survey()):
        raise Stopped(stop)
    authority_id = lost.create(plan.adopted)
    audit_action(evidence, RECOVERY, request, "init --recover", f"created authority {authority_id}")
    log(f"The control table has the new authority {authority_id}.")
    return Recovered(authority_id, plan)
