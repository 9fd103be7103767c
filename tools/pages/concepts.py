"""docs/pictures/concepts.svg: from a loadable down to an atom, taken from samples/lenet.loadable."""

from __future__ import annotations

from pathlib import Path

from nvdla.analysis.svg import STYLE, Drawing

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "concepts.svg"
WIDTH = 960
LOOK = STYLE + (
    "text { font-size: 13px; } .title { font-size: 15px; } .small { font-size: 12px; fill: var(--soft); } "
    ".box { fill: none; stroke: var(--soft); stroke-width: 1.2; } .arrow { stroke: var(--ink); stroke-width: 1.4; "
    "fill: none; } .head { fill: var(--ink); } .zoom { stroke: var(--soft); stroke-dasharray: 4 4; fill: none; } "
    ".on { fill: #ffffff; font-weight: 600; } .plain { font-weight: 400; font-size: 12px; } "
    "@media (prefers-color-scheme: dark) { .on { fill: #0d1117; } } "
)


class Sketch(Drawing):
    """Frames and arrows besides what every drawing has."""

    def frame(self, x: float, y: float, width: float, height: float, title: str, what: str = "") -> None:
        """An outlined box with its title and a line below it."""
        self.parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>')
        self.text(x + 10, y + 20, title, "title")
        self.text(x + 10, y + 38, what, "small")
        self._reach(y + height)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, label: str = "") -> None:
        """A straight arrow with a word above its middle."""
        self.parts.append(f'<path class="arrow" d="M{x1},{y1}L{x2},{y2}"/>')
        back = -8 if y2 > y1 else 8
        head = f"M{x2},{y2}l-8,-4v8z" if y1 == y2 else f"M{x2},{y2}l-4,{back}h8z"
        self.parts.append(f'<path class="head" d="{head}"/>')
        if label:
            self.text((x1 + x2) / 2, y1 - 7, label, "small", "middle")

    def zoom(self, left: float, right: float, top: float, to_left: float, to_right: float, bottom: float) -> None:
        """Dashed lines from a part to its enlargement below."""
        for start, end in ((left, to_left), (right, to_right)):
            self.parts.append(f'<path class="zoom" d="M{start},{top}L{end},{bottom}"/>')


def loadable(drawing: Sketch) -> None:
    """The container: tasks, and the tables that are shared by them."""
    drawing.frame(20, 14, 920, 116, "loadable", "a file that the compiler wrote: lenet.loadable")
    parts = [
        ("conv", "task 0 DLA1", "12 operations"),
        ("cpu", "task 1 EMU1", "softmax, on the host"),
        ("constant", "blobs", "weights, descriptors"),
        ("intermediate", "memory, addresses", "memory layout"),
        ("bdma", "relocations, events", "patched in, waited for"),
    ]
    for number, (color, name, what) in enumerate(parts):
        x = 32 + 180 * number
        drawing.rect(x, 64, 172, 26, color)
        drawing.text(x + 86, 82, name, "on", "middle")
        drawing.text(x + 86, 110, what, "small", "middle")


def task(drawing: Sketch) -> None:
    """Operations, who hands over on the fly, and what they have in memory."""
    drawing.zoom(32, 204, 130, 20, 940, 170)
    drawing.frame(20, 170, 920, 200, "task 0: operations", "each is one job of one engine; 0/4 is task 0, operation 4")
    operations = (
        ("conv", "0/3 CONV", "16 kernels 5x5"),
        ("sdp", "0/4 SDP", "bias, ReLU, scale"),
        ("pdp", "0/5 PDP", "maximum 2x2"),
        ("conv", "0/6 CONV", "120 kernels 4x4"),
    )
    for number, (color, name, what) in enumerate(operations):
        x = 60 + 230 * number
        drawing.rect(x, 226, 130, 46, color)
        drawing.text(x + 65, 245, name, "on", "middle")
        drawing.text(x + 65, 263, what, "on plain", "middle")
    for number in range(2):
        drawing.arrow(194 + 230 * number, 249, 286 + 230 * number, 249, "on the fly")
    drawing.arrow(654, 249, 746, 249, "event")
    for x, name, color in ((60, "pool1 6x12x12", "intermediate"), (520, "pool2 16x4x4", "intermediate")):
        drawing.rect(x, 324, 130, 28, color)
        drawing.text(x + 65, 343, name, "on", "middle")
    drawing.text(206, 343, "cubes in memory: DRAM or CVSRAM", "small")
    drawing.arrow(125, 322, 125, 276)
    drawing.arrow(585, 276, 585, 322)
    drawing.arrow(815, 338, 815, 276)
    drawing.parts.append('<path class="arrow" d="M654,338L815,338"/>')


def surface(drawing: Sketch) -> None:
    """A feature map as surfaces of atoms, and one atom as bytes."""
    drawing.zoom(520, 650, 352, 20, 560, 410)
    drawing.frame(20, 410, 540, 220, "two surfaces", "pool2, 16x4x4 int8: 4 lines of 4 atoms for each 8 channels")
    for number, channels in enumerate(("channels 0 to 7", "channels 8 to 15")):
        left = 50 + 260 * number
        for row in range(4):
            for column in range(4):
                seen = (number, row, column) == (1, 1, 3)
                x, y = left + 52 * column, 468 + 30 * row
                drawing.rect(x, y, 46, 24, "bad" if seen else "intermediate", opacity=1 if seen else 0.45)
        drawing.text(left, 612, channels, "small")
    drawing.zoom(512, 512, 498, 600, 600, 422)
    drawing.zoom(512, 512, 522, 600, 600, 618)
    drawing.frame(600, 410, 340, 220, "atom", "8 channels of one pixel, 8 bytes (nv_large: 32)")
    for channel in range(8):
        drawing.rect(614 + 40 * channel, 472, 36, 40, "bad")
        drawing.text(632 + 40 * channel, 497, f"c{channel + 8}", "on", "middle")
    lines = (
        "element c10 = 57 stands for the real number",
        "57 x scale = 57 x 0.0291 = 1.66",
        "int8: -128 to 127, 1 byte an element;",
        "int16, fp16: 2 bytes, half as many in an atom",
    )
    for number, text in enumerate(lines):
        drawing.text(616, 544 + 22 * number, text)


def concepts_picture() -> str:
    """The whole picture as SVG."""
    drawing = Sketch()
    loadable(drawing)
    task(drawing)
    surface(drawing)
    return drawing.document(
        WIDTH, "A loadable holds tasks, tasks operations, operations surfaces, surfaces atoms", LOOK
    )


if __name__ == "__main__":
    PICTURE.write_text(concepts_picture(), encoding="utf-8")
