"""docs/lint-rules.md, from the docstrings of the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvdla.lint.linter import rules
from nvdla.lint.registry import Rule

CHAPTERS = {
    "configuration": "What the configuration has",
    "convolution": "Convolution: CDMA, CBUF, CSC, CACC",
    "post_processing": "SDP, PDP, CDP",
    "memory": "Memory",
    "graph": "Descriptors and the dependency graph",
    "running": "The dry run",
}


INTRODUCTION = """# Rules of `nvdla lint`

Made from the rules' docstrings by `python tools/pages/lint_rules.py`; do not edit. A heading is what `nvdla lint`
prints: what is wrong, and in brackets the name of the rule. Below stand the rule itself, as it should be, why it is
one, and what to do where it is broken. An *error* means that the loadable cannot run on the configuration, or that its
result is wrong; a *warning* that it probably is; a *note* is worth knowing."""


def page(introduction: str, chapters: Mapping[str, str], listed: Iterable[Rule]) -> str:
    """The whole page as Markdown: the rules by chapter."""
    listed = list(listed)
    parts = [introduction]
    for chapter, title in chapters.items():
        parts += ["", f"## {title}"]
        for rule in listed:
            if rule.chapter == chapter:
                parts += [
                    "",
                    f"### {rule.headline} [{rule.name}] {{#{rule.name}}}",
                    "",
                    f"*{rule.severity}*",
                    "",
                    rule.text,
                ]
                parts += ["", f"**What to do:** {rule.advice}"]
    return "\n".join(parts) + "\n"


def lint_page() -> str:
    """docs/lint-rules.md."""
    return page(INTRODUCTION, CHAPTERS, rules())


if __name__ == "__main__":
    print(lint_page(), end="")
