"""``nvdla graph``: operations, tensors and dependencies as DOT, SVG or JSON."""

from __future__ import annotations

import argparse
import sys

from nvdla.cli.output import add_format_options, print_document
from nvdla.cli.study import add_study_options, study_of
from nvdla.files import write_file

HELP = """The graph of a loadable: operations, groups on the fly, tensors in memory, dependencies and their events.

  nvdla graph net.nvdla                           DOT text
  nvdla graph net.nvdla -o net.dot                the same to a file
  nvdla graph net.nvdla -o net.svg                drawn by graphviz (Debian: apt-get install graphviz)
  nvdla graph net.nvdla -o net.json               the graph as data, as documented in docs/graph.md"""

ENDINGS = (".dot", ".gv", ".svg", ".json")


def configure(parser: argparse.ArgumentParser) -> None:
    add_study_options(parser, timing=False)
    parser.add_argument("--output", "-o", metavar="FILE", help="write .dot, .svg or .json instead of printing")
    parser.add_argument("--constants", action="store_true", help="show weights and operands in drawings too")
    parser.add_argument("--no-events", action="store_true", help="leave the dependencies out of drawings")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    import json

    from nvdla.analysis.graph.document import graph_document
    from nvdla.analysis.graph.dot import dot_svg, dot_text
    from nvdla.cli.output import plain, print_written
    from nvdla.tensors.files import ending

    suffix = ending(args.output, ENDINGS, "a graph") if args.output else None
    study = study_of(args)
    if suffix == ".json":
        data = (json.dumps(plain(graph_document(study)), indent=1) + "\n").encode()
    elif suffix:
        text = dot_text(study, args.constants, not args.no_events)
        data = (dot_svg(text) if suffix == ".svg" else text).encode()
    if suffix:
        write_file(args.output, data)
        print_written(args.output, len(data), args)
    if args.json:
        print_document(graph_document(study), args)
    elif not args.output:
        sys.stdout.write(dot_text(study, args.constants, not args.no_events))
    return 0
