"""Arguments of level 2's search and of the memory that code is weighed for, and the bar that shows how far it is."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvdla.cli.study import add_memory_options
from nvdla.errors import FormatError

if TYPE_CHECKING:
    from nvdla.analysis.cycles.constants import Memory
    from nvdla.builder import SearchLimits

DRAW_SECONDS = 0.1
_CVSRAM = "surfaces between operations that fit lie in so much CVSRAM (default: 0)"


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """``--time-limit``, ``--search-steps``, ``--workers``; ``--latency``, ``--bandwidth``, ``--shared``."""
    group = parser.add_argument_group("the search of -O 2 (the same loadable with any number of processes)")
    group.add_argument("--time-limit", type=float, metavar="SECONDS", help="end it between two steps (default: none)")
    group.add_argument(
        "--search-steps", type=int, metavar="N", help="so many steps, as a layer file says (default: all)"
    )
    group.add_argument("--workers", type=int, metavar="N", help="processes (default: 1)")
    memory = parser.add_argument_group("the memory that the code is weighed for, as 'nvdla cycles' has it")
    add_memory_options(memory)
    memory.add_argument("--cvsram-size", type=int, default=0, metavar="BYTES", help=_CVSRAM)


def memory_of(args: argparse.Namespace) -> Memory:
    """The memory that the arguments name. Raises ConfigError."""
    from nvdla.analysis.cycles.constants import DEFAULT_LATENCY, Memory

    return Memory(DEFAULT_LATENCY if args.latency is None else args.latency, args.bandwidth, args.shared)


def search_of(args: argparse.Namespace, progress: Callable[[int, int, int], None] | None) -> SearchLimits | None:
    """The search that the arguments ask for; None below level 2. Raises FormatError for options of a search where there
    is none, BuildError for limits that are none."""

    from nvdla.builder import SearchLimits

    given = {"--time-limit": args.time_limit, "--search-steps": args.search_steps, "--workers": args.workers}
    if args.level < 2:
        named = [name for name, value in given.items() if value is not None]
        if named:
            raise FormatError(f"{named[0]} is for the search of level 2; give -O 2, too")
        return None
    return SearchLimits(args.time_limit, args.search_steps, 1 if args.workers is None else args.workers, progress)


class ProgressBar:
    """A bar on a terminal over the samples of the calibration, then over the steps of a search; silence elsewhere.

    No thread draws it: a search's processes begin as copies of this one (:mod:`nvdla.campaign.forking`).
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._bar: Any = None
        self._drawn = 0.0
        self.calibrating: Callable[[int, int], None] | None = None
        self.searching: Callable[[int, int, int], None] | None = None
        if sys.stderr.isatty() and not args.quiet and not args.json:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=False)
            self.calibrating = lambda done, total: self._show("calibrating", done, total)
            self.searching = lambda done, total, cycles: self._show(f"searching, {cycles:,} cycles", done, total)

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("reading", total=None)
            self._bar.refresh()
        return self

    def _show(self, what: str, done: int, total: int | None) -> None:
        self._bar.update(self._task, description=what, completed=done, total=total)
        if time.monotonic() - self._drawn > DRAW_SECONDS or done == total:
            self._bar.refresh()
            self._drawn = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
