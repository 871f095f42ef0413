"""Stage independent tables: lock the target, seal the source once, and load every replica from that by itself.

The order is the protocol. The target's slot is locked before the source is read. What is sealed is bound in the record
before any replica is touched. Each replica's attempt is claimed before its table is created, and nothing is appended
to what is not proven. ``PREPARED`` is written when every replica holds the candidate; from there on it is the same
publication as that of tables that replicate themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_provider_dpone.publication import replica_stages as stages
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.admission import Resume, Slot, live_moved, moved_since, no_room
from airflow_provider_dpone.publication.classify import inventory_drift
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.decide import Abort, incomplete
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import candidate_name
from airflow_provider_dpone.publication.receipt import StageReceipt
from airflow_provider_dpone.publication.record import (
    NOT_SEALED,
    STAGE_PHASES,
    UNSENT_PHASES,
    AuthorityRecord,
    Generation,
    IndependentGeneration,
    IndependentRecord,
    Phase,
    ReplicaStage,
    StageState,
    StoredRecord,
    independent_generation,
)
from airflow_provider_dpone.publication.stop import ANSWERS_ALIKE, Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import CandidateIntent
from airflow_provider_dpone.publication.witness import staged
from airflow_provider_dpone.routes.cluster_refresh._admit import Admitted, StageRequest, admit_stage
from airflow_provider_dpone.routes.cluster_refresh._cleanup import finish_drops
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Pause,
    Site,
    Waits,
    cas_unknown,
    compare_and_swap,
    observe_admitted,
    require_all_read,
    require_target,
    write,
)
from airflow_provider_dpone.routes.cluster_refresh._evidence import write_down
from airflow_provider_dpone.routes.cluster_refresh._stage import (
    prepared_before,
    require_all_stored,
    stage_receipt,
)
from airflow_provider_dpone.routes.ports import (
    Conflict,
    OutcomeUnknown,
    Ports,
    ReplicaStaging,
    StagePlan,
    Stored,
)


def stage_replicas(
    ports: Ports, staging: ReplicaStaging, site: Site, request: StageRequest, waits: Waits
) -> StageReceipt:
    """Stage the same content on every replica, each by itself, and prepare the operation.

    A retry goes on where the last try ended: the source is read once, and a replica that is ready stays so.

    :raises Stopped: the target's live table is untouched, whatever the reason.
    """
    admitted = admit_stage(ports, site, request, waits)
    observation = admitted.observation
    plan = staging.plan(observation)
    ports.log(f"{site.target}: admitted on {', '.join(observation.inventory.aliases)}.")
    for line in plan.schema_difference:
        ports.log(f"{site.target}: {line}")
    if isinstance(admitted.found, Resume) and admitted.found.stored.record.phase is Phase.PREPARED:
        receipt = prepared_before(ports, staging, site, admitted.found.stored, plan, observation)
        if receipt is not None:
            return receipt
    return _Stage(ports, staging, site, waits, admitted, plan).run()


@dataclass(slots=True)
class _Slot:
    """The record as this execution knows it. One move at a time, and each against exactly what is known.

    The replicas are staged side by side, and each of them moves the one record.
    """

    ports: Ports
    stored: StoredRecord
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def record(self) -> IndependentRecord:
        record = self.stored.record
        if not isinstance(record, IndependentRecord):
            raise TypeError("replicas are staged in a record of independent tables")
        return record

    def move(self, change: Callable[[IndependentRecord], IndependentRecord]) -> None:
        """Store the changed record.

        :raises Stopped: ``CAS_CONFLICT``: somebody else has the operation or the slot now, and this execution has
            nothing more to do; ``CAS_OUTCOME_UNKNOWN``; ``RECORD_TOO_LARGE``: not tried.
        """
        with self.lock:
            changed = change(self.record)
            if changed.phase in UNSENT_PHASES:
                stages.require_way_out(changed)
            written = write(self.ports, self.stored, changed)
            if written is None:
                raise Stopped(_taken(self.record))
            self.stored = written


@dataclass(slots=True)
class _Stage:
    """One execution of the staging of independent replicas."""

    ports: Ports
    staging: ReplicaStaging
    site: Site
    waits: Waits
    admitted: Admitted
    plan: StagePlan
    slot: _Slot = field(init=False)
    looking: threading.Lock = field(default_factory=threading.Lock)
    server_time: int = field(init=False)
    created: list[ReplicaStage] = field(default_factory=list)
    """Attempts whose tables this execution has told a replica to create."""

    def __post_init__(self) -> None:
        self.server_time = self.admitted.observation.server_time

    def run(self) -> StageReceipt:
        self.slot = _Slot(self.ports, self._resumed() or self._locked())
        try:
            if self.slot.record.phase is Phase.LOCKED:
                self._seal()
            self._load()
            return self._prepare()
        except Stopped as stopped:
            if _answers_alike(stopped.stop):
                self._give_up(stopped.stop)
            else:
                self._leave(stopped.stop)
            raise

    # ---- the lock

    def _resumed(self) -> StoredRecord | None:
        """Take over what an earlier try has locked, where it still fits; ``None``: it has to be locked anew."""
        ports, target = self.ports, self.site.target
        found = self.admitted.found
        if not isinstance(found, Resume) or not isinstance(found.stored.record, IndependentRecord):
            return None
        record = found.stored.record
        if record.phase not in STAGE_PHASES:
            return None
        observation = self.admitted.observation
        if record.plan_digest != self.plan.digest:
            ports.log(f"{target}: the plan changed since the last try; staging again.")
            return None
        if record.predecessor != observation.generation(target.table):
            ports.log(f"{target}: the live table changed since the last try; staging again.")
            return None
        if inventory_drift(record, observation):
            ports.log(f"{target}: the cluster's replicas changed since the last try; staging again.")
            return None
        if (
            record.artifact is not None
            and stages.needs_artifact(record)
            and not self.staging.sealed(record.artifact, target_key=record.target_key)
        ):
            ports.log(f"{target}: the sealed artifact of the last try is gone; staging again.")
            return None
        nonce = ports.random.hex(128)
        moved = stages.taken_over(record, nonce=nonce, now=observation.server_time)
        if (written := write(ports, found.stored, moved)) is None:
            raise Stopped(Stop(Code.CAS_CONFLICT, f"{target}: another worker changed the record first."))
        ports.log(f"{target}: an earlier try locked the target; going on from {record.phase}.")
        return written

    def _locked(self) -> StoredRecord:
        """Lock the target's slot, against what admission found in it: no other operation was there meanwhile."""
        ports, admitted, target = self.ports, self.admitted, self.site.target
        slot = replace(admitted.slot, stored=self._superseded(admitted.slot.stored))
        self._require_place(slot)
        ports.evidence.write(admitted.operation_id, admitted.entry(self.site, self.plan))
        pause = Pause(ports, self.waits.visible, self.waits)
        while True:
            record = self._lock_record(slot)
            match compare_and_swap(ports, slot.stored, record):
                case Stored(stored):
                    ports.log(f"{target}: locked for this operation before the source is read.")
                    return stored
                case OutcomeUnknown(why):
                    raise Stopped(cas_unknown(record, why))
                case Conflict():
                    # A cleanup may have dropped a kept table meanwhile: the slot is as free as it was.
                    seen = ports.catalog.observe([target.table])
                    if (stop := moved_since(seen, target.table, slot)) is not None:
                        raise Stopped(stop)
                    if seen.record == slot.stored and pause.over():
                        raise Stopped(
                            Stop(Code.CAS_CONFLICT, f"{target}: another worker changed the record first.")
                        )
                    slot = replace(slot, stored=seen.record)

    def _superseded(self, stored: StoredRecord | None) -> StoredRecord | None:
        """Give up an operation that is followed while it is staged, and drop its tables: later is too late for many.

        An earlier try of this very operation is taken over as it is: what was given up never begins again.
        """
        if (
            stored is None
            or stored.record.phase not in STAGE_PHASES
            or stored.record.operation_id == self.admitted.operation_id
        ):
            return stored
        ports, target = self.ports, self.site.target
        followed = Stop(Code.SUPERSEDED, f"{target}: a later run of this publication stages now.")
        write_down(ports, stored, Abort(followed), None, None, None)
        written = write(ports, stored, transitions.aborted(stored.record, now=self.server_time))
        if written is None:
            raise Stopped(Stop(Code.CAS_CONFLICT, f"{target}: another worker changed the record first."))
        ports.log(f"{target}: an earlier run of this publication was given up; its tables are dropped first.")
        self._drop_attempts(stored.record)
        finish_drops(ports, self.site, written, self.server_time, self.waits)
        found = ports.catalog.observe([target.table]).record
        same = found is not None and found.record.operation_id == stored.record.operation_id
        return found if same else written

    def _require_place(self, slot: Slot) -> None:
        """Check that the record has room for all that may be listed in it.

        :raises Stopped: ``TOO_MANY_RETAINED``, ``RECORD_TOO_LARGE``; an earlier try of this operation is given up.
        """
        try:
            self._require_listable(slot)
        except Stopped as stopped:
            if slot.stored is not None and slot.stored.record.phase in STAGE_PHASES:
                self.slot = _Slot(self.ports, slot.stored)
                self._give_up(stopped.stop)
            raise

    def _require_listable(self, slot: Slot) -> None:
        record = self._lock_record(slot)
        for stop in (no_room(slot.stored), stages.no_place_left(record)):
            if stop is not None:
                raise Stopped(stop)
        # The new table is most often defined as the live one is; if not, it is compared again once it is created.
        stages.require_room(record, record.predecessor.engine_full if record.predecessor else "")

    def _lock_record(self, slot: Slot) -> IndependentRecord:
        if slot.live is not None and not isinstance(slot.live, IndependentGeneration):
            raise TypeError("an independent target is one of independent tables")
        attempt_id, nonce = self.ports.random.hex(64), self.ports.random.hex(128)
        return self.admitted.record(
            IndependentRecord,
            self.site,
            slot,
            self.admitted.observation,
            self.plan,
            nonce,
            phase=Phase.LOCKED,
            desired=independent_generation("", "", {}),
            candidate=candidate_name(self.site.target.table, attempt_id),
            attempt_id=attempt_id,
            content=NOT_SEALED,
            staged_bytes=0,
        )

    # ---- the source, once

    def _seal(self) -> None:
        """Read the source into a private table on one replica, and seal what that holds."""
        ports, staging, slot, target = self.ports, self.staging, self.slot, self.site.target
        record = slot.record
        if stop := stages.no_place_left(record):
            raise Stopped(stop)
        baseline = self._baseline()
        extract = self._attempt(record.replicas[0])
        self._intend(extract)
        slot.move(lambda now: stages.extracting(now, extract, now=self._now()))
        self._drop_followed(record.extract)
        self._create(extract)
        created = self._created(extract)
        stages.require_room(slot.record, created.engine_full)
        loaded = staging.extract(self.plan, extract)
        require_all_stored(loaded)
        ports.log(f"{target}: {loaded.rows:,} rows read from the source ({loaded.bytes:,} bytes).")
        content = staging.content(extract.name, extract.alias)
        if content.rows != loaded.rows:
            raise Stopped(
                Stop(
                    Code.ROWS_DISAGREE,
                    f"{target}: the source gave {loaded.rows:,} rows, its private table holds {content.rows:,}.",
                    facts={"loaded": loaded.rows, "stored": content.rows},
                )
            )
        artifact = staging.seal(self.plan, extract, loaded.rows, target_key=record.target_key)
        ports.log(f"{target}: sealed as {artifact.sha256[:16]} ({artifact.bytes:,} bytes).")
        slot.move(
            lambda now: stages.sealed(
                now,
                artifact=artifact,
                content=content,
                baseline=baseline,
                engine_full=created.engine_full,
                schema_digest=created.schema_digest,
                source_bytes=loaded.bytes,
                now=self._now(),
            )
        )
        self._drop_extract(extract)

    def _baseline(self) -> CanonicalDigest | None:
        """Return the content that every replica's live table holds; ``None`` where there is none.

        Tables that nothing keeps equal may differ: which of them is the one that readers should see, nobody knows.

        :raises Stopped: ``TARGET_NOT_UNIFORM``.
        """
        record = self.slot.record
        if record.predecessor is None:
            return None
        self.ports.log(f"{self.site.target}: comparing the live tables of all replicas.")
        digests = self.ports.catalog.content(record.table).digests
        found = {digest for digest in digests.values() if isinstance(digest, CanonicalDigest)}
        if len(found) == 1 and set(digests) == set(record.replicas):
            return found.pop()
        raise Stopped(
            Stop(
                Code.TARGET_NOT_UNIFORM,
                f"{self.site.target} does not hold the same rows on every replica. The source was not read.",
                next_action="Bring the replicas' tables together, or drop the table on all of them; then stage again.",
                replicas={alias: {"rows": digest.rows} for alias, digest in digests.items()},
            )
        )

    def _drop_extract(self, extract: ReplicaStage) -> None:
        """Drop the private table of the source: no permit can ever name it, and its content is sealed."""
        try:
            self.staging.drop(extract)
        except Stopped as stopped:
            self.ports.log(f"{extract.name} is left for cleanup: {stopped.stop.message}")

    def _drop_attempts(self, record: AuthorityRecord) -> None:
        """Drop the private tables of an operation that was given up; none of them is too large for that."""
        if isinstance(record, IndependentRecord):
            for stage in (record.extract, *record.stages):
                self._drop_followed(stage)

    def _drop_followed(self, before: ReplicaStage | None) -> None:
        """Drop the private table of an attempt that another one has followed, if nothing works on it any more.

        No rename of it was ever claimed, and none can be. It is listed in any case: cleanup goes on with it.
        """
        if before is None or before.state is not StageState.CLAIMED:
            return
        if before.alias not in self.admitted.observation.replicas:
            return
        try:
            facts = self._observe(before.name).replicas.get(before.alias)
            table = facts.tables.get(before.name) if facts else None
            if table is not None and table.uuid == before.uuid:
                self.staging.settle(before)
                self.staging.drop(before)
        except Stopped as stopped:
            self.ports.log(f"{before.name} is left for cleanup: {stopped.stop.message}")

    def _leave(self, stop: Stop, *, retried: bool = True) -> None:
        """Say how the target stands. Whatever the stop was, the record may have moved on without this execution.

        :param retried: whether Airflow tries again by itself after what is raised.
        """
        ports, target, ours = self.ports, self.site.target, self.slot.stored
        locked = False
        try:
            seen = self._observe(*(stage.name for stage in self.created))
        except Stopped as stopped:
            ports.log(f"{target}: its record was not read again: {stopped.stop.message}")
        else:
            found = seen.record
            if found is not None and found.version > ours.version:
                locked = not _taken_over(ours.record, found.record)
                self._drop_unlisted(seen, found.record)
            else:
                # Of a write that went wrong, it may not show yet what has become.
                locked = found is not None and stop.code not in (Code.CAS_CONFLICT, Code.CAS_OUTCOME_UNKNOWN)
        further = (
            "a retry goes on from what is proven"
            if retried
            else "clear the stage task, or abandon the operation"
        )
        ports.log(
            f"{target}: the target stays locked for this operation; {further}."
            if locked
            else f"{target}: what holds the target now, only its record tells; this execution has stopped."
        )

    def _drop_unlisted(self, seen: Observation, record: AuthorityRecord) -> None:
        """Drop tables of this execution that no record names: they were created after their attempts were struck off.

        Each is its own by name and UUID. Whoever took the operation over has its attempts in the record; and what a
        record does not name any more, none that follows it names again. What is listed is left to cleanup.

        :param record: a later one than this execution knows.
        """
        ours = self.slot.record
        if (record.authority_id, record.target_key) != (ours.authority_id, ours.target_key):
            return
        named = stages.names_of(record)
        for stage in self.created:
            facts = seen.replicas.get(stage.alias)
            table = facts.tables.get(stage.name) if facts else None
            if table is None or table.uuid != stage.uuid or stage.name in named:
                continue
            try:
                self.staging.settle(stage)
                self.staging.drop(stage)
            except Stopped as stopped:
                self.ports.log(
                    f"{stage.name} was created too late, and may be left for `orphans`: {stopped.stop.message}"
                )
            else:
                # Who took it over may have given it the candidate's name meanwhile: then it is not what was dropped.
                self.ports.log(
                    f"{stage.name} is in no record: what was created too late has that name no more."
                )

    # ---- every replica, by itself

    def _load(self) -> None:
        """Bring every replica to READY, side by side.

        :raises Stopped: what the first of them stopped with, after all of them ended.
        """
        aliases = self.slot.record.replicas
        stops = self.staging.side_by_side([self._task(alias) for alias in aliases])
        failed = {alias: stop for alias, stop in zip(aliases, stops, strict=True) if stop is not None}
        if not failed:
            return
        for alias, stopped in failed.items():
            self.ports.log(f"{self.site.target}: {alias} is not staged: {stopped.stop.message}")
        # What may still be running somewhere decides: the target is given up only where nothing is.
        raise min(failed.values(), key=lambda stopped: _answers_alike(stopped.stop))

    def _task(self, alias: str) -> Callable[[], None]:
        return lambda: self._replica(alias)

    def _replica(self, alias: str) -> None:
        """Take the next step of one replica until nothing is left to do."""
        slot = self.slot
        doubted = False
        seen = self._look(alias) if slot.record.stage_of(alias) is not None else None
        while True:
            match stages.decide_replica(slot.record, alias, seen):
                case stages.Claim() if self._is_proven(alias) and not doubted:
                    # A replica that has just started may show its tables one after the other: look twice.
                    doubted = True
                    self.ports.clock.sleep(self.waits.poll_last)
                    seen = self._look(alias)
                case stages.Claim():
                    seen = self._build(alias)
                case stages.Verify():
                    seen = self._verify(alias) or self._build(alias)
                case stages.Promote():
                    self.staging.promote(self._of(alias), slot.record.candidate)
                    seen = self._look(alias)
                    if seen.candidate is None:
                        raise Stopped(
                            Stop(
                                Code.STAGING_UNKNOWN,
                                f"{self.site.target}: whether the table on {alias} got the candidate's name is not "
                                "known.",
                                facts={"replica": alias},
                            )
                        )
                case stages.MarkReady():
                    slot.move(lambda now: stages.ready(now, alias, now=self._now()))
                    rows = slot.record.content.rows
                    self.ports.log(f"{self.site.target}: {alias} is ready with {rows:,} rows.")
                case stages.Ready():
                    return
                case Stop() as stop:
                    raise Stopped(stop)

    def _build(self, alias: str) -> stages.SeenReplica:
        """Claim an attempt, create its table, load it and compare it: then its rename is claimed.

        :returns: what the comparison has seen; the candidate's name is taken for free, and its owner would keep it.
        """
        slot, staging, record = self.slot, self.staging, self.slot.record
        artifact = record.artifact
        if artifact is None:
            raise ValueError("nothing is loaded before the artifact is bound")
        if stop := stages.no_place_left(record):
            raise Stopped(stop)
        stage = self._attempt(alias)
        self._intend(stage)
        before = record.stage_of(alias)
        slot.move(lambda now: stages.claimed(now, stage, now=self._now()))
        self._drop_followed(before)
        self._create(stage)
        self._created(stage)
        self.ports.log(f"{self.site.target}: loading {artifact.rows:,} rows into {alias}.")
        staging.load(self.plan, stage, artifact, target_key=record.target_key)
        if not self._holds_content(stage):
            raise Stopped(
                Stop(
                    Code.CONTENT_DIFFERS,
                    f"{self.site.target}: what {alias} stored is not what was sealed. Nothing was published.",
                    next_action="A type may not come back as it was stored, or a table function of the replica "
                    "differs: compare the tables that were kept. Clear the stage task to stage again.",
                    facts={"replica": alias},
                )
            )
        slot.move(lambda now: stages.verified(now, alias, now=self._now()))
        return stages.SeenReplica(stage.uuid, None)

    def _verify(self, alias: str) -> stages.SeenReplica | None:
        """Take over an attempt that an earlier try left, if it holds exactly the sealed content; ``None`` if not."""
        stage = self._of(alias)
        self.staging.settle(stage)
        if not self._holds_content(stage):
            self.ports.log(f"{self.site.target}: {stage.name} on {alias} is left behind; another is built.")
            return None
        self.slot.move(lambda now: stages.verified(now, alias, now=self._now()))
        return stages.SeenReplica(stage.uuid, None)

    def _holds_content(self, stage: ReplicaStage) -> bool:
        return self.staging.content(stage.name, stage.alias) == self.slot.record.content

    def _create(self, stage: ReplicaStage) -> None:
        record = self.slot.record
        self.created.append(stage)
        self.staging.create(
            self.plan, stage, authority_id=record.authority_id, operation_id=record.operation_id
        )

    def _created(self, stage: ReplicaStage) -> _Created:
        """Look at the table that was created, and compare it with the plan."""
        seen = self._observe_ours(stage.name)
        if stage.alias not in seen.replicas:
            require_all_read(seen)
        self.staging.check_created(self.plan, stage, stage.name, seen)
        table = seen.replicas[stage.alias].tables[stage.name]
        return _Created(table.engine_full, table.schema_digest)

    def _look(self, alias: str) -> stages.SeenReplica:
        stage = self._of(alias)
        seen = self._observe_ours(stage.name, self.slot.record.candidate)
        found = stages.see_replica(self.slot.record, alias, seen)
        if isinstance(found, Stop):
            raise Stopped(found)
        return found

    def _observe(self, *names: str) -> Observation:
        with self.looking:
            seen = self.ports.catalog.observe([self.site.target.table, *names])
            self.server_time = max(self.server_time, seen.server_time)
        return seen

    def _observe_ours(self, *names: str) -> Observation:
        """Look, and stop if the record shows that somebody else has the operation or the slot now.

        A look that shows nothing of it is no proof that they are ours still: every move is. Whoever was taken over
        only does nothing more in vain, such as reading the source.
        """
        seen = self._observe(*names)
        ours, found = self.slot.stored, seen.record
        # An older record is one that was read where ours does not show yet.
        if found is not None and found.version > ours.version and _taken_over(ours.record, found.record):
            raise Stopped(_taken(self.slot.record))
        return seen

    def _is_proven(self, alias: str) -> bool:
        """Tell whether a replica's table was proven to hold the content, by whichever try."""
        stage = self.slot.record.stage_of(alias)
        return stage is not None and stage.state is not StageState.CLAIMED

    def _of(self, alias: str) -> ReplicaStage:
        stage = self.slot.record.stage_of(alias)
        if stage is None:
            raise ValueError("an attempt is claimed before anything is done with it")
        return stage

    def _attempt(self, alias: str) -> ReplicaStage:
        with self.looking:
            attempt_id, uuid = self.ports.random.hex(64), self.ports.random.uuid()
        name = candidate_name(self.site.target.table, attempt_id)
        return ReplicaStage(alias, attempt_id, name, uuid, StageState.CLAIMED)

    def _intend(self, stage: ReplicaStage) -> None:
        """Write down that the table is about to be created. In the record it is claimed right after."""
        intent = CandidateIntent(stage.attempt_id, stage.name, stage.uuid, self.site.target.database)
        with self.slot.lock:
            self.ports.evidence.write(self.admitted.operation_id, intent)

    def _now(self) -> int:
        """Return the server's clock as the last look read it."""
        return max(self.slot.record.changed_at, self.server_time)

    # ---- the end

    def _prepare(self) -> StageReceipt:
        """Write ``PREPARED``, after a last look that shows every replica ready and nothing moved."""
        ports, slot, target = self.ports, self.slot, self.site.target
        record = slot.record
        seen = self._last_look()
        for alias in record.replicas:
            self._require_ready(alias, seen)
        prepared = stages.prepared(record, live_rows=seen.rows(target.table), now=seen.server_time)
        # What is sent must be recorded, whatever comes of it.
        transitions.require_room(prepared)
        ports.evidence.write(record.operation_id, staged(prepared))
        slot.move(lambda _: prepared)
        ports.log(f"{target}: prepared {record.content.rows:,} rows in {record.candidate} on every replica.")
        self.staging.sweep(None, target_key=record.target_key)
        return stage_receipt(slot.record, self.plan, self.staging.quoted(record.candidate), resumed=False)

    def _last_look(self) -> Observation:
        """Look whether the slot and the live tables are what they were when the target was locked.

        :raises Stopped: as :meth:`_require_unmoved`, and what admission raises.
        """
        doubted = False
        while True:
            try:
                seen, _ = observe_admitted(
                    self.ports, self.site, [self.site.target.table, self.slot.record.candidate], self.waits
                )
                self._require_unmoved(seen)
                require_target(self.site, seen)
            except Stopped as stopped:
                if doubted or not _answers_alike(stopped.stop):
                    raise
                # A replica that has just started may show its tables one after the other: look twice.
                doubted = True
                self.ports.clock.sleep(self.waits.poll_last)
            else:
                return seen

    def _require_ready(self, alias: str, seen: Observation) -> None:
        """Check that a replica's candidate is what publish will ask for.

        :raises Stopped: ``CANDIDATE_NOT_READY``: it is gone, and a retry builds another; ``CANDIDATE_DIFFERS``,
            ``CONTENT_DIFFERS``: it has the shared name, so no retry can replace it.
        """
        record, stage, name = self.slot.record, self._of(alias), self.slot.record.candidate
        table = seen.replicas[alias].tables.get(name)
        if table is None:
            raise Stopped(
                Stop(
                    Code.CANDIDATE_NOT_READY,
                    f"{self.site.target}: the candidate is gone on {alias}. Nothing was published.",
                    next_action="Find out who dropped it; a retry builds another one there.",
                    facts={"replica": alias},
                )
            )
        self.staging.check_created(self.plan, stage, name, seen)
        desired = record.desired
        if table.generation != Generation(stage.uuid, desired.engine_full, desired.schema_digest, "", ""):
            raise Stopped(
                Stop(
                    Code.CANDIDATE_DIFFERS,
                    f"{self.site.target}: {alias} defines the candidate otherwise than {record.replicas[0]} does. "
                    "Nothing was published.",
                    next_action="The replicas' releases or their <merge_tree> settings may differ: make them equal.",
                    facts={"replica": alias},
                )
            )
        if problem := incomplete(record, table):
            raise Stopped(
                Stop(
                    Code.CONTENT_DIFFERS,
                    f"{self.site.target}: somebody changed the candidate on {alias}: {problem}. Nothing was published.",
                    facts={"replica": alias},
                )
            )

    def _require_unmoved(self, seen: Observation) -> None:
        """Check that the slot and the live tables are what they were when the target was locked.

        :raises Stopped: ``TARGET_MOVED``, ``CAS_CONFLICT``, ``INVENTORY_DRIFT``.
        """
        stored, target = self.slot.stored, self.site.target
        found = seen.record
        if found is None or (found.write_id, found.version) != (stored.write_id, stored.version):
            raise Stopped(Stop(Code.CAS_CONFLICT, f"{target}: another worker changed the record first."))
        if stop := inventory_drift(stored.record, seen):
            raise Stopped(stop)
        if stop := live_moved(seen, target.table, stored.record.predecessor):
            raise Stopped(stop)

    def _give_up(self, stop: Stop) -> None:
        """Free the target: a retry would meet the same answer. The stop itself is what is reported.

        Tables that hold what they should not are kept for a day, where that leaves room: people may compare them.
        """
        slot, record = self.slot, self.slot.record
        differs = stop.code is Code.CONTENT_DIFFERS
        kept = transitions.KEEP_PARKED if differs and stages.may_keep(record) else 0
        try:
            write_down(self.ports, slot.stored, Abort(stop), None, None, None)
            slot.move(lambda now: transitions.aborted(now, now=self._now(), drop_after=self._now() + kept))
            if not kept:
                self._drop_attempts(record)
            finish_drops(self.ports, self.site, slot.stored, self._now(), self.waits)
        except Stopped as stopped:
            self.ports.log(f"{self.site.target}: not all could be given back now: {stopped.stop.message}")
            if slot.record.phase in STAGE_PHASES:
                self._leave(stopped.stop, retried=False)
        else:
            self.staging.sweep(None, target_key=record.target_key)
            self.ports.log(f"{self.site.target}: given up; the target is free, the live table is as it was.")


def _answers_alike(stop: Stop) -> bool:
    """Tell whether a retry would meet the same answer, so that nobody needs the target to stay locked."""
    return stop.category in ANSWERS_ALIKE


@dataclass(frozen=True, slots=True)
class _Created:
    engine_full: str
    schema_digest: str


def _taken_over(ours: AuthorityRecord, found: AuthorityRecord) -> bool:
    return (found.phase, found.fence_token) != (ours.phase, ours.fence_token)


def _taken(record: IndependentRecord) -> Stop:
    return Stop(
        Code.CAS_CONFLICT,
        f"{record.database}.{record.table}: another worker stages this operation, or the slot was taken over. This one "
        "has stopped.",
    )
