"""The generators of documentation pages in tools/pages, which are scripts and no package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from nvdla.cli.output import wrapped as wrapped_line

WIDTH = 100
"""Columns of the pages' code, and of the terminal in which their output is made."""

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "pages"


def page_module(name: str) -> ModuleType:
    """The module ``tools/pages/NAME.py``."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def wrapped(output: str) -> list[str]:
    """Return the lines of a command's output as a terminal of the pages' width shows them."""
    return [part for line in output.splitlines() for part in wrapped_line(line.rstrip(), WIDTH)]
