"""Import graph of the project and its picture in docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- packages: made by tools/pages/architecture.py -->", "<!-- /packages -->"

GROUPS = ("checks", "compiler", "emulator", "experiments", "interop", "loadable")
"""Packages whose subpackages are separate layers."""

MARKERS = ("checks", "emulator", "experiments")
"""Groups that hold layers only: a module in one is a layer, too."""


def modules() -> dict[str, Path]:
    """Return {dotted name: file} of the project's modules, without the generated bindings."""
    found = [path for path in ROOT.glob("nvdla/**/*.py") if "generated" not in path.parts]
    return {name_of(path): path for path in [*found, *ROOT.glob("kernels/**/*.py")]}


def name_of(path: Path) -> str:
    """Return the dotted name of a file."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = ["nvdla", *parts] if parts[0] == "kernels" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: dict[str, Path], types: bool = False) -> Iterator[str]:
    """Yield the modules that a file imports, at any depth of its code.

    A name that a package re-exports leads to the module that defines it (``from nvdla.compiler.builder import Network``
    to nvdla.compiler.builder.network, ``nvdla.load`` after ``import nvdla`` to nvdla.loadable). A module named in a
    string for importlib ("nvdla.emulator.firmware.sdp:SdpDriver") counts as imported. Modules that a registry finds in
    a directory (:mod:`nvdla.util.registry`) do not.

    Args:
        path: The file.
        known: All modules of the project.
        types: Whether imports below ``if TYPE_CHECKING`` count, too.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _nodes(tree, types):
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
    """Return the module that ``from module import name`` leads to."""
    if f"{module}.{name}" in known:
        return f"{module}.{name}"
    if module == "nvdla":
        return _home(name)
    if module in known and known[module].name == "__init__.py":
        return _reexports(known[module]).get(name, module)
    return module


@cache
def _reexports(package: Path) -> dict[str, str]:
    """Return {name: module} of the names that a package imports from its modules."""
    tree = ast.parse(package.read_text(encoding="utf-8"))
    found = [node for node in _nodes(tree, types=False) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in found for alias in node.names}


def _nodes(node: ast.AST, types: bool) -> Iterator[ast.AST]:
    """Yield all nodes of a syntax tree, those below ``if TYPE_CHECKING`` only if ``types``."""
    if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, types)


def _home(name: str) -> str:
    """Return the module that defines an attribute of the package ``nvdla``."""
    import nvdla

    exists = (ROOT / "nvdla" / name).is_dir() or (ROOT / "nvdla" / f"{name}.py").is_file()
    return nvdla._LAZY.get(name, f"nvdla.{name}" if exists else "nvdla.errors")


def package_of(module: str) -> str:
    """Return the package of a module, as the list of layers names it: "emulator.hardware", "analysis", "errors"."""
    parts = module.split(".")[1:]
    if not parts:
        return "__init__"
    if len(parts) == 1 or parts[0] not in GROUPS or parts[1] == "generated":
        return parts[0]
    is_subpackage = parts[0] in MARKERS or (ROOT / "nvdla" / parts[0] / parts[1]).is_dir()
    return ".".join(parts[:2]) if is_subpackage else parts[0]


@cache
def edges(types: bool = False) -> dict[str, set[str]]:
    """Return {module: modules of the project that it imports}."""
    known = modules()
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = {target for target in imports_of(path, known, types) if target.startswith("nvdla.")}
        found[name] = targets - {name}
    return found


def packages() -> dict[str, set[str]]:
    """Return {package: packages that it imports from}."""
    found: dict[str, set[str]] = {}
    for name, targets in edges().items():
        package = package_of(name)
        if package not in {"__init__", "__main__"}:
            found.setdefault(package, set()).update({package_of(target) for target in targets} - {package})
    return found


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the packages by layer, lowest first: one above the highest package that it imports from."""
    height: dict[str, int] = {}

    def of(package: str) -> int:
        if package not in height:
            height[package] = 1 + max((of(other) for other in graph.get(package, ())), default=-1)
        return height[package]

    for package in graph:
        of(package)
    return [sorted(name for name in graph if height[name] == level) for level in range(max(height.values()) + 1)]
