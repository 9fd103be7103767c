"""Tasks are decoded as the firmware finds them, and every index in them is checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvdla.errors import DescriptorError
from nvdla.limits import Limits
from nvdla.loadable import Blob, load
from nvdla.loadable.descriptors import NEW, OLD, Abi, DlaTask, EmuTask, decode_tasks, detect
from nvdla.loadable.descriptors.enums import EmuOpType, Event, OpType
from nvdla.loadable.descriptors.task import DLA_RULES, EMU_RULES, dla_problems


def test_every_corpus_task_is_decoded(corpus: list[Path]) -> None:
    for path in corpus:
        loadable = load(path)
        tasks = decode_tasks(loadable, detect(loadable)[0])
        assert all(task.operations() for task in tasks.values()), path


def test_operations_are_those_of_the_golden_runs(corpus: list[Path]) -> None:
    """Type, destination address, offset, size, dimensions and strides as NVIDIA's firmware handled them."""
    compared = 0
    for path in corpus[::12]:
        golden = path.with_suffix(".ops.json")
        if not golden.exists():
            continue
        loadable = load(path)
        tasks = decode_tasks(loadable, detect(loadable)[0])
        dla = [task for task in tasks.values() if isinstance(task, DlaTask)]
        for entry in _entries(golden):
            operation = dla[_rank(entry, golden)].operation(entry["op"])
            assert operation.op_type.name == entry["type"], path
            expected, cube = entry["dst"], getattr(operation.surface, "dst_data", None)
            if expected["memory"] != "on-the-fly":
                compared += 1
                assert (cube.address, cube.offset) == (expected["address_index"], expected["offset"])
                assert (cube.width, cube.height, cube.channel) == (expected["w"], expected["h"], expected["c"])
                assert (cube.line_stride, cube.surf_stride) == (expected["line_stride"], expected["surf_stride"])
    assert compared > 100


def _entries(path: Path) -> list[dict]:
    data = json.loads(path.read_text())
    return data if isinstance(data, list) else data["ops"]


def _rank(entry: dict, path: Path) -> int:
    """Position among the DLA tasks: the golden run counts those alone."""
    return sorted({each["task"] for each in _entries(path)}).index(entry["task"])


@pytest.mark.parametrize("abi", [OLD, NEW], ids=str)
def test_a_dla_task_is_put_together(parts_of: Callable, abi: Abi) -> None:
    loadable = parts_of(abi).loadable()
    task = DlaTask.decode(loadable, loadable.task(0), abi)
    conv, sdp = task.operations()
    assert (conv.engine, sdp.engine, len(task)) == ("conv", "sdp", 2)
    assert (conv.common.consumers[OpType.SDP].index, conv.common.consumers[OpType.SDP].event) == (
        1,
        Event.OP_PROGRAMMED,
    )
    assert type(conv.op).__name__ == "ConvOp" and type(sdp.surface) is abi.SdpSurface
    assert sdp.surface.dst_data.address == 6 and sdp.lut is not None and conv.lut is None


@pytest.mark.parametrize("abi", [OLD, NEW], ids=str)
def test_a_cpu_task_is_put_together(parts_of: Callable, abi: Abi) -> None:
    loadable = parts_of(abi).loadable()
    (operation,) = EmuTask.decode(loadable, loadable.task(1), abi).operations()
    assert operation.op_type is EmuOpType.SOFTMAX
    assert (operation.src.address_index, operation.dst.address_index, operation.src.channel) == (3, 4, 16)


def test_a_power_of_2018_is_read_without_alignment(corpus: list[Path]) -> None:
    loadable = load(next(path for path in corpus if path.name == "NN_L0_0_fbuf"))
    (power,) = EmuTask.decode(loadable, loadable.task(0), OLD).operations()
    assert (power.op_type, power.op.power, power.op.scale, power.op.shift) == (EmuOpType.POWER, 1.0, 1.0, 0.0)
    assert (power.src.width, power.src.height, power.src.line_stride) == (28, 28, 896)


def test_a_list_in_several_pieces_is_joined(parts: Any) -> None:
    loadable = parts.loadable()
    whole = bytes(loadable.blob("ops").data)
    blobs = [each for each in loadable.blobs if each.name != "ops"] + [Blob("a", whole[:50]), Blob("b", whole[50:])]
    memories = list(loadable.memories)
    memories[1] = dataclasses.replace(memories[1], contents=("b", "a"), offsets=(50, 0))
    pieces = dataclasses.replace(loadable, blobs=tuple(blobs), memories=tuple(memories))
    task = DlaTask.decode(pieces, pieces.task(0), NEW)
    assert bytes(task.containers) == whole


def test_writable_memory_is_overlaid_without_copies(parts: Any) -> None:
    """A runtime's source hands out memory; what is rewritten there is seen through the descriptors."""
    loadable = parts.loadable()
    lists = {i: np.frombuffer(bytearray(loadable.blobs[i].data), np.uint8) for i in range(5)}

    class Memory:
        name, num_addresses = "task 0", 7

        def read(self, index: int, size: int, what: str) -> Any:
            return memoryview(lists[index][:size])

        def label(self, index: int) -> str:
            return f"region {index}"

    task = DlaTask.decode(loadable, loadable.task(0), NEW, source=Memory())
    lists[2][NEW.ConvSurface.src_data.offset + NEW.DataCube.line_stride.offset] = 0x60
    assert task.operation(0).surface.src_data.line_stride == 0x60


def change(parts: Any, path: str, value: int) -> None:
    """Assign to a nested field: "nodes.0.consumers.2.index"."""
    *steps, last = path.split(".")
    place = parts
    for step in steps:
        place = place[int(step)] if step.isdigit() else getattr(place, step)
    if last.isdigit():
        place[int(last)] = value
    else:
        setattr(place, last, value)


BROKEN = [
    ("network.operation_desc_index", 7, "NetworkDesc.operation_desc_index at byte 0: must be 0 .. 6.*, got 7"),
    ("network.dependency_graph_index", -1, "NetworkDesc.dependency_graph_index at byte 4: must be 0 .. 6.*, got -1"),
    ("network.lut_data_index", -1, "NetworkDesc.lut_data_index at byte 6: must be 0 .. 6.*, got -1"),
    ("network.surface_desc_index", 1, r"SurfaceContainer\[2\], blob 'ops': must end within .*, got 1288 bytes"),
    ("network.num_operations", 3, r"OperationContainer\[3\], blob 'ops': must end within .*, got 348 bytes"),
    ("network.num_operations", 0, "NetworkDesc.num_operations at byte 30: must be at least 1.*, got 0"),
    ("network.num_rois", 0, "NetworkDesc.num_rois at byte 28: must be at least 1.*, got 0"),
    ("network.num_rois", 60000, r"num_operations \* num_rois at byte 30: must be at most 65536.*, got 120000"),
    ("network.num_luts", 60000, "num_luts at byte 32: must be at most 4096.*, got 60000"),
    ("network.dynamic_roi", 1, "NetworkDesc.roi_array_index at byte 8: must be 0 .. 6.*, got -1"),
    ("network.op_head.1", 2, r"NetworkDesc.op_head\[1\] at byte 18: must be -1 .. 1.*, got 2"),
    ("network.op_head.2", 0, r"NetworkDesc.op_head\[2\] at byte 20: type of operation 0: must be 2, got 1"),
    ("nodes.1.op_type", 6, r"op_head\[2\]|CommonOpDesc\[1\].op_type at byte 39: must be 0 .. 5.*, got 6"),
    ("nodes.0.consumers.2.index", 5, r"CommonOpDesc\[0\].consumers\[2\] at byte 16: index: must be -1 .. 1 .*, got 5"),
    ("nodes.0.consumers.2.event", 6, r"CommonOpDesc\[0\].consumers\[2\] at byte 18: event: must be 1 .. 5, got 6"),
    ("nodes.0.consumers.3.index", 1, r"CommonOpDesc\[0\].consumers\[3\] at byte 2\d"),
    ("nodes.1.fused_parent.index", -2, r"CommonOpDesc\[1\].fused_parent at byte 68: index: must be -1 .. 1 .*, got -2"),
    ("ops.1.sdp_op.lut_index", 1, r"blob 'ops', SdpOp\[1\].lut_index at byte 118: must be -1 .. 0 .*, got 1"),
    ("surfaces.0.conv_surface.src_data.address", 7,
     r"ConvSurface\[0\].src_data.address at byte 98: must be -1 .. 6 \(address list\).*, got 7"),
    ("surfaces.1.sdp_surface.dst_data.address", -2,
     r"SdpSurface\[1\].dst_data.address at byte 774: must be -1 .. 6 .*, got -2"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_a_broken_dla_task_is_refused(parts: Any, path: str, value: int, message: str) -> None:
    change(parts, path, value)
    loadable = parts.loadable()
    with pytest.raises(DescriptorError, match=message) as caught:
        DlaTask.decode(loadable, loadable.task(0), NEW)
    assert str(caught.value).startswith("task 0, blob") or "Container" in str(caught.value)


EMU_BROKEN = [
    ("emu_network.operation_desc_index", 9, "EmuNetworkDesc.operation_desc_index at byte 0: must be 0 .. 4.*, got 9"),
    ("emu_network.num_operations", 2, "EmuOperationContainer.2., blob 'emu-ops': must end .*, got 48 bytes"),
    ("emu_ops.0.power_op.common.op_type", 2, r"EmuOperationContainer\[0\].op_type at byte 0: must be 0 POWER.*, got 2"),
    ("emu_buffers.0.dst_data.address_index", 5,
     r"EmuBuffers\[0\].dst_data.address_index at byte 256: must be 0 .. 4.*, got 5"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), EMU_BROKEN)
def test_a_broken_cpu_task_is_refused(parts: Any, path: str, value: int, message: str) -> None:
    change(parts, path, value)
    loadable = parts.loadable()
    with pytest.raises(DescriptorError, match=message):
        EmuTask.decode(loadable, loadable.task(1), NEW)


def test_bdma_transfers_are_checked(parts: Any) -> None:
    parts.nodes[0].op_type, parts.network.op_head[OpType.CONV] = OpType.BDMA, -1
    parts.nodes[0].consumers[OpType.SDP].index = -1
    surface = parts.surfaces[0].bdma_surface
    surface.num_transfers = 21
    surface.transfers[19].destination_address = 7
    loadable = parts.loadable()
    problems = list(dla_problems(DlaTask.overlay(loadable, loadable.task(0), NEW)))
    assert any(
        "transfers[19].destination_address at byte 614: must be -1 .. 6 (address list), got 7" in each
        for each in problems
    )
    assert any("num_transfers at byte 2: must be at most 20, got 21" in each for each in problems)


def test_limits_can_be_raised_and_lowered(parts: Any) -> None:
    loadable = parts.loadable()
    assert DlaTask.decode(loadable, loadable.task(0), NEW, limits=Limits(operations=2, luts=1))
    with pytest.raises(DescriptorError, match=r"must be at most 1 .*, got 2"):
        DlaTask.decode(loadable, loadable.task(0), NEW, limits=Limits(operations=1))
    with pytest.raises(DescriptorError, match=r"task 1: operations up to this task: must be at most 2 .*, got 3"):
        decode_tasks(loadable, NEW, Limits(all_operations=2))


def test_a_task_of_the_other_interface_is_refused(parts: Any) -> None:
    loadable = parts.loadable()
    with pytest.raises(DescriptorError, match="task 1: interface: must be DLA1, got EMU1"):
        DlaTask.decode(loadable, loadable.task(1), NEW)
    with pytest.raises(DescriptorError, match="task 0: interface: must be EMU1, got DLA1"):
        EmuTask.decode(loadable, loadable.task(0), NEW)


def test_lists_of_all_regions_of_interest_are_read(parts: Any) -> None:
    parts.network.num_operations, parts.network.num_rois = 1, 2
    parts.network.op_head[OpType.SDP] = -1
    parts.nodes[1].op_type = OpType.CONV
    for node in parts.nodes:
        node.consumers[OpType.SDP].index = node.fused_parent.index = -1
    parts.surfaces[1].conv_surface.src_data.address = 5
    loadable = parts.loadable()
    task = DlaTask.overlay(loadable, loadable.task(0), NEW)
    assert len(task) == 2
    assert task.operation(0, roi=1).surface.src_data.address == 5
    with pytest.raises(DescriptorError, match=r"operation of ROI 0: must be 0 \.\. 0, got 1"):
        task.operation(1)


def test_every_rule_states_itself() -> None:
    assert all(rule.__doc__ for rule in (*DLA_RULES, *EMU_RULES))
