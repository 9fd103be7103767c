"""Kernels compiled ahead: small networks that need what real ones need are built and run once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvdla.compiler.builder import Network, build, calibrate
from nvdla.compiler.builder.layers import NetworkTensor
from nvdla.emulator.execution.steps import OperationEvent
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import BuildError
from nvdla.kernels.jit.cache_folder import kept_kernels
from nvdla.kernels.jit.compilation import fallback_work
from nvdla.runtime import Runtime
from nvdla.util.precision import Precision

BATCH = 4
TARGETS = (("nv_small", Precision.INT8), ("nv_large", Precision.INT8), ("nv_full", Precision.FP16))
"""Configurations and precisions: the size of an atom and the kind of numbers decide about kernels."""


def warm_up(threads: int | None = None) -> Iterator[tuple[str, int]]:
    """Compile the usual kernels, those that are kept are only loaded; after each part its name and how many are kept.

    Kernels are specialized by what they are called with: each of :data:`TARGETS` runs a large network (work that all
    cores share) and a small one, job by job, an image at a time and in a batch; plain forms are not taken from now on.
    """
    fallback_work.end()
    for config, precision in TARGETS:
        for size in (12, 40):
            runtime, surface = _made(_network(size), config, precision, threads)
            for observer in (_ignore, None, None):
                runtime.run_raw([surface], on_operation=observer)
            runtime.run_many([[surface]] * BATCH)
            yield f"{config} {precision} {size}x{size}", len(kept_kernels())


def _ignore(event: OperationEvent) -> None:
    """Ignore an event; an observed run does every job separately."""


def warm_up_engines(config: str, threads: int | None = None) -> Iterator[str]:
    """Compile, or load, what the engines of ``config`` need one register group at a time; each precision when done.

    That is what a register server runs: no plan, no fused jobs, no CPU. Plain forms are not taken from now on. A
    precision for which the usual layers cannot be built (a configuration without some engine) compiles on first use.
    """
    fallback_work.end()
    for precision in configuration(config).precisions:
        try:
            runtime, surface = _made(_network(12, softmax=False), config, precision, threads)
        except BuildError:
            continue
        runtime.run_raw([surface], on_operation=_ignore)  # job by job, nothing fused
        yield precision


def _made(network: Network, config: str, precision: str, threads: int | None) -> tuple[Runtime, bytes]:
    """A runtime for the network and an input of zeros. Raises BuildError."""
    image = np.random.default_rng(12).standard_normal((1, *network.inputs[0].shape))
    ranges = None if precision == Precision.FP16 else calibrate(network, image)
    runtime = Runtime(build(network, config, precision, ranges).loadable, config, threads=threads)
    return runtime, runtime.pack(0, np.zeros(runtime.inputs[0].shape, runtime.inputs[0].dtype))


def _network(size: int, softmax: bool = True) -> Network:
    """The usual layers on an image of ``size`` x ``size``, followed by a softmax on the CPU if ``softmax`` is set."""
    random = np.random.default_rng(size)
    net = Network(f"warm-up-{size}")

    def convolution(name: str, x: NetworkTensor, kernels: int, width: int, stride: int = 1) -> NetworkTensor:
        weights = random.standard_normal((kernels, x.shape[0], width, width)) / width
        bias = random.standard_normal(kernels)
        return net.convolution(name, x, weights, bias, padding=width // 2, stride=stride)

    x = net.relu("relu1", convolution("conv1", net.input("data", (3, size, size)), 64, 3))
    pooled = net.max_pool("pool1", x, 3, 1, padding=1)
    x = net.relu("relu5", net.add("apart", net.lrn("norm", pooled), pooled))  # no convolution takes this sum along
    left = net.relu("relu2", convolution("conv2", x, 64, 3))
    x = net.relu("relu3", net.add("sum", convolution("conv3", left, 64, 3), x))
    parts = [net.relu("relu4", convolution("conv4", x, 64, 1)), net.average_pool("mean", x, 3, 1, padding=1)]
    x = convolution("conv5", net.concat("both", *parts), 32, 1, stride=2)
    x = net.max_pool("pool2", x, 3, 1, padding=1)
    x = net.global_average_pool("average", x)
    x = net.fully_connected("full", x, random.standard_normal((10, 32)), random.standard_normal(10))
    net.output(net.softmax("softmax", x) if softmax else x)
    return net
