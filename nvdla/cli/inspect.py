"""``nvdla inspect``: the contents of a loadable."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from nvdla.analysis import views as views
from nvdla.cli.arguments import add_config_option
from nvdla.cli.output import (
    add_format_options,
    add_row_options,
    asked,
    chosen,
    only_tables,
    print_document,
    print_pairs,
    print_table,
    tell_proof,
)
from nvdla.loadable import load as load_loadable
from nvdla.program.naming import names_for
from nvdla.program.program import Program
from nvdla.util.escaping import Document
from nvdla.util.files import in_package

HELP = "Show a loadable: overview, its nine root tables, operations, dependencies."

LEAST = ("consumers", "waits_for", "destination", "source", "precision", "input", "output", "type", "task", "layer")
SECTIONS = {
    "tasks": "tasks in order of submission",
    "submits": "submit list: tasks that are submitted together",
    "events": "events, which order operations without a common tensor",
    "memory": "memories and the addresses that point into them",
    "addresses": "address list: memory, offset, size",
    "blobs": "blobs: weights, descriptors, tables",
    "tensors": "input and output tensors",
    "relocs": "relocations",
    "ops": "operations: computation, inputs, outputs",
    "graph": "dependency graph: consumers and what each operation waits for",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    for name, help_text in SECTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=help_text)
    parser.add_argument("--all", action="store_true", help="print everything (default: an overview)")
    add_config_option(parser)
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    add_row_options(parser)
    add_format_options(parser, yaml=True)


#: names in the text: the carve-out to reserve is larger ('nvdla memory')
_ALLOCATED = {f"{space}_bytes": f"allocated_{space}_bytes" for space in ("dram", "cvsram")}


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    loadable = load_loadable(args.loadable)
    program = Program.of(loadable, args.config, args.abi)
    tell_proof(args, program.config)
    makers: dict[str, Callable[[Program], Any]] = {
        "overview": views.overview,
        **views.TABLES,
        "ops": lambda program: chosen(_named(views.operation_rows(program), args.loadable), args),
        "graph": views.graph_rows,
    }
    wanted = [name for name in SECTIONS if args.all or getattr(args, name)]
    if asked(args) and "ops" not in wanted:
        wanted.append("ops")
    if args.all or not wanted:
        wanted = ["overview", *wanted]
    document = {name: makers[name](program) for name in wanted}
    document |= {name: rows[: args.top] for name, rows in document.items() if name != "overview"}
    if print_document(document, args):
        return 0
    for name, content in document.items():
        if name == "overview" and only_tables():
            print_table(name, [content])
        elif name == "overview":
            print_pairs(
                loadable.name, {_ALLOCATED.get(key, key): value for key, value in content.items() if key != "file"}
            )
        else:
            of_part = f" of {args.loadable}" if in_package(args.loadable) else ""
            print_table(f"{name}{of_part}", content, least=LEAST)
    return 0


def _named(rows: list[Document], loadable: str) -> list[Document]:
    """Rows of operations with ``layer`` after ``operation``: from the layer file, None without a name."""
    names = names_for(loadable).layers
    return [
        {"task": row["task"], "operation": row["operation"], "layer": names.get((row["task"], row["operation"])), **row}
        for row in rows
    ]
