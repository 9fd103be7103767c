"""Build loadables in Python: a float network, calibration, one call (docs/build.md)."""

from nvdla.build.compiler import Built, build, layer_errors
from nvdla.build.network import Layer, Network, Tensor
from nvdla.build.quantize import Calibration, calibrate, quantize
from nvdla.errors import BuildError

__all__ = [
    "BuildError",
    "Built",
    "Calibration",
    "Layer",
    "Network",
    "Tensor",
    "build",
    "calibrate",
    "layer_errors",
    "quantize",
]
