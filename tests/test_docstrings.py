"""Docstrings: every public name has one; promised names (docs/api.md) have Google style with all sections."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvdla

ROOT = Path(__file__).resolve().parents[1]
FILES = [path for path in [*ROOT.glob("nvdla/**/*.py"), *ROOT.glob("kernels/**/*.py")] if "generated" not in path.parts]
#: beginnings of docstrings that refer to another docstring
LEANING = re.compile(
    r"The same(,| (for|as above|as a|with|in)\b)|(Same as|Likewise|Ditto|It as)\b"
    r"|As (above\b|the base\b|records\b|`|:|_)|Like :"
)

#: words without meaning
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


@pytest.mark.parametrize("package", sorted({path.relative_to(ROOT).parts[1] for path in FILES}))
def test_every_public_name_has_a_docstring(package):
    silent = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if path.relative_to(ROOT).parts[1] == package
        for name, node in public(ast.parse(path.read_text(encoding="utf-8")))
        if not ast.get_docstring(node)
    ]
    assert not silent


def says_more(name: str, text: str) -> bool:
    """Check whether a docstring has a word that is not in the name; articles and prepositions do not count."""
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


def promised() -> Iterator[tuple[Path, str, ast.FunctionDef | ast.ClassDef]]:
    """(file, dotted name, node) of the functions and classes in docs/api.md, and of the public members of classes."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for entry in re.findall(r"^::: (\S+)$", page, re.MULTILINE):
        package, _, attribute = entry.rpartition(".")
        value = getattr(importlib.import_module(package), attribute)
        if not inspect.isclass(value) and not inspect.isfunction(inspect.unwrap(value)):
            continue  # a constant, or another name of a type
        path, wanted = Path(inspect.getfile(inspect.unwrap(value))), value.__qualname__
        for name, node in public(ast.parse(path.read_text(encoding="utf-8"))):
            if wanted in (name, name.rpartition(".")[0]):
                yield path, name, node


def missing_sections(node: ast.FunctionDef) -> set[str]:
    """Return the sections that Google style requires and the docstring of a function lacks."""
    text = ast.get_docstring(node) or ""
    arguments = [each.arg for each in (*node.args.args, *node.args.kwonlyargs) if each.arg not in ("self", "cls")]
    decorators = {ast.unparse(each) for each in node.decorator_list}
    returns = ast.unparse(node.returns or ast.Constant(None))
    needed = {"Args"} if arguments and not any(each.endswith(".setter") for each in decorators) else set()
    stated = re.match(r"(Return|Yield|Add|Check)\b", text)  # the first line states the result
    if returns != "None" and not stated and not decorators & {"property", "cached_property"}:
        needed.add("Returns")
    if any(isinstance(each, ast.Raise) and each.exc is not None for each in ast.walk(node)):
        needed.add("Raises")
    return {section for section in needed if not re.search(rf"^{section}:$", text, re.MULTILINE)}


def test_promised_functions_document_arguments_results_and_errors():
    lacking = {
        f"{path.relative_to(ROOT)}: {name}": missing
        for path, name, node in promised()
        if isinstance(node, ast.FunctionDef) and (missing := missing_sections(node))
    }
    assert not lacking
    function = ast.parse('def f(a) -> int:\n    """Count."""\n    raise ValueError(a)').body[0]
    assert missing_sections(function) == {"Args", "Returns", "Raises"}


def pydocstyle(paths: set[Path]) -> list[tuple[Path, int, str]]:
    """(file, line, message) of ruff's D rules with the google convention; constructors are documented by the class."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "D"]
    command += ["--ignore", "D105,D107", "--config", 'lint.pydocstyle.convention="google"', "--output-format", "json"]
    result = subprocess.run([*command, *map(str, sorted(paths))], capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stderr
    return [
        (Path(each["filename"]), each["location"]["row"], f"{each['code']} {each['message']}")
        for each in json.loads(result.stdout)
    ]


def test_promised_names_follow_the_google_convention(tmp_path):
    definitions = list(promised())
    assert {"load", "Runtime.run", "Network.convolution", "merge"} <= {name for _, name, _ in definitions}
    lines = {}
    for path, name, node in definitions:
        if ast.get_docstring(node):
            lines |= {(path, line): name for line in range(node.lineno, (node.body[0].end_lineno or 0) + 1)}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {lines[path, line]}: {message}"
        for path, line, message in pydocstyle({path for path, _, _ in definitions})
        if (path, line) in lines
    ]
    assert not wrong
    (tmp_path / "planted.py").write_text('"""Module."""\n\n\ndef f(a):\n    """Of a\n    thing."""\n')
    assert any(message.startswith("D205") for _, _, message in pydocstyle({tmp_path / "planted.py"}))


def test_examples_of_the_package_run(monkeypatch, tmp_path):
    """Examples print what they show; the code that introduces the package runs line by line."""
    pytest.importorskip("pandas")
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    members = [getattr(nvdla, name) for name in nvdla.__all__ if name != "__version__"]
    examples = [example for member in members for example in finder.find(member, globs={"nvdla": nvdla})]
    attempted = [runner.run(example) for example in examples]
    assert sum(result.attempted for result in attempted) >= 4 and not any(result.failed for result in attempted)
    lines = re.findall(r"^    .*$", nvdla.__doc__ or "", re.MULTILINE)
    assert len(lines) > 8
    exec(textwrap.dedent("\n".join(lines)), {})
