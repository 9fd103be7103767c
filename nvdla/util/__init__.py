"""Helpers of all layers: arguments, files, YAML, processes, registries, precisions, rounding."""

__all__: list[str] = []
