"""32-bit words as text with 0x, one a line: what small test benches and boot loaders read."""

from __future__ import annotations

from nvdla.csb.export import Export
from nvdla.csb.printers.images import images, words
from nvdla.csb.printers.mem import hex_lines

FORMAT = "dat"
HELP = "memory images as 32-bit words in text, 0x and eight digits a line"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, data in images(export).items():
        export.save(f"{export.name}_{space}.dat", hex_lines(words(data), "0x"))
