"""The generators of documentation pages in tools/pages, which are scripts and no package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "pages"


def page_module(name: str) -> ModuleType:
    """The module ``tools/pages/NAME.py``."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)
