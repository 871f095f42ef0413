"""The sealed artifact: what every replica is loaded from, byte for byte the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True)
class Artifact:
    """The rows of one operation, immutable, in the candidate's own column types.

    :ivar sha256: of the stored bytes; it is the artifact's name in the store.
    :ivar bytes: how many bytes are stored.
    :ivar format: the ClickHouse format of the decoded bytes.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    sha256: str
    bytes: int
    rows: int
    format: Literal["Native"] = "Native"
