"""What the interpreter's reference registers hold: buffers and lists, with a shared limit on memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from nvdla.containers.vmfb.arithmetic import round_f32, wrap
from nvdla.errors import FormatError


class VmError(FormatError):
    """A running function failed: bounds, limits, a missing import, or vm.fail."""


@dataclass
class VmMemory:
    """Bytes that buffers, lists and globals may take together."""

    limit: int
    used: int = 0

    def take(self, count: int, what: str) -> None:
        """Charge bytes. Raises VmError beyond the limit."""
        if count < 0 or self.used + count > self.limit:
            raise VmError(f"{what} of {count} bytes: {self.used} of {self.limit} bytes are in use (option memory)")
        self.used += count

    def give_back(self, count: int) -> None:
        """Bytes that are free again."""
        self.used -= count


#: Element type -> (struct code, bytes).
_ELEMENTS = {"i8": ("<b", 1), "i16": ("<h", 2), "i32": ("<i", 4), "i64": ("<q", 8), "f32": ("<f", 4), "f64": ("<d", 8)}


@dataclass(eq=False, repr=False)
class VmBuffer:
    """!vm.buffer: bytes, read only for rodata. Allocated ones give their bytes back when nothing refers to them."""

    data: bytearray | memoryview
    is_constant: bool = False
    memory: VmMemory | None = None

    @classmethod
    def allocate(cls, content: bytes | memoryview | int, memory: VmMemory) -> VmBuffer:
        """A new buffer holding these bytes, or that many zeros."""
        count = content if isinstance(content, int) else len(content)
        memory.take(count, "a buffer")
        return cls(bytearray(content), memory=memory)

    def __del__(self) -> None:
        if self.memory is not None:
            self.memory.give_back(len(self.data))

    def __repr__(self) -> str:
        return f"!vm.buffer of {len(self.data)} bytes"

    def span(self, offset: int, length: int) -> slice:
        """The range as a slice; VmError when it is not in the buffer."""
        if offset < 0 or length < 0 or offset + length > len(self.data):
            raise VmError(f"bytes {offset} to {offset + length} of a buffer of {len(self.data)}")
        return slice(offset, offset + length)

    def writable(self, offset: int, length: int) -> slice:
        """The bytes of a range that may be written. Raises VmError for a constant."""
        if self.is_constant:
            raise VmError("a read-only buffer cannot be written")
        return self.span(offset, length)

    def load(self, kind: str, offset: int) -> int | float:
        """A number of a kind at a byte offset."""
        code, size = _ELEMENTS[kind]
        return struct.unpack(code, self.data[self.span(offset, size)])[0]

    def store(self, kind: str, offset: int, value: int | float) -> None:
        """Put a number of a kind at a byte offset."""
        self.data[self.writable(offset, _ELEMENTS[kind][1])] = encode(kind, value)

    def fill(self, kind: str, offset: int, count: int, value: int | float) -> None:
        """Put a number of a kind ``count`` times."""
        pattern = encode(kind, value)
        where = self.writable(offset, count * len(pattern))
        self.data[where] = pattern * count


def encode(kind: str, value: int | float) -> bytes:
    """A number as little-endian bytes of its kind."""
    code, size = _ELEMENTS[kind]
    if kind[0] == "i":
        return (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
    return struct.pack(code, round_f32(value) if kind == "f32" else value)


def element_size(kind: str) -> int:
    """Bytes of a number of a kind."""
    return _ELEMENTS[kind][1]


#: What one list element is counted as, in bytes.
_LIST_ELEMENT = 16


@dataclass(eq=False, repr=False)
class VmList:
    """!vm.list<element>: ``element`` is a value type, a reference type, or ``?`` for any."""

    element: str
    memory: VmMemory
    items: list[Any] = field(default_factory=list)
    capacity: int = 0

    def __del__(self) -> None:
        self.memory.give_back(self.capacity * _LIST_ELEMENT)

    def __repr__(self) -> str:
        return f"!vm.list<{self.element}> of {len(self.items)} elements"

    def reserve(self, count: int) -> None:
        """Room for ``count`` elements."""
        if count > self.capacity:
            self.memory.take((count - self.capacity) * _LIST_ELEMENT, "a list")
            self.capacity = count

    def resize(self, count: int) -> None:
        """Exactly ``count`` elements; new ones are 0 or nothing."""
        self.reserve(count)
        del self.items[count:]
        empty = 0 if self.element in _ELEMENTS else None
        self.items += [empty] * (count - len(self.items))

    def get(self, index: int, kind: str | None) -> Any:
        """An element as a value type (:func:`converted`), or as a reference (``kind`` None)."""
        value = self.items[self._checked(index)]
        is_number = isinstance(value, (int, float))
        if is_number == (kind is None):
            raise VmError(f"list element {index} is {'a' if is_number else 'no'} number")
        return value if kind is None else converted(kind, value)

    def set(self, index: int, value: Any) -> None:
        """Set an element, converted to the list's kind."""
        if self.element in _ELEMENTS:
            if not isinstance(value, (int, float)):
                raise VmError(f"a reference cannot be stored in a list of {self.element}")
            value = converted(self.element, value)
        self.items[self._checked(index)] = value

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self.items):
            raise VmError(f"element {index} of a list of {len(self.items)}")
        return index


def converted(kind: str, value: int | float) -> int | float:
    """A number of a list as another kind: integers lose their upper bits, doubles are rounded to floats. Between
    integers and floats lists do not convert: such a number is 0 (iree_vm_list_convert_value_type)."""
    if kind[0] == "i":
        return wrap(value, 8 * element_size(kind)) if isinstance(value, int) else 0
    if isinstance(value, int):
        return 0.0
    return round_f32(value) if kind == "f32" else value
