"""The plot of an exploration: frames a second over what they cost, on logarithmic axes with round numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from nvdla.analysis.svg import log_ticks
from nvdla.exploration.table import pareto

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 90, WIDTH - 30, 20, HEIGHT - 70
COLOURS = ("#4f86f7", "#d1495b", "#9d7fd1", "#e08e0b", "#2a9d5c", "#7d8da0")

Point = dict[str, Any]
Scale = Callable[[float], float]


def name_of(point: Point) -> str:
    """A point in words."""
    speed = "full bus" if point["bandwidth"] is None else f"{point['bandwidth']:g} B/cycle"
    return f"{point['config']} {point['precision']}, {speed}, latency {point['latency']}"


def plot(points: Sequence[Point]) -> str:
    """An SVG element. A line joins the points that no other beats; each point says what it is."""
    cost, axis = _cost(points)
    placed = [{**each, "cost": cost(each), "speed": each["frames_per_second"]} for each in points]
    across = log_ticks(min(each["cost"] for each in placed), max(each["cost"] for each in placed))
    up = log_ticks(min(each["speed"] for each in placed), max(each["speed"] for each in placed))
    x, y = _scale(across, LEFT, RIGHT), _scale(up, BOTTOM, TOP)
    colours = dict(zip(sorted({each["config"] for each in points}), COLOURS * len(points), strict=False))
    front = " ".join(f"{x(each['cost']):.1f},{y(each['speed']):.1f}" for each in pareto(placed, "cost", "speed"))
    marks = [
        f'<circle cx="{x(each["cost"]):.1f}" cy="{y(each["speed"]):.1f}" r="5" fill="{colours[each["config"]]}">'
        f"<title>{escape(name_of(each))}: {each['speed']:,.1f} frames/s, {each['cost']:g} {axis}</title></circle>"
        for each in placed
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="frames a second over {axis}">'
        f"{_axes(across, up, x, y, axis)}"
        f'<polyline class="front" points="{front}"/>{"".join(marks)}{_legend(colours)}</svg>'
    )


def _cost(points: Sequence[Point]) -> tuple[Callable[[Point], float], str]:
    """What the plot is over: the size of the MAC array where configurations differ in it, else the bandwidth."""
    if len({each["mac_units"] for each in points}) > 1:
        return (lambda point: point["mac_units"]), "multipliers"
    return (lambda point: point["bandwidth"] or point["bus_bytes"]), "offered bandwidth (bytes a cycle)"


def _axes(across: Sequence[float], up: Sequence[float], x: Scale, y: Scale, axis: str) -> str:
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none"/>']
    for tick in across:
        parts.append(f'<path class="grid" d="M{x(tick):.1f} {TOP}V{BOTTOM}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{_number(tick)}</text>')
    for tick in up:
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    middle, centre = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">{axis}, logarithmic</text>')
    parts.append(
        f'<text transform="translate(18,{centre}) rotate(-90)" text-anchor="middle">frames/s, logarithmic</text>'
    )
    return "".join(parts)


def _legend(colours: dict[str, str]) -> str:
    return "".join(
        f'<rect x="{LEFT + 14}" y="{TOP + 11 + 18 * number}" width="10" height="10" rx="5" fill="{colour}"/>'
        f'<text x="{LEFT + 30}" y="{TOP + 20 + 18 * number}">{escape(name)}</text>'
        for number, (name, colour) in enumerate(colours.items())
    )


def _number(value: float) -> str:
    """A round number of an axis in plain digits."""
    return f"{value:,.0f}" if value >= 1 else f"{value:.9f}".rstrip("0")


def _scale(ticks: Sequence[float], start: float, end: float) -> Scale:
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    return lambda value: start + (end - start) * (math.log(value) - low) / (high - low)
