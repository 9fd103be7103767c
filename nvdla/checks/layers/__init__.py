"""Which layer of a model each operation of a loadable belongs to: found by structure, shapes and weights.

graph = caffe_graph("net.prototxt", "net.caffemodel")
found = recognize(nvdla.load("net.nvdla"), graph)
print(found.layers[0, 3], found.confidence[0, 3])
"""

from nvdla.checks.layers.graphs import ModelGraph, ModelLayer, caffe_graph, onnx_graph
from nvdla.checks.layers.match import Recognized, recognize

__all__ = ["ModelGraph", "ModelLayer", "Recognized", "caffe_graph", "onnx_graph", "recognize"]
