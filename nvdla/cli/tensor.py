"""``nvdla tensor``: tensors between files, layouts and element types."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from nvdla.cli.arguments import add_image_options, changes_of_pictures, preprocessing_of, tell_changes
from nvdla.cli.output import add_format_options, output_file, print_document, print_pairs, print_table, say
from nvdla.errors import FormatError, shape_text
from nvdla.loadable import load as load_loadable
from nvdla.tensors.convert import (
    ATOMS,
    DTYPES,
    LAYOUTS,
    Form,
    as_nchw,
    cast,
    dequantize,
    dtype_named,
    form_of,
    pack,
    quantize,
    unpack,
)
from nvdla.tensors.files import IMAGE_ENDINGS, ending, picture, read_npy
from nvdla.tensors.images import PixelConversion, image_shape, read_pixels
from nvdla.tensors.inputs import Input
from nvdla.tensors.real import ScaleMissing
from nvdla.util.escaping import Document
from nvdla.util.files import read_file, write_file
from nvdla.util.rounding import integer

HELP = """Convert tensors between .npy, .dimg, raw surfaces (.bin) and images, with explicit layout, type and scale.

  nvdla tensor convert digit.png in.bin --tensor net.nvdla                preprocessed as by 'nvdla run'
  nvdla tensor convert in.npy out.bin --to-layout feature-x8              pack a surface
  nvdla tensor convert out.bin out.npy --tensor net.nvdla:prob            unpack with the layout of the network
  nvdla tensor convert in.npy in.dimg --dtype int8 --quantization-scale 0.0078   quantize real values
  nvdla tensor info out.bin --layout feature-x32 --shape 1,10,1,1 --dtype int8
  nvdla tensor layout --layout feature-x8 --shape 1,20,3,4                address of each element

The page docs/files.md explains the layouts with worked examples."""

INPUTS = (*IMAGE_ENDINGS, ".npy", ".dimg", ".bin")
OUTPUTS = (".npy", ".dimg", ".bin", ".png", ".json")
FORMAT, VERSION = "nvdla-tensor", 1
MAX_FILE = 1 << 30
MAX_SAMPLE = 24
_LAYOUT_HELP = (
    "layout of a .bin input: feature-x8, feature-x16, feature-x32, nchw, nhwc, a pixel format (docs/files.md)"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    commands = parser.add_subparsers(dest="tensor_command", required=True, metavar="COMMAND")
    convert = commands.add_parser("convert", help="convert a tensor to another file format or layout")
    convert.add_argument("input", metavar="INPUT", help=" ".join(INPUTS))
    convert.add_argument("output", type=output_file(".npy"), metavar="OUTPUT", help=" ".join(OUTPUTS))
    _add_form(convert)
    convert.add_argument("--to-layout", metavar="LAYOUT", choices=LAYOUTS, help="layout of a .bin output")
    convert.add_argument("--to-line-stride", type=int, default=0, metavar="BYTES", help="line stride of a .bin output")
    convert.add_argument(
        "--to-surface-stride", type=int, default=0, metavar="BYTES", help="surface stride of a .bin output"
    )
    convert.add_argument(
        "--quantization-scale", type=float, metavar="X", help="real value of one integer unit; quantizes or dequantizes"
    )
    convert.add_argument(
        "--zero-point", type=int, default=0, metavar="N", help="zero point: the integer that represents 0.0"
    )
    add_image_options(convert)
    info = commands.add_parser("info", help="print shape, type and statistics of a tensor")
    info.add_argument("input", metavar="INPUT", help=" ".join(INPUTS))
    _add_form(info)
    layout = commands.add_parser("layout", help="print the address of each element of a layout")
    _add_form(layout)
    layout.add_argument("--at", metavar="N,C,H,W", help="print one element only")
    for command in (convert, info, layout):
        add_format_options(command)


def _add_form(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tensor", metavar="LOADABLE[:NAME]", help="layout, shape, type and strides of a bound tensor")
    parser.add_argument("--layout", metavar="LAYOUT", choices=LAYOUTS, help=_LAYOUT_HELP)
    parser.add_argument("--shape", metavar="N,C,H,W", help="shape of a .bin input: C,H,W or N,C,H,W")
    parser.add_argument("--dtype", choices=DTYPES, help="element type of a .bin input, or of the result")
    parser.add_argument(
        "--line-stride", type=int, default=0, metavar="BYTES", help="line stride of a .bin input (default: packed)"
    )
    parser.add_argument(
        "--surface-stride",
        type=int,
        default=0,
        metavar="BYTES",
        help="surface stride of a .bin input (default: packed)",
    )
    parser.add_argument(
        "--image-stride", type=int, default=0, metavar="BYTES", help="byte distance between images of a batch"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    return {"convert": _convert, "info": _info, "layout": _layout}[args.tensor_command](args)


# ---- convert


def _convert(args: argparse.Namespace) -> int:
    suffix = ending(args.output, OUTPUTS, "a tensor")
    form = _form(args)
    array = _elements_of_input(args, form)
    if array is None:
        array = _read(args, form)
        read = _facts(array, form if args.input.endswith(".bin") else None)
    elif _is_picture(args):
        read = {"shape": list(image_shape(args.input)), "dtype": "uint8", "layout": None}
    else:
        read = _facts(read_npy(args.input), None)
    array = _with_values(args, array, form, suffix)
    target = None
    if suffix == ".bin":
        target = _target(args, form, array)
        array = cast(array, target.dtype, _advice(args, array))
        data = pack(array, target)
    else:
        data = _file(suffix, array, form)
    write_file(args.output, data)
    document: Document = {
        "format": FORMAT,
        "version": VERSION,
        "input": {"file": args.input, **read},
        "output": {"file": args.output, "bytes": len(data), **_facts(array, target)},
    }
    if not print_document(document, args):
        for side in ("input", "output"):
            facts = document[side]
            shape = shape_text(facts["shape"])
            say(f"{facts['file']}: {shape} {facts['dtype']} {facts['layout'] or ''}".rstrip())
    return 0


def _form(args: argparse.Namespace) -> Form | None:
    """Description of raw bytes from the arguments: a bound tensor, or layout, shape and type; None without any."""
    strides = (args.line_stride, args.surface_stride, args.image_stride)
    if min(strides) < 0:
        raise FormatError(f"strides {strides} must not be negative")
    if args.tensor:
        path, name = _bound(args.tensor)
        return form_of(load_loadable(path), name or None)
    if not (args.layout and args.shape):
        return None
    return Form(args.layout, _shape(args.shape), dtype_named(args.dtype or "int8"), *strides)


def _bound(word: str) -> tuple[str, str]:
    """The file and the tensor of ``--tensor``; the tensor may be missing."""
    path, colon, name = word.rpartition(":")
    return (word, "") if not colon or Path(word).exists() else (path, name)


def _is_picture(args: argparse.Namespace) -> bool:
    return Path(args.input).suffix.lower() in IMAGE_ENDINGS


def _elements_of_input(args: argparse.Namespace, form: Form | None) -> np.ndarray | None:
    """The elements of an input of ``--tensor`` from a picture or an array, as 'nvdla run --input' takes it.

    None for other files and tensors, and where options specify the conversion.
    """
    taken = _is_picture(args) or args.input.endswith(".npy")
    if form is None or not args.tensor or not taken or args.dtype or args.quantization_scale is not None:
        return None
    from nvdla.runtime import Runtime

    path, name = _bound(args.tensor)
    runtime = Runtime(path)
    names = [tensor.name for tensor in runtime.inputs]
    name = name or names[0]  # the form was that of the only input
    if name not in names:
        return None
    inputs: dict[str, Input] = {tensor.name: bytes(tensor.size) for tensor in runtime.inputs}
    try:
        surfaces = runtime.surfaces(inputs | {name: args.input}, preprocessing_of(args))
    except ScaleMissing as error:
        raise FormatError(
            f"{args.input}: scale of input {name}: must be known for {error.dtype} elements, got none. Use "
            "--quantization-scale and --zero-point to quantize the numbers as they are."
        ) from None
    if _is_picture(args):
        tell_changes(changes_of_pictures(runtime, args, [f"{name}={args.input}"]), args)
    return unpack(surfaces[names.index(name)], form, args.input)


def _shape(text: str, sides: tuple[int, ...] = (3, 4)) -> tuple[int, int, int, int]:
    try:
        numbers = tuple(integer(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in sides:
        raise FormatError(f"{text!r}: must be numbers N,C,H,W" + (" (or C,H,W)" if 3 in sides else ""))
    return (1, *numbers) if len(numbers) == 3 else numbers  # type: ignore[return-value]


def _read(args: argparse.Namespace, form: Form | None) -> np.ndarray:
    """The tensor of the input file, (N, C, H, W)."""
    suffix = ending(args.input, INPUTS, "a tensor")
    if suffix == ".bin":
        if form is None:
            raise FormatError(f"{args.input}: raw bytes need --tensor, or --layout with --shape and --dtype")
        return unpack(read_file(args.input, MAX_FILE, "raw surface"), form, args.input)
    shape = form.shape if form else _shape(args.shape) if args.shape else None
    if suffix == ".npy":
        return as_nchw(read_npy(args.input), shape, args.input)
    if suffix == ".dimg":
        from nvdla.tensors.files import read_dimg

        return as_nchw(read_dimg(args.input), shape, args.input)
    return _read_image(args.input, shape)


def _read_image(path: str, shape: tuple[int, int, int, int] | None) -> np.ndarray:
    """Pixels as they are, uint8 (1, C, H, W), color as R, G, B."""
    return read_pixels(path, shape or image_shape(path), PixelConversion(color="rgb"))


def _with_values(args: argparse.Namespace, array: np.ndarray, form: Form | None, suffix: str) -> np.ndarray:
    """Quantized (pixels and real numbers with a scale), dequantized (elements with a scale), or cast to --dtype."""
    if args.quantization_scale is not None:
        if _is_picture(args) or (array.dtype.kind == "f" and array.dtype != np.float16):
            wanted = dtype_named(args.dtype) if args.dtype else form.dtype if form else dtype_named("int8")
            return quantize(array, wanted, args.quantization_scale, args.zero_point)
        return dequantize(array, args.quantization_scale, args.zero_point)
    if args.dtype and not args.input.endswith(".bin"):
        return cast(array, dtype_named(args.dtype), _advice(args, array))
    return array


def _advice(args: argparse.Namespace, array: np.ndarray) -> str:
    """Advice for values that the elements cannot hold."""
    if args.quantization_scale is not None:
        return "Omit --quantization-scale, which converts integers to real numbers"
    if array.dtype.kind == "f" or _is_picture(args):
        return "Use --quantization-scale and --zero-point to quantize them"
    return "Save them as floating-point numbers, then use --quantization-scale"


def _target(args: argparse.Namespace, form: Form | None, array: np.ndarray) -> Form:
    """The form of a raw output: --to-layout, else that of --tensor or --layout."""
    if args.to_layout:
        strides = (args.to_line_stride, args.to_surface_stride)
        return Form(args.to_layout, array.shape, array.dtype.newbyteorder("<"), *strides)
    if form is None and args.layout:
        form = Form(args.layout, array.shape, array.dtype.newbyteorder("<"), args.line_stride, args.surface_stride)
    if form is None:
        raise FormatError(f"{args.output}: raw bytes need --to-layout (or --tensor LOADABLE:NAME)")
    if form.shape != array.shape:
        raise FormatError(f"the tensor is {shape_text(array.shape)}, the raw output {shape_text(form.shape)}")
    return form


def _file(suffix: str, array: np.ndarray, form: Form | None) -> bytes:
    """The content of an output file other than a raw surface."""
    if suffix == ".png":
        return picture(array)
    if suffix == ".dimg":
        from nvdla.tensors.files import dimg_bytes

        filled = form.filled() if form and form.layout in ATOMS else None
        strides = (filled.line_stride, filled.surface_stride) if filled else (0, 0)
        atom = ATOMS[form.layout] if filled and form else 32
        return dimg_bytes(array, atom, strides, filled.bytes if filled else 0)
    import io
    import json

    if suffix == ".json":
        values = array.astype(object) if array.dtype.kind == "f" else array
        if array.dtype.kind == "f":
            values[~np.isfinite(array)] = None
        document = {"shape": list(array.shape), "dtype": array.dtype.name, "data": values.tolist()}
        return (json.dumps(document, allow_nan=False) + "\n").encode()
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
    return stream.getvalue()


def _facts(array: np.ndarray, form: Form | None) -> Document:
    return {"shape": list(array.shape), "dtype": array.dtype.name, "layout": form.layout if form else None}


# ---- info


def _info(args: argparse.Namespace) -> int:
    form = _form(args)
    array = _read(args, form)
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    document = {
        "format": FORMAT,
        "version": VERSION,
        "file": args.input,
        **_facts(array, form if args.input.endswith(".bin") else None),
        "elements": int(array.size),
        "minimum": float(finite.min()) if finite.size else None,
        "maximum": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean(dtype=np.float64)) if finite.size else None,
        "zeros": int((array == 0).sum()),
        "not_finite": int(array.size - finite.size),
    }
    if not print_document(document, args):
        shown = {key: value for key, value in document.items() if key not in ("format", "version", "file")}
        print_pairs(args.input, shown | {"shape": array.shape})
    return 0


# ---- layout


def _layout(args: argparse.Namespace) -> int:
    form = _form(args)
    if form is None:
        raise FormatError("give --tensor LOADABLE:NAME, or --layout and --shape")
    form.make()
    document = layout_document(form, _shape(args.at, (4,)) if args.at else None)
    if not print_document(document, args):
        shown = {key: value for key, value in document.items() if key not in ("format", "version", "elements")}
        print_pairs(f"{form.layout} {'x'.join(map(str, form.shape))} {form.dtype.name}", shown)
        print_table("elements", document["elements"])
    return 0


def layout_document(form: Form, at: tuple[int, int, int, int] | None = None) -> Document:
    """A layout as plain data: strides, size, the formula, and addresses of some elements."""
    filled = form.filled()
    if at and not all(0 <= place < side for place, side in zip(at, form.shape, strict=True)):
        raise FormatError(f"--at {at}: the tensor is {shape_text(form.shape)}")
    places = [at] if at else _sample(form)
    atom = ATOMS.get(form.layout)
    return {
        "format": FORMAT,
        "version": VERSION,
        "layout": form.layout,
        "shape": list(form.shape),
        "dtype": form.dtype.name,
        "bytes": form.bytes,
        "atom": atom,
        "elements_in_atom": atom // form.dtype.itemsize if atom else None,
        "surfaces": filled.surfaces if atom else None,
        "line_stride": filled.line_stride or None,
        "surface_stride": filled.surface_stride or None,
        "image_stride": filled.image_stride or None,
        "formula": formula(form),
        "elements": [{"n": n, "c": c, "h": h, "w": w, "byte": form.offset(n, c, h, w)} for n, c, h, w in places],
    }


def formula(form: Form) -> str:
    """The byte of element (n, c, h, w), with this tensor's numbers."""
    size, (_, channels, height, width) = form.dtype.itemsize, form.shape
    if form.layout == "nchw":
        return f"(((n * {channels} + c) * {height} + h) * {width} + w) * {size}"
    if form.layout == "nhwc":
        return f"(((n * {height} + h) * {width} + w) * {channels} + c) * {size}"
    filled = form.filled()
    if form.layout in ATOMS:
        atom = ATOMS[form.layout]
        x = atom // size
        return (
            f"n * {filled.image_stride} + c // {x} * {filled.surface_stride} + h * {filled.line_stride} "
            f"+ w * {atom} + c % {x} * {size}"
        )
    return f"n * {filled.image_stride} + h * {filled.line_stride} + w * {form.pixel_bytes} + place(c) * {size}"


def _sample(form: Form) -> list[tuple[int, int, int, int]]:
    """Places that show how the layout goes: the first elements along each axis, and the last element."""
    _, channels, height, width = form.shape
    atom = ATOMS.get(form.layout, 0) // form.dtype.itemsize
    places = [(0, c, 0, 0) for c in (0, 1, atom - 1, atom) if 0 <= c < channels]
    places += [(0, 0, 0, 1)] * (width > 1) + [(0, 0, 1, 0)] * (height > 1)
    places += [(1, 0, 0, 0)] * (form.shape[0] > 1)
    images, height, width = form.shape[0], form.shape[2], form.shape[3]
    last = images - 1, channels - 1, height - 1, width - 1
    return list(dict.fromkeys([*places, last]))[:MAX_SAMPLE]
