"""The memory step writes where it is sure, and nowhere else. These tests use imitations in their own memory."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest

from tests.cluster.interserver_address import (
    KNOWN_BUILDS,
    ContextLayout,
    ServerContextNotFoundError,
    UnknownServerBuildError,
    layout_of,
    read_build_id,
    write_interserver_address,
)

LAYOUT = ContextLayout(version="imitation")


def elf_with_note(path: Path, build_id: bytes) -> Path:
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 0x20, 64)
    struct.pack_into("<HH", header, 0x36, 56, 1)
    program_header = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4)
    path.write_bytes(bytes(header) + program_header + note)
    return path


def test_build_id_is_read_from_the_note(tmp_path: Path) -> None:
    file = elf_with_note(tmp_path / "server.so", bytes.fromhex("0123456789abcdef"))
    assert read_build_id(file) == "0123456789abcdef"


@pytest.mark.parametrize("build_id", KNOWN_BUILDS)
def test_known_build_has_a_layout(tmp_path: Path, build_id: str) -> None:
    file = elf_with_note(tmp_path / "server.so", bytes.fromhex(build_id))
    assert layout_of(file) is KNOWN_BUILDS[build_id]


def test_unknown_build_is_refused_by_its_id(tmp_path: Path) -> None:
    file = elf_with_note(tmp_path / "server.so", bytes.fromhex("0123456789abcdef"))
    with pytest.raises(
        UnknownServerBuildError, match="build id 0123456789abcdef; its memory layout is unknown"
    ):
        layout_of(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.so"
    file.write_bytes(b"not a shared object")
    with pytest.raises(UnknownServerBuildError, match="not a 64-bit little-endian ELF file"):
        read_build_id(file)


class Imitation:
    """An object laid out like the server's context."""

    def __init__(self, path: bytes) -> None:
        self._texts = [ctypes.create_string_buffer(text) for text in (path, path + b"flags/")]
        self.memory = ctypes.create_string_buffer(0x200)
        for offset, text in zip((LAYOUT.path, LAYOUT.flags_path), self._texts, strict=True):
            fields = (ctypes.addressof(text), len(text.value), 64 | 1 << 63)
            struct.pack_into("<QQQ", self.memory, offset, *fields)

    def bytes_at(self, offset: int, size: int) -> bytes:
        return self.memory.raw[offset : offset + size]


def test_address_is_written_where_the_context_is(tmp_path: Path) -> None:
    path = f"{tmp_path}/once-only/"
    context = Imitation(path.encode())
    write_interserver_address(LAYOUT, path, "127.0.0.1", 9009, timeout=0)
    assert context.bytes_at(LAYOUT.host, 24) == b"127.0.0.1".ljust(23, b"\0") + b"\x09"
    assert context.bytes_at(LAYOUT.port, 2) == (9009).to_bytes(2, "little")
    assert context.bytes_at(LAYOUT.scheme, 24) == b"http".ljust(23, b"\0") + b"\x04"
    credentials = struct.unpack("<Q", context.bytes_at(LAYOUT.credentials, 8))[0]
    assert ctypes.string_at(credentials, 256) == bytes(256)


def test_two_candidates_are_one_too_many(tmp_path: Path) -> None:
    path = f"{tmp_path}/twice/"
    contexts = [Imitation(path.encode()), Imitation(path.encode())]
    with pytest.raises(ServerContextNotFoundError, match="2 objects look like"):
        write_interserver_address(LAYOUT, path, "127.0.0.1", 9009, timeout=0)
    assert [context.bytes_at(LAYOUT.host, 24) for context in contexts] == [bytes(24)] * 2


def test_context_that_has_an_address_already_is_left_alone(tmp_path: Path) -> None:
    path = f"{tmp_path}/taken/"
    context = Imitation(path.encode())
    struct.pack_into("<H", context.memory, LAYOUT.port, 1)
    with pytest.raises(ServerContextNotFoundError, match="did not appear within 0 s"):
        write_interserver_address(LAYOUT, path, "127.0.0.1", 9009, timeout=0)
    assert context.bytes_at(LAYOUT.host, 24) == bytes(24)


@pytest.mark.parametrize("path", ["/short/", "/a/long/path/without/a/slash"])
def test_unusable_paths_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="longer than 22 bytes"):
        write_interserver_address(LAYOUT, path, "127.0.0.1", 9009, timeout=0)
