"""Planted bugs. Each is a mistake that a careful person could make; the oracle must catch every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from airflow_provider_dpone.clickhouse import authority
from airflow_provider_dpone.publication import classify, decide, decide_cleanup, transitions
from airflow_provider_dpone.publication import decide_resolve as resolve_step
from airflow_provider_dpone.publication import queue as queue_rules
from airflow_provider_dpone.publication import replica_stages as stages
from airflow_provider_dpone.publication.admission import Slot
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.identity import candidate_name
from airflow_provider_dpone.publication.queue import NotSeen, Running, Terminal, Unreadable
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Dispatch,
    HostReceipt,
    Phase,
    ReplicaStage,
    StageState,
    independent_generation,
)
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh import _cleanup as cleanup
from airflow_provider_dpone.routes.cluster_refresh import _common as common
from airflow_provider_dpone.routes.cluster_refresh import _evidence as evidence
from airflow_provider_dpone.routes.cluster_refresh import _publish as publish
from airflow_provider_dpone.routes.cluster_refresh import _resolve as resolve
from airflow_provider_dpone.routes.cluster_refresh import _stage as stage
from airflow_provider_dpone.routes.cluster_refresh import _stage_replicas as replicas
from airflow_provider_dpone.routes.ports import Claimed, Conflict, OutcomeUnknown
from tests.simulation import authority as replies
from tests.simulation import ports as sim
from tests.simulation import run
from tests.simulation.replica_staging import SimReplicaStaging

Mutant = Callable[[], Any]


@contextmanager
def catalogs_before_the_receipt() -> Iterator[None]:
    """Catalogs that were read before the terminal receipt count as if read after it."""
    real_decide, real_read = decide._after_dispatch, publish._Publication._read_queue
    real_judge = classify.judge

    def judge(record: Any, observation: Any, evidence: Any) -> Any:
        sequence = getattr(evidence, "sequence", 0)
        return real_judge(record, replace(observation, sequence=sequence + 1), evidence)

    def after(s: Any, record: Any) -> Any:
        if isinstance(s.queue, Terminal) and s.observation is not None:
            s = replace(s, observation=replace(s.observation, sequence=s.queue.sequence + 1))
        return real_decide(s, record)

    def read(self: Any) -> None:
        self._observe()
        early = self.observation
        real_read(self)
        self.observation = early

    with (
        mock.patch.object(decide, "_after_dispatch", after),
        mock.patch.object(decide, "judge", judge),
        mock.patch.object(publish._Publication, "_read_queue", read),
    ):
        yield


@contextmanager
def swap_again_after_a_timeout() -> Iterator[None]:
    """An entry that is not seen is taken as never sent: the swap is prepared and sent again."""
    real = decide._after_dispatch

    def after(s: Any, record: Any) -> Any:
        if isinstance(s.queue, NotSeen) and record.phase is Phase.DISPATCHING:
            return decide.Rearm()
        return real(s, record)

    with mock.patch.object(decide, "_after_dispatch", after):
        yield


@contextmanager
def trust_the_queue() -> Iterator[None]:
    """Success in the queue is taken as committed, without a look at the tables."""
    real = decide._after_dispatch

    def after(s: Any, record: Any) -> Any:
        if isinstance(s.queue, Terminal) and s.queue.succeeded:
            return decide.Commit(s.queue.entry, s.queue.query_digest, s.queue.receipt)
        return real(s, record)

    with mock.patch.object(decide, "_after_dispatch", after):
        yield


@contextmanager
def trust_a_successful_update() -> Iterator[None]:
    """An UPDATE that succeeded is taken as done, though it may have matched no row."""
    real = authority.judge

    def judge(expected: Any, written: Any, found: Any, version: Any) -> Any:
        verdict = real(expected, written, found, version)
        return (expected.version if expected else -1) + 1 if isinstance(verdict, Conflict) else verdict

    with mock.patch.object(authority, "judge", judge):
        yield


@contextmanager
def permit_from_read_back_alone() -> Iterator[None]:
    """A lost reply whose value is seen later is taken as an acknowledgement, and gives a permit."""

    def lost(expected: Any, written: Any, found: Any, version: Any) -> Any:
        same = found is not None and found.phase == written.phase == Phase.DISPATCHING
        return version if same else OutcomeUnknown("no answer")

    with mock.patch.object(replies, "lost", lost):
        yield


@contextmanager
def swallow_an_unknown_write() -> Iterator[None]:
    """Code 999 on a compare-and-swap is swallowed and taken as a plain conflict, so nothing is noted."""
    real = authority.judge

    def judge(expected: Any, written: Any, found: Any, version: Any) -> Any:
        verdict = real(expected, written, found, version)
        return Conflict() if isinstance(verdict, OutcomeUnknown) else verdict

    with (
        mock.patch.object(replies, "lost", return_value=Conflict()),
        mock.patch.object(authority, "judge", judge),
    ):
        yield


@contextmanager
def compare_names_instead_of_uuids() -> Iterator[None]:
    """A replica counts as committed when both names exist."""

    def state(record: Any, observation: Any, alias: str, *, exact: bool = True) -> Any:
        facts = observation.replicas.get(alias)
        if facts is None:
            return classify.ReplicaState.NOT_OBSERVED
        if record.phase is Phase.PREPARED:
            return real(record, observation, alias, exact=exact)
        return classify.ReplicaState.COMMITTED

    real = classify.replica_state
    with mock.patch.object(classify, "replica_state", state):
        yield


@contextmanager
def skip_an_unreachable_replica() -> Iterator[None]:
    """A replica that can't be read is left out of the verdict."""
    real = classify.judge

    def judge(record: Any, observation: Any, evidence: Any) -> Any:
        read = [alias for alias in record.replicas if alias in observation.replicas]
        servers = dict(zip(record.replicas, record.servers, strict=True))
        some = replace(record, replicas=tuple(read), servers=tuple(servers[a] for a in read))
        return real(some, observation, evidence)

    with mock.patch.object(decide, "judge", judge):
        yield


@contextmanager
def treat_a_pruned_entry_as_failed() -> Iterator[None]:
    """An entry that is gone is taken as failed: the operation goes back and is sent again."""
    real = decide._after_dispatch

    def after(s: Any, record: Any) -> Any:
        if isinstance(s.queue, NotSeen) and record.phase is Phase.BOUND:
            return decide.Abort(decide._not_seen(record))
        return real(s, record)

    def aborted(record: Any, *, now: int, drop_after: int | None = None) -> Any:
        return record.moved(
            phase=Phase.ABORTED, retained=transitions.kept(record, drop_after=now), changed_at=now
        )

    with (
        mock.patch.object(decide, "_after_dispatch", after),
        mock.patch.object(transitions, "aborted", aborted),
    ):
        yield


@contextmanager
def clean_up_by_name() -> Iterator[None]:
    """The predecessor's name is enough to drop it."""
    with mock.patch.object(decide_cleanup, "_unsafe_to_drop", return_value=None):
        yield


@contextmanager
def clean_up_before_the_proof() -> Iterator[None]:
    """Cleanup frees the slot as soon as a receipt is stored, committed or not."""
    real = decide_cleanup.decide_cleanup

    def early(s: Any) -> Any:
        record = s.stored.record
        if record.phase in (Phase.BOUND, Phase.TERMINAL):
            proven = record.moved(phase=Phase.COMMITTED, committed_at=s.now)
            return real(replace(s, stored=replace(s.stored, record=proven)))
        return real(s)

    def retaining(record: Any, *, drop_after: int, now: int) -> Any:
        return real_retaining(
            record.moved(phase=Phase.COMMITTED, committed_at=now), drop_after=drop_after, now=now
        )

    real_retaining = transitions.retaining
    with (
        mock.patch.object(AuthorityRecord, "published", property(lambda _: True)),
        mock.patch.object(cleanup, "decide_cleanup", early),
        mock.patch.object(transitions, "retaining", retaining),
    ):
        yield


@contextmanager
def a_loser_drops_with_an_unknown_record() -> Iterator[None]:
    """A stage whose PREPARED has an unknown outcome drops its candidate all the same."""
    real = stage._Stage.run

    def run(self: Any) -> Any:
        try:
            return real(self)
        except Stopped as stopped:
            if stopped.stop.code is Code.CAS_OUTCOME_UNKNOWN:
                self._discard()
            raise

    with mock.patch.object(stage._Stage, "run", run):
        yield


@contextmanager
def ignore_what_moved_while_staging() -> Iterator[None]:
    """PREPARED is written against whatever is there now, not against what staging started from."""
    real = stage._Stage._prepare

    def prepare(self: Any, seen: Any, loaded: Any, content: Any) -> Any:
        live = seen.generation(self.site.target.table)
        slot = Slot(seen.record, live, None)
        self.new = replace(self.new, slot=slot)
        return real(self, seen, loaded, content)

    with mock.patch.object(stage._Stage, "_prepare", prepare):
        yield


@contextmanager
def publish_without_the_content_check() -> Iterator[None]:
    """The candidate is not looked into before the swap."""
    with mock.patch.object(decide, "_content_differs", return_value=None):
        yield


@contextmanager
def note_unused_though_sent() -> Iterator[None]:
    """The word that a permit was not used is written after any failure, sent or not."""
    real = common.send_once

    def send(ports: Any, stored: Any, record: Any, dispatch: Any, statement: Any) -> Any:
        result = real(ports, stored, record, dispatch, statement)
        if result is not None:
            common._note_unused(ports, record, dispatch, result.write_id)
        return result

    with (
        mock.patch.object(publish, "send_once", send),
    ):
        yield


@contextmanager
def a_running_entry_with_all_tables_swapped_is_committed() -> Iterator[None]:
    """All replicas show the new data, so the entry need not be terminal."""
    real = decide._after_dispatch

    def after(s: Any, record: Any) -> Any:
        if isinstance(s.queue, Running) and s.observation is not None:
            states = {classify.replica_state(record, s.observation, alias) for alias in record.replicas}
            if states == {classify.ReplicaState.COMMITTED}:
                receipt = tuple(HostReceipt(alias, 0) for alias in record.replicas)
                return decide.Commit(s.queue.entry, s.queue.query_digest, receipt)
        return real(s, record)

    with mock.patch.object(decide, "_after_dispatch", after):
        yield


@contextmanager
def resolve_without_disarming() -> Iterator[None]:
    """An entry that is not seen and old data on every replica are taken as proof that nothing was published."""
    real = transitions.unpublished

    def sent(s: Any, record: Any) -> Any:
        if record.disarming or record.disarmed:
            return resolve_step._disarming(s, record)
        decided = real_sent(s, record)
        return resolve_step.CloseUnpublished() if isinstance(decided, resolve_step.Disarm) else decided

    def unpublished(record: Any, *, now: int) -> Any:
        return real(record.moved(phase=Phase.TERMINAL, disarm=Dispatch("", 0, "", "", ())), now=now)

    real_sent = resolve_step._sent
    with (
        mock.patch.object(resolve_step, "_sent", sent),
        mock.patch.object(transitions, "unpublished", unpublished),
    ):
        yield


@contextmanager
def judge_before_the_disarming_has_ended() -> Iterator[None]:
    """The RENAME was sent, and the tables are judged without waiting for its end."""
    real = resolve_step._disarming

    def disarming(s: Any, record: Any) -> Any:
        if s.sent and s.observation is not None:
            return resolve_step.StoreDisarmed("query-0", "", ())
        return decide.ReadCatalogs() if s.sent else real(s, record)

    with mock.patch.object(resolve_step, "_disarming", disarming):
        yield


@contextmanager
def disarm_by_drop() -> Iterator[None]:
    """The candidate is dropped to make the swap harmless, though the swap may have made it the predecessor."""
    with mock.patch.object(
        resolve, "_park", lambda record: Drop(record.cluster, record.database, record.candidate)
    ):
        yield


@contextmanager
def abandon_what_was_dispatched() -> Iterator[None]:
    """A claimed permit is taken as never used."""

    def aborted(record: Any, *, now: int, drop_after: int | None = None) -> Any:
        kept = transitions.kept(record, drop_after=now)
        return record.moved(phase=Phase.ABORTED, retained=kept, changed_at=now)

    def go(ports: Any, site: Any, request: Any, waits: Any) -> Any:
        return resolve.abandon(ports, site, request, waits)

    with (
        mock.patch.object(resolve, "not_abandonable", return_value=None),
        mock.patch.object(transitions, "aborted", aborted),
        mock.patch.object(run, "resolve", go),
    ):
        yield


@contextmanager
def take_the_newest_of_two_entries() -> Iterator[None]:
    """Of two queue entries with our token, the newest is ours."""
    real = queue_rules.read_queue

    def read(rows: Any, **known: Any) -> Any:
        newest = max((row.entry for row in rows), default=None)
        return real([row for row in rows if row.entry == newest], **known)

    with (
        mock.patch.object(queue_rules, "read_queue", read),
        mock.patch.object(common, "read_queue", read),
        mock.patch.object(cleanup, "read_queue", read),
    ):
        yield


@contextmanager
def treat_a_null_code_as_zero() -> Iterator[None]:
    """A finished row whose exception code is NULL counts as a success."""
    real = queue_rules.normalise

    def normalise(row: Any) -> Any:
        if row.status == "Finished" and row.exception_code is None:
            return real(replace(row, exception_code=0, exception_text=""))
        return real(row)

    with mock.patch.object(queue_rules, "normalise", normalise):
        yield


@contextmanager
def catalogs_of_an_unended_entry_count() -> Iterator[None]:
    """An entry that can't be read on every replica is judged by the tables, as if it had ended."""
    real = decide._after_dispatch

    def after(s: Any, record: Any) -> Any:
        if isinstance(s.queue, Unreadable):
            receipt = tuple(HostReceipt(alias, 0) for alias in record.replicas)
            s = replace(s, queue=Terminal(0, s.queue.entry, s.queue.query_digest, receipt))
        return real(s, record)

    with mock.patch.object(decide, "_after_dispatch", after):
        yield


@contextmanager
def trust_what_the_trigger_saw() -> Iterator[None]:
    """A successful outcome that a trigger hands over is taken as committed, without a look at the tables."""
    real = decide._after_dispatch

    def after(s: Any, record: Any) -> Any:
        if isinstance(s.queue, Terminal) and s.queue.sequence == 0 and s.queue.succeeded:
            return decide.Commit(s.queue.entry, s.queue.query_digest, s.queue.receipt)
        return real(s, record)

    with mock.patch.object(decide, "_after_dispatch", after):
        yield


@contextmanager
def move_on_before_evidence() -> Iterator[None]:
    """The intent of a compare-and-swap is written when its outcome is known."""
    real_intent, real_outcome = evidence.write_intent, evidence.note_outcome
    pending: dict[str, Any] = {}

    def intent(_: Any, __: Any, write_id: str, before: Any) -> None:
        pending[write_id] = before

    def outcome(ports: Any, record: Any, write_id: str, result: Any) -> None:
        # It stays: an exploration comes back to the same write on another branch.
        real_intent(ports, record, write_id, pending[write_id])
        real_outcome(ports, record, write_id, result)

    with (
        mock.patch.object(common, "write_intent", intent),
        mock.patch.object(stage, "write_intent", intent),
        mock.patch.object(common, "note_outcome", outcome),
        mock.patch.object(stage, "note_outcome", outcome),
    ):
        yield


@contextmanager
def commit_before_the_proof_is_written() -> Iterator[None]:
    """What every replica shows is written down after COMMITTED, with the other notes."""
    real = evidence.write_down

    def down(ports: Any, stored: Any, decided: Any, *more: Any) -> Any:
        return more[-1] if isinstance(decided, decide.Commit) else real(ports, stored, decided, *more)

    with mock.patch.object(publish, "write_down", down):
        yield


@contextmanager
def receipt_after_the_record_left_committed() -> Iterator[None]:
    """The target is freed first, and the proof of the publication is written then."""
    real_write, real_send = common.write, common.send_once

    def write(ports: Any, stored: Any, record: Any) -> Any:
        written = real_write(ports, stored, record)
        if stored.record.phase is Phase.COMMITTED:
            evidence.write_receipt(ports, stored)
        return written

    def send(ports: Any, stored: Any, *more: Any) -> Any:
        written = real_send(ports, stored, *more)
        if stored.record.phase is Phase.COMMITTED:
            evidence.write_receipt(ports, stored)
        return written

    with (
        # The publish task's own copy is only a note, which may be missing.
        mock.patch.object(publish, "note", return_value=False),
        mock.patch.object(cleanup, "write_receipt"),
        mock.patch.object(cleanup, "write", write),
        mock.patch.object(cleanup, "send_once", send),
    ):
        yield


@contextmanager
def prepare_before_the_content_is_written() -> Iterator[None]:
    """What was staged is written down after PREPARED."""
    real = stage._Stage._staged

    def staged(self: Any, loaded: Any, content: Any) -> Any:
        return replace(real(self, loaded, content), attempt="later")

    with mock.patch.object(stage._Stage, "_staged", staged):
        yield


@contextmanager
def look_again_between_permit_and_send() -> Iterator[None]:
    """One more look after the permit was claimed, to be on the safe side."""
    real = sim.Worker.claim

    def claim(self: Any, *arguments: Any) -> Any:
        result = real(self, *arguments)
        if isinstance(result, Claimed):
            self.observe([])
        return result

    with mock.patch.object(sim.Worker, "claim", claim):
        yield


# Independent replicas, each staged by itself.


@contextmanager
def append_to_an_ambiguous_attempt() -> Iterator[None]:
    """What an earlier try left is loaded again, instead of being left behind."""

    def verify(self: Any, alias: str) -> stages.SeenReplica:
        stage, artifact = self._of(alias), self.slot.record.artifact
        self.staging.settle(stage)
        if not self._holds_content(stage):
            self.staging.load(self.plan, stage, artifact, target_key=self.slot.record.target_key)
        self.slot.move(lambda now: stages.verified(now, alias, now=self._now()))
        return stages.SeenReplica(self._of(alias).uuid, None)

    with mock.patch.object(replicas._Stage, "_verify", verify):
        yield


@contextmanager
def read_the_source_before_the_lock() -> Iterator[None]:
    """The source is read first, so that the target is not held so long."""
    real = replicas._Stage._locked

    def locked(self: Any) -> Any:
        self.staging.extract(self.plan, self._attempt(self.admitted.observation.inventory.aliases[0]))
        return real(self)

    with mock.patch.object(replicas._Stage, "_locked", locked):
        yield


@contextmanager
def adopt_without_comparing_the_content() -> Iterator[None]:
    """The table that an earlier try left is taken for loaded: its name and UUID are right."""

    def verify(self: Any, alias: str) -> stages.SeenReplica:
        self.staging.settle(self._of(alias))
        self.slot.move(lambda now: stages.verified(now, alias, now=self._now()))
        return stages.SeenReplica(self._of(alias).uuid, None)

    with mock.patch.object(replicas._Stage, "_verify", verify):
        yield


@contextmanager
def trust_an_acknowledged_load() -> Iterator[None]:
    """A load that the server acknowledged is not compared with what was sealed."""
    real = replicas._Stage._holds_content

    def verify(self: Any, alias: str) -> Any:
        stage = self._of(alias)
        self.staging.settle(stage)
        if not real(self, stage):
            return None
        self.slot.move(lambda now: stages.verified(now, alias, now=self._now()))
        return stages.SeenReplica(stage.uuid, None)

    with (
        mock.patch.object(replicas._Stage, "_holds_content", return_value=True),
        mock.patch.object(replicas._Stage, "_verify", verify),
    ):
        yield


@contextmanager
def rename_before_it_is_claimed() -> Iterator[None]:
    """A table that was proven gets its name at once; the record follows."""
    real = replicas._Slot.move

    def move(self: Any, change: Any) -> None:
        changed = change(self.record)
        for alias in self.record.replicas:
            before, after = self.record.stage_of(alias), changed.stage_of(alias)
            verified = after is not None and after.state is StageState.VERIFIED
            if verified and before is not None and before.state is StageState.CLAIMED:
                staging_of[id(self.ports)].promote(before, self.record.candidate)
        real(self, change)

    staging_of: dict[int, Any] = {}
    real_run = replicas._Stage.run

    def run_stage(self: Any) -> Any:
        staging_of[id(self.ports)] = self.staging
        return real_run(self)

    with (
        mock.patch.object(replicas._Slot, "move", move),
        mock.patch.object(replicas._Stage, "run", run_stage),
    ):
        yield


@contextmanager
def use_private_names_again() -> Iterator[None]:
    """An attempt on a replica has the replica's name, whichever try it is of."""

    def attempt(self: Any, alias: str) -> Any:
        attempt_id = sha256_hex(f"{self.admitted.operation_id} {alias}")[:16]
        name = candidate_name(self.site.target.table, attempt_id)
        return ReplicaStage(alias, attempt_id, name, self.ports.random.uuid(), StageState.CLAIMED)

    with mock.patch.object(replicas._Stage, "_attempt", attempt):
        yield


@contextmanager
def ready_without_looking() -> Iterator[None]:
    """Once its rename was sent a replica is ready, and what is ready is not looked at again."""
    real_decide = stages.decide_replica
    real_build, real_verify = replicas._Stage._build, replicas._Stage._verify

    def decided(record: Any, alias: str, seen: Any) -> Any:
        stage = record.stage_of(alias)
        if stage is not None and stage.state is StageState.READY:
            return stages.Ready()
        return real_decide(record, alias, seen)

    def sent(self: Any, alias: str) -> Any:
        stage = self._of(alias)
        self.staging.promote(stage, self.slot.record.candidate)
        return stages.SeenReplica(None, stage.uuid)

    def build(self: Any, alias: str) -> Any:
        real_build(self, alias)
        return sent(self, alias)

    def verify(self: Any, alias: str) -> Any:
        return None if real_verify(self, alias) is None else sent(self, alias)

    with (
        mock.patch.object(stages, "decide_replica", decided),
        mock.patch.object(replicas._Stage, "_build", build),
        mock.patch.object(replicas._Stage, "_verify", verify),
        mock.patch.object(replicas._Stage, "_require_ready"),
    ):
        yield


@contextmanager
def prepare_with_a_replica_missing() -> Iterator[None]:
    """All replicas but the last one are enough; that one will follow."""
    real_load = replicas._Stage._load

    def load(self: Any) -> None:
        try:
            real_load(self)
        except Stopped:
            ready = [s for s in self.slot.record.stages if s.state is StageState.READY]
            if len(ready) < len(self.slot.record.replicas) - 1:
                raise

    def prepared(record: Any, *, live_rows: Any, now: int) -> Any:
        tables = {stage.alias: stage.uuid for stage in record.stages if stage.state is StageState.READY}
        before = record.desired
        held = independent_generation(before.engine_full, before.schema_digest, tables)
        return record.moved(
            phase=Phase.PREPARED, desired=held, stages=(), live_rows=live_rows, prepared_at=now
        )

    with (
        mock.patch.object(replicas._Stage, "_load", load),
        mock.patch.object(stages, "prepared", prepared),
        mock.patch.object(replicas, "incomplete", return_value=None),
        mock.patch.object(SimReplicaStaging, "check_created"),
    ):
        yield


@contextmanager
def move_whatever_the_record_is_now() -> Iterator[None]:
    """A worker whose write is refused reads the record again and moves it on from there: the operation is the same."""
    real = replicas._Slot.move

    def move(self: Any, change: Any) -> None:
        try:
            real(self, change)
        except Stopped as stopped:
            if stopped.stop.code is not Code.CAS_CONFLICT:
                raise
            again(self, change)

    def again(self: Any, change: Any) -> None:
        found = self.ports.catalog.observe([self.record.table]).record
        if found is not None and found.record.operation_id == self.record.operation_id:
            self.stored = found
        try:
            real(self, change)
        except ValueError:
            # Its own move does not fit any more.
            raise Stopped(Stop(Code.CAS_CONFLICT, "another worker was faster")) from None

    with mock.patch.object(replicas._Slot, "move", move):
        yield


@contextmanager
def go_on_when_taken_over() -> Iterator[None]:
    """Only a write tells a worker that the operation is another's: until then it goes on, and reads the source."""
    with mock.patch.object(replicas, "_taken_over", return_value=False):
        yield


@contextmanager
def drop_the_attempt_when_its_load_failed() -> Iterator[None]:
    """An attempt that stopped is dropped at once, whether or not its load has ended."""
    real = replicas._Stage._build

    def build(self: Any, alias: str) -> Any:
        try:
            return real(self, alias)
        except Stopped:
            if (stage := self.slot.record.stage_of(alias)) is not None:
                self.staging.drop(stage)
            raise

    with mock.patch.object(replicas._Stage, "_build", build):
        yield


@contextmanager
def load_the_newest_artifact() -> Iterator[None]:
    """A replica is loaded with whatever was sealed last for the target."""
    real = SimReplicaStaging.load

    def load(self: Any, plan: Any, stage: Any, artifact: Any, *, target_key: str) -> None:
        sha256, newest = list(self.world.artifacts.items())[-1] if self.world.artifacts else ("", None)
        if newest is not None:
            artifact = replace(artifact, sha256=sha256, rows=newest.rows, bytes=newest.rows)
        real(self, plan, stage, artifact, target_key=target_key)

    with (
        mock.patch.object(SimReplicaStaging, "load", load),
        mock.patch.object(SimReplicaStaging, "sweep"),
    ):
        yield


@contextmanager
def bind_without_comparing_the_live_tables() -> Iterator[None]:
    """One replica's live table stands for all: they were equal once."""

    def baseline(self: Any) -> Any:
        if self.slot.record.predecessor is None:
            return None
        return self.staging.content(self.slot.record.table, self.slot.record.replicas[-1])

    with mock.patch.object(replicas._Stage, "_baseline", baseline):
        yield


@contextmanager
def leave_a_proven_attempt_behind() -> Iterator[None]:
    """A retry builds anew what an earlier try had proven, though the rename of that may be on its way."""
    real = replicas._Stage._replica

    def replica(self: Any, alias: str) -> None:
        stage = self.slot.record.stage_of(alias)
        if stage is not None and stage.state is StageState.VERIFIED:
            self._build(alias)
        real(self, alias)

    with mock.patch.object(replicas._Stage, "_replica", replica):
        yield


@contextmanager
def forget_what_an_attempt_left() -> Iterator[None]:
    """Another attempt takes the place of an earlier one, which is not listed."""
    with mock.patch.object(stages, "_left_behind", lambda record, stage, now: record.retained):
        yield


@contextmanager
def take_a_name_for_the_proven_table() -> Iterator[None]:
    """Whatever has the candidate's name is the candidate."""
    real = stages.decide_replica

    def decided(record: Any, alias: str, seen: Any) -> Any:
        stage = record.stage_of(alias)
        if stage is not None and seen is not None and seen.candidate is not None:
            return stages.Ready() if stage.state is StageState.READY else stages.MarkReady()
        return real(record, alias, seen)

    def left_behind(self: Any, alias: str) -> None:
        stage = self.slot.record.stage_of(alias)
        if stage is not None and stage.state is StageState.VERIFIED:
            self._build(alias)
        real_replica(self, alias)

    real_replica = replicas._Stage._replica
    with (
        mock.patch.object(stages, "decide_replica", decided),
        mock.patch.object(replicas._Stage, "_replica", left_behind),
    ):
        yield


UNSEEN_BY_SIMULATION = frozenset(
    {
        "take_the_newest_of_two_entries",
        "treat_a_null_code_as_zero",
        "catalogs_of_an_unended_entry_count",
    }
)
"""Planted bugs that other layers catch. Two entries end in order, so the tables tell the truth after the newest;
and a row of the simulated queue can always be read."""

TRAIL_MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        move_on_before_evidence,
        commit_before_the_proof_is_written,
        receipt_after_the_record_left_committed,
        prepare_before_the_content_is_written,
        look_again_between_permit_and_send,
    )
}
"""Bugs that only the trail shows."""

STAGING_MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        append_to_an_ambiguous_attempt,
        read_the_source_before_the_lock,
        adopt_without_comparing_the_content,
        trust_an_acknowledged_load,
        rename_before_it_is_claimed,
        use_private_names_again,
        ready_without_looking,
        prepare_with_a_replica_missing,
        move_whatever_the_record_is_now,
        go_on_when_taken_over,
        drop_the_attempt_when_its_load_failed,
        load_the_newest_artifact,
        bind_without_comparing_the_live_tables,
        leave_a_proven_attempt_behind,
        forget_what_an_attempt_left,
        take_a_name_for_the_proven_table,
    )
}
"""Bugs of the staging of independent replicas."""

MUTANTS: Mapping[str, Mutant] = (
    TRAIL_MUTANTS
    | STAGING_MUTANTS
    | {
        mutant.__name__: mutant
        for mutant in (
            catalogs_before_the_receipt,
            swap_again_after_a_timeout,
            trust_the_queue,
            trust_a_successful_update,
            permit_from_read_back_alone,
            swallow_an_unknown_write,
            compare_names_instead_of_uuids,
            skip_an_unreachable_replica,
            treat_a_pruned_entry_as_failed,
            clean_up_by_name,
            clean_up_before_the_proof,
            a_loser_drops_with_an_unknown_record,
            ignore_what_moved_while_staging,
            publish_without_the_content_check,
            note_unused_though_sent,
            a_running_entry_with_all_tables_swapped_is_committed,
            resolve_without_disarming,
            judge_before_the_disarming_has_ended,
            disarm_by_drop,
            abandon_what_was_dispatched,
            take_the_newest_of_two_entries,
            treat_a_null_code_as_zero,
            catalogs_of_an_unended_entry_count,
            trust_what_the_trigger_saw,
        )
    }
)
