"""Helpers without knowledge of NVDLA: arguments, files, YAML, threads, processes, registries, enums, rounding."""

__all__: list[str] = []
