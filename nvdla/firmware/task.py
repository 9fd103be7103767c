"""A DLA task as the firmware works on it: descriptors in simulated memory, addresses, checks of every operation."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nvdla.descriptors.abi import Abi
from nvdla.descriptors.enums import OpType
from nvdla.descriptors.task import DlaTask
from nvdla.errors import DescriptorError
from nvdla.firmware.driver import Driver, driver
from nvdla.firmware.operation import MEMORY_ON_THE_FLY, FirmwareOperation
from nvdla.firmware.processor import GraphNode
from nvdla.hardware.configuration import Configuration
from nvdla.limits import Limits
from nvdla.loadable.model import TaskEntry
from nvdla.memory.descriptor_source import MemorySource

if TYPE_CHECKING:
    from nvdla.memory.linker import AddressWindow, LinkedLoadable

# Bytes of an element for the start of a dynamic ROI, by the convolution's data_format (conv.c map_img_fmt).
PIXEL_BYTES = (1, *(2,) * 5, *(8,) * 6, *(4,) * 16, 1, 1, *(2,) * 7)
ROI_HEADER = struct.Struct("<II")
ROI_ENTRY = struct.Struct("<IIII")


class FirmwareTask:
    """One DLA task of a linked loadable. Raises DescriptorError for descriptors that refer to nothing."""

    def __init__(
        self,
        linked: LinkedLoadable,
        task: TaskEntry,
        abi: Abi,
        config: Configuration,
        limits: Limits | None = None,
    ) -> None:
        self.id = task.id
        self.config = config
        self.addresses = linked.address_list(task)
        source = MemorySource(task, self.addresses)
        self.decoded = DlaTask.decode(linked.loadable, task, abi, source=source, limits=limits)
        self.network = self.decoded.network
        self.num_operations = self.network.num_operations
        self._drivers: dict[OpType, Driver] = {}
        self._operations: dict[int, FirmwareOperation] = {}

    def operation(self, index: int, roi: int = 0) -> FirmwareOperation:
        """The operation with its descriptors."""
        position = roi * self.num_operations + index
        if position not in self._operations:
            found = self.decoded.operation(index, roi)
            made = FirmwareOperation(
                self.id, index, roi, found.op_type, found.op, found.surface, self.config, self.addresses, found.lut
            )
            if self.network.dynamic_roi and index == self.network.input_layer:
                made.dynamic_input = 0  # until start() knows the region
            self._operations[position] = made
        return self._operations[position]

    def operations(self) -> Iterator[FirmwareOperation]:
        """All operations of all regions of interest."""
        for roi in range(self.network.num_rois):
            for index in range(self.num_operations):
                yield self.operation(index, roi)

    @property
    def keeps_statistics(self) -> bool:
        """Whether the firmware writes counters of each operation to memory."""
        return bool(self.network.stat_list_index != -1)

    @property
    def written(self) -> list[np.ndarray]:
        """The bytes behind the addresses that the firmware itself writes: counts of dependencies, statistics."""
        indices = (self.network.dependency_graph_index, self.network.stat_list_index)
        return [self.addresses[index].data for index in indices if 0 <= index < len(self.addresses)]

    @property
    def descriptors(self) -> list[np.ndarray]:
        """The bytes behind the addresses of the lists that the firmware only reads."""
        network = self.network
        indices = {0, network.operation_desc_index, network.surface_desc_index, network.lut_data_index}
        return [self.addresses[index].data for index in indices if 0 <= index < len(self.addresses)]

    def nodes(self, rois: int) -> list[GraphNode]:
        """The dependency graph of ``rois`` regions of interest, at ``roi * num_operations + index``."""
        return [
            GraphNode(self.operation(index, roi), self.decoded.dependencies[roi * self.num_operations + index])
            for roi in range(rois)
            for index in range(self.num_operations)
        ]

    def check(self) -> None:
        """Refuse what the firmware or the configuration cannot do. Raises DescriptorError or ConfigError."""
        for operation in self.operations():
            if operation.type not in self._drivers:
                self._drivers[operation.type] = driver(operation.type)
            self._drivers[operation.type].check(operation)

    def start(self) -> int:
        """Ready for a run: how many regions of interest it has; places the inputs of dynamic ones.

        Source: kmd/firmware/scheduler.c dla_read_network_config, engine.c dla_read_input_address.
        """
        if not self.network.dynamic_roi:
            return int(self.network.num_rois)
        array = self._address(self.network.roi_array_index, "roi_array_index")
        found, _ = ROI_HEADER.unpack(self._bytes(array, 0, ROI_HEADER.size))
        if not 1 <= found <= self.network.num_rois:
            raise DescriptorError(
                f"task {self.id}: the ROI array has {found} regions; the network is made for 1 to "
                f"{self.network.num_rois}"
            )
        base = self._address(self.network.surface_index, "surface_index").address
        for roi in range(found):
            entry = self._bytes(array, ROI_HEADER.size + roi * ROI_ENTRY.size, ROI_ENTRY.size)
            left, top, _, _ = ROI_ENTRY.unpack(entry)
            self._place_input(self.operation(self._input_layer(), roi), base, left, top)
        return int(found)

    def _input_layer(self) -> int:
        layer = int(self.network.input_layer)
        if not 0 <= layer < self.num_operations:
            raise DescriptorError(f"task {self.id}: input_layer is {layer}, must be 0 .. {self.num_operations - 1}")
        return layer

    def _place_input(self, operation: FirmwareOperation, base: int, left: int, top: int) -> None:
        cube = operation.surface.src_data
        if cube.type == MEMORY_ON_THE_FLY:
            return
        operation.require(
            cube.address == -1, f"src_data has address index {cube.address}; a dynamic ROI's input has none (-1)"
        )
        pixel = PIXEL_BYTES[operation.op.data_format] if operation.type == OpType.CONV else 1
        address = base + top * cube.line_stride + pixel * left
        operation.require_aligned(address, operation.atom, f"the address of the ROI at column {left}, row {top}")
        operation.dynamic_input = address

    def _address(self, index: int, what: str) -> AddressWindow:
        if not 0 <= index < len(self.addresses):
            raise DescriptorError(f"task {self.id}: {what} is {index}, must be 0 .. {len(self.addresses) - 1}")
        return self.addresses[index]

    def _bytes(self, window: AddressWindow, offset: int, size: int) -> bytes:
        if offset + size > window.size:
            raise DescriptorError(
                f"task {self.id}: the ROI array needs {offset + size} bytes, {window} has {window.size}"
            )
        return window.data[offset : offset + size].tobytes()
