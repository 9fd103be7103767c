"""``nvdla compare``: is the result right, and from which operation on is it not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import nvdla
from nvdla.checks.compare.comparison import Comparison, DifferingRegion, Row, Tolerances, compare_run
from nvdla.cli.arguments import (
    add_comparison_options,
    add_input_options,
    add_layers_option,
    add_machine_options,
    add_model_options,
    add_strict_option,
    add_tolerance_option,
    add_trusted_option,
    names_of,
    scales_of,
    surfaces_of_runs,
    tell_warnings,
    whole_command,
)
from nvdla.cli.output import (
    Place,
    add_format_options,
    add_row_options,
    chosen,
    print_document,
    print_table,
    real,
    say,
    tell_proof,
    whole,
)
from nvdla.cli.working import working
from nvdla.errors import FormatError, NvdlaError, counted
from nvdla.loadable import Loadable
from nvdla.loadable import load as load_loadable
from nvdla.program.naming import Names, names_for
from nvdla.tensors.real import ScaleMissing, to_elements
from nvdla.util.escaping import Document, Json
from nvdla.util.files import in_package
from nvdla.util.recognition import kind_of

if TYPE_CHECKING:
    from nvdla.runtime import Runtime, Tensor

HELP = """Compare a run, operation by operation, with another run, another loadable, golden files or a float model.

  nvdla compare A.nvdla B.nvdla -i digit.pgm          two loadables of the same network
  nvdla compare A.nvdla -i digit.pgm --golden DIR     dumps of 'nvdla run --dump-ops', .bin, .dimg, .ops.json
  nvdla compare A.nvdla -i digit.pgm --onnx M.onnx    a float model; layer names from the layer file or --layers
  nvdla compare A.nvdla -i digit.pgm --caffe N.prototxt N.caffemodel     a Caffe network
  nvdla compare A.nvdla -i digit.pgm --float T.npz    named float tensors
  nvdla compare A.nvdla -i a.pgm --other-input b.pgm    two inputs; --other-config, --other-threads likewise

A tensor is exact (equal elements), close (elements within --tolerance; real values with at least --min-cosine and
--min-snr) or different. Exit code 1 when a tensor is different."""

FORMAT, VERSION = "nvdla-compare", 1
OURS = "this run"
MOST_NAMED = 20
"""Tensors without a counterpart that are named; --json has all of them."""


class _Other(argparse.Action):
    """Store a model as ``--onnx`` does, and a loadable as ``other``."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, option: object = None) -> None:
        is_model = isinstance(values, str) and values.lower().endswith((".onnx", ".tflite"))
        setattr(namespace, "onnx" if is_model else self.dest, values)


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    parser.add_argument(
        "other", nargs="?", action=_Other, help="another loadable to run and compare with, or an ONNX or TFLite model"
    )
    add_input_options(parser)
    add_machine_options(parser)
    add_strict_option(parser)
    against = parser.add_argument_group("what to compare with")
    against.add_argument(
        "--golden",
        action="append",
        metavar="PATH",
        help="golden file named after its tensor or operation (prob.bin, task0-op0003-sdp.npy), or a directory of "
        "them; repeat for several",
    )
    add_model_options(against)
    against.add_argument("--float", metavar="FILE.npz", help=".npz with float tensors by layer name")
    add_comparison_options(against)
    against.add_argument("--other-abi", choices=("auto", "old", "new"), help="ABI of the other run")
    against.add_argument("--other-threads", type=whole(1), metavar="N", help="threads of the other run")
    names = parser.add_argument_group("names and scales")
    add_layers_option(names)
    limits = parser.add_argument_group("tolerances")
    add_tolerance_option(limits)
    limits.add_argument(
        "--min-cosine",
        type=real(-1, 1),
        default=0.95,
        metavar="X",
        help="minimum cosine similarity of real values (default: 0.95)",
    )
    limits.add_argument(
        "--min-snr",
        type=real(),
        default=10.0,
        metavar="DB",
        help="minimum signal-to-noise ratio of real values in dB (default: 10)",
    )
    add_trusted_option(parser)
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first divergence")
    parser.add_argument("--different", action="store_true", help="list only tensors that differ")
    add_row_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    runtime = _runtime(args, load_loadable(args.loadable), args.config, args.abi, args.threads)
    names = names_of(args, runtime.loadable)
    runs = surfaces_of_runs(runtime, args)
    if len(runs) > 1:
        raise FormatError(f"--input: must be one run to compare, got {len(runs)}. Compare them one by one.")
    with whole_command(args):
        reference = _reference(args, runtime, runs[0], names)
    limits = Tolerances(args.tolerance, args.min_cosine, args.min_snr)
    with working(f"comparing {args.loadable}"):
        comparison = compare_run(runtime, runs[0], reference, names, limits, args.fail_fast)
    tell_warnings(args.loadable, runtime.warnings)
    other = getattr(reference, "runtime", None)
    if other is not None and args.other:
        tell_warnings(args.other, other.warnings)
    tell_proof(args, runtime.config, *([] if other is None else [other.config]))
    if not comparison.rows:
        output = runtime.outputs[0].name if runtime.outputs else "NAME"
        hint = (
            f"Name a file after its tensor or operation: {output}.bin, task0-op0003-sdp.bin (operation 0/3, an SDP). "
            "For a file of any name: nvdla run --compare."
            if args.golden
            else "Name the layers with --layers."
        )
        raise FormatError(f"nothing could be compared: no tensor of {args.loadable} has a counterpart. {hint}")
    if not print_document(document(args, runtime, reference, comparison), args):
        _print(args, reference, comparison)
    return 0 if comparison.passed else 1


def document(args: argparse.Namespace, runtime: Runtime, reference: Any, comparison: Comparison) -> Document:
    """The result as plain data (docs/compare.md)."""
    first = comparison.first
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadable": args.loadable,
        "configuration": runtime.config.name,
        "abi": runtime.abi,
        "against": {
            "kind": reference.kind,
            "name": _against(args),
            "reference": getattr(reference, "runs_in", None),
            "aligned": getattr(reference, "aligned", None),
            "unused": getattr(reference, "unused", []),
        },
        "passed": comparison.passed,
        "compared": len(comparison.rows),
        **comparison.counts,
        "skipped": comparison.skipped,
        "first": first.as_dict() if first else None,
        "region": comparison.region.as_dict() if comparison.region else None,
        "tensors": [row.as_dict() for row in _rows(args, comparison)],
    }


def _against(args: argparse.Namespace) -> str:
    return (
        (" ".join(args.golden) if args.golden else None)
        or args.onnx
        or (_caffe_files(args.caffe)[0] if args.caffe else None)
        or args.float
        or args.other
        or args.loadable
    )


def _reference(args: argparse.Namespace, runtime: Runtime, surfaces: list[bytes], names: Names) -> Any:
    """Reference selected by the arguments. Raises FormatError when that is nothing, or more than one thing."""
    other_run = (
        args.other
        or args.other_input
        or any(value is not None for value in (args.other_config, args.other_abi, args.other_threads))
    )
    wanted = [name for name in ("golden", "onnx", "caffe", "float") if getattr(args, name)]
    wanted += ["other"] * bool(other_run)
    if len(wanted) != 1:
        problem = f"{' and '.join(wanted)} were given" if wanted else "nothing to compare with"
        raise FormatError(
            f"{problem}; give one of OTHER, --golden, --onnx, --tflite, --caffe, --float, --other-input, "
            "--other-config, --other-abi, --other-threads"
        )
    if args.golden:
        from nvdla.checks.compare.runs import GoldenReference

        return GoldenReference(*args.golden, stem=Path(args.loadable).stem)
    if args.onnx or args.caffe or args.float:
        return _float_reference(args, runtime, surfaces, names)
    return _other_run(args, runtime, surfaces, names)


def _check_part(path: str) -> None:
    """Raise FormatError for a loadable in a package that takes values of other parts, which are not in the model."""
    place = in_package(path)
    if place is not None:
        from nvdla.cli.packages import part_path
        from nvdla.compiler.frontend.package import unpack

        package = unpack(place[0])
        for number, part in enumerate(package.parts):
            taken = {binding.value for binding in part.inputs} - {*package.manifest["inputs"]}
            if Path(part_path("", number)).name == place[1] and taken:
                raise FormatError(
                    f"{path}: inputs: must be those of the model, got {', '.join(sorted(taken))} of other parts. "
                    f"Compare the whole package, {place[0]}."
                )


def _float_reference(args: argparse.Namespace, runtime: Runtime, surfaces: list[bytes], names: Names) -> Any:
    from nvdla.checks.compare.runs import FloatReference
    from nvdla.tensors.npz import read_npz

    if args.float:
        return FloatReference(read_npz(args.float), names)
    from nvdla.checks.compare.float_models import onnx_tensors, real_inputs

    inputs = getattr(args, "model_inputs", None)
    if inputs is None:
        _check_part(args.loadable)
        inputs = real_inputs(runtime, surfaces, names)
    if args.onnx:
        tensors, ends, runs_in = onnx_tensors(args.onnx, inputs, args.trusted)
        is_whole = in_package(args.loadable) is None and len(ends) == len(runtime.outputs)
        reference = FloatReference(tensors, names, ends=ends if is_whole else (), inputs=inputs, in_place=False)
        reference.kind, reference.runs_in = "tflite" if kind_of(args.onnx) == "tflite" else "onnx", runs_in
    else:
        from nvdla.checks.compare.float_models import caffe_tensors
        from nvdla.compiler.frontend.isolation import ONNXRUNTIME

        tensors, blobs = caffe_tensors(*_caffe_files(args.caffe), inputs, args.trusted)
        reference = FloatReference(tensors, names, outputs=blobs, inputs=inputs)
        reference.kind, reference.runs_in = "caffe", ONNXRUNTIME
    return reference


def _caffe_files(files: list[str]) -> tuple[str, str | None]:
    """(.prototxt, .caffemodel) in either order; the second may be missing."""
    if len(files) > 2:
        raise FormatError(f"--caffe: must be a .prototxt and a .caffemodel, got {len(files)} files")
    files = sorted(files, key=lambda name: name.endswith(".caffemodel"))
    return files[0], files[1] if len(files) == 2 else None


def _runtime(args: argparse.Namespace, loadable: Loadable, config: str, abi: str, threads: int | None) -> Runtime:
    """A runtime, whose errors name one of the two files. Raises as that does."""
    try:
        return nvdla.Runtime(loadable, config, abi, threads, strict=args.strict)
    except NvdlaError as error:
        raise (error.at(loadable.name) if args.other else error) from None


def _other_run(args: argparse.Namespace, runtime: Runtime, surfaces: list[bytes], names: Names) -> Any:
    from nvdla.checks.compare.runs import RunReference

    loadable = load_loadable(args.other) if args.other else runtime.loadable
    threads = args.threads if args.other_threads is None else args.other_threads
    other = _runtime(args, loadable, args.other_config or args.config, args.other_abi or args.abi, threads)
    other_names = names
    if args.other:  # tables and names are those of the first
        given = argparse.Namespace(loadable=args.loadable, input_scale=args.input_scale)
        other_names = names_for(args.other) | Names(scales=scales_of(given, loadable))
    if args.other_input:
        theirs = surfaces_of_runs(other, args, args.other_input)[0]
    elif args.random_input is not None and not args.input:
        theirs = _carried_over(runtime, surfaces, other, names, other_names)
    else:
        theirs = _given_to(other, args)
    return RunReference(other, theirs, other_names, runtime, surfaces, names)


def _given_to(other: Runtime, args: argparse.Namespace) -> list[bytes]:
    """The input of the second run from the files of the first."""
    try:
        return surfaces_of_runs(other, args)[0]
    except FormatError as error:
        if not args.other:
            raise
        raise FormatError(f"{str(error).rstrip('.')}. Give {args.other} its own input with --other-input.") from None


def _carried_over(
    ours: Runtime, surfaces: list[bytes], other: Runtime, our_names: Names, other_names: Names
) -> list[bytes]:
    """The same elements in the other network's input layouts (and so the same bytes where the layouts agree); between
    integers and halves the same real numbers."""
    if len(ours.inputs) != len(other.inputs):
        raise FormatError(
            f"inputs of the networks: must be as many without --other-input, got {len(ours.inputs)} and "
            f"{len(other.inputs)}. Add --other-input."
        )
    arrays = [t.layout.unpack(np.frombuffer(s, np.uint8)) for t, s in zip(ours.inputs, surfaces, strict=True)]
    return [
        surface
        if tensor.layout == target.layout
        else other.pack(index, _as_type(array, tensor, target, our_names, other_names))
        for index, (tensor, target, surface, array) in enumerate(
            zip(ours.inputs, other.inputs, surfaces, arrays, strict=True)
        )
    ]


def _as_type(array: np.ndarray, tensor: Tensor, target: Tensor, our_names: Names, other_names: Names) -> np.ndarray:
    """Elements of ``tensor`` as ``target`` takes them. Raises FormatError where the integers' scale is not known."""
    if array.dtype.kind == target.dtype.kind:
        return array
    if target.dtype.kind == "f":
        units = our_names.units(tensor.name, array.dtype)
        if units is not None:
            return units.real(array).astype(target.dtype)
    elif (scale := other_names.scale(target.name)) is not None:
        return to_elements(array, scale, target.dtype, other_names.zero_point(target.name))
    integers = tensor if target.dtype.kind == "f" else target
    raise ScaleMissing(integers.name, integers.dtype, "input")


METRICS = ("unequal", "max_abs", "mean_abs", "cosine", "snr_db", "psnr_db", "first")
LEAST = ("psnr_db", "mean_abs", "against", "first", "shape", "max_abs", "cosine", "unequal", "note", "layer")
COLUMNS = ("operation", "layer", "against", "shape", "result", *METRICS, "note")


def _rows(args: argparse.Namespace, comparison: Comparison) -> list[Row]:
    """Tensors selected by the options."""
    return chosen([row for row in comparison.rows if not (args.different and row.passed)], args, _place, _cells)


def _place(row: Row) -> Place:
    if row.kind == "output":
        return [str(row.name)], [], []
    layers = [row.name] if row.name else []
    return [f"{row.task}/{row.operation}"], [str(row.engine).lower()], layers


def _print(args: argparse.Namespace, reference: object, comparison: Comparison) -> None:
    rows = [_cells(row) for row in _rows(args, comparison)]
    is_run = getattr(reference, "kind", None) == "run"
    least = [name for name in LEAST if name != "against" or not is_run]  # of a run: which of its operations
    print_table(f"{args.loadable} against {_against(args)}", rows, COLUMNS, least)
    counts = ", ".join(f"{count} {name}" for name, count in comparison.counts.items())
    kinds = {row.real for row in comparison.rows if row.difference and not row.exact}
    values = "real values where scales are known" if len(kinds) > 1 else "real values" if True in kinds else "elements"
    ratio = f" SNR: dB against {_against(args)}, {values}." if kinds else ""
    runs_in = getattr(reference, "runs_in", None)
    of_file = f" Reference: {runs_in}." if getattr(reference, "kind", None) == "tflite" else ""
    say(f"{counted(len(comparison.rows), 'tensor')} compared: {counts}.{ratio}{of_file}")
    if comparison.skipped:
        more = f" and {len(comparison.skipped) - MOST_NAMED} more" if len(comparison.skipped) > MOST_NAMED else ""
        say(f"Without a counterpart: {', '.join(comparison.skipped[:MOST_NAMED])}{more}.")
    if unused := getattr(reference, "unused", []):
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        stopped = args.fail_fast and comparison.first is not None
        cause = "not reached (--fail-fast)" if stopped else "without a tensor"
        say(f"Golden files {cause}: {', '.join(unused[:5])}{more}.")
    first = comparison.first
    if first is None:
        return
    other = "other run" if _against(args) == args.loadable else Path(_against(args)).name
    say(f"First divergence: {first.place}" + (f": {first.difference.between(other, OURS)}" if first.difference else ""))
    if comparison.region:
        _print_region(comparison.region, other)
    if args.random_input is not None and not args.input and (args.onnx or args.caffe or args.float):
        say("The input was random: int8 values saturate where it exceeds the calibrated ranges. Give --input FILE.")


def _cells(row: Row) -> dict[str, Json]:
    difference = row.difference
    own = f"operation {row.task}/{row.operation} ({str(row.engine).upper()})"
    own = f"output {row.name}" if row.kind == "output" else own
    result = row.result.upper() if row.result == "different" else row.result
    cells: dict[str, Json] = {
        "operation": row.place if row.kind == "output" else f"{row.task}/{row.operation} {str(row.engine).upper()}",
        "layer": row.name if row.kind == "operation" else None,
        "against": None if row.against == own else row.against,
        "shape": row.shape,
        "result": result,
        "note": row.note,
    }
    if difference and not row.exact:
        first = ",".join(map(str, difference.first)) if difference.first else None
        cells |= {name: getattr(difference, name) for name in METRICS if name not in ("unequal", "first")}
        cells |= {"unequal": difference.count, "first": first}
    return cells


def _print_region(region: DifferingRegion, source: str) -> None:
    """``source``: name of what the run is compared with."""
    fixed = ", ".join(f"{axis.upper()}={at}" for axis, at in region.fixed.items())
    down, across = (axis.upper() for axis in region.axes)
    say(f"Around it ({fixed}; {down} down from {region.origin[0]}, {across} across from {region.origin[1]}):")
    for title, values, other in (
        (source, region.expected, region.actual),
        (OURS, region.actual, region.expected),
    ):
        say(f"  {title}")
        for row, against in zip(values, other, strict=True):
            print("   " + "".join(_value(value, before) for value, before in zip(row, against, strict=True)))


def _value(value: float, other: float) -> str:
    """A value, marked where it differs."""
    mark = "" if value == other or (value != value and other != other) else "*"
    return f"{f'{value:.5g}{mark}':>11}"
