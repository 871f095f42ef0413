"""Files that are damaged, or cost more than they seem to."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.sources import FileSource, StreamLoad, parquet_file
from tests.streams import streamed

HEADLESS = {"header": False, "columns": ["x"]}


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


def packed(path: Path, data: bytes) -> bytes:
    path.write_bytes(data)
    return b"".join(streamed(FileSource(str(path), options=HEADLESS)).chunks())


PACKINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    (".gz", gzip.compress),
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
    (".zst", zstd),
]


@pytest.mark.parametrize(("suffix", "pack"), PACKINGS)
def test_packed_parts_in_a_row_are_one_file(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    long = b"".join(b"%d\n" % number for number in range(400_000))
    assert packed(tmp_path / f"x.csv{suffix}", pack(long) + pack(b"") + pack(b"end\n")) == long + b"end\n"


@pytest.mark.parametrize(("suffix", "pack"), PACKINGS)
@pytest.mark.parametrize("behind", [b"x", b"more than a few bytes of something else"])
def test_what_is_no_packed_part_behind_one_is_an_error(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], behind: bytes
) -> None:
    with pytest.raises(Exception):  # noqa: B017 - whichever
        packed(tmp_path / f"x.csv{suffix}", pack(b"1\n") + behind)


@pytest.mark.parametrize(("suffix", "pack"), PACKINGS)
def test_an_empty_packed_file_was_cut_and_packed_nothing_is_nothing(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(Stopped) as caught:
        packed(tmp_path / f"x.csv{suffix}", b"")
    assert caught.value.stop.code is Code.SOURCE_FAILED
    assert packed(tmp_path / f"x.csv{suffix}", pack(b"")) == b""


def test_xz_may_be_padded_with_four_zero_bytes_or_a_multiple(tmp_path: Path) -> None:
    part = lzma.compress(b"1\n")
    assert packed(tmp_path / "x.csv.xz", part + b"\0" * 8 + part + b"\0" * 4) == b"1\n1\n"
    with pytest.raises(EOFError):
        packed(tmp_path / "x.csv.xz", part + b"\0" * 6)


def test_a_stray_quote_hides_no_end_inside_quotes(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        packed(tmp_path / "x.csv", b'a"b\n"cut short')
    assert packed(tmp_path / "x.csv", b'a"b\nc"d') == b'a"b\nc"d'


# ---- Parquet


def sizes(path: Path) -> list[int]:
    """The bytes in memory of each batch, as it is read."""
    with path.open("rb") as file:
        schema = parquet.ParquetFile(path).schema_arrow
        batches = parquet_file._batches(parquet, file, schema)
        return [sum(values.nbytes for values in batch.columns) for batch in batches]


def equal_texts(length: int, rows: int, first: int = 0) -> Any:
    """Short texts, then one long text many times: a dictionary of two."""
    places = pa.array([0] * first + [1] * rows, pa.int32())
    return pa.DictionaryArray.from_arrays(places, ["s", "y" * length]).cast(pa.string())


def test_a_long_text_that_comes_after_short_ones_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"x": equal_texts(20_000, 5_000, first=200_000)}), path)
    assert max(sizes(path)) < 64 * 1024 * 1024


def test_long_texts_in_lists_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = equal_texts(20_000, 20_000, first=2)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, *range(2, 20_003, 4)], pa.int32()), texts)
    parquet.write_table(pa.table({"x": lists}), path)
    assert max(sizes(path)) < 64 * 1024 * 1024


def test_numbers_that_are_all_equal_are_counted_by_their_width(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    numbers = pa.array([7] * 4_000_000, pa.int64())
    lists = pa.ListArray.from_arrays(pa.array(range(0, 4_000_001, 4_000), pa.int32()), numbers)
    parquet.write_table(pa.table({"x": lists}), path)
    assert max(sizes(path)) < 16 * 1024 * 1024


def test_ordinary_rows_are_read_many_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    names = [f"N{number % 4_000}" for number in range(100_000)]
    parquet.write_table(pa.table({"n": range(100_000), "x": names}), path)
    assert len(sizes(path)) == -(-100_000 // 32_768)


def test_old_times_keep_their_nanoseconds_and_are_refused_where_they_have_none(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"

    def load(times: Any) -> StreamLoad:
        parquet.write_table(pa.table({"x": times}), path, use_deprecated_int96_timestamps=True)
        return streamed(FileSource(str(path)))

    fine = pa.array([1_356_998_400_123_456_789, None], pa.timestamp("ns"))
    body = io.BytesIO(b"".join(load(fine).chunks()))
    assert pa.ipc.open_stream(body).read_all().column("x").cast("int64").to_pylist() == [
        1_356_998_400_123_456_789,
        None,
    ]
    for year in (1, 1600, 2263, 9999):
        with pytest.raises(Stopped) as caught:
            b"".join(load(pa.array([datetime(year, 1, 1)], pa.timestamp("us"))).chunks())
        assert caught.value.stop.code is Code.VALUE_REFUSED
        assert caught.value.stop.facts["column"] == "x"
