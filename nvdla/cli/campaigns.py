"""Arguments and progress that the commands over data share: evaluate, faults, explore."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvdla.cli.output import add_format_options, print_document
from nvdla.files import write_file

if TYPE_CHECKING:
    from nvdla.campaign import Journal, Table

DRAW_SECONDS = 0.1


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """``--labels``, ``--config``, ``--input-scale``: how data and network are taken."""
    parser.add_argument("--labels", metavar="FILE.npy", help="labels of a .npy of samples")
    parser.add_argument(
        "--config", default="auto", metavar="NAME", help="hardware configuration (default: decided from the file)"
    )
    parser.add_argument("--input-scale", type=float, metavar="S", help="real number of one unit of the input")


def add_campaign_options(parser: argparse.ArgumentParser) -> None:
    """``--workers``, ``--scheduler``, ``--resume``, ``--samples``, ``--output``."""
    group = parser.add_argument_group("the run")
    group.add_argument("--workers", type=int, metavar="N", help="processes on this machine (default: its cores)")
    group.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, such as tcp://10.0.0.1:8786")
    group.add_argument("--resume", action="store_true", help="go on with the results that --samples or --output has")
    group.add_argument("--samples", metavar="FILE.jsonl", help="one line a result, written as results come")
    group.add_argument("--output", "-o", metavar="FILE.json", help="the figures as JSON")
    add_format_options(parser)


def written(
    document: dict[str, Any], title: str, page: Callable[[dict[str, Any], str], str], args: argparse.Namespace
) -> bool:
    """Write ``--output`` and, with ``page``, ``--report``; True where the document goes to the terminal as JSON."""
    if args.output:
        write_file(args.output, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
    if args.report:
        write_file(args.report, page(document, title).encode())
    return print_document(document, args)


@contextlib.contextmanager
def journal_of(table: Table, args: argparse.Namespace) -> Iterator[Journal]:
    """The journal that the arguments ask for: --samples, beside --output, or for this run alone."""
    from nvdla.campaign import Journal

    path = args.samples or (f"{args.output}.samples.jsonl" if args.output else None)
    if path:
        journal = Journal(path, table, args.resume)
        try:
            yield journal
        finally:
            journal.close()
        return
    with tempfile.TemporaryDirectory(prefix="nvdla-") as folder:
        journal = Journal(Path(folder) / "samples.jsonl", table)
        try:
            yield journal
        finally:
            journal.close()


def run_with_progress(table: Table, journal: Journal, args: argparse.Namespace, total: int | None) -> None:
    """Run the campaign; on a terminal with a bar that shows rate and time left."""
    from nvdla.campaign import Workers, run

    workers = Workers(args.workers, args.scheduler)
    if args.scheduler:
        _quiet_dask()
    if not sys.stderr.isatty() or args.json:
        run(table, journal, workers)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    columns = (*texts, TimeRemainingColumn())
    # No thread that draws the bar: workers begin as copies of this process (nvdla.campaign.forking).
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        shown = bar.add_task(table.name, total=total, completed=len(journal.done), rate="")

        drawn = [0.0]

        def progress(done: int, failed: int) -> None:
            speed = bar.tasks[0].speed
            text = f"{speed:,.0f}/s" if speed else ""
            bar.update(shown, completed=done, rate=f"{text}, {failed} damaged" if failed else text)
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
