"""Applies the rules to a loadable."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.discovery import modules_of
from nvdla.errors import NvdlaError
from nvdla.hardware.configuration import Configuration
from nvdla.lint.context import Context
from nvdla.lint.dry_run import dry_run
from nvdla.lint.findings import SEVERITIES, Finding, sort_key
from nvdla.lint.registry import RULES, Rule
from nvdla.loadable.model import Loadable
from nvdla.loadable.reader import load
from nvdla.program.program import Program

#: findings of one rule: a broken file should not fill the screen
MOST_OF_A_RULE = 20
OTHER_ATOMS = "atoms-have-the-size-of-the-memory-atom"
DRY_RUN = "it-runs-to-its-end"
OVERRUN = "surfaces-lie-in-their-windows"
LAST = "running"


@dataclass(frozen=True)
class Report:
    """Findings, the worst first. ``left_out``: how many more of a rule there were."""

    loadable: str
    config: Configuration
    config_reason: str
    abi: str
    findings: tuple[Finding, ...]
    left_out: int = 0

    def count(self, severity: str) -> int:
        """How many findings have this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def clean(self) -> bool:
        """No error."""
        return not self.count("error")

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {
            "loadable": self.loadable,
            "configuration": self.config.name,
            "configuration_reason": self.config_reason,
            "abi": self.abi,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.as_dict() for finding in self.findings],
            "left_out": self.left_out,
        }


def rules() -> list[Rule]:
    """All rules in the order of their documentation, whichever was imported first: every module ``*_rules.py`` of this
    package, the dry run last."""
    modules_of("nvdla.lint", "_rules")
    return sorted(RULES, key=lambda each: (each.chapter == LAST, each.chapter))


@by_annotations
def lint_file(path: str | os.PathLike[str], config: str = "auto", abi: str = "auto", **options: Any) -> Report:
    """Lint a file. LoadableError when it is no loadable at all, ConfigError for an unknown configuration."""
    return lint(load(path, checked=False), config, abi, **options)


@by_annotations
def lint(
    loadable: Loadable,
    config: str = "auto",
    abi: str = "auto",
    layers: dict[tuple[int, int], str] | None = None,
    dry: bool = True,
) -> Report:
    """Apply every rule. ``layers``: names for the findings; ``dry=False`` leaves the dry run out.

    Raises ConfigError, or DescriptorError for descriptors that fit neither ABI.
    """
    program = Program.of(loadable, config, abi, layers, checked=False)
    context = Context(program)
    findings: list[Finding] = []
    left_out = 0
    for each in rules():
        errors = {finding.rule for finding in findings if finding.severity == "error"}
        if (each.name == DRY_RUN and (errors or not dry)) or (each.of_atoms and OTHER_ATOMS in errors):
            continue  # the dry run stops at the first problem, which is known already
        found = list(_limited(each, context))
        left_out += max(len(found) - MOST_OF_A_RULE, 0)
        findings += found[:MOST_OF_A_RULE]
    ordered = tuple(sorted(findings, key=sort_key))
    return Report(loadable.name, program.config, program.config_reason, program.abi.name, ordered, left_out)


def refusal(loadable: Loadable, config: str, abi: str = "auto") -> str | None:
    """Why a loadable cannot run on a configuration, by the rules; None where nothing forbids it. A dry run is made only
    where an access leaves its region of memory: a run goes on, as hardware does, where there is memory."""
    report = lint(loadable, config, abi, dry=False)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if not errors:
        return None
    if all(finding.rule == OVERRUN for finding in errors):
        program = Program.of(loadable, config, abi)
        if dry_run(loadable, program.abi, program.config, flat=True)[0] is None:
            return None  # hardware goes on in the memory behind, and so does a run
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].place}: {errors[0].evidence}{more}"


def _limited(each: Rule, context: Context) -> list[Finding]:
    """A rule's findings. One that stumbles over a broken file has found what others name."""
    try:
        return list(each.findings(context))
    except NvdlaError as error:
        return [Finding("error", each.name, each.headline, f"the rule cannot be applied: {error}", "Repair the file.")]
