"""An extension of Model Explorer: ``model-explorer net.nvdla --extensions=nvdla.explorer`` (docs/export.md)."""
