"""numpy's .npz archives, never with pickles: nothing in the file is executed."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

import numpy as np

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import Container, FileFinding, Format, Options, Severity, Source, register
from nvdla.tensors.npz import Member, check, members, shaped, unpack
from nvdla.tensors.parameters import ELEMENT_BITS, Parameter, numpy_dtype, utf8_name
from nvdla.util.escaping import Document, Json

_EPOCH = (1980, 1, 1, 0, 0, 0)


class NpzContainer(Container):
    """An open archive, of which the headers are read. Stored members are viewed, deflated ones unpacked, when their
    data are asked for."""

    def __init__(self, format: NpzFormat, source: Source) -> None:
        self.format = format
        self.source = source
        self.members = members(source)

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        return {"arrays": len(self.members), "data_bytes": sum(m.length for m in self.members)}

    def rows(self) -> list[Document]:
        """One row an entry, for `nvdla container list`."""
        return [
            {
                "name": m.name,
                "dtype": m.dtype.name,
                "shape": list(m.shape),
                "length": m.length,
                "compressed": m.is_deflated,
            }
            for m in self.members
        ]

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Headers and names; strict, the data's checksums, too (they are always checked when data are read out)."""
        counts = Counter(m.name for m in self.members)
        findings = [
            FileFinding(Severity.ERROR, f"member {name!r}", None, "name: must be unique")
            for name, count in counts.items()
            if count > 1
        ]
        for member in self.members if strict else ():
            try:
                check(member)
            except FormatError as error:
                findings.append(FileFinding(Severity.ERROR, f"member {member.name!r}", None, str(error)))
        return findings

    def load_parameters(self) -> list[Parameter]:
        """Every entry as a parameter."""
        return [_parameter(m, data) for m, data in zip(self.members, unpack(self.members), strict=True)]


def _parameter(member: Member, data: memoryview) -> Parameter:
    """A view where the data are already in C order, little-endian."""
    if member.dtype.newbyteorder("<") == member.dtype and (member.order == "C" or len(member.shape) < 2):
        return Parameter.from_bytes(member.name, data, member.dtype.name, member.shape)
    return Parameter.from_array(member.name, shaped(member, data))


@register
class NpzFormat(Format):
    """numpy's archive of arrays."""

    name = "npz"
    title = "numpy archive"
    suffixes = (".npz",)
    options: ClassVar[Mapping[str, str]] = {"compress": "yes to compress the arrays (writing; default no)"}

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        if header[:4] == b"PK\x05\x06":  # an empty archive
            return True
        end = 30 + int.from_bytes(header[26:28], "little")
        named = header[30:end].endswith(b".npy") or end > len(header)  # a name that is longer than what is looked at
        return header[:4] == b"PK\x03\x04" and named

    def open(self, source: Source, options: Options | None = None) -> NpzContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        self.check_options(options)
        return NpzContainer(self, source)

    def write(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """Types that numpy lacks are written as unsigned integers of their width, bytes of no type as uint8. The same
        parameters give the same bytes (no time stamps)."""
        compress = self.check_options(options).get("compress", "no")
        if compress not in ("yes", "no"):
            raise FormatError(f"option compress: must be yes or no, got {compress!r}")
        for name, count in Counter(p.name for p in parameters).items():
            if count > 1 or not name or "\0" in name:
                raise FormatError(
                    f"parameter {name!r}: name: must be unique and not empty in .npz. Rename or exclude one."
                )
        with zipfile.ZipFile(file, "w") as archive:
            for parameter in parameters:
                member = zipfile.ZipInfo(utf8_name(parameter.name).decode() + ".npy", _EPOCH)
                member.compress_type = zipfile.ZIP_DEFLATED if compress == "yes" else zipfile.ZIP_STORED
                with archive.open(member, "w", force_zip64=parameter.length > 1 << 30) as stream:
                    np.lib.format.write_array_header_1_0(stream, _header(parameter))
                    parameter.write(stream)


def _header(parameter: Parameter) -> dict[str, Json]:
    """Type in an .npy header: packed types under 8 bits and bytes of no type are a row of uint8."""
    dtype, shape = parameter.dtype, parameter.shape
    if dtype is None or shape is None or ELEMENT_BITS.get(dtype, 0) < 8:
        dtype, shape = "uint8", (parameter.length,)
    if parameter.data is None and parameter.pattern is None:
        parameter.as_bytes()  # says what is missing
    return {"descr": numpy_dtype(dtype).str, "fortran_order": False, "shape": shape}
