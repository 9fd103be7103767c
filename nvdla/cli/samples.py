"""``nvdla samples``: the small networks and images that are installed with the toolkit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nvdla import samples
from nvdla.cli.output import add_format_options, print_document, print_table, say

HELP = """List the samples, or write them to a folder.

  nvdla samples                        what there is
  nvdla samples lenet digit -o demo    two of them
  nvdla samples -o demo                all of them"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("name", nargs="*", metavar="NAME", help="samples, or single files (default: all)")
    parser.add_argument("--output", "-o", metavar="DIR", help="write them to this folder (default: the present one)")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    written: list[Path] = []
    if args.name or args.output:
        written = samples.write(args.name or list(samples.CONTENTS), Path(args.output or "."))
    rows: list[dict[str, Any]] = []
    for name, what in samples.CONTENTS.items():
        files = samples.files_of(name)
        size = sum(path.stat().st_size for path in files)
        rows.append({"name": name, "files": [path.name for path in files], "bytes": size, "what": what})
    if print_document({"samples": rows, "written": [str(path) for path in written]}, args):
        return 0
    for path in written:
        say(str(path))
    if not written:
        shown = [{**row, "files": row["files"][0] if len(row["files"]) == 1 else len(row["files"])} for row in rows]
        print_table("samples", shown)
        print("'nvdla samples NAME -o DIR' writes them; 'nvdla run --demo' runs one.")
    return 0
