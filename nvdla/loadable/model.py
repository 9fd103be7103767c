"""Data model of a loadable; large contents stay in the file until they are needed.

They are read, not mapped: if a mapped file is shortened, access to its pages ends the process (SIGBUS). What
is read is compared with checksums made at loading, so a file that was changed in place is an error, never another
result. One that was replaced or removed can still be read through an open handle.

Fields carry the names of the schema (fbs/loadable.fbs); lists are tuples; enums keep numbers that have no name
(:mod:`nvdla.loadable.enums`). Blob data are views into the bytes that were loaded; those of a file may be released and
read again (:mod:`nvdla.loadable.model`).
"""

from __future__ import annotations

import mmap
import os
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from pickle import PickleBuffer
from typing import Any, TypeVar

from nvdla.errors import FormatError, LoadableError, printable, shown
from nvdla.loadable.enums import (
    DataCategory,
    DataFormat,
    DataType,
    EventOp,
    EventType,
    Interface,
    MemoryDomain,
    MemoryFlags,
    PixelFormat,
    PixelMapping,
    RelocType,
    SubInterface,
)
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Json
from nvdla.util.files import write_file
from nvdla.util.rounding import ceil_div

PIECE = 1 << 16
CAN_STAY_OPEN = hasattr(os, "pread")  # an open file can be replaced and removed where this is


class StoredFile:
    """A file that was read, kept open as long as this object lives. ``handle``: its own descriptor, closed at the end;
    ``data``: what the file holds."""

    def __init__(self, name: str, handle: int, data: memoryview) -> None:
        self.name, self._handle, self._size = name, handle, len(data)
        self._sums = [zlib.crc32(data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
        weakref.finalize(self, os.close, handle)

    def copy(self, offset: int, target: memoryview) -> None:
        """Read the file from byte ``offset`` on into ``target``, piece by piece: LoadableError for one that is not
        what it was."""
        end = offset + len(target)
        for number in range(offset // PIECE, ceil_div(end, PIECE)):
            at = number * PIECE
            piece = self._piece(at)
            if zlib.crc32(piece) != self._sums[number] or len(piece) != min(PIECE, self._size - at):
                raise LoadableError(
                    f"{self.name}: bytes {at} to {at + PIECE} have changed since the file was loaded; load it again"
                )
            first, last = max(at, offset), min(at + PIECE, end)
            target[first - offset : last - offset] = piece[first - at : last - at]

    def _piece(self, at: int) -> bytes:
        try:
            return os.pread(self._handle, PIECE, at)[: self._size - at]
        except OSError as error:
            raise LoadableError(f"{self.name}: cannot be read again: {error.strerror or error}") from None


class StoredBytes:
    """Bytes of a file from ``offset`` on; ``data`` is kept until it is released."""

    def __init__(self, file: StoredFile, offset: int, data: memoryview) -> None:
        self.size = len(data)
        self._file, self._offset = file, offset
        self._held: memoryview | None = data

    def view(self) -> memoryview:
        """The bytes, read-only; held from now on. Raises LoadableError where the file has other ones now."""
        held = self._held
        if held is None:
            memory = anonymous(self.size)
            self._file.copy(self._offset, memory)
            self._held = held = memory.toreadonly()
        return held

    def copy_to(self, target: memoryview) -> None:
        """Write the bytes to ``target`` (as many), and hold no more than before. Raises LoadableError."""
        held = self._held
        if held is None:
            self._file.copy(self._offset, target)
        else:
            target[:] = held

    def forget(self) -> None:
        """Hold nothing: who has a view keeps it."""
        self._held = None


def anonymous(size: int) -> memoryview:
    """Return ``size`` > 0 zero bytes that go back to the system after their last use."""
    return memoryview(mmap.mmap(-1, size))


@dataclass(frozen=True)
class Version:
    """Three numbers; for the container 0.7.0, for a blob the version of its interface."""

    major: int = 0
    minor: int = 7
    sub_minor: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.sub_minor}"


class _Data:
    """A blob's bytes, which a file may hold."""

    def __get__(self, blob: Blob | None, owner: type | None = None) -> memoryview:
        if blob is None:
            raise AttributeError("data")  # so that dataclass finds no default
        held: memoryview | StoredBytes = blob.__dict__["_data"]
        return held.view() if isinstance(held, StoredBytes) else held

    def __set__(self, blob: Blob, data: memoryview | StoredBytes | bytes | bytearray) -> None:
        if not isinstance(data, memoryview | StoredBytes):  # bytes are welcome when a model is built by hand
            view = memoryview(data)
            data = view.cast("B").toreadonly() if view.nbytes else memoryview(b"")
        blob.__dict__["_data"] = data


@dataclass(frozen=True, repr=False)
class Blob:
    """Named bytes. ``data`` is a read-only view; ``size`` repeats its length; ``version`` is None where absent.

    ``data`` raises LoadableError where it was forgotten and its file has been changed since (:meth:`Loadable.forget`).
    """

    name: str
    data: _Data = _Data()
    size: int = -1
    interface: Interface = Interface.NONE
    sub_interface: SubInterface = SubInterface.NONE
    version: Version | None = None

    def __post_init__(self) -> None:
        if self.size == -1:
            object.__setattr__(self, "size", self.length)

    @property
    def length(self) -> int:
        """Bytes of ``data``, which need not be read for it."""
        held: memoryview | StoredBytes = self.__dict__["_data"]
        return held.size if isinstance(held, StoredBytes) else len(held)

    def copy_to(self, target: memoryview) -> None:
        """Write the bytes to ``target`` (writable, as many as ``length``) without holding them. Raises LoadableError as
        ``data`` does."""
        held: memoryview | StoredBytes = self.__dict__["_data"]
        if isinstance(held, StoredBytes):
            held.copy_to(target)
        else:
            target[:] = held

    def forget(self) -> None:
        """Hold no bytes that a file has."""
        held: memoryview | StoredBytes = self.__dict__["_data"]
        if isinstance(held, StoredBytes):
            held.forget()

    def __repr__(self) -> str:
        """All but the data."""
        shown = (f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.name != "data")
        return f"Blob({', '.join(shown)})"

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        """For pickle, which does not take a view: its bytes, without a copy where the protocol can."""
        data = PickleBuffer(self.data) if protocol >= 5 else bytes(self.data)
        return Blob, (self.name, data, self.size, self.interface, self.sub_interface, self.version)


@dataclass(frozen=True)
class MemoryEntry:
    """One allocation. ``contents[i]`` (a blob name) is copied to byte ``offsets[i]`` when SET is flagged."""

    id: int
    size: int
    domain: MemoryDomain = MemoryDomain.SYSTEM
    flags: MemoryFlags = MemoryFlags.ALLOC
    alignment: int = 0
    contents: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()
    bind_id: int = 0
    tensor_desc_id: int = 0

    @property
    def is_input(self) -> bool:
        """True if an input is bound to it."""
        return bool(self.flags & MemoryFlags.INPUT)

    @property
    def is_output(self) -> bool:
        """True if an output is bound to it."""
        return bool(self.flags & MemoryFlags.OUTPUT)


@dataclass(frozen=True)
class AddressEntry:
    """A window into a memory, clipped to it: compilers write the whole size with a non-zero offset (batches).

    ``size`` 0 means up to the end of the memory (files of 2018). See :meth:`Loadable.address_bytes`.
    """

    id: int
    mem_id: int
    offset: int = 0
    size: int = 0


@dataclass(frozen=True)
class TaskEntry:
    """Work for one processor. A position in ``address_list`` is the address index that descriptors use."""

    id: int
    interface: Interface
    address_list: tuple[int, ...]
    instance: int = -1
    pre_actions: tuple[int, ...] = ()
    post_actions: tuple[int, ...] = ()


@dataclass(frozen=True)
class EventEntry:
    """An event of the event list."""

    id: int
    type: EventType = EventType.EVENTTYPE0
    target: int = 0
    val: int = 0
    op: EventOp = EventOp.WAIT


@dataclass(frozen=True)
class SubmitEntry:
    """Tasks that may run side by side (field ``task_id`` of the schema). Entries are served in id order."""

    id: int
    task_ids: tuple[int, ...]


@dataclass(frozen=True)
class TensorDesc:
    """Tensor that the application binds. ``strides`` are bytes: element, line, surface, then five unused."""

    name: str
    id: int
    mem_id: int
    size: int
    n: int
    c: int
    h: int
    w: int
    offset: int = 0
    data_format: DataFormat = DataFormat.UNKNOWN
    data_type: DataType = DataType.UNKNOWN
    data_category: DataCategory = DataCategory.IMAGE
    pixel_format: PixelFormat = PixelFormat.R8
    pixel_mapping: PixelMapping = PixelMapping.PITCH_LINEAR
    strides: tuple[int, ...] = (0, 0, 0, 0, 0, 0, 0, 0)

    @property
    def element_stride(self) -> int:
        """Bytes from an element to the next."""
        return self.strides[0]

    @property
    def line_stride(self) -> int:
        """Bytes from a line to the next."""
        return self.strides[1]

    @property
    def surface_stride(self) -> int:
        """Bytes from a surface to the next."""
        return self.strides[2]


@dataclass(frozen=True)
class RelocEntry:
    """A stride of the tensor at address ``address_id`` is stored at byte ``offset`` of memory ``write_id``.

    ``write_id`` is a memory id: NVIDIA's runtime compares it with those (umd/core/src/runtime/Runtime.cpp:1287), and
    files with batches, where address and memory ids differ, agree.
    """

    address_id: int
    write_id: int
    offset: int
    interface: Interface
    sub_interface: SubInterface
    reloc_type: RelocType


class LoadableHolder(ABC):
    """Base class of objects that contain a loadable, such as compiled models."""

    @abstractmethod
    def __nvdla_loadable__(self, config: str) -> tuple[Loadable, str]:
        """Return the loadable, and the name of the configuration to run it on.

        Args:
            config: Name of a configuration, or "auto".

        Raises:
            FormatError: The object is not one loadable.
        """


@dataclass(frozen=True, repr=False)
class Loadable:
    """A compiled network: the tables of one loadable file.

    ``identifier`` is "NVDA", "" for files without one, or what a damaged file has. ``name`` (the file, for messages)
    and ``layer_file`` (the content of the layer file of a loadable in memory, or None) are ignored in comparisons.
    """

    version: Version = Version()
    tasks: tuple[TaskEntry, ...] = ()
    memories: tuple[MemoryEntry, ...] = ()
    addresses: tuple[AddressEntry, ...] = ()
    events: tuple[EventEntry, ...] = ()
    blobs: tuple[Blob, ...] = ()
    tensors: tuple[TensorDesc, ...] = ()
    relocs: tuple[RelocEntry, ...] = ()
    submits: tuple[SubmitEntry, ...] = ()
    identifier: str = "NVDA"
    name: str = field(default="loadable", compare=False)
    layer_file: Mapping[str, Json] | None = field(default=None, compare=False)

    def task(self, task_id: int) -> TaskEntry:
        """Return a task.

        Args:
            task_id: Its id in the task list.

        Raises:
            LoadableError: The loadable has no task with this id.
        """
        return _find(self._tasks, task_id, "task_list", "id")

    def memory(self, memory_id: int) -> MemoryEntry:
        """Return an entry of the memory list.

        Args:
            memory_id: Its id.

        Raises:
            LoadableError: The loadable has no memory with this id.
        """
        return _find(self._memories, memory_id, "memory_list", "id")

    def address(self, address_id: int) -> AddressEntry:
        """Return an entry of the address list.

        Args:
            address_id: Its id.

        Raises:
            LoadableError: The loadable has no address with this id.
        """
        return _find(self._addresses, address_id, "address_list", "id")

    def event(self, event_id: int) -> EventEntry:
        """Return an entry of the event list.

        Args:
            event_id: Its id.

        Raises:
            LoadableError: The loadable has no event with this id.
        """
        return _find(self._events, event_id, "event_list", "id")

    def blob(self, name: str) -> Blob:
        """Return a blob.

        Args:
            name: Its name.

        Raises:
            LoadableError: The loadable has no blob with this name.
        """
        return _find(self._blobs, name, "blobs", "name", ". 'nvdla inspect --blobs' lists them.")

    def tensor(self, tensor_id: int) -> TensorDesc:
        """Return the description of a bound tensor.

        Args:
            tensor_id: Its id.

        Raises:
            LoadableError: The loadable has no tensor with this id.
        """
        return _find(self._tensors, tensor_id, "tensor_desc_list", "id")

    @property
    def inputs(self) -> list[MemoryEntry]:
        """Memories flagged INPUT, in bind order."""
        return sorted((m for m in self.memories if m.is_input), key=lambda m: m.bind_id)

    @property
    def outputs(self) -> list[MemoryEntry]:
        """Memories flagged OUTPUT, in bind order."""
        return sorted((m for m in self.memories if m.is_output), key=lambda m: m.bind_id)

    @property
    def submit_order(self) -> list[SubmitEntry]:
        """Submit entries in the order in which they are served."""
        return sorted(self.submits, key=lambda entry: entry.id)

    @by_annotations
    def address_bytes(self, address: AddressEntry) -> int:
        """Return the size of an address entry's window in bytes.

        Args:
            address: The entry. Its size is clipped to the memory; 0 means the rest of the memory.
        """
        rest = self.memory(address.mem_id).size - address.offset
        return min(address.size or rest, rest)

    @by_annotations
    def contents(self, memory: MemoryEntry) -> list[tuple[int, Blob]]:
        """Return (offset in bytes, blob) of everything that is loaded into a memory, by offset.

        Args:
            memory: The entry of the memory list.

        Raises:
            LoadableError: The entry names a blob that does not exist.
        """
        if memory.id not in self._contents:
            pairs = zip(memory.offsets, memory.contents, strict=False)
            self._contents[memory.id] = [(offset, self.blob(name)) for offset, name in sorted(pairs)]
        return self._contents[memory.id]

    def __repr__(self) -> str:
        """One line: the file, and how much is in it."""
        return printable(f"<Loadable {self.name}: {_counted(self._counts())}>")

    def _repr_html_(self) -> str:
        """For notebooks: how much of what, and the bound tensors."""
        from nvdla.util.escaping import table

        rows = [
            {"": kind, "name": tensor.name, "shape": (tensor.n, tensor.c, tensor.h, tensor.w), "bytes": memory.size}
            for kind, memories in (("input", self.inputs), ("output", self.outputs))
            for memory in memories
            for tensor in self.tensors
            if tensor.id == memory.tensor_desc_id
        ]
        return table(f"{self.name}: {_counted(self._counts())}", rows)

    def _counts(self) -> dict[str, int]:
        counts = {"task": len(self.tasks), "memory": len(self.memories), "blob": len(self.blobs)}
        return counts | {"byte": sum(blob.length for blob in self.blobs)}

    def __getstate__(self) -> dict[str, Json]:
        """For pickle: the fields, without caches."""
        return {item.name: self.__dict__[item.name] for item in fields(self)}

    def forget(self) -> None:
        """Release the memory of large blobs that were read from a file (on POSIX systems).

        Accessing ``data`` later reads it again from the file, which stays open. :class:`nvdla.Runtime` calls this,
        because it copies the bytes into the memory of the simulated hardware. A file that was changed in place causes a
        LoadableError at that access.
        """
        for blob in self.blobs:
            blob.forget()

    def to_bytes(self) -> bytes:
        """Return the loadable as a FlatBuffer.

        Raises:
            LoadableError: A number does not fit its field, or there is too much data.
        """
        from nvdla.loadable.writer import flatbuffer  # reading needs neither flatbuffers nor numpy

        return flatbuffer(self)

    @by_annotations
    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all.

        Args:
            path: The new file; an existing one is replaced.

        Raises:
            LoadableError: The model or the directory does not allow it.
        """
        data = self.to_bytes()
        try:
            write_file(path, data)
        except (FormatError, ValueError) as error:
            raise LoadableError(str(error)) from None

    @cached_property
    def _contents(self) -> dict[int, list[tuple[int, Blob]]]:
        return {}

    @cached_property
    def _tasks(self) -> dict[int, TaskEntry]:
        return _index(self.tasks, "id")

    @cached_property
    def _memories(self) -> dict[int, MemoryEntry]:
        return _index(self.memories, "id")

    @cached_property
    def _addresses(self) -> dict[int, AddressEntry]:
        return _index(self.addresses, "id")

    @cached_property
    def _events(self) -> dict[int, EventEntry]:
        return _index(self.events, "id")

    @cached_property
    def _blobs(self) -> dict[str, Blob]:
        return _index(self.blobs, "name")

    @cached_property
    def _tensors(self) -> dict[int, TensorDesc]:
        return _index(self.tensors, "id")


def _counted(counts: dict[str, int]) -> str:
    """ "2 tasks, 1 memory"."""
    several = {"memory": "memories"}
    words = (f"{count:,} {name if count == 1 else several.get(name, f'{name}s')}" for name, count in counts.items())
    return ", ".join(words)


def _index(entries: Iterable[Entry], key: str) -> dict[Any, Entry]:
    """Entries by id or name; the first of several wins (the checks refuse several)."""
    index: dict[Any, Entry] = {}
    for entry in entries:
        index.setdefault(getattr(entry, key), entry)
    return index


Entry = TypeVar("Entry")
EntryKey = TypeVar("EntryKey", int, str)


def _find(entries: Mapping[EntryKey, Entry], wanted: EntryKey, table: str, key: str, hint: str = "") -> Entry:
    try:
        return entries[wanted]
    except (KeyError, TypeError):
        raise LoadableError(f"{table}: no entry has {key} {shown(wanted)} ({len(entries)} entries){hint}") from None
