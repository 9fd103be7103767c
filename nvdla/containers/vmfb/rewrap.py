"""Changing what lies around a module's FlatBuffer without touching the FlatBuffer.

Rodata behind the FlatBuffer is found relative to its end, rounded up to 64 bytes; a ZIP header that moves the whole by
a multiple of 64 therefore changes no offset.
"""

from __future__ import annotations

from nvdla.containers.vmfb.module import Module
from nvdla.containers.vmfb.wrapping import ALIGNMENT, MODULE_MEMBER, zip_members
from nvdla.errors import FormatError
from nvdla.rounding import align

MODES = ("keep", "zip", "prefixed")


def rewrap(module: Module, mode: str) -> bytes:
    """The file again (``keep``), inside a ZIP archive, or without one. A module that lost its size prefix (and was
    opened all the same) gets it back. FormatError where the module's time knows no such wrapping."""
    if mode not in MODES:
        raise FormatError(f"option wrapping is {mode!r}, must be one of {', '.join(MODES)}")
    around, data = module.wrapping, module.source.data
    if mode == "keep" or (mode == "zip" and around.kind == "zip+size-prefixed"):
        return bytes(data)
    if not module.generation.is_prefixed:
        raise FormatError(
            f"{module.source.name}: modules of {module.generation.name} are bare; IREE of that time "
            "loads no other wrapping"
        )
    if around.rodata_offset is not None and not any(segment.is_external for segment in module.rodata):
        return _whole(module, mode)
    if around.rodata_offset is None:
        body = around.flatbuffer_length.to_bytes(4, "little") + bytes(data[around.flatbuffer_offset :])
        return zip_members([(MODULE_MEMBER, body)]) if mode == "zip" else body
    if around.module_offset % ALIGNMENT:
        raise FormatError(
            f"{module.source.name}: the module lies at byte {around.module_offset}, no multiple of "
            f"{ALIGNMENT}, so its rodata would move"
        )
    end = max(segment.offset + len(segment.data) for segment in module.rodata if segment.is_external)
    body = bytes(data[around.module_offset : max(end, around.flatbuffer_offset + around.flatbuffer_length)])
    # The compiler pads a file without a ZIP directory to its alignment.
    return zip_members([(MODULE_MEMBER, body)]) if mode == "zip" else body + bytes(-len(body) % ALIGNMENT)


def _whole(module: Module, mode: str) -> bytes:
    """A module with all rodata in its FlatBuffer, as the compiler writes it: in a ZIP archive the size prefix counts
    the padding to 64 bytes (with the prefix counted twice, ArchiveWriter.cpp), elsewhere the FlatBuffer alone."""
    start = module.wrapping.flatbuffer_offset
    written = min(module.flatbuffer_end, module.wrapping.flatbuffer_length)
    flatbuffer = bytes(module.source.data[start : start + written])
    if mode == "zip":
        size = align(8 + written, ALIGNMENT) - 4
        return zip_members([(MODULE_MEMBER, size.to_bytes(4, "little") + flatbuffer + bytes(size - written))])
    return written.to_bytes(4, "little") + flatbuffer + bytes(-(4 + written) % ALIGNMENT)
