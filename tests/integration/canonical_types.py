"""Values of every type that the canonical digest covers, and the bytes that stand for each.

The bytes are written down here by hand, from the description of ``RowBinary``: a release that writes other ones is
found by them, and ``test_canonical_digest.py`` proves them on real servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Encodings = tuple[tuple[str, str], ...]
"""An expression for each value, and its bytes as hexadecimal digits."""


def _integers(bits: int, signed: bool) -> Encodings:
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = sorted({0, 1, 77, lowest, highest, *([-1] if signed else [])})
    return tuple((f"'{n}'", n.to_bytes(bits // 8, "little", signed=signed).hex()) for n in values)


ENCODINGS: Final[Mapping[str, Encodings]] = {
    **{f"UInt{bits}": _integers(bits, False) for bits in (8, 16, 32, 64, 128, 256)},
    **{f"Int{bits}": _integers(bits, True) for bits in (8, 16, 32, 64, 128, 256)},
    "Float32": (
        ("0.0", "00000000"),
        ("-0.0", "00000080"),
        ("1.5", "0000c03f"),
        ("1e-45", "01000000"),
        ("inf", "0000807f"),
        ("-inf", "000080ff"),
        ("reinterpretAsFloat32(toUInt32(0x7fc00000))", "0000c07f"),
        ("reinterpretAsFloat32(toUInt32(0x7fc00001))", "0100c07f"),
        ("reinterpretAsFloat32(toUInt32(0xffc00000))", "0000c0ff"),
    ),
    "Float64": (
        ("0.0", "0000000000000000"),
        ("-0.0", "0000000000000080"),
        ("1.5", "000000000000f83f"),
        ("5e-324", "0100000000000000"),
        ("inf", "000000000000f07f"),
        ("-inf", "000000000000f0ff"),
        ("reinterpretAsFloat64(toUInt64(0x7ff8000000000000))", "000000000000f87f"),
        ("reinterpretAsFloat64(toUInt64(0x7ff8000000000001))", "010000000000f87f"),
        ("reinterpretAsFloat64(toUInt64(0xfff8000000000000))", "000000000000f8ff"),
    ),
    "BFloat16": (("0.0", "0000"), ("-0.0", "0080"), ("1.5", "c03f"), ("inf", "807f"), ("-inf", "80ff")),
    "Decimal(9, 2)": (
        ("'1.10'", "6e000000"),
        ("'11'", "4c040000"),
        ("'-0.01'", "ffffffff"),
        ("0", "00000000"),
    ),
    "Decimal(18, 4)": (("'0.0001'", "01" + "00" * 7), ("'1'", "1027" + "00" * 6), ("'-0.0001'", "ff" * 8)),
    "Decimal(38, 10)": (("'0.0000000001'", "01" + "00" * 15), ("'-0.0000000001'", "ff" * 16)),
    "Decimal(76, 2)": (("'0.01'", "01" + "00" * 31), ("'-0.01'", "ff" * 32)),
    "Bool": (("true", "01"), ("false", "00")),
    "Date": (("'1970-01-01'", "0000"), ("'1970-01-02'", "0100"), ("'2149-06-06'", "ffff")),
    "Date32": (("'1970-01-01'", "00000000"), ("'1969-12-31'", "ffffffff"), ("'2299-12-31'", "d1d60100")),
    "DateTime": (("0", "00000000"), ("1", "01000000"), ("4294967295", "ffffffff")),
    "DateTime('Europe/Berlin')": (
        ("'1970-01-01 01:00:00'", "00000000"),
        ("'1970-01-01 01:00:01'", "01000000"),
    ),
    "DateTime64(3, 'UTC')": (
        ("'1970-01-01 00:00:00.001'", "01" + "00" * 7),
        ("'1970-01-01 00:00:00.010'", "0a" + "00" * 7),
        ("'1969-12-31 23:59:59.999'", "ff" * 8),
    ),
    "DateTime64(9, 'UTC')": (
        ("'1970-01-01 00:00:00.000000001'", "01" + "00" * 7),
        ("'1970-01-01 00:00:01'", "00ca9a3b00000000"),
    ),
    "Time": (("'00:00:00'", "00000000"), ("'00:01:01'", "3d000000"), ("'-00:00:01'", "ffffffff")),
    "Time64(3)": (("'00:00:00.001'", "01" + "00" * 7), ("'-00:00:00.001'", "ff" * 8)),
    "String": (
        ("''", "00"),
        ("'a'", "0161"),
        ("'a\\0'", "026100"),
        ("'\\0'", "0100"),
        ("unhex('ff')", "01ff"),
        ("repeat('b', 200)", "c801" + "62" * 200),
    ),
    "FixedString(2)": (("''", "0000"), ("'a'", "6100"), ("'ab'", "6162"), ("'\\0a'", "0061")),
    "UUID": (
        ("'00112233-4455-6677-8899-aabbccddeeff'", "7766554433221100ffeeddccbbaa9988"),
        ("'00000000-0000-0000-0000-000000000000'", "00" * 16),
    ),
    "IPv4": (("'1.2.3.4'", "04030201"), ("'0.0.0.0'", "00000000")),
    "IPv6": (
        ("'::1'", "00" * 15 + "01"),
        ("'::'", "00" * 16),
        ("'::ffff:1.2.3.4'", "00" * 10 + "ffff01020304"),
    ),
    "Enum8('a' = 1, 'b' = -2, '' = 0)": (("'a'", "01"), ("'b'", "fe"), ("''", "00")),
    "Enum16('a' = 1000, 'b' = -1)": (("'a'", "e803"), ("'b'", "ffff")),
    "Nullable(UInt8)": (("NULL", "01"), ("0", "0000"), ("1", "0001")),
    "Nullable(Float64)": (
        ("NULL", "01"),
        ("0.0", "000000000000000000"),
        ("-0.0", "000000000000000080"),
        ("reinterpretAsFloat64(toUInt64(0x7ff8000000000000))", "00000000000000f87f"),
    ),
    "Nullable(String)": (("NULL", "01"), ("''", "0000"), ("'NULL'", "00044e554c4c")),
    "Nullable(DateTime64(6, 'UTC'))": (("NULL", "01"), ("'1970-01-01 00:00:00'", "00" * 9)),
    "Nullable(Decimal(18, 2))": (("NULL", "01"), ("0", "00" * 9)),
    "LowCardinality(String)": (("''", "00"), ("'a'", "0161"), ("'b'", "0162")),
    "LowCardinality(Nullable(String))": (("NULL", "01"), ("''", "0000"), ("'a'", "000161")),
    "LowCardinality(FixedString(2))": (("''", "0000"), ("'a'", "6100")),
    "LowCardinality(UInt64)": (("0", "00" * 8), ("258", "0201" + "00" * 6)),
    "Array(UInt8)": (("[]", "00"), ("[0]", "0100"), ("[1, 2]", "020102"), ("[2, 1]", "020201")),
    "Array(Float64)": (("[0.0]", "01" + "00" * 8), ("[-0.0]", "01" + "00" * 7 + "80"), ("[]", "00")),
    "Array(Nullable(String))": (
        ("[]", "00"),
        ("[NULL]", "0101"),
        ("['']", "010000"),
        ("['', NULL]", "02000001"),
        ("[NULL, '']", "02010000"),
    ),
    "Array(Array(UInt8))": (
        ("[]", "00"),
        ("[[]]", "0100"),
        ("[[1, 2]]", "01020102"),
        ("[[1], [2]]", "0201010102"),
        ("[[], [1]]", "02000101"),
        ("[[1], []]", "02010100"),
    ),
    "Array(LowCardinality(Nullable(String)))": (("[NULL, 'a']", "0201000161"), ("['a', NULL]", "0200016101")),
    "Map(String, UInt8)": (
        ("map()", "00"),
        ("map('a', 1, 'b', 2)", "020161010162" + "02"),
        ("map('b', 2, 'a', 1)", "020162020161" + "01"),
        ("map('a', 2, 'b', 1)", "020161020162" + "01"),
        ("map('a', 1, 'a', 1)", "020161010161" + "01"),
        ("map('a', 1)", "01016101"),
    ),
    "Map(LowCardinality(String), Array(Nullable(UInt8)))": (
        ("map('a', [NULL])", "0101610101"),
        ("map('a', [0])", "010161010000"),
        ("map('a', [])", "01016100"),
    ),
    "Tuple(UInt8, String)": (("(1, 'a')", "010161"), ("(0, '')", "0000"), ("(97, '')", "6100")),
    "Tuple(a Nullable(UInt8), b Array(Tuple(String, Bool)))": (
        ("(NULL, [])", "0100"),
        ("(0, [('', true)])", "0000010001"),
        ("(0, [('', false)])", "0000010000"),
    ),
    "SimpleAggregateFunction(max, Int32)": (("-1", "ffffffff"), ("0", "00000000")),
}
