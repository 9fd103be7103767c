"""Drawings as SVG text: a few shapes, every text escaped, light and dark by the reader's setting."""

from __future__ import annotations

from nvdla.util.escaping import xml_attribute, xml_text

STYLE = """
svg { --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --page: #ffffff; --conv: #2f6fde; --sdp: #1a7f64;
  --pdp: #a15c00; --cdp: #8250df; --bdma: #6e7781; --rubik: #bf3989; --cpu: #4b5563; --input: #1a7f64;
  --output: #2f6fde; --constant: #8c959f; --intermediate: #a15c00; --unset: #cf222e; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #0d1117;
  --conv: #5b94f5; --sdp: #3fb68b; --pdp: #d29922; --cdp: #ab7df8; --bdma: #9198a1; --rubik: #f778ba; --cpu: #b1bac4;
  --input: #3fb68b; --output: #5b94f5; --constant: #7d8590; --intermediate: #d29922; --unset: #f85149;
  --bad: #f85149; } }
text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.soft { fill: var(--soft); } .title { font-size: 13px; font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; } .page { fill: var(--page); }
.bar { fill: var(--page); pointer-events: none; }
"""
#: for drawings whose colors are fixed (graphviz's): what is black, or nearly, follows the reader's setting
FIXED_STYLE = """
svg { background: #ffffff; } text:not([fill]) { fill: #1b1f24; }
@media (prefers-color-scheme: dark) { svg { background: #0d1117; } text:not([fill]) { fill: #e6edf3; }
  [stroke="black"] { stroke: #6e7681; } [stroke="#24292f"] { stroke: #c9d1d9; } [fill="#24292f"] { fill: #c9d1d9; } }
"""


class Drawing:
    """Shapes in the order in which they are drawn; coordinates are pixels, kept to a tenth."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.height = 0.0

    def rect(
        self, x: float, y: float, width: float, height: float, color: str, title: str = "", opacity: float = 1
    ) -> None:
        """A filled rectangle; ``color`` is a CSS variable's name, ``title`` shows when pointed at."""
        inner = f"<title>{xml_text(title)}</title>" if title else ""
        shade = f' fill-opacity="{opacity:g}"' if opacity != 1 else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
            f'fill="var(--{color})"{shade}>{inner}</rect>'
        )
        self._reach(y + height)

    def text(self, x: float, y: float, text: object, kind: str = "", anchor: str = "start") -> None:
        """A text at a place; ``kind`` is its style, ``anchor`` the side that is there."""
        css = f" class={xml_attribute(kind)}" if kind else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{css}{place}>{xml_text(text)}</text>')
        self._reach(y + 4)

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A line of the grid."""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="grid"/>')
        self._reach(max(y1, y2))

    def area(self, points: list[tuple[float, float]], color: str) -> None:
        """A filled polygon."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon points="{path}" fill="var(--{color})" fill-opacity="0.55"/>')

    def document(self, width: float, label: str, style: str = STYLE) -> str:
        """Return the whole drawing.

        ``label``: text for screen readers. ``style``: "" where the page has its own style.
        """
        height = self.height + 6
        look = f"<style>{style}</style>" if style else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" role="img" aria-label={xml_attribute(label)}>{look}'
            f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>{"".join(self.parts)}</svg>\n'
        )

    def _reach(self, y: float) -> None:
        self.height = max(self.height, y)


def short(text: object, limit: int = 34) -> str:
    """At most ``limit`` characters."""
    text = str(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def round_ticks(total: float, wanted: int) -> list[int]:
    """0 and round whole numbers up to ``total``, about ``wanted`` of them: 1, 2 or 5 times a power of ten apart."""
    power = 1
    while True:
        for distance in (power, 2 * power, 5 * power):
            if total <= distance * wanted:
                return list(range(0, int(total) + 1, distance))
        power *= 10
