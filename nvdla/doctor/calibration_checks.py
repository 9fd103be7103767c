"""The calibration table, when one is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from nvdla.doctor.chart import Chart, check
from nvdla.lint.registry import Said
from nvdla.program.naming import is_scale, parts, shortened


def _entries(chart: Chart) -> dict[str, Any]:
    return {name: entry.get("scale") for name, entry in (chart.calibration or {}).items()}


@check("error", "Calibrate again, with images that reach this layer.", headline="scale that is no positive number")
def scales_are_positive_numbers(chart: Chart) -> Iterator[Said]:
    """Every scale of the calibration table is a positive number."""
    for name, scale in _entries(chart).items():
        if not is_scale(scale):
            yield f"layer {name}: scale is {shortened(scale)}"


@check("error", "Add an entry for the layer: the compiler stops without it.", headline="layer without a scale")
def layers_have_a_scale(chart: Chart) -> Iterator[Said]:
    """Every layer, input and output has an entry in the table (layer names must be known for this check)."""
    if chart.calibration is None:
        return
    known = set(chart.calibration)
    for memory in (*chart.loadable.inputs, *chart.loadable.outputs):
        name = chart.loadable.tensor(memory.tensor_desc_id).name
        if name and name not in known:
            yield f"tensor {name} has no entry"
    for place, layer in chart.layers.items():
        if place in chart.by_place and known.isdisjoint(parts(layer)):
            yield chart.by_place[place], f"layer {layer} has no entry"


@check(
    "warning",
    "Calibrate with real images; a scale of 1 is what a table is filled with before.",
    headline="scale that was not measured",
)
def scales_are_measured(chart: Chart) -> Iterator[Said]:
    """Scales differ from layer to layer: one value for most of them, or exactly 1, was never measured.

    (Layers that hand their numbers on, such as pooling and ReLU, rightly share that of their input.)
    """
    scales = {name: scale for name, scale in _entries(chart).items() if is_scale(scale)}
    ones = [name for name, scale in scales.items() if scale == 1]
    if ones:
        yield f"scale is exactly 1: {', '.join(ones[:8])}{' ...' if len(ones) > 8 else ''}"
    value, count = Counter(scales.values()).most_common(1)[0] if scales else (0, 0)
    if len(scales) >= 4 and count > 0.9 * len(scales) and value != 1:
        yield f"{count} of {len(scales)} layers have the scale {value:g}"


@check(
    "warning",
    "Write 0: NVIDIA's compiler knows symmetric scales only, and takes nothing but the scale.",
    headline="calibration with an offset",
)
def calibration_is_symmetric(chart: Chart) -> Iterator[Said]:
    """min, max and offset of an entry are 0: NVIDIA's compiler does not use them."""
    for name, entry in (chart.calibration or {}).items():
        used = [key for key in ("min", "max", "offset") if entry.get(key)]
        if used:
            yield f"layer {name}: {', '.join(f'{key} is {entry[key]!r}' for key in used)}"


@check("warning", "Correct the scale, and compile again.", headline="input scale that does not fit images")
def input_scales_fit_the_images(chart: Chart) -> Iterator[Said]:
    """The input's scale fits images, whose pixels end at 255: 127 units of it are no more than 10000."""
    for memory in chart.loadable.inputs:
        name = chart.loadable.tensor(memory.tensor_desc_id).name
        scale = _entries(chart).get(name)
        if scale is not None and is_scale(scale) and scale * 127 > 10000:
            yield f"input {name}: scale {scale:g}, so an int8 input reaches {scale * 127:g}"
