"""Two published studies of faults in NVDLA, done again; tables for benchmarks/RESULTS.md.

    python benchmarks/fault_studies.py multipliers lenet.loadable digits.npz --limit 1000
    python benchmarks/fault_studies.py models lenet.loadable digits.npz --operation 0/3 --count 200
    python benchmarks/fault_studies.py plain lenet.loadable digits.npz

``multipliers`` (DATE 2025): each multiplier of the MAC array gives a constant, over a labelled data set.
``models`` (FIdelity, MICRO 2020): six places of a datapath, and the outputs that each makes wrong, in one convolution.
``plain``: no study; what runs without faults pay for the feature.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

import nvdla
from nvdla.emulator.faults import BufferEntry, Fault, Multiplier, PartialSum, parse
from nvdla.emulator.faults.convolution import FaultyConvolution, array_of, used_entries
from nvdla.emulator.faults.fault import Place
from nvdla.emulator.faults.network import StruckNetwork, resolve
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.experiments.campaign import Journal, Workers, run
from nvdla.experiments.campaign.journal import read
from nvdla.experiments.evaluation import open_source
from nvdla.experiments.vulnerability import FaultCampaign, wilson
from nvdla.experiments.vulnerability.table import SILENT

VALUES = (0, 1, -1)
WARM = 5
"""Runs that are not counted: the first goes through the firmware, the next ones compile."""
STRIPE = 16
"""Outputs for which a multiplier keeps its weight."""


def multipliers(path: str, data: str, images: int, workers: int | None) -> None:
    """Accuracy with each multiplier of nv_small broken, by the constant that it gives."""
    source = open_source(data)
    positions = sorted(random.Random(0).sample(range(len(source)), min(images, len(source))))
    array = array_of(first_convolution(nvdla.Runtime(path, threads=1)._injector().network()))
    multipliers = [
        (kernel, multiplier) for kernel in range(array.group) for multiplier in range(array.config.mac_atomic_c)
    ]
    faults = [
        str(Fault(Multiplier(*multiplier), f"set={value}", permanent=True))
        for value in VALUES
        for multiplier in multipliers
    ]
    began = time.perf_counter()
    records = campaign(FaultCampaign(str(Path(path).resolve()), source, faults, positions, every=True), workers)
    seconds = time.perf_counter() - began
    healthy = records[0]["right_healthy"] / len(positions)
    print(f"{len(faults)} campaigns of {len(positions)} images in {seconds:.1f} s")
    print(f"{healthy:.2%} right without faults\n")
    print("| product | mean accuracy | worst | multiplier | classes that change, mean | worst |")
    print("|---|---|---|---|---|---|")
    for number, value in enumerate(VALUES):
        part = records[number * len(places) : (number + 1) * len(places)]
        right = np.array([each["right"] for each in part]) / len(positions)
        changed = np.array([sum(each["outcomes"][name] for name in SILENT) for each in part]) / len(positions)
        kernel, channel = places[int(right.argmin())]
        worst = f"{right.min():.2%} | kernel {kernel}, channel {channel}"
        print(f"| {value} | {right.mean():.2%} | {worst} | {changed.mean():.2%} | {changed.max():.2%} |")
    print("\nAccuracy by multiplier that gives 1 (rows: cells, columns: channels):\n")
    part = records[len(places) : 2 * len(places)]
    grid = np.array([each["right"] for each in part]).reshape(array.group, -1) / len(positions)
    print("| | " + " | ".join(map(str, range(grid.shape[1]))) + " |\n|" + "---|" * (grid.shape[1] + 1))
    for number, row in enumerate(grid):
        print(f"| {number} | " + " | ".join(f"{100 * each:.1f}" for each in row) + " |")


def campaign(table: FaultCampaign, workers: int | None) -> list[dict]:
    """The records of a campaign, in the order of its faults."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "faults.jsonl", table)
        run(table, journal, Workers(workers))
        return list(read(journal.path))


def first_convolution(network: StruckNetwork) -> ConvolutionJob:
    """The job of the first convolution."""
    return next(place.job for place in network.places.values() if isinstance(place.job, ConvolutionJob))


def places(conv: ConvolutionJob, operation: str, generator: random.Random) -> Iterator[tuple[str, Place, str]]:
    """One place of each of the six models: name, place, effect."""
    array, out = array_of(conv), conv.settings.output
    data, weights = used_entries(conv)
    width = conv.engine.buffer.config.cbuf_entry_bytes
    y, x = generator.randrange(out.height), generator.randrange(out.width)
    kernel = generator.randrange(conv.settings.kernels)
    cell, group = kernel % array.group, kernel // array.group
    channel, atom = generator.randrange(array.config.mac_atomic_c), generator.randrange(len(array.sequence()))
    flip = f"flip={generator.randrange(8)}"

    def entry(among: Sequence[int]) -> BufferEntry:
        return BufferEntry(operation, int(generator.choice(list(among))), generator.randrange(width))

    yield "input, before or in the buffer", entry(data), flip
    yield "weight, before or in the buffer", entry(weights), flip
    yield "input, from the buffer to the array", Multiplier(-1, channel, "data", operation, y, x, 1, atom, group), flip
    yield (
        "weight, held in a multiplier",
        Multiplier(cell, channel, "weight", operation, y, x, STRIPE, atom, group),
        flip,
    )
    yield "sum, in the accumulator", PartialSum(operation, kernel, y, x, atom), f"flip={generator.randrange(24)}"
    yield "control of one output", PartialSum(operation, kernel, y, x), f"random={generator.getrandbits(31)}"


def models(path: str, data: str, operation: str, count: int) -> None:
    """Which outputs of one convolution are wrong, and what becomes of the class."""
    runtime = nvdla.Runtime(path, threads=1)
    injector, source, generator = runtime._injector(), open_source(data), random.Random(1)
    network = injector.network()
    place = network.place(operation)
    conv = place.job
    assert isinstance(conv, ConvolutionJob)
    found: dict[str, list[tuple[int, int, int, bool, bool]]] = {}
    for number in range(count):
        surfaces = runtime.surfaces(elements(runtime, source.sample(generator.randrange(len(source))).value))
        golden = injector.golden(surfaces)
        for name, where, effect in places(conv, operation, random.Random(number)):
            fault = Fault(where, effect)
            network.restore(golden, place.step)
            healthy = conv.run()
            wrong = FaultyConvolution(conv, resolve(network, [fault]).convolutions[place.step]).run() != healthy
            outputs = injector.run(golden, [parse(str(fault))])
            same = [runtime.unpack(each)[runtime.outputs[0].name].argmax() for each in (golden.outputs, outputs)]
            found.setdefault(name, []).append((*reach(wrong), outputs == golden.outputs, same[0] != same[1]))
    print(f"{count} faults of each model in operation {operation} of {Path(path).name}\n")
    print("| fault model | wrong outputs, mean | at most | kernels, at most | positions, at most | masked | SDC-1 |")
    print("|---|---|---|---|---|---|---|")
    for name, rows in found.items():
        table = np.array(rows, np.float64)
        low, high = wilson(table[:, 4].sum(), len(rows))
        most = table[:, :3].max(axis=0).astype(int)
        print(
            f"| {name} | {table[:, 0].mean():.1f} | {most[0]} | {most[1]} | {most[2]} | {table[:, 3].mean():.1%} | "
            f"{table[:, 4].mean():.1%} ({low:.1%} .. {high:.1%}) |"
        )


def elements(runtime: nvdla.Runtime, value: np.ndarray) -> np.ndarray:
    """A sample of pixels as elements of the input."""
    from nvdla.tensors.images import PixelConversion, convert_pixels

    shape = runtime.inputs[0].shape
    return convert_pixels(np.asarray(value).reshape(shape), runtime.inputs[0].dtype, PixelConversion())


def reach(wrong: np.ndarray) -> tuple[int, int, int]:
    """Wrong sums (batches, surfaces, height, width, atom): how many, of how many kernels, at how many positions."""
    return (
        int(wrong.sum()),
        int(wrong.any(axis=(0, 2, 3)).sum()),
        int(wrong.any(axis=(0, 1, 4)).sum()),
    )


def plain(path: str, data: str, rounds: int = 300) -> float:
    """Cost of fault injection for runs without faults: a runtime that never had a fault and one that had, in turns."""
    image = open_source(data).sample(0).value
    runtimes = [nvdla.Runtime(path, threads=1) for _ in range(2)]
    network = runtimes[1]._injector().network()
    convolution = next(name for name, place in network.places.items() if isinstance(place.job, ConvolutionJob))
    runtimes[1].run(image, faults=[parse(f"weight operation={convolution} byte=0 flip=7")])
    surfaces = runtimes[0].surfaces(image)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            runtimes[which].run_raw(surfaces)
            times[which].append(time.perf_counter() - began)
    never, after = (median(each[WARM:]) for each in times)
    print(f"{path}: {never * 1e3:.3f} ms per run, {after * 1e3:.3f} ms after a faulty run: ratio {after / never:.3f}")
    return after / never


def main() -> None:
    """Run a study and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("multipliers", "models", "plain"))
    parser.add_argument("network")
    parser.add_argument("data")
    parser.add_argument("--limit", type=int, default=1000, help="samples of the multiplier study")
    parser.add_argument("--workers", type=int, help="processes (default: the cores)")
    parser.add_argument("--operation", default="0/3", help="the convolution that the models strike")
    parser.add_argument("--count", type=int, default=200, help="faults of each model")
    args = parser.parse_args()
    if args.study == "plain":
        plain(args.network, args.data)
    elif args.study == "multipliers":
        multipliers(args.network, args.data, args.images, args.workers)
    else:
        models(args.network, args.data, args.operation, args.count)


if __name__ == "__main__":
    main()
