"""Tables for notebooks: HTML in which whatever comes from a file is text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from nvdla.errors import printable, shape_text

#: rows that a notebook shows; a table of a large network would fill the page
MOST_ROWS = 200


def table(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with one column a key of its rows, which all have the same keys."""
    rows = list(rows)
    keys = list(rows[0]) if rows else []
    head = "".join(f"<th>{text(key)}</th>" for key in keys)
    body = "".join(f"<tr>{''.join(f'<td>{text(row.get(key))}</td>' for key in keys)}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>and {len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><caption>{text(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def text(value: Any) -> str:
    """A value as text of a page: no markup, no control characters."""
    if value is None:
        return ""
    if isinstance(value, (tuple, list)):
        value = shape_text(value)
    elif isinstance(value, float):
        value = f"{value:.6g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return html.escape(printable(str(value)))
