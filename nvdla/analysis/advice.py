"""What would help each convolution of a loadable: of all changes that are tried the one that saves most.

The cycle model computes each (:mod:`nvdla.analysis.what_if`); layers of the same shape are asked once.
"""

from __future__ import annotations

from typing import Any

from nvdla.analysis.layer_forms import layers_of, takes_images
from nvdla.analysis.study import Study
from nvdla.analysis.what_if import WORTH, changes

NOTHING = f"no change that was tried saves {WORTH:.0%}"


def with_advice(study: Study, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of :func:`nvdla.analysis.explain.explanations` with ``advice``: what would help the layer of each."""
    labels = {row["operation"] for row in rows}
    known: dict[Any, str] = {}
    found: dict[str, str] = {}
    for layer in layers_of(study):
        mine = [node.label for node in layer.nodes if node.label in labels]
        if not mine:
            continue
        key = layer.chains, layer.geometry, takes_images(layer)
        if key not in known:
            known[key] = _said(changes(study, layer, layer.cycles(study)))
        found.update(dict.fromkeys(mine, known[key]))
    return [row | {"advice": found.get(row["operation"], "")} for row in rows]


def _said(tried: list[dict[str, Any]]) -> str:
    if not tried:
        return NOTHING
    best = tried[0]
    per = " an image" if best["per_image"] else ""
    return f"{best['change']}: {best['cycles']:,} instead of {best['before']:,} cycles{per}, {best['saves']:.0%} less"
