"""``nvdla extract``: a blob's bytes as a file."""

from __future__ import annotations

import argparse

from nvdla.cli.output import add_format_options, output_file, print_document, say
from nvdla.loadable import load as load_loadable
from nvdla.util.files import write_file

HELP = "Write the bytes of a blob to a file."


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    parser.add_argument("blob", help="name of the blob ('nvdla inspect --blobs' lists them)")
    parser.add_argument("--output", "-o", required=True, type=output_file(".bin"), metavar="FILE", help="output file")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    blob = load_loadable(args.loadable).blob(args.blob)
    write_file(args.output, blob.data)
    document = {"blob": blob.name, "output": args.output, "bytes": blob.length}
    if print_document(document, args):
        return 0
    say(f"{args.output}: {blob.length} bytes of blob {blob.name}")
    return 0
