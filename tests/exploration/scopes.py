"""What is explored: quickly with every test run, and more widely by ``scripts/prove``."""

from __future__ import annotations

from collections.abc import Iterator

from tests.exploration.explore import Scope, abandoning, cleaning, publishing, resolving
from tests.exploration.model import Budget

TASKS = (publishing, cleaning)

QUICK = (
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

WIDE = (
    *QUICK,
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


def hunting() -> Iterator[Scope]:
    """The scopes in which planted bugs are looked for, smallest first."""
    yield Scope("no fault", (TASKS,), Budget(), tries=1)
    yield Scope("one fault", (TASKS,), Budget(faults=1), tries=2)
    yield QUICK[0]
    yield Scope("a forgetful queue", (TASKS,), Budget(faults=1, prunes=1), tries=2)
    yield Scope("an operator abandons", (TASKS, (abandoning,)), Budget(), tries=1)
    yield Scope("an operator resolves", ((publishing,), (resolving,)), Budget(faults=1), tries=1)
    yield Scope("two workers", ((publishing,), (publishing,)), Budget(), tries=1)
