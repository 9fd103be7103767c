"""``nvdla datasheet``: one page about a hardware configuration and networks on it."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from nvdla.cli.arguments import add_coefficients_option, add_limit_option
from nvdla.cli.campaigns import add_calibrate_option, add_label_options, source_of
from nvdla.cli.output import add_format_options, output_file, print_document, print_written, say, tell_proof
from nvdla.cli.study import add_timing_options, timing_of
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import FormatError
from nvdla.util.escaping import Document
from nvdla.util.files import read_file, write_file

HELP = """Write a datasheet of a configuration as one HTML page: features, proof, area, power, FPGA boards.

Each network adds frames per second, traffic, CBUF use, relative energy, accuracy and sensitivity to faults.

  nvdla datasheet my.yaml -o page.html
  nvdla datasheet nv_small net.loadable --data digits.npz --faults faults.json -o page.html
  nvdla datasheet my.yaml net.onnx --others nv_small,nv_large --table points.csv -o page.html

A model (.onnx, .tflite, .prototxt) is compiled for the configuration and for --others, and the page plots them with
their Pareto front over area, power, energy, bandwidth or accuracy. Exit code 1 if a network cannot run or deadlocks."""

MAX_FAULTS = 1 << 26


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("configuration", help="configuration: a name or a .yaml file")
    parser.add_argument("network", nargs="*", help="models (.onnx, .tflite, .prototxt) or loadables")
    parser.add_argument(
        "--output", "-o", required=True, type=output_file(".html"), metavar="PAGE.html", help="HTML page to write"
    )
    parser.add_argument("--others", metavar="A,B", help="configurations to compare models on: names or .yaml files")
    parser.add_argument("--precision", default="int8", choices=("int8", "int16", "fp16"), help="precision of models")
    add_calibrate_option(parser)
    parser.add_argument("--data", metavar="DATA", help="labeled data for accuracy (formats: see nvdla evaluate)")
    add_label_options(parser)
    add_limit_option(parser)
    parser.add_argument(
        "--faults", action="append", default=[], metavar="FILE.json", help="add results of 'nvdla faults' (repeatable)"
    )
    add_coefficients_option(parser)
    parser.add_argument(
        "--table",
        type=output_file(".csv"),
        metavar="FILE.csv",
        help="also write the table as CSV (one row per fault or point)",
    )
    add_timing_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when a network is impossible or a run of it never ends."""
    from nvdla.analysis.cycles.document import conditions
    from nvdla.analysis.silicon import fpga_verdicts, silicon
    from nvdla.experiments.datasheet import datasheet
    from nvdla.experiments.exploration import points_csv

    config = configuration(args.configuration)
    memory, software, clock, board = timing_of(args)
    faults = [_faults(path) for path in args.faults]
    others = [configuration(name) for name in args.others.split(",")] if args.others else []
    points = [point for network in args.network for point in _points(network, args)]
    said = conditions(memory, software, clock, board, states_clock=True)
    table = points_csv([point for point in points if "error" not in point])
    data = datasheet(config, points, faults, table, said).encode()
    write_file(args.output, data)
    if args.table:
        write_file(args.table, table.encode())
    document = {"configuration": config.name, "output": args.output, "bytes": len(data), "networks": points}
    document |= {"silicon": silicon(config), "fpga": fpga_verdicts(config)}
    tell_proof(args, config, *others)
    if not print_document(document, args):
        print_written(args.output, len(data), args)
        for point in points:
            if "error" in point:
                say(f"{point['network']} on {point['config']}: impossible: {point['error']}")
    return 1 if any("error" in point or point["deadlock"] for point in points) else 0


def _points(network: str, args: argparse.Namespace) -> list[Document]:
    """The records of a network on the configuration and on the others, with its name."""
    from nvdla.experiments.exploration import MODELS, Exploration, Point

    memory, software, clock, _ = timing_of(args)
    others = args.others.split(",") if args.others and network.endswith(MODELS) else []  # a loadable keeps its own
    names = [args.configuration, *others]
    points = [
        Point(name, args.precision, memory.bytes_per_cycle, memory.latency, memory.shared)
        for name in dict.fromkeys(names)
    ]
    source = source_of(args) if args.data else None
    path = os.path.realpath(network)
    table = Exploration(
        path,
        points,
        args.calibrate,
        source=source,
        limit=args.limit,
        clock=clock,
        software=software,
        coefficients=args.coefficients,
    )
    records = table.open()(list(table.tasks()))
    return [
        {"network": Path(network).name, **{key: record[key] for key in record if key != "key"}} for record in records
    ]


def _faults(path: str) -> Document:
    """A document of ``nvdla faults``. Raises FormatError for any other file."""
    try:
        document = json.loads(read_file(path, MAX_FAULTS, "results of nvdla faults"))
        kind = document["format"] if isinstance(document, dict) else type(document).__name__
    except (ValueError, KeyError) as error:
        raise FormatError(f"{path}: must be the JSON of 'nvdla faults', got {type(error).__name__}: {error}") from None
    if kind != "nvdla-faults":
        raise FormatError(f"{path}: format: must be nvdla-faults, got {kind}")
    return dict(document)
