"""Staging of independent replicas: the one next step of each, and the moves of the record while they are staged. Pure.

Every attempt on a replica is claimed in the record before its table is created, under a name and a UUID that are its
own for ever. What an attempt left that is not proven is never appended to: another attempt takes its place. Only a
table that is proven to hold exactly the desired content gets the candidate's name, by a rename that is claimed too:
whoever finds that claim goes on with the same table, so that a rename which comes late has nothing to rename.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.artifact import Artifact
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import candidate_name, parked_name
from airflow_provider_dpone.publication.record import (
    MAX_RETAINED,
    MAX_SETTLED,
    STAGE_PHASES,
    AuthorityRecord,
    IndependentRecord,
    IndependentRetained,
    Phase,
    ReplicaStage,
    Settled,
    StageState,
    encode,
    independent_generation,
    new_fence_token,
)
from airflow_provider_dpone.publication.stop import Code, Stop

_OTHER_PLACES: Final = 4
"""Beside an attempt for each replica, a giving up lists the extract and the candidate; a commit the predecessor."""

_BESIDE: Final = 2
"""So many generations have room beside an operation's own: a candidate that it follows, and kept predecessors."""

MAX_REPLICAS: Final = (MAX_RETAINED - _OTHER_PLACES - _BESIDE) // 2
"""So many independent replicas may be staged at most, each of them twice; fewer where names or definition are long."""

_MANY: Final = 10**12
"""As long as any number in a record is likely to be."""

# ---- what one replica needs next


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """What one replica shows of its attempt.

    :ivar private: UUID under the attempt's name; ``None``: the name is proven free.
    :ivar candidate: UUID under the candidate's name; ``None``: the name is proven free.
    """

    private: str | None
    candidate: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim a new attempt, and build it. What an earlier one left stays behind."""


@dataclass(frozen=True, slots=True)
class Verify:
    """No load of the attempt runs any more: compare what its table holds with the artifact's content."""


@dataclass(frozen=True, slots=True)
class Promote:
    """Give the proven table the candidate's name."""


@dataclass(frozen=True, slots=True)
class MarkReady:
    """The attempt's table is seen under the candidate's name."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Nothing is left to do."""


ReplicaStep: TypeAlias = Claim | Verify | Promote | MarkReady | Ready | Stop


def decide_replica(record: IndependentRecord, alias: str, seen: SeenReplica | None) -> ReplicaStep:
    """Return the one next step of a replica's staging.

    :param seen: a look that is later than the record; ``None`` where there is no attempt to look for.
    """
    stage = record.stage_of(alias)
    if stage is None:
        return Claim()
    if seen is None:
        raise ValueError("an attempt is decided by a look at its tables")
    if seen.candidate is not None and seen.candidate != stage.uuid:
        return Stop(
            Code.CANDIDATE_DIFFERS,
            f"{record.database}.{record.table}: another table has the candidate's name on {alias}.",
            next_action="Find out who made it. Clear the stage task to stage again under other names.",
            facts={"replica": alias, "candidate": record.candidate},
        )
    match stage.state:
        case StageState.CLAIMED:
            return Verify() if seen.private == stage.uuid else Claim()
        case StageState.VERIFIED:
            if seen.candidate == stage.uuid:
                return MarkReady()
            return Promote() if seen.private == stage.uuid else Claim()
        case StageState.READY:
            return Ready() if seen.candidate == stage.uuid else Claim()
        case _:
            assert_never(stage.state)


def see_replica(record: IndependentRecord, alias: str, observation: Observation) -> SeenReplica | Stop:
    """Return what a look shows of a replica's attempt, or why it proves nothing."""
    stage, facts = record.stage_of(alias), observation.replicas.get(alias)
    if stage is None:
        raise ValueError("only an attempt is looked for")
    if facts is None:
        return Stop(
            Code.REPLICA_UNAVAILABLE,
            f"{record.database}.{record.table}: {alias} can't be read. Nothing was published.",
        )
    private, candidate = facts.tables.get(stage.name), facts.tables.get(record.candidate)
    if (private is None or candidate is None) and not facts.sees_database:
        return Stop(
            Code.REPLICA_NOT_OBSERVED,
            f"{record.database}.{record.table}: our user doesn't see the database's tables on {alias}.",
        )
    return SeenReplica(private.uuid if private else None, candidate.uuid if candidate else None)


def all_ready(record: IndependentRecord) -> bool:
    """Tell whether every admitted replica has its table under the candidate's name."""
    return all(
        (stage := record.stage_of(alias)) is not None and stage.state is StageState.READY
        for alias in record.replicas
    )


def needs_artifact(record: IndependentRecord) -> bool:
    """Tell whether a replica may still have to be loaded."""
    return any(
        (stage := record.stage_of(alias)) is None or stage.state is StageState.CLAIMED
        for alias in record.replicas
    )


def names_of(record: AuthorityRecord) -> frozenset[str]:
    """Return every name of a table that a record still speaks of."""
    return frozenset(
        {
            record.table,
            record.candidate,
            parked_name(record.candidate),
            *(item.name for item in record.retained),
            *(name for name, _ in record.left()),
        }
    )


# ---- the moves


def taken_over(record: IndependentRecord, *, nonce: str, now: int) -> IndependentRecord:
    """Fence out whoever else stages the same operation: what they know is over with this write."""
    _require(record, *STAGE_PHASES)
    return record.moved(fence_token=new_fence_token(record.operation_id, nonce), changed_at=now)


def extracting(record: IndependentRecord, extract: ReplicaStage, *, now: int) -> IndependentRecord:
    """Claim the private table into which the source is read; an earlier one is left behind."""
    _require(record, Phase.LOCKED)
    return record.moved(retained=_left_behind(record, record.extract, now), extract=extract, changed_at=now)


def sealed(
    record: IndependentRecord,
    *,
    artifact: Artifact,
    content: CanonicalDigest,
    baseline: CanonicalDigest | None,
    engine_full: str,
    schema_digest: str,
    source_bytes: int,
    now: int,
) -> IndependentRecord:
    """LOCKED -> STAGING: the artifact, and what every replica shall hold, are bound.

    :param engine_full: of the candidate, normalised.
    :param source_bytes: as ``staged_bytes`` counts them.
    """
    _require(record, Phase.LOCKED)
    return record.moved(
        phase=Phase.STAGING,
        artifact=artifact,
        content=content,
        baseline=baseline,
        staged_bytes=source_bytes,
        desired=independent_generation(engine_full, schema_digest, {}),
        retained=_left_behind(record, record.extract, now),
        extract=None,
        changed_at=now,
    )


def claimed(record: IndependentRecord, stage: ReplicaStage, *, now: int) -> IndependentRecord:
    """Claim an attempt on one replica; an earlier one there is left behind."""
    _require(record, Phase.STAGING)
    before = record.stage_of(stage.alias)
    return _with_stage(record, stage, now).moved(retained=_left_behind(record, before, now))


def verified(record: IndependentRecord, alias: str, *, now: int) -> IndependentRecord:
    """CLAIMED -> VERIFIED: the attempt's table holds exactly the desired content."""
    return _advanced(record, alias, StageState.CLAIMED, StageState.VERIFIED, now)


def ready(record: IndependentRecord, alias: str, *, now: int) -> IndependentRecord:
    """VERIFIED -> READY: the attempt's table is seen under the candidate's name."""
    return _advanced(record, alias, StageState.VERIFIED, StageState.READY, now)


def prepared(record: IndependentRecord, *, live_rows: int | None, now: int) -> IndependentRecord:
    """STAGING -> PREPARED: every replica is ready."""
    _require(record, Phase.STAGING)
    if not all_ready(record):
        raise ValueError("an operation is prepared when every replica is ready")
    tables = {stage.alias: stage.uuid for stage in record.stages}
    before = record.desired
    desired = independent_generation(
        before.engine_full, before.schema_digest, {alias: tables[alias] for alias in record.replicas}
    )
    return record.moved(
        phase=Phase.PREPARED,
        desired=desired,
        stages=(),
        live_rows=live_rows,
        prepared_at=now,
        changed_at=now,
    )


def no_place_left(record: IndependentRecord) -> Stop | None:
    """Return a stop if so much was left behind that one more table could not be listed: none is ever forgotten."""
    if len(record.replicas) > MAX_REPLICAS:
        return Stop(
            Code.UNSUPPORTED_TOPOLOGY,
            f"{record.cluster} has {len(record.replicas)} replicas. Independent tables are refreshed on "
            f"{MAX_REPLICAS} at most: the record has a place for each of them.",
            facts={"replicas": len(record.replicas)},
        )
    if len(record.retained) <= _places_beside(record):
        return None
    return Stop(
        Code.TOO_MANY_RETAINED,
        f"{record.database}.{record.table}: {len(record.retained)} tables are still kept, so no other one can be "
        "listed.",
        facts={"retained": [item.name for item in record.retained]},
    )


def may_keep(record: IndependentRecord) -> bool:
    """Tell whether what a giving up leaves may be kept for people to look at: the next run needs places beside it."""
    left = len(transitions.kept(record, drop_after=0))
    # One more is for the table into which the next run reads its source.
    return left + 1 <= _places_beside(record)


def _places_beside(record: IndependentRecord) -> int:
    """Return how many tables may be listed beside those that an operation itself may leave."""
    return MAX_RETAINED - len(record.replicas) - _OTHER_PLACES


def require_room(record: IndependentRecord, engine_full: str) -> None:
    """Refuse an operation whose record could outgrow its bound, before its source is read.

    There is room for one attempt that fails on each replica, and for all that a record lists beside what the operation
    itself leaves, as far as it grows with time: where one run of a publication has room, each that follows it has.

    :param record: LOCKED, or about to be.
    :param engine_full: of the new table, normalised.
    :raises Stopped: ``RECORD_TOO_LARGE``.
    """
    _require(record, Phase.LOCKED)
    aliases, now = record.replicas, record.changed_at
    if record.predecessor is not None:
        engine_full = max(engine_full, record.predecessor.engine_full, key=len)
    everywhere = independent_generation(engine_full, "0" * 64, dict.fromkeys(aliases, "0" * 36))
    alone = independent_generation(engine_full, "0" * 64, {aliases[-1]: "0" * 36})
    whole = sum(len(item.generation.tables) > 1 for item in record.retained)
    failed = len(record.retained) - whole
    # At least the table into which the source is read is left, and an attempt on each replica may be.
    beside = [everywhere] * (_BESIDE - whole) + [alone] * max(1, len(aliases) + 1 - failed)
    fullest = record.moved(
        phase=Phase.STAGING,
        dispatch_epoch=max(record.dispatch_epoch, 10**6),
        predecessor=everywhere,
        desired=replace(everywhere, tables=()),
        content=CanonicalDigest(_MANY, "0" * 64),
        baseline=CanonicalDigest(_MANY, "0" * 64),
        artifact=Artifact("0" * 64, _MANY, _MANY),
        staged_bytes=_MANY,
        extract=None,
        retained=(
            *record.retained,
            *(
                record.keep(candidate_name(record.table, f"{number:016d}"), tables, drop_after=now)
                for number, tables in enumerate(beside, 1)
            ),
        ),
        settled=(Settled("0" * 64, Phase.COMPLETED_RETAINING, 10**6, now, _MANY, "0" * 36),) * MAX_SETTLED,
    )
    require_way_out(fullest)
    ready = tuple(ReplicaStage(alias, "", "", "0" * 36, StageState.READY) for alias in aliases)
    transitions.require_room(prepared(fullest.moved(stages=ready), live_rows=_MANY, now=now))


def require_way_out(record: IndependentRecord) -> None:
    """Refuse a record after which the operation could not be given up any more, or what it leaves not be dropped.

    :raises Stopped: ``RECORD_TOO_LARGE``.
    """
    now = record.changed_at
    grown = record
    if record.phase is Phase.STAGING:
        # No attempt leaves more behind than one that is verified, and the others will follow without growing it.
        some = ReplicaStage(
            "", "0" * 16, candidate_name(record.table, "0" * 16), "0" * 36, StageState.VERIFIED
        )
        found = (record.stage_of(alias) or replace(some, alias=alias) for alias in record.replicas)
        grown = record.moved(stages=tuple(replace(stage, state=StageState.VERIFIED) for stage in found))
    given_up: AuthorityRecord = transitions.aborted(grown, now=now)
    for item in given_up.retained:
        given_up = transitions.dropping(given_up, item.name, nonce="0" * 32, now=now)
    encode(given_up, "0" * 32)


def _left_behind(
    record: IndependentRecord, stage: ReplicaStage | None, now: int
) -> tuple[IndependentRetained, ...]:
    """List what an attempt may have left, so that it is dropped when that is safe."""
    if stage is None:
        return record.retained
    item = record.keep(stage.name, record.attempt_table(stage), drop_after=now)
    return (*record.retained, item)


def _with_stage(record: IndependentRecord, stage: ReplicaStage, now: int) -> IndependentRecord:
    others = tuple(other for other in record.stages if other.alias != stage.alias)
    return record.moved(stages=(*others, stage), changed_at=now)


def _advanced(
    record: IndependentRecord, alias: str, before: StageState, after: StageState, now: int
) -> IndependentRecord:
    _require(record, Phase.STAGING)
    stage = record.stage_of(alias)
    if stage is None or stage.state is not before:
        raise ValueError(f"{alias} is not {before}")
    return _with_stage(record, replace(stage, state=after), now)


def _require(record: IndependentRecord, *phases: Phase) -> None:
    if record.phase not in phases:
        raise ValueError(f"no such move from {record.phase}")
