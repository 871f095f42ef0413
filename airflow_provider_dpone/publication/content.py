"""What a table holds, in a few bytes that are the same wherever the same rows are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field


@dataclass(frozen=True, slots=True)
class CanonicalDigest:
    """The content of one member's table, where no replication makes the members equal.

    It is a multiset's: rows count as often as they stand there, in any order. It says nothing about names
    and types, which the schema digest holds; only digests of equal structures can be compared.

    :ivar sha256: the sum, modulo 2^256, of the SHA-256 of each row, as 64 hexadecimal digits.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    rows: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
