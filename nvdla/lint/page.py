"""The documentation of the rules, made from their docstrings: ``python -m nvdla.lint.page > docs/lint-rules.md``."""

from __future__ import annotations

from nvdla.lint.linter import rules

CHAPTERS = {
    "configuration": "What the configuration has",
    "convolution": "Convolution: CDMA, CBUF, CSC, CACC",
    "post_processing": "SDP, PDP, CDP",
    "memory": "Memory",
    "graph": "Descriptors and the dependency graph",
    "running": "The dry run",
}


def page() -> str:
    """The whole page as Markdown."""
    parts = [
        "# Rules of `nvdla lint`",
        "",
        "Made from the rules' docstrings by `python -m nvdla.lint.page`; do not edit. An *error* means that the",
        "loadable cannot run on the configuration, or that its result is wrong; a *warning* that it probably is; a",
        "*note* is worth knowing.",
    ]
    for chapter, title in CHAPTERS.items():
        parts += ["", f"## {title}"]
        for rule in rules():
            if rule.chapter == chapter:
                parts += ["", f"### {rule.name}", "", f"*{rule.severity}*", "", rule.text]
                parts += ["", f"**What to do:** {rule.advice}"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
