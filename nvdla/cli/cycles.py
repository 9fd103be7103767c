"""``nvdla cycles``: how many cycles every operation takes."""

from __future__ import annotations

import argparse
from typing import Any

from nvdla.cli.output import add_format_options, print_document, print_table, say, sized
from nvdla.cli.rows import add_row_options, chosen
from nvdla.cli.study import add_study_options, board_notes, study_of
from nvdla.errors import shape_text

HELP = """Cycles of every operation, by a model that was calibrated on cycle-accurate simulation of NVIDIA's RTL.

  nvdla cycles net.nvdla
  nvdla cycles net.nvdla --latency 200 --bandwidth 4 --shared      a slow memory
  nvdla cycles net.nvdla --config nv_large --clock 800             another configuration, at 800 MHz
  nvdla cycles net.nvdla --board zcu102-150mhz                     clock, memory and processor of a known board

Errors against the RTL are 0.1 to 0.5 % on average for int8 on nv_small and nv_large; docs/cycles.md has them by kind,
and what is unproven.
Exit code 1 when operations wait for ever."""

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

    study = study_of(args)
    document = cycles_document(study, args.clock)
    rows = chosen(document["operations"], args, value=_values)
    if not print_document({**document, "operations": rows}, args):
        _print({**document, "operations": rows}, [*caveats(study), *board_notes(args)])
    return 1 if document["stuck"] else 0


def _print(document: dict[str, Any], caveats: list[str]) -> None:
    total = document["total_cycles"]
    rows = [_row(row, total) for row in document["operations"]]
    print_table(f"{document['loadable']} on {document['configuration']}", rows, COLUMNS, LEAST)
    print(f"{total:,} cycles = {document['total_ms']:.3f} ms at {document['clock_mhz']:g} MHz", end="")
    print(f", {document['runs_per_second']:,.1f} runs a second" if document["runs_per_second"] else "")
    use = f", {document['mac_use']:.1%} of the MAC array" if document["mac_use"] is not None else ""
    traffic = f"{sized(document['read_bytes'])} read, {sized(document['written_bytes'])} written"
    print(f"{document['macs']:,} MACs{use}; {traffic}")
    for line in caveats:
        say(f"Note: {line}.")


def _values(row: dict[str, Any]) -> dict[str, Any]:
    """What --sort compares: the document's numbers and, by their headings, those of the table. The cycles of a chain
    are those of its first operation."""
    cycles = row["cycles"] if row["leader"] == row["operation"] else None
    shown = {"MAC_use": row["mac_share"], "read": row["read_bytes"], "written": row["written_bytes"]}
    return {**row, **shown, "cycles": cycles, "share": cycles}


def _row(row: dict[str, Any], total: int) -> dict[str, Any]:
    """Cycles stand at the first operation of a chain; those behind it on the fly have an arrow."""
    leads = row["leader"] == row["operation"]
    cells = {key: row[key] for key in ("operation", "engine", "layer")}
    cells |= {key: shape_text(row[key]) if row[key] else None for key in ("input", "output")}
    share = row["cycles"] / total if leads and row["cycles"] and total else None
    return cells | {
        "macs": row["macs"] or None,
        "cycles": row["cycles"] if leads else None,
        "share": f"{share:.1%}" if share is not None else None,
        "bound": row["bound"] if leads else f"with {row['leader']}",
        "MAC_use": f"{row['mac_share']:.1%}" if row["mac_share"] else None,
        "read": row["read_bytes"],
        "written": row["written_bytes"],
    }
