"""Whatever is public says what it is, and what it says stands alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [path for path in [*ROOT.glob("nvdla/**/*.py"), *ROOT.glob("kernels/**/*.py")] if "generated" not in path.parts]
#: begins of a docstring that can only be understood beside another one
LEANING = re.compile(
    r"The same(,| (for|as above|as a|with|in)\b)|(Same as|Likewise|Ditto|It as)\b"
    r"|As (above\b|the base\b|records\b|`|:|_)|Like :"
)


def public(tree: ast.AST, path: str = ""):
    """(dotted name, node) of public functions and classes, and of public parts of public classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if "overload" in [each.id for each in node.decorator_list if isinstance(each, ast.Name)]:
                continue  # types alone: what they are the types of follows
            yield path + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{path}{node.name}.")


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[1] for path in FILES}))
def test_every_public_name_has_a_docstring(room):
    silent = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if path.relative_to(ROOT).parts[1] == room
        for name, node in public(ast.parse(path.read_text(encoding="utf-8")))
        if not ast.get_docstring(node)
    ]
    assert not silent


def test_docstrings_stand_alone():
    leaning = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node) or ""
                if LEANING.match(text):
                    leaning.append(f"{path.relative_to(ROOT)}: {node.name}: {text.splitlines()[0]}")
    assert not leaning


def test_the_guard_sees_what_it_is_for():
    tree = ast.parse('class A:\n    """Doc."""\n    def b(self): ...\n    def _c(self): ...\ndef d(): ...\n')
    assert [name for name, node in public(tree) if not ast.get_docstring(node)] == ["A.b", "d"]
    assert LEANING.match("The same for a buffer of the old ABI.")
