"""A loadable as matching sees it: units of work that hand values to one another.

A unit is a convolution with the SDP behind it, or one operation of another engine. Values are those of
:mod:`nvdla.program.values`, by id; what goes on the fly between the units of a chain has negative ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nvdla.descriptors.enums import Activation, ConvMode, DataFormat, SdpMode, SdpType
from nvdla.program.operation import Key, Operation
from nvdla.program.program import Program
from nvdla.program.values import Value, values_of

STAGES = ("x1", "x2", "y")


@dataclass(frozen=True)
class Features:
    """What the SDP of a unit does: constants added or multiplied (a channel, or an element), an activation, how many
    operands it takes from other operations' results; ``layer``: one number for all."""

    adds: bool = False
    multiplies: bool = False
    layer: bool = False
    relu: bool = False
    lut: bool = False

    @property
    def copies(self) -> bool:
        """Nothing is computed."""
        return not (self.adds or self.multiplies or self.relu or self.lut)


@dataclass(frozen=True)
class Unit:
    """``operations``, the first of which gives the ``kind``; ``source``: values that it reads, by address; ``others``:
    values of each further operand that is data; ``made``: values that it writes; ``of``: who takes them and how:
    (kind of unit, "src" or "operand"), or ("output", "")."""

    operations: tuple[Operation, ...]
    kind: str
    source: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    made: tuple[int, ...]
    features: Features

    @property
    def first(self) -> Operation:
        """The operation that reads the source."""
        return self.operations[0]

    @property
    def last(self) -> Operation:
        """The operation that makes the result."""
        return self.operations[-1]

    @property
    def plain(self) -> bool:
        """A convolution whose kernels stand in the descriptor as the model has them."""
        op = self.first.op
        return bool(op.data_format == DataFormat.FEATURE and not self.winograd)

    @property
    def winograd(self) -> bool:
        """A convolution by Winograd's method, which makes blocks of 4 x 4."""
        return bool(self.first.op.conv_mode == ConvMode.WINOGRAD)


@dataclass(frozen=True)
class Flow:
    """``units`` in order; ``values`` by id (those on the fly have none); ``takers``: who takes each value."""

    units: list[Unit]
    values: dict[int, Value]
    takers: dict[int, list[tuple[str, str]]]


def flow_of(program: Program) -> Flow:
    """The units of a program and the values between them."""
    chains = program.chains
    values = values_of(program.loadable, chains)
    read: dict[tuple[Key, str], list[Value]] = defaultdict(list)
    written: dict[Key, list[int]] = defaultdict(list)
    for value in values:
        for key, role in value.readers:
            read[key, role].append(value)
        if value.writer is not None:
            written[value.writer].append(value.id)
    for operation in program.operations:
        for access in operation.reads:
            if not read[operation.key, access.role]:  # behind the end of a memory, where nothing is
                read[operation.key, access.role] = [value for value in values if value.memory == access.memory][:1]
    units: list[Unit] = []
    for chain in chains:
        units += _units(chain, read, written, -1 - len(units))
    takers: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for unit in units:
        for number in unit.source:
            takers[number].append((unit.kind, "src"))
        for number in (each for other in unit.others for each in other):
            takers[number].append((unit.kind, "operand"))
    for value in values:
        if value.kind == "output":
            takers[value.id].append(("output", ""))
    return Flow(units, {value.id: value for value in values}, takers)


def _units(
    chain: Sequence[Operation], read: dict[tuple[Key, str], list[Value]], written: dict[Key, list[int]], flying: int
) -> list[Unit]:
    """The units of a chain; ``flying``: the first id for what goes from one to the next on the fly."""
    groups: list[list[Operation]] = []
    for operation in chain:
        if operation.engine == "sdp" and groups and groups[-1][0].engine == "conv":
            groups[-1].append(operation)
        else:
            groups.append([operation])
    units = []
    for place, group in enumerate(groups):
        source = (flying - place + 1,) if place else _source(group[0], read)
        made = tuple(written[group[-1].key]) if place == len(groups) - 1 else (flying - place,)
        sdp = group[-1] if group[-1].engine == "sdp" else None
        others = _data_operands(sdp, read) if sdp else ()
        units.append(Unit(tuple(group), group[0].engine, source, others, made, _features(sdp, read)))
    return units


def _source(operation: Operation, read: dict[tuple[Key, str], list[Value]]) -> tuple[int, ...]:
    """Data that it reads, in the order of their addresses."""
    roles = {access.role for access in operation.reads}
    if operation.engine in ("conv", "sdp", "pdp", "cdp", "rubik", "cpu"):
        roles = {role for role in roles if role.startswith("src")}
    found = [value for role in sorted(roles) for value in read[operation.key, role]]
    found.sort(key=lambda value: (value.memory, value.offset))
    return tuple(dict.fromkeys(value.id for value in found))


def _data_operands(sdp: Operation, read: dict[tuple[Key, str], list[Value]]) -> tuple[tuple[int, ...], ...]:
    """Operands that are results, not constants of the file."""
    found = []
    for stage in STAGES:
        values = [value for value in read[sdp.key, stage] if value.kind != "constant"]
        if values and getattr(sdp.op, f"{stage}_op").mode == SdpMode.PER_POINT:
            found.append(tuple(value.id for value in sorted(values, key=lambda each: (each.memory, each.offset))))
    return tuple(found)


def _features(sdp: Operation | None, read: dict[tuple[Key, str], list[Value]]) -> Features:
    if sdp is None:
        return Features()
    adds = multiplies = layer = relu = lut = False
    for name in STAGES:
        stage = getattr(sdp.op, f"{name}_op")
        if not stage.enable:
            continue
        relu |= stage.act in (Activation.RELU, Activation.PRELU)
        lut |= stage.act == Activation.LUT
        data = stage.mode == SdpMode.PER_POINT and any(each.kind != "constant" for each in read[sdp.key, name])
        if data:
            continue
        layer |= stage.mode == SdpMode.PER_LAYER and stage.type != SdpType.NONE
        adds |= stage.type in (SdpType.ADD, SdpType.BOTH)
        multiplies |= stage.type in (SdpType.MUL, SdpType.BOTH)
    return Features(adds, multiplies, layer, relu, lut)
