"""Protobuf's wire format: the fields of a message, one by one, each inside its bounds.

Only what is asked for is walked into; everything else is stepped over. Nothing is copied: values of length-delimited
fields are views of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvdla.errors import FormatError

VARINT, WIDE, BYTES, NARROW = 0, 1, 2, 5
_KINDS = {VARINT: "varint", WIDE: "64-bit", BYTES: "length-delimited", NARROW: "32-bit"}
MAX_VARINT = 10  # bytes of 64 bits, seven at a time


@dataclass(frozen=True)
class WirePart:
    """A field, or the whole file: its bytes ``data[start:stop]``, what it is called in errors, and its number's
    ``value`` where it is a varint."""

    file: str
    data: memoryview
    start: int
    stop: int
    name: str
    kind: int = BYTES
    value: int = 0

    def fail(self, why: str) -> FormatError:
        """An error that names file, byte and field."""
        return FormatError(f"{self.file}: byte {self.start}, {self.name or 'file'}: {why}")

    def fields(self) -> Iterator[tuple[int, WirePart]]:
        """(number, field) of a message in file order. Raises FormatError where the bytes are no message."""
        self.of(BYTES)
        at = self.start
        while at < self.stop:
            tag, begin = self._varint(at)
            number, kind = tag >> 3, tag & 7
            name = f"{self.name}.{number}" if self.name else str(number)
            if number == 0 or kind not in _KINDS:
                raise self.at(at, name).fail(f"tag {tag} is no field (number {number}, wire type {kind})")
            value = 0
            if kind == VARINT:
                value, at = self._varint(begin)
            elif kind == BYTES:
                size, begin = self._varint(begin)
                at = begin + size
            else:
                at = begin + (8 if kind == WIDE else 4)
            if at > self.stop:
                raise self.at(begin, name).fail(f"{at - begin} bytes, {self.stop - begin} are left (cut off?)")
            yield number, WirePart(self.file, self.data, begin, at, name, kind, value)

    def of(self, kind: int) -> WirePart:
        """This field, after its wire type was checked."""
        if self.kind != kind:
            raise self.fail(f"is {_KINDS[self.kind]}, must be {_KINDS[kind]}")
        return self

    def at(self, start: int, name: str) -> WirePart:
        """The same bytes from ``start`` on, under another name."""
        return WirePart(self.file, self.data, start, self.stop, name)

    def called(self, name: str) -> WirePart:
        """This part under another name."""
        return WirePart(self.file, self.data, self.start, self.stop, name, self.kind, self.value)

    def text(self) -> str:
        """Its bytes as text."""
        self.of(BYTES)
        return bytes(self.data[self.start : self.stop]).decode("utf-8", "replace")

    def signed(self) -> int:
        """A varint as int64."""
        value = self.of(VARINT).value
        return value - (1 << 64) if value >= 1 << 63 else value

    def integers(self) -> list[int]:
        """Repeated int64: packed, or one."""
        if self.kind == VARINT:
            return [self.signed()]
        self.of(BYTES)
        found, at = [], self.start
        while at < self.stop:
            value, at = self._varint(at)
            found.append(value - (1 << 64) if value >= 1 << 63 else value)
        return found

    def numbers(self, dtype: str) -> np.ndarray:
        """Repeated floats or doubles ("<f4", "<f8"): packed, or one. A view of the file."""
        size = int(dtype[-1])
        if self.kind != BYTES:
            self.of(NARROW if size == 4 else WIDE)
        if (self.stop - self.start) % size:
            raise self.fail(f"{self.stop - self.start} bytes are no whole number of elements of {size} bytes")
        return np.frombuffer(self.data[self.start : self.stop], dtype)

    def _varint(self, at: int) -> tuple[int, int]:
        """(value, behind it)."""
        value = 0
        for number in range(MAX_VARINT):
            if at + number >= self.stop:
                raise self.at(at, self.name).fail("the bytes end inside a number (cut off?)")
            byte = self.data[at + number]
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value & ((1 << 64) - 1), at + number + 1
        raise self.at(at, self.name).fail(f"a number is longer than {MAX_VARINT} bytes")
