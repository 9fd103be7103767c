"""Summary of a compiled model: placement, time, memory, traffic and accuracy, as plain data and in words."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nvdla.analysis.cycles.constants import DEFAULT_CLOCK, Memory, bandwidth_text
from nvdla.analysis.cycles.document import cycles_document, total_text
from nvdla.analysis.memory import MemoryMap
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Refined
from nvdla.compiler.builder.accuracy import GOOD, SATURATED
from nvdla.compiler.frontend.importer import ACCELERATOR, CPU, HOST, Imported, NodeRow, Part
from nvdla.compiler.frontend.quantization.activations import closing_values
from nvdla.errors import counted, shape_text
from nvdla.tensors.inputs import batch_of
from nvdla.tensors.real import ModelValue, order_document
from nvdla.util.escaping import Document, Json
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from nvdla.compiler.frontend.graph import Binding
    from nvdla.compiler.frontend.package import CompiledPart

WORST = 5
_SUSPICIOUS = 0.1
_WIDTH = 100
_FEW = 10
"""Number of calibration samples below which the summary asks for more."""
_NAMED = 3
"""Nodes and layers that a line names; the document has all of them."""


def report(imported: Imported, nodes: list[NodeRow]) -> Document:
    """Nodes, parts and totals as plain data."""
    macs = sum(row.macs for row in nodes)
    here = sum(row.macs for row in nodes if row.placement != HOST)
    placed = [row.placement for row in nodes]
    sizes = _transfers(imported)
    return {
        "model": imported.model.name,
        "config": imported.config.name,
        "precision": str(imported.precision),
        "nodes": [asdict(row) for row in nodes],
        "accelerator_nodes": placed.count(ACCELERATOR),
        "cpu_nodes": placed.count(CPU),
        "host_nodes": placed.count(HOST),
        "cuts": imported.cuts,
        "transfers": len(sizes),
        "bytes_crossing": 4 * sum(sizes),
        "macs": macs,
        "accelerator_macs_share": here / macs if macs else None,
    }


def _transfers(imported: Imported) -> list[int]:
    """Elements of every tensor that a part gets from another one in an inference; the host has them as float32."""
    shapes, ends = imported.model.shapes, set(imported.model.inputs)
    takes = [name for part in imported.parts for name in part.takes if name not in ends]
    return [int(np.prod(shapes.get(name, (0,)))) for name in takes]


def transfers_text(count: int, size: int) -> str:
    """Describe transfers between parts: "3 transfers, 192.0 KiB in total (float32)"."""
    return f"{counted(count, 'transfer')}, {size_text(size)} in total (float32)"


def batch_notes(imported: Imported, images: int) -> list[str]:
    """Notes on inputs of several pictures, and ``images`` of the model at a time: what the numbers are of."""
    return [
        f"input {name}: a batch of {batch}; times are of {batch} together. Export the model with a batch of 1 for "
        "single pictures"
        for name in imported.model.inputs
        if (batch := images * batch_of([imported.model.shapes.get(name, ())])) > 1
    ]


def pictures_of(imported: Imported, images: int) -> int:
    """Return the pictures of a run of ``images`` of the model; inputs with different batches count as one."""
    return images * batch_of(imported.model.shapes.get(name, ()) for name in imported.model.inputs)


def summarize(
    imported: Imported,
    parts: Sequence[CompiledPart],
    nodes: Sequence[NodeRow],
    report: Document,
    memory: Memory | None,
    clock: float = DEFAULT_CLOCK,
) -> Document:
    """Summarize a compiled model.

    Args:
        imported: model and configuration.
        parts: compiled parts, in the order of a run.
        nodes: placement of every node.
        report: totals of :func:`report`, with ``accuracy`` where it was measured.
        memory: external memory of the cycle model; None: the default one.
        clock: clock frequency in MHz.

    Returns:
        Plain data: cycles are those of one inference on the accelerator parts, sizes are in bytes, SNR in dB.
        ``frames_per_second`` counts the pictures of a batch; it is None if the host has a part.
    """
    accelerated = [part for part in parts if part.loadable is not None]
    studies = [
        Study.of(part.loadable, imported.config, memory=memory) for part in accelerated if part.loadable is not None
    ]
    timed = [cycles_document(study, clock) for study in studies]
    whole = len(accelerated) == len(parts)
    cycles = (
        None if any(document["stuck"] for document in timed) else sum(document["total_cycles"] for document in timed)
    )
    pictures = pictures_of(imported, max((part.images for part in parts), default=1))
    keys = ("config", "precision", "accelerator_nodes", "cpu_nodes", "host_nodes", "accelerator_macs_share", "cuts")
    calibration = report.get("calibration") or {}
    own = report["accelerator_nodes"] + report["cpu_nodes"]
    outputs, transfers = _snr(imported, accelerated, report.get("accuracy", ()))
    return {
        **{key: report[key] for key in (*keys, "transfers", "bytes_crossing")},
        "int16_layers": _int16_layers(report.get("accuracy", ())) if imported.precision == Precision.INT8 else [],
        "folded_nodes": sum(len(part.nodes) for part in accelerated) - own,
        "accelerator_parts": len(accelerated),
        "host_parts": len(parts) - len(accelerated),
        "host_reasons": host_reasons(nodes, report["macs"]),
        "cycles": cycles,
        "clock_mhz": clock,
        "memory": timed[0]["memory"] if timed else None,
        "frames_per_second": pictures * clock * 1e6 / cycles if cycles and whole else None,
        **_sizes(studies),
        "read_bytes": sum(document["read_bytes"] for document in timed),
        "written_bytes": sum(document["written_bytes"] for document in timed),
        "samples": calibration.get("samples"),
        "measured_samples": calibration.get("measured_samples"),
        "ignored_files": calibration.get("ignored_files", 0),
        "output_snr": outputs,
        "transfer_snr": transfers,
        "saturated_outputs": [row["tensor"] for row in report.get("accuracy", ()) if row["advice"] == SATURATED],
        "unscaled_pixels": list(calibration.get("unscaled_pixels", ())),
        "constant_inputs": list(calibration.get("constant_inputs", ())),
        "worst_layers": _worst_layers(report.get("accuracy", ())),
    }


def _int16_layers(accuracy: Sequence[Document]) -> list[str]:
    """Layers of an int8 network that are computed in int16."""
    return [row["layer"] for row in accuracy if row["precision"] == Precision.INT16]


def _sizes(studies: Sequence[Study]) -> Document:
    """Bytes in memory of all parts: constants, surfaces, and what is to be reserved for them."""
    memories = [MemoryMap.of(study) for study in studies]
    spaces_of_parts = [memory_map.spaces() for memory_map in memories]
    spaces = [space for part in spaces_of_parts for space in part]
    cvsram = sum(space["carve_out"] for space in spaces if space["space"] == "cvsram")
    return {
        "weight_bytes": sum(memory_map.weight_bytes() for memory_map in memories),
        "descriptor_bytes": sum(memory_map.descriptor_bytes() for memory_map in memories),
        "surface_bytes": max((sum(space["peak_live"] for space in part) for part in spaces_of_parts), default=0),
        "allocated_bytes": sum(space["allocated"] for space in spaces),
        "carve_out_bytes": sum(space["carve_out"] for space in spaces),
        "cvsram_bytes": cvsram,
    }


def _carve_out_text(total: int, cvsram: int) -> str:
    if not cvsram:
        return f"{size_text(total)} to reserve in memory"
    return f"{size_text(total - cvsram)} to reserve in DRAM, {size_text(cvsram)} in CVSRAM"


def _worst_layers(accuracy: Sequence[Document]) -> list[Document]:
    """The noisiest rows, each alone, without their tensors."""
    keys = ("layer", "precision", "alone", "chain", "saturated", "advice")
    return [{key: row[key] for key in keys} for row in sorted(accuracy, key=lambda row: row["alone"])[:WORST]]


def host_reasons(nodes: Sequence[NodeRow], macs: int) -> list[Document]:
    """Group the nodes on the host by reason, most multiplications first. ``macs``: those of the whole model."""
    groups: dict[str, list[NodeRow]] = {}
    for row in nodes:
        if row.placement == "host":
            groups.setdefault(row.reason, []).append(row)
    rows = [
        {
            "reason": reason,
            "nodes": [row.name for row in rows],
            "operators": sorted({row.op for row in rows}),
            "macs_share": sum(row.macs for row in rows) / macs if macs else None,
        }
        for reason, rows in groups.items()
    ]
    return sorted(rows, key=lambda row: (-(row["macs_share"] or 0.0), -len(row["nodes"])))


def _snr(imported: Imported, parts: Sequence[CompiledPart], accuracy: Sequence[Document]) -> tuple[Document, Document]:
    """SNR in dB of the outputs of parts that were measured, including the noise of all layers before: of outputs of the
    model (also those that the host only moves), and of transfers to the host."""
    ends = closing_values(imported.model)
    measured = {row["tensor"]: row["chain"] for row in accuracy}
    is_end = {binding.tensor: binding.value in ends for part in parts for binding in part.outputs}
    snr = {name: measured[name] for part in parts for name in part.made.output_scales if name in measured}
    if not snr and accuracy:
        return {accuracy[-1]["tensor"]: accuracy[-1]["chain"]}, {}
    outputs = {name: value for name, value in snr.items() if is_end.get(name, True)}
    return outputs, {name: value for name, value in snr.items() if name not in outputs}


def summary_lines(summary: Document) -> dict[str, str]:
    """Describe a summary in words: what -> text, for a table of two columns."""
    share, host, folded = summary["accelerator_macs_share"], summary["host_nodes"], summary["folded_nodes"]
    lines = {
        "configuration": f"{summary['config']}, {summary['precision']}"
        + (f", int16 in {counted(len(summary['int16_layers']), 'layer')}" if summary["int16_layers"] else ""),
        "accelerator": counted(summary["accelerator_nodes"], "node")
        + (f" and {counted(summary['cpu_nodes'], 'CPU task')}" if summary["cpu_nodes"] else "")
        + f" in {counted(summary['accelerator_parts'], 'part')}"
        + (f" (and {counted(folded, 'node')} without an operation)" if folded else "")
        + ("" if share is None else f", {share:.1%} of the multiplications"),
        "host": host_text(summary["host_reasons"]) if host else "no node",
    }
    if summary["cuts"]:
        lines["transfers"] = f"{transfers_text(summary['transfers'], summary['bytes_crossing'])} per inference"
    if summary["samples"]:
        ignored = f" ({counted(summary['ignored_files'], 'file')} ignored)" if summary["ignored_files"] else ""
        few = ". Give ten or more, for larger networks some hundreds" if summary["samples"] < _FEW else ""
        lines["calibration"] = f"{counted(summary['samples'], 'sample')}{ignored}{few}"
    if summary["memory"] is None:
        return lines
    memory = summary["memory"]
    bandwidth = bandwidth_text(memory["bytes_per_cycle"], memory["accepted_bytes_per_cycle"], summary["config"])
    at = f"memory latency {memory['latency_cycles']}, {bandwidth}{', shared' if memory['shared'] else ''}"
    frames = summary["frames_per_second"]
    lines |= {
        "time": f"{total_text(summary['cycles'], summary['clock_mhz'])}, {at}",
        "frames per second": f"{frames:,.1f}" if frames else "not known: the nodes on the host are not timed",
        "weights": size_text(summary["weight_bytes"]),
        "descriptors": f"{size_text(summary['descriptor_bytes'])}, for NVIDIA's firmware and runtime",
        "peak of surfaces": size_text(summary["surface_bytes"]),
        "carve-out": _carve_out_text(summary["carve_out_bytes"], summary["cvsram_bytes"]),
        "traffic": f"{size_text(summary['read_bytes'])} read, {size_text(summary['written_bytes'])} written",
    }
    if summary["constant_inputs"]:
        lines["expected SNR"] = (
            f"not known: the calibration data of {', '.join(summary['constant_inputs'])} is constant"
        )
    elif summary["output_snr"]:
        name, snr = min(summary["output_snr"].items(), key=lambda item: item[1])
        lines["expected SNR"] = f"{_db(snr)} at {name}, on {_measured(summary)}, without input rounding"
        if name in summary["saturated_outputs"]:
            lines["expected SNR"] += f": {SATURATED}"
    elif summary["transfer_snr"]:
        name, snr = min(summary["transfer_snr"].items(), key=lambda item: item[1])
        lines["expected SNR"] = f"{_db(snr)} at {name}, a transfer to the host, on {_measured(summary)}"
    if summary["unscaled_pixels"]:
        # A number before a sigmoid may saturate without a loss.
        poor = (row["saturated"] for row in summary["worst_layers"] if row["alone"] is not None and row["alone"] < GOOD)
        saturated = max(poor, default=0.0)
        advice = f". {saturated:.0%} of a layer is saturated: give the mean and standard deviation of the training"
        wrong = saturated > _SUSPICIOUS
        lines["pictures"] = f"pixels 0..255 unchanged (no --mean/--std){advice if wrong else ''}"
    return lines


def _measured(summary: Document) -> str:
    """The samples that the SNR was measured with, in words."""
    samples, measured = summary["samples"], summary["measured_samples"]
    return "the calibration data" if measured == samples else f"{measured} of {samples} calibration samples"


def host_text(reasons: Sequence[Document]) -> str:
    """Describe the result of :func:`host_reasons` in one line."""
    texts = []
    for reason in reasons[:_NAMED]:
        share = "" if not reason["macs_share"] else f" ({reason['macs_share']:.1%} of the multiplications)"
        texts.append(
            f"{counted(len(reason['nodes']), 'node')}{share}, {', '.join(reason['operators'])}: {reason['reason']}"
        )
    more = sum(len(reason["nodes"]) for reason in reasons[_NAMED:])
    return "; ".join(texts) + (f"; {more} more (--nodes; Python: .nodes)" if more else "")


def _db(value: float) -> str:
    return "exact" if math.isinf(value) else f"{value:.1f} dB"


def size_text(count: int) -> str:
    """Describe a number of bytes in one unit: "3.1 KiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return counted(count, "byte")


def _all_lines(summary: Document) -> list[tuple[str, str]]:
    """Return :func:`summary_lines` and a line per noisy layer; the command prints those as a table."""
    layers = [
        ("" if number else "noisiest layers", f"{_db(row['alone'])} alone, {_db(row['chain'])} chain: {row['layer']}")
        for number, row in enumerate(summary["worst_layers"])
    ]
    return [*summary_lines(summary).items(), *layers]


def text(title: str, summary: Document) -> str:
    """Return a title, and below it the lines of a summary."""
    lines = _all_lines(summary)
    width = max(len(what) for what, _ in lines)
    wrapped = partial(textwrap.fill, width=_WIDTH, subsequent_indent=" " * (width + 4), break_long_words=False)
    return "\n".join([title, *(wrapped(f"  {what:{width}}  {value}") for what, value in lines)])


def html(title: str, summary: Document) -> str:
    """Return the same as an HTML fragment, for notebooks."""
    from nvdla.util.escaping import xml_text
    from nvdla.util.html import table

    return f"<b>{xml_text(title)}</b>{table((), _all_lines(summary))}"


def other_ends(imported: Imported, part: Part) -> list[str]:
    """Return notes on inputs and outputs of a loadable with other elements than the model's, or in another order."""
    if len(imported.parts) > 1:
        return []
    notes: dict[str, str] = {}
    counts = Counter(binding.value for binding in part.inputs)
    for binding in part.inputs:
        cube, shape = part.layers.layer(binding.tensor).output.shape, imported.model.shapes.get(binding.value, ())
        value = ModelValue(binding.value, shape, order_document(binding.index))
        is_same = value.index is None and math.prod(shape) == math.prod(cube)
        if not is_same and value.rearranged(cube) is not None:
            parts = counts[binding.value]
            where = f"{parts} inputs" if parts > 1 else shape_text((1, *cube))
            others = " (evaluate and faults: of a package)" if parts > 1 else ""
            notes[binding.value] = (
                f"input {binding.value}: a loadable takes its elements ({where}) from those of the model "
                f"({shape_text(shape)}). Commands{others} take the model's input, a driver takes the loadable's"
            )
    for binding in part.outputs:
        cube = part.layers.layer(binding.tensor).output.shape
        value = ModelValue(binding.value, binding.shape, order_document(binding.index))
        taken = range(math.prod(binding.shape)) if binding.index is None else np.unique(binding.index)
        is_whole = len(taken) == math.prod(cube) == math.prod(binding.shape)
        if not is_whole or (value.index is not None and value.rearranged(cube) is not None):
            notes[binding.value] = (
                f"output {binding.value}: the model takes its elements ({shape_text(binding.shape)}) from those of a "
                f"loadable ({shape_text((1, *cube))}). A package (-o NAME.nvpkg) gives the model's"
            )
    return [*notes.values()]


def sidecar(imported: Imported, part: Part, rows: Mapping[str, NodeRow], details: Document) -> Document:
    """Sidecar entries of a loadable on its source model."""
    nodes = {name: {"op": rows[name].op, "layers": list(rows[name].operations)} for name in part.nodes}
    values = {
        layer.name: imported.tensors[layer.name] for layer in part.layers.layers if layer.name in imported.tensors
    }
    held = {layer: _held(imported, part, layer, value) for layer, value in values.items()}
    inputs = {}
    for binding in part.inputs:
        name, units = imported.model.stored.get(binding.value, (binding.value, None))
        inputs[binding.tensor] = _value(
            imported, binding.value, order_document(binding.index), units if name == binding.value else None
        )
    bound = Counter(binding.tensor for binding in part.outputs)
    results = {
        binding.tensor: _value(imported, binding.value, _order_in(part, binding), None)
        for binding in part.outputs
        if bound[binding.tensor] == 1
    }
    return {"nodes": nodes, "values": values, "model": held, "inputs": inputs, "results": results, **details}


def _order_in(part: Part, binding: Binding) -> Json:
    """Return where the elements of an output are in its tensor, which may have more."""
    index = np.arange(math.prod(binding.shape)) if binding.index is None else binding.index
    return order_document(index, math.prod(part.layers.layer(binding.tensor).output.shape))


def _held(imported: Imported, part: Part, layer: str, value: str) -> Document:
    """The value of the model in a layer's tensor; an order that is not known is False."""
    order: Json = False
    size = int(np.prod(imported.model.shapes.get(value, (0,))))
    if layer in imported.orders:
        index, stored = imported.orders[layer], int(np.prod(part.layers.layer(layer).output.shape))
        order = order_document(index, stored) if index is not None or size == stored else False
    name, units = imported.model.stored.get(value, (value, None))
    return _value(imported, value, order, units) | {"value": name}


def _value(imported: Imported, value: str, order: object, units: tuple[float, int] | None) -> Document:
    """For :func:`nvdla.program.naming.value_of`."""
    document: Document = {"value": value, "shape": list(imported.model.shapes.get(value, ()))}
    if order is not None:
        document["index"] = order
    return document if units is None else document | {"scale": units[0], "zero_point": units[1]}


def factors(refined: Refined) -> dict[str, list[float]]:
    """Divisors of the channels of equalized tensors."""
    return {name: factors.tolist() for name, factors in refined.factors.items() if np.any(factors != 1)}
