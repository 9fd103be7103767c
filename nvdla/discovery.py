"""How registries find what a new file adds: every module of a package that is called so."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules_of(package: str, ending: str = "") -> list[ModuleType]:
    """The modules of a package whose names end so, imported, in the order of their names."""
    folders = importlib.import_module(package).__path__
    names = [each.name for each in pkgutil.iter_modules(folders) if each.name.endswith(ending)]
    return [importlib.import_module(f"{package}.{name}") for name in sorted(names)]
