"""The model without a loadable: an operation from its numbers, and a queue of operations as the firmware runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvdla.analysis.cycles.constants import CycleConstants, Memory, Software, constants
from nvdla.analysis.cycles.model import Time, chain_time
from nvdla.analysis.cycles.schedule import ChainWork, schedule
from nvdla.analysis.cycles.shapes import ChainShape, ConvolutionShape, SdpShape
from nvdla.errors import ConfigError
from nvdla.hardware.configuration import Configuration
from nvdla.program.operation import Key
from nvdla.rounding import ceil_div

MAX_CHAINS = 1 << 16
WEIGHT_PADDING = 128  # bytes: the builder's, and what CSC needs where banks stay the same


def convolution(
    config: Configuration,
    input_shape: tuple[int, int, int],
    output_shape: tuple[int, int, int],
    kernel: tuple[int, int],
    *,
    data_banks: int,
    weight_banks: int,
    reads_data: bool = True,
    reads_weights: bool = True,
    sums: bool = False,
    element_bytes: int = 1,
) -> ChainShape:
    """A direct convolution on feature data with the SDP behind it that adds a bias.

    Shapes are (channels, height, width) of the cubes in memory, ``kernel`` is (height, width). ``reads_data`` and
    ``reads_weights``: False where the buffer still has them; ``sums``: a second cube is added on the fly (X2).
    """
    channels, height, width = input_shape
    kernels, out_height, out_width = output_shape
    atom = config.memory_atom
    atoms, surfaces = ceil_div(channels * element_bytes, atom), ceil_div(kernels * element_bytes, atom)
    written = out_width * out_height * surfaces * atom
    weights = ceil_div(kernels * channels * kernel[0] * kernel[1] * element_bytes, WEIGHT_PADDING) * WEIGHT_PADDING
    conv = ConvolutionShape(
        out_width=out_width,
        out_height=out_height,
        kernels=kernels,
        kernel_width=kernel[1],
        kernel_height=kernel[0],
        kernel_channels=channels,
        data_bytes=width * height * atoms * atom if reads_data else 0,
        weight_bytes=weights if reads_weights else 0,
        weight_banks=weight_banks,
        data_atoms=atoms,
        data_banks=data_banks,
        slices=height,
        entries_per_slice=ceil_div(width * atoms * atom, config.cbuf_entry_bytes),
        element_bytes=element_bytes,
    )
    sdp = SdpShape(out_width, out_height, surfaces, 1 + sums, False, 0, written if sums else 0, written)
    return ChainShape(conv=conv, sdp=sdp)


def operation_cycles(
    chain: ChainShape, config: Configuration, memory: Memory | None = None, element_bytes: int = 1
) -> Time:
    """The chain alone: cycles from its enabling to its interrupt, and what bounds it."""
    return chain_time(chain, constants(config, element_bytes), memory or Memory())


def queue_cycles(
    chains: Sequence[ChainShape],
    config: Configuration,
    memory: Memory | None = None,
    after: Sequence[Sequence[int]] | None = None,
    software: Software | None = None,
    element_bytes: int = 1,
) -> int:
    """Cycles of the whole queue, from the first register write to the last interrupt.

    ``after``: for each chain the places of those that must be complete before it is enabled (earlier ones; None:
    all independent). Raises ConfigError for places that are not before it, and for more than MAX_CHAINS chains.
    """
    if len(chains) > MAX_CHAINS:
        raise ConfigError(f"{len(chains)} chains in a queue: must be at most {MAX_CHAINS}")
    waits = after or [()] * len(chains)
    for place, mine in enumerate(waits):
        wrong = [each for each in mine if not 0 <= each < place]
        if wrong:
            raise ConfigError(f"chain {place} waits for {wrong[0]}: must be one before it")
    values = constants(config, element_bytes)
    works = _works(list(chains), [sorted(set(mine)) for mine in waits], values)
    return schedule(works, memory or Memory(), software).cycles


@dataclass(frozen=True)
class _Wait:
    target: Key
    event: str
    on_the_fly: bool = False


@dataclass(frozen=True)
class _Operation:
    """A unit's part of a chain, as the schedule asks for it."""

    key: Key
    engine: str
    queue: int
    takes_on_the_fly: bool
    gives_on_the_fly: bool
    dependencies: tuple[_Wait, ...]
    waits_for: int
    op: Any = None


UNITS = {"conv": "conv", "sdp": "sdp", "pdp": "pdp", "cdp": "cdp", "copy": "rubik"}


def _works(chains: list[ChainShape], waits: list[list[int]], values: CycleConstants) -> list[ChainWork]:
    """The queue as the firmware's graph: a chain's units are enabled from the last to the first."""
    units = [[unit for unit in UNITS if getattr(chain, unit) is not None] for chain in chains]
    keys, number = [], 0
    for mine in units:
        keys.append([(0, 0, number + place) for place in range(len(mine))])
        number += len(mine)
    waiting: dict[int, list[Key]] = {}
    for place, earlier in enumerate(waits):
        for each in earlier:
            waiting.setdefault(each, []).append(keys[place][-1])
    queues = dict.fromkeys(UNITS, 0)
    works = []
    for place, chain in enumerate(chains):
        nodes = []
        for at, unit in enumerate(units[place]):
            last = at == len(units[place]) - 1
            ends = [_Wait(key, "OP_COMPLETED") for key in waiting.get(place, ())] if last else []
            starts = [_Wait(keys[place][at - 1], "OP_ENABLED", True)] if at else []
            behind = len(waits[place]) if last else 1
            made = _Operation(
                keys[place][at], UNITS[unit], queues[unit], at > 0, not last, tuple(ends + starts), behind
            )
            nodes.append(made)
            queues[unit] += 1
        works.append(ChainWork(nodes, chain, values))
    return works
