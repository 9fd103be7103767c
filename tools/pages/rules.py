"""The rules of docs/lint.md and the checks of docs/doctor.md, from their docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from nvdla.checks.doctor.doctor import checks
from nvdla.checks.lint.linter import Rule, rules

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- rules: made by tools/pages/rules.py -->", "<!-- /rules -->"
#: page -> chapters with their titles
CHAPTERS = {
    "lint": {
        "configuration": "What the configuration has",
        "convolution": "Convolution: CDMA, CBUF, CSC, CACC",
        "post_processing": "SDP, PDP, CDP",
        "memory": "Memory",
        "graph": "Descriptors, dependency graph and dry run",
    },
    "doctor": {
        "number": "Scales, weights, biases",
        "run": "Results of a run",
        "calibration": "The calibration table",
        "fault": "Compiler bugs and CPU layers",
    },
}


def listed(page: str) -> Iterable[Rule]:
    """Rules of a page in their order."""
    return rules() if page == "lint" else checks()


def with_rules(page: str, text: str) -> str:
    """Return the text of a page with its list of rules as the code has them."""
    parts = [BEGIN]
    for chapter, title in CHAPTERS[page].items():
        parts += ["", f"### {title}"]
        for rule in listed(page):
            if rule.chapter == chapter:
                parts += ["", f"#### {rule.headline} [`{rule.name}`] {{#{rule.name}}}", ""]
                parts += [f"**Expected** ({rule.severity}): {rule.text}", "", f"**Remedy:** {rule.advice}"]
    made = "\n".join([*parts, "", END])
    return re.sub(f"{BEGIN}.*?{END}", lambda _: made, text, flags=re.S)


if __name__ == "__main__":
    for name in CHAPTERS:
        path = DOCS / f"{name}.md"
        path.write_text(with_rules(name, path.read_text(encoding="utf-8")), encoding="utf-8")
