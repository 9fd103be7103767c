"""``nvdla explain``: how convolutions are done, and what bounds them."""

from __future__ import annotations

import argparse

from nvdla.cli.output import add_format_options, escape, print_document, terminal_width
from nvdla.cli.study import add_study_options, study_of

HELP = """How a convolution (or each of them) is done on the hardware: tiles, banks of the convolution buffer, kernel
groups, stripes, what is fetched; what bounds it, and what would help. For loadables of any compiler.

  nvdla explain net.nvdla                 every convolution
  nvdla explain net.nvdla 0/17            everything about one operation; also by the name of its layer"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    parser.add_argument("operation", nargs="?", metavar="OPERATION", help="TASK/OPERATION, or the name of a layer")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.analysis.explain import explanations, sentences
    from nvdla.analysis.one_operation import chosen, lines, operation_document

    study = study_of(args)
    nodes = chosen(study, args.operation) if args.operation else []
    convolutions = args.operation is None or any(node.engine == "conv" for node in nodes)
    rows = explanations(study, args.operation) if convolutions else []
    screens = [operation_document(study, node) for node in nodes]
    document = {"loadable": study.loadable.name, "configuration": study.config.name, "convolutions": rows}
    if print_document(document | {"operations": screens}, args):
        return 0
    for screen in screens:
        for line in lines(screen, terminal_width()):
            print(escape(line))
    for row in rows:
        first, *rest = sentences(row)
        print(first)
        for line in rest:
            print(f"    {line}")
    return 0
