"""Text for terminals, HTML, SVG and notebooks.

A loadable, a model or a label file may contain any characters. Each function returns text that its language reads as
data: no name ends a string, a comment or an element. YAML output goes through ``yaml.safe_dump``, CSV through the
``csv`` module; terminal output uses :func:`nvdla.errors.printable`.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nvdla.errors import printable, shape_text

#: Characters that XML cannot contain.
_NOT_XML = (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000))
#: Other control characters steer terminals (DOT text is printed); direction marks reorder the text that follows.
_STEERING = (*range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_FORBIDDEN = dict.fromkeys((*_NOT_XML, *_STEERING), "\ufffd")
#: Keywords of C99, C11 and C23, and words with a fixed meaning in every hosted program.
_C_WORDS = frozenset(
    re.findall(
        r"\w+",
        "alignas alignof asm auto bool break case char const constexpr continue default do double else enum extern "
        "false float for goto if inline int long main nullptr register restrict return short signed sizeof static "
        "static_assert struct switch thread_local true typedef typeof typeof_unqual union unsigned void volatile while",
    )
)
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def clean(text: object) -> str:
    """Replace characters that XML cannot contain, control characters and direction marks by U+FFFD."""
    return str(text).translate(_FORBIDDEN)


def xml_text(text: object) -> str:
    """Escape the text of an element or a quoted attribute, for XML, SVG and HTML."""
    return html.escape(clean(text))


def xml_attribute(text: object) -> str:
    """Return an attribute's value with its quotes, for XML, SVG and HTML."""
    from xml.sax.saxutils import quoteattr  # imports a client of HTTP

    return quoteattr(clean(text))


def dot_string(text: object) -> str:
    """Return a quoted DOT string in which no part of ``text`` is an escape sequence, for example of a record label."""
    escaped = clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")
    return f'"{escaped}"'


def c_string(text: str) -> str:
    """Return a C string literal: everything but plain ASCII as UTF-8 bytes in octal.

    Three digits, so that a following digit is not part of the escape; ``?`` too, so that no trigraph occurs.
    """
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{plain}"'


def c_comment(text: str) -> str:
    """Return ``text`` for a C comment or a remark of an assembler, a Makefile or a trace: printable ASCII on one line.

    ``*``, ``/`` and ``\\`` become ``_``: nothing ends the comment, opens another or continues the line.
    """
    return "".join(character if " " <= character <= "~" and character not in "*/\\" else "_" for character in text)


def c_identifier(text: str) -> str:
    """Return ``text`` as an identifier of C, assemblers and Makefiles: other characters become ``_``."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if is_c_identifier(name) else f"network_{name}"


def c_name_part(text: str, longest: int = 60) -> str:
    """Return the ASCII letters and digits of ``text``, ``_`` between them, as a part of C identifiers; may be empty."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:longest]


def is_c_identifier(text: str) -> bool:
    """Return True if ``text`` can name an object in C: an identifier, but not a keyword or ``main``."""
    return bool(_C_NAME.fullmatch(text)) and text not in _C_WORDS


def plain(value: object) -> Json:
    """Return ``value`` as JSON takes it: NaN and infinities become None, enums their names, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (str, bool, float)) or value is None:
        return value
    return int(value) if hasattr(value, "__index__") else str(value)


Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""Value that JSON can represent."""
Document = dict[str, Any]
"""Object of JSON whose members have the types that its schema states (docs/json)."""


def json_text(value: object, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return ``value`` as JSON that every parser reads: ASCII, and no NaN."""
    return json.dumps(plain(value), indent=indent, sort_keys=sort_keys, allow_nan=False)


#: rows that a notebook shows; a table of a large network would fill the page
MOST_ROWS = 200


SHAPES = ("shape", "input", "output", "tile")  # columns whose sequences are shapes


def table(title: str, rows: Iterable[Mapping[str, object]]) -> str:
    """A table with one column per key of its rows, which all have the same keys; without keys of nested tables."""
    rows = list(rows)
    keys = [key for key in (rows[0] if rows else ()) if not any(_is_nested(row.get(key)) for row in rows)]
    head = "".join(f"<th>{text(key)}</th>" for key in keys)
    lines = ("".join(f"<td>{text(row.get(key), key in SHAPES)}</td>" for key in keys) for row in rows[:MOST_ROWS])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><caption>{text(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _is_nested(value: object) -> bool:
    """Check whether a value is a list of mappings, or holds one."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return any(isinstance(item, Mapping) or _is_nested(item) for item in inner)


def text(value: object, is_shape: bool = False) -> str:
    """A value as text of a page: no markup, no control characters. Sequences are lists, or a shape."""
    if value is None:
        return ""
    if isinstance(value, (tuple, list)):
        value = shape_text(value) if is_shape else ", ".join(map(str, value))
    elif isinstance(value, Mapping):
        value = ", ".join(f"{key}={item}" for key, item in value.items())
    elif isinstance(value, float):
        value = f"{value:.6g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return xml_text(printable(str(value)))


def with_hex_addresses(row: Mapping[str, Json]) -> dict[str, Json]:
    """Return a row of a table about memory or registers with its addresses, values and masks in hexadecimal; documents
    have them as integers."""
    return {key: f"0x{value:x}" if key in _HEX and value is not None else value for key, value in row.items()}


_HEX = frozenset({"address", "base", "end", "value", "mask", "first", "second"})
