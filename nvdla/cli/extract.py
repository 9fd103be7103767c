"""``nvdla extract``: a blob's bytes as a file."""

from __future__ import annotations

import argparse
import sys

from nvdla.cli.output import add_format_options, print_document, say
from nvdla.errors import FormatError
from nvdla.loadable import load as load_loadable
from nvdla.util.files import write_file

HELP = "Write the bytes of a blob to a file, or with '-o -' to standard output."
STREAMS = ("output",)


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    parser.add_argument("blob", help="name of the blob ('nvdla inspect --blobs' lists them)")
    parser.add_argument("--output", "-o", required=True, metavar="FILE", help="output file; - is standard output")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if args.output == "-" and (args.json or args.csv or args.tsv):
        raise FormatError("-o -: the bytes are all that standard output gets. Leave out --json, --csv and --tsv.")
    blob = load_loadable(args.loadable).blob(args.blob)
    if args.output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(blob.data)
        say(f"{blob.length} bytes of blob {blob.name}", sys.stderr)
        return 0
    write_file(args.output, blob.data)
    document = {"blob": blob.name, "output": args.output, "bytes": blob.length}
    if print_document(document, args):
        return 0
    say(f"{args.output}: {blob.length} bytes of blob {blob.name}")
    return 0
