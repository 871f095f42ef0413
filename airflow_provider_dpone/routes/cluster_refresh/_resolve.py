"""Resolve and abandon: what an operator may end, by fresh evidence and with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from airflow_provider_dpone.publication import decide_resolve as step
from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.decide import (
    Commit,
    Hold,
    ReadCatalogs,
    ReadQueue,
    StoreReceipt,
    Wait,
)
from airflow_provider_dpone.publication.decide_resolve import (
    Resolution,
    decide_resolution,
    not_abandonable,
)
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.queue import QueueState
from airflow_provider_dpone.publication.receipt import publication_receipt
from airflow_provider_dpone.publication.record import (
    UNSENT_PHASES,
    AuthorityRecord,
    Dispatch,
    IndependentRecord,
    Phase,
    StoredRecord,
)
from airflow_provider_dpone.publication.retire import already_retired, not_retirable, without
from airflow_provider_dpone.publication.statement import Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Classification, OperatorAction, StoredReceipt
from airflow_provider_dpone.publication.words import joined
from airflow_provider_dpone.routes.cluster_refresh._cleanup import finish_drops
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Pause,
    Site,
    Waits,
    observe_admitted,
    read_dispatch,
    require_record,
    send_once,
    swap,
    write,
)
from airflow_provider_dpone.routes.cluster_refresh._evidence import note, write_down
from airflow_provider_dpone.routes.ports import Evidence, Ports

MAX_REASON = 500
"""Longest reason of an operator, in characters."""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """What an operator asks for.

    :ivar reason: why, for those who read the evidence later.
    :ivar operation: the beginning of the operation's id that is meant; ``None``: whichever holds the target.
    :ivar retire: admitted replicas that are gone for ever, by their aliases at admission (``s1/r2``).
    :raises ValueError: no reason, or one that is too long.
    """

    reason: str
    operation: str | None = None
    retire: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.reason.strip() or len(self.reason) > MAX_REASON:
            raise ValueError(f"a reason has 1 to {MAX_REASON} characters")


@dataclass(frozen=True, slots=True)
class Ended:
    """How an operation stands after an operator's command.

    :ivar changed: the command changed the record; ``False`` if there was nothing to do.
    :ivar kept: the table that holds the data that did not go live, if there is one; several where replicas were
        being staged by themselves.
    :ivar retired: replicas that the operation was admitted with and ended without.
    :ivar sealed: rows of its source were sealed, and may be in the artifact folder still. Nothing needs them, and the
        next stage task of the target removes them: only whoever holds the target may, or it would take away what that
        one seals.
    """

    operation_id: str
    phase: Phase
    changed: bool
    kept: str | None
    retired: tuple[str, ...] = ()
    sealed: bool = False


def abandon(ports: Ports, site: Site, request: OperatorRequest, waits: Waits) -> Ended:
    """Give an operation up that was never sent, so that the target is free, and drop its tables where that is safe.

    A stage task that still runs finds the record moved, and has nothing more to write.

    :raises Stopped: ``NOT_RESOLVABLE``: it was dispatched, or has ended; ``CAS_CONFLICT``: somebody was faster.
    """
    observation, _ = observe_admitted(ports, site, [site.target.table], waits)
    stored = require_record(observation, site)
    require_operation(stored.record, request)
    if stop := not_abandonable(stored.record):
        raise Stopped(stop)
    audit(ports, stored, request, "abandon")
    written = write(ports, stored, transitions.aborted(stored.record, now=observation.server_time))
    if written is None:
        raise Stopped(Stop(Code.CAS_CONFLICT, f"{site.target}: another worker changed the record first."))
    ports.log(f"{site.target}: the operation was given up; the target is free.")
    finish_drops(ports, site, written, observation.server_time, waits)
    # As they were before: what is given up does not say any more which tables it has.
    left = [name for name, _ in stored.record.left()]
    seen = ports.catalog.observe(left or [site.target.table])
    kept = joined(name for name in left if seen.table(name) is not None)
    return Ended(
        written.record.operation_id,
        written.record.phase,
        changed=True,
        kept=kept or None,
        sealed=isinstance(stored.record, IndependentRecord) and stored.record.artifact is not None,
    )


def resolve(ports: Ports, site: Site, request: OperatorRequest, waits: Waits) -> Ended:
    """End an operation whose statement was sent, as published or as not published, whichever is proven.

    Interrupted anywhere, it goes on where it stopped when it is run again.

    :raises Stopped: neither is proven. Nothing was closed.
    """
    observation, _ = observe_admitted(ports, site, [site.target.table], waits)
    stored = require_record(observation, site)
    require_operation(stored.record, request)
    changed = False
    if request.retire and not _settled_already(stored.record):
        changed, stored, read_at = _retire(ports, site, request, stored, observation)
    else:
        read_at = observation.sequence
    return _Resolve(ports, site, request, waits, stored, read_at, changed=changed).run()


def _settled_already(record: AuthorityRecord) -> bool:
    return record.ended or record.published or record.phase in UNSENT_PHASES


def _retire(
    ports: Ports, site: Site, request: OperatorRequest, stored: StoredRecord, observation: Observation
) -> tuple[bool, StoredRecord, int]:
    """Leave replicas out that are gone for ever, by one compare-and-swap, where the others prove all that it takes.

    :returns: whether the record was changed, the record, and the order of the read that showed it.
    :raises Stopped: the condition that is missing; nothing was changed.
    """
    record = stored.record
    if already_retired(record, observation, request.retire):
        return False, stored, observation.sequence
    left = without(record, observation, request.retire)
    if isinstance(left, Stop):
        raise Stopped(left)
    dispatch, statement = _statement(left)
    queue = None
    if dispatch.receipt is None:
        queue = read_dispatch(ports.queue, ports.catalog.inventory, left, dispatch, statement)
    seen = ports.catalog.observe([record.table, record.candidate, parked_name(record.candidate)])
    left = without(record, seen, request.retire)
    if isinstance(left, Stop):
        raise Stopped(left)
    if stop := not_retirable(stored, left, seen, queue):
        raise Stopped(stop)
    audit(ports, stored, request, "resolve", f"retire {', '.join(request.retire)}")
    written = write(ports, stored, left)
    if written is None:
        raise Stopped(Stop(Code.CAS_CONFLICT, f"{site.target}: another worker changed the record first."))
    ports.log(f"{site.target}: {', '.join(request.retire)} is gone for ever; the others stand for all.")
    # The swap is judged by catalogs that are read after this look.
    return True, written, seen.sequence


@dataclass(slots=True)
class _Resolve:
    """The loop of one resolve: observe, decide, write down, act once, observe again."""

    ports: Ports
    site: Site
    request: OperatorRequest
    waits: Waits
    stored: StoredRecord
    read_at: int
    observation: Observation | None = None
    queue: QueueState | None = None
    sent: int = 0
    changed: bool = False
    written: Classification | None = None
    operation_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.operation_id = self.stored.record.operation_id

    def run(self) -> Ended:
        ports = self.ports
        pause = Pause(ports, self.waits.cleanup, self.waits)
        while True:
            record = self.stored.record
            if record.operation_id != self.operation_id:
                raise Stopped(
                    Stop(
                        Code.NOT_RESOLVABLE,
                        f"{self.site.target}: this operation was ended by somebody else, and another one has "
                        "the target now.",
                        next_action="Nothing to do for this operation.",
                        facts={"operation": record.operation_id[:16], "phase": record.phase.value},
                    )
                )
            decided = decide_resolution(
                Resolution(self.stored, self.read_at, self.observation, self.queue, self.sent)
            )
            self.written = write_down(ports, self.stored, decided, self.observation, self.queue, self.written)
            match decided:
                case ReadCatalogs():
                    self._observe()
                case ReadQueue():
                    self._read_queue()
                case StoreReceipt(entry, query_digest, receipt):
                    self._move(
                        transitions.terminal(
                            record, entry=entry, query_digest=query_digest, receipt=receipt, now=self._now()
                        ),
                        "store the receipt",
                    )
                case Commit(entry, query_digest, receipt):
                    self._move(
                        transitions.committed(
                            record, entry=entry, query_digest=query_digest, receipt=receipt, now=self._now()
                        ),
                        "commit",
                    )
                    proof = publication_receipt(self.stored.record, replayed=False)
                    note(ports, self.operation_id, StoredReceipt(self.stored.version, proof))
                case step.Disarm():
                    self._disarm()
                case step.StoreDisarmed(entry, query_digest, receipt):
                    self._move(
                        transitions.disarmed(
                            record, entry=entry, query_digest=query_digest, receipt=receipt, now=self._now()
                        ),
                        "store that the swap is harmless",
                    )
                case step.CloseUnpublished():
                    self._move(transitions.unpublished(record, now=self._now()), "close as not published")
                case Wait(stop):
                    if pause.over():
                        raise Stopped(stop)
                    self.queue = None
                    self._observe()
                case Hold(stop):
                    raise Stopped(stop)
                case step.Resolved():
                    kept = [r.name for r in record.retained if r.generation == record.desired]
                    return Ended(
                        record.operation_id,
                        record.phase,
                        self.changed,
                        kept[0] if kept else None,
                        tuple(replica.alias for replica in record.retired),
                    )
                case _:
                    assert_never(decided)

    def _now(self) -> int:
        return self.observation.server_time if self.observation else self.stored.record.changed_at

    def _observe(self) -> None:
        record = self.stored.record
        seen = self.ports.catalog.observe([record.table, record.candidate, parked_name(record.candidate)])
        found = require_record(seen, self.site)
        if found.version > self.stored.version:
            self.stored, self.read_at = found, seen.sequence
            self.observation, self.queue = None, None
        else:
            self.observation = seen

    def _read_queue(self) -> None:
        record = self.stored.record
        dispatch, statement = _statement(record)
        self.queue = read_dispatch(
            self.ports.queue, self.ports.catalog.inventory, record, dispatch, statement
        )

    def _move(self, record: AuthorityRecord, what: str) -> None:
        audit(self.ports, self.stored, self.request, "resolve", what)
        self._go_on(write(self.ports, self.stored, record))

    def _disarm(self) -> None:
        claimed = transitions.disarming(self.stored.record, nonce=self.ports.random.hex(128), now=self._now())
        audit(self.ports, self.stored, self.request, "resolve", "disarm")
        self.ports.log(
            f"{self.site.target}: taking the name {claimed.candidate} away on every replica, so that a swap "
            "that comes late finds nothing."
        )
        self.sent += 1
        self._go_on(send_once(self.ports, self.stored, claimed, claimed.disarm, _park(claimed)))

    def _go_on(self, written: StoredRecord | None) -> None:
        """Go on from what is stored. Every fact from before a change is thrown away."""
        self.observation, self.queue = None, None
        if written is None:
            raise Stopped(
                Stop(Code.CAS_CONFLICT, f"{self.site.target}: another worker changed the record first.")
            )
        self.changed = True
        self.stored = written
        # The read-back has no number of its own: it came after every read that has one, and before the next.


def _statement(record: AuthorityRecord) -> tuple[Dispatch, Statement]:
    """Return what was sent last for the operation: the swap, or the RENAME that disarms it."""
    dispatch = record.disarm if record.disarm is not None else record.publication
    if dispatch is None:
        raise ValueError("a dispatched record has a dispatch")
    return dispatch, swap(record) if record.disarm is None else _park(record)


def _park(record: AuthorityRecord) -> Rename:
    return Rename(record.cluster, record.database, record.candidate, parked_name(record.candidate))


def require_operation(record: AuthorityRecord, request: OperatorRequest) -> None:
    if request.operation is not None and not record.operation_id.startswith(request.operation):
        raise Stopped(
            Stop(
                Code.NOT_RESOLVABLE,
                f"{record.database}.{record.table} is held by another operation than the one that is meant.",
                facts={"operation": record.operation_id[:16], "phase": record.phase.value},
            )
        )


def audit(
    ports: Ports, stored: StoredRecord, request: OperatorRequest, action: str, step: str | None = None
) -> None:
    """Write down what an operator is about to change, and why, before it is changed.

    :raises Stopped: ``EVIDENCE_UNAVAILABLE``; nothing was changed.
    """
    audit_action(ports.evidence, stored.record.operation_id, request, action, step or action, stored)


def audit_action(
    evidence: Evidence,
    operation_id: str,
    request: OperatorRequest,
    action: str,
    step: str,
    stored: StoredRecord | None = None,
) -> None:
    """As :func:`audit`, also where there is no record (yet): then all that would be said of it is null."""
    body = OperatorAction(
        action=action,
        step=step,
        reason=request.reason,
        phase=stored.record.phase if stored else None,
        epoch=stored.record.dispatch_epoch if stored else None,
        version=stored.version if stored else None,
        write_id=stored.write_id if stored else None,
    )
    evidence.write(operation_id, body)
