"""``nvdla csb``: logs of register accesses decoded, compared, and run."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.arguments import add_config_option, add_threads_option
from nvdla.cli.output import (
    add_format_options,
    only_tables,
    output_file,
    print_document,
    print_table,
    say,
    tell_proof,
    whole,
)
from nvdla.cli.trace import PASSES_ON, passing_on, with_passing
from nvdla.errors import ConfigError, FormatError, TraceError, counted
from nvdla.util.escaping import Document, Json, with_hex_addresses
from nvdla.util.rounding import integer

if TYPE_CHECKING:
    from nvdla.emulator.hardware.configuration import Configuration
    from nvdla.emulator.memory.address_space import Space
    from nvdla.registers.logs import AccessLog, LoggedAccess

HELP = """Decode, compare and replay logs of register accesses.

  nvdla csb FILE                        every access with its register and fields
  nvdla csb diff A B --mask-addresses   first difference of every operation
  nvdla csb replay FILE --config NAME   run the log and check the memory contents that it records
  nvdla csb verify FILE                 results of a self-test kit from the log of a board

Log formats: 'W address value' lines, the virtual platform's sc.log, write_reg / read_reg transactions (word or byte
addresses), reg_write(NAME, value) statements, plain 'address value' lines."""

SAME = "the same operations"
NOTHING_COMPARED = (
    "FAILED: the log has no written memory to compare with. Logs of 'nvdla program --format riscv-txn' have it; "
    "--dump writes memory for your own comparison."
)
ACTIONS = ("show", "diff", "replay", "verify")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("words", nargs="+", metavar="FILE", help="log files, after diff, replay or verify")
    parser.add_argument("--map", choices=("nv_small", "nv_full"), help="register map (default: detected)")
    parser.add_argument(
        "--csb-base", type=whole(base=0), metavar="ADDRESS", help="address of the first register (default: detected)"
    )
    parser.add_argument("--mask-addresses", action="store_true", help="diff: ignore differences of memory addresses")
    parser.add_argument(
        "--operations",
        action="store_true",
        help="print operations and their registers that are not 0, instead of accesses",
    )
    add_config_option(parser, None, "none; replay needs one")
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="ADDRESS=FILE",
        help="replay: load a file into memory (ADDRESS or cvsram:ADDRESS)",
    )
    parser.add_argument(
        "--dump",
        action="append",
        default=[],
        type=output_file(".bin"),
        metavar="ADDRESS:SIZE=FILE",
        help="replay: write a memory range to a file",
    )
    add_threads_option(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    words = list(args.words)
    action = words.pop(0) if words[0] in ACTIONS and len(words) > 1 else "show"
    wanted = 2 if action == "diff" else 1
    near = difflib.get_close_matches(words[0], ACTIONS, n=1) if action == "show" and len(words) > 1 else []
    if near and not Path(words[0]).exists():
        raise FormatError(f"csb {words[0]}: unknown action; did you mean {near[0]!r}?")
    if action == "show" and len(words) == 2 and not Path(words[0]).exists():
        known = "diff, replay or verify"
        raise FormatError(f"action: must be {known}, got {words[0]!r}. To decode a log: nvdla csb {words[1]}")
    if len(words) != wanted:
        raise FormatError(f"csb {action}: must get {wanted} file{'s' * (wanted > 1)}, got {len(words)}")
    return {"show": _show, "diff": _diff, "replay": _replay, "verify": _verify}[action](words, args)


def _read(path: str, args: argparse.Namespace, register_map: str | None = None) -> AccessLog:
    """Read a log; ``register_map`` is the default of --map."""
    from nvdla.registers.logs import read_log

    return read_log(path, args.map or register_map, args.csb_base)


def _show(words: list[str], args: argparse.Namespace) -> int:
    from nvdla.registers.logs import operations

    log = _read(words[0], args)
    if args.operations:
        rows: list[Document] = [
            {
                "line": operation.line,
                "unit": operation.unit,
                "number": operation.number,
                "group": operation.group,
                "registers": operation.values,
            }
            for operation in operations(log)
        ]
        head = {"format": "nvdla-csb-operations", "version": 1, "form": log.format, "map": log.map.name}
        if not print_document({**head, "operations": rows}, args):
            _print_operations(rows)
        return 0
    rows = [_access(log, access) for access in log.accesses]
    head = {"format": "nvdla-csb-accesses", "version": 1, "form": log.format, "map": log.map.name}
    if print_document({**head, "accesses": rows}, args):
        return 0
    say(f"{words[0]}: {len(rows):,} register accesses in the format {log.format}, register map {log.map.name}")
    if only_tables():
        print_table("accesses", map(with_hex_addresses, rows), list(rows[0]) if rows else ())
        return 0
    for row in rows:
        value = "?" if row["value"] is None else f"0x{row['value']:08x}"
        fields = " ".join(f"{name}={number}" for name, number in row["fields"].items())
        if row["mask"] is not None:
            bound = "" if row["looks"] is None else f" within {row['looks']:,} polls"
            fields = f"{fields} (mask 0x{row['mask']:x}{bound})".strip()
        say(f"{row['line']:6} {row['kind']:5} 0x{row['address']:05x} {row['register']:36} {value}  {fields}".rstrip())
    unknown = sum(row["register"] == "unknown" for row in rows)
    if 2 * unknown > len(rows):
        hint = "Set the address of the first register with --csb-base, or the register map with --map."
        say(f"{unknown:,} of {len(rows):,} accesses are to unknown registers. {hint}", sys.stderr)
    return 0


def _print_operations(rows: Sequence[Document]) -> None:
    """Print the operations with their registers that are not 0."""
    table: list[Document] = []
    for row in rows:
        values = {name: f"0x{value:x}" for name, value in row["registers"].items() if value}
        table += ({**row, "register": name, "value": value} for name, value in values.items())
        say(f"line {row['line']}: {row['unit']} operation {row['number']}, group {row['group']}")
        print("".join(f"    {name} = {value}\n" for name, value in values.items()), end="")
    if only_tables():
        print_table("operations", table, ("line", "unit", "number", "group", "register", "value"))


def _access(log: AccessLog, access: LoggedAccess) -> dict[str, Json]:
    register = log.map.by_address.get(access.address)
    fields = {}
    if register is not None and access.value is not None:
        fields = {field.name: access.value >> field.low & field.mask for field in register.fields.values()}
        if len(fields) == 1 and next(iter(fields.values())) == access.value:
            fields = {}
    return {
        "line": access.line,
        "kind": access.kind,
        "address": access.address,
        "register": str(register) if register else "unknown",
        "value": access.value,
        "fields": fields,
        "mask": access.mask if access.kind == "wait" else None,
        "looks": access.looks,
    }


def _diff(words: list[str], args: argparse.Namespace) -> int:
    from nvdla.registers.logs import differences, operations

    first, second = _read(words[0], args), _read(words[1], args)
    if first.map.name != second.map.name:
        raise FormatError(f"{words[1]}: register map: must be {first.map.name} as in {words[0]}, got {second.map.name}")
    if not (operations(first) or operations(second)):
        raise FormatError(f"{words[0]} and {words[1]}: nothing to compare: must enable a unit, got no operation")
    changes = differences(first, second, args.mask_addresses)
    rows: list[Document] = [
        {
            "unit": difference.unit,
            "operation": difference.number,
            "register": difference.register,
            "first": difference.first,
            "second": difference.second,
            "fields": [{"field": name, "first": before, "second": after} for name, before, after in difference.fields],
        }
        for difference in changes
    ]
    document = {"format": "nvdla-csb-diff", "version": 1, "map": first.map.name, "equal": not rows, "differences": rows}
    if not print_document(document, args):
        if only_tables():
            columns = ("unit", "operation", "register", "first", "second", "fields")
            print_table("differences", [with_hex_addresses({**row, "fields": _changes(row)}) for row in rows], columns)
        for row in rows:
            values = ["missing" if row[key] is None else f"0x{row[key]:x}" for key in ("first", "second")]
            fields = _changes(row)
            where = f"{row['unit']} operation {row['operation']}: {row['register']}"
            say(f"{where} {values[0]} | {values[1]}  {fields}".rstrip())
        say(f"{counted(len(rows), 'operation')} {'differs' if len(rows) == 1 else 'differ'}" if rows else SAME)
    return 1 if rows else 0


def _changes(row: Document) -> str:
    """The fields of a register that differ: "BS_BYPASS 0 | 1"."""
    return ", ".join(f"{field['field']} {field['first']} | {field['second']}" for field in row["fields"])


def _replay(words: list[str], args: argparse.Namespace) -> int:
    from nvdla.emulator.hardware.configuration import configuration
    from nvdla.registers.replay import replay_log
    from nvdla.util.files import read_file, write_file

    if not args.config:
        raise FormatError(
            "csb replay: --config NAME: must be given, because a log does not contain its hardware configuration"
        )
    config = configuration(args.config)
    tell_proof(args, config)
    log = _read(words[0], args, config.register_map)
    loads = [(*_place(where), read_file(file, 1 << 32, "memory file")) for where, file in map(_pair, args.load)]

    def passes(other: Configuration) -> bool:
        return replay_log(_read(words[0], args, other.register_map), other, loads, args.threads).passed

    began = time.perf_counter()
    try:
        result = replay_log(log, config, loads, args.threads)
    except (ConfigError, TraceError) as error:
        raise with_passing(error, passing_on(passes, config.name, began)) from error
    passing = passing_on(passes, config.name, began) if result.compared and not result.passed else []
    for where, file in map(_pair, args.dump):
        address, colon, size = where.rpartition(":")
        if not colon:
            raise FormatError(f"--dump {where}={file}: must be ADDRESS:SIZE=FILE")
        space, start = _place(address)
        write_file(Path(file), result.memory.view(space, start, _number(size), "--dump").tobytes())
    checks = [
        {"space": check.space.value, "address": check.address, "bytes": check.size, "different": check.different}
        for check in result.memory_checks
    ]
    document = {
        "format": "nvdla-csb-replay",
        "version": 1,
        "passed": result.passed,
        "engines": result.engines,
        "checks": checks,
        "passes_on": passing,
        "stuck": result.stuck,
    }
    if not print_document(document, args):
        failed = [row for row in checks if row["different"]]
        if failed or only_tables():
            listed = checks if only_tables() else failed
            columns = ("space", "address", "bytes", "different")
            print_table("Memory that differs", map(with_hex_addresses, listed), columns)
        for line in result.stuck:
            say(line)
        ran = _ran(result.engines)
        verdict = f"{counted(len(checks) - len(failed), 'range')} of memory equal, {len(failed)} not"
        say(f"ran {ran}; {verdict if result.compared else NOTHING_COMPARED}")
        if passing:
            say(f"{PASSES_ON} {', '.join(passing)}")
    return 0 if result.passed else 1


def _verify(words: list[str], args: argparse.Namespace) -> int:
    from nvdla.emulator.hardware.configuration import configuration
    from nvdla.registers.self_test import verify_log

    name, results = verify_log(Path(words[0]), configuration(args.config) if args.config else None)
    rows: list[Document] = [
        {
            "engine": result.engine,
            "mode": result.mode,
            "precision": result.precision,
            "passed": result.passed,
            "problem": result.problem or None,
        }
        for result in results
    ]
    failed = sum(not result.passed for result in results)
    document = {"format": "nvdla-csb-verify", "version": 1, "config": name, "passed": not failed, "tests": rows}
    if not print_document(document, args):
        table: list[Document] = [
            {**{key: row[key] for key in ("engine", "mode", "precision")}, "result": row["problem"] or "pass"}
            for row in rows
        ]
        print_table("Self-tests", table)
        say(f"{name}: {counted(len(rows) - failed, 'test')} passed, {failed} failed")
    return 1 if failed else 0


def _ran(engines: Sequence[str]) -> str:
    """The engines in order; of a long run how often each ran."""
    if len(engines) > 20:
        return ", ".join(f"{count} {engine.upper()}" for engine, count in Counter(engines).items())
    return ", ".join(engines).upper() or "nothing"


def _pair(word: str) -> tuple[str, str]:
    where, sign, file = word.partition("=")
    if not sign or not file:
        raise FormatError(f"{word!r}: must be ADDRESS=FILE")
    return where, file


def _place(word: str) -> tuple[Space, int]:
    from nvdla.emulator.memory.address_space import Space

    name, colon, address = word.rpartition(":")
    space = Space.CVSRAM if colon and name == "cvsram" else Space.DRAM
    return space, _number(address)


def _number(word: str) -> int:
    try:
        return integer(word, 0)
    except ValueError:
        raise FormatError(f"{word[:40]!r} must be a number") from None
