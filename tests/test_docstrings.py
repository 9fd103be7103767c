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

#: words that say nothing
EMPTY = frozenset(
    re.findall(r"\w+", "a an the of to for in on is it as and or this that its by with from return do function class")
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


def says_more(name: str, text: str) -> bool:
    """Whether a docstring has a word that the name has not; articles and prepositions are none."""
    of_name = {stem(word) for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name.split(".")[-1])}
    return any(stem(word) not in of_name | EMPTY for word in re.findall(r"\w+", text))


def stem(word: str) -> str:
    """A word without the ending that makes it a plural or another form of a verb."""
    return re.sub(r"(?<=\w\w\w)(ing|es|ed|s)$", "", word.lower())


def test_docstrings_say_more_than_the_name():
    empty = [
        f"{path.relative_to(ROOT)}: {name}: {text}"
        for path in FILES
        for name, node in public(ast.parse(path.read_text(encoding="utf-8")))
        if (text := ast.get_docstring(node)) and not says_more(name, text)
    ]
    assert not empty


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
    assert not says_more("Buffer.bank_bytes", "Return the bytes of the banks.")
    assert says_more("stride", "Bytes from line to line.")
