"""Arguments and progress that the commands over data share: evaluate, faults, explore."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nvdla.cli.arguments import (
    add_class_names_option,
    add_config_option,
    add_input_scale_option,
    positive_scale,
    scales_of,
    whole_command,
)
from nvdla.cli.output import (
    StandardOutput,
    add_format_options,
    output_file,
    print_document,
    say,
    tell_once,
    whole,
    with_settings,
)
from nvdla.errors import FormatError, NvdlaError
from nvdla.loadable import load
from nvdla.tensors.files import IMAGE_ENDINGS
from nvdla.tensors.images import is_pil
from nvdla.tensors.inputs import holds_pixels
from nvdla.tensors.real import ScaleMissing
from nvdla.util.escaping import Document, json_text
from nvdla.util.files import is_zip_file, write_file
from nvdla.util.rounding import is_digits

if TYPE_CHECKING:
    from nvdla.experiments.campaign import Journal, Table
    from nvdla.experiments.evaluation import EvaluatedNetwork, SampleSource

DRAW_SECONDS = 0.1


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """``--labels``, ``--root``, ``--config``, ``--input-scale``: how data and network are taken."""
    add_label_options(parser)
    add_config_option(parser)
    add_input_scale_option(parser)


def input_scale_of(args: argparse.Namespace) -> float | None:
    """The scale that ``--input-scale`` gives to the input of ``args.network``. Raises FormatError."""
    if not args.input_scale:
        return None
    if len(args.input_scale) > 1:
        raise FormatError(f"--input-scale: must be given once for a network of one input, got {len(args.input_scale)}")
    name, _, number = args.input_scale[0].rpartition("=")
    if name and not is_zip_file(args.network):
        scales_of(argparse.Namespace(loadable=args.network, input_scale=args.input_scale), load(args.network))
    return positive_scale(f"--input-scale {args.input_scale[0]}", number)


def check_first_sample(network: EvaluatedNetwork, source: SampleSource, args: argparse.Namespace) -> None:
    """Raise FormatError with the whole command that works where the first sample needs a scale that is not known. Print
    what is assumed of the pixels of pictures."""
    with whole_command(args):
        try:
            value = source.sample(0).value
            network.prepare(value)
        except ScaleMissing:
            raise
        except NvdlaError:
            return  # one damaged sample: counted with the others
    suffix = Path(value).suffix.lower() if isinstance(value, str | os.PathLike) else ""
    is_array = isinstance(value, np.ndarray) and holds_pixels(value)
    if network.assumed and (is_array or is_pil(value) or suffix in IMAGE_ENDINGS):
        tell_once(f"{args.data}: {network.assumed}", args)


def tell_class_order(source: SampleSource, args: argparse.Namespace) -> None:
    """Print the order of the classes of directories, unless it is given, or their names are their numbers."""
    names = source.classes or []
    is_numbered = all(is_digits(name) and int(name) == number for number, name in enumerate(names))
    if not args.class_names and not is_numbered:
        order = f"classes are numbered in the alphabetical order of their names (0 is {names[0]!r}"
        order += f", {len(names) - 1} is {names[-1]!r})" if len(names) > 1 else ")"
        say(f"nvdla {args.command_name}: {order}; --class-names FILE gives the network's order", sys.stderr)


def add_label_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--labels``, ``--class-names`` and ``--root``, the options of data sets."""
    labels = "labels: .npy for .npy samples; for a directory .txt, .json of COCO, or a directory of masks"
    parser.add_argument("--labels", metavar="FILE", help=labels)
    add_class_names_option(parser)
    add_root_option(parser)


def source_of(args: argparse.Namespace) -> SampleSource:
    """Open ``args.data``; with ``--class-names`` its classes have the order of the network's. Raises FormatError."""
    from nvdla.tensors.datasets import open_source
    from nvdla.tensors.real import read_labels
    from nvdla.tensors.samples import NamedSamples

    source = open_source(args.data, args.labels, args.root)
    if not args.class_names:
        return source
    return NamedSamples(source, read_labels(args.class_names), args.class_names)


def add_root_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--root``, the directory of a manifest's samples."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="base directory for the paths in a manifest (default: directory of the manifest)",
    )


def add_calibrate_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--calibrate`` of commands that compile."""
    text = "calibration data (formats: see nvdla evaluate), or a scale table of another tool"
    parser.add_argument("--calibrate", metavar="DATA", help=text)


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """``--table`` and ``--report``."""
    table = "also write the table as CSV (one row per fault or point)"
    parser.add_argument("--table", type=output_file(".csv"), metavar="FILE.csv", help=table)
    parser.add_argument("--report", type=output_file(".html"), metavar="PAGE.html", help="also write an HTML page")


def add_campaign_options(parser: argparse.ArgumentParser) -> None:
    """``--workers``, ``--scheduler`` with its TLS files, ``--resume``, ``--samples``, ``--output``."""
    group = parser.add_argument_group("the run")
    group.add_argument("--workers", type=int, metavar="N", help="number of local processes (default: number of cores)")
    group.add_argument(
        "--scheduler", metavar="ADDRESS", help="address of a Dask scheduler, for example tcp://10.0.0.1:8786"
    )
    group.add_argument("--tls-ca-file", metavar="FILE.pem", help="certificate authority of a tls:// scheduler")
    group.add_argument("--tls-cert", metavar="FILE.pem", help="client certificate for a tls:// scheduler")
    group.add_argument("--tls-key", metavar="FILE.pem", help="client private key for a tls:// scheduler")
    group.add_argument("--resume", action="store_true", help="continue from the results in --samples or --output")
    group.add_argument("--samples", metavar="FILE.jsonl", help="journal: one JSON line per result, written immediately")
    shard = "perform every N-th task only, beginning with the K-th (needs --samples or --output)"
    group.add_argument("--shard", type=_part, metavar="K/N", help=shard)
    merge = "join the journals of all shards, run nothing (repeat the options of the shards)"
    group.add_argument("--merge", action="extend", nargs="+", metavar="FILE.jsonl", help=merge)
    group.add_argument(
        "--output", "-o", type=output_file(".json"), metavar="FILE.json", help="write the metrics as JSON"
    )
    add_format_options(parser)


def _part(text: str) -> tuple[int, int]:
    """The numbers of "7/64"."""
    number, _, count = text.partition("/")
    return whole(1)(number), whole(1)(count)


def written(document: Document, title: str, page: Callable[[Document, str], str], args: argparse.Namespace) -> bool:
    """Write ``--output`` and, with ``page``, ``--report``; True where the document goes to the terminal as JSON."""
    if args.output:
        write_file(args.output, (json_text(with_settings(document, args), indent=1, sort_keys=True) + "\n").encode())
    if args.report:
        write_file(args.report, page(document, title).encode())
    return print_document(document, args)


@contextlib.contextmanager
def journal_of(table: Table, args: argparse.Namespace) -> Iterator[Journal]:
    """Journal of the arguments: --samples, a file next to --output, or a temporary one."""
    from nvdla.experiments.campaign import CampaignPart, Journal

    part = CampaignPart(*args.shard) if args.shard else None
    if part and args.merge:
        raise FormatError("--shard and --merge exclude each other: omit one")
    named = args.output and not isinstance(args.output, StandardOutput)
    path = args.samples or (f"{args.output}.samples.jsonl" if named else None)
    if path:
        journal = Journal(path, table, args.resume, part)
        try:
            yield journal
        finally:
            journal.close()
        return
    if part:
        raise FormatError(f"--shard {part}: journal: must be given. Add --samples FILE.jsonl, which --merge reads.")
    with tempfile.TemporaryDirectory(prefix="nvdla-") as folder:
        journal = Journal(Path(folder) / "samples.jsonl", table)
        try:
            yield journal
        finally:
            journal.close()


def run_with_progress(table: Table, journal: Journal, args: argparse.Namespace, total: int | None) -> None:
    """Run the campaign, or merge its journals; on a terminal with a bar that shows rate and time left."""
    from nvdla.experiments.campaign import Tls, Workers, run

    if args.merge:
        journal.merge(args.merge, table)
        journal.finish()
        return
    total = None if total is None else journal.part.size(total)
    files = args.tls_ca_file, args.tls_cert, args.tls_key
    workers = Workers(args.workers, args.scheduler, Tls(*files) if any(files) else None)
    if args.scheduler is not None:
        _quiet_dask()
    if not sys.stderr.isatty() or args.json:
        run(table, journal, workers)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    columns = (*texts, TimeRemainingColumn())
    # No thread that draws the bar: workers begin as copies of this process (nvdla.util.processes).
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        shown = bar.add_task(table.name, total=total, completed=len(journal.done), rate="")

        drawn = [0.0]

        def progress(done: int, failed: int) -> None:
            speed = bar.tasks[0].speed
            texts = (f"{speed:,.0f}/s" if speed else "", f"{failed} damaged" if failed else "")
            bar.update(shown, completed=done, rate=", ".join(filter(None, texts)))
            if time.monotonic() - drawn[0] > DRAW_SECONDS or done == total:
                bar.refresh()
                drawn[0] = time.monotonic()

        run(table, journal, workers, progress)


def _quiet_dask() -> None:
    """Dask logs every lost connection with a traceback. What matters is the error that the command ends with."""
    import logging

    with contextlib.suppress(ImportError):
        import distributed  # noqa: F401 - sets the levels of its loggers

        for name in ("distributed", "distributed.client", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
