"""Speed of networks as ratios measured in one run: ``python benchmarks/run.py``.

    python benchmarks/run.py                            all rows (a few minutes)
    python benchmarks/run.py resnet50-nv_large lenet-nv_small
    python benchmarks/run.py --list
    python benchmarks/run.py --json > result.json

Needs the extra "bench" (onnx, onnxruntime). Compiled networks are taken from ../shared/corpus where that is, others are
built with random weights (networks.py). Times are medians of interleaved runs; benchmarks/RESULTS.md explains the rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nvdla.cli.output import plain, print_pairs, print_table


def main() -> int:
    from rows import CORPUS, ROWS, cores

    args = _parser(list(ROWS), cores()).parse_args()
    if args.list:
        print("\n".join(ROWS))
        return 0
    results = [_measured(name, args, CORPUS) for name in args.rows or ROWS]
    from measure import machine

    document = {"machine": machine(args.threads), "rows": results}
    if args.json:
        print(json.dumps(plain(document), indent=2, allow_nan=False))
    else:
        print_pairs("machine", document["machine"])
        print_table("benchmarks", [_cells(row) for row in results])
    return 0


def _parser(rows: list[str], cores: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[[], *rows], help="rows to measure (default: all)")
    parser.add_argument("--list", action="store_true", help="names of the rows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="time of each row (default: 4)")
    parser.add_argument("--threads", type=int, default=min(2, cores), metavar="N", help="of both sides (default: 2)")
    parser.add_argument("--generated", action="store_true", help="build all networks, leave ../shared/corpus alone")
    parser.add_argument("--inline", action="store_true", help="all rows in this process (default: one process per row)")
    return parser


def _measured(name: str, args: argparse.Namespace, corpus: Path) -> dict[str, Any]:
    """One row, by default in a separate process: none disturbs the next, and memory is given back."""
    if args.inline:
        from rows import ROWS, Options

        options = Options(args.seconds, args.threads, corpus if corpus.is_dir() and not args.generated else None)
        return ROWS[name](options).as_dict()
    words = [sys.executable, __file__, name, "--json", "--inline", "--seconds", str(args.seconds)]
    words += ["--threads", str(args.threads), *(["--generated"] if args.generated else [])]
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout)["rows"][0]
    print(f"{row['value']:.3g} {row['unit']} ({row['verdict']})", file=sys.stderr)
    return row


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    shown = {
        "row": row["row"],
        "result": float(f"{row['value']:.3g}"),
        "unit": row["unit"],
        "limit": row["limit"],
        "goal": row["goal"],
        "verdict": row["verdict"],
        "loadable": row["loadable"],
    }
    details = {key: float(f"{each:.3g}") if isinstance(each, float) else each for key, each in row["details"].items()}
    return {**shown, "details": details}


if __name__ == "__main__":
    sys.exit(main())
