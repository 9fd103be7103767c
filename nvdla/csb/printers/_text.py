"""Bytes as text, fast: one table look-up a byte."""

from __future__ import annotations

import numpy as np


def hex_words(data: np.ndarray, separator: str = " ", per_line: int = 32) -> str:
    """Bytes as 0x12 words, ``per_line`` on a line."""
    table = np.array([f"0x{value:02x}{separator}" for value in range(256)], dtype=f"S{4 + len(separator)}")
    text = table[data]
    lines = [text[at : at + per_line].tobytes().decode().rstrip(" ") for at in range(0, data.size, per_line)]
    return "\n".join(lines)


def packets(data: np.ndarray, per_line: int = 32) -> str:
    """NVIDIA's form of memory images: {offset:.., size:.., payload:..} lines."""
    lines = hex_words(data, " ", per_line).split("\n") if data.size else []
    body = [
        f"{{offset:0x{number * per_line:x}, size:{min(per_line, data.size - number * per_line)}, payload:{line}}} ,"
        for number, line in enumerate(lines)
    ]
    return "\n".join(["{", *body, "}", ""])
