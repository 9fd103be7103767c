"""Caffe networks: reading .prototxt and .caffemodel, and turning them into ONNX models (docs/compare.md)."""

from nvdla.caffe.network import Layer, Network, read_network
from nvdla.caffe.weights import read_weights

__all__ = ["Layer", "Network", "read_network", "read_weights"]
