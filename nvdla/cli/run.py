"""Command ``nvdla run`` (= ``nvdla-run``): a loadable or a package on an input, bit-exactly."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import nvdla
from nvdla.checks.compare import Difference, compare
from nvdla.cli.arguments import (
    add_class_names_option,
    add_input_options,
    add_machine_options,
    add_strict_option,
    add_tolerance_option,
    add_trusted_option,
    changes_of_pictures,
    preprocessing_of,
    scales_of,
    split_name,
    surfaces_of_runs,
    tell_warnings,
    whole_command,
)
from nvdla.cli.output import (
    add_format_options,
    framed,
    only_tables,
    output_file,
    print_document,
    print_table,
    say,
    tell_proof,
    whole,
)
from nvdla.cli.working import compiling
from nvdla.emulator.execution.steps import ProfileRow, profile
from nvdla.emulator.firmware.operation import CsbLog
from nvdla.errors import FormatError, counted, shape_text
from nvdla.kernels.jit.kernel_times import kernel_times
from nvdla.kernels.jit.thread_pool import threading_description
from nvdla.loadable import load as load_loadable
from nvdla.tensors.files import IMAGE_ENDINGS, OUTPUT_ENDINGS, ending, read_npy, write_tensor
from nvdla.tensors.images import describe_gray
from nvdla.tensors.real import Rank, read_labels, tops
from nvdla.util.escaping import Document, json_text
from nvdla.util.files import is_zip_file, make_directory, packed_files, write_file

if TYPE_CHECKING:
    from nvdla.checks.compare.comparison import Observation
    from nvdla.compiler.frontend.package import Package
    from nvdla.emulator.execution.steps import OnOperation, OperationEvent
    from nvdla.emulator.firmware.operation import CsbEntry
    from nvdla.runtime import Runtime, Tensor
    from nvdla.tensors.real import Rank


class Times:
    """Begins with linking: the loadable is laid into memory. ``run``: seconds of the runs, the first of which prepares
    weights and buffers, without the kernels that were compiled or loaded meanwhile."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._before = _kernel_seconds()
        self.link = self.run = 0.0

    def linked(self) -> None:
        """Linking is through."""
        self.link = self._since(self._began, self._before)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within, the network runs."""
        began, before = time.perf_counter(), _kernel_seconds()
        yield
        self.run += self._since(began, before)

    def document(self) -> Document:
        """Plain data with stable keys."""
        return {
            "link_seconds": self.link,
            "compile_seconds": kernel_times.compile_seconds,
            "kernels_compiled": kernel_times.compiled,
            "load_seconds": kernel_times.load_seconds,
            "kernels_loaded": kernel_times.loaded,
            "run_seconds": self.run,
        }

    def tell(self, quiet: bool) -> None:
        """One line on a terminal."""
        if sys.stderr.isatty() and not quiet:
            say(f"times: {self}", sys.stderr)

    def __str__(self) -> str:
        parts = [f"linking {_said(self.link)}"]
        if kernel_times.compiled:
            parts.append(f"compiling {counted(kernel_times.compiled, 'kernel')} {_said(kernel_times.compile_seconds)}")
        if kernel_times.load_seconds:
            parts.append(f"loading {counted(kernel_times.loaded, 'kernel')} {_said(kernel_times.load_seconds)}")
        return ", ".join([*parts, f"running {_said(self.run)} (with preparations)"])

    @staticmethod
    def _since(began: float, before: float) -> float:
        return max(time.perf_counter() - began - (_kernel_seconds() - before), 0.0)


def _kernel_seconds() -> float:
    return kernel_times.compile_seconds + kernel_times.load_seconds


def _said(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


HELP = """Run a loadable on an image or raw tensors. The output bytes equal those of the hardware.

Inputs by extension: .pgm .ppm .png .jpg images (preprocessed as the layer file specifies, or as NVIDIA's runtime does),
.npy and .dimg tensors (integers are elements; floats are quantized with the scale of the input), .bin (raw surface).
Several images are several runs. Outputs by extension: .npy .dimg .json .png .bin.

  nvdla run net.nvdla --input cat.jpg --class-names labels.txt
  nvdla run net.nvdla --input a.png b.png --real -o results.npy
  nvdla run net.nvdla --input floats.npy --input-scale 0.0078
  nvdla run net.nvdla --random-input
  nvdla run samples/lenet.loadable --input photo.png  # a digit on paper: cropped and centered; prints the changes"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", nargs="?", help="loadable, or package of 'nvdla compile'")
    parser.add_argument("--demo", action="store_true", help="run the LeNet sample on a digit")
    parser.add_argument(
        "--output",
        "-o",
        action="append",
        default=[],
        type=output_file(".npy"),
        metavar="[NAME=]FILE",
        help="write an output to a file",
    )
    add_machine_options(parser)
    parser.add_argument("--hardware-only", action="store_true", help=_HARDWARE_ONLY_HELP)
    add_strict_option(parser)
    add_format_options(parser)
    add_input_options(parser)
    parser.add_argument(
        "--output-scale", action="append", default=[], metavar="[NAME=]X", help="scale of an output, for --real"
    )
    parser.add_argument("--real", action="store_true", help="print outputs as real values: elements times scale")
    result = parser.add_argument_group("results")
    text = "print only the first N rows or values (default: 5)"
    result.add_argument("--top", type=whole(), default=5, metavar="N", help=text)
    add_class_names_option(result)
    result.add_argument("--compare", action="append", default=[], metavar="[NAME=]GOLDEN", help=_COMPARE_HELP)
    add_tolerance_option(result)
    result.add_argument(
        "--dump-ops", metavar="DIR", help="write the output of every operation as .npy, with an index.json"
    )
    result.add_argument(
        "--csb-log",
        type=output_file(".txt"),
        metavar="FILE",
        help="write a log of all register writes, for 'nvdla csb'",
    )
    stats = "print the hardware's counters per operation: saturation (for that of int8, see doctor), NaN, LUT hits"
    result.add_argument("--stats", action="store_true", help=stats)
    result.add_argument(
        "--profile",
        type=int,
        nargs="?",
        const=5,
        metavar="RUNS",
        help="print the time per operation: median of RUNS more runs (default: 5)",
    )
    add_trusted_option(parser)
    result.add_argument("--quiet", "-q", action="store_true", help="hide progress")


_HARDWARE_ONLY_HELP = "continue where NVIDIA's C model hangs and the hardware does not"
_COMPARE_HELP = "compare an output's elements with a .bin, .npy or .dimg file; exit code 1 if different"


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if args.demo:
        args = _demonstrated(args)
    elif args.loadable is None:
        raise FormatError(
            "no loadable: try 'nvdla run net.nvdla --input image.png', or 'nvdla run --demo' for a sample"
        )
    if is_zip_file(args.loadable):
        return run_package(args)
    loadable = load_loadable(args.loadable)
    labels = read_labels(args.class_names) if args.class_names else None
    for name in args.output:
        ending(split_name(name)[1], OUTPUT_ENDINGS, "an output")
    times = Times()
    runtime = nvdla.Runtime(
        loadable,
        config=args.config,
        abi=args.abi,
        threads=args.threads,
        hardware_only=args.hardware_only,
        strict=args.strict,
        scales=scales_of(args, loadable),
    )
    outputs = _named(args.output, [tensor.name for tensor in runtime.outputs], "output")
    goldens = _named(args.compare, [tensor.name for tensor in runtime.outputs], "output")
    times.linked()
    images = surfaces_of_runs(runtime, args)
    pictures = changes_of_pictures(runtime, args)
    _check_number_of_images(args, len(images), outputs)
    watcher = _Watcher(args, runtime, len(images))
    accesses: CsbLog | None = [] if args.csb_log else None
    with watcher, times.running():
        raws = _run_all(runtime, images, watcher.callback, accesses)
    if accesses is not None:
        write_file(args.csb_log, "".join(_access(access) for access in accesses).encode())
    tell_warnings(args.loadable, runtime.warnings)
    tell_proof(args, runtime.config)
    rows = [] if args.profile is None else profile(runtime, images[0], args.profile)
    with whole_command(args):
        results = [runtime.unpack(raw, real=args.real) for raw in raws]
    tensors = {name: np.concatenate([result[name] for result in results]) for name in results[0]}
    raw = [b"".join(parts) for parts in zip(*raws, strict=True)]
    for name, path in outputs.items():
        index = list(tensors).index(name)
        write_tensor(path, tensors[name], raw[index], runtime.outputs[index].layout)
    bound = {tensor.name: (raw[index], tensor) for index, tensor in enumerate(runtime.outputs)}
    differences = {name: compare_with(path, tensors[name], *bound[name]) for name, path in goldens.items()}
    _report(args, runtime, tensors, labels, differences, watcher, times, rows, pictures)
    return 0 if all(difference.within(args.tolerance) for difference, _ in differences.values()) else 1


#: lines of a log of register accesses, as the reference's firmware prints them
_LOG_LINES = {
    "W": "W 0x{:05x} 0x{:08x}",
    "task": "# task {} addresses={}",
    "address": "# address {} 0x{:x}",
    "irq": "# irq 0x{:x}",
}


def _access(entry: CsbEntry) -> str:
    """A line of the log of register writes; other actions of the firmware are comments."""
    return _LOG_LINES.get(str(entry[0]), f"# {entry[0]} op={{}} type={{}} group={{}}").format(*entry[1:]) + "\n"


def _demonstrated(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with a sample where nothing else was named, and print what is run."""
    from nvdla.cli.samples import folder

    place = folder()
    if args.loadable is not None:
        raise FormatError(f"--demo runs a sample: omit {args.loadable} or --demo")
    loadable, inputs = str(place / "lenet.loadable"), args.input or [str(place / "digit7.pgm")]
    labels = args.class_names or str(place / "labels.txt")
    if not args.json:
        say(f"nvdla run {loadable} --input {inputs[0]} --class-names {labels}")
    return argparse.Namespace(**vars(args) | {"loadable": loadable, "input": inputs, "class_names": labels})


def _run_all(
    runtime: Runtime, images: list[list[bytes]], callback: OnOperation | None, log: CsbLog | None
) -> list[list[bytes]]:
    """Raw outputs of every image; several run together if no option observes single operations."""
    if callback is None and len(images) > 1:
        return runtime.run_many(images)
    return [runtime.run_raw(image, on_operation=callback, csb_log=log) for image in images]


def _picture_files(args: argparse.Namespace) -> list[str]:
    return [path for _, path in map(split_name, args.input or ()) if Path(path).suffix.lower() in IMAGE_ENDINGS]


def _without_empty(described: dict[str, str]) -> dict[str, str]:
    return {path: changes for path, changes in described.items() if changes}


def _check_number_of_images(args: argparse.Namespace, count: int, outputs: dict[str, str]) -> None:
    """Options that apply to one run, or that hold one result."""
    if count == 1:
        return
    if args.dump_ops or args.stats or args.csb_log:
        raise FormatError(f"--dump-ops, --stats, --csb-log: must have one image, got {count}")
    for path in outputs.values():
        if Path(path).suffix.lower() == ".dimg":
            raise FormatError(f"{path}: .dimg output: must be of one image, got {count}. Use .npy.")


def _named(words: list[str], names: list[str], kind: str) -> dict[str, str]:
    """Files by tensor name: given as NAME=FILE, or in bind order."""
    files: dict[str, str] = {}
    for word in words:
        name, path = split_name(word, names)
        if name is None:
            name = next((free for free in names if free not in files), None)
        if name not in names or name in files:
            known = ", ".join(names) or "none"
            problem = "is surplus" if name is None or name in files else f"is not an {kind}"
            raise FormatError(f"--{kind} {word} {problem}: the network's {kind}s are {known}")
        files[name] = path
    return files


def compare_with(
    path: str, tensor: np.ndarray, raw: bytes = b"", bound: Tensor | None = None
) -> tuple[Difference, str | None]:
    """Compare an output with a golden file by elements: those of its surface with .bin.

    Returns:
        The difference, and a note if only bytes that hold no element differ.
    """
    from nvdla.checks.compare.comparison import unpacked
    from nvdla.checks.compare.runs import golden_of_output

    if bound is None:
        golden, note = read_npy(path), None
    else:
        suffix = ending(path, (".bin", ".npy", ".dimg"), "a golden")
        golden, note = golden_of_output(Path(path), bound, tensor, raw)
        tensor = unpacked(bound.layout, raw) if suffix == ".bin" else tensor
    if golden.size != tensor.size:
        raise FormatError(
            f"{path}: elements: must be {tensor.size} (shape {shape_text(tensor.shape)}), got {golden.size}"
        )
    return compare(golden.reshape(tensor.shape), tensor), note


def _compared(differences: dict[str, tuple[Difference, str | None]]) -> Document:
    """Differences by output, for JSON."""
    return {name: {**difference.as_dict(), "note": note} for name, (difference, note) in differences.items()}


def _print_differences(differences: dict[str, tuple[Difference, str | None]]) -> None:
    for name, (difference, note) in differences.items():
        say(f"{name}: {difference}" + (f"; {note}" if note else ""))


class _Watcher:
    """Callbacks per operation: progress on a terminal, dumps and statistics."""

    def __init__(self, args: argparse.Namespace, runtime: Runtime, images: int = 1) -> None:
        self.dump = _Dump(args, runtime) if args.dump_ops else None
        self.wants_statistics = args.stats
        self.statistics: list[Document] = []
        self.progress: Any = None
        if sys.stderr.isatty() and not args.quiet and not args.json:
            from nvdla.emulator.firmware.scheduler import FirmwareTask

            tasks = [task for task in runtime.tasks if isinstance(task, FirmwareTask)]
            self.progress = _progress(images * sum(1 for task in tasks for _ in task.operations()))
        watching = self.dump or self.wants_statistics or self.progress
        self.callback = self._operation if watching else None

    def __enter__(self) -> _Watcher:
        if self.progress:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress:
            self.progress.stop()
        if self.dump:
            self.dump.finish()

    def _operation(self, event: OperationEvent) -> None:
        label = f"{event.task}/{event.index} {event.engine.upper()}"
        if self.progress:
            self.progress.update(self.progress.task_ids[0], advance=1, description=label)
        if self.wants_statistics:
            self.statistics.append(
                {"task": event.task, "operation": event.index, "engine": event.engine, **event.statistics}
            )
        if self.dump:
            self.dump.observer.see(event)


class _Dump:
    """``--dump-ops``: one .npy (1, C, H, W) per operation that writes memory, and index.json."""

    def __init__(self, args: argparse.Namespace, runtime: Runtime) -> None:
        from nvdla.checks.compare.comparison import Observer

        self._directory, self._names = Path(args.dump_ops), runtime.names
        self._document: Document = {"loadable": args.loadable, "configuration": runtime.config.name, "operations": []}
        self.observer = Observer(runtime.program(runtime.names.layers), self._write, runtime.names)
        make_directory(self._directory)

    def _write(self, seen: Observation) -> None:
        if seen.surface is None:
            return
        again = f"-roi{seen.roi}" if seen.roi else ""
        name = f"task{seen.task}-op{seen.index:04d}{again}-{seen.engine}.npy"
        write_file(self._directory / name, _written(name, seen.dense))
        units = seen.units_in_memory(self._names)
        row = {"task": seen.task, "operation": seen.index, "engine": seen.engine, "layer": seen.layer, "file": name}
        row |= {"shape": list(seen.dense.shape), "dtype": str(seen.dense.dtype)}
        row |= {
            "scale": units and units.scale,
            "zero_point": None if units is None else np.asarray(units.zero).tolist(),
        }
        factors = None if units is None or units.factors is None else units.factors.tolist()
        written = None if seen.place is None or seen.dense.shape[1:] == seen.place.shape else asdict(seen.place)
        self._document["operations"].append(row | {"factors": factors, "writes": written})

    @property
    def written(self) -> int:
        """Number of files with outputs."""
        return len(self._document["operations"])

    def finish(self) -> None:
        """Write the index."""
        text = json_text(framed(self._document, "dump"), indent=1)
        write_file(self._directory / "index.json", text.encode() + b"\n")


def _progress(total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    class What(TextColumn):
        def render(self, task: Any) -> Any:
            return super().render(task).append(compiling())

    columns = (What("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.add_task("starting", total=total)
    return progress


def _report(
    args: argparse.Namespace,
    runtime: Runtime,
    tensors: dict[str, np.ndarray],
    labels: list[str] | None,
    differences: dict[str, tuple[Difference, str | None]],
    watcher: _Watcher,
    times: Times,
    rows: list[ProfileRow],
    pictures: dict[str, str],
) -> None:
    ranks = tops(tensors, args.top, labels)
    document = {
        "loadable": args.loadable,
        "configuration": runtime.config.name,
        "configuration_reason": runtime.config_reason,
        "abi": runtime.abi,
        "seconds": times.run,
        "times": times.document(),
        "warnings": list(runtime.warnings),
        "pictures": pictures,
        "outputs": _output_rows(tensors, ranks),
        "differences": _compared(differences),
        "statistics": watcher.statistics,
        "profile": [row.as_dict() for row in rows],
    }
    if print_document(document, args):
        return
    if only_tables() and not (watcher.statistics or rows):
        _print_rank_rows(ranks)
    for name, tensor in tensors.items():
        shape = shape_text(tensor.shape)
        say(f"{name}: {shape} {tensor.dtype} on {runtime.config.name} in {times.run * 1e3:.1f} ms")
        _print_ranks(ranks[name])
        if ranks[name] and tensor.dtype.kind != "f":
            _print_unit(runtime, name, tensor.dtype)
    if watcher.dump:
        say(f"{args.dump_ops}: outputs of {counted(watcher.dump.written, 'operation')}, index.json")
    if watcher.statistics:
        kept = ({k: n for k, n in row.items() if n or k[:4] not in ("nan_", "inf_")} for row in watcher.statistics)
        rows_of_counts = list(kept)  # int8 has no NaN
        keys = dict.fromkeys(key for row in rows_of_counts for key in row)
        print_table("statistics", rows_of_counts, list(keys))
        say(f"threads: {threading_description()}")
    if rows:
        _print_profile(rows)
    _print_differences(differences)
    times.tell(args.quiet)


def _output_rows(tensors: Mapping[str, np.ndarray], ranks: Mapping[str, list[list[Rank]]]) -> list[Document]:
    """Outputs with the largest values of each image, for JSON."""
    tops = {name: [[vars(rank) for rank in image] for image in images] for name, images in ranks.items()}
    return [
        {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype), "top": tops[name]}
        for name, tensor in tensors.items()
    ]


def _print_rank_rows(ranks: Mapping[str, list[list[Rank]]]) -> None:
    """Print the largest values of all outputs as one table."""
    numbered = [(name, *pair) for name, images in ranks.items() for pair in enumerate(images)]
    rows = [{"output": name, "image": number, **vars(rank)} for name, number, image in numbered for rank in image]
    print_table("top", rows, ("output", "image", "index", "label", "value"))


def _print_unit(runtime: Runtime, name: str, dtype: np.dtype) -> None:
    """Print the real value of one unit of an output's integers, or how to state it."""
    units = runtime.names.units_of_output(name, dtype)
    if units is None:
        say(f"{name}: the scale is unknown. Add --real --output-scale {name}=X for real values.")
        return
    zero = "" if np.ndim(units.zero) or not units.zero else f", zero is {units.zero}"
    value = "" if units.factors is not None else f" one unit is {units.scale:.6g}{zero}."
    say(f"{name}:{value} Add --real for real values.")


def _print_profile(rows: list[ProfileRow]) -> None:
    """One row per chain of operations, and the sum."""
    table: list[Document] = []
    for row in rows:
        table.append(
            {
                "task": row.task,
                "operations": ", ".join(map(str, row.operations)),
                "engines": " > ".join(["+".join(row.engines[: row.fused]), *row.engines[row.fused :]]).upper(),
                "ms": round(row.seconds * 1e3, 3),
                "mmac": round(row.multiplications / 1e6, 3) or None,
                "gmac/s": row.gmacs and float(f"{row.gmacs:.3g}"),
                "share_%": round(row.share * 100, 1),
            }
        )
    seconds, work = sum(row.seconds for row in rows), sum(row.multiplications for row in rows)
    total = {"engines": "all", "ms": round(seconds * 1e3, 3), "mmac": round(work / 1e6, 3) or None}
    speed = float(f"{work / seconds / 1e9:.3g}") if work and seconds else None
    table.append({**total, "gmac/s": speed, "share_%": 100.0})
    print_table("profile (+ fused to one job, > one after the other)", table, list(table[0]))


def _print_ranks(images: list[list[Rank]]) -> None:
    """Print the ranks of each image, under its number where there are several."""
    for number, ranks in enumerate(images):
        if len(images) > 1:
            say(f"  image {number}")
        for rank in ranks:
            label = f"  {rank.label}" if rank.label else ""
            say(f"  {rank.index:>5}  {rank.value:<10g}{label}".rstrip())


def _images(array: np.ndarray, batch: int) -> list[np.ndarray]:
    """The images of a package's output: all of it, where its first dimension is not the batch."""
    return [*array] if array.ndim > 1 and len(array) == batch else [array]


OUTPUTS = (".npy", ".json")


def run_package(args: argparse.Namespace) -> int:
    """Real numbers in and out, by the model's names."""
    from nvdla.cli.packages import by_name, feeds_of_runs
    from nvdla.compiler.frontend.package import unpack

    package = unpack(args.loadable)
    _check_package_options(args)
    labels = read_labels(args.class_names) if args.class_names else None
    feeds = feeds_of_runs(package, args)
    outputs = by_name(args.output, list(package.manifest["outputs"]), "output")
    goldens = by_name(args.compare, list(package.manifest["outputs"]), "compare")
    for path in outputs.values():
        if Path(path).suffix not in OUTPUTS:
            raise FormatError(f"{path}: an output of a package is written as {' or '.join(OUTPUTS)}")
    times = Times()
    machine = package.machine(args.strict, args.trusted, args.config)
    for runtime in machine.runtimes():
        runtime.threads = args.threads
    times.linked()
    with times.running():
        runs = [machine.run(feed) for feed in feeds]
    results = _joined(runs)
    tell_warnings(args.loadable, machine.warnings())
    tell_proof(args, *(runtime.config for runtime in machine.runtimes()))
    for name, path in outputs.items():
        write_file(path, _written(path, results[name]))
    differences = {name: compare_with(path, results[name]) for name, path in goldens.items()}
    _run_package_report(args, package, runs, times, labels, differences)
    return 0 if all(difference.within(args.tolerance) for difference, _ in differences.values()) else 1


#: options of a run that a package does not have
_OF_LOADABLES = ("abi", "hardware_only", "input_scale", "output_scale", "scales")


def _check_package_options(args: argparse.Namespace) -> None:
    """Refuse options that apply to one loadable."""
    changed = [name for name in _OF_LOADABLES if getattr(args, name) not in (None, False, [], "auto")]
    given = [f"--{name.replace('_', '-')}" for name in changed]
    if given:
        parts = [f"{args.loadable}/{member}" for member in packed_files(args.loadable, ".loadable")]
        hint = f" Name a part, such as {parts[0]}." if parts else ""
        raise FormatError(f"{', '.join(given)}: must be for a loadable, got a package.{hint}")
    for path in (split_name(word)[1] for word in args.compare):
        ending(path, (".npy",), "a golden of a package")


def _watched_parts(args: argparse.Namespace, package: Package) -> Iterator[tuple[int, Document | None]]:
    """Run every accelerator part with the options that observe operations, on its inputs in a run of the package.

    Dumps of part 2 are in DIR/part2, its log of a file x.txt in x.part2.txt.
    """
    from nvdla.cli.output import collected
    from nvdla.cli.packages import inputs_of_parts, part_path, with_number

    if not args.dump_ops and not args.csb_log and not args.stats and args.profile is None:
        return
    alone: Document = {"output": [], "compare": [], "class_names": None, "top": 0}
    config = package.manifest["config"] if args.config == "auto" else args.config
    with tempfile.TemporaryDirectory(prefix="nvdla-parts-") as folder:
        for name, fed in inputs_of_parts(args, args.loadable, Path(folder)).items():
            number = int(name.removeprefix("part").removesuffix(".loadable"))
            own = {**alone, **fed, "loadable": part_path(args.loadable, number), "config": config}
            own |= {"dump_ops": args.dump_ops and str(Path(args.dump_ops) / f"part{number}")}
            own |= {"csb_log": args.csb_log and with_number(args.csb_log, number)}
            if not args.json:
                print()
                say(own["loadable"])
            with contextlib.ExitStack() as stack:
                printed = stack.enter_context(collected()) if args.json else []
                run(argparse.Namespace(**vars(args) | own))
            yield number, dict(printed[0]) if printed else None


def _written(path: str, array: np.ndarray) -> bytes:
    if Path(path).suffix == ".json":
        return json_text(array.tolist()).encode() + b"\n"
    import io

    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def _run_package_report(
    args: argparse.Namespace,
    package: Package,
    runs: list[dict[str, np.ndarray]],
    times: Times,
    labels: list[str] | None,
    differences: dict[str, tuple[Difference, str | None]],
) -> None:
    parts: list[Document] = [
        {"part": number, "kind": part.kind, "nodes": len(part.nodes)} for number, part in enumerate(package.parts)
    ]
    batches = {shape[0] for shape in package.manifest["inputs"].values() if len(shape) > 1}
    batch = batches.pop() if len(batches) == 1 else 1
    tensors = _joined(runs)
    numbers = [name for name, array in tensors.items() if array.dtype.kind in "fiu"]
    images = {name: [image for results in runs for image in _images(results[name], batch)] for name in numbers}
    ranks: dict[str, list[list[Rank]]] = {name: [] for name in tensors} | tops(images, args.top, labels)
    pictures, model, config = _pictures_of_package(package, args), package.manifest["model"], package.manifest["config"]
    if args.json:
        for number, watched in _watched_parts(args, package):
            parts[number]["run"] = watched
        document = {"model": model, "configuration": config, "seconds": times.run, "times": times.document()}
        document |= {"pictures": pictures, "parts": parts, "outputs": _output_rows(tensors, ranks)}
        print_document({**document, "differences": _compared(differences)}, args)
        return
    for path, changes in pictures.items():
        say(f"{path}: {changes}")
    print_table(f"{model} on {config}", parts, ["part", "kind", "nodes"])
    for name, array in tensors.items():
        say(f"{name}: {shape_text(array.shape)} {array.dtype}")
        _print_ranks(ranks[name])
    _print_differences(differences)
    for _ in _watched_parts(args, package):
        pass
    times.tell(args.quiet)


def _pictures_of_package(package: Package, args: argparse.Namespace) -> dict[str, str]:
    """Describe the changes of the colors of each picture of a package with one input, by file."""
    shapes, files = list(package.manifest["inputs"].values()), _picture_files(args)
    pictures = package.preprocessing.changed_by(preprocessing_of(args))
    if len(shapes) != 1 or not files or pictures.digit:
        return {}
    channels, _, _ = pictures.cube_shape(tuple(shapes[0]))
    return _without_empty({path: describe_gray(path, channels) for path in files})


def _joined(runs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The outputs of a run; those of several concatenated."""
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([np.atleast_1d(results[name]) for results in runs]) for name in runs[0]}
