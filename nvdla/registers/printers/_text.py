"""Bytes as text, fast and in pieces: a table look-up a byte, numpy for whole lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np

from nvdla.util.rounding import ceil_div

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


@cache
def _table(prefix: str, suffix: str, digits: str = "02x") -> np.ndarray:
    """256 elements: a byte's two hex digits with prefix and separator, as one element of the text's size."""
    text = np.array([list(f"{prefix}{value:{digits}}{suffix}".encode()) for value in range(256)], np.uint8)
    size = text.shape[1]
    return text.view(f"u{size}" if size in (2, 4, 8) else f"V{size}").reshape(256)


def _characters(table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The characters of rows of bytes (rows, characters)."""
    return table[rows].view(np.uint8).reshape(len(rows), rows.shape[1] * table.itemsize)


def hex_words(pieces: Iterable[np.ndarray], separator: str = " ", per_line: int = 32) -> Iterator[str | bytes]:
    """Bytes as 0x12 words, ``per_line`` on a line; a blank as ``separator`` is omitted at the end of a line.

    All ``pieces`` but the last must have whole lines.
    """
    table = _table("0x", separator)
    for piece in pieces:
        lines = piece.size // per_line
        text = np.empty((lines, per_line * table.itemsize + 1), np.uint8)
        text[:, :-1] = _characters(table, piece[: lines * per_line].reshape(lines, per_line))
        text[:, -1] = ord("\n")
        yield (text if separator != " " else np.delete(text, -2, axis=1)).tobytes()
        if rest := piece[lines * per_line :].tolist():
            yield separator.join(f"0x{value:02x}" for value in rest) + separator.strip() + "\n"


def packets(pieces: Iterable[np.ndarray], per_line: int = 32) -> Iterator[str | bytes]:
    """NVIDIA's memory images: {offset:.., size:.., payload:..} lines. All pieces but the last: whole lines."""
    yield "{\n"
    start = 0
    for piece in pieces:
        whole = piece[: piece.size // per_line * per_line]
        yield from _packet_lines(whole.reshape(-1, per_line), start)
        if rest := piece[whole.size :].tolist():
            payload = " ".join(f"0x{value:02x}" for value in rest)
            yield f"{{offset:0x{start + whole.size:x}, size:{len(rest)}, payload:{payload}}} ,\n"
        start += piece.size
    yield "}\n"


def _packet_lines(data: np.ndarray, start: int) -> Iterator[bytes]:
    """Lines whose offsets have the same number of digits are made together."""
    per_line, first = data.shape[1], 0
    while first < len(data):
        digits = len(f"{start + first * per_line:x}")
        last = min(len(data), ceil_div((1 << 4 * digits) - start, per_line))
        offsets = start + np.arange(first, last, dtype=np.int64) * per_line
        shifts = 4 * np.arange(digits - 1, -1, -1)
        payload = _characters(_table("0x", " "), data[first:last])[:, :-1]
        parts = (
            b"{offset:0x",
            _DIGITS[offsets[:, None] >> shifts & 15],
            b", size:%d, payload:" % per_line,
            payload,
            b"} ,\n",
        )
        yield side_by_side(last - first, parts)
        first = last


def hex_lines(pieces: Iterable[np.ndarray], prefix: str) -> Iterator[bytes]:
    """Little-endian 32-bit words, one per line, eight hex digits after ``prefix``; sizes are multiples of 4."""
    for piece in pieces:
        words = piece.reshape(-1, 4)[:, ::-1]
        yield side_by_side(len(words), (prefix.encode(), digits_of(words), b"\n"))


def digits_of(rows: np.ndarray, upper: bool = False) -> np.ndarray:
    """The hex digits of rows of bytes, as characters."""
    return _characters(_table("", "", "02X" if upper else "02x"), np.ascontiguousarray(rows))


def side_by_side(rows: int, parts: Iterable[bytes | np.ndarray]) -> bytes:
    """Lines of equal length from what all have in common (bytes) and what differs (rows of characters)."""
    columns = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (rows, len(part))) if isinstance(part, bytes) else part
        for part in parts
    ]
    return np.concatenate(columns, axis=1).tobytes()
