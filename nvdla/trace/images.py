"""Memory image files of traces: NVIDIA's text forms and raw bytes, read only from inside the trace's own folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nvdla.errors import FormatError, TraceError
from nvdla.files import read_file

_PACKET = re.compile(rb"\{?\s*offset\s*:\s*(\w+)\s*,\s*size\s*:\s*(\w+)\s*,\s*payload\s*:")
LINE_LIMIT = 1 << 20  # bytes of one line of text: its numbers take many times as much while they are read
_PLAIN = re.compile(rb"\s*(?:0x[0-9a-fA-F]{2}(?:\s+|$))*")
_TEXT_START = re.compile(rb"\s*(\{|#|offset)")


@dataclass(frozen=True)
class MemoryImage:
    """Bytes by offset: ``segments`` are (offset, data), in file order; ``end`` is the first offset behind them all."""

    segments: tuple[tuple[int, bytes], ...]

    @property
    def end(self) -> int:
        """The byte behind the last."""
        return max((offset + len(data) for offset, data in self.segments), default=0)


class TraceFolder:
    """Gives the files that a trace names, and nothing outside the trace's folder.

    ``limit`` bounds the bytes of all images together. An image used twice is read once.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder.resolve()
        self.limit = limit
        self._images: dict[tuple[str, int | None], MemoryImage] = {}
        self._left = limit

    def image(self, name: str, packed_size: int | None = None) -> MemoryImage:
        """The memory image ``name``: packets ``{offset:.., size:.., payload:..}`` or raw bytes.

        With ``packed_size`` the file is the plain hex text of input.txn, of which that many bytes are taken.
        Raises TraceError (without a line: the caller knows it).
        """
        key = (name, packed_size)
        if key not in self._images:
            data = self._read(name)
            if packed_size is not None:
                image = parse_hex_lines(data, packed_size, name)
            elif _TEXT_START.match(data) and not name.endswith(".bin"):
                image = parse_packets(data, name, self._left)
            else:
                image = MemoryImage(((0, data),))
            self._spend(sum(len(piece) for _, piece in image.segments), name)
            self._images[key] = image
        return self._images[key]

    def _spend(self, size: int, name: str) -> None:
        self._left -= size
        if self._left < 0:
            raise TraceError(f"file {name!r}: the trace's memory images have more than {self.limit} bytes together")

    def _read(self, name: str) -> bytes:
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name:
            raise TraceError(f"file {name!r} is outside the trace's folder: only files beside the trace may be named")
        try:
            path = Path(os.path.realpath(self.folder / relative))  # links in a circle are no error of its own
            if not path.is_relative_to(self.folder):
                raise TraceError(f"file {name!r} links to {path}, outside the trace's folder {self.folder}")
            if not path.is_file():
                raise TraceError(f"file {name!r} does not exist (or is no regular file) in {self.folder}")
            return read_file(path, self._left, "memory image")
        except FormatError as error:
            raise TraceError(str(error)) from error
        except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, links in a circle, no UTF-8
            raise TraceError(f"file {name[:80]!r} cannot be looked up: {error}"[:300]) from error


def number(text: str | bytes, what: str, bits: int = 64) -> int:
    """An unsigned number as NVIDIA writes them: 0x hex, decimal, 0b, 0o. Raises TraceError beyond ``bits``."""
    word = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    try:
        value = int(word, 0) if len(word) <= 80 else -1
    except ValueError:
        value = int(word) if word.isascii() and word.isdigit() else -1  # leading zeros: still decimal
    if not 0 <= value < 1 << bits:
        raise TraceError(f"{what}: {word[:80]!r} is no unsigned number of at most {bits} bits")
    return value


def parse_packets(data: bytes, name: str, limit: int) -> MemoryImage:
    """NVIDIA's surface text: one packet a line, lines starting with # are comments (mem_core.svh:m_parse_surface_file).

    A payload shorter than its size is filled up with zeros, as there; ``limit`` bounds the sizes together.
    """
    segments: list[tuple[int, bytearray]] = []
    left, lines = limit, data.count(b"\n") + 1
    for line_number, line in enumerate(data.split(b"\n"), 1):
        text = line.strip()
        if not text.strip(b"{}, \t") or text.startswith(b"#"):
            continue
        match = _PACKET.match(text)
        where = f"{name}:{line_number}"
        words = text[match.end() :].rstrip(b"}, \t") if match else b","
        if not match or b"," in words or b"}" in words or len(words) > LINE_LIMIT:
            cut = " (cut off?)" if line_number == lines and not data.endswith(b"\n") else ""
            raise TraceError(f"{where}: {text[:60]!r} is no packet {{offset:.., size:.., payload:..}}{cut}")
        offset, size = number(match[1], f"{where}: offset"), number(match[2], f"{where}: size")
        payload = _payload(words, where)
        left -= size
        if len(payload) > size or left < 0:
            raise TraceError(f"{where}: packet of size {size} has {len(payload)} payload bytes (limit {limit})")
        if len(payload) < size and line_number == lines and not data.endswith(b"\n"):
            raise TraceError(f"{where}: the file ends in a packet with {len(payload)} of {size} bytes (cut off?)")
        payload += bytes(size - len(payload))
        if segments and segments[-1][0] + len(segments[-1][1]) == offset:
            segments[-1][1].extend(payload)
        else:
            segments.append((offset, bytearray(payload)))
    return MemoryImage(tuple((offset, bytes(payload)) for offset, payload in segments))


def parse_hex_lines(data: bytes, size: int, name: str) -> MemoryImage:
    """The image form of input.txn: bytes as 0x words on lines that start with 0x, other lines are headers.

    Exactly ``size`` bytes are taken (input_txn_to_verilator.pl); a shorter file is an error.
    """
    payload = bytearray()
    for line_number, line in enumerate(data.split(b"\n"), 1):
        if len(payload) >= size:
            break
        text = line.strip()
        if len(text) > LINE_LIMIT:
            raise TraceError(f"{name}:{line_number}: {len(text)} characters, a line has at most {LINE_LIMIT}")
        if text.startswith(b"0x"):
            payload += _payload(text, f"{name}:{line_number}")
    if len(payload) < size:
        raise TraceError(f"file {name!r} holds {len(payload)} bytes, the command asks for {size} (cut off?)")
    return MemoryImage(((0, bytes(payload[:size])),)) if size else MemoryImage(())


def _payload(text: bytes, where: str) -> bytes:
    """Bytes separated by white space. All two-digit hex, the usual case, takes the fast way."""
    if _PLAIN.fullmatch(text):
        return bytes.fromhex(text.replace(b"0x", b"").decode("ascii"))
    return bytes(number(word, f"{where}: payload byte", 8) for word in text.split())
