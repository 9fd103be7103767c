"""Command ``nvdla compile``, with its search for a faster loadable."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvdla.cli.arguments import (
    add_config_option,
    add_cvsram_size_option,
    add_image_options,
    add_trusted_option,
    model_preprocessing,
)
from nvdla.cli.campaigns import add_calibrate_option, add_root_option
from nvdla.cli.output import (
    StandardOutput,
    add_format_options,
    output_file,
    print_document,
    print_pairs,
    print_table,
    real,
    say,
    tell_proof,
)
from nvdla.cli.study import add_clock_option, add_memory_options
from nvdla.emulator.hardware.configuration import configuration, configurations
from nvdla.errors import FormatError, counted
from nvdla.tensors.real import has_labels
from nvdla.util.escaping import Document
from nvdla.util.precision import Precision
from nvdla.util.rounding import integer

if TYPE_CHECKING:
    from nvdla.analysis.cycles.constants import Memory
    from nvdla.compiler.builder import SearchLimits
    from nvdla.compiler.frontend.compiler import Compiled

DRAW_SECONDS = 0.1


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """``--time-limit``, ``--search-steps``, ``--workers``; ``--latency``, ``--bandwidth``, ``--shared``,
    ``--clock``."""
    group = parser.add_argument_group("the search of -O 2 (the same loadable with any number of processes)")
    group.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="stop searching after this time (default: no limit)"
    )
    group.add_argument(
        "--search-steps", type=int, metavar="N", help="stop searching after this number of steps (default: no limit)"
    )
    group.add_argument("--workers", type=int, metavar="N", help="number of local processes (default: 1)")
    memory = parser.add_argument_group("memory and clock for the cycle model, as in 'nvdla cycles'")
    add_memory_options(memory)
    add_clock_option(memory)
    add_cvsram_size_option(memory)


def memory_of(args: argparse.Namespace) -> Memory:
    """The memory that the arguments name. Raises ConfigError."""
    from nvdla.analysis.cycles.constants import DEFAULT_LATENCY, Memory

    return Memory(DEFAULT_LATENCY if args.latency is None else args.latency, args.bandwidth, args.shared)


def search_of(args: argparse.Namespace, progress: Callable[[int, int, int], None] | None) -> SearchLimits | None:
    """The search that the arguments ask for; None below level 2. Raises FormatError for options of a search where there
    is none, BuildError for limits that are none."""

    from nvdla.compiler.builder import SearchLimits

    given = {"--time-limit": args.time_limit, "--search-steps": args.search_steps, "--workers": args.workers}
    if args.level < 2:
        named = [name for name, value in given.items() if value is not None]
        if named:
            raise FormatError(f"{named[0]} belongs to the search of level 2. Add -O 2.")
        return None
    return SearchLimits(args.time_limit, args.search_steps, 1 if args.workers is None else args.workers, progress)


class ProgressBar:
    """A bar on a terminal: the stage, samples of the calibration and steps of a search; silence elsewhere.

    No thread draws it: a search's processes begin as copies of this one (:mod:`nvdla.util.processes`).
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._bar: Any = None
        self._drawn = 0.0
        self.calibrating: Callable[[int, int], None] | None = None
        self.searching: Callable[[int, int, int], None] | None = None
        self.entering: Callable[[str], None] | None = None
        if sys.stderr.isatty() and not args.quiet and not args.json:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=False)
            self.entering = self._enter
            self.calibrating = lambda done, total: self._show("calibrating", done, total)
            self.searching = lambda done, total, cycles: self._show(f"searching, {cycles:,} cycles", done, total)

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("reading", total=None)
            self._bar.refresh()
        return self

    def _enter(self, stage: str) -> None:
        self._bar.reset(self._task, description=stage, total=None)
        self._bar.refresh()

    def _show(self, phase: str, done: int, total: int | None) -> None:
        self._bar.update(self._task, description=phase, completed=done, total=total)
        if time.monotonic() - self._drawn > DRAW_SECONDS or done == total:
            self._bar.refresh()
            self._drawn = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


HELP = """Compile an ONNX, TFLite, PyTorch or Caffe model for one hardware configuration (docs/compile.md).

The output is a loadable if the whole model runs on the accelerator and the name does not end in .nvpkg. Otherwise it is
a package (a zip file) with host parts, which onnxruntime runs. Most commands take both. --check prints the placement of
every node and writes nothing; --nodes prints it before the summary."""

CONFIG = "nv_small"
OUTPUT_COLUMNS = ("tensor", "kind", "channels", "range", "units", "snr", "weak")
ACCURACY_COLUMNS = ("layer", "precision", "alone", "chain", "saturated", "advice")
NODE_COLUMNS = ("name", "op", "placement", "operations", "reason", "advice")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("model", help="model file: .onnx, .tflite, .pt2 (with --trusted), or .prototxt with --weights")
    add_config_option(parser, None, CONFIG)
    parser.add_argument(
        "--precision",
        type=_precision,
        default="int8",
        metavar="int8/int16/fp16/auto/LAYER=int16,...",
        help="number format on the accelerator (default: int8), or int16 layers of an int8 network",
    )
    parser.add_argument("--weights", metavar="FILE", help=".caffemodel with the weights of a .prototxt")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=N,C,H,W", help="shape of an input with dynamic dimensions"
    )
    parser.add_argument("--check", action="store_true", help="print the placement of every node and write nothing")
    parser.add_argument("--nodes", action="store_true", help="also print the placement of every node")
    parser.add_argument("--no-host", action="store_true", help="fail if a node cannot run on the accelerator")
    parser.add_argument(
        "--output",
        "-o",
        type=output_file(".loadable"),
        metavar="FILE",
        help="file to write; the ending .nvpkg always makes a package",
    )
    parser.add_argument("-O", dest="level", type=int, choices=(0, 1, 2), default=1, help=_LEVEL)
    parser.add_argument("--weights-effort", dest="effort", type=int, choices=(0, 1, 2), default=1, help=_EFFORT)
    parser.add_argument("--input-format", default="auto", metavar="auto/image/pixels/feature/FORMAT", help=_INPUT)
    drop = "largest accuracy loss accepted by --precision auto: 0.005 or 0.5%% (default)"
    parser.add_argument("--max-drop", type=_share, default=0.005, metavar="SHARE", help=drop)
    parser.add_argument(
        "--export-qdq",
        type=output_file(".onnx"),
        metavar="FILE",
        help="also write the quantized network, for one image, as ONNX (QDQ); not for models with host nodes",
    )
    add_trusted_option(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="hide progress")
    add_format_options(parser)
    data = parser.add_argument_group("calibration (int8, int16)")
    add_calibrate_option(data)
    data.add_argument(
        "--method",
        choices=("max", "percentile", "entropy", "mse"),
        default="mse",
        help="calibration method (default: mse)",
    )
    add_root_option(data)
    data.add_argument("--per-layer", action="store_true", help="one weight scale per layer instead of one per kernel")
    add_search_options(parser)
    add_image_options(parser)
    parser.add_argument(
        "--layout",
        choices=("auto", "nchw", "nhwc"),
        default="auto",
        help="layout of the input (default: auto)",
    )
    digit = "pictures are handwritten digits: turn each into a light digit on black, centered, as MNIST has them"
    parser.add_argument("--digit", action="store_true", help=digit)


_LEVEL = (
    "optimization level: 0 none; 1 fuse additions, image input if possible, row splits if the cycle model predicts a "
    "gain (default); 2 search further"
)
_INPUT = (
    "image input: auto (where possible, default), image (always), feature (never), pixels (unsigned; the CDMA "
    "subtracts the mean and scales), or a pixel format: R8G8B8A8, R10, Y8_U8V8_N444 ..."
)
_EFFORT = "weight preparation: 0 none; 1 equalization and bias correction (default); 2 also adaptive rounding"


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if not args.trusted:
        from nvdla.compiler.frontend import isolation

        isolation.start()  # loads its packages while this process loads its own
    from nvdla.compiler.frontend import compiler
    from nvdla.compiler.frontend.compiler import check
    from nvdla.compiler.frontend.loading import require_model
    from nvdla.tensors.datasets import open_source

    shapes = dict(_shape(word) for word in args.shape)
    config = args.config or CONFIG
    if args.check:
        settings = args.precision, args.weights, shapes, not args.no_host, args.trusted, args.calibrate is not None
        document = check(args.model, config, *settings)
        tell_proof(args, configuration(config))
        if not print_document(document, args):
            _print_nodes(document)
            _print_totals(document)
        return 0
    require_model(args.model, ("pt2",))
    configuration(config)
    if not args.output:
        raise FormatError("no output file: give -o FILE for the loadable, or --check to see the placement only")
    options = _options(args)  # before anything is read
    with ProgressBar(args) as bar:
        compiled = compiler.compile(
            args.model,
            config,
            args.precision,
            open_source(args.calibrate, root=args.root) if args.calibrate and args.root else args.calibrate,
            weights=args.weights,
            shapes=shapes,
            preprocessing=model_preprocessing(args),
            host=not args.no_host,
            progress=bar.calibrating,
            on_stage=bar.entering,
            max_drop=args.max_drop,
            trusted=args.trusted,
            search=search_of(args, bar.searching),
            **options,
        )
    compiled.save(args.output)
    if args.export_qdq:
        compiled.export_qdq(args.export_qdq)
    is_loadable = compiled.whole and Path(args.output).suffix != ".nvpkg"
    document = compiled.report | {"output": args.output, "kind": "loadable" if is_loadable else "package"}
    document["summary"] = {**compiled.summary, "config_assumed": args.config is None, "files": _files(args, compiled)}
    tell_proof(args, configuration(config))
    if not print_document(document, args):
        _print_report(document, args, compiled.imported.model.inputs)
    return 0


def _files(args: argparse.Namespace, compiled: Compiled) -> list[Document]:
    """The written files with their sizes in bytes."""
    alone = not compiled.whole or Path(args.output).suffix == ".nvpkg" or isinstance(args.output, StandardOutput)
    names = [args.output, *([] if alone else [f"{args.output}.layers.json"])]
    names += [args.export_qdq] if args.export_qdq else []
    return [{"file": name, "bytes": Path(name).stat().st_size} for name in names]


def _precision(text: str) -> str | dict[str, str]:
    if text in (Precision.INT8, Precision.INT16, Precision.FP16, "auto"):
        return text
    pairs = [word.rpartition("=") for word in text.split(",")]
    if not all(name and kind == Precision.INT16 for name, _, kind in pairs):
        raise argparse.ArgumentTypeError(f"must be int8, int16, fp16, auto or LAYER=int16, got {text}")
    return {name: kind for name, _, kind in pairs}


def _share(text: str) -> float:
    number, percent = text.removesuffix("%"), text.endswith("%")
    return real(0, 100)(number) / 100 if percent else real(0, 1)(number)


def _shape(word: str) -> tuple[str, list[int]]:
    name, sign, sizes = word.rpartition("=")
    try:
        shape = [integer(size) for size in sizes.split(",")]
    except ValueError:
        shape = []
    if not sign or not name or not shape or min(shape) < 1:
        raise FormatError(f"--shape {word}: give NAME=N,C,H,W with positive whole numbers")
    return name, shape


def _options(args: argparse.Namespace) -> Document:
    """The level, the effort and the choices of calibration as settings of recipe and builder."""
    options: Document = {"method": args.method, "per_channel": not args.per_layer}
    options |= {
        "level": args.level,
        "input_format": args.input_format,
        "memory": memory_of(args),
        "cvsram": args.cvsram_size,
    }
    options |= {} if args.clock is None else {"clock": args.clock}
    options |= {"equalize": args.effort > 0, "bias_correction": args.effort > 0, "adaptive_rounding": args.effort > 1}
    return options


def _print_nodes(document: Document) -> None:
    title = f"{document['model']} on {document['config']}, {document['precision']}"
    print_table(title, document["nodes"], NODE_COLUMNS, ("operations",))


def _print_totals(document: Document) -> None:
    from nvdla.compiler.frontend.summary import NodeRow, host_reasons, host_text, transfers_text

    share = document["accelerator_macs_share"]
    reasons = host_reasons([NodeRow(**row) for row in document["nodes"]], document["macs"])
    totals = {
        "nodes on the accelerator": document["accelerator_nodes"],
        "CPU tasks of NVIDIA's runtime": document["cpu_nodes"] or None,
        "nodes on the host": document["host_nodes"],
        "host": host_text(reasons) if reasons else None,
        "transfers": transfers_text(document["transfers"], document["bytes_crossing"]) if document["cuts"] else None,
        "multiplications on the accelerator": None if share is None else f"{share:.1%}",
    }
    print_pairs("totals", {name: value for name, value in totals.items() if value is not None})


def _print_report(document: Document, args: argparse.Namespace, inputs: Sequence[str]) -> None:
    """One screen: the summary, the noisiest layers, files and next commands; with ``--nodes`` all nodes first."""
    from nvdla.compiler.frontend.summary import size_text, summary_lines

    if args.nodes:
        _print_nodes(document)
    summary = document["summary"]
    lines = summary_lines(summary)
    if summary["config_assumed"]:
        lines["configuration"] += " (configuration assumed; choose another one with --config)"
    lines["files"] = ", ".join(f"{file['file']} ({size_text(file['bytes'])})" for file in summary["files"])
    print_pairs(f"{document['output']}: a {document['kind']}", lines)
    _print_accuracy(document, summary["worst_layers"])
    for note in document.get("notes", ()):
        say(f"note: {note}")
    if isinstance(args.output, StandardOutput):
        lost = "" if document["kind"] == "package" else ", without the layer file (names and scales)"
        say(f"note: standard output contains the {document['kind']}{lost}")
        return
    for line in _next_commands(document, args, inputs):
        say(line)


def _next_commands(document: Document, args: argparse.Namespace, inputs: Sequence[str]) -> list[str]:
    """Recommended commands, with the names of the written files and of a custom configuration."""
    output, model = shlex.quote(args.output), shlex.quote(args.model)
    option = f"--{Path(args.model).suffix[1:]}"
    names = f" --class-names {model}" if option == "--tflite" and has_labels(args.model) else ""
    timed = " --host-time measured" if document["host_nodes"] else ""
    files = "".join(f" --input {shlex.quote(name)}=FILE" for name in inputs) if len(inputs) > 1 else " --input FILE"
    commands = [f"nvdla run {output}{files}{names}"]
    if not document["summary"]["accelerator_parts"]:
        return ["note: no part runs on the accelerator; --nodes lists the reasons", "Next:", f"  {commands[0]}"]
    conditions = {name: getattr(args, name) for name in ("latency", "bandwidth", "clock")}
    timed += "".join(f" --{name} {value:g}" for name, value in conditions.items() if value is not None)
    commands += [f"nvdla cycles {output}{timed}{' --shared' * args.shared}"]
    against = f"--caffe {model} {shlex.quote(args.weights)}" if args.weights else f"{option} {model}"
    known = args.weights or option in ("--onnx", "--tflite")
    commands += [f"nvdla compare {output} {against}{files}"] if known else []
    custom = bool(args.config) and args.config not in configurations()
    config = f" --config {shlex.quote(args.config)}" if custom else ""
    return ["Next:", *(f"  {command}{config}" for command in commands)]


def _print_accuracy(document: Document, worst: list[Document]) -> None:
    """The noisiest layers, and the choice of mixed precision."""
    if worst:
        shown = [
            {
                **row,
                "alone": f"{row['alone']:.1f} dB",
                "chain": f"{row['chain']:.1f} dB",
                "saturated": f"{row['saturated']:.2%}",
            }
            for row in worst
        ]
        print_table(counted(len(shown), "noisiest layer"), shown, ACCURACY_COLUMNS)
    groups = [(row, group) for row in document.get("accuracy", ()) for group in row["channels"]]
    if len(groups) > 1:
        transfers = document["summary"]["transfer_snr"]
        print_table(
            f"channels of outputs{' and transfers to the host' if transfers else ''}, by range",
            [_output_row(*group, "transfer" if group[0]["tensor"] in transfers else "output") for group in groups],
            OUTPUT_COLUMNS if transfers else [name for name in OUTPUT_COLUMNS if name != "kind"],
        )
    mixed = document.get("mixed")
    if mixed:
        judged = f"on {mixed['samples']:,} of {mixed['all_samples']:,} calibration samples"
        drops = f"int8 loses {mixed['int8_drop']:.3%}, this {mixed['drop']:.3%}, {judged}"
        along = [layer for layer in document["summary"]["int16_layers"] if layer not in mixed["int16"]]
        rest = f", and with them {', '.join(along)}" if along else ""
        say(f"int16: {', '.join(mixed['int16']) or 'no layer'}{rest} ({drops})")
        print()


def _output_row(row: Document, group: Document, kind: str) -> Document:
    return {
        "tensor": row["tensor"],
        "kind": kind,
        "channels": group["channels"],
        "range": f"{group['range']:.3g}",
        "units": None if group["units"] is None else f"{group['units']:.1f}",
        "snr": None if group["snr"] is None else f"{group['snr']:.1f} dB",
        "weak": group["weak"],
    }
