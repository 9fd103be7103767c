"""What the page knows of one loadable, as plain data; operations, values and tensors are known by their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nvdla.analysis.cycles.document import caveats, cycles_document
from nvdla.analysis.explain import explanations, sentences
from nvdla.analysis.memorymap.memory_map import MemoryMap
from nvdla.analysis.study import Study
from nvdla.analysis.views.views import describe_tensor, operation_counts
from nvdla.doctor.examination import Examination
from nvdla.program.naming import Names
from nvdla.program.operation import Key
from nvdla.report.blocks import blocks
from nvdla.report.details import FieldTable, ShownWeights
from nvdla.report.hazards import hazards
from nvdla.report.pictures import Pictures
from nvdla.report.registers import register_table, register_writes
from nvdla.report.run import RunView, run_rows

#: larger networks are shown without fields, register writes and weights
MAX_DETAILED = 2000
MAX_FINDINGS = 2000

Row = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """A loadable, perhaps with a run, as the page shows it. ``document``: plain data; ``pictures``: its tensors."""

    study: Study
    names: Names
    document: Row
    pictures: Pictures
    view: RunView | None


def side_of(
    study: Study, names: Names, examination: Examination, view: RunView | None, clock: float, room: int
) -> Side:
    """The page's data on one loadable. ``clock`` in MHz; ``room``: bytes for elements of tensors."""
    memory, pictures = MemoryMap.of(study), Pictures(room)
    number = {node.key: place for place, node in enumerate(study.operations)}
    document = {
        "title": study.title,
        "file": study.loadable.name,
        "configuration": study.config.name,
        "clock": clock,
        "inputs": [study.loadable.tensor(memory.tensor_desc_id).name for memory in study.loadable.inputs],
        **_overview(study, clock, examination, memory),
        "operations": _operations(study, number),
        "chains": [[number[node.key] for node in chain] for chain in study.steps],
        "values": _values(study, memory, number),
        "spaces": memory.spaces(),
        "live": memory.usage,
        "allocations": memory.allocation_rows(),
        "hazards": [
            row | {"earlier": number[row["earlier"]], "later": number[row["later"]]} for row in hazards(study, memory)
        ],
        "findings": _findings(examination, number),
        "roof": _roof(study),
        "cycles": study.schedule.cycles,
    }
    document |= _details(study, number, pictures, document["operations"])
    document["run"] = None if view is None else run_rows(view, examination, names, number, pictures)
    document["tensors"] = pictures.rows
    return Side(study, names, document, pictures, view)


def _overview(study: Study, clock: float, examination: Examination, memory: MemoryMap) -> Row:
    """The figures that everybody asks for first."""
    cycles, loadable = cycles_document(study, clock), study.loadable
    counts, spaces = operation_counts(study.tasks), memory.spaces()
    figures = [
        ["operations", f"{sum(counts.values()):,}"],
        ["cycles (estimate)", f"{cycles['total_cycles']:,}"],
        [f"ms at {clock:g} MHz", f"{cycles['total_ms']:,.3f}"],
        ["MACs", f"{cycles['macs']:,}"],
        ["of the MAC array used", f"{cycles['mac_use'] or 0:.1%}"],
        ["bytes of memory", f"{sum(row['carve_out'] for row in spaces):,}"],
        ["bytes live at the peak", f"{sum(row['peak_live'] for row in spaces):,}"],
        ["findings", f"{len(examination.findings):,}"],
    ]
    about = [
        ["File", loadable.name],
        ["Configuration", f"{study.config.name}: {study.config_reason}"],
        ["Descriptors", study.abi_reason],
        ["Inputs", _lines(describe_tensor(loadable, each) for each in loadable.inputs)],
        ["Outputs", _lines(describe_tensor(loadable, each) for each in loadable.outputs)],
        ["Operations", ", ".join(f"{count} {name}" for name, count in counts.items())],
        ["Tasks", ", ".join(f"{task.id} {task.interface.name}" for task in loadable.tasks)],
        ["Blobs", f"{len(loadable.blobs)} with {sum(each.length for each in loadable.blobs):,} bytes"],
    ]
    return {"figures": figures, "about": about, "notes": [f"{line}." for line in caveats(study)]}


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts) or "none"


def _operations(study: Study, number: dict[Key, int]) -> list[Row]:
    """One row an operation, in the order of the submitted tasks."""
    waits: dict[Key, list[list[Any]]] = {}
    for node in study.operations:
        for each in node.dependencies:
            if each.target in number:
                waits.setdefault(each.target, []).append([number[node.key], each.event, each.on_the_fly])
    of_block = blocks([node.layer for node in study.operations])
    rows = []
    for node, block in zip(study.operations, of_block, strict=True):
        estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
        rows.append(
            {
                "label": node.label,
                "engine": node.engine,
                "layer": node.layer,
                "block": block,
                "what": node.what,
                "precision": node.precision,
                "input": list(node.input) if node.input else None,
                "output": list(node.output) if node.output else None,
                "leads": estimate.leader == node.key,
                "cycles": estimate.cycles,
                "bound": estimate.bound,
                "macs": estimate.macs,
                "use": estimate.mac_share,
                "read": estimate.read_bytes,
                "written": estimate.written_bytes,
                "measured": estimate.measured,
                "group": span.group,
                "programmed": span.programmed,
                "start": span.start,
                "end": span.end,
                "mac": [span.first_mac, span.last_mac] if span.first_mac is not None else None,
                "waits": waits.get(node.key, []),
            }
        )
    return rows


def _values(study: Study, memory: MemoryMap, number: dict[Key, int]) -> list[Row]:
    """What lies in memory; ``first`` and ``last`` are steps, ``readers`` [operation, role]."""
    spaces = {each.memory.id: each.space for each in memory.allocations}
    keep = ("name", "kind", "memory", "offset", "address", "size", "bytes", "shape", "layout", "line_stride")
    return [
        {key: row[key] for key in (*keep, "surface_stride", "first", "last")}
        | {
            "space": spaces.get(value.memory),
            "writer": number[value.writer] if value.writer else None,
            "readers": [[number[key], role] for key, role in dict.fromkeys(value.readers)],
            "damaged": [number[key] for key in value.damaged_by],
        }
        for value, row in zip(study.values, memory.buffer_rows(), strict=True)
    ]


def _findings(examination: Examination, number: dict[Key, int]) -> list[Row]:
    rows = []
    for each in examination.findings[:MAX_FINDINGS]:
        place = (each.task, 0, each.operation) if each.task is not None and each.operation is not None else None
        rows.append(
            {
                "severity": each.severity,
                "rule": each.rule,
                "headline": each.headline,
                "place": each.place,
                "evidence": each.evidence,
                "advice": each.advice,
                "operation": number.get(place) if place else None,
            }
        )
    return rows


def _roof(study: Study) -> Row:
    """What the machine can do at most: multiplications and bytes a cycle."""
    config, memory = study.config, study.memory
    return {
        "macs": config.mac_atomic_c * config.mac_atomic_k,
        "bytes": memory.bytes_per_cycle or config.dram_width_bits / 8,
    }


def _details(study: Study, number: dict[Key, int], pictures: Pictures, rows: list[Row]) -> Row:
    """Adds fields, register writes, weights and the ways of convolutions to the operations' rows; their tables."""
    if len(rows) > MAX_DETAILED:
        note = f"{len(rows)} operations: fields, register writes and weights are left out"
        return {"schemas": {}, "registers": [], "missing": [note]}
    table, weights = FieldTable(), ShownWeights(study.program, pictures)
    writes, problem = register_writes(study.program)
    ways = {row["operation"]: sentences(row)[1:] for row in explanations(study)} if study.operations else {}
    for node in study.operations:
        row = rows[number[node.key]]
        row["fields"] = table.rows(node)
        row["writes"] = [list(each) for each in writes.get((node.task, 0, node.index), [])]
        row["weights"] = weights.of(node)
        row["ways"] = ways.get(node.label, [])
    missing = [f"register writes end early: {problem}"] if problem else []
    missing += [f"weights are not shown: {weights.problem}"] if weights.problem else []
    return {"schemas": table.schemas, "registers": register_table(study.program, writes), "missing": missing}
