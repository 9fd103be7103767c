"""Whole networks measured on NVIDIA's RTL (the cycle corpus's queued runs), and what the model says of them."""

import gzip
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.schedule import ChainWork, Schedule, schedule
from nvdla.analysis.study import Study
from nvdla.util.rounding import ceil_div

SHARED = Path(__file__).resolve().parents[3] / "shared"
CYCLES = SHARED / "corpus" / "cycles"


@dataclass(frozen=True)
class Result:
    """A run: its name, class and memory, cycles measured and predicted."""

    test: str
    kind: str
    memory: Memory
    measured: int
    predicted: float
    schedule: Schedule
    case: dict

    @property
    def error(self):
        """In percent of the measured cycles."""
        return (self.predicted / self.measured - 1) * 100


def runs(config):
    """The runs to the end with the clock gates held on whose loadable is here."""
    corpus = json.loads((CYCLES / f"queued_{config}.json").read_text())
    for case in corpus["cases"]:
        path = loadable_path(case["loadable"]) if case["loadable"] else None
        if case["clock_gates"] == "on" and not case["hangs"] and path is not None:
            yield path, case


def loadable_path(name):
    """Where a run's loadable is, or None."""
    places = (CYCLES / name, SHARED / name, SHARED / "corpus" / name)
    return next((path for path in places if path.is_file()), None)


@cache
def _study(path, config):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return Study.of(nvdla.load(data), config=config)


def memory_of(conditions):
    """The memory of a run, of its latency, width and sharing."""
    width = conditions["bytes_per_cycle"]
    return Memory(
        conditions["latency_cycles"], None if width == "bus width" else width, conditions["shared_read_write"]
    )


def predict(path, case):
    """The model's total: from the first enabling to the last interrupt, as it was measured."""
    study, memory = _study(path, case["config"]), memory_of(case["memory"])
    works = []
    for chain in study.chains:
        estimate = study.estimates[chain[0].key]
        if chain[0].engine != "cpu":
            works.append(ChainWork(chain, estimate.shape, estimate.constants))
    found = schedule(_changed(works, case), memory)
    first = min(span.start for span in found.spans.values() if span.start is not None)
    return Result(case["test"], case["class"], memory, case["total"], found.cycles - first, found, case)


def _changed(works, case):
    """The runs that changed registers of their loadable: banks, re-use, a sum on the fly, image formats."""
    changed = list(works)
    convolutions = [place for place, work in enumerate(works) if work.shape.conv]
    if case["class"] == "constant_banks":
        data, weights = case["banks"]
        for place in convolutions:
            conv = replace(works[place].shape.conv, data_banks=data, weight_banks=weights)
            changed[place] = replace(works[place], shape=replace(works[place].shape, conv=conv))
    elif case["class"] == "reuse":
        first, second = convolutions
        banks = works[first].shape.conv
        conv = replace(works[second].shape.conv, data_banks=banks.data_banks, weight_banks=banks.weight_banks)
        if case["test"].endswith("_reused"):
            if "_data_" in case["test"] or "_both_" in case["test"]:
                conv = replace(conv, data_bytes=0)
            if "_weights_" in case["test"] or "_both_" in case["test"]:
                conv = replace(conv, weight_bytes=0)
        changed[second] = replace(works[second], shape=replace(works[second].shape, conv=conv))
    elif case["class"] == "on_the_fly":
        place = convolutions[0]
        sdp = works[place].shape.sdp
        sdp = replace(sdp, stages=sdp.stages + 1, operand_bytes=sdp.operand_bytes + sdp.write_bytes)
        changed[place] = replace(works[place], shape=replace(works[place].shape, sdp=sdp))
    elif case["class"] == "image":
        changed = [_image(works[convolutions[0]], case["shape"])]
    return changed


def _image(work, shape):
    atom = work.constants.atom
    surfaces = ceil_div(shape["k"], atom)
    conv = replace(
        work.shape.conv,
        out_width=shape["out_w"],
        out_height=shape["out_h"],
        kernels=shape["k"],
        kernel_width=shape["kernel_w"],
        kernel_height=shape["kernel_h"],
        kernel_channels=shape["kernel_c"],
        data_bytes=shape["h"] * ceil_div(shape["w"] * shape["c"], atom) * atom,
        weight_bytes=shape["weight_bytes"],
        weight_banks=shape["weight_banks"],
        data_banks=shape["data_banks"],
        post_extension=shape["y_extension"],
        slices=shape["h"],
        by_line=True,
    )
    written = shape["out_w"] * shape["out_h"] * surfaces * atom
    sdp = replace(work.shape.sdp, width=shape["out_w"], height=shape["out_h"], surfaces=surfaces, write_bytes=written)
    return replace(work, shape=replace(work.shape, conv=conv, sdp=sdp))
