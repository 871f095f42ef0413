"""The canonical content of a table: what makes two tables equal, wherever and however they were loaded."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True)
class CanonicalDigest:
    """The content of a table as a multiset of rows: the row count and a 256-bit sum of row hashes.

    :ivar sha256: the sum of SHA-256 over each row's RowBinary form, modulo 2^256, as 64 hex digits.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    rows: int
    sha256: str
