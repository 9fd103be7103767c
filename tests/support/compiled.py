"""Whole compiled networks that ran on NVIDIA's RTL (the cycle corpus's compiled runs), and the model of each."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import nvdla
from nvdla.analysis.cycles.constants import Software
from nvdla.analysis.study import Study
from support.queued import CYCLES, memory_of

COMPILED = CYCLES / "compiled"
MASTER = Path(__file__).resolve().parents[2] / "samples" / "configurations" / "nv_small_master.yaml"


@dataclass(frozen=True)
class Run:
    """A run on the RTL: its file's name and content, and the model of the same loadable on the same memory."""

    name: str
    case: dict
    study: Study


def runs():
    """Every run whose loadable is in the corpus."""
    for path in sorted(COMPILED.glob("*.json")):
        case = json.loads(path.read_text())
        memory = memory_of(case["conditions"])
        loadable = nvdla.load(gzip.decompress((COMPILED / case["loadable_file"]).read_bytes()))
        config = str(MASTER) if case["rtl_source"] == "nvdla/hw branch master, nv_small" else case["config"]
        yield Run(
            path.stem,
            case,
            Study.of(
                loadable,
                config,
                memory=memory,
                software=Software(element=0, status=case["conditions"]["register_reads_on_rtl"] == "all"),
            ),
        )
