"""Count the lines of code of the toolkit: without docstrings, comments and blank lines.

``python tools/count_code.py`` prints one line per package and the total.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Number of lines that hold code; a literal over several lines counts with each of them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", []) if not isinstance(node, (ast.Lambda, ast.IfExp)) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines.difference_update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return len(lines)


def counts(root: Path = ROOT) -> dict[str, int]:
    """Lines of code per package: the folders below ``nvdla/``, and ``kernels``."""
    found: dict[str, int] = {}
    for path in sorted([*root.glob("nvdla/**/*.py"), *root.glob("kernels/**/*.py")]):
        parts = path.relative_to(root).parts
        if "generated" in parts:  # written by flatc
            continue
        package = parts[0] if parts[0] == "kernels" or len(parts) == 2 else ".".join(parts[:2])
        found[package] = found.get(package, 0) + code_lines(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    for name, number in counts().items():
        print(f"{number:8,}  {name}")
    print(f"{sum(counts().values()):8,}  total")
