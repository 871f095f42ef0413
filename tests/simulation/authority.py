"""What a worker makes of a write whose reply is lost. Exploration and simulation answer by this one function.

What it makes of an acknowledged write, the product's own ``clickhouse.authority.judge`` says.
"""

from __future__ import annotations

from airflow_provider_dpone.publication.record import Row, StoredRecord
from airflow_provider_dpone.routes.ports import Conflict, OutcomeUnknown


def lost(
    expected: StoredRecord | None, written: Row, found: Row | None, version: int | None
) -> int | Conflict | OutcomeUnknown:
    """Judge a write without an answer: whatever the row holds, it is no acknowledgement.

    :returns: as the product's ``judge``; a planted bug returns something else.
    """
    return OutcomeUnknown("no answer")
