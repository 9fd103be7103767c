"""``nvdla explore``: one network over configurations and memories."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from nvdla.cli.arguments import add_strict_option, tell_warnings
from nvdla.cli.campaigns import add_campaign_options, journal_of, run_with_progress
from nvdla.cli.output import print_document, print_table, say
from nvdla.errors import ConfigError, DescriptorError, FormatError
from nvdla.files import write_file
from nvdla.hardware.configuration import configuration
from nvdla.loadable import Loadable, load
from nvdla.program import Program

COMMAND = "explore"
HELP = """The design space: cycles, frames a second, traffic, accuracy of one network over configurations and memories.

  nvdla explore net.onnx --calibrate images/ --config nv_small,nv_large,my.yaml --bandwidth 1,4,full
  nvdla explore net.loadable --bandwidth 1,2,4,full --latency 50,100,200

A model is compiled for every configuration; a loadable stays on its own."""

PRECISIONS = ("int8", "int16", "fp16")
COLUMNS = (
    "config", "precision", "bandwidth", "latency", "cycles", "frames/s", "MAC_use", "buffer_use", "read", "written",
    "top-1",
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("network", help="a model (.onnx, .prototxt) or a loadable")
    parser.add_argument(
        "--config",
        default="auto",
        metavar="A,B",
        help="configurations: names, .yaml files (default: decided from the file)",
    )
    parser.add_argument("--precision", default="int8", metavar="A,B", help="precisions, for models (default: int8)")
    parser.add_argument("--calibrate", metavar="DATA", help="calibration data, for models in int8 and int16")
    parser.add_argument("--weights", metavar="FILE", help="weights of a .prototxt")
    parser.add_argument(
        "--bandwidth",
        default="full",
        metavar="A,B",
        help="bytes a cycle, or full, the width of the bus (default: full)",
    )
    parser.add_argument("--latency", default="100", metavar="A,B", help="memory latency in cycles (default: 100)")
    parser.add_argument("--shared", action="store_true", help="reads and writes share the bandwidth")
    parser.add_argument("--clock", type=float, default=1000.0, metavar="MHZ", help="clock (default: 1000 MHz)")
    parser.add_argument("--data", metavar="DATA", help="labelled data, for accuracy (nvdla evaluate has the forms)")
    parser.add_argument("--limit", type=int, metavar="N", help="samples for accuracy")
    parser.add_argument("--table", metavar="FILE.csv", help="the table as CSV")
    parser.add_argument("--report", metavar="PAGE.html", help="a page with a plot of the best points")
    add_strict_option(parser)
    add_campaign_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when points could not be had."""
    from nvdla.campaign.journal import read
    from nvdla.evaluation import open_source
    from nvdla.exploration import Exploration

    _check(args)
    table = Exploration.over(
        os.path.realpath(args.network),
        args.config.split(","),
        args.precision.split(","),
        [None if word == "full" else _positive(word, "--bandwidth") for word in args.bandwidth.split(",")],
        [int(_positive(word, "--latency")) for word in args.latency.split(",")],
        args.shared,
        calibration=args.calibrate,
        weights=args.weights,
        source=open_source(args.data) if args.data else None,
        limit=args.limit,
        clock=args.clock,
    )
    if table.compiles and args.config == "auto":
        raise FormatError("a model has no configuration of its own: name some with --config A,B")
    if not table.compiles:
        loadable = load(args.network)  # what is wrong with it is said here, once
        if table.source is not None:
            _tell_warnings(args, loadable)
    with journal_of(table, args) as journal:
        run_with_progress(table, journal, args, len(table.points))
        records = [{name: each[name] for name in each if name != "key"} for each in read(journal.path)]
    document = {"format": "nvdla-exploration", "version": 1, "network": args.network, "points": records}
    _tell(document, args)
    return 1 if any("error" in each for each in records) else 0


def _tell_warnings(args: argparse.Namespace, loadable: Loadable) -> None:
    """What the runs for accuracy do in silence. A configuration that refuses the file is a row of the table."""
    from nvdla.lint.dry_run import in_silence

    for config in args.config.split(","):
        with contextlib.suppress(ConfigError, DescriptorError):
            program = Program.of(loadable, config)
            tell_warnings(args.network, in_silence(loadable, program.abi, program.config, args.strict))


def _check(args: argparse.Namespace) -> None:
    """What no point could be had with is bad usage. Raises NvdlaError."""
    if args.limit is not None and args.limit < 1:
        raise FormatError(f"--limit {args.limit}: must be at least 1")
    if not 1e-6 <= args.clock <= 1e6:
        raise FormatError(f"--clock {args.clock} MHz: must be 0.000001 .. 1000000")
    for name in args.config.split(","):
        if name != "auto":
            configuration(name)
    for precision in args.precision.split(","):
        if precision not in PRECISIONS:
            raise FormatError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")


def _positive(word: str, option: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise FormatError(f"{option} {word}: must be a number above 0")
    return value


def _tell(document: dict[str, Any], args: argparse.Namespace) -> None:
    rows = [_row(each) for each in document["points"] if "error" not in each]
    if args.output:
        write_file(args.output, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
    if args.table:
        stream = io.StringIO()
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_file(args.table, stream.getvalue().encode())
    if args.report:
        from nvdla.exploration.page import page

        write_file(args.report, page(document, Path(args.network).name).encode())
    if print_document(document, args):
        return
    print_table(args.network, rows, COLUMNS)
    for each in document["points"]:
        if "error" in each:
            say(f"{each['config']} {each['precision']}: {each['error']}")


def _row(point: dict[str, Any]) -> dict[str, Any]:
    accuracy = point.get("accuracy")
    return {
        "config": point["config"],
        "precision": point["precision"],
        "bandwidth": "full" if point["bandwidth"] is None else f"{point['bandwidth']:g}",
        "latency": point["latency"],
        "cycles": point["cycles"],
        "frames/s": round(point["frames_per_second"], 1) if point["frames_per_second"] else None,
        "MAC_use": f"{point['mac_use']:.1%}" if point["mac_use"] is not None else None,
        "buffer_use": f"{point['buffer_use']:.1%}" if point["buffer_use"] is not None else None,
        "read": point["read_bytes"],
        "written": point["written_bytes"],
        "top-1": f"{accuracy['value']:.2%}" if accuracy and accuracy["value"] is not None else None,
    }
