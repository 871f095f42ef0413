"""Give an embedded ClickHouse server the interserver address that only a stand-alone server sets.

The server object inside the chdb-core wheel parses ``interserver_http_port`` but never hands it to its context, so
every ReplicatedMergeTree table would stay read-only. This file, and no other, makes up for it: it finds that context
in the memory of its own process and writes the three values that the stand-alone server would have set (address,
scheme, and empty credentials).

It fails closed. The position of each field was read from the machine code of two builds, which are recognised by
their build id; any other build is refused. In a known build the context must be found exactly once, with every field
that is about to be written still zero. Nothing is written otherwise.

Works on Linux on x86-64, within the own process only.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_CHUNK = 8 << 20
_OVERLAP = 4096
_LARGEST_REGION = 1 << 32  # larger mappings are address space reserved by the allocator, not data
_SHORT_STRING = 22  # the longest text that libc++ keeps inside the string object itself


class UnknownServerBuildError(RuntimeError):
    """The shared object is not one of the builds whose memory layout is known."""


class ServerContextNotFoundError(RuntimeError):
    """The server's context was not found exactly once, in the state in which it may be written."""


@dataclass(frozen=True, slots=True)
class ContextLayout:
    """Offsets, in bytes, of the members of ``DB::ContextSharedPart`` that matter here."""

    version: str
    host: int = 0x150
    port: int = 0x168
    scheme: int = 0x170
    credentials: int = 0x1B0
    path: int = 0x1C0
    flags_path: int = 0x1D8


KNOWN_BUILDS: Mapping[str, ContextLayout] = MappingProxyType(
    {
        "bdc4640446f9e58ef835635e38764a5992cd4b3c": ContextLayout(version="26.9.0"),
        "2808a01e4988275aa229330eb29461eb208848d9": ContextLayout(version="26.7.3"),
    }
)
"""Layouts by ELF build id; `version` is that of the chdb-core wheel."""


def read_build_id(shared_object: Path) -> str:
    """The GNU build id of a 64-bit little-endian ELF file, in hexadecimal.

    Raises:
        UnknownServerBuildError: not such a file, or one without a build id.
    """
    with shared_object.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            raise UnknownServerBuildError(f"{shared_object.name} is not a 64-bit little-endian ELF file")
        (table_offset,) = struct.unpack_from("<Q", header, 0x20)
        entry_size, entry_count = struct.unpack_from("<HH", header, 0x36)
        for number in range(entry_count):
            file.seek(table_offset + number * entry_size)
            program_header = file.read(56)
            (kind,) = struct.unpack_from("<I", program_header)
            if kind != 4:  # PT_NOTE
                continue
            (offset,) = struct.unpack_from("<Q", program_header, 8)
            (size,) = struct.unpack_from("<Q", program_header, 32)
            file.seek(offset)
            build_id = _build_id_note(file.read(size))
            if build_id is not None:
                return build_id
    raise UnknownServerBuildError(f"{shared_object.name} carries no build id")


def _build_id_note(notes: bytes) -> str | None:
    position = 0
    while position + 12 <= len(notes):
        name_size, description_size, kind = struct.unpack_from("<III", notes, position)
        name_start = position + 12
        description_start = name_start + (name_size + 3) // 4 * 4
        if kind == 3 and notes[name_start : name_start + name_size] == b"GNU\0":  # NT_GNU_BUILD_ID
            return notes[description_start : description_start + description_size].hex()
        position = description_start + (description_size + 3) // 4 * 4
    return None


def layout_of(shared_object: Path) -> ContextLayout:
    """The memory layout of this build of the server.

    Raises:
        UnknownServerBuildError: a build that nobody has examined.
    """
    build_id = read_build_id(shared_object)
    layout = KNOWN_BUILDS.get(build_id)
    if layout is None:
        known = ", ".join(f"{known.version} ({known_id[:8]})" for known_id, known in KNOWN_BUILDS.items())
        raise UnknownServerBuildError(
            f"{shared_object.name} has build id {build_id}; its memory layout is unknown. Known: chdb-core {known}"
        )
    return layout


# An empty DB::InterserverCredentials object (no user, no password, no history). The server keeps a pointer to it for
# as long as the process lives, so it must never be freed.
_EMPTY_CREDENTIALS = ctypes.create_string_buffer(256)


def write_interserver_address(
    layout: ContextLayout, data_path: str, host: str, port: int, *, timeout: float
) -> None:
    """Set the interserver address of the server that runs (or is about to start) in this process.

    Call it in a thread of its own while another one is inside the server's ``query``. It returns as soon as the
    context has appeared and was written.

    Args:
        layout: from `layout_of`, for the shared object that is loaded.
        data_path: the data path the server was started with, ending in "/". It is what the context is recognised by,
            and must be longer than 22 bytes.
        host: an address of at most 22 bytes.
        port: a TCP port.
        timeout: seconds to wait for the context to appear.

    Raises:
        ServerContextNotFoundError: not found in time, or found more than once.
        ValueError: a text has the wrong length.
    """
    path = data_path.encode()
    if len(path) <= _SHORT_STRING or not data_path.endswith("/"):
        raise ValueError("the data path must be longer than 22 bytes and end in '/'")
    packed_host, packed_scheme = _short_string(host), _short_string("http")
    memory = _OwnMemory()
    deadline = time.monotonic() + timeout
    try:
        while True:
            contexts = _find_contexts(memory, layout, path)
            if len(contexts) == 1:
                break
            if len(contexts) > 1:
                raise ServerContextNotFoundError(f"{len(contexts)} objects look like the server's context")
            if time.monotonic() > deadline:
                raise ServerContextNotFoundError(f"the server's context did not appear within {timeout:g} s")
            time.sleep(0.05)
    finally:
        memory.close()
    context = contexts.pop()
    # The host comes last: it is what the server tests to see whether there is an address.
    ctypes.memmove(context + layout.credentials, struct.pack("<Q", ctypes.addressof(_EMPTY_CREDENTIALS)), 8)
    ctypes.memmove(context + layout.scheme, packed_scheme, 24)
    ctypes.memmove(context + layout.port, struct.pack("<H", port), 2)
    ctypes.memmove(context + layout.host, packed_host, 24)


def _short_string(text: str) -> bytes:
    """A libc++ ``std::string`` that holds its text inside the object: 23 bytes of text, then the length."""
    encoded = text.encode()
    if len(encoded) > _SHORT_STRING:
        raise ValueError(f"{text!r} is longer than {_SHORT_STRING} bytes")
    return encoded.ljust(23, b"\0") + bytes([len(encoded)])


class _OwnMemory:
    """Reads this process's memory through the kernel, which answers with an error where a plain read would crash."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = bytearray(_CHUNK + _OVERLAP)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        # What is read lands in this buffer, so the buffer itself is never searched.
        self._own = (first, first + len(self._buffer))

    def close(self) -> None:
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        try:
            return os.pread(self._file, size, address)
        except OSError:
            return b""

    def matches(self, pattern: re.Pattern[bytes]) -> Iterator[int]:
        """Addresses at which the pattern begins, in writable memory that belongs to no file."""
        view = memoryview(self._buffer)
        for start, end in self._regions():
            for address in range(start, end, _CHUNK):
                try:
                    size = os.preadv(self._file, [view[: min(_CHUNK + _OVERLAP, end - address)]], address)
                except OSError:
                    break
                for match in pattern.finditer(self._buffer, 0, size):
                    yield address + match.start()

    def _regions(self) -> Iterator[tuple[int, int]]:
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, permissions, _offset, _device, _inode, *name = line.split(maxsplit=5)
            if not permissions.startswith("rw") or (name and not name[0].startswith("[")):
                continue
            start, end = (int(address, 16) for address in addresses.split("-"))
            if end - start > _LARGEST_REGION:
                continue
            own_start, own_end = self._own
            if own_end <= start or end <= own_start:
                yield start, end
            else:
                yield start, own_start
                yield own_end, end


def _find_contexts(memory: _OwnMemory, layout: ContextLayout, path: bytes) -> set[int]:
    """Addresses of the objects whose ``path`` and ``flags_path`` are ours and whose address is not set yet.

    A long libc++ string is {pointer, length, capacity with the highest bit set}. ``path`` and ``flags_path`` are
    neighbours, so their two lengths and capacities make a pattern that is rare enough to follow every pointer.
    """
    flags_path = path + b"flags/"
    long_string_tail = rb".{7}[\x80-\xff]"
    pattern = re.compile(
        re.escape(struct.pack("<Q", len(path)))
        + long_string_tail
        + rb".{8}"
        + re.escape(struct.pack("<Q", len(flags_path)))
        + long_string_tail,
        re.DOTALL,
    )
    found = set()
    for length_address in memory.matches(pattern):
        context = length_address - 8 - layout.path
        if context % 8 == 0 and _is_unset_context(memory, layout, context, path, flags_path):
            found.add(context)
    return found


def _is_unset_context(
    memory: _OwnMemory, layout: ContextLayout, context: int, path: bytes, flags_path: bytes
) -> bool:
    address = memory.read(context + layout.host, layout.scheme + 24 - layout.host)
    credentials = memory.read(context + layout.credentials, 16)
    unset = len(address) > 0 and not any(address) and len(credentials) == 16 and not any(credentials)
    return (
        unset
        and _long_string(memory, context + layout.path) == path
        and _long_string(memory, context + layout.flags_path) == flags_path
    )


def _long_string(memory: _OwnMemory, address: int) -> bytes:
    fields = memory.read(address, 16)
    if len(fields) < 16:
        return b""
    pointer, length = struct.unpack("<QQ", fields)
    return memory.read(pointer, length) if length <= _OVERLAP else b""
