"""Packages on the command line: a command that reads loadables runs once for each accelerator part of a package.

"net.nvpkg/part0.loadable" is the path of one part, which every command takes (:func:`nvdla.util.files.in_package`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvdla.cli import output
from nvdla.errors import FormatError, NvdlaError, UnknownOperationError, counted
from nvdla.util.escaping import Document, c_identifier
from nvdla.util.files import packed_file, packed_files
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    import numpy as np

    from nvdla.compiler.frontend.package import HostMachine, Package, PackedPart

OPENS = frozenset({"run", "evaluate", "faults", "explore", "report", "view", "container"})
"""Commands that open packages themselves."""
WRITES = {
    "inspect": (), "layers": (), "cycles": (), "timeline": ("output",), "memory": ("svg",), "graph": ("output",),
    "explain": ("svg",), "lint": (), "doctor": (), "compare": (), "export": ("output", "node_data"),
    "program": ("output",),
}  # fmt: skip
"""Commands that run for each part, and their options with a file to write: each part gets a file."""
HOST_COLUMNS = ("part", "nodes", "operators", "macs", "share", "ms", "reason")
FORMAT, VERSION = "nvdla-package", 1
BAD_INPUT = 2
"""Exit code of a part that cannot be read."""


def run(command: Callable[[argparse.Namespace], int], args: argparse.Namespace, path: str) -> int:
    """Run a command on a package: for each accelerator part, unless the command opens packages itself.

    Returns:
        The exit code, the largest one of all parts.

    Raises:
        FormatError: the command cannot take packages; the message has the reason and the parts.
    """
    name = args.command_name
    if name in OPENS:
        return command(args)
    from nvdla.compiler.frontend.package import unpack

    try:
        package = unpack(path)
    except NvdlaError as error:
        if _goes_on(args):
            _examine_rest(command, args, path, str(error))
        raise
    numbers = [number for number, part in enumerate(package.parts) if part.loadable is not None]
    known = ", ".join(part_path(path, number) for number in numbers) or "none"
    if name not in WRITES:
        raise FormatError(
            f"{path}: must be a loadable, got a package: 'nvdla {name}' takes one loadable. Its loadables: {known}"
        )
    if not numbers:
        raise FormatError(
            f"{path}: parts: must be at least one on the accelerator, got host parts alone. "
            "Run 'nvdla compile MODEL --nodes' for the reasons, or 'nvdla run' to run the parts on the host."
        )
    if name == "compare" and not (args.onnx or args.caffe or args.float):
        raise FormatError(f"{path}: a package is compared with its model: give --onnx, --tflite or --caffe MODEL")
    if name == "compare" and not args.input and args.random_input is None:
        raise FormatError(f"{path}: no input: give --input FILE or --random-input")
    with tempfile.TemporaryDirectory(prefix="nvdla-parts-") as folder:
        changes = _changes(args, package, path, Path(folder))
        codes, documents, others = _run_parts(command, args, changes)
    _tell(args, package, path, dict(zip(codes, documents, strict=True)), others)
    return max(codes.values())


def _goes_on(args: argparse.Namespace) -> bool:
    """Return whether the command examines the other files of a damaged package: as text, which may follow an error."""
    return args.command_name == "doctor" and not (args.json or args.csv or args.tsv)


def _examine_rest(
    command: Callable[[argparse.Namespace], int], args: argparse.Namespace, path: str, reported: str
) -> None:
    """Run a command on the loadables of a damaged package, and report all damaged files but the one in ``reported``."""
    from nvdla.compiler.frontend.package import MAX_PACKAGE

    try:
        members = packed_files(path)
    except FormatError:  # cut off before its directory
        return
    for member in members:
        try:
            if member.endswith(".loadable"):
                changed: Document = {"loadable": f"{path}/{member}", "input": [], "random_input": None}
                command(argparse.Namespace(**vars(args) | changed))
            else:
                packed_file(path, member, MAX_PACKAGE)
        except NvdlaError as error:
            if f"member {member}" not in reported:
                output.say(f"nvdla {args.command_name}: {error}", sys.stderr)


def part_path(package: str, number: int) -> str:
    """Return the path of an accelerator part: "net.nvpkg/part0.loadable"."""
    return f"{package}/part{number}.loadable"


def _run_parts(
    command: Callable[[argparse.Namespace], int], args: argparse.Namespace, changes: Mapping[int, Document]
) -> tuple[dict[int, int], list[Mapping[str, Any] | None], list[Mapping[str, Any]]]:
    """Exit codes by part, and the document of each. A part that lacks the operation that is asked for is left out; the
    third are the documents of these, which count in totals."""
    codes: dict[int, int] = {}
    documents: list[Mapping[str, Any] | None] = []
    unknown: dict[int, UnknownOperationError] = {}
    for number, changed in changes.items():
        try:
            with output.collected() as printed:
                codes[number] = command(argparse.Namespace(**vars(args) | changed))
        except UnknownOperationError as error:
            unknown[number] = error
            continue
        except NvdlaError as error:
            if not _goes_on(args):
                raise
            output.say(f"nvdla {args.command_name}: {error}", sys.stderr)
            codes[number], printed = BAD_INPUT, []
        documents.append(printed[0] if printed else None)
    if not codes:
        raise UnknownOperationError("; ".join(f"part {number}: {error}" for number, error in unknown.items()))
    others: list[Mapping[str, Any]] = []
    for number in unknown if getattr(args, "op", None) else ():
        silence = io.StringIO()
        with output.collected() as printed, contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            command(argparse.Namespace(**vars(args) | changes[number] | {"op": []}))
        others += printed
    return codes, documents, others


def _changes(args: argparse.Namespace, package: Package, path: str, folder: Path) -> dict[int, Document]:
    """Arguments that differ by part: its path, configuration, inputs and written files."""
    from nvdla.emulator.hardware.configuration import configurations

    numbers = [number for number, part in enumerate(package.parts) if part.loadable is not None]
    config = package.manifest["config"]
    common: Document = {"host_time": None}
    common |= {"config": config} if _asks_auto(args) and config in configurations() else {}
    given, seed = list(getattr(args, "input", None) or ()), getattr(args, "random_input", None)
    is_fed = bool(given) or seed is not None
    if is_fed:
        from nvdla.compiler.frontend.opening import rounded

        feeds = feeds_of_runs(package, args)
        real = rounded(package.parts, feeds[0])
        common |= {"model_inputs": real, "random_input": None}
        fed = _fed(args, package, feeds, folder)
    changes = {}
    for number in numbers:
        changed = common | {"loadable": part_path(path, number)} | ({"input": fed[number]} if is_fed else {})
        for option in WRITES[args.command_name]:
            if getattr(args, option) and len(numbers) > 1:
                changed[option] = with_number(getattr(args, option), number)
        if args.command_name == "program" and not args.name:
            changed["name"] = c_identifier(f"{Path(path).stem}_part{number}")
        changes[number] = changed
    return changes


def _asks_auto(args: argparse.Namespace) -> bool:
    return getattr(args, "config", None) == "auto"


def with_number(path: str, number: int) -> str:
    """Return the file of a part: "out.json" -> "out.part0.json"; "folder" -> "folder.part0"."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}.part{number}{suffix}"


def random_feeds(package: Package, seed: int) -> dict[str, np.ndarray]:
    """Return random real numbers for all inputs of the model."""
    from numpy import float32
    from numpy.random import default_rng

    generator, shapes = default_rng(seed), package.manifest["inputs"]
    return {name: generator.uniform(*_limits(package, name), shapes[name]).astype(float32) for name in shapes}


def feeds_of_runs(package: Package, args: argparse.Namespace) -> list[dict[str, np.ndarray]]:
    """Return real numbers of all inputs of the model, for each run that ``--input`` and ``--random-input`` ask for.

    Raises:
        FormatError: an input is missing, or a file does not fit.
    """
    from nvdla.cli.arguments import files_of_runs, preprocessing_of
    from nvdla.compiler.frontend.package import real_input

    shapes, parts = package.manifest["inputs"], package.parts
    if args.random_input is not None and not args.input:
        return [random_feeds(package, args.random_input)]
    pictures = package.preprocessing.changed_by(preprocessing_of(args))
    return [
        {name: real_input(path, name, shapes[name], pictures, parts) for name, path in files.items()}
        for files in files_of_runs(args.input, list(shapes))
    ]


LARGEST = {Precision.INT8: 127, Precision.INT16: 32767}
"""Largest element of a quantized tensor."""


def _limits(package: Package, name: str) -> tuple[float, float]:
    """Return the real numbers that the elements of an input represent: -1 to 1 where it is not quantized."""
    for part in package.parts:
        for tensor in (binding.tensor for binding in part.inputs if binding.value == name):
            if tensor in part.scales and (most := LARGEST.get(part.precision_of(tensor))):
                zero = part.zero_points.get(tensor, 0)
                return (-most - zero) * part.scales[tensor], (most - zero) * part.scales[tensor]
    return -1.0, 1.0


def by_name(words: Sequence[str], names: list[str], kind: str) -> dict[str, str]:
    """Files by the name of an input or output of the model; without names in order. Raises FormatError."""
    from nvdla.cli.arguments import split_name

    files: dict[str, str] = {}
    for word in words:
        name, path = split_name(word, names)
        name = next((free for free in names if free not in files), None) if name is None else name
        if name not in names or name in files:
            raise FormatError(f"--{kind} {word}: must be one {kind} each of {', '.join(names) or 'none'}")
        files[name] = path
    return files


def inputs_of_parts(args: argparse.Namespace, path: str, folder: Path) -> dict[str, Document]:
    """Run a package on ``--input`` or ``--random-input``, and return the arguments that show each part in this run.

    Args:
        args: the command line.
        path: the package.
        folder: directory for the inputs of the parts.

    Returns:
        Changes of the arguments by the name of the part's loadable; empty without inputs.

    Raises:
        FormatError: an input is missing, or a file does not fit.
    """
    from nvdla.compiler.frontend.package import unpack

    if not args.input and args.random_input is None:
        return {}
    package = unpack(path)
    fed = _fed(args, package, feeds_of_runs(package, args), folder)
    return {Path(part_path(path, number)).name: {"input": words, "random_input": None} for number, words in fed.items()}


def _fed(
    args: argparse.Namespace, package: Package, feeds: Sequence[Mapping[str, np.ndarray]], folder: Path
) -> dict[int, list[str]]:
    """``--input`` words for every accelerator part: files with the elements that runs of the package give it."""
    import numpy as np

    words: dict[int, list[str]] = {}

    def write(number: int, elements: dict[str, np.ndarray]) -> None:
        for name, array in elements.items():
            path = folder / f"part{number}-{len(words.setdefault(number, []))}.npy"
            np.save(path, array)
            words[number].append(f"{name}={path}")

    strict, trusted = getattr(args, "strict", False), getattr(args, "trusted", False)
    machine = package.machine(strict, trusted, getattr(args, "config", "auto"))
    for feed in feeds:
        machine.run(feed, write)
    return words


def measured(machine: HostMachine, inputs: Mapping[str, np.ndarray], runs: int = 5) -> dict[int, float]:
    """Measure the work of the host on this machine; the fastest of ``runs`` counts.

    Args:
        machine: the package.
        inputs: real numbers by the model's names.
        runs: number of measurements of each part.

    Returns:
        Seconds by number of the part: of a host part including the transfer to and from the process that runs
        onnxruntime, of an accelerator part for the conversion of its inputs and outputs.
    """
    values: dict[str, np.ndarray] = {**inputs, **machine.constants}
    accelerators = machine.accelerators()
    seconds: dict[int, float] = {}
    for number, part in enumerate(machine.parts):
        accelerator = accelerators.get(number)
        elements = accelerator.runtime.run(accelerator.elements(values)) if accelerator else {}
        for _ in range(runs):
            began = time.perf_counter()
            if accelerator:
                accelerator.elements(values)
            results = accelerator.real(elements) if accelerator else part.run(values)
            seconds[number] = min(seconds.get(number, math.inf), time.perf_counter() - began)
        values.update(results)
    return seconds


def host_rows(parts: Sequence[PackedPart], seconds: Mapping[int, float]) -> list[Document]:
    """Return one row per host part: its nodes, operators, share of the multiplications, measured time and reasons."""
    total = sum(part.macs for part in parts)
    return [
        {
            "part": number,
            "nodes": len(part.nodes),
            "operators": sorted({row["op"] for row in part.rows}),
            "macs": part.macs,
            "share": f"{part.macs / total:.1%}" if total else None,
            "seconds": seconds.get(number),
            "reason": "; ".join(dict.fromkeys(row["reason"] for row in part.rows)),
        }
        for number, part in enumerate(parts)
        if part.loadable is None
    ]


def totals(package: Package, documents: Sequence[Mapping[str, Any] | None], seconds: Mapping[int, float]) -> Document:
    """Return sums over the parts. ``cycles`` is None unless every document has them; ``seconds``: measured, by part."""
    from nvdla.tensors.inputs import batch_of

    cycles = [document.get("total_cycles") if document else None for document in documents]
    host = {number: part for number, part in enumerate(package.parts) if part.loadable is None}
    macs = sum(part.macs for part in package.parts)
    ends = {*package.manifest["inputs"], *package.constants}
    sizes: dict[str, int] = {}
    for part in package.parts:  # host parts bind some values without a shape; an input may spread a value
        bound = [(binding, math.prod(binding.shape)) for binding in part.outputs]
        bound += [
            (binding, math.prod(binding.shape) if binding.index is None else int(binding.index.max(initial=-1)) + 1)
            for binding in part.inputs
        ]
        for binding, size in bound:
            sizes[binding.value] = max(sizes.get(binding.value, 0), size * part.images)
    crossing = [sizes[binding.value] for part in package.parts for binding in part.inputs if binding.value not in ends]
    sums = {
        "accelerator_parts": len(package.parts) - len(host),
        "cycles": None if None in cycles or not cycles else sum(filter(None, cycles)),
        "host_nodes": sum(len(part.nodes) for part in host.values()),
        "host_macs_share": sum(part.macs for part in host.values()) / macs if macs else None,
        "host_seconds": sum(seconds[number] for number in host) if seconds else None,
        "transfers": len(crossing),
        "transferred_bytes": 4 * sum(crossing),  # of float32
        "image_seconds": None,
        "frames_per_second": None,
    }
    if seconds and sums["cycles"] is not None:
        images = max(batch_of(package.manifest["inputs"].values()), *(part.images for part in package.parts))
        times = {
            "accelerator": sum(document["total_ms"] for document in documents if document) / 1000,
            "host": sums["host_seconds"],
            "transfers": sum(spent for number, spent in seconds.items() if number not in host),
        }
        sums["image_seconds"] = {name: spent / images for name, spent in times.items()}
        sums["frames_per_second"] = images / sum(times.values())
    return sums


def totals_text(sums: Mapping[str, Any]) -> str:
    """Describe totals: "accelerator 1,416 cycles in 3 parts, 6 host nodes not timed (81% of multiplications) ..."."""
    from nvdla.compiler.frontend.summary import transfers_text

    cycles, share = sums["cycles"], sums["host_macs_share"]
    timed = "" if cycles is None else f"{cycles:,} cycles "
    text = f"accelerator {timed}in {counted(sums['accelerator_parts'], 'part')}"
    seconds = sums["host_seconds"]
    host = f"{counted(sums['host_nodes'], 'host node')} "
    host += "not timed" if seconds is None else f"{seconds * 1e3:.3f} ms in onnxruntime on this machine"
    host += "" if share is None else f" ({share:.0%} of multiplications)"
    moved = transfers_text(sums["transfers"], sums["transferred_bytes"])
    if sums["image_seconds"] is not None:
        whole = sum(sums["image_seconds"].values())
        moved += f"; together {whole * 1e3:.3f} ms per image, {sums['frames_per_second']:,.1f} frames per second"
    return f"{text}, {host}, {moved}"


def _time_rows(seconds: Mapping[str, float]) -> list[Document]:
    """Rows of the time of one image, and their sum."""
    whole = sum(seconds.values())
    rows = {
        "accelerator (cycle model)": seconds["accelerator"],
        "host parts (measured)": seconds["host"],
        "conversion of values (measured)": seconds["transfers"],
        "total": whole,
    }
    return [
        {"where": name, "ms": f"{spent * 1e3:.3f}", "share": f"{spent / whole:.1%}"} for name, spent in rows.items()
    ]


def _tell(
    args: argparse.Namespace,
    package: Package,
    path: str,
    documents: Mapping[int, Mapping[str, Any] | None],
    others: Sequence[Mapping[str, Any]],
) -> None:
    """All parts in one document, or for people the host parts and the totals after the tables of the parts. ``others``:
    documents that only count in the totals."""
    seconds = {}
    if getattr(args, "host_time", None):
        seconds = measured(package.machine(config=getattr(args, "config", "auto")), random_feeds(package, 0))
    rows = host_rows(package.parts, seconds)
    sums = totals(package, [*documents.values(), *others], seconds)
    parts = [{"part": number, "kind": "accelerator", "document": document} for number, document in documents.items()]
    hosts = [{"kind": "host", **row} for row in rows]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "command": args.command_name,
        "package": path,
        "configuration": package.manifest["config"],
        "parts": sorted(parts + hosts, key=lambda row: row["part"]),
        "totals": sums,
    }
    if output.print_document(document, args):
        return
    drawn = args.command_name == "graph" and not args.output  # standard output has the graphs alone
    if not drawn and rows:
        shown = [row | {"ms": f"{row['seconds'] * 1e3:.3f}" if row["seconds"] is not None else None} for row in rows]
        output.print_table("host parts", shown, HOST_COLUMNS, ("macs", "operators"))
    if sums["image_seconds"] is not None:
        output.print_table("time per image", _time_rows(sums["image_seconds"]))
    output.say(f"{path}: {totals_text(sums)}", sys.stderr if drawn else None)
