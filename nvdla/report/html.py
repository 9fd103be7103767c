"""HTML from parts: whatever is not made here is text, and becomes escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from nvdla.analysis.svg import clean

VOID = {"br", "col", "img", "input", "meta", "link"}


class Html(str):
    """Markup that is known to be well-formed."""

    __slots__ = ()


def html(value: object) -> Html:
    """``value`` as markup: text is escaped, None is nothing."""
    if isinstance(value, Html):
        return value
    return Html("" if value is None else escape(clean(value), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attribute names lose a trailing underscore, inner ones become hyphens; None leaves one out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        words.append(shown if value is True else f'{shown}="{escape(clean(value), quote=True)}"')
    opening = f"<{' '.join(words)}>"
    if name in VOID:
        return Html(opening)
    return Html(f"{opening}{joined(children)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    """Parts put together, each escaped unless it is markup."""
    return Html("".join(html(part) for part in parts))


def number(value: object) -> str:
    """Numbers for people: thousands apart, six figures of a real number."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    caption: str,
    identifier: str | None = None,
    sortable: bool = False,
) -> Html:
    """A table with a column for each of ``columns`` (key -> heading). A cell is a value, or markup.

    Cells that are numbers stand right and carry their value for sorting; ``(shown, value)`` gives both.
    """
    numeric = {key for key in columns if _is_numeric(rows, key)}
    headings = [
        tag(
            "th",
            tag("button", text, type="button") if sortable else text,
            scope="col",
            class_="number" if key in numeric else None,
            aria_sort="none" if sortable else None,
        )
        for key, text in columns.items()
    ]
    body = [tag("tr", *(_cell(row.get(key), key in numeric) for key in columns)) for row in rows]
    inner = tag(
        "table",
        tag("caption", caption, class_="hidden"),
        tag("thead", tag("tr", *headings)),
        tag("tbody", *body),
        id=identifier,
        class_="sortable" if sortable else None,
    )
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _is_numeric(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    values = [_value(row.get(key)) for row in rows]
    return any(value is not None for value in values) and all(
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values
    )


def _value(cell: object) -> object:
    return cell[1] if isinstance(cell, tuple) else cell


def _cell(cell: object, numeric: bool) -> Html:
    value = _value(cell)
    shown = cell[0] if isinstance(cell, tuple) else cell if isinstance(cell, Html) else number(cell)
    known = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return tag("td", shown, class_="number" if numeric else None, data_value=known)


def pairs(values: Mapping[str, object]) -> Html:
    """Names and values as a description list; None is left out."""
    items = [
        joined((tag("dt", name), tag("dd", value if isinstance(value, Html) else number(value))))
        for name, value in values.items()
        if value is not None
    ]
    return tag("dl", *items)
