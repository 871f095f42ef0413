"""The sealed artifact: what every replica is loaded from, byte for byte the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True)
class Artifact:
    """The rows of one operation, immutable, in the candidate's own column types.

    It says what was sealed, and not where: a worker finds it by its digest in the store that it is configured with.

    :ivar sha256: of the stored bytes, as 64 hex digits; it is the artifact's name in the store.
    :ivar bytes: how many bytes are stored.
    :ivar rows: how many rows they are; told by whoever extracted them, and proven by the loads.
    :ivar format: ClickHouse's name of the stored bytes' format. They are not compressed.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    sha256: str
    bytes: int
    rows: int
    format: Literal["Native"] = "Native"

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError("an artifact's SHA-256 is 64 hex digits")
        if self.bytes < 0 or self.rows < 0:
            raise ValueError("an artifact has no negative size")


class Sealed(NamedTuple):
    """What was sealed: the digest of its bytes, which is its name, and how many there are."""

    sha256: str
    bytes: int


class ArtifactTooLarge(Exception):
    """The bytes to seal are more than was allowed; nothing is sealed."""
