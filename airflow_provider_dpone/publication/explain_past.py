"""What the evidence adds to what was read, and what it says where nothing can be read. Pure.

What was written down before is told apart from what is true now: each of its sentences has its time. Where only the
control table can't be read, the tables themselves are looked at, and what readers see is a fact of now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.explain_words import STATES, live_of, readers_in_words, see_together
from airflow_provider_dpone.publication.explanation import (
    NEVER_CREATE,
    NEVER_DROP,
    NEVER_EDIT,
    NEVER_SWAP,
    NEVER_UNLISTED,
    UNKNOWN,
    Explanation,
    Leftover,
    ReplicaExplained,
    Shown,
    Way,
)
from airflow_provider_dpone.publication.facts import Observation, TableFacts
from airflow_provider_dpone.publication.history import Past
from airflow_provider_dpone.publication.identity import parked_name
from airflow_provider_dpone.publication.record import (
    STAGE_PHASES,
    AuthorityRecord,
    IndependentRetained,
    Owner,
    Phase,
    Retained,
)
from airflow_provider_dpone.publication.stop import MEANINGS, Code, Stop
from airflow_provider_dpone.publication.words import joined, when

# ---- beside what was read


def with_past(
    told: Explanation,
    observation: Observation,
    past: Past | None,
    others: Sequence[Past],
    drops: Mapping[str, Mapping[str, int]],
    *,
    name: str,
) -> Explanation:
    """Add what the evidence tells of the operation and of newer ones, and the tables that are left over.

    :param observation: a look that shows every table that a record or an attempt names.
    :param past: of the record's operation.
    :param others: operations that were admitted since and never prepared, the newest first.
    :param drops: how the last drop of a kept table ended: name -> replica -> exception code.
    :param name: of the target.
    """
    left = (
        *_kept(told.record, observation, past, drops),
        *_abandoned(told.record, observation, (*others, *((past,) if past else ()))),
    )
    happened = list(told.happened)
    if past is not None and told.held and told.record is not None and told.record.publication is not None:
        happened += _reply(past)
    if past is not None and told.record is not None and told.record.phase is Phase.ABORTED:
        happened += _why_given_up(past)
    told = replace(told, past=past, others=tuple(others), happened=tuple(happened), leftovers=left)
    if told.held:
        return replace(told, plain=f"{told.plain}{_refused(past, told.owner)}")
    return _free(told, others, name)


def still_there(leftovers: Iterable[Leftover]) -> str:
    """Return what is said of a replaced table that should be gone; empty if there is none."""
    found = [one for one in leftovers if one.kind == "predecessor" and one.why != _KEPT_AS_ASKED]
    return f" The table that it replaced is still there: {'; '.join(map(str, found))}." if found else ""


def _free(told: Explanation, others: Sequence[Past], name: str) -> Explanation:
    """Say what is left to be done on a table that nobody holds."""
    candidates = [one for one in told.leftovers if one.kind == "candidate"]
    plain, ways, never = told.plain, list(told.ways), list(told.never)
    if still := still_there(told.leftovers):
        plain += still
        ways.append(Way.CLEAN_UP)
    if others:
        rest = "" if told.record is None and told.stop is None else f" {plain}"
        plain = (
            f"{name}: the staging{_of(others[0])} did not end; it was heard of last at {when(others[0].at)}. The table "
            f"is untouched.{rest}"
        )
        ways.append(Way.STAGE)
    if candidates or still:
        never.append(NEVER_UNLISTED)
    if len(ways) > 1:
        ways = [way for way in ways if way is not Way.NOTHING]
    if told.record is None and others:
        told = replace(told, past=others[0], others=tuple(others[1:]), summary=_summary(others[0]))
    return replace(told, plain=plain, ways=tuple(ways), never=tuple(never))


def _of(past: Past) -> str:
    return f" of DAG {past.owner.dag_id}, run {past.owner.run_id}" if past.owner else ""


def _refused(past: Past | None, owner: Owner | None) -> str:
    """Return in words that others were refused meanwhile; whoever was cleared is named first."""
    if past is None or not past.refused:
        return ""
    if any(one.owner == owner for one in past.refused):
        return (
            " Its stage task was cleared while it was not resolved: the new operation was refused before its "
            "source was read."
        )
    return (
        f" Meanwhile {len(past.refused)} other was refused, before its source was read."
        if len(past.refused) == 1
        else f" Meanwhile {len(past.refused)} others were refused, before their sources were read."
    )


def _reply(past: Past) -> Iterator[str]:
    if past.reply == "lost" and past.replied_at is not None:
        yield f"The reply of the statement was lost at {when(past.replied_at)}: the queue and the tables tell."
    elif past.reply is None:
        yield "No reply of the statement was written down, as when its worker dies: the queue and the tables tell."


def _why_given_up(past: Past) -> Iterator[str]:
    why = past.given_up
    if why is None:
        return
    if why.code is None:
        yield f"An operator ended it at {when(why.at)}: {why.reason}"
    elif why.code in Code.__members__:
        code = Code[why.code]
        yield f"The reason was written down at {when(why.at)}: {MEANINGS[code].meaning} ({code.value})"


_KEPT_AS_ASKED = "it is kept for as long as retain_predecessor asks"


def _kept(
    record: AuthorityRecord | None,
    observation: Observation,
    past: Past | None,
    drops: Mapping[str, Mapping[str, int]],
) -> Iterator[Leftover]:
    for item in record.retained if record is not None else ():
        seen = _where(observation, item.name, item.generation.uuids)
        if seen:
            why = _other_beside(observation, item) or _why_kept(
                item, past, drops.get(item.name, {}), observation.server_time
            )
            kind: Literal["predecessor", "candidate"] = (
                "candidate" if _never_live(record, item) else "predecessor"
            )
            yield Leftover(item.name, kind, _bytes(seen), tuple(seen), why)


def _never_live(record: AuthorityRecord | None, item: Retained) -> bool:
    """Tell whether a listed table is known to be one of a staging attempt, which nobody ever read."""
    if record is None:
        return False
    if isinstance(item, IndependentRetained) and len(item.generation.tables) < len(record.replicas):
        # What was live was live on every replica; an attempt has its table on one.
        return True
    if item.operation_id != record.operation_id:
        return False
    if item.name == record.candidate:
        return not record.published
    before = record.predecessor.uuids if record.predecessor else frozenset()
    return item.generation.uuids.isdisjoint(before)


def _other_beside(observation: Observation, item: Retained) -> str | None:
    """Return why a kept table can't be dropped by its name: on another replica that is another table's."""
    others = [
        alias
        for alias, facts in observation.replicas.items()
        if (table := facts.tables.get(item.name)) is not None and table.uuid not in item.generation.uuids
    ]
    if not others:
        return None
    return (
        f"another table has its name on {', '.join(others)}, so nothing is dropped by that name: find out what it is "
        "and rename it away, then cleanup or the next run drops this one"
    )


def _why_kept(item: Retained, past: Past | None, codes: Mapping[str, int], now: int) -> str:
    if failed := {alias: code for alias, code in codes.items() if code}:
        said = ", ".join(f"{alias} with exception code {code}" for alias, code in failed.items())
        limit = " (the server guards large tables: max_table_size_to_drop)" if 359 in failed.values() else ""
        return f"its drop failed on {said}{limit}"
    if item.drop_after > now:
        return _KEPT_AS_ASKED
    word = past.kept.get(item.name) if past else None
    if word is not None and word in Code.__members__:
        return MEANINGS[Code[word]].meaning[:-1].lower()
    return "it is due: cleanup or the next run drops it"


def _abandoned(
    record: AuthorityRecord | None, observation: Observation, pasts: Sequence[Past]
) -> Iterator[Leftover]:
    """Return candidates of attempts that no record names."""
    named: set[str] = set()
    if record is not None:
        named = {record.table, record.candidate, parked_name(record.candidate)}
        named |= {item.name for item in record.retained}
        if not record.ended:
            named |= {name for name, _ in record.left()}
    for past in pasts:
        for name, uuids in past.candidates:
            seen = _where(observation, name, uuids)
            if name not in named and seen:
                why = "its staging attempt did not end; a retry of its stage task drops it"
                yield Leftover(name, "candidate", _bytes(seen), tuple(seen), why)


def _where(observation: Observation, name: str, uuids: Collection[str]) -> dict[str, TableFacts]:
    return {
        alias: table
        for alias, facts in observation.replicas.items()
        if (table := facts.tables.get(name)) is not None and table.uuid in uuids
    }


def _bytes(seen: Mapping[str, TableFacts]) -> int | None:
    known = [table.bytes for table in seen.values() if table.bytes is not None]
    return sum(known) if known else None


# ---- in place of what can't be read

_KNOWN = (ReplicaState.PENDING, ReplicaState.COMMITTED, ReplicaState.CLEANED)


def lost_control_table(
    observation: Observation,
    table: str,
    found: Sequence[Stop],
    past: Past | None,
    *,
    control_structure: str,
) -> Stop | None:
    """Return why the control table can't be relied on, where it has no record of a target; ``None`` if it can.

    A control table that was dropped looks like one that never was. What was published under it tells them apart.

    :param found: what the admission checks found.
    :param past: the newest operation on the target that the evidence tells of.
    """
    by_code = {stop.code: stop for stop in reversed(found)}
    for code in (Code.FOREIGN_AUTHORITY, Code.CONTROL_TABLE_LOST):
        if code in by_code:
            return by_code[code]
    marked = any(
        live.comment_authority is not None
        for facts in observation.replicas.values()
        if (live := facts.tables.get(table)) is not None
    )
    empty = all(
        facts.control.structure == control_structure and facts.control.sentinel is None
        for facts in observation.replicas.values()
    )
    missing = by_code.get(Code.CONTROL_TABLE_MISSING)
    invalid = by_code.get(Code.CONTROL_TABLE_INVALID)
    if missing is not None or (invalid is not None and empty):
        if not marked and past is None:
            return missing or invalid
        what = "does not exist" if missing is not None else "is empty"
        return Stop(
            Code.CONTROL_TABLE_LOST,
            f"The control table {what} on {_replicas_of(missing or invalid)}, but {table!r} was published before: it "
            "was dropped or replaced. Nothing can be published.",
        )
    if invalid is not None:
        return invalid
    if past is not None and past.stored and past.authority_id == observation.authority_id:
        return Stop(
            Code.CONTROL_TABLE_LOST,
            f"The control table has no record of {table!r}, but operation {past.operation_id[:16]} was "
            f"{past.state} there at {when(past.since)}. Nothing can be published.",
        )
    return None


def _replicas_of(stop: Stop | None) -> str:
    named = stop.facts.get("replicas") if stop is not None else None
    return joined(map(str, named)) if isinstance(named, list) else "the replicas"


def explain_unread(
    stop: Stop, past: Past | None, others: Sequence[Past], seen: Observation | None, *, name: str, table: str
) -> Explanation:
    """Explain one target whose record can't be read, from what was written down before.

    :param stop: what can't be read.
    :param past: the newest operation that is known to have had the record, or the newest of all.
    :param seen: a look at the tables that was taken now, without the control table; ``None``: not possible either.
    :param name: of the target, with its database.
    :param table: without it.
    """
    replicas = _replicas(past, seen, table)
    lost = stop.code in (Code.CONTROL_TABLE_LOST, Code.CONTROL_TABLE_MISSING)
    held = past is not None and past.unresolved
    live = live_of(replicas)
    missing = past is not None and bool(past.old)
    affected = see_together(live, missing=missing)
    never = [NEVER_EDIT]
    if held or lost:
        never = [NEVER_SWAP, NEVER_DROP, NEVER_EDIT]
    if lost:
        never.append(NEVER_CREATE)
    told = Explanation(
        summary=_summary(past) if past else "The evidence tells of no operation on this table.",
        happened=tuple(_happened(past)),
        proven=tuple(
            f"{alias}: {STATES[one.state]} (looked at now)"
            for alias, one in replicas.items()
            if one.state in (*_KNOWN, ReplicaState.STAGING)
        ),
        unproven=tuple(_unproven(past, replicas)),
        readers=(
            readers_in_words(affected, live, missing=missing) if live else "What readers see is not known."
        ),
        ways=_ways(stop, past),
        never=tuple(never),
        replicas=replicas,
        stop=stop,
        held=held,
        record=None,
        plain=_plain(stop, past, name),
        affected=affected,
        observed_at=seen.server_time if seen is not None else None,
        read=False,
        waiting=tuple(_waiting(stop, past)),
        past=past,
        others=tuple(others),
    )
    if seen is None:
        return told
    every = (*others, *((past,) if past else ()))
    return replace(told, leftovers=tuple(_abandoned_now(past, seen, every)))


def _abandoned_now(past: Past | None, seen: Observation, pasts: Sequence[Past]) -> Iterator[Leftover]:
    """Return tables of attempts, the last one of an operation that may still need it left out."""
    needed = past.tables[-1:] if past is not None and past.stored else ()
    yield from (one for one in _abandoned(None, seen, pasts) if one.name not in needed)


def _ways(stop: Stop, past: Past | None) -> tuple[Way, ...]:
    match stop.code:
        case Code.CONTROL_TABLE_LOST:
            return (Way.RECOVER,)
        case Code.CONTROL_TABLE_MISSING:
            return (Way.START,) if past is None else (Way.RECOVER,)
        case Code.FOREIGN_AUTHORITY | Code.CONTROL_TABLE_INVALID:
            return (Way.LOOK,)
        case _:
            return (Way.RESTORE,)


def _plain(stop: Stop, past: Past | None, name: str) -> str:
    before = (
        f" What was known before, at {when(past.at)}, stands below."
        if past is not None
        else " The evidence tells of no operation on this table."
    )
    if stop.code is Code.AUTHORITY_UNAVAILABLE:
        return (
            f"{name}: the control table can't be read, because Keeper can't be reached. No change is possible now: "
            f"nothing is published and nothing is lost.{before}"
        )
    if stop.code in (Code.CONTROL_TABLE_LOST, Code.CONTROL_TABLE_MISSING):
        return f"{name}: {stop.message}{before}"
    return f"{name}: how it stands can't be read now. {stop.message}{before}"


def _happened(past: Past | None) -> Iterator[str]:
    if past is None:
        return
    if past.rows is not None:
        yield f"{past.rows:,} rows were staged."
    yield f"It was {past.state} at {when(past.since)}."
    if past.reply is not None and past.replied_at is not None:
        yield f"Its statement was sent; the reply was {past.reply}, at {when(past.replied_at)}."
    if past.entry is not None:
        yield f"It was seen in the queue as {past.entry}."
    if past.concluded is not None and past.concluded_at is not None:
        yield f"The last conclusion was {past.concluded}, at {when(past.concluded_at)}."


def _unproven(past: Past | None, replicas: Mapping[str, ReplicaExplained]) -> Iterator[str]:
    before = {seen.alias: seen for seen in past.seen} if past else {}
    for alias, seen in replicas.items():
        if seen.state not in (ReplicaState.NOT_OBSERVED, ReplicaState.UNKNOWN):
            continue
        said = f"{alias}: {STATES[seen.state]}"
        then = before.get(alias)
        if past is not None and past.concluded_at is not None and then is not None and then.state is not None:
            said += f"; when it was looked at last, at {when(past.concluded_at)}, it was {then.state}"
        yield said
    if past is None:
        yield "Whether an operation was under way: only the control table knows."
        return
    yield f"Whether anything happened since {when(past.at)}: only the control table knows."
    if past.begun is not None:
        yield f"Whether {past.begun} was stored: the outcome of that write was not written down."
    if past.unresolved and past.sent:
        yield "Whether the statement has ended on every replica: it may still arrive or run."


def _waiting(stop: Stop, past: Past | None) -> Iterator[str]:
    if past is None or not past.unresolved:
        return
    whose = _of(past)
    task = "stage" if past.state in STAGE_PHASES and not past.sent else "publish"
    if stop.code in (Code.CONTROL_TABLE_LOST, Code.CONTROL_TABLE_MISSING):
        yield f"The {task} task{whose} can't go on: the record that it needs is gone."
    else:
        yield f"The {task} task{whose} waits until the control table can be read, and then goes on from the record."


def _summary(past: Past) -> str:
    whose = f": {past.owner}" if past.owner else ""
    return f"{past.state} when it was heard of last, at {when(past.at)}{whose}"


def _replicas(past: Past | None, seen: Observation | None, table: str) -> dict[str, ReplicaExplained]:
    aliases = past.replicas if past is not None else ()
    if not aliases and seen is not None:
        aliases = seen.inventory.aliases
    before = {one.alias: one for one in past.seen} if past else {}
    nothing: frozenset[str] = frozenset()
    name, new = past.candidates[-1] if past is not None and past.candidates else ("", nothing)
    old = past.old if past is not None else nothing
    counted = None if seen is not None and seen.independent else len(aliases)
    staging = past is not None and past.state in STAGE_PHASES and not past.sent
    found: dict[str, ReplicaExplained] = {}
    for alias in aliases:
        facts = seen.replicas.get(alias) if seen is not None else None
        target = Shown.of(facts, table, new=new, old=old, replicas=counted)
        if past is None and target.uuid is not None:
            # With nothing to compare it with, a table is neither the right one nor another one.
            target = replace(target, generation=UNKNOWN.generation)
        candidate = Shown.of(facts, name, new=new, old=old, replicas=counted) if name else UNKNOWN
        then = before.get(alias)
        found[alias] = ReplicaExplained(
            _state(target, candidate, old, staging=staging),
            target,
            candidate,
            then.queue if then else None,
            then.exception_code if then else None,
        )
    return found


def _state(target: Shown, candidate: Shown, old: Collection[str], *, staging: bool) -> ReplicaState:
    """Return what a replica shows, by UUIDs alone: whole generations are the record's."""
    if target.generation == "unknown":
        return ReplicaState.NOT_OBSERVED
    if target.generation == "new":
        return ReplicaState.COMMITTED if candidate.generation == "old" else ReplicaState.CLEANED
    unchanged = target.uuid in old if old else target.uuid is None
    if staging:
        return ReplicaState.STAGING if unchanged else ReplicaState.UNKNOWN
    return ReplicaState.PENDING if unchanged and candidate.generation == "new" else ReplicaState.UNKNOWN
