"""``nvdla program``: the register program of a loadable, for bare metal, test benches and simulators."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import nvdla
from nvdla.cli.arguments import (
    add_base_option,
    add_input_options,
    add_machine_options,
    add_strict_option,
    names_of,
    random_surfaces,
    surfaces_of_runs,
    tell_warnings,
)
from nvdla.cli.output import add_format_options, print_document, print_table, say, tell_proof, whole
from nvdla.errors import FormatError, counted
from nvdla.loadable import load as load_loadable
from nvdla.util.escaping import Document, c_identifier

if TYPE_CHECKING:
    from nvdla.emulator.memory.address_space import Space
    from nvdla.registers.printers.c99 import TestRow
    from nvdla.registers.recording import Export, Options, Printer
    from nvdla.registers.register_program import RegisterProgram
    from nvdla.runtime import Runtime

HELP = """Write the register program of a loadable: every register write, every wait, and the memory contents.

  nvdla program lenet.loadable --format c -o lenet_c
  nvdla program lenet.loadable --format cfg --input digit7.pgm -o trace
  nvdla program lenet.loadable --format list
  nvdla program lenet.loadable --board zynq -o project
  nvdla program --self-test --config nv_small --board baremetal -o kit

The program contains the register accesses of the firmware, unrolled. It needs neither Linux nor NVIDIA's driver,
which runs the loadable itself."""


REPLAY = {"cfg": ("trace", ".cfg"), "txn": ("csb", ".txn"), "riscv-txn": ("csb", ".txn")}
"""The command that replays a format, and the suffix of its script."""
CHIPS = {"vitis": r"zynq.?mp|ultrascale|mpsoc|zc?u\d|k[rv]260|kria", "zynq": r"zynq|7z\d|zc70|zed|zybo|pynq"}
"""Names of chips and boards that a project is for; the first that fits decides."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", nargs="?", help="the loadable")
    parser.add_argument(
        "--format", "-f", default="c", metavar="FORMAT", help="output format; 'list' prints all formats"
    )
    parser.add_argument("--output", "-o", metavar="DIR", help="output directory (default: NAME_FORMAT)")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="write tests of all engines and modes of --config instead of a loadable's program",
    )
    parser.add_argument("--board", metavar="NAME", help="C: write a project for a board; 'list' prints all boards")
    parser.add_argument("--name", help="base name of files and C symbols (default: name of the loadable)")
    parser.add_argument(
        "--serial", action="store_true", help="run one engine chain at a time (default: schedule of the firmware)"
    )
    add_machine_options(parser)
    add_strict_option(parser)
    add_input_options(parser)
    place = parser.add_argument_group("addresses")
    for name in ("dram", "cvsram", "csb"):
        add_base_option(place, name)
    place.add_argument("--csb-addressing", choices=("byte", "word"), help="unit of register addresses")
    place.add_argument(
        "--poll-limit",
        type=whole(base=0),
        metavar="N",
        help="polls per event before giving up (default: 0, no limit)",
    )
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--image", action="store_true", help="C: write weights into a separate image file")
    data.add_argument("--arrays", action="store_true", help="C: write weights as arrays of any size")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.registers.printers import printer, printers
    from nvdla.registers.printers.c99 import BOARDS
    from nvdla.registers.recording import export, record

    if args.format == "list":
        rows = [{"form": name, "what": form.help} for name, form in sorted(printers().items())]
        if not print_document({"forms": rows}, args):
            print_table("Formats", [{"format": row["form"], "what": row["what"]} for row in rows])
        return 0
    if args.board == "list":
        rows = [{"form": name, "what": board.help} for name, board in BOARDS.items()]
        if not print_document({"forms": rows}, args):
            print_table("Boards", [{"board": row["form"], "what": row["what"]} for row in rows])
        return 0
    form = printer(args.format)
    options = _options(args, form)
    if args.self_test:
        return _self_test(args, form, options)
    if args.loadable is None:
        raise FormatError("program needs a loadable. For tests of all engines use --self-test --config NAME.")
    name = args.name or _identifier(Path(args.loadable).name)
    runtime = nvdla.Runtime(load_loadable(args.loadable), args.config, args.abi, args.threads, strict=args.strict)
    inputs = _inputs(runtime, args)
    names = names_of(args, runtime.loadable)
    parts = form.checks_memory
    recording = record(runtime, inputs, serial=args.serial, name=name, names=names, parts=parts)
    tell_warnings(args.loadable, runtime.warnings)
    tell_proof(args, runtime.config)
    bases = _bases(recording.register_program, args)
    program = export(recording, args.output or f"{name}_{args.format}", bases, options)
    form.write(program)
    _summary(program, form, runtime, args)
    return 0


def _bases(program: RegisterProgram, args: argparse.Namespace) -> dict[Space, int]:
    """Addresses of the memories: those of the user, else those of the board, else those of the emulator."""
    from nvdla.emulator.memory.address_space import Space
    from nvdla.registers.printers.c99 import BOARDS
    from nvdla.registers.register_program import checked_bases

    given = {Space.DRAM: args.dram_base, Space.CVSRAM: args.cvsram_base}
    if args.board in BOARDS:
        board = BOARDS[args.board]
        for space, base in ((Space.DRAM, board.dram), (Space.CVSRAM, board.cvsram)):
            given[space] = base if given[space] is None else given[space]
    return checked_bases(program, {space: base for space, base in given.items() if base is not None})


def _self_test(args: argparse.Namespace, form: Printer, options: Options) -> int:
    """Write the self-test kit of a configuration."""
    from nvdla.emulator.hardware.configuration import configuration
    from nvdla.registers.printers.c99 import TestRow, write_programs
    from nvdla.registers.recording import export
    from nvdla.registers.self_test import self_tests

    if args.loadable is not None or args.config == "auto" or args.input or args.random_input is not None:
        raise FormatError("--self-test needs --config NAME, and takes no loadable and no input")
    if args.name or args.image:
        raise FormatError(f"--self-test does not support {'--name' if args.name else '--image'}. Omit it.")
    if not form.checks_memory:
        raise FormatError(f"--self-test: format must be one that checks memory, got {form.format}")
    config = configuration(args.config)
    folder = Path(args.output or f"selftest_{args.format}")
    tests = self_tests(config)
    rows = []
    for test in tests:
        bases = _bases(test.recording.register_program, args)
        target = folder if form.format == "c" else folder / test.name
        exported = export(test.recording, target, bases, options)
        rows.append(TestRow(test.engine, test.mode, test.precision, exported, test.crcs))
    if form.format == "c":
        write_programs(rows)
    else:
        for row in rows:
            form.write(row.export)
    files = [path for row in rows for path in row.export.written]
    document = {
        "format": "nvdla-self-test",
        "version": 1,
        "form": args.format,
        "config": config.name,
        "tests": [{"engine": row.engine, "mode": row.mode, "precision": row.precision} for row in rows],
        "files": [{"file": str(path), "bytes": path.stat().st_size} for path in files],
    }
    if not print_document(document, args):
        print_table("Tests", document["tests"])
        say(f"{counted(len(rows), 'test')} of {config.name} in {counted(len(files), 'file')}: {folder}")
        say(_next_of_kit(args, rows))
    return 0


def _next_of_kit(args: argparse.Namespace, rows: Sequence[TestRow]) -> str:
    """Return the next steps with a self-test kit."""
    folder = rows[0].export.folder
    if args.board:
        return f"Next: follow {folder / 'README.md'}."
    if args.format == "c":
        return (
            f"Next: adapt {folder / 'nvdla_port.h'} to your platform, compile {folder}/*.c, call nvdla_run_tests() of "
            f"{folder / 'nvdla_tests.h'}, then 'nvdla csb verify LOG' with its output."
        )
    command, suffix = REPLAY[args.format]
    script = next(path for path in rows[0].export.written if path.suffix == suffix)
    return f"Next: nvdla {command} replay {shlex.quote(str(script))} --config {shlex.quote(args.config)}"


def _options(args: argparse.Namespace, form: Printer) -> Options:
    """The printer's options. Raises FormatError for an option that the format does not support."""
    from nvdla.registers.printers.c99 import BOARDS, POLL_LIMIT
    from nvdla.registers.recording import Options

    known = form.options
    for option, value in (
        ("csb_base", args.csb_base),
        ("poll_limit", args.poll_limit),
        ("arrays", args.arrays or args.image or None),
        ("word_addresses", None if form.format == "txn" else args.csb_addressing),
        ("board", args.board),
    ):
        if value is not None and option not in known:
            words = {"arrays": "--image and --arrays", "word_addresses": "--csb-addressing"}
            name = words.get(option, f"--{option.replace('_', '-')}")
            raise FormatError(f"format {form.format} does not support {name}. Omit it, or choose another --format.")
    words_wanted = None if args.csb_addressing is None else args.csb_addressing == "word"
    arrays = True if args.arrays else False if args.image else None
    csb, limit = args.csb_base, args.poll_limit or 0
    if args.board is not None:
        if args.board not in BOARDS:
            near = next((name for name, chip in CHIPS.items() if re.search(chip, args.board, re.I)), "")
            hint = (
                f"Use --board {near} ({BOARDS[near].help})." if near else "'nvdla program --board list' explains them."
            )
            raise FormatError(
                f"--board: must be one of {', '.join(BOARDS)}, got {args.board!r}. {hint} "
                "On Linux, NVIDIA's driver runs the loadable itself."
            )
        csb, limit = BOARDS[args.board].csb if csb is None else csb, limit or POLL_LIMIT
    return Options(csb, words_wanted, limit, arrays, args.board)


def _inputs(runtime: Runtime, args: argparse.Namespace) -> list[bytes]:
    """The one run that goes into the export; random bytes where the user gives none."""
    if args.input and args.random_input is not None:
        raise FormatError("give --input or --random-input, not both")
    if not args.input and runtime.inputs:
        return random_surfaces(runtime, args.random_input or 0)
    runs = surfaces_of_runs(runtime, args)
    if len(runs) != 1:
        raise FormatError(f"--input: must be one run, got {len(runs)}. Write one program per run.")
    return runs[0]


def _identifier(file: str) -> str:
    """A name for C objects from a file's name."""
    stem = file.removesuffix(".gz").rpartition(".")[0] or file
    return c_identifier(stem)


def _summary(exported: Export, form: Printer, runtime: Runtime, args: argparse.Namespace) -> None:
    from nvdla.registers.register_program import Await, Flushed, Mark

    program = exported.register_program
    document = {
        "format": "nvdla-program-summary",
        "version": 1,
        "form": args.format,
        "config": program.config.name,
        "config_reason": runtime.config_reason,
        "serial": program.serial,
        "steps": sum(not isinstance(step, Mark) for step in program.steps),
        "register_writes": len(program.writes),
        "waits": sum(isinstance(step, (Await, Flushed)) for step in program.steps),
        "cpu_operations": len(program.cpu_operations),
        "table_bytes": form.table_bytes(exported) if form.table_bytes else None,
        "memories": [
            {
                "space": space.value,
                "base": exported.bases[space],
                "bytes": size,
                "unused": [{"offset": at, "bytes": end - at} for at, end in program.unused.get(space, ())],
            }
            for space, size in program.sizes.items()
        ],
        "data_bytes": sum(segment.size for segment in program.segments),
        "input": "given" if args.input else "random" if program.inputs else "none",
        "files": [{"file": str(path), "bytes": path.stat().st_size} for path in exported.written],
    }
    if print_document(document, args):
        return
    kind = "serial" if program.serial else "parallel"
    say(f"{exported.name}: {kind} register program for {program.config.name} ({runtime.config_reason})")
    print_table("Sizes", _sizes(document))
    print_table("Files", document["files"])
    folder = Path(document["files"][0]["file"]).parent
    if args.board:
        say(f"Next: follow {folder / 'README.md'}.")
    elif args.format == "c":
        say(f"Next: adapt {folder / 'nvdla_port.h'} to your platform, then 'cc -c {shlex.quote(str(folder))}/*.c'.")
    elif replay := REPLAY.get(args.format):
        config = program.config.name if args.config == "auto" else args.config
        script = next(row["file"] for row in document["files"] if row["file"].endswith(replay[1]))
        say(f"Next: nvdla {replay[0]} replay {shlex.quote(script)} --config {shlex.quote(config)}")
    if document["input"] == "random":
        say("The input of the program is random. Use --input FILE for your own.", sys.stderr)


def _sizes(document: Document) -> list[Document]:
    """Size of the program, as a table."""
    counted = ("steps", "register_writes", "waits", "cpu_operations")
    rows = [{"what": key.replace("_", " "), "number": document[key]} for key in counted]
    if document["table_bytes"] is not None:
        rows.append({"what": "tables (32-bit processor)", "bytes": document["table_bytes"]})
    rows.append({"what": "weights", "bytes": document["data_bytes"]})
    for memory in document["memories"]:
        space, base = memory["space"], memory["base"]
        rows.append({"what": f"{space} at 0x{base:x}", "bytes": memory["bytes"]})
        rows += ({"what": f"unused at 0x{base + gap['offset']:x}", "bytes": gap["bytes"]} for gap in memory["unused"])
    return [{"what": row["what"], "number": row.get("number"), "bytes": row.get("bytes")} for row in rows]
