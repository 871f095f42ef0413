"""Sources: what they say about themselves, and the bytes they give."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.sources import (
    FileSource,
    SelectLoad,
    Source,
    SourceColumn,
    SqlSource,
    StreamLoad,
    source_from,
)
from airflow_provider_dpone.sources.base import CHUNK_BYTES
from airflow_provider_dpone.sources.csv_file import CsvOptions, RecordCounter
from airflow_provider_dpone.sources.csv_file import stream as csv_stream
from tests.streams import streamed


def no_describe(_: str) -> Sequence[SourceColumn]:
    raise AssertionError("a file is not described by the server")


def read(load: StreamLoad) -> bytes:
    chunks = list(load.chunks())
    assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)
    return b"".join(chunks)


def names(source: FileSource) -> list[str]:
    return [column.name for column in source.columns(no_describe)]


def stop_of(source: Source) -> Stopped:
    with pytest.raises(Stopped) as caught:
        source.columns(no_describe)
    return caught.value


def write(path: Path, data: bytes | str) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


# SqlSource


def test_a_query_runs_on_the_server_and_is_described_by_it() -> None:
    source = SqlSource("SELECT 1 AS x")
    asked: list[str] = []

    def describe(sql: str) -> list[SourceColumn]:
        asked.append(sql)
        return [SourceColumn("x", "UInt8")]

    assert source.columns(describe) == (SourceColumn("x", "UInt8"),)
    assert source.load() == SelectLoad("SELECT 1 AS x")
    assert asked == ["SELECT 1 AS x"]


def test_the_query_enters_the_identity_only_as_a_digest() -> None:
    identity = json.dumps(SqlSource("SELECT 'secret-value'").identity())
    assert "secret" not in identity
    assert SqlSource("SELECT 1").identity() != SqlSource("SELECT 2").identity()
    assert SqlSource("SELECT 1").identity() == SqlSource("SELECT 1").identity()
    assert SqlSource("SELECT 1").identity() != SqlSource("SELECT 1", conn_id="a").identity()


@pytest.mark.parametrize(
    "source",
    [
        SqlSource("SELECT {{ ds }}", conn_id="c"),
        FileSource("/data/{{ ds }}.csv", options={"null": "NA", "header": False, "columns": ["a", "b"]}),
        FileSource("/data/x", format="Parquet", conn_id="c"),
    ],
)
def test_sources_survive_serialisation_and_rendering(source: SqlSource | FileSource) -> None:
    data = json.loads(json.dumps(source.serialize()))
    assert type(source).deserialize(data, 1) == source
    assert source_from(data) == source
    assert isinstance(source, Source)
    assert hash(source) == hash(type(source).deserialize(data, 1))
    rendered = source.rendered(lambda text: text.replace("{{ ds }}", "2013-01-01"))
    assert "{{" not in json.dumps(rendered.serialize())
    assert "2013-01-01" in json.dumps(rendered.serialize()) or "{{" not in json.dumps(data)
    with pytest.raises(ValueError, match="newer release"):
        type(source).deserialize(data, 2)


def test_a_dict_that_is_no_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sql=.*path="):
        source_from({"query": "SELECT 1"})
    with pytest.raises(ValueError, match="sql, conn_id"):
        source_from({"sql": "SELECT 1", "connection": "x"})


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: SqlSource("  "), "sql"),
        (lambda: SqlSource("SELECT 1", conn_id=""), "conn_id"),
        (lambda: FileSource(""), "path"),
        (lambda: FileSource("x", format="XML"), "format"),  # type: ignore[arg-type]
        (lambda: FileSource("x.csv", options={"sep": ";"}), "sep"),
        (lambda: FileSource("x.csv", options={"delimiter": ";;"}), "delimiter"),
        (lambda: FileSource("x.csv", options={"null": 'N"A'}), "null"),
        (lambda: FileSource("x.csv", options={"header": False}), "columns"),
        (lambda: FileSource("x.csv", options={"columns": ["a"]}), "header"),
        (lambda: FileSource("x.parquet", format="Parquet", options={"null": ""}), "options"),
    ],
)
def test_a_wrong_argument_is_named(build: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        build()  # type: ignore[operator]


# FileSource: which file, which format


def test_the_path_enters_the_identity_only_as_a_digest() -> None:
    source = FileSource("s3://key:password@bucket/x.csv")
    assert "password" not in json.dumps(source.identity())
    assert source.identity() != FileSource("s3://key:password@bucket/y.csv").identity()
    assert source.identity() != FileSource("s3://key:password@bucket/x.csv", options={"null": ""}).identity()


def test_a_name_without_a_known_suffix_needs_a_format(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.dat", "a,b\n1,2\n")
    stopped = stop_of(FileSource(path))
    assert stopped.stop.code is Code.BAD_INPUT
    assert "format=" in stopped.stop.message
    assert names(FileSource(path, format="CSV")) == ["a", "b"]


def test_a_storage_without_a_provider_is_refused_without_its_path() -> None:
    stopped = stop_of(FileSource("nosuchscheme://secret-bucket/x.csv"))
    assert stopped.stop.code is Code.BAD_INPUT
    assert "secret-bucket" not in str(stopped)


def test_a_missing_file_is_the_storages_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileSource(str(tmp_path / "none.csv")).columns(no_describe)


# CSV


def test_csv_columns_are_the_header_and_the_body_is_what_follows(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", '\ufeff"a ""quoted"" name","two\nlines",c\r\n1,2,3\r\n4,5,NA\r\n')
    source = FileSource(path, options={"null": "NA"})
    load = streamed(source)
    assert names(source) == ['a "quoted" name', "two\nlines", "c"]
    assert read(load) == b"1,2,3\r\n4,5,NA\r\n"
    assert load.rows() == 2
    assert load.format == "CSV"
    assert load.settings["format_csv_null_representation"] == "NA"


def test_csv_without_header(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "1;2\n3;4")
    source = FileSource(path, options={"header": False, "columns": ["a", "b"], "delimiter": ";"})
    load = streamed(source)
    assert names(source) == ["a", "b"]
    assert read(load) == b"1;2\n3;4"
    assert load.rows() == 2


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "empty"),
        ("a,,b\n1,2,3\n", "without a name"),
        ("a,b,a\n1,2,3\n", "more than once"),
        ("\n1\n", "empty"),
    ],
)
def test_an_unusable_csv_header_is_refused_without_showing_it(tmp_path: Path, data: str, said: str) -> None:
    stopped = stop_of(FileSource(write(tmp_path / "x.csv", data)))
    assert stopped.stop.code is Code.BAD_INPUT
    assert said in stopped.stop.message


def test_csv_that_ends_inside_quotes_fails_at_the_end(tmp_path: Path) -> None:
    load = streamed(FileSource(write(tmp_path / "x.csv", 'a,b\n1,"x"\n2,"y')))
    with pytest.raises(Stopped, match="cut short") as caught:
        read(load)
    assert caught.value.stop.code is Code.SOURCE_FAILED


def test_csv_whose_header_changes_between_plan_and_load_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b\n1,2\n")
    load = streamed(FileSource(path))
    write(tmp_path / "x.csv", "b,a\n1,2\n")
    with pytest.raises(Stopped, match="header changed"):
        read(load)


def test_gzip_is_decompressed_and_a_cut_archive_fails(tmp_path: Path) -> None:
    packed = gzip.compress(b"a\n" + b"1234567\n" * 100_000)
    load = streamed(FileSource(write(tmp_path / "x.csv.gz", packed)))
    assert len(read(load)) == 800_000
    assert load.rows() == 100_000
    cut = streamed(FileSource(write(tmp_path / "y.csv.gz", packed[:-100])))
    with pytest.raises(EOFError):
        read(cut)


@pytest.mark.parametrize("suffix", ["gz", "zst", "bz2", "xz"])
def test_compressed_files_are_decompressed_and_a_cut_one_fails(tmp_path: Path, suffix: str) -> None:
    plain = b"a\n" + b"".join(b"%d\n" % (n * n) for n in range(100_000))
    match suffix:
        case "gz":
            packed = gzip.compress(plain[:1000]) + gzip.compress(plain[1000:])
        case "zst":
            codec = pa.Codec("zstd")
            packed = b"".join(bytes(codec.compress(part)) for part in (plain[:1000], plain[1000:]))
        case "bz2":
            packed = bz2.compress(plain[:1000]) + bz2.compress(plain[1000:])
        case _:
            packed = lzma.compress(plain[:1000]) + lzma.compress(plain[1000:])
    load = streamed(FileSource(write(tmp_path / f"x.csv.{suffix}", packed)))
    assert read(load) == plain[2:]
    assert load.rows() == 100_000
    cut = streamed(FileSource(write(tmp_path / f"y.CSV.{suffix.upper()}", packed[:-100])))
    with pytest.raises((EOFError, OSError)):
        read(cut)


def test_files_of_a_pattern_are_one_stream_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", "x,y\n3,4")
    write(tmp_path / "a.csv", "x,y\n1,2")
    write(tmp_path / "c.csv.gz", gzip.compress(b"x,y\n5,6\n"))
    load = streamed(FileSource(f"{tmp_path}/[abc].csv*", format="CSV"))
    assert read(load) == b"1,2\n3,4\n5,6\n"
    assert load.rows() == 3

    write(tmp_path / "a.jsonl", '{"x": 1}\n')
    write(tmp_path / "b.jsonl", '{"x": 2}')
    load = streamed(FileSource(f"{tmp_path}/*.jsonl"))
    assert read(load) == b'{"x": 1}\n{"x": 2}\n'
    assert load.rows() == 2

    for name, values in (("a", [1, 2]), ("b", [3])):
        parquet.write_table(pa.table({"x": values}), tmp_path / f"{name}.parquet")
    load = streamed(FileSource(f"{tmp_path}/?.parquet"))
    assert pa.ipc.open_stream(read(load)).read_all().column("x").to_pylist() == [1, 2, 3]
    assert load.rows() == 3


def test_files_of_a_pattern_have_the_same_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x,y\n")
    write(tmp_path / "b.csv", "y,x\n")
    assert "File 2 of 2 has another header" in stop_of(FileSource(f"{tmp_path}/*.csv")).stop.message
    for name, kind in (("a", pa.int8()), ("b", pa.int16())):
        parquet.write_table(pa.table({"x": pa.array([1], kind)}), tmp_path / f"{name}.parquet")
    assert "File 2 of 2 has other columns" in stop_of(FileSource(f"{tmp_path}/*.parquet")).stop.message
    write(tmp_path / "a.jsonl", '{"x": 1}')
    write(tmp_path / "b.jsonl", '{"y": 1}')
    with pytest.raises(Stopped, match=r"Line 1 of file 2 lacks column 'x'"):
        read(streamed(FileSource(f"{tmp_path}/*.jsonl")))


def test_a_pattern_without_files_is_refused_without_showing_it(tmp_path: Path) -> None:
    stopped = stop_of(FileSource(f"{tmp_path}/hidden*.csv"))
    assert stopped.stop.code is Code.BAD_INPUT
    assert "hidden" not in str(stopped)


def test_a_date_that_clickhouse_would_move_is_refused(tmp_path: Path) -> None:
    for kind in (pa.date32(), pa.timestamp("ns", "UTC"), pa.timestamp("us"), pa.list_(pa.timestamp("s"))):
        moment = datetime(1899, 12, 31)
        value = [moment] if pa.types.is_list(kind) else moment
        parquet.write_table(pa.table({"at": pa.array([value], kind)}), tmp_path / "x.parquet")
        load = streamed(FileSource(str(tmp_path / "x.parquet")))
        with pytest.raises(Stopped, match="1900 to 2299") as caught:
            read(load)
        assert caught.value.stop.facts["column"] == "at"
        assert load.rows() is None


def test_a_long_csv_header_is_read_over_chunk_borders(tmp_path: Path) -> None:
    header = ",".join(f'"column\n{i:06d}"' for i in range(60_000))
    assert len(header) > CHUNK_BYTES
    load = streamed(FileSource(write(tmp_path / "x.csv", f"{header}\nrest\n")))
    assert len(load.columns) == 60_000
    assert read(load) == b"rest\n"


@given(
    st.lists(st.lists(st.text("a,\"\n\r ';", max_size=6), min_size=2, max_size=3), max_size=8),
    st.integers(1, 7),
)
def test_records_are_counted_as_a_csv_reader_counts_them(rows: list[list[str]], size: int) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    data = text.getvalue().encode()
    counter = RecordCounter()
    for start in range(0, len(data), size):
        counter.feed(data[start : start + size])
    assert counter.records == len(rows)
    assert not counter.open_quote


@pytest.mark.parametrize(
    ("data", "records"),
    [
        (b"1,2\n3,4", 2),
        (b"1,2\n3,4\n", 2),
        (b"", 0),
        (b'5" pipe,x\n6,y\n', 2),
        (b'5" pipe,"x\n6",y\n', 1),
        (b'1,"a"b\n2,c\n', 2),
        (b'1,"a""b"\n', 1),
    ],
)
def test_counted_records(data: bytes, records: int) -> None:
    counter = RecordCounter()
    counter.feed(data)
    assert counter.records == records


def as_clickhouse_reads(data: bytes) -> tuple[int, bool]:
    """Records and whether the end is inside quotes, byte by byte. What the server refuses is read on."""
    records, state = 0, "start"
    for byte in data.decode("latin-1"):
        match state, byte:
            case "start", '"':
                state = "quoted"
            case "quoted", '"':
                state = "closed"
            case "closed", '"':
                state = "quoted"
            case "quoted", _:
                pass
            case _, "\n":
                records += 1
                state = "start"
            case _, ",":
                state = "start"
            case _:
                state = "plain"
    ended = not data or (state == "start" and data.endswith(b"\n"))
    return records + (not ended), state == "quoted"


@settings(max_examples=500)
@given(st.text('a,"\n\r ', max_size=40), st.integers(1, 9))
def test_quotes_anywhere_are_counted_as_clickhouse_reads_them(text: str, size: int) -> None:
    data = text.encode()
    counter = RecordCounter()
    for start in range(0, len(data), size):
        counter.feed(data[start : start + size])
    assert (counter.records, counter.open_quote) == as_clickhouse_reads(data)


def test_a_csv_stream_reads_as_it_goes() -> None:
    """Memory: no more than a chunk is asked for at a time."""
    asked: list[int] = []

    class File(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size if size is not None else -1)
            return super().read(size)

    data = b"a\n" + b"x" * 100 + b"\n"
    load = csv_stream([lambda: nullcontext(File(data * 20_000))], CsvOptions())
    next(iter(load.chunks()))
    assert len(asked) == 2
    assert set(asked) == {CHUNK_BYTES}


# JSON lines


def test_json_columns_are_the_first_objects_keys_and_lines_pass_unchanged(tmp_path: Path) -> None:
    lines = [
        '{"a": 1.50, "b": {"c": [1]}}',
        '  {"b":123456789012345678901234567890,"a":null}\r',
        "",
        '{"a":1e400,"b":0}',
    ]
    source = FileSource(write(tmp_path / "x.jsonl", "\ufeff" + "\n".join(lines)))
    load = streamed(source)
    assert names(source) == ["a", "b"]
    assert read(load).decode().splitlines() == [line.strip() for line in lines if line]
    assert load.rows() == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a":1}', "Line 3 lacks column 'b'"),
        ('{"a":1,"b":2,"c":"secret"}', "Line 3 has column 'c'"),
        ('["secret"]', "Line 3"),
        ('{"a":secret,"b":1}', "Line 3"),
        ('{"a":NaN,"b":"secret"}', "Line 3"),
        ('{"a":1,"b":"secret"} {}', "Line 3"),
        ('{"a":"' + "[" * 3 + '"', "Line 3"),
        ("[" * 100_000, "Line 3"),
    ],
)
def test_a_json_line_with_other_keys_is_refused_by_number_and_column(
    tmp_path: Path, line: str, said: str
) -> None:
    load = streamed(FileSource(write(tmp_path / "x.json", f'{{"a":1,"b":2}}\n\n{line}\n')))
    with pytest.raises(Stopped) as caught:
        read(load)
    assert caught.value.stop.code is Code.VALUE_REFUSED
    assert said in caught.value.stop.message
    assert "secret" not in str(caught.value)


def test_json_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    load = streamed(FileSource(write(tmp_path / "x.jsonl", b'{"a":"x"}\n{"a":"\xff"}\n')))
    with pytest.raises(Stopped, match="Line 2"):
        read(load)


@pytest.mark.parametrize("data", ["", "\n\n", "{}\n"])
def test_a_json_file_without_a_key_has_no_columns(tmp_path: Path, data: str) -> None:
    assert stop_of(FileSource(write(tmp_path / "x.json", data))).stop.code is Code.BAD_INPUT


def test_large_json_lines_cross_chunk_borders(tmp_path: Path) -> None:
    lines = [json.dumps({"a": "x" * size}) for size in (1, CHUNK_BYTES - 8, CHUNK_BYTES, 3 * CHUNK_BYTES, 5)]
    load = streamed(FileSource(write(tmp_path / "x.jsonl", "\n".join(lines))))
    assert read(load).decode().split("\n") == [*lines, ""]
    assert load.rows() == 5


# Parquet


def test_parquet_columns_have_the_footers_types_and_the_stream_holds_every_row(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array(range(200_000), pa.int64()),
            "name": pa.array([None if i % 3 == 0 else f"n{i}" for i in range(200_000)]),
            "at": pa.array([0] * 200_000, pa.timestamp("us")),
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=70_000)
    load = streamed(FileSource(str(tmp_path / "x.parquet")))
    assert load.columns == (
        SourceColumn("id", "Nullable(Int64)"),
        SourceColumn("name", "Nullable(String)"),
        SourceColumn("at", "Nullable(DateTime64(6, 'UTC'))"),
    )
    assert load.format == "ArrowStream"
    assert pa.ipc.open_stream(read(load)).read_all().equals(table)
    assert load.rows() == 200_000


def test_a_parquet_type_without_exact_counterpart_is_refused_by_name(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"ok": [1], "took": pa.array([1], pa.duration("us"))}), tmp_path / "x.parquet"
    )
    stopped = stop_of(FileSource(str(tmp_path / "x.parquet")))
    assert stopped.stop.code is Code.TYPE_NOT_EXACT
    assert "'took'" in stopped.stop.message


@pytest.mark.parametrize("value", [[[1], None], [[[1], None]]])
def test_a_null_list_is_refused_because_it_would_become_an_empty_one(
    tmp_path: Path, value: list[object]
) -> None:
    parquet.write_table(pa.table({"tags": value}), tmp_path / "x.parquet")
    load = streamed(FileSource(str(tmp_path / "x.parquet")))
    with pytest.raises(Stopped, match="'tags'") as caught:
        read(load)
    assert caught.value.stop.code is Code.VALUE_REFUSED


def test_an_empty_parquet_file_is_an_empty_source(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": pa.array([], pa.int32())}), tmp_path / "x.parquet")
    load = streamed(FileSource(str(tmp_path / "x.parquet")))
    assert load.columns == (SourceColumn("a", "Nullable(Int32)"),)
    assert pa.ipc.open_stream(read(load)).read_all().num_rows == 0
    assert load.rows() == 0


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    stopped = stop_of(FileSource(write(tmp_path / "x.parquet", b"PAR1")))
    assert stopped.stop.code is Code.BAD_INPUT
    assert "airflow-provider-dpone[parquet]" in stopped.stop.next_action


def test_integers_of_parquet_travel_in_the_width_of_the_table(tmp_path: Path) -> None:
    """Readers of Python's numbers write them all as 64 bits; the table seldom has that many."""
    parquet.write_table(
        pa.table({"a": [1, None, -128], "b": [0, 2, 3], "c": [5, 6, 7]}), tmp_path / "x.parquet"
    )
    source = FileSource(str(tmp_path / "x.parquet"))
    load = streamed(source, ["Nullable(Int8)", "LowCardinality(UInt16)", "Decimal(9, 2)"])
    assert [column.type for column in load.columns] == [
        "Nullable(Int8)",
        "UInt16",
        "Int64",
    ]
    found = pa.ipc.open_stream(read(load)).read_all()
    assert [str(field.type) for field in found.schema] == ["int8", "uint16", "int64"]
    assert found.to_pydict() == {"a": [1, None, -128], "b": [0, 2, 3], "c": [5, 6, 7]}
    for types in (["Int8", "UInt8", "Int8"], ["UInt16", "Int8", "Int8"]):
        parquet.write_table(pa.table({"a": [-300], "b": [1], "c": [1]}), tmp_path / "x.parquet")
        with pytest.raises(Stopped) as caught:
            read(streamed(source, types))
        assert (caught.value.stop.code, caught.value.stop.facts["column"]) == (Code.VALUE_REFUSED, "a")
        assert "300" not in str(caught.value)


def test_no_dictionary_travels_also_within_lists(tmp_path: Path) -> None:
    """Servers may keep the first of several: the next batch's texts would be the first one's."""
    inner = pa.array(["a", None, "b", "a"]).dictionary_encode()
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), inner)
    parquet.write_table(pa.table({"a": inner[:2], "b": lists}), tmp_path / "x.parquet", row_group_size=1)
    load = streamed(FileSource(str(tmp_path / "x.parquet")), ["Nullable(String)", "Array(Nullable(String))"])
    found = pa.ipc.open_stream(read(load)).read_all()
    assert "dictionary" not in str(found.schema)
    assert found.to_pydict() == {"a": ["a", None], "b": [["a", None], ["b", "a"]]}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1] * 5 + [None], pa.int64()),
        pa.array(["a"] * 5 + [None]),
        pa.array(["a"] * 5 + [None]).dictionary_encode(),
        pa.array([0.5] * 5 + [None]),
        pa.array([0] * 5 + [None], pa.timestamp("us")),
    ],
    ids=lambda column: str(column.type).partition("<")[0],
)
def test_null_is_refused_before_it_is_sent_where_the_table_has_none(tmp_path: Path, column: Any) -> None:
    """The server is not told of NULL there: it would read a zero or an empty text."""
    parquet.write_table(pa.table({"a": column}), tmp_path / "x.parquet", row_group_size=4)
    source = FileSource(str(tmp_path / "x.parquet"))
    ((given,),) = (source.load().columns,)
    kind = str(given.type).removeprefix("Nullable(").removesuffix(")")
    load = streamed(source, [kind])
    assert [column.type for column in load.columns] == [kind]
    with pytest.raises(Stopped, match="NULL") as caught:
        read(load)
    assert (caught.value.stop.code, caught.value.stop.facts) == (Code.VALUE_REFUSED, {"column": "a"})
    found = pa.ipc.open_stream(read(streamed(source, [f"Nullable({kind})"]))).read_all()
    assert found.column("a").null_count == 1
    assert found.schema.field("a").nullable
