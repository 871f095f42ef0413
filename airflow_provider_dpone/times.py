"""Times for people: always UTC, and always said so."""

from __future__ import annotations

from datetime import UTC, datetime


def when(seconds: int) -> str:
    """Return a time on a server's clock in words."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
