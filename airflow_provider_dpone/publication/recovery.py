"""What must be true before a lost control table may be replaced by a new authority. Pure.

While no control table exists, no permit can be given. But one that was given before may still be used by a
worker that sleeps: its statement names a candidate. So every name that such a statement could use is taken away
first, on every replica, and only then the new authority is created. In one row it names itself and the lost
authorities whose tables it adopts; whatever comes late finds nothing under the names that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.identity import candidate_parts, lost_name, only_target
from airflow_provider_dpone.publication.orphans import FoundTable
from airflow_provider_dpone.publication.stop import Code, Stop

MAX_ADOPTED = 16
"""How many lost authorities one control table may have followed."""


@dataclass(frozen=True, slots=True)
class Survey:
    """All traces of earlier publications on a cluster, read on every replica.

    :ivar authority_id: of the control table, if it has one: then nothing was lost.
    :ivar tables: with our mark or a name like ours.
    :ivar uuids: of every table in the databases of those: (database, name) -> replica -> UUID.
    :ivar queued: how many entries of ours the queue still shows.
    :ivar unfinished: those that a host has not finished, in words.
    :ivar elsewhere: authority ids of other control tables, whose tables are not touched.
    :ivar evidence: the evidence has records of this cluster.
    :ivar independent: nothing copies rows between the replicas, so that each has a table of its own under a name.
    """

    cluster: str
    replicas: tuple[str, ...]
    authority_id: str | None
    tables: tuple[FoundTable, ...]
    uuids: Mapping[tuple[str, str], Mapping[str, str]]
    queued: int
    unfinished: tuple[str, ...]
    elsewhere: frozenset[str]
    evidence: bool
    independent: bool = False

    def as_json(self) -> dict[str, Json]:
        """Return what was found as a JSON object, for the evidence and for people."""
        return {
            "tables": sorted({f"{t.database}.{t.name}" for t in self.tables}),
            "authorities": sorted({t.authority_id for t in self.tables if t.authority_id}),
            "queue_entries": self.queued,
            "evidence": self.evidence,
        }


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a recovery does.

    :ivar adopted: the lost authorities whose tables the new one may replace.
    :ivar live: tables that were published under them.
    :ivar park: candidates and kept tables whose names are taken away first: (database, name).
    """

    adopted: tuple[str, ...]
    live: tuple[str, ...]
    park: tuple[tuple[str, str], ...]


def plan_recovery(survey: Survey) -> RecoveryPlan | Stop:
    """Return what a recovery does, or why it must not begin."""
    if survey.authority_id is not None:
        return _refused(
            survey,
            "the control table has an authority, so it is not lost",
            "Run `airflow dpone init` to complete it, and `airflow dpone status` to see what it knows.",
        )
    if not (survey.tables or survey.queued or survey.evidence):
        return _refused(survey, "there is no trace of an earlier one", "Run `airflow dpone init`.")
    if survey.unfinished:
        return _refused(
            survey,
            "statements of this provider are not finished everywhere",
            "Bring every replica back and let the queue end; then run it again.",
            {"unfinished": list(survey.unfinished)},
        )
    ours = [table for table in survey.tables if _is_ours(survey, table)]
    adopted = tuple(sorted({table.authority_id for table in ours if table.authority_id is not None}))
    if len(adopted) > MAX_ADOPTED:
        return _refused(survey, f"more than {MAX_ADOPTED} authorities were lost", "Ask for help.")
    waiting = sorted({(t.database, t.name) for t in ours if _may_be_named(t.name)})
    live = {(t.database, t.name) for t in ours if candidate_parts(t.name) is None}
    targets = live | {(d, target) for d, name in waiting if (target := only_target(name)) is not None}
    uneven = [key for key in sorted(targets) if not _same_everywhere(survey, key)]
    uneven += [key for key in waiting if not _one_table(survey, key)]
    if uneven:
        return Stop(
            Code.TARGET_NOT_UNIFORM,
            f"Cluster {survey.cluster!r}: the replicas hold different tables under "
            f"{', '.join(f'{d}.{name}' for d, name in uneven)}. Nothing was changed.",
            next_action="Decide which generation is right, and swap the two tables by hand on the other replicas "
            "alone, without ON CLUSTER. Then run it again.",
            facts={f"{d}.{name}": dict(survey.uuids.get((d, name), {})) for d, name in uneven},
        )
    if taken := [key for key in waiting if (key[0], lost_name(key[1])) in survey.uuids]:
        return _refused(
            survey,
            f"{', '.join(f'{d}.{name}' for d, name in taken)} can't be parked: the name for that is taken",
            "Look at both tables, and rename the one that is not needed by hand.",
        )
    return RecoveryPlan(adopted, tuple(f"{d}.{name}" for d, name in sorted(live)), tuple(waiting))


def not_recoverable_yet(survey: Survey) -> Stop | None:
    """Return why the new authority must not be created, though every name was to be taken away; or ``None``."""
    plan = plan_recovery(survey)
    if isinstance(plan, Stop):
        return plan
    if plan.park:
        return _refused(
            survey,
            f"{', '.join(f'{d}.{name}' for d, name in plan.park)} came while the others were parked",
            "Run it again: it goes on where it stopped.",
        )
    return None


def _is_ours(survey: Survey, table: FoundTable) -> bool:
    """Tell whether a table belongs to a control table that is lost, not to one that exists elsewhere."""
    if table.authority_id is not None:
        return table.authority_id not in survey.elsewhere
    target = only_target(table.name)
    owners = {
        other.authority_id
        for other in survey.tables
        if (other.database, other.name) == (table.database, target)
    }
    return not owners & survey.elsewhere


def _may_be_named(name: str) -> bool:
    """Tell whether a statement of before could name this table: a parked one has a name that none uses."""
    return candidate_parts(name) is not None and not name.endswith(lost_name(""))


def _same_everywhere(survey: Survey, key: tuple[str, str]) -> bool:
    found = survey.uuids.get(key, {})
    return not found or (_one_table(survey, key) and set(found) == set(survey.replicas))


def _one_table(survey: Survey, key: tuple[str, str]) -> bool:
    """Tell whether the replicas that have something under a name have the same there.

    Independent tables are the same if one operation made them: their marks say which.
    """
    found = survey.uuids.get(key, {})
    if not survey.independent:
        return len({*found.values()}) <= 1
    made_by = {t.alias: t.operation_id for t in survey.tables if (t.database, t.name) == key}
    return len({made_by.get(alias) for alias in found}) <= 1


def _refused(survey: Survey, why: str, next_action: str, facts: Mapping[str, Json] | None = None) -> Stop:
    return Stop(
        Code.NOT_RESOLVABLE,
        f"Cluster {survey.cluster!r} was not recovered: {why}.",
        next_action=next_action,
        facts={**survey.as_json(), **(facts or {})},
    )
