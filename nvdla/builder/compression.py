"""Weights without their zeros, which nv_full fetches and fills in again (programming guide, "Strategy selection").

A bit an element says whether it is stored. The bits lie in the last bank of the convolution buffer, so data and weights
share one bank less.
"""

from __future__ import annotations

import numpy as np

from nvdla.analysis.alternatives import StoredWeights, compressed
from nvdla.builder.cbuf import kernel_group
from nvdla.builder.ir import BYTES, Convolve
from nvdla.hardware.configuration import Configuration


def stored_weights(operation: Convolve, config: Configuration) -> StoredWeights | None:
    """What a convolution's weights take without their zeros; None where that is not less, or cannot be done.

    Images have few weights; transformed weights (Winograd) are not the zeros that were there.
    """
    if not config.weight_compression or operation.winograd or operation.source.root.pixels is not None:
        return None
    precision, kernels = operation.source.precision, len(operation.weights)
    group = kernel_group(config, precision)
    nonzero = np.add.reduceat(operation.nonzero, np.arange(0, kernels, group))
    most = min(group, kernels) * operation.weights[0].size
    return compressed(nonzero, operation.weights.size, most, BYTES[precision], config)
