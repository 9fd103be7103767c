"""What a loadable's layers would cost in other forms, and what would help them, as plain data (docs/explain.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nvdla.analysis.alternatives import Alternative
from nvdla.analysis.cycles.shapes import mac_cycles
from nvdla.analysis.layer_forms import LoweredLayer, other_forms
from nvdla.analysis.study import Study
from nvdla.analysis.what_if import changes
from nvdla.descriptors.enums import ConvMode
from nvdla.errors import counted

Row = dict[str, Any]
TERMS = ("until_first_mac", "multiplying", "array", "behind_last_mac")
SAME = ("parts", "data_banks", "weight_banks", "keeps_weights", "compressed")


def weighed(study: Study, layer: LoweredLayer) -> Row:
    """What was weighed for a layer, and what would help, as plain data (cycles alone, in a queue of its own)."""
    cycles = layer.cycles(study)
    forms = [_form(layer, each, False) for each in other_forms(layer, study)]
    built = _form(layer, replace(layer.built, cycles=cycles), True)
    same = [form for form in forms if all(form[key] == built[key] for key in SAME)]
    forms = [built if form in same[:1] else form for form in forms]
    if not same:
        forms.append(built)
    return {
        "operations": [node.label for node in layer.nodes],
        "layer": layer.nodes[0].layer,
        "cycles": cycles,
        "forms": sorted(forms, key=lambda form: (form["cycles"], not form["chosen"])),
        "terms": _terms(study, layer),
        "why_no_parts": _why_no_parts(layer),
        "changes": changes(study, layer, cycles),
    }


def _form(layer: LoweredLayer, form: Alternative, chosen: bool) -> Row:
    shape, geometry = layer.geometry.shape, layer.geometry
    lines = sum(geometry.rows(*part)[1] for part in form.parts)
    fetched = 1 if form.keeps_weights else len(form.parts)
    return {
        **form.document(),
        "data_passes": lines / geometry.source[1] if shape.data_bytes else 0.0,
        "weight_passes": fetched if shape.weight_bytes else 0,
        "chosen": chosen,
    }


def _why_no_parts(layer: LoweredLayer) -> str | None:
    """Why forms in parts of rows are not weighed; None where they are."""
    op = layer.nodes[0].op
    if layer.chains[0].pdp:
        return "pooling on the fly behind it takes all rows"
    if op.conv_mode != ConvMode.DIRECT:
        return "Winograd takes its rows in tiles"
    if op.batch > 1:
        return "it works on a batch"
    if op.data_reuse:
        return "its data are those of the convolution before"
    return "its result has one row" if layer.geometry.result[1] == 1 else None


def _terms(study: Study, layer: LoweredLayer) -> Row:
    """Where the cycles of the operations go, each alone; ``array``: what the MAC array itself needs."""
    found = dict.fromkeys(TERMS, 0)
    for node in layer.nodes:
        estimate = study.estimates[node.key]
        time, shape = estimate.time, estimate.shape
        if time and shape and shape.conv:
            found["until_first_mac"] += time.first_mac
            found["multiplying"] += time.last_mac - time.first_mac
            found["array"] += mac_cycles(shape.conv, estimate.constants)
            found["behind_last_mac"] += time.total - time.last_mac
    return found


def weighed_lines(row: Row) -> Iterator[str]:
    """What stands below the table of a layer's forms."""
    terms = row["terms"]
    each = ", each part alone" if len(row["operations"]) > 1 else ", alone"
    array = f"the array needs {terms['array']:,}"
    yield (
        f"{terms['until_first_mac']:,} cycles until the first multiplication, {terms['multiplying']:,} to the last "
        f"({array}), {terms['behind_last_mac']:,} behind it{each}"
    )
    if row["why_no_parts"]:
        yield f"no parts of rows are weighed: {row['why_no_parts']}"
    if not row["changes"]:
        yield "what would help, by the model: no change that was tried saves 1%"
        return
    yield "what would help, by the model:"
    for change in row["changes"]:
        per = " an image" if change["per_image"] else ""
        cycles = f"{change['cycles']:,} instead of {change['before']:,} cycles{per}"
        yield f"    {change['change']}: {cycles}, {change['saves']:.0%} less"


def builder_lines(row: Row) -> Iterator[str]:
    """What the builder weighed, as the layer file keeps it, when the loadable was made."""
    kept = row["by_the_builder"]
    if not kept:
        return
    memory, search = kept["memory"], kept["search"]
    rate = "the bus's width" if memory["bytes_per_cycle"] is None else f"{memory['bytes_per_cycle']:g} bytes a cycle"
    shared = ", shared" if memory["shared"] else ""
    yield f"weighed by the builder at level {kept['level']}, for {memory['latency']} cycles of latency, {rate}{shared}:"
    yield from _groups_lines(kept["groups"])
    for place, form in enumerate(kept["forms"]):
        taken = " (taken)" if place == kept["taken"] else ""
        banks = f"{form['data_banks']} data and {form['weight_banks']} weight banks"
        banks += ", weights compressed" if form["compressed"] else ""
        held = ", weights kept" if form["keeps_weights"] else ""
        yield f"    {form['form']}, {banks}{held}: {form['cycles']:,} cycles{taken}"
    if search:
        end = "to its end" if search["complete"] else "cut short"
        yield (
            f"    then the whole network was searched, {search['steps']} steps, {end}: {search['cycles_before']:,} to "
            f"{search['cycles']:,} cycles"
        )


def _groups_lines(kept: Row | None) -> Iterator[str]:
    """How many groups a dense convolution could take."""
    if kept is None:
        return
    for place, form in enumerate(kept["forms"]):
        what = f"{form['groups']} of {kept['groups']} groups together"
        times, use = (
            counted(form["convolutions"], "dense convolution"),
            f"one product in {form['groups']} within a group",
        )
        taken = " (taken)" if place == kept["taken"] else ""
        yield f"    {what}: {times}, {use}, {form['cycles']:,} cycles{taken}"
