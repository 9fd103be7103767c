"""The page of an exploration: frames a second over what they cost, the best points joined, and the table."""

from __future__ import annotations

from html import escape
from typing import Any

from nvdla.exploration.plot import name_of, plot

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font-size: 12px; }
.axis { stroke: currentColor; opacity: .5; } .grid { stroke: currentColor; opacity: .15; }
.front { fill: none; stroke: #2a9d5c; stroke-width: 2; }
"""


def page(document: dict[str, Any], title: str) -> str:
    """One HTML page that needs nothing else."""
    points = [each for each in document["points"] if "error" not in each and each["frames_per_second"]]
    rows = "".join(_row(each) for each in points)
    failed = "".join(f"<li>{escape(_failure(each))}</li>" for each in document["points"] if "error" in each)
    head = "<tr><th>point</th><th>cycles</th><th>frames/s</th><th>MAC use</th><th>buffer use</th>"
    head += "<th>traffic, bytes</th><th>top-1</th></tr>"
    return "\n".join(
        [
            "<!DOCTYPE html><html lang=en><head><meta charset=utf-8>",
            '<meta name=viewport content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            plot(points) if len(points) > 1 else "",
            f"<table>{head}{rows}</table>" if points else "",
            f"<h2>Impossible</h2><ul>{failed}</ul>" if failed else "",
            "</body></html>",
        ]
    )


def _failure(point: dict[str, Any]) -> str:
    return f"{point['config']} {point['precision']}: {point['error']}"


def _row(point: dict[str, Any]) -> str:
    use = "-" if point["mac_use"] is None else f"{point['mac_use']:.1%}"
    filled = "-" if point["buffer_use"] is None else f"{point['buffer_use']:.1%}"
    accuracy = point.get("accuracy")
    right = "-" if not accuracy or accuracy["value"] is None else f"{accuracy['value']:.2%}"
    traffic = point["read_bytes"] + point["written_bytes"]
    return (
        f"<tr><td>{escape(name_of(point))}</td><td>{point['cycles']:,}</td><td>{point['frames_per_second']:,.1f}</td>"
        f"<td>{use}</td><td>{filled}</td><td>{traffic:,}</td><td>{right}</td></tr>"
    )
