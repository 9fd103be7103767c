"""``nvdla trace replay``: run a hardware register trace and report its checks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nvdla.cli.arguments import add_config_option, add_threads_option
from nvdla.cli.output import print_document, say, tell_proof
from nvdla.errors import ConfigError, NvdlaError, counted, sentence

if TYPE_CHECKING:
    from nvdla.emulator.hardware.configuration import Configuration

PASSES_ON = "Every check passes on"
#: Seconds of a failed replay up to which the other configurations are tried.
SHORT = 10
HELP = """Replay a hardware register trace (.cfg, or input.txn of nv_full) and report its checks.

For other logs, such as those of 'nvdla program --format riscv-txn', use 'nvdla csb replay'."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    action = actions.add_parser("replay", help="run a trace on the register model", description=HELP)
    action.add_argument("trace", metavar="FILE", help="trace file; its memory images must be in the same directory")
    add_config_option(action, None, required=True)
    action.add_argument("--dump-memory", metavar="DIR", help="write all memory used by the trace into DIR")
    add_threads_option(action)
    action.add_argument("--json", action="store_true", help="print JSON (stable keys) instead of tables")


def run(args: argparse.Namespace) -> int:
    """0: all checks passed, 1: one failed."""
    from nvdla.emulator.trace import replay  # the engines are not loaded for --help

    def passes(config: Configuration) -> bool:
        return replay(args.trace, config, threads=args.threads).passed

    began = time.perf_counter()
    try:
        result = replay(args.trace, args.config, threads=args.threads)
    except ConfigError as error:
        raise with_passing(error, passing_on(passes, args.config, began)) from error
    tell_proof(args, result.config)
    failed = sum(not check.passed for check in result.checks)
    passing = passing_on(passes, args.config, began) if failed else []
    dumped = [str(path) for path in result.dump(args.dump_memory)] if args.dump_memory else []
    operations = [
        {"engine": stage.engine, "group": stage.group, "statistics": stage.statistics}
        for completion in result.completions
        for stage in completion.stages
    ]
    if args.json:
        checks = [
            {"name": c.name, "line": c.line, "expected": c.expected, "actual": c.actual, "passed": c.passed}
            for c in result.checks
        ]
        report = {
            "trace": str(result.path),
            "config": result.config.name,
            "passed": result.passed,
            "checks": checks,
            "passes_on": passing,
            "operations": operations,
            "dumped": dumped,
        }
        print_document(report, args)
        return 0 if result.passed else 1
    for check in result.checks:
        if check.passed:
            say(f"ok    line {check.line}: {check.name} = {check.actual}")
        else:
            say(f"FAIL  line {check.line}: {check.name}: expected {check.expected}, got {check.actual}")
    engines = (
        ", ".join(f"{str(operation['engine']).upper()} (group {operation['group']})" for operation in operations)
        or "nothing"
    )
    verdict = f"{counted(len(result.checks) - failed, 'check')} passed, {failed} failed"
    verdict = verdict if result.checks else "FAILED: the trace checks nothing"
    say(f"{result.path.name} on {result.config.name}: ran {engines}; {verdict}")
    if passing:
        say(f"{PASSES_ON} {', '.join(passing)}")
    return 0 if result.passed else 1


def passing_on(passes: Callable[[Configuration], bool], tried: str, began: float) -> list[str]:
    """The other built-in configurations on which every check of a failed replay passes; none after a long replay.

    Args:
        passes: Replays on a configuration.
        tried: Name of the configuration that failed.
        began: Start of the replay (time.perf_counter).
    """
    from nvdla.emulator.trace.languages import configurations_where

    return configurations_where(passes, tried) if time.perf_counter() - began < SHORT else []


def with_passing(error: NvdlaError, passing: list[str]) -> NvdlaError:
    """The error of a replay, with the configurations on which every check passes."""
    return type(error)(f"{sentence(error)} {PASSES_ON} {', '.join(passing)}") if passing else error
