"""The words about one target: what readers see, what happened in a sentence, who waits, what never to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.explain_stages import staging_in_words
from airflow_provider_dpone.publication.explanation import (
    NEVER_AHEAD,
    NEVER_DROP,
    NEVER_EDIT,
    NEVER_SWAP,
    ReplicaExplained,
)
from airflow_provider_dpone.publication.queue import HostStatus
from airflow_provider_dpone.publication.record import (
    STAGE_PHASES,
    AuthorityRecord,
    IndependentRecord,
    Phase,
    is_rollback,
)
from airflow_provider_dpone.publication.stop import Category, Code, Stop
from airflow_provider_dpone.publication.words import joined

STATES: Mapping[ReplicaState, str] = {
    ReplicaState.STAGING: "shows what it showed when the target was locked",
    ReplicaState.PENDING: "holds the old generation; the new one is kept next to it",
    ReplicaState.COMMITTED: "holds the new generation; the old one is kept next to it",
    ReplicaState.CLEANED: "holds the new generation; the old one is gone",
    ReplicaState.NOT_OBSERVED: "can't be read",
    ReplicaState.REPLACED: "another server answers in its place",
    ReplicaState.UNKNOWN: "a table is missing or is neither generation",
}


def live_of(replicas: Mapping[str, ReplicaExplained]) -> dict[str, str]:
    """Return which generation readers see on each replica."""
    return {alias: seen.live for alias, seen in replicas.items()}


def see_together(live: Mapping[str, str], *, missing: bool) -> bool | None:
    """Tell whether readers are affected: they don't see one generation everywhere. ``None``: it is not known.

    :param live: alias -> which generation its readers see.
    :param missing: there was a table, so that one that is absent is missing.
    """
    known = set(live.values()) - {"unknown"}
    if len(known) > 1 or "another table" in known or (missing and "absent" in known):
        return True
    return None if not known or "unknown" in live.values() else False


def affected_by(record: AuthorityRecord, replicas: Mapping[str, ReplicaExplained]) -> bool | None:
    """Tell whether readers are affected; ``None``: it is not known."""
    if changed_since(record, replicas):
        return True
    live = live_of(replicas)
    found = see_together(live, missing=record.predecessor is not None)
    # A replica that is away shows what it showed before: nothing is under way that could change it.
    return False if found is None and record.ended and len(_seen_live(live)) == 1 else found


def changed_since(record: AuthorityRecord, replicas: Mapping[str, ReplicaExplained]) -> tuple[str, ...]:
    """Return the replicas whose readers see something else than what an operation that is over left there.

    What was closed as not published may have been closed because the table had changed: only its own data must not be
    live.
    """
    if record.published:
        return tuple(alias for alias, seen in replicas.items() if seen.live not in ("new", "unknown"))
    return tuple(alias for alias, seen in replicas.items() if record.ended and seen.live == "new")


def _seen_live(live: Mapping[str, str]) -> dict[str, list[str]]:
    """Which generation readers see where, the replicas left out that can't be read."""
    kinds: dict[str, list[str]] = {}
    for alias, generation in live.items():
        if generation != "unknown":
            kinds.setdefault(generation, []).append(alias)
    return kinds


def readers_of(record: AuthorityRecord, replicas: Mapping[str, ReplicaExplained]) -> str:
    """Return whether readers are affected, and what they see."""
    live = live_of(replicas)
    return readers_in_words(affected_by(record, replicas), live, missing=record.predecessor is not None)


def readers_in_words(affected: bool | None, live: Mapping[str, str], *, missing: bool) -> str:
    """Return whether readers are affected, and what they see.

    :param live: alias -> which generation its readers see; one at least.
    :param missing: there was a table, so that one that is absent is missing.
    """
    match affected:
        case False:
            [(seen, where)] = _seen_live(live).items()
            everywhere = len(where) == len(live)
            said = _words_of(missing=missing)[seen]
            return f"Readers are not affected: {said} on {'every replica' if everywhere else joined(where)}."
        case True:
            begin = "Readers are affected"
        case None:
            begin = "Whether readers are affected is not known"
        case _:
            assert_never(affected)
    return f"{begin}: {seen_in_words(live, missing=missing)}."


def seen_in_words(live: Mapping[str, str], *, missing: bool) -> str:
    """Return what readers see where, and nothing about whether that is well. Arguments as above."""
    kinds: dict[str, list[str]] = {}
    for alias, generation in live.items():
        kinds.setdefault(generation, []).append(alias)
    words = _words_of(missing=missing)
    return "; ".join(f"{words[k]} on {joined(a)}" for k, a in kinds.items())


def _words_of(*, missing: bool) -> Mapping[str, str]:
    return {**_LIVE, "absent": "the table is missing"} if missing else _LIVE


NOTHING_UNDER_WAY = (
    "No operation is under way, and nothing was changed. A run that began now would be refused."
)


def plain_words(record: AuthorityRecord, replicas: Mapping[str, ReplicaExplained], stop: Stop | None) -> str:
    """Return what happened in a sentence or two, for somebody who knows nothing of all this."""
    name = f"{record.database}.{record.table}"
    if changed := changed_since(record, replicas):
        live = {alias: seen.live for alias, seen in replicas.items() if alias in changed}
        over = (
            "was closed as not published"
            if record.phase is Phase.ABORTED
            else "was published on every replica"
        )
        said = seen_in_words(live, missing=record.predecessor is not None)
        first = f"{name}: the last operation {over}, and the table was changed since: {said}."
        return first if stop is None else f"{first} {stop.message}"
    if record.ended:
        ended = (
            f"{name}: the last operation was closed as not published."
            if record.phase is Phase.ABORTED
            else f"{name}: the last operation is published on every replica."
        )
        return ended if stop is None else f"{ended} {NOTHING_UNDER_WAY} {stop.message}"
    if isinstance(record, IndependentRecord) and record.phase in STAGE_PHASES:
        return staging_in_words(record, replicas)
    if stop is None:
        match record.phase:
            case Phase.PREPARED:
                return (
                    f"{name}: new data{_whose(record)} is staged, and nothing was sent for it yet. "
                    "It holds the table."
                )
            case Phase.COMMITTED:
                unread = [alias for alias, seen in replicas.items() if seen.live == "unknown"]
                if unread:
                    return (
                        f"{name}: the publication was proven on every replica; the cleanup is yet to come. "
                        f"{joined(unread)} can't be read now."
                    )
                return f"{name}: the new data is live on every replica; the cleanup is yet to come."
            case _:
                return f"{name}: what became of the swap can be told; the publish task has to write it down."
    if stop.code is Code.REPLICA_NOT_OBSERVED and record.phase is not Phase.PREPARED:
        return _without_some(name, replicas)
    if stop.code is Code.ENTRY_NOT_SEEN and (kinds := _seen_live(live_of(replicas))):
        shown = "; ".join(f"{_LIVE[live]} on {joined(where)}" for live, where in kinds.items())
        return f"{stop.message} What readers see: {shown}."
    if stop.code is Code.PARTIAL_TERMINAL:
        back = [
            alias
            for alias, seen in replicas.items()
            if seen.state is ReplicaState.PENDING and seen.exception_code == 0
        ]
        if back:
            return (
                f"{stop.message} The queue says success on {joined(back)}, too: so it is where a server died before "
                "it had written down its success, and ran the swap again, which undid it."
            )
    return stop.message


def _whose(record: AuthorityRecord) -> str:
    owner = record.owner
    return "" if is_rollback(owner) else f" of DAG {owner.dag_id}, run {owner.run_id}"


def _without_some(name: str, replicas: Mapping[str, ReplicaExplained]) -> str:
    """Return what is known while a replica can't be read, after the swap was sent."""
    new = [alias for alias, seen in replicas.items() if seen.live == "new"]
    unread = {alias: seen for alias, seen in replicas.items() if seen.state is ReplicaState.NOT_OBSERVED}
    said = f"{name}: the new data is live on {joined(new)}." if new else f"{name}: the swap was sent."
    said += f" {joined(unread)} can't be read."
    if unread and all(seen.queue == HostStatus.IN_PROGRESS.value for seen in unread.values()):
        return f"{said} The swap waits for it in the queue: it follows by itself when it returns."
    return f"{said} What the swap did there is not known until it returns."


def never_do(stop: Stop | None, *, dispatched: bool) -> Iterator[str]:
    """Return what must never be done by hand.

    :param dispatched: a statement may have been sent, and the operation has not ended.
    """
    if dispatched:
        yield from (NEVER_SWAP, NEVER_DROP)
        late = stop is not None and stop.category in (Category.IN_PROGRESS, Category.NOT_OBSERVED)
        if late:
            yield NEVER_AHEAD
    yield NEVER_EDIT


def who_waits(
    record: AuthorityRecord, replicas: Mapping[str, ReplicaExplained], stop: Stop | None
) -> Iterator[str]:
    """Return who waits for what, and what becomes of it if it is restarted."""
    owner = record.owner
    task = (
        f"The operator's rollback of operation {owner.run_id[:16]}"
        if is_rollback(owner)
        else f"The publish task of DAG {owner.dag_id}, run {owner.run_id}"
    )
    if record.ended:
        return
    if record.published:
        yield "The cleanup task, or the next run, has to free the table."
    elif record.phase in STAGE_PHASES:
        yield (
            f"The stage task of DAG {owner.dag_id}, run {owner.run_id} stages the replicas, if it still runs. If its "
            "worker has died, the next try goes on from what is proven."
        )
    elif record.phase is Phase.PREPARED:
        yield f"{task} has not sent anything yet: it goes on when it runs."
    elif stop is None:
        yield f"{task} waits for nothing: it goes on when it runs."
    elif stop.category in (Category.IN_PROGRESS, Category.NOT_OBSERVED):
        late = [
            alias
            for alias, seen in replicas.items()
            if seen.queue not in ("finished", "failed") or seen.state is ReplicaState.NOT_OBSERVED
        ]
        entry = record.publication.entry if record.publication else None
        match stop.code:
            case Code.RESOLVING:
                yield f"{task} waits until the operator's `resolve` has ended."
            case Code.ENTRY_NOT_SEEN:
                yield f"{task} waits for its entry to be seen in the queue."
            case _:
                yield f"{task} waits for {joined(late) or 'the replicas'} to end {entry or 'its entry'} of the queue."
        yield (
            "If its worker or the triggerer is restarted, nothing is lost: the next try reads the record and waits on, "
            "and sends nothing again."
        )
    else:
        yield f"Nobody: {task[0].lower()}{task[1:]} ends with this code until the operation is resolved."


_LIVE: Mapping[str, str] = {
    "new": "they see the new data",
    "old": "they see the old data",
    "absent": "there is no table yet",
    "another table": "they see a table that is neither generation",
    "unknown": "it is not known what they see",
}
