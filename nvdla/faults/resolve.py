"""From places in words to bytes of memory, steps and registers of one network; what does not exist is refused here."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.errors import ConfigError, FormatError
from nvdla.faults.array import array_of, check_multiplier, check_sum
from nvdla.faults.convolution import ConvolutionFaults, accesses, check_entry
from nvdla.faults.effects import Effect
from nvdla.faults.fault import Fault
from nvdla.faults.network import OperationPlace, StruckNetwork
from nvdla.faults.places import (
    BufferEntry,
    DescriptorByte,
    InputByte,
    LutEntry,
    MemoryByte,
    Multiplier,
    PartialSum,
    RegisterWord,
    SdpOperand,
    SurfaceByte,
    WeightByte,
)
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.lut import LE_ENTRIES, LO_ENTRIES
from nvdla.hardware.machine import ENGINES
from nvdla.hardware.register_file import register_map
from nvdla.hardware.sdp.engine import SdpJob
from nvdla.memory.address_space import Space

TABLES = {"LE": LE_ENTRIES, "LO": LO_ENTRIES}
BLOCKS = ("X1", "X2", "Y")
LISTS = {
    "network": "network",
    "dependencies": "dependencies",
    "operations": "containers",
    "surfaces": "surface_containers",
    "luts": "luts",
}
NOT_SETTINGS = ("S_POINTER", "S_STATUS", "D_OP_ENABLE", "S_LUT_ACCESS_CFG", "S_LUT_ACCESS_DATA")


@dataclass(frozen=True)
class Poke:
    """A byte of memory, struck before step ``first`` (-1: before the firmware reads anything). ``once``: healed after
    that step. ``permanent``: struck again after whatever writes there."""

    space: Space
    address: int
    effect: Effect
    first: int
    once: bool = False
    permanent: bool = False


@dataclass(frozen=True)
class Setting:
    """A register, or an entry of a lookup table, when step ``step`` begins (None: whenever one of the unit does)."""

    unit: str
    name: str
    entry: int
    effect: Effect
    step: int | None


@dataclass
class Resolved:
    """Faults by how they are done. ``needs_firmware``: what the hardware is told may be another thing."""

    pokes: list[Poke] = field(default_factory=list)
    convolutions: dict[int, ConvolutionFaults] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    needs_firmware: bool = False


def resolve(network: StruckNetwork, faults: Sequence[Fault]) -> Resolved:
    """What faults mean for a network. Raises NvdlaError naming the place that does not exist, and the limit."""
    found = Resolved()
    for fault in faults:
        _RESOLVERS[type(fault.where)](network, fault, fault.where, found)
    read = any(network.is_read_by_firmware(network.byte_at(poke.space, poke.address)) for poke in found.pokes)
    found.needs_firmware = read or bool(found.settings)
    return found


def _weight(network: StruckNetwork, fault: Fault, where: WeightByte, found: Resolved) -> None:
    place, conv = _convolution(network, where.operation)
    if not accesses(conv)[1].fetches:
        raise ConfigError(
            f"operation {where.operation} uses the weights that an earlier one has fetched: name that one"
        )
    view = conv.weight_source.views[0]
    _in(where.byte, view.size, f"weights of operation {where.operation}, byte")
    _poke_view(network, fault, view, where.byte, place.step, found, once=not fault.permanent)


def _operand(network: StruckNetwork, fault: Fault, where: SdpOperand, found: Resolved) -> None:
    place = network.place(where.operation)
    if where.block not in BLOCKS:
        raise FormatError(f"SDP block {where.block!r}: must be {', '.join(BLOCKS)}")
    source = place.job.sources[BLOCKS.index(where.block)] if isinstance(place.job, SdpJob) else None
    if source is None:
        raise ConfigError(f"operation {where.operation} takes no operands of {where.block} from memory")
    _in(where.byte, source.view.size, f"operands of operation {where.operation}, byte")
    _poke_view(network, fault, source.view, where.byte, place.step, found, once=not fault.permanent)


def _surface(network: StruckNetwork, fault: Fault, where: SurfaceByte, found: Resolved) -> None:
    place = network.place(where.operation)
    view = place.job.destination
    if view is None:
        raise ConfigError(f"operation {where.operation} hands its result on the fly: it is never in memory")
    _in(where.byte, view.size, f"surface of operation {where.operation}, byte")
    _poke_view(network, fault, view, where.byte, place.step + 1, found)


def _input(network: StruckNetwork, fault: Fault, where: InputByte, found: Resolved) -> None:
    inputs = network.linked.loadable.inputs
    _in(where.input, len(inputs), "input")
    view = network.linked.data(inputs[where.input])
    _in(where.byte, view.size, f"input {where.input}, byte")
    _poke_view(network, fault, view, where.byte, 0, found)


def _memory(network: StruckNetwork, fault: Fault, where: MemoryByte, found: Resolved) -> None:
    try:
        space = Space(where.space.lower())
    except ValueError:
        raise FormatError(f"memory {where.space!r}: must be DRAM or CVSRAM") from None
    network.byte_at(space, where.address)
    first = network.place(where.operation).step if where.operation else 0
    found.pokes.append(Poke(space, where.address, fault.what, first, permanent=fault.permanent))


def _descriptor(network: StruckNetwork, fault: Fault, where: DescriptorByte, found: Resolved) -> None:
    window, size = descriptor_list(network, where.task, where.list)
    _in(where.byte, size, f"{where.list} of task {where.task}, byte")
    space, address = window.region.space, window.address + where.byte
    found.pokes.append(Poke(space, address, fault.what, -1, permanent=False))


def descriptor_list(network: StruckNetwork, number: int, name: str) -> tuple[Any, int]:
    """The window of a list that the firmware reads, and its bytes. Raises FormatError for one that there is not."""
    tasks = [task for task in network.tasks if isinstance(task, FirmwareTask) and task.id == number]
    if not tasks or name not in LISTS:
        raise FormatError(f"descriptors of task {number}, list {name!r}: no such task, or not of {', '.join(LISTS)}")
    decoded = getattr(tasks[0].decoded, LISTS[name])
    description = tasks[0].network
    index = {
        "network": 0,
        "dependencies": description.dependency_graph_index,
        "operations": description.operation_desc_index,
        "surfaces": description.surface_desc_index,
        "luts": description.lut_data_index,
    }[name]
    size = ctypes.sizeof(decoded) if isinstance(decoded, ctypes.Array | ctypes.Structure) else 0
    return (tasks[0].addresses[index] if size else None), size


def _multiplier(network: StruckNetwork, fault: Fault, where: Multiplier, found: Resolved) -> None:
    steps = [network.place(where.operation).step] if where.operation else network.convolutions
    if not where.operation and not where.always:
        raise FormatError(f"{fault}: cells and cycles are of one convolution: say which, operation=task/index")
    if not steps:
        raise ConfigError("the network has no convolution: its MAC array does nothing")
    for step in steps:
        conv = _first_convolution(network, step, where.operation)
        check_multiplier(conv, where)
        bits = 8 * conv.settings.precision.bytes * (2 if where.port == "product" else 1)
        fault.what.check(bits, f"MAC {where.port}")
        multipliers = found.convolutions.setdefault(step, ConvolutionFaults()).array.multipliers
        same = {-1, where.kernel} if where.kernel >= 0 else set(range(-1, array_of(conv).group))
        if any(multiplier.channel == where.channel and multiplier.kernel in same for multiplier, _ in multipliers):
            raise ConfigError(
                f"two faults strike multiplier kernel={where.kernel} channel={where.channel}: one is enough"
            )
        multipliers.append((where, fault.what))


def _sum(network: StruckNetwork, fault: Fault, where: PartialSum, found: Resolved) -> None:
    place, conv = _convolution(network, where.operation)
    check_sum(conv, where)
    found.convolutions.setdefault(place.step, ConvolutionFaults()).array.sums.append((where, fault.what))


def _entry(network: StruckNetwork, fault: Fault, where: BufferEntry, found: Resolved) -> None:
    place, conv = _convolution(network, where.operation)
    check_entry(conv, where)
    steps = [step for step in network.convolutions if step >= place.step] if fault.permanent else [place.step]
    for step in steps:
        found.convolutions.setdefault(step, ConvolutionFaults()).entries.append((where, fault.what))


def _lut(network: StruckNetwork, fault: Fault, where: LutEntry, found: Resolved) -> None:
    if where.unit not in ("SDP", "CDP") or where.table not in TABLES:
        raise FormatError(f"LUT {where.unit} {where.table}: units are SDP and CDP, tables LE and LO")
    _in(where.entry, TABLES[where.table], f"LUT {where.unit} {where.table}, entry")
    _set(network, fault, where.operation, (where.unit, where.table, where.entry), found)


def _register(network: StruckNetwork, fault: Fault, where: RegisterWord, found: Resolved) -> None:
    config = next(iter(network.places.values())).operation.config
    register_map(config.register_map).register(where.unit, where.register)
    if engine_of(where.unit) is None or where.register in NOT_SETTINGS:
        raise ConfigError(f"{where.unit}.{where.register} is no setting of an operation: it cannot be struck here")
    _set(network, fault, where.operation, (where.unit, where.register, 0), found)


def _set(network: StruckNetwork, fault: Fault, operation: str, what: tuple[str, str, int], found: Resolved) -> None:
    if not operation and fault.what.kind == "flip":
        raise FormatError(f"{fault}: a bit that is wrong at every operation is stuck: stuck0 or stuck1, not flip")
    step = None
    if operation:
        place = network.place(operation)
        step, engine = place.step, place.operation.type.name.lower()
        if engine != engine_of(what[0]):
            raise ConfigError(f"operation {operation} is done by {engine}, which has no unit {what[0]}")
    found.settings.append(Setting(*what, fault.what, step))


def engine_of(unit: str) -> str | None:
    """The engine that a unit belongs to."""
    return next((name for name, link in ENGINES.items() if unit in link.units), None)


def _convolution(network: StruckNetwork, operation: str) -> tuple[OperationPlace, ConvolutionJob]:
    place = network.place(operation)
    return place, _first_convolution(network, place.step, operation, place.job)


def _first_convolution(network: StruckNetwork, step: int, operation: str, job: Any = None) -> ConvolutionJob:
    conv = network.steps[step].jobs[0] if job is None else job  # type: ignore[union-attr]
    if not isinstance(conv, ConvolutionJob):
        raise ConfigError(f"operation {operation} is no convolution")
    return conv


def _poke_view(
    network: StruckNetwork, fault: Fault, view: np.ndarray, byte: int, first: int, found: Resolved, once: bool = False
) -> None:
    """Strike byte ``byte``, in the order of the array, of a view on memory."""
    space, address = address_of(network, view, byte)
    found.pokes.append(Poke(space, address, fault.what, first, once, fault.permanent))


def address_of(network: StruckNetwork, view: np.ndarray, byte: int) -> tuple[Space, int]:
    """The address of a byte, in the order of the array, of a view on memory."""
    place = np.unravel_index(byte, view.shape)
    offset = sum(int(at) * stride for at, stride in zip(place, view.strides, strict=True))
    pointer = view.ctypes.data + offset
    for region in network.linked.regions.values():
        start = region.data.ctypes.data
        if start <= pointer < start + region.size:
            return region.space, region.base + pointer - start
    raise ConfigError("the byte lies in no memory of the loadable")


def _in(value: int, limit: int, what: str) -> None:
    if not 0 <= value < limit:
        raise FormatError(f"{what} {value}: must be 0 .. {limit - 1}" if limit else f"{what} {value}: there is none")


_RESOLVERS: dict[type, Any] = {
    WeightByte: _weight,
    InputByte: _input,
    SurfaceByte: _surface,
    MemoryByte: _memory,
    SdpOperand: _operand,
    BufferEntry: _entry,
    Multiplier: _multiplier,
    PartialSum: _sum,
    LutEntry: _lut,
    RegisterWord: _register,
    DescriptorByte: _descriptor,
}
