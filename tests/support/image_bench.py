"""Images of random bytes in every pixel format, and where each format keeps its channels."""

from __future__ import annotations

import numpy as np

from nvdla.emulator.memory.address_space import Space
from nvdla.loadable.enums import NAMES
from support.convolution_layers import DATA, SECOND, Bench, program

A8, A16 = (0, 8, 16, 24), (0, 16, 32, 48)
PLACES = {
    # format: (bit of the first, second, third, fourth channel in a pixel of plane 0; plane 1 begins at 1000), bits
    "T_R8": ((0,), 8), "T_R10": ((0,), 16), "T_R12": ((0,), 16), "T_R16": ((0,), 16), "T_R16_I": ((0,), 16),
    "T_R16_F": ((0,), 16),
    "T_A16B16G16R16": (A16, 16), "T_X16B16G16R16": (A16, 16), "T_A16B16G16R16_F": (A16, 16),
    "T_A16Y16U16V16": ((32, 16, 0, 48), 16), "T_V16U16Y16A16": ((16, 32, 48, 0), 16),
    "T_A16Y16U16V16_F": ((32, 16, 0, 48), 16),
    "T_A8B8G8R8": (A8, 8), "T_A8R8G8B8": ((16, 8, 0, 24), 8), "T_B8G8R8A8": ((8, 16, 24, 0), 8),
    "T_R8G8B8A8": ((24, 16, 8, 0), 8), "T_X8B8G8R8": (A8, 8), "T_X8R8G8B8": ((16, 8, 0, 24), 8),
    "T_B8G8R8X8": ((8, 16, 24, 0), 8), "T_R8G8B8X8": ((24, 16, 8, 0), 8),
    "T_A2B10G10R10": ((0, 10, 20, 30), 10), "T_A2R10G10B10": ((20, 10, 0, 30), 10),
    "T_B10G10R10A2": ((2, 12, 22, 0), 10), "T_R10G10B10A2": ((22, 12, 2, 0), 10),
    "T_A2Y10U10V10": ((20, 10, 0, 30), 10), "T_V10U10Y10A2": ((2, 12, 22, 0), 10),
    "T_A8Y8U8V8": ((16, 8, 0, 24), 8), "T_V8U8Y8A8": ((8, 16, 24, 0), 8),
    "T_Y8___U8V8_N444": ((0, 1008, 1000), 8), "T_Y8___V8U8_N444": ((0, 1000, 1008), 8),
    **{f"T_Y{n}___U{n}V{n}_N444": ((0, 1016, 1000), 16) for n in (10, 12, 16)},
    **{f"T_Y{n}___V{n}U{n}_N444": ((0, 1000, 1016), 16) for n in (10, 12, 16)},
}  # fmt: skip


def pixel_size(name, plane):
    places, bits = PLACES[name]
    if bits == 10:
        return 4
    return sum((place >= 1000) == bool(plane) for place in places) * bits // 8


def channel(name, memory, index):
    """The unsigned 16-bit (8-bit) value of a channel of a pixel whose bytes of both planes are ``memory``."""
    places, bits = PLACES[name]
    place = places[index]
    word = int.from_bytes(memory[place >= 1000], "little") >> place % 1000
    if bits == 10:
        return (word & 0x3FF) << 6 if index < 3 else (word & 3) << 14
    return word & (1 << bits) - 1


def image_bench(name, size, precision, **registers):
    """nv_full with an image of random bytes in both planes; ``size`` (width, height)."""
    bench = Bench("nv_full", 1 << 16)
    random = np.random.default_rng(len(name))
    for base in (DATA, SECOND):
        bench.memory.view(Space.DRAM, base, 1 << 16)[:] = random.integers(0, 256, 1 << 16)
    channels = len(PLACES[name][0])
    program(
        bench, data=(*size, channels), kernel=(1, 1, channels), output=(*size, 1), stride=(1, 1), dilation=(1, 1),
        padding=(0, 0), precision=precision, line_stride=512, surface_stride=0,
    )  # fmt: skip
    bench.write(
        CDMA__D_MISC_CFG__IN_PRECISION=2 if name.endswith("_F") else int(PLACES[name][1] > 8),
        CSC__D_MISC_CFG__IN_PRECISION=2 if name.endswith("_F") else int(PLACES[name][1] > 8),
        CDMA__D_DATAIN_FORMAT=1 | NAMES.index(name) << 8,
        CSC__D_DATAIN_FORMAT=1,
        CDMA__D_DAIN_ADDR_LOW_1=SECOND,
        CDMA__D_LINE_UV_STRIDE=1024,
        CDMA__D_ZERO_PADDING=0,
    )
    bench.write(**registers)
    return bench


def pixel_bytes(bench, name, x, y, offset):
    """The bytes of pixel (x, y) in both planes; ``offset`` pixels come before the first."""
    planes = []
    for plane, (base, stride) in enumerate(((DATA, 512), (SECOND, 1024))):
        size = pixel_size(name, plane)
        start = offset * size % 32 if plane else offset * size
        planes.append(
            bench.memory.view(Space.DRAM, base + y * stride + start + x * size, size).tobytes() if size else b""
        )
    return planes
