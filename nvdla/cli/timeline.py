"""``nvdla timeline``: the schedule for Perfetto and chrome://tracing, or as a picture."""

from __future__ import annotations

import argparse
import json
from typing import Any

from nvdla.cli.output import add_format_options, plain, print_document, print_table, print_written, say
from nvdla.cli.rows import add_row_options, chosen
from nvdla.cli.study import add_study_options, study_of
from nvdla.files import write_file

HELP = """When every operation runs: which engine, which register group, from which cycle to which.

  nvdla timeline net.nvdla                        a table
  nvdla timeline net.nvdla -o trace.json          for ui.perfetto.dev or chrome://tracing
  nvdla timeline net.nvdla -o schedule.svg        a picture

Cycles come from the model of 'nvdla cycles', the order from the firmware's rules. Exit code 1 when operations wait
for ever."""

ENDINGS = (".json", ".svg")
COLUMNS = ("operation", "engine", "group", "layer", "programmed", "enabled", "start", "end", "cycles", "bound")

LEAST = ("programmed", "enabled", "group", "bound")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    parser.add_argument("--output", "-o", metavar="FILE", help="write .json (Trace Event Format) or .svg")
    add_row_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.tensors.files import ending

    suffix = ending(args.output, ENDINGS, "a timeline") if args.output else None
    study = study_of(args)
    if suffix:
        data = _content(study, args.clock, suffix).encode()
        write_file(args.output, data)
        print_written(args.output, len(data), args)
    if args.json:
        print_document(_trace(study, args.clock), args)
    elif not args.output:
        _print(study, args)
    return 1 if study.schedule.stuck else 0


def _trace(study: Any, clock: float) -> dict[str, Any]:
    from nvdla.analysis.cycles.trace import trace_document
    from nvdla.analysis.memorymap.memory_map import MemoryMap

    return trace_document(study, clock, MemoryMap.of(study).usage)


def _content(study: Any, clock: float, suffix: str) -> str:
    if suffix == ".json":
        return json.dumps(plain(_trace(study, clock)), allow_nan=False) + "\n"
    from nvdla.analysis.cycles.svg import schedule_svg

    return schedule_svg(study, clock)


def _print(study: Any, args: argparse.Namespace) -> None:
    from nvdla.analysis.cycles.document import caveats, operation_rows

    rows = [row | {"cycles": (row["end"] or 0) - (row["start"] or 0)} for row in operation_rows(study)]
    print_table(f"{study.loadable.name} on {study.config.name}", chosen(rows, args), COLUMNS, LEAST)
    clock = args.clock
    print(f"{study.schedule.cycles:,} cycles = {study.schedule.cycles / clock / 1000:.3f} ms at {clock:g} MHz")
    for line in caveats(study):
        say(f"Note: {line}.")
