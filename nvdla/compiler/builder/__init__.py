"""Build loadables in Python: a float network, calibration, one call (docs/python-api.md)."""

from nvdla.analysis.cycles.constants import Memory
from nvdla.compiler.builder.calibration import calibrate
from nvdla.compiler.builder.compiler import Built, build, layer_errors
from nvdla.compiler.builder.layers import Layer, NetworkTensor
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.quantization import Calibration, quantize
from nvdla.compiler.builder.refinement import Recipe, Refined, refine
from nvdla.compiler.builder.search import SearchLimits
from nvdla.errors import BuildError
from nvdla.tensors.real import PixelNumbers

__all__ = [
    "BuildError",
    "Built",
    "Calibration",
    "Layer",
    "Memory",
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
