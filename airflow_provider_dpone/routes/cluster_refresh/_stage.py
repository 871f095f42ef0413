"""Stage: a candidate that is complete and equal on every replica, and the operation prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.admission import (
    FinishFirst,
    Request,
    Resume,
    Slot,
    admit_request,
    moved_since,
    no_room,
)
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.decide import (
    replication_problem,
)
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import TaskIdentity, candidate_name, target_key
from airflow_provider_dpone.publication.receipt import (
    STAGE_SCHEMA,
    StageReceipt,
)
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    ContentDigest,
    Generation,
    Owner,
    Phase,
    StoredRecord,
    new_fence_token,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Admission, CandidateIntent, Staged, TurnedAway
from airflow_provider_dpone.publication.transitions import require_room
from airflow_provider_dpone.publication.witness import admission_warnings, live_table, slot_found
from airflow_provider_dpone.routes.cluster_refresh._cleanup import finish_drops, free_slot
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Pause,
    Site,
    Waits,
    cas_unknown,
    dependents,
    drops_due,
    generation,
    observe_admitted,
    require_all_read,
    require_target,
)
from airflow_provider_dpone.routes.cluster_refresh._evidence import note, note_outcome, write_intent
from airflow_provider_dpone.routes.cluster_refresh._publish import settle
from airflow_provider_dpone.routes.ports import (
    Attempt,
    Conflict,
    Loaded,
    OutcomeUnknown,
    Ports,
    StagePlan,
    Staging,
    Stored,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageRequest:
    """What a stage task asks for, apart from what the staging adapter knows (source and structure).

    :ivar order_key: text that orders runs of this publication, such as the data interval's end.
    :ivar retention: seconds for which the predecessor is kept after the commit, on the server's clock.
    :ivar refuse_dependents: refuse a target on which other objects depend.
    """

    identity: TaskIdentity
    owner: Owner
    order_key: str | None = None
    allow_older: bool = False
    retention: int = 0
    refuse_dependents: bool = False


def stage(ports: Ports, staging: Staging, site: Site, request: StageRequest, waits: Waits) -> StageReceipt:
    """Stage a candidate that is complete and equal on every replica, and prepare the operation.

    The slot's version, the live table and its schema are read before the source and compared again
    before ``PREPARED`` is written against exactly them: what was slow or orphaned never overwrites what
    was newer.

    :raises Stopped: the target is untouched, whatever the reason.
    """
    target = site.target
    busy = Pause(ports, waits.busy, waits)
    waiting = drops_tried = False
    while True:
        try:
            observation, authority_id = observe_admitted(ports, site, [target.table], waits)
        except Stopped as stopped:
            # A look that fails for a moment does not end a wait.
            if not (waiting and stopped.stop.passing) or busy.over():
                raise
            ports.log(f"Waiting. {stopped.stop.message}")
            continue
        key = target_key(authority_id, target.database, target.table)
        operation_id = request.identity.operation_id(key)
        publication_key = request.identity.publication_key(key)
        if request.refuse_dependents and observation.dependents:
            raise Stopped(
                Stop(
                    Code.DEPENDENTS_REFUSED,
                    f"{len(observation.dependents)} objects depend on {target}.",
                    facts={"dependents": list(dependents(observation))},
                )
            )
        admitted = admit_request(
            observation,
            target.table,
            Request(operation_id, publication_key, request.order_key, request.allow_older),
        )
        match admitted:
            case Stop() if admitted.category is Category.CONFLICT:
                waiting = True
                try:
                    if _moves_on(ports, site, observation, waits):
                        continue
                except Stopped as stopped:
                    if not stopped.stop.passing:
                        raise
                    admitted = stopped.stop
                if busy.over():
                    raise Stopped(_turned_away(ports, observation, admitted, operation_id, request.owner))
                ports.log(f"Waiting. {admitted.message}")
                continue
            case Stop():
                raise Stopped(admitted)
            case FinishFirst(stored):
                ports.log(f"{target}: an earlier publication is committed; its slot is freed first.")
                waiting = True
                try:
                    free_slot(ports, site, stored)
                except Stopped as stopped:
                    if not stopped.stop.passing or busy.over():
                        raise
                    ports.log(f"Waiting. {stopped.stop.message}")
                continue
            case Slot(stored) if stored is not None and not drops_tried and drops_due(stored, observation):
                finish_drops(ports, site, stored, observation.server_time, waits)
                drops_tried = True
                continue
            case Resume() | Slot():
                pass
            case _:
                assert_never(admitted)

        require_target(site, observation)
        plan = staging.plan(observation)
        ports.log(f"{target}: admitted on {', '.join(observation.inventory.aliases)}.")
        for line in plan.schema_difference:
            ports.log(f"{target}: {line}")
        if isinstance(admitted, Resume):
            if (receipt := _resumed(ports, staging, site, admitted.stored, plan, observation)) is not None:
                return receipt
            admitted = Slot(
                admitted.stored, generation(observation, target.table), observation.rows(target.table)
            )
        if stop := no_room(admitted.stored):
            raise Stopped(stop)
        new = _NewOperation(request, operation_id, publication_key, authority_id, key, plan, admitted)
        return _Stage(ports, staging, site, waits, new, observation).run()


def _turned_away(
    ports: Ports, observation: Observation, refused: Stop, operation_id: str, owner: Owner
) -> Stop:
    """Say that nothing was begun, and note with the operation that holds the target who was refused because of it."""
    held = observation.record
    if held is None or refused.category is not Category.CONFLICT:
        return refused
    entry = TurnedAway(operation_id, owner, refused.code.name, held.record.phase, held.version)
    note(ports, held.record.operation_id, entry)
    return replace(refused, message=f"{refused.message} Nothing was started: the source was not read.")


def _moves_on(ports: Ports, site: Site, observation: Observation, waits: Waits) -> bool:
    """Tell whether the operation that holds the target could be proven or given back. Its task may be gone."""
    stored = observation.record
    if stored is None or stored.record.phase is Phase.PREPARED:
        return False
    if (stop := settle(ports, site, stored, observation.sequence, waits)) is not None:
        ports.log(f"The operation that holds the target is not proven: {stop.message}")
    return stop is None


def _resumed(
    ports: Ports,
    staging: Staging,
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
    if record.predecessor != generation(observation, site.target.table):
        ports.log(f"{site.target}: the live table changed since the last try; staging again.")
        return None
    seen = ports.catalog.observe([record.table, record.candidate])
    for alias in record.replicas:
        facts = seen.replicas.get(alias)
        candidate = facts.tables.get(record.candidate) if facts else None
        if candidate is None or candidate.generation != record.desired:
            ports.log(f"{site.target}: the candidate of the last try is gone on {alias}; staging again.")
            return None
    ports.log(
        f"{site.target}: an earlier try staged {record.content.rows:,} rows into {record.candidate}; resumed."
    )
    return _stage_receipt(record, plan, staging.quoted(record.candidate), resumed=True)


_NOTHING = Loaded(0, 0, None)


@dataclass(frozen=True, slots=True)
class _NewOperation:
    request: StageRequest
    operation_id: str
    publication_key: str
    authority_id: str
    target_key: str
    plan: StagePlan
    slot: Slot


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
        ports.evidence.write(self.new.operation_id, self._admission())
        intent = CandidateIntent(
            self.attempt.attempt_id, self.attempt.name, self.attempt.uuid, target.database
        )
        ports.evidence.write(self.new.operation_id, intent)
        with self._effect():
            self.staging.create(
                plan,
                self.attempt,
                authority_id=self.new.authority_id,
                operation_id=self.new.operation_id,
            )
        created = ports.catalog.observe([target.table, self.attempt.name])
        require_all_read(created)
        self.staging.check_created(plan, self.attempt, created)
        ports.log(f"{target}: candidate {self.attempt.name} created on {len(created.replicas)} replicas.")

        with self._effect():
            loaded = self.staging.load(plan, self.attempt)
        if loaded.source_rows is not None and loaded.source_rows != loaded.rows:
            raise Stopped(
                Stop(
                    Code.ROWS_DISAGREE,
                    f"The source gave {loaded.source_rows:,} rows, the server stored {loaded.rows:,}.",
                    facts={"source_rows": loaded.source_rows, "stored_rows": loaded.rows},
                )
            )
        ports.log(f"{target}: {loaded.rows:,} rows loaded ({loaded.bytes:,} bytes).")
        self._wait_ready(loaded)
        content = self._content(loaded)
        staged = self._staged(loaded, content)
        # A store that fails for a moment does not throw a whole load away either.
        self._patiently(lambda: ports.evidence.write(self.new.operation_id, staged))
        # The last look: nothing slow stands between it and the write of PREPARED.
        final = self._patiently(self._last_look)
        return self._prepare(final, loaded, content)

    def _admission(self) -> Admission:
        new, seen = self.new, self.observation
        return Admission(
            database=self.site.target.database,
            table=self.site.target.table,
            target_key=new.target_key,
            publication_key=new.publication_key,
            authority_id=new.authority_id,
            owner=new.request.owner,
            order_key=new.request.order_key,
            plan_digest=new.plan.digest,
            inventory_digest=seen.inventory.digest,
            replicas=seen.inventory.aliases,
            live=live_table(new.slot.live),
            live_rows=new.slot.live_rows,
            slot=slot_found(new.slot.stored),
            retention=new.request.retention,
            schema_difference=new.plan.schema_difference,
            dependents=dependents(seen),
            warnings=admission_warnings(new.slot, len(seen.dependents), order_key=new.request.order_key),
        )

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
        if len(digests) == 1 and (digest := digests.pop()).rows == loaded.rows:
            return digest
        raise Stopped(
            Stop(
                Code.ROWS_DISAGREE,
                f"{self.site.target}: the replicas don't hold what was loaded ({loaded.rows:,} rows).",
                replicas={
                    alias: {"rows": digest.rows, "digest": digest.city[:12]}
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
                return _stage_receipt(record, new.plan, self.staging.quoted(record.candidate), resumed=False)
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
        new, slot, target = self.new, self.new.slot, self.site.target
        before = slot.stored.record if slot.stored else None
        superseded = before is not None and before.phase is Phase.PREPARED
        aliases = seen.inventory.aliases
        return AuthorityRecord(
            authority_id=new.authority_id,
            target_key=new.target_key,
            cluster=target.cluster,
            database=target.database,
            table=target.table,
            operation_id=new.operation_id,
            publication_key=new.publication_key,
            owner=new.request.owner,
            order_key=new.request.order_key,
            plan_digest=new.plan.digest,
            fence_token=new_fence_token(new.operation_id, self.ports.random.hex(128)),
            phase=Phase.PREPARED,
            dispatch_epoch=before.dispatch_epoch if before else 0,
            inventory_digest=seen.inventory.digest,
            replicas=aliases,
            servers=tuple(seen.replicas[alias].server for alias in aliases),
            predecessor=slot.live,
            desired=desired,
            candidate=self.attempt.name,
            attempt_id=self.attempt.attempt_id,
            content=content,
            staged_bytes=loaded.bytes,
            live_rows=slot.live_rows,
            dependents=dependents(seen),
            retention=new.request.retention,
            prepared_at=seen.server_time,
            changed_at=seen.server_time,
            published_order_key=before.published_order_key if before else None,
            retained=(
                ()
                if before is None
                else transitions.kept(before, drop_after=seen.server_time)
                if superseded
                else before.retained
            ),
            settled=before.remembered(new.operation_id) if before else (),
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


def _stage_receipt(
    record: AuthorityRecord, plan: StagePlan, candidate_sql: str, *, resumed: bool
) -> StageReceipt:
    return StageReceipt(
        schema=STAGE_SCHEMA,
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
