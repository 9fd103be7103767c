"""A network with every kind of layer that a batch, or a second caller, must get right."""

from __future__ import annotations

import numpy as np

from nvdla.compiler.builder import Network


def branching_network():
    """Convolutions that are plain, grouped, dilated and fully connected; pooling on the fly and from memory; a residual
    sum, local response normalization, a concatenation and the softmax of a CPU task."""
    random = np.random.default_rng(5)

    def weights(kernels, channels, size):
        return random.standard_normal((kernels, channels, size, size)) / np.sqrt(channels * size * size)

    net = Network("branches")
    x = net.relu("r1", net.convolution("c1", net.input("data", (3, 17, 17)), weights(16, 3, 3), padding=1))
    pooled = net.max_pool("p1", x, 3, 2)
    side = net.average_pool("p2", pooled, 3, 1, 1)
    main = net.relu("r2", net.convolution("c2", pooled, weights(16, 16, 3), padding=2, dilation=2))
    x = net.relu("r3", net.add("sum", main, net.convolution("c3", side, weights(16, 8, 1), groups=2)))
    x = net.concat("joined", net.lrn("norm", x), pooled)
    net.output(net.softmax("prob", net.fully_connected("fc", x, weights(10, 32, 8).reshape(10, -1))))
    return net
