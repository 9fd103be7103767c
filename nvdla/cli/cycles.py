"""``nvdla cycles``: how many cycles every operation takes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from nvdla.cli.arguments import add_coefficients_option, names_of
from nvdla.cli.output import (
    add_format_options,
    add_row_options,
    for_people,
    only_tables,
    ordered,
    output_file,
    print_document,
    print_table,
    say,
    selected,
    sized,
)
from nvdla.cli.study import add_study_options, board_notes, requested
from nvdla.errors import FormatError, shape_text
from nvdla.util.escaping import Document
from nvdla.util.files import in_package, write_file

HELP = """Estimate the cycles of every operation with a model calibrated on simulations of NVIDIA's RTL.

  nvdla cycles net.nvdla
  nvdla cycles net.nvdla --by layer                                one row per layer, longest first
  nvdla cycles net.nvdla --latency 200 --bandwidth 4 --shared      a slow memory
  nvdla cycles net.nvdla --clock 800                               at 800 MHz
  nvdla cycles net.nvdla --board zcu102-150mhz                     clock, memory and processor of a known board
  nvdla cycles net.nvdla --energy                                  events and their energy, for comparisons

The average error against the RTL is 0.1 to 0.5 % for int8 on nv_small and nv_large; docs/cycles.md has the errors per
kind of operation and the limits of the model. Exit code 1 if operations deadlock."""

COLUMNS = (
    "operation", "engine", "layer", "input", "output", "macs", "cycles", "share", "bound", "MAC_use", "read", "written"
)  # fmt: skip

LEAST = ("written", "read", "MAC_use", "input", "output", "macs", "bound", "engine", "share", "layer")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    parser.add_argument("--by", choices=("layer", "block", "type"), help="sum per layer, block of layers, or engine")
    parser.add_argument("--host-time", choices=("measured",), help=_HOST_TIME)
    group = parser.add_argument_group("energy")
    text = "also print events and energy (relative comparisons only); --coefficients implies it"
    group.add_argument("--energy", action="store_true", help=text)
    add_coefficients_option(group)
    group.add_argument(
        "--action-counts",
        type=output_file(".yaml"),
        metavar="FILE.yaml",
        help="write the events as action counts of Accelergy",
    )
    add_row_options(parser)
    add_format_options(parser)


_LAYER_NAMES = "'nvdla layers' finds them in the model (--caffe, --onnx), --layers reads them from a file"
_HOST_TIME = (
    "measured: run the host parts of a package with onnxruntime on random input and print their time on this machine, "
    "the time per image and the frames per second"
)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.analysis.cycles.document import caveats, cycles_document, grouped, short_names
    from nvdla.analysis.explain import accounting
    from nvdla.analysis.silicon import RELATIVE, action_counts, energy

    request = requested(args)
    study = request.tell()
    if args.host_time:
        raise FormatError(f"--host-time {args.host_time}: {args.loadable} is a loadable and has no host part")
    document = cycles_document(study, request.clock)
    rows = selected(document["operations"], args)
    groups = ordered(grouped(study, rows, args.by), args, _values) if args.by else []
    document = {**document, "operations": rows if args.by else ordered(rows, args, _values)}
    document |= {"accounting": accounting(study), "model_macs": names_of(args, study.loadable).macs or None}
    document |= {"by": args.by, "groups": groups} if args.by else {}
    notes = [*caveats(study, request.clock), *board_notes(study)]
    if args.by in ("layer", "block") and not any(row["layer"] for row in rows):
        notes.insert(0, f"the file has no layer names, so rows are engines; {_LAYER_NAMES}")
    if args.energy or args.coefficients:
        document |= {"energy": energy(study, args.coefficients), "energy_note": RELATIVE}
        notes.append(RELATIVE)
    if args.action_counts:
        write_file(args.action_counts, action_counts(study).encode())
    if not print_document(document, args):
        is_shortened = args.by == "block" and for_people() and not only_tables() and not args.wide
        shorter = short_names(study) if is_shortened else {}
        _print(document, notes, shorter)
    return 1 if document["stuck"] else 0


def _print(document: Document, caveats: list[str], shorter: Mapping[str, str]) -> None:
    """``shorter``: short names of blocks."""
    from nvdla.analysis.cycles.document import total_text

    total = document["total_cycles"]
    alone = (total or 0) - min(document["overlap_cycles"] or 0, 0)  # shares of operations that overlap are of their sum
    title = f"{document['loadable']} on {document['configuration']}"
    if "groups" in document:
        rows = [_group(row) for row in document["groups"]]
        shown = [{**row, "block": shorter.get(row["block"], row["block"])} for row in rows] if shorter else rows
        print_table(title, shown, least=("written", "read", "MAC_use", "operations", "macs"))
        if shown != rows:
            say("Block names are shortened; --wide shows all of them.")
            print()
    else:
        print_table(title, [_row(row, alone) for row in document["operations"]], COLUMNS, LEAST)
    whole = document["runs_per_second"] and not in_package(document["loadable"])
    speed = f", {document['runs_per_second']:,.1f} runs per second" if whole else ""
    say(total_text(total, document["clock_mhz"]) + speed)
    if alone > (total or 0):
        say(f"operations overlap: alone they take {alone:,} cycles together; shares are of these")
    if document["accounting"] and (between := document["accounting"]["programming"]):
        twice = between - document["overlap_cycles"]
        also = f" (at least {twice:,} of them also in the rows)" if 0 < twice <= between else ""
        say(f"{between:,} cycles ({between / total:.1%}) between operations: registers and interrupts{also}")
    use = f", {document['mac_use']:.1%} of the MAC array" if document["mac_use"] is not None else ""
    traffic = f"{sized(document['read_bytes'])} read, {sized(document['written_bytes'])} written"
    say(f"{document['macs']:,} MACs{use}; {traffic}")
    if document["model_macs"] and document["macs"] > document["model_macs"]:
        others = "multiply zeros (joined groups, padding) or ones (averages, data that are moved)"
        say(f"The model has {document['model_macs']:,} MACs; the others {others}.")
    if "energy" in document:
        _print_energy(document["energy"])
    for line in caveats:
        say(f"Note: {line}.")


def _print_energy(rows: list[Document]) -> None:
    """The events and the sum of those with a coefficient."""
    print_table("energy (relative comparisons only)", rows, ("event", "count", "pj", "microjoules", "source"))
    missing = [row["event"] for row in rows if row["pj"] is None and row["count"]]
    without = f", without {', '.join(missing)}" if missing else ""
    say(f"{sum(row['microjoules'] or 0 for row in rows):,.3f} microjoules{without}")


def _values(row: Document) -> Document:
    """Columns for --sort: numbers of the document and, by heading, of the table."""
    shown = {"MAC_use": row["mac_share"], "read": row["read_bytes"], "written": row["written_bytes"]}
    return {**row, **shown, "share": row["cycles"]}


def _group(row: Document) -> Document:
    cells = {key: value for key, value in row.items() if key not in ("mac_share", "read_bytes", "written_bytes")}
    return cells | {
        "cycles": row["cycles"] or None,
        "share": f"{row['share']:.1%}" if row["share"] else None,
        "macs": row["macs"] or None,
        "MAC_use": f"{row['mac_share']:.1%}" if row["mac_share"] else None,
        "read": row["read_bytes"],
        "written": row["written_bytes"],
    }


def _row(row: Document, total: int) -> Document:
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
