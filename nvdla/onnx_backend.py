"""Public name of :mod:`nvdla.interop.onnx_backend`: ``import nvdla.onnx_backend`` is that module."""

import sys

from nvdla.interop import onnx_backend

sys.modules[__name__] = onnx_backend
