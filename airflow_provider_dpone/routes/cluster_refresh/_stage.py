"""Stage: a candidate that is complete and equal on every replica, and the operation prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_provider_dpone.publication.admission import (
    Resume,
    Slot,
    moved_since,
    no_room,
)
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.decide import (
    replication_problem,
)
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import candidate_name
from airflow_provider_dpone.publication.receipt import (
    INDEPENDENT_STAGE_SCHEMA,
    STAGE_SCHEMA,
    StageReceipt,
)
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    ContentDigest,
    Generation,
    IndependentRecord,
    Phase,
    ReplicatedRecord,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import CandidateIntent, Staged
from airflow_provider_dpone.publication.transitions import require_room
from airflow_provider_dpone.routes.cluster_refresh._admit import Admitted, StageRequest, admit_stage
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Pause,
    Site,
    Waits,
    cas_unknown,
    observe_admitted,
    require_all_read,
    require_target,
)
from airflow_provider_dpone.routes.cluster_refresh._evidence import note_outcome, write_intent
from airflow_provider_dpone.routes.ports import (
    Attempt,
    Conflict,
    Loaded,
    OutcomeUnknown,
    Ports,
    ReplicaStaging,
    StagePlan,
    Staging,
    Stored,
)

T = TypeVar("T")


def stage(ports: Ports, staging: Staging, site: Site, request: StageRequest, waits: Waits) -> StageReceipt:
    """Stage a candidate that is complete and equal on every replica, and prepare the operation.

    The slot's version, the live table and its schema are read before the source and compared again
    before ``PREPARED`` is written against exactly them: what was slow or orphaned never overwrites what
    was newer.

    :raises Stopped: the target is untouched, whatever the reason.
    """
    target = site.target
    admitted = admit_stage(ports, site, request, waits)
    observation = admitted.observation
    plan = staging.plan(observation)
    ports.log(f"{target}: admitted on {', '.join(observation.inventory.aliases)}.")
    for line in plan.schema_difference:
        ports.log(f"{target}: {line}")
    if isinstance(admitted.found, Resume):
        receipt = prepared_before(ports, staging, site, admitted.found.stored, plan, observation)
        if receipt is not None:
            return receipt
    if stop := no_room(admitted.slot.stored):
        raise Stopped(stop)
    return _Stage(
        ports, staging, site, waits, _NewOperation(admitted, plan, admitted.slot), observation
    ).run()


def prepared_before(
    ports: Ports,
    staging: Staging | ReplicaStaging,
    site: Site,
    stored: StoredRecord,
    plan: StagePlan,
    observation: Observation,
) -> StageReceipt | None:
    """Return the receipt of a candidate that an earlier try prepared, if it is still what it was."""
    record = stored.record
    if record.plan_digest != plan.digest:
        ports.log(f"{site.target}: the plan changed since the last try; staging again.")
        return None
    if record.predecessor != observation.generation(site.target.table):
        ports.log(f"{site.target}: the live table changed since the last try; staging again.")
        return None
    seen = ports.catalog.observe([record.table, record.candidate])
    for alias in record.replicas:
        facts = seen.replicas.get(alias)
        candidate = facts.tables.get(record.candidate) if facts else None
        if candidate is None or candidate.generation != record.desired.on(alias):
            ports.log(f"{site.target}: the candidate of the last try is gone on {alias}; staging again.")
            return None
    ports.log(
        f"{site.target}: an earlier try staged {record.content.rows:,} rows into {record.candidate}; resumed."
    )
    return stage_receipt(record, plan, staging.quoted(record.candidate), resumed=True)


def require_all_stored(loaded: Loaded) -> None:
    """Check that the server stored as many rows as the source says it gave, where that can tell.

    :raises Stopped: ``ROWS_DISAGREE``.
    """
    if loaded.source_rows is not None and loaded.source_rows != loaded.rows:
        raise Stopped(
            Stop(
                Code.ROWS_DISAGREE,
                f"The source gave {loaded.source_rows:,} rows, the server stored {loaded.rows:,}.",
                facts={"source_rows": loaded.source_rows, "stored_rows": loaded.rows},
            )
        )


_NOTHING = Loaded(0, 0, None)


@dataclass(frozen=True, slots=True)
class _NewOperation:
    admitted: Admitted
    plan: StagePlan
    slot: Slot

    @property
    def operation_id(self) -> str:
        return self.admitted.operation_id


@dataclass(slots=True)
class _Stage:
    """One staging attempt, from its durable intent to ``PREPARED``."""

    ports: Ports
    staging: Staging
    site: Site
    waits: Waits
    new: _NewOperation
    observation: Observation
    attempt: Attempt = field(init=False)
    droppable: bool = False
    """No statement of ours that names the candidate has an unknown outcome, and no record names it."""

    def __post_init__(self) -> None:
        attempt_id = self.ports.random.hex(64)
        name = candidate_name(self.site.target.table, attempt_id)
        self.attempt = Attempt(attempt_id, name, self.ports.random.uuid())

    def run(self) -> StageReceipt:
        try:
            return self._run()
        except BaseException:
            if self.droppable:
                self._discard()
            else:
                self.ports.log(
                    f"{self.attempt.name} is kept: it is not proven that nothing still works on it."
                )
            raise

    def _run(self) -> StageReceipt:
        ports, target, plan = self.ports, self.site.target, self.new.plan
        # The longest that this record may become must fit, and that is known before the source is read.
        like_live = self.new.slot.live or Generation(
            self.attempt.uuid, "?" * 500, "0" * 64, "default", "/" * 200
        )
        require_room(
            self._record(self.observation, _NOTHING, ContentDigest(0, "9" * 39, "9" * 39), like_live)
        )
        ports.evidence.write(self.new.operation_id, self.new.admitted.entry(self.site, plan))
        intent = CandidateIntent(
            self.attempt.attempt_id, self.attempt.name, self.attempt.uuid, target.database
        )
        ports.evidence.write(self.new.operation_id, intent)
        with self._effect():
            self.staging.create(
                plan,
                self.attempt,
                authority_id=self.new.admitted.authority_id,
                operation_id=self.new.operation_id,
            )
        created = ports.catalog.observe([target.table, self.attempt.name])
        require_all_read(created)
        self.staging.check_created(plan, self.attempt, created)
        ports.log(f"{target}: candidate {self.attempt.name} created on {len(created.replicas)} replicas.")

        with self._effect():
            loaded = self.staging.load(plan, self.attempt)
        require_all_stored(loaded)
        ports.log(f"{target}: {loaded.rows:,} rows loaded ({loaded.bytes:,} bytes).")
        self._wait_ready(loaded)
        content = self._content(loaded)
        staged = self._staged(loaded, content)
        # A store that fails for a moment does not throw a whole load away either.
        self._patiently(lambda: ports.evidence.write(self.new.operation_id, staged))
        # The last look: nothing slow stands between it and the write of PREPARED.
        final = self._patiently(self._last_look)
        return self._prepare(final, loaded, content)

    def _staged(self, loaded: Loaded, content: ContentDigest) -> Staged:
        return Staged(
            attempt=self.attempt.attempt_id,
            table=self.attempt.name,
            uuid=self.attempt.uuid,
            rows=loaded.rows,
            bytes=loaded.bytes,
            source_rows=loaded.source_rows,
            content=content,
            replicas=self.observation.inventory.aliases,
        )

    def _last_look(self) -> Observation:
        tables = [self.site.target.table, self.attempt.name]
        seen, _ = observe_admitted(self.ports, self.site, tables, self.waits)
        if moved_since(seen, self.site.target.table, self.new.slot) is None:
            require_target(self.site, seen)
        return seen

    def _patiently(self, look: Callable[[], T]) -> T:
        """Look; a look that fails for a moment does not throw a whole load away."""
        pause = Pause(self.ports, self.waits.ready, self.waits)
        while True:
            try:
                return look()
            except Stopped as stopped:
                if not stopped.stop.passing or pause.over():
                    raise
                self.ports.log(f"Looking again. {stopped.stop.message}")

    @contextmanager
    def _effect(self) -> Iterator[None]:
        """While the effect runs, its outcome is unknown; one that ended, well or not, allows a drop."""
        self.droppable = False
        try:
            yield
        except Stopped as stopped:
            self.droppable = stopped.stop.code is not Code.STAGING_UNKNOWN
            raise
        self.droppable = True

    def _wait_ready(self, loaded: Loaded) -> None:
        """Wait until every replica holds the whole candidate."""
        ports, name = self.ports, self.attempt.name
        pause = Pause(ports, self.waits.ready, self.waits)
        reported: dict[str, Json] = {}
        while True:
            seen = self._patiently(lambda: ports.catalog.observe([self.site.target.table, name]))
            aliases = seen.inventory.aliases
            problems: dict[str, Json] = {}
            for alias in aliases:
                facts = seen.replicas.get(alias)
                table = facts.tables.get(name) if facts else None
                problem = replication_problem(table, len(aliases))
                if problem is None and table is not None and table.rows != loaded.rows:
                    problem = f"{table.rows} of {loaded.rows} rows are there"
                if problem is not None:
                    problems[alias] = problem
            if not problems:
                ports.log(f"{self.site.target}: {len(aliases)} of {len(aliases)} replicas ready.")
                return
            if problems != reported:
                reported = problems
                ready = len(aliases) - len(problems)
                ports.log(
                    f"{self.site.target}: {ready} of {len(aliases)} replicas ready; "
                    + "; ".join(f"{alias}: {problem}" for alias, problem in problems.items())
                )
            if pause.over():
                raise Stopped(
                    Stop(
                        Code.CANDIDATE_NOT_READY,
                        f"{self.site.target}: the candidate is not complete on {', '.join(problems)} "
                        f"after {self.waits.ready:g} s. Nothing was published.",
                        replicas={alias: {"problem": problem} for alias, problem in problems.items()},
                    )
                )

    def _content(self, loaded: Loaded) -> ContentDigest:
        """Return the content digest that all replicas agree on."""
        check = self._patiently(lambda: self.ports.catalog.content(self.attempt.name))
        digests = set(check.digests.values())
        match [*digests]:
            case [ContentDigest() as digest] if digest.rows == loaded.rows:
                return digest
        raise Stopped(
            Stop(
                Code.ROWS_DISAGREE,
                f"{self.site.target}: the replicas don't hold what was loaded ({loaded.rows:,} rows).",
                replicas={
                    alias: {"rows": digest.rows, "alike": sum(d == digest for d in check.digests.values())}
                    for alias, digest in check.digests.items()
                },
            )
        )

    def _prepare(self, seen: Observation, loaded: Loaded, content: ContentDigest) -> StageReceipt:
        """Write ``PREPARED`` against exactly what staging started from."""
        ports = self.ports
        if stop := moved_since(seen, self.site.target.table, self.new.slot):
            raise Stopped(stop)
        # The record that was read may have been cleaned up meanwhile: go on from what it is now.
        new = self.new = replace(self.new, slot=replace(self.new.slot, stored=seen.record))
        self.staging.check_created(new.plan, self.attempt, seen)
        candidate = seen.table(self.attempt.name)
        if candidate is None:
            raise ValueError("a checked candidate is seen")
        record = self._record(seen, loaded, content, candidate.generation)
        require_room(record)
        write_id = ports.random.hex(128)
        # Read before the write: only what was begun before it can never be prepared after it.
        earlier = self._earlier_attempts()
        self._patiently(lambda: write_intent(ports, record, write_id, new.slot.stored))
        # From here on a record may name the candidate: only a proven conflict makes it droppable again.
        self.droppable = False
        result = ports.authority.write(new.slot.stored, record, write_id)
        note_outcome(ports, record, write_id, result)
        match result:
            case Stored(stored):
                self._drop_leftovers(stored, earlier)
                ports.log(f"{self.site.target}: prepared {content.rows:,} rows in {self.attempt.name}.")
                return stage_receipt(record, new.plan, self.staging.quoted(record.candidate), resumed=False)
            case Conflict():
                self.droppable = True
                raise Stopped(
                    Stop(
                        Code.TARGET_MOVED,
                        f"Another operation took the slot of {self.site.target} while this one was staging.",
                    )
                )
            case OutcomeUnknown(why):
                raise Stopped(cas_unknown(record, why))

    def _record(
        self, seen: Observation, loaded: Loaded, content: ContentDigest, desired: Generation
    ) -> AuthorityRecord:
        nonce = self.ports.random.hex(128)
        return self.new.admitted.record(
            ReplicatedRecord,
            self.site,
            self.new.slot,
            seen,
            self.new.plan,
            nonce,
            phase=Phase.PREPARED,
            desired=desired,
            candidate=self.attempt.name,
            attempt_id=self.attempt.attempt_id,
            content=content,
            staged_bytes=loaded.bytes,
        )

    def _earlier_attempts(self) -> tuple[Attempt, ...]:
        """The candidates that attempts of this operation have meant to create so far."""
        try:
            return tuple(intent.attempt for intent in self.ports.evidence.intents(self.new.operation_id))
        except Stopped as stopped:
            self.ports.log(f"Candidates of earlier tries are left for later: {stopped.stop.message}")
            return ()

    def _drop_leftovers(self, stored: StoredRecord, earlier: tuple[Attempt, ...]) -> None:
        """Drop candidates of attempts that began before the record was written that was just verified.

        It makes a permit for them impossible for ever. What began since may be prepared by now.
        """
        known = {stored.record.candidate, *(item.name for item in stored.record.retained)}
        try:
            for attempt in earlier:
                if attempt.name not in known:
                    self._drop_if_proven(attempt)
        except Stopped as stopped:
            self.ports.log(f"Candidates of earlier tries are left for later: {stopped.stop.message}")

    def _discard(self) -> None:
        """Drop this attempt's candidate after a failure. The failure itself is what is reported."""
        try:
            self._drop_if_proven(self.attempt)
        except Stopped as stopped:
            self.ports.log(f"{self.attempt.name} is kept: {stopped.stop.message}")

    def _drop_if_proven(self, attempt: Attempt) -> None:
        seen = self.ports.catalog.observe([attempt.name])
        require_all_read(seen)
        uuids = {table.uuid for f in seen.replicas.values() if (table := f.tables.get(attempt.name))}
        if not uuids:
            return
        if uuids != {attempt.uuid}:
            self.ports.log(f"{attempt.name} is kept: it is not the table that was created for this attempt.")
            return
        self.staging.drop(attempt)
        self.ports.log(f"Candidate {attempt.name} dropped.")


def stage_receipt(
    record: AuthorityRecord, plan: StagePlan, candidate_sql: str, *, resumed: bool
) -> StageReceipt:
    independent = isinstance(record, IndependentRecord)
    return StageReceipt(
        schema=INDEPENDENT_STAGE_SCHEMA if independent else STAGE_SCHEMA,
        operation_id=record.operation_id,
        cluster=record.cluster,
        database=record.database,
        table=record.table,
        candidate=record.candidate,
        candidate_sql=candidate_sql,
        candidate_uuid=record.desired.uuid,
        rows=record.content.rows,
        bytes=record.staged_bytes,
        content=record.content,
        live_rows=record.live_rows,
        replicas=record.replicas,
        schema_difference=plan.schema_difference,
        dependents=record.dependents,
        resumed=resumed,
    )
