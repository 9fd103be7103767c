"""Lowering: one file per layer type, from a group of layers to hardware operations (nvdla.compiler.builder.ir)."""

from nvdla.compiler.builder.lower.lowering import lower

__all__ = ["lower"]
