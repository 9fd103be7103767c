"""Lowering: one file a layer type, from a group of layers to hardware operations (nvdla.build.ir)."""

from nvdla.build.lower.lowering import lower

__all__ = ["lower"]
