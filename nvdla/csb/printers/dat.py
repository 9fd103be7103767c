"""32-bit words as text with 0x, one a line: what small test benches and boot loaders read."""

from __future__ import annotations

from nvdla.csb.export import Export
from nvdla.csb.printers._text import hex_lines
from nvdla.csb.printers.images import images

FORMAT = "dat"
HELP = "memory images as 32-bit words in text, 0x and eight digits a line"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, pieces in images(export):
        export.save(f"{export.name}_{space.value}.dat", hex_lines(pieces, "0x"))
