"""NVIDIA's table: frames per second of ResNet-50 in every row, by the cycle model.

    python benchmarks/silicon.py [MACS ...] [--network resnet50] [--json FILE] [--write]

Each row is a configuration with its MACs and buffer: nv_large, nv_small, and the files in samples/configurations where
NVIDIA publishes no spec. The network is built for the row's memory (at 1 GHz a GB/s is a byte per cycle; reads and
writes share it), with random weights. The cycle model is calibrated on nv_large and nv_small; the other rows are
extrapolated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from against import cycles
from bars import GIGAHERTZ, built, write

from nvdla.analysis.cycles.constants import MEASURED, Memory
from nvdla.analysis.silicon import facts
from nvdla.emulator.hardware.configuration import Configuration, configuration
from nvdla.errors import NvdlaError

EXAMPLES = Path(__file__).resolve().parents[1] / "samples" / "configurations"
BEGIN, END = "<!-- silicon: made by benchmarks/silicon.py -->", "<!-- /silicon -->"
HEAD = ("MACs", "CBUF KiB", "GB/s", "configuration", "cycles", "frames/s", "NVIDIA", "ratio", "basis")


def row_configuration(row: dict[str, Any]) -> Configuration:
    """Return the configuration of a row of NVIDIA's table: the built-in one of these sizes, or the example."""
    names = {(2048, 512): "nv_large", (64, 128): "nv_small"}
    example = EXAMPLES / f"macs_{row['macs']}_{row['cbuf_kib']}k.yaml"
    return configuration(names.get((row["macs"], row["cbuf_kib"]), str(example)))


def rows(macs: Collection[int] = (), network: str = "resnet50") -> Iterator[dict[str, Any]]:
    """Build the network for every row (``macs``: for these only) and predict its frames per second."""
    for row in facts()["table"]["rows"]:
        if macs and row["macs"] not in macs:
            continue
        config, memory = row_configuration(row), Memory(bytes_per_cycle=row["gb_per_s"], shared=True)
        found: dict[str, Any] = {"macs": row["macs"], "cbuf_kib": row["cbuf_kib"], "gb_per_s": row["gb_per_s"]}
        found |= {"configuration": config.name, "nvidia": row["fps"], "cycles": None, "frames": None, "ratio": None}
        found["basis"] = "calibrated" if config.name in MEASURED else "extrapolated"
        try:
            count = cycles(built(network, config, memory)[0].loadable, config, memory)
        except NvdlaError as error:
            yield found | {"basis": f"refused: {error}"}
            continue
        frames = GIGAHERTZ / count
        yield found | {
            "cycles": count,
            "frames": frames,
            "ratio": frames / row["fps"] if network == "resnet50" else None,
        }


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("macs", nargs="*", type=int, metavar="MACS", help="rows by their MACs (default: all)")
    parser.add_argument("--network", default="resnet50", help="a benchmark network (default: resnet50)")
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    parser.add_argument("--write", action="store_true", help="write the table into benchmarks/RESULTS.md")
    args = parser.parse_args()
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    print(*lines, sep="\n", flush=True)
    found = []
    for row in rows(args.macs, args.network):
        found.append(row)
        numbers = [f"{row[key]:,.{digits}f}" if row[key] else "-" for key, digits in (("cycles", 0), ("frames", 1))]
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        cells = [row["macs"], row["cbuf_kib"], row["gb_per_s"], row["configuration"], *numbers, row["nvidia"], ratio]
        lines.append(f"| {' | '.join(map(str, [*cells, row['basis']]))} |")
        print(lines[-1], flush=True)
    print(f"\nSource: {facts()['table']['source']}.")
    if args.write:
        write("\n".join(lines), BEGIN, END)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
