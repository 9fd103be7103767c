"""The exported timeline follows the Trace Event Format, as Perfetto and chrome://tracing read it."""

import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest

import nvdla
from nvdla.analysis.cycles.document import trace_document
from nvdla.analysis.explain import use_tracks
from nvdla.analysis.memory import MemoryMap
from nvdla.analysis.study import Study

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.loadable"))
REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
    "M": {"name", "ph", "pid", "args"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
    "C": {"name", "ph", "ts", "pid", "args"},
}
EVENT_KEYS = {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args", "id", "bp", "s", "cname"}


@pytest.fixture(params=SAMPLES, ids=lambda path: path.stem)
def trace(request):
    study = Study.of(nvdla.load(request.param))
    counters = {(track.name, track.unit): track.points for track in use_tracks(study)}
    document = trace_document(study, 1000.0, MemoryMap.of(study).usage, counters)
    return study, json.loads(json.dumps(document, allow_nan=False))


def test_events_have_what_their_phase_needs(trace):
    _, document = trace
    for event in document["traceEvents"]:
        assert REQUIRED[event["ph"]] <= set(event) <= EVENT_KEYS
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    assert document["displayTimeUnit"] == "ns"


def test_slices_of_a_track_are_nested_or_apart(trace):
    """The format's rule for complete events of one thread."""
    tracks = defaultdict(list)
    for event in trace[1]["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert tracks
    for slices in tracks.values():
        open_ends = []
        for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= start + 1e-9:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-9
            open_ends.append(end)


def test_every_arrow_begins_and_ends_on_a_slice(trace):
    slices, arrows = defaultdict(list), defaultdict(dict)
    for event in trace[1]["traceEvents"]:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event
    for arrow in arrows.values():
        assert set(arrow) == {"s", "f"}
        assert arrow["s"]["ts"] <= arrow["f"]["ts"]
        for event in arrow.values():
            places = slices[event["pid"], event["tid"]]
            assert any(start <= event["ts"] <= end for start, end in places)


def test_every_operation_is_there_with_its_cycles(trace):
    study, document = trace
    work = {
        (event["args"]["operation"], event["args"]["cycles"])
        for event in document["traceEvents"]
        if event["ph"] == "X" and event["cat"] != "waiting" and "what" in event["args"]
    }
    assert {label for label, _ in work} == {node.label for node in study.operations}
    for node in study.operations:
        span = study.schedule.spans[node.key]
        assert (node.label, span.end - span.start) in work


def test_every_track_has_a_name(trace):
    named = {(e["pid"], e["tid"]) for e in trace[1]["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in trace[1]["traceEvents"] if e["ph"] in "Xi"} <= named


def test_the_clock_scales_the_times():
    study = Study.of(nvdla.load(SAMPLES[0]))
    fast, slow = trace_document(study, 1000.0), trace_document(study, 500.0)
    ends = [max(e["ts"] + e.get("dur", 0) for e in d["traceEvents"] if e["ph"] == "X") for d in (fast, slow)]
    assert ends[0] == pytest.approx(study.schedule.cycles / 1000)
    assert ends[1] == pytest.approx(2 * ends[0])


def test_use_of_the_hardware_is_traffic_and_multiplications_over_time(trace):
    """The areas below the counters are the bytes and MACs of the estimates; nothing is used more than it exists."""
    study, document = trace
    events = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "C" and not event["name"].startswith("live"):
            events[event["name"]].append((event["ts"] * 1000, *event["args"].values()))
    areas = {
        name: sum(value * (after[0] - at) for (at, value), after in itertools.pairwise(rows))
        for name, rows in events.items()
    }
    rows = [study.estimates[node.key] for node in study.operations]
    assert areas["memory reads"] == pytest.approx(sum(row.read_bytes for row in rows), rel=0.01)
    assert areas["memory writes"] == pytest.approx(sum(row.written_bytes for row in rows), rel=0.03)
    peak = rows[0].constants.channels * rows[0].constants.kernels
    assert areas["MAC array"] / 100 * peak == pytest.approx(sum(row.macs for row in rows), rel=0.01)
    for name, limit in (("CBUF", 100), ("MAC array", 100.5)):
        assert 1 < max(value for _, value in events[name]) <= limit
    for points in events.values():
        assert points == sorted(points) and points[-1][1] == 0 and points[-1][0] <= study.schedule.cycles
