"""Caffe networks: reading .prototxt and .caffemodel, and turning them into ONNX models (docs/compare.md)."""

from nvdla.compiler.caffe.network import CaffeLayer, CaffeNetwork, read_network, read_weights

__all__ = ["CaffeLayer", "CaffeNetwork", "read_network", "read_weights"]
