"""The invariants of a cluster refresh. Exploration and simulation are judged by this one module.

Each judge looks at the world as it really is, not as the protocol sees it, and raises :class:`Broken`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_dpone.publication.receipt import PublicationReceipt
from airflow_provider_dpone.publication.record import (
    PUBLISHED_PHASES,
    STAGE_PHASES,
    AuthorityRecord,
    IndependentRecord,
    Phase,
    StageState,
)
from airflow_provider_dpone.publication.stop import Code
from tests.simulation.world import content_digest

UNRESOLVED_PHASES = STAGE_PHASES | frozenset({Phase.PREPARED, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL})


class Broken(AssertionError):
    """An invariant does not hold."""


class TableLike(Protocol):
    """A table object on a replica."""

    @property
    def uuid(self) -> str:
        """Its identity."""

    @property
    def rows(self) -> int:
        """How many rows it has."""

    @property
    def content(self) -> str:
        """What stands for its content."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The world as it is.

    :ivar live: the table under the target's name, by replica; ``None`` where there is none.
    :ivar record: the target's record, as Keeper holds it.
    :ivar sent: the tokens of all statements that left a worker, in their order.
    :ivar permits: target and epoch of every permit that was issued.
    :ivar unfinished: the tokens of queue entries that a replica may still execute.
    :ivar before: UUIDs of the tables that were live at the beginning.
    :ivar known: UUIDs of the tables that may be live: the old ones and the staged candidates.
    :ivar first: the target was absent at the beginning.
    :ivar candidates: the table under the record's candidate's name, by replica; empty where tables replicate
        themselves.
    :ivar generations: the UUIDs of a generation's tables by the generation's own, where these differ.
    :ivar listed: where tables are independent, the UUIDs of all that a record ever listed to be dropped.
    :ivar whole: where tables are independent, rows and content of all that may be live.
    :ivar touched: UUIDs of tables that a stranger changed.
    :ivar lost: UUIDs of tables that a stranger dropped.
    :ivar ready: where tables are independent, the UUIDs of all that were recorded as ready.
    """

    live: Mapping[str, TableLike | None]
    record: AuthorityRecord | None
    sent: Collection[str]
    permits: Collection[tuple[str, int]]
    unfinished: Collection[str] = ()
    known: Collection[str] = field(default_factory=frozenset)
    first: bool = False
    before: Collection[str] = ()
    candidates: Mapping[str, TableLike | None] = field(default_factory=dict)
    generations: Mapping[str, Collection[str]] = field(default_factory=dict)
    listed: Collection[str] | None = None
    whole: Collection[tuple[int, str]] | None = None
    touched: Collection[str] = ()
    lost: Collection[str] = ()
    ready: Collection[str] | None = None

    def tables(self, generation: str) -> Collection[str]:
        """Return the UUIDs of a generation's tables."""
        return self.generations.get(generation, (generation,))


def judge(truth: Truth) -> None:
    """Judge one moment.

    :raises Broken: an invariant does not hold.
    """
    _judge_live(truth)
    swaps = _swaps(truth.sent)
    if not swaps and any(
        table is not None and table.uuid not in truth.before for table in truth.live.values()
    ):
        raise Broken("the live table changed, and no swap was sent")
    if any(count > 1 for count in swaps.values()):
        raise Broken("a swap was sent twice for one operation")
    if len(set(truth.permits)) != len(truth.permits):
        raise Broken("two permits for one epoch")
    if truth.record is not None:
        _judge_record(truth, truth.record, swaps)


def _swaps(sent: Collection[str]) -> Counter[str]:
    """How often a swap left a worker, by the beginning of its operation's id."""
    swaps: Counter[str] = Counter()
    for token in sent:
        _, operation, action, *_ = token.split(":")
        if action == "publish":
            swaps[operation] += 1
    return swaps


def _judge_live(truth: Truth) -> None:
    for alias, table in truth.live.items():
        if table is None:
            if not truth.first:
                raise Broken(f"the live table is missing on {alias}")
        elif table.uuid not in truth.known:
            raise Broken(f"a foreign table is live on {alias}")
        elif table.rows == 0:
            raise Broken(f"an unfinished candidate is live on {alias}")
        elif (
            truth.whole is not None
            and table.uuid not in truth.touched
            and (table.rows, table.content) not in truth.whole
        ):
            raise Broken(f"rows are missing or doubled in what is live on {alias}")


def _judge_record(truth: Truth, record: AuthorityRecord, swaps: Counter[str]) -> None:
    # Not the record's own word for it, which a planted bug may have changed.
    published = record.phase in PUBLISHED_PHASES
    if published and not all(_is_new(record, alias, table) for alias, table in truth.live.items()):
        raise Broken("recorded as published, but a replica does not have the new data")
    if published and not record.disarmed and record.publication is not None:
        if record.publication.token in truth.unfinished:
            raise Broken("recorded as published, but a replica still works on the swap")
        if record.publication.receipt is None:
            raise Broken("recorded as published without a terminal receipt")
    if record.phase is Phase.ABORTED and swaps[record.operation_id[:16]] and not record.disarmed:
        raise Broken("recorded as given up, but its swap was sent and can still run")
    closed = {s.uuid for s in record.settled if s.outcome is Phase.ABORTED}
    if record.phase is Phase.ABORTED:
        closed.add(record.desired.uuid)
    # What was published before a rollback to it was given up may go live by the next one.
    closed -= {s.uuid for s in record.settled if s.outcome in PUBLISHED_PHASES}
    tables = {uuid for generation in closed for uuid in truth.tables(generation)} - {*truth.before}
    if any(table is not None and table.uuid in tables for table in truth.live.values()):
        raise Broken("recorded as not published, but its data went live")
    if isinstance(record, IndependentRecord):
        _judge_candidates(truth, record)


def _is_new(record: AuthorityRecord, alias: str, table: TableLike | None) -> bool:
    """Tell whether a replica's live table is its own table of the record's new generation."""
    new = record.desired.on(alias)
    return table is not None and new is not None and table.uuid == new.uuid


def _judge_candidates(truth: Truth, record: IndependentRecord) -> None:
    """What has the candidate's name is the replica's own proven table, and holds what was sealed, once."""
    if record.phase not in STAGE_PHASES and record.phase is not Phase.PREPARED:
        return
    new_tables = record.desired.uuids - {*truth.before} if record.phase is Phase.PREPARED else frozenset()
    if truth.ready is not None and not new_tables <= {*truth.ready}:
        raise Broken("prepared, and a replica was not recorded as ready")
    for alias, table in truth.candidates.items():
        stage, new = record.stage_of(alias), record.desired.on(alias)
        if record.phase is Phase.PREPARED:
            own = new.uuid if new is not None else None
        else:
            own = stage.uuid if stage is not None and stage.state is not StageState.CLAIMED else None
        if table is None:
            if record.phase is Phase.PREPARED and own not in truth.lost:
                raise Broken(f"prepared, but {alias} has no candidate")
            continue
        if table.uuid != own:
            raise Broken(f"a table that is not proven has the candidate's name on {alias}")
        sealed = (record.content.rows, record.content.sha256)
        if table.uuid not in truth.touched and (table.rows, table.content) != sealed:
            raise Broken(f"the candidate on {alias} does not hold exactly what was sealed")


def judge_baseline(truth: Truth) -> None:
    """Judge, where an artifact was bound just now, that the live tables were compared and are alike.

    :raises Broken: nobody knows which of them is right, and they are to be replaced.
    """
    record = truth.record
    if not isinstance(record, IndependentRecord) or record.predecessor is None:
        return
    found = {
        (table.rows, content_digest(table.content))
        for alias, table in truth.live.items()
        for own in [record.predecessor.on(alias)]
        if table is not None and own is not None and table.uuid == own.uuid
    }
    baseline = record.baseline
    if found != ({(baseline.rows, baseline.sha256)} if baseline else None):
        raise Broken("an artifact was bound though the live tables differ, or were not compared")


def judge_drop(truth: Truth, alias: str, uuid: str, strangers: Collection[str] = ()) -> None:
    """Judge that ``alias`` dropped the table ``uuid``.

    :param strangers: UUIDs of tables that are not ours.
    :raises Broken: it must not have been dropped.
    """
    if uuid in strangers:
        raise Broken(f"{alias} dropped a stranger's table")
    for other, live in truth.live.items():
        if live is not None and live.uuid == uuid:
            raise Broken(f"{alias} dropped what is live on {other}")
    if truth.listed is not None and uuid not in truth.listed:
        raise Broken(f"{alias} dropped a table that no record listed")
    record = truth.record
    if record is None or record.phase not in UNRESOLVED_PHASES:
        return
    if uuid in record.desired.uuids:
        raise Broken("an unresolved operation's new generation was dropped")
    if record.predecessor is not None and uuid in record.predecessor.uuids:
        raise Broken("an unresolved operation's predecessor was dropped")
    if isinstance(record, IndependentRecord) and uuid in {stage.uuid for stage in record.stages}:
        raise Broken("what is being staged was dropped")


def judge_success(truth: Truth, receipt: object, *, uuid: str, rows: int, content: str) -> None:
    """Success is said only when every replica has the new data, unless a later run replaced it.

    :param uuid: of the generation that the receipt's operation staged, with its ``rows`` and ``content``.
    :raises Broken: a replica does not have it.
    """
    if not isinstance(receipt, PublicationReceipt):
        return
    if truth.record is None:
        raise Broken("success was said, but there is no record")
    if truth.record.operation_id != receipt.operation_id:
        return
    if truth.record.desired.uuid != uuid:
        raise Broken("success was said for another generation than was staged")
    for alias, live in truth.live.items():
        if live is None or not _is_new(truth.record, alias, live):
            raise Broken(f"success was said, but {alias} does not have the new data")
        if (live.rows, live.content) != (rows, content):
            raise Broken(f"success was said, but {alias} has other content")


HOLDS: Mapping[Phase, frozenset[Code]] = {
    # Refused before the dispatch; the next run supersedes it.
    Phase.PREPARED: frozenset({Code.CONTENT_DIFFERS, Code.CANDIDATE_DIFFERS}),
    # The permit was claimed and its holder is gone without a word, or the queue forgot the entry. Something
    # on the way repeated the statement. Or an operator's command was interrupted.
    Phase.DISPATCHING: frozenset({Code.ENTRY_NOT_SEEN, Code.ENTRY_AMBIGUOUS, Code.RESOLVING}),
    Phase.BOUND: frozenset({Code.ENTRY_NOT_SEEN, Code.ENTRY_AMBIGUOUS, Code.RESOLVING}),
    # Ended on every replica, not live on every replica.
    Phase.TERMINAL: frozenset(
        {Code.PARTIAL_TERMINAL, Code.FAILED_EVERYWHERE, Code.SWAPPED_BACK, Code.RESOLVING}
    ),
}
"""The named holds: why an operation may still hold the target when all faults are over, by phase."""


def judge_hold(phase: Phase, told: Code | None) -> None:
    """Judge why an operation holds the target though all faults are over.

    :param told: the last reason that its task was given.
    :raises Broken: nobody was told, or the reason is not one of the named holds.
    """
    if phase is Phase.COMMITTED:
        raise Broken("a committed publication did not end though nothing is in its way")
    if told is None:
        raise Broken(f"the target is held in {phase} and nobody was told why")
    if told not in HOLDS[phase]:
        raise Broken(f"the target is held in {phase} by {told}")
