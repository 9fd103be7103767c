"""Cycles and schedule as plain data (docs/cycles.md)."""

from __future__ import annotations

from typing import Any

from nvdla.analysis.cycles.constants import DEFAULT_LATENCY, MEASURED
from nvdla.analysis.cycles.schedule import busy_cycles
from nvdla.analysis.study import Study

FORMAT, VERSION = "nvdla-cycles", 1

Row = dict[str, Any]


def cycles_document(study: Study, clock: float) -> Row:
    """Every operation with its cycles; the sum, the schedule's length, what bounds the run. ``clock`` in MHz."""
    schedule = study.schedule
    macs = sum(study.estimates[node.key].macs for node in study.operations)
    peak = study.config.mac_atomic_c * study.config.mac_atomic_k
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadable": study.loadable.name,
        "configuration": study.config.name,
        "abi": study.abi.name,
        "memory": {
            "latency_cycles": study.memory.latency,
            "bytes_per_cycle": study.memory.bytes_per_cycle or study.config.dram_width_bits / 8,
            "shared": study.memory.shared,
        },
        "software_cycles": study.software.answer,
        "csb_cycles": study.software.write,
        "cpu_element_cycles": study.software.element,
        "clock_mhz": clock,
        "measured": all(each.measured for each in study.estimates.values() if each.cycles is not None),
        "total_cycles": schedule.cycles,
        "total_ms": schedule.cycles / clock / 1000,
        "runs_per_second": clock * 1e6 / schedule.cycles if schedule.cycles else None,
        "macs": macs,
        "mac_use": macs / (peak * schedule.cycles) if schedule.cycles else None,
        "read_bytes": sum(each.read_bytes for each in study.estimates.values()),
        "written_bytes": sum(each.written_bytes for each in study.estimates.values()),
        "busy": {engine: busy for engine in _engines(study) if (busy := _busy(study, engine))},
        "stuck": [study.by_key[key].label for key in schedule.stuck],
        "operations": operation_rows(study),
    }


def operation_rows(study: Study) -> list[Row]:
    """One row an operation, in the order in which they begin."""
    rows = []
    for key in study.schedule.order:
        node, estimate, span = study.by_key[key], study.estimates[key], study.schedule.spans[key]
        rows.append(
            {
                "operation": node.label,
                "engine": node.engine,
                "layer": node.layer,
                "input": list(node.input) if node.input else None,
                "output": list(node.output) if node.output else None,
                "precision": node.precision,
                "what": node.what,
                "leader": study.by_key[estimate.leader].label,
                "cycles": estimate.cycles,
                "bound": estimate.bound,
                "macs": estimate.macs,
                "mac_share": estimate.mac_share,
                "read_bytes": estimate.read_bytes,
                "written_bytes": estimate.written_bytes,
                "group": span.group,
                "programmed": span.programmed,
                "enabled": span.enabled,
                "start": span.start,
                "end": span.end,
                "measured": estimate.measured,
            }
        )
    return rows


def caveats(study: Study) -> list[str]:
    """What a reader of the numbers must know."""
    found = []
    unproven = [each for each in study.estimates.values() if each.cycles is not None and not each.measured]
    if unproven:
        where = f"the model was calibrated on {' and '.join(MEASURED)} in int8"
        found.append(f"{len(unproven)} of {len(study.estimates)} operations are estimates without proof: {where}")
    if any(node.engine == "cpu" for node in study.operations):
        figure = f"{study.software.element:g} cycles for an element of their output"
        found.append(f"CPU operations take {figure}, an assumption (--cpu-cycles)")
    if study.memory.latency == DEFAULT_LATENCY and study.memory.bytes_per_cycle is None:
        found.append(f"memory: {DEFAULT_LATENCY} cycles latency, the bus's width (--latency, --bandwidth, --shared)")
    if study.schedule.stuck:
        names = ", ".join(study.by_key[key].label for key in study.schedule.stuck[:8])
        found.append(f"{len(study.schedule.stuck)} operations wait for ever: {names}")
    return found


def _engines(study: Study) -> list[str]:
    return list(dict.fromkeys(node.engine for node in study.operations))


def _busy(study: Study, engine: str) -> int:
    return busy_cycles(study.schedule, [node.key for node in study.operations if node.engine == engine])
