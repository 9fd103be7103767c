"""Memory images: the contents of memory before the program starts, the run's inputs included."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from nvdla.emulator.memory.address_space import Space
from nvdla.errors import FormatError
from nvdla.registers.printers._text import digits_of, hex_lines, side_by_side
from nvdla.registers.recording import Export, Printer
from nvdla.util.rounding import align


def write(export: Export) -> None:
    """Write the register program in this format. Raises FormatError where the format cannot express it."""
    for space, pieces in images(export):
        export.save(f"{export.name}_{space.value}.bin", pieces)


def images(export: Export) -> Iterator[tuple[Space, Iterator[np.ndarray]]]:
    """The memories that are not empty, from their base to the last byte that is not zero: sizes are multiples of 16."""
    start = export.recording.start
    for space in start.sizes:
        if end := align(start.end(space), 16):
            yield space, start.pieces(space, 0, end)


def write_dat(export: Export) -> None:
    """Write 32-bit words as text with 0x, one per line, for small test benches and boot loaders."""
    for space, pieces in images(export):
        export.save(f"{export.name}_{space.value}.dat", hex_lines(pieces, "0x"))


def write_mem(export: Export) -> None:
    """Write 32-bit words for Verilog's ``$readmemh``, lowest address first."""
    for space, pieces in images(export):
        export.save(f"{export.name}_{space.value}.mem", hex_lines(pieces, ""))


#: bytes between changes of the upper half of an address
HALF = 1 << 16


def write_ihex(export: Export) -> None:
    """Write Intel hex: records of 16 bytes with 32-bit addresses (type 04 records set the upper half)."""
    for space, pieces in images(export):
        base = export.bases[space]
        if base + export.recording.start.end(space) > 1 << 32:
            raise FormatError(f"base of the {space.value} image: must be below 4 GiB for Intel hex, got 0x{base:x}.")
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
    first = min(HALF - address % HALF, piece.size)
    cuts = [0, *range(first, piece.size, HALF), piece.size]
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


PRINTERS = (
    Printer("bin", "memory images as raw bytes", write),
    Printer("dat", "memory images as 32-bit words in text, 0x and eight digits per line", write_dat),
    Printer("mem", "memory images for Verilog's $readmemh, 32-bit words", write_mem),
    Printer("ihex", "memory images as Intel hex, at their addresses", write_ihex),
)
