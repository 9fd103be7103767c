"""Intel hex: records of 16 bytes with 32-bit addresses (type 04 records set the upper half)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from nvdla.csb.export import Export
from nvdla.csb.printers._text import digits_of, side_by_side
from nvdla.csb.printers.images import images
from nvdla.errors import FormatError

FORMAT = "ihex"
HELP = "memory images as Intel hex, at their addresses"

PAGE = 1 << 16


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, pieces in images(export):
        base = export.bases[space]
        if base + export.recording.start.end(space) > 1 << 32:
            raise FormatError(
                f"Intel hex ends at 4 GiB; the {space.value} image lies from 0x{base:x} on: choose a lower base"
            )
        export.save(f"{export.name}_{space.value}.hex", _records(pieces, base))


def _records(pieces: Iterable[np.ndarray], base: int) -> Iterator[bytes | str]:
    address, upper = base, -1
    for piece in pieces:
        for block in _blocks(piece, address):
            if address >> 16 != upper:
                upper = address >> 16
                yield _upper_half(upper)
            yield _data(block.reshape(-1, 16), address & 0xFFFF)
            address += block.size
    yield ":00000001FF\n"


def _blocks(piece: np.ndarray, address: int) -> Iterator[np.ndarray]:
    """Cut where the upper half of the address changes."""
    first = min(PAGE - address % PAGE, piece.size)
    cuts = [0, *range(first, piece.size, PAGE), piece.size]
    for start, end in itertools.pairwise(cuts):
        if start < end:
            yield piece[start:end]


def _upper_half(value: int) -> str:
    body = bytes([2, 0, 0, 4]) + value.to_bytes(2, "big")
    return f":{body.hex().upper()}{-sum(body) & 0xFF:02X}\n"


def _data(rows: np.ndarray, low: int) -> bytes:
    """Records of rows of 16 bytes from address ``low`` on; memory is zero where nothing is loaded."""
    used = np.flatnonzero(rows.any(axis=1))
    addresses = low + used * 16
    body = np.empty((used.size, 21), np.uint8)
    body[:, 0], body[:, 1], body[:, 2], body[:, 3] = 16, addresses >> 8, addresses & 0xFF, 0
    body[:, 4:20] = rows[used]
    body[:, 20] = -body[:, :20].sum(axis=1, dtype=np.int64) & 0xFF
    return side_by_side(used.size, (b":", digits_of(body, upper=True), b"\n"))
