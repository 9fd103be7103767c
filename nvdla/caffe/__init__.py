"""Caffe networks: reading .prototxt and .caffemodel, and turning them into ONNX models (docs/compare.md)."""

from nvdla.caffe.network import CaffeLayer, CaffeNetwork, read_network
from nvdla.caffe.weights import read_weights

__all__ = ["CaffeLayer", "CaffeNetwork", "read_network", "read_weights"]
