"""Load and run a network again and again, and watch memory, file handles and threads.

    python tests/failures/long_use.py --cycles 10000

Every cycle loads the file anew, makes a Runtime, runs it twice (through the firmware, then from its plan), and compares
the outputs with those of the first cycle; every tenth runs a batch of three, too. Prints JSON; exit code 1 when
something has grown.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

import nvdla

LENET = Path(__file__).resolve().parents[2] / "samples" / "lenet.loadable"
DIGIT = LENET.with_name("digit3.pgm")


def resident_bytes() -> int:
    """Memory of this process that is in RAM (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def cycle(batch: bool = False) -> dict[str, bytes]:
    runtime = nvdla.Runtime(nvdla.load(LENET), threads=1)
    runtime.run(DIGIT)
    outputs = runtime.run(DIGIT)
    if batch:
        images = [runtime.surfaces(DIGIT)] * 3
        for each in map(runtime.unpack, runtime.run_many(images)):
            if any((each[name] != tensor).any() for name, tensor in outputs.items()):
                raise RuntimeError("a batch gave another result")
    return {name: tensor.tobytes() for name, tensor in outputs.items()}


def watch(cycles: int, warm: int) -> dict[str, object]:
    """Figures after ``warm`` cycles and after all of them."""
    expected = cycle(batch=True)
    for _ in range(warm):
        cycle()
    before = (resident_bytes(), open_files(), threading.active_count())
    began = time.perf_counter()
    for number in range(cycles):
        if cycle(batch=number % 10 == 0) != expected:
            raise RuntimeError(f"cycle {number} gave another result")
    after = (resident_bytes(), open_files(), threading.active_count())
    return {
        "cycles": cycles,
        "seconds": round(time.perf_counter() - began, 1),
        "memory_bytes": [before[0], after[0]],
        "open_files": [before[1], after[1]],
        "threads": [before[2], after[2]],
    }


def grown(figures: dict[str, object], slack: int) -> list[str]:
    """What has grown: memory by more than ``slack`` bytes, the others at all."""
    limits = {"memory_bytes": slack, "open_files": 0, "threads": 0}
    return [name for name, limit in limits.items() if figures[name][1] - figures[name][0] > limit]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--slack", type=int, default=8 << 20, help="bytes that memory may grow (allocators settle)")
    args = parser.parse_args()
    figures = watch(args.cycles, warm=min(200, args.cycles))
    figures["grown"] = grown(figures, args.slack)
    print(json.dumps(figures))
    return 1 if figures["grown"] else 0


if __name__ == "__main__":
    sys.exit(main())
