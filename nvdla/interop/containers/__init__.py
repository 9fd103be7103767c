"""The containers next to the loadable: IREE archives and modules, TVM model libraries, plain tensor files.

container = nvdla.interop.containers.open("model.irpa")
for parameter in container.parameters(): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvdla.interop.containers.registry import (
        Container,
        Format,
        Severity,
        Source,
        detect,
        formats,
        open,
        register,
    )
    from nvdla.interop.containers.registry import FileFinding as Finding
    from nvdla.tensors.parameters import Parameter

from nvdla.loadable import reader

__all__ = ["Container", "Finding", "Format", "Parameter", "Severity", "Source", "detect", "formats", "open", "register"]

_HOME = dict.fromkeys(__all__, "nvdla.interop.containers.registry") | {"Parameter": "nvdla.tensors.parameters"}
#: Named apart from the lint rules' class of findings.
_CLASS = {"Finding": "FileFinding"}


def __getattr__(name: str) -> object:
    # Resolved on first use: the registry imports this package to find its formats.
    if name not in _HOME:
        raise AttributeError(f"module 'nvdla.interop.containers' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), _CLASS.get(name, name))


def _from_library(data: memoryview, name: str) -> bytes:
    """Return the loadable in a model library."""
    from nvdla.interop.containers.tvm_format import loadable_in

    return loadable_in(data, name).to_bytes()


reader.EXTRACTORS["tar"] = _from_library
