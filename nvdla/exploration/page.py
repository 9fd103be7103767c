"""The page of an exploration: frames a second over what they cost, the best points joined, and the table."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

from nvdla.exploration.table import pareto

WIDTH, HEIGHT, MARGIN = 900, 420, 90
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font-size: 12px; }
.axis { stroke: currentColor; opacity: .5; } .front { fill: none; stroke: #2a9d5c; stroke-width: 2; }
"""
COLOURS = ("#3367d6", "#d1495b", "#8c6bb1", "#e08e0b", "#2a9d5c", "#5f6f81")


def page(document: dict[str, Any], title: str) -> str:
    """One HTML page that needs nothing else."""
    points = [each for each in document["points"] if "error" not in each and each["frames_per_second"]]
    rows = "".join(_row(each) for each in points)
    head = "<tr><th>point</th><th>cycles</th><th>frames/s</th><th>MAC use</th><th>buffer use</th>"
    head += "<th>traffic, bytes</th><th>top-1</th></tr>"
    return "\n".join(
        [
            "<!DOCTYPE html><html lang=en><head><meta charset=utf-8>",
            '<meta name=viewport content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            _plot(points) if len(points) > 1 else "",
            f"<table>{head}{rows}</table></body></html>",
        ]
    )


def _name(point: dict[str, Any]) -> str:
    speed = "full bus" if point["bandwidth"] is None else f"{point['bandwidth']:g} B/cycle"
    return f"{point['config']} {point['precision']}, {speed}, latency {point['latency']}"


def _row(point: dict[str, Any]) -> str:
    use = "-" if point["mac_use"] is None else f"{point['mac_use']:.1%}"
    filled = "-" if point["buffer_use"] is None else f"{point['buffer_use']:.1%}"
    accuracy = point.get("accuracy")
    right = "-" if not accuracy or accuracy["value"] is None else f"{accuracy['value']:.2%}"
    traffic = point["read_bytes"] + point["written_bytes"]
    return (
        f"<tr><td>{escape(_name(point))}</td><td>{point['cycles']:,}</td><td>{point['frames_per_second']:,.1f}</td>"
        f"<td>{use}</td><td>{filled}</td><td>{traffic:,}</td><td>{right}</td></tr>"
    )


def _cost(points: list[dict[str, Any]]) -> tuple[Callable[[dict[str, Any]], float], str]:
    """What the plot is over: the size of the MAC array where configurations differ in it, else the bandwidth."""
    if len({each["mac_units"] for each in points}) > 1:
        return (lambda point: point["mac_units"]), "multipliers"
    return (lambda point: point["bandwidth"] or point["bus_bytes"]), "offered bandwidth (bytes a cycle)"


def _plot(points: list[dict[str, Any]]) -> str:
    """Frames a second over what they cost, both logarithmic; points that nothing beats are joined."""
    cost, axis = _cost(points)
    for each in points:
        each["cost"] = cost(each)
    place_x = _scale([each["cost"] for each in points], MARGIN, WIDTH - 20)
    place_y = _scale([each["frames_per_second"] for each in points], HEIGHT - MARGIN, 20)
    configs = sorted({each["config"] for each in points})
    marks = [
        f'<circle cx="{place_x(each["cost"]):.1f}" cy="{place_y(each["frames_per_second"]):.1f}" r="5" '
        f'fill="{COLOURS[configs.index(each["config"]) % len(COLOURS)]}"><title>{escape(_name(each))}: '
        f"{each['frames_per_second']:,.1f} frames/s, {each['cost']:g} {axis}</title></circle>"
        for each in points
    ]
    front = pareto(points, "cost", "frames_per_second")
    line = " ".join(f"{place_x(each['cost']):.1f},{place_y(each['frames_per_second']):.1f}" for each in front)
    names = []
    for number, name in enumerate(configs):
        colour = COLOURS[number % len(COLOURS)]
        names.append(f'<text x="{MARGIN + 10}" y="{34 + 16 * number}" style="fill:{colour}">{escape(name)}</text>')
    low, high = HEIGHT - MARGIN, WIDTH - 20
    axes = (
        f'<path class="axis" d="M{MARGIN} 20V{low}H{high}" fill="none"/>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 20}" text-anchor="middle">{axis}, logarithmic</text>'
        f'<text transform="translate(20,{HEIGHT / 2}) rotate(-90)" text-anchor="middle">frames/s (logarithmic)</text>'
    )
    ends = "".join(
        f'<text x="{place_x(value):.1f}" y="{low + 16}" text-anchor="middle">{_short(value)}</text>'
        for value in _ends([each["cost"] for each in points])
    ) + "".join(
        f'<text x="{MARGIN - 6}" y="{place_y(value) + 4:.1f}" text-anchor="end">{_short(value)}</text>'
        for value in _ends([each["frames_per_second"] for each in points])
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">{axes}{ends}'
        f'<polyline class="front" points="{line}"/>{"".join(marks)}{"".join(names)}</svg>'
    )


def _short(value: float) -> str:
    """A number of an axis: whole from a hundred on, three digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ends(values: list[float]) -> list[float]:
    return sorted({min(values), max(values)})


def _scale(values: list[float], start: float, end: float) -> Callable[[float], float]:
    low, high = math.log(min(values)), math.log(max(values))
    span = high - low or 1.0
    return lambda value: start + (end - start) * (0.05 + 0.9 * (math.log(value) - low) / span)
