"""Batches whose weights do not fit the convolution buffer: all images take a part of the kernels, then the next part.

Whole layers fetch all weights for each image. In parts that stay in the buffer from image to image they are fetched
once, and the images' data once for each part: less where the data are smaller, as at the end of most networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from nvdla.builder.cbuf import entries_per_slice, kernel_bytes, kernel_group
from nvdla.builder.ir import BYTES, Convolve, LoweredProgram, Operation, Pool, reads, writes
from nvdla.builder.schedule import of_channels
from nvdla.hardware.configuration import Configuration
from nvdla.rounding import ceil_div

SHARES = (1, 2)
"""Parts fill the room for weights, or half of it, so that the next part can be fetched meanwhile."""


def programs_in_parts(program: LoweredProgram, config: Configuration, images: int) -> Iterator[LoweredProgram]:
    """The program with such layers in parts of kernels, for each of SHARES; nothing where there are none."""
    for share in SHARES:
        operations = [part for each in _alone(program) for part in _parts(*each, config, images, share)]
        if len(operations) > len(program.operations):
            yield replace(program, operations=operations)


def _alone(program: LoweredProgram) -> Iterator[tuple[Operation, bool]]:
    """Operations, and whether each is one of its own: none that a pool may take on the fly."""
    for position, each in enumerate(program.operations):
        after = program.operations[position + 1] if position + 1 < len(program.operations) else None
        yield each, not (isinstance(after, Pool) and reads(after)[0].root is writes(each).root)


def _parts(operation: Operation, alone: bool, config: Configuration, images: int, share: int) -> list[Operation]:
    """A convolution in parts of kernels that stay in the buffer; anything else as it is."""
    if not alone or not isinstance(operation, Convolve) or operation.winograd or operation.source.root.pixels:
        return [operation]
    source, size, total = operation.source, kernel_bytes(operation), len(operation.weights)
    line = entries_per_slice(source.channels, source.width, source.precision, config)
    room = (config.cbuf_banks - ceil_div(line * source.height, config.cbuf_bank_entries)) * config.cbuf_bank_bytes
    element = BYTES[source.precision]
    multiple = lcm(kernel_group(config, source.precision), config.memory_atom // element)
    count = room // share // (multiple * size) * multiple
    if count <= 0 or total * size <= room:
        return [operation]
    data = source.channels * source.height * source.width * element
    if (images - 1) * total * size <= (ceil_div(total, count) - 1) * images * data:
        return [operation]
    firsts = range(0, total, count)
    return [
        replace(
            operation,
            weights=operation.weights[first : first + count],
            process=of_channels(operation.process, first, min(count, total - first)),
        )
        for first in firsts
    ]
