"""Numbers of the VM's instructions, by bytecode version.

One byte a core instruction; 64-bit integers (before 2022-05), 32-bit and 64-bit floats follow a prefix byte. When
64-bit integers became core (2022-05-16, bytecode version 1), 209 instructions got new numbers; since then numbers have
only been added, so one table serves all later versions, with the version from which on each may appear.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

_NUMBERS_2022_01 = {
    "core": """
        global.load.i32 0, global.store.i32 1, global.load.indirect.i32 2, global.store.indirect.i32 3,
        global.load.ref 4, global.store.ref 5, global.load.indirect.ref 6, global.store.indirect.ref 7,
        const.i32.zero 8, const.i32 9, const.ref.zero 10, const.ref.rodata 11, list.alloc 16, list.reserve 17,
        list.size 18, list.resize 19, list.get.i32 20, list.set.i32 21, list.get.ref 22, list.set.ref 23,
        select.i32 30, select.ref 31, switch.i32 32, switch.ref 33, add.i32 34, sub.i32 35, mul.i32 36, div.i32.s 37,
        div.i32.u 38, rem.i32.s 39, rem.i32.u 40, fma.i32 41, not.i32 48, and.i32 49, or.i32 50, xor.i32 51,
        shl.i32 52, shr.i32.s 53, shr.i32.u 54, trunc.i32.i8 55, trunc.i32.i16 56, ext.i8.i32.s 57, ext.i8.i32.u 58,
        ext.i16.i32.s 59, ext.i16.i32.u 60, cmp.eq.i32 64, cmp.ne.i32 65, cmp.lt.i32.s 66, cmp.lt.i32.u 67,
        cmp.eq.ref 74, cmp.ne.ref 75, cmp.nz.ref 76, cmp.nz.i32 77, br 80, cond_br 81, call 82, call.variadic 83,
        return 84, fail 85, yield 96, trace 124, print 125, cond_break 126, break 127, buffer.load.i8.u 176,
        buffer.load.i16.u 177, buffer.load.i32 179, buffer.load.i8.s 180, buffer.load.i16.s 181, buffer.store.i8 184,
        buffer.store.i16 185, buffer.store.i32 187, buffer.alloc 192, buffer.clone 193, buffer.length 194,
        buffer.copy 198, buffer.compare 199, buffer.fill.i8 204, buffer.fill.i16 205, buffer.fill.i32 207,
        prefix.i64 224, prefix.f32 225, prefix.f64 226,
    """,
    "i64": """
        global.load.i64 0, global.store.i64 1, global.load.indirect.i64 2, global.store.indirect.i64 3,
        const.i64.zero 8, const.i64 9, list.get.i64 20, list.set.i64 21, select.i64 30, switch.i64 32, add.i64 34,
        sub.i64 35, mul.i64 36, div.i64.s 37, div.i64.u 38, rem.i64.s 39, rem.i64.u 40, fma.i64 41, not.i64 48,
        and.i64 49, or.i64 50, xor.i64 51, shl.i64 52, shr.i64.s 53, shr.i64.u 54, trunc.i64.i32 55, ext.i32.i64.s 56,
        ext.i32.i64.u 57, cmp.eq.i64 64, cmp.ne.i64 65, cmp.lt.i64.s 66, cmp.lt.i64.u 67, cmp.nz.i64 77,
        buffer.load.i64 176, buffer.store.i64 177, buffer.fill.i64 192,
    """,
    "f32": """
        global.load.f32 0, global.store.f32 1, global.load.indirect.f32 2, global.store.indirect.f32 3,
        const.f32.zero 8, const.f32 9, list.get.f32 20, list.set.f32 21, select.f32 30, switch.f32 32, add.f32 34,
        sub.f32 35, mul.f32 36, div.f32 37, rem.f32 38, fma.f32 39, abs.f32 40, neg.f32 41, ceil.f32 42, floor.f32 43,
        cast.si32.f32 48, cast.ui32.f32 49, cast.f32.si32 50, cast.f32.ui32 51, bitcast.i32.f32 52,
        bitcast.f32.i32 53, atan.f32 64, atan2.f32 65, cos.f32 66, sin.f32 67, exp.f32 68, exp2.f32 69, expm1.f32 70,
        log.f32 71, log10.f32 72, log1p.f32 73, log2.f32 74, pow.f32 75, rsqrt.f32 76, sqrt.f32 77, tanh.f32 78,
        erf.f32 79, cmp.eq.f32.o 96, cmp.eq.f32.u 97, cmp.ne.f32.o 98, cmp.ne.f32.u 99, cmp.lt.f32.o 100,
        cmp.lt.f32.u 101, cmp.lte.f32.o 102, cmp.lte.f32.u 103, cmp.nan.f32 112, buffer.load.f32 176,
        buffer.store.f32 177, buffer.fill.f32 192,
    """,
    "f64": """
        global.load.f64 0, global.store.f64 1, global.load.indirect.f64 2, global.store.indirect.f64 3,
        const.f64.zero 8, const.f64 9, list.get.f64 20, list.set.f64 21, select.f64 30, switch.f64 32, add.f64 34,
        sub.f64 35, mul.f64 36, div.f64 37, rem.f64 38, fma.f64 39, abs.f64 40, neg.f64 41, ceil.f64 42, floor.f64 43,
        trunc.f64.f32 44, ext.f32.f64 45, cast.si32.f64 48, cast.ui32.f64 49, cast.f64.si32 50, cast.f64.ui32 51,
        cast.si64.f64 52, cast.ui64.f64 53, cast.f64.si64 54, cast.f64.ui64 55, bitcast.i64.f64 56,
        bitcast.f64.i64 57, atan.f64 64, atan2.f64 65, cos.f64 66, sin.f64 67, exp.f64 68, exp2.f64 69, expm1.f64 70,
        log.f64 71, log10.f64 72, log1p.f64 73, log2.f64 74, pow.f64 75, rsqrt.f64 76, sqrt.f64 77, tanh.f64 78,
        erf.f64 79, cmp.eq.f64.o 96, cmp.eq.f64.u 97, cmp.ne.f64.o 98, cmp.ne.f64.u 99, cmp.lt.f64.o 100,
        cmp.lt.f64.u 101, cmp.lte.f64.o 102, cmp.lte.f64.u 103, cmp.nan.f64 112, buffer.load.f64 176,
        buffer.store.f64 177, buffer.fill.f64 192,
    """,
}

_NUMBERS_2022_05 = {
    "core": """
        global.load.i32 0, global.store.i32 1, global.load.indirect.i32 2, global.store.indirect.i32 3,
        global.load.i64 4, global.store.i64 5, global.load.indirect.i64 6, global.store.indirect.i64 7,
        global.load.ref 8, global.store.ref 9, global.load.indirect.ref 10, global.store.indirect.ref 11,
        const.i32.zero 12, const.i32 13, const.i64.zero 14, const.i64 15, const.ref.zero 16, const.ref.rodata 17,
        list.alloc 18, list.reserve 19, list.size 20, list.resize 21, list.get.i32 22, list.set.i32 23,
        list.get.i64 24, list.set.i64 25, list.get.ref 26, list.set.ref 27, select.i32 28, select.i64 29,
        select.ref 30, switch.i32 31, switch.i64 32, switch.ref 33, add.i32 34, sub.i32 35, mul.i32 36, div.i32.s 37,
        div.i32.u 38, rem.i32.s 39, rem.i32.u 40, fma.i32 41, add.i64 42, sub.i64 43, mul.i64 44, div.i64.s 45,
        div.i64.u 46, rem.i64.s 47, rem.i64.u 48, fma.i64 49, not.i32 50, and.i32 51, or.i32 52, xor.i32 53,
        not.i64 54, and.i64 55, or.i64 56, xor.i64 57, shl.i32 58, shr.i32.s 59, shr.i32.u 60, shl.i64 61,
        shr.i64.s 62, shr.i64.u 63, trunc.i32.i8 64, trunc.i32.i16 65, trunc.i64.i32 66, ext.i8.i32.s 67,
        ext.i8.i32.u 68, ext.i16.i32.s 69, ext.i16.i32.u 70, ext.i32.i64.s 71, ext.i32.i64.u 72, cmp.eq.i32 73,
        cmp.ne.i32 74, cmp.lt.i32.s 75, cmp.lt.i32.u 76, cmp.nz.i32 77, cmp.eq.i64 78, cmp.ne.i64 79, cmp.lt.i64.s 80,
        cmp.lt.i64.u 81, cmp.nz.i64 82, cmp.eq.ref 83, cmp.ne.ref 84, cmp.nz.ref 85, br 86, cond_br 87, call 88,
        call.variadic 89, return 90, fail 91, import.resolved 92, yield 93, trace 94, print 95, cond_break 96,
        break 97, buffer.load.i8.u 98, buffer.load.i8.s 99, buffer.load.i16.u 100, buffer.load.i16.s 101,
        buffer.load.i32 102, buffer.load.i64 103, buffer.store.i8 104, buffer.store.i16 105, buffer.store.i32 106,
        buffer.store.i64 107, buffer.alloc 108, buffer.clone 109, buffer.length 110, buffer.copy 111,
        buffer.compare 112, buffer.fill.i8 113, buffer.fill.i16 114, buffer.fill.i32 115, buffer.fill.i64 116,
        ctlz.i32 117, ctlz.i64 118, abs.i32 119, abs.i64 120, block 121, min.i32.s 122, min.i32.u 123, max.i32.s 124,
        max.i32.u 125, min.i64.s 126, min.i64.u 127, max.i64.s 128, max.i64.u 129, cast.any.ref 130, br_table 131,
        buffer.hash 132, discard.refs 133, assign.ref 134, call.yieldable 135, call.variadic.yieldable 136,
        prefix.f32 224, prefix.f64 225,
    """,
    "f32": """
        global.load.f32 0, global.store.f32 1, global.load.indirect.f32 2, global.store.indirect.f32 3,
        const.f32.zero 4, const.f32 5, list.get.f32 6, list.set.f32 7, select.f32 8, switch.f32 9, add.f32 10,
        sub.f32 11, mul.f32 12, div.f32 13, rem.f32 14, fma.f32 15, abs.f32 16, neg.f32 17, ceil.f32 18, floor.f32 19,
        cast.si32.f32 20, cast.ui32.f32 21, cast.f32.si32 22, cast.f32.ui32 23, bitcast.i32.f32 24,
        bitcast.f32.i32 25, atan.f32 26, atan2.f32 27, cos.f32 28, sin.f32 29, exp.f32 30, exp2.f32 31, expm1.f32 32,
        log.f32 33, log10.f32 34, log1p.f32 35, log2.f32 36, pow.f32 37, rsqrt.f32 38, sqrt.f32 39, tanh.f32 40,
        erf.f32 41, cmp.eq.f32.o 42, cmp.eq.f32.u 43, cmp.ne.f32.o 44, cmp.ne.f32.u 45, cmp.lt.f32.o 46,
        cmp.lt.f32.u 47, cmp.lte.f32.o 48, cmp.lte.f32.u 49, cmp.nan.f32 50, buffer.load.f32 51, buffer.store.f32 52,
        buffer.fill.f32 53, round.f32 54, min.f32 55, max.f32 56, round.f32.even 57, cast.f32.si64 58,
        cast.f32.ui64 59, cast.si64.f32 60, cast.ui64.f32 61,
    """,
    "f64": """
        global.load.f64 0, global.store.f64 1, global.load.indirect.f64 2, global.store.indirect.f64 3,
        const.f64.zero 4, const.f64 5, list.get.f64 6, list.set.f64 7, select.f64 8, switch.f64 9, add.f64 10,
        sub.f64 11, mul.f64 12, div.f64 13, rem.f64 14, fma.f64 15, abs.f64 16, neg.f64 17, ceil.f64 18, floor.f64 19,
        trunc.f64.f32 20, ext.f32.f64 21, cast.si32.f64 22, cast.ui32.f64 23, cast.f64.si32 24, cast.f64.ui32 25,
        cast.si64.f64 26, cast.ui64.f64 27, cast.f64.si64 28, cast.f64.ui64 29, bitcast.i64.f64 30,
        bitcast.f64.i64 31, atan.f64 32, atan2.f64 33, cos.f64 34, sin.f64 35, exp.f64 36, exp2.f64 37, expm1.f64 38,
        log.f64 39, log10.f64 40, log1p.f64 41, log2.f64 42, pow.f64 43, rsqrt.f64 44, sqrt.f64 45, tanh.f64 46,
        erf.f64 47, cmp.eq.f64.o 48, cmp.eq.f64.u 49, cmp.ne.f64.o 50, cmp.ne.f64.u 51, cmp.lt.f64.o 52,
        cmp.lt.f64.u 53, cmp.lte.f64.o 54, cmp.lte.f64.u 55, cmp.nan.f64 56, buffer.load.f64 57, buffer.store.f64 58,
        buffer.fill.f64 59, round.f64 60, min.f64 61, max.f64 62, round.f64.even 63,
    """,
}

#: Instructions that came later than their table: mnemonic -> first bytecode version. The versions in which an
#: instruction was added without a new number (15 lasted three years) count as one.
_SINCE: Mapping[str, int] = {
    name: version
    for version, names in {
        5: "abs.i32 abs.i64 ctlz.i32 ctlz.i64",
        13: "round.f32 round.f64",
        15: "min.i32.s min.i32.u max.i32.s max.i32.u min.i64.s min.i64.u max.i64.s max.i64.u cast.any.ref block "
        "round.f32.even round.f64.even min.f32 max.f32 min.f64 max.f64 br_table buffer.hash cast.f32.si64 "
        "cast.f32.ui64 cast.si64.f32 cast.ui64.f32",
        16: "discard.refs assign.ref",
        17: "call.yieldable call.variadic.yieldable",
    }.items()
    for name in names.split()
}


def _parse(tables: Mapping[str, str]) -> dict[str, dict[int, str]]:
    result: dict[str, dict[int, str]] = {}
    for bank, text in tables.items():
        pairs = (item.split() for item in text.split(",") if item.strip())
        result[bank] = {int(number): name for name, number in pairs}
    return result


@cache
def numbers(major: int | None) -> dict[str, dict[int, str]]:
    """bank (core, i64, f32, f64) -> number -> mnemonic, for a major bytecode version (None: before there were any).

    In the core bank a prefix is named ``prefix.BANK``."""
    if major is None or major < 1:
        return _parse(_NUMBERS_2022_01)
    banks = _parse(_NUMBERS_2022_05)
    return {
        bank: {number: name for number, name in table.items() if _SINCE.get(name, 0) <= major}
        for bank, table in banks.items()
    }
