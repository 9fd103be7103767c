"""``nvdla timeline``: the schedule for Perfetto and chrome://tracing, or as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.output import (
    add_format_options,
    add_row_options,
    chosen,
    only_tables,
    output_file,
    print_document,
    print_table,
    print_written,
    say,
)
from nvdla.cli.study import add_study_options, requested
from nvdla.util.escaping import Document, json_text
from nvdla.util.files import write_file

if TYPE_CHECKING:
    from nvdla.analysis.study import Study

HELP = """Show the schedule: engine, register group, first and last cycle of every operation.

  nvdla timeline net.nvdla                        table
  nvdla timeline net.nvdla -o trace.json          for ui.perfetto.dev or chrome://tracing
  nvdla timeline net.nvdla -o schedule.svg        drawing

Cycles come from the model of 'nvdla cycles', the order from the rules of the firmware. Exit code 1 if operations
deadlock."""

ENDINGS = (".json", ".svg")
COLUMNS = ("operation", "engine", "group", "layer", "programmed", "enabled", "start", "end", "cycles", "bound")

LEAST = ("programmed", "enabled", "group", "bound", "engine", "cycles", "layer")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    parser.add_argument(
        "--output",
        "-o",
        type=output_file(".json", "a timeline", ENDINGS),
        metavar="FILE",
        help="write .json (Trace Event Format) or .svg",
    )
    add_row_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    suffix = Path(args.output or "").suffix.lower()
    request = requested(args)
    study, clock = request.tell(), request.clock
    if suffix:
        data = _content(study, clock, suffix).encode()
        write_file(args.output, data)
        print_written(args.output, len(data), args)
    if args.json:
        print_document(_trace(study, clock), args)
    elif not args.output or only_tables():
        _print(study, clock, args)
    return 1 if study.schedule.stuck else 0


def _trace(study: Study, clock: float) -> Document:
    from nvdla.analysis.cycles.document import trace_document
    from nvdla.analysis.explain import use_tracks
    from nvdla.analysis.memory import MemoryMap

    counters = {(track.name, track.unit): track.points for track in use_tracks(study)}
    return trace_document(study, clock, MemoryMap.of(study).usage, counters)


def _content(study: Study, clock: float, suffix: str) -> str:
    if suffix == ".json":
        return json_text(_trace(study, clock)) + "\n"
    from nvdla.analysis.cycles.document import schedule_svg

    return schedule_svg(study, clock)


def _print(study: Study, clock: float, args: argparse.Namespace) -> None:
    from nvdla.analysis.cycles.document import caveats, operation_rows, total_text

    rows = [row | {"cycles": _length(row["start"], row["end"])} for row in operation_rows(study)]
    print_table(f"{study.loadable.name} on {study.config.name}", chosen(rows, args), COLUMNS, LEAST)
    total, end = study.schedule.total, max((row["end"] or 0 for row in rows), default=0)
    rest = f"; in the last {total - end}, the firmware answers the last interrupt" if total and total > end else ""
    say(f"{total_text(total, clock)}{rest}")
    for line in caveats(study, clock):
        say(f"Note: {line}.")


def _length(start: int | None, end: int | None) -> int | None:
    """Cycles at work; None: it never ends."""
    return None if start is None or end is None else end - start
