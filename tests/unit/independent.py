"""Honest values of tables that are independent on every replica: the record, what replicas show, and the trail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_dpone.publication import decide
from airflow_provider_dpone.publication import replica_stages as stages
from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.explain import explain
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.facts import Observation, TableFacts
from airflow_provider_dpone.publication.identity import candidate_name
from airflow_provider_dpone.publication.queue import QueueState
from airflow_provider_dpone.publication.receipt import publication_receipt
from airflow_provider_dpone.publication.record import (
    IndependentGeneration,
    IndependentRecord,
    Phase,
    ReplicaStage,
    StageState,
    independent_generation,
)
from airflow_provider_dpone.publication.trail import (
    Admission,
    Body,
    CandidateIntent,
    CleanupStep,
    DispatchOutcome,
    PublishAsked,
    StoredReceipt,
)
from airflow_provider_dpone.publication.witness import live_table, staged, witness
from tests.unit import builders
from tests.unit.page_trails import admission, write, written

ALIASES = ("s1/r1", "s1/r2")
OLD_ON = {alias: builders.own_uuid(n, "a") for n, alias in enumerate(ALIASES, 1)}
NEW_ON = {alias: builders.own_uuid(n, "b") for n, alias in enumerate(ALIASES, 1)}
ENGINE = builders.ENGINE
inventory = builders.independent_inventory
table = builders.own_table
CONTENT = CanonicalDigest(10, "ab" * 32)
ARTIFACT = Artifact("cd" * 32, 2_048, 10)
CANDIDATE = candidate_name("orders", "0123456789abcdef")
PRIVATE = {alias: candidate_name("orders", f"{n:016x}") for n, alias in enumerate(ALIASES, 1)}
EXTRACT = ReplicaStage(
    "s1/r1",
    "e" * 16,
    candidate_name("orders", "e" * 16),
    "00000000-0000-4000-8000-0000000000ee",
    StageState.CLAIMED,
)


def generation(uuids: Mapping[str, str]) -> IndependentGeneration:
    """The generation of these tables."""
    return independent_generation(ENGINE, "s" * 64, uuids)


def stage(alias: str, state: StageState = StageState.CLAIMED) -> ReplicaStage:
    """The attempt on a replica."""
    name = PRIVATE[alias]
    return ReplicaStage(alias, name.rpartition("_")[2], name, NEW_ON[alias], state)


def locked(**changes: Any) -> IndependentRecord:
    """An operation that has locked its target, and whose source is being read."""
    named = {"candidate": CANDIDATE, "attempt_id": "0123456789abcdef"}
    return stages.extracting(builders.locked(len(ALIASES), **{**named, **changes}), EXTRACT, now=1_000)


def staging(**states: StageState | None) -> IndependentRecord:
    """An operation that is being staged; ``r1=StageState.READY`` says how far a replica is, the others are CLAIMED."""
    moved = stages.sealed(
        locked(),
        artifact=ARTIFACT,
        content=CONTENT,
        baseline=CONTENT,
        engine_full=ENGINE,
        schema_digest="s" * 64,
        source_bytes=100,
        now=1_001,
    )
    for alias in ALIASES:
        state = states.get(alias.removeprefix("s1/"), StageState.CLAIMED)
        if state is None:
            continue
        moved = stages.claimed(moved, stage(alias), now=1_002)
        if state is not StageState.CLAIMED:
            moved = stages.verified(moved, alias, now=1_003)
        if state is StageState.READY:
            moved = stages.ready(moved, alias, now=1_004)
    return moved


def in_phase(phase: Phase) -> IndependentRecord:
    """The record moved along the protocol to ``phase``."""
    if phase is Phase.LOCKED:
        return locked()
    if phase is Phase.STAGING:
        return staging(r1=StageState.READY)
    ready = staging(r1=StageState.READY, r2=StageState.READY)
    # What the attempts left is dropped by then.
    prepared = stages.prepared(ready, live_rows=10, now=1_005).moved(retained=())
    found = builders.along(prepared, phase)
    assert isinstance(found, IndependentRecord)
    return found


Tables = Mapping[str, TableFacts | None] | None


def shown(target: Mapping[str, str], candidate: Mapping[str, str]) -> tuple[Tables, ...]:
    """What each replica shows under the two names."""
    return tuple(
        {
            "orders": table(target[alias]) if alias in target else None,
            CANDIDATE: table(candidate[alias]) if alias in candidate else None,
        }
        for alias in ALIASES
    )


PENDING = shown(OLD_ON, NEW_ON)
COMMITTED = shown(NEW_ON, OLD_ON)
CLEANED = shown(NEW_ON, {})
LOCKED = tuple({**one, EXTRACT.name: None} for one in shown(OLD_ON, {}) if one)
HALF = (PENDING[0], COMMITTED[1])


def seen(of: IndependentRecord | None, *tables: Tables, sequence: int = 10) -> Observation:
    """One look at all replicas."""
    members = inventory()
    row = builders.stored(of) if of else None
    plain = builders.observation(row, *tables, sequence=sequence)
    return replace(
        plain,
        inventory=members,
        replicas={
            alias: replace(facts, inventory_digest=members.digest) for alias, facts in plain.replicas.items()
        },
    )


def explained(of: IndependentRecord, *tables: Tables, queue: QueueState | None = None) -> Explanation:
    """What ``explain`` says of a record, from what each replica shows."""
    return explain(builders.stored(of), seen(of, *tables), queue, read_at=1)


def classified(decided: Any, of: IndependentRecord, tables: tuple[Tables, ...], version: int) -> Body:
    """What is written down about a decision, from what each replica shows."""
    found = witness(builders.stored(of, version), decided, seen(of, *tables), None)
    assert found is not None
    return found


def admitted(of: IndependentRecord) -> Admission:
    """What the operation was admitted to."""
    return admission(of, live=live_table(of.predecessor))


def history(state: Phase) -> list[Body]:
    """The trail of an operation that has come to ``state``."""
    of = locked()
    bodies: list[Body] = [admitted(of)]
    phases = [Phase.LOCKED, Phase.STAGING, Phase.PREPARED, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL]
    phases += [Phase.COMMITTED, state if state is Phase.COMPLETED_RETAINING else Phase.COMPLETED]
    if state is Phase.ABORTED:
        phases = [Phase.LOCKED, Phase.STAGING, Phase.ABORTED]
    for version, phase in enumerate(phases):
        of = in_phase(phase)
        if phase is Phase.STAGING:
            bodies += [
                CandidateIntent(one.attempt_id, one.name, one.uuid, "mart")
                for one in (EXTRACT, *map(stage, ALIASES))
            ]
        if phase is Phase.PREPARED:
            bodies.append(staged(of))
        if phase is Phase.DISPATCHING:
            bodies.append(PublishAsked("ab" * 32))
            bodies.append(classified(decide.DispatchSwap(), in_phase(Phase.PREPARED), PENDING, version))
        if phase is Phase.COMMITTED:
            before = in_phase(Phase.TERMINAL)
            assert before.publication is not None
            done = decide.Commit(
                before.publication.entry, before.publication.query_digest, before.publication.receipt
            )
            bodies.append(classified(done, before, COMMITTED, version))
        if phase in (Phase.COMPLETED, Phase.COMPLETED_RETAINING):
            proof = publication_receipt(in_phase(Phase.COMMITTED), replayed=False)
            bodies.append(StoredReceipt(version - 1, proof))
            bodies.append(CleanupStep("free", of.candidate, of.desired.uuid, version - 1, None, None))
        bodies += written(of, phase, version)
        if phase is Phase.DISPATCHING:
            assert of.publication is not None
            token = of.publication.token
            bodies.append(
                DispatchOutcome("EXCHANGE", token, of.dispatch_epoch, write(version), "lost", None, "")
            )
        if phase == state:
            break
    return bodies
