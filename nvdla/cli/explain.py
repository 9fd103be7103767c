"""``nvdla explain``: how convolutions are done, and what bounds them."""

from __future__ import annotations

import argparse

from nvdla.cli.output import add_format_options, print_document
from nvdla.cli.study import add_study_options, study_of

HELP = """How a convolution (or each of them) is done on the hardware: tiles, banks of the convolution buffer, kernel
groups, stripes, what is fetched; what bounds it, and what would help. For loadables of any compiler."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    parser.add_argument("operation", nargs="?", metavar="OPERATION", help="TASK/OPERATION, or the name of a layer")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.analysis.explain import explanations, sentences

    study = study_of(args)
    rows = explanations(study, args.operation)
    document = {"loadable": study.loadable.name, "configuration": study.config.name, "convolutions": rows}
    if print_document(document, args):
        return 0
    for row in rows:
        first, *rest = sentences(row)
        print(first)
        for line in rest:
            print(f"    {line}")
    return 0
