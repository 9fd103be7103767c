"""Command ``nvdla lint``, and findings on the terminal."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence

from nvdla.checks.lint import lint_file
from nvdla.checks.lint.linter import Finding, rules
from nvdla.cli.arguments import add_config_option, add_warnings_option
from nvdla.cli.output import (
    Place,
    add_format_options,
    add_row_options,
    chosen,
    escape,
    only_tables,
    print_document,
    print_table,
    say,
    tell_proof,
    terminal_width,
)
from nvdla.errors import counted
from nvdla.program.naming import names_for
from nvdla.util.registry import Severity

COLUMNS = ("severity", "rule", "headline", "task", "operation", "engine", "layer", "evidence", "advice")


def place_of_finding(finding: Finding) -> Place:
    """Subject of a finding, for :func:`nvdla.cli.output.chosen`."""
    if finding.task is None or finding.operation is None:
        return [], [], []
    layers = [finding.layer] if finding.layer else []
    return [f"{finding.task}/{finding.operation}"], [str(finding.engine).lower()], layers


def print_findings(findings: Iterable[Finding]) -> None:
    """Print findings by rule: place, evidence, advice."""
    if only_tables():
        print_table("findings", [finding.as_dict() for finding in findings], COLUMNS)
        return
    width = min(terminal_width(), 120)
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.headline, finding.rule, finding.advice), []).append(finding)
    for (severity, headline, rule, advice), members in groups.items():
        print(f"{_colored(severity)}: {headline} [{rule}]")
        for member in members:
            _print_wrapped(f"{member.place}: {member.evidence}", width)
        _print_wrapped(f"-> {advice}", width)


def _print_wrapped(text: str, width: int) -> None:
    print(escape(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="      ")))


def _colored(severity: str) -> str:
    """In color on a terminal, unless NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return severity
    return f"\x1b[{_COLORS.get(severity, '36')}m{severity}\x1b[0m"


_COLORS = {"error": "1;31", "warning": "33"}


def summary(counts: dict[str, int]) -> str:
    """ "1 error, 2 warnings"; "nothing found" for none."""
    parts = [counted(counts[severity], severity) for severity in map(str, Severity) if counts[severity]]
    return ", ".join(parts) or "nothing found"


def tested(file: str, configuration: str | None) -> str:
    """The file, and the configuration where it is known."""
    return file if configuration is None else f"{file} on {configuration}"


def hidden(every: Sequence[object], shown: Sequence[object]) -> str:
    """ "; 0 of 6 findings are shown (--op, --type, --top)"; "" where all are."""
    if len(every) == len(shown):
        return ""
    return f"; {len(shown):,} of {counted(len(every), 'finding')} shown (--op, --type, --top)"


HELP = """Check a loadable against a hardware configuration: missing hardware features, settings that the firmware
refuses or that hang the hardware, surfaces outside their memory, writes over constants, broken dependency graphs.

lint does a dry run: all steps of a run except the arithmetic. Every rule is explained in docs/lint.md.
Exit code 1 for errors (with --warnings-as-errors also for warnings)."""

FORMAT, VERSION = "nvdla-lint", 1


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", nargs="?", help="the loadable")
    add_config_option(parser)
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    add_warnings_option(parser)
    parser.add_argument("--rules", action="store_true", help="list the rules")
    add_row_options(parser, sort=False)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if args.rules:
        return _list_rules(args)
    if args.loadable is None:
        from nvdla.errors import FormatError

        raise FormatError("no loadable: give a file (or --rules to list the rules)")
    report = lint_file(args.loadable, args.config, args.abi, layers=names_for(args.loadable).layers)
    if report.configuration:
        tell_proof(args, report.config)
    findings = chosen(report.findings, args, place_of_finding)
    document = {
        "format": FORMAT,
        "version": VERSION,
        **report.as_dict(),
        "findings": [finding.as_dict() for finding in findings],
    }
    if not print_document(document, args):
        print_findings(findings)
        counts = report.as_dict()["counts"]
        more = f" ({report.left_out} more of the same rules)" if report.left_out else ""
        verdict = f"{summary(counts)}{more}{hidden(report.findings, findings)}"
        say(f"{tested(args.loadable, report.configuration)}: {verdict}.")
        if not report.configuration:
            say(f"The configuration is unknown: {report.config_reason}. Add --config to apply the other rules.")
        elif args.config == "auto":
            say(f"The configuration was decided from the file: {report.config_reason}.")
    return int(not report.clean or (args.warnings_as_errors and bool(report.count("warning"))))


def _list_rules(args: argparse.Namespace) -> int:
    rows = [
        {
            "rule": rule.name,
            "severity": str(rule.severity),
            "headline": rule.headline,
            "text": rule.text.partition("\n\n")[0].replace("\n", " "),
        }
        for rule in rules()
    ]
    if not print_document({"format": f"{FORMAT}-rules", "version": VERSION, "rules": rows}, args):
        print_table("rules", rows)
    return 0
