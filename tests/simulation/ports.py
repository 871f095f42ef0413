"""The route's ports onto the simulated world, with a fault at every call.

Each call is a point at which the scheduler may let other workers, replicas or time go on, and may choose
what happens to the call itself: it is refused, runs and loses its reply, runs late, or its worker is killed
before or after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique

from airflow_provider_dpone.clickhouse import authority as product
from airflow_provider_dpone.publication.canonical import sha256_hex
from airflow_provider_dpone.publication.decide import ContentCheck
from airflow_provider_dpone.publication.facts import Dependent, Observation
from airflow_provider_dpone.publication.identity import target_key
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.record import AuthorityRecord, Row, StoredRecord, encode
from airflow_provider_dpone.publication.statement import Drop, Statement
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Body, CandidateIntent, PermitUnused, PublishAsked
from airflow_provider_dpone.routes.ports import (
    Attempt,
    Claimed,
    Conflict,
    Intent,
    Loaded,
    OutcomeUnknown,
    Reply,
    StagePlan,
    Stored,
    Target,
    WriteResult,
)
from tests.simulation import authority as replies
from tests.simulation.world import AUTHORITY, Table, World

TARGET = Target("analytics", "mart", "orders")
KEY = target_key(AUTHORITY, TARGET.database, TARGET.table)


class Killed(BaseException):
    """The worker's process is gone: nothing of it runs any more, not even a handler."""


@unique
class Fault(StrEnum):
    """What happens to one call."""

    NONE = "none"
    REFUSED = "refused"
    """It is not sent; the caller knows."""
    LOST = "lost"
    """It runs; the reply is lost."""
    UNSENT = "unsent"
    """It never runs; for the caller it looks like a lost reply."""
    LATE = "late"
    """It runs at some later moment; for the caller it looks like a lost reply."""
    TWICE = "twice"
    """It runs twice: something on the way repeats it. For other calls than a send it is like none."""
    KILL_BEFORE = "kill before"
    KILL_AFTER = "kill after"


Choose = Callable[[str], Fault]
"""Asked at every call with its name; returns what happens to it."""


def _unavailable(what: str) -> Stopped:
    return Stopped(Stop(Code.SERVER_UNAVAILABLE, f"{what}: no answer"))


@dataclass(slots=True)
class SimEvidence:
    """A durable trail. It outlives its workers."""

    entries: list[tuple[str, Body]] = field(default_factory=list)
    meant: set[str] = field(default_factory=set)
    """The UUIDs of the candidates that any entry means to create."""
    senders: dict[str, Worker] = field(default_factory=dict)
    """Who sent the statement with a token."""
    broken: list[str] = field(default_factory=list)
    """What no worker may do, whatever comes of it."""

    def append(self, operation_id: str, body: Body) -> None:
        """Keep an entry."""
        self.entries.append((operation_id, body))
        if isinstance(body, CandidateIntent):
            self.meant.add(body.uuid)


@dataclass(slots=True)
class Worker:
    """One worker process: its ports, and whether it is alive."""

    world: World
    trail: SimEvidence
    choose: Choose
    nonce: Callable[[], int]
    lines: list[str] = field(default_factory=list)
    dead: bool = False
    unwritten: set[str] = field(default_factory=set)
    """Kinds of entries that the trail refused."""
    saw: StoredRecord | None = None
    """The record as it looked last."""
    since_permit: list[str] | None = None
    """The calls since a permit was claimed and verified."""

    def call(self, name: str) -> Fault:
        """Pass a point. A dead process never comes back from one."""
        if self.dead:
            raise Killed
        if self.since_permit is not None:
            self.since_permit.append(name)
        fault = self.choose(name)
        if fault is Fault.KILL_BEFORE:
            self.dead = True
            raise Killed
        return fault

    def after(self, fault: Fault) -> None:
        """End a call: the process may be killed when its effect is done and nothing is known of it yet."""
        if fault is Fault.KILL_AFTER:
            self.dead = True
            raise Killed

    # Catalog.

    @property
    def inventory(self) -> Inventory:
        return self.world.inventory

    def observe(self, tables: Collection[str]) -> Observation:
        fault = self.call("observe")
        if fault in (Fault.REFUSED, Fault.LOST, Fault.UNSENT, Fault.LATE):
            raise _unavailable("observe")
        seen = self.world.observe(KEY, list(tables))
        self.saw = seen.record
        self.after(fault)
        return seen

    def content(self, table: str) -> ContentCheck:
        fault = self.call("content")
        if fault not in (Fault.NONE, Fault.KILL_AFTER):
            raise _unavailable("content")
        if not all(replica.up for replica in self.world.replicas.values()):
            raise Stopped(Stop(Code.REPLICA_UNAVAILABLE, "content: a replica is away"))
        check = ContentCheck(self.world.tick(), self.world.content(table))
        self.after(fault)
        return check

    def dictionary_loads(self, dictionaries: Collection[Dependent]) -> Mapping[str, Mapping[Dependent, int]]:
        raise NotImplementedError

    # Authority.

    def write(self, expected: StoredRecord | None, record: AuthorityRecord, write_id: str) -> WriteResult:
        return self._cas("write", expected, record, write_id)

    def claim(
        self, expected: StoredRecord, record: AuthorityRecord, token: str, write_id: str
    ) -> Claimed | Conflict | OutcomeUnknown:
        result = self._cas("claim", expected, record, write_id)
        if not isinstance(result, Stored):
            return result
        self.world.permits.append((record.target_key, record.dispatch_epoch))
        self.since_permit = []
        permit = Permit(token=token, epoch=record.dispatch_epoch, write_id=write_id)
        return Claimed(result.stored, permit, self.world.inventory.digest)

    def _cas(
        self, name: str, expected: StoredRecord | None, record: AuthorityRecord, write_id: str
    ) -> WriteResult:
        row = encode(record, write_id)
        before = (expected.write_id, expected.version) if expected else None
        fault = self.call(name)
        match fault:
            case Fault.REFUSED:
                raise _unavailable(name)
            case Fault.UNSENT:
                return self._judged(replies.lost, expected, record, row)
            case Fault.LATE:
                self.world.late.append(lambda: void(self.world.swap_row(before, row)))
                return self._judged(replies.lost, expected, record, row)
            case Fault.LOST:
                self.world.swap_row(before, row)
                return self._judged(replies.lost, expected, record, row)
        self.world.swap_row(before, row)
        self.after(fault)
        # The read-back is a call of its own: others may go on in between.
        if self.call(f"{name} read-back") is not Fault.NONE:
            return self._judged(replies.lost, expected, record, row)
        return self._judged(product.judge, expected, record, row)

    def _judged(
        self,
        judge: Callable[..., int | Conflict | OutcomeUnknown | None],
        expected: StoredRecord | None,
        record: AuthorityRecord,
        row: Row,
    ) -> WriteResult:
        """What the worker makes of what Keeper holds now."""
        found, version = self.world.rows.get(record.target_key, (None, None))
        verdict = judge(expected, row, found, version)
        if isinstance(verdict, int):
            return Stored(StoredRecord(record, row.write_id, verdict))
        return OutcomeUnknown("not visible") if verdict is None else verdict

    # DDL queue.

    def send(self, permit: Permit, statement: Statement, token: str) -> Reply:
        fault = self.call("send")
        permit.use(token)
        between, self.since_permit = (self.since_permit or [])[:-1], None
        if between:
            self.trail.broken.append(f"{between} stands between a verified permit and its send")
        self.trail.senders[token] = self
        self.world.sent.append((token, statement))
        match fault:
            case Fault.REFUSED | Fault.UNSENT:
                return Reply(answered=False, exception_code=None)
            case Fault.LATE:
                self.world.late.append(lambda: self.world.enqueue(statement, token))
                return Reply(answered=False, exception_code=None)
        self.world.enqueue(statement, token)
        if fault is Fault.TWICE:
            self.world.enqueue(statement, token)
        self.after(fault)
        return Reply(answered=fault is not Fault.LOST, exception_code=0)

    def read(self, token: str) -> tuple[int, Sequence[QueueRow]]:
        fault = self.call("read queue")
        if fault not in (Fault.NONE, Fault.KILL_AFTER):
            raise _unavailable("queue")
        answer = self.world.tick(), self.world.queue_rows(token)
        self.after(fault)
        return answer

    # Clock, random, log.

    def monotonic(self) -> float:
        return self.world.now

    def sleep(self, seconds: float) -> None:
        self.call("sleep")
        self.world.now += seconds
        self.world.work_all()

    def hex(self, bits: int) -> str:
        return sha256_hex(f"sim {self.nonce()}")[: bits // 4]

    def uuid(self) -> str:
        text = sha256_hex(f"uuid {self.nonce()}")
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:32]}"

    def __call__(self, message: str) -> None:
        self.lines.append(message)


def void(_: object) -> None:
    """Drop a result that nobody will ever read."""


@dataclass(slots=True)
class EvidencePort:
    """A worker's view of the trail. A dead worker writes nothing."""

    worker: Worker

    def write(self, operation_id: str, body: Body) -> None:
        fault = self.worker.call(f"evidence {body.kind}")
        if fault in (Fault.REFUSED, Fault.UNSENT, Fault.LATE):
            self.worker.unwritten.add(body.kind)
            raise Stopped(Stop(Code.EVIDENCE_UNAVAILABLE, "evidence: no answer"))
        self.worker.trail.append(operation_id, body)
        if fault is Fault.LOST:
            raise Stopped(Stop(Code.EVIDENCE_UNAVAILABLE, "evidence: no answer"))
        self.worker.after(fault)

    def intents(self, operation_id: str) -> Sequence[Intent]:
        return [
            Intent(operation_id, Attempt(body.attempt, body.table, body.uuid))
            for operation, body in self.worker.trail.entries
            if operation == operation_id and isinstance(body, CandidateIntent)
        ]

    def permit_unused(self, operation_id: str, epoch: int, write_id: str) -> bool:
        return (operation_id, PermitUnused(epoch, write_id)) in self.worker.trail.entries

    def asked(self, operation_id: str, asker: str) -> bool:
        return (operation_id, PublishAsked(asker)) in self.worker.trail.entries


@dataclass(slots=True)
class SimStaging:
    """Creates, loads and drops candidates in the world."""

    worker: Worker
    rows: int
    content: str
    plan_digest: str = "p" * 64

    def quoted(self, name: str) -> str:
        return f"`mart`.`{name}`"

    def plan(self, observation: Observation) -> StagePlan:
        if self.worker.call("plan") is not Fault.NONE:
            raise _unavailable("plan")
        return StagePlan(self.plan_digest, (), None)

    def create(self, plan: StagePlan, attempt: Attempt, *, authority_id: str, operation_id: str) -> None:
        table = Table(attempt.uuid, 0, "", f"/clickhouse/tables/{attempt.uuid}/01")

        def act() -> None:
            for replica in self.worker.world.replicas.values():
                replica.tables.setdefault(attempt.name, table)

        self._effect("create", act)

    def check_created(self, plan: StagePlan, attempt: Attempt, observation: Observation) -> None:
        for facts in observation.replicas.values():
            table = facts.tables.get(attempt.name)
            if table is None or table.uuid != attempt.uuid:
                raise Stopped(Stop(Code.CANDIDATE_DIFFERS, "the candidate is not there"))

    def load(self, plan: StagePlan, attempt: Attempt) -> Loaded:
        def act() -> None:
            for replica in self.worker.world.replicas.values():
                if (table := replica.tables.get(attempt.name)) is not None:
                    replica.tables[attempt.name] = Table(table.uuid, self.rows, self.content, table.path)

        self._effect("load", act)
        return Loaded(self.rows, self.rows, None)

    def drop(self, attempt: Attempt) -> None:
        fault = self.worker.call("drop candidate")
        if fault in (Fault.REFUSED, Fault.UNSENT):
            return
        self.worker.world.enqueue(Drop(TARGET.cluster, TARGET.database, attempt.name), f"drop:{attempt.name}")
        self.worker.after(fault)

    def _effect(self, name: str, act: Callable[[], None]) -> None:
        fault = self.worker.call(name)
        match fault:
            case Fault.REFUSED:
                raise Stopped(Stop(Code.STAGING_FAILED, f"{name} failed"))
            case Fault.UNSENT:
                raise Stopped(Stop(Code.STAGING_UNKNOWN, f"{name}: no answer"))
            case Fault.LATE:
                self.worker.world.late.append(act)
                raise Stopped(Stop(Code.STAGING_UNKNOWN, f"{name}: no answer"))
            case Fault.LOST:
                act()
                raise Stopped(Stop(Code.STAGING_UNKNOWN, f"{name}: no answer"))
        act()
        self.worker.after(fault)
