"""Receipts as XCom values: plain JSON, and small enough to be one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt, StageReceipt

MAX_BYTES: Final = 16 * 1024
"""How large a receipt may be in XCom, as JSON."""

_MAY_BE_CUT: Final = ("schema_difference", "dependents", "warnings")


def for_xcom(receipt: StageReceipt | PublicationReceipt | SettledReceipt) -> dict[str, Any]:
    """Return a receipt as a JSON object of at most ``MAX_BYTES``.

    Where it would be larger, the lists that are only for people to read are cut, the longest first, and say
    how much they lack. The task's log has every difference of the schema.
    """
    from airflow_provider_dpone.publication.receipt import dump

    body = dump(receipt)
    whole = {name: list(body[name]) for name in _MAY_BE_CUT if body.get(name)}
    shown = {name: len(lines) for name, lines in whole.items()}
    while len(json.dumps(body).encode()) > MAX_BYTES and any(shown.values()):
        longest = max(shown, key=lambda name: len(json.dumps(body[name])) if shown[name] else 0)
        shown[longest] //= 2
        lines = whole[longest]
        body[longest] = [*lines[: shown[longest]], f"... and {len(lines) - shown[longest]} more"]
    return body
