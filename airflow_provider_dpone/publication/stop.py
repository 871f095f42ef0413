"""Why a route stopped: one value that becomes exception, log line, receipt, CLI output and web page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import Final, NamedTuple

from airflow_provider_dpone.publication.canonical import Json


@unique
class Category(StrEnum):
    """What kind of stop this is; it decides what Airflow does with the task."""

    REFUSED = "refused"
    """Nothing was changed and a retry would meet the same answer: fail without retry."""
    RETRYABLE = "retryable"
    """Nothing is lost and a retry observes first: let Airflow retry."""
    CONFLICT = "conflict"
    """Another operation holds the target: fail, or wait for it (``on_busy``)."""
    IN_PROGRESS = "in_progress"
    """The original work is running: wait for it, never send it again."""
    NOT_OBSERVED = "not_observed"
    """A fact could not be read: wait and read again, touch nothing."""
    CONTRADICTION = "contradiction"
    """Facts exclude each other or something foreign stands there: hold for a person."""
    PARTIAL_TERMINAL = "partial_terminal"
    """The work ended and not every replica has the new data: hold, both generations are kept."""


ANSWERS_ALIKE: Final = frozenset({Category.REFUSED, Category.CONTRADICTION})
"""A retry would meet the same answer: only for such reasons an operation is given up before it is sent."""


class CodeMeaning(NamedTuple):
    """What a code stands for and what is safe to do next."""

    category: Category
    meaning: str
    next_action: str


_PREFIX = "DPONE_CLICKHOUSE_CLUSTER_"


@unique
class Code(StrEnum):
    """Stable codes of the cluster refresh. ``MEANINGS`` has a row for each."""

    UNKNOWN_CLUSTER = _PREFIX + "UNKNOWN"
    UNSUPPORTED_TOPOLOGY = _PREFIX + "UNSUPPORTED_TOPOLOGY"
    REPLICATION_MODE_MISMATCH = _PREFIX + "REPLICATION_MODE_MISMATCH"
    REPLICA_UNAVAILABLE = _PREFIX + "REPLICA_UNAVAILABLE"
    REPLICAS_NOT_DISTINCT = _PREFIX + "REPLICAS_NOT_DISTINCT"
    REPLICA_CONNECTION_WRONG = _PREFIX + "REPLICA_CONNECTION_WRONG"
    INTERSERVER_SECRET_MISSING = _PREFIX + "INTERSERVER_SECRET_MISSING"
    UNSUPPORTED_DATABASE = _PREFIX + "UNSUPPORTED_DATABASE"
    UNSUPPORTED_TARGET = _PREFIX + "UNSUPPORTED_TARGET"
    TARGET_NOT_UNIFORM = _PREFIX + "TARGET_NOT_UNIFORM"
    TARGET_EQUALS_CANDIDATE = _PREFIX + "TARGET_EQUALS_CANDIDATE"
    STRUCTURE_MISSING = _PREFIX + "STRUCTURE_MISSING"
    STRUCTURE_REFUSED = _PREFIX + "STRUCTURE_REFUSED"
    SCHEMA_MISMATCH = _PREFIX + "SCHEMA_MISMATCH"
    TYPE_NOT_EXACT = _PREFIX + "TYPE_NOT_EXACT"
    MISSING_GRANT = _PREFIX + "MISSING_GRANT"
    BAD_INPUT = _PREFIX + "BAD_INPUT"
    DEPENDENTS_REFUSED = _PREFIX + "DEPENDENTS_REFUSED"
    CAPABILITY_MISSING = _PREFIX + "CAPABILITY_MISSING"
    CONTROL_TABLE_MISSING = _PREFIX + "CONTROL_TABLE_MISSING"
    CONTROL_TABLE_INVALID = _PREFIX + "CONTROL_TABLE_INVALID"
    CONTROL_TABLE_LOST = _PREFIX + "CONTROL_TABLE_LOST"
    CONTROL_TABLE_NOT_SHARED = _PREFIX + "CONTROL_TABLE_NOT_SHARED"
    FOREIGN_AUTHORITY = _PREFIX + "FOREIGN_AUTHORITY"
    RECORD_INVALID = _PREFIX + "RECORD_INVALID"
    RECORD_NEWER = _PREFIX + "RECORD_NEWER"
    RECORD_TOO_LARGE = _PREFIX + "RECORD_TOO_LARGE"
    TARGET_BUSY = _PREFIX + "TARGET_BUSY"
    IDENTITY_REUSED = _PREFIX + "IDENTITY_REUSED"
    SUPERSEDED = _PREFIX + "SUPERSEDED"
    NOT_STAGED = _PREFIX + "NOT_STAGED"
    OLDER_THAN_PUBLISHED = _PREFIX + "OLDER_THAN_PUBLISHED"
    TARGET_MOVED = _PREFIX + "TARGET_MOVED"
    SOURCE_TOO_LARGE = _PREFIX + "SOURCE_TOO_LARGE"
    SOURCE_FAILED = _PREFIX + "SOURCE_FAILED"
    VALUE_REFUSED = _PREFIX + "VALUE_REFUSED"
    ROWS_DISAGREE = _PREFIX + "ROWS_DISAGREE"
    STAGING_FAILED = _PREFIX + "STAGING_FAILED"
    STAGING_UNKNOWN = _PREFIX + "STAGING_UNKNOWN"
    CANDIDATE_NOT_READY = _PREFIX + "CANDIDATE_NOT_READY"
    CANDIDATE_DIFFERS = _PREFIX + "CANDIDATE_DIFFERS"
    CONTENT_DIFFERS = _PREFIX + "CONTENT_DIFFERS"
    TOO_MANY_RETAINED = _PREFIX + "TOO_MANY_RETAINED"
    GUARD_EMPTY = _PREFIX + "GUARD_EMPTY"
    GUARD_MIN_ROWS = _PREFIX + "GUARD_MIN_ROWS"
    GUARD_MAX_SHRINK = _PREFIX + "GUARD_MAX_SHRINK"
    CAS_CONFLICT = _PREFIX + "CAS_CONFLICT"
    CAS_OUTCOME_UNKNOWN = _PREFIX + "CAS_OUTCOME_UNKNOWN"
    AUTHORITY_UNAVAILABLE = _PREFIX + "AUTHORITY_UNAVAILABLE"
    SERVER_UNAVAILABLE = _PREFIX + "SERVER_UNAVAILABLE"
    SERVER_ERROR = _PREFIX + "SERVER_ERROR"
    EVIDENCE_UNAVAILABLE = _PREFIX + "EVIDENCE_UNAVAILABLE"
    ARTIFACT_UNAVAILABLE = _PREFIX + "ARTIFACT_UNAVAILABLE"
    ARTIFACT_MISSING = _PREFIX + "ARTIFACT_MISSING"
    ARTIFACT_DIFFERS = _PREFIX + "ARTIFACT_DIFFERS"
    STATEMENT_REFUSED = _PREFIX + "STATEMENT_REFUSED"
    ENTRY_NOT_SEEN = _PREFIX + "ENTRY_NOT_SEEN"
    ENTRY_UNREADABLE = _PREFIX + "ENTRY_UNREADABLE"
    ENTRY_AMBIGUOUS = _PREFIX + "ENTRY_AMBIGUOUS"
    ENTRY_CHANGED = _PREFIX + "ENTRY_CHANGED"
    ENTRY_MALFORMED = _PREFIX + "ENTRY_MALFORMED"
    IN_PROGRESS = _PREFIX + "IN_PROGRESS"
    PARTIAL_IN_PROGRESS = _PREFIX + "PARTIAL_IN_PROGRESS"
    REPLICA_NOT_OBSERVED = _PREFIX + "REPLICA_NOT_OBSERVED"
    GENERATION_UNKNOWN = _PREFIX + "GENERATION_UNKNOWN"
    INVENTORY_DRIFT = _PREFIX + "INVENTORY_DRIFT"
    RESOLVING = _PREFIX + "RESOLVING"
    NOT_RESOLVABLE = _PREFIX + "NOT_RESOLVABLE"
    PARTIAL_TERMINAL = _PREFIX + "PARTIAL_TERMINAL"
    FAILED_EVERYWHERE = _PREFIX + "FAILED_EVERYWHERE"
    SWAPPED_BACK = _PREFIX + "SWAPPED_BACK"
    NOT_COMMITTED = _PREFIX + "NOT_COMMITTED"
    CLEANUP_PENDING = _PREFIX + "CLEANUP_PENDING"
    CLEANUP_UNSAFE = _PREFIX + "CLEANUP_UNSAFE"

    @property
    def category(self) -> Category:
        """The category, which decides what Airflow does."""
        return MEANINGS[self].category


_R, _T, _C = Category.REFUSED, Category.RETRYABLE, Category.CONTRADICTION
_N, _P = Category.NOT_OBSERVED, Category.PARTIAL_TERMINAL

_WAIT = "Wait; a later try observes again. Don't run EXCHANGE or RENAME by hand."
_FIX_CONFIG = "Correct the DAG, the connection or the cluster's configuration and run the task again."

MEANINGS: Mapping[Code, CodeMeaning] = {
    Code.UNKNOWN_CLUSTER: CodeMeaning(_R, "The server has no cluster of that name.", _FIX_CONFIG),
    Code.UNSUPPORTED_TOPOLOGY: CodeMeaning(
        _R, "The cluster is not one shard with at least two distinct replicas.", _FIX_CONFIG
    ),
    Code.REPLICATION_MODE_MISMATCH: CodeMeaning(
        _R, "replication_mode and the cluster's internal_replication don't agree.", _FIX_CONFIG
    ),
    Code.REPLICA_UNAVAILABLE: CodeMeaning(
        _T,
        "A replica can't be reached, so nothing was started.",
        "Bring the replica back; then a retry starts. Nothing was changed.",
    ),
    Code.REPLICAS_NOT_DISTINCT: CodeMeaning(
        _R,
        "Two entries of the cluster answer as the same server.",
        "Correct the cluster's remote_servers: each replica must be its own server.",
    ),
    Code.REPLICA_CONNECTION_WRONG: CodeMeaning(
        _R,
        "The direct connection of a replica leads to another server, or logs in as another user.",
        "Correct 'replicas' in the connection's extra; without it, the replicas' names in remote_servers must lead "
        "from Airflow to themselves.",
    ),
    Code.INTERSERVER_SECRET_MISSING: CodeMeaning(
        _R,
        "Queries to the other replicas don't run as the connection's user.",
        "Set <secret> for the cluster in remote_servers on every replica.",
    ),
    Code.UNSUPPORTED_DATABASE: CodeMeaning(
        _R, "The database is missing on a replica or its engine is not Atomic.", _FIX_CONFIG
    ),
    Code.UNSUPPORTED_TARGET: CodeMeaning(
        _R,
        "The target is of a kind that can't be replaced safely.",
        "Publish to a plain ReplicatedMergeTree table without row-changing TTL.",
    ),
    Code.TARGET_NOT_UNIFORM: CodeMeaning(
        _C,
        "The target differs between replicas.",
        "Find out which replica is right (airflow dpone preflight shows them) and repair the others first.",
    ),
    Code.TARGET_EQUALS_CANDIDATE: CodeMeaning(
        _C,
        "Target and candidate are the same table.",
        "Report this with the receipt; publish nothing by hand.",
    ),
    Code.STRUCTURE_MISSING: CodeMeaning(
        _R,
        "The target doesn't exist and no structure was given.",
        "Give structure=TableStructure(...) or ddl=; the message suggests one.",
    ),
    Code.STRUCTURE_REFUSED: CodeMeaning(
        _R, "The given structure can't be used.", "Correct structure= or ddl=."
    ),
    Code.SCHEMA_MISMATCH: CodeMeaning(
        _R,
        "The source's columns and the table's columns don't match by name.",
        "Select exactly the table's columns, or choose on_schema_change.",
    ),
    Code.TYPE_NOT_EXACT: CodeMeaning(
        _R,
        "A source column's type can't be carried exactly into the table's type.",
        "Cast the column in the source query, or change the table's type.",
    ),
    Code.MISSING_GRANT: CodeMeaning(
        _R, "The user lacks a grant.", "Grant what the message names (docs/grants.md has the whole list)."
    ),
    Code.BAD_INPUT: CodeMeaning(_R, "An argument is missing or out of range.", "Correct the argument."),
    Code.DEPENDENTS_REFUSED: CodeMeaning(
        _R,
        "Objects depend on the target and on_dependents is 'refuse'.",
        "Look at the listed objects; set on_dependents='report' if they may follow the name.",
    ),
    Code.CAPABILITY_MISSING: CodeMeaning(
        _R, "The server lacks a capability that the protocol needs.", _FIX_CONFIG
    ),
    Code.CONTROL_TABLE_MISSING: CodeMeaning(
        _R,
        "The control table doesn't exist on every replica.",
        "Run `airflow dpone init` once for this cluster.",
    ),
    Code.CONTROL_TABLE_INVALID: CodeMeaning(
        _C,
        "The control table has another structure, Keeper path or authority than expected.",
        "Don't drop it. Compare it with `airflow dpone init --print-sql`.",
    ),
    Code.CONTROL_TABLE_LOST: CodeMeaning(
        _C,
        "Traces of earlier publications exist, but the control table doesn't know them.",
        "Stop publishing to this cluster. Restore the control table from Keeper's backup; if there is none, "
        "`airflow dpone init --recover` replaces it (docs/runbook.md).",
    ),
    Code.CONTROL_TABLE_NOT_SHARED: CodeMeaning(
        _N,
        "The replicas don't read the same control record.",
        "Check keeper_map_path_prefix and Keeper on every replica, then run the task again.",
    ),
    Code.FOREIGN_AUTHORITY: CodeMeaning(
        _C,
        "The live table was published under another control table.",
        "Find out which control table owns this target before publishing to it. If that one was lost, "
        "docs/runbook.md says how it is recovered.",
    ),
    Code.RECORD_INVALID: CodeMeaning(
        _C,
        "The target's record can't be read.",
        "Don't edit the control table. Keep the row and report it.",
    ),
    Code.RECORD_NEWER: CodeMeaning(
        _R, "The target's record was written by a newer release.", "Upgrade the provider on this worker."
    ),
    Code.RECORD_TOO_LARGE: CodeMeaning(
        _R,
        "The target's record would not fit its bound.",
        "Let it list fewer tables: `airflow dpone abandon` what is not to be published, shorten retain_predecessor, or "
        "wait until kept tables are dropped. Otherwise shorten the names or the table's definition.",
    ),
    Code.TARGET_BUSY: CodeMeaning(
        Category.CONFLICT,
        "Another operation holds the target.",
        "Let that operation finish (or clear its publish task), then run this one.",
    ),
    Code.IDENTITY_REUSED: CodeMeaning(
        _R,
        "This operation was already published; staging again would not be new data.",
        "Clear the stage task to make a new operation, or set the run parameter new_operation.",
    ),
    Code.SUPERSEDED: CodeMeaning(
        _R,
        "A later operation took the target's slot before this one was dispatched.",
        "Nothing to repair: the later data wins. Run the DAG again if this data must go live.",
    ),
    Code.NOT_STAGED: CodeMeaning(
        _R, "The control table has no staged operation to publish.", "Run the stage task first."
    ),
    Code.OLDER_THAN_PUBLISHED: CodeMeaning(
        _R,
        "The data is older than what is published.",
        "Set allow_older=True if the older data must go live.",
    ),
    Code.TARGET_MOVED: CodeMeaning(
        _R,
        "The target or its record changed after this operation began to stage.",
        "Nothing was undone. Clear the stage task if this run's data must go live over the newer state.",
    ),
    Code.SOURCE_TOO_LARGE: CodeMeaning(
        _R, "The source is larger than max_source_bytes.", "Raise max_source_bytes or reduce the source."
    ),
    Code.SOURCE_FAILED: CodeMeaning(
        _T,
        "The source ended in an error. The target is untouched.",
        "Repair the source; a retry stages again.",
    ),
    Code.VALUE_REFUSED: CodeMeaning(
        _R,
        "The source holds a value that doesn't fit its column exactly.",
        "Correct the value, cast it in the source, or widen the column.",
    ),
    Code.ROWS_DISAGREE: CodeMeaning(
        _T, "Rows sent and rows stored don't agree. The target is untouched.", "A retry stages again."
    ),
    Code.STAGING_FAILED: CodeMeaning(
        _T, "Staging failed. The target is untouched.", "Look at the named error; a retry stages again."
    ),
    Code.STAGING_UNKNOWN: CodeMeaning(
        _T,
        "The outcome of a staging statement is unknown. The target is untouched.",
        "A retry stages into a new candidate; the old one is kept until it is proven harmless.",
    ),
    Code.CANDIDATE_NOT_READY: CodeMeaning(
        _T,
        "The candidate did not become complete on every replica in time.",
        "Check replication of the named replicas; a retry stages again.",
    ),
    Code.CANDIDATE_DIFFERS: CodeMeaning(
        _R,
        "The created candidate is not what was asked for.",
        "Compare the named clauses; the server may rewrite one of them.",
    ),
    Code.CONTENT_DIFFERS: CodeMeaning(
        _C,
        "The candidate's content is not the staged content on every replica.",
        "Nothing was published. Clear the stage task to stage again.",
    ),
    Code.TOO_MANY_RETAINED: CodeMeaning(
        _R,
        "So many replaced tables are kept for this target that another one could not be listed.",
        "Find out why they are not dropped (the cleanup task says it), or shorten retain_predecessor.",
    ),
    Code.GUARD_EMPTY: CodeMeaning(
        _R, "The candidate is empty.", "Set allow_empty=True if an empty table must go live."
    ),
    Code.GUARD_MIN_ROWS: CodeMeaning(_R, "The candidate has fewer rows than min_rows.", "Check the source."),
    Code.GUARD_MAX_SHRINK: CodeMeaning(
        _R, "The candidate is smaller than the live table by more than max_shrink.", "Check the source."
    ),
    Code.CAS_CONFLICT: CodeMeaning(
        _T, "Another worker changed the record first.", "A retry reads the record and goes on from there."
    ),
    Code.CAS_OUTCOME_UNKNOWN: CodeMeaning(
        _T,
        "The reply to a compare-and-swap was lost, so no permission to publish was given.",
        "A retry reads the record and goes on from there. Nothing was published by this try.",
    ),
    Code.AUTHORITY_UNAVAILABLE: CodeMeaning(
        _N, "The control table can't be read (Keeper unavailable).", "Restore Keeper; then a retry observes."
    ),
    Code.SERVER_UNAVAILABLE: CodeMeaning(
        _T, "The server can't be reached.", "Check the connection; a retry observes first."
    ),
    Code.SERVER_ERROR: CodeMeaning(
        _T, "The server answered with an error.", "Look up the error's name; a retry observes first."
    ),
    Code.EVIDENCE_UNAVAILABLE: CodeMeaning(
        _T, "The evidence store can't be written.", "Restore it; a retry resumes from the recorded state."
    ),
    Code.ARTIFACT_UNAVAILABLE: CodeMeaning(
        _T,
        "The artifact store can't be used. The target is untouched.",
        "Restore it, or give it room; a retry goes on from the recorded state.",
    ),
    Code.ARTIFACT_MISSING: CodeMeaning(
        _T,
        "The sealed artifact is not in the artifact store. The target is untouched.",
        "Check that every worker has the same [dpone] artifact_path; a retry looks again. If the artifact is gone, "
        "clear the stage task: the source is read anew.",
    ),
    Code.ARTIFACT_DIFFERS: CodeMeaning(
        _C,
        "The stored artifact is not the bytes that were sealed. The target is untouched.",
        "Find out what changed the artifact store. Then clear the stage task: the source is read anew.",
    ),
    Code.STATEMENT_REFUSED: CodeMeaning(
        _T,
        "The server refused the statement before it entered the queue; nothing was changed.",
        "Remove the named cause, such as a missing grant; a retry prepares the statement again.",
    ),
    Code.ENTRY_NOT_SEEN: CodeMeaning(
        _N,
        "The statement was sent, but its queue entry is not seen.",
        _WAIT
        + " It will not be sent again. If the entry stays away, `airflow dpone resolve` ends the operation.",
    ),
    Code.ENTRY_UNREADABLE: CodeMeaning(
        _N, "A replica's queue status can't be read as an outcome.", _WAIT + " It will not be sent again."
    ),
    Code.ENTRY_AMBIGUOUS: CodeMeaning(
        _C,
        "More than one queue entry carries this operation's token.",
        "Keep both tables. Find out who repeated the statement (a proxy?) before anything else.",
    ),
    Code.ENTRY_CHANGED: CodeMeaning(
        _C, "The bound queue entry holds another statement or other hosts.", "Keep both tables; ask for help."
    ),
    Code.ENTRY_MALFORMED: CodeMeaning(
        _C, "The queue reports a status that contradicts itself.", "Keep both tables; ask for help."
    ),
    Code.IN_PROGRESS: CodeMeaning(Category.IN_PROGRESS, "The replicas are working on the swap.", _WAIT),
    Code.PARTIAL_IN_PROGRESS: CodeMeaning(
        Category.IN_PROGRESS,
        "Some replicas have the new data, the others still have to follow.",
        "Wait: the others follow by themselves when they return. Don't swap by hand, it would be undone.",
    ),
    Code.REPLICA_NOT_OBSERVED: CodeMeaning(
        _N, "A replica can't be read, so nothing is said about it.", _WAIT
    ),
    Code.GENERATION_UNKNOWN: CodeMeaning(
        _C,
        "A table is missing or is neither the old nor the new generation.",
        "Keep every table. Find out who changed it; publish nothing by hand.",
    ),
    Code.INVENTORY_DRIFT: CodeMeaning(
        _C,
        "The cluster's replicas are not those that were admitted.",
        "Restore the configuration of remote_servers. If a replica is gone for ever, `airflow dpone resolve --retire` "
        "ends the operation without it; `airflow dpone explain` shows the command.",
    ),
    Code.RESOLVING: CodeMeaning(
        Category.IN_PROGRESS,
        "An operator began to resolve the operation, and has not ended it yet.",
        "Let `airflow dpone resolve` end. If it was interrupted, run it again: it goes on where it stopped.",
    ),
    Code.NOT_RESOLVABLE: CodeMeaning(
        _R,
        "The operation is in no state that this command may end.",
        "Run `airflow dpone explain`: it says what is safe next.",
    ),
    Code.PARTIAL_TERMINAL: CodeMeaning(
        _P,
        "The swap has ended and only some replicas have the new data. Both generations are kept.",
        "Never repeat the swap on the cluster: it would undo the others. `airflow dpone explain` shows the repair of "
        "each replica; then `airflow dpone resolve`.",
    ),
    Code.FAILED_EVERYWHERE: CodeMeaning(
        _P,
        "The swap has ended with an error and no replica has the new data. Readers see the old data.",
        "Look at the error per replica. Both tables are kept; `airflow dpone resolve` ends the operation.",
    ),
    Code.SWAPPED_BACK: CodeMeaning(
        _C,
        "The queue says success, but every replica holds the old data again.",
        "Keep both tables. Find out what happened (a replica that restarts may repeat an entry); then "
        "`airflow dpone resolve` ends the operation.",
    ),
    Code.NOT_COMMITTED: CodeMeaning(
        _R,
        "The publication is not proven, so nothing may be cleaned up.",
        "Let the publish task finish first.",
    ),
    Code.CLEANUP_PENDING: CodeMeaning(
        _T,
        "The publication is successful; the predecessor is not yet dropped everywhere.",
        "Nothing is at risk. A retry or the next run drops it.",
    ),
    Code.CLEANUP_UNSAFE: CodeMeaning(
        _C,
        "The table under the predecessor's name is not the predecessor.",
        "The publication is successful. Keep the table and find out what it is. Where the predecessor is still there "
        "on other replicas, rename the other table away: then it is dropped. Where it is gone, `airflow dpone orphans "
        "--forget` strikes it off the record.",
    ),
}


@dataclass(frozen=True, slots=True)
class Stop:
    """A reason to stop: what happened, to what, what is known per replica, and what to do next.

    :ivar code: stable, for programs.
    :ivar message: one or two plain sentences, for people; no host, SQL text, secret or row value.
    :ivar facts: further facts, JSON values.
    :ivar replicas: facts per replica alias.
    :ivar next_action: the safe next step; the code's own one unless the case knows better.
    """

    code: Code
    message: str
    facts: Mapping[str, Json] = field(default_factory=dict)
    replicas: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    next_action: str = ""

    def __post_init__(self) -> None:
        if not self.next_action:
            object.__setattr__(self, "next_action", MEANINGS[self.code].next_action)

    @property
    def category(self) -> Category:
        """The category of the code."""
        return self.code.category

    @property
    def passing(self) -> bool:
        """Whether looking again may help: nothing is known to stand in the way for good."""
        return self.category in (Category.RETRYABLE, Category.NOT_OBSERVED)

    def as_json(self) -> dict[str, Json]:
        """Return the stop as a JSON object, as receipts and ``--output json`` show it."""
        return {
            "code": self.code.value,
            "category": self.category.value,
            "message": self.message,
            "next_action": self.next_action,
            "facts": dict(self.facts),
            "replicas": {alias: dict(facts) for alias, facts in self.replicas.items()},
        }

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}", f"Next: {self.next_action}"]
        lines += [
            f"  {alias}: " + ", ".join(f"{key}={value}" for key, value in facts.items())
            for alias, facts in self.replicas.items()
        ]
        if self.facts:
            lines.append("Facts: " + ", ".join(f"{key}={value}" for key, value in self.facts.items()))
        return "\n".join(lines)


class Stopped(Exception):
    """Raised by a route that stopped; carries the :class:`Stop`."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop)
        self.stop = stop

    def __str__(self) -> str:
        return str(self.stop)
