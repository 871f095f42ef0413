"""What catalogs and queue prove together: the seed of every decision after a dispatch.

The order of reading is part of the proof. A terminal receipt says that no replica will run the
statement again; only catalogs read strictly after it say what it left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, unique

from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.facts import Observation, ReplicaFacts, TableFacts
from airflow_provider_dpone.publication.queue import HostRow, Running, Terminal
from airflow_provider_dpone.publication.record import STAGE_PHASES, AuthorityRecord, Generation, HostReceipt
from airflow_provider_dpone.publication.stop import Code, Stop


@unique
class ReplicaState(StrEnum):
    """Which generations one replica shows under the two names."""

    STAGING = "staging"
    """The target is what it was when it was locked; the replica is being staged by itself."""
    PENDING = "pending"
    """The target is the predecessor (or absent), the candidate is the new generation."""
    COMMITTED = "committed"
    """The target is the new generation, the predecessor is under the candidate's name (or there was none)."""
    CLEANED = "cleaned"
    """The target is the new generation, the predecessor is gone."""
    NOT_OBSERVED = "not observed"
    """The replica could not be read, or a table's absence is not proven."""
    REPLACED = "server replaced"
    """Another server answers in the replica's place."""
    UNKNOWN = "unknown"
    """A table is missing or is neither generation."""


def replica_state(
    record: AuthorityRecord, observation: Observation, alias: str, *, exact: bool = True
) -> ReplicaState:
    """Return what ``alias`` shows.

    :param exact: compare whole generations. ``False`` compares UUIDs only: enough to report progress,
        while replicas may swap between two of the reads that make up a generation.
    """
    facts = observation.replicas.get(alias)
    if facts is None:
        return ReplicaState.NOT_OBSERVED
    if _replaced(record, facts):
        return ReplicaState.REPLACED
    target, candidate = facts.tables.get(record.table), facts.tables.get(record.candidate)
    if (target is None or candidate is None) and not facts.sees_database:
        return ReplicaState.NOT_OBSERVED

    def holds(table: TableFacts | None, generation: Generation | None) -> bool:
        if table is None or generation is None:
            return table is None and generation is None
        return table.generation == generation if exact else table.uuid == generation.uuid

    old, new = record.predecessor_on(alias), record.desired.on(alias)
    if record.phase in STAGE_PHASES and (old is not None or record.predecessor is None):
        return ReplicaState.STAGING if holds(target, old) else ReplicaState.UNKNOWN
    if new is None or (old is None and record.predecessor is not None):
        # A replica of which the record knows no table can be in no state that it knows.
        return ReplicaState.UNKNOWN
    if holds(target, old) and holds(candidate, new):
        return ReplicaState.PENDING
    if holds(target, new):
        if holds(candidate, old):
            return ReplicaState.COMMITTED
        if candidate is None:
            return ReplicaState.CLEANED
    return ReplicaState.UNKNOWN


@unique
class Verdict(StrEnum):
    """What the whole publication is, proven or not."""

    COMMITTED = "committed"
    IN_PROGRESS = "in progress"
    PARTIAL_IN_PROGRESS = "partial, in progress"
    PARTIAL_TERMINAL = "partial, terminal"
    FAILED_EVERYWHERE = "failed everywhere"
    SWAPPED_BACK = "swapped back"
    NOT_OBSERVED = "not observed"
    CONTRADICTION = "contradiction"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the states it rests on; ``stop`` says it in words unless it is COMMITTED."""

    verdict: Verdict
    states: Mapping[str, ReplicaState]
    stop: Stop | None


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A terminal receipt that is already in the record, and the order of the read that showed it."""

    sequence: int
    receipt: tuple[HostReceipt, ...]


def judge(
    record: AuthorityRecord, observation: Observation, evidence: Running | Terminal | StoredReceipt
) -> Judgement:
    """Judge a dispatched publication.

    :param evidence: the queue's state: still running, terminal, or a receipt stored earlier.
    :raises ValueError: the catalogs were not read strictly after a terminal receipt. Such facts must be
        thrown away, never judged.
    """
    terminal = not isinstance(evidence, Running)
    if not isinstance(evidence, Running) and observation.sequence <= evidence.sequence:
        raise ValueError("catalogs count only if they are read strictly after the terminal receipt")

    states = {alias: replica_state(record, observation, alias, exact=terminal) for alias in record.replicas}
    replicas = _replica_facts(states, evidence)

    def stopped(verdict: Verdict, code: Code, message: str) -> Judgement:
        return Judgement(verdict, states, Stop(code, message, replicas=replicas))

    name = f"{record.database}.{record.table}"
    if drift := inventory_drift(record, observation):
        return Judgement(Verdict.CONTRADICTION, states, drift)
    if wrong := _having(states, ReplicaState.UNKNOWN):
        return stopped(
            Verdict.CONTRADICTION,
            Code.GENERATION_UNKNOWN,
            f"{name}: a table is missing, or is neither the old nor the new generation, on {wrong}.",
        )
    if unread := _having(states, ReplicaState.NOT_OBSERVED):
        return stopped(
            Verdict.NOT_OBSERVED,
            Code.REPLICA_NOT_OBSERVED,
            f"{name}: {unread} can't be read, so the publication is not proven.",
        )
    pending = [alias for alias, state in states.items() if state is ReplicaState.PENDING]
    committed = [alias for alias in states if alias not in pending]
    cleaned_early = [alias for alias, state in states.items() if state is ReplicaState.CLEANED]
    if cleaned_early and record.predecessor is not None:
        return stopped(
            Verdict.CONTRADICTION,
            Code.GENERATION_UNKNOWN,
            f"{name}: the predecessor is missing on {', '.join(cleaned_early)} before any cleanup.",
        )

    if not terminal:
        if pending and committed:
            return stopped(
                Verdict.PARTIAL_IN_PROGRESS,
                Code.PARTIAL_IN_PROGRESS,
                f"{name}: the new data is live on {', '.join(committed)}; "
                f"{', '.join(pending)} will follow. Nothing was lost.",
            )
        return stopped(
            Verdict.IN_PROGRESS, Code.IN_PROGRESS, f"{name}: the replicas are working on the swap."
        )
    if not pending:
        return Judgement(Verdict.COMMITTED, states, None)
    if committed:
        return stopped(
            Verdict.PARTIAL_TERMINAL,
            Code.PARTIAL_TERMINAL,
            f"{name}: the swap has ended; the new data is live on {', '.join(committed)} and the old data "
            f"on {', '.join(pending)}. Both generations are kept on every replica.",
        )
    codes = {host.alias: host.exception_code for host in _receipt(evidence)}
    if back := [alias for alias in pending if codes.get(alias) == 0]:
        return stopped(
            Verdict.SWAPPED_BACK,
            Code.SWAPPED_BACK,
            f"{name}: the queue says that {', '.join(back)} finished the swap, but every replica holds the "
            "old data. Readers see the old data; both generations are kept.",
        )
    return stopped(
        Verdict.FAILED_EVERYWHERE,
        Code.FAILED_EVERYWHERE,
        f"{name}: the swap failed on every replica. Readers see the old data; the new data is kept.",
    )


def inventory_drift(record: AuthorityRecord, observation: Observation) -> Stop | None:
    """Return a stop if the replicas are not those that were admitted, or one of them is another server."""
    drifted = [
        alias
        for alias, facts in observation.replicas.items()
        if facts.inventory_digest != record.inventory_digest
    ]
    if observation.inventory.digest != record.inventory_digest or drifted:
        return Stop(
            Code.INVENTORY_DRIFT,
            f"Cluster {record.cluster!r} now lists other replicas than were admitted.",
            facts={
                "admitted": list(record.replicas),
                "now": list(observation.inventory.aliases),
                "disagreeing": drifted,
            },
        )
    replaced = [alias for alias, facts in observation.replicas.items() if _replaced(record, facts)]
    if replaced:
        return Stop(
            Code.INVENTORY_DRIFT,
            f"Another server answers in the place of {', '.join(replaced)} than the one that was admitted.",
            facts={"replaced": replaced},
        )
    return None


def _replaced(record: AuthorityRecord, facts: ReplicaFacts) -> bool:
    admitted = dict(zip(record.replicas, record.servers, strict=True))
    return admitted.get(facts.alias) != facts.server


def _having(states: Mapping[str, ReplicaState], state: ReplicaState) -> str:
    return ", ".join(alias for alias, seen in states.items() if seen is state)


def _receipt(evidence: Running | Terminal | StoredReceipt) -> tuple[HostReceipt, ...]:
    return () if isinstance(evidence, Running) else evidence.receipt


def _replica_facts(
    states: Mapping[str, ReplicaState], evidence: Running | Terminal | StoredReceipt
) -> dict[str, dict[str, Json]]:
    running: Mapping[str, HostRow] = evidence.hosts if isinstance(evidence, Running) else {}
    codes = {host.alias: host.exception_code for host in _receipt(evidence)}
    facts: dict[str, dict[str, Json]] = {}
    for alias, state in states.items():
        facts[alias] = {"state": state.value}
        if alias in running:
            facts[alias]["queue"] = running[alias].status.value
        if alias in codes:
            facts[alias]["queue"] = "finished" if codes[alias] == 0 else "failed"
            facts[alias]["exception_code"] = codes[alias]
    return facts
