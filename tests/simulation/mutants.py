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
from airflow_provider_dpone.publication.admission import Slot
from airflow_provider_dpone.publication.queue import NotSeen, Running, Terminal, Unreadable
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Dispatch,
    HostReceipt,
    Phase,
)
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import _cleanup as cleanup
from airflow_provider_dpone.routes.cluster_refresh import _common as common
from airflow_provider_dpone.routes.cluster_refresh import _evidence as evidence
from airflow_provider_dpone.routes.cluster_refresh import _publish as publish
from airflow_provider_dpone.routes.cluster_refresh import _resolve as resolve
from airflow_provider_dpone.routes.cluster_refresh import _stage as stage
from airflow_provider_dpone.routes.ports import Claimed, Conflict, OutcomeUnknown
from tests.simulation import authority as replies
from tests.simulation import ports as sim
from tests.simulation import run

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

    def aborted(record: Any, *, now: int) -> Any:
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

    def aborted(record: Any, *, now: int) -> Any:
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

MUTANTS: Mapping[str, Mutant] = TRAIL_MUTANTS | {
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
