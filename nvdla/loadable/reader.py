"""Bytes of a loadable -> model: verified structure first, then the meaning of every number."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.errors import LoadableError
from nvdla.files import refuse_device
from nvdla.limits import Limits
from nvdla.loadable import enums, schema
from nvdla.loadable.checks import check
from nvdla.loadable.model import (
    AddressEntry,
    Blob,
    EventEntry,
    Loadable,
    MemoryEntry,
    RelocEntry,
    SubmitEntry,
    TaskEntry,
    TensorDesc,
    Version,
)
from nvdla.loadable.positions import position_of
from nvdla.loadable.stored import CAN_STAY_OPEN, StoredBytes, StoredFile, anonymous
from nvdla.loadable.verifier import Verifier

IDENTIFIER = b"NVDA"
UNNAMED = "loadable"  # what messages call bytes that are no file
LARGE_FILE, LARGE_BLOB = 1 << 20, 1 << 14  # bytes from which it is worthwhile not to hold them


@by_annotations
def load(source: Any, *, limits: Limits | None = None, checked: bool = True) -> Loadable:
    """Read a loadable from a path or from bytes (any contiguous buffer).

    Blob data of the result are views into the bytes, so a mutable buffer must not change afterwards. With ``checked``
    the semantic checks (:mod:`nvdla.loadable.checks`) are made too; without it only the FlatBuffer's structure is
    verified, which lets tools look at a loadable that does not make sense.

    Raises LoadableError, and nothing else, for whatever is wrong with the source.
    """
    limits = limits or Limits()
    buffer, name, file = _bytes_of(source, limits)
    verifier = Verifier(buffer, limits)
    where = "" if name == UNNAMED else f"{name}: "
    try:
        loadable = _model(verifier.root(schema.LOADABLE), buffer, name)
        _check_tasks(loadable, limits)
    except LoadableError as error:
        if buffer[4:8] == IDENTIFIER:
            raise LoadableError(f"{where}{error}") from None
        raise LoadableError(f"{error}; {name} has no identifier NVDA in bytes 4 to 7: is it a loadable?") from None
    if checked:
        try:
            check(loadable)
        except LoadableError as error:
            position = position_of(buffer, str(error))
            at = "" if position is None else f" (byte {position} of the file)"
            raise LoadableError(f"{where}{error}{at}") from None
    return loadable if file is None else _stored(loadable, file, verifier.starts, len(buffer))


def _check_tasks(loadable: Loadable, limits: Limits) -> None:
    """Tasks may share one list, and the descriptors that it leads to: a small file would make whoever follows the lists
    work without end."""
    if len(loadable.tasks) > limits.tasks:
        raise LoadableError(f"task_list: {len(loadable.tasks)} tasks, must be at most {limits.tasks} (Limits.tasks)")
    entries = sum(len(task.address_list) for task in loadable.tasks)
    if entries > limits.task_addresses:
        raise LoadableError(
            f"task_list: the address lists of all tasks have {entries} entries, must be at most "
            f"{limits.task_addresses} (Limits.task_addresses)"
        )


def _bytes_of(source: Any, limits: Limits) -> tuple[memoryview, str, StoredFile | None]:
    """The bytes, what they are called, and the file where it can give them once more."""
    if isinstance(source, str | os.PathLike):
        data, file = _read(Path(source), limits.file_size)
        return data, str(source), file
    try:
        view = memoryview(source)
        return (view.cast("B") if view.nbytes else memoryview(b"")).toreadonly(), UNNAMED, None
    except (TypeError, ValueError, BufferError):
        kind = type(source).__name__
        raise LoadableError(f"a loadable is read from a path or from contiguous bytes, not from {kind}") from None


def _read(path: Path, limit: int) -> tuple[memoryview, StoredFile | None]:
    """The whole file; refuses to read more than ``limit`` bytes, also from a device or pipe that never ends."""
    try:
        if path.is_dir():
            raise LoadableError(f"{path}: is a folder, not a loadable")
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if CAN_STAY_OPEN and LARGE_FILE <= size <= limit:
                data = anonymous(size)
                if _fill(data, file) == size and not file.read(1):
                    return data.toreadonly(), StoredFile(str(path), os.dup(file.fileno()), data)
                file.seek(0)
        with path.open("rb") as stream:
            refuse_device(os.fstat(stream.fileno()), str(path), LoadableError)
            read = stream.read() if 0 < size <= limit else stream.read(limit + 1)
    except (OSError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LoadableError(f"{path}: cannot be read: {reason}") from None
    if len(read) > limit:
        raise LoadableError(f"{path}: file size is more than {limit} bytes (Limits.file_size)")
    return memoryview(read), None


def _fill(target: memoryview, file: io.FileIO) -> int:
    """Bytes that the file gave, at most as many as there is room."""
    total = 0
    while total < len(target) and (count := file.readinto(target[total:])):
        total += count
    return total


def _stored(loadable: Loadable, file: StoredFile, starts: dict[int, int], size: int) -> Loadable:
    """A loadable whose large blobs may be forgotten; the small ones have bytes of their own. A file whose blobs share
    their bytes stays as it is: copies could take more than the file."""
    if sum(blob.length for blob in loadable.blobs) > size:
        return loadable
    blobs = []
    for blob in loadable.blobs:
        data = blob.data
        large = len(data) >= LARGE_BLOB
        kept = StoredBytes(file, starts[id(data)], data) if large else memoryview(bytes(data))
        blobs.append(replace(blob, data=kept))
    return replace(loadable, blobs=tuple(blobs))


def _model(root: dict[str, Any], buffer: memoryview, name: str) -> Loadable:
    return Loadable(
        version=Version(*root["version"]),
        tasks=tuple(map(_task, root["task_list"])),
        memories=tuple(map(_memory, root["memory_list"])),
        addresses=tuple(AddressEntry(**entry) for entry in root["address_list"]),
        events=tuple(map(_event, root["event_list"])),
        blobs=tuple(map(_blob, root["blobs"])),
        tensors=tuple(map(_tensor, root["tensor_desc_list"])),
        relocs=tuple(map(_reloc, root["reloc_list"])),
        submits=tuple(SubmitEntry(entry["id"], entry["task_id"]) for entry in root["submit_list"]),
        identifier=IDENTIFIER.decode() if buffer[4:8] == IDENTIFIER else "",
        name=name,
    )


def _task(entry: dict[str, Any]) -> TaskEntry:
    return TaskEntry(**{**entry, "interface": enums.Interface(entry["interface"])})


def _memory(entry: dict[str, Any]) -> MemoryEntry:
    domain, flags = enums.MemoryDomain(entry["domain"]), enums.MemoryFlags(entry["flags"])
    return MemoryEntry(**{**entry, "domain": domain, "flags": flags})


def _event(entry: dict[str, Any]) -> EventEntry:
    return EventEntry(**{**entry, "type": enums.EventType(entry["type"]), "op": enums.EventOp(entry["op"])})


def _blob(entry: dict[str, Any]) -> Blob:
    version = entry["version"]
    return Blob(
        name=entry["name"],
        data=memoryview(b"") if entry["data"] == () else entry["data"],
        size=entry["size"],
        interface=enums.Interface(entry["interface"]),
        sub_interface=enums.SubInterface(entry["sub_interface"]),
        version=None if version is None else Version(*version),
    )


def _tensor(entry: dict[str, Any]) -> TensorDesc:
    plain = {key: value for key, value in entry.items() if not key.startswith("stride_")}
    plain["strides"] = tuple(entry[f"stride_{i}"] for i in range(8))
    plain["data_format"] = enums.DataFormat(entry["data_format"])
    plain["data_type"] = enums.DataType(entry["data_type"])
    plain["data_category"] = enums.DataCategory(entry["data_category"])
    plain["pixel_format"] = enums.PixelFormat(entry["pixel_format"])
    plain["pixel_mapping"] = enums.PixelMapping(entry["pixel_mapping"])
    return TensorDesc(**plain)


def _reloc(entry: dict[str, Any]) -> RelocEntry:
    return RelocEntry(
        address_id=entry["address_id"],
        write_id=entry["write_id"],
        offset=entry["offset"],
        interface=enums.Interface(entry["interface"]),
        sub_interface=enums.SubInterface(entry["sub_interface"]),
        reloc_type=enums.RelocType(entry["reloc_type"]),
    )
