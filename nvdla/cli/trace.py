"""``nvdla trace replay``: run a hardware register trace and report its checks."""

from __future__ import annotations

import argparse

from nvdla.cli.output import print_document, say, whole
from nvdla.errors import counted

HELP = "Replay a hardware register trace (.cfg, or input.txn of nv_full) and report its checks."


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    action = actions.add_parser("replay", help="run a trace on the register model", description=HELP)
    action.add_argument("trace", metavar="FILE", help="trace file; its memory images must be in the same directory")
    action.add_argument("--config", required=True, metavar="NAME", help="hardware configuration, for example nv_small")
    action.add_argument("--dump", metavar="DIR", help="write all memory used by the trace into DIR")
    action.add_argument("--threads", type=whole(1), metavar="N", help="number of threads (default: all cores)")
    action.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """0: all checks passed, 1: one failed."""
    from nvdla.emulator.trace import replay  # the engines are not loaded for --help

    result = replay(args.trace, args.config, threads=args.threads)
    dumped = [str(path) for path in result.dump(args.dump)] if args.dump else []
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
    failed = sum(not check.passed for check in result.checks)
    engines = (
        ", ".join(f"{str(operation['engine']).upper()} (group {operation['group']})" for operation in operations)
        or "nothing"
    )
    made = f"{counted(len(result.checks) - failed, 'check')} passed, {failed} failed"
    made = made if result.checks else "FAILED: the trace checks nothing"
    say(f"{result.path.name} on {result.config.name}: ran {engines}; {made}")
    return 0 if result.passed else 1
