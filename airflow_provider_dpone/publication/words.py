"""Times and sizes as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime


def when(seconds: int) -> str:
    """Return a time in words.

    :param seconds: since the epoch.
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(number: int) -> str:
    """Return a number of bytes in words, such as ``12.3 MiB``."""
    if number < 1024:
        return f"{number} bytes"
    amount = float(number)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def joined(names: Iterable[str]) -> str:
    """Return names with commas between them."""
    return ", ".join(names)
