"""Weights without their zeros, which nv_full fetches and fills in again (programming guide, "Strategy selection").

A bit an element says whether it is stored. The bits lie in the last bank of the convolution buffer, so data and weights
share one bank less; the bits of a kernel group and an entry more must fit it.
"""

from __future__ import annotations

from nvdla.analysis.alternatives import StoredWeights
from nvdla.builder.cbuf import kernel_group, rounded
from nvdla.builder.ir import BYTES, Convolve
from nvdla.hardware.configuration import Configuration
from nvdla.memory.weights import stored_counts
from nvdla.rounding import align, ceil_div

MASK_ALIGNMENT = 128
"""Bytes that the mask is a multiple of."""
SIZE_BYTES = 4
"""Of the size of a kernel group."""


def stored_weights(operation: Convolve, config: Configuration) -> StoredWeights | None:
    """What a convolution's weights take without their zeros; None where that is not less, or cannot be done.

    Images have few weights; transformed weights (Winograd) are not the zeros that were there.
    """
    if not config.weight_compression or operation.winograd or operation.source.root.pixels is not None:
        return None
    element = BYTES[operation.source.precision]
    group = kernel_group(config, operation.source.precision)
    each = operation.weights[0].size
    entry, bank = config.cbuf_entry_bytes, config.cbuf_bank_bytes
    if ceil_div(min(group, len(operation.weights)) * each, 8) + entry > bank:
        return None
    counts = stored_counts(operation.nonzero, group) * element
    whole = rounded(int(counts.sum()), config)
    mask = align(ceil_div(operation.weights.size, 8), MASK_ALIGNMENT)
    traffic = whole + mask + SIZE_BYTES * len(counts)
    if traffic >= rounded(operation.weights.size * element, config):
        return None
    # A group may begin within an entry.
    return StoredWeights(whole, rounded(int(counts.max()), config) + entry, traffic, mask)
