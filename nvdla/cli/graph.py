"""``nvdla graph``: operations, tensors and dependencies as DOT, SVG or JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.output import add_format_options, output_file, print_document, say
from nvdla.cli.study import add_study_options, study_of
from nvdla.errors import FormatError
from nvdla.util.escaping import json_text
from nvdla.util.files import write_file

if TYPE_CHECKING:
    from nvdla.analysis.study import Study

HELP = """Write the graph of a loadable: operations, fused groups, tensors in memory, dependencies and their events.

  nvdla graph net.nvdla                           DOT text
  nvdla graph net.nvdla -o net.dot                DOT file
  nvdla graph net.nvdla -o net.svg                drawing by graphviz, or in rows without graphviz
  nvdla graph net.nvdla -o net.json               the graph as data (docs/report.md)"""

ENDINGS = (".dot", ".gv", ".svg", ".json")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser, timing=False)
    parser.add_argument(
        "--output",
        "-o",
        type=output_file(".dot", "a graph", ENDINGS),
        metavar="FILE",
        help="write .dot, .svg or .json instead of printing",
    )
    parser.add_argument("--constants", action="store_true", help="also draw weights and operands")
    parser.add_argument(
        "--events",
        action="store_true",
        help="events, which order operations without a common tensor",
    )
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""

    from nvdla.analysis.graph import dot_text, graph_document
    from nvdla.cli.output import print_written

    suffix = Path(args.output or "").suffix.lower()
    study = study_of(args, timing=False)
    if suffix == ".json":
        data = (json_text(graph_document(study), indent=1) + "\n").encode()
    elif suffix:
        draw = _svg if suffix == ".svg" else dot_text
        data = draw(study, args.constants, args.events).encode()
    if suffix:
        write_file(args.output, data)
        print_written(args.output, len(data), args)
    if not print_document(graph_document(study), args) and not args.output:
        sys.stdout.write(dot_text(study, args.constants, args.events))
    return 0


def _svg(study: Study, constants: bool, events: bool) -> str:
    """By graphviz; a long graph in columns; without graphviz in rows, with the reason."""
    from nvdla.analysis.graph import LONG, dot_svg, dot_text, layered_svg

    if len(study.chains) > LONG:  # graphviz would draw a ribbon
        return layered_svg(study, constants, events)
    try:
        return dot_svg(dot_text(study, constants, events))
    except FormatError as error:
        say(f"drawn in rows, without graphviz: {error}", sys.stderr)
        return layered_svg(study, constants, events)
