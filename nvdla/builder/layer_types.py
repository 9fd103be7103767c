"""Layers that are one file each: every module of :mod:`nvdla.builder.lower` that says which ``KIND`` it is.

Such a module has

* ``KIND``: the name, for :meth:`nvdla.builder.network.Network.add_layer`;
* ``shape(name, shapes, settings)``: (C, H, W) of the result from those of the inputs; raises BuildError; may put what
  the settings mean into ``settings``;
* ``form(layer, *inputs)``: what it computes, in floats, on arrays (N, C, H, W);
* ``lower(lowering, group)``: the operations of the hardware;
* ``KEEPS_SCALE`` True where the result has the scale of its inputs;
* ``EACH_CHANNEL_ALONE`` True where a factor on a channel of its only input is one on that channel of the result.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from nvdla.errors import BuildError

PACKAGE = "nvdla.builder.lower"


@cache
def layer_types() -> dict[str, ModuleType]:
    """All of them by kind."""
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)]
    modules = [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    return {module.KIND: module for module in modules if hasattr(module, "KIND")}


def says(kind: str, what: str) -> bool:
    """Whether the module of a kind sets a flag (``KEEPS_SCALE``, ``EACH_CHANNEL_ALONE``)."""
    return bool(getattr(layer_types().get(kind), what, False))


def layer_type(kind: str) -> ModuleType:
    """The module of a kind. Raises BuildError that lists those there are."""
    if kind not in layer_types():
        raise BuildError(f"a layer of kind {kind!r} is not known: known are {', '.join(sorted(layer_types()))}")
    return layer_types()[kind]
