"""What is explored: quickly with every test run, and more widely by ``scripts/prove``."""

from __future__ import annotations

from collections.abc import Iterator

from tests.exploration.explore import Scope, abandoning, cleaning, publishing, resolving
from tests.exploration.model import Budget
from tests.exploration.staging import StageScope, operating, staging
from tests.simulation.mutants import STAGING_MUTANTS

TASKS = (publishing, cleaning)
STAGING = (staging(0),)
THREADS = (staging(0, threads=True),)
FOLLOWING = (staging(1),)
OPERATING = (operating,)

PUBLISHING_QUICK = (
    Scope("a fault anywhere, a replica runs its entry again", (TASKS,), Budget(faults=1, again=1)),
    Scope(
        "three replicas, one runs its entry again, one refuses", (TASKS,), Budget(again=1, failures=1), 3, 1
    ),
    Scope("the target is absent before", (TASKS,), Budget(faults=1, again=1), tries=2, first=True),
    Scope("replicas are read one after the other", (TASKS,), Budget(again=1, prunes=1), tries=1, torn=True),
    Scope("the list of replicas changes", (TASKS,), Budget(again=1, prunes=1, members=1), tries=2),
    Scope("two workers publish", (TASKS, (publishing,)), Budget(), tries=1),
    Scope("an operator abandons", ((publishing,), (abandoning,)), Budget(faults=1), tries=1),
    Scope("an operator resolves", (TASKS, (resolving,)), Budget(prunes=1), tries=1),
)

STAGING_QUICK = (
    StageScope("independent: a fault anywhere", (STAGING,), Budget(faults=1)),
    StageScope("independent: a try and its retry at once", (STAGING, STAGING), Budget(), tries=1),
    StageScope(
        "independent: an operator abandons, replicas are read one after the other",
        (STAGING, OPERATING),
        Budget(),
        tries=1,
        torn=True,
    ),
    StageScope("independent: each replica in its thread", (THREADS,), Budget(), tries=1),
)

STAGING_WIDE = (
    StageScope("independent: the live tables differ", (STAGING,), Budget(faults=1), stray=True),
    StageScope("independent: the target is absent before", (STAGING,), Budget(faults=1), first=True),
    StageScope("independent: a replica is away", (STAGING,), Budget(away=1)),
    StageScope("independent: somebody drops a table", (STAGING,), Budget(losses=1)),
    StageScope("independent: the store loses or damages an artifact", (STAGING,), Budget(spoils=1)),
    StageScope("independent: the next run follows", (STAGING, FOLLOWING), Budget(), tries=1),
    StageScope(
        "independent: an operator abandons, a fault anywhere",
        (STAGING, OPERATING),
        Budget(faults=1),
        tries=1,
        most=15_000,
    ),
    StageScope("independent: two faults anywhere", (STAGING,), Budget(faults=2), tries=3, most=8_000),
    StageScope(
        "independent: three replicas in any order, a fault anywhere",
        (STAGING,),
        Budget(faults=1),
        replicas=3,
        any_order=True,
        most=4_000,
    ),
    StageScope(
        "independent: a try and its retry at once, a fault anywhere",
        (STAGING, STAGING),
        Budget(faults=1),
        tries=1,
        most=15_000,
    ),
    StageScope(
        "independent: each replica in its thread, a fault anywhere", (THREADS,), Budget(faults=1), most=8_000
    ),
    StageScope(
        "independent: each replica in its thread, an operator abandons",
        (THREADS, OPERATING),
        Budget(),
        tries=1,
    ),
    StageScope(
        "independent: each replica in its thread, a try and its retry at once",
        (THREADS, THREADS),
        Budget(),
        tries=1,
        most=15_000,
    ),
)

QUICK: tuple[Scope, ...] = (*PUBLISHING_QUICK, *STAGING_QUICK)

WIDE: tuple[Scope, ...] = (
    *QUICK,
    *STAGING_WIDE,
    Scope("two faults anywhere", (TASKS,), Budget(faults=2)),
    Scope(
        "a fault anywhere, a forgetful queue, a failing replica",
        (TASKS,),
        Budget(faults=1, failures=1, prunes=1),
    ),
    Scope("three replicas, a fault anywhere", (TASKS,), Budget(faults=1, again=1), 3, 1),
    Scope(
        "an operator resolves, a fault anywhere", (TASKS, (resolving,)), Budget(faults=1, prunes=1), tries=1
    ),
    Scope("two workers publish, a fault anywhere", (TASKS, (publishing,)), Budget(faults=1), tries=1),
    Scope(
        "two workers publish, a replica runs its entry again",
        (TASKS, (publishing,)),
        Budget(again=1),
        tries=1,
    ),
    Scope("two operators resolve", ((publishing, resolving), (resolving,)), Budget(faults=1), tries=1),
)


def hunting(name: str) -> Iterator[Scope]:
    """The scopes in which a planted bug is looked for, smallest first: of staging, or of what comes after it."""
    if name in STAGING_MUTANTS:
        yield StageScope("no fault", (STAGING,), Budget(), tries=1)
        yield StageScope("the live tables differ", (STAGING,), Budget(), tries=1, stray=True)
        yield StageScope("one fault", (STAGING,), Budget(faults=1))
        yield StageScope("a try and its retry", (STAGING, STAGING), Budget(), tries=1)
        yield StageScope("an operator abandons", (STAGING, OPERATING), Budget(), tries=1)
        yield StageScope("somebody drops a table", (STAGING,), Budget(losses=1))
        return
    yield Scope("no fault", (TASKS,), Budget(), tries=1)
    yield Scope("one fault", (TASKS,), Budget(faults=1), tries=2)
    yield QUICK[0]
    yield Scope("a forgetful queue", (TASKS,), Budget(faults=1, prunes=1), tries=2)
    yield Scope("an operator abandons", (TASKS, (abandoning,)), Budget(), tries=1)
    yield Scope("an operator resolves", ((publishing,), (resolving,)), Budget(faults=1), tries=1)
    yield Scope("two workers", ((publishing,), (publishing,)), Budget(), tries=1)
