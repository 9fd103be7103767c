"""The generators of documentation pages in tools/pages, which are scripts and no package."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from types import ModuleType

WIDTH = 100
"""Columns of the pages' code, and of the terminal in which their output is made."""

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "pages"


def page_module(name: str) -> ModuleType:
    """The module ``tools/pages/NAME.py``."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def wrapped(output: str) -> list[str]:
    """Return the lines of a command's output as pages show them."""
    shown = []
    for line in output.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        shown += textwrap.wrap(line.rstrip(), WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return shown
