"""``nvdla export``: a loadable for viewers that people have."""

from __future__ import annotations

import argparse
from pathlib import Path

from nvdla.cli.output import add_format_options, output_file, print_document, say
from nvdla.cli.study import add_viewing_options, sides_of, study_of
from nvdla.errors import FormatError, counted
from nvdla.util.escaping import Document, json_text
from nvdla.util.files import make_directory, write_file

HELP = """Export a loadable to other viewers: as an ONNX graph (Netron) or as node data (Model Explorer).

  nvdla export net.nvdla --output net.onnx                          one node per operation, in a custom domain
  nvdla export net.nvdla --node-data dir                            cycles and MAC use, one file each
  nvdla export net.nvdla -i digit.pgm --node-data dir               also saturation
  nvdla export net.nvdla other.nvdla -i digit.pgm --node-data dir   also SNR against the other

To open the graph itself: 'model-explorer net.nvdla --extensions=nvdla.report.model_explorer'."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_viewing_options(parser)
    parser.add_argument(
        "--output",
        "-o",
        type=output_file(".onnx", "an ONNX graph", (".onnx",)),
        metavar="FILE.onnx",
        help="write the graph as ONNX (needs nvdla[onnx])",
    )
    parser.add_argument("--no-weights", action="store_true", help="omit weights from --output")
    parser.add_argument("--node-data", metavar="DIR", help="write metrics per operation as JSON for Model Explorer")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if not args.output and not args.node_data:
        raise FormatError("nothing to write: give --output FILE.onnx or --node-data DIRECTORY")
    written: list[Document] = []
    if args.output:
        from nvdla.analysis.graph import onnx_model

        model = onnx_model(study_of(args), not args.no_weights)
        data = model.SerializeToString()
        write_file(args.output, data)
        written.append(
            {"output": args.output, "what": "ONNX graph", "nodes": len(model.graph.node), "bytes": len(data)}
        )
    if args.node_data:
        written += _node_data(args)
    if not print_document({"loadable": args.loadable, "files": written}, args):
        for row in written:
            say(f"{row['output']}: {row['what']} of {counted(row['nodes'], 'operation')}")
    return 0


def _node_data(args: argparse.Namespace) -> list[Document]:
    """One file for each kind of number that is known."""
    from nvdla.report import model_explorer as node_data

    sides = [side for side, _ in sides_of(args)]
    study, ratios = sides[0].study, node_data.snr(*sides) if len(sides) > 1 else {}
    metrics = {
        "cycles": ("cycles", node_data.cycles(study), False),
        "mac_use": ("MAC use, %", node_data.mac_use(study), True),
        "saturation": ("saturation, %", node_data.saturation(sides[0]), False),
        "snr": (f"SNR (dB against {args.other or args.loadable}, real values)", ratios, True),
    }
    folder, rows = Path(args.node_data), []
    make_directory(folder)
    for name, (title, numbers, falling) in metrics.items():
        if not numbers:
            continue
        data = json_text(node_data.document(study.title, title, numbers, falling), indent=1).encode()
        write_file(folder / f"{name}.json", data)
        rows.append({"output": str(folder / f"{name}.json"), "what": title, "nodes": len(numbers), "bytes": len(data)})
    return rows
