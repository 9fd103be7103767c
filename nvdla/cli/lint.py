"""``nvdla lint``: may this loadable run on that configuration?"""

from __future__ import annotations

import argparse

from nvdla.cli.findings import place_of_finding, print_findings, summary
from nvdla.cli.output import add_format_options, print_document, print_table, say
from nvdla.cli.rows import add_row_options, chosen
from nvdla.lint import lint_file
from nvdla.lint.linter import rules
from nvdla.program.naming import names_for

HELP = """Check a loadable against a hardware configuration: what it needs that is not built, settings that the firmware
refuses or the hardware hangs on, surfaces outside their memory, writes over constants, broken dependency graphs.

Nothing is computed, but everything else of a run is done. Every rule is explained in docs/lint-rules.md.
Exit code 1 when there is an error (with --strict: a warning)."""

FORMAT, VERSION = "nvdla-lint", 1


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", nargs="?", help="the loadable")
    parser.add_argument("--config", default="auto", help="hardware configuration (default: decided from the file)")
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 for warnings too")
    parser.add_argument("--rules", action="store_true", help="list the rules")
    add_row_options(parser, sort=False)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if args.rules:
        return _list_rules(args)
    if args.loadable is None:
        from nvdla.errors import FormatError

        raise FormatError("which loadable? give a file (or --rules to list the rules)")
    report = lint_file(args.loadable, args.config, args.abi, layers=names_for(args.loadable).layers)
    findings = chosen(report.findings, args, place_of_finding)
    document = {
        "format": FORMAT,
        "version": VERSION,
        **report.as_dict(),
        "findings": [each.as_dict() for each in findings],
    }
    if not print_document(document, args):
        print_findings(findings)
        counts = report.as_dict()["counts"]
        more = f" ({report.left_out} more of the same rules)" if report.left_out else ""
        say(f"{args.loadable} on {report.config.name}: {summary(counts)}{more}.")
        if args.config == "auto":
            say(f"The configuration was decided from the file: {report.config_reason}.")
    return int(not report.clean or (args.strict and bool(report.count("warning"))))


def _list_rules(args: argparse.Namespace) -> int:
    rows = [
        {
            "rule": rule.name,
            "severity": rule.severity,
            "headline": rule.headline,
            "text": rule.text.partition("\n\n")[0].replace("\n", " "),
        }
        for rule in rules()
    ]
    if not print_document({"format": f"{FORMAT}-rules", "version": VERSION, "rules": rows}, args):
        print_table("rules", rows)
    return 0
