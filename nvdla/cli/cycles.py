"""``nvdla cycles``: how many cycles every operation takes."""

from __future__ import annotations

import argparse

from nvdla.cli.output import add_format_options, add_row_options, chosen, print_document, print_table, say, sized
from nvdla.cli.study import add_study_options, board_notes, requested
from nvdla.errors import shape_text
from nvdla.util.escaping import Document

HELP = """Estimate the cycles of every operation with a model calibrated on simulations of NVIDIA's RTL.

  nvdla cycles net.nvdla
  nvdla cycles net.nvdla --latency 200 --bandwidth 4 --shared      a slow memory
  nvdla cycles net.nvdla --config nv_large --clock 800             another configuration, at 800 MHz
  nvdla cycles net.nvdla --board zcu102-150mhz                     clock, memory and processor of a known board

The average error against the RTL is 0.1 to 0.5 % for int8 on nv_small and nv_large; docs/cycles.md has the errors per
kind of operation and the limits of the model. Exit code 1 if operations deadlock."""

COLUMNS = (
    "operation", "engine", "layer", "input", "output", "macs", "cycles", "share", "bound", "MAC_use", "read", "written"
)  # fmt: skip

LEAST = ("written", "read", "MAC_use", "input", "output", "macs")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    add_row_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.analysis.cycles.document import caveats, cycles_document

    request = requested(args)
    study = request.tell()
    document = cycles_document(study, request.clock)
    rows = chosen(document["operations"], args, value=_values)
    if not print_document({**document, "operations": rows}, args):
        _print({**document, "operations": rows}, [*caveats(study), *board_notes(args)])
    return 1 if document["stuck"] else 0


def _print(document: Document, caveats: list[str]) -> None:
    from nvdla.analysis.cycles.document import total_text

    total = document["total_cycles"]
    rows = [_row(row, total) for row in document["operations"]]
    print_table(f"{document['loadable']} on {document['configuration']}", rows, COLUMNS, LEAST)
    print(total_text(total, document["clock_mhz"]), end="")
    print(f", {document['runs_per_second']:,.1f} runs a second" if document["runs_per_second"] else "")
    use = f", {document['mac_use']:.1%} of the MAC array" if document["mac_use"] is not None else ""
    traffic = f"{sized(document['read_bytes'])} read, {sized(document['written_bytes'])} written"
    print(f"{document['macs']:,} MACs{use}; {traffic}")
    for line in caveats:
        say(f"Note: {line}.")


def _values(row: Document) -> Document:
    """Columns for --sort: numbers of the document and, by heading, of the table."""
    shown = {"MAC_use": row["mac_share"], "read": row["read_bytes"], "written": row["written_bytes"]}
    return {**row, **shown, "share": row["cycles"]}


def _row(row: Document, total: int | None) -> Document:
    """The first operation of a fused chain has the cycles; the others have an arrow."""
    leads = row["leader"] == row["operation"]
    cells = {key: row[key] for key in ("operation", "engine", "layer")}
    cells |= {key: shape_text(row[key]) if row[key] else None for key in ("input", "output")}
    share = row["cycles"] / total if row["cycles"] and total else None
    return cells | {
        "macs": row["macs"] or None,
        "cycles": row["cycles"],
        "share": f"{share:.1%}" if share is not None else None,
        "bound": row["bound"] if leads else f"with {row['leader']}",
        "MAC_use": f"{row['mac_share']:.1%}" if row["mac_share"] else None,
        "read": row["read_bytes"],
        "written": row["written_bytes"],
    }
