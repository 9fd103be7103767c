"""Cycle estimates as documents: JSON, Perfetto traces and timeline pictures.

Tracks: the firmware's steps, each engine's two register groups (programmed, then at work, with a convolution's phases
inside), the operations as layers, and counters of live memory and of the use of the hardware. Arrows (flows) lead from
an operation to those that wait for it. Times are microseconds at the given clock; every event carries its cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nvdla.analysis.cycles.constants import CSB_WRITE, MEASURED, Board, Memory, Software, bandwidth_text
from nvdla.analysis.cycles.schedule import Span, busy_cycles
from nvdla.analysis.study import Study
from nvdla.analysis.svg import STYLE, Drawing, round_ticks, short
from nvdla.analysis.views import blocks, first_name
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import counted, shape_text
from nvdla.loadable.descriptors.enums import ENGINE_NAMES
from nvdla.program.operation import Key, Operation, scope_of_most, short_layer, short_layers
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, Json

FORMAT, VERSION = "nvdla-cycles", 1

TRAFFIC = ("read_bytes", "written_bytes", "cvsram_read_bytes", "cvsram_written_bytes")

Row = Document


def memory_document(study: Study) -> Row:
    """Describe the memory that the cycles of a study are for."""
    bus = study.config.dram_width_bits / 8
    return {
        "latency_cycles": study.memory.latency,
        "bytes_per_cycle": study.memory.bytes_per_cycle or bus,
        "accepted_bytes_per_cycle": study.memory.rate(bus),
        "shared": study.memory.shared,
    }


@by_annotations
def cycles_document(study: Study, clock: float) -> Row:
    """Describe the cycles of a loadable as plain data, for JSON.

    Args:
        study: Analysis of the loadable.
        clock: Clock frequency in MHz.

    Returns:
        The totals of the run (cycles, milliseconds, MACs, memory traffic), the busy times of the engines, and one row
        per operation. Total times are None if the cycles of an operation are unknown.
    """
    total, rows = study.schedule.total, operation_rows(study)
    macs = sum(study.estimates[node.key].macs for node in study.operations)
    full_use = sum(estimate.full_use_cycles for estimate in study.estimates.values())
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadable": study.loadable.name,
        "configuration": study.config.name,
        "abi": study.abi.name,
        "memory": memory_document(study),
        "board": study.board.name if study.board else None,
        "software_cycles": study.software.answer,
        "csb_cycles": study.software.write,
        "cpu_element_cycles": study.software.element,
        "clock_mhz": clock,
        "measured": all(estimate.measured for estimate in study.estimates.values() if estimate.cycles is not None),
        "total_cycles": total,
        "overlap_cycles": None if total is None else total - sum(row["cycles"] or 0 for row in rows),
        "total_ms": None if total is None else total / clock / 1000,
        "runs_per_second": clock * 1e6 / total if total else None,
        "macs": macs,
        "mac_use": full_use / total if total else None,
        **{name: sum(getattr(estimate, name) for estimate in study.estimates.values()) for name in TRAFFIC},
        "busy": {engine: busy for engine in _engines(study) if (busy := _busy(study, engine))},
        "stuck": [study.by_key[key].label for key in study.schedule.stuck],
        "operations": rows,
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
                "cycles": cycles_of(study, node),
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


def cycles_of(study: Study, node: Operation) -> int | None:
    """Cycles of an operation or of the chain that it leads; None of other members of a chain, and where unknown."""
    return chain_cycles(study, node) if study.estimates[node.key].leader == node.key else None


def chain_cycles(study: Study, node: Operation) -> int | None:
    """Cycles of an operation of the CPU, or of the chain of another operation; None where unknown."""
    if node.engine != "cpu":
        return study.estimates[node.key].cycles
    span = study.schedule.spans[node.key]
    return None if span.start is None or span.end is None else span.end - span.start


def grouped(study: Study, rows: Iterable[Row], by: str) -> list[Row]:
    """Sum rows of :func:`operation_rows`.

    Args:
        study: the study of the rows.
        rows: rows of operations.
        by: "layer", "block" (layers with a common beginning of their names) or "type" (engine).

    Returns:
        One row per group, most cycles first: its operations, cycles, share of the total (of the sum of all operations,
        if they overlap), multiplications, traffic in bytes. Cycles of operations on the fly are those of the first
        operation of their chain.
    """
    group_of = dict(zip((node.label for node in study.operations), group_names(study, by), strict=True))
    estimate_of = {node.label: study.estimates[node.key] for node in study.operations}
    total, alone = study.schedule.total, summed_cycles(study)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(group_of[row["operation"]], []).append(row)
    sums = []
    for name, members in groups.items():
        cycles = sum(row["cycles"] or 0 for row in members)
        full_use = sum(estimate_of[row["operation"]].full_use_cycles for row in members)
        sums.append(
            {
                by: name,
                "operations": len(members),
                "cycles": cycles,
                "share": cycles / alone if total and alone else None,
                "macs": sum(row["macs"] for row in members),
                "mac_share": full_use / cycles if full_use and cycles else None,
                "read_bytes": sum(row["read_bytes"] for row in members),
                "written_bytes": sum(row["written_bytes"] for row in members),
            }
        )
    return sorted(sums, key=lambda row: -row["cycles"])


def summed_cycles(study: Study) -> int:
    """Return what shares of cycles are of: the total, or the sum of all operations where they overlap."""
    return max(study.schedule.total or 0, sum(cycles_of(study, node) or 0 for node in study.operations))


def group_names(study: Study, by: str) -> list[str]:
    """Return the name of each operation's group in the sums of :func:`grouped`.

    Args:
        study: Analysis of the loadable.
        by: "layer", "block" or "type", as for :func:`grouped`. A layer without a block is its own, by its first name.

    Returns:
        One name per operation of the study, in its order; of an operation without a layer, its engine in parentheses.
    """
    nodes = study.operations
    names = [node.engine if by == "type" else node.layer for node in nodes]
    if by == "block":
        names = [block or (layer and first_name(layer)) for block, layer in zip(blocks(names), names, strict=True)]
    return [name or f"({node.engine.upper()}, no layer name)" for node, name in zip(nodes, names, strict=True)]


def short_names(study: Study) -> dict[str, str]:
    """Return the short name of each layer and block of a study (:func:`group_names`), without the scope of most."""
    layers = [node.layer for node in study.operations]
    scope = scope_of_most({layer for layer in layers if layer})
    blocks_short = {name: short_layer(name).removeprefix(scope) for name in group_names(study, "block")}
    return blocks_short | short_layers(layers)


def total_text(total: int | None, clock: float) -> str:
    """The total in words. ``clock`` in MHz."""
    if total is None:
        return "no total: deadlock"
    return f"{total:,} cycles = {total / clock / 1000:.3f} ms at {clock:g} MHz"


def memory_text(memory: Memory, config: Configuration) -> str:
    """The external memory of a configuration in words."""
    rate = memory.bytes_per_cycle
    accepted = memory.rate(config.dram_width_bits / 8)
    bandwidth = "bandwidth of the bus" if rate is None else bandwidth_text(rate, accepted, config.name)
    return f"memory: latency {memory.latency} cycles, {bandwidth}{', shared' if memory.shared else ''}"


def firmware_text(software: Software, clock: float) -> str:
    """Times of the firmware in words; empty for those of the runs on the RTL. ``clock`` in MHz."""
    answer = f"{software.answer / clock:.3g} us" if software.answer else ""
    write = f"{software.write:g} cycles per register write" if software.write != CSB_WRITE else ""
    return f"firmware {', '.join(filter(None, (answer, write)))}" if answer or write else ""


def conditions(
    memory: Memory | None,
    software: Software,
    clock: float,
    board: Board | None,
    config: Configuration | None,
    states_clock: bool = False,
) -> str:
    """State the memory and the firmware that cycles are for, and the board that the values are from.

    Args:
        memory: External memory (None: it is stated elsewhere).
        software: Time that the firmware takes.
        clock: Clock frequency in MHz.
        board: Known board; values that differ from it are listed as overridden.
        config: Configuration that takes the memory's data (None: as ``memory``).
        states_clock: Whether the line begins with the clock.

    Returns:
        One line; empty where nothing of it is given.
    """
    head = f"clock {clock:g} MHz" if states_clock else ""
    parts = [head, memory_text(memory, config) if memory and config else "", firmware_text(software, clock)]
    text = "; ".join(filter(None, parts))
    if board is not None:
        return f"{text} (board {board.name}{_overridden(memory, software, clock, board)})"
    usual = memory == Memory() and software == Software()
    return f"{text} (default; --board, --latency, --bandwidth)" if usual else text


def _overridden(memory: Memory | None, software: Software, clock: float, board: Board) -> str:
    """The values that are not the board's, after a semicolon; empty where all are."""
    memory = memory or board.memory
    others = {
        "clock": clock != board.clock,
        "latency": memory.latency != board.memory.latency,
        "bandwidth": memory.bytes_per_cycle != board.memory.bytes_per_cycle,
        "sharing": memory.shared != board.memory.shared,
        "time of the firmware": (software.answer, software.write) != (board.software.answer, board.software.write),
        "time of CPU operations": software.element != board.software.element,
    }
    *some, last = [name for name, differs in others.items() if differs] or [""]
    return f"; {', '.join(some)}{' and ' if some else ''}{last} overridden" if last else ""


def caveats(study: Study, clock: float) -> list[str]:
    """Return the conditions of the numbers. ``clock`` in MHz."""
    caveats = []
    unproven = [
        estimate for estimate in study.estimates.values() if estimate.cycles is not None and not estimate.measured
    ]
    if unproven:
        where = f"the model was calibrated on {' and '.join(MEASURED)} in int8"
        caveats.append(f"{len(unproven)} of {len(study.estimates)} operations are estimates without proof: {where}")
    if any(node.engine == "cpu" for node in study.operations):
        caveats.append(f"CPU operations: assumed {study.software.element:g} cycles per output element (--cpu-cycles)")
    caveats.append(conditions(study.memory, study.software, clock, study.board, study.config))
    if study.schedule.stuck:
        names = ", ".join(study.by_key[key].label for key in study.schedule.stuck[:8])
        caveats.append(
            str(study.deadlock or "") or f"deadlock of {counted(len(study.schedule.stuck), 'operation')}: {names}"
        )
    return caveats


def _engines(study: Study) -> list[str]:
    return list(dict.fromkeys(node.engine for node in study.operations))


def _busy(study: Study, engine: str) -> int:
    return busy_cycles(study.schedule, [node.key for node in study.operations if node.engine == engine])


FIRMWARE, HARDWARE, MEMORY = 1, 2, 3
PROCESSES = {FIRMWARE: "firmware", HARDWARE: "NVDLA", MEMORY: "memory"}
CPU_TRACK = 100
COLORS = {"conv": "rail_response", "sdp": "good", "pdp": "bad", "cdp": "terrible", "cpu": "grey"}

Event = Document


#: cycle and value from there on, by name and unit
Counters = dict[tuple[str, str], list[tuple[int, float]]]


def trace_document(
    study: Study, clock: float, live: dict[str, list[int]] | None = None, counters: Counters | None = None
) -> Event:
    """Return the trace as plain data (JSON object form).

    Args:
        study: Analysis of the loadable.
        clock: Clock frequency in MHz.
        live: Bytes alive by space and step.
        counters: Further values over time.
    """
    return {
        "traceEvents": [
            *_names(study),
            *_firmware(study, clock),
            *_hardware(study, clock),
            *_flows(study, clock),
            *_counters(study, clock, live or {}),
            *(
                _counter(name, cycle / clock, {unit: value}, HARDWARE)
                for (name, unit), points in (counters or {}).items()
                for cycle, value in points
            ),
        ],
        "displayTimeUnit": "ns",
        "otherData": {
            "loadable": study.loadable.name,
            "configuration": study.config.name,
            "clock_mhz": clock,
            "cycles": study.schedule.total,
            "latency_cycles": study.memory.latency,
            "stuck": [study.by_key[key].label for key in study.schedule.stuck],
        },
    }


def _track(engine: str, group: int | None) -> int:
    """A track for each register group of each engine."""
    return CPU_TRACK if engine == "cpu" else ENGINE_NAMES.index(engine) * 2 + (group or 0) + 1


def _names(study: Study) -> Iterator[Event]:
    """Names and places of the tracks that are used."""
    for process, name in PROCESSES.items():
        title = f"{name} {study.config.name}" if process == HARDWARE else name
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": title}}
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    yield {"ph": "M", "pid": FIRMWARE, "tid": 1, "name": "thread_name", "args": {"name": "steps"}}
    used = {(node.engine, study.schedule.spans[node.key].group) for node in study.operations}
    for engine, group in sorted(used, key=lambda track: _track(*track)):
        if engine != "cpu" and group is None:
            continue
        track = _track(engine, group)
        name = "CPU" if engine == "cpu" else f"{engine.upper()} group {group}"
        yield {"ph": "M", "pid": HARDWARE, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": HARDWARE, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _firmware(study: Study, clock: float) -> Iterator[Event]:
    for step in study.schedule.steps:
        node = study.by_key[step.key]
        yield {
            "ph": "i",
            "s": "t",
            "pid": FIRMWARE,
            "tid": 1,
            "ts": step.time / clock,
            "name": f"{step.what} {node.title}",
            "cat": "firmware",
            "args": {"cycle": step.time, "group": step.group},
        }


def _hardware(study: Study, clock: float) -> Iterator[Event]:
    for node in study.operations:
        span = study.schedule.spans[node.key]
        if span.start is None or span.end is None:
            continue
        if span.programmed is not None and span.programmed < span.start:
            yield _slice(node, span, clock, "waits", (span.programmed, span.start), {"enabled": span.enabled})
        yield _slice(node, span, clock, node.title, (span.start, span.end), _about(study, node))
        yield from _phases(node, span, clock)


def _phases(node: Operation, span: Span, clock: float) -> Iterator[Event]:
    """Inside a convolution: fetching, multiplying, and the end in the SDP."""
    if span.first_mac is None or span.last_mac is None or span.start is None or span.end is None:
        return
    points = [span.start, min(span.first_mac, span.end), min(span.last_mac, span.end), span.end]
    names = ("fetch before the first MAC", "multiply and accumulate", "last results")
    for name, start, end in zip(names, points[:-1], points[1:], strict=True):
        if end > start:
            yield _slice(node, span, clock, name, (start, end), {})


def _slice(node: Operation, span: Span, clock: float, name: str, times: tuple[int, int], about: Document) -> Event:
    start, end = times
    event = {
        "ph": "X",
        "pid": HARDWARE,
        "tid": _track(node.engine, span.group),
        "ts": start / clock,
        "dur": (end - start) / clock,
        "name": name,
        "cat": "waiting" if name == "waits" else node.engine,
        "args": {"operation": node.label, "start_cycle": start, "cycles": end - start, **about},
    }
    if name != "waits" and node.engine in COLORS:
        event["cname"] = COLORS[node.engine]
    return event


def _about(study: Study, node: Operation) -> dict[str, Json]:
    estimate = study.estimates[node.key]
    return {
        "what": node.what,
        "layer": node.layer,
        "input": shape_text(node.input) if node.input else None,
        "output": shape_text(node.output) if node.output else None,
        "bound": estimate.bound,
        "macs": estimate.macs,
        "read_bytes": estimate.read_bytes,
        "written_bytes": estimate.written_bytes,
    }


def _flows(study: Study, clock: float) -> Iterator[Event]:
    """An arrow from a completed operation to one that waited for it."""
    number = 0
    for node in study.operations:
        span = study.schedule.spans[node.key]
        for dependency in node.dependencies:
            target = study.schedule.spans.get(dependency.target)
            if dependency.event != "OP_COMPLETED" or target is None or target.start is None or span.end is None:
                continue
            number += 1
            yield _flow("s", number, node.engine, span, max(span.end - 1, span.start or 0) / clock)
            yield _flow("f", number, study.by_key[dependency.target].engine, target, target.start / clock) | {"bp": "e"}


def _flow(phase: str, number: int, engine: str, span: Span, time: float) -> Event:
    track = _track(engine, span.group)
    event = {"ph": phase, "id": number, "pid": HARDWARE, "tid": track, "ts": time}
    return event | {"name": "completed", "cat": "dependency"}


def _counters(study: Study, clock: float, live: dict[str, list[int]]) -> Iterator[Event]:
    """Live bytes of each space, at the beginning of each step."""
    for space, amounts in live.items():
        if not any(amounts):
            continue
        for chain, amount in zip(study.steps, amounts, strict=True):
            start = _start(study, chain[0].key)
            if start is not None:
                yield _counter(f"live bytes in {space}", start / clock, {"bytes": amount})
        yield _counter(f"live bytes in {space}", study.schedule.cycles / clock, {"bytes": 0})


def _start(study: Study, key: Key) -> int | None:
    return study.schedule.spans[key].start


def _counter(name: str, time: float, amounts: dict[str, float], process: int = MEMORY) -> Event:
    return {"ph": "C", "pid": process, "tid": 0, "ts": time, "name": name, "args": amounts}


LEFT, RIGHT, ROW, PLOT = 110, 40, 24, 1000  # the right margin fits half of the last number
TICKS = 8
CHARACTER = 8  # pixels of a wide character


def schedule_svg(study: Study, clock: float, style: str = STYLE) -> str:
    """The drawing as SVG text; ``style`` "" for a page that has the colors. ``clock`` in MHz."""
    drawing = Drawing()
    total = max(study.schedule.cycles, 1)
    title = f"Schedule of {short(study.title, 60)}: {total_text(study.schedule.total, clock)}"
    drawing.text(8, 18, title, "title")
    rows = _rows(study)
    top = 48.0
    scale = PLOT / total
    for tick in round_ticks(total, TICKS):
        x = LEFT + tick * scale
        drawing.line(x, top - 8, x, top + len(rows) * ROW)
        drawing.text(x, top - 12, f"{tick:,}" if tick else "0 cycles", "soft", "middle" if tick else "start")
    places = {row: top + number * ROW for number, row in enumerate(rows)}
    for (engine, group), y in places.items():
        drawing.text(8, y + 15, "CPU" if engine == "cpu" else f"{engine.upper()} group {group}")
    for node in study.operations:
        span = study.schedule.spans[node.key]
        if span.start is None or span.end is None:
            continue
        y = places[node.engine, span.group]
        if span.programmed is not None and span.programmed < span.start:
            x, width = LEFT + span.programmed * scale, (span.start - span.programmed) * scale
            label = f"{node.title} is programmed and waits"
            drawing.rect(x, y + 9, width, ROW - 17, node.engine, label, 0.3)
        x, width = LEFT + span.start * scale, max((span.end - span.start) * scale, 1)
        what = f"{node.title}: {span.start:,} to {span.end:,} ({span.end - span.start:,} cycles), {node.what}"
        drawing.rect(x, y + 2, width, ROW - 5, node.engine, what)
        name = short_layer(node.layer) if node.layer else node.label
        if len(name) * CHARACTER < width:
            drawing.text(x + 4, y + 15, name, "bar")
    drawing.text(8, top + len(rows) * ROW + 16, "bars: at work; thin bars: programmed ahead and waiting", "soft")
    return drawing.document(LEFT + PLOT + RIGHT, title, style)


def _rows(study: Study) -> list[tuple[str, int | None]]:
    used = {(node.engine, study.schedule.spans[node.key].group) for node in study.operations}
    rows: list[tuple[str, int | None]] = [
        (engine, group) for engine in ENGINE_NAMES for group in (0, 1) if (engine, group) in used
    ]
    return [*rows, *([("cpu", None)] if ("cpu", None) in used else [])]
