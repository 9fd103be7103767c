"""numpy's .npz archives, never with pickles: nothing in the file is executed."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nvdla.containers.parameters import ELEMENT_BITS, Parameter, element_count
from nvdla.containers.registry import Container, Finding, Format, Options, Severity, Source, register
from nvdla.errors import FormatError

#: A compressed member may grow to at most this many bytes, and to this many times its size (what deflate can do).
MAX_MEMBER = 1 << 32
MAX_RATIO = 1040
MAX_MEMBERS = 1 << 16
_EPOCH = (1980, 1, 1, 0, 0, 0)


class NpzContainer(Container):
    """An open archive. Stored members are viewed, deflated ones unpacked."""

    def __init__(self, format: NpzFormat, source: Source) -> None:
        self.format = format
        self.source = source
        self.members: list[zipfile.ZipInfo] = []
        self.arrays: list[Parameter] = []
        try:
            with zipfile.ZipFile(_Raw(source.data)) as archive:
                self.members = [info for info in archive.infolist() if not info.is_dir()]
                if len(self.members) > MAX_MEMBERS:
                    raise FormatError(f"{source.name}: {len(self.members)} members, the limit is {MAX_MEMBERS}")
                if sum(info.compress_size for info in self.members) > len(source.data):
                    raise FormatError(f"{source.name}: members overlap: together they are longer than the file")
                self.arrays = [self._array(archive, info) for info in self.members]
        except FormatError:
            raise
        except Exception as error:  # zipfile raises a dozen kinds for broken archives
            raise FormatError(f"{source.name}: broken .npz archive: {error}") from None

    def _array(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Parameter:
        where = f"{self.source.name}: member {info.filename!r}"
        if info.file_size > min(MAX_MEMBER, info.compress_size * MAX_RATIO + 1024):
            raise FormatError(f"{where}: {info.compress_size} bytes claim to unpack to {info.file_size}")
        raw = archive.read(info)
        array = read_npy(raw, where)
        name = info.filename.removesuffix(".npy")
        return Parameter.from_array(name, array)

    def info(self) -> dict[str, Any]:
        return {"arrays": len(self.arrays), "data_bytes": sum(p.length for p in self.arrays)}

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "name": p.name,
                "dtype": p.dtype,
                "shape": list(p.shape or ()),
                "length": p.length,
                "compressed": m.compress_type != zipfile.ZIP_STORED,
            }
            for p, m in zip(self.arrays, self.members, strict=True)
        ]

    def verify(self, strict: bool = False) -> list[Finding]:
        """Checksums were checked on opening; what is left are names."""
        counts = Counter(p.name for p in self.arrays)
        return [
            Finding(Severity.ERROR, f"member {name!r}", None, "the name appears more than once")
            for name, count in counts.items()
            if count > 1
        ]

    def parameters(self) -> list[Parameter]:
        return list(self.arrays)


class _Raw(io.RawIOBase):
    """A seekable file on a view, without copying it."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self.position, len(self.data))[whence]
        if base + offset < 0:
            raise OSError("seek before the beginning")  # what zipfile expects of a short file
        self.position = base + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        piece = self.data[self.position : self.position + len(buffer)]
        buffer[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)


def read_npy(raw: bytes, where: str) -> np.ndarray:
    """One .npy file. FormatError for object arrays (pickles), structured types, truncation and junk."""
    stream = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(stream)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if reader is None:
            raise FormatError(f"{where}: .npy version {version[0]}.{version[1]} is not known, only 1.0 and 2.0 are")
        shape, is_fortran, dtype = reader(stream)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, OverflowError, EOFError) as error:
        raise FormatError(f"{where}: broken .npy header: {' '.join(str(error).split())[:200]}") from None
    if dtype.hasobject or dtype.name not in ELEMENT_BITS:
        raise FormatError(
            f"{where}: element type {dtype} is not a plain number type; known are {', '.join(ELEMENT_BITS)}"
        )
    if len(shape) > 32 or any(n < 0 for n in shape):
        raise FormatError(f"{where}: shape {str(shape)[:80]} is not possible")
    body = memoryview(raw)[stream.tell() :]
    expected = element_count(shape) * dtype.itemsize
    if expected != len(body):
        raise FormatError(f"{where}: {dtype} of shape {shape} takes {expected} bytes, {len(body)} follow the header")
    return np.frombuffer(body, dtype).reshape(shape, order="F" if is_fortran else "C")


@register
class NpzFormat(Format):
    """numpy's archive of arrays."""

    name = "npz"
    title = "numpy archive"
    suffixes = (".npz",)
    options: ClassVar[Mapping[str, str]] = {"compress": "yes to deflate the arrays (writing; default no)"}

    def sniff(self, header: bytes, path: Path | None) -> bool:
        if header[:4] == b"PK\x05\x06":  # an empty archive
            return True
        length = int.from_bytes(header[26:28], "little")
        return header[:4] == b"PK\x03\x04" and header[30 : 30 + length].endswith(b".npy")

    def open(self, source: Source, options: Options | None = None) -> NpzContainer:
        self.check_options(options)
        return NpzContainer(self, source)

    def create(self, parameters: Sequence[Parameter], options: Options | None = None) -> bytes:
        """Types that numpy lacks are written as unsigned integers of their width, bytes of no type as uint8. The same
        parameters give the same bytes (no time stamps)."""
        compress = self.check_options(options).get("compress", "no")
        if compress not in ("yes", "no"):
            raise FormatError(f"option compress is {compress!r}, must be yes or no")
        for name, count in Counter(p.name for p in parameters).items():
            if count > 1 or not name or "\0" in name:
                raise FormatError(f"parameter {name!r}: an .npz member needs a name of its own; rename or exclude one")
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            for parameter in parameters:
                member = zipfile.ZipInfo(parameter.name.encode("utf-8", "replace").decode() + ".npy", _EPOCH)
                member.compress_type = zipfile.ZIP_DEFLATED if compress == "yes" else zipfile.ZIP_STORED
                with archive.open(member, "w", force_zip64=parameter.length > 1 << 30) as stream:
                    np.lib.format.write_array(stream, parameter.as_array(), allow_pickle=False)
        return target.getvalue()
