"""Build loadables in Python: a float network, calibration, one call (docs/build.md)."""

from nvdla.builder.compiler import Built, build, layer_errors
from nvdla.builder.network import Layer, Network, NetworkTensor
from nvdla.builder.quantize import Calibration, calibrate, quantize
from nvdla.builder.refine import Recipe, Refined, refine
from nvdla.builder.search import SearchLimits
from nvdla.errors import BuildError
from nvdla.tensors.pixel_numbers import PixelNumbers

__all__ = [
    "BuildError",
    "Built",
    "Calibration",
    "Layer",
    "Network",
    "NetworkTensor",
    "PixelNumbers",
    "Recipe",
    "Refined",
    "SearchLimits",
    "build",
    "calibrate",
    "layer_errors",
    "quantize",
    "refine",
]
