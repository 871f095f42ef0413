"""Times and sizes as people read them. Arithmetic alone: the core has no clock, and imports no module that has one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_DAY: Final = 24 * 3600
_UTC: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?Z")
# Years are counted from March on, so that a leap day is a year's last; 719,468 days lie before 1970 then.
_DAYS_TO_1970: Final = 719_468
_DAYS_IN_400_YEARS: Final = 146_097


def when(seconds: int) -> str:
    """Return a time in words.

    :param seconds: since the epoch.
    """
    days, rest = divmod(seconds, _DAY)
    era, day_of_era = divmod(days + _DAYS_TO_1970, _DAYS_IN_400_YEARS)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year += 400 * era + (month <= 2)
    hours, minutes = divmod(rest // 60, 60)
    return f"{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{rest % 60:02} UTC"


def seconds_of(at: str) -> int:
    """Return a time of the evidence in seconds since the epoch; 0 for a text that is none.

    :param at: such as ``2026-01-02T03:04:05.678901Z``.
    """
    found = _UTC.fullmatch(at)
    if found is None:
        return 0
    year, month, day, hours, minutes, seconds = (int(part) for part in found.groups()[:6])
    year -= month <= 2
    era, year = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * _DAYS_IN_400_YEARS + year * 365 + year // 4 - year // 100 + day_of_year - _DAYS_TO_1970
    return days * _DAY + hours * 3600 + minutes * 60 + seconds


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
