"""The columns "fast path" of docs/numerics.md, from the registry of fast paths (``nvdla.kernels.fast.fast_paths``)."""

from __future__ import annotations

import re
from pathlib import Path

from nvdla.kernels.fast.fast_paths import FastPath, fast_paths

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
HEAD = "| rule | function | source | fast path |"
BEGIN, END = "<!-- fast paths: made by tools/pages/numerics.py -->", "<!-- /fast paths -->"


def with_fast_paths(text: str) -> str:
    """Return the page with its columns and its list of fast paths as the code has them."""
    by_rule: dict[str, list[str]] = {}
    for path in fast_paths():
        for rule in path.rules:
            by_rule.setdefault(f"kernels.{rule}", []).append(f"`kernels.fast.{path.function}`")
    lines = [_row(line, by_rule) if line.startswith("| ") else line for line in text.splitlines()]
    lines = ["|---|---|---|---|" if before == HEAD else line for before, line in zip(["", *lines], lines, strict=False)]
    page = "\n".join(lines) + "\n"
    listed = "\n".join(
        [BEGIN, "| fast path | equals | condition | test |", "|---|---|---|---|", *map(_line, fast_paths())]
    )
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{listed}\n{END}", page, flags=re.S)


def _row(line: str, by_rule: dict[str, list[str]]) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
    if cells[:1] == ["rule"]:
        return HEAD
    named = re.findall(r"`(kernels\.[\w.]+)`", cells[1]) if len(cells) in (3, 4) else []
    if not named or cells[0].startswith("`kernels.fast"):
        return line
    paths = dict.fromkeys(path for name in named for path in by_rule.get(name, ()))
    return f"| {cells[0]} | {cells[1]} | {cells[2]} | {', '.join(paths)} |".replace("|  |", "| |")


def _line(path: FastPath) -> str:
    rules = ", ".join(f"`kernels.{rule}`" for rule in path.rules)
    return f"| `kernels.fast.{path.function}` | {rules} | {path.bound} | `{path.test}` |"


if __name__ == "__main__":
    PAGE.write_text(with_fast_paths(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
