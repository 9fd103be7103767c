"""Numbers of the loadable container that have names (fbs/loadable.fbs, nvdla/sw NvDlaLoadable.h, Type.h).

A number without a name is kept: ``Interface(9)`` is a member called ``UNKNOWN_9`` that still equals 9, so reading
never loses information and printing never fails.
"""

from __future__ import annotations

from enum import IntFlag

from nvdla.open_enum import OpenEnum


class Interface(OpenEnum):
    """Who runs a task."""

    NONE = 0
    DLA1 = 1
    EMU1 = 2


class SubInterface(OpenEnum):
    """Which descriptor list a blob or relocation means. EMU1 uses ADDR0, OPS and SURFS (its buffer list)."""

    NONE = 0
    ADDR0 = 1
    DEPS = 2
    OPS = 3
    SURFS = 4
    LUTS = 5


class MemoryDomain(OpenEnum):
    """SYSTEM is DRAM, SRAM is CVSRAM."""

    SYSTEM = 0
    SRAM = 1


class MemoryFlags(IntFlag):
    """How a memory comes to be, and what it is bound to."""

    NONE = 0
    ALLOC = 1
    SET = 2
    INPUT = 4
    OUTPUT = 8


class EventType(OpenEnum):
    """The kind of an event."""

    EVENTTYPE0 = 0
    EVENTTYPE1 = 1
    EVENTTYPE2 = 2


class EventOp(OpenEnum):
    """What is done with an event."""

    WAIT = 0
    SIGNAL = 1


class RelocType(OpenEnum):
    """Which stride of the bound tensor is written (TensorDesc.strides index)."""

    ELEMENT = 0
    LINE = 1
    SURFACE = 2
    TENSOR = 3


class DataFormat(OpenEnum):
    """The order of a tensor's axes."""

    UNKNOWN = 0
    NCHW = 1
    NHWC = 2
    NCxHWx = 3


class DataType(OpenEnum):
    """The type of a tensor's elements."""

    UNKNOWN = 0
    FLOAT = 1
    HALF = 2
    INT16 = 3
    INT8 = 4


class DataCategory(OpenEnum):
    """What a tensor is for."""

    IMAGE = 0
    WEIGHT = 1
    FEATURE = 2
    PLANAR = 3
    BIAS = 4


class PixelMapping(OpenEnum):
    """How the pixels of a tensor lie."""

    PITCH_LINEAR = 0
    INVALID_PIXEL_MAP = 1


class PixelFormat(OpenEnum):
    """Pixels of an image, or atoms of a feature tensor."""

    R8 = 0
    R10 = 1
    R12 = 2
    R16 = 3
    R16_I = 4
    R16_F = 5
    A16B16G16R16 = 6
    X16B16G16R16 = 7
    A16B16G16R16_F = 8
    A16Y16U16V16 = 9
    V16U16Y16A16 = 10
    A16Y16U16V16_F = 11
    A8B8G8R8 = 12
    A8R8G8B8 = 13
    B8G8R8A8 = 14
    R8G8B8A8 = 15
    X8B8G8R8 = 16
    X8R8G8B8 = 17
    B8G8R8X8 = 18
    R8G8B8X8 = 19
    A2B10G10R10 = 20
    A2R10G10B10 = 21
    B10G10R10A2 = 22
    R10G10B10A2 = 23
    A2Y10U10V10 = 24
    V10U10Y10A2 = 25
    A8Y8U8V8 = 26
    V8U8Y8A8 = 27
    Y8_U8V8_N444 = 28
    Y8_V8U8_N444 = 29
    Y10_U10V10_N444 = 30
    Y10_V10U10_N444 = 31
    Y12_U12V12_N444 = 32
    Y12_V12U12_N444 = 33
    Y16_U16V16_N444 = 34
    Y16_V16U16_N444 = 35
    FEATURE = 36
    FEATURE_X8 = 37
