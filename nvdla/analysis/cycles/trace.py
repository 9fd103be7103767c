"""The schedule in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Tracks: the firmware's steps, each engine's two register groups (programmed, then at work, with a convolution's phases
inside), the operations as layers, and counters of live memory. Arrows (flows) lead from an operation to those that wait
for it. Times are microseconds at the given clock; every event carries its cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvdla.analysis.cycles.schedule import Span
from nvdla.analysis.study import Study
from nvdla.descriptors.enums import ENGINE_NAMES
from nvdla.errors import shape_text
from nvdla.program.operation import Key, Operation

FIRMWARE, HARDWARE, MEMORY = 1, 2, 3
PROCESSES = {FIRMWARE: "firmware", HARDWARE: "NVDLA", MEMORY: "memory"}
CPU_TRACK = 100
COLORS = {"conv": "rail_response", "sdp": "good", "pdp": "bad", "cdp": "terrible", "cpu": "grey"}

Event = dict[str, Any]


def trace_document(study: Study, clock: float, live: dict[str, list[int]] | None = None) -> Event:
    """The trace as plain data (JSON object form). ``clock`` in MHz; ``live``: bytes alive by space and step."""
    return {
        "traceEvents": [
            *_names(study),
            *_firmware(study, clock),
            *_hardware(study, clock),
            *_flows(study, clock),
            *_counters(study, clock, live or {}),
        ],
        "displayTimeUnit": "ns",
        "otherData": {
            "loadable": study.loadable.name,
            "configuration": study.config.name,
            "clock_mhz": clock,
            "cycles": study.schedule.cycles,
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
    for engine, group in sorted(used, key=lambda each: _track(*each)):
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


def _slice(
    node: Operation, span: Span, clock: float, name: str, times: tuple[int, int], about: dict[str, Any]
) -> Event:
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


def _about(study: Study, node: Operation) -> dict[str, Any]:
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
    """An arrow from what completes to what waited for it."""
    number = 0
    for node in study.operations:
        span = study.schedule.spans[node.key]
        for each in node.dependencies:
            target = study.schedule.spans.get(each.target)
            if each.event != "OP_COMPLETED" or target is None or target.start is None or span.end is None:
                continue
            number += 1
            yield _flow("s", number, node.engine, span, max(span.end - 1, span.start or 0) / clock)
            yield _flow("f", number, study.by_key[each.target].engine, target, target.start / clock) | {"bp": "e"}


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
                yield _counter(f"live bytes in {space}", start / clock, amount)
        yield _counter(f"live bytes in {space}", study.schedule.cycles / clock, 0)


def _start(study: Study, key: Key) -> int | None:
    return study.schedule.spans[key].start


def _counter(name: str, time: float, amount: int) -> Event:
    return {"ph": "C", "pid": MEMORY, "tid": 0, "ts": time, "name": name, "args": {"bytes": amount}}
