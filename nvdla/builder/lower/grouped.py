"""Convolutions of groups, depthwise ones among them: how many groups one dense convolution takes.

The accelerator knows dense convolutions only, so the weights between groups are zeros that are fetched and multiplied.
Few groups together waste fewer products; many fill the MAC cells and need fewer operations. The cycle model is asked.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any

from nvdla.analysis.alternatives import PARTS, Geometry, alternatives
from nvdla.analysis.cycles.queue import queue_cycles
from nvdla.builder.ir import BYTES, GroupsChoice, GroupsForm
from nvdla.builder.shapes import reach
from nvdla.builder.weigh import GAIN
from nvdla.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.builder.groups import Group
    from nvdla.builder.lower.lowering import Lowering

SIMULATED = 8
"""Convolutions of a layer that the model is asked of; each two of the others take what the last two of them add."""


def groups_together(lowering: Lowering, group: Group) -> int:
    """How many groups of a convolution one dense convolution takes; from level 1 on the number that is fastest."""
    layer = group.layer
    if layer.groups == 1:
        return 1
    ins, outs = layer.inputs[0].shape[0] // layer.groups, group.output.shape[0] // layer.groups
    least, usual = _aligned(lowering, ins, outs)
    if not lowering.level:
        return usual
    sizes = {min(least, layer.groups), min(usual, layer.groups), min(2 * usual, layer.groups)}
    forms = [form for size in sorted(sizes) if (form := _weighed(lowering, group, size)) is not None]
    if not forms:
        return usual
    taken = min(range(len(forms)), key=lambda at: forms[at].cycles * (GAIN if forms[at].groups == usual else 1))
    lowering.grouped.append(GroupsChoice(group.name, layer.groups, tuple(forms), taken))
    return forms[taken].groups


def _aligned(lowering: Lowering, ins: int, outs: int) -> tuple[int, int]:
    """The fewest groups of which every part but the last fills whole atoms, and as many as fill a MAC cell."""
    atom = lowering.atom_channels
    least = lcm(lcm(ins, atom) // ins, lcm(outs, atom) // outs)
    return least, least * max(1, lowering.config.mac_atomic_c // (least * ins))


def _weighed(lowering: Lowering, group: Group, size: int) -> GroupsForm | None:
    """So many groups together: all of the layer in a queue of its own; None where one does not fit the buffer."""
    geometry, config = _geometry(group.layer, group, size, lowering.precision), lowering.config
    memory = lowering.weigher.memory
    found = alternatives(geometry, config, memory, numbers=(*PARTS, 2 * PARTS[-1]), thorough=False)
    if not found:
        return None
    count = ceil_div(group.layer.groups, size)
    one = [geometry.chain(part, found[0], number == 0, config) for number, part in enumerate(found[0].parts)]
    counts = [min(count, SIMULATED - 2), min(count, SIMULATED)]
    fewer, more = (queue_cycles(one * each, config, memory, element_bytes=geometry.element_bytes) for each in counts)
    rest = (count - counts[1]) * (more - fewer) // 2
    return GroupsForm(size, count, more + rest)


def _geometry(layer: Any, group: Group, size: int, precision: str) -> Geometry:
    source, result = layer.inputs[0].shape, group.output.shape
    rows, columns = layer.weights.shape[2:]
    return Geometry(
        (source[0] * size // layer.groups, *source[1:]),
        (result[0] * size // layer.groups, *result[1:]),
        (rows, columns),
        reach(rows, layer.dilation[0]),
        layer.stride[0],
        layer.padding[0],
        group.summand is not None,
        BYTES[precision],
    )
