"""TFLite (LiteRT) models as ONNX models for the front end.

:func:`tflite_proto` reads a file (:mod:`.reader`) and converts its operators (:mod:`.layers`, :mod:`.functions`,
:mod:`.moves`) to a graph with QuantizeLinear and DequantizeLinear (:mod:`.graph`).
"""

from nvdla.compiler.frontend.tflite.conversion import tflite_proto
from nvdla.compiler.frontend.tflite.reader import is_tflite

__all__ = ["is_tflite", "tflite_proto"]
