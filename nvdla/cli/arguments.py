"""Arguments that several commands share: files given by tensor name, configuration, ABI, inputs of a run."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import nvdla
from nvdla.cli.output import reals, say, whole
from nvdla.errors import FormatError
from nvdla.program.naming import Names, from_calibration, from_yaml, is_scale, names_for
from nvdla.tensors.images import ORDERS, PixelConversion
from nvdla.tensors.real import ScaleMissing
from nvdla.util import rounding

if TYPE_CHECKING:
    from nvdla.runtime import Runtime


def split_name(word: str) -> tuple[str | None, str]:
    """ "name=file" -> (name, file); a file alone has no name. A path that exists is never split."""
    name, sign, path = word.partition("=")
    return (name, path) if sign and not Path(word).exists() else (None, word)


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--abi``, ``--threads``."""
    parser.add_argument("--config", default="auto", help="hardware configuration (default: detected from the file)")
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    parser.add_argument(
        "--threads", type=whole(1), default=None, metavar="N", help="number of threads (default: all cores)"
    )


def add_strict_option(parser: argparse.ArgumentParser) -> None:
    """``--strict`` of commands that run a network."""
    parser.add_argument("--strict", action="store_true", help="fail on accesses outside their memory region")


def add_trusted_option(parser: argparse.ArgumentParser, of: str = "") -> None:
    """``--trusted`` of commands that read models; ``of``: the files that it is about, where there are others."""
    what = "read and run the model in this process, without limits on its memory and processor time"
    parser.add_argument("--trusted", action="store_true", help=f"{of}: {what}" if of else what)


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
        help="input file: image, .npy, .dimg or .bin (raw surface); repeat the option for further runs",
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
    parser.add_argument(
        "--input-scale",
        action="append",
        default=[],
        metavar="[NAME=]X",
        help="scale of an input: real value of one integer unit (default: from the layer file)",
    )
    parser.add_argument(
        "--scales", metavar="FILE.json", help="calibration table with tensor scales (default: the layer file)"
    )


def names_of(args: argparse.Namespace, loadable: nvdla.Loadable) -> Names:
    """Names, scales and orders of the tensors of ``args.loadable``: from the layer file, then ``--scales``, then
    ``--layers``, then ``--input-scale`` and ``--output-scale``. Raises FormatError."""
    known = names_for(args.loadable, getattr(args, "layers", None), getattr(args, "scales", None))
    return known | Names(scales=scales_of(args, loadable))


def scales_of(args: argparse.Namespace, loadable: nvdla.Loadable) -> dict[str, float]:
    """Scales by name of a tensor: those of ``--scales`` and ``--layers``, then those of bound tensors given one by one.

    Raises FormatError for a scale that is not a positive number, or of a tensor that ``args.loadable`` does not bind.
    """
    found: dict[str, float] = {}
    if getattr(args, "scales", None):
        found |= from_calibration(args.scales).scales
    if getattr(args, "layers", None):
        found |= from_yaml(args.layers).scales
    for kind, memories in (("input", loadable.inputs), ("output", loadable.outputs)):
        names = [loadable.tensor(memory.tensor_desc_id).name for memory in memories]
        for text in getattr(args, f"{kind}_scale", None) or ():
            name, sign, number = text.rpartition("=")
            scale, known = _scale(f"--{kind}-scale {text}", number), ", ".join(names) or "none"
            if not sign and len(names) != 1:
                raise FormatError(f"--{kind}-scale {text}: must name one of the {kind}s ({known}): NAME=X")
            if sign and name not in names:
                if loadable.name != str(args.loadable):
                    continue  # it is for the loadable that this one is compared with
                raise FormatError(f"--{kind}-scale {text}: no such {kind}: must be one of {known}, got {name}")
            found[name or names[0]] = scale
    return found


def _scale(option: str, text: str) -> float:
    try:
        number = rounding.real(text)
    except ValueError:
        number = 0.0
    if not is_scale(number):
        raise FormatError(f"{option}: must be a positive number, got {text!r}")
    return number


@contextlib.contextmanager
def whole_command(args: argparse.Namespace) -> Iterator[None]:
    """Within, an error for a missing scale contains the whole command that works."""
    try:
        yield
    except ScaleMissing as error:
        value = "NUMBER" if error.suggested is None else f"{error.suggested:.6g}"
        origin = "" if error.suggested is None else " (its largest value becomes the largest element)"
        several = isinstance(getattr(args, f"{error.kind}_scale", None), list)  # of inputs, so that each has a name
        words = ["nvdla", args.command_name, *args.command_words, f"--{error.kind}-scale"]
        words.append(f"{error.name}={value}" if several else value)
        table = ", or add --scales TABLE" if hasattr(args, "scales") else ""
        raise FormatError(
            f"{error.kind} {error.name}: unknown scale: must be known for floating-point values, got {error.dtype} "
            f"elements. Run '{shlex.join(words)}'{origin}{table}."
        ) from None


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add options for the conversion of images to tensors, for :func:`preprocessing_of`."""
    image = parser.add_argument_group("images")
    image.add_argument("--mean", type=reals, metavar="M[,M,M]", help="mean to subtract from pixels (fp16)")
    image.add_argument("--normalize", type=float, metavar="X", help="divisor of pixels (fp16)")
    image.add_argument("--order", choices=ORDERS, help="channel order of color images (default: bgr)")
    image.add_argument("--resize", action="store_true", help="resize images to the input size")
    image.add_argument(
        "--no-preprocess", action="store_true", help="take pixels as they are, without the layer file's preprocessing"
    )


def preprocessing_of(args: argparse.Namespace) -> PixelConversion | None:
    """Conversion of images to tensors, from the arguments of :func:`add_image_options`; None without
    arguments, where the layer file decides."""
    # A stated mean, even of 0, replaces the layer file's preprocessing.
    mean = (0.0,) if args.mean is None and args.no_preprocess else args.mean
    given = PixelConversion(mean or (), 1.0 if args.normalize is None else args.normalize, args.order or "bgr")
    said = mean is not None or args.normalize is not None or args.order is not None
    return replace(given, resize=args.resize) if said or args.resize else None


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
    by_name = _by_name(words, [tensor.name for tensor in runtime.inputs])
    counts = {name: len(files) for name, files in by_name.items()}
    runs = max(counts.values())
    short = [name for name, count in counts.items() if count < max(runs, 1)]
    if short:
        wanted = " ".join(f"--input {name}=FILE" for name in short)
        raise FormatError(f"input {', '.join(short)} is missing: give {wanted} (or --random-input)")
    pixels = preprocessing_of(args)
    runtime.rescale(scales_of(args, runtime.loadable))
    with whole_command(args):
        return [
            of_right_size(runtime, files, runtime.surfaces(files, pixels))
            for files in ({name: words[run] for name, words in by_name.items()} for run in range(runs))
        ]


def of_right_size(runtime: Runtime, files: dict[str, str], surfaces: list[bytes]) -> list[bytes]:
    """Raw surfaces come as they are; one of another size is bad input, before anything is run."""
    for tensor, surface in zip(runtime.inputs, surfaces, strict=True):
        if len(surface) != tensor.size:
            hint = " (cut off?)" if len(surface) < tensor.size else ""
            raise FormatError(
                f"{files[tensor.name]}: {len(surface)} bytes, but input {tensor.name} takes {tensor.size} bytes{hint}"
            )
    return surfaces


def _by_name(words: Sequence[str], names: list[str]) -> dict[str, list[str]]:
    """Files of each input: by name, or without names in bind order, again and again."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for word in words:
        name, path = split_name(word)
        if name is None:
            name = min(names, key=lambda each: len(found[each]))
        if name not in found:
            raise FormatError(f"--input {word}: no such input: must be one of {', '.join(names)}")
        found[name].append(path)
    return found


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
