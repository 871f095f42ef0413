"""What Arrow can hold and ClickHouse can't: found in a column of a batch before it is sent."""

from __future__ import annotations

from typing import Any, Final

_FIRST_SECOND: Final = -2_208_988_800  # 1900-01-01
_END_SECOND: Final = 10_413_792_000  # 2300-01-01
_DAY: Final = 86_400
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def unfit(values: Any) -> str | None:
    """Say what a column holds that ClickHouse would change in silence; ``None`` if there is nothing.

    A NULL list would become an empty one. A date or timestamp outside of ClickHouse's calendar would be shown
    as another one; drivers make such ones of infinity.
    """
    from pyarrow import types  # type: ignore[import-untyped]

    kind = values.type
    if types.is_list(kind) or types.is_large_list(kind):
        return "a NULL list, and an array can't be NULL" if values.null_count else unfit(values.flatten())
    if types.is_date32(kind):
        outside = _outside(values.cast("int32"), _FIRST_SECOND // _DAY, _END_SECOND // _DAY)
        return "a date outside of the years 1900 to 2299, as infinity is" if outside else None
    if types.is_timestamp(kind):
        factor = _PER_SECOND[kind.unit]
        outside = _outside(values.cast("int64"), _FIRST_SECOND * factor, _END_SECOND * factor)
        return "a timestamp outside of the years 1900 to 2299, as infinity is" if outside else None
    return None


def _outside(numbers: Any, first: int, end: int) -> bool:
    from pyarrow import compute

    found = compute.min_max(numbers)
    lowest, highest = found["min"].as_py(), found["max"].as_py()
    return lowest is not None and (lowest < first or highest >= end)
