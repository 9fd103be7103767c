"""GGUF files (read only): key-value metadata, tensor descriptions, aligned tensor data.

Quantized (block) types have no element type here: their tensors are bytes, with the type's name in the metadata.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from nvdla.errors import FormatError, shape_text
from nvdla.interop.containers.registry import Container, FileFinding, Format, Options, Severity, Source, register
from nvdla.tensors.parameters import Parameter, element_count, packed_size
from nvdla.util.escaping import Document
from nvdla.util.rounding import align

MAX_RANK = 8
MAX_ALIGNMENT = 1 << 24
_MAX_NESTING = 8
#: Values of arrays longer than this are not kept (vocabularies), only their length.
_MAX_KEPT = 64

#: number -> (name, our element type or None, elements in a block, bytes of a block)
TENSOR_TYPES: dict[int, tuple[str, str | None, int, int]] = {
    0: ("F32", "float32", 1, 4), 1: ("F16", "float16", 1, 2), 24: ("I8", "int8", 1, 1), 25: ("I16", "int16", 1, 2),
    26: ("I32", "int32", 1, 4), 27: ("I64", "int64", 1, 8), 28: ("F64", "float64", 1, 8),
    30: ("BF16", "bfloat16", 1, 2),
    2: ("Q4_0", None, 32, 18), 3: ("Q4_1", None, 32, 20), 6: ("Q5_0", None, 32, 22), 7: ("Q5_1", None, 32, 24),
    8: ("Q8_0", None, 32, 34), 9: ("Q8_1", None, 32, 36), 10: ("Q2_K", None, 256, 84), 11: ("Q3_K", None, 256, 110),
    12: ("Q4_K", None, 256, 144), 13: ("Q5_K", None, 256, 176), 14: ("Q6_K", None, 256, 210),
    15: ("Q8_K", None, 256, 292), 16: ("IQ2_XXS", None, 256, 66), 17: ("IQ2_XS", None, 256, 74),
    18: ("IQ3_XXS", None, 256, 98), 19: ("IQ1_S", None, 256, 50), 20: ("IQ4_NL", None, 32, 18),
    21: ("IQ3_S", None, 256, 110), 22: ("IQ2_S", None, 256, 82), 23: ("IQ4_XS", None, 256, 136),
    29: ("IQ1_M", None, 256, 56), 34: ("TQ1_0", None, 256, 54), 35: ("TQ2_0", None, 256, 66),
}  # fmt: skip
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_KIND_NAMES = {
    0: "uint8", 1: "int8", 2: "uint16", 3: "int16", 4: "uint32", 5: "int32", 6: "float32", 7: "bool", 8: "string",
    9: "array", 10: "uint64", 11: "int64", 12: "float64",
}  # fmt: skip


class GgufContainer(Container):
    """An open file."""

    def __init__(self, format: GgufFormat, source: Source) -> None:
        self.format = format
        self.source = source
        self.position = 4
        self.version = self._scalar("<I", "version")
        if self.version not in (2, 3):
            raise FormatError(f"{source.name}: GGUF version: must be 2 or 3, got {self.version}")
        tensors, pairs = self._scalar("<Q", "tensor count"), self._scalar("<Q", "metadata count")
        self.kinds: dict[str, str] = {}
        self.metadata = dict(self._pair(n) for n in self._counted(pairs, 13, "pairs"))
        described = [self._description(n) for n in self._counted(tensors, 24, "tensors")]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise FormatError(f"{source.name}: general.alignment: must be a power of two, got {alignment!r}")
        self.alignment = alignment
        self.data_start = align(self.position, alignment)
        self.tensors = [self._tensor(*item) for item in described]

    def _fail(self, part: str, message: str) -> FormatError:
        return FormatError(f"{self.source.name}: {part} at byte {self.position}: {message}")

    def _take(self, length: int, part: str) -> memoryview:
        left = len(self.source.data) - self.position
        if length > left:
            raise self._fail(
                part, f"must have {length} bytes, got {max(left, 0)} before the end of the file (cut off?)"
            )
        self.position += length
        return self.source.data[self.position - length : self.position]

    def _scalar(self, code: str, part: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code), part))[0]

    def _string(self, part: str) -> str:
        return bytes(self._take(self._scalar("<Q", part), part)).decode("utf-8", "surrogateescape")

    def _counted(self, count: int, least: int, part: str) -> range:
        """range(count), after checking that so many things of at least ``least`` bytes can be in the file."""
        if count * least > len(self.source.data) - self.position:
            raise self._fail(part, f"count: must fit the rest of the file, got {count} (cut off?)")
        return range(count)

    def _pair(self, number: int) -> tuple[str, object]:
        """A key and its value; its type goes to ``kinds``: ``uint32``, ``string[5]`` for an array."""
        key, part = self._string(f"key {number}"), f"value {number}"
        kind = self._scalar("<I", part)
        start = self.position
        value = self._typed_value(kind, part, 0)
        if kind == _ARRAY:
            element, count = struct.unpack("<IQ", self.source.data[start : start + 12])
            self.kinds[key] = f"{_KIND_NAMES.get(element, element)}[{count}]"
        else:
            self.kinds[key] = _KIND_NAMES[kind]
        return key, value

    def _typed_value(self, kind: int, part: str, depth: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], part)
        if kind == _STRING:
            return self._string(part)
        if kind != _ARRAY or depth >= _MAX_NESTING:
            raise self._fail(part, f"type: must be known, with at most {_MAX_NESTING} nested arrays, got type {kind}")
        element, count = self._scalar("<I", part), self._scalar("<Q", part)
        if element in _SCALARS:
            size = struct.calcsize(_SCALARS[element])
            raw = self._take(count * size, part)
            kept = struct.iter_unpack(_SCALARS[element], raw[: min(count, _MAX_KEPT) * size])
            return [v for (v,) in kept] if count <= _MAX_KEPT else {"length": count}
        values = [self._typed_value(element, part, depth + 1) for _ in self._counted(count, 8, part)]
        return values if count <= _MAX_KEPT else {"length": count}

    def _description(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        part = f"tensor {index}"
        name = self._string(part)
        rank = self._scalar("<I", part)
        if rank > MAX_RANK:
            raise self._fail(part, f"{name!r}: must have at most {MAX_RANK} dimensions, got {rank}")
        sizes = tuple(self._scalar("<Q", part) for _ in range(rank))
        # The first dimension is the innermost.
        return name, sizes[::-1], self._scalar("<I", part), self._scalar("<Q", part)

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Parameter:
        where = f"{self.source.name}: tensor {name!r}"
        if kind not in TENSOR_TYPES:
            raise FormatError(f"{where}: tensor type: must be a known number, got {kind}")
        type_name, dtype, block, size = TENSOR_TYPES[kind]
        count = element_count(shape)
        if count % block or (shape and shape[-1] % block):
            raise FormatError(
                f"{where}: shape: must be a multiple of {block} ({type_name} blocks), got {shape_text(shape)}"
            )
        length = packed_size(dtype, shape) if dtype else count // block * size
        start = self.data_start + offset
        if start > len(self.source.data) or length > len(self.source.data) - start:
            size = len(self.source.data)
            raise FormatError(f"{where}: end: must be at most {size} (file size), got {start + length} (cut off?)")
        extra = {} if dtype else {"gguf_type": type_name, "gguf_shape": list(shape)}
        return Parameter(
            name,
            dtype,
            shape if dtype else None,
            self.source.data[start : start + length],
            length,
            metadata=extra,
            origin=(start, type_name, shape),
        )

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        return {
            "version": self.version,
            "tensors": len(self.tensors),
            "alignment": self.alignment,
            "data_start": self.data_start,
            "metadata": self.metadata,
            "metadata_types": self.kinds,
        }

    def rows(self) -> list[Document]:
        """One row an entry, for `nvdla container list`."""
        return [
            {
                "name": p.name,
                "type": _origin(p)[1],
                "dtype": p.dtype,
                "shape": list(_origin(p)[2]),
                "start": _origin(p)[0],
                "end": _origin(p)[0] + p.length,
                "length": p.length,
            }
            for p in self.tensors
        ]

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Yield problems of the file; ``strict``: also what other readers would refuse."""
        findings = []
        ordered = sorted((p for p in self.tensors if p.length), key=lambda p: _origin(p)[0])
        for before, after in itertools.pairwise(ordered):
            if _origin(after)[0] < _origin(before)[0] + before.length:
                findings.append(
                    FileFinding(
                        Severity.ERROR,
                        f"tensor {after.name!r}",
                        _origin(after)[0],
                        f"overlaps the data of {before.name!r}",
                    )
                )
        for p in self.tensors:
            if _origin(p)[0] % self.alignment:
                findings.append(
                    FileFinding(
                        Severity.ERROR if strict else Severity.WARNING,
                        f"tensor {p.name!r}",
                        _origin(p)[0],
                        f"must begin at a multiple of {self.alignment} bytes, got {_origin(p)[0]}",
                    )
                )
        return findings

    def load_parameters(self) -> list[Parameter]:
        """Every entry as a parameter."""
        return list(self.tensors)


@register
class GgufFormat(Format):
    """llama.cpp's model file."""

    name = "gguf"
    title = "GGUF file (read only)"
    suffixes = (".gguf",)
    options: ClassVar[Mapping[str, str]] = {}

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        return header[:4] == b"GGUF"

    def open(self, source: Source, options: Options | None = None) -> GgufContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        self.check_options(options)
        return GgufContainer(self, source)


def _origin(parameter: Parameter) -> tuple[int, str, tuple[int, ...]]:
    """Start, type and shape of a tensor as the file has them."""
    assert isinstance(parameter.origin, tuple)
    return parameter.origin
