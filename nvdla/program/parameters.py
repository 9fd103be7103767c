"""The parameters of an NVDLA loadable: weights as KCRS arrays, operands per channel as vectors; and back into blobs.

A loadable stores weights in the order in which the convolution fetches them, which depends on the configuration. Biases
and factors per channel are operands of SDP stages, interleaved when a stage adds and multiplies. Real scales are not
stored; the SDP's output converter, shifts and truncation are in the metadata. Layers have no
names: a parameter is called after its task and operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import Structure
from dataclasses import dataclass, field, replace

import numpy as np

from nvdla.emulator.hardware.convolution.cdma import decompress, unpack_direct, unpack_image, unpack_winograd
from nvdla.emulator.memory.surfaces import compress_as, pack_direct, pack_image, pack_winograd
from nvdla.errors import FormatError, shape_text
from nvdla.loadable.descriptors.enums import ConvMode, DataFormat, MemType, OpType, Precision, SdpAlu, SdpMode, SdpType
from nvdla.loadable.model import Loadable
from nvdla.program.accesses import STAGES
from nvdla.program.operation import Operation
from nvdla.program.program import Program
from nvdla.tensors.parameters import Parameter
from nvdla.util.escaping import Document, Json
from nvdla.util.rounding import ceil_div

_OPERANDS = {SdpType.ADD: ("alu",), SdpType.MUL: ("mul",), SdpType.BOTH: ("alu", "mul")}
#: Decoded bytes may be this many times the file: tiles share weights, which are decoded once.
_WORK = 8


@dataclass(frozen=True)
class Slot:
    """Place of a parameter: ``length`` bytes at ``offset`` of a blob, in a ``layout``: direct, image, winograd or
    operands. ``shape`` is that of the decoded array (kernels, channels, rows, columns), or (channels,)."""

    name: str
    layout: str
    dtype: str
    shape: tuple[int, ...]
    blob: str
    offset: int
    length: int
    group: int = 1
    block: int = 1
    post_extension: int = 1
    column: int = 0
    columns: int = 1
    mask: tuple[str, int, int] | None = None
    metadata: Document = field(default_factory=dict)


class LoadableParameters:
    """All parameters of a loadable or of a decoded program; ``config`` "auto" is chosen as the runtime does."""

    def __init__(self, subject: Loadable | Program, config: str = "auto") -> None:
        self.program = subject if isinstance(subject, Program) else Program.of(subject, config)
        self.loadable = loadable = self.program.loadable
        self.config, self.reason = self.program.config, self.program.config_reason
        self.slots = self._slots()
        size = sum(blob.size for blob in loadable.blobs)
        if sum(_decoded_size(slot) for slot in self.slots) > _WORK * size + (1 << 20):
            raise FormatError(
                f"{loadable.name}: decoded weights: must be at most {_WORK} times the file, but operations share "
                "overlapping weights"
            )

    def _slots(self) -> list[Slot]:
        """One slot for each distinct place: tiles and batches that share one are listed in its metadata."""
        slots: dict[tuple[object, ...], Slot] = {}
        for operation in self.program.hardware_operations:
            for slot in self.of_operation(operation) if not operation.roi else ():
                key = (slot.blob, slot.offset, slot.layout, slot.shape, slot.column)
                if key in slots:
                    slots[key].metadata["shared_with"].append(slot.name)
                else:
                    slots[key] = slot
        return list(slots.values())

    def of_operation(self, operation: Operation) -> Iterator[Slot]:
        """Slots of the parameters of one operation."""
        name = f"task{operation.task}.{operation.engine}{operation.index}"
        if operation.type is OpType.CONV:
            slot = self._weights(name, operation)
            if slot is not None:
                yield slot
        if operation.type is OpType.SDP:
            for stage in STAGES:
                yield from self._operands(name, operation, stage)

    def _place(self, operation: Operation, cube: Structure, length: int) -> tuple[str, int] | None:
        """(blob, offset in it) of ``length`` bytes of a cube; None when nothing is stored there."""
        window = operation.finder.window(cube.address)
        if cube.type == MemType.HW or window is None:
            return None
        address = window[0]
        start = address.offset + cube.offset
        for offset, blob in self.loadable.contents(self.loadable.memory(address.mem_id)):
            if offset <= start and start + length <= offset + blob.size:
                return blob.name, start - offset
        return None

    def _weights(self, name: str, operation: Operation) -> Slot | None:
        op, surface = operation.op, operation.surface
        dtype = Precision(op.out_precision).dtype.name
        size = np.dtype(dtype).itemsize
        kernels, channels = surface.dst_data.channel, op.kernel_channel_csc
        is_image, is_winograd = op.data_format != DataFormat.FEATURE, op.conv_mode == ConvMode.WINOGRAD
        rows, columns = (4, 4) if is_winograd else (op.kernel_height_csc, op.kernel_width_csc)
        count = kernels * channels * rows * columns
        mask = self._place(operation, surface.wmb_data, ceil_div(count, 8)) if op.weight_format else None
        if op.weight_format and mask is None:
            return None
        length = surface.weight_data.size if op.weight_format else count * size
        place = self._place(operation, surface.weight_data, length)
        if place is None or not count:
            return None
        shape, layout = (kernels, channels, rows, columns), "winograd" if is_winograd else "direct"
        pixel = surface.src_data.channel
        if is_image and not is_winograd and pixel and channels % pixel == 0:
            # Columns and channels of an image are one axis in memory.
            shape, layout = (kernels, pixel, rows, channels // pixel), "image"
        metadata = {
            "kind": "weights",
            "layout": "KCRS",
            "transformed": is_winograd,
            "image": is_image,
            "compressed": bool(op.weight_format),
            "configuration": self.config.name,
            "shared_with": [],
            **self._scales(operation),
        }
        return Slot(
            f"{name}.weights",
            layout,
            dtype,
            shape,
            *place,
            length,
            self.config.mac_atomic_k // size,
            self.config.mac_atomic_c,
            1 << op.post_extension if layout == "image" else 1,
            mask=(*mask, ceil_div(count, 8)) if mask else None,
            metadata=metadata,
        )

    def _operands(self, name: str, operation: Operation, stage: str) -> Iterator[Slot]:
        settings, cube = getattr(operation.op, f"{stage}_op"), getattr(operation.surface, f"{stage}_data")
        operands = _OPERANDS.get(settings.type, ()) if settings.enable else ()
        if settings.mode != SdpMode.PER_KERNEL or not operands or not cube.channel:
            return
        dtype = Precision(settings.precision).dtype.name
        length = cube.channel * len(operands) * np.dtype(dtype).itemsize
        place = self._place(operation, cube, length)
        if place is None:
            return
        for column, operand in enumerate(operands):
            kind = (
                "multiplier"
                if operand == "mul"
                else "bias"
                if settings.alu_type == SdpAlu.SUM
                else SdpAlu(settings.alu_type).name.lower()
            )
            metadata = {
                "kind": kind,
                "stage": stage,
                "shift_value": settings.shift_value,
                "truncate": settings.truncate,
                "shared_with": [],
                **_converter(operation.op.out_cvt),
            }
            yield Slot(
                f"{name}.{stage}.{operand}",
                "operands",
                dtype,
                (cube.channel,),
                *place,
                length,
                column=column,
                columns=len(operands),
                metadata=metadata,
            )

    def _scales(self, operation: Operation) -> dict[str, Json]:
        """The output converter of the SDP operation that takes the convolution's sums."""
        taker = self.program.takers.get(operation.key)
        return {} if taker is None else _converter(taker.op.out_cvt)

    def parameters(self) -> list[Parameter]:
        """Every parameter, decoded."""
        return [
            replace(Parameter.from_array(slot.name, self.decode(slot), slot.metadata), origin=slot)
            for slot in self.slots
        ]

    def decode(self, slot: Slot) -> np.ndarray:
        """One parameter as an array of the slot's shape."""
        data = self.loadable.blob(slot.blob).data[slot.offset : slot.offset + slot.length]
        dtype = np.dtype(slot.dtype).newbyteorder("<")
        elements = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        if slot.mask is not None:
            elements = decompress(elements, self._mask(slot.mask), int(np.prod(slot.shape)))
        if slot.layout == "operands":
            column: np.ndarray = elements.reshape(-1, slot.columns)[:, slot.column]
            return column
        kernels, channels, rows, columns = slot.shape
        if slot.layout == "direct":
            unpacked = unpack_direct(elements, (kernels, rows, columns, channels), slot.group, slot.block)
            return np.transpose(unpacked, (0, 3, 1, 2))
        if slot.layout == "image":
            flat = unpack_image(
                elements, (kernels, rows, columns * channels), slot.group, slot.block, slot.post_extension
            )
            return np.transpose(flat.reshape(kernels, rows, columns, channels), (0, 3, 1, 2))
        cubes = unpack_winograd(elements, kernels, channels, slot.group)
        return np.transpose(cubes, (0, 1, 4, 2, 3)).reshape(kernels, channels, 4, 4)

    def encode(self, slot: Slot, array: np.ndarray, old: memoryview | bytearray) -> bytes:
        """The slot's bytes with this array in them; ``old`` are those there now (they hold the other operands)."""
        if slot.layout == "operands":
            elements = np.frombuffer(old, array.dtype).reshape(-1, slot.columns).copy()
            elements[:, slot.column] = array
            return bytes(elements.tobytes())
        if slot.mask is None:
            return _packed(slot, array)
        packed = np.frombuffer(_packed(slot, array), array.dtype)
        return compress_as(packed, self._mask(slot.mask), slot.length, slot.name)

    def _mask(self, place: tuple[str, int, int]) -> np.ndarray:
        blob, offset, length = place
        return np.frombuffer(self.loadable.blob(blob).data[offset : offset + length], np.uint8)

    def replaced(self, parameters: Mapping[str, Parameter]) -> Loadable:
        """Return the loadable with other parameters. Raises FormatError for a name it does not have, another
        shape or another element type."""
        slots = {slot.name: slot for slot in self.slots}
        blobs: dict[str, bytearray] = {}
        for name, parameter in parameters.items():
            slot = slots.get(name)
            if slot is None:
                raise FormatError(
                    f"{self.loadable.name}: parameter: must be in the loadable, got {name!r}. 'nvdla container "
                    "list' shows the names."
                )
            if (parameter.dtype, parameter.shape) != (slot.dtype, slot.shape):
                raise FormatError(
                    f"{self.loadable.name}: parameter {name!r}: must be {slot.dtype} {shape_text(slot.shape)}, "
                    f"got {parameter.dtype} {shape_text(parameter.shape or ())}"
                )
            content = blobs.setdefault(slot.blob, bytearray(self.loadable.blob(slot.blob).data))
            place = _bytes_of(slot)
            content[place] = self.encode(slot, parameter.as_array(), content[place])
        changed = {name: bytes(data) for name, data in blobs.items() if data != self.loadable.blob(name).data}
        return replace(
            self.loadable,
            blobs=tuple(
                replace(blob, data=memoryview(changed[blob.name])) if blob.name in changed else blob
                for blob in self.loadable.blobs
            ),
        )


def _packed(slot: Slot, array: np.ndarray) -> bytes:
    """Weights in the order of the slot's layout."""
    if slot.layout == "direct":
        return pack_direct(array, slot.group, slot.block)
    if slot.layout == "image":
        return pack_image(array, slot.group, slot.block, slot.post_extension)
    return pack_winograd(array, slot.group)


def _bytes_of(slot: Slot) -> slice:
    """The slot's bytes in its blob."""
    return slice(slot.offset, slot.offset + slot.length)


def _decoded_size(slot: Slot) -> int:
    return int(np.prod(slot.shape)) * np.dtype(slot.dtype).itemsize


def _converter(cvt: Structure) -> Document:
    """The SDP's output converter: (x - offset) * scale >> truncate."""
    return {"output_offset": cvt.offset, "output_scale": cvt.scale, "output_truncate": cvt.truncate}
