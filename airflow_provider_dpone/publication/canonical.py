"""Canonical JSON and digests: equal values have equal bytes, on every machine and in every release."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = "bool | int | str | Sequence[Json] | Mapping[str, Json] | None"


def canonical_json(value: Json) -> str:
    """Return the one JSON text of ``value``: sorted keys, no spaces, no floats, UTF-8 as it is.

    :raises TypeError: ``value`` holds a float or another type whose text is not canonical.
    """
    _refuse_inexact(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(domain: str, *parts: Json) -> str:
    """Return the SHA-256 (64 hex digits) of ``parts`` under ``domain``.

    The domain separates uses: an operation id can never equal a plan digest by having equal parts.
    """
    return sha256_hex(canonical_json([domain, *parts]))


def sha256_hex(text: str) -> str:
    """Return the SHA-256 of ``text`` in UTF-8, as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


_EXACT = frozenset({type(None), bool, int, str})


def _refuse_inexact(value: object) -> None:
    if type(value) in _EXACT:
        return
    match value:
        case None | bool() | int() | str():
            return
        # What nearly every value is comes first: asking an abstract class takes several times as long.
        case dict() | Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"canonical JSON has only string keys, not {type(key).__name__}")
                if type(item) not in _EXACT:
                    _refuse_inexact(item)
        case list() | tuple() | Sequence() if not isinstance(value, bytes | bytearray):
            for item in value:
                if type(item) not in _EXACT:
                    _refuse_inexact(item)
        case _:
            raise TypeError(f"canonical JSON can't hold a {type(value).__name__}")
