"""``nvdla compile``: a model for one configuration, or what compiling it would do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nvdla.cli.numbers import real, reals
from nvdla.cli.output import add_format_options, plain, print_document, print_pairs, print_table, say, sized
from nvdla.cli.searching import ProgressBar, add_search_options, memory_of, search_of
from nvdla.errors import FormatError

HELP = """Compile an ONNX or Caffe model for one hardware configuration (docs/compile.md).

One loadable where all of the model runs on the accelerator, else a package (a zip file, .nvpkg) whose other parts
onnxruntime runs on the host; 'nvdla run' takes both. --check prints every node and writes nothing."""

WORST = 5
ACCURACY_COLUMNS = ("layer", "precision", "alone", "chain", "saturated", "advice")
NODE_COLUMNS = ("name", "op", "placement", "operations", "reason", "advice")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("model", help="the model: .onnx, or .prototxt with --weights")
    parser.add_argument("--config", default="nv_small", help="hardware configuration (default: nv_small)")
    parser.add_argument(
        "--precision",
        choices=("int8", "int16", "fp16", "auto"),
        default="int8",
        help="of the accelerator's numbers (default: int8)",
    )
    parser.add_argument("--weights", metavar="FILE", help="the .caffemodel of a .prototxt")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=N,C,H,W", help="fix an open input shape")
    parser.add_argument("--check", action="store_true", help="print what would happen, node by node; write nothing")
    parser.add_argument("--no-host", action="store_true", help="a node that the accelerator cannot do is an error")
    parser.add_argument("--output", "-o", metavar="FILE", help="the loadable or package to write")
    parser.add_argument("-O", dest="level", type=int, choices=(0, 1, 2), default=1, help=_LEVEL)
    parser.add_argument("--weights-effort", dest="effort", type=int, choices=(0, 1, 2), default=1, help=_EFFORT)
    parser.add_argument("--input-format", default="auto", metavar="auto/image/pixels/feature/FORMAT", help=_INPUT)
    drop = "what --precision auto may lose, 0.005 or 0.5%% (default)"
    parser.add_argument("--max-drop", type=_share, default=0.005, metavar="SHARE", help=drop)
    parser.add_argument("--export-qdq", metavar="FILE", help="write the quantised network as ONNX (QDQ), too")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress on the terminal")
    add_format_options(parser)
    data = parser.add_argument_group("calibration (int8, int16)")
    data.add_argument("--calibrate", metavar="DATA", help="folder of images, .npy, .npz, or another tool's table")
    data.add_argument(
        "--method",
        choices=("max", "percentile", "entropy", "mse"),
        default="mse",
        help="how scales are found (default: mse)",
    )
    data.add_argument("--per-layer", action="store_true", help="one weight scale a layer instead of one a kernel")
    add_search_options(parser)
    image = parser.add_argument_group("images (kept beside the loadable, so that 'nvdla run' needs none of these)")
    image.add_argument("--mean", type=reals, default=(0.0,), metavar="M[,M,M]", help="subtracted from pixels 0..255")
    image.add_argument("--scale", type=reals, default=(1.0,), metavar="S[,S,S]", help="then multiplied by this")
    image.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help="layout of the input (default: nchw)")
    image.add_argument("--colour", choices=("rgb", "bgr"), default="rgb", help="order of channels (default: rgb)")
    image.add_argument("--resize", action="store_true", help="scale images of another size to the input's")


_LEVEL = "code: 0 plain; 1 sums, images and bands as the cycle model finds fastest (default); 2 searches longer"
_INPUT = (
    "inputs as images where possible (auto, default), always, never, or as unsigned pixels (mean, scale by CDMA); in a "
    "pixel format by its name: R8G8B8A8, R10, Y8_U8V8_N444 ..."
)
_EFFORT = "0: weights as they are; 1: equalisation and bias correction (default); 2: adaptive rounding, too"


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.frontend import compiler
    from nvdla.frontend.compiler import check
    from nvdla.tensors.preprocessing import Preprocessing

    shapes = dict(_shape(word) for word in args.shape)
    if args.check:
        document = check(args.model, args.config, args.precision, args.weights, shapes, not args.no_host)
        if not print_document(document, args):
            _print_report(document)
        return 0
    if not args.output:
        raise FormatError("give -o FILE for the loadable, or --check to see what would happen")
    preprocessing = Preprocessing(args.mean, args.scale, args.colour, args.layout, args.resize)
    options = _options(args)  # before anything is read
    with ProgressBar(args) as bar:
        compiled = compiler.compile(
            args.model,
            args.config,
            args.precision,
            args.calibrate,
            weights=args.weights,
            shapes=shapes,
            preprocessing=preprocessing,
            host=not args.no_host,
            progress=bar.calibrating,
            max_drop=args.max_drop,
            search=search_of(args, bar.searching),
            **options,
        )
    compiled.save(args.output)
    if args.export_qdq:
        compiled.export_qdq(args.export_qdq)
    document = compiled.report | {"output": args.output, "kind": "loadable" if compiled.whole else "package"}
    if not print_document(document, args):
        _print_report(document)
        say(f"{args.output}: a {document['kind']}, {sized(Path(args.output).stat().st_size)}")
    return 0


def _share(text: str) -> float:
    number, percent = text.removesuffix("%"), text.endswith("%")
    return real(0, 100)(number) / 100 if percent else real(0, 1)(number)


def _shape(word: str) -> tuple[str, list[int]]:
    name, sign, sizes = word.rpartition("=")
    try:
        shape = [int(size) for size in sizes.split(",")]
    except ValueError:
        shape = []
    if not sign or not name or not shape or min(shape) < 1:
        raise FormatError(f"--shape {word}: give NAME=N,C,H,W with positive whole numbers")
    return name, shape


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The level, the effort and the choices of calibration as settings of recipe and builder."""
    options: dict[str, Any] = {"method": args.method, "per_channel": not args.per_layer}
    options |= {
        "level": args.level,
        "input_format": args.input_format,
        "memory": memory_of(args),
        "cvsram": args.cvsram_size,
    }
    options |= {"equalise": args.effort > 0, "bias_correction": args.effort > 0, "adaptive_rounding": args.effort > 1}
    return options


def _print_report(document: dict[str, Any]) -> None:
    rows = [{**row, "operations": ", ".join(row["operations"])} for row in plain(document)["nodes"]]
    print_table(f"{document['model']} on {document['config']}, {document['precision']}", rows, NODE_COLUMNS)
    share = document["accelerator_macs_share"]
    totals = {
        "nodes on the accelerator": document["accelerator_nodes"],
        "nodes on the host": document["host_nodes"],
        "cuts": document["cuts"],
        "bytes crossing": document["bytes_crossing"],
        "multiplications on the accelerator": None if share is None else f"{share:.1%}",
    }
    print_pairs("totals", {name: value for name, value in totals.items() if value is not None})
    for note in document.get("notes", ()):
        say(f"note: {note}")
    _print_accuracy(document)


def _print_accuracy(document: dict[str, Any]) -> None:
    """The worst layers by themselves, and what mixed precision chose."""
    rows = sorted(document.get("accuracy", ()), key=lambda row: row["alone"])[:WORST]
    if rows:
        shown = [
            {
                **row,
                "alone": f"{row['alone']:.1f} dB",
                "chain": f"{row['chain']:.1f} dB",
                "saturated": f"{row['saturated']:.2%}",
            }
            for row in rows
        ]
        print_table(f"worst {len(rows)} layers by themselves", shown, ACCURACY_COLUMNS)
    mixed = document.get("mixed")
    if mixed:
        drops = f"int8 loses {mixed['int8_drop']:.3%}, this {mixed['drop']:.3%}"
        say(f"int16: {', '.join(mixed['int16']) or 'no layer'} ({drops})")
