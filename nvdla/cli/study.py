"""Arguments of the commands that look at a loadable, the study they ask for, and the sides that a page shows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.arguments import (
    add_class_names_option,
    add_comparison_options,
    add_config_option,
    add_input_options,
    add_layers_option,
    names_of,
    surfaces_of_runs,
)
from nvdla.cli.output import print_table, say, tell_once, tell_proof
from nvdla.errors import ConfigError, FormatError
from nvdla.loadable import load as load_loadable
from nvdla.util.escaping import Document
from nvdla.util.recognition import kind_of

if TYPE_CHECKING:
    from nvdla.analysis.cycles.constants import Board, Memory, Software
    from nvdla.analysis.study import Study
    from nvdla.checks.doctor.doctor import DoctorReport
    from nvdla.report.document import Side
    from nvdla.runtime import Runtime


def add_study_options(parser: argparse.ArgumentParser, timing: bool = True) -> None:
    """The loadable, ``--config``, ``--abi``, ``--layers``; with ``timing`` what the cycle model needs."""
    parser.add_argument("loadable", help="the loadable")
    add_config_option(parser)
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    add_layers_option(parser)
    if timing:
        add_timing_options(parser)


def add_memory_options(group: argparse._ArgumentGroup) -> None:
    """``--latency``, ``--bandwidth``, ``--shared``: the external memory."""
    group.add_argument("--latency", type=int, metavar="CYCLES", help="memory latency in cycles of NVDLA (default: 100)")
    group.add_argument(
        "--bandwidth",
        type=float,
        metavar="BYTES",
        help="bytes per cycle of NVDLA and direction, bytes per second / clock (default: bus width)",
    )
    group.add_argument("--shared", action="store_true", help="share the bandwidth between reads and writes")


def add_clock_option(group: argparse._ArgumentGroup) -> None:
    """Add ``--clock``, the frequency in MHz that times are for."""
    group.add_argument("--clock", type=float, metavar="MHZ", help="clock frequency of NVDLA in MHz (default: 1000)")


class _Board(argparse.Action):
    """A preset; "list" prints all of them, as "nvdla program --board list" does, and ends the command."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Keep the name, or print the list."""
        if values == "list":
            from nvdla.analysis.cycles.constants import BOARDS
            from nvdla.analysis.cycles.document import firmware_text, memory_text
            from nvdla.emulator.hardware.configuration import configuration

            rows = [
                {
                    "board": board.name,
                    "config": board.config,
                    "clock_mhz": board.clock,
                    "memory": memory_text(board.memory, configuration(board.config)).removeprefix("memory: "),
                    "firmware": firmware_text(board.software, board.clock).removeprefix("firmware "),
                    "what": board.source,
                    "fitted": board.fitted,
                }
                for board in BOARDS.values()
            ]
            print_table("Boards", rows, least=("fitted", "what"))
            parser.exit()
        setattr(namespace, self.dest, values)


def add_timing_options(
    parser: argparse.ArgumentParser, of_memory: Callable[[argparse._ArgumentGroup], None] = add_memory_options
) -> None:
    """The inputs of the cycle model; options without a value take the board's, or the default. ``of_memory``: adds
    the options of the memory."""
    group = parser.add_argument_group("external memory and firmware")
    group.add_argument(
        "--board",
        action=_Board,
        metavar="NAME",
        help="preset of a known board (clock, memory, processor); 'list' prints all boards",
    )
    of_memory(group)
    add_clock_option(group)
    group.add_argument(
        "--software",
        type=int,
        metavar="CYCLES",
        help="time from an interrupt to the next register write of the firmware (default: 0)",
    )
    group.add_argument(
        "--csb-cycles",
        type=float,
        metavar="CYCLES",
        help="cycles per register write; a read takes nine times as long, all reads count (default: 2.14, reads of "
        "pointers only)",
    )
    group.add_argument(
        "--cpu-cycles",
        type=float,
        metavar="CYCLES",
        help="NVDLA cycles per element of a CPU operation (default: 100, an assumption)",
    )


@dataclass(frozen=True)
class StudyRequest:
    """A study, the clock in MHz, and a remark for standard error where the file cannot run on the configuration."""

    study: Study
    clock: float
    remark: str | None

    def tell(self) -> Study:
        """Print the remark, if any, and return the study."""
        if self.remark is not None:
            say(self.remark, sys.stderr)
        return self.study


def requested(args: argparse.Namespace, refuses: bool = True, timing: bool = True) -> StudyRequest:
    """Return the study that the arguments ask for, after a line about what is not proven of its configuration.

    ``timing``: the command has the options of the cycle model.

    Raises NvdlaError; with ``refuses`` also where a named configuration cannot run the file.
    """
    from nvdla.analysis.cycles.constants import DEFAULT_CLOCK
    from nvdla.analysis.study import Study
    from nvdla.checks.lint.linter import refusal
    from nvdla.program.naming import names_for

    memory, software, clock, board = timing_of(args) if timing else (None, None, DEFAULT_CLOCK, None)
    names = names_for(args.loadable, args.layers).layers
    study = Study.of(load_loadable(args.loadable), args.config, args.abi, memory, names, software, board)
    # Commands that refuse nothing do the dry run for their findings.
    reason = refusal(study.program, (lambda: study.failure) if refuses else (lambda: None))
    config = study.config.name
    if reason is not None and refuses and args.config != "auto":
        hint = f"see 'nvdla lint {args.loadable} --config {args.config}'"
        raise ConfigError(f"{args.loadable} cannot run on {config}: {reason}; {hint}")
    tell_proof(args, study.config)
    remark = f"{args.loadable} cannot run on {config} ({reason}); the numbers below assume that it could"
    return StudyRequest(study, clock, remark if reason else None)


def studies_of(args: argparse.Namespace) -> Callable[[Path], Study]:
    """Return what makes the study of one of several files, with the options of the cycle model."""

    def study(path: Path) -> Study:
        return requested(argparse.Namespace(**vars(args) | {"loadable": str(path)}), refuses=False).study

    return study


def study_of(args: argparse.Namespace, timing: bool = True) -> Study:
    """Return the study that the arguments ask for, with its remark printed. Raises NvdlaError."""
    return requested(args, timing=timing).tell()


def board_notes(study: Study) -> list[str]:
    """Source of the numbers of a board."""
    if (chosen := study.board) is None:
        return []
    return [f"board {chosen.name} ({chosen.config}): {chosen.source}; fitted: {chosen.fitted}"]


def timing_of(args: argparse.Namespace) -> tuple[Memory, Software, float, Board | None]:
    """Memory, processor, clock in MHz, and the board: of the options, else of the board, else of the RTL.

    Raises NvdlaError.
    """
    from nvdla.analysis.cycles.constants import CSB_READ, CSB_WRITE, DEFAULT_CLOCK, Memory, Software, board

    chosen = board(args.board) if args.board else None
    memory, software = (chosen.memory, chosen.software) if chosen else (Memory(), Software())
    clock = args.clock if args.clock is not None else chosen.clock if chosen else DEFAULT_CLOCK
    _check_options(args, clock)
    if args.latency is not None:
        memory = replace(memory, latency=args.latency)
    if args.bandwidth is not None:
        memory = replace(memory, bytes_per_cycle=args.bandwidth)
    if args.shared:
        memory = replace(memory, shared=True)
    if args.software is not None:
        software = replace(software, answer=args.software)
    if args.csb_cycles is not None:
        read = args.csb_cycles * CSB_READ / CSB_WRITE
        software = replace(software, write=args.csb_cycles, read=read, status=True)
    if args.cpu_cycles is not None:
        software = replace(software, element=args.cpu_cycles)
    return memory, software, clock, chosen


def _check_options(args: argparse.Namespace, clock: float) -> None:
    from nvdla.analysis.cycles.constants import MAX_SOFTWARE, check_clock

    check_clock(clock)
    for name in ("software", "csb_cycles", "cpu_cycles"):
        value = getattr(args, name)
        if value is not None and not 0 <= value <= MAX_SOFTWARE:
            raise FormatError(f"--{name.replace('_', '-')} {value}: must be 0 .. {MAX_SOFTWARE} cycles")


def add_viewing_options(parser: argparse.ArgumentParser) -> None:
    """The loadable or folder, a second loadable, inputs, labels."""
    add_study_options(parser)
    parser.add_argument("other", nargs="?", help="second loadable, shown next to the first")
    add_input_options(parser)
    add_comparison_options(parser)
    add_class_names_option(parser)


def refuse_several(args: argparse.Namespace) -> None:
    """Refuse options for two runs, and inputs of a directory, whose loadables are shown one by one.

    Raises:
        FormatError: One of these options was given.
    """
    if args.other or args.other_input or args.other_config:
        raise FormatError(f"{args.loadable}: must be one loadable for two sides, got several")
    if (args.input or args.random_input is not None) and kind_of(args.loadable) != "package":
        raise FormatError(f"{args.loadable}: inputs: must be for one loadable, got a directory. Name one of its files.")


def sides_of(args: argparse.Namespace) -> list[tuple[Side, DoctorReport]]:
    """One side or two, examined and run. Raises NvdlaError."""
    from nvdla.tensors.real import read_labels

    labels = read_labels(args.class_names) if args.class_names else None
    asked = [args]
    if args.other or args.other_input or args.other_config:
        asked.append(_beside(args))
    sides = [_side(side_args, labels, len(asked)) for side_args in asked]
    _tell_apart([side.document for side, _ in sides], asked)
    return sides


def _tell_apart(documents: list[Document], asked: list[argparse.Namespace]) -> None:
    """Add the difference to equal titles of two sides: their files, or the inputs of their runs."""
    if len(documents) < 2 or documents[0]["title"] != documents[1]["title"]:
        return
    for document, args in zip(documents, asked, strict=True):
        if asked[0].loadable != asked[1].loadable:
            document["title"] += f" ({args.loadable})"
        elif asked[0].input != asked[1].input:
            document["title"] += "".join(f", {Path(path).name}" for path in args.input)


def _beside(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of the second side; those of the first are the defaults."""
    config = args.other_config or ("auto" if args.other else args.config)
    changes = {"loadable": args.other or args.loadable, "input": args.other_input or args.input, "config": config}
    return argparse.Namespace(**vars(args) | changes | ({"layers": None} if args.other else {}))


def _side(args: argparse.Namespace, labels: list[str] | None, sides: int) -> tuple[Side, DoctorReport]:
    from nvdla.report.document import make_side

    request = requested(args, refuses=False)
    study = request.tell()
    names = names_of(args, study.loadable)
    return make_side(study, names, request.clock, _inputs(args), labels, sides)


def _inputs(args: argparse.Namespace) -> Callable[[Runtime], list[list[bytes]]] | None:
    if not args.input and args.random_input is None:
        return None

    def inputs(runtime: Runtime) -> list[list[bytes]]:
        runs = surfaces_of_runs(runtime, args)
        if len(runs) > 1:
            line = f"{args.input[0]}: the page shows the values of this run; findings are of {len(runs):,} runs"
            tell_once(line, args)
        return runs

    return inputs
