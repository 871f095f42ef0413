"""CSV as RFC 4180 has it: a header row, quotes around what needs them, one record per line."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.base import CHUNK_BYTES, SourceColumn, StreamLoad

_BOM: Final = b"\xef\xbb\xbf"
_QUOTED: Final = re.compile(rb'"[^"]*"')
_MAX_HEADER_BYTES: Final = 4 * 1024 * 1024

Open = Callable[[], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How a CSV file is written.

    :ivar null: the unquoted field that means NULL; ``""`` is the unquoted empty field.
    :ivar delimiter: the one character between fields.
    :ivar header: the first record holds the columns' names.
    :ivar columns: the columns' names where there is no header.
    """

    null: str = "\\N"
    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> CsvOptions:
        """Read ``FileSource``'s options.

        :raises ValueError: an unknown option, or a value that makes no sense; the message names it.
        """
        if unknown := sorted(set(options) - {"null", "delimiter", "header", "columns"}):
            raise ValueError(
                f"a CSV file has no option {', '.join(unknown)}; there are null, delimiter, header, columns"
            )
        found = cls(**{**options, "columns": tuple(options.get("columns", ()))})
        match found.delimiter:
            case str() as delimiter if len(delimiter.encode()) == 1 and delimiter not in '"\r\n':
                pass
            case _:
                raise ValueError("delimiter must be one ASCII character, and no quote or line end")
        match found.null:
            case str() as null if not any(char in null for char in '"\r\n' + found.delimiter):
                pass
            case _:
                raise ValueError("null must be a text without quotes, line ends and delimiters")
        if found.header == bool(found.columns):
            raise ValueError("columns are given for a file without a header (header=False), and only there")
        return found

    @property
    def settings(self) -> dict[str, str]:
        """Settings of ClickHouse for this spelling."""
        return {"format_csv_delimiter": self.delimiter, "format_csv_null_representation": self.null}


class RecordCounter:
    """Counts the records of a CSV body, and notices an end inside quotes.

    It reads quotes as ClickHouse does: one at the start of a field opens it, and any other is a character of
    an unquoted field. Bytes without such a stray quote take a shorter way.
    """

    def __init__(self, delimiter: bytes = b",") -> None:
        """Start in front of the first record."""
        around = re.escape(delimiter)
        self._stray = re.compile(rb'[^"\n%b]"|"[^"\r\n%b]' % (around, around))
        # What opened a field, then the field up to a quote that is not doubled, or up to where the bytes end.
        self._field = re.compile(rb'([\n%b])"[^"]*+(?:""[^"]*+)*+("?+)' % around)
        self._tail = re.compile(rb'[\n%b](""?)\Z' % around)
        self._quoted = False
        self._last = (
            b"\n"  # outside of quotes, the byte in front of the next one; a quote if it closed a field
        )
        self._line_ends = 0

    def feed(self, data: bytes) -> None:
        """Go over the next bytes of the body."""
        if data and not self._clean(data):
            self._exact(data)

    def _clean(self, data: bytes) -> bool:
        """Count bytes in which every quote opens, closes or is doubled. ``False``: nothing was counted."""
        quoted, last = self._quoted, self._last
        if quoted:
            _, quote, data = data.partition(b'"')
            if not quote:
                return True
            quoted, last = False, b'"'
        if data.count(b'"') % 2:
            data, _, _ = data.rpartition(b'"')
            quoted = True
        # A doubled quote inside quotes reads here as the end of one field and the start of another.
        outside = _QUOTED.sub(b'"', data) if b'"' in data else data
        seen = last + outside + (b'"' if quoted else b"")
        if b'"' in seen and self._stray.search(seen):
            return False
        self._quoted, self._last = quoted, seen[-1:]
        self._line_ends += outside.count(b"\n")
        return True

    def _exact(self, data: bytes) -> None:
        """Count any bytes, field by field."""
        if self._quoted or (self._last == b'"' and data.startswith(b'"')):
            # The bytes go on inside a field, and it doesn't matter what opened it. A quote that closed it at
            # the end of the bytes before was the first of two.
            before, data = b"\n", (b'"' if self._quoted else b'""') + data
        else:
            before = self._last
        # A field leaves its two quotes, or one if it goes on.
        outside = self._field.sub(rb'\1"\2', before + data)
        self._line_ends += outside.count(b"\n", 1)
        tail = self._tail.search(outside, max(0, len(outside) - 3))
        self._quoted = tail is not None and tail[1] == b'"'
        if tail is None and outside.endswith(b'"'):
            self._last = b"x"  # it is a character, and closed nothing
        else:
            self._last = outside[-1:]

    @property
    def open_quote(self) -> bool:
        """Whether what was fed ends inside quotes."""
        return self._quoted

    @property
    def records(self) -> int:
        """How many records were fed."""
        return self._line_ends + (self._last != b"\n")


def stream(files: Sequence[Open], options: CsvOptions) -> StreamLoad:
    """Return the load of CSV files, one after the other. Headers are read now, the rows when the chunks are.

    :raises Stopped: ``BAD_INPUT``: there is no usable header, or not the same one in every file.
    """
    names: tuple[str, ...] = ()
    for number, opened in enumerate(files, start=1):
        with opened() as file:
            found, _ = _header(file, options)
        if number > 1 and found != names:
            raise _refused(f"File {number} of {len(files)} has another header than the first one.")
        names = found
    records = 0

    def chunks() -> Iterator[bytes]:
        nonlocal records
        records = 0
        last = b"\n"
        for opened in files:
            counter = RecordCounter(options.delimiter.encode())
            with opened() as file:
                now, data = _header(file, options)
                if now != names:
                    raise _refused("The file's header changed while it was staged.")
                if data and last != b"\n":
                    yield b"\n"  # the file before has no line end behind its last record
                while data:
                    counter.feed(data)
                    last = data[-1:]
                    yield data
                    data = file.read(CHUNK_BYTES)
            if counter.open_quote:
                raise Stopped(
                    Stop(Code.SOURCE_FAILED, "The CSV file ends inside a quoted field: it is cut short.")
                )
            records += counter.records

    columns = tuple(SourceColumn(name) for name in names)
    return StreamLoad(
        "CSV", options.settings, columns, chunks, lambda: records, names_from_data=options.header
    )


def _header(file: BinaryIO, options: CsvOptions) -> tuple[tuple[str, ...], bytes]:
    """Return the columns' names, and what was read behind the header."""
    data = file.read(CHUNK_BYTES).removeprefix(_BOM)
    if not options.header:
        return options.columns, data
    counter = RecordCounter(options.delimiter.encode())
    at = 0
    while True:
        end = data.find(b"\n", at)
        counter.feed(data[at : end + 1] if end >= 0 else data[at:])
        at = end + 1 if end >= 0 else len(data)
        if end >= 0 and not counter.open_quote:
            break
        if end < 0:
            more = file.read(CHUNK_BYTES)
            if not more:
                break
            data += more
            if len(data) > _MAX_HEADER_BYTES:
                raise _refused("The file's first record has no end: this is no CSV file with a header.")
    try:
        text = data[:at].decode()
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=options.delimiter, strict=True)
        names = next(reader, [])
    except (ValueError, csv.Error):
        raise _refused("The file's first record can't be read as a header.") from None
    if not names or not all(names):
        raise _refused("The file's header is empty or has a column without a name.")
    if doubled := sum(count > 1 for count in Counter(names).values()):
        raise _refused(f"The file's header names {doubled} column(s) more than once.")
    return tuple(names), data[at:]


def _refused(message: str) -> Stopped:
    return Stopped(Stop(Code.BAD_INPUT, message))
