"""Safetensors files: u64 header length, a JSON header, the tensors' bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, TypeGuard

from nvdla.errors import FormatError, shape_text
from nvdla.interop.containers.registry import Container, FileFinding, Format, Options, Severity, Source, register
from nvdla.tensors.parameters import Parameter, packed_size
from nvdla.util.escaping import Document, Json

#: The reference implementation's limit on the JSON header, in bytes.
MAX_HEADER = 100_000_000

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_NAMES = {ours: theirs for theirs, ours in DTYPES.items()}
#: Key of the file's metadata under which the parameters' own metadata travel.
EXTRA = "nvdla"


class SafetensorsContainer(Container):
    """An open file. Offsets must be in range and fit type and shape; gaps and overlaps are findings."""

    def __init__(self, format: SafetensorsFormat, source: Source) -> None:
        self.format = format
        self.source = source
        header, self.data_start = _read_header(source)
        self.metadata = _string_map(source, header.pop("__metadata__", {}))
        self.extra = _extra(self.metadata)
        self.tensors = [self._tensor(name, value) for name, value in header.items()]
        self.tensors.sort(key=_origin)

    def _tensor(self, name: str, value: object) -> Parameter:
        where = f"{self.source.name}: tensor {name!r}"
        if not isinstance(value, dict):
            raise FormatError(f"{where}: its header: must be a JSON object, got {type(value).__name__}")
        dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise FormatError(f"{where}: dtype: must be one of {', '.join(DTYPES)}, got {dtype!r}")
        if not _is_sizes(shape) or len(shape) > 256:
            raise FormatError(f"{where}: shape: must be a list of at most 256 sizes, got {str(shape)[:80]}")
        if not _is_sizes(offsets) or len(offsets) != 2:
            raise FormatError(f"{where}: data_offsets: must be [begin, end], got {str(offsets)[:80]}")
        begin, end = offsets
        available = len(self.source.data) - self.data_start
        if not begin <= end <= available:
            hint = " (cut off?)" if end > available else ""
            raise FormatError(
                f"{where}: data_offsets: must be within the {available} data bytes, got {begin} to {end}{hint}"
            )
        expected = packed_size(DTYPES[dtype], tuple(shape))
        if end - begin != expected:
            raise FormatError(
                f"{where}: size of {dtype} {shape_text(shape)}: must be {expected} bytes, got {end - begin}"
            )
        extra = self.extra.get(name)
        data = self.source.data[self.data_start + begin : self.data_start + end]
        return Parameter(
            name,
            DTYPES[dtype],
            tuple(shape),
            data,
            end - begin,
            metadata=extra if isinstance(extra, dict) else {},
            origin=(begin, end),
        )

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        return {
            "tensors": len(self.tensors),
            "data_start": self.data_start,
            "data_bytes": len(self.source.data) - self.data_start,
            "metadata": self.metadata,
        }

    def rows(self) -> list[Document]:
        """One row an entry, for `nvdla container list`."""
        return [
            {
                "name": p.name,
                "dtype": p.dtype,
                "shape": list(p.shape or ()),
                "length": p.length,
                "start": self.data_start + _origin(p)[0],
                "end": self.data_start + _origin(p)[1],
            }
            for p in self.tensors
        ]

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Tensors must cover the data without gap or overlap."""
        findings, position = [], 0
        for tensor in self.tensors:
            begin, end = _origin(tensor)
            if begin != position:
                word = "overlaps the tensor before it" if begin < position else "leaves a gap before it"
                findings.append(
                    FileFinding(
                        Severity.ERROR,
                        f"tensor {tensor.name!r}",
                        self.data_start + begin,
                        f"begin: must be data byte {position}, got {begin}: {word}",
                    )
                )
            position = max(position, end)
        left = len(self.source.data) - self.data_start - position
        if left:
            at = self.data_start + position
            findings.append(
                FileFinding(
                    Severity.ERROR, "file", at, f"end of tensors: must be the end of the file, got {left} more bytes"
                )
            )
        if strict and self.data_start % 8:
            findings.append(
                FileFinding(
                    Severity.WARNING,
                    "header",
                    0,
                    f"begin of data: must be a multiple of 8 bytes, got {self.data_start}",
                )
            )
        return findings

    def load_parameters(self) -> list[Parameter]:
        """Every entry as a parameter."""
        return list(self.tensors)


def _read_header(source: Source) -> tuple[dict[str, Json], int]:
    size = len(source.data)
    if size < 8:
        raise FormatError(f"{source.name}: a safetensors file: must have at least 8 bytes, got {size} (cut off?)")
    length = int.from_bytes(source.data[:8], "little")
    if length > min(size - 8, MAX_HEADER):
        raise FormatError(
            f"{source.name}: header length: must be at most {min(size - 8, MAX_HEADER)}, got {length} (cut off?)"
        )
    try:
        header = json.loads(bytes(source.data[8 : 8 + length]), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source.name}: header: must be JSON: {error}") from None
    if not isinstance(header, dict):
        raise FormatError(f"{source.name}: header: must be a JSON object, got {type(header).__name__}")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> Document:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("keys: must be unique")
    return result


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _string_map(source: Source, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise FormatError(f"{source.name}: __metadata__: must map strings to strings")
    return value


def _extra(metadata: Mapping[str, str]) -> dict[str, Json]:
    """The parameters' metadata, in a file that this project wrote."""
    try:
        extra = json.loads(metadata.get(EXTRA, "{}"))
    except (ValueError, RecursionError):
        return {}
    return extra if isinstance(extra, dict) else {}


@register
class SafetensorsFormat(Format):
    """Hugging Face's tensor file."""

    name = "safetensors"
    title = "safetensors file"
    suffixes = (".safetensors",)
    options: ClassVar[Mapping[str, str]] = {}

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        return len(header) > 9 and header[8:9] == b"{" and int.from_bytes(header[:8], "little") <= MAX_HEADER

    def open(self, source: Source, options: Options | None = None) -> SafetensorsContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        self.check_options(options)
        return SafetensorsContainer(self, source)

    def write(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """Tensors sorted by falling alignment of their type, then name, as the reference writer does; a parameter of no
        recorded type becomes U8 of its length."""
        self.check_options(options)
        ready = sorted(map(_typed, parameters), key=lambda t: (-t[2], t[3].name.encode("utf-8", "replace")))
        header: Document = {}
        extra = {p.name: dict(p.metadata) for p in parameters if p.metadata}
        if extra:
            header["__metadata__"] = {EXTRA: json.dumps(extra)}
        position = 0
        for dtype, shape, _, parameter in ready:
            name = parameter.name
            if name in header or name == "__metadata__":
                raise FormatError(
                    f"parameter {name!r}: name: must be unique and not __metadata__. Rename or exclude one."
                )
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + parameter.length]}
            position += parameter.length
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little") + text)
        for *_, parameter in ready:
            parameter.write(file)


def _typed(parameter: Parameter) -> tuple[str, list[int], int, Parameter]:
    """(safetensors dtype, shape, element bytes, parameter)."""
    if parameter.data is None and parameter.pattern is None:
        parameter.as_bytes()  # says what is missing
    if parameter.dtype is None or parameter.shape is None:
        return "U8", [parameter.length], 1, parameter
    if parameter.dtype not in _NAMES:
        raise FormatError(
            f"parameter {parameter.name!r}: element type: must be one of {', '.join(_NAMES)}, got {parameter.dtype}"
        )
    return _NAMES[parameter.dtype], list(parameter.shape), packed_size(parameter.dtype, (1,)), parameter


def _origin(parameter: Parameter) -> tuple[int, int]:
    """First and last byte of a tensor, from the start of the data."""
    assert isinstance(parameter.origin, tuple)
    return parameter.origin
