"""The columns "fast form" of docs/numerics.md, from the registry of fast forms (``nvdla.kernels.fast.forms``)."""

from __future__ import annotations

import re
from pathlib import Path

from nvdla.kernels.fast.forms import FastForm, forms

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
HEAD = "| rule | where | source | fast form |"
BEGIN, END = "<!-- fast forms: made by tools/pages/numerics.py -->", "<!-- /fast forms -->"


def with_forms(text: str) -> str:
    """The page with its columns and its list of fast forms made anew."""
    by_rule: dict[str, list[str]] = {}
    for form in forms():
        for rule in form.rules:
            by_rule.setdefault(f"kernels.{rule}", []).append(f"`kernels.fast.{form.form}`")
    lines = [_row(line, by_rule) if line.startswith("| ") else line for line in text.splitlines()]
    lines = ["|---|---|---|---|" if before == HEAD else line for before, line in zip(["", *lines], lines, strict=False)]
    page = "\n".join(lines) + "\n"
    listed = "\n".join(
        [BEGIN, "| form | equals | as long as | compared in |", "|---|---|---|---|", *map(_line, forms())]
    )
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{listed}\n{END}", page, flags=re.S)


def _row(line: str, by_rule: dict[str, list[str]]) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
    if cells[:3] == ["rule", "where", "source"]:
        return HEAD
    named = re.findall(r"`(kernels\.[\w.]+)`", cells[1]) if len(cells) in (3, 4) else []
    if not named or cells[0].startswith("`kernels.fast"):
        return line
    found = dict.fromkeys(form for name in named for form in by_rule.get(name, ()))
    return f"| {cells[0]} | {cells[1]} | {cells[2]} | {', '.join(found)} |".replace("|  |", "| |")


def _line(form: FastForm) -> str:
    rules = ", ".join(f"`kernels.{rule}`" for rule in form.rules)
    return f"| `kernels.fast.{form.form}` | {rules} | {form.bound} | `{form.test}` |"


if __name__ == "__main__":
    PAGE.write_text(with_forms(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
