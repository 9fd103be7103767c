"""An extension of Model Explorer: ``model-explorer net.nvdla --extensions=nvdla.explorer`` (docs/export.md)."""

__all__ = ["node_data"]  # main is what Model Explorer imports
