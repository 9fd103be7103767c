"""The picture of the house in docs/architecture.md, made from what the files import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- house: made by tools/pages/house.py -->", "<!-- /house -->"


def modules() -> dict[str, Path]:
    """{dotted name: file} of the project's own modules."""
    found = [path for path in ROOT.glob("nvdla/**/*.py") if "generated" not in path.parts]
    return {name_of(path): path for path in [*found, *ROOT.glob("kernels/**/*.py")]}


def name_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = ["nvdla", *parts] if parts[0] == "kernels" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules that a file imports when it is loaded or run, at any depth of its code; not what only types need.

    A name that a package passes on leads to where it comes from: ``from nvdla.builder import Network`` to
    nvdla.builder.network, ``nvdla.load`` after ``import nvdla`` to nvdla.loadable. A module that is named in a string
    ("nvdla.firmware.sdp:SdpDriver", for importlib) is imported. What a registry finds by looking into a folder
    (:mod:`nvdla.discovery`) is not: it knows no name.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _runs(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name != "nvdla")
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield from (_source(node.module, alias.name, known) for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nvdla":
            yield _home(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if name.startswith("nvdla.") and name in known and known[name].name != "__init__.py":
                yield name


def _source(module: str, name: str, known: dict[str, Path]) -> str:
    """The module that ``from module import name`` leads to."""
    if f"{module}.{name}" in known:
        return f"{module}.{name}"
    if module == "nvdla":
        return _home(name)
    if module in known and known[module].name == "__init__.py":
        return _passed_on(known[module]).get(name, module)
    return module


@cache
def _passed_on(package: Path) -> dict[str, str]:
    """{name: module} of what a package imports from its modules."""
    tree = ast.parse(package.read_text(encoding="utf-8"))
    found = [node for node in _runs(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in found for alias in node.names}


def _runs(node: ast.AST) -> Iterator[ast.AST]:
    """All parts of a syntax tree but those below ``if TYPE_CHECKING``."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _runs(child)


def _home(name: str) -> str:
    """The module that an attribute of the package comes from."""
    import nvdla

    there = (ROOT / "nvdla" / name).is_dir() or (ROOT / "nvdla" / f"{name}.py").is_file()
    return nvdla._LAZY.get(name, f"nvdla.{name}" if there else "nvdla.errors")


def room_of(module: str) -> str:
    """The room that a module lies in."""
    return module.split(".")[1] if "." in module else "__init__"


def edges() -> dict[str, set[str]]:
    """{module: modules of the project that it imports}."""
    known = modules()
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = {target for target in imports_of(path, known) if target.startswith("nvdla.")}
        found[name] = targets - {name}
    return found


def rooms() -> dict[str, set[str]]:
    """{room: rooms that it imports from}."""
    found: dict[str, set[str]] = {}
    for name, targets in edges().items():
        if "." in name and room_of(name) != "__main__":
            others = {room_of(target) for target in targets} - {room_of(name)}
            found.setdefault(room_of(name), set()).update(others)
    return found


def storeys(graph: dict[str, set[str]]) -> list[list[str]]:
    """Rooms by storey, the ground first: a room stands on the highest that it imports from."""
    height: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((of(other) for other in graph.get(room, ())), default=-1)
        return height[room]

    for room in graph:
        of(room)
    return [sorted(room for room in graph if height[room] == level) for level in range(max(height.values()) + 1)]


def picture() -> str:
    """The rooms by storey as a mermaid drawing: an arrow to every room that no other arrow leads to already."""
    graph = rooms()
    below = {room: _below(graph, room) for room in graph}
    lines = ["```mermaid", "flowchart TB"]
    for level, names in reversed(list(enumerate(storeys(graph)))):
        lines.append(f"  subgraph s{level}[storey {level}]")
        lines += [f"    {name}" for name in names]
        lines.append("  end")
    for room in sorted(graph):
        needed = {other for other in graph[room] if not any(other in below[mid] for mid in graph[room] - {other})}
        lines += [f"  {room} --> {other}" for other in sorted(needed)]
    return "\n".join([*lines, "```"])


def _below(graph: dict[str, set[str]], room: str) -> set[str]:
    """All rooms that a room stands on."""
    seen: set[str] = set()
    todo = list(graph.get(room, ()))
    while todo:
        other = todo.pop()
        if other not in seen:
            seen.add(other)
            todo += graph.get(other, ())
    return seen


def with_picture(page: str) -> str:
    """The page with a fresh picture between its marks."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{picture()}\n{END}", page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
