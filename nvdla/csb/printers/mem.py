"""Verilog ``$readmemh``: one 32-bit word a line, lowest address first."""

from __future__ import annotations

import numpy as np

from nvdla.csb.export import Export
from nvdla.csb.printers.images import images, words

FORMAT = "mem"
HELP = "memory images for Verilog's $readmemh, 32-bit words"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, data in images(export).items():
        export.save(f"{export.name}_{space}.mem", hex_lines(words(data), ""))


def hex_lines(values: np.ndarray, prefix: str) -> str:
    """A word a line, eight hex digits."""
    text = values.astype(">u4").tobytes().hex()
    return "".join(f"{prefix}{text[at : at + 8]}\n" for at in range(0, len(text), 8))
