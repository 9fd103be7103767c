"""Findings on the terminal, for the commands that have some."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from nvdla.cli.output import escape, terminal_width
from nvdla.lint.findings import SEVERITIES, Finding


def print_findings(findings: Iterable[Finding]) -> None:
    """Severity, rule and place; below them what was seen and what to do."""
    width = min(terminal_width(), 120)
    for finding in findings:
        print(escape(f"{finding.severity}: {finding.rule}: {finding.place}"))
        for text in (finding.evidence, f"-> {finding.advice}"):
            print(escape(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ")))


def summary(counts: dict[str, int]) -> str:
    """ "1 error, 2 warnings"; "nothing found" for none."""
    parts = [f"{counts[each]} {each}{'s' * (counts[each] != 1)}" for each in SEVERITIES if counts[each]]
    return ", ".join(parts) or "nothing found"
