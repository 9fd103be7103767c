"""An extension of Model Explorer: ``model-explorer net.nvdla --extensions=nvdla.report.model_explorer``
(docs/report.md)."""

__all__ = ["node_data"]  # main is what Model Explorer imports
