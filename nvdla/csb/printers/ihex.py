"""Intel hex: records of 16 bytes with 32-bit addresses (type 04 records set the upper half)."""

from __future__ import annotations

import numpy as np

from nvdla.csb.export import Export
from nvdla.csb.printers.images import images
from nvdla.errors import FormatError
from nvdla.memory.address_space import Space

FORMAT = "ihex"
HELP = "memory images as Intel hex, at their addresses"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, data in images(export).items():
        base = export.bases[Space(space)]
        if base + data.size > 1 << 32:
            raise FormatError(
                f"Intel hex ends at 4 GiB; the {space} image lies from 0x{base:x} on: choose a lower base"
            )
        export.save(f"{export.name}_{space}.hex", "\n".join(_records(data, base)) + "\n")


def _records(data: np.ndarray, base: int) -> list[str]:
    lines, upper = [], -1
    raw = data.tobytes()
    for at in range(0, len(raw), 16):
        address = base + at
        if address >> 16 != upper:
            upper = address >> 16
            lines.append(_record(0, 4, upper.to_bytes(2, "big")))
        piece = raw[at : at + 16]
        if any(piece):  # memory is zero where nothing is loaded
            lines.append(_record(address & 0xFFFF, 0, piece))
    return [*lines, _record(0, 1, b"")]


def _record(address: int, kind: int, data: bytes) -> str:
    body = bytes([len(data)]) + address.to_bytes(2, "big") + bytes([kind]) + data
    return f":{body.hex().upper()}{-sum(body) & 0xFF:02X}"
