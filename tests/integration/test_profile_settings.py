"""What a user's profile says doesn't change what a body means, nor what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from airflow_provider_dpone.clickhouse.errors import ServerError
from airflow_provider_dpone.clickhouse.exact import LoadColumn, insert_from_select
from airflow_provider_dpone.sources import FileSource, StreamLoad
from tests.integration.source_site import DATABASE, Store, stored_with, stream
from tests.streams import streamed

pytestmark = pytest.mark.cluster


@pytest.fixture
def csv(tmp_path: Path) -> Callable[[bytes], StreamLoad]:
    """The load of a CSV file with these contents."""

    def start(data: bytes) -> StreamLoad:
        (tmp_path / "x.csv").write_bytes(data)
        return streamed(FileSource(str(tmp_path / "x.csv")))

    return start


def test_a_csv_body_is_read_as_csv(store: Store, csv: Callable[[bytes], StreamLoad]) -> None:
    profile = {"input_format": "TSV", "format": "TSV"}
    assert stored_with(store, csv(b'x\n"a"\n'), ["String"], profile) == ["a"]


def test_no_address_stands_in_for_a_wrong_one(store: Store, csv: Callable[[bytes], StreamLoad]) -> None:
    profile = {
        "cast_ipv4_ipv6_default_on_conversion_error": "1",
        "input_format_ipv6_default_on_conversion_error": "1",
    }
    with pytest.raises(ServerError):
        stored_with(store, csv(b"x\nno address\n"), ["IPv6"], profile)


def test_a_lone_carriage_return_ends_no_record(store: Store, csv: Callable[[bytes], StreamLoad]) -> None:
    """The source counts lines by their line feeds."""
    profile = {"input_format_csv_allow_cr_end_of_line": "1"}
    with pytest.raises(ServerError):
        stored_with(store, csv(b"x,y\na,b\rc,d\n"), ["String", "String"], profile)


def test_a_load_is_answered_when_it_has_ended(store: Store) -> None:
    store.cluster.execute(
        f"CREATE OR REPLACE TABLE {DATABASE}.t (x UInt64) ENGINE = MergeTree ORDER BY tuple()", node=1
    )
    statement = insert_from_select(
        DATABASE, "t", [LoadColumn("x", "UInt64", "UInt64")], "SELECT number AS x FROM numbers(1000)"
    )
    reply = store.server.once(statement.sql, settings={"run_query_in_background": "1", **statement.settings})
    assert reply.summary["written_rows"] == "1000"


def test_a_zero_byte_at_the_end_of_fixed_bytes_is_not_lost(store: Store, tmp_path: Path) -> None:
    """ClickHouse's text of a FixedString ends in front of it."""
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"x": pa.array([b"ab\0"], pa.binary(3))}), path)
    assert store.load(stream(FileSource(str(path)), "FixedString(3)"), "FixedString(3)") == 1
    assert store.stored(as_hex=True) == ["616200"]
    with pytest.raises(ServerError):
        store.load(stream(FileSource(str(path)), "String"), "String")
    parquet.write_table(pa.table({"x": pa.array([b"abc"], pa.binary(3))}), path)
    assert store.load(stream(FileSource(str(path)), "String"), "String") == 1
    assert store.stored() == ["abc"]


def test_dictionaries_that_change_from_batch_to_batch_are_read(store: Store, tmp_path: Path) -> None:
    batches = [pa.table({"x": pa.array([text] * 20_000).dictionary_encode()}) for text in ("a", "b", "c")]
    with parquet.ParquetWriter(tmp_path / "x.parquet", batches[0].schema) as writer:
        for batch in batches:
            writer.write_table(batch)
    load = stream(FileSource(str(tmp_path / "x.parquet")), "String")
    assert store.load(load, "String") == 60_000
    found = store.cluster.query(f"SELECT x, count() AS n FROM {DATABASE}.t GROUP BY x ORDER BY x", node=1)
    assert [(row["x"], int(str(row["n"]))) for row in found] == [("a", 20_000), ("b", 20_000), ("c", 20_000)]
