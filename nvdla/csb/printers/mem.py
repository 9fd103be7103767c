"""Verilog ``$readmemh``: one 32-bit word a line, lowest address first."""

from __future__ import annotations

from nvdla.csb.export import Export
from nvdla.csb.printers._text import hex_lines
from nvdla.csb.printers.images import images

FORMAT = "mem"
HELP = "memory images for Verilog's $readmemh, 32-bit words"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, pieces in images(export):
        export.save(f"{export.name}_{space.value}.mem", hex_lines(pieces, ""))
