"""``nvdla hexdump``: the bytes of a blob with its structures."""

from __future__ import annotations

import argparse
import shlex

from nvdla.analysis.views import annotated_rows, hexdump_lines
from nvdla.cli.output import add_format_options, print_document, print_table, whole
from nvdla.errors import FormatError
from nvdla.loadable import load as load_loadable
from nvdla.program import Program

HELP = "Show the bytes of a blob. Descriptor blobs are shown field by field: bytes, name, type, value, meaning."


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    parser.add_argument("blob", nargs="?", help="name of the blob ('nvdla inspect --blobs' lists them)")
    parser.add_argument("--plain", action="store_true", help="print bytes only, also for descriptor blobs")
    parser.add_argument("--offset", type=whole(base=0), default=0, metavar="BYTE", help="first byte (with --plain)")
    parser.add_argument(
        "--length", type=whole(base=0), default=None, metavar="BYTES", help="number of bytes (with --plain)"
    )
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    loadable = load_loadable(args.loadable)
    if args.blob is None:
        names = [blob.name for blob in loadable.blobs]
        hint = f" Run 'nvdla hexdump {shlex.quote(args.loadable)} {shlex.quote(names[0])}'." if names else ""
        raise FormatError(f"blob: must be one of {', '.join(names) or 'none'}, got none.{hint}")
    blob = loadable.blob(args.blob)
    rows = []
    if not args.plain and not args.offset and args.length is None:
        rows = annotated_rows(loadable, Program.of(loadable, abi=args.abi).tasks, blob)
    lines = [] if rows else list(hexdump_lines(blob.data, args.offset, args.length))
    if print_document({"blob": blob.name, "size": blob.length, "fields": rows, "lines": lines}, args):
        return 0
    if rows:
        print_table(f"{blob.name} ({blob.length} bytes)", rows)
    else:
        print("\n".join(lines))
    return 0
