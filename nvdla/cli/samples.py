"""Command ``nvdla samples``: the sample networks and images that are installed with the toolkit."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from nvdla.cli.output import add_format_options, print_document, print_table, say
from nvdla.errors import FormatError
from nvdla.util.escaping import Document
from nvdla.util.files import make_directory, read_file, write_file

MAX_FILE = 16 << 20
#: What each is; a pattern stands for the files that are taken together.
CONTENTS = {
    "lenet": "LeNet-5 for gray digits of 28x28, int8, nv_small",
    "lenet_nv_large": "the same for nv_large",
    "lenet_nv_full_fp16": "the same in fp16 for nv_full",
    "color_digits": "color images of 32x32, int8, nv_small",
    "color_digits_nv_full_fp16": "the same in fp16 for nv_full",
    "digit": "a gray digit of each class",
    "color_digit": "a color image of each class",
    "labels": "names of the classes",
    "caffe": "LeNet as a Caffe network in float32",
    "onnx": "LeNet as an ONNX model in float32",
    "digits": "360 digits that were not used in training, as images with labels",
    "held_out": "the same, 8x8 as they were scanned",
    "faulty": "LeNet with one wrong weight (flipped), and with saturated results (saturating)",
    "golden": "results of every operation of LeNet for digit3.pgm",
    "tensors": "an input as an array, an output as the bytes of its surface",
    "traces": "register traces for nv_small: a convolution, a pooling, a scaling",
    "cocotb": "bus models for cocotb (registers, memory, traces) with an example in Verilog",
    "labs": "eight labs of a course as notebooks, with checks; they need the other samples",
    "configurations": "rows of NVIDIA's table of area and speed without a spec, as configuration files",
}
_PATTERNS = {
    "digit": ("digit[0-9].pgm",),
    "color_digit": ("color_digit[0-9].ppm",),
    "labels": ("labels.txt",),
    "caffe": ("lenet.prototxt", "lenet.caffemodel"),
    "onnx": ("lenet.onnx",),
    "digits": ("digits.npz",),
    "held_out": ("held_out.npz",),
    "faulty": ("flipped.loadable*", "saturating.loadable*"),
    "golden": ("golden/*",),
    "tensors": ("input.npy", "prob.bin"),
    "traces": ("traces/*",),
    "cocotb": ("cocotb/*.py", "cocotb/copier.v", "cocotb/Makefile"),
    "labs": ("labs/*.ipynb",),
    "configurations": ("configurations/*",),
}


def folder() -> Path:
    """Return the directory of the samples: in the installed package, or next to it in a checkout. Raises
    FormatError."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "sample_files", package.parent / "samples"):
        if (place / "lenet.loadable").is_file():
            return place
    raise FormatError(f"the samples are not installed: {package / 'sample_files'} does not exist. Reinstall nvdla.")


def files_of(name: str) -> list[Path]:
    """The files of a sample by its name in :data:`CONTENTS`, or one file by its own name. Raises FormatError."""
    place = folder()
    if name in CONTENTS:
        patterns = _PATTERNS.get(name, (f"{name}.loadable", f"{name}.loadable.layers.json"))
        return sorted(path for pattern in patterns for path in place.glob(pattern))
    known = {path.name: path for content in CONTENTS for path in files_of(content)}
    if name in known:
        return [known[name]]
    near = difflib.get_close_matches(name, [*CONTENTS, *known], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise FormatError(f"unknown sample {name!r}: must be one of {', '.join(CONTENTS)}{hint}")


def write(names: list[str], target: Path) -> list[Path]:
    """Copy samples into a folder, each file whole or not at all; returns what was written. Raises FormatError."""
    written = []
    for path in dict.fromkeys(path for name in names for path in files_of(name)):
        place = target / path.relative_to(folder())
        make_directory(place.parent)
        write_file(place, read_file(path, MAX_FILE, "sample"))
        written.append(place)
    return written


HELP = """List the samples, or write them to a directory.

  nvdla samples                        list the samples
  nvdla samples lenet digit -o demo    write two samples
  nvdla samples -o demo                write all samples"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("name", nargs="*", metavar="NAME", help="names of samples or files (default: all)")
    parser.add_argument("--output", "-o", metavar="DIR", help="output directory (default: current directory)")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    written: list[Path] = []
    if args.name or args.output:
        written = write(args.name or list(CONTENTS), Path(args.output or "."))
    rows: list[Document] = []
    for name, contents in CONTENTS.items():
        files = files_of(name)
        size = sum(path.stat().st_size for path in files)
        rows.append({"name": name, "files": [path.name for path in files], "bytes": size, "what": contents})
    if print_document({"samples": rows, "written": [str(path) for path in written]}, args):
        return 0
    for path in written:
        say(str(path))
    if not written:
        shown = [{**row, "files": row["files"][0] if len(row["files"]) == 1 else len(row["files"])} for row in rows]
        print_table("samples", shown)
        say("'nvdla samples NAME -o DIR' writes them; 'nvdla run --demo' runs one.")
    return 0
