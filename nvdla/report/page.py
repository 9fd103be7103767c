"""The page: one HTML file that needs nothing else, neither files nor a network."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from typing import Any

import numpy as np

import nvdla
from nvdla.analysis.svg import clean
from nvdla.errors import FormatError
from nvdla.report.document import Side
from nvdla.report.pairing import pairs

FORMAT, VERSION = "nvdla-view", 1
#: in the order in which they lie in the page's one script
SCRIPTS = ("data", "plane", "layout", "graph", "charts", "tensors", "panel", "tables", "serve", "main")


@dataclass(frozen=True)
class Data:
    """What a page shows: ``document``, plain data, and ``elements``, the bytes of its tensors, thinned out. ``whole``:
    the tensors (C, H, W) of each side, for who serves the page."""

    document: dict[str, Any]
    elements: bytes
    whole: list[list[np.ndarray]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, sides: list[Side]) -> Data:
        """The data of one loadable, or of two side by side. Closes the sides' pictures."""
        blocks, start = [], 0
        for side in sides:
            block = side.pictures.close()
            for row in side.pictures.rows:
                row["offset"] += start
            blocks.append(block)
            start += len(block)
        whole = [side.pictures.arrays for side in sides]
        document = _frame("view") | {"sides": [side.document for side in sides], "pairs": [], "mark": _mark(whole)}
        if len(sides) == 2:
            document["pairs"] = pairs(*sides)
        return cls(document, b"".join(blocks), whole)

    @classmethod
    def of_index(cls, folder: str, rows: list[dict[str, Any]]) -> Data:
        """The data of an index: one row a loadable."""
        return cls(_frame("index") | {"folder": folder, "rows": rows}, b"")

    def tensor(self, side: str, number: str, mark: str) -> bytes:
        """All elements of a tensor, little-endian, in the order (C, H, W). ``mark``: that of the document that the
        page shows. Raises FormatError where there is no such tensor, or the page shows another run."""
        if mark != self.document.get("mark"):
            raise FormatError("another run has been made since: reload the page")
        try:
            array = {str(at): dict(enumerate(arrays)) for at, arrays in enumerate(self.whole)}[side][int(number)]
        except (KeyError, ValueError):
            raise FormatError(f"side {side!r} has no tensor {number!r}") from None
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()

    @property
    def title(self) -> str:
        """What the page is called."""
        if self.document["kind"] == "index":
            return f"Loadables in {self.document['folder']}"
        return " and ".join(side["title"] for side in self.document["sides"])

    @property
    def sections(self) -> list[str]:
        """The views that the page has."""
        if self.document["kind"] == "index":
            return ["Index"]
        found = ["Graph", "Overview", "Operations", "Cycles", "Timeline", "Memory", "Findings"]
        if any(side["run"] and not side["run"]["error"] for side in self.document["sides"]):
            found.append("Values")
        return [*found, "Compare"] if len(self.document["sides"]) > 1 else found


def _mark(whole: list[list[np.ndarray]]) -> str:
    """Tells one run's tensors from another's."""
    digest = hashlib.sha256()
    for array in (array for arrays in whole for array in arrays):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def _frame(kind: str) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "kind": kind, "made": f"nvdla {nvdla.__version__}"}


@cache
def asset(name: str) -> str:
    """A file of the page."""
    return resources.files("nvdla.report").joinpath("page").joinpath(name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """The page's script."""
    return "\n".join(("'use strict';", "const view = {};", *(asset(f"{name}.js") for name in SCRIPTS)))


def policy(served: bool = False) -> str:
    """The page may run its own script and nothing else, whatever names a loadable brings along; nothing is loaded.
    ``served``: it may talk to the server that it came from."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    talks = "; connect-src 'self'" if served else ""
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'{talks}"
    )


def packed(data: Data) -> tuple[str, str]:
    """Document and elements, compressed, as text."""
    text = json.dumps(_clean(data.document), separators=(",", ":"), allow_nan=False, default=_plain)
    return _packed(text.encode()), _packed(data.elements)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _plain(value: Any) -> Any:
    return int(value) if hasattr(value, "__index__") else float(value)


def _clean(value: Any) -> Any:
    """Numbers that JSON lacks become nothing; texts lose characters that no page can show."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {str(key): _clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(each) for each in value]
    return value


def html_page(data: Data, served: bool = False) -> str:
    """The page as text. ``served``: it comes from a server that answers it."""
    document, elements = packed(data)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy(served))}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(clean(data.title))}</title><style>{asset('page.css')}</style></head>"
        f'<body data-served="{int(served)}"><div id="app"></div>'
        "<noscript><p>This page draws with its own script, which the browser does not run.</p></noscript>"
        f'<div id="document" hidden>{document}</div><div id="elements" hidden>{elements}</div>'
        f"<script>{script()}</script></body></html>\n"
    )
