"""Time of `nvdla container convert` for a large archive, compared with IREE's tool.

    python -m benchmarks.containers [--gib 2] [--pairs 3] [--folder DIR]

Both convert the same safetensors file to .irpa, in turns, each in a separate process; printed are the medians, their
ratio, the peak of memory, and whether the results hold the same data. IREE's tool comes with iree-base-runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nvdla.interop.containers import registry

TENSORS = 64
RATIO, PEAK = 1.2, 200  # bars: of the times, and MB


def make(path: Path, size: int) -> None:
    """A safetensors file of ``size`` bytes of float32 tensors."""
    each = size // TENSORS // 4 * 4
    head = {
        f"layer{number}": {"dtype": "F32", "shape": [each // 4], "data_offsets": [number * each, (number + 1) * each]}
        for number in range(TENSORS)
    }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    block = np.random.default_rng(0).integers(0, 256, each, dtype=np.uint8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number in range(TENSORS):
            file.write(np.roll(block, number).data)


def timed(words: Sequence[str]) -> tuple[float, float]:
    """Seconds, and the peak of memory in MB, of a process that must end well."""
    began = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawnp(words[0], list(words), os.environ, file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)}: exit status {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used.ru_maxrss / 1000


def compare(folder: Path, size: int, pairs: int) -> bool:
    source = folder / "weights.safetensors"
    make(source, size)
    tool = shutil.which(
        "iree-convert-parameters", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if tool is None:
        raise SystemExit("iree-convert-parameters is not installed (pip install iree-base-runtime)")
    ours, theirs = folder / "ours.irpa", folder / "theirs.irpa"
    commands = {
        "nvdla": [sys.executable, "-m", "nvdla", "container", "convert", str(source), str(ours)],
        "iree": [tool, f"--parameters={source}", f"--output={theirs}"],
    }
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(pairs):
        for name, words in commands.items():
            for target in (ours, theirs):
                if target.name.startswith("ours" if name == "nvdla" else "theirs"):
                    target.unlink(missing_ok=True)
            runs[name].append(timed(words))
    times = {name: statistics.median(seconds for seconds, _ in each) for name, each in runs.items()}
    peak = max(used for _, used in runs["nvdla"])
    equal = same(ours, theirs)
    ratio = times["nvdla"] / times["iree"]
    print(f"{size / (1 << 30):.2f} GiB: nvdla {times['nvdla']:.2f} s, {peak:.0f} MB; iree {times['iree']:.2f} s")
    print(f"ratio {ratio:.2f} (bar {RATIO}), peak {peak:.0f} MB (bar {PEAK}), {'equal' if equal else 'DIFFERENT'} data")
    return ratio <= RATIO and peak <= PEAK and equal


def same(first: Path, second: Path) -> bool:
    """Return whether two archives hold the same parameters."""
    one, other = ({each.name: each for each in registry.open(path).parameters()} for path in (first, second))
    return one.keys() == other.keys() and all(one[name].data == other[name].data for name in one)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the archive")
    parser.add_argument("--pairs", type=int, default=3, help="how often each converts it")
    parser.add_argument("--folder", help="where the files are made and removed (default: a temporary folder)")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        return 0 if compare(Path(folder), int(args.gib * (1 << 30)), args.pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
