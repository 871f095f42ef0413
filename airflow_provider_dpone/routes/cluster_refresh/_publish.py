"""Publish: one statement, bound to its queue entry, proven on every replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from airflow_provider_dpone.publication import decide as step
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.admission import busy
from airflow_provider_dpone.publication.decide import (
    ContentCheck,
    Guards,
    Situation,
    decide_publication,
    not_dispatchable,
)
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.queue import (
    NotSeen,
    QueueState,
    Terminal,
)
from airflow_provider_dpone.publication.receipt import (
    PublicationReceipt,
    SettledReceipt,
    publication_receipt,
    stale_dictionaries,
)
from airflow_provider_dpone.publication.record import (
    AuthorityRecord,
    Dispatch,
    Phase,
    StoredRecord,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Classification, PublishAsked, StoredReceipt
from airflow_provider_dpone.publication.watch import SeenOutcome
from airflow_provider_dpone.routes.cluster_refresh._cleanup import finish_drops
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Pause,
    Site,
    Waits,
    answer_settled,
    dependents,
    observe_admitted,
    read_dispatch,
    require_kept_record,
    require_record,
    require_target,
    send_once,
    swap,
    write,
)
from airflow_provider_dpone.routes.cluster_refresh._evidence import note, write_down
from airflow_provider_dpone.routes.ports import (
    Ports,
)


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What a publish task asks for.

    :ivar candidate_uuid: of the candidate that was staged, and that checks in between have seen.
    :ivar patience: how long to wait in this call for the replicas, in seconds; ``Waits.publish`` at most.
    :ivar hand_over_after: after how many seconds of waiting somebody else may wait (:class:`HandedOver`);
        ``None``: never.
    :ivar outcome: what was read about the queue entry while no worker waited. It counts only where the queue
        doesn't show the entry any more.
    :ivar asker: names the publish task over its retries and deferrals (``TaskIdentity.digest``). If a call of the
        same asker found the operation unproven, the answer is no replay, whoever recorded the proof meanwhile.
        ``None``: this call alone counts.
    """

    operation_id: str
    guards: Guards = field(default_factory=Guards)
    patience: float | None = None
    candidate_uuid: str | None = None
    hand_over_after: float | None = None
    outcome: SeenOutcome | None = None
    asker: str | None = None


class HandedOver(Stopped):
    """Not proven yet, but the queue entry is bound in the record: waiting needs no worker.

    :ivar record: the record as it stands.
    :ivar left: for how many seconds it may be waited on.
    """

    def __init__(self, stop: Stop, record: AuthorityRecord, left: float) -> None:
        super().__init__(stop)
        self.record = record
        self.left = left


def publish(
    ports: Ports, site: Site, request: PublishRequest, waits: Waits
) -> PublicationReceipt | SettledReceipt:
    """Make the prepared candidate live, once, and prove it on every replica.

    :raises Stopped: not proven. ``IN_PROGRESS`` and ``NOT_OBSERVED`` mean that waiting longer may prove
        it; nothing is ever sent again.
    :raises HandedOver: as asked for by ``request.hand_over_after``; another call goes on later.
    """
    observation = ports.catalog.observe([site.target.table])
    stored = require_record(observation, site)
    record = stored.record
    replayed = _is_replay(ports, request, record)
    if record.operation_id != request.operation_id:
        return answer_settled(record, request.operation_id, replayed=replayed)
    if record.phase is Phase.PREPARED:
        # Once a statement was sent, a replica that is away is waited for, not refused.
        observation, _ = observe_admitted(ports, site, [site.target.table], waits, seen=observation)
        require_target(site, observation)
        stored = require_record(observation, site)
    return _Publication(ports, site, request, waits, stored, observation.sequence, replayed=replayed).run()


def _is_replay(ports: Ports, request: PublishRequest, record: AuthorityRecord) -> bool:
    """Tell whether the operation was over when this task, in whichever try, asked for the first time.

    A try that finds it unproven says so in the evidence before it goes on, since it may be killed once the
    statement is sent. What the next try answers is then news to whoever waits for it.

    :raises Stopped: ``EVIDENCE_UNAVAILABLE``.
    """
    over = record.operation_id != request.operation_id or record.published
    if request.asker is None:
        return over
    if over:
        return not ports.evidence.asked(request.operation_id, request.asker)
    ports.evidence.write(request.operation_id, PublishAsked(request.asker))
    return False


def _waits_without_worker(record: AuthorityRecord) -> bool:
    """Tell whether the queue entry is bound and the proof is missing.

    A swap that an operator made harmless may have ended without any entry.
    """
    publication = record.publication
    bound = publication is not None and publication.entry is not None
    return bound and record.phase in (Phase.BOUND, Phase.TERMINAL)


def settle(ports: Ports, site: Site, stored: StoredRecord, read_at: int, waits: Waits) -> Stop | None:
    """Prove a dispatched operation whose own task may be gone, by observation only.

    Whoever sees the proof may record it; a target is not held by a task that no longer exists.

    :returns: why the operation holds the target still; ``None`` if its record moved on.
    :raises Stopped: it could not be found out now; a retry may.
    """
    request = PublishRequest(stored.record.operation_id, patience=0)
    publication = _Publication(ports, site, request, waits, stored, read_at, observe_only=True, warned=True)
    try:
        publication.run()
    except Stopped as stopped:
        now = publication.stored.record
        if publication.stored != stored and (now.ended or now.phase is Phase.PREPARED):
            return None
        if stopped.stop.category is Category.RETRYABLE or stopped.stop.code is Code.AUTHORITY_UNAVAILABLE:
            raise
        return stopped.stop
    return None


@dataclass(slots=True)
class _Publication:
    """The loop of one publish call: decide, do, observe again."""

    ports: Ports
    site: Site
    request: PublishRequest
    waits: Waits
    stored: StoredRecord
    read_at: int
    content: ContentCheck | None = None
    observation: Observation | None = None
    queue: QueueState | None = None
    permit_unused: bool = False
    replayed: bool = False
    observe_only: bool = False
    doubted: bool = False
    warned: bool = False
    giving_up: Stop | None = None
    """Why this call gave the operation up, or tried to."""
    stale_dictionaries: tuple[str, ...] | None = None
    unknown_pause: Pause | None = None
    """How long a move whose outcome is unknown is looked at again; each move anew."""
    written: Classification | None = None
    """The classification that this call wrote down last."""

    def run(self) -> PublicationReceipt | SettledReceipt:
        ports = self.ports
        wanted = self.request.patience
        patience = self.waits.publish if wanted is None else min(wanted, self.waits.publish)
        dispatch_pause: Pause | None = None
        outcome_pause = Pause(ports, patience, self.waits)
        hand_over_pause = self._hand_over_pause(patience)
        said = ""
        while True:
            record = self.stored.record
            if record.operation_id != self.request.operation_id:
                # Somebody else proved and ended this operation, and a later one has the slot.
                return answer_settled(record, self.request.operation_id, replayed=self.replayed)
            if self.request.candidate_uuid not in (None, record.desired.uuid):
                raise Stopped(
                    Stop(
                        Code.SUPERSEDED,
                        f"{self.site.target}: another try of the stage task staged anew after this task got its "
                        "receipt, so what was checked in between is not what would go live.",
                        next_action="Clear the tasks behind the stage task, so that they see its present output.",
                    )
                )
            decided = decide_publication(
                Situation(
                    operation_id=self.request.operation_id,
                    stored=self.stored,
                    read_at=self.read_at,
                    guards=self.request.guards,
                    content=self.content,
                    observation=self.observation,
                    queue=self.queue,
                    permit_unused=self.permit_unused,
                )
            )
            if self.observe_only and isinstance(decided, step.VerifyContent | step.Abort):
                raise Stopped(busy(record))
            if isinstance(decided, step.VerifyContent | step.ReadCatalogs | step.ReadQueue):
                if (failed := self._read(decided)) is None:
                    continue
                decided = step.Wait(failed)
            self.written = write_down(ports, self.stored, decided, self.observation, self.queue, self.written)
            match decided:
                case step.DispatchSwap():
                    self._dispatch()
                    outcome_pause = Pause(ports, patience, self.waits)
                    hand_over_pause = self._hand_over_pause(patience)
                case step.Rearm():
                    ports.log("The last try provably sent nothing; the dispatch is prepared again.")
                    self._move(transitions.rearmed(record, now=self._now()))
                case step.Bind(entry, query_digest):
                    ports.log(f"{self.site.target}: queue entry {entry} is ours.")
                    self._move(
                        transitions.bound(record, entry=entry, query_digest=query_digest, now=self._now())
                    )
                case step.StoreReceipt(entry, query_digest, receipt):
                    self._move(
                        transitions.terminal(
                            record, entry=entry, query_digest=query_digest, receipt=receipt, now=self._now()
                        )
                    )
                case step.Commit(entry, query_digest, receipt):
                    moved = transitions.committed(
                        record, entry=entry, query_digest=query_digest, receipt=receipt, now=self._now()
                    )
                    if self._move(moved):
                        ports.log(f"{self.site.target}: committed on {', '.join(record.replicas)}.")
                        # With what this look warns of; whoever moves the record on writes its own before.
                        note(ports, record.operation_id, StoredReceipt(self.stored.version, self._receipt()))
                case step.Wait(stop):
                    pause = outcome_pause
                    if record.phase is Phase.PREPARED:
                        pause = dispatch_pause = dispatch_pause or Pause(ports, self.waits.ready, self.waits)
                    elif _waits_without_worker(record) and hand_over_pause is not None:
                        pause = hand_over_pause
                    if stop.message != said:
                        said = stop.message
                        ports.log(stop.message)
                    if pause.over():
                        if pause is hand_over_pause and (left := outcome_pause.left) > 0:
                            raise HandedOver(stop, record, left)
                        raise Stopped(stop)
                    self.observation, self.queue = None, None
                    if record.phase is Phase.PREPARED:
                        self.content = None
                    else:
                        # The queue alone would not tell that somebody ended this operation meanwhile.
                        self._read(step.ReadCatalogs())
                case step.Abort() if not self.doubted:
                    # A replica that has just started may show its tables one after the other: look twice.
                    self.doubted = True
                    ports.clock.sleep(self.waits.poll_last)
                    self.content, self.observation = None, None
                case step.Abort(stop):
                    self.giving_up = stop
                    if self._move(transitions.aborted(record, now=self._now())):
                        finish_drops(ports, self.site, self.stored, self._now(), self.waits)
                        raise Stopped(stop)
                case step.Hold() if self.giving_up is not None and record.phase is Phase.ABORTED:
                    # Our own write, whose reply was lost, or that of another worker who saw the same.
                    raise Stopped(self.giving_up)
                case step.Hold(stop):
                    raise Stopped(stop)
                case step.Done() if self.observation is None and not (self.replayed or self.warned):
                    # Another worker recorded the proof, or we did and the reply was lost: look what to warn of.
                    self.warned = True
                    try:
                        self._observe()
                    except Stopped as stopped:
                        ports.log(f"What the receipt should warn of is not known: {stopped.stop.message}")
                case step.Done():
                    return self._receipt()
                case _:
                    assert_never(decided)

    def _hand_over_pause(self, patience: float) -> Pause | None:
        after = self.request.hand_over_after
        return None if after is None else Pause(self.ports, min(after, patience), self.waits)

    def _read(self, wanted: step.VerifyContent | step.ReadCatalogs | step.ReadQueue) -> Stop | None:
        """Read what the decision needs. Once a statement was sent, a read that fails is waited for."""
        record = self.stored.record
        try:
            match wanted:
                case step.VerifyContent():
                    self.ports.log(f"{self.site.target}: checking the content on every replica.")
                    self.content = self.ports.catalog.content(record.candidate)
                case step.ReadCatalogs():
                    self._observe()
                case step.ReadQueue():
                    self._read_queue()
        except Stopped as stopped:
            if stopped.stop.code is Code.CANDIDATE_DIFFERS:
                if self._moved():
                    # The candidate's name is gone because another worker made it live.
                    return None
                raise Stopped(self._seen_as(stopped.stop)) from None
            if record.phase is Phase.PREPARED or not stopped.stop.passing:
                raise
            return stopped.stop
        return None

    def _seen_as(self, stop: Stop) -> Stop:
        """Return the same reason as the look that was just taken shows it, naming the replica."""
        seen = not_dispatchable(self.stored, self.observation) if self.observation else None
        return seen if seen is not None and seen.code is stop.code else stop

    def _moved(self) -> bool:
        """Look again; tell whether another worker went on with the record."""
        before = self.stored
        self._observe()
        return self.stored != before

    def _now(self) -> int:
        return self.observation.server_time if self.observation else self.stored.record.changed_at

    def _observe(self) -> None:
        record = self.stored.record
        seen = self.ports.catalog.observe([record.table, record.candidate])
        found = require_kept_record(seen, self.site)
        if found.version > self.stored.version or (
            found.version == self.stored.version and found.write_id != self.stored.write_id
        ):
            # Another worker went on with this record: start from what it wrote.
            self._adopt(found, seen.sequence)
        else:
            self.observation = seen

    def _adopt(self, stored: StoredRecord, sequence: int) -> None:
        self.stored, self.read_at = stored, sequence
        # What was read of another candidate, or before another worker's step, is thrown away.
        self.content, self.observation, self.queue, self.permit_unused = None, None, None, False

    def _read_queue(self) -> None:
        record = self.stored.record
        dispatch = record.publication
        if dispatch is None:
            raise ValueError("a dispatched record has a dispatch")
        self.queue = read_dispatch(
            self.ports.queue, self.ports.catalog.inventory, record, dispatch, swap(record)
        )
        not_seen = isinstance(self.queue, NotSeen)
        if not_seen and (known := self._known_outcome(dispatch)) is not None:
            self.ports.log(f"Queue entry {known.entry} is gone; its outcome was read before that.")
            self.queue = known
        self.permit_unused = (
            record.phase is Phase.DISPATCHING
            and not_seen
            and self.ports.evidence.permit_unused(record.operation_id, dispatch.epoch, self.stored.write_id)
        )

    def _known_outcome(self, dispatch: Dispatch) -> Terminal | None:
        """Return what was read while the queue still remembered: the only outcome that there is, then."""
        outcome = self.request.outcome
        return None if outcome is None else outcome.terminal(dispatch, self.stored.record.replicas)

    def _move(self, record: AuthorityRecord) -> bool:
        """Store a move that needs no permit; ``False`` if another worker wrote first. Go on from what is stored.

        Where it is unknown what became of the write, it is looked at again, as a retry of the task would: two who
        prove the same thing at the same moment may both be refused by Keeper. Nothing is sent on the strength of it.
        """
        try:
            stored = write(self.ports, self.stored, record)
        except Stopped as stopped:
            if stopped.stop.code is not Code.CAS_OUTCOME_UNKNOWN:
                raise
            if self.unknown_pause is None:
                self.unknown_pause = Pause(self.ports, self.waits.visible, self.waits)
            if self.unknown_pause.over():
                raise
            self.ports.log(f"Looking again. {stopped.stop.message}")
            before = self.stored
            # The wait has made all that was read old; a swap is never sent on the strength of it.
            self.content, self.observation, self.queue = None, None, None
            self._read(step.ReadCatalogs())
            if self.stored != before:
                self.unknown_pause = None
            return False
        if stored is None:
            self._observe_moved()
            return False
        # What was read before is still true of the cluster; only the record moved, by our own hand.
        self.stored, self.unknown_pause = stored, None
        return True

    def _observe_moved(self) -> None:
        """Another worker wrote first: read what it wrote, and decide anew.

        :raises Stopped: ``CAS_CONFLICT``: its write is not visible within the bound.
        """
        before = self.stored
        pause = Pause(self.ports, self.waits.visible, self.waits)
        while self.stored == before:
            self.observation, self.queue = None, None
            self._observe()
            if self.stored == before and pause.over():
                raise Stopped(
                    Stop(Code.CAS_CONFLICT, f"{self.site.target}: another worker changed the record first.")
                )

    def _dispatch(self) -> None:
        before = self.stored.record
        record = transitions.dispatching(
            before,
            nonce=self.ports.random.hex(128),
            now=self._now(),
            live_rows=self.observation.rows(before.table) if self.observation else None,
        )
        self.ports.log(
            f"{self.site.target}: sending one "
            f"{'RENAME' if before.predecessor is None else 'EXCHANGE'} to the cluster (epoch "
            f"{record.dispatch_epoch})."
        )
        stored = send_once(self.ports, self.stored, record, record.publication, swap(record))
        if stored is None:
            self._observe_moved()
            return
        self.stored = stored
        self.observation, self.queue = None, None

    def _receipt(self) -> PublicationReceipt:
        return publication_receipt(self.stored.record, replayed=self.replayed, warnings=self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        if self.observation is None:
            return ()
        record = self.stored.record
        now = set(dependents(self.observation))
        lost = sorted(set(record.dependents) - now)
        return (
            *(f"{name} depended on the target before the swap and is not seen to now" for name in lost),
            *self._stale_dictionaries(self.observation),
        )

    def _stale_dictionaries(self, seen: Observation) -> tuple[str, ...]:
        """Which dictionaries are not known to show the new rows, and where. Each replica loads its own."""
        if not (dictionaries := [one for one in seen.dependents if one.engine == "Dictionary"]):
            return ()
        if self.stale_dictionaries is None:
            try:
                loads = self.ports.catalog.dictionary_loads(dictionaries)
            except Stopped as stopped:
                self.ports.log(f"When dictionaries were loaded is not known: {stopped.stop.message}")
                loads = {}
            self.stale_dictionaries = stale_dictionaries(self.stored.record, dictionaries, loads)
        return self.stale_dictionaries
