"""Changing what lies around a module's FlatBuffer: a ZIP archive, or a size prefix alone.

IREE's compiler writes both from the same module; here the one is made from the other, with its bytes. Rodata behind the
FlatBuffer lies elsewhere in the two, since each member of an archive has a header, so that the FlatBuffer is laid out
anew (:mod:`.relayout`), and modules among the rodata are wrapped as the module itself. A FlatBuffer that the compiler
cannot have written stays as it is, and so does its distance to the rodata.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nvdla.containers.vmfb.module import Module, Rodata, looks_like_module
from nvdla.containers.vmfb.relayout import FlatBufferLayout, layout
from nvdla.containers.vmfb.wrapping import ALIGNMENT, MODULE_MEMBER, header_length, local_member, zip_members
from nvdla.errors import FormatError
from nvdla.rounding import align

MODES = ("keep", "zip", "prefixed")
MAX_NAME = 1 << 12

#: Alignments of rodata, the likeliest first: executables (the compiler asks for none), weights for devices, other data.
_OF_EXECUTABLES, _OF_WEIGHTS, _OF_DATA = (16, 64, 32), (64, 16, 32), (16, 64, 32)
_RARE = (128, 256, 512, 1024, 2048, 4096, 8, 4, 2, 1)
#: How a module says that no device takes its executable: the one place where a module without an archive names it.
_REFUSAL = re.compile(rb"any variant of executable `([^`]{1,200})`; available formats: \[([^\]]{1,200})\]")


@dataclass(frozen=True)
class _Part:
    """A segment behind the FlatBuffer: its bytes, its alignment, its name in an archive ("" where not known)."""

    content: bytes
    alignment: int
    name: str


def rewrap(module: Module, mode: str, names: Sequence[str] = ()) -> bytes:
    """The file again (``keep``), inside a ZIP archive, or without one; ``names``: of the archive's members behind the
    first, which a module without an archive does not know (without them they get the compiler's usual ones). A module
    that lost its size prefix (and was opened all the same) gets it back. FormatError where the module's time knows no
    such wrapping, or names do not fit."""
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
    made = layout(module)
    parts = None if made is None else _parts(module, made, mode)
    if made is None or parts is None:
        return _kept(module, mode)
    return _zipped(made, _named(module, parts, names)) if mode == "zip" else _plain(made, parts)


def _plain(made: FlatBufferLayout, parts: Sequence[_Part]) -> bytes:
    """Size prefix, FlatBuffer, rodata: as the compiler writes it without an archive."""
    external, tail = [], 0
    for part in parts:
        tail = align(tail, part.alignment)
        external.append((tail, len(part.content)))
        tail += len(part.content)
    flatbuffer = made.written(external)
    image = bytearray(len(flatbuffer).to_bytes(4, "little") + flatbuffer)
    image += bytes(-len(image) % ALIGNMENT)
    base = len(image)
    for part, (offset, _) in zip(parts, external, strict=True):
        image += bytes(base + offset - len(image)) + part.content
    return bytes(image)


def _zipped(made: FlatBufferLayout, parts: Sequence[_Part]) -> bytes:
    """A ZIP archive; its size prefix counts the padding to 64 bytes (with the prefix counted twice, ArchiveWriter.cpp),
    and offsets count the headers of members."""
    external, tail = [], 0
    for part in parts:
        start = align(tail + header_length(part.name), part.alignment)
        external.append((start, len(part.content)))
        tail = start + len(part.content)
    flatbuffer = made.written(external)
    size = align(8 + len(flatbuffer), ALIGNMENT) - 4
    body = size.to_bytes(4, "little") + flatbuffer + bytes(size - len(flatbuffer))
    members = [(MODULE_MEMBER, body), *((part.name, part.content) for part in parts)]
    return zip_members(members, [part.alignment for part in parts])


def _parts(module: Module, made: FlatBufferLayout, mode: str) -> list[_Part] | None:
    """The segments behind the FlatBuffer; None where they do not lie as the compiler lays them."""
    segments = [segment for segment in module.rodata if segment.is_external]
    if len(segments) != len(made.segments):
        return None
    base = module.wrapping.rodata_offset or 0
    names, earliest, at = [], [], base
    for segment in segments:
        member = local_member(module.source.data, at) if module.wrapping.kind.startswith("zip") else None
        names.append(member.name if member and member.data_offset == segment.offset else "")
        earliest.append(at - base + (header_length(names[-1]) if names[-1] else 0))
        at = segment.offset + len(segment.data)
    starts = [segment.offset - base for segment in segments]
    if any(start < low for start, low in zip(starts, earliest, strict=True)):
        return None
    alignments = _alignments(module, segments, list(zip(earliest, starts, strict=True)))
    nested = dict(module.nested())
    contents = [
        rewrap(nested[segment.index], mode) if segment.index in nested else bytes(segment.data) for segment in segments
    ]
    return [_Part(*each) for each in zip(contents, alignments, names, strict=True)]


def _alignments(module: Module, segments: Sequence[Rodata], places: Sequence[tuple[int, int]]) -> list[int]:
    """What each segment asked for, as far as its place (the earliest possible, the real) tells: weights of one module
    ask for the same, which all of them must fit."""
    weights = _OF_WEIGHTS if any(each.name.startswith("hal.") for each in module.imports) else _OF_DATA
    data = [place for segment, place in zip(segments, places, strict=True) if not _is_executable(segment.data)]
    common = next((each for each in (*weights, *_RARE) if all(_fits(each, *place) for place in data)), None)
    found = []
    for segment, place in zip(segments, places, strict=True):
        likely = _OF_EXECUTABLES if _is_executable(segment.data) else (common or weights[0], *weights)
        found.append(next((each for each in (*likely, *_RARE) if _fits(each, *place)), 1))
    return found


def _fits(alignment: int, earliest: int, start: int) -> bool:
    return align(earliest, alignment) == start


def _is_executable(data: memoryview) -> bool:
    """Whether rodata is code for a device: a module, an ELF file, or a FlatBuffer behind IREE's header of 64 bytes,
    which begins with the FlatBuffer's identifier and ends with zeros."""
    header = bytes(data[:72])
    if header[:4] == b"\x7fELF" or looks_like_module(header):
        return True
    return len(header) == 72 and header[:4] == header[68:72] and not any(header[16:64])


def _named(module: Module, parts: Sequence[_Part], names: Sequence[str]) -> list[_Part]:
    """The parts with names: as given, or as the compiler's passes name constants and executables."""
    if names and len(names) != len(parts):
        raise FormatError(
            f"option names has {len(names)} names, the module has {len(parts)} segments behind its FlatBuffer"
        )
    for name in names:
        if not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME or "\0" in name:
            raise FormatError(f"option names: {name!r:.80} is no name of a member: 1 to {MAX_NAME} bytes without NUL")
    usual = names or _usual_names(module, parts)
    return [_Part(part.content, part.alignment, name) for part, name in zip(parts, usual, strict=True)]


def _usual_names(module: Module, parts: Sequence[_Part]) -> list[str]:
    """``_const.bin``, ``_const_0.bin``, ... for data; executables as in what the module says where no device takes
    them."""
    said = [match.groups() for match in _REFUSAL.finditer(module.bytecode)]
    stems = [(name, form) for name, forms in said for form in forms.split(b", ")]
    names, constants = [], 0
    for number, part in enumerate(parts):
        if _is_executable(memoryview(part.content)):
            name, form = stems.pop(0) if stems else (b"executable_%d" % number, b"")
            stem = (name + b"_" * bool(form) + form.replace(b"-", b"_")).decode("utf-8", "replace")
            names.append(stem + (".so" if part.content[:4] == b"\x7fELF" else ".fb"))
        else:
            names.append(f"_const_{constants - 1}.bin" if constants else "_const.bin")
            constants += 1
    return names


def _kept(module: Module, mode: str) -> bytes:
    """With the FlatBuffer as it is, and the rodata at its distance from it, which a header of a multiple of 64 bytes
    does not change."""
    around, data = module.wrapping, module.source.data
    if around.rodata_offset is None or not any(segment.is_external for segment in module.rodata):
        start = around.flatbuffer_offset
        body = around.flatbuffer_length.to_bytes(4, "little") + bytes(data[start : start + around.flatbuffer_length])
        return zip_members([(MODULE_MEMBER, body)]) if mode == "zip" else body
    if around.module_offset % ALIGNMENT:
        raise FormatError(
            f"{module.source.name}: the module lies at byte {around.module_offset}, no multiple of "
            f"{ALIGNMENT}, so its rodata would move"
        )
    end = max(segment.offset + len(segment.data) for segment in module.rodata if segment.is_external)
    body = bytes(data[around.module_offset : max(end, around.flatbuffer_offset + around.flatbuffer_length)])
    return zip_members([(MODULE_MEMBER, body)]) if mode == "zip" else body + bytes(-len(body) % ALIGNMENT)
