"""``nvdla compare``: is the result right, and from which operation on is it not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import nvdla
from nvdla.cli.arguments import (
    add_input_options,
    add_machine_options,
    add_strict_option,
    surfaces_of_runs,
    tell_warnings,
)
from nvdla.cli.numbers import real, whole
from nvdla.cli.output import add_format_options, print_document, print_table, say
from nvdla.cli.rows import Place, add_row_options, chosen
from nvdla.cli.working import working
from nvdla.compare.comparison import Comparison, DifferingRegion, Row, Tolerances, compare_run
from nvdla.errors import FormatError, counted
from nvdla.program.naming import Names, names_for
from nvdla.tensors.real import to_real

HELP = """Compare a run, operation by operation, with another run, another loadable, golden files or a float model.

  nvdla compare A.nvdla B.nvdla -i digit.pgm          two loadables of one network
  nvdla compare A.nvdla -i digit.pgm --golden DIR     dumps of 'nvdla run --dump-ops', .npy, .dimg, .ops.json
  nvdla compare A.nvdla -i digit.pgm --onnx M.onnx    a float model; layer names from the layer file or --layers
  nvdla compare A.nvdla -i digit.pgm --caffe N.prototxt N.caffemodel     a Caffe network
  nvdla compare A.nvdla -i digit.pgm --float T.npz    named float tensors
  nvdla compare A.nvdla -i a.pgm --other-input b.pgm    two inputs; --other-config, --other-threads likewise

Exit code 1 when a tensor differs: elements by more than --tolerance, real numbers by less than --min-cosine."""

FORMAT, VERSION = "nvdla-compare", 1


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    parser.add_argument("other", nargs="?", help="another loadable to run and compare with")
    add_input_options(parser)
    add_machine_options(parser)
    add_strict_option(parser)
    against = parser.add_argument_group("what to compare with")
    against.add_argument("--golden", metavar="PATH", help="a folder of golden files, or one")
    against.add_argument("--onnx", metavar="MODEL", help="a float model (needs nvdla[onnx])")
    against.add_argument(
        "--caffe", nargs="+", metavar="FILE", help="a .prototxt and its .caffemodel (needs nvdla[onnx])"
    )
    against.add_argument("--float", metavar="FILE.npz", help="float tensors by layer name")
    against.add_argument("--other-input", action="append", default=[], metavar="[NAME=]FILE", help="input of the other")
    against.add_argument("--other-config", metavar="NAME", help="configuration of the other run")
    against.add_argument("--other-abi", choices=("auto", "old", "new"), help="ABI of the other run")
    against.add_argument("--other-threads", type=whole(1), metavar="N", help="threads of the other run")
    names = parser.add_argument_group("names and scales")
    names.add_argument("--layers", metavar="FILE.yaml", help="layer names and scales (default: LOADABLE.layers.json)")
    names.add_argument("--scales", metavar="FILE.json", help="a calibration table: the scale of each layer")
    limits = parser.add_argument_group("what is let pass")
    limits.add_argument("--tolerance", type=real(0), default=0.0, metavar="X", help="largest difference of an element")
    limits.add_argument(
        "--min-cosine", type=real(-1, 1), default=0.95, metavar="X", help="float models (default: 0.95)"
    )
    limits.add_argument("--min-snr", type=real(), metavar="DB", help="float models: least signal-to-noise ratio")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first divergence")
    parser.add_argument("--different", action="store_true", help="list only tensors that differ")
    add_row_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    names = names_for(args.loadable, args.layers, args.scales)
    runtime = nvdla.Runtime(nvdla.load(args.loadable), args.config, args.abi, args.threads, strict=args.strict)
    runs = surfaces_of_runs(runtime, args)
    if len(runs) > 1:
        raise FormatError(f"{len(runs)} inputs were given; one run is compared at a time")
    reference = _reference(args, runtime, runs[0], names)
    limits = Tolerances(args.tolerance, args.min_cosine, args.min_snr)
    with working(f"comparing {args.loadable}"):
        found = compare_run(runtime, runs[0], reference, names.layers, limits, args.fail_fast)
    tell_warnings(args.loadable, runtime.warnings)
    other = getattr(reference, "runtime", None)
    if other is not None and args.other:
        tell_warnings(args.other, other.warnings)
    if not found.rows:
        raise FormatError(
            f"nothing could be compared: no tensor of {args.loadable} has a counterpart; name the layers with --layers"
        )
    if not print_document(document(args, runtime, reference, found), args):
        _print(args, reference, found)
    return 0 if found.passed else 1


def document(args: argparse.Namespace, runtime: Any, reference: Any, found: Comparison) -> dict[str, Any]:
    """The result as plain data (docs/compare.md)."""
    first = found.first
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadable": args.loadable,
        "configuration": runtime.config.name,
        "abi": runtime.abi,
        "against": {
            "kind": reference.kind,
            "name": _against(args),
            "aligned": getattr(reference, "aligned", None),
            "unused": getattr(reference, "unused", []),
        },
        "passed": found.passed,
        "compared": len(found.rows),
        "different": sum(not row.passed for row in found.rows),
        "skipped": found.skipped,
        "first": first.as_dict() if first else None,
        "region": found.region.as_dict() if found.region else None,
        "tensors": [row.as_dict() for row in _rows(args, found)],
    }


def _against(args: argparse.Namespace) -> str:
    return (
        args.golden
        or args.onnx
        or (_caffe_files(args.caffe)[0] if args.caffe else None)
        or args.float
        or args.other
        or args.loadable
    )


def _reference(args: argparse.Namespace, runtime: Any, surfaces: list[bytes], names: Names) -> Any:
    """What the arguments ask to compare with. Raises FormatError when that is nothing, or more than one thing."""
    other_run = (
        args.other
        or args.other_input
        or any(value is not None for value in (args.other_config, args.other_abi, args.other_threads))
    )
    wanted = [name for name in ("golden", "onnx", "caffe", "float") if getattr(args, name)]
    wanted += ["other"] * bool(other_run)
    if len(wanted) != 1:
        what = f"{' and '.join(wanted)} were given" if wanted else "nothing was given to compare with"
        raise FormatError(
            f"{what}; give one of OTHER, --golden, --onnx, --caffe, --float, --other-input, --other-config, "
            "--other-threads"
        )
    if args.golden:
        from nvdla.compare.goldens import GoldenReference

        return GoldenReference(args.golden, Path(args.loadable).stem)
    if args.onnx or args.caffe or args.float:
        return _float_reference(args, runtime, surfaces, names)
    return _other_run(args, runtime, surfaces, names)


def _float_reference(args: argparse.Namespace, runtime: Any, surfaces: list[bytes], names: Names) -> Any:
    from nvdla.compare.floats import FloatReference
    from nvdla.containers.npz_members import read_npz

    if args.float:
        return FloatReference(read_npz(args.float), names)
    from nvdla.compare.onnx_model import onnx_tensors, real_inputs

    inputs = real_inputs(runtime, surfaces, names)
    if args.onnx:
        reference = FloatReference(onnx_tensors(args.onnx, inputs), names, inputs=inputs)
    else:
        from nvdla.compare.caffe_model import caffe_tensors

        tensors, blobs = caffe_tensors(*_caffe_files(args.caffe), inputs)
        reference = FloatReference(tensors, names, outputs=blobs, inputs=inputs)
    reference.kind = "onnx" if args.onnx else "caffe"
    return reference


def _caffe_files(files: list[str]) -> tuple[str, str | None]:
    """(.prototxt, .caffemodel) in either order; the second may be missing."""
    if len(files) > 2:
        raise FormatError(f"--caffe takes a .prototxt and a .caffemodel, {len(files)} files were given")
    files = sorted(files, key=lambda name: name.endswith(".caffemodel"))
    return files[0], files[1] if len(files) == 2 else None


def _other_run(args: argparse.Namespace, runtime: Any, surfaces: list[bytes], names: Names) -> Any:
    from nvdla.compare.runs import RunReference

    loadable = nvdla.load(args.other) if args.other else runtime.loadable
    other = nvdla.Runtime(
        loadable,
        args.other_config or args.config,
        args.other_abi or args.abi,
        args.threads if args.other_threads is None else args.other_threads,
        strict=args.strict,
    )
    other_names = names_for(args.other) if args.other else names
    if args.other_input:
        theirs = surfaces_of_runs(other, args, args.other_input)[0]
    elif args.random_input is not None and not args.input:
        theirs = _carried_over(runtime, surfaces, other, names | other_names)
    else:
        theirs = surfaces_of_runs(other, args)[0]
    return RunReference(other, theirs, other_names, runtime, surfaces, names)


def _carried_over(ours: Any, surfaces: list[bytes], other: Any, names: Names) -> list[bytes]:
    """The same elements in the other network's input layouts (and so the same bytes where the layouts agree); between
    integers and halves the same real numbers."""
    if len(ours.inputs) != len(other.inputs):
        raise FormatError(f"the networks have {len(ours.inputs)} and {len(other.inputs)} inputs; give --other-input")
    arrays = [t.layout.unpack(np.frombuffer(s, np.uint8)) for t, s in zip(ours.inputs, surfaces, strict=True)]
    return [
        surface if tensor.layout == target.layout else other.pack(index, _as_type(array, tensor, target, names))
        for index, (tensor, target, surface, array) in enumerate(
            zip(ours.inputs, other.inputs, surfaces, arrays, strict=True)
        )
    ]


def _as_type(array: np.ndarray, tensor: Any, target: Any, names: Names) -> np.ndarray:
    """Elements of ``tensor`` as ``target`` takes them. Raises FormatError where the integers' scale is not known."""
    if array.dtype.kind == target.dtype.kind:
        return array
    scale = names.scale(tensor.name)
    if scale is None:
        raise FormatError(
            f"input {tensor.name} is {array.dtype} here and {target.dtype} there: say what one unit of the integers "
            "stands for, by --scales or in --layers, or give --other-input"
        )
    if target.dtype.kind == "f":
        return to_real(array, scale, names.zero_point(tensor.name)).astype(target.dtype)
    limits = np.iinfo(target.dtype)
    return np.clip(np.rint(array.astype(np.float32) / scale), limits.min, limits.max).astype(target.dtype)


FIGURES = ("differ", "max_abs", "mean_abs", "cosine", "snr_db", "psnr_db", "first")
LEAST = ("psnr_db", "mean_abs", "against", "first", "shape", "snr_db", "max_abs", "note")
COLUMNS = ("operation", "layer", "against", "shape", "result", *FIGURES, "note")


def _rows(args: argparse.Namespace, found: Comparison) -> list[Row]:
    """The tensors that the options ask for."""
    return chosen(found.rows, args, _place, _cells)


def _place(row: Row) -> Place:
    if row.kind == "output":
        return [str(row.name)], [], []
    layers = [row.name] if row.name else []
    return [f"{row.task}/{row.operation}"], [str(row.engine).lower()], layers


def _print(args: argparse.Namespace, reference: Any, found: Comparison) -> None:
    rows = [row for row in _rows(args, found) if not (args.different and row.passed)]
    print_table(f"{args.loadable} against {_against(args)}", [_cells(row) for row in rows], COLUMNS, LEAST)
    bad = sum(not row.passed for row in found.rows)
    skipped = f", {len(found.skipped)} had no counterpart" if found.skipped else ""
    print(f"{counted(len(found.rows), 'tensor')} compared, {bad} differ{skipped}.")
    if unused := getattr(reference, "unused", []):
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        say(f"Golden files that belong to no tensor: {', '.join(unused[:5])}{more}.")
    first = found.first
    if first is None:
        return
    say(f"First divergence: {first.place}" + (f": {first.difference}" if first.difference else ""))
    if found.region:
        _print_region(found.region)


def _cells(row: Row) -> dict[str, Any]:
    difference = row.difference
    own = f"operation {row.task}/{row.operation} ({str(row.engine).upper()})"
    own = f"output {row.name}" if row.kind == "output" else own
    result = "exact" if row.exact else "close" if row.passed else "DIFFERENT"
    cells: dict[str, Any] = {
        "operation": row.place if row.kind == "output" else f"{row.task}/{row.operation} {str(row.engine).upper()}",
        "layer": row.name if row.kind == "operation" else None,
        "against": None if row.against == own else row.against,
        "shape": row.shape,
        "result": result,
        "note": row.note,
    }
    if difference and not row.exact:
        first = ",".join(map(str, difference.first)) if difference.first else None
        cells |= {name: getattr(difference, name) for name in FIGURES if name not in ("differ", "first")}
        cells |= {"differ": difference.count, "first": first}
    return cells


def _print_region(region: DifferingRegion) -> None:
    fixed = ", ".join(f"{axis.upper()}={at}" for axis, at in region.fixed.items())
    down, across = (axis.upper() for axis in region.axes)
    print(f"Around it ({fixed}; {down} down from {region.origin[0]}, {across} across from {region.origin[1]}):")
    for title, values, other in (
        ("expected", region.expected, region.actual),
        ("got", region.actual, region.expected),
    ):
        say(f"  {title}")
        for row, against in zip(values, other, strict=True):
            print("   " + "".join(_value(value, before) for value, before in zip(row, against, strict=True)))


def _value(value: float, other: float) -> str:
    """A value, marked where it differs."""
    mark = "" if value == other or (value != value and other != other) else "*"
    return f"{f'{value:.5g}{mark}':>11}"
