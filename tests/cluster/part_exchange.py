"""The interserver port of one replica: it serves data parts to the other replicas, in ClickHouse's own protocol.

The embedded server fetches parts but serves none, so its parts are read from its data folder. Every file travels with
its CityHash128, which the fetching server verifies: a wrong byte is an error there, never a wrong row.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aiohttp import web
from clickhouse_cityhash.cityhash import CityHash128  # type: ignore[import-untyped]

from tests.cluster.node_client import CODE_HEADER, NodeClient, NodeDownError

_PROTOCOL_VERSION = 10
_HASH_BLOCK = 2048
_READ_BYTES = 1 << 20
_K3 = 0xC949D7C7509E6557
_LOW_64_BITS = (1 << 64) - 1
_NO_SUCH_PART, _NO_SUCH_ENDPOINT = 234, 221
_LOOKUP_ATTEMPTS, _LOOKUP_PAUSE = 20, 0.05

# Files that only protocol versions from this one on expect.
_SINCE_VERSION = {"default_compression_codec.txt": 4, "metadata_version.txt": 8, "columns_substreams.txt": 9}
_SINCE_NEWEST_VERSION = "invalidated_system"
_NEVER_SENT = frozenset({"txn_version.txt"})


class FileHash:
    """ClickHouse's checksum of a stream: CityHash128 over blocks of 2048 bytes, each seeded with the hash before it."""

    def __init__(self) -> None:
        self._state = (0, 0)
        self._pending = b""

    def update(self, data: bytes) -> None:
        """Add bytes."""
        data = self._pending + data
        whole = len(data) - len(data) % _HASH_BLOCK
        for start in range(0, whole, _HASH_BLOCK):
            self._add_block(data[start : start + _HASH_BLOCK])
        self._pending = data[whole:]

    def digest(self) -> bytes:
        """The hash of everything that was added, as it is sent. Nothing can be added afterwards."""
        if self._pending:
            self._add_block(self._pending)
            self._pending = b""
        return struct.pack("<QQ", *self._state)

    def _add_block(self, block: bytes) -> None:
        # The package's CityHash128WithSeed ignores its seed. CityHash128 takes its own seed from the first sixteen
        # bytes (the first eight XOR k3), so these sixteen make it hash the block with our state as seed.
        first, second = self._state
        value: int = CityHash128(struct.pack("<QQ", first ^ _K3, second) + block)
        self._state = (value >> 64, value & _LOW_64_BITS)


@dataclass(frozen=True, slots=True)
class Part:
    """A data part on disk."""

    path: Path
    part_type: str
    uuid: str


class PartNotFoundError(LookupError):
    """The replica has no such part (any more)."""


def part_stream(part: Part, version: int) -> Iterator[bytes]:
    """The body that a replica answers a fetch with.

    All files are opened before the first byte, so that the part may be removed meanwhile.

    Raises:
        PartNotFoundError: the folder is gone.
    """
    with ExitStack() as stack:
        try:
            files = _open_files(part.path, version, stack)
            projections = {
                folder.stem: _open_files(folder, version, stack)
                for folder in sorted(part.path.iterdir())
                if folder.suffix == ".proj"
            }
        except FileNotFoundError as error:
            raise PartNotFoundError(part.path.name) from error
        yield _header(part, version, files, projections)
        if version >= 7:
            for name, projection_files in projections.items():
                yield _string(name.encode())
                yield from _files_block(projection_files)
        yield from _files_block(files)


@dataclass(frozen=True, slots=True)
class _OpenFile:
    name: str
    size: int
    file: BinaryIO


def _open_files(folder: Path, version: int, stack: ExitStack) -> list[_OpenFile]:
    files = []
    for path in sorted(folder.iterdir()):
        since = _SINCE_VERSION.get(path.name, 10 if path.name.startswith(_SINCE_NEWEST_VERSION) else 0)
        if path.is_file() and path.name not in _NEVER_SENT and version >= since:
            file = stack.enter_context(path.open("rb"))
            files.append(_OpenFile(path.name, path.stat().st_size, file))
    return files


def _header(
    part: Part, version: int, files: list[_OpenFile], projections: dict[str, list[_OpenFile]]
) -> bytes:
    header = b""
    if version >= 1:
        everything = [*files, *(file for group in projections.values() for file in group)]
        header += struct.pack("<Q", sum(file.size for file in everything))
    if version >= 2:
        header += _string(_ttl_infos(files))
    if version >= 3:
        header += _string(part.part_type.encode())
    if version >= 5:
        header += part.uuid.encode()
    if version >= 7:
        header += struct.pack("<Q", len(projections))
    return header


def _ttl_infos(files: list[_OpenFile]) -> bytes:
    for entry in files:
        if entry.name == "ttl.txt":
            content = entry.file.read()
            entry.file.seek(0)
            return content
    return b"ttl format version: 1\n{}"


def _files_block(files: list[_OpenFile]) -> Iterator[bytes]:
    yield struct.pack("<Q", len(files))
    for entry in files:
        yield _string(entry.name.encode()) + struct.pack("<Q", entry.size)
        file_hash = FileHash()
        while chunk := entry.file.read(_READ_BYTES):
            file_hash.update(chunk)
            yield chunk
        yield file_hash.digest()


def _string(text: bytes) -> bytes:
    """A string with its length as a variable-length integer."""
    length, prefix = len(text), b""
    while length > 0x7F:
        prefix += bytes([length & 0x7F | 0x80])
        length >>= 7
    return prefix + bytes([length]) + text


@dataclass(frozen=True, slots=True)
class PartExchange:
    """Answers the fetches that other replicas send to this one."""

    client: NodeClient

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one fetch."""
        kind, _, replica_path = request.query.get("endpoint", "").partition(":")
        if kind != "DataPartsExchange":
            return _error(_NO_SUCH_ENDPOINT, f"No interserver IO endpoint named {kind}")
        # The path may have the name of an auxiliary Keeper before it.
        replica_path = replica_path[replica_path.index("/") :] if "/" in replica_path else replica_path
        version = min(int(request.query.get("client_protocol_version", "0")), _PROTOCOL_VERSION)
        try:
            part = await self._find(replica_path, request.query.get("part", ""))
            chunks = _in_thread(part_stream(part, version))
            first = await anext(chunks)
        except (PartNotFoundError, NodeDownError) as error:
            return _error(_NO_SUCH_PART, f"No part {error} in table")
        response = web.StreamResponse()
        response.set_cookie("server_protocol_version", str(version))
        await response.prepare(request)
        await response.write(first)
        async for chunk in chunks:
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _find(self, replica_path: str, name: str) -> Part:
        # A part is announced in Keeper a moment before the replica itself lists it.
        for _ in range(_LOOKUP_ATTEMPTS):
            rows = await self.client.rows(
                "SELECT path, part_type, toString(uuid) AS uuid FROM system.parts "
                "WHERE (database, table) IN (SELECT database, table FROM system.replicas "
                "WHERE replica_path = {path:String}) AND name = {name:String} ORDER BY active DESC LIMIT 1",
                {"param_path": replica_path, "param_name": name, "log_queries": "0"},
            )
            if rows:
                return Part(Path(rows[0]["path"]), rows[0]["part_type"], rows[0]["uuid"])
            await asyncio.sleep(_LOOKUP_PAUSE)
        raise PartNotFoundError(name)


async def _in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Produce each chunk in a thread: reading and hashing would hold up every other connection."""
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


def _error(code: int, message: str) -> web.Response:
    return web.Response(
        status=500, text=f"Code: {code}. DB::Exception: {message}\n", headers={CODE_HEADER: str(code)}
    )
