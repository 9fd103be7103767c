"""Compiled networks against the lower bound, with the losses by cause: ``python benchmarks/bounds.py``.

    python benchmarks/bounds.py                all benchmark networks on nv_small and nv_large
    python benchmarks/bounds.py lenet          some of them
    python benchmarks/bounds.py --write        all, into benchmarks/RESULTS.md

The bound is the larger of the useful multiplications on a full array and of the traffic at the memory's bandwidth. The
losses are the uses of ``nvdla explain`` in percent of the total; ``array`` are multiplications with channels or kernels
that do not fill the array. The uses, and with them the losses and the useful multiplications, add up to the total.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator

import networks
from bars import CONFIGS, FULL, GIGAHERTZ, NARROW, NARROWEST, built, table, write

from nvdla.analysis.cycles.constants import Memory, constants
from nvdla.analysis.cycles.hardware import bandwidth
from nvdla.analysis.explain import accounting
from nvdla.analysis.study import Study

BEGIN, END = "<!-- bounds: made by benchmarks/bounds.py -->", "<!-- /bounds -->"
LOSSES = ("array", "weight loading", "units", "memory", "fetch", "programming", "idle")
HEAD = (
    "network",
    "configuration",
    "memory",
    "cycles",
    "frames/s",
    "bound",
    "gap, %",
    *(f"{name}, %" for name in LOSSES),
)
MEMORIES = {
    "nv_small": {"full bus": FULL, "1 B/cycle shared": NARROWEST},
    "nv_large": {"full bus": FULL, "20 B/cycle shared": NARROW},
}


def bound(study: Study, useful: float) -> float:
    """Cycles that the network takes at the least: its traffic at the memory's bandwidth, or ``useful``."""
    each = study.estimates.values()
    read = sum(one.read_bytes - one.cvsram_read_bytes for one in each)
    written = sum(one.written_bytes - one.cvsram_written_bytes for one in each)
    traffic = read + written if study.memory.shared else max(read, written)
    return max(useful, traffic / bandwidth(constants(study.config), study.memory))


def row(name: str, config: str, memory: Memory, words: str) -> tuple[str, ...]:
    """A row of the table."""
    study = Study.of(built(name, config, memory)[0].loadable, config, memory=memory)
    total, uses = study.schedule.total, accounting(study)
    assert total and uses
    array = study.config.mac_atomic_c * study.config.mac_atomic_k
    useful = networks.multiplications(networks.NETWORKS[name]()) / array
    least = bound(study, useful)
    losses = uses | {"array": uses["mac"] - useful}
    shares = (f"{losses.get(each, 0) / total * 100:.1f}" for each in LOSSES)
    frames, gap = f"{GIGAHERTZ / total:.1f}", f"{(1 - least / total) * 100:.1f}"
    return name, config, words, f"{total:,}", frames, f"{least:,.0f}", gap, *shares


def rows(names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The rows of the networks."""
    for name in names:
        for config in CONFIGS:
            for words, memory in MEMORIES[config].items():
                yield row(name, config, memory, words)


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="only these (default: all)")
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md")
    args = parser.parse_args()
    unknown = set(args.networks) - set(networks.NETWORKS)
    if unknown:
        parser.error(f"no network is called {', '.join(sorted(unknown))}; there are {', '.join(networks.NETWORKS)}")
    text = "\n".join(table(HEAD, rows(args.networks or networks.NETWORKS))).rstrip()
    if args.write:
        write(text, BEGIN, END)
    else:
        print(text)


if __name__ == "__main__":
    main()
