"""Checks of decoded tasks: every index in a descriptor refers to something that exists.

Each rule is a generator of messages with a docstring that states it. What an engine can do with the numbers
(sizes, strides, formats) is the firmware layer's to judge; here only references are followed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nvdla.descriptors.enums import EmuOpType, Event, OpType
from nvdla.descriptors.structures import MAX_BDMA_TRANSFERS, NUM_OP_TYPES
from nvdla.errors import DescriptorError

if TYPE_CHECKING:
    from nvdla.descriptors.task import DlaTask, EmuTask

DLA_RULES: list[Callable[[DlaTask], Iterator[str]]] = []
EMU_RULES: list[Callable[[EmuTask], Iterator[str]]] = []


def dla_rule(function: Callable[[DlaTask], Iterator[str]]) -> Callable[[DlaTask], Iterator[str]]:
    """Add a rule about DLA tasks to DLA_RULES."""
    DLA_RULES.append(function)
    return function


def emu_rule(function: Callable[[EmuTask], Iterator[str]]) -> Callable[[EmuTask], Iterator[str]]:
    """Add a rule about CPU tasks to EMU_RULES."""
    EMU_RULES.append(function)
    return function


def dla_problems(task: DlaTask) -> Iterator[str]:
    """Every rule that a DLA task breaks, one line each."""
    for rule in DLA_RULES:
        yield from rule(task)


def emu_problems(task: EmuTask) -> Iterator[str]:
    """Every rule that a CPU task breaks, one line each."""
    for rule in EMU_RULES:
        yield from rule(task)


def check_dla_task(task: DlaTask) -> None:
    """Raise DescriptorError for the first rule that the task breaks."""
    for problem in dla_problems(task):
        raise DescriptorError(problem)


def check_emu_task(task: EmuTask) -> None:
    """Raise DescriptorError for the first rule that the task breaks."""
    for problem in emu_problems(task):
        raise DescriptorError(problem)


def _at(structure: Any, position: int, *path: str | int) -> int:
    """Byte of a field in its list; ``path`` walks nested fields and array positions."""
    offset, kind = position * ctypes.sizeof(structure), type(structure)
    for part in path:
        if isinstance(part, int):
            kind = kind._type_
            offset += part * ctypes.sizeof(kind)
        else:
            offset += getattr(kind, part).offset
            kind = dict(kind._fields_)[part]
    return offset


@dla_rule
def network_counts_are_positive(task: DlaTask) -> Iterator[str]:
    """A DLA task has at least one operation and one ROI."""
    for name in ("num_operations", "num_rois"):
        if getattr(task.network, name) < 1:
            offset = getattr(type(task.network), name).offset
            yield f"{task.where_network(name)}at byte {offset}: 0, must be at least 1"


@dla_rule
def regions_of_interest_are_static(task: DlaTask) -> Iterator[str]:
    """With dynamic ROIs the network descriptor points at the ROI array and at the surface list."""
    if task.network.dynamic_roi:
        for name in ("roi_array_index", "surface_index"):
            index = getattr(task.network, name)
            if not 0 <= index < task.source.num_addresses:
                offset = getattr(type(task.network), name).offset
                limit = f"0 .. {task.source.num_addresses - 1} (address list)"
                yield f"{task.where_network(name)}at byte {offset}: {index}, must be {limit}"


@dla_rule
def heads_are_operations_of_their_type(task: DlaTask) -> Iterator[str]:
    """op_head[type] is -1 or an operation of that type."""
    count = task.network.num_operations
    for op_type, head in enumerate(task.network.op_head):
        where = f"{task.where_network(f'op_head[{op_type}]')}at byte {_at(task.network, 0, 'op_head', op_type)}"
        if not -1 <= head < count:
            yield f"{where}: {head}, must be -1 .. {count - 1} (num_operations)"
        elif head >= 0 and task.dependencies[head].op_type != op_type:
            yield f"{where}: operation {head} is of type {task.dependencies[head].op_type}, must be {op_type}"


@dla_rule
def operations_have_a_known_type(task: DlaTask) -> Iterator[str]:
    """op_type is one of the six processors."""
    for position, common in enumerate(task.dependencies):
        if common.op_type >= NUM_OP_TYPES:
            where = task.where("dependency_graph_index", position, common, "op_type")
            offset = _at(common, position, "op_type")
            yield f"{where}at byte {offset}: {common.op_type}, must be 0 .. {NUM_OP_TYPES - 1}"


@dla_rule
def consumers_exist(task: DlaTask) -> Iterator[str]:
    """A consumer is nobody (-1) or an operation, of the type of its slot, that waits for a known event.

    The fused parent is the same without a slot.
    """
    for position, common in enumerate(task.dependencies):
        for slot in range(NUM_OP_TYPES):
            yield from _consumer(task, position, common, slot)
        yield from _consumer(task, position, common, None)


def _consumer(task: DlaTask, position: int, common: Any, slot: int | None) -> Iterator[str]:
    name = "fused_parent" if slot is None else f"consumers[{slot}]"
    path = ("fused_parent",) if slot is None else ("consumers", slot)
    consumer = common.fused_parent if slot is None else common.consumers[slot]
    if consumer.index == -1:
        return
    count = task.network.num_operations
    where = task.where("dependency_graph_index", position, common, name)
    if not 0 <= consumer.index < count:
        yield (
            f"{where}at byte {_at(common, position, *path)}: index {consumer.index}, "
            f"must be -1 .. {count - 1} (num_operations)"
        )
        return
    if not Event.OP_COMPLETED <= consumer.event <= Event.CDMA_DT_DONE:
        offset = _at(common, position, *path, "event")
        yield f"{where}at byte {offset}: event {consumer.event}, must be 1 .. {int(Event.CDMA_DT_DONE)}"
    found = task.dependencies[consumer.index].op_type
    if slot is not None and found != slot:
        offset = _at(common, position, *path)
        yield f"{where}at byte {offset}: operation {consumer.index} is of type {found}, must be {slot} (its slot)"


@dla_rule
def luts_exist(task: DlaTask) -> Iterator[str]:
    """lut_index of an SDP or CDP operation is -1 or less than num_luts."""
    for position, common in enumerate(task.dependencies):
        if common.op_type not in (OpType.SDP, OpType.CDP):
            continue
        container = task.containers[position]
        op = container.sdp_op if common.op_type == OpType.SDP else container.cdp_op
        if not -1 <= op.lut_index < len(task.luts):
            where = task.where("operation_desc_index", position, op, "lut_index")
            offset = position * ctypes.sizeof(container) + type(op).lut_index.offset
            yield f"{where}at byte {offset}: {op.lut_index}, must be -1 .. {len(task.luts) - 1} (num_luts)"


@dla_rule
def surfaces_lie_behind_addresses(task: DlaTask) -> Iterator[str]:
    """Every data cube's address index, and every BDMA transfer's, is -1 or within the task's address list."""
    limit = task.source.num_addresses
    for position, common in enumerate(task.dependencies):
        if common.op_type >= NUM_OP_TYPES:
            continue
        container = task.surface_containers[position]
        for surface, offset, name, index in _surface_addresses(container, common.op_type):
            if not -1 <= index < limit:
                where = task.where("surface_desc_index", position, surface, name)
                byte = position * ctypes.sizeof(container) + offset
                yield f"{where}at byte {byte}: {index}, must be -1 .. {limit - 1} (address list)"


def _surface_addresses(container: Any, op_type: int) -> Iterator[tuple[Any, int, str, int]]:
    """(surface, byte in container, field name, address index) of each address in a surface container."""
    if op_type == OpType.BDMA:
        surface = container.bdma_surface
        for number in range(min(surface.num_transfers, MAX_BDMA_TRANSFERS)):
            transfer = surface.transfers[number]
            for name in ("source_address", "destination_address"):
                offset = _at(surface, 0, "transfers", number, name)
                yield surface, offset, f"transfers[{number}].{name}", getattr(transfer, name)
        return
    surface = getattr(container, f"{OpType(op_type).name.lower()}_surface")
    for name, *_ in surface._fields_:
        if name.endswith("_data"):
            yield surface, _at(surface, 0, name, "address"), f"{name}.address", getattr(surface, name).address


@dla_rule
def transfers_fit_their_list(task: DlaTask) -> Iterator[str]:
    """A BDMA surface descriptor has at most 20 transfers."""
    for position, common in enumerate(task.dependencies):
        if common.op_type == OpType.BDMA:
            surface = task.surface_containers[position].bdma_surface
            if surface.num_transfers > MAX_BDMA_TRANSFERS:
                where = task.where("surface_desc_index", position, surface, "num_transfers")
                offset = position * ctypes.sizeof(task.surface_containers[position]) + 2
                yield f"{where}at byte {offset}: {surface.num_transfers}, must be at most {MAX_BDMA_TRANSFERS}"


@emu_rule
def cpu_operations_are_known(task: EmuTask) -> Iterator[str]:
    """A CPU operation is power or softmax."""
    for position, container in enumerate(task.containers):
        op_type = container.power_op.common.op_type
        if not EmuOpType(op_type).known:
            where = task.where("operation_desc_index", position, container, "op_type")
            offset = position * ctypes.sizeof(container)
            yield f"{where}at byte {offset}: {op_type}, must be {EmuOpType.choices()}"


@emu_rule
def cpu_buffers_lie_behind_addresses(task: EmuTask) -> Iterator[str]:
    """The address index of each buffer is within the task's address list."""
    limit = task.source.num_addresses
    for position, buffers in enumerate(task.buffers):
        for name in ("src_data", "dst_data"):
            index = getattr(buffers, name).address_index
            if not 0 <= index < limit:
                where = task.where("operation_buffer_desc_index", position, buffers, f"{name}.address_index")
                offset = _at(buffers, position, name, "address_index")
                yield f"{where}at byte {offset}: {index}, must be 0 .. {limit - 1} (address list)"
