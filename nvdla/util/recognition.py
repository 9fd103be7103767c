"""Kinds of files, recognized by their content, and the commands that read them.

Only the first bytes, the headers of the first protobuf fields, and the names in a zip directory are read, up to fixed
limits. A name or an extension decides nothing.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nvdla.errors import FormatError
from nvdla.util.files import MAX_PACKED, in_package, packed_file

#: bytes of the beginning that are read
HEADER = 4096
#: bytes of a zip directory that are read, and of the end of a file where its position is stored
_DIRECTORY, _END = 1 << 16, 22 + (1 << 16)
#: protobuf fields whose headers are read
_FIELDS = 64


@dataclass(frozen=True)
class FileKind:
    """Kind of a file: ``title`` with its article, and ``advice``, where ``{file}`` is the path for a shell,
    and ``{path}`` the path for Python. ``run_advice``: where the model is not compiled but run in floating point."""

    title: str
    advice: str
    run_advice: str = ""

    def advice_for(self, name: str, runs: bool = False) -> str:
        """Return the advice with the path of the file. ``runs``: the caller runs a model in floating point."""
        advice = (runs and self.run_advice) or self.advice
        return advice.replace("{file}", shlex.quote(name)).replace("{path}", repr(name))


_CALIBRATE = "with --calibrate DATA if the model is not quantized."
_AGAIN = "Write or download it again."
_COMPILE = f"Run 'nvdla compile {{file}} -o net.nvdla', {_CALIBRATE}"
_ONNX = f"run 'nvdla compile model.onnx -o net.nvdla', {_CALIBRATE}"
_CONTAINER = "Run 'nvdla container list {file}'."
_TENSOR = "Run 'nvdla run NET --input {file}'."
_SAVED = f"Install tf2onnx, convert it with 'python -m tf2onnx.convert --%s {{file}} --output model.onnx', then {_ONNX}"
_KERAS = (
    "Convert it to TFLite in Python: import tensorflow as tf; open('model.tflite', 'wb').write("
    "tf.lite.TFLiteConverter.from_keras_model(tf.keras.models.load_model({path})).convert()). "
    f"Then run 'nvdla compile model.tflite -o net.nvdla', {_CALIBRATE} "
    "For ONNX, install tf2onnx, call the model once, then model.export('model.onnx', format='onnx')."
)
_EXPORT = "it as ONNX in Python: torch.onnx.export(torch.export.load({path}), f='model.onnx', dynamo=True)."
_TORCH = (
    "Export it in Python, with the class of the model: model = Model(); model.load_state_dict(torch.load({path})), "
    "or model = torch.load({path}, weights_only=False) if you trust the file and it holds the whole module; "
    f"torch.onnx.export(model.eval(), (example_input,), 'model.onnx', dynamo=True). Then {_ONNX}"
)

#: kinds that other texts look like: a command that reads text accepts them
_GUESSES = ("c", "labels", "text")

KINDS = {
    "loadable": FileKind("an NVDLA loadable", "Run 'nvdla inspect {file}', or 'nvdla run {file} --input FILE'."),
    "package": FileKind(
        "a package of nvdla compile",
        "Run 'nvdla run {file} --input NAME=FILE' (Python: nvdla.load({path}).run(...)).",
    ),
    "onnx": FileKind("an ONNX model", _COMPILE),
    "cut-onnx": FileKind("an ONNX model that is cut off", _AGAIN),
    "tflite": FileKind("a TFLite model", _COMPILE),
    "prototxt": FileKind(
        "a Caffe network", "Run 'nvdla compile {file} --weights WEIGHTS.caffemodel --calibrate DATA -o net.nvdla'."
    ),
    "caffemodel": FileKind(
        "Caffe weights", "Run 'nvdla compile NET.prototxt --weights {file} --calibrate DATA -o net.nvdla'."
    ),
    "hdf5": FileKind("a Keras model or another HDF5 file", _KERAS),
    "keras": FileKind("a Keras model", _KERAS),
    "pt2": FileKind(
        "a PyTorch program (torch.export)",
        f"Run 'nvdla compile {{file}} --trusted -o net.nvdla', {_CALIBRATE} Or export {_EXPORT}",
        run_advice=f"Export {_EXPORT}",
    ),
    "torch": FileKind("a PyTorch checkpoint", _TORCH),
    "torchscript": FileKind(
        "a TorchScript module",
        f"Export the original module in Python with torch.onnx.export(dynamo=True). Then {_ONNX}",
    ),
    "pickle": FileKind("a Python pickle (an old PyTorch checkpoint?)", _TORCH),
    "saved_model": FileKind("a TensorFlow SavedModel", _SAVED % "saved-model"),
    "graph_def": FileKind("a frozen TensorFlow graph", _SAVED % "graphdef"),
    "darknet": FileKind("a Darknet network", f"Convert it to ONNX, then {_ONNX}"),
    "vmfb": FileKind("an IREE module (.vmfb)", _CONTAINER),
    "irpa": FileKind("an IREE parameter archive (.irpa)", _CONTAINER),
    "safetensors": FileKind("a safetensors file", _CONTAINER),
    "gguf": FileKind("a GGUF file", _CONTAINER),
    "tvm-params": FileKind("TVM parameters", _CONTAINER),
    "tar": FileKind("a tar archive (a TVM model library?)", _CONTAINER),
    "trace": FileKind("a register trace", "Run 'nvdla trace replay {file} --config NAME'."),
    "csb": FileKind("a log of register accesses", "Run 'nvdla csb {file}'."),
    "npz": FileKind(
        "a NumPy archive (.npz)",
        "Save one of its arrays as .npy, or run 'nvdla evaluate NET {file}' (samples of a network with one input) or "
        "'nvdla container list {file}'.",
    ),
    "npy": FileKind("a NumPy array (.npy)", _TENSOR),
    "dimg": FileKind("a tensor of NVIDIA's runtime (.dimg)", _TENSOR),
    "image": FileKind("an image (PNG, JPEG or PNM)", _TENSOR),
    "other-image": FileKind("an image of a format that is not read", "Convert it to PNG or JPEG."),
    "layers": FileKind(
        "a layer file (names and scales of a loadable's tensors)",
        "Commands read it next to its loadable, as LOADABLE.layers.json. Run 'nvdla layers LOADABLE'.",
    ),
    "names": FileKind("a file of layer names and scales (YAML)", "Run 'nvdla cycles LOADABLE --layers {file}'."),
    "calibration": FileKind(
        "a calibration table",
        "Run 'nvdla compile MODEL --calibrate {file} -o net.nvdla'. --scales of other commands reads NVIDIA's JSON.",
    ),
    "configuration": FileKind(
        "a hardware configuration", "Run 'nvdla configs {file}', or 'nvdla lint LOADABLE --config {file}'."
    ),
    "settings": FileKind("settings of nvdla", "Commands that run in its directory read it."),
    "manifest": FileKind("the manifest of a package", "Give the package: 'nvdla inspect NET.nvpkg'."),
    "journal": FileKind(
        "a journal of 'nvdla evaluate' or 'nvdla faults'",
        "Repeat the command with --samples {file} --resume to continue it, or with --merge {file} for its results.",
    ),
    "dump": FileKind(
        "the index of 'nvdla run --dump-ops'",
        "Run 'nvdla compare LOADABLE --input FILE --golden DIR' with its directory.",
    ),
    "document": FileKind("a result of nvdla (JSON)", "docs/json has the schema of its keys."),
    "timeline": FileKind("a timeline of 'nvdla timeline'", "Open it at https://ui.perfetto.dev."),
    "memory": FileKind("memory contents of a register program", "Give the trace (.cfg or .txn) next to it."),
    "dot": FileKind("a graph of 'nvdla graph' (Graphviz)", "Run 'dot -Tsvg {file} -o graph.svg'."),
    "page": FileKind("a page (HTML or SVG)", "Open it in a browser."),
    "table": FileKind("a table (CSV)", "Read it in Python with pandas.read_csv({path})."),
    "values": FileKind(
        "an output of 'nvdla run' (JSON)", "Write it as .npy to compare it: 'nvdla run NET -o FILE.npy'."
    ),
    "c": FileKind("C code", "'nvdla program LOADABLE --board list' lists projects that build it."),
    "labels": FileKind(
        "a text file (class names, one per line?)", "Run 'nvdla run NET --input FILE --class-names {file}'."
    ),
    "text": FileKind("a text file", "Give a model, or the file that the compiler wrote (.nvdla)."),
    "zip": FileKind("a zip archive", "Extract it first."),
    "cut-zip": FileKind("a zip archive that is cut off (a package of nvdla compile?)", _AGAIN),
    "gzip": FileKind("a gzip file", "Decompress it first."),
    "elf": FileKind("a program (ELF)", "Give the file that the compiler wrote (.nvdla)."),
    "empty": FileKind("an empty file", _AGAIN),
    "folder": FileKind("a directory", "Give one of its files, or run 'nvdla evaluate NET {file}' for a data set."),
}


def kind_of(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> str:
    """Return the kind of a file or of its bytes.

    Args:
        source: a path or the content. Pipes and devices are not read.

    Returns:
        A key of :data:`KINDS`; "" for unknown content, and for a path that cannot be read.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _kind(io.BytesIO(source))
    path = Path(source)
    try:
        if packed := in_package(path):
            return _kind(io.BytesIO(packed_file(*packed, MAX_PACKED)))
        if path.is_dir():
            return "saved_model" if (path / "saved_model.pb").is_file() else "folder"
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return _kind(file)
    except (OSError, ValueError, FormatError):
        return ""


def is_text(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> bool:
    """Check whether a file or its bytes are text of no kind that is certain."""
    return kind_of(source) in _GUESSES


_NO_MODELS = ("text", "elf")  # with advice for those who look for a loadable


def wrong_kind(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    name: str,
    wanted: str,
    takes: Collection[str],
    runs: bool = False,
) -> str | None:
    """Return the error message for a file of another kind.

    Args:
        source: a path or the content.
        name: path of the file, or another name for its bytes.
        wanted: what the caller reads, with its article.
        takes: keys of :data:`KINDS` that the caller reads.
        runs: the caller runs a model in floating point.

    Returns:
        A message with the advice of the file's kind; None if the kind is unknown or one of ``takes``.
    """
    kind = kind_of(source)
    if kind in ("", *_GUESSES, *takes):
        return None
    advice = KINDS[kind].advice_for(name, runs)
    if kind == "package" and (part := _first_loadable(source)):
        advice += f" Or give a loadable in it, such as {shlex.quote(f'{name}/{part}')}."
    if kind in _NO_MODELS and "loadable" not in takes:
        advice = ""
    return f"{name}: must be {wanted}, got {KINDS[kind].title}. {advice}".rstrip()


def _first_loadable(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> str:
    """Name of the first loadable in a package; empty where all parts run on the host."""
    with io.BytesIO(source) if isinstance(source, bytes | bytearray | memoryview) else Path(source).open("rb") as file:
        directory = _zip_directory(file)
        names = [] if directory is None else _zip_names(file, directory)
        return next((name for name in names if name.endswith(".loadable")), "")


#: (position, bytes, kind); the first that fits decides
_MAGIC = (
    (4, b"NVDA", "loadable"),
    (4, b"TFL3", "tflite"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (0, b"IRPA", "irpa"),
    (0, b"GGUF", "gguf"),
    (0, (0xF7E58D4F05049CB7).to_bytes(8, "little"), "tvm-params"),
    (0, b"\x93NUMPY", "npy"),
    (0, b"DIMG", "dimg"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"\x7fELF", "elf"),
    (0, b"\x89PNG", "image"),
    (0, b"\xff\xd8\xff", "image"),
    (0, b"GIF8", "other-image"),
    (0, b"BM", "other-image"),
    (0, b"II*\0", "other-image"),
    (0, b"MM\0*", "other-image"),
    (8, b"WEBP", "other-image"),
    (4, b"IREE", "vmfb"),
    (8, b"IREE", "vmfb"),
    (257, b"ustar", "tar"),
)
#: part of a member's name in a zip archive, and the kind; the first that fits decides
_MEMBERS = (
    (r"manifest\.json$", "package"),
    (r"constants\.npz$", "package"),  # the first member, of a package that is cut off
    (r"module\.fb$", "vmfb"),
    (r"model\.weights\.h5$", "keras"),
    (r"(.*/)?models/.*\.json$", "pt2"),
    (r"(.*/)?serialized_exported_program\.json$", "pt2"),
    (r"(.*/)?constants\.pkl$", "torchscript"),
    (r"(.*/)?data\.pkl$", "torch"),
    (r".*\.npy$", "npz"),
)
#: what the beginning of a text contains, and the kind
_TEXTS = (
    (r"(?m)^\s*(reg_write|reg_read|mem_init|mem_load|poll_reg\w*|sync_notify|sync_wait)\s*\(", "trace"),
    (r"(?m)^\s*(layers?\s*:?\s*\{|input_(dim|shape)\b)", "prototxt"),
    (r"(?m)^\[(net|network|convolutional)\]", "darknet"),
    (r"(?m)^\s*(write_reg|read_reg|load_mem|dump_mem)\s", "trace"),
    (r"(?m)^(W|R) 0x[0-9a-fA-F]+\s|iswrite=[01]", "csb"),
    (r'\A\{[^{]*"format":\s*"nvdla-campaign"', "journal"),
    (r'\A\{[^{]*"format":\s*"nvdla-dump"', "dump"),
    (r'\A\{\s*"config":[^,]*,\s*"evaluated":|\A\{\s*"accuracy":\s*\[|\A\{[^{]*"format":\s*"nvdla-layers"', "layers"),
    (r'\A\{\s*"format":\s*"nvdla-package",\s*"version":\s*\d+,\s*"command":', "document"),
    (r'\A\{[^{]*"format":\s*"nvdla-package"', "manifest"),
    (r'\A\{[^{]*"format":\s*"nvdla-', "document"),
    (r'\A\{\s*"traceEvents":', "timeline"),
    (r'\A\{\s*"[^"]*":\s*\{\s*"(scale|min|max|offset)":|\ATRT-\d', "calibration"),
    (r"(?m)^(base: \w+|mac_atomic_[ck]:)", "configuration"),
    (r"(?m)^layers:\s*\n\s+\d+/\d+:|^scales:\s*\n\s", "names"),
    (r"(?m)^\[tool\.nvdla\]", "settings"),
    (r"\A\{?\s*\{offset:|\A0x[0-9a-f]{2} 0x|\A:[0-9A-F]{10,}|\A(0x)?[0-9a-f]{8}\s*\n", "memory"),
    (r'\A\{"shape":\s*\[[^]]*\],\s*"dtype":', "values"),
    (r"\A(fault,kind|config,precision),", "table"),
    (r"\A(#include|#ifndef|/\* )", "c"),
    (r"\A(strict )?digraph\b", "dot"),
    (r"(?i)\A\s*<(!doctype html|html|svg|\?xml)", "page"),
    (r"\A(?![\[<:])([^\W\d][^{}();=<>#\t\n]{0,80}\r?\n)+[^\n]*\Z", "labels"),
)


def _kind(file: IO[bytes]) -> str:
    header = file.read(HEADER)
    if not header:
        return "empty"
    for position, magic, kind in _MAGIC:
        if header.startswith(magic, position):
            return kind
    if header[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _zip_kind(file)
    if re.match(rb"P[1-6]\s", header):
        return "image"
    if header[8:9] == b"{" and int.from_bytes(header[:8], "little") < 1 << 32:
        return "safetensors"
    if re.match(rb"\x80[\x02-\x05]", header):
        return "pickle"
    printable = all(32 <= byte < 127 or byte in b"\t\n\r" for byte in header)
    return _text_kind(header) or _protobuf_kind(file) or ("text" if printable else "")


def _text_kind(header: bytes) -> str:
    if b"\0" in header:
        return ""
    text = header.decode("utf-8", "replace")
    return next((kind for pattern, kind in _TEXTS if re.search(pattern, text)), "")


def _zip_kind(file: IO[bytes]) -> str:
    directory = _zip_directory(file)
    names = list(_zip_names(file, directory or 0))
    known = (kind for pattern, kind in _MEMBERS if any(re.match(pattern, name) for name in names))
    return next(known, "cut-zip" if directory is None else "zip")


def _zip_names(file: IO[bytes], start: int) -> Iterator[str]:
    """Names in the directory of a zip archive (those that were read); of the first member if it is cut off (0)."""
    file.seek(start)
    directory, at = file.read(_DIRECTORY), 0
    if directory.startswith(b"PK\x03\x04"):
        yield directory[30 : 30 + int.from_bytes(directory[26:28], "little")].decode("utf-8", "replace")
    while directory.startswith(b"PK\x01\x02", at):
        lengths = [int.from_bytes(directory[at + 28 + 2 * i : at + 30 + 2 * i], "little") for i in range(3)]
        yield directory[at + 46 : at + 46 + lengths[0]].decode("utf-8", "replace")
        at += 46 + sum(lengths)


def _zip_directory(file: IO[bytes]) -> int | None:
    """Return the position of the directory of a zip archive; None of one that is cut off."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END))
    end = file.read(_END)
    at = end.rfind(b"PK\x05\x06")
    if at < 0:
        return None
    locator, start = end[max(0, at - 20) : at], int.from_bytes(end[at + 16 : at + 20], "little")
    if start == 0xFFFFFFFF and locator.startswith(b"PK\x06\x07"):  # ZIP64, as IREE writes it
        file.seek(min(int.from_bytes(locator[8:16], "little") + 48, size))
        start = int.from_bytes(file.read(8), "little")
    return min(start, size)


def _protobuf_kind(file: IO[bytes]) -> str:
    """ONNX: numbers 1 and 7 or 8. SavedModel: 1 and 2. Caffe: 1, then layers. A graph of TensorFlow: nodes (1)."""
    fields, whole = _fields(file)
    number, text = 0, 2  # wire types
    if not whole:  # the graph (7) is nearly all of an ONNX model
        return "cut-onnx" if fields[:1] == [(1, number)] and fields[-1] == (7, text) else ""
    if (1, number) in fields and {(7, text), (8, text)} & set(fields):
        return "onnx"
    if fields[:2] == [(1, number), (2, text)] and set(fields) == {(1, number), (2, text)}:
        return "saved_model"
    if fields and fields[0] == (1, text):
        if {(2, text), (100, text)} & set(fields) and (4, text) not in fields:
            return "caffemodel"
        if set(fields) <= {(1, text), (2, text), (4, text)} and len(fields) > 1:
            return "graph_def"
    return ""


def _fields(file: IO[bytes]) -> tuple[list[tuple[int, int]], bool]:
    """Numbers and wire types of the first protobuf fields, none if the content is not protobuf; and whether the file
    has all bytes of the last one."""
    size, at = file.seek(0, os.SEEK_END), 0
    fields: list[tuple[int, int]] = []
    while at < size and len(fields) < _FIELDS:
        file.seek(at)
        head = file.read(20)
        key, length = _varint(head, 0)
        value, used = _varint(head, length)
        if not length or key >> 3 == 0 or key & 7 not in (0, 2) or not used:
            return [], True
        fields.append((key >> 3, key & 7))
        at += length + used + (value if key & 7 == 2 else 0)
    return fields, at <= size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and its length in bytes; a length of 0 where none is stored."""
    value = 0
    for used, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * used
        if byte < 128:
            return value, used + 1
    return 0, 0
