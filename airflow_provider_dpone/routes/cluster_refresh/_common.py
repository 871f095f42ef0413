"""What stage, publish and cleanup share: admission, the one way to write, the one way to send."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.admission import (
    admit_cluster,
    admit_target,
)
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import Contradictory, QueueState, read_queue
from airflow_provider_dpone.publication.receipt import (
    MAX_DEPENDENTS,
    SettledReceipt,
    settled_receipt,
)
from airflow_provider_dpone.publication.record import (
    DROP_PHASES,
    MAX_SETTLED,
    AuthorityRecord,
    Dispatch,
    Phase,
    StoredRecord,
)
from airflow_provider_dpone.publication.statement import Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import PermitUnused
from airflow_provider_dpone.routes.cluster_refresh._evidence import (
    note,
    note_dispatch,
    note_outcome,
    write_intent,
)
from airflow_provider_dpone.routes.ports import (
    Claimed,
    Conflict,
    DdlQueue,
    OutcomeUnknown,
    Ports,
    Stored,
    Target,
    WriteResult,
)


@dataclass(frozen=True, slots=True)
class Site:
    """What is the same for every operation on a cluster.

    :ivar user: the connection's user; every replica must answer as this one.
    :ivar control_structure: digest of the control table's expected structure.
    """

    target: Target
    user: str
    control_structure: str


@dataclass(frozen=True, slots=True)
class Waits:
    """How long things may take, in seconds. ``docs/defaults.md`` has the same numbers.

    :ivar ready: from the end of a load until every replica holds the candidate, and before a dispatch.
    :ivar publish: from the start of publishing to the proof.
    :ivar cleanup: for a drop to show on every replica.
    :ivar busy: for another operation on the target to end; 0 fails at once.
    :ivar visible: for another worker's write to show on the contacted server.
    :ivar poll_first: the first pause between two reads; it doubles up to ``poll_last``.
    """

    ready: float = 600.0
    publish: float = 3600.0
    cleanup: float = 60.0
    busy: float = 0.0
    visible: float = 5.0
    poll_first: float = 0.25
    poll_last: float = 10.0


@dataclass(slots=True)
class Pause:
    """Bounded waiting with growing pauses."""

    ports: Ports
    seconds: float
    waits: Waits
    started: float = field(init=False)
    pause: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.ports.clock.monotonic()
        self.pause = self.waits.poll_first

    @property
    def left(self) -> float:
        """How many seconds are left; not positive when the time is up."""
        return self.started + self.seconds - self.ports.clock.monotonic()

    def over(self) -> bool:
        """Sleep once and return ``False``, or return ``True`` when the time is up."""
        left = self.left
        if left <= 0:
            return True
        self.ports.clock.sleep(min(self.pause, left))
        self.pause = min(self.pause * 2, self.waits.poll_last)
        return False


def observe_admitted(
    ports: Ports, site: Site, tables: Collection[str], waits: Waits, seen: Observation | None = None
) -> tuple[Observation, str]:
    """Look, and check replicas, database and control table; return the look and the authority id.

    The target is another matter: an operation that holds it explains more than what it looks like meanwhile.
    A replica that reads an older record than the others lags behind: it is read again, within a bound.

    :param seen: a look that was just taken.
    :raises Stopped: the first check that failed.
    """
    pause = Pause(ports, waits.visible, waits)
    while True:
        observation = seen or ports.catalog.observe(tables)
        try:
            return observation, admit(site, observation)
        except Stopped as stopped:
            if stopped.stop.code is not Code.CONTROL_TABLE_NOT_SHARED or pause.over():
                raise
            seen = None


def admit(site: Site, observation: Observation) -> str:
    """Check replicas, database and control table in one look; return the authority id.

    :raises Stopped: the first check that failed.
    """
    stop = admit_cluster(
        observation,
        database=site.target.database,
        control_structure=site.control_structure,
        user=site.user,
    )
    if stop is not None:
        raise Stopped(stop)
    authority_id = observation.authority_id
    if authority_id is None:
        raise ValueError("an admitted control table has one authority id")
    return authority_id


def require_target(site: Site, observation: Observation) -> None:
    """Check that the live table can be replaced.

    :raises Stopped: the first check that failed.
    """
    authority_id = observation.authority_id
    if authority_id is None:
        raise ValueError("an admitted control table has one authority id")
    if stop := admit_target(observation, site.target.table, authority_id=authority_id):
        raise Stopped(stop)


def compare_and_swap(ports: Ports, before: StoredRecord | None, record: AuthorityRecord) -> WriteResult:
    """Store ``record`` over exactly ``before``; in the evidence stand the intent first, and then what became of it."""
    write_id = ports.random.hex(128)
    write_intent(ports, record, write_id, before)
    result = ports.authority.write(before, record, write_id)
    note_outcome(ports, record, write_id, result)
    return result


def write(ports: Ports, stored: StoredRecord, record: AuthorityRecord) -> StoredRecord | None:
    """Store ``record``; return ``None`` if another worker wrote first."""
    match compare_and_swap(ports, stored, record):
        case Stored(written):
            return written
        case Conflict():
            return None
        case OutcomeUnknown(why):
            raise Stopped(cas_unknown(record, why))


def send_once(
    ports: Ports,
    stored: StoredRecord,
    record: AuthorityRecord,
    dispatch: Dispatch | None,
    statement: Statement,
) -> StoredRecord | None:
    """Claim the permit for ``dispatch`` and send its statement; ``None`` if another worker wrote first.

    Whatever ends this call before the permit is used, a signal included, is written down as the word of
    the only possible holder that nothing was sent.

    :raises Stopped: ``STATEMENT_REFUSED``: proven not queued; ``CAS_OUTCOME_UNKNOWN`` and what the ports
        raise: nothing was sent.
    """
    if dispatch is None:
        raise ValueError("nothing to send")
    write_id = ports.random.hex(128)
    write_intent(ports, record, write_id, stored)
    permit: Permit | None = None
    result: Claimed | Conflict | OutcomeUnknown | None = None
    try:
        result = ports.authority.claim(stored, record, dispatch.token, write_id)
        match result:
            case Claimed(claimed, permit, inventory_digest):
                if inventory_digest != record.inventory_digest and isinstance(statement, Exchange | Rename):
                    # This is the permit's only holder, and it stops here.
                    _rearm(ports, claimed)
                    raise Stopped(
                        Stop(
                            Code.INVENTORY_DRIFT,
                            f"Cluster {record.cluster!r} changed in the last moment. Nothing was sent.",
                        )
                    )
                reply = ports.queue.send(permit, statement, dispatch.token)
            case Conflict():
                return None
            case OutcomeUnknown(why):
                raise Stopped(cas_unknown(record, why))
    finally:
        # The permit itself is asked, last: whatever raised in between, it knows whether a byte may have left.
        if permit is None or not permit.used:
            # First what gives the slot back, then what only tells.
            if not isinstance(result, Conflict):
                _note_unused(ports, record, dispatch, write_id)
            if result is not None:
                note_outcome(ports, record, write_id, result)
    if reply.refused:
        _note_unused(ports, record, dispatch, write_id)
    note_dispatch(ports, record, dispatch, statement, write_id, reply)
    note_outcome(ports, record, write_id, result)
    if reply.refused:
        _rearm(ports, claimed)
        raise Stopped(
            Stop(
                Code.STATEMENT_REFUSED,
                f"{record.database}.{record.table}: the server refused the statement before it entered the "
                f"queue ({reply.exception_code} {reply.name}). Nothing was changed.",
                facts={"exception_code": reply.exception_code, "exception_name": reply.name},
            )
        )
    if not reply.answered:
        ports.log("The reply was lost. The queue and the tables will tell; nothing is sent again.")
    elif reply.exception_code:
        ports.log(f"The server answered with code {reply.exception_code} {reply.name}; the queue decides.")
    return claimed


def _rearm(ports: Ports, claimed: StoredRecord) -> None:
    """Give the slot of a swap that was provably not sent back at once; the note lets others do it, should this fail.

    That a disarming or a drop was not sent says nothing about the swap.
    """
    if claimed.record.phase is not Phase.DISPATCHING or claimed.record.disarming:
        return
    try:
        write(ports, claimed, transitions.rearmed(claimed.record, now=claimed.record.changed_at))
    except Stopped as stopped:
        ports.log(f"The record still says that a statement may be on its way: {stopped.stop.message}")


def _note_unused(ports: Ports, record: AuthorityRecord, dispatch: Dispatch, write_id: str) -> None:
    note(ports, record.operation_id, PermitUnused(dispatch.epoch, write_id))


def cas_unknown(record: AuthorityRecord, why: str) -> Stop:
    return Stop(
        Code.CAS_OUTCOME_UNKNOWN,
        f"{record.database}.{record.table}: whether the record moved to {record.phase} is unknown ({why}).",
        next_action=(
            ""
            if record.phase in (Phase.PREPARED, Phase.DISPATCHING)
            else "A retry reads the record and the replicas, and goes on from there. Nothing is sent again."
        ),
        facts={"phase": record.phase.value, "epoch": record.dispatch_epoch},
    )


def swap(record: AuthorityRecord) -> Statement:
    if record.predecessor is None:
        return Rename(record.cluster, record.database, record.candidate, record.table)
    return Exchange(record.cluster, record.database, record.table, record.candidate)


def read_dispatch(
    queue: DdlQueue, inventory: Inventory, record: AuthorityRecord, dispatch: Dispatch, statement: Statement
) -> QueueState:
    """Return what the queue says of a statement that was sent for ``record``.

    :raises Stopped: the queue can't be read.
    """
    if inventory.digest != record.inventory_digest:
        # Rows of other hosts than were admitted say nothing about the admitted ones.
        return Contradictory(
            Stop(
                Code.INVENTORY_DRIFT,
                f"Cluster {record.cluster!r} now lists other replicas than were admitted.",
                facts={"admitted": list(record.replicas), "now": list(inventory.aliases)},
            )
        )
    sequence, rows = queue.read(dispatch.token)
    gone = sum(replica.epoch >= dispatch.epoch for replica in record.retired)
    return read_queue(
        rows, sequence=sequence, dispatch=dispatch, statement=statement, inventory=inventory, gone=gone
    )


def require_record(observation: Observation, site: Site) -> StoredRecord:
    target = site.target
    if observation.record is None:
        structures = {alias: facts.control.structure for alias, facts in observation.replicas.items()}
        without = [alias for alias, structure in structures.items() if structure is None]
        if without:
            raise Stopped(
                Stop(
                    Code.CONTROL_TABLE_MISSING,
                    f"The control table is not seen on {', '.join(without)}, so no record of {target} was read.",
                    facts={"replicas": list(without)},
                )
            )
        if other := [a for a, structure in structures.items() if structure != site.control_structure]:
            raise Stopped(
                Stop(
                    Code.CONTROL_TABLE_INVALID,
                    f"The control table has another structure or Keeper path on {', '.join(other)}, so no record "
                    f"of {target} was read.",
                    facts={"replicas": list(other)},
                )
            )
        raise Stopped(Stop(Code.NOT_STAGED, f"Nothing is staged for {target}."))
    return observation.record


def require_kept_record(observation: Observation, site: Site) -> StoredRecord:
    """Return the record of a target that had one a moment ago.

    :raises Stopped: ``CONTROL_TABLE_LOST``: it is gone, though every replica shows the control table as it should be.
    """
    try:
        return require_record(observation, site)
    except Stopped as stopped:
        if stopped.stop.code is not Code.NOT_STAGED:
            raise
        message = f"The control table has no record of {site.target} any more."
        raise Stopped(Stop(Code.CONTROL_TABLE_LOST, message)) from None


def answer_settled(record: AuthorityRecord, operation_id: str, *, replayed: bool = True) -> SettledReceipt:
    settled = record.find_settled(operation_id)
    if settled is not None and settled.outcome is not Phase.ABORTED:
        return settled_receipt(record, settled, replayed=replayed)
    owner = record.owner
    this = (
        "this one was not published"
        if settled is not None
        else f"how this one ended is not among the last {MAX_SETTLED} that the record remembers"
    )
    raise Stopped(
        Stop(
            Code.SUPERSEDED,
            f"{record.database}.{record.table} belongs to a later operation (DAG {owner.dag_id}, run "
            f"{owner.run_id}); {this}.",
            facts={"operation": record.operation_id[:16], "phase": record.phase.value},
        )
    )


def require_all_read(observation: Observation) -> None:
    if unread := observation.unread:
        raise Stopped(
            Stop(Code.REPLICA_UNAVAILABLE, f"{', '.join(unread)} can't be read. Nothing was published.")
        )


def drops_due(stored: StoredRecord, observation: Observation) -> bool:
    return stored.record.phase in DROP_PHASES and any(
        item.drop is not None or item.drop_after <= observation.server_time for item in stored.record.retained
    )


def dependents(observation: Observation) -> tuple[str, ...]:
    return tuple(f"{d.database}.{d.table} ({d.engine})" for d in observation.dependents)[:MAX_DEPENDENTS]
