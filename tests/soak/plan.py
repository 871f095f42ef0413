"""What is done in which publication: drawn from one seed, publication by publication, so that it can be resumed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from tests.scenarios.worker import Moment


class Trouble(StrEnum):
    """What goes wrong in a publication."""

    NONE = "calm"
    CUT_SWAP = "reply of the swap cut"
    CUT_ENQUEUED = "connection cut once the swap is queued"
    CUT_CLAIM = "reply of a compare-and-swap cut"
    CUT_LOAD = "reply of the load cut"
    CUT_DROP = "reply of the drop cut"
    REFUSED_SWAP = "swap cut off before the server"
    REFUSED_CLAIM = "compare-and-swap cut off before the server"
    DELAYED = "swap executed late on a replica"
    PAUSED = "DDL worker of a replica paused"
    TWICE = "swap executed twice on a replica"
    FAILS = "swap fails on a replica"
    FAILS_EVERYWHERE = "swap fails on every replica"
    DROP_FAILS = "drop fails on a replica"
    FORGOTTEN = "queue entry removed before it was read"
    DOUBLED = "second queue entry with the same token"
    NODE_DOWN = "replica killed before the dispatch"
    NODE_DIES = "replica killed after the dispatch"
    NO_KEEPER = "ZooKeeper stopped before the dispatch"
    KEEPER_LOST = "ZooKeeper stopped after the dispatch"
    KILLED_STAGE = "stage worker killed"
    KILLED_PUBLISH = "publish worker killed"
    KILLED_CLEANUP = "cleanup worker killed"


_RARE = (Trouble.NODE_DOWN, Trouble.NODE_DIES, Trouble.NO_KEEPER, Trouble.KEEPER_LOST)
"""These take many seconds each."""

_CALM_SHARE = 0.6
_RARE_SHARE = 0.03
_MOMENTS = {
    Trouble.KILLED_STAGE: (Moment.CREATED, Moment.LOADED, Moment.BEFORE_PREPARED, Moment.PREPARED),
    Trouble.KILLED_PUBLISH: (
        *(Moment.BEFORE_CLAIM, Moment.CLAIMED, Moment.SENT, Moment.BOUND),
        *(Moment.BEFORE_COMMITTED, Moment.COMMITTED),
    ),
    Trouble.KILLED_CLEANUP: (Moment.DROP_CLAIMED, Moment.DROP_SENT),
}


@dataclass(frozen=True, slots=True)
class Publication:
    """One publication of the soak.

    :ivar target: number of the table.
    :ivar node: the replica that a trouble hits.
    :ivar moment: when a worker is killed.
    """

    number: int
    target: int
    rows: int
    trouble: Trouble
    node: int
    moment: Moment | None


def publication(seed: int, number: int, *, targets: int, nodes: int) -> Publication:
    """Draw one publication. The first of each target is calm: there must be something to lose."""
    draw = random.Random(f"{seed}/{number}")
    target = number if number < targets else draw.randrange(targets)
    share = draw.random()
    frequent = [trouble for trouble in Trouble if trouble not in (Trouble.NONE, *_RARE)]
    if number < targets or share < _CALM_SHARE:
        trouble = Trouble.NONE
    elif share < _CALM_SHARE + _RARE_SHARE:
        trouble = draw.choice(_RARE)
    else:
        trouble = draw.choice(frequent)
    moments = _MOMENTS.get(trouble)
    return Publication(
        number=number,
        target=target,
        rows=draw.randint(1, 2000),
        trouble=trouble,
        node=draw.randint(1, nodes),
        moment=draw.choice(moments) if moments else None,
    )
