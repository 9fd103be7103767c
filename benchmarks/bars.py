"""Quality of compiled networks in cycles of the calibrated model: ``python benchmarks/bars.py``.

    python benchmarks/bars.py                  the limits, memory against its lower bound, levels (a minute)
    python benchmarks/bars.py lenet            of some networks only
    python benchmarks/bars.py --against        also every network that NVIDIA's compiler has compiled (two minutes)
    python benchmarks/bars.py --against lenet  some of them
    python benchmarks/bars.py --write          both, into benchmarks/RESULTS.md

Nothing runs: loadables are built with seeded weights (networks.py) and studied as ``nvdla cycles`` does. NVIDIA's
loadables are taken from ../shared/corpus where that is.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networks
import numpy as np
from against import CORPUS, Pair, cycles, geometric_mean, pairs

from nvdla.analysis.cycles.constants import Memory
from nvdla.compiler.builder import Built, Calibration, Network, SearchLimits, build, calibrate

PAGE = Path(__file__).resolve().parents[1] / "benchmarks" / "RESULTS.md"
BEGIN, END = "<!-- code: made by benchmarks/bars.py -->", "<!-- /code -->"
GIGAHERTZ = 1_000_000_000
FULL, NARROW, NARROWEST = Memory(), Memory(bytes_per_cycle=20, shared=True), Memory(bytes_per_cycle=1, shared=True)


@dataclass(frozen=True)
class Bar:
    """A network on a configuration and memory; ``limit`` and ``goal`` in cycles at most, or in frames per second at 1
    GHz at least (``frames``)."""

    network: str
    config: str
    memory: Memory
    limit: float
    goal: float
    frames: bool = False

    def verdict(self, count: int) -> str:
        """Result of a number of cycles."""
        value = -GIGAHERTZ / count if self.frames else float(count)
        limit, goal = (-self.limit, -self.goal) if self.frames else (self.limit, self.goal)
        return "goal" if value <= goal else "limit" if value <= limit else "missed"


BARS = (
    Bar("resnet50", "nv_large", NARROW, 240, 269, True),
    Bar("resnet50", "nv_large", FULL, 3_400_000, 3_000_000),
    Bar("resnet50", "nv_small", NARROWEST, 10.5, 12, True),
    Bar("resnet50", "nv_small", FULL, 68_000_000, 65_000_000),
    Bar("squeezenet", "nv_large", FULL, 700_000, 500_000),
)
CONFIGS = ("nv_small", "nv_large")
LEVELLED = "resnet50"
"""The network of the table of levels."""
TURNS, SEARCHED = 3, 10.0
"""Number of builds of levels 0 and 1, and seconds of search at level 2."""
LEVEL_1_LIMIT = 2
"""Largest accepted ratio of build times, level 1 to level 0."""


@cache
def network(name: str) -> tuple[Network, Calibration]:
    """A benchmark network and its calibration."""
    net = networks.NETWORKS[name]()
    image = np.random.default_rng(1).standard_normal((1, *net.inputs[0].shape))
    return net, calibrate(net, image)


@cache
def built(name: str, config: str, memory: Memory = FULL) -> tuple[Built, float]:
    """The network built with default options for a memory, and the build time in seconds."""
    net, calibration = network(name)
    begin = time.perf_counter()
    made = build(net, config, calibration=calibration, memory=memory)
    return made, time.perf_counter() - begin


def bars(names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The rows of the first table."""
    for limit in (each for each in BARS if each.network in names):
        count = cycles(built(limit.network, limit.config, limit.memory)[0].loadable, limit.config, limit.memory)
        memory = "full bus" if limit.memory == FULL else f"{limit.memory.bytes_per_cycle:g} B/cycle shared"
        unit = " frames/s" if limit.frames else ""
        limits = [f"{each:,g}{unit}" if limit.frames else f"{each:,.0f}" for each in (limit.limit, limit.goal)]
        frames = f"{GIGAHERTZ / count:.1f}"
        yield f"{limit.network} int8", limit.config, memory, f"{count:,}", frames, *limits, limit.verdict(count)


def levels(names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The rows of the table of what levels of optimization take: the best of some builds, in turns."""
    for config in CONFIGS if LEVELLED in names else ():
        net, calibration = network(LEVELLED)
        found: dict[int, tuple[float, int]] = {}
        for level in (0, 1) * TURNS + (2,):
            begin = time.process_time()
            made = build(net, config, calibration=calibration, level=level, search=SearchLimits(time_limit=SEARCHED))
            seconds = min(time.process_time() - begin, found.get(level, (math.inf, 0))[0])
            found[level] = seconds, cycles(made.loadable, config)
        for level, (seconds, count) in found.items():
            limit = str(LEVEL_1_LIMIT) if level == 1 else ""
            yield LEVELLED, config, f"-O {level}", f"{seconds:.2f}", f"{seconds / found[0][0]:.2f}", limit, f"{count:,}"


def memories(names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The rows of the table of memory."""
    for name in (each for each in networks.NETWORKS if each in names):
        for config in CONFIGS:
            made, seconds = built(name, config)
            plan = made.memory
            ratio = plan.size / plan.least if plan.least else 1.0
            count = cycles(made.loadable, config)
            yield (
                name,
                config,
                f"{count:,}",
                f"{plan.size:,}",
                f"{plan.least:,}",
                f"{ratio:.3f}",
                f"{len(made.loadable.blobs)}",
                f"{seconds:.2f}",
            )


def rivals(found: list[Pair]) -> Iterator[tuple[str, ...]]:
    """The rows of the comparison with NVIDIA's compiler."""
    for pair in found:
        ours = f"{pair.ours:,}" if pair.ours else pair.why
        ratio = f"{pair.ratio:.2f}" if pair.ours else ""
        batch = f" x{pair.batch}" if pair.batch > 1 else ""
        marks = " (a)" * bool(pair.otherwise) + " (b)" * bool(pair.waits)
        yield (
            pair.network + batch,
            pair.config,
            pair.precision,
            f"{pair.theirs:,}",
            pair.combination + marks,
            ours,
            ratio,
        )


def different(found: list[Pair]) -> Iterator[tuple[str, ...]]:
    """The rows of the networks of which NVIDIA's loadables compute something else."""
    for pair in (each for each in found if each.otherwise and each.exact):
        ours, exact, ratio = f"{pair.ours:,}", f"{pair.exact:,}", f"{(pair.exact or 0) / pair.theirs:.2f}"
        yield pair.network, pair.config, pair.precision, pair.otherwise, f"{pair.theirs:,}", ours, exact, ratio


def summary(found: list[Pair]) -> str:
    """The comparison in a sentence."""
    made = [pair for pair in found if pair.ours]
    worse = [pair for pair in made if pair.ratio > 1]
    return (
        f"{len(made)} of {len(found)} are built; geometric mean of the ratios {geometric_mean(made):.3f} (limit 0.85), "
        f"{len(worse)} above 1, the worst {max((pair.ratio for pair in made), default=0):.2f}."
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table in Markdown and a blank line; empty without rows. Columns of numbers are right-aligned."""
    rows = list(rows)
    numbers = [all(re.match(r"[\d.]|$", row[at]) for row in rows) for at in range(len(head))]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "".join(" ---: |" if right else " --- |" for right in numbers),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ] * bool(rows)


def lines(names: Collection[str], against: list[Pair] | None) -> Iterator[str]:
    """The page's generated part."""
    head = ("network", "configuration", "memory", "cycles", "frames/s at 1 GHz", "limit", "goal", "reached")
    yield from table(head, bars(names))
    head = ("network", "configuration", "cycles", "bytes of surfaces", "at the least", "ratio", "blobs", "seconds")
    yield from table(head, memories(names))
    head = ("network", "configuration", "level", "seconds of processor", "against -O 0", "limit", "cycles")
    yield from table(head, levels(names))
    if against is not None:
        yield from (summary(against), "")
        head = ("network", "configuration", "precision", "NVIDIA", "its fastest loadable", "ours", "ratio")
        yield from table(head, rivals(against))
        head = (
            "(a)",
            "configuration",
            "precision",
            "theirs",
            "NVIDIA",
            "ours, the same",
            "ours, the network's",
            "ratio",
        )
        yield from table(head, different(against))


def write(text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put tables into the page, between two comments."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="only these (default: all)")
    parser.add_argument("--against", nargs="*", metavar="NETWORK", help="compare with NVIDIA's loadables")
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md")
    args = parser.parse_args()
    unknown = set(args.networks) - set(networks.NETWORKS)
    if unknown:
        parser.error(f"no network is called {', '.join(sorted(unknown))}; there are {', '.join(networks.NETWORKS)}")
    wanted = args.against is not None or args.write
    if wanted and not CORPUS.is_dir():
        print(f"{CORPUS} is missing: no comparison with NVIDIA's loadables", file=sys.stderr)
        wanted = False
    found = list(pairs(set(args.against or ()))) if wanted else None
    text = "\n".join(lines(args.networks or networks.NETWORKS, found)).rstrip()
    if args.write:
        write(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
