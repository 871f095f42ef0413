"""The demo's input files say what they are said to say."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from scripts.lib.flights import NULL, Extract, first_extract, later_extract

Row = dict[str, str]


def read(extract: Extract) -> list[Row]:
    with extract.path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flights")


@pytest.fixture(scope="module")
def first(folder: Path) -> list[Row]:
    return read(first_extract(folder))


@pytest.fixture(scope="module")
def later(folder: Path) -> list[Row]:
    return read(later_extract(folder))


def test_first_extract(folder: Path, first: list[Row]) -> None:
    assert len(first) == first_extract(folder).rows == 336_776
    nulls = Counter(name for row in first for name, value in row.items() if value == NULL)
    assert nulls == {
        "dep_time": 8255,
        "dep_delay": 8255,
        "arr_time": 8713,
        "arr_delay": 9430,
        "air_time": 9430,
        "tailnum": 2512,
    }
    # An empty field would be neither a value nor NULL.
    assert not any(value == "" for row in first for value in row.values())
    assert b'"' not in first_extract(folder).path.read_bytes()


def corrected(row: Row) -> Row:
    """What the later extract should hold for a row of the first one."""
    if row["carrier"] != "AA":
        return row
    delays = {name: row[name] for name in ("dep_delay", "arr_delay")}
    return row | {name: "NA" if value == "NA" else str(int(value) + 5) for name, value in delays.items()}


def test_later_extract(folder: Path, first: list[Row], later: list[Row]) -> None:
    assert len(later) == later_extract(folder).rows == 308_641
    assert later == [corrected(row) for row in first if row["month"] != "12"]
    moved = sum(1 for row in first if row["month"] != "12" and corrected(row) != row)
    assert moved > 20_000


def test_the_same_bytes_each_time(folder: Path, later: list[Row], tmp_path: Path) -> None:
    assert later_extract(tmp_path).path.read_bytes() == later_extract(folder).path.read_bytes()


def test_written_once(tmp_path: Path) -> None:
    path = first_extract(tmp_path).path
    path.write_text("kept")
    assert first_extract(tmp_path).path.read_text() == "kept"
    assert [file.name for file in tmp_path.iterdir()] == ["flights.csv"]
