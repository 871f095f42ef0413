"""What is said about one target, for people: the value that the command, the page and the log show.

Frozen facts and fixed words. :mod:`publication.explain` makes it from what was read, and
:mod:`publication.explain_past` from what was written down before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Literal

from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.decide import replication_problem
from airflow_provider_dpone.publication.facts import ReplicaFacts
from airflow_provider_dpone.publication.history import Line, Past, Refused
from airflow_provider_dpone.publication.queue_report import FORGOTTEN_AFTER, MANY_NEWER, Blocker
from airflow_provider_dpone.publication.record import AuthorityRecord, Owner
from airflow_provider_dpone.publication.statement import Statement
from airflow_provider_dpone.publication.stop import Stop
from airflow_provider_dpone.publication.words import joined, size, when


@unique
class Way(StrEnum):
    """The command or action that is safe next."""

    NOTHING = "nothing"
    START = "start"
    WAIT = "wait"
    UNBLOCK = "unblock"
    STAGE_ON = "stage on"
    RETRY = "retry"
    FREE = "free"
    REPAIR = "repair"
    RESOLVE = "resolve"
    RETIRE = "retire"
    ROLL_ON = "roll on"
    ABANDON = "abandon"
    LOOK = "look"
    CLEAN_UP = "clean up"
    RESTORE = "restore"
    RECOVER = "recover"
    STAGE = "stage"


WAYS: Mapping[Way, str] = {
    Way.NOTHING: "Nothing to do.",
    Way.START: "When that is done, start the run, or clear its stage task: it begins anew.",
    Way.WAIT: "Wait, and let the publish task (or a later run) observe again.",
    Way.UNBLOCK: (
        "Find whoever queued the entry that comes first, and let it end on that replica, or remove what it fails on. "
        "Ours follows by itself."
    ),
    Way.STAGE_ON: (
        "Let the stage task run, or be retried: it goes on from what is proven. If it is cleared, it stages anew."
    ),
    Way.RETRY: "Clear the publish task: it goes on from the recorded state.",
    Way.FREE: (
        "Nothing to do: the data is live. The cleanup task, or the next run, drops the table that was replaced and "
        "frees the target."
    ),
    Way.REPAIR: (
        "Where the swap failed, remove the cause. Run the statement that stands at each pending replica, on that "
        "replica alone and without ON CLUSTER. Explain again; when every replica is committed, resolve."
    ),
    Way.RESOLVE: "Resolve: it makes the swap harmless where its outcome is not known, and ends the operation.",
    Way.RETIRE: (
        "If the missing replica is gone for ever: remove it from both tables in Keeper (SYSTEM DROP REPLICA), and "
        "resolve with --retire. If it is not, restore the cluster's definition."
    ),
    Way.ROLL_ON: "Run the rollback again: it goes on where it stopped, with the same operation.",
    Way.ABANDON: "Abandon it if its data must not go live: nothing was sent.",
    Way.LOOK: "Find out who changed the tables or the cluster, and restore what was admitted. Then explain again.",
    Way.CLEAN_UP: "Remove the cause that is named, and clear the cleanup task; the next run drops it, too.",
    Way.RESTORE: "Explain again then. Tasks that wait go on by themselves.",
    Way.STAGE: (
        "Let the stage task be retried, or clear it: it stages anew, and drops what an earlier try of it left. If it "
        "never runs again, `airflow dpone orphans` lists what is left and drops it."
    ),
    Way.RECOVER: (
        "Stop the DAGs that publish to this cluster. Restore Keeper from its backup; if there is none, look at what "
        "recovery would do, and then recover, as an administrator."
    ),
}

NEVER_SWAP = (
    "Never run EXCHANGE or RENAME of these tables ON CLUSTER: it would undo the replicas that are done."
)
NEVER_DROP = "Never drop either table: until the operation ends, each may hold the only copy of a generation."
NEVER_EDIT = "Never edit, truncate or drop the control table."
NEVER_AHEAD = "Never swap by hand on a replica that is late: it would swap back when it follows."
NEVER_CREATE = (
    "Never create the control table or its rows by hand: statements of before and new ones could meet."
)
NEVER_UNQUEUE = (
    "Never delete an entry of the queue in Keeper by hand: what it did is then not known any more."
)
NEVER_UNLISTED = (
    "Never drop a table by hand that `airflow dpone orphans` doesn't list: an operation needs it."
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What one replica shows under one name.

    :ivar generation: ``new``, ``old``, ``absent``, ``another table`` or ``unknown``.
    :ivar uuid: of the table; ``None`` if there is none or it is not known.
    :ivar rows: the replica's own count.
    :ivar problem: in words, why it does not hold the table completely and healthily; ``None`` if it does.
    :ivar replicated: the table replicates itself, so that there is a health of its replication.
    """

    generation: str
    uuid: str | None = None
    rows: int | None = None
    problem: str | None = None
    replicated: bool = False

    @classmethod
    def of(
        cls,
        facts: ReplicaFacts | None,
        name: str,
        *,
        new: Collection[str],
        old: Collection[str],
        replicas: int | None,
    ) -> Shown:
        """Return what a replica shows under a name.

        :param facts: of the replica; ``None``: it could not be read.
        :param new: the UUIDs that the operation's own table may have there.
        :param old: those of the table that it replaces; none if there was none.
        :param replicas: how many replicas a table must have to be healthy; ``None``: it is independent of others.
        """
        if facts is None:
            return UNKNOWN
        table = facts.tables.get(name)
        if table is None:
            return ABSENT if facts.sees_database else UNKNOWN
        return cls(
            generation_of(table.uuid, new=new, old=old),
            table.uuid,
            table.rows,
            replication_problem(table, replicas) if replicas else None,
            replicated=table.replication is not None,
        )


UNKNOWN = Shown("unknown")
ABSENT = Shown("absent")


def generation_of(uuid: str | None, *, new: Collection[str], old: Collection[str]) -> str:
    """Return which generation a UUID is, in a word; ``absent`` if there is none.

    :param new: the UUIDs of the operation's own table; independent tables have another one on every replica.
    :param old: those of the table that it replaces; none if there was none.
    """
    if uuid is None:
        return "absent"
    if uuid in new:
        return "new"
    return "old" if uuid in old else "another table"


@dataclass(frozen=True, slots=True)
class StageShown:
    """How far one replica is staged by itself.

    :ivar word: ``not begun``, ``claimed``, ``verified`` or ``ready``, as the record says.
    :ivar seen: its table is there now; ``None``: it is not known.
    :ivar said: what that means, as far as it is proven.
    """

    word: str
    seen: bool | None
    said: str

    @property
    def proven(self) -> bool:
        """Tell whether its table was proven to hold the sealed rows, and is there."""
        return self.seen is True and self.word in ("verified", "ready")

    @property
    def ready(self) -> bool:
        """Tell whether nothing is left to do on the replica."""
        return self.proven and self.word == "ready"

    def __str__(self) -> str:
        return (
            self.word if self.seen is not False or self.word == "claimed" else f"{self.word}, not there now"
        )


@dataclass(frozen=True, slots=True)
class ReplicaExplained:
    """One replica: what it holds, and how the queue's entry ended there.

    :ivar repair: the statement that brings this replica, alone, to the new generation.
    :ivar target: what stands under the target's name.
    :ivar candidate: what stands under the candidate's name, or under the one it was parked as.
    :ivar stage: how far it is staged, while replicas are staged by themselves.
    """

    state: ReplicaState
    target: Shown = UNKNOWN
    candidate: Shown = UNKNOWN
    queue: str | None = None
    exception_code: int | None = None
    repair: Statement | None = None
    stage: StageShown | None = None

    @property
    def live(self) -> str:
        """Which generation its readers see, in the words of :class:`Shown`."""
        return self.target.generation


@dataclass(frozen=True, slots=True)
class Leftover:
    """A table that is still there and that readers don't see.

    :ivar kind: ``predecessor``: an operation replaced it; ``candidate``: a staging attempt made it.
    :ivar bytes: over all replicas that show it; ``None`` if no replica tells.
    :ivar replicas: where it is.
    :ivar why: why it is there.
    """

    name: str
    kind: Literal["predecessor", "candidate"]
    bytes: int | None
    replicas: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        much = "" if self.bytes is None else f", {size(self.bytes)}"
        return f"{self.name} ({self.kind}{much}, on {joined(self.replicas)}): {self.why}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that ``airflow dpone explain`` shows about one target.

    :ivar plain: what happened, in a sentence or two.
    :ivar affected: readers don't see one generation everywhere; ``None`` if that is not known.
    :ivar read: the record was read now. Otherwise all that is said about the operation was written down before.
    :ivar leftovers: tables of ours that nobody reads.
    :ivar waiting: who waits for what.
    :ivar past: what the evidence tells of the operation, or of the newest one where there is no record.
    :ivar others: what it tells of newer operations, which were never prepared.
    :ivar stop: why it does not go on by itself; ``None`` where nothing is in the way.
    :ivar ways: what is safe next, the best first.
    :ivar held: the target is held by an operation that has not ended.
    :ivar gone: admitted replicas that the cluster doesn't list any more.
    :ivar blocked: entries of the queue that replicas have to finish before the operation's.
    :ivar newer_entries: how many entries came after the operation's; ``None`` if it is not seen.
    :ivar observed_at: the server's clock at the look at the tables, seconds since the epoch; ``None``: no replica was
        looked at.
    :ivar authority_id: of the control table that was read; ``None`` if it is not known.
    """

    summary: str
    happened: tuple[str, ...]
    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    readers: str
    ways: tuple[Way, ...]
    never: tuple[str, ...]
    replicas: Mapping[str, ReplicaExplained]
    stop: Stop | None
    held: bool
    record: AuthorityRecord | None
    gone: tuple[str, ...] = ()
    blocked: tuple[Blocker, ...] = ()
    newer_entries: int | None = None
    observed_at: int | None = None
    authority_id: str | None = None
    plain: str = ""
    affected: bool | None = False
    read: bool = True
    leftovers: tuple[Leftover, ...] = ()
    waiting: tuple[str, ...] = ()
    past: Past | None = None
    others: tuple[Past, ...] = ()

    @property
    def operation_id(self) -> str | None:
        """The operation that all this is about."""
        if self.record is not None:
            return self.record.operation_id
        return self.past.operation_id if self.past else None

    @property
    def owner(self) -> Owner | None:
        """Whose operation it is."""
        return self.record.owner if self.record is not None else self.past.owner if self.past else None

    @property
    def phase(self) -> str | None:
        """How far it came; as it was written down last where the record was not read."""
        return self.record.phase.value if self.record is not None else self.past.state if self.past else None

    @property
    def since(self) -> int | None:
        """Since when it is there, in seconds since the epoch."""
        return self.record.changed_at if self.record is not None else self.past.since if self.past else None

    @property
    def newer(self) -> tuple[str, ...]:
        """What is known of operations that were admitted since and never prepared."""
        unprepared = (self.past, *self.others) if self.read and self.record is None else self.others
        return tuple(_admitted_since(one) for one in unprepared if one is not None)

    @property
    def heard_of(self) -> str | None:
        """Which task wrote last, while somebody waits."""
        task = self.past.task if self.past is not None and self.waiting else None
        return None if task is None else f"Heard of last: {task.who}, at {when(task.at)}: {task.what}."

    @property
    def refused(self) -> tuple[Refused, ...]:
        """Who was turned away because of the operation."""
        return self.past.refused if self.past else ()

    @property
    def recorded(self) -> tuple[Line, ...]:
        """What was written down about the operation last, the oldest first."""
        return self.past.lines if self.past else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What will soon be wrong."""
        if self.newer_entries is None or self.newer_entries < MANY_NEWER:
            return ()
        return (
            f"{self.newer_entries:,} entries came after this one. The queue forgets it after {FORGOTTEN_AFTER:,}; "
            "then its outcome can't be read any more, and an operator has to resolve the operation.",
        )

    @property
    def next(self) -> tuple[str, ...]:
        """The ways in words."""
        return tuple(
            f"{self.stop.next_action} {WAYS[way]}"
            if way in (Way.START, Way.RESTORE) and self.stop is not None
            else WAYS[way]
            for way in self.ways
        )


def _admitted_since(one: Past) -> str:
    whose = f" ({one.owner})" if one.owner else ""
    return (
        f"Operation {one.operation_id[:16]}{whose} was heard of last at {when(one.at)} and was never prepared: its "
        "stage task is running, failed, or died. The live table is untouched by it."
    )
