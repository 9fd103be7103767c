"""Damaged files: each either opens or raises one FormatError, in time that its size allows.

The mutations are drawn from a fixed seed, so a failure comes back.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress

import fuzz_irpa
import fuzz_vmfb
import pytest
from support.iree_assembler import Code, goto, module
from support.iree_corpus import FORMATS

from nvdla.interop.containers import irpa
from nvdla.interop.containers.irpa import EntrySpec

INTERESTING = (0, 1, 2, 3, 4, 7, 8, 0x0F, 0x10, 0x3F, 0x40, 0x58, 0x7F, 0x80, 0xE0, 0xE1, 0xFE, 0xFF)


def mutations(data: bytes, count: int, seed: int):
    """Changed copies: single bytes, words of extreme values, cuts, doubled and moved pieces."""
    source = random.Random(seed)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(source.choice((1, 1, 1, 2, 5))):
            at = source.randrange(len(changed))
            kind = source.randrange(6)
            if kind < 2:
                changed[at] = source.choice(INTERESTING)
            elif kind == 2:
                changed[at] ^= 1 << source.randrange(8)
            elif kind == 3:
                size = source.choice((2, 4, 8))
                value = source.choice((0, 1, -1, len(data), len(data) - at, 1 << 31, (1 << 63) - 1))
                changed[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            elif kind == 4 and len(changed) > 20:
                del changed[source.randrange(16, len(changed)) :]
            else:
                piece = changed[at : at + source.randrange(1, 64)]
                place = source.randrange(len(changed))
                changed[place : place + len(piece)] = piece
        yield bytes(changed)


def archives() -> list[bytes]:
    chained = irpa.append(
        irpa.build(
            [
                EntrySpec("weights", data=b"abcdefgh" * 9, metadata=b'TENSORv0:{"dtype":"int8","shape":[72]}'),
                EntrySpec("splat", pattern=b"\1\2", length=64),
                EntrySpec("elsewhere", path="w.bin", length=4),
            ]
        ),
        [EntrySpec("late", data=b"xyz")],
    )
    found = [irpa.build([]), chained]
    folder = FORMATS / "irpa"
    if folder.exists():
        found += [(folder / name).read_bytes()[:2816] for name in ("mixed.irpa", "py_ndarray_meta.irpa")]
    return found


def modules() -> list[bytes]:
    loop = Code(
        "f",
        "0iI_I",
        [
            ("block",),
            ("const.i64.zero", 6),
            ("const.i32", 1, 8),
            ("br", goto(1, (0, 9))),
            ("block",),
            ("add.i64", 6, 2, 6),
            ("sub.i32", 9, 8, 9),
            ("cond_br", 9, goto(1), goto(2)),
            ("block",),
            ("call", 1, (6,), (6,)),
            ("list.alloc", 0, 8, 0x8000),
            ("const.ref.rodata", 0, 0x8001),
            ("return", (6,)),
        ],
    )
    helper = Code("g", "0I_I", [("block",), ("mul.f32", 0, 1, 0), ("return", (0,))], is_exported=False)
    found = [module([loop, helper], imports=[("hal.x", "0i_i")], rodata=[b"rodata"], global_bytes=16)]
    folder = FORMATS / "vmfb"
    if folder.exists():
        found += [
            (folder / name).read_bytes()
            for name in (
                "20220109.9/control.vmfb",
                "20220714.204/simple_mul_vmvx.vmfb",
                "3.13.0/control.vmfb",
                "3.13.0/simple_abs_vmvx.vmfb",
            )
        ]
    return found


@pytest.mark.parametrize(
    ("make", "target", "count"), [(archives, fuzz_irpa, 250), (modules, fuzz_vmfb, 120)], ids=["irpa", "vmfb"]
)
def test_mutated_files_open_or_are_refused(make, target, count):
    for number, data in enumerate(make()):
        target.one_input(data)
        for changed in mutations(data, count, seed=number):
            start = time.process_time()
            target.one_input(changed)
            assert time.process_time() - start < 2, f"{len(changed)} bytes took too long"


@pytest.mark.parametrize(("make", "target"), [(archives, fuzz_irpa), (modules, fuzz_vmfb)], ids=["irpa", "vmfb"])
def test_every_cut_of_a_file_opens_or_is_refused(make, target):
    data = make()[-1]
    for length in range(0, len(data), max(1, len(data) // 150)):
        target.one_input(data[:length])


def test_a_flatbuffer_that_shares_its_tables_cannot_cost_the_square_of_its_size():
    """A vector of a hundred thousand references to one table with a long string."""
    import flatbuffers

    from nvdla.errors import FormatError
    from nvdla.interop.containers.vmfb import module as vmfb

    builder = flatbuffers.Builder(1 << 20)
    name = builder.CreateString("n" * 100_000)
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    shared = builder.EndObject()
    builder.StartVector(4, 100_000, 4)
    for _ in range(100_000):
        builder.PrependUOffsetTRelative(shared)
    types = builder.EndVector()
    title = builder.CreateString("module")
    builder.StartObject(16)
    builder.PrependUOffsetTRelativeSlot(0, title, 0)
    builder.PrependUOffsetTRelativeSlot(4, types, 0)
    builder.PrependUint32Slot(13, 17 << 16, 0)
    builder.FinishSizePrefixed(builder.EndObject(), b"IREE")
    start = time.process_time()
    with suppress(FormatError):
        vmfb.read(bytes(builder.Output()))
    assert time.process_time() - start < 10
