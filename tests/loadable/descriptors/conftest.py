"""Loadables to decode: the corpus where it lies beside the repository, and tasks made by hand in either ABI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvdla.loadable import AddressEntry, Blob, Loadable, MemoryEntry, SubmitEntry, TaskEntry, TensorDesc
from nvdla.loadable.descriptors import NEW, Abi
from nvdla.loadable.descriptors.enums import EmuFormat, EmuOpType, Event, OpType
from nvdla.loadable.enums import Interface, MemoryFlags

CORPUS = Path(__file__).resolve().parents[3] / ".." / "shared" / "corpus"


@pytest.fixture(scope="session")
def corpus() -> list[Path]:
    files = sorted(CORPUS.glob("loadables/*/*.nvdla")) + sorted(CORPUS.glob("kmd-regression/*_fbuf"))
    if not files:
        pytest.skip("the corpus ../shared/corpus is not there")
    return files


class Parts:
    """The lists of one DLA task (a convolution whose SDP reads a LUT) and one CPU task, before they become blobs."""

    def __init__(self, abi: Abi) -> None:
        self.network = abi.NetworkDesc(
            operation_desc_index=1, surface_desc_index=2, dependency_graph_index=3, lut_data_index=4,
            roi_array_index=-1, surface_index=-1, stat_list_index=-1, num_rois=1, num_operations=2, num_luts=1,
            num_addresses=7, op_head=(-1, 0, 1, -1, -1, -1),
        )  # fmt: skip
        self.ops = (abi.OperationContainer * 2)()
        self.ops[1].sdp_op.lut_index = 0
        self.surfaces = (abi.SurfaceContainer * 2)()
        self.nodes = (abi.CommonOpDesc * 2)()
        self.luts = (abi.LutParam * 1)()
        self._connect(abi)
        self.emu_network = abi.EmuNetworkDesc(1, 2, 1)
        self.emu_ops = (abi.EmuOperationContainer * 1)()
        self.emu_ops[0].softmax_op.common.op_type = EmuOpType.SOFTMAX
        self.emu_buffers = (abi.EmuBuffers * 1)()
        for buffer, index in ((self.emu_buffers[0].src_data, 3), (self.emu_buffers[0].dst_data, 4)):
            buffer.address_index, buffer.size, buffer.format = index, 64, EmuFormat.INT8_8
            buffer.width = buffer.height = 2
            buffer.channel, buffer.line_stride, buffer.surf_stride = 16, 16, 32

    def _connect(self, abi: Abi) -> None:
        for node in self.nodes:
            for consumer in (*node.consumers, node.fused_parent):
                consumer.index = -1
        conv, sdp = self.nodes
        conv.op_type, sdp.op_type, sdp.index = OpType.CONV, OpType.SDP, 1
        conv.consumers[OpType.SDP].index, conv.consumers[OpType.SDP].event = 1, Event.OP_PROGRAMMED
        sdp.fused_parent.index, sdp.fused_parent.event = 0, Event.OP_ENABLED
        conv.dependency_count = sdp.dependency_count = 1
        first, second = self.surfaces[0].conv_surface, self.surfaces[1].sdp_surface
        for surface in (first, second):
            for name, *_ in surface._fields_:
                if name.endswith("_data"):
                    getattr(surface, name).address = -1
        place(first.src_data, 5)
        place(second.dst_data, 6)
        first.dst_data.type = second.src_data.type = 2

    def loadable(self) -> Loadable:
        """The loadable with these lists as blobs, one memory and one address each."""
        lists = {
            "net": self.network, "ops": self.ops, "surfs": self.surfaces, "deps": self.nodes, "luts": self.luts,
            "emu-net": self.emu_network, "emu-ops": self.emu_ops, "emu-bufs": self.emu_buffers,
        }  # fmt: skip
        blobs = tuple(Blob(name, bytes(value)) for name, value in lists.items())
        flags = MemoryFlags.ALLOC | MemoryFlags.SET
        memories = [
            MemoryEntry(i, len(blob.data), flags=flags, contents=(blob.name,), offsets=(0,))
            for i, blob in enumerate(blobs)
        ]
        memories.append(MemoryEntry(8, 64, flags=MemoryFlags.ALLOC | MemoryFlags.INPUT))
        memories.append(MemoryEntry(9, 64, flags=MemoryFlags.ALLOC | MemoryFlags.OUTPUT, tensor_desc_id=1))
        return Loadable(
            tasks=(
                TaskEntry(0, Interface.DLA1, (0, 1, 2, 3, 4, 8, 9)),
                TaskEntry(1, Interface.EMU1, (5, 6, 7, 8, 9)),
            ),
            memories=tuple(memories),
            addresses=tuple(AddressEntry(i, i, 0, memory.size) for i, memory in enumerate(memories)),
            blobs=blobs,
            tensors=tuple(TensorDesc(f"t{i}", i, 8 + i, 64, 1, 16, 2, 2) for i in range(2)),
            submits=(SubmitEntry(0, (0,)), SubmitEntry(1, (1,))),
        )


def place(cube: object, address: int) -> None:
    """Put a 2x2x16 int8 cube of 8-byte atoms behind an address index."""
    cube.address, cube.size = address, 64
    cube.width = cube.height = 2
    cube.channel, cube.line_stride, cube.surf_stride = 16, 16, 32


@pytest.fixture
def parts() -> Parts:
    return Parts(NEW)


@pytest.fixture
def parts_of() -> Callable[[Abi], Parts]:
    return Parts
