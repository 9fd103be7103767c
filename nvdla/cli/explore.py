"""``nvdla explore``: one network over configurations and memories."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nvdla.cli.arguments import (
    add_coefficients_option,
    add_image_options,
    add_limit_option,
    add_strict_option,
    model_preprocessing,
    preprocessing_of,
    tell_warnings,
)
from nvdla.cli.campaigns import (
    add_calibrate_option,
    add_campaign_options,
    add_label_options,
    add_result_options,
    journal_of,
    run_with_progress,
    source_of,
    tell_class_order,
)
from nvdla.cli.configs import SILICON, add_silicon_options
from nvdla.cli.output import print_document, print_table, say, tell_proof, with_settings
from nvdla.cli.study import add_timing_options, timing_of
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import ConfigError, DescriptorError, FormatError
from nvdla.loadable import Loadable
from nvdla.program import Program
from nvdla.util.escaping import Document, json_text
from nvdla.util.files import write_file
from nvdla.util.rounding import is_digits, real

HELP = """Compare hardware configurations and memories for one network: cycles, frames per second, traffic, accuracy.

  nvdla explore net.onnx --calibrate images/ --config nv_small,nv_large,my.yaml --bandwidth 1,4,full
  nvdla explore net.loadable --bandwidth 1,2,4,full --latency 50,100,200
  nvdla explore net.loadable --instances 1,2,4 --split batch,pipeline

A model is compiled for every configuration. A loadable or a package keeps its own configuration."""

_IMAGES_HINT = "Its layer file has the conversion of images."
PRECISIONS = ("int8", "int16", "fp16")
COLUMNS = (
    "config",
    "precision",
    "bandwidth",
    "latency",
    "cycles",
    "frames/s",
    "note",
    "MAC_use",
    "buffer_use",
    "read",
    "written",
    "top-1",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("network", help="model (.onnx, .tflite, .prototxt), loadable or package")
    parser.add_argument(
        "--config",
        default="auto",
        metavar="A,B",
        help="configurations: names or .yaml files; a model needs them (default: detected from the loadable)",
    )
    parser.add_argument("--precision", metavar="A,B", help="precisions of a model (default: int8)")
    add_calibrate_option(parser)
    parser.add_argument("--weights", metavar="FILE", help=".caffemodel with the weights of a .prototxt")
    parser.add_argument(
        "--instances",
        default="1",
        metavar="A,B",
        help="numbers of NVDLA instances that share the memory, 1 to 64: an estimate (default: 1)",
    )
    parser.add_argument(
        "--split",
        default="batch",
        metavar="A,B",
        help="work of several instances: batch (whole network each), pipeline (layers each) (default: batch)",
    )
    add_timing_options(parser, _add_memory_options)
    parser.add_argument("--data", metavar="DATA", help="labeled data for accuracy (formats: see nvdla evaluate)")
    add_label_options(parser)
    add_limit_option(parser)
    add_silicon_options(parser)
    add_result_options(parser)
    add_coefficients_option(parser)
    add_strict_option(parser)
    add_image_options(parser)
    add_campaign_options(parser)


def _add_memory_options(group: argparse._ArgumentGroup) -> None:
    """``--latency`` and ``--bandwidth`` with several values, ``--shared``."""
    group.add_argument("--latency", metavar="A,B", help="memory latencies in cycles (default: 100)")
    group.add_argument(
        "--bandwidth",
        metavar="A,B",
        help="bandwidths in bytes per cycle of NVDLA; full is the bus width (default: full)",
    )
    group.add_argument("--shared", action="store_true", help="share the bandwidth between reads and writes")


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when a point is impossible or a run of it never ends."""
    from nvdla.analysis.cycles.document import conditions
    from nvdla.experiments.campaign.journal import read
    from nvdla.experiments.exploration import Exploration, loadables_of

    _check(args)
    memory, software, clock, board = timing_of(argparse.Namespace(**vars(args) | {"latency": None, "bandwidth": None}))
    source = source_of(args) if args.data else None
    table = Exploration.over(
        os.path.realpath(args.network),
        args.config.split(","),
        _precisions(args),
        [memory.bytes_per_cycle] if args.bandwidth is None else _bandwidths(args.bandwidth),
        [memory.latency] if args.latency is None else _latencies(args.latency),
        memory.shared,
        _instances(args),
        calibration=args.calibrate,
        weights=args.weights,
        source=source,
        limit=args.limit,
        clock=clock,
        software=software,
        coefficients=args.coefficients,
        preprocessing=model_preprocessing(args),
    )
    if not table.compiles and preprocessing_of(args) is not None:
        raise FormatError(f"{args.network}: image options: must be given with a model, got a loadable. {_IMAGES_HINT}")
    if not table.compiles and args.precision is not None:
        raise FormatError(f"--precision {args.precision}: must be given with a model, got a loadable or package")
    if table.compiles and args.config == "auto":
        raise FormatError("--config: missing: a model needs configurations, for example --config nv_small,nv_large")
    names = args.config.split(",")
    if not table.compiles:
        loadables, own = loadables_of(args.network)  # what is wrong with it is stated here, once
        if table.source is not None:
            for loadable in loadables:
                _tell_warnings(args, loadable, own)
    chosen = [Program.of(loadables[0], own).config if name == "auto" else configuration(name) for name in names]
    with journal_of(table, args) as journal:
        run_with_progress(table, journal, args, len(table.points))
        records = [{name: record[name] for name in record if name != "key"} for record in read(journal.path)]
    document = {"format": "nvdla-exploration", "version": 1, "network": args.network, "points": records}
    tell_proof(args, *chosen)
    _tell(document, args, conditions(None, software, clock, board, None, states_clock=True))
    if source is not None:
        tell_class_order(source, args)
    return 1 if any("error" in record or record["deadlock"] for record in records) else 0


def _tell_warnings(args: argparse.Namespace, loadable: Loadable, own: str) -> None:
    """Print warnings of the accuracy runs. A configuration that refuses the file is a row of the table."""
    from nvdla.emulator.execution.dry_run import silent_warnings

    for config in args.config.split(","):
        with contextlib.suppress(ConfigError, DescriptorError):
            program = Program.of(loadable, own if config == "auto" else config)
            tell_warnings(args.network, silent_warnings(loadable, program.abi, program.config, args.strict))


def _check(args: argparse.Namespace) -> None:
    """Raise NvdlaError for arguments with which every point fails."""
    if args.limit is not None and args.limit < 1:
        raise FormatError(f"--limit {args.limit}: must be at least 1")
    for name in args.config.split(","):
        if name != "auto":
            configuration(name)
    for precision in _precisions(args):
        if precision not in PRECISIONS:
            raise FormatError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")


def _precisions(args: argparse.Namespace) -> list[str]:
    return ["int8"] if args.precision is None else args.precision.split(",")


def _instances(args: argparse.Namespace) -> list[tuple[int, str]]:
    """Numbers of instances with their splits; one instance has nothing to split."""
    from nvdla.analysis.instances import MAX_INSTANCES, SPLITS

    counts, splits = args.instances.split(","), args.split.split(",")
    for word in counts:
        if not is_digits(word) or not 1 <= int(word) <= MAX_INSTANCES:
            raise FormatError(f"--instances {word}: must be a whole number from 1 to {MAX_INSTANCES}")
    for word in splits:
        if word not in SPLITS:
            raise FormatError(f"--split {word}: must be one of {', '.join(SPLITS)}")
    every = [(int(count), split) for count in counts for split in (splits if int(count) > 1 else splits[:1])]
    return list(dict.fromkeys(every))


def _bandwidths(words: str) -> list[float | None]:
    return [None if word == "full" else _positive(word, "--bandwidth") for word in words.split(",")]


def _latencies(words: str) -> list[int]:
    return [int(_positive(word, "--latency")) for word in words.split(",")]


def _positive(word: str, option: str) -> float:
    try:
        value = real(word)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise FormatError(f"{option} {word}: must be a number above 0")
    return value


def _tell(document: Document, args: argparse.Namespace, stated: str) -> None:
    """Print and write the results; ``stated``: clock and firmware."""
    from nvdla.experiments.exploration import remarks, silicon_of_all

    asked = [columns for name, columns in SILICON.items() if getattr(args, name)]
    names = {key: column for columns in asked for key, column in columns.items()}
    done = [point for point in document["points"] if "error" not in point]
    rows = [_row(point) | {name: silicon_of_all(point, key) for key, name in names.items()} for point in done]
    several = ("instances", "split") if any(point["instances"] > 1 for point in done) else ()
    columns = (*COLUMNS[:4], *several, *COLUMNS[4:], *names.values())
    if args.output:
        write_file(args.output, (json_text(with_settings(document, args), indent=1, sort_keys=True) + "\n").encode())
    if args.table:
        write_file(args.table, _csv(rows, columns).encode())
    if args.report:
        from nvdla.experiments.exploration import page

        write_file(args.report, page(document, Path(args.network).name, _csv(rows, columns), stated).encode())
    if print_document(document, args):
        return
    if rows:
        print_table(args.network, rows, columns, ("written", "read", "buffer_use", "MAC_use"))
        say(f"Note: {stated}.")
    if names and rows:
        _print_source([point["silicon"] for point in done])
    for line in remarks(document["points"]):
        say(line, sys.stderr)
    for point in document["points"]:
        if "error" in point:
            say(f"{point['config']} {point['precision']}: impossible: {point['error']}", sys.stderr)


def _csv(rows: list[Document], columns: Sequence[str]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _print_source(estimates: list[Document]) -> None:
    """NVIDIA's table, the errors of the fit, and configurations that it does not cover."""
    from nvdla.analysis.silicon import facts, silicon_notes

    print_table("NVIDIA's table (ResNet-50, 1 GHz, int8)", facts()["table"]["rows"])
    refused = [
        f"{estimate['configuration']}: no area and power: {estimate['refused']}"
        for estimate in estimates
        if estimate["refused"]
    ]
    for line in [*silicon_notes(), *dict.fromkeys(refused)]:
        say(line, sys.stderr)


def _row(point: Document) -> Document:
    from nvdla.experiments.exploration import notes

    accuracy = point.get("accuracy")
    return {
        "config": point["config"],
        "precision": point["precision"],
        "bandwidth": "full" if point["bandwidth"] is None else f"{point['bandwidth']:g}",
        "latency": point["latency"],
        "instances": point["instances"],
        "split": point["split"] if point["instances"] > 1 else None,
        "cycles": point["cycles"],
        "frames/s": round(point["frames_per_second"], 1) if point["frames_per_second"] else None,
        "note": ", ".join(notes(point)),
        "MAC_use": f"{point['mac_use']:.1%}" if point["mac_use"] is not None else None,
        "buffer_use": f"{point['buffer_use']:.1%}" if point["buffer_use"] is not None else None,
        "read": point["read_bytes"],
        "written": point["written_bytes"],
        "top-1": f"{accuracy['value']:.2%}" if accuracy and accuracy["value"] is not None else None,
    }
