"""Which layer of a model each operation of a loadable belongs to: found by structure, shapes and weights.

graph = caffe_graph("net.prototxt", "net.caffemodel")
found = recognise(nvdla.load("net.nvdla"), graph)
print(found.layers[0, 3], found.confidence[0, 3])
"""

from nvdla.recognition.caffe_graph import caffe_graph
from nvdla.recognition.match import Recognised, recognise
from nvdla.recognition.model_graph import ModelGraph, ModelLayer
from nvdla.recognition.onnx_graph import onnx_graph

__all__ = ["ModelGraph", "ModelLayer", "Recognised", "caffe_graph", "onnx_graph", "recognise"]
