"""Arrays in .npy and .npz files.

Format: numpy/lib/format.py, "NPY format" (magic, version, header length, a Python dictionary as text, the data).

Only stored and deflated members are read, as numpy writes them. Other methods (bzip2, lzma) turn a few bytes into
gigabytes; deflate at most a thousandfold, and never past the size that the array's own header states.
"""

from __future__ import annotations

import ast
import io
import math
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.tensors.parameters import ELEMENT_BITS, element_count
from nvdla.util.files import MAP_FROM, Source, mapped, pieces_of, require_file

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 14
MAX_RANK = 32
_NUMBER_TYPE = re.compile(r"[<>|=]?[biufc][0-9]{1,2}")

Order = Literal["C", "F"]


def parse_npy(data: bytes | memoryview, name: str) -> np.ndarray:
    """The array of a .npy file, a view on ``data``. FormatError for anything but plain numbers in full length."""
    start, shape, dtype, order = read_header(data, name)
    expected = _full_length(shape, dtype, len(data) - start, name)
    try:
        values = np.frombuffer(data, dtype, math.prod(shape), start) if expected else np.empty(0, dtype)
        return values.reshape(shape, order=order)
    except ValueError as error:  # an empty array of sizes that numpy does not take
        raise FormatError(
            f"{name}: .npy shape: must be valid for numpy, got {shape_text(shape)[:80]}: {error}"
        ) from None


def map_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a .npy file that is mapped, not read. FormatError as :func:`parse_npy`, OSError where it cannot be
    opened."""
    name = os.fspath(path)
    require_file(path, "array")
    with open(path, "rb") as stream:
        beginning, size = stream.read(MAX_HEADER + 12), os.fstat(stream.fileno()).st_size
        start, shape, dtype, order = read_header(beginning, name)
        if not _full_length(shape, dtype, size - start, name):
            return parse_npy(beginning, name)
        return np.memmap(stream, dtype, "r", start, shape, order)


def _full_length(shape: tuple[int, ...], dtype: np.dtype, size: int, name: str) -> int:
    """Bytes of the data, which the file must hold."""
    expected = math.prod(shape) * dtype.itemsize
    if expected != size:
        text = " x ".join(map(str, shape)) or "one"
        raise FormatError(
            f"{name}: data: must have {expected} bytes (header: {text[:80]} elements of {dtype.itemsize} bytes), "
            f"got {size}{' (cut off?)' if size < expected else ''}"
        )
    return expected


def read_header(data: bytes | memoryview, name: str) -> tuple[int, tuple[int, ...], np.dtype, Order]:
    """Return where the data begin, shape, element type and order ("C" or "F"), from the first bytes of a file (at most
    MAX_HEADER + 12 are looked at). FormatError as :func:`parse_npy` raises it."""
    start, header = _header(data, name)
    return start, *_meaning(header, name)


def _header(data: bytes | memoryview, name: str) -> tuple[int, str]:
    """Return where the data begin, and the header's text."""
    if bytes(data[:6]) == MAGIC and len(data) < 10:
        raise FormatError(f"{name}: .npy header: must have at least 10 bytes, got {len(data)} (cut off?)")
    if bytes(data[:6]) != MAGIC:
        raise FormatError(f"{name}: must be a .npy array: \\x93NUMPY at byte 0 is missing")
    major, size = data[6], 2 if data[6] == 1 else 4
    if major not in (1, 2, 3):
        raise FormatError(f"{name}: .npy version: must be 1, 2 or 3, got {major}")
    length = int.from_bytes(data[8 : 8 + size], "little")
    start = 8 + size + length
    if length > MAX_HEADER or start > len(data):
        hint = " (cut off?)" if length <= MAX_HEADER else ""
        raise FormatError(
            f"{name}: .npy header: must be within the {len(data)} bytes of the file and at most {MAX_HEADER}, got "
            f"{length}{hint}"
        )
    return start, bytes(data[8 + size : start]).decode("utf-8" if major == 3 else "latin-1", "replace")


def _meaning(header: str, name: str) -> tuple[tuple[int, ...], np.dtype, Order]:
    """Shape, element type and order ("C" or "F") of a header."""
    try:
        fields = ast.literal_eval(header.strip())
        shape, descr, fortran = fields["shape"], fields["descr"], fields["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        why = type(error).__name__
        raise FormatError(
            f"{name}: .npy header: must be a dictionary with descr, fortran_order and shape ({why})"
        ) from None
    if not isinstance(shape, tuple) or len(shape) > MAX_RANK or not all(map(_is_size, shape)):
        raise FormatError(f"{name}: .npy shape: must be a tuple of at most {MAX_RANK} sizes below 2^63")
    if not isinstance(descr, str) or not _NUMBER_TYPE.fullmatch(descr):
        kind = descr[:80] if isinstance(descr, str) else f"given as {type(descr).__name__}"
        raise FormatError(
            f"{name}: .npy element type: must be a number type, got {kind} (Python objects are never read)"
        )
    try:
        return shape, np.dtype(descr), "F" if fortran else "C"
    except TypeError:
        raise FormatError(f"{name}: .npy element type: must exist in numpy, got {descr}") from None


def _is_size(extent: object) -> bool:
    """Numbers of thousands of digits can be read, but not even be shown."""
    return type(extent) is int and 0 <= extent < 1 << 63


#: Bytes that the deflated members of an archive may unpack to together, and times their size (what deflate can do).
MAX_UNPACKED = 1 << 32
MAX_RATIO = 1040
MAX_MEMBERS = 1 << 16
_PREFIX = MAX_HEADER + 12
_LOCAL_HEADER = 30


@dataclass(frozen=True)
class Member:
    """One array, still packed: ``packed`` views the member's bytes, ``size`` is what they unpack to, ``start`` where in
    that the array's data begin."""

    name: str
    where: str
    shape: tuple[int, ...]
    dtype: np.dtype
    order: Order
    packed: memoryview
    is_deflated: bool
    size: int
    checksum: int
    start: int

    @property
    def length(self) -> int:
        """Bytes of the array."""
        return self.size - self.start


def members(source: Source) -> list[Member]:
    """All arrays of an archive, their headers read and checked. FormatError for anything but plain numbers, for packing
    other than deflate, for members that share bytes or claim to unpack to more than they can."""
    try:
        with zipfile.ZipFile(_Raw(source.data)) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
    except FormatError:
        raise
    except Exception as error:  # zipfile raises a dozen kinds for broken archives
        raise FormatError(f"{source.name}: must be a .npz archive (cut off?): {error}") from None
    if len(infos) > MAX_MEMBERS:
        raise FormatError(f"{source.name}: must have at most {MAX_MEMBERS} members, got {len(infos)}")
    if sum(info.compress_size for info in infos) > len(source.data):
        raise FormatError(f"{source.name}: members: must not overlap, but are longer together than the file")
    archive_members = [_member(source, info) for info in infos]
    total = sum(member.size for member in archive_members if member.is_deflated)
    if total > MAX_UNPACKED:
        raise FormatError(f"{source.name}: unpacked size: must be at most {MAX_UNPACKED} bytes, got {total}")
    return archive_members


def _member(source: Source, info: zipfile.ZipInfo) -> Member:
    where = f"{source.name}: member {info.filename!r}"
    check_packing(info, where)
    if info.flag_bits & 0x1:
        raise FormatError(f"{where}: must not be encrypted")
    is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if info.file_size > (info.compress_size * MAX_RATIO + 1024 if is_deflated else info.compress_size):
        raise FormatError(
            f"{where}: unpacked size: must be possible for {info.compress_size} packed bytes, got {info.file_size}"
        )
    packed = _packed(source, info, where)
    beginning = packed[:_PREFIX]
    if is_deflated:
        beginning = memoryview(_inflate(packed, where, _PREFIX))
    start, shape, dtype, order = read_header(beginning[: info.file_size], where)
    if dtype.name not in ELEMENT_BITS:
        raise FormatError(f"{where}: element type: must be one of {', '.join(ELEMENT_BITS)}, got {dtype}")
    expected = element_count(shape) * dtype.itemsize
    if expected != info.file_size - start:
        raise FormatError(
            f"{where}: data: must have {expected} bytes ({dtype} of shape {shape_text(shape)}), got "
            f"{info.file_size - start}"
        )
    name = info.filename.removesuffix(".npy")
    return Member(name, where, shape, dtype, order, packed, is_deflated, info.file_size, info.CRC, start)


def check_packing(info: zipfile.ZipInfo, where: str) -> None:
    """FormatError for a member of a ZIP archive that is packed by more than deflate."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        name = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}.get(info.compress_type, "unknown")
        raise FormatError(f"{where}: compression: must be none or deflate, got method {info.compress_type} ({name})")


def _packed(source: Source, info: zipfile.ZipInfo, where: str) -> memoryview:
    """The member's bytes as they are in the file: after a local its own header lengths."""
    header = bytes(source.data[info.header_offset : info.header_offset + _LOCAL_HEADER])
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise FormatError(f"{where}: must have a local header at byte {info.header_offset}")
    start = info.header_offset + _LOCAL_HEADER + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    if start + info.compress_size > len(source.data):
        raise FormatError(
            f"{where}: end: must be at most {len(source.data)} (file size), got {start + info.compress_size} (cut off?)"
        )
    return source.data[start : start + info.compress_size]


def _inflate(packed: memoryview, where: str, limit: int) -> bytes:
    """At most ``limit`` bytes of a deflated member."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, limit)
    except zlib.error as error:
        raise FormatError(f"{where}: cannot be unpacked: {error}") from None


def unpack(archive_members: list[Member]) -> list[memoryview]:
    """The arrays' bytes in the member's order and byte order, their checksums checked: views where they are stored;
    what is deflated is unpacked into memory, or where that is much into a file that has no name."""
    deflated = [member for member in archive_members if member.is_deflated]
    with tempfile.SpooledTemporaryFile(MAP_FROM) as spool:
        for member in deflated:
            _unpack_to(spool, member)
        spool.seek(0)
        unpacked = memoryview(b"")
        if (total := sum(member.size for member in deflated)) > MAP_FROM:
            spool.flush()
            unpacked = mapped(spool)
        elif total:
            unpacked = memoryview(spool.read())
    pieces, at = [], 0
    for member in archive_members:
        data = member.packed
        if member.is_deflated:
            data, at = unpacked[at : at + member.size], at + member.size
        else:
            _check(member, data)
        pieces.append(data[member.start :])
    return pieces


def arrays(archive_members: list[Member]) -> list[np.ndarray]:
    """The arrays, read only."""
    return [shaped(member, data) for member, data in zip(archive_members, unpack(archive_members), strict=True)]


def read_npz(
    source: Source | str | os.PathLike[str] | bytes | bytearray | memoryview,
    charge: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of an .npz (a path or bytes) by name. FormatError for what is none, or unpacks to more than 4 GiB.

    ``charge`` is called with the unpacked size before unpacking, and may refuse."""
    archive_members = members(Source.of(source))
    if charge is not None:
        charge(sum(member.size for member in archive_members))
    return {member.name: array for member, array in zip(archive_members, arrays(archive_members), strict=True)}


def shaped(member: Member, data: memoryview) -> np.ndarray:
    """An array of what :func:`unpack` gives for a member."""
    try:
        values = np.frombuffer(data, member.dtype) if member.length else np.empty(0, member.dtype)
        return values.reshape(member.shape, order=member.order)
    except ValueError as error:  # an empty array of sizes that numpy does not take
        raise FormatError(
            f"{member.where}: shape: must be possible for numpy, got {shape_text(member.shape)[:80]}: {error}"
        ) from None


def _unpack_to(spool: IO[bytes] | _Nowhere, member: Member) -> None:
    """Unpacks one member after the others, no further than its size."""
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    left, checksum = member.size, 0
    try:
        for packed in pieces_of(member.packed):
            rest: bytes | memoryview = packed
            while left and len(rest):
                piece = machine.decompress(rest, min(left, MAP_FROM))
                rest = machine.unconsumed_tail
                left -= len(piece)
                checksum = zlib.crc32(piece, checksum)
                spool.write(piece)
                if machine.eof:
                    break
    except zlib.error as error:
        raise FormatError(f"{member.where}: cannot be unpacked: {error}") from None
    if left:
        raise FormatError(
            f"{member.where}: unpacked size: must be {member.size} bytes, got {member.size - left} (cut off?)"
        )
    _compare(member, checksum)


def check(member: Member) -> None:
    """FormatError where a member cannot be unpacked or its checksum is wrong; nothing of it is kept."""
    if member.is_deflated:
        _unpack_to(_Nowhere(), member)
    else:
        _check(member, member.packed)


def _check(member: Member, data: memoryview) -> None:
    checksum = 0
    for piece in pieces_of(data):
        checksum = zlib.crc32(piece, checksum)
    _compare(member, checksum)


def _compare(member: Member, checksum: int) -> None:
    if checksum != member.checksum:
        raise FormatError(
            f"{member.where}: checksum: must be {member.checksum:08x} (archive), got {checksum:08x}: the file is "
            "damaged"
        )


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, piece: bytes) -> None:
        """Forgets."""


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
            raise OSError("seek position: must not be negative")  # what zipfile expects of a short file
        self.position = base + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        piece = self.data[self.position : self.position + len(buffer)]
        buffer[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)
