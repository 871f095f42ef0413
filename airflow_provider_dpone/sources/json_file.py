"""One JSON object per line, each with the same keys."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence, Set
from contextlib import closing
from typing import Any, BinaryIO, Final, NoReturn

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.sources.base import CHUNK_BYTES, SourceColumn, StreamLoad, pieces
from airflow_provider_dpone.sources.csv_file import Open

_BOM: Final = b"\xef\xbb\xbf"
_MAX_LINE_BYTES: Final = 64 * 1024 * 1024


def stream(files: Sequence[Open]) -> StreamLoad:
    """Return the load of files of JSON lines. The first object's keys are the columns.

    Every later object must have exactly these keys, in any order: an absent one would become NULL in
    silence. A key that stands twice is refused by the server. Lines go there as they are, so numbers keep
    every digit.

    :raises Stopped: ``BAD_INPUT``: there is no object, or the first line is none.
    """
    names = _first_keys(files)
    expected = frozenset(names)
    total = 0

    def chunks() -> Iterator[bytes]:
        nonlocal total
        total = 0
        waiting: list[bytes] = []
        size = 0
        for number, line in _lines(files):
            keys = _object(line, number).keys()
            if keys != expected:
                raise _other_keys(keys, expected, number)
            total += 1
            waiting.append(line)
            size += len(line) + 1
            if size >= CHUNK_BYTES:
                yield from pieces(b"\n".join((*waiting, b"")))
                waiting, size = [], 0
        if waiting:
            yield from pieces(b"\n".join((*waiting, b"")))

    return StreamLoad("JSONEachRow", {}, tuple(SourceColumn(name) for name in names), chunks, lambda: total)


def _first_keys(files: Sequence[Open]) -> tuple[str, ...]:
    with closing(_lines(files)) as lines:
        for number, line in lines:
            names = tuple(_object(line, number))
            if not names:
                raise Stopped(Stop(Code.BAD_INPUT, "The file's first object has no key."))
            return names
    raise Stopped(
        Stop(
            Code.BAD_INPUT, "The file holds no JSON object, so it has no columns. An empty file says nothing."
        )
    )


def _lines(files: Sequence[Open]) -> Generator[tuple[str, bytes], None, None]:
    """Yield the lines that are not blank, with the places where they stand, both counted from 1."""
    for place, opened in enumerate(files, start=1):
        where = f" of file {place}" if len(files) > 1 else ""
        with opened() as file:
            for number, line in enumerate(_split(file), start=1):
                text = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
                if text:
                    yield f"{number}{where}", text


def _split(file: BinaryIO) -> Iterator[bytes]:
    rest: list[bytes] = []
    size = 0
    while data := file.read(CHUNK_BYTES):
        first, *others = data.split(b"\n")
        rest.append(first)
        size += len(first)
        if size > _MAX_LINE_BYTES:
            raise Stopped(Stop(Code.BAD_INPUT, f"The file has a line of more than {_MAX_LINE_BYTES} bytes."))
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest, size = [others[-1]], len(others[-1])
    yield b"".join(rest)


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _object(line: bytes, number: str) -> dict[str, Any]:
    try:
        found = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        raise _value_refused(f"Line {number} is not one JSON object in UTF-8.") from None
    if not isinstance(found, dict):
        raise _value_refused(f"Line {number} is not a JSON object.")
    return found


def _other_keys(found: Set[str], expected: Set[str], number: str) -> Stopped:
    if missing := sorted(expected - found):
        return _value_refused(f"Line {number} lacks column {missing[0]!r}, which the first object has.")
    extra = sorted(found - expected)
    return _value_refused(f"Line {number} has column {extra[0]!r}, which the first object lacks.")


def _value_refused(message: str) -> Stopped:
    return Stopped(Stop(Code.VALUE_REFUSED, message))
