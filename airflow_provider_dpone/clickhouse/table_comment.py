"""The provider's mark in a table's COMMENT.

The user's comment is kept and the mark follows it behind one space::

    Orders of all shops [dpone:v1 authority=<id> operation=<id> attempt=<id>]

The mark tells whose table it is when no record is at hand: another control table's, an abandoned attempt's.
It is bounded, and no part of the table's structure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_VERSION: Final = 1
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_MARK: Final = re.compile(
    r"(?P<user>.*?) ?\[dpone:v(?P<version>\d{1,4})(?P<fields>(?: \w{1,32}=[0-9A-Za-z-]{1,64}){1,16})\]",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TableMark:
    """Who made a table: the control table's authority id, the operation, and the staging attempt.

    A mark of a newer version than this release's may lack an id, which is then empty.

    :raises ValueError: A mark of this version with an id that is not 1 to 64 letters, digits or hyphens.
    """

    authority_id: str
    operation_id: str
    attempt_id: str
    version: int = _VERSION

    def __post_init__(self) -> None:
        """Keep out of the comment what could not be read back."""
        for name in ("authority_id", "operation_id", "attempt_id") if self.version == _VERSION else ():
            if not _ID.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} must be 1 to 64 letters, digits or hyphens")

    def __str__(self) -> str:
        return (
            f"[dpone:v{self.version} authority={self.authority_id} operation={self.operation_id} "
            f"attempt={self.attempt_id}]"
        )


def with_mark(user_comment: str, mark: TableMark) -> str:
    """The comment of a marked table."""
    return f"{user_comment} {mark}" if user_comment else str(mark)


def split_comment(comment: str) -> tuple[str, TableMark | None]:
    """The user's part of a table's comment, and the mark if there is one at its end."""
    found = _MARK.fullmatch(comment)
    if found is None:
        return comment, None
    ids = dict(pair.split("=") for pair in found["fields"].split())
    try:
        mark = TableMark(
            ids.get("authority", ""), ids.get("operation", ""), ids.get("attempt", ""), int(found["version"])
        )
    except ValueError:
        return comment, None
    return found["user"], mark
