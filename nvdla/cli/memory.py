"""``nvdla memory``: where the memory of a loadable goes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nvdla.cli.arguments import add_base_option
from nvdla.cli.output import (
    Place,
    add_format_options,
    add_row_options,
    ordered,
    output_file,
    print_document,
    print_table,
    print_written,
    say,
    selected,
    sized,
)
from nvdla.cli.study import add_study_options, requested
from nvdla.errors import FormatError, counted
from nvdla.util.escaping import Document, with_hex_addresses
from nvdla.util.files import write_file

if TYPE_CHECKING:
    from nvdla.analysis.study import Study

HELP = """Show the memory map of a loadable: every buffer with address, size, lifetime, reuse and overlaps.

  nvdla memory net.nvdla                          tables
  nvdla memory net.nvdla --dram-base 0x80000000        addresses in your own carve-out
  nvdla memory net.nvdla --svg memory.svg         a timeline
  nvdla memory net.nvdla --json                   all data (docs/explain.md)

Exit code 1 if a buffer is overwritten while it is still needed, or an operation leaves its memory."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser, timing=False)
    add_base_option(parser, "dram")
    add_base_option(parser, "cvsram")
    parser.add_argument("--svg", type=output_file(".svg"), metavar="FILE", help="also draw as SVG")
    parser.add_argument("--buffers", action="store_true", help="also list constants (weights, operands)")
    add_row_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.analysis.memory import MemoryMap
    from nvdla.emulator.memory.placement import CVSRAM_BASE, DRAM_BASE

    request = requested(args, timing=False)
    study = request.study
    base = DRAM_BASE if args.dram_base is None else args.dram_base
    cvsram = CVSRAM_BASE if args.cvsram_base is None else args.cvsram_base
    memory = MemoryMap.of(study, base, cvsram)
    for row in memory.spaces():
        study.config.check_reach(row["space"], row["base"], row["end"])
    request.tell()
    document = memory.document()
    pairs = (zip(row["operations"], row["engines"], strict=True) for row in document["steps"])
    engines = {label: engine for pair in pairs for label, engine in pair}
    everything = args.buffers or args.json
    buffers = [row for row in document["buffers"] if everything or row["kind"] != "constant"]
    hidden = "" if everything else _constants(study)
    tables = {
        "buffers": selected(buffers, args, lambda row: _place(row, engines)),
        **{name: document[name] for name in ("allocations", "reuse")},
    }
    document |= _ordered(tables, args)
    left_out = {name: len(rows) - len(document[name]) for name, rows in tables.items()}
    if args.svg:
        from nvdla.analysis.memory import memory_svg

        data = memory_svg(memory).encode()
        write_file(args.svg, data)
    if not print_document(document, args):
        _print(document, hidden, left_out)
    if args.svg:
        print_written(args.svg, len(data), args)
    return 1 if document["overlaps"] or document["outside"] else 0


def _ordered(tables: Mapping[str, list[Document]], args: argparse.Namespace) -> dict[str, list[Document]]:
    """The first ``--top`` rows of each table; ``--sort`` orders those that have the column. Raises FormatError if none
    has it."""
    result, errors = {}, []
    for name, rows in tables.items():
        try:
            result[name] = ordered(rows, args, _values)
        except FormatError as error:
            result[name] = rows[: args.top or None]
            errors.append(error)
    if errors and len(errors) == sum(map(bool, tables.values())):
        raise errors[0]
    return result


def _values(row: Document) -> Document:
    """Columns for --sort: values of the document and, by heading, of the table."""
    steps = {"written": row["first"], "last_read": row["last"]} if "first" in row else {}
    size = row.get("bytes", row.get("size"))
    return row | ({} if size is None else {"bytes": size, "size": size}) | steps


def _place(row: Document, engines: dict[str, str]) -> Place:
    """The operations that write or read a buffer."""
    labels = [label for label in (row["written_by"], *row["read_by"]) if label]
    return labels, [engines[label] for label in labels if label in engines], [row["name"]]


#: kinds of constants, by the role of the access that reads them
_KINDS = dict.fromkeys(("weights", "wmb", "wgs"), "weights") | dict.fromkeys(("x1", "x2", "y"), "operands")


def _constants(study: Study) -> str:
    """Number and kinds of the constants; empty without any: "10 constants (weights, operands)"."""
    constants = [value for value in study.values if value.kind == "constant"]
    kinds = {_KINDS.get(role, "input data") for value in constants for _, role in value.readers}
    return f"{counted(len(constants), 'constant')} ({', '.join(sorted(kinds, reverse=True))})" if constants else ""


def _print(document: Document, hidden: str, left_out: Mapping[str, int]) -> None:
    """``hidden``: constants that are not in the list of buffers; ``left_out``: number of rows after ``--top``."""
    spaces = [with_hex_addresses(row) for row in document["spaces"]]
    print_table(
        f"{document['loadable']} on {document['configuration']}",
        spaces,
        least=("end", "base", "constant", "bound", "intermediate", "allocated"),
    )
    for row in document["spaces"]:
        say(f"{row['space']}: {sized(row['allocated'])} in {sized(row['carve_out'])} of carve-out")
        print()
    steps = document["steps"]
    allocations = [
        with_hex_addresses(row) | {key: _step(row[key], steps) for key in ("first_write", "last_read")}
        for row in document["allocations"]
    ]
    print_table("allocations (each must be contiguous)", allocations, least=("flags", "alignment", "end", "buffers"))
    _tell_more(left_out["allocations"])
    print_table("buffers", [_buffer(row, steps) for row in document["buffers"]], least=("aligned_to", "memory"))
    _tell_more(left_out["buffers"])
    if hidden:
        say(f"Not listed: {hidden}; --buffers shows all")
        print()
    if document["reuse"]:
        print_table("reuse: the later buffer takes bytes of the earlier", document["reuse"])
        _tell_more(left_out["reuse"])
    for row in document["overlaps"]:
        say(
            f"OVERLAP: operation {row['operation']} overwrites {row['bytes']} bytes of buffer {row['earlier']} "
            f"(memory {row['memory']}) that is still read afterwards"
        )
    for row in document["outside"]:
        say(
            f"OUTSIDE: {row['field']} of operation {row['operation']} {'writes' if row['writes'] else 'reads'} bytes "
            f"{row['first']:,} to {row['end']:,} of memory {row['memory']}, which has {row['size']:,}; the hardware "
            "continues in the memories around it"
        )


def _tell_more(count: int) -> None:
    if count:
        say(f"{count:,} more (--top)")
        print()


def _buffer(row: Document, steps: list[Document]) -> Document:
    keys = ("buffer", "name", "kind", "memory", "address", "bytes", "aligned_to")
    return with_hex_addresses({key: row[key] for key in keys}) | {
        "shape": row["shape"] or None,
        "written": row["written_by"] or "before",
        "last_read": _step(row["last"], steps) if row["read_by"] or row["kind"] == "output" else "never",
    }


def _step(step: int | None, steps: list[Document]) -> str | None:
    if step is None:
        return None
    if step < 0:
        return "before"
    if step >= len(steps):
        return "after"
    return f"{steps[step]['operations'][-1]} {steps[step]['engines'][-1].upper()}"
