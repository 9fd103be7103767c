"""Self-contained HTML pages: document, tables, lists, drawings."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from nvdla.util.escaping import xml_attribute, xml_text

STYLE = """
:root { color-scheme: light dark; --soft: #57606a; --line: #8884; font: 15px/1.5 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --soft: #9198a1; } body { background: #0d1117; color: #e6edf3; } }
body { margin: 0 auto; max-width: 75rem; padding: 1.5rem clamp(.8rem, 4vw, 2rem) 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0 .6rem; color: var(--soft); }
.wide { overflow-x: auto; margin: .6rem 0; }
.wide:focus-visible { outline: 2px solid #5b94f5; outline-offset: 2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } tr > :first-child { text-align: left; padding-left: 0; }
th, .text { white-space: normal; overflow-wrap: break-word; max-width: 30rem; } th { vertical-align: bottom; }
.text { text-align: left; }
svg { display: block; } svg text { fill: currentColor; font-size: 12px; }
@media print {
  :root { font-size: 9.5px; } body { max-width: none; padding: 0; } .wide { overflow: visible; }
  td, th { padding: .25rem .5rem; white-space: normal; overflow-wrap: normal; } tr { break-inside: avoid; }
  h2 { break-after: avoid; } svg { max-width: 100%; height: auto; }
}
"""


SCROLLS = 'tabindex="0" role="group"'
"""Attributes of what scrolls: the keyboard must reach it."""


def document(title: str, body: str, *, style: str = STYLE, head: str = "", attributes: str = "") -> str:
    """Return a whole page; ``body``, ``style``, ``head`` and the ``attributes`` of the body are HTML and CSS."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}'
        f"<title>{xml_text(title)}</title><style>{style}</style></head>"
        f"<body{attributes and f' {attributes}'}>{body}</body></html>\n"
    )


def page(title: str, *sections: str, style: str = "", script: str = "") -> str:
    """Return a page with a heading and ``sections`` (HTML, empty ones are left out), and a ``script`` at its end."""
    body = "\n".join((f"<h1>{xml_text(title)}</h1>", *filter(None, sections)))
    if not script:
        return document(title, f"<main>{body}</main>", style=STYLE + style)
    head = f'<meta http-equiv="Content-Security-Policy" content={xml_attribute(policy(script))}>'
    return document(title, f"<main>{body}</main><script>{script}</script>", style=STYLE + style, head=head)


def policy(script: str, more: str = "") -> str:
    """Return the content security policy of a page that runs this script and no other, even with hostile names in its
    data, and loads nothing. ``more``: further directives."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'{more}"
    )


def paragraph(text: str) -> str:
    """Return a text as a paragraph."""
    return f"<p>{xml_text(text)}</p>"


def section(heading: str, content: str, note: str = "") -> str:
    """Return a heading with its content (HTML), after a sentence of explanation; empty without content."""
    explained = paragraph(note) if note else ""
    return f"<h2>{xml_text(heading)}</h2>{explained}{content}" if content else ""


_NUMBER = re.compile(r"[-+<~]?[\d.].*|-?|nan|-?inf", re.DOTALL)
"""A cell that may be in a column of numbers: a number with or without a unit, or none."""


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table that scrolls on a narrow screen, empty without rows; without a heading row for an empty
    ``head``. Columns of texts are left-aligned, columns of numbers right-aligned."""
    lines = [[str(cell) for cell in row] for row in rows]
    numeric = [all(_NUMBER.fullmatch(cell) for cell in column) for column in zip(*lines, strict=True)]
    marks = ["" if is_number else ' class="text"' for is_number in numeric]
    first = "".join(f"<th{mark}>{xml_text(cell)}</th>" for cell, mark in zip(head, marks, strict=False))
    body = [
        "".join(f"<td{mark}>{xml_text(cell)}</td>" for cell, mark in zip(line, marks, strict=True)) for line in lines
    ]
    content = "".join(f"<tr>{line}</tr>" for line in ([first] if first else []) + body)
    return f'<div class="wide" {SCROLLS}><table>{content}</table></div>' if lines else ""


def items(texts: Iterable[object]) -> str:
    """Return a list, empty without texts."""
    lines = "".join(f"<li>{xml_text(text)}</li>" for text in texts)
    return f"<ul>{lines}</ul>" if lines else ""


def download(name: str, data: str, text: str) -> str:
    """Return a link that saves ``data``, which the page contains, as a file."""
    return f'<p><a download="{xml_attribute(name)}" href="data:text/csv,{quote(data)}">{xml_text(text)}</a></p>'


def drawing(width: float, height: float, content: str, label: str) -> str:
    """Return a drawing in its own size, which scrolls on a narrow screen; ``content`` is SVG."""
    return (
        f'<div class="wide" {SCROLLS}><svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img" aria-label="{xml_text(label)}">{content}</svg></div>'
    )
