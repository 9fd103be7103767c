"""Errors of the cycle model against NVIDIA's RTL, by class: ``python benchmarks/cycle_errors.py``.

    python benchmarks/cycle_errors.py            the table, and the classes that miss the bar
    python benchmarks/cycle_errors.py --runs 5   also the worst runs of each class
    python benchmarks/cycle_errors.py --write    the table, into benchmarks/RESULTS.md

Measured runs come from ../shared/corpus/cycles: single operations, queued operations and whole compiled networks. The
error is that of total cycles, in percent. Latencies above 300 cycles are their own class.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bars import write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

MEAN, WORST, LATENCY = 0.5, 3.0, 300
BEGIN, END = "<!-- errors: benchmarks/cycle_errors.py -->", "<!-- end of errors -->"
MINIMAL = ("b_", "i_", "j_", "p_", "q_")
MASTER = "nvdla/hw branch master, nv_small"
CONFIGS = ("nv_small", "nv_large")
HEAD = ("set", "class", *(f"{each}: {what}" for each in CONFIGS for what in ("runs", "mean, worst")))


class Error(NamedTuple):
    """A run and the model's error in percent."""

    group: str
    kind: str
    config: str
    run: str
    percent: float


def single() -> Iterator[Error]:
    """Single operations, each started by its enabling."""
    from support.measured import predicted
    from support.queued import CYCLES

    for config in ("nv_small", "nv_large"):
        for entry in json.loads((CYCLES / f"{config}.json").read_text())["operations"]:
            width = entry["memory"]["bytes_per_cycle"]
            name = f"{entry['test']}:{entry.get('index', 0)} {entry['memory']['latency_cycles']},{width}"
            yield Error(
                "single operations", entry["unit"], config, name, _percent(predicted(entry).total, entry["cycles"])
            )


def queued() -> Iterator[Error]:
    """Queued operations of one kind of network."""
    from support.queued import predict, runs

    for config in ("nv_small", "nv_large"):
        for path, case in runs(config):
            result = predict(path, case)
            yield Error("queued operations", result.kind, config, f"{result.test} {case['memory']}", result.error)


def compiled(measured: Iterable[Any] = ()) -> Iterator[Error]:
    """Whole networks of this compiler (``measured``: these)."""
    from support.compiled import runs

    for run in measured or runs():
        config = f"{run.case['config']} of master" if run.case["rtl_source"] == MASTER else run.case["config"]
        percent = _percent(run.study.schedule.total or 0, run.case["rtl_total_from_first_write"])
        yield Error("compiled networks", _kind(run.name, run.case["conditions"]), config, run.name, percent)


def _kind(name: str, conditions: dict[str, Any]) -> str:
    if conditions["latency_cycles"] > LATENCY:
        return f"latency above {LATENCY}"
    if conditions["register_reads_on_rtl"] == "all":
        return "all register reads"
    if "cvsram" in name:
        return "CVSRAM"
    if name.startswith(MINIMAL):
        return "minimal cases"
    return "random networks" if name[1:5].isdigit() else "networks"


def _percent(predicted: float, measured: float) -> float:
    return (predicted / measured - 1) * 100


def table(errors: list[Error]) -> Iterator[str]:
    """Lines of the table in Markdown: a class per line, the configurations side by side."""
    yield f"| {' | '.join(HEAD)} |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    found: dict[tuple[str, str], dict[str, str]] = {}
    for mine in classes(errors):
        mean, worst = summary(mine)
        other = mine[0].config.removeprefix("nv_small ") if mine[0].config not in CONFIGS else ""
        kind = f"{mine[0].kind} {other}".strip()
        config = "nv_small" if other else mine[0].config
        found.setdefault((mine[0].group, kind), {})[config] = f"{len(mine)} | {mean:.2f}, {worst.percent:+.1f}"
    for (group, kind), cells in found.items():
        yield f"| {group} | {kind} | {' | '.join(cells.get(config, ' | ') for config in CONFIGS)} |"


def classes(errors: list[Error]) -> list[list[Error]]:
    """The errors of each class and configuration."""
    found: dict[tuple[str, ...], list[Error]] = {}
    for error in errors:
        found.setdefault(error[:3], []).append(error)
    return list(found.values())


def summary(errors: list[Error]) -> tuple[float, Error]:
    """The mean of the absolute errors, and the largest error."""
    return sum(abs(error.percent) for error in errors) / len(errors), max(errors, key=lambda error: abs(error.percent))


def main() -> int:
    """Print or write the table; exit code 1 if a class misses the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=0, help="print the worst runs of each class")
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md")
    args = parser.parse_args()
    errors = [*single(), *queued(), *compiled()]
    text = "\n".join(table(errors))
    if args.write:
        write(text, BEGIN, END)
    else:
        print(text)
    missed = 0
    for mine in classes(errors):
        mean, worst = summary(mine)
        if mean > MEAN or abs(worst.percent) > WORST:
            missed += 1
            print(f"missed: {', '.join(mine[0][:3])}: mean {mean:.2f}, worst {worst.percent:+.1f}")
        for error in sorted(mine, key=lambda error: -abs(error.percent))[: args.runs]:
            print(f"  {error.percent:+7.2f} {error.run}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
