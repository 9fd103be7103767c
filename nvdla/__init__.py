"""NVDLA toolkit: parse, verify, explain, edit, build and run NVDLA loadables bit-exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvdla.errors import (
    ArgumentTypeError,
    BuildError,
    ConfigError,
    DescriptorError,
    FormatError,
    LinkError,
    LoadableError,
    NvdlaError,
    OutOfMemoryError,
    ScheduleError,
    TraceError,
)

if TYPE_CHECKING:
    from nvdla.frontend.compiler import compile
    from nvdla.loadable import Loadable, load
    from nvdla.runtime import Runtime

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "BuildError",
    "ConfigError",
    "DescriptorError",
    "FormatError",
    "LinkError",
    "Loadable",
    "LoadableError",
    "NvdlaError",
    "OutOfMemoryError",
    "Runtime",
    "ScheduleError",
    "TraceError",
    "compile",
    "load",
]

# Resolved on first use, so that reading a file does not import the engines (numba).
_LAZY = {
    "compile": "nvdla.frontend.compiler",
    "load": "nvdla.loadable",
    "Loadable": "nvdla.loadable",
    "Runtime": "nvdla.runtime",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'nvdla' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
