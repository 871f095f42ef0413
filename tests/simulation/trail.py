"""The oracle of the evidence: nothing moves on before it is written down, and every committed operation has all of it.

It judges each write of the record at the moment at which the row changes, whoever sent it and however late it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.record import (
    PUBLISHED_PHASES,
    STAGE_PHASES,
    UNSENT_PHASES,
    AuthorityRecord,
    IndependentRecord,
    Phase,
    Row,
)
from airflow_provider_dpone.publication.trail import (
    Admission,
    Body,
    CandidateIntent,
    Classification,
    CleanupStep,
    CompareAndSwap,
    DispatchOutcome,
    OperatorAction,
    Staged,
    StoredReceipt,
)
from tests.simulation.ports import SimEvidence
from tests.simulation.world import World, decoded

NEW = (ReplicaState.COMMITTED, ReplicaState.CLEANED)
OLD = (ReplicaState.PENDING,)


@dataclass(slots=True)
class TrailOracle:
    """Reads the history of the record's row beside the trail."""

    world: World
    trail: SimEvidence
    judged: int = 0
    records: dict[str, AuthorityRecord] = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        """What is wrong with the writes since the last call."""
        yield from self.trail.broken
        while self.judged < len(self.world.stores):
            before, row, version = self.world.stores[self.judged]
            self.judged += 1
            yield from self._judge(before, row, version)

    def problems_at_the_end(self) -> Iterator[str]:
        """What is missing in the trail of a history that has ended."""
        noted = {body.token for _, body in self.trail.entries if isinstance(body, DispatchOutcome)}
        for token, sender in self.trail.senders.items():
            if token not in noted and not sender.dead and "dispatch" not in sender.unwritten:
                yield "a statement was sent, and its outcome is not in the trail though its sender lived"
        for record in self.records.values():
            if record.phase in PUBLISHED_PHASES:
                bodies = self._of(record.operation_id)
                created = set() if any(map(_rolls_back, bodies)) else {CandidateIntent}
                missing = [k for k in COMPLETE | created if not any(isinstance(body, k) for body in bodies)]
                if missing:
                    yield f"a committed operation's trail lacks {sorted(kind.kind for kind in missing)}"

    def _of(self, operation_id: str) -> list[Body]:
        return [body for operation, body in self.trail.entries if operation == operation_id]

    def _judge(self, before: Row | None, row: Row, version: int) -> Iterator[str]:
        record = self.records[row.write_id] = decoded(row)
        old = self.records.get(before.write_id) if before else None
        bodies = self._of(record.operation_id)
        if not any(isinstance(b, CompareAndSwap) and b.write_id == row.write_id for b in bodies):
            yield f"the record moved to {record.phase} before its intent was written"
        anew = old is None or old.fence_token != record.fence_token
        staged = old is not None and old.phase is Phase.STAGING
        if isinstance(record, IndependentRecord):
            yield from self._claimed(record, bodies)
        if record.phase is Phase.PREPARED and (anew or staged):
            yield from self._prepared(record, bodies)
        elif record.phase in STAGE_PHASES:
            if anew and not any(isinstance(b, Admission) for b in bodies):
                yield "a target was locked before its admission was written"
        elif old is None or anew:
            # Nothing is prepared: an operator lists a table that nobody needs.
            if not any(isinstance(b, OperatorAction) and b.action == "orphans" for b in bodies):
                yield "a record got a new fence token before the reason was written"
        elif old.phase is not record.phase:
            yield from self._moved(old, record, bodies, version - 1)
        yield from self._cleaned(old, record, bodies)

    def _prepared(self, record: AuthorityRecord, bodies: list[Body]) -> Iterator[str]:
        attempt = record.attempt_id
        if not any(isinstance(b, Admission) for b in bodies):
            yield "an operation was prepared before its admission was written"
        meant = {b.uuid for b in bodies if isinstance(b, CandidateIntent)}
        if not (record.desired.uuids <= meant or any(map(_rolls_back, bodies))):
            yield "an operation was prepared before the intent of its candidate was written"
        if not any(
            isinstance(b, Staged) and (b.attempt, b.content) == (attempt, record.content) for b in bodies
        ):
            yield "an operation was prepared before its candidate's content was written"

    def _claimed(self, record: IndependentRecord, bodies: list[Body]) -> Iterator[str]:
        meant = {b.uuid for b in bodies if isinstance(b, CandidateIntent)}
        attempts = {stage.uuid for stage in (*record.stages, record.extract) if stage is not None}
        if not attempts <= meant:
            yield "an attempt was claimed before the intent to create its table was written"

    def _moved(
        self, old: AuthorityRecord, record: AuthorityRecord, bodies: list[Body], version: int
    ) -> Iterator[str]:
        """Judge a move that rests on a look: the trail must hold that look, made of this very version."""
        if old.phase is Phase.COMMITTED and not any(isinstance(b, StoredReceipt) for b in bodies):
            yield "a record left COMMITTED before its receipt was written"
        rests_on = RESTS_ON.get(record.phase)
        if rests_on is None or old.published:
            return
        found = [
            b
            for b in bodies
            if isinstance(b, Classification) and b.aggregate in rests_on and b.version <= version
        ]
        if record.phase is Phase.ABORTED and old.phase in UNSENT_PHASES:
            reasons = {b.aggregate for b in bodies if isinstance(b, Classification) and b.category}
            if old.phase is Phase.PREPARED:
                reasons &= {"TARGET_MOVED"}
            audited = any(isinstance(b, OperatorAction) and b.action == "abandon" for b in bodies)
            if not (audited or reasons):
                yield "an operation was given up before the reason was written"
            return
        if not found:
            yield f"the record moved to {record.phase} before what it rests on was written"
            return
        states = {seen.state for seen in found[-1].replicas}
        if record.phase is Phase.COMMITTED and not states <= set(NEW):
            yield "the proof in the trail does not show the new data on every replica"
        if record.phase in (Phase.DISPATCHING, Phase.ABORTED) and not states <= set(OLD):
            yield "the trail does not show the old data on every replica"

    def _cleaned(
        self, old: AuthorityRecord | None, record: AuthorityRecord, bodies: list[Body]
    ) -> Iterator[str]:
        if old is None or old.operation_id != record.operation_id:
            return
        steps = {(b.step, b.table) for b in bodies if isinstance(b, CleanupStep)}
        dropping = {item.name for item in old.retained if item.drop is not None}
        for item in record.retained:
            if item.drop is not None and item.name not in dropping and ("drop", item.name) not in steps:
                yield "a drop was claimed before it was written down"
        for name in {item.name for item in old.retained} - {item.name for item in record.retained}:
            if ("gone", name) not in steps:
                yield "a table was struck off the list before it was written that it is gone"


def _rolls_back(body: Body) -> bool:
    """Tell whether an operator publishes a table again that was created long ago."""
    return isinstance(body, OperatorAction) and body.action == "rollback"


RESTS_ON = {
    Phase.DISPATCHING: {"DISPATCHABLE"},
    Phase.BOUND: {"BOUND"},
    Phase.TERMINAL: {"TERMINAL", "DISARMED"},
    Phase.COMMITTED: {"COMMITTED"},
    Phase.ABORTED: {"NOT_PUBLISHED"},
}
COMPLETE: set[type[Body]] = {Admission, Staged, CompareAndSwap, Classification}
