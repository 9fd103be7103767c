"""The calibration table, when one is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nvdla.checks.doctor.doctor import CheckContext, check
from nvdla.checks.lint.linter import Said
from nvdla.program.naming import is_scale, parts, shortened
from nvdla.util.escaping import Document


def _entries(context: CheckContext) -> Document:
    return {name: entry.get("scale") for name, entry in (context.calibration or {}).items()}


@check("error", "Calibrate again, with images that reach this layer.", headline="scale that is not a positive number")
def scales_are_positive_numbers(context: CheckContext) -> Iterator[Said]:
    """Every scale of the calibration table is a positive number."""
    for name, scale in _entries(context).items():
        if not is_scale(scale):
            yield f"layer {name}: scale is {shortened(scale)}"


@check("warning", "Add an entry for the layer: without it NVIDIA's compiler stops.", headline="layer without a scale")
def layers_have_a_scale(context: CheckContext) -> Iterator[Said]:
    """Every layer, input and output has an entry in the table (layer names must be known for this check)."""
    if context.calibration is None:
        return
    known = set(context.calibration)
    for memory in (*context.loadable.inputs, *context.loadable.outputs):
        name = context.loadable.tensor(memory.tensor_desc_id).name
        if name and name not in known:
            yield f"tensor {name} has no entry"
    for place, layer in context.layers.items():
        if place in context.by_place and known.isdisjoint(parts(layer)):
            yield context.by_place[place], f"layer {layer} has no entry"


@check(
    "warning",
    "Calibrate with real images. A scale of 1 is a placeholder.",
    headline="scale without a measurement",
)
def scales_are_measured(context: CheckContext) -> Iterator[Said]:
    """Scales differ between layers; a common value, or exactly 1, was never measured. (Layers such as pooling and ReLU
    correctly share the scale of their input.)
    """
    scales = {name: scale for name, scale in _entries(context).items() if is_scale(scale)}
    ones = [name for name, scale in scales.items() if scale == 1]
    if ones:
        yield f"scale is exactly 1: {', '.join(ones[:8])}{' ...' if len(ones) > 8 else ''}"
    value, count = Counter(scales.values()).most_common(1)[0] if scales else (0, 0)
    if len(scales) >= 4 and count > 0.9 * len(scales) and value != 1:
        yield f"{count} of {len(scales)} layers have the scale {value:g}"


@check(
    "warning",
    "Write 0: NVIDIA's compiler uses symmetric scales and ignores the other entries.",
    headline="calibration with an offset",
)
def calibration_is_symmetric(context: CheckContext) -> Iterator[Said]:
    """min, max and offset of an entry are 0: NVIDIA's compiler does not use them."""
    for name, entry in (context.calibration or {}).items():
        used = [key for key in ("min", "max", "offset") if entry.get(key)]
        if used:
            yield f"layer {name}: {', '.join(f'{key} is {entry[key]!r}' for key in used)}"


@check("warning", "Correct the scale and compile again.", headline="input scale that does not fit images")
def input_scales_fit_the_images(context: CheckContext) -> Iterator[Said]:
    """The scale of an image input is plausible: its largest element, 127, represents at most 10000."""
    for memory in context.loadable.inputs:
        name = context.loadable.tensor(memory.tensor_desc_id).name
        scale = _entries(context).get(name)
        if scale is not None and is_scale(scale) and scale * 127 > 10000:
            yield f"input {name}: scale {scale:g}, so an int8 input reaches {scale * 127:g}"
