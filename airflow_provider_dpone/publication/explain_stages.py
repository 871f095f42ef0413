"""What people are told while independent replicas are staged: how far the operation and each replica came. Pure.

What the record says was proven when it was written. Whether the table is still there, only a look tells; so both are
said, and never one for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_dpone.publication.explanation import ReplicaExplained, StageShown
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.record import (
    STAGE_PHASES,
    AuthorityRecord,
    IndependentRecord,
    Phase,
    ReplicaStage,
    StageState,
)
from airflow_provider_dpone.publication.words import joined, size

NOT_BEGUN = "not begun"


def stage_shown(record: AuthorityRecord, observation: Observation, alias: str) -> StageShown | None:
    """Return how far a replica is staged; ``None`` where the replicas are not being staged by themselves."""
    if not isinstance(record, IndependentRecord) or record.phase not in STAGE_PHASES:
        return None
    stage = record.stage_of(alias)
    if stage is None:
        return StageShown(NOT_BEGUN, None, "no attempt is claimed yet")
    word, facts = stage.state.value.lower(), observation.replicas.get(alias)
    if facts is None:
        return StageShown(word, None, f"it was {word} when that was written down, and can't be read now")
    names = [
        name
        for name in (stage.name, record.candidate)
        if (table := facts.tables.get(name)) is not None and table.uuid == stage.uuid
    ]
    seen = bool(names) if names or facts.sees_database else None
    return StageShown(word, seen, _said(stage, word, seen, named=record.candidate in names))


def _said(stage: ReplicaStage, word: str, seen: bool | None, *, named: bool) -> str:
    if stage.state is StageState.CLAIMED:
        return "an attempt is claimed; what its table holds is not proven"
    if seen is None:
        return f"it was {word} when that was written down; whether its table is there is not known"
    if not seen:
        return f"it was {word} when that was written down, and its table is not there now: it has to be staged again"
    held = "its table was proven to hold exactly the sealed rows"
    return f"{held}, and has the candidate's name" if named else f"{held}; it has its private name still"


def stages_proven(replicas: Mapping[str, ReplicaExplained]) -> Iterator[str]:
    """Return in sentences which replicas are staged as far as the record says, and are seen to be."""
    for alias, one in replicas.items():
        if one.stage is not None and one.stage.proven:
            yield f"{alias}: {one.stage.word}: {one.stage.said}"


def stages_unproven(replicas: Mapping[str, ReplicaExplained]) -> Iterator[str]:
    """Return in sentences which replicas are not staged, or not seen to be."""
    for alias, one in replicas.items():
        if one.stage is not None and not one.stage.proven:
            yield f"{alias}: {one.stage.word}: {one.stage.said}"


def staging_happened(record: IndependentRecord) -> Iterator[str]:
    """Return what was done of an operation that never had its table on every replica."""
    artifact = record.artifact
    if artifact is None:
        yield "The target was locked before the source was read."
        if (extract := record.extract) is not None:
            yield (
                f"{extract.name} was claimed on {extract.alias}, for the rows of the source. How many of them arrived "
                "is not known: nothing is sealed."
            )
        else:
            yield "Nothing of the source is sealed."
        return
    yield (
        f"{artifact.rows:,} rows were read from the source and sealed as {artifact.sha256[:16]} "
        f"({size(artifact.bytes)}). Every replica is loaded from that by itself."
    )


def staging_in_words(record: IndependentRecord, replicas: Mapping[str, ReplicaExplained]) -> str:
    """Return how far the staging is, in a sentence or two, for somebody who knows nothing of all this."""
    name, owner = f"{record.database}.{record.table}", record.owner
    begin = f"{name}: it is locked for DAG {owner.dag_id}, run {owner.run_id}."
    if record.phase is Phase.LOCKED:
        return f"{begin} The source is being read, or its stage task has died. Nothing was sent."
    ready = [a for a, one in replicas.items() if one.stage is not None and one.stage.ready]
    far = f"{joined(ready)} of {len(replicas)} replicas" if ready else f"none of {len(replicas)} replicas"
    return f"{begin} Its rows are sealed, and ready on {far}. Nothing was sent."
