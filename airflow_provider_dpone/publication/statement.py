"""The three statements that the protocol sends to a cluster, as values.

The adapter renders them to SQL and parses the queue's text back; two statements are the same work only
if the values are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Exchange:
    """Swap the names of target and candidate on every replica."""

    cluster: str
    database: str
    target: str
    candidate: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Give ``source`` the free name ``target`` on every replica."""

    cluster: str
    database: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop a table, where it exists, on every replica."""

    cluster: str
    database: str
    table: str


Statement: TypeAlias = Exchange | Rename | Drop
