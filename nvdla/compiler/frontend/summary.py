"""Summary of a compiled model: placement, time, memory, traffic and accuracy, as plain data and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.document import cycles_document, total_text
from nvdla.analysis.memory import MemoryMap
from nvdla.analysis.study import Study
from nvdla.compiler.frontend.importer import ACCELERATOR, CPU, HOST, Imported, NodeRow
from nvdla.errors import counted
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from nvdla.compiler.frontend.package import CompiledPart

CLOCK = 1000.0
WORST = 5
_NAMED = 3
"""Nodes and layers that a line names; the document has all of them."""


def report(imported: Imported, nodes: list[NodeRow]) -> Document:
    """Nodes, parts and totals as plain data."""
    macs = sum(row.macs for row in nodes)
    here = sum(row.macs for row in nodes if row.placement != HOST)
    placed = [row.placement for row in nodes]
    return {
        "model": imported.model.name,
        "config": imported.config.name,
        "precision": imported.precision,
        "nodes": [asdict(row) for row in nodes],
        "accelerator_nodes": placed.count(ACCELERATOR),
        "cpu_nodes": placed.count(CPU),
        "host_nodes": placed.count(HOST),
        "cuts": imported.cuts,
        "bytes_crossing": crossing(imported),
        "macs": macs,
        "accelerator_macs_share": here / macs if macs else None,
    }


def crossing(imported: Imported) -> int:
    """Bytes that go between parts in one inference, in the float32 of the host."""
    model = imported.model
    ends = set(model.inputs)
    return sum(
        int(np.prod(model.shapes.get(name, (0,)))) * model.types.get(name, np.dtype(np.float32)).itemsize
        for part in imported.parts
        for name in part.takes
        if name not in ends
    )


def summarize(
    imported: Imported, parts: Sequence[CompiledPart], nodes: Sequence[NodeRow], report: Document, memory: Memory | None
) -> Document:
    """Summarize a compiled model.

    Args:
        imported: model and configuration.
        parts: compiled parts, in the order of a run.
        nodes: placement of every node.
        report: totals of :func:`report`, with ``accuracy`` where it was measured.
        memory: external memory of the cycle model; None: the default one.

    Returns:
        Plain data: cycles are those of one inference on the accelerator parts, sizes are in bytes, SNR in dB.
        ``frames_per_second`` is None if the host has a part.
    """
    accelerated = [part for part in parts if part.loadable is not None]
    studies = [
        Study.of(part.loadable, imported.config, memory=memory) for part in accelerated if part.loadable is not None
    ]
    timed = [cycles_document(study, CLOCK) for study in studies]
    memories = [MemoryMap.of(study) for study in studies]
    spaces = [space for memory_map in memories for space in memory_map.spaces()]
    descriptors = sum(memory_map.descriptor_bytes() for memory_map in memories)
    whole = len(accelerated) == len(parts)
    cycles = (
        None if any(document["stuck"] for document in timed) else sum(document["total_cycles"] for document in timed)
    )
    images = max((part.images for part in parts), default=1)
    keys = ("config", "precision", "accelerator_nodes", "cpu_nodes", "host_nodes", "accelerator_macs_share", "cuts")
    return {
        **{key: report[key] for key in (*keys, "bytes_crossing")},
        "accelerator_parts": len(accelerated),
        "host_parts": len(parts) - len(accelerated),
        "host_reasons": host_reasons(nodes, report["macs"]),
        "cycles": cycles,
        "clock_mhz": CLOCK,
        "memory": timed[0]["memory"] if timed else None,
        "frames_per_second": images * CLOCK * 1e6 / cycles if cycles and whole else None,
        "weight_bytes": sum(space["constant"] for space in spaces) - descriptors,
        "descriptor_bytes": descriptors,
        "surface_bytes": max((space["peak_live"] for space in spaces), default=0),
        "allocated_bytes": sum(space["allocated"] for space in spaces),
        "carve_out_bytes": sum(space["carve_out"] for space in spaces),
        "read_bytes": sum(document["read_bytes"] for document in timed),
        "written_bytes": sum(document["written_bytes"] for document in timed),
        "output_snr": _output_snr(accelerated, report.get("accuracy", ())),
        "constant_inputs": list((report.get("calibration") or {}).get("constant_inputs", ())),
        "worst_layers": [
            {key: row[key] for key in ("layer", "precision", "alone", "chain", "saturated", "advice")}
            for row in sorted(report.get("accuracy", ()), key=lambda row: row["alone"])[:WORST]
        ],
    }


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


def _output_snr(parts: Sequence[CompiledPart], accuracy: Sequence[Document]) -> Document:
    """SNR in dB of every output of a part that was measured, including the noise of all layers before it."""
    outputs = [name for part in parts for name in part.made.output_scales]
    measured = {row["tensor"]: row["chain"] for row in accuracy}
    snr_by_output = {name: measured[name] for name in outputs if name in measured}
    return snr_by_output or ({accuracy[-1]["tensor"]: accuracy[-1]["chain"]} if accuracy else {})


def summary_lines(summary: Document) -> dict[str, str]:
    """Describe a summary in words: what -> text, for a table of two columns."""
    share, host = summary["accelerator_macs_share"], summary["host_nodes"]
    lines = {
        "configuration": f"{summary['config']}, {summary['precision']}",
        "accelerator": counted(summary["accelerator_nodes"], "node")
        + (f" and {counted(summary['cpu_nodes'], 'CPU task')}" if summary["cpu_nodes"] else "")
        + f" in {counted(summary['accelerator_parts'], 'part')}"
        + ("" if share is None else f", {share:.1%} of the multiplications"),
        "host": host_text(summary["host_reasons"]) if host else "no node",
    }
    if summary["cuts"]:
        moved = size_text(summary["bytes_crossing"])
        lines["transfers"] = (
            f"{moved} per inference, at {counted(summary['cuts'], 'change')} between accelerator and host"
        )
    if summary["memory"] is None:
        return lines
    memory = summary["memory"]
    at = f"memory latency {memory['latency_cycles']}, {memory['bytes_per_cycle']:g} bytes per cycle"
    frames = summary["frames_per_second"]
    lines |= {
        "time": f"{total_text(summary['cycles'], summary['clock_mhz'])}, {at}",
        "frames per second": f"{frames:,.1f}" if frames else "not known: the nodes on the host are not timed",
        "weights": size_text(summary["weight_bytes"]),
        "descriptors": f"{size_text(summary['descriptor_bytes'])}, for NVIDIA's firmware and runtime",
        "peak of surfaces": size_text(summary["surface_bytes"]),
        "carve-out": f"{size_text(summary['carve_out_bytes'])} to reserve in memory",
        "traffic": f"{size_text(summary['read_bytes'])} read, {size_text(summary['written_bytes'])} written",
    }
    if summary["constant_inputs"]:
        lines["expected SNR"] = (
            f"not known: the calibration data of {', '.join(summary['constant_inputs'])} is constant"
        )
    elif summary["output_snr"]:
        name, snr = min(summary["output_snr"].items(), key=lambda item: item[1])
        lines["expected SNR"] = f"{_db(snr)} at {name}, on the calibration data"
    return lines


def host_text(reasons: Sequence[Document]) -> str:
    """Describe the result of :func:`host_reasons` in one line."""
    texts = []
    for reason in reasons[:_NAMED]:
        share = "" if not reason["macs_share"] else f" ({reason['macs_share']:.0%} of the multiplications)"
        texts.append(
            f"{counted(len(reason['nodes']), 'node')}{share}, {', '.join(reason['operators'])}: {reason['reason']}"
        )
    more = sum(len(reason["nodes"]) for reason in reasons[_NAMED:])
    return "; ".join(texts) + (f"; {more} more (--nodes)" if more else "")


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
    return "\n".join([title, *(f"  {what:{width}}  {value}" for what, value in lines)])


def html(title: str, summary: Document) -> str:
    """Return the same as an HTML fragment, for notebooks."""
    from nvdla.util.escaping import xml_text
    from nvdla.util.html import table

    return f"<b>{xml_text(title)}</b>{table((), _all_lines(summary))}"
