"""Model -> bytes, with the FlatBuffers builder and the generated bindings.

What is written reads back as an equal model. Default values are left out, as FlatBuffers does; empty lists and names
are written, so that NVIDIA's runtime (which does not ask whether a list is there) can read the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flatbuffers

from nvdla.errors import FormatError, LoadableError
from nvdla.loadable import schema
from nvdla.loadable.generated import loadable_generated as fb
from nvdla.loadable.schema import Scalar, String, Struct, TableSchema
from nvdla.util.arguments import by_annotations
from nvdla.util.files import write_file

if TYPE_CHECKING:
    from nvdla.loadable import model
    from nvdla.loadable.model import Loadable

#: FlatBuffers address at most 2 GiB
MAX_BYTES = (1 << 31) - 1


@by_annotations
def to_bytes(loadable: Loadable) -> bytes:
    """The loadable as a FlatBuffer. LoadableError for numbers that do not fit their fields, or too much data."""
    total = sum(blob.length for blob in loadable.blobs)
    if total > MAX_BYTES - (1 << 20):
        raise LoadableError(f"blobs: {total} bytes together, must be at most {MAX_BYTES - (1 << 20)} (FlatBuffers)")
    _check_ranges(loadable)
    builder = flatbuffers.Builder(total + 4096)
    try:
        lists = {
            "TaskList": _tables(builder, loadable.tasks, _task),
            "MemoryList": _tables(builder, loadable.memories, _memory),
            "AddressList": _tables(builder, loadable.addresses, _address),
            "EventList": _tables(builder, loadable.events, _event),
            "Blobs": _tables(builder, loadable.blobs, _blob),
            "TensorDescList": _tables(builder, loadable.tensors, _tensor),
            "RelocList": _tables(builder, loadable.relocs, _reloc),
            "SubmitList": _tables(builder, loadable.submits, _submit),
        }
        fb.LoadableStart(builder)
        for name, offset in lists.items():
            getattr(fb, f"LoadableAdd{name}")(builder, offset)
        fb.LoadableAddVersion(builder, _version(builder, loadable.version))
        identifier = loadable.identifier.encode()
        builder.Finish(fb.LoadableEnd(builder), file_identifier=identifier if len(identifier) == 4 else None)
    except flatbuffers.builder.BuilderSizeError as error:
        raise LoadableError(f"the loadable does not fit a FlatBuffer: {error}") from None
    return bytes(builder.Output())


@by_annotations
def save(loadable: Loadable, path: str | Path) -> None:
    """Write the file whole or not at all. LoadableError when the model or the folder does not allow it."""
    data = to_bytes(loadable)
    try:
        write_file(path, data)
    except (FormatError, ValueError) as error:
        raise LoadableError(str(error)) from None


# ---- one function a table


def _tables(builder: flatbuffers.Builder, entries: Sequence[object], write: Callable[[Any, Any], int]) -> int:
    return _vector(builder, [write(builder, entry) for entry in entries], 4, builder.PrependUOffsetTRelative)


def _vector(builder: flatbuffers.Builder, values: Sequence[int], size: int, prepend: Callable[[int], None]) -> int:
    builder.StartVector(size, len(values), size)
    for value in reversed(values):
        prepend(value)
    return builder.EndVector()


def _strings(builder: flatbuffers.Builder, values: Sequence[str]) -> int:
    offsets = [builder.CreateString(value) for value in values]
    return _vector(builder, offsets, 4, builder.PrependUOffsetTRelative)


def _version(builder: flatbuffers.Builder, version: model.Version) -> int:
    return fb.CreateVersion(builder, version.major, version.minor, version.sub_minor)


def _task(builder: flatbuffers.Builder, task: model.TaskEntry) -> int:
    addresses = _vector(builder, task.address_list, 2, builder.PrependUint16)
    before = _vector(builder, task.pre_actions, 2, builder.PrependUint16)
    after = _vector(builder, task.post_actions, 2, builder.PrependUint16)
    fb.TaskListEntryStart(builder)
    fb.TaskListEntryAddId(builder, task.id)
    fb.TaskListEntryAddInterface(builder, task.interface)
    fb.TaskListEntryAddInstance(builder, task.instance)
    fb.TaskListEntryAddAddressList(builder, addresses)
    fb.TaskListEntryAddPreActions(builder, before)
    fb.TaskListEntryAddPostActions(builder, after)
    return fb.TaskListEntryEnd(builder)


def _memory(builder: flatbuffers.Builder, memory: model.MemoryEntry) -> int:
    contents = _strings(builder, memory.contents)
    offsets = _vector(builder, memory.offsets, 8, builder.PrependUint64)
    fb.MemoryListEntryStart(builder)
    fb.MemoryListEntryAddId(builder, memory.id)
    fb.MemoryListEntryAddDomain(builder, memory.domain)
    fb.MemoryListEntryAddFlags(builder, memory.flags)
    fb.MemoryListEntryAddSize(builder, memory.size)
    fb.MemoryListEntryAddAlignment(builder, memory.alignment)
    fb.MemoryListEntryAddContents(builder, contents)
    fb.MemoryListEntryAddOffsets(builder, offsets)
    fb.MemoryListEntryAddBindId(builder, memory.bind_id)
    fb.MemoryListEntryAddTensorDescId(builder, memory.tensor_desc_id)
    return fb.MemoryListEntryEnd(builder)


def _address(builder: flatbuffers.Builder, address: model.AddressEntry) -> int:
    fb.AddressListEntryStart(builder)
    fb.AddressListEntryAddId(builder, address.id)
    fb.AddressListEntryAddMemId(builder, address.mem_id)
    fb.AddressListEntryAddOffset(builder, address.offset)
    fb.AddressListEntryAddSize(builder, address.size)
    return fb.AddressListEntryEnd(builder)


def _event(builder: flatbuffers.Builder, event: model.EventEntry) -> int:
    fb.EventListEntryStart(builder)
    fb.EventListEntryAddId(builder, event.id)
    fb.EventListEntryAddType(builder, event.type)
    fb.EventListEntryAddTarget(builder, event.target)
    fb.EventListEntryAddVal(builder, event.val)
    fb.EventListEntryAddOp(builder, event.op)
    return fb.EventListEntryEnd(builder)


def _blob(builder: flatbuffers.Builder, blob: model.Blob) -> int:
    name = builder.CreateString(blob.name)
    data = builder.CreateByteVector(bytes(blob.data))
    fb.BlobStart(builder)
    fb.BlobAddName(builder, name)
    fb.BlobAddSize(builder, blob.size)
    fb.BlobAddInterface(builder, blob.interface)
    fb.BlobAddSubInterface(builder, blob.sub_interface)
    if blob.version is not None:
        fb.BlobAddVersion(builder, _version(builder, blob.version))
    fb.BlobAddData(builder, data)
    return fb.BlobEnd(builder)


def _tensor(builder: flatbuffers.Builder, tensor: model.TensorDesc) -> int:
    name = builder.CreateString(tensor.name)
    fb.TensorDescListEntryStart(builder)
    fb.TensorDescListEntryAddName(builder, name)
    fb.TensorDescListEntryAddId(builder, tensor.id)
    fb.TensorDescListEntryAddMemId(builder, tensor.mem_id)
    fb.TensorDescListEntryAddSize(builder, tensor.size)
    fb.TensorDescListEntryAddOffset(builder, tensor.offset)
    fb.TensorDescListEntryAddDataFormat(builder, tensor.data_format)
    fb.TensorDescListEntryAddDataType(builder, tensor.data_type)
    fb.TensorDescListEntryAddDataCategory(builder, tensor.data_category)
    fb.TensorDescListEntryAddPixelFormat(builder, tensor.pixel_format)
    fb.TensorDescListEntryAddPixelMapping(builder, tensor.pixel_mapping)
    fb.TensorDescListEntryAddN(builder, tensor.n)
    fb.TensorDescListEntryAddC(builder, tensor.c)
    fb.TensorDescListEntryAddH(builder, tensor.h)
    fb.TensorDescListEntryAddW(builder, tensor.w)
    for index, stride in enumerate(tensor.strides):
        getattr(fb, f"TensorDescListEntryAddStride{index}")(builder, stride)
    return fb.TensorDescListEntryEnd(builder)


def _reloc(builder: flatbuffers.Builder, reloc: model.RelocEntry) -> int:
    fb.RelocListEntryStart(builder)
    fb.RelocListEntryAddAddressId(builder, reloc.address_id)
    fb.RelocListEntryAddWriteId(builder, reloc.write_id)
    fb.RelocListEntryAddOffset(builder, reloc.offset)
    fb.RelocListEntryAddInterface(builder, reloc.interface)
    fb.RelocListEntryAddSubInterface(builder, reloc.sub_interface)
    fb.RelocListEntryAddRelocType(builder, reloc.reloc_type)
    return fb.RelocListEntryEnd(builder)


def _submit(builder: flatbuffers.Builder, submit: model.SubmitEntry) -> int:
    tasks = _vector(builder, submit.task_ids, 2, builder.PrependUint16)
    fb.SubmitListEntryStart(builder)
    fb.SubmitListEntryAddId(builder, submit.id)
    fb.SubmitListEntryAddTaskId(builder, tasks)
    return fb.SubmitListEntryEnd(builder)


# ---- does everything fit its field?

_TABLES: tuple[tuple[str, TableSchema], ...] = (
    ("tasks", schema.TASK),
    ("memories", schema.MEMORY),
    ("addresses", schema.ADDRESS),
    ("events", schema.EVENT),
    ("blobs", schema.BLOB),
    ("tensors", schema.TENSOR),
    ("relocs", schema.RELOC),
    ("submits", schema.SUBMIT),
)
_BITS = {"B": (0, 8), "H": (0, 16), "I": (0, 32), "Q": (0, 64), "h": (1, 16), "i": (1, 32)}


def _check_ranges(loadable: Loadable) -> None:
    """Refuse numbers that are too large for their field, before the builder sees them."""
    _check_version("version", loadable.version)
    for list_name, table in _TABLES:
        for index, entry in enumerate(getattr(loadable, list_name)):
            for field in table.fields:
                _check_value(f"{list_name}[{index}].{field.name}", _value(entry, field.name), field.type)


def _value(entry: Any, name: str) -> Any:
    """A schema field of a model entry; two of them have another name in the model."""
    if name.startswith("stride_"):
        strides = entry.strides
        return strides[int(name[7:])] if len(strides) == 8 else None
    return entry.task_ids if name == "task_id" else getattr(entry, name)


def _check_value(where: str, value: Any, kind: Any) -> None:
    if isinstance(kind, Scalar):
        signed, bits = _BITS[kind.code]
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if not isinstance(value, int) or not low <= value <= high:
            raise LoadableError(f"{where}: {value!r}, must be an integer from {low} to {high}")
    elif isinstance(kind, Struct):
        if value is not None:
            _check_version(where, value)
    elif isinstance(kind, String):
        try:
            value.encode()
        except (UnicodeEncodeError, AttributeError):
            raise LoadableError(f"{where}: {value!r}, must be text that UTF-8 can hold") from None
    elif isinstance(kind.element, String) or (kind.element.__class__ is Scalar and kind.element.code != "B"):
        for position, each in enumerate(value):
            _check_value(f"{where}[{position}]", each, kind.element)


def _check_version(where: str, version: model.Version) -> None:
    for name in ("major", "minor", "sub_minor"):
        _check_value(f"{where}.{name}", getattr(version, name), schema.U8)
