"""Findings on the terminal, for the commands that have some."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable

from nvdla.cli.output import escape, terminal_width
from nvdla.cli.rows import Place
from nvdla.errors import counted
from nvdla.lint.findings import SEVERITIES, Finding


def place_of_finding(finding: Finding) -> Place:
    """What a finding is about, for :func:`nvdla.cli.rows.chosen`."""
    if finding.task is None or finding.operation is None:
        return [], [], []
    layers = [finding.layer] if finding.layer else []
    return [f"{finding.task}/{finding.operation}"], [str(finding.engine).lower()], layers


def print_findings(findings: Iterable[Finding]) -> None:
    """Rule by rule: where, what was seen, and what to do."""
    width = min(terminal_width(), 120)
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.headline, finding.rule, finding.advice), []).append(finding)
    for (severity, headline, rule, advice), members in groups.items():
        print(f"{_coloured(severity)}: {headline} [{rule}]")
        for each in members:
            _print_wrapped(f"{each.place}: {each.evidence}", width)
        _print_wrapped(f"-> {advice}", width)


def _print_wrapped(text: str, width: int) -> None:
    print(escape(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="      ")))


def _coloured(severity: str) -> str:
    """In colour on a terminal, unless NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return severity
    return f"\x1b[{_COLOURS.get(severity, '36')}m{severity}\x1b[0m"


_COLOURS = {"error": "1;31", "warning": "33"}


def summary(counts: dict[str, int]) -> str:
    """ "1 error, 2 warnings"; "nothing found" for none."""
    parts = [counted(counts[each], each) for each in SEVERITIES if counts[each]]
    return ", ".join(parts) or "nothing found"
