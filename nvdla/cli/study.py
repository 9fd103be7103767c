"""Arguments of the commands that look at a loadable without running it, and the study they ask for."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import nvdla
from nvdla.cli.output import say
from nvdla.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from nvdla.analysis.cycles.constants import Memory, Software
    from nvdla.analysis.study import Study

DEFAULT_CLOCK = 1000.0


def add_study_options(parser: argparse.ArgumentParser, timing: bool = True) -> None:
    """The loadable, ``--config``, ``--abi``, ``--layers``; with ``timing`` what the cycle model needs."""
    parser.add_argument("loadable", help="the loadable")
    parser.add_argument("--config", default="auto", help="hardware configuration (default: decided from the file)")
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    parser.add_argument("--layers", metavar="FILE.yaml", help="layer names (default: LOADABLE.layers.json)")
    if not timing:
        return
    _add_timing_options(parser)


def add_memory_options(group: argparse._ArgumentGroup) -> None:
    """``--latency``, ``--bandwidth``, ``--shared``: the memory behind NVDLA."""
    group.add_argument("--latency", type=int, metavar="CYCLES", help="memory latency (default: 100)")
    group.add_argument(
        "--bandwidth", type=float, metavar="BYTES", help="bytes a cycle and direction (default: the bus's width)"
    )
    group.add_argument("--shared", action="store_true", help="reads and writes share the bandwidth")


def _add_timing_options(parser: argparse.ArgumentParser) -> None:
    """Options without a value take the board's, or the default."""
    group = parser.add_argument_group("the memory behind NVDLA, and the firmware")
    group.add_argument("--board", metavar="NAME", help="clock, memory, processor of a known board: zcu102-150mhz ...")
    add_memory_options(group)
    group.add_argument("--clock", type=float, metavar="MHZ", help="clock (default: 1000 MHz)")
    group.add_argument(
        "--software", type=int, metavar="CYCLES", help="from an interrupt to the firmware's answer (default: 0)"
    )
    group.add_argument(
        "--csb-cycles",
        type=float,
        metavar="CYCLES",
        help="of a register write; a read takes nine times as long (default: 2.1, the RTL's own bus)",
    )
    group.add_argument(
        "--cpu-cycles",
        type=float,
        metavar="CYCLES",
        help="of NVDLA's clock for an element of a CPU operation (default: 100, an assumption)",
    )


def study_of(args: argparse.Namespace, refuses: bool = True, tells: bool = True) -> Study:
    """The study that the arguments ask for; sets ``args.clock`` where it is the board's. Raises NvdlaError.

    ``refuses``: whether a named configuration that cannot run the file is an error. Where it is none (a report says so
    itself), and where the file's own configuration lacks something, that is the first line on standard error: at once,
    or (``tells`` False) where the command calls :func:`tell_remark`.
    """
    from nvdla.analysis.study import Study
    from nvdla.lint.linter import refusal
    from nvdla.program.naming import names_for

    memory, software = _timing(args) if hasattr(args, "latency") else (None, None)
    names = names_for(args.loadable, args.layers).layers
    loadable = nvdla.load(args.loadable)
    study = Study.of(loadable, args.config, args.abi, memory, names, software)
    reason = refusal(loadable, args.config, args.abi)
    if reason is not None:
        config = study.config.name
        text = f"{args.loadable} cannot run on {config}: {reason}"
        if refuses and args.config != "auto":  # figures for it would be of nothing
            raise ConfigError(f"{text}; see 'nvdla lint {args.loadable} --config {args.config}'")
        args.remark = f"{text}: figures are of what it would be"
    if tells:
        tell_remark(args)
    return study


def tell_remark(args: argparse.Namespace) -> None:
    """Say what :func:`study_of` had to remark, if anything."""
    remark = getattr(args, "remark", None)
    if remark is not None:
        say(remark, sys.stderr)


def board_notes(args: argparse.Namespace) -> list[str]:
    """Where a board's figures are from."""
    from nvdla.analysis.cycles.boards import board

    if not args.board:
        return []
    chosen = board(args.board)
    return [f"board {chosen.name} ({chosen.config}): {chosen.source}; fitted: {chosen.fitted}"]


def _timing(args: argparse.Namespace) -> tuple[Memory, Software]:
    """The memory and the processor: options first, then the board, then the RTL's own."""
    from nvdla.analysis.cycles.boards import board
    from nvdla.analysis.cycles.constants import CSB_READ, CSB_WRITE, Memory, Software

    chosen = board(args.board) if args.board else None
    memory, software = (chosen.memory, chosen.software) if chosen else (Memory(), Software())
    if args.clock is None:
        args.clock = chosen.clock if chosen else DEFAULT_CLOCK
    _check_options(args)
    if args.latency is not None:
        memory = replace(memory, latency=args.latency)
    if args.bandwidth is not None:
        memory = replace(memory, bytes_per_cycle=args.bandwidth)
    if args.shared:
        memory = replace(memory, shared=True)
    if args.software is not None:
        software = replace(software, answer=args.software)
    if args.csb_cycles is not None:
        software = replace(software, write=args.csb_cycles, read=args.csb_cycles * CSB_READ / CSB_WRITE)
    if args.cpu_cycles is not None:
        software = replace(software, element=args.cpu_cycles)
    return memory, software


def _check_options(args: argparse.Namespace) -> None:
    from nvdla.analysis.cycles.constants import MAX_SOFTWARE

    if not 1e-6 <= args.clock <= 1e6:
        raise FormatError(f"--clock {args.clock} MHz: must be 0.000001 .. 1000000")
    for name in ("software", "csb_cycles", "cpu_cycles"):
        value = getattr(args, name)
        if value is not None and not 0 <= value <= MAX_SOFTWARE:
            raise FormatError(f"--{name.replace('_', '-')} {value}: must be 0 .. {MAX_SOFTWARE} cycles")
