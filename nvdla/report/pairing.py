"""Two loadables, or two runs, side by side: which operation is which, and how far apart what they wrote is."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np

from nvdla.compare.metrics import compare
from nvdla.compare.observation import Observation
from nvdla.program.operation import Key, Operation
from nvdla.report.document import Side

Row = dict[str, Any]


def pairs(left: Side, right: Side) -> list[Row]:
    """One row a pair, ``left`` and ``right`` numbers of operations: with a run of both also how their tensors differ
    (``snr`` in dB, None where nothing does; ``max`` in real numbers where both scales are known; ``equal``: the share
    of equal elements)."""
    theirs = {node.key: place for place, node in enumerate(right.study.operations)}
    found = _matched(left.study.operations, right.study.operations)
    seen = [_observed(side) for side in (left, right)]
    rows = []
    for place, node in enumerate(left.study.operations):
        other = found.get(node.key)
        if other is None:
            continue
        row = {"left": place, "right": theirs[other]}
        rows.append(row | _difference(left, right, seen[0].get(node.key), seen[1].get(other)))
    return rows


def _observed(side: Side) -> dict[Key, Observation]:
    """What each operation wrote in the side's run."""
    observations = side.view.observations if side.view else []
    return {each.key: each for each in observations}


def _matched(ours: list[Operation], theirs: list[Operation]) -> dict[Key, Key]:
    """By position where both have the same engines in the same order, else by layer and engine."""
    if [(node.engine, node.output) for node in ours] == [(node.engine, node.output) for node in theirs]:
        return {one.key: other.key for one, other in zip(ours, theirs, strict=True)}
    if not any(node.layer for node in ours) or not any(node.layer for node in theirs):
        return _in_turn(ours, theirs, lambda node: (node.engine, node.output))
    return _in_turn(ours, theirs, lambda node: (node.engine, node.layer))


def _in_turn(ours: list[Operation], theirs: list[Operation], key: Any) -> dict[Key, Key]:
    """The first of a kind with the first of that kind, and so on."""
    waiting: dict[Any, list[Operation]] = defaultdict(list)
    for node in reversed(theirs):
        waiting[key(node)].append(node)
    return {node.key: waiting[key(node)].pop().key for node in ours if waiting[key(node)]}


def _difference(left: Side, right: Side, one: Observation | None, other: Observation | None) -> Row:
    if one is None or other is None or one.tensor is None or other.tensor is None:
        return {}
    if one.tensor.shape != other.tensor.shape:
        return {}
    if one.dtype == other.dtype and one.tensor.tobytes() == other.tensor.tobytes():
        return {"snr": None, "max": 0.0, "equal": 1.0}
    scales = [_scale(side, seen) for side, seen in ((left, one), (right, other))]
    if None in scales and one.dtype != other.dtype:
        return {}
    factors = [1.0 if None in scales or scale is None else scale for scale in scales]
    zeros = [0 if None in scales else _zero(side, seen) for side, seen in ((left, one), (right, other))]
    reals = [
        (seen.tensor.astype(np.float64) - zero) * factor
        for seen, zero, factor in zip((one, other), zeros, factors, strict=True)
    ]
    found = compare(*reals)
    snr = found.snr_db if math.isfinite(found.snr_db) else None
    largest = found.max_abs if math.isfinite(found.max_abs) else None
    return {"snr": snr, "max": largest, "equal": 1 - found.count / max(found.elements, 1)}


def _zero(side: Side, seen: Observation) -> int:
    return side.names.zero_point(seen.layer) if seen.dtype.kind == "i" else 0


def _scale(side: Side, seen: Observation) -> float | None:
    """The real value of one unit; halves are real numbers themselves."""
    return side.names.scale(seen.layer) or (1.0 if seen.dtype.kind == "f" else None)
