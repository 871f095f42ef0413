"""The one checker: what must never be seen in a history, whatever went wrong in it.

Pure, so that planted histories can prove that it finds each violation.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tests.cluster import LoggedStatement, Outcome
from tests.scenarios import outcome as ended
from tests.scenarios.history import History, Seen, Snapshot

_TOKEN = re.compile(r"dpone1:(?P<operation>[0-9a-f]{16}):(?P<action>\w+):(?P<epoch>\d+):[0-9a-f]+")
_OURS = re.compile(r"__dpone_[0-9a-f]+(_parked)?$")
_INSERTED = re.compile(
    r"\s*INSERT INTO\s+(?:`[^`]+`|\w+)\.`?(\w+__dpone_[0-9a-f]+)`?[^)]*\)\s*(?:SETTINGS\b.*?)?(FORMAT Native\b)?",
    re.IGNORECASE | re.DOTALL,
)
"""An INSERT into a table of ours: its name, and whether the rows are an artifact's."""
_DROPPED = re.compile(r"^\s*DROP TABLE\s+(?:IF EXISTS\s+)?(`[^`]+`|\w+)\.(`[^`]+`|\w+)", re.IGNORECASE)
_STAGING = ("LOCKED", "STAGING")
_UNENDED = ("PREPARED", "DISPATCHING", "BOUND", "TERMINAL", "COMMITTED")
_WITHOUT_CODE = (ended.Outcome.KILLED, ended.Outcome.DEFERRED)
HELD = (*_STAGING, "DISPATCHING", "BOUND", "TERMINAL")
"""The phases in which an operation holds the target, and ``explain`` says why."""
_GOES_ON = {"retry", "resolve", "stage on"}


def check(history: History) -> list[str]:
    """Return every violation, in words; none for a history that is as it must be."""
    return [found for invariant in INVARIANTS for found in invariant(history)]


def one_swap_per_operation(history: History) -> Iterator[str]:
    """An operation sends its EXCHANGE or RENAME once, unless the first was provably refused before the queue."""
    sent: Counter[str] = Counter()
    for statement, token in _tokens(history):
        refused = statement.outcome is Outcome.ERROR and not statement.entry
        if token["action"] == "publish" and not refused:
            sent[token["operation"]] += 1
    for operation, times in sent.items():
        if times > 1:
            yield f"operation {operation} sent its swap {times} times"


def one_permit_per_epoch(history: History) -> Iterator[str]:
    """An epoch of an operation has one permit, and a permit sends one statement once."""
    tokens: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    sent: Counter[str] = Counter()
    for statement, token in _tokens(history):
        tokens[token["operation"], token["epoch"]].add(statement.log_comment)
        sent[statement.log_comment] += 1
    for (operation, epoch), found in tokens.items():
        if len(found) > 1:
            yield f"epoch {epoch} of operation {operation} gave {len(found)} permits"
    for text, times in sent.items():
        if times > 1:
            yield f"the permit of {text} was used {times} times"
    writers: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for snapshot in history.snapshots:
        record = snapshot.record
        if record is not None and record["phase"] == "DISPATCHING":
            writers[record["operation_id"], record["dispatch_epoch"]].add(snapshot.write_id)
    for entry in history.evidence:
        claim = entry.body
        stored = entry.kind == "compare-and-swap-outcome" and claim["outcome"] == "stored"
        if stored and claim["phase"] == "DISPATCHING":
            writers[entry.operation_id, claim["epoch"]].add(claim["write_id"])
    for (operation, number), found in writers.items():
        if len(found) > 1:
            yield f"epoch {number} of operation {operation[:16]} was claimed by {len(found)} writes"


def one_entry_per_statement(history: History) -> Iterator[str]:
    """A statement is in the queue once, unless the scenario copied it."""
    entries: defaultdict[str, set[str]] = defaultdict(set)
    for row in history.queue:
        comment = row["settings"].get("log_comment", "")
        if _TOKEN.match(comment):
            entries[comment].add(row["entry"])
    for comment, found in entries.items():
        if len(found) > 1 and comment not in history.allowed.copied:
            yield f"{comment} is in the queue as {', '.join(sorted(found))}"


def executed_once(history: History) -> Iterator[str]:
    """No server ran an entry twice, unless the scenario made it."""
    times = Counter((run.node, run.entry) for run in history.executions)
    for (node, entry), count in times.items():
        if count > 1 and node not in history.allowed.twice:
            yield f"node {node} ran {entry} {count} times"


def one_send_per_write(history: History) -> Iterator[str]:
    """A compare-and-swap goes over the wire once."""
    sent = Counter(
        statement.query_id
        for statement in history.statements
        if re.match(r"\s*(ALTER TABLE|INSERT INTO)\b.*authority", statement.text, re.IGNORECASE | re.DOTALL)
    )
    for query_id, times in sent.items():
        if times > 1:
            yield f"the write {query_id} was sent {times} times"


def nothing_foreign_is_destroyed(history: History) -> Iterator[str]:
    """No DELETE; and what is dropped is a candidate's own name: not the live table, not the control table."""
    for statement in history.statements:
        if re.match(
            r"\s*(TRUNCATE|DELETE)\b|.*\bDELETE WHERE\b", statement.text[:2000], re.IGNORECASE | re.DOTALL
        ):
            yield f"sent {statement.kind}"
        dropped = _DROPPED.match(statement.text)
        if dropped and not _OURS.search(dropped[2].strip("`")):
            yield f"dropped {dropped[2]}"


def intent_before_claim(history: History) -> Iterator[str]:
    """Before a statement was sent, the evidence has the claim of its epoch."""
    claims: dict[tuple[str, int], float] = {}
    for entry in history.evidence:
        if entry.kind == "compare-and-swap":
            claims.setdefault((entry.operation_id[:16], int(entry.body["epoch"])), entry.at)
    for statement, token in _tokens(history):
        if token["action"] != "publish":
            continue
        claimed = claims.get((token["operation"], int(token["epoch"])))
        if claimed is None or claimed > statement.started_at:
            yield f"{statement.log_comment} was sent before its claim was in the evidence"


def readers_see_one_generation(history: History) -> Iterator[str]:
    """The live table is always one whole generation, and absent only before the first; it never goes back."""
    order = {name: number for number, name in enumerate(history.generations)}
    for node, seen in history.readers.items():
        if node in history.allowed.by_hand:
            continue
        known: dict[tuple[str, ...], int] = {(): 0}
        known |= {(name,): rows for name, (rows, _) in history.generations.items()}
        before: Seen | None = None
        backwards = 0
        for one in seen:
            match one.kind:
                case "error":
                    yield f"a reader on node {node} got error {one.code}"
                case "down" if node not in history.allowed.down:
                    yield f"a reader on node {node} got no answer"
                case "absent" if before is not None:
                    yield f"the live table vanished on node {node}"
                case "rows" if known.get(one.names) != one.rows:
                    yield f"a reader on node {node} saw {one.rows} rows of {', '.join(one.names) or 'nothing'}"
                case "rows":
                    if before is not None and one.names and before.names:
                        backwards += order[one.names[0]] < order[before.names[0]]
                    before = one
        if backwards and node not in history.allowed.twice:
            yield f"the live table of node {node} went back to an older generation"


def needed_tables_are_kept(history: History) -> Iterator[str]:
    """While an operation is under way both of its generations exist on every replica; so does what is retained."""
    lived: defaultdict[int, set[str]] = defaultdict(set)
    for snapshot in history.snapshots:
        for node, tables in snapshot.tables.items():
            if tables is None or node in history.allowed.by_hand:
                continue
            if history.table in tables:
                lived[node].add(tables[history.table])
            for uuid, what in _needed(snapshot.record, node, lived[node]):
                if uuid not in tables.values():
                    yield f"after '{snapshot.step}' the {what} is gone on node {node}"


def _needed(record: Mapping[str, Any] | None, node: int, lived: Collection[str]) -> Iterator[tuple[str, str]]:
    """The UUIDs that a node must have, and what they are.

    :param lived: what was live on the node at any time.
    """
    if record is None:
        return
    phase = record["phase"]
    if phase in (*_STAGING, *_UNENDED) and record["predecessor"] is not None:
        yield _on(record["predecessor"], node), "old generation"
    if phase in _UNENDED:
        yield _on(record["desired"], node), "new generation"
    elif phase in ("COMPLETED", "COMPLETED_RETAINING"):
        yield _on(record["desired"], node), "live generation"
    for stage in record["stages"] if phase == "STAGING" else ():
        if stage["alias"] == _alias(node) and stage["state"] != "claimed":
            yield stage["uuid"], "proven table"
    for item in record["retained"]:
        if item["drop"] is not None or item["operation_id"] == record["operation_id"]:
            continue
        uuid = _on(item["generation"], node)
        # Of independent tables the record also lists attempts, which may have been dropped, or never been created.
        if uuid in lived or "tables" not in item["generation"]:
            yield uuid, "retained table"


def _on(generation: Mapping[str, Any], node: int) -> str:
    """The UUID of a generation's table on a node; empty where an independent one has none there."""
    if "tables" not in generation:
        return str(generation["uuid"])
    return next((str(t["uuid"]) for t in generation["tables"] if t["alias"] == _alias(node)), "")


def _alias(node: int) -> str:
    return f"s1/r{node}"


def success_is_proven(history: History) -> Iterator[str]:
    """A publication that succeeded is live on every replica, with exactly the staged content."""
    by_content = {content: name for name, content in history.generations.items()}
    for snapshot in history.snapshots:
        result = snapshot.result
        if result is None or result.task != "publish" or result.outcome is not ended.Outcome.COMMITTED:
            continue
        proven = [replica["after"]["target"] for replica in result.receipt["replicas"]]
        if len(proven) != len(history.nodes):
            yield f"'{snapshot.step}' succeeded on {len(proven)} replicas"
        if len({*proven}) != (len(proven) if history.independent else 1):
            yield f"'{snapshot.step}' succeeded with {len({*proven})} tables on {len(proven)} replicas"
        for node, uuid in zip(history.nodes, proven, strict=False):
            tables, content = snapshot.tables[node], snapshot.digests[node]
            if tables is None:
                yield f"'{snapshot.step}' succeeded while node {node} was down"
            elif tables.get(history.table) != uuid:
                yield f"'{snapshot.step}' succeeded, but node {node} holds another table"
            elif content is None or by_content.get(content) is None:
                yield f"'{snapshot.step}' succeeded, but node {node} holds content that nobody staged"
            elif content[0] != result.receipt["rows"]:
                yield f"'{snapshot.step}' succeeded, but node {node} holds {content[0]} rows"


def nothing_is_held_without_a_reason(history: History) -> Iterator[str]:
    """What failed says why; what holds the target says why, or that a retry goes on."""
    for snapshot in history.snapshots:
        result = snapshot.result
        if result is not None and not (result.ok or result.stop or result.outcome in _WITHOUT_CODE):
            yield f"'{snapshot.step}' ended without a code"
        record = snapshot.record
        if record is None or record["phase"] not in HELD or snapshot.at_work:
            continue
        if not snapshot.held:
            yield f"after '{snapshot.step}' the target is {record['phase']}, and explain sees no hold"
        elif not snapshot.code and not _GOES_ON & set(snapshot.ways):
            yield f"after '{snapshot.step}' the target is held without a code"


def one_record_per_target(history: History) -> Iterator[str]:
    """The control table has one row per target."""
    for snapshot in history.snapshots:
        if snapshot.keys > 1:
            yield f"after '{snapshot.step}' the target has {snapshot.keys} records"


def no_table_without_a_reason(history: History) -> Iterator[str]:
    """At the end each table is live, named by the record, or its creation was written down before."""
    if not history.snapshots:
        return
    last: Snapshot = history.snapshots[-1]
    record = last.record
    explained = {history.table}
    if record is not None:
        explained |= {record["candidate"], *(item["name"] for item in record["retained"])}
    explained |= {str(entry.body.get("table")) for entry in history.evidence if entry.kind == "intent"}
    for node, tables in last.tables.items():
        for name in tables or {}:
            if _OURS.search(name) and name.removesuffix("_parked") not in explained and name not in explained:
                yield f"{name} is left on node {node}, and nothing says why"


def live_rows_were_staged(history: History) -> Iterator[str]:
    """Independent tables, which nothing keeps equal: each live one holds exactly a staged generation, no row twice."""
    if not history.independent:
        return
    known = {*history.generations.values()}
    for snapshot in history.snapshots:
        for node, content in snapshot.digests.items():
            if content is not None and content not in known and node not in history.allowed.by_hand:
                yield f"after '{snapshot.step}' node {node} has {content[0]} live rows that nobody staged so"


def source_is_read_once(history: History) -> Iterator[str]:
    """Once an independent replica is loaded from an operation's artifact, the source is not read for it any more."""
    if not history.independent:
        return
    operations = _attempts(history)
    loaded: set[str] = set()
    for statement in history.statements:
        match = _INSERTED.match(statement.text)
        operation = operations.get(match[1]) if match else None
        if match is None or operation is None:
            continue
        if match[2]:
            loaded.add(operation)
        elif operation in loaded:
            yield f"the source of operation {operation[:16]} was read again after a replica was loaded"


def one_load_per_attempt(history: History) -> Iterator[str]:
    """Nothing is appended: an attempt's private table gets one INSERT."""
    sent: Counter[str] = Counter()
    for statement in history.statements:
        if match := _INSERTED.match(statement.text):
            sent[match[1]] += 1
    for name, times in sent.items():
        if times > 1:
            yield f"{name} was loaded {times} times"


def only_listed_tables_are_dropped(history: History) -> Iterator[str]:
    """What is dropped was written down before; without the queue, only what one attempt had for itself."""
    written = {
        str(entry.body["table"]): entry.at for entry in reversed(history.evidence) if entry.kind == "intent"
    }
    records = [snapshot.record for snapshot in history.snapshots if snapshot.record is not None]
    listed = {record["candidate"] for record in records}
    listed |= {item["name"] for record in records for item in record["retained"]}
    for statement in history.statements:
        dropped = _DROPPED.match(statement.text)
        if dropped is None:
            continue
        name = dropped[2].strip("`").removesuffix("_parked")
        private = written.get(name, statement.started_at) < statement.started_at
        if not private and name not in listed:
            yield f"dropped {name}, which nothing lists"
        elif not private and not statement.on_cluster:
            yield f"dropped {name} on one replica"


def _attempts(history: History) -> dict[str, str]:
    """Name of an attempt's table -> its operation."""
    return {str(e.body["table"]): e.operation_id for e in history.evidence if e.kind == "intent"}


def _tokens(history: History) -> Iterator[tuple[LoggedStatement, re.Match[str]]]:
    for statement in history.statements:
        if (token := _TOKEN.fullmatch(statement.log_comment)) and statement.kind != "SELECT":
            yield statement, token


INVARIANTS: tuple[Callable[[History], Iterator[str]], ...] = (
    one_swap_per_operation,
    one_permit_per_epoch,
    one_entry_per_statement,
    executed_once,
    one_send_per_write,
    nothing_foreign_is_destroyed,
    intent_before_claim,
    readers_see_one_generation,
    needed_tables_are_kept,
    success_is_proven,
    nothing_is_held_without_a_reason,
    one_record_per_target,
    no_table_without_a_reason,
    live_rows_were_staged,
    source_is_read_once,
    one_load_per_attempt,
    only_listed_tables_are_dropped,
)
