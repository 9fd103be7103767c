"""Lowering: one file a layer type, from a group of layers to hardware operations (nvdla.builder.ir)."""

from nvdla.builder.lower.lowering import lower

__all__ = ["lower"]
