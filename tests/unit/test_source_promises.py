"""Promises of the sources that were once broken, where no server is needed to see it."""

from __future__ import annotations

import bz2
import gc
import gzip
import lzma
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.sources import FileSource, SqlSource, StreamLoad, dbapi
from airflow_provider_dpone.sources.one_select import one_select
from tests.streams import streamed


def read(load: StreamLoad) -> bytes:
    return b"".join(load.chunks())


class SqliteHook:
    """What Airflow's hook of SQLite does, with a change to each connection."""

    def __init__(self, path: Path, change: Callable[[Any], None] = lambda _: None) -> None:
        self.path = path
        self.change = change

    def get_conn(self) -> Any:
        connection = sqlite3.connect(self.path)
        self.change(connection)
        return connection


def by_sqlite(monkeypatch: pytest.MonkeyPatch, hook: SqliteHook) -> None:
    monkeypatch.setattr(dbapi, "hook_of", lambda _: hook)


# ---- Silent corruption


def test_rows_that_a_driver_gives_as_dicts_are_values_and_not_the_columns_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra cursor=dictcursor of a MySQL connection, as_dict of SQL Server, a row factory."""

    def as_dicts(connection: Any) -> None:
        connection.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }

    by_sqlite(monkeypatch, SqliteHook(tmp_path / "x.db", as_dicts))
    try:
        found = pa.ipc.open_stream(
            read(streamed(SqlSource("SELECT 'v' AS a, 'w' AS b", conn_id="c"), ["String", "String"]))
        ).read_all()
    except Stopped:
        return
    assert found.to_pylist() == [{"a": b"v", "b": b"w"}]


@pytest.mark.parametrize(("suffix", "pack"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_damaged_second_part_of_a_packed_file_is_an_error(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    """Python takes what is no further part for padding, and drops the rest of the file: pbzip2 writes many."""
    damaged = bytearray(pack(b"3\n4\n"))
    damaged[1] ^= 0xFF
    path = tmp_path / f"x.csv{suffix}"
    path.write_bytes(pack(b"x\n1\n2\n") + bytes(damaged))
    with pytest.raises(Exception):  # noqa: B017 - whichever
        read(streamed(FileSource(str(path))))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_packed_file_that_was_cut_to_nothing_is_an_error(tmp_path: Path, suffix: str) -> None:
    """Packed nothing is never zero bytes. Among many files without headers, this one is dropped in silence."""
    assert len(gzip.compress(b"")) > 0
    (tmp_path / f"x.csv{suffix}").write_bytes(b"")
    source = FileSource(str(tmp_path / f"x.csv{suffix}"), options={"header": False, "columns": ["x"]})
    with pytest.raises(Exception):  # noqa: B017 - whichever
        read(streamed(source))


# ---- Memory


_FIRST_CHUNK = """
import resource, sys
from airflow_provider_dpone.sources import FileSource
load = FileSource(sys.argv[1]).load().stream(["String"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
chunks = load.chunks()
while not next(chunks):
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_parquet_file_of_equal_long_texts_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Its dictionary holds the text once, so the size by which the batches are cut says nothing."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 30_000, pa.int32()), ["y" * 20_000])
    parquet.write_table(pa.table({"x": texts.cast(pa.string())}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 10_000
    ran = subprocess.run(
        [sys.executable, "-c", _FIRST_CHUNK, str(tmp_path / "x.parquet")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout.split()[-1]) < 200, "MiB, for batches of 4 MiB"


# ---- Stopping


def test_a_query_is_not_begun_when_the_load_was_given_up_while_it_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes once; before there is a connection it stops nothing, and the query runs to its end."""
    asked: list[str] = []
    slow = threading.Event()

    def change(connection: Any) -> None:
        if slow.is_set():
            time.sleep(1.0)
        connection.set_trace_callback(asked.append)

    by_sqlite(monkeypatch, SqliteHook(tmp_path / "x.db", change))
    load = streamed(SqlSource("SELECT 1 AS x", conn_id="c"), ["Int8"])
    slow.set()
    asked.clear()
    with closing(load.chunks()) as chunks:  # type: ignore[type-var]
        next(chunks)
    time.sleep(1.5)
    assert asked == []


def test_the_collector_runs_again_when_a_source_that_hangs_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is switched off for the whole process until the driver's call returns, which may be never."""
    release = threading.Event()

    class Hanging:
        description = (("x",),)

        def get_conn(self) -> Any:
            return self

        def cursor(self) -> Any:
            return self

        def execute(self, sql: str) -> None:
            pass

        def fetchmany(self, size: int) -> Any:
            release.wait(10)
            return []

        def rollback(self) -> None:
            pass

        def close(self) -> None:
            pass

    load = dbapi.rows_stream(
        dbapi.Query(Hanging(), "SELECT 1 AS x", None), ["x"], ["Int8"], batch_rows=1, why=""
    )
    try:
        with closing(load.chunks()) as chunks:  # type: ignore[type-var]
            next(chunks)
        assert gc.isenabled()
    finally:
        release.set()
        gc.enable()


def test_comments_in_front_of_what_is_no_query_are_read_in_no_time() -> None:
    """Each comment doubles the ways to read the ones before: 40 of them would take days."""
    started = time.monotonic()
    with pytest.raises(Stopped):
        one_select("/* a */ " * 19 + '"x"', "postgres")
    assert time.monotonic() - started < 0.1


# ---- What a source may do


def test_a_with_that_deletes_changes_nothing_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite and SQL Server let WITH begin a DELETE; the plan runs it, because it can't be put in brackets."""
    hook = SqliteHook(tmp_path / "x.db")
    with closing(hook.get_conn()) as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
    by_sqlite(monkeypatch, hook)
    with pytest.raises(Stopped):
        SqlSource("WITH w AS (SELECT 1) DELETE FROM t", conn_id="c").load()
    with closing(hook.get_conn()) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)
