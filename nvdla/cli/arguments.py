"""Arguments that several commands share: files given by tensor name, configuration, ABI, inputs of a run."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import nvdla
from nvdla.cli.output import real, say, tell_once, whole
from nvdla.errors import FormatError, in_input
from nvdla.program.naming import Names, from_calibration, from_yaml, is_scale, names_for, path_of
from nvdla.tensors.files import IMAGE_ENDINGS
from nvdla.tensors.images import INTERPOLATIONS, MAX_SIDE, ORDERS, PixelConversion, describe_digit, describe_gray
from nvdla.tensors.inputs import Preprocessing, describe_conversion, per_run, spread
from nvdla.tensors.real import ScaleMissing, pixels_of
from nvdla.util import rounding
from nvdla.util.escaping import Document
from nvdla.util.files import is_file

if TYPE_CHECKING:
    from nvdla.runtime import Runtime


def reals(text: str) -> tuple[float, ...]:
    """Finite numbers, separated by commas."""
    return tuple(map(real(), text.split(",")))


def split_name(word: str, names: Collection[str] = ()) -> tuple[str | None, str]:
    """ "name=file" -> (name, file); a file alone has no name. A path that exists is never split. Those of ``names`` may
    have an equals sign."""
    known = max((name for name in names if word.startswith(f"{name}=")), key=len, default=None)
    name, sign, path = word.partition("=") if known is None else (known, "=", word[len(known) + 1 :])
    return (name, path) if sign and not Path(word).exists() else (None, word)


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--abi``, ``--threads``."""
    add_config_option(parser)
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    add_threads_option(parser)


def add_config_option(
    parser: argparse._ActionsContainer, default: str | None = "auto", shown: str = "", *, required: bool = False
) -> None:
    """``--config``; ``shown``: the default in words."""
    none = "none; required" if required else "none"
    shown = shown or ("detected from the file" if default == "auto" else default or none)
    text = f"configuration: name or .yaml file (default: {shown})"
    parser.add_argument("--config", default=default, required=required, metavar="NAME", help=text)


def byte_count(text: str) -> int:
    """A number of bytes, with an optional unit: 4096, 64KiB, 256MiB, 1GiB."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    factor = units.get(text[-3:], 1)
    return whole()(text[:-3] if factor > 1 else text) * factor


def add_cvsram_size_option(parser: argparse._ActionsContainer) -> None:
    """Add the option for CVSRAM, a number of bytes as of :func:`byte_count`."""
    text = "size of CVSRAM, for example 512KiB (default: 0, no CVSRAM)"
    parser.add_argument("--cvsram-size", type=byte_count, default=0, metavar="BYTES", help=text)


def add_base_option(parser: argparse._ActionsContainer, name: str, default: int | None = None) -> None:
    """``--dram-base``, ``--cvsram-base``, ``--csb-base``: addresses as Python writes them."""
    meaning, usual = {
        "dram": ("base address of DRAM", "0xc0000000"),
        "cvsram": ("base address of CVSRAM", "0x50000000"),
        "csb": ("address of the first register", "c: that of --board, else 0x10040000; other formats: 0"),
    }[name]
    text = f"{meaning} (default: {usual})"
    parser.add_argument(f"--{name}-base", type=whole(base=0), default=default, metavar="ADDRESS", help=text)


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """Add the option for the threads of the kernels."""
    parser.add_argument("--threads", type=whole(1), metavar="N", help="number of threads per run (default: all cores)")


def add_comparison_options(parser: argparse._ActionsContainer) -> None:
    """``--other-input`` and ``--other-config`` of commands that compare two runs."""
    other = "input of the other run"
    parser.add_argument("--other-input", action="append", default=[], metavar="[NAME=]FILE", help=other)
    parser.add_argument("--other-config", metavar="NAME", help="configuration of the other run")


def add_tolerance_option(parser: argparse._ActionsContainer) -> None:
    """Add the option for accepted differences."""
    text = "largest accepted difference per element (default: 0)"
    parser.add_argument("--tolerance", type=real(0), default=0.0, metavar="X", help=text)


def add_model_options(parser: argparse._ActionsContainer) -> None:
    """``--onnx``, ``--tflite`` and ``--caffe``: the model of a loadable."""
    text = "ONNX or TFLite model of the loadable (needs nvdla[onnx])"
    parser.add_argument("--onnx", "--tflite", metavar="MODEL", help=text)
    caffe = ".prototxt and .caffemodel of the loadable (needs nvdla[onnx])"
    parser.add_argument("--caffe", action="extend", nargs="+", metavar="FILE", help=caffe)


def add_coefficients_option(parser: argparse._ActionsContainer) -> None:
    """Add the option for energy per event."""
    text = "picojoules per event (default: derived from NVIDIA's table)"
    parser.add_argument("--coefficients", metavar="FILE.yaml", help=text)


def add_limit_option(parser: argparse._ActionsContainer, default: int | None = None) -> None:
    """``--limit`` of commands over data."""
    random = f" (default: {default}, at random)" if default else ""
    parser.add_argument("--limit", type=int, default=default, metavar="N", help=f"use only N samples{random}")


def add_strict_option(parser: argparse.ArgumentParser) -> None:
    """``--strict`` of commands that run a network."""
    parser.add_argument("--strict", action="store_true", help="fail on accesses outside their memory region")


def add_trusted_option(parser: argparse.ArgumentParser) -> None:
    """``--trusted`` of commands that read models or packages."""
    text = "read and run models in this process, without limits on their memory and processor time"
    parser.add_argument("--trusted", action="store_true", help=text)


def add_warnings_option(parser: argparse.ArgumentParser) -> None:
    """``--warnings-as-errors`` of commands that check a file."""
    parser.add_argument("--warnings-as-errors", action="store_true", help="exit with code 1 for warnings, too")


def add_class_names_option(parser: argparse._ActionsContainer) -> None:
    """``--class-names`` of commands that print classes, or compare them with directories that have their names."""
    parser.add_argument(
        "--class-names",
        metavar="FILE",
        help="class names in the network's order: one per line, or the .tflite file that contains them",
    )


def add_port_option(parser: argparse._ActionsContainer, default: int) -> None:
    """``--port`` of servers."""
    parser.add_argument("--port", type=int, default=default, help=f"port, 0 for any free one (default: {default})")


def add_layers_option(parser: argparse._ActionsContainer) -> None:
    """``--layers``, the layer file."""
    text = "layer names and scales (default: LOADABLE.layers.json)"
    parser.add_argument("--layers", metavar="FILE.yaml", help=text)


def tell_warnings(path: str, warnings: Iterable[str]) -> None:
    """Print one warning per suspicious setting that hardware accepts silently, on standard error."""
    for warning in warnings:
        say(f"{path}: warning: {warning}", sys.stderr)


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """``--input`` and ``--random-input``, for :func:`surfaces_of_runs`."""
    parser.add_argument(
        "--input",
        "-i",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="input file: image, .npy, .dimg or .bin (raw surface); several for one input: a run each, where possible",
    )
    parser.add_argument(
        "--random-input",
        nargs="?",
        type=whole(),
        const=0,
        default=None,
        metavar="SEED",
        help="use random input bytes from this seed (fp16: numbers from -1 to 1)",
    )
    add_image_options(parser)
    add_scale_options(parser)


def add_scale_options(parser: argparse.ArgumentParser) -> None:
    """``--input-scale`` and ``--scales``, for :func:`scales_of`."""
    add_input_scale_option(parser)
    add_scales_option(parser)


def add_input_scale_option(parser: argparse._ActionsContainer) -> None:
    """``--input-scale``, for :func:`scales_of`."""
    text = "scale of an input: real value of one integer unit (default: from the layer file)"
    parser.add_argument("--input-scale", action="append", default=[], metavar="[NAME=]X", help=text)


def add_scales_option(parser: argparse._ActionsContainer) -> None:
    """``--scales``, the calibration table."""
    text = "calibration table with tensor scales (default: the layer file)"
    parser.add_argument("--scales", metavar="FILE.json", help=text)


def names_of(args: argparse.Namespace, loadable: nvdla.Loadable) -> Names:
    """Names, scales and orders of the tensors of ``args.loadable``: from the layer file, then ``--scales``, then
    ``--layers``, then ``--input-scale`` and ``--output-scale``. Raises FormatError."""
    known = names_for(args.loadable, getattr(args, "layers", None), getattr(args, "scales", None))
    return known | Names(scales=scales_of(args, loadable))


def scales_of(args: argparse.Namespace, loadable: nvdla.Loadable) -> dict[str, float]:
    """Scales by name of a tensor: those of ``--scales`` and ``--layers``, then those of bound tensors given one by one.

    Raises FormatError for a scale that is not a positive number, or of a tensor that ``args.loadable`` does not bind.
    """
    scales: dict[str, float] = {}
    if getattr(args, "scales", None):
        scales |= from_calibration(args.scales).scales
    if getattr(args, "layers", None):
        scales |= from_yaml(args.layers).scales
    for kind, memories in (("input", loadable.inputs), ("output", loadable.outputs)):
        names = [loadable.tensor(memory.tensor_desc_id).name for memory in memories]
        for text in getattr(args, f"{kind}_scale", None) or ():
            name, sign, number = text.rpartition("=")
            scale, known = positive_scale(f"--{kind}-scale {text}", number), ", ".join(names) or "none"
            if not sign and len(names) != 1:
                raise FormatError(f"--{kind}-scale {text}: must name one of the {kind}s ({known}): NAME=X")
            if sign and name not in names:
                if loadable.name != str(args.loadable):
                    continue  # it is for the loadable that this one is compared with
                raise FormatError(f"--{kind}-scale {text}: no such {kind}: must be one of {known}, got {name}")
            scales[name or names[0]] = scale
    return scales


def positive_scale(option: str, text: str) -> float:
    """Return the scale in the text. Raises FormatError."""
    try:
        number = rounding.real(text)
    except ValueError:
        number = 0.0
    if not is_scale(number):
        raise FormatError(f"{option}: must be a positive number, got {text!r}")
    return number


@contextlib.contextmanager
def whole_command(args: argparse.Namespace, loadable: str | None = None) -> Iterator[None]:
    """Within, an error for a missing scale contains the whole command that works. ``loadable``: default, that of the
    command."""
    try:
        yield
    except ScaleMissing as error:
        from nvdla.util.recognition import kind_of

        value = "NUMBER" if error.suggested is None else f"{error.suggested:.6g}"
        origin = "" if error.suggested is None else " (its largest value becomes the largest element)"
        several = isinstance(getattr(args, f"{error.kind}_scale", None), list)  # of inputs, so that each has a name
        words = ["nvdla", args.command_name, *args.command_words, f"--{error.kind}-scale"]
        words.append(f"{error.name}={value}" if several else value)
        table = ", or add --scales TABLE" if hasattr(args, "scales") else ""
        loadable = loadable or str(getattr(args, "loadable", None) or getattr(args, "network", None))
        if table and kind_of(loadable) == "loadable" and not is_file(sidecar := path_of(loadable)):
            table = f", add --scales TABLE, or copy the layer file (if any) to {sidecar}"
        lacks = ""
        if kind_of(loadable) == "loadable" and (known := names_for(loadable).scales):
            lacks = f" ({path_of(loadable)} has none for it, but for {', '.join(list(known)[:3])})"
        raise FormatError(
            f"{loadable}: {error.kind} {error.name}: unknown scale{lacks}: must be known for floating-point values, "
            f"got {error.dtype} elements. Run '{shlex.join(words)}'{origin}{table}."
        ) from None


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add options for the conversion of images to tensors, for :func:`preprocessing_of`."""
    image = parser.add_argument_group("images (default: the layer file)")
    image.add_argument("--mean", type=reals, metavar="M[,M,M]", help="mean to subtract from pixels 0..255")
    image.add_argument("--std", type=reals, metavar="S[,S,S]", help="divisor of pixels after --mean")
    image.add_argument("--scale", type=reals, metavar="S[,S,S]", help="factor of pixels after --mean")
    image.add_argument(
        "--color", choices=ORDERS, help="channel order (default: the layer file, else bgr; compile: rgb)"
    )
    resize = "resize images to the input size, or the shorter side to N pixels"
    image.add_argument("--resize", nargs="?", type=_side, const="input", metavar="N", help=resize)
    image.add_argument(
        "--crop", type=whole(1, most=MAX_SIDE), metavar="N", help="keep the center of images, N x N pixels"
    )
    scaling = "scale as PIL (bilinear) or OpenCV (INTER_LINEAR) does (default: pil)"
    image.add_argument("--interpolation", choices=INTERPOLATIONS, help=scaling)
    image.add_argument(
        "--no-preprocess", action="store_true", help="convert pixels without the layer file's preprocessing"
    )


def preprocessing_of(args: argparse.Namespace) -> PixelConversion | None:
    """Conversion of images to tensors, from the arguments of :func:`add_image_options`; None without
    arguments, where the layer file decides."""
    # A stated mean, even of 0, replaces the layer file's preprocessing.
    mean = (0.0,) if args.mean is None and args.no_preprocess else args.mean
    given = PixelConversion(mean or (), args.std or (), args.scale or (), args.color or "")
    is_changed = any(value is not None for value in (mean, args.std, args.scale, args.color))
    sizes = sizes_of(args)
    return replace(given, **sizes) if is_changed or sizes["resize"] or sizes["crop"] else None


def model_preprocessing(args: argparse.Namespace) -> Preprocessing:
    """Conversion of images to a model's inputs, from the arguments of :func:`add_image_options`."""
    mean = (0.0,) if args.mean is None and args.no_preprocess else args.mean
    others = {"layout": getattr(args, "layout", "auto"), "digit": getattr(args, "digit", False), **sizes_of(args)}
    preprocessing = Preprocessing(mean or (), args.scale or (), args.color or "rgb", **others)
    return preprocessing.divided(args.std) if args.std else preprocessing


def sizes_of(args: argparse.Namespace) -> Document:
    """Return the fields of a conversion of images that ``--resize``, ``--crop`` and ``--interpolation`` set."""
    resize = True if args.resize == "input" else args.resize or False
    return {"resize": resize, "crop": args.crop or 0, "interpolation": args.interpolation or "pil"}


def _side(text: str) -> int | str:
    """Pixels of a side; "input": those of the network's input."""
    return text if text == "input" else whole(1, most=MAX_SIDE)(text)


def surfaces_of_runs(
    runtime: Runtime, args: argparse.Namespace, words: Sequence[str] | None = None
) -> list[list[bytes]]:
    """The raw input surfaces of each run that ``--input`` (or ``words`` instead) and ``--random-input`` ask for.

    A network without inputs has one run. Raises FormatError for names, counts and files that do not fit.
    """
    seed = args.random_input
    words = args.input if words is None else words
    if not runtime.inputs:
        if words:
            raise FormatError(f"--input {words[0]}: the network has no inputs")
        return [[]]
    if seed is not None and not words:
        return [random_surfaces(runtime, seed)]
    names = [tensor.name for tensor in runtime.inputs]
    owners = runtime.names.owners if len(names) > 1 else {}
    whole = list(dict.fromkeys(owners.get(name, name) for name in names))
    if not {split_name(word, whole)[0] for word in words} <= {None, *whole}:
        whole = names  # those of the loadable, as a package has them for its parts
    runs = [spread(files, names, owners) for files in files_of_runs(words, whole)]
    pixels = preprocessing_of(args)
    runtime.rescale(scales_of(args, runtime.loadable))
    with whole_command(args, runtime.loadable.name):
        surfaces = [
            of_right_size(runtime, files, runtime.surfaces(files, pixels)) for files in _in_batches(runtime, runs)
        ]
    tell_changes(changes_of_pictures(runtime, args, words), args)
    return surfaces


def _in_batches(runtime: Runtime, runs: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The files of each run of a network that takes several images at a time, each of which is a file."""
    if len(runs) == 1:
        return runs
    batches = {
        tensor.name: per_run([files[tensor.name] for files in runs], tensor.shape, tensor.name)
        for tensor in runtime.inputs
    }
    return [dict(zip(batches, values, strict=True)) for values in zip(*batches.values(), strict=True)]


def files_of_runs(words: Sequence[str], names: list[str]) -> list[dict[str, str]]:
    """Return the file of each input, for each run that ``--input`` words ask for. Raises FormatError."""
    by_name = _by_name(words, names)
    counts = {name: len(files) for name, files in by_name.items()}
    runs = max(counts.values())
    short = [name for name, count in counts.items() if count < max(runs, 1)]
    if short:
        wanted = " ".join(f"--input {name}=FILE" for name in short)
        raise FormatError(f"input {', '.join(short)} is missing: give {wanted} (or --random-input)")
    return [{name: files[run] for name, files in by_name.items()} for run in range(runs)]


def changes_of_pictures(
    runtime: Runtime, args: argparse.Namespace, words: Sequence[str] | None = None
) -> dict[str, str]:
    """Describe the changes of each picture of ``--input`` (or ``words`` instead), by file: those that made a digit of
    it, if the layer file specifies digits; the conversion to gray; without a layer file the conversion of NVIDIA's
    runtime; that it fills a batch."""
    by_name = _by_name(args.input if words is None else words, [tensor.name for tensor in runtime.inputs])
    pixels, model = preprocessing_of(args), runtime.names.preprocessing
    changes: dict[str, str] = {}
    for tensor in runtime.inputs:
        files = [path for path in by_name[tensor.name] if Path(path).suffix.lower() in IMAGE_ENDINGS]
        whole, cube = runtime.names.rearranged(tensor.name, tensor.shape[1:]), tensor.shape[1:]
        if model is not None and whole is not None and len(whole.shape) in (3, 4):
            cube = Preprocessing.of(model).cube_shape(whole.shape)
        if model is not None and Preprocessing.of(model).changed_by(pixels).digit:
            changes |= {path: describe_digit(path, cube[:0:-1]) for path in files}
            continue
        is_pixels = tensor.name in pixels_of(runtime.names.pixels)
        stated = ""
        if model is None:
            stated = describe_conversion(tensor.shape, tensor.dtype, pixels or PixelConversion(), is_pixels)
        batch = tensor.shape[0]
        fills = f"used as all {batch} images of the batch" if batch > 1 and len(by_name[tensor.name]) == 1 else ""
        changes |= {path: "; ".join(filter(None, (describe_gray(path, cube[0]), stated, fills))) for path in files}
    return {path: text for path, text in changes.items() if text}


def tell_changes(changes: dict[str, str], args: argparse.Namespace) -> None:
    """One line on standard error per change, with the first of its files."""
    files: dict[str, list[str]] = {}
    for path, text in changes.items():
        files.setdefault(text, []).append(path)
    for text, paths in files.items():
        tell_once(f"{paths[0]}{f' and {len(paths) - 1:,} more' if len(paths) > 1 else ''}: {text}", args)


def of_right_size(runtime: Runtime, files: Mapping[str, object], surfaces: list[bytes]) -> list[bytes]:
    """Raw surfaces come as they are; one of another size is bad input, before anything is run."""
    for tensor, surface in zip(runtime.inputs, surfaces, strict=True):
        if len(surface) != tensor.size:
            hint = " (cut off?)" if len(surface) < tensor.size else ""
            with in_input(tensor.name):
                raise FormatError(
                    f"{files[tensor.name]}: size: must be {tensor.size} bytes (input {tensor.name} of "
                    f"{runtime.loadable.name}), got {len(surface)}{hint}"
                )
    return surfaces


def _by_name(words: Sequence[str], names: list[str]) -> dict[str, list[str]]:
    """Files of each input: by name, or without names in bind order, again and again."""
    files: dict[str, list[str]] = {name: [] for name in names}
    for word in words:
        name, path = split_name(word, names)
        if name is None:
            name = min(names, key=lambda key: len(files[key]))
        if name not in files:
            raise FormatError(f"--input {word}: no such input: must be one of {', '.join(names)}")
        files[name].append(path)
    return files


def random_surfaces(runtime: Runtime, seed: int) -> list[bytes]:
    """Surfaces of random elements: whole range of integers, -1 to 1 for fp16; padding bytes stay 0."""
    generator = np.random.default_rng(seed)
    surfaces = []
    for index, tensor in enumerate(runtime.inputs):
        if tensor.dtype.kind == "f":
            array = generator.uniform(-1, 1, tensor.shape).astype(tensor.dtype)
        else:
            limits = np.iinfo(tensor.dtype)
            array = generator.integers(limits.min, limits.max, tensor.shape, tensor.dtype, endpoint=True)
        surfaces.append(runtime.pack(index, array))
    return surfaces
