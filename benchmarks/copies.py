"""Upper limit of the gain from copies of weights into CVSRAM: ``python benchmarks/copies.py``.

Built for nv_full with CVSRAM, which surfaces between operations take. Then the cycle model is asked again, with every
further fetch of weights that were fetched before taking nothing of the memory's bandwidth. The BDMA's copies cost
nothing here, so this is a limit that no compiler reaches. Half a minute.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from bars import FULL, NARROW, network, table

from nvdla.analysis.cycles.schedule import ChainWork, schedule
from nvdla.analysis.study import Study
from nvdla.compiler.builder import build

NETWORKS = ("resnet50", "resnet18", "squeezenet")
SIZES = (512 << 10, 4 << 20)
"""Bytes of CVSRAM that weights may take at a time."""
HEAD = ("network", "images", "memory", "cycles", "512 KiB", "4 MiB")


def limit(study: Study, size: int) -> int:
    """Cycles where further fetches of weights of up to ``size`` bytes are from CVSRAM, and the first fills it."""
    seen, works = set(), []
    for chain in study.chains:
        estimate, node = study.estimates[chain[0].key], chain[0]
        shape = estimate.shape
        if node.engine == "conv" and shape is not None:
            weights = node.surface.weight_data
            place = weights.address, weights.offset
            if place in seen and weights.size <= size:
                shape = replace(shape, cvsram=shape.cvsram | {"weights"})
            seen.add(place)
        works.append(ChainWork(chain, shape, estimate.constants))
    return schedule(works, study.memory, study.software).cycles


def main() -> None:
    rows = []
    for name, images, memory in itertools.product(NETWORKS, (1, 4), (FULL, NARROW)):
        net, calibration = network(name)
        made = build(net, "nv_full", calibration=calibration, cvsram=SIZES[0], images=images, memory=memory)
        study = Study.of(made.loadable, "nv_full", memory=memory)
        cycles = study.schedule.cycles
        rate = "full bus" if memory == FULL else f"{memory.bytes_per_cycle:g} B/cycle shared"
        saved = [f"{1 - limit(study, size) / cycles:.2%}" for size in SIZES]
        rows.append((name, str(images), rate, f"{cycles:,}", *saved))
    print("\n".join(table(HEAD, rows)))


if __name__ == "__main__":
    main()
