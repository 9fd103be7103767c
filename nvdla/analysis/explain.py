"""How a convolution is done, and what bounds it: banks, tiles, kernel groups, stripes, fetches (docs/explain.md)."""

from __future__ import annotations

from typing import Any

from nvdla.analysis.study import Study
from nvdla.descriptors.enums import ConvMode, OpType, WeightFormat
from nvdla.errors import DescriptorError, counted, shape_text
from nvdla.program.operation import Operation
from nvdla.rounding import ceil_div


def explanations(study: Study, chosen: str | None = None) -> list[dict[str, Any]]:
    """One document a convolution, in order; ``chosen``: "TASK/OPERATION", "OPERATION" of the first task, or a layer.
    ``advice`` is empty: :func:`nvdla.analysis.advice.with_advice` asks for it.

    Raises DescriptorError where no convolution is called so.
    """
    found = [node for node in study.operations if node.type == OpType.CONV]
    rows = [_explain(study, node, found) for node in found if chosen is None or chosen in _names(node)]
    if chosen is not None and not rows:
        known = ", ".join(node.label for node in found[:8]) + (" ..." if len(found) > 8 else "")
        raise DescriptorError(f"no convolution is called {chosen}; convolutions are {known or 'none'}")
    return rows


def _names(node: Operation) -> set[str]:
    return {node.label, node.layer or "", *([str(node.index)] if node.task == 0 else [])}


def _explain(study: Study, node: Operation, all_of_them: list[Operation]) -> dict[str, Any]:
    op, surface, config = node.descriptors.op, node.surface, study.config
    estimate = study.estimates[node.key]
    tiles = [each for each in all_of_them if node.layer and each.layer == node.layer and each.task == node.task]
    kernels, element = surface.dst_data.channel, 2 if op.out_precision else 1
    group = config.mac_atomic_k // element
    positions = surface.dst_data.width * surface.dst_data.height
    used = op.input_height_csc * op.entry_per_slice
    weights = surface.weight_data.size
    bound = estimate.bound or "unknown"
    return {
        "operation": node.label,
        "layer": node.layer,
        "mode": ConvMode(op.conv_mode).name.lower(),
        "input": list(node.input) if node.input else None,
        "output": list(node.output) if node.output else None,
        "tile": [tiles.index(node) + 1, len(tiles)] if node in tiles else [1, 1],
        "data_banks": op.data_bank,
        "data_entries": [used, op.data_bank * config.cbuf_bank_entries],
        "data_reused": bool(op.data_reuse),
        "weight_banks": op.weight_bank,
        "weight_bytes": weights,
        "weights_resident": weights <= op.weight_bank * config.cbuf_bank_bytes,
        "weights_reused": bool(op.weight_reuse),
        "weights_compressed": op.weight_format == WeightFormat.COMPRESSED,
        "idle_banks": config.cbuf_banks - op.data_bank - op.weight_bank,
        "kernel_groups": ceil_div(kernels, group),
        "kernels_of_a_group": group,
        "channel_use": _share(op.kernel_channel_csc, config.mac_atomic_c),
        "kernel_use": _share(kernels, group),
        "stripes_of_a_group": ceil_div(positions, 2 * config.mac_atomic_k),
        "macs": estimate.macs,
        "cycles": estimate.cycles,
        "mac_use": estimate.mac_share,
        "read_bytes": estimate.read_bytes,
        "bound": bound,
        "advice": "",
    }


def _share(count: int, cells: int) -> float:
    """How many of the cells work, on average over the passes that ``count`` takes."""
    return count / (ceil_div(count, cells) * cells) if count else 0.0


def sentences(row: dict[str, Any]) -> list[str]:
    """A document in words, line by line."""
    shape = " to ".join(shape_text(row[side]) for side in ("input", "output") if row[side])
    used, room = row["data_entries"]
    lines = [f"{row['operation']} {row['layer'] or ''}: {row['mode']} convolution, {shape} (channels x height x width)"]
    if row["tile"][1] > 1:
        lines.append(f"tile {row['tile'][0]} of {row['tile'][1]} of its layer")
    data = "used again from the convolution before" if row["data_reused"] else "fetched once"
    lines.append(f"data: {counted(row['data_banks'], 'bank')}, {used} of {room} entries, {data}")
    resident = "all of them stay in the buffer" if row["weights_resident"] else "streamed kernel group by kernel group"
    if row["weights_reused"]:
        resident = "used again from the convolution before"
    kind = "compressed bytes" if row["weights_compressed"] else "bytes"
    lines.append(f"weights: {counted(row['weight_banks'], 'bank')}, {row['weight_bytes']:,} {kind}, {resident}")
    lines.append(
        f"MAC array: {counted(row['kernel_groups'], 'kernel group')} of {row['kernels_of_a_group']} "
        f"({row['kernel_use']:.0%} of the cells), {row['channel_use']:.0%} of the channels of a cell, "
        f"{counted(row['stripes_of_a_group'], 'stripe')} a group"
    )
    if row["cycles"] is not None:
        use = f", {row['mac_use']:.1%} of the array" if row["mac_use"] is not None else ""
        lines.append(f"{row['cycles']:,} cycles{use}; bound by {row['bound']}")
    if row["advice"]:
        lines.append(f"what would help: {row['advice']}")
    return lines
